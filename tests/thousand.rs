//! The largest run, over real sockets: 1,024 members in this process join one server, and one of them is lost.
//!
//! The bounds are generous, since one machine plays all parts; the times are printed. Ignored, with the reason, if a
//! process may not open this many files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epwire::group::{Change, GroupOptions};
use epwire::internals::wire::{Frame, HEADER_BYTES, MAX_BODY_BYTES, body_length, decode};
use epwire::rendezvous::driver::{Server, ServerOptions};
use epwire::{Group, Mask};
use libtest_mimic::{Arguments, Trial};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const MEMBERS: u32 = 1024;
/// For each member: both ends of its connection, and what its thread waits with, plus some to spare.
const FILES: u64 = 8 * MEMBERS as u64;
const JOIN: Duration = Duration::from_secs(20);
const CHANGE: Duration = Duration::from_secs(20);
/// Between two steps of a member, because all of them share the cores.
const PAUSE: Duration = Duration::from_millis(100);

fn main() {
    let files = raise_file_limit();
    if files < FILES {
        eprintln!("thousand: ignored: {files} open files are allowed, {FILES} are needed (ulimit -Hn)");
    }
    let test = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(a_thousand_members_join_and_lose_one());
        Ok(())
    };
    let trial = Trial::test("a_thousand_members_join_and_lose_one", test).with_ignored_flag(files < FILES);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

/// The number of files that this process may open, after raising the limit as far as possible.
fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on a struct that lives.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        }
    }
    limit.rlim_cur
}

async fn a_thousand_members_join_and_lose_one() {
    let options = ServerOptions::new("run", MEMBERS).join_deadline(6 * JOIN);
    let server = Server::bind("127.0.0.1:0", options).await.unwrap();
    let counted = Arc::new(Counted::default());
    // One member's messages are counted on the way; all members have the same number.
    let relay = counted.clone().relay(server.local_addr()).await;

    let (began, cores) = (Instant::now(), Cores::now());
    let mut joining = JoinSet::new();
    for rank in 0..MEMBERS {
        let address = if rank == 0 { relay } else { server.local_addr() };
        let options =
            GroupOptions::new(rank, MEMBERS, address.to_string()).run_id("run").join_deadline(6 * JOIN);
        joining.spawn(async move { (rank, Group::join(options).await.unwrap()) });
    }
    let mut groups: BTreeMap<u32, Group> = joining.join_all().await.into_iter().collect();
    let joined = began.elapsed();
    let to_join = counted.take();
    let bound = cores.stretched(JOIN);
    assert!(joined < bound, "{MEMBERS} members took {joined:?} to join, more than {bound:?}");
    assert!(groups.values().all(|group| group.active().mask == Mask::all(MEMBERS)));

    let lost = MEMBERS / 2;
    let gone = groups.remove(&lost).unwrap();
    let mut serving: JoinSet<_> = groups.into_values().map(serve).collect();
    tokio::time::sleep(2 * PAUSE).await;
    counted.take();
    let (began, cores) = (Instant::now(), Cores::now());
    drop(gone);
    let mut changes = Vec::new();
    while let Some(change) = serving.join_next().await {
        changes.push(change.unwrap());
    }
    let changed = changes.iter().map(|(.., at)| *at - began).max().unwrap();
    let to_change = counted.take();
    let bound = cores.stretched(CHANGE);
    assert!(changed < bound, "a change took {changed:?}, more than {bound:?}");
    let (step, change, _) = changes[0];
    assert_eq!((change.epoch, change.members), (2, Mask::all(MEMBERS).without(lost)));
    assert!(
        changes.iter().all(|other| (other.0, other.1) == (step, change)),
        "members change at different steps"
    );
    println!(
        "{MEMBERS} members joined in {joined:.2?}, with {to_join} each; \
         all continued without one after {changed:.2?}, with {to_change} each"
    );
}

/// The work of the machine's cores and of this process so far, in clock ticks.
struct Cores {
    all: f64,
    idle: f64,
    own: f64,
}

impl Cores {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let ticks: Vec<f64> =
            stat.lines().next().unwrap().split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
        // User, nice, system, idle, iowait, irq, softirq, steal; the following fields are part of the first two.
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let own: Vec<f64> = own
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|n| n.parse().unwrap())
            .collect();
        Self { all: ticks[..8].iter().sum(), idle: ticks[3] + ticks[4], own: own.iter().sum() }
    }

    /// The bound for an otherwise idle machine, extended by the share of the cores that other programs have used since
    /// then.
    fn stretched(&self, bound: Duration) -> Duration {
        let now = Self::now();
        let left = (now.own - self.own + now.idle - self.idle) / (now.all - self.all);
        bound.div_f64(left.clamp(0.05, 1.0))
    }
}

/// Runs steps until the membership changes: returns the step with which it changed, the change, and the time.
async fn serve(group: Group) -> (u64, Change, Instant) {
    loop {
        let step = group.step().await.unwrap();
        if let Some(change) = step.change {
            let at = Instant::now();
            // Runs on until all have changed, because its own end must not be a change.
            tokio::spawn(async move {
                tokio::time::sleep(CHANGE).await;
                drop(group);
            });
            return (step.number, change, at);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The messages of one member, by kind, except heartbeats.
#[derive(Default)]
struct Counted(Mutex<BTreeMap<&'static str, u32>>);

impl Counted {
    /// Relays a member's connection to the server at this address.
    async fn relay(self: Arc<Self>, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (member, _) = listener.accept().await.unwrap();
                let (from_member, to_member) = member.into_split();
                let (from_server, to_server) = TcpStream::connect(server).await.unwrap().into_split();
                let counted = self.clone();
                tokio::spawn(async move {
                    tokio::join!(counted.pass(from_member, to_server), counted.pass(from_server, to_member));
                });
            }
        });
        address
    }

    async fn pass(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut header = [0; HEADER_BYTES];
        while from.read_exact(&mut header).await.is_ok() {
            let mut bytes = header.to_vec();
            bytes.resize(HEADER_BYTES + body_length(&header, MAX_BODY_BYTES).unwrap(), 0);
            if from.read_exact(&mut bytes[HEADER_BYTES..]).await.is_err()
                || to.write_all(&bytes).await.is_err()
            {
                return; // one end has closed the connection
            }
            let kind = match decode(&bytes).unwrap() {
                Frame::Ping { .. } | Frame::Pong {} => continue,
                Frame::Hello { .. } | Frame::Challenge { .. } | Frame::Proof { .. } => "handshake",
                Frame::Open { .. } | Frame::Opened { .. } => "opening",
                Frame::Call { .. } | Frame::Answer { .. } => "call and answer",
                Frame::Changed { .. } => "view",
                Frame::Ask { .. } | Frame::Notice { .. } => "question and answer",
                Frame::Settled { .. } => "outcome",
                Frame::Refused { .. } => "refusal",
                other => panic!("{other:?}"),
            };
            *self.0.lock().unwrap().entry(kind).or_default() += 1;
        }
    }

    fn take(&self) -> String {
        let kinds = std::mem::take(&mut *self.0.lock().unwrap());
        let all: u32 = kinds.values().sum();
        format!("{all} messages ({kinds:?})")
    }
}
