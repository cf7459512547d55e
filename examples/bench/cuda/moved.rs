//! Bytes that an operation must bring from GPU to GPU.

use crate::args::{Combine, Shape};
use crate::cases::Case;
use crate::routing::Routing;

/// Rows to other ranks only; indices, headers and signals are not counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// Of the rank that sends most.
    pub sent: u64,
    /// Of the rank that sends or receives most: a link carries as much either way.
    pub busiest: u64,
    /// Signals that follow each other, and kernels.
    pub operations: u32,
}

impl Moved {
    pub fn of(case: Case, shape: &Shape, routings: &[Routing]) -> Self {
        let (row, payload) = (2 * u64::from(shape.hidden), shape.payload_bytes());
        let to_ranks = Crossing::count(shape, routings, false);
        let dispatch =
            Self { sent: to_ranks.sent * payload, busiest: to_ranks.busiest() * payload, operations: 1 };
        // What a rank has received it answers.
        let answers = Crossing::count(shape, routings, shape.combine == Combine::Ordered);
        let combine = Self { sent: answers.received * row, busiest: answers.busiest() * row, operations: 1 };
        match case {
            Case::Dispatch => dispatch,
            Case::Combine => combine,
            Case::Pair => Self {
                sent: dispatch.sent + combine.sent,
                busiest: dispatch.busiest + combine.busiest,
                operations: 2,
            },
        }
    }
}

/// Rows between different ranks, of the rank that sends most and of the one that receives most.
struct Crossing {
    sent: u64,
    received: u64,
}

impl Crossing {
    /// A row per (token, rank), or per (token, expert).
    fn count(shape: &Shape, routings: &[Routing], per_expert: bool) -> Self {
        let local_experts = shape.experts / routings.len() as u32;
        let (mut sent, mut received) = (vec![0; routings.len()], vec![0; routings.len()]);
        for (source, routing) in routings.iter().enumerate() {
            for token in 0..routing.tokens() {
                let owners = if per_expert {
                    routing.of(token).map(|(expert, _)| expert / local_experts).collect()
                } else {
                    routing.ranks_of(token, local_experts)
                };
                for owner in owners.into_iter().map(|owner| owner as usize).filter(|&owner| owner != source) {
                    sent[source] += 1;
                    received[owner] += 1;
                }
            }
        }
        let most = |rows: Vec<u64>| rows.into_iter().max().unwrap_or(0);
        Self { sent: most(sent), received: most(received) }
    }

    fn busiest(&self) -> u64 {
        self.sent.max(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Layout, Payload};
    use crate::routing::Spread;

    /// Ten tokens of each of four ranks go to four experts of rank 0: 30 rows cross, 10 of each source.
    #[test]
    fn only_rows_to_other_ranks_count() {
        let shape = Shape {
            tokens: 10,
            hidden: 256,
            experts: 16,
            absent_experts: 0,
            topk: 4,
            payload: Payload::Fp8,
            layout: Layout::ExpertMajor,
            combine: Combine::Reduced,
        };
        let routings: Vec<_> = (0..4).map(|source| Routing::new(Spread::One, &shape, source)).collect();
        let dispatch = Moved::of(Case::Dispatch, &shape, &routings);
        assert_eq!(dispatch, Moved { sent: 10 * 264, busiest: 30 * 264, operations: 1 });
        let combine = Moved::of(Case::Combine, &shape, &routings);
        assert_eq!(combine, Moved { sent: 30 * 512, busiest: 30 * 512, operations: 1 });
        let ordered = Shape { combine: Combine::Ordered, ..shape };
        assert_eq!(Moved::of(Case::Combine, &ordered, &routings).busiest, 120 * 512);
        let pair = Moved::of(Case::Pair, &shape, &routings);
        assert_eq!(pair, Moved { sent: 10 * 264 + 30 * 512, busiest: 30 * 264 + 30 * 512, operations: 2 });
    }
}
