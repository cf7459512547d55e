//! Ranks that are lost, and operations that are given up.

use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epwire::prefill::{PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout};
use epwire::{Cause, Error, HostBuffer, Mask, Outcome, TensorMut, TensorRef};
use half::bf16;

use crate::reference::{
    self, HIDDEN, LOCAL, Memory, RANKS, Sent, TOKENS, TOPK, check_sums, expert, sum, tokens,
};
use crate::{block_on, complete, config, is_pending, is_set, ranks};

const LOST: usize = 2;
/// Less than the deadline.
const PATIENT: Duration = Duration::from_secs(15);
const LAYOUT: PrefillLayout = PrefillLayout::Packed { alignment: 2 };

/// A deadline after which a silent rank is soon given up.
fn impatient() -> PrefillConfig {
    let mut config = config();
    config.ep = config.ep.deadline(Duration::from_secs(1));
    config
}

/// Dispatches once peers have ended the operation that this rank has given up.
async fn dispatch_when_free(buffer: &PrefillBuffer, sent: &Sent, memory: &mut Memory) -> Outcome {
    loop {
        match buffer.dispatch(sent.input(), memory.output()).await {
            Err(Error::State(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
            ended => break ended.unwrap().1,
        }
    }
}

#[test]
fn a_probe_is_answered_by_who_is_connected() {
    ranks(&config(), |buffer| {
        for peer in (0..buffer.ranks()).filter(|peer| *peer != buffer.rank()) {
            block_on(buffer.probe(peer, PATIENT)).unwrap();
            buffer.probe_blocking(peer, PATIENT).unwrap();
        }
    });
    let buffer = PrefillBuffer::unconnected(0, RANKS as u32, config()).unwrap();
    for ended in [block_on(buffer.probe(1, PATIENT)), buffer.probe_blocking(1, PATIENT)] {
        assert!(matches!(&ended, Err(Error::State(failure)) if failure.peer == Some(1)), "{ended:?}");
    }
}

#[test]
fn sums_say_which_rank_they_lack() {
    ranks(&impatient(), |buffer| {
        let rank = buffer.rank() as usize;
        let mut memory = Memory::new(LAYOUT, reference::rows(rank, LAYOUT).1);
        let (mut routing, outcome) =
            buffer.dispatch_blocking(Sent::new(0, rank).input(), memory.output()).unwrap();
        complete(&outcome);
        if rank == LOST {
            return; // it answers nobody
        }
        let outputs = memory.outputs(rank, HIDDEN);
        let (mut out, mut lacks) = (HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN), vec![9; tokens(rank)]);
        let outcome = buffer
            .combine_blocking(
                &mut routing,
                PrefillCombine::new(TensorRef::new(&outputs, HIDDEN)),
                PrefillCombineOutput::new(TensorMut::new(&mut out)).lacks(&mut lacks),
            )
            .unwrap();
        assert_eq!(outcome.missing, [LOST as u32].into_iter().collect::<Mask>(), "{outcome}");
        assert!(outcome.needs_recovery() && buffer.take_fault().unwrap());
        let reachable: Vec<bool> = (0..RANKS * LOCAL).map(|expert| expert / LOCAL != LOST).collect();
        assert_eq!(buffer.reachable_experts().unwrap(), reachable);
        for (t, row) in out.chunks_exact(HIDDEN).enumerate() {
            let lost = (0..TOPK).any(|j| expert(rank, t, j).is_some_and(|e| e / LOCAL == LOST));
            assert_eq!(lacks[t], u32::from(lost) << LOST, "token {t}");
            assert_eq!(row[1].to_f32(), sum(0, rank, t, 1, |e| e / LOCAL != LOST));
        }

        // Without it the next membership is complete, and a routing of the previous one is useless.
        let rest: Mask = (0..RANKS as u32).filter(|r| *r != LOST as u32).collect();
        buffer.set_active(&rest, 2, 0).unwrap();
        assert_eq!(buffer.reachable_experts().unwrap(), reachable);
        let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
        let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
        let error = buffer.combine_blocking(&mut routing, input, to).unwrap_err();
        assert!(matches!(&error, Error::State(_)) && error.to_string().contains("epoch 1"), "{error}");
        let (_, outcome) = buffer.dispatch_blocking(Sent::new(0, rank).input(), memory.output()).unwrap();
        complete(&outcome);
        assert_eq!(memory.source_counts[LOST], 0);
        assert!(memory.row_source.iter().all(|source| *source != LOST as i32));
    });
}

#[test]
fn a_silent_source_has_no_rows_and_its_places_are_nobodys() {
    ranks(&impatient(), |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        let counted = buffer.dispatch_count_blocking(sent.input()).unwrap();
        if rank == LOST {
            // Its counts have arrived, but its rows do not.
            std::thread::sleep(Duration::from_secs(4));
            return;
        }
        let mut memory = Memory::new(LAYOUT, counted.received(LAYOUT).unwrap().capacity);
        let (_, outcome) = counted.receive_blocking(memory.output()).unwrap();
        assert_eq!(outcome.missing, [LOST as u32].into_iter().collect::<Mask>(), "{outcome}");
        assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Timeout));
        assert_eq!(memory.source_counts[LOST], 0);
        let (rows, _) = reference::rows(rank, LAYOUT);
        for row in rows {
            let source = if row.source == LOST { -1 } else { row.source as i32 };
            assert_eq!(memory.row_source[row.place], source);
            assert_eq!(memory.row_expert[row.place] == -1, source == -1);
        }
        memory.check_rows(0);
    });
}

#[test]
fn who_drops_a_future_or_a_half_is_missing_from_that_operation_alone() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        let mut memory = Memory::new(LAYOUT, reference::rows(rank, LAYOUT).1);
        for turn in 0..4 {
            if rank == LOST && turn % 2 == 0 {
                let dispatch = buffer.dispatch(sent.input(), memory.output());
                let wait = Duration::from_micros(50 * turn);
                let ended = block_on(async { tokio::time::timeout(wait, dispatch).await });
                if let Ok(ended) = ended {
                    complete(&ended.unwrap().1);
                }
            } else if rank == LOST {
                drop(buffer.dispatch_count_blocking(sent.input()).unwrap());
            } else {
                let (_, outcome) = buffer.dispatch_blocking(sent.input(), memory.output()).unwrap();
                // What it had sent before may have been enough.
                if !outcome.is_complete() {
                    assert_eq!(outcome.missing, [LOST as u32].into_iter().collect::<Mask>());
                    assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Partial));
                    assert!(!outcome.needs_recovery(), "{outcome}");
                    assert_eq!(memory.source_counts[LOST], 0);
                }
            }
            let (mut routing, outcome) = buffer.dispatch_blocking(sent.input(), memory.output()).unwrap();
            complete(&outcome);
            memory.check_lists(rank, 0);
            memory.check_rows(0);
            let outputs = memory.outputs(rank, HIDDEN);
            let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
            let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
            let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
            complete(&buffer.combine_blocking(&mut routing, input, to).unwrap());
            check_sums(0, rank, HIDDEN, &out);
        }
    });
}

#[test]
fn who_drops_a_dispatch_and_then_calls_nothing_holds_up_nobody() {
    let (dropped, ended) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    ranks(&config(), |buffer| {
        let (rank, began) = (buffer.rank() as usize, Instant::now());
        let sent = Sent::new(0, rank);
        let mut memory = Memory::new(LAYOUT, reference::rows(rank, LAYOUT).1);
        let pause = || {
            assert!(began.elapsed() < PATIENT, "the other ranks take too long");
            std::thread::sleep(Duration::from_millis(1));
        };
        if rank == LOST {
            let pending = block_on(is_pending(pin!(buffer.dispatch(sent.input(), memory.output()))));
            assert!(pending, "its rows fit the rings");
            dropped.store(true, Ordering::Release);
            while ended.load(Ordering::Acquire) < RANKS - 1 {
                pause();
            }
        } else {
            while !dropped.load(Ordering::Acquire) {
                pause();
            }
            // Most of what it has for the rank that has dropped its own does not fit the ring.
            let (_, outcome) = buffer.dispatch_blocking(sent.input(), memory.output()).unwrap();
            assert_eq!(outcome.missing, [LOST as u32].into_iter().collect::<Mask>(), "{outcome}");
            assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Partial));
            ended.fetch_add(1, Ordering::Release);
        }
        assert_eq!(buffer.membership().unwrap().suspects, Mask::EMPTY);
    });
}

/// As when a step is cancelled everywhere, after one rank has begun its dispatch.
#[test]
fn who_drops_a_dispatch_gives_up_nobody_who_does_not_come() {
    let (waited, together) = (&AtomicBool::new(false), &Barrier::new(RANKS));
    ranks(&impatient(), |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        let mut memory = Memory::new(LAYOUT, reference::rows(rank, LAYOUT).1);
        if rank == LOST {
            let pending = block_on(is_pending(pin!(buffer.dispatch(sent.input(), memory.output()))));
            assert!(pending, "its rows fit the rings");
            std::thread::sleep(Duration::from_secs(3));
            waited.store(true, Ordering::Release);
        }
        while !waited.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(buffer.membership().unwrap().suspects, Mask::EMPTY);
        together.wait();
        if rank == LOST {
            complete(&block_on(dispatch_when_free(buffer, &sent, &mut memory)));
        } else {
            // It may have sent all of the dispatch that it has dropped. The next one is everybody's.
            let (_, outcome) = block_on(buffer.dispatch(sent.input(), memory.output())).unwrap();
            assert!(outcome.is_complete() || outcome.missing == [LOST as u32].into_iter().collect::<Mask>());
            complete(&block_on(buffer.dispatch(sent.input(), memory.output())).unwrap().1);
        }
        assert_eq!(buffer.membership().unwrap().suspects, Mask::EMPTY);
    });
}

#[test]
fn a_sending_half_that_is_dropped_while_it_waits_is_given_up() {
    let waits = &AtomicBool::new(false);
    ranks(&config().ring_tokens(TOKENS as u32 + 1), |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        let mut memory = Memory::new(LAYOUT, reference::rows(rank, LAYOUT).1);
        block_on(async {
            let sending = buffer.dispatch_send(sent.input()).await.unwrap();
            if rank == 1 {
                is_set(waits).await;
            }
            complete(&sending.receive(memory.output()).await.unwrap().1);
            if rank == 0 {
                // Two halves fill its ring to rank 1, which has not taken the first one.
                assert!(is_pending(pin!(buffer.dispatch_send(sent.input()))).await);
                waits.store(true, Ordering::Release);
            } else {
                let (_, outcome) = buffer.dispatch(sent.input(), memory.output()).await.unwrap();
                // Others may have all that it would have sent them.
                if rank == 1 || !outcome.is_complete() {
                    assert_eq!(outcome.missing, [0].into_iter().collect::<Mask>());
                    assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Partial));
                }
            }
            complete(&dispatch_when_free(buffer, &sent, &mut memory).await);
            memory.check_rows(0);
        });
    });
}

#[test]
fn rows_of_another_kind_are_refused_and_the_next_operation_is_whole() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let (sent, other) = (Sent::new(0, rank), Sent::new(0, rank));
        let mut memory = Memory::new(LAYOUT, reference::rows(rank, LAYOUT).1);
        let input = match rank {
            LOST => epwire::Dispatch::new(TensorRef::new(&other.x, HIDDEN), TensorRef::new(&other.ids, TOPK)),
            _ => sent.input(),
        };
        let (_, outcome) = buffer.dispatch_blocking(input, memory.output()).unwrap();
        let others: Mask = (0..RANKS as u32).filter(|r| (*r == LOST as u32) != (rank == LOST)).collect();
        assert_eq!(outcome.missing, others, "rank {rank}: {outcome}");
        assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Format));
        let (_, outcome) = buffer.dispatch_blocking(sent.input(), memory.output()).unwrap();
        complete(&outcome);
        memory.check_rows(0);
    });
}
