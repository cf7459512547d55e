//! A prefill buffer and its memory on a rank's GPU.

use epwire::cuda::{PrefillCombineOutput, PrefillOutput, Routing, StreamRef, TensorMut, TensorRef};
use epwire::cudarc::driver::CudaSlice;
use epwire::prefill::{PrefillBuffer, PrefillCombine, PrefillLayout};
use epwire::{DType, Device, Float16, Group, Path, Payload, ScaleOrder};

use super::gpu::Gpu;
use super::subject::{Between, Subject};
use super::sums::Sums;
use super::tokens::Tokens;
use crate::Error;
use crate::args::{Args, Layout, Shape};
use crate::cases::Case;
use crate::expected::{ALIGNMENT, Expected};
use crate::pattern::Memory;

pub struct Prefill<'g> {
    buffer: PrefillBuffer,
    expected: Expected,
    gpu: &'g Gpu,
    tokens: Tokens<'g>,
    sums: Sums<'g>,
    device: OnDevice,
    host: OnHost,
}

/// Memory of the GPU. Freed when the stream has come past its uses.
struct OnDevice {
    /// `[tokens, hidden]`
    out: CudaSlice<u8>,
    /// `[places, payload]`
    rows: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    /// `[local_experts]`, dense `[ranks]`.
    counts: CudaSlice<u8>,
    /// `[places]`, dense `[places, topk]`.
    row_experts: CudaSlice<u8>,
    row_weights: CudaSlice<u8>,
    /// `[places, hidden]`
    outputs: CudaSlice<u8>,
}

/// Where it comes from and goes to on the host.
struct OnHost {
    out: Memory,
    outputs: Memory,
    rows: Vec<u8>,
    scales: Vec<u8>,
    counts: Vec<u32>,
}

impl<'g> Prefill<'g> {
    /// All ranks call it with the same shapes in the same order.
    pub fn new(gpu: &'g Gpu, group: &Group, args: &Args, shape: Shape) -> Result<Self, Error> {
        let config = shape.prefill(args, Device::Cuda(gpu.ordinal));
        let buffer = PrefillBuffer::create_blocking(group, config)?;
        let plan = *buffer.plan();
        let expected = Expected::of_prefill(args, shape, group.rank(), &plan);
        let (n, k, hidden) = (shape.tokens as usize, shape.topk as usize, shape.hidden as usize);
        let places = expected.places();
        let (payload, blocks) = shape.payload.row(shape.hidden);
        let (rows, scales) = (places * payload, places.next_multiple_of(4) * blocks * 4);
        let counts = if shape.layout == Layout::Dense { plan.ranks } else { plan.local_experts } as usize;
        let device = OnDevice {
            out: gpu.zeroed(n * hidden * 2)?,
            rows: gpu.zeroed(rows)?,
            scales: gpu.zeroed(scales)?,
            counts: gpu.zeroed(counts * 4)?,
            row_experts: gpu.zeroed(places * k * 4)?,
            row_weights: gpu.zeroed(places * k * 4)?,
            outputs: gpu.zeroed(places * hidden * 2)?,
        };
        let host = OnHost {
            out: Memory::zeroed(n * hidden),
            outputs: Memory::zeroed(places * hidden),
            rows: vec![0; rows],
            scales: vec![0; scales],
            counts: vec![0; counts],
        };
        let tokens = Tokens::new(gpu, &expected)?;
        let sums = Sums::new(gpu, args, plan.local_experts, plan.ranks)?;
        Ok(Self { buffer, expected, gpu, tokens, sums, device, host })
    }

    fn stream(&self) -> StreamRef<'_> {
        self.gpu.capturing()
    }

    fn dtype(&self) -> DType {
        if self.expected.dtype == Float16::Bf16 { DType::Bf16 } else { DType::F16 }
    }

    /// All of a matrix that has this many columns.
    fn view(&self, memory: &CudaSlice<u8>, dtype: DType, rows: usize, cols: usize) -> TensorRef<'_> {
        let address = self.gpu.address(memory);
        // SAFETY: allocated with this many rows; it lives as long as the subject, which outlives its graphs, and is written in
        // the order of the one stream that everything here is enqueued on.
        unsafe { TensorRef::from_raw(address, dtype, rows, cols, cols * dtype.bytes()) }
    }

    fn whole(&self, memory: &CudaSlice<u8>, dtype: DType) -> TensorMut<'_> {
        // SAFETY: all of an allocation, which lives as long as the subject; used in the order of one stream.
        unsafe { TensorMut::from_raw(self.gpu.address(memory), dtype, memory.len() / dtype.bytes()) }
    }

    fn output(&self) -> PrefillOutput<'_> {
        let (shape, device) = (&self.expected.shape, &self.device);
        let capacity = self.expected.places();
        let output = if shape.layout == Layout::Dense {
            PrefillOutput::new(PrefillLayout::Dense, capacity)
                .scale_order(ScaleOrder::RowMajor)
                .source_counts(self.whole(&device.counts, DType::U32))
                .row_experts(self.whole(&device.row_experts, DType::I32))
                .row_weights(self.whole(&device.row_weights, DType::F32))
        } else {
            PrefillOutput::new(PrefillLayout::Packed { alignment: ALIGNMENT }, capacity)
                .counts(self.whole(&device.counts, DType::U32))
                .row_expert(self.whole(&device.row_experts, DType::I32))
        };
        let output = self.sums.of_prefill(output.rows(self.whole(&device.rows, DType::U8)));
        match shape.payload() {
            Payload::SameAsInput => output,
            _ => output.scales(self.whole(&device.scales, DType::U8)),
        }
    }

    fn combine_input(&self) -> PrefillCombine<'_, TensorRef<'_>> {
        let (places, hidden) = (self.expected.places(), self.expected.shape.hidden as usize);
        let made = self.view(&self.device.outputs, self.dtype(), places, hidden);
        PrefillCombine::new(made).mode(self.expected.shape.mode())
    }

    fn combine_output(&self) -> PrefillCombineOutput<'_> {
        self.sums.of_prefill_combine(PrefillCombineOutput::new(self.whole(&self.device.out, self.dtype())))
    }
}

impl Subject for Prefill<'_> {
    type Dispatched = Routing;

    fn expected(&self) -> &Expected {
        &self.expected
    }

    fn window_bytes(&self) -> u64 {
        self.buffer.plan().window_bytes
    }

    fn path(&self, peer: u32) -> Path {
        self.buffer.path(peer)
    }

    fn dispatch(&self) -> Result<Routing, Error> {
        Ok(self.buffer.enqueue_dispatch(self.tokens.input(), self.output(), self.stream())?)
    }

    fn combine(&self, mut routing: Routing, _: Case) -> Result<(), Error> {
        routing.enqueue_combine(self.combine_input(), self.combine_output(), self.stream())?;
        Ok(())
    }

    fn release(&self, _: Routing) -> Result<(), Error> {
        Ok(())
    }

    fn dispatch_halves(&self, between: Between<'_>) -> Result<Routing, Error> {
        let sent = self.buffer.enqueue_dispatch_send(self.tokens.input(), self.stream())?;
        between()?;
        Ok(sent.enqueue_receive(self.output(), self.stream()).map_err(epwire::Error::from)?)
    }

    fn combine_halves(&self, mut routing: Routing, between: Between<'_>) -> Result<(), Error> {
        let sent = routing.enqueue_combine_send(self.combine_input(), self.stream())?;
        between()?;
        sent.enqueue_receive(self.combine_output(), self.stream()).map_err(epwire::Error::from)?;
        Ok(())
    }

    fn finish(&self) -> Result<(), Error> {
        self.gpu.finish()?;
        match self.buffer.take_fault()? {
            true => Err("a prefill was incomplete: a rank was missing, or rows had no place".into()),
            false => Ok(()),
        }
    }

    fn renew(&mut self) -> Result<(), Error> {
        self.expected.iteration += 1;
        self.tokens.renew(&self.expected)?;
        self.expected.make_outputs(&mut self.host.outputs);
        let (gpu, device) = (self.gpu, &mut self.device);
        // SAFETY: as many bytes on both sides.
        unsafe {
            gpu.upload(gpu.address(&device.outputs), &self.host.outputs)?;
        }
        for memory in [&mut device.out, &mut device.counts, &mut device.rows, &mut device.scales] {
            gpu.stream.memset_zeros(memory)?;
        }
        self.finish()
    }

    fn check(&mut self, case: Case) -> Result<u64, Error> {
        self.renew()?;
        let routing = self.dispatch()?;
        match case {
            Case::Dispatch => self.release(routing)?,
            Case::Combine | Case::Pair => self.combine(routing, case)?,
        }
        self.finish()?;
        self.wrong_after_timing(case)
    }

    fn wrong_after_timing(&mut self, case: Case) -> Result<u64, Error> {
        let Self { gpu, device, host, .. } = self;
        // SAFETY: as many bytes on both sides; any bits are values.
        unsafe {
            gpu.download(&mut host.rows, gpu.address(&device.rows))?;
            gpu.download(&mut host.scales, gpu.address(&device.scales))?;
            gpu.download(&mut host.counts, gpu.address(&device.counts))?;
            gpu.download(&mut host.out, gpu.address(&device.out))?;
        }
        let wrong = self.expected.wrong_prefill(&host.rows, &host.scales, &host.counts)?;
        Ok(if case == Case::Dispatch { wrong } else { wrong + self.expected.wrong_sums(case, &host.out) })
    }
}
