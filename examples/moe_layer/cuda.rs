//! The exchange on a GPU: tokens, what dispatch delivers, the experts and what combine returns are in its memory.
//!
//! A layer is enqueued on one stream as a whole, and the host waits once, at its end. Everything here is used on that stream
//! alone, so the order of the calls is all the synchronisation there is.

use std::{sync::Arc, time::Duration};

use epwire::{
    Combine, Device, Dispatch, EpBuffer, Group, Layout, Payload, RowShape, ScaleOrder,
    cuda::{CombineOutput, Completion, DispatchOutput, Dispatched, TensorMut, TensorRef},
    cudarc::driver::{
        CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, ValidAsZeroBits,
        sys,
    },
};
use half::{bf16, f16};

use crate::{
    args::Args,
    exchange::{Half, Settings, complete, paths},
    gpus::gpus,
    kernels::{self, Kernels, LayerArgument},
    model::{Float16, Layer, Model, Routing},
    report::RankReport,
    run::{Exchange, Result},
};

/// An exchange on the GPU with the number `local_rank`; ranks share GPUs if there are fewer.
pub fn connect(group: &Group, args: &Args, model: &Model, local_rank: u32) -> Result<Box<dyn Exchange>> {
    let ordinal = local_rank % gpus()?;
    Ok(match args.dtype() {
        Float16::Bf16 => Box::new(CudaExchange::<bf16>::new(group, args, model, ordinal)?),
        Float16::F16 => Box::new(CudaExchange::<f16>::new(group, args, model, ordinal)?),
    })
}

/// Of tokens and expert outputs of type `T`. Sizes: E local experts, R = ranks * max_tokens rows, H and I channels outside
/// and inside an expert, K experts per token.
struct CudaExchange<T: Half> {
    buffer: EpBuffer,
    settings: Settings,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    /// Of each layer, this rank's experts.
    weights: Vec<Weights>,
    intermediate: u32,
    /// `[max_tokens, H]`, and `[max_tokens, K]` each.
    x: CudaSlice<T>,
    topk_idx: CudaSlice<i32>,
    topk_weights: CudaSlice<f32>,
    /// What dispatch delivers: `[E]`, `[ranks]`, and what depends on the layout.
    counts: CudaSlice<u32>,
    source_counts: CudaSlice<u32>,
    received: Received,
    /// `[E, R, I]` and `[E, R, H]`: of the experts.
    inner: CudaSlice<f32>,
    outputs: CudaSlice<T>,
    /// `[max_tokens, H]`: what combine delivers.
    combined: CudaSlice<T>,
}

/// `gate` and `up` `[E, H, I]`, `down` `[E, I, H]`.
struct Weights {
    gate: CudaSlice<f32>,
    up: CudaSlice<f32>,
    down: CudaSlice<f32>,
}

enum Received {
    /// `[E, R, ...]`: payload and, of FP8, scales.
    ExpertMajor { rows: CudaSlice<u8>, scales: Option<CudaSlice<u8>> },
    /// `[R, K]`, `[R, K]` and `[E, R]`. The rows stay in the window.
    RankMajor { row_experts: CudaSlice<i32>, row_weights: CudaSlice<f32>, expert_rows: CudaSlice<u32> },
}

impl<T: Half + DeviceRepr + ValidAsZeroBits> CudaExchange<T> {
    fn new(group: &Group, args: &Args, model: &Model, ordinal: u32) -> Result<Self> {
        let shape = model.shape;
        let settings = Settings::new(args, shape, Device::Cuda(ordinal));
        let on_gpu = |error: DriverError| format!("GPU {ordinal}: {error}");
        let stream = CudaContext::new(ordinal as usize).and_then(|gpu| gpu.new_stream()).map_err(on_gpu)?;
        let kernels = Kernels::load(&stream).map_err(|error| {
            format!(
                "GPU {ordinal} does not take experts.ptx, made for compute capability 9.0 or newer: {error}"
            )
        })?;
        let buffer = EpBuffer::create_blocking(group, settings.config.clone())?;

        let (experts, rows) = (buffer.plan().local_experts as usize, buffer.plan().rows);
        let (ranks, first) = (buffer.ranks() as usize, buffer.rank() as usize * experts);
        let weights = model.layers.iter().map(|layer| Weights::upload(layer, first, experts, &stream));
        let row = RowShape::new(&settings.config, buffer.ranks(), settings.payload)?;
        let received = match settings.layout {
            Layout::ExpertMajor => Received::ExpertMajor {
                rows: stream.alloc_zeros(row.expert_rows_bytes)?,
                scales: match row.expert_scales_bytes {
                    0 => None,
                    bytes => Some(stream.alloc_zeros(bytes)?),
                },
            },
            _ => Received::RankMajor {
                row_experts: stream.alloc_zeros(rows * shape.topk)?,
                row_weights: stream.alloc_zeros(rows * shape.topk)?,
                expert_rows: stream.alloc_zeros(experts * rows)?,
            },
        };
        Ok(Self {
            weights: weights.collect::<std::result::Result<_, _>>()?,
            intermediate: shape.intermediate as u32,
            x: stream.alloc_zeros(args.max_tokens * shape.hidden)?,
            topk_idx: stream.alloc_zeros(args.max_tokens * shape.topk)?,
            topk_weights: stream.alloc_zeros(args.max_tokens * shape.topk)?,
            counts: stream.alloc_zeros(experts)?,
            source_counts: stream.alloc_zeros(ranks)?,
            received,
            inner: stream.alloc_zeros(experts * rows * shape.intermediate)?,
            outputs: stream.alloc_zeros(experts * rows * shape.hidden)?,
            combined: stream.alloc_zeros(args.max_tokens * shape.hidden)?,
            buffer,
            settings,
            stream,
            kernels,
        })
    }

    fn hidden(&self) -> usize {
        self.settings.config.hidden as usize
    }

    fn dispatch(&mut self, x: &[u16], routing: &Routing) -> Result<Dispatched> {
        let (hidden, k, stream) = (self.hidden(), routing.topk, &self.stream);
        let entries = routing.topk_idx.len();
        if entries > 0 {
            stream.memcpy_htod(T::from_bits(x), &mut self.x.slice_mut(..x.len()))?;
            stream.memcpy_htod(&routing.topk_idx, &mut self.topk_idx.slice_mut(..entries))?;
            stream.memcpy_htod(&routing.topk_weights, &mut self.topk_weights.slice_mut(..entries))?;
        }
        let x = self.x.slice(..x.len());
        let topk_idx = self.topk_idx.slice(..entries);
        let topk_weights = self.topk_weights.slice(..entries);
        let input = Dispatch::new(
            TensorRef::from_view(&x, hidden, stream),
            TensorRef::from_view(&topk_idx, k, stream),
        )
        .weights(TensorRef::from_view(&topk_weights, k, stream))
        .payload(self.settings.payload)
        .layout(self.settings.layout);

        let output = DispatchOutput::default()
            .scale_order(ScaleOrder::RowMajor)
            .counts(TensorMut::from_slice(&mut self.counts, stream))
            .source_counts(TensorMut::from_slice(&mut self.source_counts, stream));
        let output = match &mut self.received {
            Received::ExpertMajor { rows, scales } => {
                let output = output.rows(TensorMut::from_slice(rows, stream));
                match scales {
                    Some(scales) => output.scales(TensorMut::from_slice(scales, stream)),
                    None => output,
                }
            }
            Received::RankMajor { row_experts, row_weights, expert_rows } => output
                .row_experts(TensorMut::from_slice(row_experts, stream))
                .row_weights(TensorMut::from_slice(row_weights, stream))
                .expert_rows(TensorMut::from_slice(expert_rows, stream)),
        };
        if !self.settings.split {
            return Ok(self.buffer.enqueue_dispatch(input, output, stream.into())?);
        }
        let sent = self.buffer.enqueue_dispatch_send(input, stream.into())?;
        // Here a server enqueues what needs no other rank: shared experts, the attention of another batch. It has all SMs.
        Ok(sent.enqueue_receive(output, stream.into()).map_err(epwire::Error::from)?)
    }

    /// Enqueues this rank's experts on what was received: to `outputs`, or (rank-major) to the places of the rows.
    fn experts(&self, layer: &Layer, dispatched: &Dispatched) -> Result<()> {
        let argument = self.argument(layer, dispatched)?;
        // SAFETY: the addresses are those of `self`'s slices, which have the sizes that the kernels take them for and are used on
        // this stream alone, and of window rows, which are this rank's while `dispatched` is live.
        unsafe { self.kernels.experts(&argument, self.buffer.plan().local_experts) }?;
        if self.settings.layout == Layout::RankMajor {
            // SAFETY: as above.
            unsafe { self.kernels.reduce(&argument) }?;
        }
        Ok(())
    }

    fn argument(&self, layer: &Layer, dispatched: &Dispatched) -> Result<LayerArgument> {
        let config = &self.settings.config;
        let rows = self.buffer.plan().rows;
        let weights = &self.weights[layer.index];
        let common = LayerArgument {
            counts: self.address(&self.counts),
            gate: self.address(&weights.gate),
            up: self.address(&weights.up),
            down: self.address(&weights.down),
            inner: self.address(&self.inner),
            outputs: self.address(&self.outputs),
            places: u32::try_from(rows)?,
            hidden: config.hidden,
            intermediate: self.intermediate,
            topk: config.topk,
            max_tokens: config.max_tokens,
            payload: match (self.settings.payload, T::MODEL) {
                (Payload::Fp8 { .. }, _) => kernels::FP8,
                (_, Float16::Bf16) => kernels::BF16,
                (_, Float16::F16) => kernels::F16,
            },
            ..LayerArgument::default()
        };
        Ok(match &self.received {
            Received::ExpertMajor { rows: payload, scales } => {
                let shape = RowShape::new(config, self.buffer.ranks(), self.settings.payload)?;
                let (row_bytes, scale_bytes) = (shape.payload_bytes, shape.scale_count * shape.scale_bytes);
                LayerArgument {
                    rows: self.address(payload),
                    row_stride: row_bytes as u64,
                    rows_expert_stride: (rows * row_bytes) as u64,
                    scales: scales.as_ref().map_or(0, |scales| self.address(scales)),
                    scale_stride: scale_bytes as u64,
                    scales_expert_stride: (rows * scale_bytes) as u64,
                    ..common
                }
            }
            Received::RankMajor { row_experts, row_weights, expert_rows } => {
                let (window, answers) = (dispatched.rows()?, dispatched.combine_rows()?);
                LayerArgument {
                    rows: window.rows,
                    row_stride: window.stride as u64,
                    scales: window.scales.unwrap_or(0),
                    scale_stride: window.stride as u64,
                    expert_rows: self.address(expert_rows),
                    source_counts: self.address(&self.source_counts),
                    row_experts: self.address(row_experts),
                    row_weights: self.address(row_weights),
                    answers: answers.rows,
                    answer_stride: answers.stride as u64,
                    ..common
                }
            }
        })
    }

    /// For kernels on this exchange's stream, the only one that uses the slice: cudarc's guard is not needed.
    fn address<U>(&self, slice: &CudaSlice<U>) -> u64 {
        slice.device_ptr(&self.stream).0
    }

    fn combine(&mut self, dispatched: Dispatched) -> Result<Completion> {
        let stream = &self.stream;
        let input = match self.settings.layout {
            Layout::ExpertMajor => {
                let hidden = self.settings.config.hidden as usize;
                Combine::new(TensorRef::from_slice(&self.outputs, hidden, stream))
            }
            _ => Combine::in_place(),
        }
        .mode(self.settings.mode);
        let output = CombineOutput::new(TensorMut::from_slice(&mut self.combined, stream));
        if !self.settings.split {
            return Ok(dispatched
                .enqueue_combine(input, output, stream.into())
                .map_err(epwire::Error::from)?);
        }
        let sent = dispatched.enqueue_combine_send(input, stream.into()).map_err(epwire::Error::from)?;
        Ok(sent.enqueue_receive(output, stream.into()).map_err(epwire::Error::from)?)
    }

    /// Waits for the GPU, and fails if rows are missing or an id was not followed.
    fn finish(&self, completion: &Completion) -> Result<()> {
        // Dispatch and combine, each with two halves of at most four deadlines, and the experts.
        let limit = self.settings.config.deadline * 16 + EXPERTS_LIMIT;
        completion.wait_blocking(limit)?;
        complete(&completion.outcome()?.ok_or("a combine that has run has no outcome")?)?;
        match self.buffer.take_errors()?.records.first() {
            Some(record) => Err(record.to_string().into()),
            None => Ok(()),
        }
    }

    fn mark(&self) -> std::result::Result<CudaEvent, DriverError> {
        self.stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
    }
}

impl<T: Half + DeviceRepr + ValidAsZeroBits> Exchange for CudaExchange<T> {
    fn paths(&self) -> Vec<String> {
        paths(&self.buffer)
    }

    fn nic(&self) -> Option<String> {
        self.buffer.nic()
    }

    fn forward(
        &mut self,
        layer: &Layer,
        x: &[u16],
        routing: &Routing,
        report: &mut RankReport,
    ) -> Result<Vec<u16>> {
        let begin = self.mark()?;
        let dispatched = self.dispatch(x, routing)?;
        let arrived = self.mark()?;
        self.experts(layer, &dispatched)?;
        let computed = self.mark()?;
        let completion = self.combine(dispatched)?;
        let end = self.mark()?;
        self.finish(&completion)?;

        let seconds = |from: &CudaEvent, to: &CudaEvent| from.elapsed_ms(to).map(|ms| f64::from(ms) / 1e3);
        report.dispatch_seconds += seconds(&begin, &arrived)?;
        report.experts_seconds += seconds(&arrived, &computed)?;
        report.combine_seconds += seconds(&computed, &end)?;
        let (source_counts, counts) =
            (self.stream.clone_dtoh(&self.source_counts)?, self.stream.clone_dtoh(&self.counts)?);
        self.settings.count(routing, &source_counts, &counts, report)?;
        if x.is_empty() {
            return Ok(Vec::new());
        }
        Ok(T::bits(&self.stream.clone_dtoh(&self.combined.slice(..x.len()))?).to_vec())
    }

    fn payload(&self, x: &[u16]) -> Result<Vec<f32>> {
        self.settings.received_values::<T>(x)
    }
}

impl Weights {
    /// The weights of `count` experts of `layer` from `first` on.
    fn upload(
        layer: &Layer,
        first: usize,
        count: usize,
        stream: &Arc<CudaStream>,
    ) -> std::result::Result<Self, DriverError> {
        let [mut gate, mut up, mut down] = [const { Vec::new() }; 3];
        for expert in &layer.experts[first..][..count] {
            let [own_gate, own_up, own_down] = expert.weights();
            gate.extend(own_gate);
            up.extend(own_up);
            down.extend(own_down);
        }
        Ok(Self {
            gate: stream.clone_htod(&gate)?,
            up: stream.clone_htod(&up)?,
            down: stream.clone_htod(&down)?,
        })
    }
}

/// Far more than the experts of a layer take.
const EXPERTS_LIMIT: Duration = Duration::from_secs(60);
