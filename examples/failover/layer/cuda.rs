//! The layer on a GPU: captured once as a graph, which is replayed through all changes of the membership.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use epwire::{
    Combine, Device, Dispatch, EpBuffer, EpConfig, Group, Layout, Mask,
    cuda::{CombineOutput, DispatchOutput, StreamRef, TensorMut, TensorRef},
    cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, result, sys},
    group::Step,
};
use half::bf16;

use super::{HIDDEN, Layer, TOKENS, check_sums, counts, ids, value};
use crate::{Result, gpus::gpus};

pub struct CudaLayer {
    buffer: EpBuffer,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Captured in this rank's first step.
    graph: Option<CudaGraph>,
    limit: Duration,
    /// `[tokens, hidden]`, as `out`.
    x: CudaSlice<bf16>,
    /// `[tokens, ranks]`, as the weights.
    ids: CudaSlice<i32>,
    weights: CudaSlice<f32>,
    out: CudaSlice<bf16>,
    /// `[tokens]` pairs: arrived, expected.
    contributions: CudaSlice<u16>,
}

impl CudaLayer {
    /// On the GPU with the number of the rank; ranks share GPUs if there are fewer.
    pub fn new(group: &Group, config: EpConfig, slower: u32) -> Result<Self> {
        let ordinal = group.rank() % gpus()?;
        let context = CudaContext::new(ordinal as usize)?;
        // SAFETY: all memory here is used on one stream, and waited for before it is freed.
        unsafe { context.disable_event_tracking() };
        let (stream, ranks) = (context.new_stream()?, config.experts as usize);
        let config = config
            .device(Device::Cuda(ordinal))
            // Processes that share a GPU take turns of some milliseconds each.
            .deadline(Duration::from_secs(1) * slower)
            .sms(SMS);
        let layer = Self {
            x: stream.alloc_zeros(TOKENS * HIDDEN)?,
            ids: stream.clone_htod(&ids(config.experts))?,
            weights: stream.clone_htod(&vec![1.0; TOKENS * ranks])?,
            out: stream.alloc_zeros(TOKENS * HIDDEN)?,
            contributions: stream.alloc_zeros(2 * TOKENS)?,
            graph: None,
            limit: LIMIT * slower,
            buffer: EpBuffer::create_blocking(group, config)?,
            context,
            stream,
        };
        layer.finish()?;
        Ok(layer)
    }

    fn capture(&mut self) -> Result<CudaGraph> {
        self.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let enqueued = self.enqueue();
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        enqueued?;
        Ok(graph?.ok_or("a capture has given no graph")?)
    }

    fn enqueue(&mut self) -> Result<()> {
        let (ranks, stream) = (self.buffer.ranks() as usize, &self.stream);
        let x = TensorRef::from_slice(&self.x, HIDDEN, stream);
        let input = Dispatch::new(x, TensorRef::from_slice(&self.ids, ranks, stream))
            .weights(TensorRef::from_slice(&self.weights, ranks, stream))
            .layout(Layout::RankMajor);
        // SAFETY: the graph is dropped with the memory and the buffer, before which its replays have ended: see `run`.
        let on = unsafe { StreamRef::capturing(stream) };
        let dispatched = self.buffer.enqueue_dispatch(input, DispatchOutput::default(), on)?;
        // The experts of a server run here, on the rows in the window, and write their sums over them.
        let output = CombineOutput::new(TensorMut::from_slice(&mut self.out, stream))
            .contributions(TensorMut::from_slice(&mut self.contributions, stream));
        let combined = dispatched.enqueue_combine(Combine::in_place(), output, on);
        combined.map_err(epwire::Error::from)?;
        Ok(())
    }

    /// Returns when the GPU has run everything enqueued.
    fn finish(&self) -> Result<()> {
        let (end, began) = (self.stream.record_event(None)?, Instant::now());
        while !end.try_is_complete()? {
            if began.elapsed() > self.limit {
                let limit = self.limit;
                return Err(format!("the GPU has not run within {limit:?} what was enqueued").into());
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}

impl Layer for CudaLayer {
    fn buffer(&self) -> &EpBuffer {
        &self.buffer
    }

    fn run(&mut self, step: &Step) -> Result<Mask> {
        let graph = match self.graph.take() {
            Some(graph) => graph,
            None => self.capture()?,
        };
        let x = vec![bf16::from_f32(value(step)); TOKENS * HIDDEN];
        self.stream.memcpy_htod(&x, &mut self.x)?;
        graph.launch()?;
        self.graph = Some(graph);
        self.finish()?;
        let contributions = self.stream.clone_dtoh(&self.contributions)?;
        let arrived = || contributions.chunks(2).map(|pair| usize::from(pair[0]));
        check_sums(step, &self.stream.clone_dtoh(&self.out)?, arrived())?;
        let membership = self.buffer.membership()?;
        // Records of kernels about peers that were given up; the membership shows them too.
        drop(self.buffer.take_errors()?);
        Ok(if arrived().eq(counts(&membership.active)) { Mask::EMPTY } else { membership.suspects })
    }

    fn free_memory(&self) -> Result<Option<u64>> {
        self.context.bind_to_thread()?;
        let (free, _) = result::mem_get_info()?;
        Ok(Some(free as u64))
    }
}

/// Enough for so few tokens.
const SMS: u32 = 16;

/// Far more than an operation that waits for lost peers takes, unless the machine is slower.
const LIMIT: Duration = Duration::from_secs(30);
