//! Ranks as processes of this very program: communicators, a subset and buffers of decode and prefill together, and a
//! rank that dies.

use std::pin::Pin;
use std::time::{Duration, Instant};

use epwire::comm::{Call, CommBuffer, CommConfig, Reduction, Work};
use epwire::env::Token;
use epwire::group::GroupOptions;
use epwire::launch::{
    Launch,
    spawn::{Ended, Ranks},
};
use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput,
};
use epwire::rendezvous::driver::{Heartbeat, Server, ServerOptions};
use epwire::{
    Combine, CombineOutput, Comm, Dispatch, EpBuffer, EpConfig, Group, HostBuffer, Layout, Mask, Outcome,
    Payload, TensorMut, TensorRef,
};
use half::bf16;

use crate::random::Random;
use crate::{all_of, complete, operations};

const HIDDEN: usize = 64;
const DEADLINE: Duration = Duration::from_millis(800);

fn heartbeat() -> Heartbeat {
    Heartbeat::default()
        .interval(Duration::from_millis(100))
        .lease(Duration::from_secs(1))
        .handshake(Duration::from_secs(5))
}

/// Starts as many ranks, each of which runs the ignored test of this name. All must exit with success, also the one
/// that dies.
fn run(test: &str, ranks: u32) {
    let token = Token::random().unwrap();
    let options = ServerOptions::new("collectives", ranks).token(Some(token.clone())).heartbeat(heartbeat());
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let running = Ranks::new(ranks)
        .server(&server)
        .run_id("collectives")
        .token(token)
        .grace(Duration::from_secs(20))
        .args(["--ignored", "--exact", "--nocapture", &format!("processes::{test}")])
        .spawn()
        .unwrap();
    let ended = running.wait(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(ended, Ended::Success, "{ranks} ranks: {ended}");
}

#[test]
fn operations_of_communicators_a_subset_and_a_buffer_go_on_together_in_any_order() {
    (1..=9).for_each(|ranks| run("mixing_rank", ranks));
}

#[test]
fn every_operation_of_every_type_between_processes() {
    [2, 3, 9].iter().for_each(|ranks| run("matrix_rank", *ranks));
}

#[test]
fn a_rank_that_dies_midway_is_missing_and_the_next_membership_is_exact() {
    [3, 4, 8].iter().for_each(|ranks| run("mortal_rank", *ranks));
}

fn join() -> Group {
    let launch = Launch::from_env().unwrap().expect("a launcher has started this rank");
    let options = GroupOptions::from_launch(&launch).token(Token::from_env().unwrap()).heartbeat(heartbeat());
    Group::join_blocking(options).unwrap()
}

/// What the ranks give whose number, beginning with 1, each of them adds.
fn sum_of(ranks: &Mask) -> u32 {
    ranks.iter().map(|rank| rank + 1).sum()
}

/// Sends a token of this rank to an expert of each rank and back. Returns the ranks from which it has come back.
fn exchange(buffer: &EpBuffer) -> Mask {
    let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
    let x = vec![bf16::from_f32(1.0); HIDDEN];
    let experts: Vec<i32> = (0..buffer.ranks() as i32).collect();
    let weights = vec![1f32; experts.len()];
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&experts, experts.len()))
        .weights(TensorRef::new(&weights, weights.len()));
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

const MANY: usize = 64;

/// Sends so many tokens, more than the rings hold, to an expert of each rank and back, through `prefill`.
fn exchange_many(prefill: &PrefillBuffer, tokens: usize) {
    let ranks = prefill.ranks() as usize;
    let value = |token: usize| bf16::from_f32(1.0 + (token % 7) as f32);
    let x: Vec<bf16> = (0..tokens * HIDDEN).map(|at| value(at / HIDDEN)).collect();
    let experts: Vec<i32> = (0..tokens * ranks).map(|at| (at % ranks) as i32).collect();
    let weights = vec![1f32; experts.len()];
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&experts, ranks))
        .weights(TensorRef::new(&weights, ranks));
    let capacity = MANY * ranks;
    let mut rows = HostBuffer::<bf16>::zeroed(capacity * HIDDEN);
    let output =
        PrefillOutput::new(PrefillLayout::Packed { alignment: 1 }, capacity).rows(TensorMut::new(&mut rows));
    let (mut routing, outcome) = prefill.dispatch_blocking(input, output).unwrap();
    complete(Ok(outcome));
    let mut out = HostBuffer::<bf16>::zeroed(tokens * HIDDEN);
    let made = PrefillCombine::new(TensorRef::new(&rows, HIDDEN));
    let sums = PrefillCombineOutput::new(TensorMut::new(&mut out));
    complete(prefill.combine_blocking(&mut routing, made, sums));
    let is_sum = |(at, sum): (usize, &bf16)| sum.to_f32() == ranks as f32 * value(at / HIDDEN).to_f32();
    assert!(out.iter().enumerate().all(is_sum), "{tokens} tokens");
}

fn config(ranks: u32) -> EpConfig {
    EpConfig::new(2, HIDDEN as u32, ranks, ranks).deadline(DEADLINE).threads(1)
}

#[test]
#[ignore = "is a rank that another test starts"]
fn matrix_rank() {
    let group = join();
    if group.rank() % 2 == 1 {
        // From others these ranks then read what is large in its caller's memory, whatever is faster here.
        // SAFETY: no other thread of this process looks at its environment now.
        unsafe { std::env::set_var(epwire::env::PULL_FROM, "16384") };
    }
    let comm =
        Comm::create_blocking(&group, CommConfig::default().deadline(Duration::from_secs(20))).unwrap();
    // Many ranks take long for each call where they share few cores.
    operations::matrix(&comm, [0, 3, 1023, 5000], if group.world() <= 3 { 4 } else { 1 });
    operations::all::<f64>(&comm, 40_001, Reduction::Sum, 1);
    group.barrier_blocking("end").unwrap();
    drop(comm);
    group.leave_blocking().unwrap();
}

const OPERATIONS: usize = 11;
/// A work, and with its end what it has received.
type Ending = Pin<Box<dyn Future<Output = (epwire::Result<Outcome>, Vec<f32>)> + Send>>;

fn ending<B: Send + 'static>(work: Work<B>, received: impl FnOnce(B) -> Vec<f32> + Send + 'static) -> Ending {
    Box::pin(async move {
        let (outcome, buffers) = work.await;
        (outcome, received(buffers))
    })
}

/// Begins an operation, in place but for the first and the last, in memory of the window. Returns also what it must
/// receive.
fn begin(comm: &Comm, operation: usize, n: usize) -> (Ending, Vec<f32>) {
    let (me, ranks) = (comm.rank() as usize, comm.ranks() as usize);
    let window = |elements: &[f32]| {
        let mut memory = comm.alloc::<f32>(elements.len()).unwrap();
        memory.copy_from_slice(elements);
        memory
    };
    let whole = |memory: CommBuffer<f32>| memory.to_vec();
    let n = if operation < 4 { n.min(100_000) } else { n.min(100_000).div_ceil(ranks) };
    let root = n % ranks;
    let is_root = me == root;
    let own = |rank: usize| operations::own::<f32>(rank, n);
    let sum = || operations::reduced::<f32>(ranks, n * ranks, Reduction::Sum);
    let gathered = || (0..ranks).flat_map(own).collect::<Vec<_>>();
    let block = me * n..(me + 1) * n;
    let mut alone = vec![9.0; n * ranks];
    alone[block.clone()].copy_from_slice(&own(me));
    match operation {
        0 => {
            let work = comm.all_reduce(window(&own(me)), vec![9.0; n], Reduction::Sum);
            (ending(work, |(_, recv)| recv), sum()[..n].to_vec())
        }
        1 => {
            let work = comm.all_reduce_in_place(window(&own(me)), Reduction::Max);
            (ending(work, whole), operations::reduced(ranks, n, Reduction::Max))
        }
        2 => {
            let buffer = if is_root { own(me) } else { vec![9.0; n] };
            (ending(comm.broadcast(window(&buffer), root as u32), whole), own(root))
        }
        3 => {
            let work = comm.reduce_in_place(window(&own(me)), Reduction::Sum, root as u32);
            (ending(work, whole), if is_root { sum()[..n].to_vec() } else { own(me) })
        }
        4 => {
            let send = operations::own::<f32>(me, n * ranks);
            let work = comm.reduce_scatter_in_place(window(&send), Reduction::Sum);
            let expected = sum()[block.clone()].to_vec();
            (ending(work, |buffer| buffer[block].to_vec()), expected)
        }
        5 => (ending(comm.all_gather_in_place(window(&alone)), whole), gathered()),
        6 => {
            // Rank f gives rank t what belongs to 3 f + t.
            let to: Vec<f32> = (0..ranks).flat_map(|to| own(3 * me + to)).collect();
            let from = (0..ranks).flat_map(|from| own(3 * from + me)).collect();
            (ending(comm.all_to_all_in_place(window(&to)), whole), from)
        }
        7 => {
            let buffer = if is_root { alone } else { own(me) };
            let work = comm.gather_in_place(window(&buffer), root as u32);
            (ending(work, whole), if is_root { gathered() } else { own(me) })
        }
        8 => {
            let buffer = if is_root { gathered() } else { vec![9.0; n] };
            let work = comm.scatter_in_place(window(&buffer), root as u32);
            (ending(work, whole), if is_root { gathered() } else { own(me) })
        }
        9 => (ending(comm.barrier(), |()| Vec::new()), Vec::new()),
        _ => {
            let (after, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
            let calls = (
                Call::send(window(&own(me)), after as u32, 7),
                Call::all_reduce_in_place(window(&own(me)), Reduction::Sum),
                Call::recv(vec![9.0; n], before as u32, 7),
            );
            let expected = [&sum()[..n], &own(before)].concat();
            (ending(comm.begin(calls), |(_, sum, came)| [&sum[..], &came].concat()), expected)
        }
    }
}

#[test]
#[ignore = "is a rank that another test starts"]
fn mixing_rank() {
    let group = join();
    let (rank, ranks) = (group.rank(), group.world());
    let comm_config = CommConfig::default().deadline(DEADLINE * 4).heap_bytes(1 << 20);
    let buffer = EpBuffer::create_blocking(&group, config(ranks).deadline(DEADLINE * 4)).unwrap();
    let many = EpConfig::new(MANY as u32, HIDDEN as u32, ranks, ranks).deadline(DEADLINE * 4).threads(1);
    let prefill = PrefillBuffer::create_blocking(&group, PrefillConfig::new(many).ring_tokens(16)).unwrap();
    let first = Comm::create_blocking(&group, comm_config.clone()).unwrap();
    let second = Comm::create_blocking(&group, comm_config).unwrap();
    let middle = ranks.div_ceil(2);
    let mine: Mask = if rank < middle { 0..middle } else { middle..ranks }.collect();
    let half = first.subset_blocking(&mine).unwrap().unwrap();
    let all = Mask::all(ranks);
    let comms = [&first, &second, &half];
    let mut own = Random::new(u64::from(rank) + 77);
    // As many as ever with four ranks, fewer where each of them takes longer.
    for round in 0..if ranks == 4 { 60u64 } else { 60 / u64::from(ranks + 2) } {
        group.step_blocking().unwrap();
        // Each rank uses its own order; -1 is one of the buffers, in which ranks wait for each other.
        let mut order = [0, 1, 2, -1i32];
        own.shuffle(&mut order);
        let mut begun = Vec::new();
        for what in order {
            let Some(comm) = usize::try_from(what).ok().map(|at| comms[at]) else {
                if round % 2 == 0 {
                    assert_eq!(exchange(&buffer), all);
                } else {
                    exchange_many(&prefill, own.range(1, MANY));
                }
                continue;
            };
            let mut shared = Random::new(round * 10 + what as u64);
            let n = 1 + shared.below(if round % 7 == 0 { 400_000 } else { 3000 });
            begun.push(begin(comm, (round as usize + what as usize * 3) % OPERATIONS, n));
        }
        let (works, all_expected): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        for ((outcome, found), expected) in all_of(works).into_iter().zip(all_expected) {
            complete(outcome);
            assert!(found == expected, "round {round}");
        }
    }
    // Nobody leaves before all have received everything from it.
    group.barrier_blocking("end").unwrap();
    drop((half, first, second, prefill, buffer));
    group.leave_blocking().unwrap();
}

const LAST: u64 = 5;

#[test]
#[ignore = "is a rank that another test starts"]
fn mortal_rank() {
    let group = join();
    let comm_config = CommConfig::default().deadline(DEADLINE);
    let ranks = group.world();
    let mortal = Random::new(u64::from(ranks)).range(1, ranks as usize - 1) as u32;
    let buffer = EpBuffer::create_blocking(&group, config(ranks)).unwrap();
    let comm = Comm::create_blocking(&group, comm_config).unwrap();
    // Without rank 0, so that numbers in it differ.
    let subset = comm.subset_blocking(&(1..ranks).collect()).unwrap();
    let gone: Mask = [mortal].into_iter().collect();
    let began = Instant::now();
    let (mut changed, mut after, mut degraded) = (None, 0, 0);
    while after < 5 {
        assert!(began.elapsed() < Duration::from_secs(30), "the membership does not change");
        let step = group.step_blocking().unwrap();
        if let Some(change) = step.change.filter(|change| !change.left.is_empty()) {
            assert_eq!(change.left, gone);
            changed = Some(change);
            // All began it at the same step.
            for now in [buffer.membership().unwrap(), comm.membership().unwrap()] {
                assert_eq!((now.active, now.epoch, now.step), (change.members, change.epoch, step.number));
            }
            if let Some(subset) = &subset {
                let now = subset.membership().unwrap();
                let active: Mask = (0..ranks - 1).filter(|rank| rank + 1 != mortal).collect();
                assert_eq!((now.active, now.epoch, now.step), (active, change.epoch, step.number));
            }
        }
        let members = comm.membership().unwrap().active;
        let mut large = vec![group.rank() + 1; 300_000];
        let work = comm.all_reduce_in_place(std::mem::take(&mut large), Reduction::Sum);
        if group.rank() == mortal && step.number == LAST {
            // SAFETY: ends the process at once, like a kill except for the exit code: the test checks the others'
            // codes.
            unsafe { libc::_exit(0) };
        }
        let (outcome, buffer_of) = work.wait();
        let outcome = outcome.unwrap();
        if outcome.is_complete() {
            let sum = sum_of(&members);
            assert!(buffer_of.iter().all(|x| *x == sum), "step {}: {}", step.number, buffer_of[0]);
        } else {
            assert_eq!(outcome.missing, gone, "{:?}", outcome.record);
            degraded += 1;
        }
        // The dead rank has not called it.
        let barrier = comm.barrier_blocking().unwrap();
        degraded += barrier.missing.len();
        assert!(barrier.missing.minus(&gone).is_empty(), "{barrier:?}");
        exchange(&buffer);
        if let Some(subset) = &subset {
            let mut sum = [group.rank() + 1];
            let outcome = subset.all_reduce_in_place_blocking(&mut sum, Reduction::Sum).unwrap();
            match outcome.is_complete() {
                true => assert_eq!(sum[0], sum_of(&members) - 1, "without what rank 0 has"),
                false => {
                    let number: Mask = [mortal - 1].into_iter().collect();
                    assert_eq!(outcome.missing, number, "the rank's number in the subset");
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
