//! The operations measured, and how their results are checked.

use clap::ValueEnum;
use epwire::{
    Combine, CombineOutput, CombineRows, Dispatch, DispatchBuffers, Dispatched, EpBuffer, Float16, Fp8Scale,
    Group, TensorMut, TensorRef, quantize_fp8,
};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::args::{self, Args, Layout, Payload, Shape};
use crate::floor::Traffic;
use crate::pattern::{self, Memory, Pattern};
use crate::routing::{self, Arrival, Routing};
use crate::samples::{Samples, complete, meet, now};

/// `--cases`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    Dispatch,
    Combine,
    Pair,
}

/// One rank's buffer and memory for one shape.
#[derive(Debug)]
pub struct Subject {
    pub buffer: EpBuffer,
    shape: Shape,
    dtype: Float16,
    /// Of all ranks.
    routings: Vec<Routing>,
    arrivals: Vec<Arrival>,
    pattern: Pattern,
    iteration: u32,
    /// `[tokens, hidden]`
    x: Memory,
    received: DispatchBuffers,
    /// Expert-major `[local_experts, M, hidden]`, rank-major `[M, hidden]`.
    outputs: Memory,
    /// `[tokens, hidden]`
    out: Memory,
}

impl Subject {
    /// All ranks call it with the same shapes in the same order.
    pub fn new(group: &Group, args: &Args, shape: Shape) -> Result<Self, Error> {
        let buffer = EpBuffer::create_blocking(group, shape.config(args.threads))?;
        let plan = *buffer.plan();
        let lists = if shape.layout == Layout::ExpertMajor { plan.local_experts as usize } else { 1 };
        let routings: Vec<_> =
            (0..group.world()).map(|source| Routing::new(args.routing, &shape, source)).collect();
        let hidden = shape.hidden as usize;
        Ok(Self {
            received: buffer.dispatch_buffers(shape.payload(), shape.layout(), 0)?,
            arrivals: routing::arrivals(&routings, group.rank(), plan.local_experts),
            pattern: Pattern::new(shape.dtype(), shape.hidden),
            dtype: shape.dtype(),
            iteration: 0,
            x: Memory::zeroed(shape.tokens as usize * hidden),
            outputs: Memory::zeroed(lists * plan.rows * hidden),
            out: Memory::zeroed(shape.tokens as usize * hidden),
            buffer,
            shape,
            routings,
        })
    }

    /// Bytes that all ranks together move.
    pub fn traffic(&self, case: Case, args: &Args) -> Traffic {
        Traffic::of(case, &self.shape, &self.routings, args.reads)
    }

    /// `warmup` iterations, then those that count. All of them are checked.
    pub fn run(&mut self, case: Case, warmup: u32, iterations: u32) -> Result<Samples, Error> {
        let mut samples = Samples::default();
        for i in 0..warmup + iterations {
            self.iteration += 1;
            self.make_tokens();
            let (moments, wrong) = match case {
                Case::Dispatch => self.dispatch_alone()?,
                Case::Combine => self.combine_alone()?,
                Case::Pair => self.pair()?,
            };
            samples.wrong += wrong;
            if i >= warmup {
                samples.moments.push(moments);
            }
        }
        Ok(samples)
    }

    fn dispatch_alone(&mut self) -> Result<([u64; 2], u64), Error> {
        meet(&self.buffer)?;
        let begin = now();
        let dispatched = self.dispatch()?;
        let received = now();
        meet(&self.buffer)?;
        // Rank-major rows are gone once they are released, so they are checked before; releasing waits for nobody.
        let wrong = self.wrong_rows(&dispatched)?;
        let checked = now();
        drop(dispatched);
        let release = now() - checked;
        Ok(([begin, received + release], wrong))
    }

    fn combine_alone(&mut self) -> Result<([u64; 2], u64), Error> {
        let mut dispatched = self.dispatch()?;
        match self.shape.layout {
            Layout::ExpertMajor => self.make_outputs(),
            Layout::RankMajor => self.make_outputs_in_place(&mut dispatched)?,
        }
        meet(&self.buffer)?;
        let begin = now();
        self.combine(dispatched, self.shape.layout == Layout::RankMajor)?;
        let end = now();
        meet(&self.buffer)?;
        Ok(([begin, end], self.wrong_sums(Case::Combine)))
    }

    fn pair(&mut self) -> Result<([u64; 2], u64), Error> {
        let in_place = self.returns_tokens(Case::Pair);
        if !in_place {
            self.make_outputs();
        }
        meet(&self.buffer)?;
        let begin = now();
        let dispatched = self.dispatch()?;
        self.combine(dispatched, in_place)?;
        let end = now();
        meet(&self.buffer)?;
        let mut wrong = self.wrong_sums(Case::Pair);
        if self.shape.layout == Layout::ExpertMajor {
            wrong += self.wrong_copies()?;
        }
        Ok(([begin, end], wrong))
    }

    fn dispatch(&mut self) -> Result<Dispatched, Error> {
        let routing = &self.routings[self.buffer.rank() as usize];
        let input = Dispatch::new(
            pattern::tensor(self.dtype, &self.x, self.shape.hidden),
            TensorRef::new(&routing.experts, routing.topk),
        )
        .weights(TensorRef::new(&routing.weights, routing.topk))
        .payload(self.shape.payload())
        .layout(self.shape.layout())
        .lane(0);
        let mut output = self.received.output();
        if self.shape.layout == Layout::RankMajor {
            output.scales = None; // read in place, as the rows are
        }
        let dispatched = self.buffer.dispatch_blocking(input, output)?;
        complete(dispatched.outcome())?;
        Ok(dispatched)
    }

    fn combine(&mut self, dispatched: Dispatched, in_place: bool) -> Result<(), Error> {
        let input = if in_place {
            Combine::in_place()
        } else {
            Combine::new(pattern::tensor(self.dtype, &self.outputs, self.shape.hidden))
        };
        let output = CombineOutput::new(pattern::tensor_mut(self.dtype, &mut self.out));
        let outcome = dispatched
            .combine_blocking(input.mode(self.shape.mode()), output)
            .map_err(epwire::Error::from)?;
        complete(&outcome)
    }

    /// Whether ranks answer with the very tokens: a pair of 16-bit rows that stay in place.
    fn returns_tokens(&self, case: Case) -> bool {
        case == Case::Pair && self.shape.layout == Layout::RankMajor && self.shape.payload != Payload::Fp8
    }

    /// The row that `source` sends for a token in this iteration.
    fn token_row(&self, source: u32, token: u32) -> &[u16] {
        self.pattern.row(&[0, self.iteration, source, token])
    }

    /// What an expert, or a rank over its experts, gives for a token of `source`.
    fn expert_row(&self, source: u32, token: u32, expert: u32) -> &[u16] {
        self.pattern.row(&[1, self.iteration, source, token, expert])
    }

    fn rank_row(&self, source: u32, token: u32, rank: u32) -> &[u16] {
        self.pattern.row(&[2, self.iteration, source, token, rank])
    }

    fn make_tokens(&mut self) {
        let mut x = std::mem::replace(&mut self.x, Memory::zeroed(0));
        for (token, row) in (0..).zip(x.chunks_exact_mut(self.shape.hidden as usize)) {
            row.copy_from_slice(self.token_row(self.buffer.rank(), token));
        }
        self.x = x;
    }

    fn make_outputs(&mut self) {
        let mut outputs = std::mem::replace(&mut self.outputs, Memory::zeroed(0));
        let (hidden, max_tokens) = (self.shape.hidden as usize, self.shape.tokens as usize);
        for Arrival { source, token, row, copies } in &self.arrivals {
            match self.shape.layout {
                Layout::ExpertMajor => {
                    for &(expert, at) in copies {
                        let output = self.expert_row(*source, *token, expert);
                        outputs[at * hidden..][..hidden].copy_from_slice(output);
                    }
                }
                Layout::RankMajor => {
                    let output = self.rank_row(*source, *token, self.buffer.rank());
                    let at = *source as usize * max_tokens + row;
                    outputs[at * hidden..][..hidden].copy_from_slice(output);
                }
            }
        }
        self.outputs = outputs;
    }

    fn make_outputs_in_place(&self, dispatched: &mut Dispatched) -> Result<(), Error> {
        let mut rows = dispatched.combine_rows_mut()?;
        for Arrival { source, token, row, .. } in &self.arrivals {
            let output = self.rank_row(*source, *token, self.buffer.rank());
            let place = place(&mut rows, self.dtype, *source, *row);
            place.ok_or("a row that must be there has not been received")?.copy_from_slice(output);
        }
        Ok(())
    }

    /// Received rows that are not as sent, and those too few or too many.
    fn wrong_rows(&self, dispatched: &Dispatched) -> Result<u64, Error> {
        if self.shape.layout == Layout::ExpertMajor {
            return self.wrong_copies();
        }
        let rows = dispatched.rows()?;
        let mut sent = vec![0; self.routings.len()];
        let mut wrong = 0;
        let mut expected = Wire::new(&self.shape);
        for Arrival { source, token, row, .. } in &self.arrivals {
            sent[*source as usize] += 1;
            expected.set(self.dtype, self.token_row(*source, *token))?;
            let right = rows.row::<u8>(*source, *row) == Some(&expected.payload)
                && rows.scales(*source, *row).unwrap_or(&[]) == expected.scales;
            wrong += u64::from(!right);
        }
        let surplus = (0..).zip(&sent).map(|(source, &sent)| rows.count(source).abs_diff(sent) as u64);
        Ok(wrong + surplus.sum::<u64>())
    }

    fn wrong_copies(&self) -> Result<u64, Error> {
        let rows = self.buffer.plan().rows;
        let mut counts = vec![0u32; self.received.counts.len()];
        let mut wrong = 0;
        let mut expected = Wire::new(&self.shape);
        let (bytes, blocks) = (expected.payload.len(), expected.scales.len() / 4);
        for Arrival { source, token, copies, .. } in &self.arrivals {
            expected.set(self.dtype, self.token_row(*source, *token))?;
            for &(_, at) in copies {
                let (list, row) = (at / rows, at % rows);
                counts[list] += 1;
                // Scales are column-major, [local_experts, blocks, M].
                let scale = |block| &self.received.scales[((list * blocks + block) * rows + row) * 4..][..4];
                let right = self.received.rows[at * bytes..][..bytes] == expected.payload
                    && (0..).zip(expected.scales.chunks_exact(4)).all(|(block, s)| scale(block) == s);
                wrong += u64::from(!right);
            }
        }
        let surplus = counts.iter().zip(&self.received.counts).map(|(a, &b)| u64::from(a.abs_diff(b)));
        Ok(wrong + surplus.sum::<u64>())
    }

    /// Combined rows that are not, bit for bit, the sum in the order that the mode defines.
    fn wrong_sums(&self, case: Case) -> u64 {
        let (rank, hidden) = (self.buffer.rank(), self.shape.hidden as usize);
        let local_experts = self.buffer.plan().local_experts;
        let routing = &self.routings[rank as usize];
        let (mut total, mut part) = (vec![0.0f32; hidden], vec![0.0f32; hidden]);
        let mut bits = vec![0u16; hidden];
        let mut wrong = 0;
        for (token, out) in (0u32..).zip(self.out.chunks_exact(hidden)) {
            total.fill(0.0);
            let chosen = routing.of(token as usize);
            if self.shape.combine == args::Combine::Ordered {
                for (expert, weight) in chosen {
                    pattern::add(self.dtype, &mut total, weight, self.expert_row(rank, token, expert));
                }
            } else {
                for owner in routing.ranks_of(token as usize, local_experts) {
                    if self.shape.layout == Layout::ExpertMajor {
                        part.fill(0.0);
                        for (expert, weight) in chosen.clone().filter(|(e, _)| e / local_experts == owner) {
                            pattern::add(self.dtype, &mut part, weight, self.expert_row(rank, token, expert));
                        }
                        pattern::round_all(self.dtype, &part, &mut bits);
                        pattern::add(self.dtype, &mut total, 1.0, &bits);
                    } else if self.returns_tokens(case) {
                        pattern::add(self.dtype, &mut total, 1.0, self.token_row(rank, token));
                    } else {
                        pattern::add(self.dtype, &mut total, 1.0, self.rank_row(rank, token, owner));
                    }
                }
            }
            pattern::round_all(self.dtype, &total, &mut bits);
            wrong += u64::from(out != bits);
        }
        wrong
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

/// A row as it travels.
struct Wire {
    payload: Vec<u8>,
    scales: Vec<u8>,
    /// The scales as numbers; empty for 16-bit payloads.
    numbers: Vec<f32>,
}

impl Wire {
    fn new(shape: &Shape) -> Self {
        let hidden = shape.hidden as usize;
        let (payload, blocks) =
            if shape.payload == Payload::Fp8 { (hidden, hidden / 128) } else { (2 * hidden, 0) };
        Self { payload: vec![0; payload], scales: vec![0; 4 * blocks], numbers: vec![0.0; blocks] }
    }

    fn set(&mut self, dtype: Float16, row: &[u16]) -> Result<(), Error> {
        if self.numbers.is_empty() {
            let values = self.payload.chunks_exact_mut(2).zip(row);
            values.for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_le_bytes()));
            return Ok(());
        }
        let x = pattern::tensor(dtype, row, row.len() as u32);
        quantize_fp8(x, Fp8Scale::F32, &mut self.payload, &mut TensorMut::new(&mut self.numbers))?;
        let scales = self.scales.chunks_exact_mut(4).zip(&self.numbers);
        scales.for_each(|(bytes, scale)| bytes.copy_from_slice(&scale.to_le_bytes()));
        Ok(())
    }
}
