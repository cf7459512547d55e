//! The floor: how long the machine itself would take to move the bytes of an operation.

use clap::ValueEnum;
use epwire::Group;

use crate::args::{Combine, Shape};
use crate::cases::Case;
use crate::moves::{self, BLOCK, Block, Way};
use crate::routing::Routing;
use crate::samples::{Meeting, Samples, across_hosts, now, spans};
use crate::{Error, ranks};

/// Behind the options in --help: what every figure means.
pub const HELP: &str = "\
Times:
  An iteration begins when all ranks have met and lasts from the first rank's call to the last rank's return, on the
  host's one monotonic clock. p50, p99 and max are over the iterations, by nearest rank: of fewer than 100, p99 is the
  largest. Between iterations, outside the time, tokens and expert outputs are renewed and every result is checked.
  Several hosts share no clock: across them an iteration lasts as long as the longest call of a rank, by its own clock.
    dispatch  dispatch and the release that lets peers continue
    combine   combine, after a dispatch that is not timed. Expert-major outputs lie in memory of the caller,
              rank-major ones have been written over the received rows in the window
    pair      dispatch and combine at once, with experts that take no time: expert-major outputs lie ready in memory
              of the caller; rank-major rows go back as they came, in place (fp8: from memory of the caller)

#wrong:
  Received rows (payload and scales) and combined rows that differ in any bit from what a scalar computation gives,
  and rows too few or too many, over all ranks and iterations, warm-up included. Every row has contents of its own,
  which depend on source, token and iteration. In the pair, rank-major rows are seen through the combined ones.

Floor:
  The time in which as many processes, with as many threads each, move the bytes of the operation and do nothing else: the
  bytes written are copies of as many read, and what is left of either is read or written alone. It is done over memory
  of the operation's extent, so that caches serve it as they serve the operation, again and again without a pause, so that no
  waking up is part of it, just before the case and just after it. The fastest round counts, by the fastest way that the
  processor has (column floor by): the C library's memcpy, rep movsb, AVX2 or AVX-512 stores past the caches.
  Whole blocks of 4 KiB are moved, and the time is scaled to the operation's bytes; below 0.05 us the table has - and no ratio.
  D is the number of (token, rank) rows, K that of (token, expert) rows, N that of tokens; P are the bytes of a payload
  with its scales, H those of a 16-bit row (of a token of fp8-given: P). Indices, headers and signals are not counted.
                                  read              written           extent
    dispatch, rank-major          N*H               D*P               N*H + D*P
    dispatch, expert-major        N*H + D*P         D*P + K*P         N*H + D*P + K*P
    combine, rank-major           D*H + D*H         D*H + N*H         D*H + D*H + N*H
    combine, expert-major         K*H + D*H         D*H + N*H         K*H + D*H + N*H
    combine, ordered              K*H + K*H         K*H + N*H         K*H + K*H + N*H
    packed                        as expert-major, with rings in place of D*P and of D*H or K*H in the extent
    dense                         as packed, with D in place of K
    pair                          the sum of both   the sum of both   the sum of both, 16-bit rank-major rows once
  A row that goes to several ranks or experts is read once, as a cache allows. --reads each counts a reading for every copy
  made of it in dispatch (D*H instead of N*H, K*P instead of D*P). Where 16-bit rows are received expert-major, D leaves
  out the rows of a rank to itself in dispatch: those skip the window. Packed and dense, it leaves them out everywhere,
  and with --reads each the floor is the best copy of what rings and outputs are written: D*P + K*P both read and written.
  Packed and dense, a round of each way follows every iteration, and the median of the fastest way counts: these operations last so long
  that a shared machine changes meanwhile.

Queues (--paths queue):
  The first two ranks put 8 bytes with a signal behind them back and forth, waiting as operations wait, and 16 ranges of
  1 MiB at a time; beside it two blocking TCP sockets of theirs play ping-pong with 8 bytes, and a TCP stream is written
  and read by pieces of 1 MiB. Median of 1000 half round trips, or the fastest of four; then the best of four rounds, in
  turns. The sockets have the addresses by which their hosts reach the run's server. stream us: plain TCP streams between as many processes, one thread of each writing and one reading, take so long
  for the rows of the operation that leave their ranks, D*P, D*H, or K*H of the table above without a rank's to itself;
  the median of five rounds before the case and five after it. of it: p50 / stream.

cores: what a rank's process uses of a core during the iterations, the mean of all ranks, and of that the threads that drain
  its queues (1.00: all of one). The line below the table has the same of ranks that are connected and do nothing. On GPUs a rank's own
  thread looks all the time whether its GPU is done, so that the process has one core at least.

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
    --table     both, for the cases of the guide's table, one row each; windows are those that the plan says
    --sms       one row for each number in the list, with a floor of its own: see below
  Packed and dense rows are those of a prefill buffer, of which --split takes rings that hold all: see --ring.
  Before a case is timed, some of its operations are checked as on the host, and another one after it. What timed ones
  leave in memory of the caller is checked as well; rows in the window are not, and in a timed combine of rank-major rows
  nobody writes over them.
  Floor: bytes / rate + signal + launch, twice the latter two for the pair. Bytes are those of rows to other ranks, of the rank
  that sends or receives most: D*P for dispatch, D*H for combine, K*H for ordered, of which rows to itself are no part.
  Rate: that at which every GPU stores to all peers at once, with all SMs; signal: half of a word's way to a peer and
  back; launch: from empty kernel to empty kernel, timed as the operations are.
  Where --sms lists numbers, the same run measures for each how fast one block on each of so many SMs reads, writes and
  copies memory of its own, of the operation's extent or 256 MiB if that is less, and stores to all peers, all GPUs at once
  (1e9 bytes a second, the slowest one's). SMs us: the time in which they move a rank's share of the table above, once read,
  where what is written is copied and what is left is read or written alone; or the bytes to peers, if that takes
  longer. The floor then has the greater of this and wire us, its bytes / rate.";

/// `--reads`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reads {
    /// Once, as a cache allows
    Once,
    /// For each copy that is made of it
    Each,
}

/// Bytes of an operation, over all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    pub read: u64,
    pub written: u64,
    /// Of the memory that is read or written.
    pub extent: u64,
}

impl Traffic {
    /// As the table in [`HELP`] says.
    /// `rings`: bytes of those of dispatch and of those of combine, where slots are used again and again in an operation.
    pub fn of(
        case: Case,
        shape: &Shape,
        routings: &[Routing],
        reads: Reads,
        rings: Option<[u64; 2]>,
    ) -> Self {
        let (expert_major, prefill) = (shape.layout.is_by_expert(), shape.layout.is_prefill());
        let dense = prefill && !expert_major;
        let tokens = u64::from(shape.tokens) * routings.len() as u64;
        let to_experts = tokens * u64::from(shape.topk);
        let [to_ranks, to_others] = rows(shape, routings);
        let slots = |bytes: u64, at: usize| rings.map_or(bytes, |rings| bytes.min(rings[at]));
        let row = 2 * u64::from(shape.hidden);
        let fp8 = shape.payload.is_fp8();
        let (token, payload) = (shape.token_bytes(), shape.payload_bytes());

        let in_slots = if prefill || (expert_major && !fp8) { to_others } else { to_ranks } * payload;
        // Bytes in memory of the caller.
        let lists = if expert_major {
            to_experts
        } else if dense {
            to_ranks
        } else {
            0
        } * payload;
        let tokens_read = match reads {
            Reads::Once => tokens,
            Reads::Each if prefill => to_others,
            Reads::Each => to_ranks,
        } * token;
        let slots_read = match reads {
            Reads::Once if expert_major || dense => in_slots,
            Reads::Once => 0,
            Reads::Each => lists,
        };
        let dispatch = Self {
            read: tokens_read + slots_read,
            written: in_slots + lists,
            extent: tokens * token + slots(in_slots, 0) + lists,
        };

        let outputs = if expert_major { to_experts } else { to_ranks } * row;
        let answered = match (shape.combine, prefill) {
            (Combine::Ordered, true) => entries_to_others(shape, routings),
            (Combine::Ordered, false) => to_experts,
            (Combine::Reduced, true) => to_others,
            (Combine::Reduced, false) => to_ranks,
        };
        let (answers, sums) = (answered * row, tokens * row);
        let combine = Self {
            read: outputs + answers,
            written: answers + sums,
            extent: outputs + slots(answers, 1) + sums,
        };

        match case {
            Case::Dispatch => dispatch,
            Case::Combine => combine,
            Case::Pair => Self {
                read: dispatch.read + combine.read,
                written: dispatch.written + combine.written,
                extent: dispatch.extent + combine.extent
                    - if expert_major || dense || fp8 { 0 } else { outputs },
            },
        }
    }
}

/// (token, rank) rows of all tokens, and those of them that leave their rank.
fn rows(shape: &Shape, routings: &[Routing]) -> [u64; 2] {
    let local_experts = shape.experts / routings.len() as u32;
    let mut rows = [0; 2];
    for (source, routing) in (0..).zip(routings) {
        for token in 0..routing.tokens() {
            let ranks = routing.ranks_of(token, local_experts);
            rows[0] += ranks.len() as u64;
            rows[1] += ranks.iter().filter(|&&rank| rank != source).count() as u64;
        }
    }
    rows
}

/// (token, expert) rows that leave their rank.
fn entries_to_others(shape: &Shape, routings: &[Routing]) -> u64 {
    let local_experts = shape.experts / routings.len() as u32;
    let leaving = |(source, routing): (u32, &Routing)| {
        routing.experts.iter().filter(|e| **e as u32 / local_experts != source).count() as u64
    };
    (0..).zip(routings).map(leaving).sum()
}

/// Each process moves at least this much in a round, however little the operation does.
const ROUND_BYTES: u64 = 8 << 20;
const ROUNDS: usize = 4;

/// The least time that the machine needs for the bytes of one case, on rank 0; elsewhere the time is 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    pub us: f64,
    pub way: Way,
}

impl Floor {
    /// All ranks call it with the same traffic.
    pub fn measure(group: &Group, meeting: &Meeting, traffic: &Traffic, threads: u32) -> Result<Self, Error> {
        let mut mover = Mover::new(group, traffic, threads);
        for _ in 0..ROUNDS {
            mover.round(meeting)?;
        }
        mover.floor(group, |spans| spans.iter().min().copied())
    }

    /// The lower of both.
    pub fn or(self, other: Self) -> Self {
        if other.us < self.us { other } else { self }
    }
}

/// Moves the traffic of a case in rounds, each by all ways.
pub struct Mover {
    shares: Vec<Share>,
    passes: u64,
    /// Of the bytes that a pass moves, the part that the operation has: shares are whole blocks.
    scale: f64,
    rounds: Vec<(Way, Samples)>,
}

impl Mover {
    /// All ranks make it with the same traffic.
    pub fn new(group: &Group, traffic: &Traffic, threads: u32) -> Self {
        let ranks = ranks::count(group);
        let threads = ranks::threads(threads, ranks);
        let count = ranks as usize * threads;
        let share = Share::new(traffic, count);
        let moved = ((share.read + share.written) * BLOCK * count) as u64;
        Self {
            shares: vec![share; threads],
            passes: (ROUND_BYTES * u64::from(ranks) / moved.max(1)).clamp(1, 1 << 16),
            scale: (traffic.read + traffic.written) as f64 / moved.max(1) as f64,
            rounds: Way::here().into_iter().map(|way| (way, Samples::default())).collect(),
        }
    }

    pub fn round(&mut self, meeting: &Meeting) -> Result<(), Error> {
        let Self { shares, passes, rounds, .. } = self;
        for (way, samples) in rounds {
            let (way, passes) = (*way, *passes);
            meeting.meet()?;
            let begin = now();
            std::thread::scope(|scope| {
                let (own, others) = shares.split_at_mut(1);
                others.iter_mut().for_each(|share| drop(scope.spawn(|| share.pass(way, passes))));
                own.iter_mut().for_each(|share| share.pass(way, passes));
            });
            samples.moments.push([begin, now()]);
        }
        Ok(())
    }

    /// That of the fastest way: `pick` chooses from the nanoseconds of its rounds, in ascending order.
    pub fn floor(&self, group: &Group, pick: impl Fn(&[u64]) -> Option<u64>) -> Result<Floor, Error> {
        let mut best = Floor { us: f64::INFINITY, way: Way::Memcpy };
        for (way, samples) in &self.rounds {
            let all = samples.gather(group)?.unwrap_or_default();
            let mut ns: Vec<u64> = spans(&all, across_hosts(group)).into_iter().map(|span| span.0).collect();
            ns.sort_unstable();
            let us = pick(&ns).unwrap_or(0) as f64 / 1e3 / self.passes as f64 * self.scale;
            best = best.or(Floor { us, way: *way });
        }
        Ok(best)
    }
}

/// One thread's part of the traffic, and memory for it, which it goes through in turn.
#[derive(Clone)]
struct Share {
    read: usize,
    written: usize,
    from: Vec<Block>,
    to: Vec<Block>,
}

impl Share {
    /// The extent is divided as reading and writing are. Bytes are rounded up to blocks.
    fn new(traffic: &Traffic, shares: usize) -> Self {
        let Traffic { read, written, extent } = *traffic;
        let part =
            |bytes: u64| (bytes as f64 * extent as f64 / (read + written).max(1) as f64) as usize / shares;
        let blocks = |bytes: u64| (bytes as usize).div_ceil(shares * BLOCK);
        Self {
            read: blocks(read),
            written: blocks(written),
            from: moves::blocks(part(read)),
            to: moves::blocks(part(written)),
        }
    }

    fn pass(&mut self, way: Way, passes: u64) {
        let Self { read, written, from, to } = self;
        let (sources, targets) = (from.len(), to.len());
        for pass in 0..passes as usize {
            for i in 0..(*read).max(*written) {
                let source = &from[(pass * *read + i) % sources];
                let target = &mut to[(pass * *written + i) % targets];
                match (i < *read, i < *written) {
                    (true, true) => way.copy(target, source),
                    (true, false) => moves::read(source),
                    _ => way.fill(target),
                }
            }
            way.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Layout, Payload};
    use crate::routing::Spread;

    const SHAPE: Shape = Shape {
        tokens: 10,
        hidden: 256,
        experts: 16,
        absent_experts: 0,
        topk: 4,
        payload: Payload::Bf16,
        layout: Layout::ExpertMajor,
        combine: Combine::Reduced,
    };

    /// Bytes of the rings of packed rows.
    const RINGS: [u64; 2] = [6 * 512, 7 * 512];

    /// All 40 tokens, ten of each of four ranks, go to four experts of rank 0: one row each for the rank, four for its experts.
    fn traffic(case: Case, shape: Shape, reads: Reads) -> [u64; 3] {
        let routings: Vec<_> = (0..4).map(|s| Routing::new(Spread::One, &shape, s)).collect();
        let rings = shape.layout.is_prefill().then_some(RINGS);
        let Traffic { read, written, extent } = Traffic::of(case, &shape, &routings, reads, rings);
        [read, written, extent]
    }

    #[test]
    fn bytes_are_those_of_the_help_text() {
        let (n, h) = (40, 512);
        let d = 30; // of rank 0's own ten none goes through the window
        let fp8 = 256 + 8;
        let rank_major = Shape { layout: Layout::RankMajor, ..SHAPE };
        let ordered = Shape { combine: Combine::Ordered, ..SHAPE };
        let packed = Shape { layout: Layout::Packed, ..SHAPE };
        let dense = Shape { layout: Layout::Dense, ..SHAPE };
        let small = Shape { payload: Payload::Fp8, ..SHAPE };
        for (case, shape, expected) in [
            (Case::Dispatch, rank_major, [n * h, n * h, 2 * n * h]),
            (Case::Dispatch, SHAPE, [n * h + d * h, d * h + 4 * n * h, n * h + d * h + 4 * n * h]),
            (Case::Dispatch, small, [n * h + n * fp8, 5 * n * fp8, n * h + 5 * n * fp8]),
            (Case::Combine, rank_major, [2 * n * h, 2 * n * h, 3 * n * h]),
            (Case::Combine, SHAPE, [4 * n * h + n * h, 2 * n * h, 6 * n * h]),
            (Case::Combine, ordered, [8 * n * h, 4 * n * h + n * h, 9 * n * h]),
            (Case::Dispatch, packed, [n * h + d * h, d * h + 4 * n * h, n * h + RINGS[0] + 4 * n * h]),
            (Case::Combine, packed, [4 * n * h + d * h, d * h + n * h, 4 * n * h + RINGS[1] + n * h]),
            (Case::Dispatch, dense, [n * h + d * h, d * h + n * h, n * h + RINGS[0] + n * h]),
            (Case::Combine, dense, [n * h + d * h, d * h + n * h, n * h + RINGS[1] + n * h]),
            (Case::Pair, rank_major, [3 * n * h, 3 * n * h, 4 * n * h]),
            (Case::Pair, SHAPE, [6 * n * h + d * h, 6 * n * h + d * h, 11 * n * h + d * h]),
        ] {
            assert_eq!(traffic(case, shape, Reads::Once), expected, "{case:?} {shape:?}");
        }
    }

    #[test]
    fn reads_differ_where_a_row_goes_to_several_places() {
        let shape = Shape { topk: 8, layout: Layout::RankMajor, ..SHAPE }; // two ranks each
        assert_eq!(traffic(Case::Dispatch, shape, Reads::Once)[..2], [40 * 512, 80 * 512]);
        assert_eq!(traffic(Case::Dispatch, shape, Reads::Each)[..2], [80 * 512, 80 * 512]);
        assert_eq!(traffic(Case::Dispatch, SHAPE, Reads::Each)[0], 40 * 512 + 160 * 512);
        // The best copy of all that is written.
        let packed = Shape { layout: Layout::Packed, ..SHAPE };
        assert_eq!(traffic(Case::Dispatch, packed, Reads::Each)[..2], [190 * 512; 2]);
    }

    /// Each thread's memory holds what the bytes say, and a pass touches as much as it should.
    #[test]
    fn shares_are_equal_and_as_large_as_the_operation() {
        let mebibyte = 1 << 20;
        let traffic = Traffic { read: 24 * mebibyte, written: 8 * mebibyte, extent: 16 * mebibyte };
        let mut share = Share::new(&traffic, 4);
        assert_eq!([share.read, share.written].map(|blocks| blocks * BLOCK), [6 << 20, 2 << 20]);
        assert_eq!([share.from.len(), share.to.len()].map(|blocks| blocks * BLOCK), [3 << 20, 1 << 20]);
        Way::here().into_iter().for_each(|way| share.pass(way, 2));
        let nothing = Traffic { read: 0, written: 0, extent: 0 };
        Share::new(&nothing, 4).pass(Way::Memcpy, 1);
    }

    #[test]
    fn few_bytes_take_as_much_of_a_block_s_time() {
        let group = &Group::threads(1).unwrap()[0];
        let mover = |bytes| Mover::new(group, &Traffic { read: bytes, written: bytes, extent: 2 * bytes }, 1);
        let (small, block) = (mover(64), mover(BLOCK as u64));
        assert_eq!([small.shares[0].read, small.shares[0].written, block.shares[0].read], [1, 1, 1]);
        assert_eq!((small.passes, small.scale, block.scale), (block.passes, 1.0 / 64.0, 1.0));
        // Seven blocks and a half: eight are moved.
        assert_eq!(mover(30 << 10).scale, 7.5 / 8.0);
        assert_eq!(mover(0).scale, 0.0);
    }

    #[test]
    fn the_floor_of_a_group_is_the_fastest_round_of_the_fastest_way() {
        let groups = Group::threads(2).unwrap();
        let traffic = Traffic { read: 1 << 20, written: 1 << 20, extent: 2 << 20 };
        let measure = |group| Floor::measure(group, &Meeting::new(group).unwrap(), &traffic, 1).unwrap();
        let floor = std::thread::scope(|scope| {
            let other = scope.spawn(|| measure(&groups[1]));
            let floor = measure(&groups[0]);
            assert_eq!(other.join().unwrap().us, 0.0, "rank 0 has the figure of all");
            floor
        });
        // One mebibyte is copied by no machine in less than a microsecond, which would be 1 TB/s.
        assert!(floor.us > 1.0 && floor.us < 1e6, "{floor:?}");
        let slower = Floor { us: floor.us + 1.0, way: Way::RepMovsb };
        assert_eq!((slower.or(floor), floor.or(slower)), (floor, floor));
    }
}
