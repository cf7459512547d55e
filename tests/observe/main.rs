//! Spans and metrics are those that the crate's documentation lists, with their fields and labels: for operations that
//! are complete, degraded, refused, and given up in flight, and for a membership that changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

#[cfg(feature = "succession")]
mod membership;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Write};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use epwire::comm::{CommConfig, Reduction};
use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput, Routing,
};
use epwire::{
    Combine, CombineOutput, Comm, Dispatch, DispatchBuffers, EpBuffer, EpConfig, HostBuffer, Layout, Mask,
    Payload, TensorMut, TensorRef, Traffic,
};
use half::bf16;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

const HIDDEN: usize = 64;

/// What was observed, as text: `span operation=.. rank=..` when one closes, `event LEVEL message ..` in its span.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: HashMap<u64, String>,
    entered: Vec<u64>,
    lines: Vec<String>,
    /// Events of the core's log, in any span.
    core: Vec<String>,
    /// By name and labels: sums of counters, the number of a histogram's values.
    metrics: BTreeMap<String, u64>,
    /// Of the values of all histograms.
    seconds: f64,
    /// `kind name unit: text`
    described: Vec<String>,
}

impl Seen {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    /// Runs `f` on this thread under both observers; returns the lines and metrics that it caused.
    fn during(f: impl FnOnce()) -> (Vec<String>, BTreeMap<String, u64>) {
        let (lines, mut metrics, _) = Self::during_all(f);
        metrics.retain(|name, _| !TRAFFIC.iter().any(|traffic| name.starts_with(traffic)));
        (lines, metrics)
    }

    /// The same with the metrics of traffic, and with the core's log.
    fn during_all(f: impl FnOnce()) -> (Vec<String>, BTreeMap<String, u64>, Vec<String>) {
        let seen = Self::default();
        metrics::with_local_recorder(&seen, || tracing::subscriber::with_default(seen.clone(), f));
        seen.with(|state| {
            assert!(state.open.is_empty(), "spans left open: {:?}", state.open);
            let State { lines, metrics, core, .. } = std::mem::take(state);
            (lines, metrics, core)
        })
    }
}

/// Metrics of traffic.
const TRAFFIC: [&str; 3] = ["epwire_rows_", "epwire_bytes_", "epwire_waited_"];

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl tracing::Subscriber for Seen {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("epwire")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut words = format!("span {} {}", span.metadata().level(), span.metadata().name());
        span.record(&mut Words(&mut words));
        self.with(|state| {
            let id = state.open.len() as u64 + 1;
            assert!(state.open.insert(id, words).is_none());
            Id::from_u64(id)
        })
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.with(|state| values.record(&mut Words(state.open.get_mut(&span.into_u64()).unwrap())));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.with(|state| {
            let mut words = format!("event {}", event.metadata().level());
            event.record(&mut Words(&mut words));
            if event.metadata().target() == "epwire::core" {
                state.core.push(words);
                return;
            }
            let span = state.entered.last().expect("an event outside of a span");
            assert!(state.open.contains_key(span));
            state.lines.push(words);
        });
    }

    fn enter(&self, span: &Id) {
        self.with(|state| state.entered.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        self.with(|state| assert_eq!(state.entered.pop(), Some(span.into_u64())));
    }

    fn try_close(&self, span: Id) -> bool {
        self.with(|state| {
            let words = state.open.remove(&span.into_u64()).expect("a span that is open");
            state.lines.push(words);
        });
        true
    }
}

struct Metric(Seen, String);

impl Metric {
    fn add(&self, value: u64) {
        self.0.with(|state| *state.metrics.entry(self.1.clone()).or_default() += value);
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.add(value);
    }
    fn absolute(&self, _: u64) {
        panic!("no counter is set");
    }
}

impl HistogramFn for Metric {
    fn record(&self, seconds: f64) {
        assert!((0.0..60.0).contains(&seconds), "{seconds} s");
        self.0.with(|state| state.seconds += seconds);
        self.add(1);
    }
}

impl Seen {
    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels: String =
            key.labels().map(|label| format!(" {}={}", label.key(), label.value())).collect();
        Arc::new(Metric(self.clone(), format!("{}{labels}", key.name())))
    }

    fn describe(&self, kind: &str, name: &KeyName, unit: Option<Unit>, text: &str) {
        let unit = unit.map_or("none", |unit| unit.as_str());
        self.with(|state| state.described.push(format!("{kind} {} {unit}: {text}", name.as_str())));
    }
}

impl metrics::Recorder for Seen {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("counter", &name, unit, &text);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("{} is not documented", name.as_str())
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("histogram", &name, unit, &text);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        panic!("{key} is not documented")
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

/// Two ranks with one expert each, connected and active.
fn pair(deadline: Duration) -> [EpBuffer; 2] {
    let config = EpConfig::new(1, HIDDEN as u32, 2, 2).deadline(deadline).threads(1);
    let buffers = [0, 1].map(|rank| EpBuffer::unconnected(rank, 2, config.clone()).unwrap());
    let [a, b] = &buffers;
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    buffers.iter().for_each(|buffer| buffer.set_active(&Mask::all(2), 1, 0).unwrap());
    buffers
}

const PATIENT: Duration = Duration::from_secs(20);

/// One token for both experts.
struct Token {
    x: [bf16; HIDDEN],
    ids: [i32; 2],
}

const TOKEN: Token = Token { x: [bf16::ONE; HIDDEN], ids: [0, 1] };

impl Token {
    fn input(&self) -> Dispatch<'_> {
        Dispatch::new(TensorRef::new(&self.x, HIDDEN), TensorRef::new(&self.ids, 2))
            .weights(TensorRef::new(&[0.5f32; 2], 2))
    }
}

fn memory(buffer: &EpBuffer) -> DispatchBuffers {
    buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap()
}

/// Both operations, whole or split.
fn exchange(buffer: &EpBuffer, split: bool) {
    let mut received = memory(buffer);
    let expert_out = vec![bf16::ONE; buffer.plan().rows * HIDDEN];
    let combine = Combine::new(TensorRef::new(&expert_out, HIDDEN));
    let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
    let out = CombineOutput::new(TensorMut::new(&mut out));
    let outcome = if split {
        let dispatching = buffer.dispatch_send_blocking(TOKEN.input()).unwrap();
        let dispatched = dispatching.receive_blocking(received.output()).unwrap();
        dispatched.combine_send(combine).unwrap().receive_blocking(out).unwrap()
    } else {
        let dispatched = buffer.dispatch_blocking(TOKEN.input(), received.output()).unwrap();
        dispatched.combine_blocking(combine, out).unwrap()
    };
    assert!(outcome.is_complete());
}

fn metrics_of(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn each_operation_has_its_span_and_metrics() {
    for split in [false, true] {
        let operations: &[&str] = match split {
            false => &["dispatch", "combine"],
            true => &["dispatch_send", "dispatch_receive", "combine_send", "combine_receive"],
        };
        let [a, b] = pair(PATIENT);
        let peer = thread::spawn(move || exchange(&a, split));
        let (lines, metrics) = Seen::during(|| exchange(&b, split));
        peer.join().unwrap();
        let spans = operations.iter().map(|name| format!("span DEBUG epwire operation=\"{name}\" rank=1"));
        assert_eq!(lines, spans.collect::<Vec<_>>());
        let of = |metric: &str| -> Vec<_> {
            operations.iter().map(|name| format!("{metric} operation={name} rank=1")).collect()
        };
        let expected = [of("epwire_operations_total"), of("epwire_operation_seconds")].concat();
        assert_eq!(metrics, expected.into_iter().map(|name| (name, 1)).collect());
    }
}

#[test]
fn creating_a_buffer_describes_every_metric() {
    let seen = Seen::default();
    let [a, _b] = metrics::with_local_recorder(&seen, || pair(PATIENT));
    drop(a);
    let mut described = seen.with(|state| std::mem::take(&mut state.described));
    assert_eq!(described.len(), 2 * 11, "each buffer describes its metrics: {described:?}");
    described.sort();
    described.dedup();
    let beginnings = [
        "counter epwire_abandoned_total count: ",
        "counter epwire_bytes_received_total bytes: ",
        "counter epwire_bytes_sent_total bytes: ",
        "counter epwire_degraded_total count: ",
        "counter epwire_errors_total count: ",
        "counter epwire_operations_total count: ",
        "counter epwire_rows_answered_total count: ",
        "counter epwire_rows_received_total count: ",
        "counter epwire_rows_sent_total count: ",
        "counter epwire_waited_nanoseconds_total nanoseconds: ",
        "histogram epwire_operation_seconds seconds: ",
    ];
    assert_eq!(described.len(), beginnings.len(), "{described:?}");
    for (described, beginning) in described.iter().zip(beginnings) {
        assert!(described.starts_with(beginning) && described.len() > beginning.len(), "{described}");
    }
}

/// The metrics of traffic are what [`Traffic`] says. Rank 1's bytes go to itself and to a thread.
fn same_traffic(metrics: &BTreeMap<String, u64>, kind: &str, traffic: &Traffic) {
    let of = |name: &str, label: &str| {
        metrics.get(&format!("epwire_{name}_total rank=1 kind={kind}{label}")).copied().unwrap_or_default()
    };
    assert_eq!(of("rows_sent", ""), traffic.rows_sent, "{metrics:?}");
    assert_eq!(of("rows_received", ""), traffic.rows_received, "{metrics:?}");
    assert_eq!(of("rows_answered", ""), traffic.rows_answered, "{metrics:?}");
    for (peer, path) in [(1, " path=self"), (0, " path=thread")] {
        assert_eq!(of("bytes_sent", path), traffic.peers[peer].bytes_sent, "{metrics:?}");
        assert_eq!(of("bytes_received", path), traffic.peers[peer].bytes_received, "{metrics:?}");
    }
    let waited = of("waited_nanoseconds", " peer=0");
    assert_eq!(u128::from(waited), traffic.peers[0].waited.as_nanos());
}

/// A token goes to both ranks, which answer it.
#[test]
fn what_is_moved_is_counted() {
    let [a, b] = pair(PATIENT);
    let peer = thread::spawn(move || exchange(&a, false));
    let (_, metrics, _) = Seen::during_all(|| exchange(&b, false));
    peer.join().unwrap();
    let row = 2 * HIDDEN as u64;
    let traffic = b.traffic().unwrap();
    assert_eq!(traffic.operations, 2);
    assert_eq!((traffic.rows_sent, traffic.rows_received, traffic.rows_answered), (2, 2, 2), "{traffic:?}");
    assert_eq!((traffic.bytes_sent, traffic.bytes_received), (4 * row, 4 * row), "{traffic:?}");
    same_traffic(&metrics, "buffer", &traffic);
}

/// The same by prefill.
fn exchange_many(buffer: &PrefillBuffer) {
    let mut rows = HostBuffer::<bf16>::zeroed(4 * HIDDEN);
    let output =
        PrefillOutput::new(PrefillLayout::Packed { alignment: 1 }, 4).rows(TensorMut::new(&mut rows));
    let (mut routing, outcome) = buffer.dispatch_blocking(TOKEN.input(), output).unwrap();
    assert!(outcome.is_complete());
    let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
    let (input, to) = (
        PrefillCombine::new(TensorRef::new(&rows, HIDDEN)),
        PrefillCombineOutput::new(TensorMut::new(&mut out)),
    );
    assert!(buffer.combine_blocking(&mut routing, input, to).unwrap().is_complete());
}

/// Two ranks with one expert each, connected and active.
fn prefill_pair() -> [PrefillBuffer; 2] {
    let config = EpConfig::new(1, HIDDEN as u32, 2, 2).deadline(PATIENT).threads(1);
    let [a, b] =
        [0, 1].map(|rank| PrefillBuffer::unconnected(rank, 2, PrefillConfig::new(config.clone())).unwrap());
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    [&a, &b].iter().for_each(|buffer| buffer.set_active(&Mask::all(2), 1, 0).unwrap());
    [a, b]
}

#[test]
fn what_prefill_moves_is_counted() {
    let [a, b] = prefill_pair();
    let peer = thread::spawn(move || exchange_many(&a));
    let (_, metrics, _) = Seen::during_all(|| exchange_many(&b));
    peer.join().unwrap();
    let row = 2 * HIDDEN as u64;
    let traffic = b.traffic().unwrap();
    assert_eq!(traffic.operations, 2);
    assert_eq!((traffic.rows_sent, traffic.rows_received, traffic.rows_answered), (2, 2, 2), "{traffic:?}");
    assert_eq!((traffic.bytes_sent, traffic.bytes_received), (4 * row, 4 * row), "{traffic:?}");
    same_traffic(&metrics, "prefill", &traffic);
}

#[test]
fn what_a_communicator_moves_is_counted() {
    let config = CommConfig::default().deadline(PATIENT);
    let [a, b] = [0, 1].map(|rank| Comm::unconnected(rank, 2, config.clone()).unwrap());
    a.connect_blocking(1, &b.export(0).unwrap()).unwrap();
    b.connect_blocking(0, &a.export(1).unwrap()).unwrap();
    [&a, &b].iter().for_each(|comm| comm.set_active(&Mask::all(2), 1, 0).unwrap());
    let calls = |comm: &Comm| {
        let (own, mut all) = ([comm.rank(); 5], [9; 10]);
        assert!(comm.all_gather_blocking(&own, &mut all).unwrap().is_complete());
        let (outcome, _) = comm.all_gather(vec![1u8; 3], vec![0u8; 6]).wait();
        assert!(outcome.unwrap().is_complete());
    };
    let peer = thread::spawn(move || calls(&a));
    let (_, metrics, _) = Seen::during_all(|| calls(&b));
    peer.join().unwrap();
    let traffic = b.traffic().unwrap();
    assert_eq!(traffic.operations, 2);
    for peer in &traffic.peers {
        assert_eq!((peer.bytes_sent, peer.bytes_received), (23, 23), "{traffic:?}");
    }
    same_traffic(&metrics, "comm", &traffic);
}

#[test]
fn a_degraded_operation_says_who_is_missing() {
    // The creator decides which records of the core become events: as many as the subscriber wants.
    let (a, b) =
        tracing::subscriber::with_default(Seen::default(), || pair(Duration::from_millis(50)).into());
    let (lines, mut metrics, core) = Seen::during_all(|| {
        let dispatched = a.dispatch_blocking(TOKEN.input(), memory(&a).output()).unwrap();
        assert!(!dispatched.outcome().is_complete());
    });
    // The loss has been reported, so the next operations do not warn of it.
    let (later, _) = Seen::during(|| {
        drop(a.dispatch_blocking(TOKEN.input(), memory(&a).output()).unwrap());
    });
    assert!(later[0].starts_with("event DEBUG message=degraded record="), "{later:?}");
    drop(b);
    assert!(
        core.iter().any(|line| line.starts_with("event WARN message=given up: it was silent for a deadline")
            && line.ends_with(" rank=0 peer=1 subsystem=\"wait\"")),
        "{core:?}"
    );
    let waited = metrics.remove("epwire_waited_nanoseconds_total rank=0 kind=buffer peer=1").unwrap();
    assert!(waited >= 50_000_000, "{waited} ns");
    metrics.retain(|name, _| !TRAFFIC.iter().any(|traffic| name.starts_with(traffic)));
    let [event, span] = lines.try_into().unwrap();
    assert!(event.starts_with("event WARN message=degraded record="), "{event}");
    assert!(event.contains("gave up on peer 1 (dispatch-receive, timeout)"), "{event}");
    assert!(span.starts_with("span DEBUG epwire operation=\"dispatch\" rank=0 missing="), "{span}");
    assert!(span.ends_with("{1}"), "{span}");
    let expected = [
        ("epwire_operations_total operation=dispatch rank=0", 1),
        ("epwire_operation_seconds operation=dispatch rank=0", 1),
        ("epwire_degraded_total operation=dispatch rank=0", 1),
    ];
    assert_eq!(metrics, metrics_of(&expected));
}

#[test]
fn a_refused_operation_says_why() {
    let [a, _b] = pair(PATIENT);
    let (lines, metrics) = Seen::during(|| {
        let token = Token { ids: [0, 7], ..TOKEN };
        a.dispatch_send_blocking(token.input()).unwrap_err();
    });
    let [event, span] = lines.try_into().unwrap();
    assert!(
        event.starts_with("event WARN message=refused error=dispatch: rank 0: topk_idx[0][1] is 7"),
        "{event}"
    );
    assert_eq!(span, "span DEBUG epwire operation=\"dispatch_send\" rank=0");
    assert_eq!(metrics, metrics_of(&[("epwire_errors_total operation=dispatch_send rank=0", 1)]));
}

/// Whether the work that it returned is awaited or not.
#[test]
fn a_refused_collective_says_why() {
    let comm = Comm::unconnected(0, 1, CommConfig::default()).unwrap();
    comm.set_active(&Mask::all(1), 1, 0).unwrap();
    for awaited in [false, true] {
        let (lines, metrics) = Seen::during(|| {
            let work = comm.all_reduce(vec![1f32; 2], vec![0f32; 3], Reduction::Sum);
            match awaited {
                false => drop(work),
                true => drop(work.wait().0.unwrap_err()),
            }
        });
        let [event, span] = lines.try_into().unwrap();
        assert!(
            event.starts_with("event WARN message=refused error=all_reduce: rank 0: send has 2"),
            "{event}"
        );
        assert_eq!(span, "span DEBUG epwire operation=\"all_reduce\" rank=0");
        assert_eq!(metrics, metrics_of(&[("epwire_errors_total operation=all_reduce rank=0", 1)]));
    }
}

/// A token and an answer of the wrong width, which no call hands to the core.
#[test]
fn refused_operations_of_prefill_say_why() {
    let [a, _b] = prefill_pair();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let narrow = [bf16::ONE; HIDDEN - 1];
    let input = || Dispatch::new(TensorRef::new(&narrow, HIDDEN - 1), TensorRef::new(&TOKEN.ids, 2));
    let answers = || PrefillCombine::new(TensorRef::new(&narrow, HIDDEN - 1));
    let layout = PrefillLayout::Packed { alignment: 1 };
    let (mut rows, mut out) = (HostBuffer::<bf16>::zeroed(4 * HIDDEN), HostBuffer::<bf16>::zeroed(HIDDEN));
    let mut routing = Routing::new(&a).unwrap();
    for awaited in [false, true] {
        let (lines, metrics) = Seen::during(|| {
            let output = PrefillOutput::new(layout, 4).rows(TensorMut::new(&mut rows));
            match awaited {
                false => drop(a.dispatch_blocking(input(), output).unwrap_err()),
                true => drop(runtime.block_on(a.dispatch(input(), output)).unwrap_err()),
            }
            match awaited {
                false => drop(a.dispatch_send_blocking(input()).unwrap_err()),
                true => drop(runtime.block_on(a.dispatch_send(input())).unwrap_err()),
            }
            let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
            match awaited {
                false => drop(a.combine_blocking(&mut routing, answers(), to).unwrap_err()),
                true => drop(runtime.block_on(a.combine(&mut routing, answers(), to)).unwrap_err()),
            }
            match awaited {
                false => drop(a.combine_send_blocking(&mut routing, answers()).unwrap_err()),
                true => drop(runtime.block_on(a.combine_send(&mut routing, answers())).unwrap_err()),
            }
        });
        let operations = ["dispatch", "dispatch_send", "combine", "combine_send"];
        let count = |name: &&str| (format!("epwire_errors_total operation={name} rank=0"), 1);
        assert_eq!(metrics, operations.iter().map(count).collect(), "awaited: {awaited}");
        let events = lines.iter().filter(|line| line.starts_with("event WARN message=refused error="));
        assert_eq!((events.count(), lines.len()), (4, 8), "{lines:?}");
    }
}

/// The only rank of a group, with one expert.
fn prefill_alone(tokens: usize, hidden: usize) -> PrefillBuffer {
    let config = EpConfig::new(tokens as u32, hidden as u32, 1, 1).threads(1);
    let buffer = PrefillBuffer::unconnected(0, 1, PrefillConfig::new(config)).unwrap();
    buffer.set_active(&Mask::all(1), 1, 0).unwrap();
    buffer
}

/// Outputs that are too small.
#[test]
fn refused_receiving_halves_of_prefill_say_why() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let a = prefill_alone(1, HIDDEN);
    let (x, layout) = ([bf16::ONE; HIDDEN], PrefillLayout::Packed { alignment: 1 });
    let input = || {
        Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&[0], 1)).weights(TensorRef::new(&[1.0], 1))
    };
    let (mut rows, mut small) = (HostBuffer::<bf16>::zeroed(HIDDEN), HostBuffer::<bf16>::zeroed(HIDDEN - 1));
    for awaited in [false, true] {
        let dispatching = a.dispatch_send_blocking(input()).unwrap();
        let output = PrefillOutput::new(layout, 1).rows(TensorMut::new(&mut small));
        let dispatch = Seen::during(|| match awaited {
            false => drop(dispatching.receive_blocking(output).unwrap_err()),
            true => drop(runtime.block_on(dispatching.receive(output)).unwrap_err()),
        });
        let output = PrefillOutput::new(layout, 1).rows(TensorMut::new(&mut rows));
        let (mut routing, _) = a.dispatch_blocking(input(), output).unwrap();
        let answers = PrefillCombine::new(TensorRef::new(&x, HIDDEN));
        let combining = a.combine_send_blocking(&mut routing, answers).unwrap();
        let to = PrefillCombineOutput::new(TensorMut::new(&mut small));
        let combine = Seen::during(|| match awaited {
            false => drop(combining.receive_blocking(to).unwrap_err()),
            true => drop(runtime.block_on(combining.receive(to)).unwrap_err()),
        });
        for ((lines, metrics), name) in [(dispatch, "dispatch_receive"), (combine, "combine_receive")] {
            let counted = format!("epwire_errors_total operation={name} rank=0");
            assert_eq!(metrics, metrics_of(&[(&counted, 1)]), "awaited: {awaited}");
            assert!(lines[0].starts_with("event WARN message=refused error="), "{lines:?}");
        }
    }
}

/// The first poll of a rank alone moves all rows, and no time passes after it.
#[test]
fn an_awaited_dispatch_of_prefill_is_timed_from_its_call() {
    const TOKENS: usize = 2048;
    const WIDE: usize = 4096;
    let buffer = prefill_alone(TOKENS, WIDE);
    let (x, ids) = (vec![bf16::ONE; TOKENS * WIDE], vec![0; TOKENS]);
    let mut rows = HostBuffer::<bf16>::zeroed(TOKENS * WIDE);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // A thread may be stopped between the two clocks, but not each time.
    let shares = [(); 5].map(|()| {
        let seen = Seen::default();
        let output = PrefillOutput::new(PrefillLayout::Packed { alignment: 1 }, TOKENS)
            .rows(TensorMut::new(&mut rows));
        let input = Dispatch::new(TensorRef::new(&x, WIDE), TensorRef::new(&ids, 1));
        let began = Instant::now();
        metrics::with_local_recorder(&seen, || {
            drop(runtime.block_on(buffer.dispatch(input, output)).unwrap())
        });
        seen.with(|state| state.seconds) / began.elapsed().as_secs_f64()
    });
    assert!(shares.iter().any(|share| *share > 0.5), "seconds recorded of those passed: {shares:?}");
}

#[test]
fn a_future_dropped_in_flight_ends_its_span() {
    let [a, _b] = pair(PATIENT);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (lines, metrics) = Seen::during(|| {
        let mut received = memory(&a);
        runtime.block_on(async {
            let mut flight = pin!(a.dispatch(TOKEN.input(), received.output()));
            let waits = poll_fn(|cx| Poll::Ready(flight.as_mut().poll(cx).is_pending())).await;
            assert!(waits, "the dispatch did not wait for its peer");
        });
    });
    assert_eq!(lines, ["event DEBUG message=abandoned", "span DEBUG epwire operation=\"dispatch\" rank=0"]);
    assert_eq!(metrics, metrics_of(&[("epwire_abandoned_total operation=dispatch rank=0", 1)]));
}
