//! Wakers that panic: the panic belongs to the executor that made them, and the threads of this crate survive.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use epwire::Group;

use crate::{PATIENT, Token, combine, exchange, pair, runtime};

/// How often one of the wakers below has panicked.
type Panics = Arc<AtomicU32>;

fn explode(panics: &Panics) {
    /// A panic payload that panics itself when it is dropped.
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("the payload of a panic, dropped");
        }
    }
    panics.fetch_add(1, Ordering::Relaxed);
    panic_any(Payload);
}

/// Panics when it wakes.
struct AtWake(Panics);

impl Wake for AtWake {
    fn wake(self: Arc<Self>) {
        explode(&self.0);
    }
}

/// Panics when the last of its wakers is dropped, which waking does.
struct AtDrop(Panics);

impl Wake for AtDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for AtDrop {
    fn drop(&mut self) {
        // In a thread that already panics it would abort the process, and hide the failure of the test.
        if !thread::panicking() {
            explode(&self.0);
        }
    }
}

/// Panics when it is cloned.
fn at_clone() -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(|_| panic!("a clone"), |_| {}, |_| {}, |_| {});
    // SAFETY: the functions of the table read no data, and may be called on any thread.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) }
}

/// Polls once with this waker; nobody has come yet.
fn poll(future: Pin<&mut impl Future>, waker: Waker) {
    assert!(matches!(future.poll(&mut Context::from_waker(&waker)), Poll::Pending));
}

/// Returns when the waker has panicked on a thread of the crate.
fn await_panic(panics: &Panics) {
    let began = Instant::now();
    while panics.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < PATIENT, "the task was never woken");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A dispatch that was polled once with this waker continues for the next task that polls it, and so does its buffer.
fn goes_on_after(waker: Waker, panics: &Panics) {
    let [a, b] = pair(PATIENT);
    let mut token = Token::new(&a, 1.0);
    let (input, output) = token.dispatch(0);
    let mut flight = Box::pin(a.dispatch(input, output));
    poll(flight.as_mut(), waker);
    await_panic(panics);
    let peer = thread::spawn(move || {
        exchange(&b, 0, 1.0);
        exchange(&b, 1, 2.0);
    });
    let dispatched = runtime().block_on(async { tokio::time::timeout(PATIENT / 4, flight).await });
    let dispatched = dispatched.expect("woken").unwrap();
    assert!(combine(dispatched, &mut token).is_complete());
    exchange(&a, 1, 2.0);
    peer.join().unwrap();
}

#[test]
fn a_waker_that_panics_when_it_wakes() {
    let panics = Panics::default();
    goes_on_after(Waker::from(Arc::new(AtWake(panics.clone()))), &panics);
}

#[test]
fn a_waker_that_panics_when_it_is_dropped() {
    let panics = Panics::default();
    goes_on_after(Waker::from(Arc::new(AtDrop(panics.clone()))), &panics);
}

#[test]
fn a_waker_that_panics_when_it_is_cloned() {
    let [a, b] = pair(PATIENT);
    let mut token = Token::new(&a, 1.0);
    let (input, _) = token.dispatch(0);
    let dispatching = a.dispatch_send_blocking(input).unwrap();
    let mut event = dispatching.event();
    let polled = catch_unwind(AssertUnwindSafe(|| poll(Pin::new(&mut event), at_clone())));
    assert!(polled.is_err(), "the waker's panic must reach the task that polls");
    let peer = thread::spawn(move || exchange(&b, 0, 1.0));
    runtime().block_on(async { tokio::time::timeout(PATIENT / 4, event).await }).expect("woken");
    let dispatched = dispatching.receive_blocking(token.received.output()).unwrap();
    assert!(combine(dispatched, &mut token).is_complete());
    peer.join().unwrap();
}

#[test]
fn a_group_outlives_wakers_that_panic() {
    let mut groups = Group::threads(3).unwrap();
    let panics = Panics::default();
    // A task that only follows the membership.
    let mut news = groups[0].watch();
    let mut changed = Box::pin(news.changed());
    poll(changed.as_mut(), Waker::from(Arc::new(AtWake(panics.clone()))));
    drop(groups.pop());
    await_panic(&panics);
    assert!(runtime().block_on(changed).is_ok());
    let goes_on = |group: Group| {
        move || loop {
            if let Some(change) = group.step_blocking().unwrap().change {
                return change;
            }
        }
    };
    let survivors = groups.iter().cloned().map(|group| thread::spawn(goes_on(group)));
    survivors
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|survivor| assert_eq!(survivor.join().unwrap().epoch, 2));

    // A task that waits for the answer to a call.
    panics.store(0, Ordering::Relaxed);
    let mut flight = Box::pin(groups[0].barrier("met"));
    poll(flight.as_mut(), Waker::from(Arc::new(AtWake(panics.clone()))));
    groups[1].barrier_blocking("met").unwrap();
    await_panic(&panics);
    assert_eq!(runtime().block_on(flight), Ok(()));

    // Nobody was lost meanwhile.
    let waiting = groups[0].clone();
    let waiting = thread::spawn(move || waiting.barrier_blocking("after"));
    assert_eq!(groups[1].barrier_blocking("after"), Ok(()));
    assert_eq!(waiting.join().unwrap(), Ok(()));
}
