//! Ranks as threads, and the data of each.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use epwire::cuda::{CombineOutput, Completion, DispatchOutput, StreamRef, TensorMut, TensorRef};
use epwire::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use epwire::cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use epwire::prefill::{PrefillBuffer, PrefillConfig};
use epwire::{Combine, Device, Dispatch, EpBuffer, EpConfig, Group};
use half::bf16;

pub(crate) const PATIENT: Duration = Duration::from_secs(60);
pub(crate) const HIDDEN: usize = 512;
pub(crate) const LOCAL_EXPERTS: usize = 4;
pub(crate) const TOPK: usize = 3;
pub(crate) const MAX_TOKENS: usize = 48;

pub(crate) fn config(ranks: u32) -> EpConfig {
    let experts = LOCAL_EXPERTS as u32 * ranks;
    EpConfig::new(MAX_TOKENS as u32, HIDDEN as u32, experts, TOPK as u32).sideband_bytes(8).ordered(true)
}

/// Runs `body` on every rank with a buffer of its own, on the host or on the GPU with the rank's number, and returns
/// the results.
pub(crate) fn ranks<T: Send>(
    config: &EpConfig,
    ranks: u32,
    on_gpus: bool,
    body: impl Fn(&EpBuffer) -> T + Sync,
) -> Vec<T> {
    let make = |group: &_, device| EpBuffer::create_blocking(group, config.clone().device(device)).unwrap();
    on_ranks(ranks, on_gpus, make, body)
}

/// The same with a prefill buffer.
pub(crate) fn prefill_ranks<T: Send>(
    config: &PrefillConfig,
    ranks: u32,
    on_gpus: bool,
    body: impl Fn(&PrefillBuffer) -> T + Sync,
) -> Vec<T> {
    let make = |group: &_, device| {
        let config = config.clone().ep(config.ep.clone().device(device));
        PrefillBuffer::create_blocking(group, config).unwrap()
    };
    on_ranks(ranks, on_gpus, make, body)
}

/// The same with what `make` makes.
pub(crate) fn on_ranks<B, T: Send>(
    ranks: u32,
    on_gpus: bool,
    make: impl Fn(&Group, Device) -> B + Sync,
    body: impl Fn(&B) -> T + Sync,
) -> Vec<T> {
    let groups = Group::threads(ranks).unwrap();
    thread::scope(|scope| {
        let (make, body) = (&make, &body);
        let running: Vec<_> = groups
            .iter()
            .map(|group| {
                let device = if on_gpus { Device::Cuda(group.rank()) } else { Device::Host };
                scope.spawn(move || {
                    let buffer = make(group, device);
                    let result = body(&buffer);
                    // Nobody destroys its window while another rank still answers.
                    group.barrier_blocking("end").unwrap();
                    result
                })
            })
            .collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The GPU of a buffer.
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
}

impl Gpu {
    pub(crate) fn of(buffer: &EpBuffer) -> Self {
        Self::new(buffer.config().device)
    }

    pub(crate) fn new(device: Device) -> Self {
        let Device::Cuda(ordinal) = device else { panic!("a host buffer") };
        let context = CudaContext::new(ordinal as usize).unwrap();
        let stream = context.new_stream().unwrap();
        Self { context, stream }
    }

    pub(crate) fn put<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> CudaSlice<T> {
        self.stream.alloc_zeros(len).unwrap()
    }

    pub(crate) fn get<T: DeviceRepr>(&self, slice: &CudaSlice<T>) -> Vec<T> {
        self.stream.clone_dtoh(slice).unwrap()
    }

    pub(crate) fn begin_capture(&self) {
        self.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    }

    pub(crate) fn end_capture(&self) -> CudaGraph {
        self.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("a graph")
    }

    pub(crate) fn stream(&self) -> StreamRef<'_> {
        // SAFETY: tests drop their graphs before memory and buffers, and wait for replays.
        unsafe { StreamRef::capturing(&self.stream) }
    }

    pub(crate) fn view<'a, T: epwire::Element>(
        &'a self,
        slice: &'a CudaSlice<T>,
        cols: usize,
    ) -> TensorRef<'a> {
        TensorRef::from_slice(slice, cols, &self.stream)
    }

    pub(crate) fn view_mut<'a, T: epwire::Element>(&'a self, slice: &'a mut CudaSlice<T>) -> TensorMut<'a> {
        TensorMut::from_slice(slice, &self.stream)
    }
}

/// What a rank sends: half as many tokens as it may, plus a few, each to experts of its own choice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tokens {
    pub(crate) x: Vec<bf16>,
    pub(crate) ids: Vec<i32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) sideband: Vec<u8>,
}

impl Tokens {
    pub(crate) fn new(rank: u32, ranks: u32, seed: u64) -> Self {
        let mut random = Random(seed << 8 | u64::from(rank) | 1 << 40);
        let n = MAX_TOKENS / 2 + random.below(MAX_TOKENS / 2);
        let experts = LOCAL_EXPERTS * ranks as usize;
        let mut ids = Vec::new();
        for _ in 0..n {
            let first = random.below(experts);
            let step = 1 + random.below(experts / TOPK);
            let distinct =
                |k: usize| if k * step < experts { ((first + k * step) % experts) as i32 } else { -1 };
            ids.extend((0..TOPK).map(distinct));
        }
        Self {
            x: (0..n * HIDDEN).map(|_| random.bf16()).collect(),
            weights: (0..n * TOPK).map(|_| random.below(1000) as f32 / 997.0).collect(),
            sideband: (0..n * 8).map(|_| random.below(256) as u8).collect(),
            ids,
        }
    }

    /// Every token goes to two experts of its own with half weights, so the result is the input. Only the first
    /// `ranks` ranks have these experts.
    pub(crate) fn identity(rank: u32, ranks: u32) -> Self {
        let mut tokens = Self::new(rank, ranks, 3);
        let experts = LOCAL_EXPERTS * ranks as usize;
        for (token, ids) in tokens.ids.chunks_mut(TOPK).enumerate() {
            ids.copy_from_slice(&[(token % experts) as i32, ((token + 1) % experts) as i32, -1]);
        }
        tokens.weights.fill(0.5);
        tokens
    }

    pub(crate) fn len(&self) -> usize {
        self.x.len() / HIDDEN
    }
}

/// [`Tokens`] on a GPU.
pub(crate) struct OnGpu {
    pub(crate) x: CudaSlice<bf16>,
    pub(crate) ids: CudaSlice<i32>,
    pub(crate) weights: CudaSlice<f32>,
}

impl OnGpu {
    pub(crate) fn new(gpu: &Gpu, tokens: &Tokens) -> Self {
        Self { x: gpu.put(&tokens.x), ids: gpu.put(&tokens.ids), weights: gpu.put(&tokens.weights) }
    }

    pub(crate) fn dispatch<'a>(&'a self, gpu: &'a Gpu) -> Dispatch<'a, TensorRef<'a>> {
        Dispatch::new(gpu.view(&self.x, HIDDEN), gpu.view(&self.ids, TOPK))
            .weights(gpu.view(&self.weights, TOPK))
    }
}

/// The outputs of a dispatch.
pub(crate) struct Received {
    pub(crate) rows: CudaSlice<bf16>,
    counts: CudaSlice<u32>,
}

impl Received {
    pub(crate) fn new(gpu: &Gpu, buffer: &EpBuffer) -> Self {
        let rows = gpu.zeros(LOCAL_EXPERTS * buffer.plan().rows * HIDDEN);
        Self { rows, counts: gpu.zeros(LOCAL_EXPERTS) }
    }

    pub(crate) fn output<'a>(&'a mut self, gpu: &'a Gpu) -> DispatchOutput<'a> {
        DispatchOutput::new(gpu.view_mut(&mut self.rows), gpu.view_mut(&mut self.counts))
    }
}

/// What a step of a rank reads and writes, in the same memory each time.
pub(crate) struct Step {
    pub(crate) sent: OnGpu,
    pub(crate) received: Received,
    pub(crate) out: CudaSlice<bf16>,
}

impl Step {
    pub(crate) fn new(gpu: &Gpu, buffer: &EpBuffer, tokens: &Tokens) -> Self {
        let (sent, received) = (OnGpu::new(gpu, tokens), Received::new(gpu, buffer));
        Self { sent, received, out: gpu.zeros(tokens.x.len()) }
    }

    /// Experts return their input. `None`: any lane.
    pub(crate) fn enqueue(&mut self, gpu: &Gpu, buffer: &EpBuffer, lane: Option<u32>) -> Completion {
        let input = self.sent.dispatch(gpu);
        let input = if let Some(lane) = lane { input.lane(lane) } else { input };
        let dispatched = buffer.enqueue_dispatch(input, self.received.output(gpu), gpu.stream()).unwrap();
        let input = Combine::new(gpu.view(&self.received.rows, HIDDEN));
        let output = CombineOutput::new(gpu.view_mut(&mut self.out));
        dispatched.enqueue_combine(input, output, gpu.stream()).unwrap()
    }
}

/// xorshift64*
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end.max(1)
    }

    pub(crate) fn bf16(&mut self) -> bf16 {
        bf16::from_f32(self.below(2001) as f32 / 64.0 - 15.0)
    }
}
