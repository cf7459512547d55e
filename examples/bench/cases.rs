//! The operations measured, on the host.

use clap::ValueEnum;
use epwire::{
    Combine, CombineOutput, CombineRows, Device, DispatchBuffers, Dispatched, EpBuffer, Float16, Group, Path,
};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::args::{Args, Layout, Shape};
use crate::cpu::{Clocks, Moment};
use crate::expected::Expected;
use crate::floor::Traffic;
use crate::pattern::{self, Memory};
use crate::prefill::Prefill;
use crate::samples::{Meeting, Samples, complete, now};
use crate::tokens::Tokens;

/// `--cases`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    Dispatch,
    Combine,
    Pair,
}

/// One rank's buffer and memory for one shape.
pub trait Subject {
    fn expected(&self) -> &Expected;

    /// The next iteration's tokens.
    fn renew(&mut self) -> Result<(), Error>;

    /// An iteration, with its checks.
    fn iterate(&mut self, case: Case) -> Result<Timed, Error>;

    fn window_bytes(&self) -> u64;

    /// How a peer is reached.
    fn path(&self, peer: u32) -> Path;

    /// Bytes of the rings of dispatch and of combine, for one lane and all ranks, if slots are reused within an
    /// operation.
    fn rings(&self) -> Option<[u64; 2]> {
        None
    }

    /// Bytes that all ranks together move.
    fn traffic(&self, case: Case, args: &Args) -> Traffic {
        let Expected { shape, routings, .. } = self.expected();
        Traffic::of(case, shape, routings, args.reads, self.rings())
    }
}

/// All ranks call it with the same shapes in the same order.
pub fn subject<'a>(
    group: &Group,
    meeting: &'a Meeting,
    args: &Args,
    shape: Shape,
) -> Result<Box<dyn Subject + 'a>, Error> {
    Ok(match shape.layout {
        Layout::Packed | Layout::Dense => Box::new(Prefill::new(group, meeting, args, shape)?),
        Layout::ExpertMajor | Layout::RankMajor => Box::new(Decode::new(group, meeting, args, shape)?),
    })
}

/// Iterations, all of which are checked; those that do not count come first.
pub fn run(subject: &mut dyn Subject, case: Case, count: u32, warmup: bool) -> Result<Samples, Error> {
    let mut samples = Samples::default();
    for _ in 0..count {
        subject.renew()?;
        let (moments, cores, wrong) = subject.iterate(case)?;
        samples.wrong += wrong;
        if !warmup {
            samples.moments.push(moments);
            samples.meter.add(cores[0], cores[1]);
        }
    }
    Ok(samples)
}

/// A buffer of slots that hold a whole operation.
#[derive(Debug)]
struct Decode<'a> {
    buffer: EpBuffer,
    meeting: &'a Meeting,
    expected: Expected,
    tokens: Tokens,
    received: DispatchBuffers,
    /// Expert-major `[local_experts, M, hidden]`, rank-major `[M, hidden]`.
    outputs: Memory,
    /// `[tokens, hidden]`
    out: Memory,
    clocks: Clocks,
}

/// Begin and end of an iteration, the use of the cores up to each, and how many rows were wrong.
pub type Timed = ([u64; 2], [Moment; 2], u64);

impl Subject for Decode<'_> {
    fn expected(&self) -> &Expected {
        &self.expected
    }

    fn renew(&mut self) -> Result<(), Error> {
        self.expected.iteration += 1;
        self.tokens.make(&self.expected)
    }

    fn iterate(&mut self, case: Case) -> Result<Timed, Error> {
        match case {
            Case::Dispatch => self.dispatch_alone(),
            Case::Combine => self.combine_alone(),
            Case::Pair => self.pair(),
        }
    }

    fn window_bytes(&self) -> u64 {
        self.buffer.plan().window_bytes
    }

    fn path(&self, peer: u32) -> Path {
        self.buffer.path(peer)
    }
}

impl<'a> Decode<'a> {
    fn new(group: &Group, meeting: &'a Meeting, args: &Args, shape: Shape) -> Result<Self, Error> {
        let buffer = EpBuffer::create_blocking(group, shape.config(args, Device::Host))?;
        let plan = *buffer.plan();
        let lists = if shape.layout == Layout::ExpertMajor { plan.local_experts as usize } else { 1 };
        let hidden = shape.hidden as usize;
        Ok(Self {
            received: buffer.dispatch_buffers(shape.payload(), shape.layout(), 0)?,
            expected: Expected::new(args, shape, group.rank(), plan),
            tokens: Tokens::zeroed(&shape),
            outputs: Memory::zeroed(lists * plan.rows * hidden),
            out: Memory::zeroed(shape.tokens as usize * hidden),
            meeting,
            clocks: Clocks::find(),
            buffer,
        })
    }

    fn dispatch_alone(&mut self) -> Result<Timed, Error> {
        self.meeting.meet()?;
        let (used, begin) = (self.clocks.now(), now());
        let dispatched = self.dispatch()?;
        let received = now();
        let cores = [used, self.clocks.now()];
        self.meeting.meet()?;
        // Rank-major rows are gone once they are released, so they are checked before; releasing waits for nobody.
        let wrong = self.wrong_rows(&dispatched)?;
        let checked = now();
        drop(dispatched);
        let release = now() - checked;
        Ok(([begin, received + release], cores, wrong))
    }

    fn combine_alone(&mut self) -> Result<Timed, Error> {
        let mut dispatched = self.dispatch()?;
        let in_place = self.expected.shape.layout == Layout::RankMajor;
        match in_place {
            true => self.make_outputs_in_place(&mut dispatched)?,
            false => self.expected.make_outputs(&mut self.outputs),
        }
        self.meeting.meet()?;
        let (used, begin) = (self.clocks.now(), now());
        self.combine(dispatched, in_place)?;
        let end = now();
        let cores = [used, self.clocks.now()];
        self.meeting.meet()?;
        Ok(([begin, end], cores, self.expected.wrong_sums(Case::Combine, &self.out)))
    }

    fn pair(&mut self) -> Result<Timed, Error> {
        let in_place = self.expected.returns_tokens(Case::Pair);
        if !in_place {
            self.expected.make_outputs(&mut self.outputs);
        }
        self.meeting.meet()?;
        let (used, begin) = (self.clocks.now(), now());
        let dispatched = self.dispatch()?;
        self.combine(dispatched, in_place)?;
        let end = now();
        let cores = [used, self.clocks.now()];
        self.meeting.meet()?;
        let mut wrong = self.expected.wrong_sums(Case::Pair, &self.out);
        if self.expected.shape.layout == Layout::ExpertMajor {
            wrong += self.wrong_copies()?;
        }
        Ok(([begin, end], cores, wrong))
    }

    fn dispatch(&mut self) -> Result<Dispatched, Error> {
        let shape = &self.expected.shape;
        let input = self.tokens.input(&self.expected).layout(shape.layout());
        let mut output = self.received.output();
        if shape.layout == Layout::RankMajor {
            output.scales = None; // read in place, as the rows are
        }
        let dispatched = self.buffer.dispatch_blocking(input, output)?;
        complete(dispatched.outcome())?;
        Ok(dispatched)
    }

    fn combine(&mut self, dispatched: Dispatched, in_place: bool) -> Result<(), Error> {
        let Expected { shape, dtype, .. } = &self.expected;
        let input = if in_place {
            Combine::in_place()
        } else {
            Combine::new(pattern::tensor(*dtype, &self.outputs, shape.hidden))
        };
        let output = CombineOutput::new(pattern::tensor_mut(*dtype, &mut self.out));
        let outcome =
            dispatched.combine_blocking(input.mode(shape.mode()), output).map_err(epwire::Error::from)?;
        complete(&outcome)
    }

    fn make_outputs_in_place(&self, dispatched: &mut Dispatched) -> Result<(), Error> {
        let mut rows = dispatched.combine_rows_mut()?;
        for arrival in &self.expected.arrivals {
            let place = place(&mut rows, self.expected.dtype, arrival.source, arrival.row);
            place
                .ok_or("a row that must be there has not been received")?
                .copy_from_slice(self.expected.answer(arrival));
        }
        Ok(())
    }

    fn wrong_rows(&self, dispatched: &Dispatched) -> Result<u64, Error> {
        if self.expected.shape.layout == Layout::ExpertMajor {
            return self.wrong_copies();
        }
        let rows = dispatched.rows()?;
        let row =
            |source, row| Some((rows.row::<u8>(source, row)?, rows.scales(source, row).unwrap_or_default()));
        self.expected.wrong_rows(row, |source| rows.count(source))
    }

    fn wrong_copies(&self) -> Result<u64, Error> {
        let received = &self.received;
        self.expected.wrong_copies(&received.rows, &received.scales, &received.counts)
    }
}

/// Where the answer to a received row is written in the window.
fn place<'a>(
    rows: &'a mut CombineRows<'_>,
    dtype: Float16,
    source: u32,
    row: usize,
) -> Option<&'a mut [u16]> {
    match dtype {
        Float16::Bf16 => rows.rank_major::<bf16>(source, row).map(HalfFloatSliceExt::reinterpret_cast_mut),
        Float16::F16 => rows.rank_major::<f16>(source, row).map(HalfFloatSliceExt::reinterpret_cast_mut),
    }
}
