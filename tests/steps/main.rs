//! A serving loop over the group, as in a server: every rank calls [`Group::step`] between its steps and nothing else,
//! while others leave, join, are slow and die. Each exchange is checked: a token comes back from exactly the ranks that
//! took part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(feature = "succession")]
mod processes;
/// The guide's code, literally: tests/readme.rs compares them.
#[allow(unreachable_pub, reason = "it is written for a library")]
mod serve;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use epwire::group::{Change, GroupOptions, Step};
use epwire::prefill::{PrefillBuffer, PrefillConfig};
use epwire::rendezvous::BootstrapError;
use epwire::rendezvous::driver::{Heartbeat, Server, ServerOptions};
use epwire::{
    Combine, CombineOutput, Comm, CommConfig, Dispatch, DispatchBuffers, EpBuffer, EpConfig, Error, Group,
    HostBuffer, Layout, Mask, Payload, TensorMut, TensorRef,
};
use half::bf16;

use self::serve::serve;

const HIDDEN: usize = 64;
const RANKS: u32 = 4;
const DEADLINE: Duration = Duration::from_millis(500);
const PATIENT: Duration = Duration::from_secs(20);

fn heartbeat() -> Heartbeat {
    Heartbeat::default()
        .interval(Duration::from_millis(100))
        .lease(Duration::from_secs(1))
        .handshake(Duration::from_secs(5))
}

fn server() -> Server {
    server_with(heartbeat())
}

fn server_with(heartbeat: Heartbeat) -> Server {
    let options = ServerOptions::new("run", RANKS).heartbeat(heartbeat);
    Server::bind_blocking("127.0.0.1:0", options).unwrap()
}

fn options(rank: u32, server: SocketAddr) -> GroupOptions {
    let options = GroupOptions::new(rank, RANKS, server.to_string()).run_id("run").heartbeat(heartbeat());
    options.deadline(PATIENT)
}

/// What a rank has seen of a step.
#[derive(Clone, Debug, PartialEq)]
struct Ran {
    step: u64,
    epoch: u32,
    change: Option<Change>,
    missing: Mask,
    took: Duration,
}

/// A rank that runs on a thread of its own until it is told to end.
struct Rank {
    rank: u32,
    ends: Arc<AtomicBool>,
    ran: Arc<Mutex<Vec<Ran>>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Rank {
    /// `deadline`: of its operations.
    fn start(rank: u32, server: SocketAddr, deadline: Duration) -> Self {
        let (ends, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::<Vec<Ran>>::default()));
        let thread = thread::spawn({
            let (ends, ran) = (Arc::clone(&ends), Arc::clone(&ran));
            move || {
                let mut memory = None;
                let mut run = async |_: &Group, buffer: &EpBuffer, step: &Step| {
                    let memory = match &mut memory {
                        Some(memory) => memory,
                        None => memory.insert(buffer.dispatch_buffers(
                            Payload::SameAsInput,
                            Layout::RankMajor,
                            0,
                        )?),
                    };
                    let began = Instant::now();
                    let missing = exchange(buffer, memory, step.number)?;
                    let (epoch, took) = (buffer.membership()?.epoch, began.elapsed());
                    ran.lock().unwrap().push(Ran {
                        step: step.number,
                        epoch,
                        change: step.change,
                        missing,
                        took,
                    });
                    Ok(!ends.load(Ordering::Relaxed))
                };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(serve(options(rank, server), config().deadline(deadline), &mut run))
            }
        });
        Self { rank, ends, ran, thread: Some(thread) }
    }

    fn ran(&self) -> Vec<Ran> {
        self.ran.lock().unwrap().clone()
    }

    /// Waits until it has run a step for which the condition holds.
    fn until(&self, what: &str, holds: impl Fn(&Ran) -> bool) -> Ran {
        let began = Instant::now();
        loop {
            if let Some(ran) = self.ran().iter().find(|ran| holds(ran)) {
                return ran.clone();
            }
            let rank = self.rank;
            let is_serving = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            assert!(is_serving, "rank {rank} ended before {what}: {:?}", self.ran().last());
            assert!(began.elapsed() < PATIENT, "rank {rank} did not reach {what}: {:?}", self.ran().last());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn until_complete(&self, members: &Mask) -> Ran {
        let epoch = self.until_change(members).epoch;
        self.until("a complete step", |ran| ran.epoch >= epoch && ran.missing.is_empty())
    }

    fn until_change(&self, members: &Mask) -> Change {
        let is_this = |ran: &Ran| ran.change.is_some_and(|change| change.members == *members);
        self.until("its membership", is_this).change.unwrap()
    }

    /// Ends it between two steps, and with it its membership.
    fn end(mut self) -> Result<Vec<Ran>, Error> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()?;
        Ok(self.ran())
    }
}

fn config() -> EpConfig {
    EpConfig::new(1, HIDDEN as u32, RANKS, RANKS).deadline(DEADLINE).threads(1)
}

/// Sends a token to an expert of every rank, which returns it: the sum counts the ranks that took part.
fn exchange(buffer: &EpBuffer, memory: &mut DispatchBuffers, step: u64) -> Result<Mask, Error> {
    let value = (step % 64) as f32;
    let x = [bf16::from_f32(value); HIDDEN];
    let ids: Vec<i32> = (0..RANKS as i32).collect();
    let weights = [1.0; RANKS as usize];
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, RANKS as usize))
        .weights(TensorRef::new(&weights, RANKS as usize))
        .layout(Layout::RankMajor);
    let dispatched = buffer.dispatch_blocking(input, memory.output())?;
    let mut out: HostBuffer<bf16> = HostBuffer::zeroed(HIDDEN);
    let mut contributions = [[0u16; 2]];
    let output = CombineOutput::new(TensorMut::new(&mut out)).contributions(&mut contributions);
    let outcome = dispatched.combine_blocking(Combine::in_place(), output)?;
    let took_part = f32::from(contributions[0][0]);
    assert!(
        out.iter().all(|sum| sum.to_f32() == value * took_part),
        "the sum is {}, not {took_part} times {value}",
        out[0]
    );
    assert_eq!(
        contributions[0][0] as usize,
        buffer.membership().unwrap().active.len() - outcome.missing.len()
    );
    Ok(outcome.missing)
}

fn start(server: &Server, deadline: Duration) -> Vec<Rank> {
    (0..RANKS).map(|rank| Rank::start(rank, server.local_addr(), deadline)).collect()
}

/// For all ranks: the changes are the same, and so is the membership of each step that two of them have run.
fn assert_same(ran: &[Vec<Ran>]) {
    for (a, b) in ran.iter().flat_map(|a| ran.iter().map(move |b| (a, b))) {
        for ran in a {
            if let Some(other) = b.iter().find(|other| other.step == ran.step) {
                assert_eq!(ran.epoch, other.epoch, "members differ: {ran:?} and {other:?}");
            }
        }
    }
}

#[test]
fn who_leaves_is_gone_from_the_same_step_on_for_all() {
    // A farewell ends waits and leases at once. Shorter times would only end them where the machine is busy.
    let server = server_with(heartbeat().lease(PATIENT));
    let mut ranks = start(&server, PATIENT);
    for rank in &ranks {
        rank.until("ten steps", |ran| ran.step == 10);
    }
    let first = ranks.iter().map(|rank| rank.ran()[..10].to_vec()).collect::<Vec<_>>();
    assert!(first.iter().flatten().all(|ran| ran.missing.is_empty() && ran.change.is_none()), "{first:?}");

    ranks.remove(2).end().unwrap();
    let survivors = Mask::all(RANKS).without(2);
    for rank in &ranks {
        rank.until_complete(&survivors);
    }
    let ran: Vec<_> = ranks.into_iter().map(|rank| rank.end().unwrap()).collect();
    let changed: Vec<_> =
        ran.iter().map(|ran| ran.iter().find(|ran| ran.change.is_some()).unwrap()).collect();
    for ran in &changed {
        let change = ran.change.unwrap();
        assert_eq!((ran.step, change.epoch, change.left), (changed[0].step, 2, [2].into_iter().collect()));
    }
    assert_same(&ran);
}

#[test]
fn newcomers_enter_while_the_others_go_on_and_the_idle_one_holds_nobody_up() {
    // Longer than a busy machine stops a thread: whoever waited for the idle one would wait for all of it.
    const LONG: Duration = Duration::from_secs(10);
    let server = server();
    let mut ranks = start(&server, LONG);
    let all = Mask::all(RANKS);
    for rank in ranks.drain(2..) {
        rank.end().unwrap();
    }
    let two = Mask::all(2);
    for rank in &ranks {
        rank.until_complete(&two);
    }

    let idle = Group::join_blocking(options(2, server.local_addr())).unwrap();
    let idle_buffer = EpBuffer::create_blocking(&idle, config().deadline(LONG)).unwrap();
    ranks.push(Rank::start(3, server.local_addr(), LONG));
    let three = all.without(2);
    for rank in &ranks {
        rank.until_complete(&three);
    }
    assert!(idle.is_standby());
    // Another process for that rank, which does take part.
    drop((idle, idle_buffer));
    ranks.push(Rank::start(2, server.local_addr(), LONG));
    for rank in &ranks {
        rank.until_complete(&all);
    }
    let ran: Vec<_> = ranks.iter().map(Rank::ran).collect();
    assert_same(&ran);
    // The ranks that ran all the time did not miss a newcomer, and waited for nobody.
    for ran in ran[..2].iter().flatten().filter(|ran| ran.epoch > 2) {
        assert!(ran.missing.is_empty() && ran.took < LONG / 2, "{ran:?}");
    }
}

#[test]
fn newcomers_form_the_run_where_all_members_have_gone() {
    let server = server();
    let mut ranks = start(&server, DEADLINE);
    for rank in ranks.drain(2..) {
        rank.end().unwrap();
    }
    for rank in &ranks {
        rank.until_complete(&Mask::all(2));
    }
    // They are on standby and connected to nobody yet, when the ranks with which they were to run leave.
    let newcomers = [2, 3].map(|rank| {
        let group = Group::join_blocking(options(rank, server.local_addr())).unwrap();
        let buffer = EpBuffer::create_blocking(&group, config()).unwrap();
        (group, buffer)
    });
    for rank in ranks {
        rank.end().unwrap();
    }
    let serve = |(group, buffer): &(Group, EpBuffer)| {
        let mut memory = buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0).unwrap();
        let began = Instant::now();
        loop {
            let step = group.step_blocking().unwrap();
            let missing = exchange(buffer, &mut memory, step.number).unwrap();
            if missing.is_empty() && group.active().mask.len() == 2 {
                return group.active();
            }
            assert!(began.elapsed() < PATIENT, "{missing} are missing: {:?}", group.active());
        }
    };
    let active = thread::scope(|scope| {
        let threads: Vec<_> = newcomers.iter().map(|newcomer| scope.spawn(|| serve(newcomer))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(active[0], active[1]);
    assert_eq!(active[0].mask, [2, 3].into_iter().collect());
}

#[test]
fn a_retired_rank_takes_part_until_the_others_go_on_without_it_and_no_row_is_missed() {
    let server = server();
    let joined: Vec<_> = (0..RANKS)
        .map(|rank| {
            thread::spawn({
                let options = options(rank, server.local_addr());
                move || Group::join_blocking(options).unwrap()
            })
        })
        .collect();
    let groups: Vec<Group> = joined.into_iter().map(|joined| joined.join().unwrap()).collect();
    let (latest, end) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let serve = |group: &Group| {
        // Nobody is lost here, so a deadline that passes because the machine is busy would say nothing.
        let buffer = EpBuffer::create_blocking(group, config().deadline(PATIENT)).unwrap();
        let mut memory = buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0).unwrap();
        let mut steps = Vec::new();
        let retired = loop {
            match group.step_blocking() {
                Ok(step) => {
                    let missing = exchange(&buffer, &mut memory, step.number).unwrap();
                    assert!(missing.is_empty(), "rank {} misses {missing} in {step:?}", group.rank());
                    steps.push(step);
                    latest.fetch_max(step.number, Ordering::Relaxed);
                    if step.number == end.load(Ordering::Relaxed) {
                        break false;
                    }
                }
                Err(Error::Bootstrap(error)) if matches!(*error, BootstrapError::Retired { rank: 2, .. }) => {
                    break true;
                }
                Err(error) => panic!("rank {}: {error}", group.rank()),
            }
        };
        (buffer, steps, retired)
    };
    let ran: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| serve(group))).collect();
        thread::sleep(DEADLINE / 2);
        groups[0].retire_blocking(2).unwrap();
        while groups[0].active().mask.contains(2) {
            thread::sleep(DEADLINE / 100);
        }
        // Far enough ahead for all to end with the same step.
        end.store(latest.load(Ordering::Relaxed) + 1000, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let changes: Vec<_> =
        ran.iter().map(|(_, steps, _)| steps.iter().find(|step| step.change.is_some())).collect();
    let first = changes[0].unwrap();
    assert_eq!(first.change.unwrap().left, [2].into_iter().collect());
    for rank in [1, 3] {
        assert_eq!(changes[rank], Some(first), "rank {rank}");
    }
    assert!(ran[2].2 && changes[2].is_none());
    assert_eq!(
        ran[2].1.last().unwrap().number,
        first.number - 1,
        "the retired rank runs every step before the change"
    );
}

#[test]
fn a_rank_that_stands_still_is_missed_but_not_removed() {
    let server = server();
    let ranks = start(&server, DEADLINE);
    for rank in &ranks {
        rank.until("a step", |ran| ran.step == 5);
    }
    // Its library continues to answer, so it does not count as lost: all ranks continue in a new epoch, together with
    // it.
    let hold = ranks[1].ran.lock().unwrap();
    thread::sleep(3 * DEADLINE);
    drop(hold);
    let all = Mask::all(RANKS);
    for rank in &ranks {
        rank.until_complete(&all);
    }
    let ran: Vec<_> = ranks.into_iter().map(|rank| rank.end().unwrap()).collect();
    assert_same(&ran);
}

#[test]
fn a_step_whose_future_is_dropped_again_and_again_begins_with_its_change_told() {
    // Where this thread has stood still for long enough, the outcome of the change was there before it was awaited.
    let began = Instant::now();
    while steps_dropped_until_a_change() == 0 {
        assert!(began.elapsed() < PATIENT, "each change took effect without a wait");
    }
}

/// Loses one of two ranks, and calls `step` without waiting until it has begun the membership of the other one. Returns
/// how often the call had to wait, and was dropped.
fn steps_dropped_until_a_change() -> u32 {
    let groups = Group::threads(2).unwrap();
    let create = |group: &Group| {
        let config = EpConfig::new(1, HIDDEN as u32, 2, 1).deadline(DEADLINE).threads(1);
        EpBuffer::create_blocking(group, config).unwrap()
    };
    let buffers: Vec<_> = thread::scope(|scope| {
        let made: Vec<_> = groups.iter().map(|group| scope.spawn(|| create(group))).collect();
        made.into_iter().map(|made| made.join().unwrap()).collect()
    });
    let [zero, one]: [Group; 2] = groups.try_into().unwrap();
    assert_eq!(zero.step_blocking().unwrap().number, 1);
    drop(one);
    let began = Instant::now();
    let mut dropped = 0;
    let change = loop {
        assert!(began.elapsed() < PATIENT);
        match pin!(zero.step()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(step) => match step.unwrap().change {
                Some(change) => break change,
                None => thread::sleep(Duration::from_millis(1)),
            },
            Poll::Pending => dropped += 1,
        }
    };
    assert_eq!((change.epoch, change.members.to_string().as_str()), (2, "0"));
    assert_eq!(buffers[0].membership().unwrap().epoch, 2);
    dropped
}

#[test]
fn a_step_with_an_operation_in_flight_is_refused_and_can_be_made_again() {
    let groups = Group::threads(2).unwrap();
    let buffers: Vec<_> = thread::scope(|scope| {
        let made = groups.iter().map(|group| {
            scope.spawn(|| {
                let config = EpConfig::new(1, HIDDEN as u32, 2, 1).deadline(DEADLINE).threads(1);
                // A rank with nothing in flight begins the membership while the other one cannot.
                [config.clone(), config].map(|config| EpBuffer::create_blocking(group, config).unwrap())
            })
        });
        made.collect::<Vec<_>>().into_iter().map(|made| made.join().unwrap()).collect()
    });
    let [zero, one]: [Group; 2] = groups.try_into().unwrap();
    let x = [bf16::ONE; HIDDEN];
    let sent = buffers[0][1]
        .dispatch_send_blocking(Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&[0], 1)))
        .unwrap();
    assert_eq!(zero.step_blocking().unwrap().number, 1);
    drop(one);
    let began = Instant::now();
    let refused = loop {
        assert!(began.elapsed() < PATIENT);
        match zero.step_blocking() {
            Ok(step) => assert_eq!(step.change, None),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::State(_)), "{refused}");
    drop(sent);
    let step = zero.step_blocking().unwrap();
    assert_eq!(step.change.map(|change| change.members.to_string()).as_deref(), Some("0"));
    let [idle, held] = &buffers[0];
    assert_eq!(idle.membership().unwrap(), held.membership().unwrap());
}

#[test]
fn what_one_buffer_has_found_out_is_told_to_all_at_once() {
    let found: Vec<_> = Group::threads(3)
        .unwrap()
        .into_iter()
        .map(|group| {
            thread::spawn(move || {
                let config = EpConfig::new(1, HIDDEN as u32, 3, 1);
                let buffer = EpBuffer::create_blocking(&group, config.clone()).unwrap();
                let comm = Comm::create_blocking(&group, CommConfig::default()).unwrap();
                let part = comm.subset_blocking(&Mask::all(3)).unwrap().unwrap();
                let prefill = PrefillBuffer::create_blocking(&group, PrefillConfig::new(config)).unwrap();
                group.barrier_blocking("created").unwrap();
                let lost: Mask = [2].into_iter().collect();
                if group.rank() == 0 {
                    group.revoke(&[0, 2].into_iter().collect()).unwrap(); // leaves out itself
                }
                let now = [
                    buffer.membership().unwrap(),
                    comm.membership().unwrap(),
                    part.membership().unwrap(),
                    prefill.membership().unwrap(),
                ];
                group.barrier_blocking("looked").unwrap();
                let suspects = if group.rank() == 0 { lost } else { Mask::EMPTY };
                now.iter().all(|now| now.suspects == suspects && now.silent.is_empty())
            })
        })
        .collect();
    assert!(found.into_iter().all(|rank| rank.join().unwrap()));
}

#[test]
fn a_loss_is_news_in_the_outcome_that_names_it_first_and_in_no_other() {
    let groups = Group::threads(3).unwrap();
    let rank = |group: &Group| {
        let comm = Comm::create_blocking(group, CommConfig::default().deadline(DEADLINE / 2)).unwrap();
        let other = Comm::create_blocking(group, CommConfig::default()).unwrap();
        let lost: Mask = [2].into_iter().collect();
        if group.rank() != 2 {
            let named = |comm: &Comm| {
                let outcome = comm.barrier_blocking().unwrap();
                assert_eq!((outcome.missing, outcome.suspects), (lost, lost), "{outcome}");
                outcome.news
            };
            assert_eq!([named(&comm), named(&comm)], [lost, Mask::EMPTY]);
            group.revoke(&lost).unwrap();
            assert_eq!(
                [named(&other), named(&comm)],
                [Mask::EMPTY, Mask::EMPTY],
                "an outcome names ranks that the program has revoked"
            );
        }
        group.barrier_blocking("seen").unwrap();
    };
    thread::scope(|scope| groups.iter().for_each(|group| drop(scope.spawn(|| rank(group)))));
}
