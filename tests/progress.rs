//! The progress thread: there is one in a process, whatever is awaited; what it does for one operation delays no other,
//! and it ends with the last buffer or communicator that needed it.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use epwire::comm::CommConfig;
use epwire::prefill::{PrefillBuffer, PrefillConfig};
use epwire::{
    Combine, CombineOutput, Comm, Dispatch, EpBuffer, EpConfig, Group, HostBuffer, Layout, Mask, Outcome,
    Payload, TensorMut, TensorRef,
};
use half::bf16;

const PATIENT: Duration = Duration::from_secs(20);
/// Nothing here takes this long on any machine, unless it waits for something that does not come.
const SOON: Duration = Duration::from_secs(5);
const HIDDEN: usize = 64;
const IDS: [i32; 2] = [0, 1];
const WEIGHTS: [f32; 2] = [0.5, 0.5];

/// One test at a time: they count the process's threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    until("the thread of the test before has ended", || progress_threads() == 0);
    alone
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// By their names, as `ps -L` shows them.
fn progress_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "epwire-progress").count()
}

/// A communicator for each of two ranks.
fn comms(deadline: Duration) -> [Comm; 2] {
    let config = CommConfig::default().deadline(deadline);
    let ranks = [0, 1].map(|rank| Comm::unconnected(rank, 2, config.clone()).unwrap());
    let [a, b] = &ranks;
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    ranks.iter().for_each(|comm| comm.set_active(&Mask::all(2), 1, 0).unwrap());
    ranks
}

fn config() -> EpConfig {
    EpConfig::new(4, HIDDEN as u32, 2, 2).deadline(PATIENT).threads(1)
}

fn buffers() -> [EpBuffer; 2] {
    let ranks = [0, 1].map(|rank| EpBuffer::unconnected(rank, 2, config()).unwrap());
    let [a, b] = &ranks;
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    ranks.iter().for_each(|buffer| buffer.set_active(&Mask::all(2), 1, 0).unwrap());
    ranks
}

fn prefills() -> [PrefillBuffer; 2] {
    let config = PrefillConfig::new(config());
    let ranks = [0, 1].map(|rank| PrefillBuffer::unconnected(rank, 2, config.clone()).unwrap());
    let [a, b] = &ranks;
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    ranks.iter().for_each(|buffer| buffer.set_active(&Mask::all(2), 1, 0).unwrap());
    ranks
}

fn complete(outcome: &Outcome) {
    assert!(outcome.is_complete(), "{outcome:?}");
}

async fn barriers(comm: &Comm, rounds: u32) {
    for _ in 0..rounds {
        complete(&comm.barrier().await.0.unwrap());
    }
}

/// Tokens go to the experts, which return what they get.
async fn exchanges(buffer: &EpBuffer, lane: u32, rounds: u32) {
    let x = vec![bf16::from_f32(2.0); HIDDEN];
    let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
    for _ in 0..rounds {
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&IDS, 2));
        let input = input.weights(TensorRef::new(&WEIGHTS, 2)).lane(lane);
        let sent = buffer.dispatch_send(input).await.unwrap();
        sent.event().await;
        let dispatched = sent.receive(received.output()).await.unwrap();
        let rows: Vec<bf16> = received.rows_as::<bf16>().to_vec();
        let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
        let combine = Combine::new(TensorRef::new(&rows, HIDDEN));
        let to = CombineOutput::new(TensorMut::new(&mut out));
        complete(&dispatched.combine(combine, to).await.unwrap());
        assert_eq!(out[..], x[..]);
    }
}

async fn counts(buffer: &PrefillBuffer) {
    let x = vec![bf16::ONE; HIDDEN];
    let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&IDS, 2));
    let counted = buffer.dispatch_count(input.weights(TensorRef::new(&WEIGHTS, 2))).await.unwrap();
    drop(counted);
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Counts how often it wakes.
#[derive(Default)]
struct Counted(AtomicU32);

impl Counted {
    fn wakes(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls once: no peer has arrived yet.
fn begin(future: &mut (impl Future + Unpin), waker: &Waker) {
    assert!(Pin::new(future).poll(&mut Context::from_waker(waker)).is_pending());
}

/// Polls whenever it is woken, as an executor does, and lets nothing else wake it.
fn finish<T>(mut future: impl Future<Output = T> + Unpin, counted: &Arc<Counted>) -> T {
    let (waker, mut seen) = (Waker::from(counted.clone()), 0);
    loop {
        until("it is woken", || counted.wakes() > seen);
        seen = counted.wakes();
        if let Poll::Ready(ended) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return ended;
        }
    }
}

#[test]
fn one_thread_serves_all_that_a_process_awaits_and_ends_with_it() {
    const ROUNDS: u32 = 50;
    let _alone = alone();
    let comms = [comms(PATIENT), comms(PATIENT), comms(PATIENT)];
    let buffers = [buffers(), buffers()];
    let prefills = prefills();
    thread::scope(|scope| {
        for rank in 0..2 {
            let comms = &comms;
            scope.spawn(move || complete(&comms[0][rank].barrier_blocking().unwrap()));
        }
    });
    assert_eq!(progress_threads(), 0, "callers that wait by themselves need none");

    let (most, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (comms, buffers, prefills) = (&comms, &buffers, &prefills);
        let ranks = [0, 1].map(|rank| {
            scope.spawn(move || {
                block_on(async {
                    let collectives = async {
                        tokio::join!(
                            barriers(&comms[0][rank], ROUNDS),
                            barriers(&comms[1][rank], ROUNDS),
                            barriers(&comms[2][rank], ROUNDS)
                        )
                    };
                    let experts = async {
                        tokio::join!(
                            exchanges(&buffers[0][rank], 0, ROUNDS),
                            exchanges(&buffers[0][rank], 1, ROUNDS),
                            exchanges(&buffers[1][rank], 0, ROUNDS)
                        )
                    };
                    tokio::join!(collectives, experts, counts(&prefills[rank]))
                });
            })
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(progress_threads(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        until("it has its name", || progress_threads() == 1);
        done.store(true, Ordering::Relaxed);
    });
    assert!(most.into_inner() <= 1);
    drop((prefills, buffers));
    assert_eq!(progress_threads(), 1, "communicators still exist");
    drop(comms);
    until("it has ended", || progress_threads() == 0);
}

#[test]
fn what_is_dropped_while_it_is_awaited_is_not_looked_at_any_more() {
    const ROUNDS: u32 = 60;
    let _alone = alone();
    let [stays, peer] = comms(PATIENT);
    let counted = Arc::<Counted>::default();
    let mut staying = stays.barrier();
    begin(&mut staying, &Waker::from(counted.clone()));
    for round in 0..ROUNDS {
        let ([comm, other], [buffer, _other]) = (comms(PATIENT), buffers());
        let mut work = comm.barrier();
        begin(&mut work, Waker::noop());
        let x = vec![bf16::ONE; HIDDEN];
        let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&IDS, 2));
        let mut flight =
            Box::pin(buffer.dispatch(input.weights(TensorRef::new(&WEIGHTS, 2)), received.output()));
        begin(&mut flight, Waker::noop());
        // In all phases of the thread: while it yields, sleeps and wakes.
        thread::sleep(Duration::from_micros(u64::from(round) * 40));
        let began = Instant::now();
        drop((flight, work));
        drop((comm, buffer));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        drop(other);
    }
    // The thread continues for the one that stays.
    assert_eq!(progress_threads(), 1);
    let peer = thread::spawn(move || complete(&peer.barrier_blocking().unwrap()));
    complete(&finish(staying, &counted).0.unwrap());
    peer.join().unwrap();
    drop(stays);
}

/// Blocks when it is called, until the other end of the channel is gone.
struct Slow {
    begun: AtomicBool,
    ended: AtomicBool,
    gate: Mutex<Receiver<()>>,
}

impl Wake for Slow {
    fn wake(self: Arc<Self>) {
        self.begun.store(true, Ordering::SeqCst);
        let _ = self.gate.lock().unwrap().recv_timeout(SOON);
        self.ended.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_slow_waker_delays_others_and_blocks_nobody() {
    let _alone = alone();
    let ([slow, slow_peer], [quick, quick_peer], [dropped, _peer]) =
        (comms(PATIENT), comms(PATIENT), comms(PATIENT));
    let mut going = dropped.barrier();
    begin(&mut going, Waker::noop());
    let (open, gate) = channel();
    let waker = Arc::new(Slow { begun: false.into(), ended: false.into(), gate: Mutex::new(gate) });
    let mut work = slow.barrier();
    begin(&mut work, &Waker::from(waker.clone()));
    until("it wakes", || waker.begun.load(Ordering::SeqCst));
    // Meanwhile operations are begun, given up, and waited for by other threads.
    let counted = Arc::<Counted>::default();
    let mut other = quick.barrier();
    begin(&mut other, &Waker::from(counted.clone()));
    drop((going, dropped));
    let peers = thread::spawn(move || {
        complete(&quick_peer.barrier_blocking().unwrap());
        complete(&slow_peer.barrier_blocking().unwrap());
        (quick_peer, slow_peer)
    });
    let _peers = peers.join().unwrap();
    assert!(!waker.ended.load(Ordering::SeqCst), "something has waited for the waker");
    drop(open);
    complete(&finish(other, &counted).0.unwrap());
    complete(&work.wait().0.unwrap());
}

#[test]
fn a_peer_that_has_stopped_delays_only_what_waits_for_it() {
    const SHORT: Duration = Duration::from_millis(400);
    let _alone = alone();
    let ([waits, _stopped], [lives, peer]) = (comms(SHORT), comms(PATIENT));
    // Rank 0 says in each round whether there is another one.
    let round = async |comm: &Comm, more: bool| {
        let (outcome, more) = comm.broadcast(vec![u8::from(more)], 0).await;
        complete(&outcome.unwrap());
        more[0] == 1
    };
    thread::scope(|scope| {
        scope.spawn(|| block_on(async { while round(&peer, false).await {} }));
        block_on(async {
            let began = Instant::now();
            let mut losing = waits.barrier();
            let (mut rounds, mut slowest) = (0, Duration::ZERO);
            let lost = loop {
                let began = Instant::now();
                round(&lives, true).await;
                slowest = slowest.max(began.elapsed());
                rounds += 1;
                let poll = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut losing).poll(cx)));
                if let Poll::Ready((lost, ())) = poll.await {
                    break lost.unwrap();
                }
            };
            let took = began.elapsed();
            round(&lives, false).await;
            assert_eq!(lost.missing, [1].into_iter().collect::<Mask>());
            assert!(took >= SHORT && took < SOON, "lost after {took:?}");
            assert!(rounds > 20 && slowest < SOON / 5, "{rounds} rounds, of which one took {slowest:?}");
        });
    });
}

/// Drops a communicator when it wakes.
struct DropsLast(Mutex<Option<Comm>>);

impl Wake for DropsLast {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn a_waker_may_drop_the_last_communicator() {
    let _alone = alone();
    let [comm, peer] = comms(PATIENT);
    let mut work = comm.barrier();
    let waker = Arc::new(DropsLast(Mutex::new(None)));
    let mut to_drop = waker.0.lock().unwrap();
    begin(&mut work, &Waker::from(waker.clone()));
    *to_drop = Some(comm);
    drop((work, to_drop));
    until("the waker has dropped it", || waker.0.lock().unwrap().is_none());
    until("it has ended by itself", || progress_threads() == 0);
    drop(peer);
    // The next one that has to wait starts it again.
    let [comm, late] = comms(PATIENT);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            block_on(barriers(&late, 10));
        });
        block_on(barriers(&comm, 10));
    });
    until("it has its name", || progress_threads() == 1);
}

/// Awaits it again and again, each time for a moment, and counts that.
async fn impatiently<T>(mut future: impl Future<Output = T> + Unpin, again: &AtomicU32) -> T {
    loop {
        match tokio::time::timeout(Duration::from_millis(1), &mut future).await {
            Ok(ended) => return ended,
            Err(_) => again.fetch_add(1, Ordering::SeqCst),
        };
    }
}

#[test]
fn what_is_no_longer_awaited_can_be_awaited_again() {
    let _alone = alone();
    let ([comm, peer], [buffer, late]) = (comms(PATIENT), buffers());
    let again = Arc::<AtomicU32>::default();
    let peers = thread::spawn({
        let again = again.clone();
        move || {
            until("it is awaited again", || again.load(Ordering::SeqCst) > 10);
            complete(&peer.barrier_blocking().unwrap());
            block_on(exchanges(&late, 0, 1));
            (peer, late)
        }
    });
    block_on(async {
        let (outcome, ()) = impatiently(comm.barrier(), &again).await;
        complete(&outcome.unwrap());
        let x = vec![bf16::from_f32(2.0); HIDDEN];
        let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&IDS, 2));
        let sent = buffer.dispatch_send(input.weights(TensorRef::new(&WEIGHTS, 2)).lane(0)).await.unwrap();
        for _ in 0..10 {
            let _ = tokio::time::timeout(Duration::from_micros(200), sent.event()).await;
        }
        impatiently(sent.event(), &again).await;
        let dispatched = sent.receive(received.output()).await.unwrap();
        let rows: Vec<bf16> = received.rows_as::<bf16>().to_vec();
        let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
        let to = CombineOutput::new(TensorMut::new(&mut out));
        complete(&dispatched.combine(Combine::new(TensorRef::new(&rows, HIDDEN)), to).await.unwrap());
        assert_eq!(out[..], x[..]);
    });
    drop(peers.join().unwrap());
    drop((comm, buffer));
    until("it has ended", || progress_threads() == 0);
}

#[test]
fn ranks_of_a_group_share_it() {
    let _alone = alone();
    thread::scope(|scope| {
        for group in Group::threads(3).unwrap() {
            scope.spawn(move || {
                let comm = Comm::create_blocking(&group, CommConfig::default().deadline(PATIENT)).unwrap();
                block_on(barriers(&comm, 30));
                until("it has its name", || progress_threads() == 1);
                group.barrier_blocking("end").unwrap();
            });
        }
    });
    until("it has ended", || progress_threads() == 0);
}
