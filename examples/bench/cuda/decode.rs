//! A decode buffer and its memory on a rank's GPU.

use epwire::cuda::{self, CombineOutput, DispatchOutput, StreamRef, TensorMut, TensorRef};
use epwire::cudarc::driver::CudaSlice;
use epwire::{Combine, DType, Device, EpBuffer, Group, Path, Payload, RowShape};

use super::gpu::Gpu;
use super::subject::{Between, Subject};
use super::sums::Sums;
use super::tokens::Tokens;
use crate::Error;
use crate::args::{Args, Layout, Shape};
use crate::cases::Case;
use crate::expected::Expected;
use crate::pattern::Memory;

pub struct Decode<'g> {
    buffer: EpBuffer,
    expected: Expected,
    gpu: &'g Gpu,
    rows: RowShape,
    /// Where expert outputs begin, and how many follow on: `(first row, rows)`.
    filled: Vec<(usize, usize)>,
    tokens: Tokens<'g>,
    sums: Sums<'g>,
    device: OnDevice,
    host: OnHost,
}

/// Memory of the GPU. Freed when the stream has run all its uses.
struct OnDevice {
    /// `[tokens, hidden]`
    out: CudaSlice<u8>,
    /// What dispatch delivers, as `epwire::DispatchBuffers` has it.
    rows: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    counts: CudaSlice<u8>,
    source_counts: CudaSlice<u8>,
    ranges: CudaSlice<u8>,
    source_token: CudaSlice<u8>,
    row_experts: CudaSlice<u8>,
    row_weights: CudaSlice<u8>,
    expert_rows: CudaSlice<u8>,
    /// Expert-major `[local_experts, M, hidden]`, rank-major `[M, hidden]`.
    outputs: CudaSlice<u8>,
}

/// The host memory for copies to and from the GPU. Places to which no row is sent take no memory.
struct OnHost {
    out: Memory,
    outputs: Memory,
    rows: Vec<u8>,
    scales: Vec<u8>,
    counts: Vec<u32>,
}

impl<'g> Decode<'g> {
    /// All ranks call it with the same shapes in the same order.
    pub fn new(gpu: &'g Gpu, group: &Group, args: &Args, shape: Shape) -> Result<Self, Error> {
        let config = shape.config(args, Device::Cuda(gpu.ordinal));
        let buffer = EpBuffer::create_blocking(group, config)?;
        let plan = *buffer.plan();
        let rows = RowShape::new(buffer.config(), plan.ranks, shape.payload())?;
        let expected = Expected::new(args, shape, group.rank(), plan);
        let expert_major = shape.layout == Layout::ExpertMajor;
        let (experts, ranks) = (plan.local_experts as usize, plan.ranks as usize);
        let lists = if expert_major { experts } else { 1 };
        let when = |wanted: bool, bytes: usize| gpu.zeroed(if wanted { bytes } else { 0 });
        let (n, k, hidden) = (shape.tokens as usize, shape.topk as usize, shape.hidden as usize);
        let device = OnDevice {
            out: gpu.zeroed(n * hidden * 2)?,
            rows: when(expert_major, rows.expert_rows_bytes)?,
            scales: when(expert_major, rows.expert_scales_bytes)?,
            counts: gpu.zeroed(experts * 4)?,
            source_counts: gpu.zeroed(ranks * 4)?,
            ranges: gpu.zeroed(experts * ranks * 8)?,
            source_token: gpu.zeroed(lists * plan.rows * 4)?,
            row_experts: when(!expert_major, plan.rows * k * 4)?,
            row_weights: when(!expert_major, plan.rows * k * 4)?,
            expert_rows: when(!expert_major, experts * plan.rows * 4)?,
            outputs: gpu.zeroed(lists * plan.rows * hidden * 2)?,
        };
        let host = OnHost {
            out: Memory::zeroed(n * hidden),
            outputs: Memory::zeroed(lists * plan.rows * hidden),
            rows: vec![0; if expert_major { rows.expert_rows_bytes } else { 0 }],
            scales: vec![0; if expert_major { rows.expert_scales_bytes } else { 0 }],
            counts: vec![0; experts],
        };
        let tokens = Tokens::new(gpu, &expected)?;
        let sums = Sums::new(gpu, args, plan.local_experts, plan.ranks)?;
        Ok(Self {
            filled: filled(&expected, plan.rows, lists),
            buffer,
            expected,
            gpu,
            rows,
            tokens,
            sums,
            device,
            host,
        })
    }

    fn stream(&self) -> StreamRef<'_> {
        self.gpu.capturing()
    }

    fn rank_major(&self) -> bool {
        self.expected.shape.layout == Layout::RankMajor
    }

    /// Whether the rows that the case combines lie in the window.
    fn in_place(&self, case: Case) -> bool {
        match case {
            Case::Combine => self.rank_major(),
            Case::Dispatch | Case::Pair => self.expected.returns_tokens(case),
        }
    }

    fn output(&self) -> DispatchOutput<'_> {
        let device = &self.device;
        let output = DispatchOutput::default()
            .counts(self.whole(&device.counts, DType::U32))
            .source_counts(self.whole(&device.source_counts, DType::U32))
            .ranges(self.whole(&device.ranges, DType::U32))
            .source_token(self.whole(&device.source_token, DType::U32));
        let output = self.sums.of_dispatch(output);
        if self.rank_major() {
            // Rows and scales are read in place.
            return output
                .row_experts(self.whole(&device.row_experts, DType::I32))
                .row_weights(self.whole(&device.row_weights, DType::F32))
                .expert_rows(self.whole(&device.expert_rows, DType::U32));
        }
        let output = output.rows(self.whole(&device.rows, DType::U8));
        match self.expected.shape.payload() {
            Payload::SameAsInput => output,
            _ => output.scales(self.whole(&device.scales, DType::U8)),
        }
    }

    fn combine_input(&self, in_place: bool) -> Combine<'_, TensorRef<'_>> {
        let shape = &self.expected.shape;
        if in_place {
            return Combine::in_place().mode(shape.mode());
        }
        let lists = if self.rank_major() { 1 } else { self.buffer.plan().local_experts as usize };
        let (rows, hidden) = (lists * self.buffer.plan().rows, shape.hidden as usize);
        let address = self.gpu.address(&self.device.outputs);
        // SAFETY: allocated with this many rows; it lives as long as the subject, which outlives its graphs, and is written in
        // the order of the one stream that everything here is enqueued on.
        let outputs = unsafe { TensorRef::from_raw(address, self.dtype(), rows, hidden, 2 * hidden) };
        Combine::new(outputs).mode(shape.mode())
    }

    fn combine_output(&self) -> CombineOutput<'_> {
        self.sums.of_combine(CombineOutput::new(self.whole(&self.device.out, self.dtype())))
    }

    fn dtype(&self) -> DType {
        if self.expected.dtype == epwire::Float16::Bf16 { DType::Bf16 } else { DType::F16 }
    }

    fn whole(&self, memory: &CudaSlice<u8>, dtype: DType) -> TensorMut<'_> {
        // SAFETY: all of an allocation, which lives as long as the subject; used in the order of one stream.
        unsafe { TensorMut::from_raw(self.gpu.address(memory), dtype, memory.len() / dtype.bytes()) }
    }

    /// How many rows are wrong of those that an operation of the case has left in memory of the caller.
    fn wrong_left(&mut self, case: Case) -> Result<u64, Error> {
        let mut wrong = 0;
        if !self.rank_major() {
            wrong += self.wrong_copies()?;
        }
        if case != Case::Dispatch {
            let out = self.gpu.address(&self.device.out);
            // SAFETY: as many bytes on both sides; any bits are values.
            unsafe { self.gpu.download(&mut self.host.out, out) }?;
            wrong += self.expected.wrong_sums(case, &self.host.out);
        }
        Ok(wrong)
    }

    /// Writes the answers over the received rows.
    fn answer_in_place(&self, dispatched: &cuda::Dispatched) -> Result<(), Error> {
        let window = dispatched.combine_rows()?;
        for arrival in &self.expected.arrivals {
            let at = window.rows + (self.place(arrival.source, arrival.row) * window.stride) as u64;
            // SAFETY: a received row, of `hidden` values, of a handle that is live.
            unsafe { self.gpu.upload(at, self.expected.answer(arrival)) }?;
        }
        Ok(())
    }

    /// The place of a row among all of the window.
    fn place(&self, source: u32, row: usize) -> usize {
        source as usize * self.expected.shape.tokens as usize + row
    }

    fn wrong_rows(&self, dispatched: &cuda::Dispatched) -> Result<u64, Error> {
        let window = dispatched.rows()?;
        let world = self.expected.routings.len();
        let mut counts = vec![0u32; world];
        // SAFETY: [ranks] numbers.
        unsafe { self.gpu.download(&mut counts, window.source_counts) }?;
        // Counts beyond the source's places are wrong in any case; those rows are not read.
        let payload = self.rows.payload_bytes;
        let scales = self.rows.scale_count * self.rows.scale_bytes;
        let behind = window.scales.map_or(0, |scales| (scales - window.rows) as usize);
        let last = payload.max(behind + scales);
        let mut received = Vec::new();
        for (source, &count) in (0u32..).zip(&counts) {
            let count = count.min(self.expected.shape.tokens) as usize;
            let mut bytes = vec![0u8; count.saturating_sub(1) * window.stride + last.min(count * last)];
            let at = window.rows + (self.place(source, 0) * window.stride) as u64;
            // SAFETY: from the source's first slot to the end of the last row that it has sent.
            unsafe { self.gpu.download(&mut bytes, at) }?;
            received.push(bytes);
        }
        let row = |source: u32, row: usize| {
            let bytes = received.get(source as usize)?.get(row * window.stride..)?;
            Some((bytes.get(..payload)?, bytes.get(behind..behind + scales)?))
        };
        self.expected.wrong_rows(row, |source| counts[source as usize] as usize)
    }

    fn wrong_copies(&mut self) -> Result<u64, Error> {
        let Self { gpu, device, host, filled, .. } = self;
        let bytes = self.rows.payload_bytes;
        // SAFETY: as many bytes on both sides, as has every part of the rows; any bits are values.
        unsafe {
            for &(first, rows) in &*filled {
                let at = gpu.address(&device.rows) + (first * bytes) as u64;
                gpu.download(&mut host.rows[first * bytes..][..rows * bytes], at)?;
            }
            gpu.download(&mut host.scales, gpu.address(&device.scales))?;
            gpu.download(&mut host.counts, gpu.address(&device.counts))?;
        }
        self.expected.wrong_copies(&host.rows, &host.scales, &host.counts)
    }
}

impl Subject for Decode<'_> {
    type Dispatched = cuda::Dispatched;

    fn expected(&self) -> &Expected {
        &self.expected
    }

    fn window_bytes(&self) -> u64 {
        self.buffer.plan().window_bytes
    }

    fn path(&self, peer: u32) -> Path {
        self.buffer.path(peer)
    }

    fn dispatch(&self) -> Result<cuda::Dispatched, Error> {
        Ok(self.buffer.enqueue_dispatch(
            self.tokens.input().layout(self.expected.shape.layout()),
            self.output(),
            self.stream(),
        )?)
    }

    fn combine(&self, dispatched: cuda::Dispatched, case: Case) -> Result<(), Error> {
        let (input, output) = (self.combine_input(self.in_place(case)), self.combine_output());
        dispatched.enqueue_combine(input, output, self.stream()).map_err(epwire::Error::from)?;
        Ok(())
    }

    fn release(&self, dispatched: cuda::Dispatched) -> Result<(), Error> {
        dispatched.release_on(self.stream()).map_err(epwire::Error::from)?;
        Ok(())
    }

    fn dispatch_halves(&self, between: Between<'_>) -> Result<cuda::Dispatched, Error> {
        let sent = self
            .buffer
            .enqueue_dispatch_send(self.tokens.input().layout(self.expected.shape.layout()), self.stream())?;
        between()?;
        Ok(sent.enqueue_receive(self.output(), self.stream()).map_err(epwire::Error::from)?)
    }

    fn combine_halves(&self, dispatched: cuda::Dispatched, between: Between<'_>) -> Result<(), Error> {
        let input = self.combine_input(self.in_place(Case::Combine));
        let sent = dispatched.enqueue_combine_send(input, self.stream()).map_err(epwire::Error::from)?;
        between()?;
        sent.enqueue_receive(self.combine_output(), self.stream()).map_err(epwire::Error::from)?;
        Ok(())
    }

    fn finish(&self) -> Result<(), Error> {
        self.gpu.finish()?;
        match self.buffer.take_errors()?.records.first() {
            Some(record) => Err(record.to_string().into()),
            None => Ok(()),
        }
    }

    fn renew(&mut self) -> Result<(), Error> {
        self.expected.iteration += 1;
        self.tokens.renew(&self.expected)?;
        self.expected.make_outputs(&mut self.host.outputs);
        let hidden = self.expected.shape.hidden as usize;
        let (gpu, device) = (self.gpu, &mut self.device);
        // SAFETY: every part has as many bytes on both sides.
        unsafe {
            for &(first, rows) in &self.filled {
                let at = gpu.address(&device.outputs) + (first * hidden * 2) as u64;
                gpu.upload(at, &self.host.outputs[first * hidden..][..rows * hidden])?;
            }
        }
        for memory in [&mut device.out, &mut device.counts, &mut device.rows, &mut device.scales] {
            gpu.stream.memset_zeros(memory)?;
        }
        self.finish()
    }

    fn check(&mut self, case: Case) -> Result<u64, Error> {
        self.renew()?;
        let dispatched = self.dispatch()?;
        self.finish()?;
        let mut wrong = 0;
        if case == Case::Dispatch && self.rank_major() {
            wrong += self.wrong_rows(&dispatched)?;
        }
        match case {
            Case::Dispatch => self.release(dispatched)?,
            Case::Combine | Case::Pair => {
                if case == Case::Combine && self.rank_major() {
                    self.answer_in_place(&dispatched)?;
                }
                self.combine(dispatched, case)?;
            }
        }
        self.finish()?;
        Ok(wrong + self.wrong_left(case)?)
    }

    /// There no expert writes answers between dispatch and combine: rows that stay in place come back as they were
    /// sent, and 8-bit rows come back as meaningless 16-bit values.
    fn wrong_after_timing(&mut self, case: Case) -> Result<u64, Error> {
        let fp8 = self.expected.shape.payload() != Payload::SameAsInput;
        match case {
            Case::Combine if self.rank_major() && fp8 => Ok(0),
            Case::Combine => self.wrong_left(Case::Pair),
            Case::Dispatch | Case::Pair => self.wrong_left(case),
        }
    }
}

/// Where the rows of each list (expert-major) or source (rank-major) begin, and how many arrive.
fn filled(expected: &Expected, rows: usize, lists: usize) -> Vec<(usize, usize)> {
    let expert_major = expected.shape.layout == Layout::ExpertMajor;
    let (parts, length) =
        if expert_major { (lists, rows) } else { (expected.routings.len(), expected.shape.tokens as usize) };
    let mut filled: Vec<_> = (0..parts).map(|part| (part * length, 0)).collect();
    for arrival in &expected.arrivals {
        if expert_major {
            arrival.copies.iter().for_each(|(_, at)| filled[at / rows].1 += 1);
        } else {
            filled[arrival.source as usize].1 += 1;
        }
    }
    filled
}
