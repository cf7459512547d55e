//! A communicator of so many ranks that masks of them take several words.

use std::time::{Duration, Instant};

use epwire::comm::{CommConfig, Reduction};
use epwire::{Comm, Mask};

use crate::{complete, groups};

const RANKS: u32 = 70;
/// In the second word of a mask, like the roots.
const LEAVES: u32 = 66;

/// Each operation once, among these members.
fn all(comm: &Comm, members: &Mask, round: u32) {
    let me = comm.rank();
    complete(comm.barrier_blocking());
    let mut sum = [me + round, 1, u32::from(me >= 64)];
    complete(comm.all_reduce_in_place_blocking(&mut sum, Reduction::Sum));
    let count = members.len() as u32;
    let high = members.iter().filter(|rank| *rank >= 64).count() as u32;
    assert_eq!(sum, [members.iter().map(|rank| rank + round).sum(), count, high]);

    let row = |rank: u32| [rank * 3 + round; 2];
    let mut rows = [u32::MAX; 2 * RANKS as usize];
    complete(comm.all_gather_blocking(&row(me), &mut rows));
    let expected = |rank: u32| if members.contains(rank) { row(rank) } else { [u32::MAX; 2] };
    assert_eq!(rows.to_vec(), (0..RANKS).flat_map(expected).collect::<Vec<_>>());

    for root in [0, 63, 64, RANKS - 1] {
        let mut buffer = if me == root { [root, round, 5] } else { [u32::MAX; 3] };
        complete(comm.broadcast_blocking(&mut buffer, root));
        assert_eq!(buffer, [root, round, 5]);
    }
}

#[test]
fn seventy_ranks_do_all_that_few_do_and_go_on_without_one() {
    let patience = Duration::from_secs(30);
    let config = CommConfig::default().slots(2).slot_bytes(64).deadline(patience);
    std::thread::scope(|scope| {
        for group in groups(RANKS) {
            let config = config.clone();
            scope.spawn(move || {
                let comm = Comm::create_blocking(&group, config).unwrap();
                all(&comm, &Mask::all(RANKS), 1);
                // It leaves after all have received everything from it.
                group.barrier_blocking("with all").unwrap();
                if group.rank() == LEAVES {
                    drop(comm);
                    group.barrier_blocking("all have missed it").unwrap();
                    return group.barrier_blocking("end").unwrap();
                }
                let began = Instant::now();
                let outcome = comm.barrier_blocking().unwrap();
                assert_eq!(outcome.missing, [LEAVES].into_iter().collect(), "{outcome:?}");
                assert!(began.elapsed() < patience, "{:?}", began.elapsed());
                group.barrier_blocking("all have missed it").unwrap();
                let rest = Mask::all(RANKS).minus(&[LEAVES].into_iter().collect());
                comm.set_active(&rest, 9, 1).unwrap();
                all(&comm, &rest, 2);
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}
