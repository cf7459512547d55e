//! What may happen to handles and futures: they are dropped at any point, forgotten, moved between threads, or outlive
//! their buffer. Their lane is given back (or stays held, if they were forgotten); the other lane and the peers
//! continue.

// Failing is what a test is for.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod events;
mod fenced;
mod suspects;
mod wakers;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use epwire::{
    Cause, Combine, CombineOutput, Combining, Dispatch, DispatchBuffers, DispatchOutput, Dispatched,
    Dispatching, EpBuffer, EpConfig, Error, Event, HostBuffer, Layout, Mask, Outcome, Payload, TensorMut,
    TensorRef,
};
use half::bf16;

const HIDDEN: usize = 64;
const IDS: [i32; 2] = [0, 1];
const WEIGHTS: [f32; 2] = [0.5, 0.5];

fn unconnected(rank: u32, deadline: Duration) -> EpBuffer {
    let config = EpConfig::new(4, HIDDEN as u32, 2, 2).deadline(deadline).threads(1);
    EpBuffer::unconnected(rank, 2, config).unwrap()
}

/// Two ranks with one expert each, connected and active.
fn pair(deadline: Duration) -> [EpBuffer; 2] {
    let buffers = [0, 1].map(|rank| unconnected(rank, deadline));
    let [a, b] = &buffers;
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    buffers.iter().for_each(|buffer| buffer.set_active(&Mask::all(2), 1, 0).unwrap());
    buffers
}

const PATIENT: Duration = Duration::from_secs(20);

/// One token for both experts, and memory for the results.
struct Token {
    x: Vec<bf16>,
    received: DispatchBuffers,
    out: HostBuffer<bf16>,
}

impl Token {
    fn new(buffer: &EpBuffer, value: f32) -> Self {
        Self {
            x: vec![bf16::from_f32(value); HIDDEN],
            received: buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap(),
            out: HostBuffer::zeroed(HIDDEN),
        }
    }

    fn dispatch(&mut self, lane: u32) -> (Dispatch<'_>, DispatchOutput<'_>) {
        let input = Dispatch::new(TensorRef::new(&self.x, HIDDEN), TensorRef::new(&IDS, 2));
        (input.weights(TensorRef::new(&WEIGHTS, 2)).lane(lane), self.received.output())
    }

    /// The output of the expert, which returns its input, for the received rows.
    fn expert_out(&self) -> Vec<bf16> {
        self.received.rows.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect()
    }
}

/// A whole exchange of one token on `lane`; the result must be the input.
fn exchange(buffer: &EpBuffer, lane: u32, value: f32) {
    let mut token = Token::new(buffer, value);
    let (input, output) = token.dispatch(lane);
    let dispatched = buffer.dispatch_blocking(input, output).unwrap();
    assert!(dispatched.outcome().is_complete(), "{:?}", dispatched.outcome());
    let outcome = combine(dispatched, &mut token);
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(token.out[..], token.x[..]);
}

fn combine(dispatched: Dispatched, token: &mut Token) -> Outcome {
    let expert_out = token.expert_out();
    let output = CombineOutput::new(TensorMut::new(&mut token.out));
    dispatched.combine_blocking(Combine::new(TensorRef::new(&expert_out, HIDDEN)), output).unwrap()
}

/// Polls once; the future must wait for a peer.
async fn start<F: Future>(mut future: std::pin::Pin<&mut F>) {
    let waits = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "the future did not wait for its peer");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn what_may_move_between_threads_does() {
    fn send_sync<T: Send + Sync>() {}
    fn send<T: Send>(_: &T) {}
    send_sync::<EpBuffer>();
    send_sync::<EpConfig>();
    send_sync::<Dispatching>();
    send_sync::<Dispatched>();
    send_sync::<Combining>();
    send_sync::<Event>();
    send_sync::<Dispatch<'_>>();
    send_sync::<Combine<'_>>();
    send_sync::<TensorRef<'_>>();
    send_sync::<HostBuffer<bf16>>();
    send_sync::<DispatchBuffers>();
    send_sync::<Outcome>();
    send_sync::<Error>();
    let [buffer, _peer] = pair(PATIENT);
    let mut token = Token::new(&buffer, 1.0);
    let (input, output) = token.dispatch(0);
    send(&output);
    // A server spawns these on any executor.
    send(&buffer.dispatch(input.clone(), output));
    send(&buffer.dispatch_send(input));
}

#[test]
fn memory_that_is_not_there_is_an_error_that_names_the_output() {
    // A window of 2 GiB is planned, not allocated; its expert-major rows would take a pebibyte.
    let config = EpConfig::new(65_536, 8192, 1 << 20, 1).lanes(1);
    let buffers =
        |sideband| DispatchBuffers::new(&config, 1, Payload::SameAsInput, Layout::ExpertMajor, sideband);
    let error = buffers(0).unwrap_err();
    assert!(
        matches!(&error, Error::NoMemory(f) if f.text.starts_with("no memory for rows of 1125899906842624"))
    );
    let error = buffers(u32::MAX).unwrap_err();
    assert!(
        matches!(&error, Error::Limit(f) if f.text.starts_with("sideband_bytes is 4294967295")),
        "{error}"
    );
}

#[test]
fn a_forgotten_handle_holds_its_lane_and_nothing_else() {
    let ranks = pair(PATIENT).map(|buffer| {
        thread::spawn(move || {
            let mut token = Token::new(&buffer, 1.0);
            let (input, _) = token.dispatch(0);
            std::mem::forget(buffer.dispatch_send_blocking(input).unwrap());
            drop(token);
            for value in [2.0, 3.0, 4.0] {
                exchange(&buffer, 1, value);
            }
            let mut token = Token::new(&buffer, 5.0);
            let (input, output) = token.dispatch(0);
            let error = buffer.dispatch_blocking(input, output).unwrap_err();
            assert!(matches!(error, Error::State(_)), "{error}");
            // Both lanes forgotten, in another state, and the buffer dropped with the handles alive.
            let (input, output) = token.dispatch(1);
            std::mem::forget(buffer.dispatch_blocking(input, output).unwrap());
        })
    });
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn a_forgotten_future_touches_nothing_any_more() {
    let [a, b] = pair(PATIENT);
    let mut token = Token::new(&a, 1.0);
    let (input, output) = token.dispatch(0);
    let mut flight = Box::pin(a.dispatch(input, output));
    runtime().block_on(start(flight.as_mut()));
    std::mem::forget(flight);
    // Its borrows have ended with it: the memory is the caller's again, and nothing changes it.
    token.received.rows.fill(0x5a);
    token.x.fill(bf16::NAN);
    let peer = thread::spawn(move || {
        let mut token = Token::new(&b, 1.0);
        let (input, _) = token.dispatch(0);
        let dispatching = b.dispatch_send_blocking(input).unwrap();
        exchange(&b, 1, 2.0);
        drop(dispatching);
    });
    exchange(&a, 1, 2.0);
    peer.join().unwrap();
    assert!(token.received.rows.iter().all(|byte| *byte == 0x5a));
}

#[test]
fn dropping_a_future_gives_its_lane_back() {
    let [a, b] = pair(PATIENT);
    // Rank 0 gives up every dispatch before rank 1 has even begun; then rank 1 finds a peer that answers nothing.
    let impatient = thread::spawn(move || {
        for round in 0..20 {
            let mut token = Token::new(&a, 1.0);
            let (input, output) = token.dispatch(round % 2);
            runtime().block_on(async {
                tokio::select! {
                    biased;
                    ended = a.dispatch(input, output) => drop(ended.unwrap()),
                    () = tokio::time::sleep(Duration::from_millis(1)) => {}
                }
            });
        }
        exchange(&a, 0, 2.0);
        exchange(&a, 1, 3.0);
    });
    thread::sleep(Duration::from_millis(100));
    for round in 0..20 {
        let mut token = Token::new(&b, 1.0);
        let (input, output) = token.dispatch(round % 2);
        let dispatched = b.dispatch_blocking(input, output).unwrap();
        assert!(dispatched.outcome().is_complete());
        let outcome = combine(dispatched, &mut token);
        assert_eq!(outcome.missing, [0].into_iter().collect());
        assert_eq!(outcome.record.unwrap().cause, Cause::Partial);
        assert_eq!(token.out[0], bf16::from_f32(0.5), "the token has more than its own expert's half");
    }
    exchange(&b, 0, 2.0);
    exchange(&b, 1, 3.0);
    impatient.join().unwrap();
}

#[test]
fn every_kind_of_future_may_be_dropped_in_flight() {
    let [a, b] = pair(PATIENT);
    runtime().block_on(async {
        // Receiving half of a dispatch: the peer has not sent.
        let mut token = Token::new(&a, 1.0);
        let (input, output) = token.dispatch(0);
        let dispatching = a.dispatch_send(input).await.unwrap();
        start(pin!(dispatching.receive(output))).await;

        // Sending half: the peer has not answered the previous operation, so there is no permission.
        let (input, _) = token.dispatch(0);
        start(pin!(a.dispatch_send(input))).await;

        // The peer catches up with both, and finds no answers.
        for _ in 0..2 {
            let mut token = Token::new(&b, 1.0);
            let (input, output) = token.dispatch(0);
            let dispatched = b.dispatch(input, output).await.unwrap();
            assert!(!combine(dispatched, &mut token).is_complete());
        }

        // Combine, whole and receiving half: the peer has dispatched but not answered.
        for split in [false, true] {
            let (mut ours, mut theirs) = (Token::new(&a, 1.0), Token::new(&b, 1.0));
            let (input, output) = theirs.dispatch(0);
            let peer = b.dispatch_send(input).await.unwrap();
            let (input, our_output) = ours.dispatch(0);
            let dispatched = a.dispatch(input, our_output).await.unwrap();
            let expert_out = ours.expert_out();
            let input = Combine::new(TensorRef::new(&expert_out, HIDDEN));
            let out = CombineOutput::new(TensorMut::new(&mut ours.out));
            if split {
                let combining = dispatched.combine_send(input).unwrap();
                start(pin!(combining.receive(out))).await;
            } else {
                start(pin!(dispatched.combine(input, out))).await;
            }
            // The answers had been sent before: the peer lacks nothing.
            let dispatched = peer.receive(output).await.unwrap();
            assert!(combine(dispatched, &mut theirs).is_complete());
            assert_eq!(theirs.out[..], theirs.x[..]);
        }
    });
    let peer = thread::spawn(move || exchange(&b, 0, 2.0));
    exchange(&a, 0, 2.0);
    peer.join().unwrap();
}

#[test]
fn waiting_for_a_late_peer_does_not_block_the_executor() {
    const LATE: Duration = Duration::from_secs(1);
    let [a, b] = pair(PATIENT);
    let began = Instant::now();
    let peer = thread::spawn(move || {
        thread::sleep(LATE);
        exchange(&b, 0, 1.0);
    });
    runtime().block_on(async {
        let mut ticks = 0;
        let clock = async {
            loop {
                tokio::time::sleep(Duration::from_millis(2)).await;
                ticks += 1;
            }
        };
        let mut token = Token::new(&a, 1.0);
        let flight = async {
            let (input, output) = token.dispatch(0);
            a.dispatch(input, output).await.unwrap()
        };
        let dispatched = tokio::select! {
            dispatched = flight => dispatched,
            () = clock => unreachable!("a clock never ends"),
        };
        assert!(began.elapsed() >= LATE, "the peer was late");
        // 500 on an idle machine; one if the thread were blocked.
        assert!(ticks >= 15, "{ticks} ticks");
        assert!(combine(dispatched, &mut token).is_complete());
    });
    peer.join().unwrap();
}

#[test]
fn a_handle_keeps_its_buffer_alive_and_moves_between_threads() {
    let [a, b] = pair(PATIENT);
    let peer = thread::spawn(move || exchange(&b, 0, 1.0));
    let mut token = Token::new(&a, 1.0);
    let (input, _) = token.dispatch(0);
    let dispatching = a.dispatch_send_blocking(input).unwrap();
    drop(a);
    let dispatched = thread::scope(|scope| {
        let output = token.received.output();
        scope.spawn(move || dispatching.receive_blocking(output).unwrap()).join().unwrap()
    });
    let outcome = thread::scope(|scope| scope.spawn(|| combine(dispatched, &mut token)).join().unwrap());
    assert!(outcome.is_complete());
    assert_eq!(token.out[..], token.x[..]);
    peer.join().unwrap();
}

#[test]
fn an_event_outlives_its_handle() {
    let [a, b] = pair(PATIENT);
    let mut token = Token::new(&a, 1.0);
    let (input, _) = token.dispatch(0);
    let dispatching = a.dispatch_send_blocking(input).unwrap();
    let event = dispatching.event();
    assert!(!event.is_ready(), "the future did not wait for its peer");
    let waiting = thread::spawn({
        let event = event.clone();
        move || event.wait_blocking()
    });
    drop(dispatching);
    assert!(event.is_ready(), "the event of a dropped half must be ready");
    waiting.join().unwrap();
    runtime().block_on(event);
    drop(b);
}

#[test]
fn clones_of_an_event_wake_every_task() {
    let [a, b] = pair(PATIENT);
    let mut token = Token::new(&a, 1.0);
    let (input, _) = token.dispatch(0);
    let dispatching = a.dispatch_send_blocking(input).unwrap();
    let peer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        exchange(&b, 0, 1.0);
    });
    runtime().block_on(async {
        for task in [(); 3].map(|()| tokio::spawn(dispatching.event())) {
            tokio::time::timeout(PATIENT / 4, task).await.expect("woken").unwrap();
        }
    });
    let dispatched = dispatching.receive_blocking(token.received.output()).unwrap();
    assert!(combine(dispatched, &mut token).is_complete());
    peer.join().unwrap();
}

#[test]
fn an_event_waits_as_long_as_its_operation_may() {
    const SHORT: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(1);
    let [a, b] = pair(SHORT);
    let peer = thread::spawn(move || {
        let mut token = Token::new(&b, 1.0);
        thread::sleep(LATE);
        let (input, output) = token.dispatch(0);
        let dispatched = b.dispatch_blocking(input.deadline(PATIENT), output).unwrap();
        thread::sleep(LATE);
        let expert_out = token.expert_out();
        let input = Combine::new(TensorRef::new(&expert_out, HIDDEN)).deadline(PATIENT);
        dispatched.combine_blocking(input, CombineOutput::new(TensorMut::new(&mut token.out))).unwrap()
    });

    let mut token = Token::new(&a, 1.0);
    let (input, _) = token.dispatch(0);
    let dispatching = a.dispatch_send_blocking(input.deadline(PATIENT)).unwrap();
    let began = Instant::now();
    runtime().block_on(dispatching.event());
    assert!(began.elapsed() > 2 * SHORT, "ready after {:?}", began.elapsed());
    let dispatched = dispatching.receive_blocking(token.received.output()).unwrap();
    assert!(dispatched.outcome().is_complete(), "{:?}", dispatched.outcome());

    let expert_out = token.expert_out();
    let input = Combine::new(TensorRef::new(&expert_out, HIDDEN)).deadline(PATIENT);
    let combining = dispatched.combine_send(input).unwrap();
    let began = Instant::now();
    combining.event().wait_blocking();
    assert!(began.elapsed() > 2 * SHORT, "ready after {:?}", began.elapsed());
    let outcome = combining.receive_blocking(CombineOutput::new(TensorMut::new(&mut token.out))).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(token.out[..], token.x[..]);
    assert!(peer.join().unwrap().is_complete());
}

#[test]
fn without_a_thread_to_spare_nothing_is_begun() {
    const INSIDE: &str = "EPWIRE_TEST_WITHOUT_THREADS";
    if std::env::var_os(INSIDE).is_none() {
        // No address space has room for such a stack, so that process cannot start a thread.
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "without_a_thread_to_spare_nothing_is_begun"])
            .envs([(INSIDE, "1"), ("RUST_MIN_STACK", "1000000000000000")])
            .status();
        assert!(status.unwrap().success());
        return;
    }
    fn refused<T>(ended: Result<T, Error>) {
        let Err(error) = ended else { panic!("the call succeeded without a thread") };
        assert!(matches!(error, Error::System(_)) && error.to_string().contains("thread"), "{error}");
    }
    let [a, b] = pair(PATIENT);
    let [mut ours, mut theirs] = [Token::new(&a, 1.0), Token::new(&b, 1.0)];
    runtime().block_on(async {
        refused(b.connect(0, &a.export(1).unwrap()).await);
        let (input, output) = ours.dispatch(0);
        refused(a.dispatch_send(input.clone()).await);
        refused(a.dispatch(input, output).await);

        // No lane was taken and no operation counted: this is the first one on both.
        let (input, _) = ours.dispatch(0);
        let dispatching = a.dispatch_send_blocking(input).unwrap();
        let (input, output) = theirs.dispatch(0);
        let dispatched = b.dispatch_blocking(input, output).unwrap();
        assert!(dispatched.outcome().is_complete(), "{:?}", dispatched.outcome());

        // What would have been consumed is returned.
        let refusal = dispatching.receive(ours.received.output()).await.unwrap_err();
        assert!(matches!(refusal.error, Error::System(_)), "{}", refusal.error);
        let received = refusal.handle.receive_blocking(ours.received.output()).unwrap();
        assert!(received.outcome().is_complete(), "{:?}", received.outcome());
    });
}
