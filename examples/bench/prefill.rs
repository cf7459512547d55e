//! The same operations with a prefill buffer, on the host.

use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillLayout, PrefillOutput, Routing,
};
use epwire::{Device, Group, HostBuffer, Path, ScaleOrder, TensorMut};

use crate::Error;
use crate::args::{Args, Layout, Shape};
use crate::cases::{Case, Subject, Timed};
use crate::cpu::Clocks;
use crate::expected::{ALIGNMENT, Expected};
use crate::pattern;
use crate::samples::{Meeting, complete, now};
use crate::tokens::Tokens;

/// A buffer whose rings have fewer slots than an operation has rows.
#[derive(Debug)]
pub struct Prefill<'a> {
    buffer: PrefillBuffer,
    meeting: &'a Meeting,
    expected: Expected,
    tokens: Tokens,
    /// `[places, payload]`
    rows: HostBuffer<u8>,
    scales: HostBuffer<f32>,
    /// `[local_experts]`, dense `[ranks]`
    counts: Vec<u32>,
    /// `[places]`, dense `[places, topk]`
    row_experts: Vec<i32>,
    /// Dense: `[places, topk]`
    row_weights: Vec<f32>,
    /// `[places, hidden]`
    outputs: HostBuffer<u16>,
    /// `[tokens, hidden]`
    out: HostBuffer<u16>,
    clocks: Clocks,
}

impl Subject for Prefill<'_> {
    fn expected(&self) -> &Expected {
        &self.expected
    }

    fn renew(&mut self) -> Result<(), Error> {
        self.expected.iteration += 1;
        self.tokens.make(&self.expected)
    }

    fn iterate(&mut self, case: Case) -> Result<Timed, Error> {
        let before = if case == Case::Combine { Some(self.dispatch()?) } else { None };
        if case != Case::Dispatch {
            self.expected.make_outputs(&mut self.outputs);
        }
        self.meeting.meet()?;
        let (used, begin) = (self.clocks.now(), now());
        let routing = match before {
            Some(routing) => routing,
            None => self.dispatch()?,
        };
        if case != Case::Dispatch {
            self.combine(routing)?;
        }
        let end = now();
        let cores = [used, self.clocks.now()];
        self.meeting.meet()?;
        let mut wrong = 0;
        if case != Case::Combine {
            let scales: Vec<u8> = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            wrong += self.expected.wrong_prefill(&self.rows, &scales, &self.counts)?;
        }
        if case != Case::Dispatch {
            wrong += self.expected.wrong_sums(case, &self.out);
        }
        Ok(([begin, end], cores, wrong))
    }

    fn window_bytes(&self) -> u64 {
        self.buffer.plan().window_bytes
    }

    fn path(&self, peer: u32) -> Path {
        self.buffer.path(peer)
    }

    /// A rank has no use for its ring to itself.
    fn rings(&self) -> Option<[u64; 2]> {
        let plan = self.buffer.plan();
        let of_lane = |bytes: u64| bytes / u64::from(self.buffer.config().ep.lanes);
        Some(
            [plan.dispatch_bytes, plan.combine_bytes].map(|bytes| of_lane(bytes) * u64::from(plan.ranks - 1)),
        )
    }
}

impl<'a> Prefill<'a> {
    /// All ranks call it with the same shapes in the same order.
    pub fn new(group: &Group, meeting: &'a Meeting, args: &Args, shape: Shape) -> Result<Self, Error> {
        let buffer = PrefillBuffer::create_blocking(group, shape.prefill(args, Device::Host))?;
        let expected = Expected::of_prefill(args, shape, group.rank(), buffer.plan());
        let (hidden, tokens, places) = (shape.hidden as usize, shape.tokens as usize, expected.places());
        let (payload, blocks) = shape.payload.row(shape.hidden);
        Ok(Self {
            tokens: Tokens::zeroed(&shape),
            rows: HostBuffer::zeroed(places * payload),
            scales: HostBuffer::zeroed(places.next_multiple_of(4) * blocks),
            counts: vec![0; buffer.plan().local_experts.max(buffer.plan().ranks) as usize],
            row_experts: vec![0; places * shape.topk as usize],
            row_weights: vec![0.0; places * shape.topk as usize],
            outputs: HostBuffer::zeroed(places * hidden),
            out: HostBuffer::zeroed(tokens * hidden),
            clocks: Clocks::find(),
            meeting,
            expected,
            buffer,
        })
    }

    fn dispatch(&mut self) -> Result<Routing, Error> {
        let shape = &self.expected.shape;
        let input = self.tokens.input(&self.expected);
        let capacity = self.expected.places();
        let output = if shape.layout == Layout::Dense {
            PrefillOutput::new(PrefillLayout::Dense, capacity)
                .scale_order(ScaleOrder::RowMajor)
                .source_counts(&mut self.counts)
                .row_experts(&mut self.row_experts)
                .row_weights(&mut self.row_weights)
        } else {
            PrefillOutput::new(PrefillLayout::Packed { alignment: ALIGNMENT }, capacity)
                .counts(&mut self.counts)
                .row_expert(&mut self.row_experts)
        };
        let output = output.rows(TensorMut::new(&mut self.rows));
        let output = match shape.payload.is_fp8() {
            true => output.scales(TensorMut::new(&mut self.scales)),
            false => output,
        };
        let (made, outcome) = self.buffer.dispatch_blocking(input, output)?;
        complete(&outcome)?;
        Ok(made)
    }

    fn combine(&mut self, mut routing: Routing) -> Result<(), Error> {
        let Expected { shape, dtype, .. } = &self.expected;
        let outputs = pattern::tensor(*dtype, &self.outputs, shape.hidden);
        let input = PrefillCombine::new(outputs).mode(shape.mode());
        let output = PrefillCombineOutput::new(pattern::tensor_mut(*dtype, &mut self.out));
        complete(&self.buffer.combine_blocking(&mut routing, input, output)?)
    }
}
