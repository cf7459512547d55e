//! Starts the ranks of one host without a launcher. [`Ranks`] sets their number; the examples take it from `--ranks N`.
//!
//! The parent hosts the rendezvous server and executes its own program once per rank, with the same arguments. It sets
//! `EPWIRE_RANK` and related variables, so that [`super::Launch::from_env`] in each child finds its rank. Then it waits
//! for the ranks to end:
//!
//! ```no_run
//! use std::time::Duration;
//! use epwire::{env::Token, launch::{Launch, spawn::Ranks}, rendezvous::{Server, ServerOptions}};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     if let Some(launch) = Launch::from_env()? {
//!         return run(&launch); // a rank: started below, or by torchrun, srun, mpirun
//!     }
//!     let options = ServerOptions::new("my run", 4).token(Some(Token::random()?));
//!     let server = Server::bind_blocking("127.0.0.1:0", options)?;
//!     let running = Ranks::new(4).server(&server).spawn()?;
//!     let ended = running.wait(Some(Duration::from_secs(600)))?;
//!     std::process::exit(ended.exit_code());
//! }
//!
//! fn run(launch: &Launch) -> Result<(), Box<dyn std::error::Error>> {
//!     println!("{launch}");
//!     Ok(())
//! }
//! ```
//!
//! By default a rank that fails ends all of them, which suits a batch job. In a server the other ranks should continue
//! while the lost one is replaced: see [`Ranks::restarts`]. [`Running::stopper`] ends the ranks from another thread, for
//! instance when this process gets SIGTERM. `EPWIRE_LOG=info` also prints which process runs which rank, how each ended,
//! and which restart it was; with the feature `tracing` the same is reported as events.

use std::{
    ffi::OsString,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::address::Address;
use super::interface::InterfaceChoice;
pub use super::supervise::Ended;
use super::supervise::{Processes, Restarts, Supervised};
use crate::env::{self, Token};
use crate::mask::MAX_WORLD;
use crate::names::readable;
use crate::rendezvous::driver::{Deaths, Server};
use crate::settings;

/// Ranks to start on this host.
#[derive(Debug, Clone)]
pub struct Ranks {
    count: u32,
    first_rank: u32,
    world: u32,
    address: Option<Address>,
    deaths: Option<Deaths>,
    run_id: Option<String>,
    token: Option<Token>,
    grace: Duration,
    restarts: u32,
    restarts_within: Option<Duration>,
    program: Option<PathBuf>,
    args: Option<Vec<OsString>>,
}

impl Ranks {
    /// `count` ranks, 1 to [`MAX_WORLD`], which are the whole world.
    pub fn new(count: u32) -> Self {
        Self {
            count,
            first_rank: 0,
            world: count,
            address: None,
            deaths: None,
            run_id: None,
            token: None,
            grace: Duration::from_secs(20),
            restarts: 0,
            restarts_within: None,
            program: None,
            args: None,
        }
    }

    /// The ranks from `first_rank` on of a larger `world`; the others are started elsewhere.
    pub fn within(mut self, first_rank: u32, world: u32) -> Self {
        (self.first_rank, self.world) = (first_rank, world);
        self
    }

    /// The ranks meet at this server and are told not to host one; they get its run id and token, unless others are
    /// given. The server is told of each process that has ended, for whatever reason, so that the run continues without
    /// it and its rank may be taken. For a world of more than one rank either this or [`Ranks::address`] is required.
    pub fn server(mut self, server: &Server) -> Self {
        self.deaths = Some(server.deaths());
        let (run_id, token) = server.credentials();
        self.run_id.get_or_insert_with(|| run_id.to_owned());
        self.token = self.token.or_else(|| token.cloned());
        let bound = server.local_addr();
        let host = match bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        self.address(Address::of((host, bound.port()).into()))
    }

    /// Where the ranks meet: at a rendezvous server elsewhere; the ranks are told not to host one.
    pub fn address(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Name of the run. Default: that of [`Ranks::server`], else the one in this process's environment, if any.
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.run_id = Some(run_id.into());
        self
    }

    /// The shared secret to pass on, in `EPWIRE_TOKEN`; it must be UTF-8. Default: that of [`Ranks::server`], else the
    /// one in this process's environment, if any. On Linux only the same user and root can read another process's
    /// environment.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// How long the other ranks may continue after one has failed before they get SIGTERM, and how long ranks may take
    /// to end after SIGTERM before they get SIGKILL. At an orderly end the ranks wait for a stopped one until it has been
    /// removed, which takes a lease and a deadline, so the period must be longer than both together. The default of 20 s
    /// is enough for the default lease of 5 s and deadlines of up to 10 s. With a longer lease or deadline, set a longer
    /// period.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How many times failed ranks are restarted, counted over all ranks, in the whole run or in the period of
    /// [`Ranks::restarts_within`]. Meanwhile the others continue, and the new process joins as a replacement
    /// ([`Group::join`](crate::Group::join)). A rank that ends with status 0 is not restarted. The first restart of a
    /// rank is immediate. If the new process fails within 5 s, the next one is started after 0.1 s, and the delay then
    /// doubles with each such failure, up to 5 s. Once a process has run for longer than 5 s, the next restart of its
    /// rank is immediate again. The failure after the last permitted restart ends all ranks, as does any failure with
    /// the default of 0.
    pub fn restarts(mut self, most: u32) -> Self {
        self.restarts = most;
        self
    }

    /// The period in which [`Ranks::restarts`] are counted. With a period of minutes a server survives any number of
    /// failures spread over months, and ends if its ranks fail again and again. Default: the whole run.
    pub fn restarts_within(mut self, period: Duration) -> Self {
        self.restarts_within = Some(period);
        self
    }

    /// Executes another program instead of this one.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Passes these arguments instead of those of this process.
    pub fn args<I, S>(mut self, args: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        self.args = Some(args.into_iter().map(Into::into).collect());
        self
    }

    /// Starts the ranks. Their standard input is empty; standard output and error are those of this process. The kernel
    /// kills them when this process dies, for whatever reason. Variables that ranks would refuse, such as a wrong
    /// `EPWIRE_LOG`, are refused here, before any rank starts.
    ///
    /// # Errors
    ///
    /// [`SpawnError`]; ranks already started are then killed.
    pub fn spawn(self) -> Result<Running, SpawnError> {
        self.check()?;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(SpawnError::OwnProgram)?,
        };
        let (started_tx, started_rx) = mpsc::channel();
        let (stop_tx, stop_rx) = mpsc::channel();
        let (ended_tx, ended_rx) = mpsc::channel();
        let processes = Processes::default();
        let current = processes.clone();
        // The kernel's "die with the parent" refers to the thread that forked, not to its process, and the caller's
        // thread may be a short-lived worker. So the only thread that forks is one that stays until the last rank has
        // ended.
        let supervisor = thread::Builder::new()
            .name("epwire-spawn".into())
            .spawn(move || {
                let mut ranks = Supervised::new(self.deaths.clone(), current);
                for rank in self.first_rank..self.first_rank + self.count {
                    if let Err(cause) = self.start(&program, rank).map(|child| ranks.add(rank, child, None)) {
                        let _ = started_tx.send(Err(SpawnError::Start { rank, program, cause }));
                        return;
                    }
                }
                let _ = started_tx.send(Ok(ranks.ids()));
                let again = |rank| self.start(&program, rank);
                let restarts = Restarts::new(self.restarts, self.restarts_within);
                let _ = ended_tx.send(ranks.supervise(self.grace, &stop_rx, restarts, again));
            })
            .map_err(SpawnError::Supervisor)?;
        let ids = started_rx.recv().map_err(|_| SpawnError::Lost)??;
        Ok(Running { ids, processes, ended: ended_rx, stop: stop_tx, supervisor: Some(supervisor) })
    }

    fn check(&self) -> Result<(), SpawnError> {
        let invalid = |what: String| Err(SpawnError::Invalid { what });
        let Self { count, first_rank, world, .. } = *self;
        if !(1..=MAX_WORLD).contains(&count) || world > MAX_WORLD {
            return invalid(format!("{count} ranks of {world}; both must be 1 to {MAX_WORLD}"));
        }
        if first_rank.checked_add(count).is_none_or(|end| end > world) {
            return invalid(format!("{count} ranks from {first_rank} on do not fit into a world of {world}"));
        }
        if world > 1 && self.address.is_none() {
            return invalid(format!(
                "{world} ranks need an address to meet at; call Ranks::server or Ranks::address"
            ));
        }
        if self
            .token
            .as_ref()
            .is_some_and(|t| std::str::from_utf8(t.as_bytes()).is_err() || t.as_bytes().contains(&0))
        {
            return invalid("the token cannot be handed on in a variable; use UTF-8 text without NUL".into());
        }
        if self.token.is_none()
            && let Err(error) = Token::from_env()
        {
            return invalid(error.to_string());
        }
        if let Some(names) = env::value(env::IFNAME)
            && names.parse::<InterfaceChoice>().is_err()
        {
            return invalid(format!(
                "{}: {names:?} is not a list of interface names, such as eth0,ib or ^docker",
                env::IFNAME
            ));
        }
        settings::check().or_else(invalid)
    }

    fn start(&self, program: &PathBuf, rank: u32) -> io::Result<Child> {
        let mut command = Command::new(program);
        match &self.args {
            Some(args) => command.args(args),
            None => command.args(std::env::args_os().skip(1)),
        };
        command
            .env(env::RANK, rank.to_string())
            .env(env::WORLD, self.world.to_string())
            .env(env::LOCAL_RANK, (rank - self.first_rank).to_string())
            .env(env::LOCAL_WORLD, self.count.to_string())
            .env(env::HOSTED, "1")
            .stdin(std::process::Stdio::null());
        if let Some(address) = &self.address {
            command.env(env::ADDR, address.to_string());
        }
        if let Some(run_id) = &self.run_id {
            command.env(env::RUN_ID, run_id);
        }
        if let Some(token) = &self.token {
            let text = String::from_utf8_lossy(token.as_bytes());
            command.env(env::TOKEN, text.as_ref()).env_remove(env::TOKEN_FILE);
        }
        die_with_parent(&mut command);
        command.spawn()
    }
}

/// Ranks that have been started. Dropping it ends them: SIGTERM, and after the grace period SIGKILL.
#[derive(Debug)]
pub struct Running {
    ids: Vec<u32>,
    processes: Processes,
    ended: mpsc::Receiver<io::Result<Ended>>,
    stop: mpsc::Sender<()>,
    supervisor: Option<thread::JoinHandle<()>>,
}

impl Running {
    /// Process ids by local rank, as the ranks were first started. After a process has ended, another may have its id.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The process that runs this rank of the world now, also after a [restart](Ranks::restarts). `None` while there is
    /// none. [`Stopper::id`] gives the same to another thread.
    pub fn id(&self, rank: u32) -> Option<u32> {
        self.processes.id(rank)
    }

    /// Ends the ranks while another thread is in [`Running::wait`].
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), processes: self.processes.clone() }
    }

    /// Waits until all ranks have ended; blocks the thread. When one fails and no [restarts](Ranks::restarts) are left,
    /// the others get the grace period to end by themselves, then SIGTERM, then after another grace period SIGKILL.
    /// `limit` bounds the total time: once it has passed, the ranks are ended in the same way. `None`: no limit.
    ///
    /// # Errors
    ///
    /// [`SpawnError::TimedOut`] after `limit`, [`SpawnError::Wait`] if the system does not report how a rank ended.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<Ended, SpawnError> {
        let received = match limit {
            Some(limit) => self.ended.recv_timeout(limit),
            None => self.ended.recv().map_err(Into::into),
        };
        match received {
            Ok(ended) => ended.map_err(SpawnError::Wait),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(SpawnError::Lost),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.end();
                Err(SpawnError::TimedOut { limit: limit.unwrap_or_default() })
            }
        }
    }

    fn end(&mut self) {
        let _ = self.stop.send(()); // nobody listens if all have ended
        if let Some(supervisor) = self.supervisor.take() {
            // A panic of the supervisor has already been reported by its thread, and its children are gone with it.
            let _ = supervisor.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends ranks from any thread; see [`Running::stopper`]. Clones do the same.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: mpsc::Sender<()>,
    processes: Processes,
}

impl Stopper {
    /// Sends SIGTERM to all ranks, and SIGKILL to those that still run after the grace period. From now on none is
    /// started again; one that waits for its restart counts as failed. Does not wait, and does nothing once all have ended.
    pub fn stop(&self) {
        let _ = self.stop.send(());
    }

    /// The process that runs this rank now: as [`Running::id`].
    pub fn id(&self, rank: u32) -> Option<u32> {
        self.processes.id(rank)
    }
}

/// Why ranks were not started or not waited for.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// A setting or a variable `EPWIRE_*` is wrong, or they do not fit together.
    #[error("spawn: {what}")]
    Invalid {
        /// What is wrong, with the name of the variable if it is one, and the limit.
        what: String,
    },
    /// The path of this program is unknown.
    #[error("spawn: cannot find this program's own file: {0}; name it with Ranks::program")]
    OwnProgram(io::Error),
    /// The supervising thread could not be started.
    #[error("spawn: cannot start the supervising thread: {0}; check the limit on threads")]
    Supervisor(io::Error),
    /// A rank could not be started.
    #[error("spawn: cannot start rank {rank} from {}: {cause}; check the file and the limit on processes", program.display())]
    Start {
        /// The rank.
        rank: u32,
        /// What was executed.
        program: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The system did not report how a rank ended.
    #[error("spawn: waiting for the ranks: {0}; something else in this process may be reaping its children")]
    Wait(io::Error),
    /// The ranks ran longer than allowed and were ended.
    #[error(
        "spawn: the ranks were ended because they ran longer than {limit:?}; allow more time if that was expected"
    )]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The supervising thread is gone.
    #[error("spawn: the supervising thread ended without an answer; its message on stderr says why")]
    Lost,
}

readable!(SpawnError { Invalid, OwnProgram, Supervisor, Start, Wait, TimedOut, Lost });

/// Has the kernel kill the child when the thread that started it ends.
fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let set = move || {
        // SAFETY: prctl with PR_SET_PDEATHSIG and getppid are plain system calls without pointers.
        let (status, parent_now) =
            unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        // If the parent died between fork and prctl, no signal will come.
        if parent_now as u32 != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: `set` runs between fork and exec: it makes two system calls, which are async-signal-safe, takes no lock
    // and allocates nothing (both errors are made from an error number).
    unsafe { command.pre_exec(set) };
}
