//! Members with buffers, as threads of this process, and failures that only the library itself can cause.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use half::bf16;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::course::Course;
use super::follower::{Follower, GivenUp};
use super::*;
use crate::cause::Cause;
use crate::rendezvous::driver::{Attendant, Client, Heartbeat};
#[cfg(feature = "succession")]
use crate::rendezvous::driver::{ClientOptions, block_on};
use crate::rendezvous::wire::{Ask, Decision, Frame, Notice, Standby, encode};
#[cfg(feature = "succession")]
use crate::rendezvous::wire::{Join, Listener, PROTOCOL_VERSION, Request};
use crate::rendezvous::{BootstrapError, View};
#[cfg(feature = "succession")]
use crate::rendezvous::{Fields, Identity};
use crate::{
    Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Error, HostBuffer, Layout, Mask, Payload,
    TensorMut, TensorRef,
};

const HIDDEN: usize = 64;
const RANKS: u32 = 4;
const PATIENT: Duration = Duration::from_secs(20);

fn config() -> EpConfig {
    let deadline = Duration::from_millis(500);
    EpConfig { deadline, threads: 1, ..EpConfig::new(1, HIDDEN as u32, RANKS, RANKS) }
}

/// Sends a token to every rank and back; returns the missing ranks.
fn exchange(buffer: &EpBuffer) -> Result<Mask, Error> {
    let mut memory = buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0)?;
    let (x, ids, weights) = ([bf16::ONE; HIDDEN], [0, 1, 2, 3], [1.0; RANKS as usize]);
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, ids.len()))
        .weights(TensorRef::new(&weights, weights.len()))
        .layout(Layout::RankMajor);
    let mut out: HostBuffer<bf16> = HostBuffer::zeroed(HIDDEN);
    let output = CombineOutput::new(TensorMut::new(&mut out));
    let dispatched = buffer.dispatch_blocking(input, memory.output())?;
    Ok(dispatched.combine_blocking(Combine::in_place(), output)?.missing)
}

/// Runs steps until `last` returns true.
fn serve(group: &Group, mut last: impl FnMut(&Step, &Mask) -> bool) -> Result<(), Error> {
    let (buffer, began) = (EpBuffer::create_blocking(group, config())?, Instant::now());
    loop {
        let step = group.step_blocking()?;
        if last(&step, &exchange(&buffer)?) {
            return Ok(());
        }
        assert!(began.elapsed() < PATIENT, "{:?}", group.membership());
    }
}

#[test]
fn who_begins_steps_beyond_its_promise_is_found_out_and_removed() {
    let groups = Group::threads(RANKS).unwrap();
    let [first, second, hasty, leaver] = &groups[..] else { panic!("four") };
    let pair: Mask = Mask::all(2);
    let together = |group: &Group| {
        let mut alone = false;
        serve(group, |step, missing| {
            alone |= step.change.is_some_and(|change| change.members == pair);
            alone && missing.is_empty()
        })
    };
    let ahead = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            serve(leaver, |step, _| step.number == 3).unwrap();
            leaver.leave_blocking().unwrap();
        });
        let others = [first, second].map(|group| scope.spawn(move || together(group)));
        let ended = serve(hasty, |step, _| {
            // Once the step with which the next membership begins is decided, this member runs beyond it. It waits for
            // the decision outside `step`, which would put the membership into effect at once.
            if step.number == 3 {
                let began = Instant::now();
                while hasty.membership().due.is_none() {
                    assert!(began.elapsed() < PATIENT, "{:?}", hasty.membership());
                    std::thread::sleep(Duration::from_millis(1));
                }
                hasty.inner.course.run_ahead(5);
                ahead.store(true, Ordering::Relaxed);
            }
            false
        });
        let Err(Error::Bootstrap(error)) = ended else { panic!("{ended:?}") };
        assert!(matches!(*error, BootstrapError::Evicted { rank: 2, .. }), "{error}");
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    });
    assert!(ahead.into_inner());
}

#[cfg(feature = "succession")]
fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Joins as rank 1, on another host than the rest; nobody listens at the address of its server.
#[cfg(feature = "succession")]
fn join_with_a_dead_server(address: &str, world: u32) -> Client {
    let (address, run_id, heartbeat) = (address.to_owned(), "default".to_owned(), Heartbeat::default());
    let connect =
        ClientOptions { address, run_id: run_id.clone(), token: None, deadline: PATIENT, heartbeat };
    let host = "elsewhere".to_owned();
    let identity = Identity { rank: 1, member: 7, host, pid: 1, process_space: String::new() };
    let listener = Some(Listener { id: 7, address: "127.0.0.1:1".to_owned() });
    let (version, initial, config) = (PROTOCOL_VERSION, world, Fields::new());
    let join = Join { version, run_id, world, initial, identity, deadline: PATIENT, config, listener };
    let client = block_on("connect", Client::connect(connect)).unwrap();
    block_on("join", client.call("join", Request::Join { join }, PATIENT)).unwrap();
    client
}

/// The member on another host would be the first to vote besides the leader.
#[cfg(feature = "succession")]
#[test]
fn a_server_that_cannot_be_reached_does_not_keep_others_from_voting() {
    let address = free_address();
    std::thread::scope(|scope| {
        let join = |rank| {
            let options = GroupOptions::new(rank, 4, address.clone()).host_server(rank == 0);
            scope.spawn(|| Group::join_blocking(options).unwrap())
        };
        let members = [0, 2, 3].map(join);
        let _client = join_with_a_dead_server(&address, 4);
        let (members, began) = (members.map(|member| member.join().unwrap()), Instant::now());
        while members[2].servers().len() < 3 {
            assert!(began.elapsed() < PATIENT, "{:?}", members[2].servers());
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// The server that should take over does not answer.
#[cfg(feature = "succession")]
#[test]
fn leaving_takes_no_longer_than_its_deadline() {
    let deadline = Duration::from_secs(3);
    let address = free_address();
    let options = GroupOptions::new(0, 2, address.clone()).host_server(true).deadline(deadline);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Group::join_blocking(options).unwrap());
        let _second = join_with_a_dead_server(&address, 2);
        let (first, began) = (first.join().unwrap(), Instant::now());
        let error = first.leave_blocking().unwrap_err();
        let took = began.elapsed();
        let BootstrapError::Timeout { elapsed, .. } = error else { panic!("{error}") };
        assert!(elapsed <= took && took - elapsed < deadline / 3, "{elapsed:?} of {took:?}");
        assert!(took < deadline + deadline / 2, "{took:?}");
    });
}

/// A member on standby is asked something each second, and is never admitted.
#[tokio::test(start_paused = true)]
async fn questions_of_the_group_do_not_prolong_a_step() {
    let heartbeat = Heartbeat::default();
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let mut group = Group::threads(1).unwrap().remove(0).with_deadline(10 * heartbeat.interval);
    let inner = Arc::get_mut(&mut group.inner).unwrap();
    inner.course = Course::new(0, 0, heartbeat);
    let (client, carrier) =
        Client::attach(near, 7, "the test", heartbeat, View::before(), Some(inner.course.clone()));
    inner.client = client;
    let asked = async {
        for change in 1..=60 {
            tokio::time::sleep(heartbeat.interval).await;
            let ask = Ask::Promise { change, lossy: false };
            far.write_all(&encode(&Frame::Ask { ask }).unwrap()).await.unwrap();
        }
    };
    let step = tokio::select! {
        step = group.step() => step,
        () = carrier => unreachable!("it is connected"),
        () = asked => panic!("it waits without end"),
    };
    let Err(Error::Bootstrap(error)) = step else { panic!("{step:?}") };
    let BootstrapError::Timeout { elapsed, deadline, .. } = *error else { panic!("{error}") };
    assert!(deadline == group.deadline && elapsed < deadline + heartbeat.interval, "{elapsed:?}");
}

/// A follower that has given up rank 1, which was silent, and notes what it is told.
#[derive(Debug, Default)]
struct Silent {
    told: Mutex<Vec<Told>>,
    news: Condvar,
    /// It works with them: begins a membership only once they are revoked, or after a while.
    works_with: Mutex<Mask>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Begin {
        epoch: u32,
    },
    Revoke {
        peers: Mask,
    },
    /// It has begun.
    Begun {
        epoch: u32,
    },
}

impl Silent {
    fn note(&self, told: Told) {
        self.told.lock().unwrap().push(told);
        self.news.notify_all();
    }

    /// Whether it was told this in time.
    fn waits_for(&self, what: impl Fn(&Told) -> bool) -> bool {
        let lacks = |told: &mut Vec<Told>| !told.iter().any(&what);
        !self.news.wait_timeout_while(self.told.lock().unwrap(), PATIENT / 10, lacks).unwrap().1.timed_out()
    }
}

impl Follower for Silent {
    fn begin(&self, decision: &Decision) -> Result<(), Error> {
        let (epoch, with) = (decision.epoch, *self.works_with.lock().unwrap());
        self.note(Told::Begin { epoch });
        self.waits_for(|told| match told {
            Told::Revoke { peers } => with.minus(peers).is_empty(),
            _ => with.is_empty(),
        });
        self.note(Told::Begun { epoch });
        Ok(())
    }
    fn revoke(&self, peers: &Mask, _: Cause) -> Result<(), Error> {
        if !peers.is_empty() {
            self.note(Told::Revoke { peers: *peers });
        }
        Ok(())
    }
    fn given_up(&self) -> Result<GivenUp, Error> {
        let silent = [1].into_iter().collect();
        Ok(GivenUp { epoch: 1, peers: silent, silent })
    }
    fn experts(&self, _: &Mask) -> Option<Vec<Range<u32>>> {
        None
    }
    fn is_overtaken(&self, _: u32) -> bool {
        false
    }
    fn diverged(&self, _: u32, _: u64) -> Mask {
        Mask::EMPTY
    }
    fn reaches(&self, _: u32, _: Duration) -> bool {
        true
    }
    fn export(&self, _: u32) -> Result<Vec<u8>, Error> {
        Ok(Vec::new())
    }
    fn connect(&self, _: u32, _: &[u8], _: Duration) -> Result<(), Error> {
        Ok(())
    }
}

/// The first call finds no room for what it has to say, and its future is dropped.
#[tokio::test(start_paused = true)]
async fn a_doubt_is_told_though_the_call_that_found_it_was_dropped() {
    let heartbeat = Heartbeat::default();
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let mut group = Group::threads(2).unwrap().remove(0);
    let silent: Arc<dyn Follower> = Arc::new(Silent::default());
    group.follow(Arc::downgrade(&silent));
    let (client, carrier) = Client::attach(near, 7, "the test", heartbeat, View::before(), None);
    Arc::get_mut(&mut group.inner).unwrap().client = client;
    let full = async {
        loop {
            group.inner.client.tell(|| Notice::Ready {}).await;
        }
    };
    assert!(tokio::time::timeout(heartbeat.interval, full).await.is_err());
    assert!(tokio::time::timeout(heartbeat.interval, group.step()).await.is_err());
    let mut carried = tokio::task::JoinSet::new();
    carried.spawn(carrier);
    assert_eq!(group.step().await.unwrap().number, 1);
    let doubt = Notice::Doubt { epoch: 1, peers: [1].into_iter().collect() };
    let (wanted, mut told) = (encode(&Frame::Notice { notice: doubt }).unwrap(), Vec::new());
    let arrived = async {
        while !told.windows(wanted.len()).any(|frame| frame == wanted) {
            far.read_buf(&mut told).await.unwrap();
        }
    };
    tokio::time::timeout(heartbeat.lease / 2, arrived).await.unwrap();
}

/// The decision of a change after which these ranks are the members, all from the first step on.
fn decided(course: &Course, epoch: u32, ranks: &[u32]) {
    let decision = Decision { mask: ranks.iter().copied().collect(), epoch, step: u64::from(epoch) };
    course.settled(u64::from(epoch), Ok(decision), Mask::EMPTY, Standby::default());
}

/// A course of rank 0 of four in epoch 1, and what follows it.
fn course_of_four() -> (Arc<Course>, Arc<Silent>) {
    let (course, silent) = (Course::new(0, 0, Heartbeat::default()), Arc::new(Silent::default()));
    let follower: Arc<dyn Follower> = silent.clone();
    course.follow(Arc::downgrade(&follower));
    course.apply(&Decision { mask: Mask::all(4), epoch: 1, step: 1 }).unwrap();
    (course, silent)
}

#[test]
fn waits_for_lost_ranks_end_though_a_membership_with_them_is_beginning() {
    let (course, silent) = course_of_four();
    decided(&course, 2, &[0, 1, 2]);
    let revoked = |peers: &[u32]| Told::Revoke { peers: peers.iter().copied().collect() };
    assert!(silent.waits_for(|told| *told == revoked(&[3])));
    *silent.works_with.lock().unwrap() = [2].into_iter().collect();
    let second = course.pace().0.due().unwrap();
    std::thread::scope(|scope| {
        let begins = scope.spawn(|| course.apply(&second));
        assert!(silent.waits_for(|told| *told == Told::Begin { epoch: 2 }));
        decided(&course, 3, &[0, 1]);
        begins.join().unwrap().unwrap();
    });
    let [second, third] = [&[3][..], &[2, 3]].map(revoked);
    let told = silent.told.lock().unwrap();
    let again = revoked(&[2]); // as a member of the membership that has begun
    assert_eq!(told[2..], [second, Told::Begin { epoch: 2 }, third, Told::Begun { epoch: 2 }, again]);
}

#[test]
fn nobody_is_revoked_late_in_the_membership_after_the_next() {
    let (course, silent) = course_of_four();
    let former: Mask = [3].into_iter().collect();
    *silent.works_with.lock().unwrap() = former;
    std::thread::scope(|scope| {
        scope.spawn(|| course.apply(&Decision { mask: Mask::all(4), epoch: 3, step: 9 }).unwrap());
        assert!(silent.waits_for(|told| *told == Told::Begin { epoch: 3 }));
        course.revoke(&former, 2, Cause::LeftOut);
        assert!(silent.told.lock().unwrap().iter().all(|told| !matches!(told, Told::Revoke { .. })));
        silent.revoke(&former, Cause::Revoked).unwrap();
    });
}

/// Using nine tenths of the epochs takes years: only the library itself can get there in a test.
#[cfg(feature = "tracing")]
#[test]
fn each_change_of_the_last_tenth_of_all_epochs_says_how_many_are_left() {
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};

    use crate::rendezvous::machine::MAX_EPOCH;
    use crate::rendezvous::wire::Decision;

    #[derive(Clone, Default)]
    struct Events(Arc<Mutex<Vec<String>>>);
    struct Words<'a>(&'a mut String);

    impl Visit for Words<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            *self.0 += &format!(" {}={value:?}", field.name());
        }
    }
    impl tracing::Subscriber for Events {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut words = String::new();
            event.record(&mut Words(&mut words));
            self.0.lock().unwrap().push(words);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    let (course, events) = (Course::new(3, 0, Heartbeat::default()), Events::default());
    tracing::subscriber::with_default(events.clone(), || {
        for epoch in [MAX_EPOCH / 10 * 9, MAX_EPOCH - 7] {
            course.apply(&Decision { mask: Mask::all(4), epoch, step: 5 }).unwrap();
        }
    });
    let told = format!(" message=90 % of all epochs are used rank=3 epoch={} left=7", MAX_EPOCH - 7);
    assert_eq!(*events.0.lock().unwrap(), [told]);
}
