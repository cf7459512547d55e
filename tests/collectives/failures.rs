//! Work that is dropped or forgotten before its end.

use std::time::Duration;

use epwire::comm::{CommConfig, Reduction};
use epwire::{Cause, Comm, EpBuffer, EpConfig, Phase, Verdict};

use crate::{complete, groups, ranks};

fn config() -> CommConfig {
    CommConfig::default().deadline(Duration::from_secs(2))
}

#[test]
fn who_drops_an_operation_is_missing_from_it_and_not_from_the_next() {
    ranks(3, &config(), |comm| {
        for n in [10, 300_000] {
            if comm.rank() == 1 {
                drop(comm.all_reduce_in_place(vec![1u32; n], Reduction::Sum));
            } else {
                let (outcome, buffer) = comm.all_reduce_in_place(vec![1u32; n], Reduction::Sum).wait();
                let outcome = outcome.unwrap();
                assert_eq!(buffer.len(), n);
                // What it had given before may have been enough.
                if !outcome.is_complete() {
                    assert_eq!(outcome.missing, [1].into_iter().collect());
                    let record = outcome.record.as_ref().unwrap();
                    assert_eq!(
                        (record.cause, record.phase, record.peer),
                        (Cause::Partial, Phase::Collective, 1)
                    );
                    assert!(!outcome.needs_recovery(), "{outcome:?}");
                }
            }
            let mut sum = [1u32; 5];
            let outcome = comm.all_reduce_in_place_blocking(&mut sum, Reduction::Sum).unwrap();
            assert!(outcome.is_complete(), "{outcome:?}");
            assert_eq!(sum, [3; 5]);
        }
    });
}

#[test]
fn futures_dropped_at_any_poll_leave_the_communicator_whole() {
    ranks(2, &config(), |comm| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for turn in 0..20u64 {
                let work = comm.all_to_all_in_place(vec![turn as u8; 200_000]);
                if comm.rank() == 0 && turn % 2 == 0 {
                    // Polled for this long, then dropped with its buffer.
                    let _ = tokio::time::timeout(Duration::from_micros(turn * 20), work).await;
                } else {
                    let (outcome, _) = work.await;
                    let outcome = outcome.unwrap();
                    assert!(outcome.missing.is_empty() || turn % 2 == 0, "{outcome:?}");
                }
            }
            let (outcome, buffer) = comm.all_gather([comm.rank(); 2], [9; 4]).await;
            assert!(outcome.unwrap().is_complete());
            assert_eq!(buffer.1, [0, 0, 1, 1]);
        });
    });
}

#[test]
fn work_that_is_forgotten_goes_on_into_memory_that_is_its_own() {
    ranks(2, &config(), |comm| {
        // Nobody awaits it: the calls after it advance it, too.
        std::mem::forget(comm.all_gather(vec![comm.rank(); 50_000], vec![9; 100_000]));
        for _ in 0..10 {
            let mut sum = [1u32];
            complete(comm.all_reduce_in_place_blocking(&mut sum, Reduction::Sum));
            assert_eq!(sum, [2]);
        }
    });
}

#[test]
fn a_silent_rank_is_missing_within_its_deadline() {
    let deadline = Duration::from_secs(1);
    ranks(3, &CommConfig::default().deadline(deadline), |comm| {
        if comm.rank() == 2 {
            return;
        }
        let began = std::time::Instant::now();
        let mut sum = [1u32; 4];
        let outcome = comm.all_reduce_in_place_blocking(&mut sum, Reduction::Sum).unwrap();
        assert_eq!(outcome.missing, [2].into_iter().collect());
        assert!(outcome.needs_recovery());
        let record = outcome.record.unwrap();
        assert_eq!((record.cause, record.phase), (Cause::Timeout, Phase::Collective));
        assert!(
            record.to_string().contains("gave up on peer 2 (collective, timeout) in epoch 1"),
            "{record}"
        );
        assert!(began.elapsed() < deadline * 5, "{:?}", began.elapsed());
    });
}

/// Ends a step as the guide says.
fn end_step(buffer: &EpBuffer, comm: &Comm, step: u64) -> (bool, epwire::Checkpoint) {
    let faulted = comm.take_fault().unwrap();
    if faulted {
        buffer.fault().unwrap();
    }
    (faulted, buffer.checkpoint(step).unwrap())
}

/// Only rank 1, the root, can know that rank 2 gave nothing: the others have done their part, or are not in the call.
#[test]
fn what_one_rank_alone_lacks_is_in_the_verdict_of_the_step_everywhere() {
    let deadline = Duration::from_secs(1);
    std::thread::scope(|scope| {
        for group in groups(3) {
            scope.spawn(move || {
                let config = EpConfig::new(1, 16, 3, 1).deadline(Duration::from_secs(20)).threads(1);
                let buffer = EpBuffer::create_blocking(&group, config).unwrap();
                let comm = Comm::create_blocking(&group, CommConfig::default().deadline(deadline)).unwrap();
                let me = group.rank();
                complete(comm.barrier_blocking());
                let mut ends = vec![end_step(&buffer, &comm, 1)];
                let (own, mut all) = ([me; 2], [9; 6]);
                if me < 2 {
                    let outcome = comm.gather_blocking(&own, &mut all[..if me == 1 { 6 } else { 0 }], 1);
                    let missing = outcome.unwrap().missing;
                    assert_eq!(missing, (2..3).filter(|_| me == 1).collect());
                }
                ends.push(end_step(&buffer, &comm, 2));
                ends.push(end_step(&buffer, &comm, 3));
                assert_eq!(
                    ends.iter().map(|(faulted, _)| *faulted).collect::<Vec<_>>(),
                    [false, me == 1, false]
                );
                group.barrier_blocking("all have ended their steps").unwrap();
                let verdict = |(_, end): &(bool, epwire::Checkpoint)| loop {
                    match end.verdict().unwrap() {
                        Verdict::Pending => std::thread::sleep(Duration::from_millis(1)),
                        known => break known,
                    }
                };
                let verdicts: Vec<_> = ends.iter().map(verdict).collect();
                assert_eq!(verdicts, [Verdict::Clean, Verdict::Faulted, Verdict::Clean]);
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}
