//! Every operation, blocking and as a future, against its expected result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epwire::comm::{Blocks, Call, CommConfig, Number, Reduction};
use epwire::{Comm, HostBuffer};
use half::{bf16, f16};

use crate::random::Random;
use crate::{all_of, complete, groups, ranks};

/// Element i of rank r's data: small whole numbers, so that sums and products are exact in any type.
fn value(rank: usize, i: usize) -> i32 {
    ((rank * 7 + i * 5) % 11) as i32 % 4
}

/// Numbers as a test makes and reads them.
pub(crate) trait Small: Number + PartialEq + std::fmt::Debug {
    fn of(value: i32) -> Self;
}

macro_rules! small {
    ($($number:ty: $make:expr),*) => {$(
        impl Small for $number {
            fn of(value: i32) -> Self {
                $make(value)
            }
        }
    )*};
}
small!(
    i8: |v| v as i8, u8: |v| v as u8, i32: |v| v, u32: |v| v as u32, i64: i64::from, u64: |v| v as u64,
    f16: |v| f16::from_f32(v as f32), bf16: |v| bf16::from_f32(v as f32), f32: |v| v as f32, f64: f64::from
);

pub(crate) fn own<T: Small>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::of(value(rank, i))).collect()
}

/// Element i of the reduction over all ranks.
pub(crate) fn reduced<T: Small>(ranks: usize, len: usize, reduction: Reduction) -> Vec<T> {
    let element = |i| {
        let values = (0..ranks).map(|rank| value(rank, i));
        T::of(match reduction {
            Reduction::Sum => values.sum(),
            Reduction::Product => values.product(),
            Reduction::Min => values.min().unwrap(),
            _ => values.max().unwrap(),
        })
    };
    (0..len).map(element).collect()
}

pub(crate) const REDUCTIONS: [Reduction; 4] =
    [Reduction::Sum, Reduction::Product, Reduction::Min, Reduction::Max];

const GUARDS: usize = 8;

/// Elements that begin so many behind the beginning of an allocation, and hence mostly at no boundary of 16 bytes,
/// between others that nobody may write.
struct Within<T: Small> {
    whole: Vec<T>,
    from: usize,
    guard: T,
}

impl<T: Small> Within<T> {
    /// What must not be written is another number on each rank.
    fn new(from: usize, elements: &[T], rank: usize) -> Self {
        let guard = T::of(20 + rank as i32);
        Self { whole: [&vec![guard; from], elements, &[guard; GUARDS]].concat(), from, guard }
    }

    fn inner(&self) -> std::ops::Range<usize> {
        self.from..self.whole.len() - GUARDS
    }
}

impl<T: Small> std::ops::Deref for Within<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.whole[self.inner()]
    }
}

impl<T: Small> std::ops::DerefMut for Within<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let inner = self.inner();
        &mut self.whole[inner]
    }
}

impl<T: Small> Drop for Within<T> {
    fn drop(&mut self) {
        let inner = self.inner();
        let outer = || self.whole[..inner.start].iter().chain(&self.whole[inner.end..]);
        if !std::thread::panicking() {
            assert!(outer().all(|x| *x == self.guard), "what lies beside a buffer was written");
        }
    }
}

/// Every operation once, with `n` elements in each block, in buffers that begin `from` elements behind the beginning of
/// an allocation.
pub(crate) fn all<T: Small>(comm: &Comm, n: usize, reduction: Reduction, from: usize) {
    let (me, ranks) = (comm.rank() as usize, comm.ranks() as usize);
    let within = |elements: Vec<T>| Within::new(from, &elements, me);
    let none = || within(Vec::new());
    let zero = T::of(9);
    let root = (n % ranks) as u32;
    let is_root = root == comm.rank();
    let gathered: Vec<T> = (0..ranks).flat_map(|rank| own::<T>(rank, n)).collect();
    let sum = reduced::<T>(ranks, ranks * n, reduction);
    let block = me * n..(me + 1) * n;

    complete(comm.barrier_blocking());
    let mut buffer = within(if is_root { own::<T>(me, n) } else { vec![zero; n] });
    complete(comm.broadcast_blocking(&mut buffer, root));
    assert_eq!(*buffer, own::<T>(root as usize, n));
    for (keeps, mixed) in [(true, false), (false, false), (true, true)] {
        let send = if is_root { within(own::<T>(me, n)) } else { none() };
        let mut recv = if is_root && !keeps { none() } else { within(vec![zero; n]) };
        complete(match mixed && !is_root {
            true => comm.broadcast_blocking(&mut recv, root),
            false => comm.broadcast_from_blocking(&send, &mut recv, root),
        });
        assert_eq!(*recv, own::<T>(root as usize, recv.len()));
        assert_eq!(*send, if is_root { own::<T>(me, n) } else { Vec::new() });
    }

    let (send, mut recv) = (within(own::<T>(me, n)), within(vec![zero; n]));
    complete(comm.all_reduce_blocking(&send, &mut recv, reduction));
    assert_eq!(*recv, sum[..n]);
    let mut buffer = within(send.to_vec());
    complete(comm.all_reduce_in_place_blocking(&mut buffer, reduction));
    assert_eq!(*buffer, sum[..n]);

    let mut recv = if is_root { within(vec![zero; n]) } else { none() };
    complete(comm.reduce_blocking(&send, &mut recv, reduction, root));
    assert_eq!(*recv, if is_root { sum[..n].to_vec() } else { Vec::new() });
    let mut buffer = within(send.to_vec());
    complete(comm.reduce_in_place_blocking(&mut buffer, reduction, root));
    assert_eq!(*buffer, if is_root { sum[..n].to_vec() } else { send.to_vec() });

    let mut recv = within(vec![zero; n]);
    complete(comm.reduce_scatter_blocking(&within(own::<T>(me, ranks * n)), &mut recv, reduction));
    assert_eq!(*recv, sum[block.clone()]);
    let mut buffer = within(own::<T>(me, ranks * n));
    complete(comm.reduce_scatter_in_place_blocking(&mut buffer, reduction));
    assert_eq!(buffer[block.clone()], sum[block.clone()]);

    let mut recv = within(vec![zero; ranks * n]);
    complete(comm.all_gather_blocking(&send, &mut recv));
    assert_eq!(*recv, gathered);
    let mut buffer = within(vec![zero; ranks * n]);
    buffer[block.clone()].copy_from_slice(&send);
    complete(comm.all_gather_in_place_blocking(&mut buffer));
    assert_eq!(*buffer, gathered);

    // Element (from, to, i): rank `from` has it in row `to`.
    let row = |from: usize, to: usize| (0..n).map(move |i| T::of(value(from * 3 + to, i)));
    let sent = within((0..ranks).flat_map(|to| row(me, to)).collect());
    let came: Vec<T> = (0..ranks).flat_map(|from| row(from, me)).collect();
    let mut recv = within(vec![zero; ranks * n]);
    complete(comm.all_to_all_blocking(&sent, &mut recv));
    assert_eq!(*recv, came);
    let mut buffer = within(sent.to_vec());
    complete(comm.all_to_all_in_place_blocking(&mut buffer));
    assert_eq!(*buffer, came);

    let mut recv = if is_root { within(vec![zero; ranks * n]) } else { none() };
    complete(comm.gather_blocking(&send, &mut recv, root));
    assert_eq!(*recv, if is_root { gathered.clone() } else { Vec::new() });
    let mut buffer = within(if is_root { vec![zero; ranks * n] } else { send.to_vec() });
    if is_root {
        buffer[block].copy_from_slice(&send);
    }
    complete(comm.gather_in_place_blocking(&mut buffer, root));
    assert_eq!(*buffer, if is_root { gathered.clone() } else { send.to_vec() });

    let whole = if is_root { within(gathered.clone()) } else { none() };
    let mut recv = within(vec![zero; n]);
    complete(comm.scatter_blocking(&whole, &mut recv, root));
    assert_eq!(*recv, *send);
    let mut buffer = within(if is_root { gathered.clone() } else { vec![zero; n] });
    complete(comm.scatter_in_place_blocking(&mut buffer, root));
    assert_eq!(*buffer, if is_root { gathered } else { send.to_vec() });
}

/// In each turn all types, every reduction and every length; in four turns each type with every one of them.
pub(crate) fn matrix(comm: &Comm, lengths: [usize; 4], turns: usize) {
    for turn in 0..turns {
        let of = |ty: usize| (lengths[(turn + ty) % 4], REDUCTIONS[(turn + ty / 3) % 4], (turn + ty) % 4);
        macro_rules! types {
            ($($ty:ty),*) => {
                let mut number = 0;
                $(
                    let (n, reduction, from) = of(number);
                    all::<$ty>(comm, n, reduction, from);
                    number += 1;
                )*
                assert_eq!(number, 10, "Number has so many types");
            };
        }
        types!(i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64);
    }
}

#[test]
fn every_operation_of_every_type_gives_what_it_must() {
    for count in 1..=5 {
        ranks(count, &CommConfig::default(), |comm| {
            let lengths = [0, 1, 3, 64, 1023, 5000];
            for (turn, n) in lengths.into_iter().enumerate() {
                let (reduction, from) = (REDUCTIONS[turn % 4], turn / 2);
                all::<i8>(comm, n, reduction, from);
                all::<u8>(comm, n, reduction, from);
                all::<i32>(comm, n, reduction, from);
                all::<u32>(comm, n, reduction, from);
                all::<i64>(comm, n, reduction, from);
                all::<u64>(comm, n, reduction, from);
                all::<f16>(comm, n, reduction, from);
                all::<bf16>(comm, n, reduction, from);
                all::<f32>(comm, n, reduction, from);
                all::<f64>(comm, n, reduction, from);
            }
            for reduction in REDUCTIONS {
                all::<f32>(comm, 70_001, reduction, 1);
            }
        });
    }
}

#[test]
fn averages_divide_by_the_members() {
    ranks(3, &CommConfig::default(), |comm| {
        let mut buffer = [comm.rank() as f32; 7];
        complete(comm.all_reduce_in_place_blocking(&mut buffer, Reduction::Average));
        assert_eq!(buffer, [1.0; 7]);
        let mut buffer = [-(comm.rank() as i32) - 1; 7];
        complete(comm.all_reduce_in_place_blocking(&mut buffer, Reduction::Average));
        assert_eq!(buffer, [-2; 7]);
    });
}

#[test]
fn uneven_blocks_go_where_they_are_said_to() {
    ranks(4, &CommConfig::default(), |comm| {
        let me = comm.rank() as usize;
        let counts = [5usize, 0, 300, 1];
        let starts = [0usize, 5, 5, 305];
        let own: Vec<u32> = (0..counts[me]).map(|i| (me * 1000 + i) as u32).collect();
        let all: Vec<u32> = (0..4).flat_map(|r| (0..counts[r]).map(move |i| (r * 1000 + i) as u32)).collect();

        let mut recv = vec![9; 306];
        complete(comm.all_gather_blocks_blocking(&own, &mut recv, Blocks::new(counts)));
        assert_eq!(recv, all);
        let spread = Blocks::new(counts).at([400, 0, 10, 500]);
        let mut recv = vec![9; 600];
        complete(comm.gather_blocks_blocking(&own, &mut recv, spread, 2));
        if me == 2 {
            assert_eq!((&recv[400..405], &recv[10..310], recv[500]), (&all[..5], &all[5..305], all[305]));
            assert!(
                recv[..10].iter().chain(&recv[310..400]).all(|x| *x == 9),
                "the gaps between blocks were written"
            );
        }
        let mut recv = vec![9; counts[me]];
        complete(comm.scatter_blocks_blocking(&all, &mut recv, Blocks::new(counts), 0));
        assert_eq!(recv, own);

        let matrix: Vec<u32> = (0..306).map(|i| (i * (me + 1)) as u32).collect();
        let mut recv = vec![9; counts[me]];
        complete(comm.reduce_scatter_blocks_blocking(
            &matrix,
            &mut recv,
            Blocks::new(counts),
            Reduction::Sum,
        ));
        let sum: Vec<u32> = (0..counts[me]).map(|i| ((starts[me] + i) * 10) as u32).collect();
        assert_eq!(recv, sum);

        // Rank f gives rank t f + 2 t elements, f * 10 + t each.
        let to: Vec<usize> = (0..4).map(|t| me + 2 * t).collect();
        let from: Vec<usize> = (0..4).map(|f| f + 2 * me).collect();
        let send: Vec<u32> = (0..4).flat_map(|t| vec![(me * 10 + t) as u32; to[t]]).collect();
        let mut recv = vec![9; from.iter().sum()];
        complete(comm.all_to_all_blocks_blocking(
            &send,
            Blocks::new(to),
            &mut recv,
            Blocks::new(from.clone()),
        ));
        assert_eq!(recv, (0..4).flat_map(|f| vec![(f * 10 + me) as u32; from[f]]).collect::<Vec<_>>());

        // In one buffer, with a gap of one element behind each block: f and t give each other f + t elements.
        let both: Vec<usize> = (0..4).map(|p| me + p).collect();
        let starts: Vec<usize> = (0..4).map(|p| p + both[..p].iter().sum::<usize>()).collect();
        let holds = |value: &dyn Fn(usize) -> usize| -> Vec<u32> {
            (0..4).flat_map(|p| [vec![value(p) as u32; both[p]], vec![77]].concat()).collect()
        };
        let mut buffer = holds(&|p| me * 10 + p);
        let blocks = Blocks::new(both.clone()).at(starts);
        complete(comm.all_to_all_blocks_in_place_blocking(&mut buffer, blocks.clone()));
        assert_eq!(buffer, holds(&|p| p * 10 + me));
        let (outcome, buffer) = comm.all_to_all_blocks_in_place(holds(&|p| me * 10 + p), blocks).wait();
        complete(outcome);
        assert_eq!(buffer, holds(&|p| p * 10 + me));
    });
}

#[test]
fn columns_of_a_matrix_are_gathered_and_scattered() {
    const ROWS: usize = 6;
    ranks(3, &CommConfig::default(), |comm| {
        let me = comm.rank() as usize;
        let columns = [2usize, 1, 3];
        let at = [0usize, 2, 3];
        let blocks = || Blocks::new(columns).rows(ROWS).pitch(8).own_pitch(4);
        let element = |row: usize, column: usize| (row * 10 + column) as i64;
        let mut own = vec![-1; ROWS * 4];
        for row in 0..ROWS {
            (0..columns[me]).for_each(|column| own[row * 4 + column] = element(row, at[me] + column));
        }
        let mut whole = vec![-1; ROWS * 8];
        complete(comm.all_gather_blocks_blocking(&own, &mut whole, blocks()));
        let expected = |row: usize, column: usize| if column < 6 { element(row, column) } else { -1 };
        let all: Vec<i64> = (0..ROWS * 8).map(|i| expected(i / 8, i % 8)).collect();
        assert_eq!(whole, all);

        let mut reduced = vec![-1; ROWS * 4];
        complete(comm.reduce_scatter_blocks_blocking(&whole, &mut reduced, blocks(), Reduction::Sum));
        assert_eq!(reduced, own.iter().map(|x| if *x < 0 { -1 } else { 3 * x }).collect::<Vec<_>>());
    });
}

/// Awaits an all-reduce for which rank 0 comes late, beside a ticking clock. Returns the longest time between two turns
/// of the executor, and the whole time.
async fn longest_gap(comm: &Comm) -> (Duration, Duration) {
    if comm.rank() == 0 {
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    let began = Instant::now();
    let (mut last, mut gap) = (began, Duration::ZERO);
    let mut window = comm.alloc::<f32>(20_000).unwrap();
    window.fill(1.5);
    let mut work = std::pin::pin!(comm.all_reduce(window, HostBuffer::zeroed(20_000), Reduction::Sum));
    let (outcome, (send, recv)) = loop {
        let ended = tokio::select! {
            ended = &mut work => Some(ended),
            () = tokio::time::sleep(Duration::from_millis(2)) => None,
        };
        gap = gap.max(last.elapsed());
        last = Instant::now();
        if let Some(ended) = ended {
            break ended;
        }
    };
    assert!(outcome.unwrap().is_complete());
    assert!(send.iter().all(|x| *x == 1.5) && recv.iter().all(|x| *x == 4.5));
    (gap, began.elapsed())
}

#[test]
fn futures_give_their_buffers_back_and_never_block_the_executor() {
    ranks(3, &CommConfig::default().heap_bytes(1 << 20), |comm| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let me = comm.rank();
            let mut gaps = Vec::new();
            // A loaded machine may stop a thread that long, but not again and again.
            loop {
                let (gap, took) = longest_gap(comm).await;
                let short = me == 0 || gap < took / 4;
                gaps.push((gap, took));
                let (outcome, (_, all)) = comm.all_gather([u32::from(short)], [0; 3]).await;
                assert!(outcome.unwrap().is_complete());
                if all == [1; 3] {
                    break;
                }
                assert!(
                    gaps.len() < 3,
                    "rank {me}: longest pauses of the executor, of all the time: {gaps:?}"
                );
            }

            // Arrays, shared input, several at once.
            let shared: std::sync::Arc<[u8]> = (0..100).collect();
            let (a, b) = (comm.all_gather([me; 3], [9; 9]), comm.broadcast(vec![me; 5], 1));
            let c = comm.all_gather(shared.clone(), vec![0u8; 300]);
            let ((a, (_, all)), (b, one), (c, (_, thrice))) = tokio::join!(a, b, c);
            assert!(a.unwrap().is_complete() && b.unwrap().is_complete() && c.unwrap().is_complete());
            assert_eq!((all, one), ([0, 0, 0, 1, 1, 1, 2, 2, 2], vec![1; 5]));
            assert_eq!(thrice, shared.repeat(3));
        });
    });
}

#[test]
fn collectives_and_messages_that_cross_progress_together() {
    const COUNT: usize = 20_000;
    // Each buffer is many times what is staged.
    ranks(3, &CommConfig::default().slots(2).slot_bytes(1024), |comm| {
        let me = comm.rank();
        let (after, before) = ((me + 1) % 3, (me + 2) % 3);
        let of = |rank: u32, round: u32| rank * 10 + round;
        for round in 0..4 {
            let calls = (
                Call::send(vec![of(me, round); COUNT], after, 1),
                Call::all_reduce_in_place(vec![of(me, round); COUNT], Reduction::Sum),
                Call::send(vec![of(me, round); 7], before, 2),
                Call::all_gather(vec![of(me, round); 1000], vec![99; 3000]),
                Call::recv(vec![99; 7], after, 2),
                Call::recv(vec![99; COUNT], before, 1),
                Call::barrier(),
            );
            let (outcome, (_, sum, _, (_, all), few, many, ())) = comm.begin(calls).wait();
            complete(outcome);
            assert_eq!(sum, vec![30 + 3 * round; COUNT]);
            assert_eq!(all, (0..3).flat_map(|rank| vec![of(rank, round); 1000]).collect::<Vec<_>>());
            assert_eq!((few, many), (vec![of(after, round); 7], vec![of(before, round); COUNT]));

            // The same on this thread, which waits; ranks list their messages in different orders.
            let (sent, mut sum, mut came) = ([of(me, round); 5000], [me; 9], [99; 5000]);
            let (send, recv) = (Call::send(&sent[..], after, 3), Call::recv(&mut came[..], before, 3));
            let reduced = Call::all_reduce_in_place(&mut sum[..], Reduction::Max);
            complete(match me {
                0 => comm.run_blocking((send, reduced, recv)),
                1 => comm.run_blocking((recv, reduced, send)),
                _ => comm.run_blocking((reduced, recv, send)),
            });
            assert_eq!((sum, came), ([2; 9], [of(before, round); 5000]));
        }
    });
}

#[test]
fn messages_are_matched_by_peer_and_tag_in_order() {
    ranks(3, &CommConfig::default(), |comm| {
        let me = comm.rank();
        let (to, from) = ((me + 1) % 3, (me + 2) % 3);
        for len in [0usize, 1, 1000, 100_000, 1_000_000] {
            let message = |tag: u32, rank: u32| vec![rank * 10 + tag; len];
            // The second tag is received first.
            let sends: Vec<_> = [1, 2].map(|tag| Call::send(message(tag, me), to, tag)).into();
            let receives: Vec<_> = [2, 1].map(|tag| Call::recv(vec![9; len], from, tag)).into();
            let (outcome, (_, came)) = comm.begin((sends, receives)).wait();
            assert!(outcome.unwrap().is_complete());
            assert_eq!(came, [message(2, from), message(1, from)]);
        }
        // A shorter message leaves the rest.
        let work = comm.send(vec![7u16 as u32; 3], to, 5);
        let mut recv = [9u32; 5];
        complete(comm.recv_blocking(&mut recv, from, 5));
        assert_eq!(recv, [7, 7, 7, 9, 9]);
        assert!(work.wait().0.unwrap().is_complete());
    });
}

#[test]
fn work_is_waited_for_as_long_as_is_said() {
    let has_waited = AtomicBool::new(false);
    ranks(2, &CommConfig::default(), |comm| {
        let me = comm.rank();
        if me == 1 {
            let began = Instant::now();
            while !has_waited.load(Ordering::Relaxed) {
                assert!(began.elapsed() < Duration::from_secs(60), "rank 0 has not waited");
                std::thread::sleep(Duration::from_millis(1));
            }
            complete(comm.barrier_blocking());
            return;
        }
        let work = comm.barrier().try_wait().expect_err("rank 1 is late");
        let work = work.wait_for(Duration::from_millis(10)).expect_err("rank 1 is still late");
        has_waited.store(true, Ordering::Relaxed);
        let (outcome, ()) = work.wait_for(Duration::from_secs(60)).expect("rank 1 has arrived by now");
        assert!(outcome.unwrap().is_complete());
    });
}

#[test]
fn random_mixes_on_several_communicators_at_once_are_exact() {
    const COMMS: usize = 3;
    let groups = groups(4);
    std::thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || {
                let create = |_| Comm::create_blocking(&group, CommConfig::default()).unwrap();
                let comms: Vec<Comm> = (0..COMMS).map(create).collect();
                let mut own = Random::new(u64::from(group.rank()));
                for round in 0..40u64 {
                    let mut works: Vec<(usize, usize)> = (0..COMMS).flat_map(|c| [(c, 0), (c, 1)]).collect();
                    // Any order between communicators, each rank its own; one order within each.
                    own.shuffle(&mut works);
                    let mut turns = [0; COMMS];
                    let begun: Vec<_> = works
                        .iter()
                        .map(|(c, _)| {
                            let turn = turns[*c];
                            turns[*c] += 1;
                            let n = 1 + Random::new(round * 100 + (c * 10 + turn) as u64).below(20_000);
                            let buffer: Vec<i64> =
                                (0..n).map(|i| (i * (group.rank() as usize + 1)) as i64).collect();
                            comms[*c].all_reduce_in_place(buffer, Reduction::Sum)
                        })
                        .collect();
                    for (outcome, buffer) in all_of(begun) {
                        complete(outcome);
                        assert!((0..).zip(&buffer).all(|(i, x)| *x == i * 10), "round {round}");
                    }
                }
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}
