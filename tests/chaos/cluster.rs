//! The ranks of one case as child processes, and what a test can do to them. Every wait here is bounded, and dropping a
//! cluster kills and reaps all of its processes, stopped or not.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::noise::deadline;
use crate::traffic::{LOCAL_EXPERTS, Traffic, mix};
use crate::wire::{Command, End, Place, Point, Ran, Reply, Run, Setup, Trap};
use crate::worker;

pub(crate) const RANKS: u32 = 4;

/// A reply that takes longer means that something hangs.
const WATCHDOG: Duration = Duration::from_secs(20);

pub(crate) struct Worker {
    child: Child,
    commands: ChildStdin,
    replies: Receiver<Reply>,
    rank: u32,
}

impl Worker {
    fn spawn(rank: u32) -> Self {
        let mut child = Program::new(std::env::current_exe().expect("this program has a path"))
            .env(worker::VARIABLE, deadline().as_millis().to_string())
            // Ranks of collectives then read memory of others' callers, whatever is faster here; over queues they cannot.
            .env(epwire::env::PULL_FROM, "16384")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let commands = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let reply =
                    serde_json::from_str(&line).unwrap_or_else(|_| Reply::Wrong(format!("it said {line:?}")));
                if sender.send(reply).is_err() {
                    return;
                }
            }
        });
        Self { child, commands, replies, rank }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &Command) {
        let line = serde_json::to_string(command).expect("commands are plain data");
        let sent = writeln!(self.commands, "{line}").and_then(|()| self.commands.flush());
        sent.unwrap_or_else(|error| panic!("rank {} takes no commands: {error}", self.rank));
    }

    /// The next reply of any kind except `Wrong`.
    pub(crate) fn hear(&self) -> Reply {
        match self.replies.recv_timeout(WATCHDOG) {
            Ok(Reply::Wrong(text)) => panic!("rank {}: {text}", self.rank),
            Ok(reply) => reply,
            Err(error) => panic!("rank {} hangs or died: no reply within {WATCHDOG:?} ({error})", self.rank),
        }
    }

    pub(crate) fn done(&self) {
        let reply = self.hear();
        assert!(matches!(reply, Reply::Done { .. }), "rank {}: {reply:?}", self.rank);
    }

    pub(crate) fn held(&self) {
        let reply = self.hear();
        assert!(matches!(reply, Reply::Held), "rank {}: {reply:?}", self.rank);
    }

    pub(crate) fn ran(&self) -> Ran {
        match self.hear() {
            Reply::Ran(ran) => ran,
            other => panic!("rank {}: {other:?}", self.rank),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a plain system call on a child that has not been reaped.
        let sent = unsafe { libc::kill(self.pid() as libc::pid_t, signal) };
        assert_eq!(sent, 0, "signal {signal} to rank {}", self.rank);
    }

    /// Stops all threads of the process; returns when they have stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        self.stopped();
    }

    /// Waits until it has stopped by itself.
    pub(crate) fn stopped(&self) {
        let began = Instant::now();
        loop {
            // SAFETY: an all-zero siginfo_t is a value.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: `info` lives; WSTOPPED alone reaps nobody.
            let rc =
                unsafe { libc::waitid(libc::P_PID, self.pid(), &mut info, libc::WSTOPPED | libc::WNOHANG) };
            assert_eq!(rc, 0, "waiting for rank {} to stop", self.rank);
            // SAFETY: set by waitid, or still zero.
            if unsafe { info.si_pid() } != 0 {
                return;
            }
            assert!(began.elapsed() < WATCHDOG, "rank {} does not stop", self.rank);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub(crate) fn cont(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Waits until it has died by itself.
    pub(crate) fn died(&mut self) {
        let began = Instant::now();
        while self.child.try_wait().expect("it is a child").is_none() {
            assert!(began.elapsed() < WATCHDOG, "rank {} does not die", self.rank);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Kills it and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        // Only a bug can have ended it before, which a reaped status would hide.
        self.child.kill().unwrap_or_else(|error| panic!("killing rank {}: {error}", self.rank));
        self.child.wait().unwrap_or_else(|error| panic!("reaping rank {}: {error}", self.rank));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail if the worker was killed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The random choices of a case, in order, from its seed.
pub(crate) struct Choices {
    seed: u64,
    made: u64,
}

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, made: 0 }
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.made += 1;
        mix(&[self.seed, self.made]) % n
    }

    pub(crate) fn rank(&mut self) -> u32 {
        self.below(u64::from(RANKS)) as u32
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A place at some peer of `rank` at which to die or stop.
    pub(crate) fn trap(&mut self, rank: u32, step: u32, stop: bool) -> Trap {
        let place =
            [Place::Rows, Place::DispatchWord, Place::Answers, Place::CombineWord][self.below(4) as usize];
        let peer = all_but(rank)[self.below(u64::from(RANKS) - 1) as usize];
        Trap { step, peer, place, stop }
    }

    pub(crate) fn micros(&mut self, n: u64) -> Duration {
        Duration::from_micros(self.below(n))
    }

    pub(crate) fn millis(&mut self, n: u64) -> Duration {
        Duration::from_millis(self.below(n))
    }
}

/// The size of the rows of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    Small,
    /// Large enough that a signal can fall into the middle of writing them.
    Large,
}

/// The rings of prefill buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Rows wait for slots that peers give back.
    Short,
    /// It has a slot for each message of an operation, as halves need.
    HoldsAll,
}

pub(crate) struct Cluster {
    pub(crate) workers: Vec<Worker>,
    pub(crate) setup: Setup,
}

impl Cluster {
    /// Processes without buffers.
    pub(crate) fn spawn(seed: u64, choices: &mut Choices, rows: Rows) -> Self {
        Self::spawn_ranks(RANKS, seed, choices, rows)
    }

    fn spawn_ranks(ranks: u32, seed: u64, choices: &mut Choices, rows: Rows) -> Self {
        let (max_tokens, hidden) = if rows == Rows::Small { (6, 64) } else { (48, 4096) };
        let lanes = 1 + choices.below(2) as u32;
        // The core's own threads block signals, so for traps the caller itself must write its large rows.
        let threads = 1 + if rows == Rows::Small { choices.below(2) as u32 } else { 0 };
        let rank_major = choices.coin();
        let deadline_ms = deadline().as_millis() as u64;
        let setup = Setup {
            end: End::Buffer,
            seed,
            rank: 0,
            ranks,
            max_tokens,
            hidden,
            lanes,
            threads,
            rank_major,
            ring_tokens: 0,
            deadline_ms,
        };
        Self { workers: (0..ranks).map(Worker::spawn).collect(), setup }
    }

    /// With buffers that are not connected.
    pub(crate) fn created(seed: u64, choices: &mut Choices, rows: Rows) -> Self {
        let mut cluster = Self::spawn(seed, choices, rows);
        for rank in 0..RANKS {
            cluster.create(rank);
        }
        cluster
    }

    /// All connected and active in epoch 1.
    pub(crate) fn ready(seed: u64, choices: &mut Choices, rows: Rows) -> Self {
        let mut cluster = Self::created(seed, choices, rows);
        cluster.connect_all();
        cluster.set_active(&everyone(), 1);
        cluster
    }

    /// The same with communicators, of so many ranks.
    pub(crate) fn ready_comms(ranks: u32, seed: u64, choices: &mut Choices, rows: Rows) -> Self {
        let mut cluster = Self::spawn_ranks(ranks, seed, choices, rows);
        cluster.setup.end = End::Comm;
        for rank in cluster.everyone() {
            cluster.create(rank);
        }
        cluster.connect_all();
        cluster.set_active(&cluster.everyone(), 1);
        cluster
    }

    /// The same with prefill buffers, whose rings have so many slots.
    pub(crate) fn ready_prefill(seed: u64, choices: &mut Choices, rows: Rows, ring: Ring) -> Self {
        let mut cluster = Self::spawn(seed, choices, rows);
        cluster.setup.end = End::Prefill;
        cluster.setup.ring_tokens = match ring {
            Ring::Short => 1 + choices.below(4) as u32,
            Ring::HoldsAll => cluster.setup.max_tokens + 1,
        };
        for rank in 0..RANKS {
            cluster.create(rank);
        }
        cluster.connect_all();
        cluster.set_active(&everyone(), 1);
        cluster
    }

    /// The traffic of its ranks.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::new(self.setup.seed, RANKS, self.setup.max_tokens, self.setup.hidden)
    }

    pub(crate) fn setup_of(&self, rank: u32) -> Setup {
        Setup { rank, ..self.setup.clone() }
    }

    pub(crate) fn everyone(&self) -> Vec<u32> {
        (0..self.setup.ranks).collect()
    }

    pub(crate) fn all_but(&self, rank: u32) -> Vec<u32> {
        (0..self.setup.ranks).filter(|r| *r != rank).collect()
    }

    pub(crate) fn worker(&mut self, rank: u32) -> &mut Worker {
        &mut self.workers[rank as usize]
    }

    fn create(&mut self, rank: u32) {
        let setup = self.setup_of(rank);
        self.worker(rank).tell(&Command::Create(setup));
        self.worker(rank).done();
    }

    /// Starts another process for `rank`, beside the old one, which is returned.
    pub(crate) fn replace(&mut self, rank: u32) -> Worker {
        let old = self.replace_process(rank);
        self.create(rank);
        old
    }

    /// The same without a buffer.
    pub(crate) fn replace_process(&mut self, rank: u32) -> Worker {
        std::mem::replace(&mut self.workers[rank as usize], Worker::spawn(rank))
    }

    /// What `rank` exports, by peer.
    pub(crate) fn export(&mut self, rank: u32) -> Vec<Vec<u8>> {
        self.worker(rank).tell(&Command::Export);
        match self.worker(rank).hear() {
            Reply::Blobs(blobs) => blobs,
            other => panic!("rank {rank}: {other:?}"),
        }
    }

    /// Blobs of all ranks of `from` for rank `to`.
    pub(crate) fn blobs_for(&mut self, to: u32, from: &[u32]) -> Vec<(u32, Vec<u8>)> {
        from.iter()
            .filter(|peer| **peer != to)
            .map(|peer| (*peer, self.export(*peer).swap_remove(to as usize)))
            .collect()
    }

    /// Connects ranks that are all alive. If the machine is so busy that a peer's thread does not answer within the
    /// deadline, this prints that and retries once: nothing is tested here.
    pub(crate) fn connect(&mut self, rank: u32, to: &[u32]) {
        let blobs = self.blobs_for(rank, to);
        self.worker(rank).tell(&Command::Connect(blobs.clone()));
        match self.worker(rank).hear() {
            Reply::Done { .. } => {}
            Reply::Refused { kind, text, .. } if kind == "Timeout" => {
                eprintln!("chaos: trying again: {text}");
                self.worker(rank).tell(&Command::Connect(blobs));
                self.worker(rank).done();
            }
            other => panic!("rank {rank}: {other:?}"),
        }
    }

    pub(crate) fn connect_all(&mut self) {
        for rank in self.everyone() {
            self.connect(rank, &self.everyone());
        }
    }

    /// Begins an epoch on all its members.
    pub(crate) fn set_active(&mut self, ranks: &[u32], epoch: u32) {
        for rank in ranks {
            self.worker(*rank).tell(&Command::SetActive { ranks: ranks.to_vec(), epoch });
        }
        for rank in ranks {
            self.worker(*rank).done();
        }
    }

    pub(crate) fn tell_run(&mut self, ranks: &[u32], run: &Run) {
        for rank in ranks {
            self.worker(*rank).tell(&Command::Run(run.clone()));
        }
    }

    pub(crate) fn hear_ran(&mut self, ranks: &[u32]) -> Vec<(u32, Ran)> {
        ranks.iter().map(|rank| (*rank, self.worker(*rank).ran())).collect()
    }

    /// Runs steps on `ranks`, which must be complete and exact.
    pub(crate) fn run_exactly(&mut self, ranks: &[u32], epoch: u32, steps: u32) {
        self.tell_run(ranks, &Run::new(epoch, 1, steps));
        let reports = self.hear_ran(ranks);
        crate::verdict::complete(&reports, steps);
    }

    /// Continues with `ranks` only, as a server does after a failure: the next epoch must be exact from its first step.
    pub(crate) fn go_on(&mut self, ranks: &[u32], epoch: u32) {
        self.set_active(ranks, epoch);
        self.run_exactly(ranks, epoch, 4);
    }
}

impl Run {
    pub(crate) fn new(epoch: u32, first: u32, steps: u32) -> Self {
        Self { epoch, first, steps, split: false, hold: None, release: None, drops: false, trap: None }
    }

    pub(crate) fn hold(&self, step: u32, at: Point) -> Self {
        Self { hold: Some((step, at)), ..self.clone() }
    }
}

pub(crate) fn everyone() -> Vec<u32> {
    (0..RANKS).collect()
}

pub(crate) fn all_but(rank: u32) -> Vec<u32> {
    (0..RANKS).filter(|r| *r != rank).collect()
}

const _: () = assert!(RANKS * LOCAL_EXPERTS == 8, "three experts with a stride of two are distinct");
