//! Awaiting an event is a part of the wait: a rank that does it while another one is dead is not given up itself, and
//! waits no longer than in a plain receive.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use epwire::{
    Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Event, Group, HostBuffer, Layout, Mask, Payload,
    TensorMut, TensorRef,
};
use half::bf16;

use crate::{HIDDEN, runtime};

/// Deadlines that are tried in turn until one is kept: a busy machine may stop a thread for a good part of the first.
const DEADLINES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(1500), Duration::from_millis(4500)];
/// A token for both experts of each rank.
const IDS: [i32; 6] = [0, 1, 2, 3, 4, 5];
const WEIGHTS: [f32; 6] = [0.125; 6];

/// The result of a rank: the ranks missing from dispatch and combine, and how long its dispatch took.
type Went = (Mask, Mask, Duration);
/// How a rank awaits an event, told the deadline.
type Awaits = fn(Event, Duration);

/// A step of a rank that is late by this time; with `awaits` in halves, with an event between them.
fn step(buffer: &EpBuffer, late: Duration, awaits: Option<(Awaits, Duration)>) -> Went {
    thread::sleep(late);
    let x = vec![bf16::ONE; HIDDEN];
    let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&IDS, 6));
    let input = input.weights(TensorRef::new(&WEIGHTS, 6));
    let began = Instant::now();
    let dispatched = match awaits {
        None => buffer.dispatch_blocking(input, received.output()).unwrap(),
        Some((awaits, deadline)) => {
            let sent = buffer.dispatch_send_blocking(input).unwrap();
            awaits(sent.event(), deadline);
            sent.receive_blocking(received.output()).unwrap()
        }
    };
    let (took, missing) = (began.elapsed(), dispatched.outcome().missing);
    let expert_out: Vec<bf16> = received.rows.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
    let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
    let combine = Combine::new(TensorRef::new(&expert_out, HIDDEN));
    let outcome = dispatched.combine_blocking(combine, CombineOutput::new(TensorMut::new(&mut out))).unwrap();
    (missing, outcome.missing, took)
}

/// Ranks 0 and 1 beside rank 2, which does nothing. Rank 0 waits in a dispatch, rank 1 is late and awaits an event.
fn beside_a_dead_rank(late: f64, awaits: Awaits) {
    let failed: Vec<String> =
        DEADLINES.iter().map_while(|deadline| one_deadline(*deadline, late, awaits).err()).collect();
    assert!(failed.len() < DEADLINES.len(), "{failed:#?}");
}

fn one_deadline(deadline: Duration, late: f64, awaits: Awaits) -> Result<(), String> {
    let config = EpConfig::new(4, HIDDEN as u32, 6, 6).deadline(deadline).threads(1).lanes(1);
    let created = Arc::new(Barrier::new(3));
    let ended = Arc::new(Barrier::new(3));
    let ranks: Vec<_> = Group::threads(3)
        .unwrap()
        .into_iter()
        .map(|group| {
            let (config, created, ended) = (config.clone(), created.clone(), ended.clone());
            thread::spawn(move || {
                let buffer = EpBuffer::create_blocking(&group, config).unwrap();
                created.wait();
                let went = match group.rank() {
                    0 => Some(step(&buffer, Duration::ZERO, None)),
                    1 => Some(step(&buffer, deadline.mul_f64(late), Some((awaits, deadline)))),
                    _ => None,
                };
                // A buffer that is dropped tells its peers, which a dead rank does not.
                ended.wait();
                went
            })
        })
        .collect();
    let went: Vec<Went> = ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect();
    let dead: Mask = [2].into_iter().collect();
    for (rank, (dispatch, combine, took)) in went.iter().enumerate() {
        // Rank 1 finds rank 0 there and waits only for the dead rank.
        let bound = if rank == 1 { 1.3 } else { 2.3 };
        if (dispatch, combine) != (&dead, &dead) || *took >= deadline.mul_f64(bound) {
            return Err(format!("rank {rank} of late {late}, {deadline:?}: {went:?}"));
        }
    }
    Ok(())
}

#[test]
fn awaiting_an_event_beside_a_dead_rank_takes_part_in_the_wait() {
    for late in [0.0, 0.4, 0.7, 0.9] {
        beside_a_dead_rank(late, |event, _| event.wait_blocking());
    }
}

#[test]
fn awaiting_it_as_a_future_does_too() {
    for late in [0.0, 0.4, 0.7, 0.9] {
        beside_a_dead_rank(late, |event, _| runtime().block_on(event));
    }
}

/// The executor polls the event once and is then busy with something else.
#[test]
fn awaiting_it_on_a_busy_executor_does_too() {
    beside_a_dead_rank(0.7, |event, deadline| {
        runtime().block_on(async {
            let busy = async { thread::sleep(deadline.mul_f64(0.9)) };
            tokio::join!(biased; event, busy);
        });
    });
}
