//! The ways to call an operation: at once, counted first, in halves, by futures, on two lanes at a time, and again by
//! its routing.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillLayout, PrefillOutput, Routing,
};
use epwire::{Cause, Dispatch, Error, HostBuffer, Refused, TensorMut, TensorRef};
use half::bf16;

use crate::reference::{
    self, HIDDEN, LOCAL, Memory, RANKS, Sent, TOKENS, TOPK, check_sums, expert, sum, tokens,
};
use crate::{block_on, complete, config, is_pending, is_set, ranks};

const PACKED: PrefillLayout = PrefillLayout::Packed { alignment: 8 };

fn memory(buffer: &PrefillBuffer) -> Memory {
    Memory::new(PACKED, reference::rows(buffer.rank() as usize, PACKED).1)
}

/// A dispatch and a combine on a lane, by futures.
async fn turn(buffer: &PrefillBuffer, round: usize, lane: u32) {
    let rank = buffer.rank() as usize;
    let sent = Sent::new(round, rank);
    let mut memory = memory(buffer);
    let (mut routing, outcome) = match round % 2 {
        0 => buffer.dispatch(sent.input().lane(lane), memory.output()).await.unwrap(),
        _ => {
            let counted = buffer.dispatch_count(sent.input().lane(lane)).await.unwrap();
            assert_eq!(counted.received(PACKED).unwrap().capacity, memory.capacity);
            counted.receive(memory.output()).await.unwrap()
        }
    };
    complete(&outcome);
    memory.check_lists(rank, round);
    memory.check_rows(round);
    let outputs = memory.outputs(rank, HIDDEN);
    let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
    let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
    let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
    complete(&buffer.combine(&mut routing, input, to).await.unwrap());
    check_sums(round, rank, HIDDEN, &out);
}

#[test]
fn futures_on_both_lanes_progress_together() {
    ranks(&config(), |buffer| {
        block_on(async {
            for round in 0..6 {
                // Ranks begin with different lanes: a lane that waited for the other one would wait for ever.
                match buffer.rank() % 2 {
                    0 => tokio::join!(turn(buffer, round, 0), turn(buffer, round + 1, 1)),
                    _ => {
                        let (b, a) = tokio::join!(turn(buffer, round + 1, 1), turn(buffer, round, 0));
                        (a, b)
                    }
                };
            }
        });
    });
}

#[test]
fn two_threads_have_a_lane_each() {
    ranks(&config(), |buffer| {
        std::thread::scope(|scope| {
            for lane in 0..2 {
                scope.spawn(move || {
                    for round in 0..4 {
                        let rank = buffer.rank() as usize;
                        let sent = Sent::new(round, rank);
                        let mut memory = memory(buffer);
                        let (_, outcome) =
                            buffer.dispatch_blocking(sent.input().lane(lane), memory.output()).unwrap();
                        complete(&outcome);
                        memory.check_lists(rank, round);
                        memory.check_rows(round);
                    }
                });
            }
        });
    });
}

#[test]
fn halves_leave_time_between_them_where_the_rings_hold_all() {
    let config = config().ring_tokens(TOKENS as u32 * LOCAL as u32 + 1);
    ranks(&config, |buffer| {
        let rank = buffer.rank() as usize;
        let (sent, mut memory) = (Sent::new(0, rank), memory(buffer));
        let sending = buffer.dispatch_send_blocking(sent.input()).unwrap();
        let (mut routing, outcome) = sending.receive_blocking(memory.output()).unwrap();
        complete(&outcome);
        memory.check_lists(rank, 0);
        memory.check_rows(0);
        let outputs = memory.outputs(rank, HIDDEN);
        let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
        let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
        let sending = buffer.combine_send_blocking(&mut routing, input).unwrap();
        complete(&sending.receive_blocking(PrefillCombineOutput::new(TensorMut::new(&mut out))).unwrap());
        check_sums(0, rank, HIDDEN, &out);
    });
}

#[test]
fn a_routing_is_filled_anew_in_every_way() {
    ranks(&config().ring_tokens(TOKENS as u32 + 1), |buffer| {
        let rank = buffer.rank() as usize;
        let mut routing = Routing::new(buffer).unwrap();
        for round in 0..12 {
            let layout = [PACKED, PrefillLayout::Dense][round % 2];
            let mut memory = Memory::new(layout, reference::rows(rank, layout).1);
            let sent = Sent::new(round, rank);
            let outcome = block_on(async {
                let counted = match round / 2 {
                    0 => {
                        return buffer.dispatch_into_blocking(&mut routing, sent.input(), memory.output());
                    }
                    1 => return buffer.dispatch_into(&mut routing, sent.input(), memory.output()).await,
                    2 => {
                        let sending = buffer.dispatch_send_into_blocking(&mut routing, sent.input())?;
                        return Ok(sending.receive_blocking(memory.output())?);
                    }
                    3 => {
                        let sending = buffer.dispatch_send_into(&mut routing, sent.input()).await?;
                        return Ok(sending.receive(memory.output()).await?);
                    }
                    4 => buffer.dispatch_count_into_blocking(&mut routing, sent.input())?,
                    _ => buffer.dispatch_count_into(&mut routing, sent.input()).await?,
                };
                assert_eq!(counted.received(layout)?.capacity, memory.capacity);
                Ok::<_, Error>(counted.receive(memory.output()).await?)
            });
            complete(&outcome.unwrap());
            memory.check_lists(rank, round);
            memory.check_rows(round);
            let outputs = memory.outputs(rank, HIDDEN);
            let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
            let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
            let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
            complete(&buffer.combine_blocking(&mut routing, input, to).unwrap());
            check_sums(round, rank, HIDDEN, &out);
        }
    });
}

/// Two halves of each operation fill the rings from rank 0 to rank 1, and from rank 1 to rank 0: the second one waits for
/// the receiving half of the first.
#[test]
fn sending_halves_are_futures_that_wait_for_room() {
    let (rows_wait, answers_wait) = (&AtomicBool::new(false), &AtomicBool::new(false));
    ranks(&config().ring_tokens(TOKENS as u32 + 1), |buffer| {
        let rank = buffer.rank() as usize;
        let mut memory = memory(buffer);
        block_on(async {
            let [first, second] = [0, 1].map(|round| Sent::new(round, rank));
            let sending = buffer.dispatch_send(first.input()).await.unwrap();
            if rank == 1 {
                is_set(rows_wait).await;
            }
            complete(&sending.receive(memory.output()).await.unwrap().1);
            let mut sending = pin!(buffer.dispatch_send(second.input()));
            if rank == 0 {
                assert!(is_pending(sending.as_mut()).await, "rank 1 has not taken the rows of the first one");
                rows_wait.store(true, Ordering::Release);
            }
            let (mut routing, outcome) = sending.await.unwrap().receive(memory.output()).await.unwrap();
            complete(&outcome);
            memory.check_rows(1);

            let outputs = memory.outputs(rank, HIDDEN);
            let input = || PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
            for turn in 0..2 {
                let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
                let mut sending = Box::pin(buffer.combine_send(&mut routing, input()));
                if rank == 0 && turn == 1 {
                    assert!(is_pending(sending.as_mut()).await, "rank 1 has not taken the answers");
                    answers_wait.store(true, Ordering::Release);
                }
                let sending = sending.await.unwrap();
                if rank == 1 && turn == 0 {
                    is_set(answers_wait).await;
                }
                let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
                complete(&sending.receive(to).await.unwrap());
                check_sums(1, rank, HIDDEN, &out);
            }
        });
    });
}

#[test]
fn a_sending_half_is_told_what_comes_once_its_peers_have_sent() {
    let asked = AtomicBool::new(false);
    ranks(&config().ring_tokens(TOKENS as u32 + 1), |buffer| {
        let rank = buffer.rank() as usize;
        let (sent, mut memory) = (Sent::new(0, rank), memory(buffer));
        if rank != 0 {
            block_on(is_set(&asked)); // rank 0 has found out that this one has not sent
        }
        let sending = buffer.dispatch_send_blocking(sent.input()).unwrap();
        if rank == 0 {
            let early = sending.received(PACKED);
            assert!(matches!(&early, Err(Error::State(_))), "{early:?}");
            asked.store(true, Ordering::SeqCst);
        }
        let began = Instant::now();
        let received = loop {
            match sending.received(PACKED) {
                Err(Error::State(_)) if began.elapsed() < Duration::from_secs(20) => thread::yield_now(),
                ended => break ended.unwrap(),
            }
        };
        let (routing, outcome) = sending.receive_blocking(memory.output()).unwrap();
        complete(&outcome);
        assert_eq!(routing.received(buffer, PACKED).unwrap(), received);
        memory.check_rows(0);
    });
}

#[test]
fn a_routing_dispatches_again_in_halves() {
    ranks(&config().ring_tokens(TOKENS as u32 + 1), |buffer| {
        let rank = buffer.rank() as usize;
        let (first, mut memory) = (Sent::new(0, rank), memory(buffer));
        let (mut routing, _) = buffer.dispatch_blocking(first.input(), memory.output()).unwrap();
        let received = routing.received(buffer, PACKED).unwrap();
        for round in 1..5 {
            let sent = Sent::new(round, rank);
            let outcome = if round % 2 == 0 {
                let sending = buffer.dispatch_again_send_blocking(&mut routing, sent.input()).unwrap();
                assert_eq!(sending.received(PACKED).unwrap(), received);
                sending.receive_blocking(memory.output()).unwrap()
            } else {
                block_on(async {
                    let sending = buffer.dispatch_again_send(&mut routing, sent.input()).await.unwrap();
                    sending.receive(memory.output()).await.unwrap()
                })
            };
            complete(&outcome);
            memory.check_lists(rank, round);
            memory.check_rows(round);
        }
        let outputs = memory.outputs(rank, HIDDEN);
        let combine = |routing: &mut Routing| {
            let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
            let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
            let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
            let ended = buffer.combine_blocking(routing, input, to);
            ended.map(|outcome| (outcome, out))
        };
        // Given up by all ranks, it leaves the routing as it was, unless it has brought weights.
        let unweighted = Dispatch::new(TensorRef::new(&first.x, HIDDEN), TensorRef::new(&first.ids, TOPK));
        drop(buffer.dispatch_again_send_blocking(&mut routing, unweighted).unwrap());
        let (outcome, out) = combine(&mut routing).unwrap();
        complete(&outcome);
        check_sums(4, rank, HIDDEN, &out);
        drop(buffer.dispatch_again_send_blocking(&mut routing, first.input()).unwrap());
        let error = combine(&mut routing).unwrap_err();
        assert!(error.to_string().contains("has not been filled by a dispatch"), "{error}");
    });
}

#[test]
fn a_routing_is_used_again_and_sums_are_received_by_futures() {
    let config = config().ring_tokens(TOKENS as u32 * LOCAL as u32 + 1);
    ranks(&config, |buffer| {
        let rank = buffer.rank() as usize;
        let mut memory = memory(buffer);
        block_on(async {
            let first = Sent::new(0, rank);
            let (mut routing, _) = buffer.dispatch(first.input(), memory.output()).await.unwrap();
            for round in 1..4 {
                let sent = Sent::new(round, rank);
                let again = buffer.dispatch_again(&mut routing, sent.input(), memory.output());
                complete(&again.await.unwrap());
                memory.check_lists(rank, round);
                memory.check_rows(round);
                let outputs = memory.outputs(rank, HIDDEN);
                let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
                let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
                let sending = buffer.combine_send_blocking(&mut routing, input).unwrap();
                let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
                complete(&sending.receive(to).await.unwrap());
                check_sums(round, rank, HIDDEN, &out);
            }
        });
    });
}

/// The half of a receive that was refused because of its output.
#[track_caller]
fn half<T: std::fmt::Debug, H>(ended: Result<T, Box<Refused<H>>>) -> H {
    let Refused { error, handle, .. } = *ended.unwrap_err();
    assert!(matches!(error, Error::Invalid(_) | Error::Limit(_)), "{error}");
    handle
}

#[test]
fn a_receiving_half_that_is_refused_returns_the_half() {
    let config = config().ring_tokens(TOKENS as u32 * LOCAL as u32 + 1);
    ranks(&config, |buffer| {
        let rank = buffer.rank() as usize;
        let (sent, mut memory) = ([0, 1, 2].map(|round| Sent::new(round, rank)), memory(buffer));
        let large = || PrefillOutput::new(PACKED, usize::MAX >> 8);
        block_on(async {
            let sending = buffer.dispatch_send(sent[0].input()).await.unwrap();
            let sending = half(half(sending.receive_blocking(large())).receive(large()).await);
            let (mut routing, outcome) = sending.receive(memory.output()).await.unwrap();
            complete(&outcome);
            memory.check_rows(0);

            let counted = buffer.dispatch_count_into(&mut routing, sent[1].input()).await.unwrap();
            let counted = half(half(counted.receive(large()).await).receive_blocking(large()));
            complete(&counted.receive_blocking(memory.output()).unwrap());
            memory.check_rows(1);
            let sending = buffer.dispatch_again_send_blocking(&mut routing, sent[2].input()).unwrap();
            let sending = half(sending.receive_blocking(large()));
            complete(&sending.receive(memory.output()).await.unwrap());
            memory.check_rows(2);

            let outputs = memory.outputs(rank, HIDDEN);
            let (mut none, mut out) = (vec![], HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN));
            fn to(out: &mut [bf16]) -> PrefillCombineOutput<'_> {
                PrefillCombineOutput::new(TensorMut::new(out))
            }
            let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
            let sending = buffer.combine_send_blocking(&mut routing, input).unwrap();
            let sending = half(half(sending.receive_blocking(to(&mut none))).receive(to(&mut none)).await);
            complete(&sending.receive_blocking(to(&mut out)).unwrap());
            check_sums(2, rank, HIDDEN, &out);
        });
    });
}

#[test]
fn halves_of_more_than_the_rings_hold_are_refused_before_anything_is_sent() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let (sent, mut memory) = (Sent::new(0, rank), memory(buffer));
        let error = buffer.dispatch_send_blocking(sent.input()).unwrap_err();
        assert!(matches!(&error, Error::Limit(_)) && error.to_string().contains("ring_tokens"), "{error}");
        let (mut routing, outcome) = buffer.dispatch_blocking(sent.input(), memory.output()).unwrap();
        complete(&outcome);
        let outputs = memory.outputs(rank, HIDDEN);
        let input = || PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
        let error = buffer.combine_send_blocking(&mut routing, input()).unwrap_err();
        assert!(matches!(&error, Error::Limit(_)) && error.to_string().contains("ring_tokens"), "{error}");
        let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
        let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
        complete(&buffer.combine_blocking(&mut routing, input(), to).unwrap());
        check_sums(0, rank, HIDDEN, &out);
    });
}

#[test]
fn a_routing_dispatches_other_rows_and_combines_other_widths_and_carries_values_back() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let mut memory = memory(buffer);
        let (mut routing, _) = buffer.dispatch_blocking(Sent::new(0, rank).input(), memory.output()).unwrap();
        for (round, width) in [(1, HIDDEN), (2, 64), (3, 8)] {
            let sent = Sent::new(round, rank);
            complete(&buffer.dispatch_again_blocking(&mut routing, sent.input(), memory.output()).unwrap());
            memory.check_lists(rank, round);
            memory.check_rows(round);
            // The gradient of a weight is what its expert's row gives: here a number for each (source, token,
            // position).
            let number = |source: i32, token: i32, j: i32| (source * 1000 + token * 10 + j) as f32;
            let gradients: Vec<f32> = (0..memory.capacity)
                .map(|at| number(memory.row_source[at], memory.row_token[at], memory.row_position[at]))
                .collect();
            let outputs = memory.outputs(rank, width);
            let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * width);
            let mut values = vec![-1.0; tokens(rank) * TOPK];
            let outcome = buffer
                .combine_blocking(
                    &mut routing,
                    PrefillCombine::new(TensorRef::new(&outputs, width)).values(&gradients),
                    PrefillCombineOutput::new(TensorMut::new(&mut out)).values(&mut values),
                )
                .unwrap();
            complete(&outcome);
            check_sums(round, rank, width, &out);
            for (at, got) in values.into_iter().enumerate() {
                let (t, j) = (at / TOPK, at % TOPK);
                let want = expert(rank, t, j).map_or(0.0, |_| number(rank as i32, t as i32, j as i32));
                assert_eq!(got, want, "rank {rank}, token {t}, entry {j}");
            }
        }
    });
}

#[test]
fn rows_by_source_that_overflow_are_reported_for_each_source() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let (rows, whole) = reference::rows(rank, PrefillLayout::Dense);
        for capacity in [whole, whole / 3, 0] {
            let mut memory = Memory::new(PrefillLayout::Dense, capacity);
            let (_, outcome) = buffer.dispatch_blocking(Sent::new(0, rank).input(), memory.output()).unwrap();
            assert_eq!(outcome.is_complete(), capacity == whole);
            for (source, overflow) in memory.overflow.iter().enumerate() {
                let left = rows.iter().filter(|row| row.source == source && row.place >= capacity);
                assert_eq!(*overflow as usize, left.count(), "source {source}, capacity {capacity}");
            }
            memory.check_rows(0);
        }
        let mut memory =
            Memory::new(PrefillLayout::RankMajor, reference::rows(rank, PrefillLayout::RankMajor).1);
        complete(&buffer.dispatch_blocking(Sent::new(0, rank).input(), memory.output()).unwrap().1);
        assert_eq!(memory.overflow, [0; RANKS]);
    });
}

#[test]
fn what_overflows_is_the_last_in_order_and_is_reported() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let (rows, whole) = reference::rows(rank, PACKED);
        // Rank 1 has room for all rows, the others for two thirds.
        let cut = |rank: usize| {
            let whole = reference::rows(rank, PACKED).1;
            if rank == 1 { whole } else { whole * 2 / 3 }
        };
        let mut memory = Memory::new(PACKED, cut(rank));
        let (mut routing, outcome) =
            buffer.dispatch_blocking(Sent::new(0, rank).input(), memory.output()).unwrap();
        let placed = rows.iter().filter(|row| row.place < memory.capacity).count();
        assert_eq!(outcome.is_complete(), memory.capacity == whole);
        assert!(outcome.missing.is_empty());
        if rank != 1 {
            let record = outcome.record.as_ref().unwrap();
            assert_eq!(record.cause, Cause::Overflow);
            assert_eq!(record.overflow(), Some((rows.len() as u64, placed as u64)));
            assert!(buffer.take_fault().unwrap());
        }
        assert_eq!(memory.overflow.iter().sum::<u32>() as usize, rows.len() - placed);
        memory.check_lists(rank, 0);
        memory.check_rows(0);

        let outputs = memory.outputs(rank, HIDDEN);
        let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
        let input = PrefillCombine::new(TensorRef::new(&outputs, HIDDEN));
        let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
        complete(&buffer.combine_blocking(&mut routing, input, to).unwrap());
        let has: Vec<Vec<reference::Row>> = (0..RANKS)
            .map(|rank| {
                let (mut rows, _) = reference::rows(rank, PACKED);
                rows.retain(|row| row.place < cut(rank));
                rows
            })
            .collect();
        for (t, row) in out.chunks_exact(HIDDEN).enumerate() {
            let with = |e: usize| {
                let mine = |row: &&reference::Row| row.source == rank && row.token == t;
                has[e / LOCAL].iter().filter(mine).any(|row| expert(rank, t, row.position) == Some(e))
            };
            assert_eq!(row[3].to_f32(), sum(0, rank, t, 3, with), "rank {rank}, token {t}");
        }
    });
}
