//! Gauges, counters and events of a member across a removal, an admission, and the end of the member that serves the
//! run. They come from threads of the library, so the observers here are process-wide.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use epwire::group::{Experts, GroupOptions, Progress, Reason, Role, Status};
use epwire::rendezvous::driver::Heartbeat;
use epwire::{EpBuffer, EpConfig, Group};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use tracing::span::{Attributes, Id, Record};

use super::Words;

const SECOND: Duration = Duration::from_secs(1);
const WORLD: u32 = 3;

/// Everything that was observed since the process began.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    events: Vec<String>,
    /// By name and labels: values of gauges, sums of counters, the number of a histogram's values.
    metrics: BTreeMap<String, f64>,
    described: Vec<String>,
}

impl Told {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        self.with(|state| state.metrics.get(&format!("{name}{labels}")).copied())
    }

    /// Waits until this gauge of rank 1 has this value.
    fn until(&self, gauge: &str, value: f64) {
        let began = Instant::now();
        while self.metric(gauge, " rank=1") != Some(value) {
            let metrics = self.with(|state| state.metrics.clone());
            assert!(began.elapsed() < 20 * SECOND, "{gauge} is not {value}: {metrics:?}");
            thread::sleep(SECOND / 500);
        }
    }

    /// The event of rank 1 with these words, if there is one.
    fn event(&self, words: &[&str]) -> Option<String> {
        let fits =
            |event: &&String| words.iter().all(|word| event.contains(word)) && event.contains(" rank=1");
        self.with(|state| state.events.iter().find(fits).cloned())
    }
}

impl tracing::Subscriber for Told {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("epwire")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = format!("{}", event.metadata().level());
        event.record(&mut Words(&mut words));
        self.with(|state| state.events.push(words));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Metric(Told, String);

impl Metric {
    fn change(&self, to: impl FnOnce(f64) -> f64) {
        self.0.with(|state| {
            let value = state.metrics.entry(self.1.clone()).or_default();
            *value = to(*value);
        });
    }
}

impl GaugeFn for Metric {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }
    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }
    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

impl CounterFn for Metric {
    fn increment(&self, by: u64) {
        self.change(|value| value + by as f64);
    }
    fn absolute(&self, _: u64) {}
}

impl HistogramFn for Metric {
    fn record(&self, seconds: f64) {
        assert!((0.0..10.0).contains(&seconds), "{seconds} s");
        self.change(|value| value + 1.0);
    }
}

impl Told {
    fn register(&self, key: &Key) -> Arc<Metric> {
        let mut name = key.name().to_owned();
        key.labels().for_each(|label| write!(name, " {}={}", label.key(), label.value()).unwrap());
        Arc::new(Metric(self.clone(), name))
    }

    fn describe(&self, kind: &str, name: &KeyName) {
        self.with(|state| state.described.push(format!("{kind} {}", name.as_str())));
    }
}

impl metrics::Recorder for Told {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("counter", &name);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("gauge", &name);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("histogram", &name);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.register(key))
    }
}

/// A member and its buffer, in which each rank has two experts.
struct Rank {
    group: Group,
    buffer: EpBuffer,
}

impl Rank {
    fn join(rank: u32, address: SocketAddr, hosts: bool) -> Group {
        let heartbeat = Heartbeat::default().interval(SECOND / 10).lease(SECOND).handshake(SECOND);
        let options = GroupOptions::new(rank, WORLD, address.to_string()).host_server(hosts);
        let options = options.heartbeat(heartbeat).join_deadline(10 * SECOND).deadline(10 * SECOND);
        Group::join_blocking(options).unwrap()
    }

    fn with_buffer(group: Group) -> Self {
        let config = EpConfig::new(1, 64, 2 * WORLD, 1).deadline(SECOND / 2).threads(1);
        let buffer = EpBuffer::create_blocking(&group, config).unwrap();
        Self { group, buffer }
    }

    fn steps_until(&self, members: &str) {
        let began = Instant::now();
        while self.group.active().mask.to_string() != members {
            assert!(
                began.elapsed() < 20 * SECOND,
                "rank {}: {:?}",
                self.group.rank(),
                self.group.membership()
            );
            self.group.step_blocking().unwrap();
            thread::sleep(SECOND / 500);
        }
    }
}

fn all<T: Send>(ranks: &[Rank], operation: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| operation(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The progress of a change until this epoch begins.
fn until_in_effect(epoch: u32, mut next: impl FnMut() -> Progress) -> Vec<Progress> {
    let mut seen = Vec::new();
    loop {
        seen.push(next());
        if matches!(&seen[seen.len() - 1], Progress::InEffect { change, .. } if change.epoch == epoch) {
            return seen;
        }
    }
}

#[test]
fn a_member_tells_who_comes_and_goes_and_who_serves_the_run() {
    let told = Told::default();
    metrics::set_global_recorder(told.clone()).unwrap();
    tracing::subscriber::set_global_default(told.clone()).unwrap();

    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let joining: Vec<_> = (0..WORLD)
        .map(|rank| thread::spawn(move || Rank::with_buffer(Rank::join(rank, address, rank == 0))))
        .collect();
    let mut ranks: Vec<Rank> = joining.into_iter().map(|rank| rank.join().unwrap()).collect();
    let metrics = [
        "counter epwire_changes_total",
        "gauge epwire_active_ranks",
        "gauge epwire_epoch",
        "gauge epwire_given_up_ranks",
        "gauge epwire_leader",
        "gauge epwire_server_reachable",
        "gauge epwire_standby_ranks",
        "gauge epwire_suspect_ranks",
        "histogram epwire_change_seconds",
    ];
    for metric in metrics {
        assert!(told.with(|state| state.described.iter().any(|of| of == metric)), "{metric}");
    }
    for (gauge, value) in [
        ("epwire_epoch", 1.0),
        ("epwire_active_ranks", 3.0),
        ("epwire_standby_ranks", 0.0),
        ("epwire_suspect_ranks", 0.0),
        ("epwire_given_up_ranks", 0.0),
        ("epwire_leader", 0.0),
        ("epwire_server_reachable", 1.0),
    ] {
        told.until(gauge, value);
    }
    assert_eq!(ranks[1].group.leader(), Some(0));
    assert_eq!(ranks[1].group.health().status, Status::Serving);

    // One peer is given up, by this rank alone.
    let (two, of_rank_2) = ([2].into_iter().collect(), vec![4u32..6; 1]);
    ranks[1].buffer.revoke(&two).unwrap();
    let unreached = || Reason::Experts { buffer: 0, experts: of_rank_2.clone() };
    assert_eq!(ranks[1].group.health().reasons, [Reason::Lost { ranks: two }, unreached()]);
    ranks[1].group.step_blocking().unwrap();
    told.until("epwire_given_up_ranks", 1.0);

    // And leaves.
    let mut changes = ranks[1].group.changes();
    drop(ranks.pop());
    all(&ranks, |rank| rank.steps_until("0-1"));
    let seen = until_in_effect(2, || changes.blocking_recv().unwrap());
    told.until("epwire_epoch", 2.0);
    told.until("epwire_active_ranks", 2.0);
    told.until("epwire_given_up_ranks", 0.0);
    assert_eq!(told.metric("epwire_changes_total", " kind=left rank=1"), Some(1.0));
    assert_eq!(told.metric("epwire_change_seconds", " kind=left rank=1"), Some(1.0));
    for event in [
        ["DEBUG message=change proposed", "change="],
        ["INFO message=change due", "epoch=2"],
        ["INFO message=change in effect", "members=0-1 entered=none left=2"],
        ["WARN message=experts out of reach", "buffer=0 experts=4-5"],
    ] {
        assert!(told.event(&event).is_some(), "{event:?}: {:?}", told.with(|state| state.events.clone()));
    }
    let [.., Progress::Proposed { .. }, Progress::Due { .. }, Progress::InEffect { experts, .. }] = &seen[..]
    else {
        panic!("{seen:?}")
    };
    let [Experts { lost, regained, unheld, .. }] = &experts[..] else { panic!("{experts:?}") };
    assert_eq!([lost, regained, unheld], [&of_rank_2, &vec![], &of_rank_2]);
    let health = ranks[1].group.health();
    assert_eq!(health.status, Status::Degraded);
    assert_eq!(health.reasons, [Reason::Missing { ranks: two }, unreached()]);

    // Another rank takes its place.
    let newcomer = Rank::join(2, address, false);
    told.until("epwire_standby_ranks", 1.0);
    assert_eq!((newcomer.membership().role, newcomer.health().status), (Role::Standby, Status::Out));
    ranks.push(Rank::with_buffer(newcomer));
    all(&ranks, |rank| rank.steps_until("0-2"));
    let seen = until_in_effect(3, || changes.blocking_recv().unwrap());
    told.until("epwire_epoch", 3.0);
    told.until("epwire_standby_ranks", 0.0);
    assert_eq!(told.metric("epwire_changes_total", " kind=entered rank=1"), Some(1.0));
    let [.., Progress::Proposed { .. }, Progress::Due { .. }, Progress::InEffect { experts, .. }] = &seen[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!((&experts[0].regained, experts[0].unheld.len()), (&of_rank_2, 0));
    assert!(told.event(&["INFO message=experts in reach again", "buffer=0 experts=4-5"]).is_some());
    assert_eq!(all(&ranks, |rank| rank.group.health().status), [Status::Serving; 3]);
    assert_eq!(ranks[1].buffer.reachable_experts().unwrap(), [true; 6]);

    // The member that serves the run ends, and another one takes over.
    let began = Instant::now();
    while ranks.iter().any(|rank| rank.group.servers().len() < 3) {
        assert!(began.elapsed() < 20 * SECOND);
        thread::sleep(SECOND / 100);
    }
    drop(ranks.remove(0));
    all(&ranks, |rank| rank.steps_until("1-2"));
    told.until("epwire_server_reachable", 1.0);
    let leader = ranks[0].group.leader().unwrap();
    assert!([1, 2].contains(&leader), "{leader}");
    told.until("epwire_leader", f64::from(leader));
    for event in [
        ["WARN message=lost the rendezvous server", "is_final=false"],
        ["INFO message=reached the rendezvous server again", &format!("leader={leader}")],
        ["INFO message=another server serves the run", &format!("leader={leader}")],
    ] {
        assert!(told.event(&event).is_some(), "{event:?}: {:?}", told.with(|state| state.events.clone()));
    }
    let leads = format!("INFO message=this member's server leads the run rank={leader} ");
    assert!(told.with(|state| state.events.iter().any(|event| event.starts_with(&leads))), "{leads}");
    assert_eq!(ranks[0].group.membership().outage, None);

    // The last but one leaves, and is no longer a member.
    let left = ranks.pop().unwrap().group;
    left.leave_blocking().unwrap();
    assert_eq!(left.health().reasons, [Reason::Left]);
    assert_eq!(told.metric("epwire_server_reachable", " rank=2"), Some(0.0));
}
