//! Works of several communicators of one process, awaited together: each poll advances the work that it polls, so each
//! rank may await them in any order.

use std::time::Duration;

use epwire::comm::{CommConfig, Reduction};
use epwire::{Cause, Comm, Group};

use crate::{complete, groups};

/// Runs this on a thread for each rank, with two communicators of the same ranks.
fn pairs(ranks: u32, config: &CommConfig, run: impl Fn(&Group, Comm, Comm) + Sync) {
    std::thread::scope(|scope| {
        let run = &run;
        for group in groups(ranks) {
            scope.spawn(move || {
                let create = || Comm::create_blocking(&group, config.clone()).unwrap();
                let (first, second) = (create(), create());
                run(&group, first, second);
                // Nobody leaves before all have received everything from it.
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn works_of_two_communicators_are_joined_in_opposite_orders() {
    // Many times the rings' size: neither gets far without being polled.
    const COUNT: usize = 300_000;
    let config = CommConfig::default().slots(2).slot_bytes(4096).deadline(Duration::from_secs(10));
    pairs(3, &config, |group, first, second| {
        let me = group.rank();
        for round in 0..5 {
            let sum =
                |comm: &Comm| comm.all_reduce_in_place(vec![u64::from(me) + round; COUNT], Reduction::Sum);
            let turned = (u64::from(me) + round) % 2 == 1;
            let (one, other) = if turned { (&second, &first) } else { (&first, &second) };
            let (one, other) = (sum(one), sum(other));
            let ((one, a), (other, b)) = block_on(async { tokio::join!(one, other) });
            complete(one);
            complete(other);
            let want = vec![3 + 3 * round; COUNT];
            assert!(a == want && b == want, "round {round}");
        }
    });
}

#[test]
fn a_rank_that_is_silent_ends_the_works_of_both_communicators() {
    const DEADLINE: Duration = Duration::from_secs(3);
    let config = CommConfig::default().deadline(DEADLINE);
    pairs(3, &config, |group, first, second| {
        let me = group.rank();
        if me == 2 {
            return group.barrier_blocking("silent so far").unwrap();
        }
        let (one, other) = if me == 0 { (&first, &second) } else { (&second, &first) };
        let (one, other) = (one.all_gather([me; 2], [9; 6]), other.all_gather([me; 2], [9; 6]));
        let began = std::time::Instant::now();
        let ended = block_on(async { tokio::join!(one, other) });
        for outcome in [ended.0.0.unwrap(), ended.1.0.unwrap()] {
            assert_eq!(outcome.missing, [2].into_iter().collect());
            assert_eq!(outcome.record.map(|record| (record.cause, record.peer)), Some((Cause::Timeout, 2)));
        }
        // At the same time, not one deadline after the other.
        assert!(began.elapsed() < DEADLINE.mul_f64(1.9), "{:?}", began.elapsed());
        group.barrier_blocking("silent so far").unwrap();
    });
}

#[test]
fn a_rank_that_leaves_ends_the_works_of_both_communicators_at_once() {
    let config = CommConfig::default().deadline(Duration::from_secs(20));
    pairs(3, &config, |group, first, second| {
        let me = group.rank();
        if me == 2 {
            drop((first, second));
            return;
        }
        let (one, other) = if me == 0 { (&first, &second) } else { (&second, &first) };
        let (one, other) = (one.barrier(), other.barrier());
        let began = std::time::Instant::now();
        let ended = block_on(async { tokio::join!(one, other) });
        for outcome in [ended.0.0.unwrap(), ended.1.0.unwrap()] {
            assert_eq!(outcome.missing, [2].into_iter().collect());
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    });
}
