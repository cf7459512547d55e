//! Where tokens go. Every rank knows the routing of all, so that each can say what it must receive.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{args::Shape, pattern::mix};

/// Where the rows of a rank's experts lie, and the scales of FP8 rows: columns, one for each block of channels.
#[derive(Debug, Clone, PartialEq)]
pub struct Lists {
    /// Place of each expert's first row.
    firsts: Vec<usize>,
    /// Of all experts.
    pub places: usize,
    /// Rows that a column of scales has room for.
    column: usize,
    /// Each expert has columns of its own.
    apart: bool,
}

impl Lists {
    /// This many places for each expert.
    pub fn fixed(experts: u32, rows: usize) -> Self {
        let experts = experts as usize;
        Self {
            firsts: (0..experts).map(|e| e * rows).collect(),
            places: experts * rows,
            column: rows,
            apart: true,
        }
    }

    /// The lists of the experts one after the other, each at a multiple of `alignment`, as `rank` receives them.
    pub fn packed(routings: &[Routing], rank: u32, local_experts: u32, alignment: usize) -> Self {
        let mut counts = vec![0usize; local_experts as usize];
        let chosen = routings.iter().flat_map(|routing| &routing.experts).map(|e| *e as u32);
        chosen.filter(|e| e / local_experts == rank).for_each(|e| counts[(e % local_experts) as usize] += 1);
        let mut places = 0;
        let first = |count: &usize| {
            let first = places;
            places += count.next_multiple_of(alignment);
            first
        };
        let firsts = counts.iter().map(first).collect();
        Self { firsts, places, column: places.next_multiple_of(4), apart: false }
    }

    /// The index of the scale of a block of the row at `place`, a row of expert `list`; rows have this many blocks.
    pub fn scale(&self, list: usize, place: usize, block: usize, blocks: usize) -> usize {
        if self.apart {
            (list * blocks + block) * self.column + place - self.firsts[list]
        } else {
            block * self.column + place
        }
    }
}

/// `--routing`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// All experts alike
    #[default]
    Uniform,
    /// Expert e with a frequency proportional to 1/(e+1): the first rank is the busiest
    Zipf,
    /// Every token to the experts 0 to topk-1, which live on rank 0 if it has as many
    One,
}

/// The routing of one rank's tokens.
#[derive(Debug, Clone)]
pub struct Routing {
    pub topk: usize,
    /// `[tokens, topk]`
    pub experts: Vec<i32>,
    /// `[tokens, topk]`
    pub weights: Vec<f32>,
}

/// A token that has arrived on a rank, and where its copies are.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub source: u32,
    pub token: u32,
    /// Its place among the rows of its source.
    pub row: usize,
    /// For each of its local experts, in top-k order: the expert, and the place of its row.
    pub copies: Vec<(u32, usize)>,
}

impl Routing {
    pub fn new(spread: Spread, shape: &Shape, source: u32) -> Self {
        let (tokens, topk) = (shape.tokens, shape.topk as usize);
        let mut experts = Vec::with_capacity(tokens as usize * topk);
        let mut keys: Vec<(f64, i32)> = Vec::new();
        for token in 0..tokens {
            // The k smallest of exponential variables with the frequencies as rates: drawing without replacement.
            keys.clear();
            keys.extend((0..shape.experts).map(|e| {
                let exponential = -unit(&[1, source, token, e]).ln();
                match spread {
                    Spread::Uniform => (exponential, e as i32),
                    Spread::Zipf => (exponential * f64::from(e + 1), e as i32),
                    Spread::One => (f64::from(e), e as i32),
                }
            }));
            keys.sort_by(|a, b| a.0.total_cmp(&b.0));
            experts.extend(keys[..topk].iter().map(|key| key.1));
        }
        let weight = |i: u32| (0.1 + unit(&[2, source, i])) as f32;
        let weights = (0..experts.len() as u32).map(weight).collect();
        Self { topk, experts, weights }
    }

    pub fn tokens(&self) -> usize {
        self.experts.len() / self.topk
    }

    /// The experts of a token with their weights, in top-k order.
    pub fn of(&self, token: usize) -> impl Iterator<Item = (u32, f32)> + Clone + '_ {
        let entries = token * self.topk..(token + 1) * self.topk;
        entries.map(|i| (self.experts[i] as u32, self.weights[i]))
    }

    /// The ranks of a token, ascending.
    pub fn ranks_of(&self, token: usize, local_experts: u32) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.of(token).map(|(e, _)| e / local_experts).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

/// What `rank` receives, by source, then token.
pub fn arrivals(routings: &[Routing], rank: u32, local_experts: u32, lists: &Lists) -> Vec<Arrival> {
    let mut next = lists.firsts.clone();
    let mut arrivals = Vec::new();
    for (source, routing) in (0..).zip(routings) {
        let mut row = 0;
        for token in 0..routing.tokens() {
            let local = routing.of(token).filter(|(e, _)| e / local_experts == rank);
            let copies: Vec<_> = local
                .map(|(expert, _)| {
                    let list = (expert % local_experts) as usize;
                    next[list] += 1;
                    (expert, next[list] - 1)
                })
                .collect();
            if !copies.is_empty() {
                arrivals.push(Arrival { source, token: token as u32, row, copies });
                row += 1;
            }
        }
    }
    arrivals
}

/// Evenly distributed in (0, 1).
fn unit(key: &[u32]) -> f64 {
    ((mix(key) >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Combine, Layout, Payload};

    const SHAPE: Shape = Shape {
        tokens: 200,
        hidden: 128,
        experts: 16,
        absent_experts: 0,
        topk: 4,
        payload: Payload::Bf16,
        layout: Layout::ExpertMajor,
        combine: Combine::Reduced,
    };

    fn chosen(spread: Spread) -> Vec<usize> {
        let mut chosen = vec![0; SHAPE.experts as usize];
        Routing::new(spread, &SHAPE, 0).experts.iter().for_each(|&e| chosen[e as usize] += 1);
        chosen
    }

    #[test]
    fn no_token_has_an_expert_twice() {
        for spread in [Spread::Uniform, Spread::Zipf, Spread::One] {
            let routing = Routing::new(spread, &SHAPE, 3);
            for token in 0..routing.tokens() {
                let mut experts: Vec<_> = routing.of(token).map(|(e, _)| e).collect();
                experts.sort_unstable();
                experts.dedup();
                assert_eq!(experts.len(), 4, "{spread:?}");
            }
        }
    }

    #[test]
    fn experts_are_chosen_as_often_as_their_name_says() {
        assert!(chosen(Spread::Uniform).iter().all(|n| (25..=75).contains(n)));
        let zipf = chosen(Spread::Zipf);
        assert!(zipf[0] > 150 && zipf[0] > 2 * zipf[7] && zipf[15] > 0, "{zipf:?}");
        assert_eq!(chosen(Spread::One), [vec![200; 4], vec![0; 12]].concat());
    }

    #[test]
    fn arrivals_are_ordered_and_complete() {
        let routings: Vec<_> = (0..4).map(|source| Routing::new(Spread::Uniform, &SHAPE, source)).collect();
        let lists = Lists::fixed(4, 800);
        let all: Vec<_> = (0..4).flat_map(|rank| arrivals(&routings, rank, 4, &lists)).collect();
        assert_eq!(all.iter().map(|a| a.copies.len()).sum::<usize>(), 4 * 200 * 4);
        for pair in arrivals(&routings, 2, 4, &lists).windows(2) {
            let [a, b] = pair else { unreachable!() };
            assert!((a.source, a.token) < (b.source, b.token));
            assert_eq!(b.row, if a.source == b.source { a.row + 1 } else { 0 });
        }
    }

    #[test]
    fn packed_rows_fill_their_places_but_for_the_padding() {
        let routings: Vec<_> = (0..4).map(|source| Routing::new(Spread::Zipf, &SHAPE, source)).collect();
        let lists = Lists::packed(&routings, 1, 4, 16);
        let mut taken = vec![0; lists.places];
        let arrivals = arrivals(&routings, 1, 4, &lists);
        arrivals.iter().flat_map(|arrival| &arrival.copies).for_each(|copy| taken[copy.1] += 1);
        let rows: usize = arrivals.iter().map(|arrival| arrival.copies.len()).sum();
        assert!(taken.iter().all(|rows| *rows <= 1) && lists.places < rows + 4 * 16, "{rows} {lists:?}");
        assert!(lists.firsts.iter().all(|first| first % 16 == 0 && taken[*first] == 1));
        assert_eq!(lists.scale(3, 5, 2, 7), 2 * lists.places + 5);
        assert_eq!(Lists::fixed(4, 10).scale(3, 35, 2, 7), (3 * 7 + 2) * 10 + 5);
    }
}
