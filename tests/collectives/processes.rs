//! Ranks as processes of this very program: communicators, a subset and a buffer together, and a rank that dies.

use std::time::{Duration, Instant};

use epwire::comm::{CommConfig, Reduction};
use epwire::env::Token;
use epwire::group::GroupOptions;
use epwire::launch::{
    Launch,
    spawn::{Ended, Ranks},
};
use epwire::rendezvous::driver::{Heartbeat, Server, ServerOptions};
use epwire::{
    Combine, CombineOutput, Comm, Dispatch, EpBuffer, EpConfig, Group, HostBuffer, Layout, Mask, Payload,
    TensorMut, TensorRef,
};
use half::bf16;

use crate::random::Random;
use crate::{all_of, complete};

const RANKS: u32 = 4;
const HIDDEN: usize = 64;
const DEADLINE: Duration = Duration::from_millis(800);

fn heartbeat() -> Heartbeat {
    Heartbeat::default()
        .interval(Duration::from_millis(100))
        .lease(Duration::from_secs(1))
        .handshake(Duration::from_secs(5))
}

/// Starts the ranks, each of which runs the ignored test of this name. All must exit with success, also the one that
/// dies.
fn run(test: &str) {
    let token = Token::random().unwrap();
    let options = ServerOptions::new("collectives", RANKS).token(Some(token.clone())).heartbeat(heartbeat());
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let running = Ranks::new(RANKS)
        .server(&server)
        .run_id("collectives")
        .token(token)
        .grace(Duration::from_secs(20))
        .args(["--ignored", "--exact", "--nocapture", &format!("processes::{test}")])
        .spawn()
        .unwrap();
    let ended = running.wait(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(ended, Ended::Success, "{ended}");
}

#[test]
fn communicators_a_subset_and_a_buffer_go_on_together_in_any_order() {
    run("mixing_rank");
}

#[test]
fn a_rank_that_dies_midway_is_missing_and_the_next_membership_is_exact() {
    run("mortal_rank");
}

fn join() -> Group {
    let launch = Launch::from_env().unwrap().expect("a launcher has started this rank");
    let options = GroupOptions::from_launch(&launch).token(Token::from_env().unwrap()).heartbeat(heartbeat());
    Group::join_blocking(options).unwrap()
}

/// Sends a token of this rank to an expert of each rank and back. Returns the ranks from which it has come back.
fn exchange(buffer: &EpBuffer) -> Mask {
    let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
    let x = vec![bf16::from_f32(1.0); HIDDEN];
    let (experts, weights) = ([0i32, 1, 2, 3], [1f32; 4]);
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&experts, 4))
        .weights(TensorRef::new(&weights, 4));
    let dispatched = buffer.dispatch_blocking(input, received.output()).unwrap();
    let rows: Vec<bf16> =
        received.rows.chunks(2).map(|bytes| bf16::from_le_bytes([bytes[0], bytes[1]])).collect();
    let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
    let combine = Combine::new(TensorRef::new(&rows, HIDDEN));
    let outcome = dispatched.combine_blocking(combine, CombineOutput::new(TensorMut::new(&mut out))).unwrap();
    let present = buffer.membership().unwrap().active.minus(&outcome.missing);
    assert!(out.iter().all(|x| x.to_f32() == present.len() as f32), "{present:?}: {}", out[0]);
    present
}

fn config() -> EpConfig {
    EpConfig::new(2, HIDDEN as u32, RANKS, 4).deadline(DEADLINE).threads(1)
}

#[test]
#[ignore = "is a rank that another test starts"]
fn mixing_rank() {
    let group = join();
    let comm_config = CommConfig::default().deadline(DEADLINE * 4).heap_bytes(1 << 20);
    let buffer = EpBuffer::create_blocking(&group, config().deadline(DEADLINE * 4)).unwrap();
    let first = Comm::create_blocking(&group, comm_config.clone()).unwrap();
    let second = Comm::create_blocking(&group, comm_config).unwrap();
    let mine: Mask = if group.rank() < 2 { [0, 1] } else { [2, 3] }.into_iter().collect();
    let half = first.subset_blocking(&mine).unwrap().unwrap();
    let comms = [(&first, 10), (&second, 10), (&half, if group.rank() < 2 { 3 } else { 7 })];
    let mut own = Random::new(u64::from(group.rank()) + 77);
    for round in 0..60u64 {
        group.step_blocking().unwrap();
        // Each rank uses its own order; -1 is the buffer.
        let mut order = [0, 1, 2, -1i32];
        own.shuffle(&mut order);
        let mut begun = Vec::new();
        for what in order {
            let Some((comm, sum)) = usize::try_from(what).ok().map(|at| comms[at]) else {
                assert_eq!(exchange(&buffer), Mask::all(RANKS));
                continue;
            };
            let n =
                1 + Random::new(round * 10 + what as u64).below(if round % 7 == 0 { 400_000 } else { 3000 });
            let mut send = comm.alloc::<f32>(n.min(100_000)).unwrap();
            send.fill(group.rank() as f32 + 1.0);
            let recv = vec![0f32; send.len()];
            begun.push((comm.all_reduce(send, recv, Reduction::Sum), sum));
        }
        let (works, sums): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        for ((outcome, (_, recv)), sum) in all_of(works).into_iter().zip(sums) {
            complete(outcome);
            assert!(recv.iter().all(|x| *x == sum as f32), "round {round}: {} for {sum}", recv[0]);
        }
    }
    // Nobody leaves before all have received everything from it.
    group.barrier_blocking("end").unwrap();
    drop((half, first, second, buffer));
    group.leave_blocking().unwrap();
}

const MORTAL: u32 = 2;
const LAST: u64 = 5;

#[test]
#[ignore = "is a rank that another test starts"]
fn mortal_rank() {
    let group = join();
    let comm_config = CommConfig::default().deadline(DEADLINE);
    let buffer = EpBuffer::create_blocking(&group, config()).unwrap();
    let comm = Comm::create_blocking(&group, comm_config).unwrap();
    let odd: Mask = [1, 2, 3].into_iter().collect();
    let subset = comm.subset_blocking(&odd).unwrap();
    let began = Instant::now();
    let (mut changed, mut after, mut degraded) = (None, 0, 0);
    while after < 5 {
        assert!(began.elapsed() < Duration::from_secs(30), "the membership does not change");
        let step = group.step_blocking().unwrap();
        if let Some(change) = step.change.filter(|change| !change.left.is_empty()) {
            assert_eq!(change.left, [MORTAL].into_iter().collect());
            changed = Some(change);
            // All began it at the same step.
            for now in [buffer.membership().unwrap(), comm.membership().unwrap()] {
                assert_eq!((now.active, now.epoch, now.step), (change.members, change.epoch, step.number));
            }
            if let Some(subset) = &subset {
                let now = subset.membership().unwrap();
                let active: Mask = [0, 2].into_iter().collect();
                assert_eq!((now.active, now.epoch, now.step), (active, change.epoch, step.number));
            }
        }
        let members: Vec<u32> = comm.membership().unwrap().active.iter().collect();
        let mut large = vec![group.rank() + 1; 300_000];
        let work = comm.all_reduce_in_place(std::mem::take(&mut large), Reduction::Sum);
        if group.rank() == MORTAL && step.number == LAST {
            // SAFETY: ends the process at once, like a kill except for the exit code: the test checks the others'
            // codes.
            unsafe { libc::_exit(0) };
        }
        let (outcome, buffer_of) = work.wait();
        let outcome = outcome.unwrap();
        if outcome.is_complete() {
            let sum: u32 = members.iter().map(|rank| rank + 1).sum();
            assert!(buffer_of.iter().all(|x| *x == sum), "step {}: {}", step.number, buffer_of[0]);
        } else {
            assert_eq!(outcome.missing, [MORTAL].into_iter().collect(), "{:?}", outcome.record);
            degraded += 1;
        }
        // The dead rank has not called it.
        let barrier = comm.barrier_blocking().unwrap();
        degraded += barrier.missing.len();
        assert!(barrier.missing.minus(&[MORTAL].into_iter().collect()).is_empty(), "{barrier:?}");
        exchange(&buffer);
        if let Some(subset) = &subset {
            let mut sum = [group.rank()];
            let outcome = subset.all_reduce_in_place_blocking(&mut sum, Reduction::Sum).unwrap();
            match outcome.is_complete() {
                true => assert_eq!(sum[0], if changed.is_some() { 4 } else { 6 }),
                false => {
                    assert_eq!(outcome.missing, [1].into_iter().collect(), "the rank's number in the subset")
                }
            }
        }
        if changed.is_some() {
            assert!(outcome.is_complete(), "{outcome:?}");
            after += 1;
        }
    }
    assert!(degraded > 0, "its death went unnoticed");
    group.barrier_blocking("end").unwrap();
    drop((subset, comm, buffer));
    group.leave_blocking().unwrap();
}
