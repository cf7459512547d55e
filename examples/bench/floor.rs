//! The floor: how long the machine itself would take to move the bytes of an operation.

use clap::ValueEnum;
use epwire::{EpBuffer, Group};

use crate::args::{Combine, Layout, Payload, Shape};
use crate::cases::Case;
use crate::routing::Routing;
use crate::samples::{Samples, meet, now, spans};
use crate::{Error, ranks};

/// Behind the options in --help: what every figure means.
pub const HELP: &str = "\
Times:
  An iteration begins when all ranks have met and lasts from the first rank's call to the last rank's return, on the
  host's one monotonic clock. p50, p99 and max are over the iterations. Between iterations, outside the time, tokens
  and expert outputs are renewed and every result is checked.
    dispatch  dispatch and the release that lets peers go on
    combine   combine, after a dispatch that is not timed. Expert-major outputs lie in memory of the caller,
              rank-major ones have been written over the received rows in the window
    pair      dispatch and combine at once, with experts that take no time: expert-major outputs lie ready in memory
              of the caller; rank-major rows go back as they came, in place (fp8: from memory of the caller)

#wrong:
  Received rows (payload and scales) and combined rows that differ in any bit from what a scalar computation gives,
  and rows too few or too many, over all ranks and iterations, warm-up included. Every row has contents of its own,
  which depend on source, token and iteration. In the pair, rank-major rows are seen through the combined ones.

Floor:
  (bytes read + bytes written) / 2, over all ranks, at the rate at which as many processes, with as many threads each,
  copy 128 MiB each with memcpy at the same time; the best of several rounds per shape and of all shapes of the run.
  D is the number of (token, rank) rows, K that of (token, expert) rows, N that of tokens; P are the bytes of a payload
  with its scales, H those of a 16-bit row. Indices, headers and signals are not counted.
                                  read              written
    dispatch, rank-major          N*H               D*P
    dispatch, expert-major        N*H + K*P         D*P + K*P
    combine, rank-major           D*H + D*H         D*H + N*H
    combine, expert-major         K*H + D*H         D*H + N*H
    combine, ordered              K*H + K*H         K*H + N*H
    pair                          the sum of both
  --reads each counts the first reading in dispatch for every copy made of it (D*H instead of N*H), as if no cache
  kept a token between its copies. A rank's rows to itself count like all others, though they may skip a copy.

ratio = floor / p50. The exit code is 1 if #wrong is not 0.

On GPUs (--device cuda):
  Every rank has a GPU, the visible ones in turn, and one stream. Times are those of the GPU. p50, p99 and max are those
  of the slowest rank; fastest and middle are medians too. GB/s: bytes that the busiest rank sends to others / p50.
    --graph     a graph of 50 operations, replayed. All ranks meet before each replay; the one that is timed follows one that
                is not, so that the ranks are in step. dispatch and pair: time of the graph / 50. combine: each combine of 50
                dispatches and combines between two stamps, on average, less what two stamps with nothing between them are
                apart. A stamp is a kernel that writes the GPU's clock down when those before it have ended; it is set up
                early as epwire's own are, and keeps none from being so. kernel us: dispatch alone, or combine, by stamps
    otherwise   operations enqueued one after the other, each between two events
    --split     a graph of 50 operations in halves, each half between two stamps as above, with pauses of 100 us between
                them; the median of each replay
    --table     both, for the cases of the README's table, one row each; windows are those that the plan says
  Before a case is timed, some of its operations are checked as on the host, and another one after it. What timed ones
  leave in memory of the caller is checked as well; rows in the window are not, and in a timed combine of rank-major rows
  nobody writes over them.
  Floor: bytes / rate + signal + launch, twice the latter two for the pair. Bytes are those of rows to other ranks, of the rank
  that sends or receives most: D*P for dispatch, D*H for combine, K*H for ordered, of which rows to itself are no part.
  Rate: that at which every GPU stores to all peers at once, with all SMs; signal: half of a word's way to a peer and
  back; launch: from empty kernel to empty kernel, timed as the operations are.";

/// `--reads`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reads {
    /// Once, as a cache allows
    Once,
    /// For each copy that is made of it
    Each,
}

/// Bytes that an operation reads and writes, over all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    pub read: u64,
    pub written: u64,
}

impl Traffic {
    /// As the table in [`HELP`] says.
    pub fn of(case: Case, shape: &Shape, routings: &[Routing], reads: Reads) -> Self {
        let local_experts = shape.experts / routings.len() as u32;
        let tokens = shape.tokens as u64 * routings.len() as u64;
        let to_experts = tokens * u64::from(shape.topk);
        let of_rank =
            |r: &Routing| (0..r.tokens()).map(|t| r.ranks_of(t, local_experts).len() as u64).sum::<u64>();
        let to_ranks: u64 = routings.iter().map(of_rank).sum();
        let hidden = u64::from(shape.hidden);
        let row = 2 * hidden;
        let payload = if shape.payload == Payload::Fp8 { hidden + hidden / 128 * 4 } else { row };

        let first_reads = if reads == Reads::Once { tokens } else { to_ranks };
        let spread = if shape.layout == Layout::ExpertMajor { to_experts * payload } else { 0 };
        let dispatch = Self { read: first_reads * row + spread, written: to_ranks * payload + spread };

        let outputs = if shape.layout == Layout::ExpertMajor { to_experts } else { to_ranks };
        let answers = if shape.combine == Combine::Ordered { to_experts } else { to_ranks };
        let combine = Self { read: (outputs + answers) * row, written: (answers + tokens) * row };

        match case {
            Case::Dispatch => dispatch,
            Case::Combine => combine,
            Case::Pair => {
                Self { read: dispatch.read + combine.read, written: dispatch.written + combine.written }
            }
        }
    }

    /// Microseconds at `rate` copied bytes a second.
    pub fn floor_us(&self, rate: f64) -> f64 {
        (self.read + self.written) as f64 / 2.0 / rate * 1e6
    }
}

/// Bytes that a process copies in a round: far beyond what caches hold.
const COPY_BYTES: usize = 128 << 20;
const ROUNDS: usize = 6;

/// Copied bytes a second of all processes together, on rank 0; 0 elsewhere. All ranks call it.
pub fn copy_rate(group: &Group, buffer: &EpBuffer, threads: u32) -> Result<f64, Error> {
    let part = COPY_BYTES / ranks::threads(threads, group.world());
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![2u8; COPY_BYTES];
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        meet(buffer)?;
        let begin = now();
        std::thread::scope(|scope| {
            let mut parts = to.chunks_mut(part).zip(from.chunks(part));
            let own = parts.next();
            parts.for_each(|(to, from)| drop(scope.spawn(|| to.copy_from_slice(from))));
            if let Some((to, from)) = own {
                to.copy_from_slice(from);
            }
        });
        samples.moments.push([begin, now()]);
        std::hint::black_box(&mut to);
    }
    let bytes = (COPY_BYTES * group.world() as usize) as f64;
    let fastest = samples.gather(group)?.and_then(|all| spans(&all).into_iter().map(|span| span.0).min());
    Ok(fastest.map_or(0.0, |ns| bytes / ns as f64 * 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Spread;

    const SHAPE: Shape = Shape {
        tokens: 10,
        hidden: 256,
        experts: 16,
        topk: 4,
        payload: Payload::Bf16,
        layout: Layout::ExpertMajor,
        combine: Combine::Reduced,
    };

    /// All 40 tokens go to four experts of rank 0: one row each for the rank, four for its experts.
    fn traffic(case: Case, shape: Shape, reads: Reads) -> [u64; 2] {
        let routings: Vec<_> = (0..4).map(|s| Routing::new(Spread::One, &shape, s)).collect();
        let traffic = Traffic::of(case, &shape, &routings, reads);
        [traffic.read, traffic.written]
    }

    #[test]
    fn bytes_are_those_of_the_help_text() {
        let (n, h) = (40, 512);
        let fp8 = 256 + 8;
        let rank_major = Shape { layout: Layout::RankMajor, ..SHAPE };
        let ordered = Shape { combine: Combine::Ordered, ..SHAPE };
        let small = Shape { payload: Payload::Fp8, ..SHAPE };
        for (case, shape, expected) in [
            (Case::Dispatch, rank_major, [n * h, n * h]),
            (Case::Dispatch, SHAPE, [n * h + 4 * n * h, n * h + 4 * n * h]),
            (Case::Dispatch, small, [n * h + 4 * n * fp8, n * fp8 + 4 * n * fp8]),
            (Case::Combine, rank_major, [2 * n * h, 2 * n * h]),
            (Case::Combine, SHAPE, [4 * n * h + n * h, 2 * n * h]),
            (Case::Combine, ordered, [8 * n * h, 4 * n * h + n * h]),
            (Case::Pair, rank_major, [3 * n * h, 3 * n * h]),
        ] {
            assert_eq!(traffic(case, shape, Reads::Once), expected, "{case:?} {shape:?}");
        }
    }

    #[test]
    fn reads_differ_only_where_a_token_goes_to_several_ranks() {
        let shape = Shape { topk: 8, layout: Layout::RankMajor, ..SHAPE }; // two ranks each
        assert_eq!(traffic(Case::Dispatch, shape, Reads::Once), [40 * 512, 80 * 512]);
        assert_eq!(traffic(Case::Dispatch, shape, Reads::Each), [80 * 512, 80 * 512]);
        assert_eq!(Traffic { read: 3000, written: 1000 }.floor_us(1e9), 2.0);
    }
}
