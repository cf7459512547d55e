//! The exchange over epwire: dispatch the tokens, run the experts of this rank on what came, combine their outputs.
//!
//! This is the part to read for how an [`EpBuffer`] is used.

use std::time::{Duration, Instant};

use epwire::{
    Combine, CombineMode, CombineOutput, Device, Dispatch, DispatchBuffers, Dispatched, Element, EpBuffer,
    EpConfig, Fp8Scale, Group, HostBuffer, Layout, Outcome, Payload, RowShape, ScaleOrder, TensorMut,
    TensorRef, dequantize_fp8, quantize_fp8,
};
use half::{
    bf16, f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
};

use crate::{
    args::{self, Args},
    experts::{self, RankMajorRows},
    model::{Expert, Float16, Layer, Model, Routing, Shape},
    report::RankReport,
    run::{Exchange, Result},
};

/// Creates this rank's buffer, connects it to those of the group, and makes an exchange of it. `local_rank` among those of
/// this host decides on the GPU.
pub fn connect(group: &Group, args: &Args, model: &Model, local_rank: u32) -> Result<Box<dyn Exchange>> {
    match (args.device, args.dtype()) {
        (args::Device::Host, Float16::Bf16) => {
            Ok(Box::new(EpExchange::<bf16>::new(group, args, model.shape)?))
        }
        (args::Device::Host, Float16::F16) => Ok(Box::new(EpExchange::<f16>::new(group, args, model.shape)?)),
        #[cfg(all(feature = "cuda", feature = "cudarc"))]
        (args::Device::Cuda, _) => crate::cuda::connect(group, args, model, local_rank),
        #[cfg(not(all(feature = "cuda", feature = "cudarc")))]
        (args::Device::Cuda, _) => Err(format!("local rank {local_rank}: {NO_CUDA}").into()),
    }
}

/// What is missing for the device that is asked for, before any rank waits for another.
pub fn check(device: args::Device) -> Result<()> {
    match device {
        args::Device::Host => Ok(()),
        #[cfg(all(feature = "cuda", feature = "cudarc"))]
        args::Device::Cuda => Ok(crate::gpus::gpus().map(drop)?),
        #[cfg(not(all(feature = "cuda", feature = "cudarc")))]
        args::Device::Cuda => Err(NO_CUDA.into()),
    }
}

#[cfg(not(all(feature = "cuda", feature = "cudarc")))]
const NO_CUDA: &str = "--device cuda is not in this build: build the example with `--features cuda,cudarc`, \
                       which needs a CUDA toolkit, or use --device host";

/// What the command line asks of epwire.
#[derive(Debug, Clone)]
pub struct Settings {
    pub config: EpConfig,
    pub payload: Payload,
    pub layout: Layout,
    pub mode: CombineMode,
    pub split: bool,
}

impl Settings {
    pub fn new(args: &Args, shape: Shape, device: Device) -> Self {
        let float = match args.dtype() {
            Float16::Bf16 => epwire::Float16::Bf16,
            Float16::F16 => epwire::Float16::F16,
        };
        let payload = match args.payload {
            args::Payload::Bf16 | args::Payload::F16 => Payload::SameAsInput,
            args::Payload::Fp8 => Payload::Fp8 { scale: SCALE },
        };
        let layout = match args.layout {
            args::Layout::ExpertMajor => Layout::ExpertMajor,
            args::Layout::RankMajor => Layout::RankMajor,
        };
        let mode = match args.combine {
            args::Combine::Reduced => CombineMode::RankReduced,
            args::Combine::Ordered => CombineMode::Ordered,
        };
        let Shape { hidden, experts, topk, .. } = shape;
        let config = EpConfig::new(args.max_tokens as u32, hidden as u32, experts as u32, topk as u32)
            .dtype(float)
            .combine_dtype(float)
            .ordered(mode == CombineMode::Ordered)
            .device(device)
            .deadline(Duration::from_secs(args.deadline));
        Self { config, payload, layout, mode, split: args.split }
    }

    /// The values that experts receive for rows `x` `[n, hidden]`.
    pub fn received_values<T: Half>(&self, x: &[u16]) -> Result<Vec<f32>> {
        let Payload::Fp8 { scale } = self.payload else { return Ok(T::MODEL.widen(x)) };
        let hidden = self.config.hidden as usize;
        let mut q = vec![0; x.len()];
        let mut scales = HostBuffer::<u8>::zeroed(x.len() / 128 * size_of::<f32>());
        let x = TensorRef::new(T::from_bits(x), hidden);
        quantize_fp8(x, scale, &mut q, &mut TensorMut::new(&mut scales))?;
        values::<T>(self.payload, &q, &scales, hidden)
    }

    /// Adds a layer's rows and bytes to `report`: sent by `routing`, received as `source_counts` `[ranks]` and `counts` `[E]` say.
    pub fn count(
        &self,
        routing: &Routing,
        source_counts: &[u32],
        counts: &[u32],
        report: &mut RankReport,
    ) -> epwire::Result<()> {
        let shape = RowShape::new(&self.config, source_counts.len() as u32, self.payload)?;
        let sent: usize = (routing.topk_idx.chunks_exact(routing.topk))
            .map(|ids| {
                let mut ranks: Vec<usize> = ids.iter().map(|&id| id as usize / counts.len()).collect();
                ranks.sort_unstable();
                ranks.dedup();
                ranks.len()
            })
            .sum();
        let received: u32 = source_counts.iter().sum();
        let answered = match self.mode {
            CombineMode::Ordered => counts.iter().sum(),
            _ => received,
        };
        report.rows_sent += sent as u64;
        report.rows_received += u64::from(received);
        report.bytes += (sent * (shape.payload_bytes + shape.scale_count * shape.scale_bytes)) as u64;
        report.bytes += u64::from(answered) * 2 * u64::from(self.config.hidden);
        Ok(())
    }
}

/// Of tokens and expert outputs of type `T`. Sizes: E local experts, M = ranks * max_tokens rows, H channels.
struct EpExchange<T: Half> {
    buffer: EpBuffer,
    settings: Settings,
    /// What dispatch delivers, in memory used again for every layer.
    received: DispatchBuffers,
    /// `[E, M, H]`: what the experts give. Rank-major: empty, they write into the window.
    outputs: HostBuffer<T>,
    /// `[max_tokens, H]`: what combine delivers.
    combined: HostBuffer<T>,
}

impl<T: Half> EpExchange<T> {
    fn new(group: &Group, args: &Args, shape: Shape) -> epwire::Result<Self> {
        let settings = Settings::new(args, shape, Device::Host);
        let buffer = EpBuffer::create_blocking(group, settings.config.clone())?;
        let received = buffer.dispatch_buffers(settings.payload, settings.layout, 0)?;
        let plan = buffer.plan();
        let outputs = match settings.layout {
            Layout::ExpertMajor => plan.local_experts as usize * plan.rows * shape.hidden,
            _ => 0,
        };
        Ok(Self {
            outputs: HostBuffer::zeroed(outputs),
            combined: HostBuffer::zeroed(args.max_tokens * shape.hidden),
            buffer,
            settings,
            received,
        })
    }

    fn hidden(&self) -> usize {
        self.buffer.config().hidden as usize
    }

    fn dispatch(&mut self, x: &[u16], routing: &Routing) -> epwire::Result<Dispatched> {
        let input = Dispatch::new(
            TensorRef::new(T::from_bits(x), self.hidden()),
            TensorRef::new(&routing.topk_idx, routing.topk),
        )
        .weights(TensorRef::new(&routing.topk_weights, routing.topk))
        .payload(self.settings.payload)
        .layout(self.settings.layout);
        let output = self.received.output().scale_order(ScaleOrder::RowMajor);
        if !self.settings.split {
            return self.buffer.dispatch_blocking(input, output);
        }
        let sent = self.buffer.dispatch_send_blocking(input)?;
        // Here a server runs what needs no other rank: shared experts, the attention of another batch. The event says
        // when to come back; as a future it can be awaited among others.
        sent.event().wait_blocking();
        Ok(sent.receive_blocking(output)?)
    }

    fn combine(&mut self, dispatched: Dispatched) -> epwire::Result<Outcome> {
        let input = match self.settings.layout {
            Layout::ExpertMajor => Combine::new(TensorRef::new(&self.outputs, self.hidden())),
            _ => Combine::in_place(),
        }
        .mode(self.settings.mode);
        let output = CombineOutput::new(TensorMut::new(&mut self.combined));
        if !self.settings.split {
            return Ok(dispatched.combine_blocking(input, output)?);
        }
        let sent = dispatched.combine_send(input)?;
        sent.event().wait_blocking();
        Ok(sent.receive_blocking(output)?)
    }

    /// Runs the experts from `received` to `outputs`.
    fn expert_major(&mut self, experts: &[Expert]) -> Result<()> {
        let hidden = self.hidden();
        let shape = RowShape::new(self.buffer.config(), self.buffer.ranks(), self.settings.payload)?;
        let (row_bytes, scale_bytes) = (shape.payload_bytes, shape.scale_count * shape.scale_bytes);
        let DispatchBuffers { rows, scales, counts, .. } = &self.received;
        let values = |first: usize, count: usize| {
            values::<T>(
                self.settings.payload,
                &rows[first * row_bytes..][..count * row_bytes],
                &scales[first * scale_bytes..][..count * scale_bytes],
                hidden,
            )
        };
        experts::expert_major(experts, counts, hidden, T::MODEL, &values, T::bits_mut(&mut self.outputs))
    }

    /// Runs the experts on the rows where they arrived, in the window, and writes the answers over them.
    fn rank_major(&self, dispatched: &mut Dispatched, experts: &[Expert]) -> Result<()> {
        let config = self.buffer.config();
        let received = RankMajorRows {
            source_counts: &self.received.source_counts,
            counts: &self.received.counts,
            expert_rows: &self.received.expert_rows,
            row_experts: &self.received.row_experts,
            row_weights: &self.received.row_weights,
            topk: config.topk as usize,
        };
        let absent = |source: u32, row: usize| format!("row {row} of rank {source} is not in the window");
        let view = dispatched.rows()?;
        let rows = |list: &[u32]| {
            let mut gathered = Vec::with_capacity(list.len() * self.hidden());
            for index in list {
                let (source, row) = (index / config.max_tokens, (index % config.max_tokens) as usize);
                let payload = view.row::<u8>(source, row).ok_or_else(|| absent(source, row))?;
                let scales = view.scales(source, row).unwrap_or_default();
                gathered.extend(values::<T>(self.settings.payload, payload, scales, self.hidden())?);
            }
            Ok(gathered)
        };
        let outputs = experts::rank_major(experts, received, T::MODEL, &rows)?;
        let mut answers = dispatched.combine_rows_mut()?;
        let answer = |source: u32, row: usize, sum: &[u16]| {
            let place = answers.rank_major::<T>(source, row).ok_or_else(|| absent(source, row))?;
            place.copy_from_slice(T::from_bits(sum));
            Ok(())
        };
        experts::reduce(&outputs, received, self.hidden(), T::MODEL, answer)
    }
}

/// How each rank is reached, itself included.
pub fn paths(buffer: &EpBuffer) -> Vec<String> {
    (0..buffer.ranks()).map(|rank| buffer.path(rank).to_string()).collect()
}

impl<T: Half> Exchange for EpExchange<T> {
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
        let local = self.buffer.plan().local_experts as usize;
        let own = &layer.experts[self.buffer.rank() as usize * local..][..local];

        let begin = Instant::now();
        let mut dispatched = self.dispatch(x, routing)?;
        complete(dispatched.outcome())?;
        let arrived = Instant::now();
        match self.settings.layout {
            Layout::ExpertMajor => self.expert_major(own)?,
            _ => self.rank_major(&mut dispatched, own)?,
        }
        let computed = Instant::now();
        complete(&self.combine(dispatched)?)?;

        report.dispatch_seconds += (arrived - begin).as_secs_f64();
        report.experts_seconds += (computed - arrived).as_secs_f64();
        report.combine_seconds += computed.elapsed().as_secs_f64();
        self.settings.count(routing, &self.received.source_counts, &self.received.counts, report)?;
        Ok(T::bits(&self.combined)[..x.len()].to_vec())
    }

    fn payload(&self, x: &[u16]) -> Result<Vec<f32>> {
        self.settings.received_values::<T>(x)
    }
}

/// The values of received rows `[m, H]`, from the bytes of their payload and scales.
fn values<T: Half>(payload: Payload, rows: &[u8], scales: &[u8], hidden: usize) -> Result<Vec<f32>> {
    if let Payload::Fp8 { scale } = payload {
        let mut values = HostBuffer::<T>::zeroed(rows.len());
        let scales = TensorRef::new(scales, scales.len());
        dequantize_fp8(rows, scale, scales, hidden, &mut TensorMut::new(&mut values))?;
        return Ok(T::MODEL.widen(T::bits(&values)));
    }
    let (values, _) = rows.as_chunks();
    Ok(values.iter().map(|&bytes| T::MODEL.value(u16::from_ne_bytes(bytes))).collect())
}

/// A degraded operation lacks rows, and this example has a use for all of them. A server would continue: with the tokens
/// that are whole, and after [`Group::step`](epwire::Group::step) has changed the membership without the ranks that are missing.
pub fn complete(outcome: &Outcome) -> Result<()> {
    if outcome.is_complete() {
        return Ok(());
    }
    let record = outcome.record.as_ref().map(ToString::to_string).unwrap_or_default();
    Err(format!("lost ranks {:?}; {record}", outcome.missing).into())
}

/// A 16-bit type as epwire takes it, and as the model keeps it: as bits.
pub trait Half: Element {
    const MODEL: Float16;
    fn from_bits(bits: &[u16]) -> &[Self];
    fn bits(values: &[Self]) -> &[u16];
    fn bits_mut(values: &mut [Self]) -> &mut [u16];
}

macro_rules! half {
    ($($type:ty => $model:ident),*) => {$(
        impl Half for $type {
            const MODEL: Float16 = Float16::$model;

            fn from_bits(bits: &[u16]) -> &[Self] {
                bits.reinterpret_cast()
            }

            fn bits(values: &[Self]) -> &[u16] {
                values.reinterpret_cast()
            }

            fn bits_mut(values: &mut [Self]) -> &mut [u16] {
                values.reinterpret_cast_mut()
            }
        }
    )*};
}
half!(bf16 => Bf16, f16 => F16);

/// The kind of FP8 scales.
const SCALE: Fp8Scale = Fp8Scale::F32;
