//! What ranks send, and the place of each row. All numbers are small multiples of 1/2, so that every sum is exact.

use epwire::prefill::{PrefillLayout, PrefillOutput};
use epwire::{Dispatch, HostBuffer, TensorMut, TensorRef};
use half::bf16;

pub(crate) const RANKS: usize = 4;
pub(crate) const TOKENS: usize = 40;
pub(crate) const HIDDEN: usize = 640;
pub(crate) const EXPERTS: usize = 12;
pub(crate) const LOCAL: usize = EXPERTS / RANKS;
pub(crate) const TOPK: usize = 3;

/// The number of a rank's tokens, which differs between ranks.
pub(crate) fn tokens(rank: usize) -> usize {
    TOKENS - 3 * rank
}

/// Entry `j` of a token; a few are not routed.
pub(crate) fn expert(rank: usize, token: usize, j: usize) -> Option<usize> {
    let nowhere = (token + j).is_multiple_of(7) || token == 5;
    (!nowhere).then_some((rank + token * 5 + j * if token.is_multiple_of(3) { 1 } else { 4 }) % EXPERTS)
}

pub(crate) fn weight(round: usize, token: usize, j: usize) -> f32 {
    [0.5, 1.0, 1.5][(token + j + round) % 3]
}

/// Channel `c` of a token.
pub(crate) fn value(round: usize, rank: usize, token: usize, c: usize) -> f32 {
    ((rank * 5 + token * 3 + c + round) % 9) as f32 - 4.0
}

/// The output of an expert for a channel.
pub(crate) fn made(expert: usize, value: f32) -> f32 {
    value * (1.0 + (expert % 2) as f32)
}

/// What a rank sends in a round.
pub(crate) struct Sent {
    pub(crate) x: Vec<bf16>,
    pub(crate) ids: Vec<i32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) band: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(round: usize, rank: usize) -> Self {
        let (mut x, mut ids, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for t in 0..tokens(rank) {
            x.extend((0..HIDDEN).map(|c| bf16::from_f32(value(round, rank, t, c))));
            ids.extend((0..TOPK).map(|j| expert(rank, t, j).map_or(-1, |e| e as i32)));
            weights.extend((0..TOPK).map(|j| weight(round, t, j)));
        }
        let band = (0..tokens(rank)).flat_map(|t| [rank as u8, t as u8, 7, 8]).collect();
        Self { x, ids, weights, band }
    }

    pub(crate) fn input(&self) -> Dispatch<'_> {
        Dispatch::new(TensorRef::new(&self.x, HIDDEN), TensorRef::new(&self.ids, TOPK))
            .weights(TensorRef::new(&self.weights, TOPK))
    }
}

/// A row at its expected place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) place: usize,
    pub(crate) source: usize,
    pub(crate) token: usize,
    /// In layouts by expert: the entry of the token's top-k.
    pub(crate) position: usize,
}

fn by_expert(layout: PrefillLayout) -> bool {
    matches!(layout, PrefillLayout::Packed { .. } | PrefillLayout::ExpertMajor)
}

/// The rows of a rank, and the capacity that they need.
pub(crate) fn rows(rank: usize, layout: PrefillLayout) -> (Vec<Row>, usize) {
    let here =
        |source, token| (0..TOPK).find(|j| expert(source, token, *j).is_some_and(|e| e / LOCAL == rank));
    let all = || (0..RANKS).flat_map(|source| (0..tokens(source)).map(move |token| (source, token)));
    let mut found = Vec::new();
    if !by_expert(layout) {
        for (source, token) in all() {
            let Some(position) = here(source, token) else { continue };
            let first = if layout == PrefillLayout::RankMajor { source * TOKENS } else { 0 };
            let before = found
                .iter()
                .filter(|row: &&Row| first == 0 && layout == PrefillLayout::Dense || row.source == source);
            let place = first + before.count();
            found.push(Row { place, source, token, position });
        }
        let capacity = if layout == PrefillLayout::RankMajor { RANKS * TOKENS } else { found.len() };
        return (found, capacity);
    }
    let lists: Vec<Vec<(usize, usize, usize)>> = (0..LOCAL)
        .map(|e| {
            let entries = all().flat_map(|(s, t)| (0..TOPK).map(move |j| (s, t, j)));
            entries.filter(|(s, t, j)| expert(*s, *t, *j) == Some(rank * LOCAL + e)).collect()
        })
        .collect();
    let most = lists.iter().map(Vec::len).max().unwrap();
    let mut end = 0;
    for (e, list) in lists.iter().enumerate() {
        let first = if layout == PrefillLayout::ExpertMajor { e * most } else { end };
        let row = |(n, (source, token, position)): (usize, &(usize, usize, usize))| Row {
            place: first + n,
            source: *source,
            token: *token,
            position: *position,
        };
        found.extend(list.iter().enumerate().map(row));
        if let PrefillLayout::Packed { alignment } = layout {
            end = (end + list.len()).next_multiple_of(alignment as usize);
        }
    }
    (found, if layout == PrefillLayout::ExpertMajor { most } else { end })
}

/// Memory for all outputs of a dispatch.
pub(crate) struct Memory {
    pub(crate) layout: PrefillLayout,
    pub(crate) capacity: usize,
    pub(crate) rows: HostBuffer<u8>,
    pub(crate) band: Vec<u8>,
    pub(crate) counts: Vec<u32>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) overflow: Vec<u32>,
    pub(crate) source_counts: Vec<u32>,
    pub(crate) source_offsets: Vec<u32>,
    pub(crate) row_expert: Vec<i32>,
    pub(crate) row_source: Vec<i32>,
    pub(crate) row_token: Vec<i32>,
    pub(crate) row_position: Vec<i32>,
    pub(crate) row_weight: Vec<f32>,
    pub(crate) row_experts: Vec<i32>,
    pub(crate) row_weights: Vec<f32>,
    pub(crate) ranges: Vec<u64>,
    pub(crate) expert_totals: Vec<u64>,
    pub(crate) expert_totals_i32: Vec<i32>,
    pub(crate) wait_ns: Vec<u64>,
}

impl Memory {
    pub(crate) fn new(layout: PrefillLayout, capacity: usize) -> Self {
        let places = capacity * if layout == PrefillLayout::ExpertMajor { LOCAL } else { 1 };
        Self {
            layout,
            capacity,
            rows: HostBuffer::zeroed(places * HIDDEN * 2),
            band: vec![9; places * 4],
            counts: vec![9; LOCAL],
            offsets: vec![9; LOCAL],
            overflow: vec![9; if by_expert(layout) { LOCAL } else { RANKS }],
            source_counts: vec![9; RANKS],
            source_offsets: vec![9; RANKS],
            row_expert: vec![9; places],
            row_source: vec![9; places],
            row_token: vec![9; places],
            row_position: vec![9; places],
            row_weight: vec![9.0; places],
            row_experts: vec![9; places * TOPK],
            row_weights: vec![9.0; places * TOPK],
            ranges: vec![9; LOCAL * RANKS],
            expert_totals: vec![0; LOCAL],
            expert_totals_i32: vec![0; LOCAL],
            wait_ns: vec![0; RANKS],
        }
    }

    /// All outputs that the layout fills.
    pub(crate) fn output(&mut self) -> PrefillOutput<'_> {
        self.expert_totals.fill(0);
        self.expert_totals_i32.fill(0);
        let output = PrefillOutput::new(self.layout, self.capacity)
            .rows(TensorMut::new(&mut self.rows))
            .counts(&mut self.counts)
            .source_counts(&mut self.source_counts)
            .row_source(&mut self.row_source)
            .row_token(&mut self.row_token)
            .expert_totals(&mut self.expert_totals)
            .expert_totals_i32(&mut self.expert_totals_i32)
            .overflow(&mut self.overflow)
            .wait_ns(&mut self.wait_ns);
        if by_expert(self.layout) {
            output
                .offsets(&mut self.offsets)
                .row_expert(&mut self.row_expert)
                .row_position(&mut self.row_position)
                .row_weight(&mut self.row_weight)
                .ranges(&mut self.ranges)
        } else {
            output
                .source_offsets(&mut self.source_offsets)
                .row_experts(&mut self.row_experts)
                .row_weights(&mut self.row_weights)
        }
    }

    pub(crate) fn channel(&self, place: usize, c: usize) -> f32 {
        let at = (place * HIDDEN + c) * 2;
        bf16::from_le_bytes([self.rows[at], self.rows[at + 1]]).to_f32()
    }

    /// Checks all outputs of a dispatch of `round` except payloads: rows without a place are left out.
    pub(crate) fn check_lists(&self, rank: usize, round: usize) {
        let (mut rows, _) = rows(rank, self.layout);
        let expert_of = |row: &Row| expert(row.source, row.token, row.position).unwrap() - rank * LOCAL;
        let counts: Vec<u32> = (0..LOCAL)
            .map(|e| {
                (0..RANKS)
                    .flat_map(|s| (0..tokens(s)).map(move |t| (s, t)))
                    .map(|(s, t)| {
                        (0..TOPK).filter(|j| expert(s, t, *j) == Some(rank * LOCAL + e)).count() as u32
                    })
                    .sum()
            })
            .collect();
        assert_eq!(self.counts, counts);
        for (e, count) in counts.iter().enumerate() {
            assert_eq!(self.expert_totals[e], u64::from(*count));
            assert_eq!(self.expert_totals[e], self.expert_totals_i32[e] as u64);
            let of_sources = self.ranges[e * RANKS..][..RANKS].iter();
            let rows: u64 = of_sources.map(|range| range & u64::from(u32::MAX)).sum();
            assert!(!by_expert(self.layout) || rows == u64::from(*count));
        }
        for s in 0..RANKS {
            let mut of_source: Vec<usize> = rows.iter().filter(|r| r.source == s).map(|r| r.token).collect();
            of_source.sort_unstable();
            of_source.dedup();
            assert_eq!(self.source_counts[s] as usize, of_source.len());
        }
        if self.layout != PrefillLayout::ExpertMajor {
            rows.retain(|row| row.place < self.capacity);
        }
        let mut taken = vec![None; self.row_source.len()];
        rows.iter().for_each(|row| taken[row.place] = Some(*row));
        for (place, taken) in taken.iter().enumerate() {
            let [source, token] = taken.map_or([-1, -1], |row| [row.source as i32, row.token as i32]);
            assert_eq!((self.row_source[place], self.row_token[place]), (source, token), "place {place}");
            if by_expert(self.layout) {
                let [e, position] =
                    taken.map_or([-1, -1], |row| [expert_of(&row) as i32, row.position as i32]);
                assert_eq!((self.row_expert[place], self.row_position[place]), (e, position));
                let weight = taken.map_or(0.0, |row| weight(round, row.token, row.position));
                assert_eq!(self.row_weight[place], weight);
                continue;
            }
            for j in 0..TOPK {
                let here = taken.and_then(|row| Some((row, expert(row.source, row.token, j)?)));
                let here = here.filter(|(_, e)| e / LOCAL == rank);
                let want =
                    here.map_or((-1, 0.0), |(row, e)| ((e % LOCAL) as i32, weight(round, row.token, j)));
                let at = place * TOPK + j;
                assert_eq!((self.row_experts[at], self.row_weights[at]), want);
            }
        }
    }

    /// 16-bit payloads.
    pub(crate) fn check_rows(&self, round: usize) {
        for (place, source) in self.row_source.iter().enumerate().filter(|(_, s)| **s >= 0) {
            for c in 0..HIDDEN {
                let want = value(round, *source as usize, self.row_token[place] as usize, c);
                assert_eq!(self.channel(place, c), want, "place {place}");
            }
        }
    }

    /// The output of this rank's experts for the rows, in `width` channels; in layouts by source, reduced over the
    /// experts.
    pub(crate) fn outputs(&self, rank: usize, width: usize) -> Vec<bf16> {
        let mut outputs = vec![bf16::ZERO; self.row_source.len() * width];
        for place in (0..self.row_source.len()).filter(|place| self.row_source[*place] >= 0) {
            for c in 0..width {
                let x = self.channel(place, c);
                let sum = if by_expert(self.layout) {
                    made(rank * LOCAL + self.row_expert[place] as usize, x)
                } else {
                    let of = |j| (self.row_experts[place * TOPK + j], self.row_weights[place * TOPK + j]);
                    let here = (0..TOPK).map(of).filter(|(e, _)| *e >= 0);
                    here.map(|(e, weight)| weight * made(rank * LOCAL + e as usize, x)).sum()
                };
                outputs[place * width + c] = bf16::from_f32(sum);
            }
        }
        outputs
    }
}

/// Channel `c` of a token's sum over the experts for which `has` is true.
pub(crate) fn sum(round: usize, rank: usize, token: usize, c: usize, has: impl Fn(usize) -> bool) -> f32 {
    let experts = (0..TOPK).filter_map(|j| Some((j, expert(rank, token, j)?)));
    let here = experts.filter(|(_, e)| has(*e));
    here.map(|(j, e)| weight(round, token, j) * made(e, value(round, rank, token, c))).sum()
}

/// Checks the sums of `width` channels over all experts.
pub(crate) fn check_sums(round: usize, rank: usize, width: usize, out: &[bf16]) {
    assert_eq!(out.len(), tokens(rank) * width);
    for (t, row) in out.chunks_exact(width).enumerate() {
        for (c, got) in row.iter().enumerate() {
            assert_eq!(got.to_f32(), sum(round, rank, t, c, |_| true), "rank {rank}, token {t}, channel {c}");
        }
    }
}
