//! Creating a buffer, and connecting it to its peers.

use std::sync::{Arc, Weak};

use super::ep_buffer::{EpBuffer, Inner};
use crate::config::{EpConfig, Path};
use crate::error::Result;
use crate::ffi::Floor;
use crate::group::Group;
use crate::peers::{self, End, Setting, present};
use crate::spawn_blocking::spawn_blocking;

impl EpBuffer {
    /// Creates the buffer of every member of `group` and connects them. All members call this with equal configurations
    /// (`threads`, `paths`, `sms` and the ordinal of the device may differ), equally often and in the same order. If a
    /// field differs, the error names it. A member on standby creates its buffers by itself, in the same order: members
    /// connect them while they continue to work, and the [`Group::step`] that admits it begins its membership.
    ///
    /// Never blocks the executor. Ends within the group's deadline for each of the three steps that the members take
    /// together, and [`EpConfig::deadline`] for connecting to all of them. Dropping the future gives the buffer up;
    /// what it was doing ends within the same bounds.
    pub async fn create(group: &Group, config: EpConfig) -> Result<Self> {
        let (rank, world, setting) = (group.rank(), group.world(), Setting::of(group));
        let fields = config.fields();
        let make = move || Self::made(rank, world, config, setting).map(|buffer| buffer.inner);
        Ok(Self::following(peers::meet(group, "buffer", fields, make).await?, group))
    }

    /// [`EpBuffer::create`] for a plain thread. Not for a thread that serves an async executor.
    pub fn create_blocking(group: &Group, config: EpConfig) -> Result<Self> {
        let (rank, world, setting) = (group.rank(), group.world(), Setting::of(group));
        let fields = config.fields();
        let make = move || Self::made(rank, world, config, setting).map(|buffer| buffer.inner);
        Ok(Self::following(peers::meet_blocking(group, "buffer", fields, make)?, group))
    }

    fn following(inner: Arc<Inner>, group: &Group) -> Self {
        let follower: Weak<Inner> = Arc::downgrade(&inner);
        group.follow(follower);
        Self { inner }
    }

    /// The bytes that `peer` needs to reach this rank's window, to be passed to its [`EpBuffer::connect`]. They contain
    /// a secret that lets processes of the same user map the window. Waits for nobody.
    pub fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.inner.ffi.export(peer)
    }

    /// Maps the window that `peer` exported for this rank. Never blocks the executor. If the peer is not active, this
    /// is possible at any time, also while operations run; an active peer must have been given up, and no lane may be
    /// held.
    ///
    /// Dropping the future gives up waiting, not the attempt, which ends within the deadline; until then another one
    /// for this peer is [`Error::State`](crate::Error::State).
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if a field of the configuration differs,
    /// [`Error::Fenced`](crate::Error::Fenced) while a former incarnation of this rank, its old process or another
    /// buffer of this one, still has that window mapped, or while, with a queue to the peer, a former incarnation of the
    /// peer has this rank's, [`Error::Timeout`](crate::Error::Timeout) if the peer does not answer within
    /// [`EpConfig::deadline`], [`Error::Peer`](crate::Error::Peer) if it is gone, or has exported queues that serve a
    /// former connection of this rank (then let it export again), [`Error::NoPath`](crate::Error::NoPath) if it cannot be
    /// reached.
    pub async fn connect(&self, peer: u32, blob: &[u8]) -> Result<()> {
        self.connect_aside(vec![(peer, blob.to_vec())]).await
    }

    /// [`EpBuffer::connect`] on this thread. Not for a thread that serves an async executor.
    pub fn connect_blocking(&self, peer: u32, blob: &[u8]) -> Result<()> {
        self.inner.connect([(peer, blob)])
    }

    /// [`EpBuffer::connect`] to every peer, by rank, whose blob is not empty, in ascending order until one fails. One
    /// deadline bounds them all.
    pub async fn connect_all(&self, blobs: &[Vec<u8>]) -> Result<()> {
        self.connect_aside(present(blobs).map(|(peer, blob)| (peer, blob.to_vec())).collect()).await
    }

    /// [`EpBuffer::connect_all`] on this thread. Not for a thread that serves an async executor.
    pub fn connect_all_blocking(&self, blobs: &[Vec<u8>]) -> Result<()> {
        self.inner.connect(present(blobs))
    }

    async fn connect_aside(&self, blobs: Vec<(u32, Vec<u8>)>) -> Result<()> {
        let inner = self.inner.clone();
        let connect = move || inner.connect(blobs.iter().map(|(peer, blob)| (*peer, blob.as_slice())));
        spawn_blocking("connect", self.rank(), connect).await
    }

    /// Unmaps the window of a peer that is not active, at any time, or of one that was given up, if no lane is held.
    /// Waits for no peer; on GPUs, for a peer that was given up, it waits for what this rank has enqueued, as
    /// [`EpBuffer::set_active`] does. [`Error::State`](crate::Error::State) while the peer is being connected. After a
    /// timeout the peer may count as not connected, and must be connected or disconnected again.
    pub fn disconnect(&self, peer: u32) -> Result<()> {
        self.inner.ffi.disconnect(peer)
    }

    /// Checks that the path to `peer` carries words in both directions and that its process is alive: asks the peer's
    /// library, independently of all operations, and waits for the answer. Probes of one peer take turns, and on a GPU
    /// those of all peers; so does one whose future was dropped, until its own `timeout`. Never blocks the executor.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) if no answer comes within `timeout`, which includes the wait for a turn,
    /// [`Error::Peer`](crate::Error::Peer) if the peer's process has ended, or the queue to it is broken, for instance
    /// because it has disconnected this rank, [`Error::State`](crate::Error::State) if it is not connected.
    pub async fn probe(&self, peer: u32, timeout: std::time::Duration) -> Result<()> {
        let inner = self.inner.clone();
        spawn_blocking("probe", self.rank(), move || inner.ffi.probe(peer, timeout)).await
    }

    /// [`EpBuffer::probe`] on this thread. Not for a thread that serves an async executor.
    pub fn probe_blocking(&self, peer: u32, timeout: std::time::Duration) -> Result<()> {
        self.inner.ffi.probe(peer, timeout)
    }

    /// The path by which `peer` is reached.
    pub fn path(&self, peer: u32) -> Path {
        Path::from_c(self.inner.ffi.path(peer), self.inner.ffi.wire(peer))
    }

    /// For display only: what drains this rank's queues and its state; for an adapter, its port, its address and what
    /// it does without. `None` if the configuration permits no queues. Details may be added, so programs must not parse
    /// it.
    pub fn nic(&self) -> Option<String> {
        self.inner.ffi.nic()
    }

    /// For display only: why the queues to `peer` carry nothing any more ([`Cause::Link`](crate::Cause::Link)), and a
    /// remedy, until it is connected again. `None` if they work, or if its path is not a queue. Programs must not parse
    /// it.
    pub fn trouble(&self, peer: u32) -> Option<String> {
        self.inner.ffi.trouble(peer)
    }
}

impl End for Inner {
    fn exported(&self) -> Result<Vec<Vec<u8>>> {
        peers::exported(&*self.ffi, self.rank, self.plan.ranks)
    }

    fn connect_present(&self, blobs: &[Vec<u8>]) -> Result<()> {
        self.connect(present(blobs))
    }
}

impl Inner {
    fn connect<'a>(&self, blobs: impl IntoIterator<Item = (u32, &'a [u8])>) -> Result<()> {
        peers::connect_all(&*self.ffi, self.rank, self.config.deadline, blobs)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Error;

    const DEADLINE: Duration = Duration::from_millis(1500);

    fn config() -> EpConfig {
        EpConfig { deadline: DEADLINE, threads: 1, ..EpConfig::new(4, 64, 2, 1) }
    }

    #[test]
    fn creating_beside_a_stopped_rank_ends_and_lets_the_thread_go_on() {
        let mut exporter = Exporter::start();
        let blob = exporter.blob();
        exporter.stop();
        // The group's rank 1 is the test: it does, for the process, what creating a buffer does before the connect.
        let groups = Group::threads(2).unwrap();
        let peer = groups[1].clone();
        let peer = std::thread::spawn(move || {
            peer.agree_blocking("buffer", config().fields()).unwrap();
            peer.exchange_blocking("buffer", vec![blob, Vec::new()]).unwrap();
        });

        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (error, elapsed, gap) = runtime.block_on(async {
            let began = Instant::now();
            let (mut last, mut gap) = (began, Duration::ZERO);
            let clock = async {
                loop {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    gap = gap.max(last.elapsed());
                    last = Instant::now();
                }
            };
            let created = tokio::select! {
                created = EpBuffer::create(&groups[0], config()) => created,
                () = clock => unreachable!("a clock never ends"),
            };
            (created.unwrap_err(), began.elapsed(), gap.max(last.elapsed()))
        });
        peer.join().unwrap();
        assert!(matches!(&error, Error::Timeout(failure) if failure.peer == Some(1)), "{error}");
        assert!((DEADLINE..DEADLINE * 3).contains(&elapsed), "{elapsed:?}");
        assert!(gap < DEADLINE * 3 / 4, "the thread was blocked for {gap:?}");
    }

    #[test]
    fn a_process_that_is_stopped_or_has_ended_answers_no_probe() {
        let mut exporter = Exporter::start();
        let buffer = EpBuffer::unconnected(0, 2, config()).unwrap();
        assert!(matches!(buffer.probe_blocking(1, DEADLINE), Err(Error::State(_))));
        buffer.connect_blocking(1, &exporter.blob()).unwrap();
        exporter.stop();
        let stopped = buffer.probe_blocking(1, DEADLINE / 8);
        assert!(matches!(&stopped, Err(Error::Timeout(failure)) if failure.peer == Some(1)), "{stopped:?}");
        drop(exporter);
        let ended = buffer.probe_blocking(1, DEADLINE);
        assert!(matches!(&ended, Err(Error::Peer(failure)) if failure.peer == Some(1)), "{ended:?}");
    }

    const PREFIX: &str = "blob: ";

    #[test]
    #[ignore = "is the process that another test starts"]
    fn exporter() {
        let buffer = EpBuffer::unconnected(1, 2, config()).unwrap();
        let blob: String = buffer.export(0).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{PREFIX}{blob}");
        // Until the other test ends.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    struct Exporter(Child);

    impl Exporter {
        fn start() -> Self {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "--nocapture", "buffer::connect::tests::exporter"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            Self(child.unwrap())
        }

        fn blob(&mut self) -> Vec<u8> {
            let said = BufReader::new(self.0.stdout.take().unwrap());
            let hex = said.lines().find_map(|line| Some(line.unwrap().split_once(PREFIX)?.1.to_owned()));
            let hex = hex.expect("a blob");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            (0..hex.len()).step_by(2).map(byte).collect()
        }

        /// Returns when it has stopped.
        fn stop(&self) {
            let pid = self.0.id() as libc::pid_t;
            // SAFETY: plain system calls on a child that has not been reaped; no status is asked for.
            let stopped = unsafe {
                libc::kill(pid, libc::SIGSTOP);
                libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED)
            };
            assert_eq!(stopped, pid);
        }
    }

    impl Drop for Exporter {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }
}
