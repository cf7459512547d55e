//! The expected results, computed channel by channel from source, token and iteration alone, and their comparison with
//! the actual ones.

use epwire::prefill::PrefillPlan;
use epwire::{Float16, Fp8Scale, Plan, TensorMut, quantize_fp8};

use crate::Error;
use crate::args::{Args, Combine, Layout, Shape};
use crate::cases::Case;
use crate::pattern::{self, Pattern};
use crate::routing::{self, Arrival, Lists, Routing};

/// Packed rows of an expert begin at a multiple of this number.
pub const ALIGNMENT: u32 = 128;

/// All that one rank sends, receives and combines in an iteration.
#[derive(Debug)]
pub struct Expected {
    pub shape: Shape,
    pub dtype: Float16,
    /// Of all ranks.
    pub routings: Vec<Routing>,
    pub arrivals: Vec<Arrival>,
    /// Every iteration has tokens and expert outputs of its own.
    pub iteration: u32,
    /// Where copies lie.
    pub lists: Lists,
    /// Rows by source: place of the first row of each.
    pub sources: Vec<usize>,
    rank: u32,
    local_experts: u32,
    pattern: Pattern,
}

impl Expected {
    pub fn new(args: &Args, shape: Shape, rank: u32, plan: Plan) -> Self {
        let lists = |_: &[Routing]| Lists::fixed(plan.local_experts, plan.rows);
        Self::of(args, shape, rank, [plan.ranks, plan.local_experts], lists)
    }

    /// Of a prefill buffer.
    pub fn of_prefill(args: &Args, shape: Shape, rank: u32, plan: &PrefillPlan) -> Self {
        let lists =
            |routings: &[Routing]| Lists::packed(routings, rank, plan.local_experts, ALIGNMENT as usize);
        Self::of(args, shape, rank, [plan.ranks, plan.local_experts], lists)
    }

    fn of(
        args: &Args,
        shape: Shape,
        rank: u32,
        [ranks, local_experts]: [u32; 2],
        lists: impl FnOnce(&[Routing]) -> Lists,
    ) -> Self {
        let routings: Vec<_> =
            (0..ranks - args.absent).map(|source| Routing::new(args.routing, &shape, source)).collect();
        let lists = lists(&routings);
        let arrivals = routing::arrivals(&routings, rank, local_experts, &lists);
        let before = |source: usize| arrivals.iter().filter(|a| (a.source as usize) < source).count();
        let sources = match shape.layout {
            Layout::Dense => (0..routings.len()).map(before).collect(),
            _ => (0..routings.len()).map(|source| source * shape.tokens as usize).collect(),
        };
        Self {
            arrivals,
            sources,
            pattern: Pattern::new(shape.dtype(), shape.hidden),
            dtype: shape.dtype(),
            iteration: 0,
            lists,
            rank,
            local_experts,
            shape,
            routings,
        }
    }

    /// That of this rank's own tokens.
    pub fn routing(&self) -> &Routing {
        &self.routings[self.rank as usize]
    }

    /// Whether ranks answer with the tokens themselves: a pair of 16-bit rows that stay in place.
    pub fn returns_tokens(&self, case: Case) -> bool {
        case == Case::Pair && self.shape.layout == Layout::RankMajor && !self.shape.payload.is_fp8()
    }

    /// The row that `source` sends for a token in this iteration.
    fn token_row(&self, source: u32, token: u32) -> &[u16] {
        self.pattern.row(&[0, self.iteration, source, token])
    }

    /// The output of an expert for a token of `source`.
    fn expert_row(&self, source: u32, token: u32, expert: u32) -> &[u16] {
        self.pattern.row(&[1, self.iteration, source, token, expert])
    }

    /// The answer of a rank, summed over its experts.
    fn rank_row(&self, source: u32, token: u32, rank: u32) -> &[u16] {
        self.pattern.row(&[2, self.iteration, source, token, rank])
    }

    /// The answer of this rank to a row that has arrived.
    pub fn answer(&self, arrival: &Arrival) -> &[u16] {
        self.rank_row(arrival.source, arrival.token, self.rank)
    }

    /// x: `[tokens, hidden]`
    pub fn make_tokens(&self, x: &mut [u16]) {
        for (token, row) in (0..).zip(x.chunks_exact_mut(self.shape.hidden as usize)) {
            row.copy_from_slice(self.token_row(self.rank, token));
        }
    }

    /// The tokens in FP8. x: `[tokens, hidden]`, scales: `[tokens, hidden / 128]`
    pub fn make_fp8_tokens(&self, x: &mut [u8], scales: &mut [f32]) -> Result<(), Error> {
        let mut row = Wire::new(&self.shape);
        let (bytes, blocks) = (row.payload.len(), row.numbers.len());
        for (token, (x, scales)) in (0..).zip(x.chunks_exact_mut(bytes).zip(scales.chunks_exact_mut(blocks)))
        {
            row.set(self.dtype, self.token_row(self.rank, token))?;
            x.copy_from_slice(&row.payload);
            scales.copy_from_slice(&row.numbers);
        }
        Ok(())
    }

    /// For prefill: the number of rows for which its output must have room.
    pub fn places(&self) -> usize {
        if self.shape.layout.is_by_expert() { self.lists.places } else { self.arrivals.len() }
    }

    /// outputs: by expert as copies lie, by source `[places, hidden]`
    pub fn make_outputs(&self, outputs: &mut [u16]) {
        let hidden = self.shape.hidden as usize;
        for arrival @ Arrival { source, token, row, copies } in &self.arrivals {
            match self.shape.layout {
                Layout::ExpertMajor | Layout::Packed => {
                    for &(expert, at) in copies {
                        let output = self.expert_row(*source, *token, expert);
                        outputs[at * hidden..][..hidden].copy_from_slice(output);
                    }
                }
                Layout::RankMajor | Layout::Dense => {
                    let at = self.sources[*source as usize] + row;
                    outputs[at * hidden..][..hidden].copy_from_slice(self.answer(arrival));
                }
            }
        }
    }

    /// The number of rank-major rows that differ from what was sent, are missing, or are too many. `row`: payload and
    /// scales of a row of a source; `count`: how many there are of a source.
    pub fn wrong_rows<'a>(
        &self,
        row: impl Fn(u32, usize) -> Option<(&'a [u8], &'a [u8])>,
        count: impl Fn(u32) -> usize,
    ) -> Result<u64, Error> {
        let mut sent = vec![0; self.routings.len()];
        let mut wrong = 0;
        let mut expected = Wire::new(&self.shape);
        for arrival in &self.arrivals {
            sent[arrival.source as usize] += 1;
            expected.set(self.dtype, self.token_row(arrival.source, arrival.token))?;
            wrong +=
                u64::from(row(arrival.source, arrival.row) != Some((&expected.payload, &expected.scales)));
        }
        let surplus = (0..).zip(&sent).map(|(source, &sent)| count(source).abs_diff(sent) as u64);
        Ok(wrong + surplus.sum::<u64>())
    }

    /// The number of received rows of a prefill that differ from what was sent, are missing, or are too many. rows:
    /// `[places, payload]`; counts: of experts, by source of sources; scales: column-major, by source `[places,
    /// blocks]`.
    pub fn wrong_prefill(&self, rows: &[u8], scales: &[u8], counts: &[u32]) -> Result<u64, Error> {
        if self.shape.layout.is_by_expert() {
            return self.wrong_copies(rows, scales, counts);
        }
        let wire = Wire::new(&self.shape);
        let (payload, behind) = (wire.payload.len(), wire.scales.len());
        let row = |source: u32, row: usize| {
            let at = self.sources[source as usize] + row;
            Some((rows.get(at * payload..)?.get(..payload)?, scales.get(at * behind..)?.get(..behind)?))
        };
        self.wrong_rows(row, |source| counts[source as usize] as usize)
    }

    /// The number of rows by expert that differ from what was sent, are missing, or are too many. rows: `[places,
    /// payload]`, scales as [`Lists`] has them, counts: `[local_experts]`
    pub fn wrong_copies(&self, rows: &[u8], scales: &[u8], counts: &[u32]) -> Result<u64, Error> {
        let mut sent = vec![0u32; counts.len()];
        let mut wrong = 0;
        let mut expected = Wire::new(&self.shape);
        let (bytes, blocks) = (expected.payload.len(), expected.scales.len() / 4);
        for Arrival { source, token, copies, .. } in &self.arrivals {
            expected.set(self.dtype, self.token_row(*source, *token))?;
            for &(expert, at) in copies {
                let list = (expert % self.local_experts) as usize;
                sent[list] += 1;
                let scale = |block| &scales[self.lists.scale(list, at, block, blocks) * 4..][..4];
                let right = rows[at * bytes..][..bytes] == expected.payload
                    && (0..).zip(expected.scales.chunks_exact(4)).all(|(block, s)| scale(block) == s);
                wrong += u64::from(!right);
            }
        }
        let surplus = sent.iter().zip(counts).map(|(a, &b)| u64::from(a.abs_diff(b)));
        Ok(wrong + surplus.sum::<u64>())
    }

    /// The number of combined rows that are not, bit for bit, the sum in the order that the mode defines. out:
    /// `[tokens, hidden]`
    pub fn wrong_sums(&self, case: Case, out: &[u16]) -> u64 {
        let (rank, hidden) = (self.rank, self.shape.hidden as usize);
        let local_experts = self.local_experts;
        let routing = self.routing();
        let (mut total, mut part) = (vec![0.0f32; hidden], vec![0.0f32; hidden]);
        let mut bits = vec![0u16; hidden];
        let mut wrong = 0;
        for (token, out) in (0u32..).zip(out.chunks_exact(hidden)) {
            total.fill(0.0);
            let chosen = routing.of(token as usize);
            if self.shape.combine == Combine::Ordered {
                for (expert, weight) in chosen {
                    pattern::add(self.dtype, &mut total, weight, self.expert_row(rank, token, expert));
                }
            } else {
                for owner in routing.ranks_of(token as usize, local_experts) {
                    if self.shape.layout.is_by_expert() {
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

/// A row as it travels.
struct Wire {
    payload: Vec<u8>,
    scales: Vec<u8>,
    /// The scales as numbers; empty for 16-bit payloads.
    numbers: Vec<f32>,
}

impl Wire {
    fn new(shape: &Shape) -> Self {
        let (payload, blocks) = shape.payload.row(shape.hidden);
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
