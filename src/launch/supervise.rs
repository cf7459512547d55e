//! The processes of the ranks of this host while they run: how they end, and whether they are started again.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    os::unix::process::ExitStatusExt,
    process::{Child, ExitStatus},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::log::{self, Level};
use crate::mask::Mask;
use crate::rendezvous::driver::Deaths;

/// How the ranks ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All with status 0.
    Success,
    /// At least one failed; this is the first that did.
    Failed {
        /// The rank.
        rank: u32,
        /// Its exit code, or the signal that killed it.
        status: ExitStatus,
    },
}

impl Ended {
    /// The exit code that a shell would report: 0, the first failing rank's code, or 128 + the signal that killed it.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failed { status, .. } => {
                status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
            }
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("all ranks ended well"),
            Self::Failed { rank, status } => write!(f, "rank {rank} failed first: {status}"),
        }
    }
}

/// The process of each rank that runs. Written by the supervising thread, read by any.
#[derive(Debug, Clone, Default)]
pub(super) struct Processes(Arc<Mutex<BTreeMap<u32, u32>>>);

impl Processes {
    pub(super) fn id(&self, rank: u32) -> Option<u32> {
        self.lock().get(&rank).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often failed ranks are started again.
#[derive(Debug)]
pub(super) struct Restarts {
    most: u32,
    /// How long a restart counts; `None`: as long as the ranks run.
    period: Option<Duration>,
    /// The times of the restarts that still count, the oldest first.
    counted: VecDeque<Instant>,
}

impl Restarts {
    pub(super) fn new(most: u32, period: Option<Duration>) -> Self {
        Self { most, period, counted: VecDeque::new() }
    }

    /// Whether there may be one more now, which is then counted.
    fn take(&mut self, now: Instant) -> bool {
        if let Some(period) = self.period {
            self.counted.retain(|at| now.saturating_duration_since(*at) < period);
        }
        let left = self.counted.len() < self.most as usize;
        self.counted.extend(left.then_some(now));
        left
    }
}

/// The last one, and the limit.
impl fmt::Display for Restarts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "restart {} of {}", self.counted.len(), self.most)?;
        self.period.map_or(Ok(()), |period| write!(f, " in {period:?}"))
    }
}

/// How soon a rank that fails is started again: at once, and ever later if it fails again soon.
#[derive(Debug)]
struct Pace {
    /// When its last process was started.
    started: Instant,
    /// The delay before the next one.
    next: Duration,
}

/// The delay before the second restart of a rank in a row; the first has none.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay, and how long a rank must run for its delays to start from none again.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

impl Pace {
    /// The delay before the restart of a rank that has failed now.
    fn delay(&mut self, now: Instant) -> Duration {
        if now.saturating_duration_since(self.started) > LONGEST_DELAY {
            self.next = Duration::ZERO;
        }
        let delay = self.next;
        self.next = (2 * delay).clamp(FIRST_DELAY, LONGEST_DELAY);
        delay
    }
}

/// A rank that has failed and will be started again.
#[derive(Debug)]
struct Due {
    rank: u32,
    /// How its last process ended.
    status: ExitStatus,
    at: Instant,
    /// For the log: which restart it is.
    which: String,
}

/// The children, owned by the supervising thread. Dropping kills and reaps those still there.
pub(super) struct Supervised {
    children: Vec<(u32, Child)>,
    paces: BTreeMap<u32, Pace>,
    due: Vec<Due>,
    processes: Processes,
    /// Where to report deaths, if the ranks meet at a server of this process.
    deaths: Option<Deaths>,
    /// Whether all ranks are to end.
    ending: bool,
}

/// How often the children are checked. Short compared with their start, and 20 system calls per rank and second cost
/// nothing.
const POLL: Duration = Duration::from_millis(50);

impl Supervised {
    /// `processes` are kept up to date.
    pub(super) fn new(deaths: Option<Deaths>, processes: Processes) -> Self {
        let (children, paces, due) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { children, paces, due, processes, deaths, ending: false }
    }

    /// A rank has been started, for the first time or again: `which` restart that is.
    pub(super) fn add(&mut self, rank: u32, child: Child, which: Option<&str>) {
        let id = child.id();
        self.processes.lock().insert(rank, id);
        self.children.push((rank, child));
        let started = Instant::now();
        self.paces.entry(rank).or_insert(Pace { started, next: Duration::ZERO }).started = started;
        let which = which.map_or(String::new(), |which| format!(", {which}"));
        say(Level::Info, || format!("started rank {rank} as process {id}{which}"));
    }

    /// Process ids in the order in which the ranks were added.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.children.iter().map(|(_, child)| child.id()).collect()
    }

    /// Runs until all children have ended. A closed or signalled `stop` has the same effect as a failure whose grace
    /// period is over. `again` starts a failed rank again, as often as `restarts` permits.
    pub(super) fn supervise(
        mut self,
        grace: Duration,
        stop: &mpsc::Receiver<()>,
        mut restarts: Restarts,
        mut again: impl FnMut(u32) -> io::Result<Child>,
    ) -> io::Result<Ended> {
        let mut ended = Ended::Success;
        let mut lost = None;
        // `None`: never, also if the grace period exceeds what clocks can express.
        let mut terminate_at: Option<Instant> = None;
        let mut kill_at: Option<Instant> = None;
        let (mut told, mut killed) = (false, false);
        let mut pause = Duration::from_millis(1);
        loop {
            let mut failed = Vec::new();
            if self.ending {
                // Nobody is started any more: those that were to be have failed for good.
                failed.extend(self.due.drain(..).map(|due| (due.rank, due.status)));
            }
            for (rank, status) in self.reap(&mut lost)? {
                if !self.ending && restarts.take(Instant::now()) {
                    self.restart_later(rank, status, restarts.to_string());
                } else {
                    failed.push((rank, status));
                }
            }
            if !self.ending {
                failed.extend(self.restart_due(&mut again));
            }
            for (rank, status) in failed {
                if ended == Ended::Success {
                    ended = Ended::Failed { rank, status };
                    terminate_at = terminate_at.or(Instant::now().checked_add(grace));
                }
                if !std::mem::replace(&mut self.ending, true) && !self.children.is_empty() {
                    say(Level::Warn, || {
                        let others = self.ranks();
                        format!(
                            "rank {rank} is not started again: SIGTERM to {} in {grace:?}",
                            others.named()
                        )
                    });
                }
            }
            let now = Instant::now();
            if lost.is_some() && !std::mem::replace(&mut self.ending, true) {
                terminate_at = terminate_at.or(now.checked_add(grace));
                continue; // nobody is started any more
            }
            if self.children.is_empty() && self.due.is_empty() {
                return lost.map_or(Ok(ended), Err);
            }
            if !told && terminate_at.is_some_and(|at| now >= at) {
                say(Level::Info, || format!("SIGTERM to {}", self.ranks().named()));
                self.signal(libc::SIGTERM);
                told = true;
                kill_at = now.checked_add(grace);
            }
            if kill_at.is_some_and(|at| now >= at) {
                if !std::mem::replace(&mut killed, true) {
                    say(Level::Warn, || format!("SIGKILL to {}", self.ranks().named()));
                }
                self.signal(libc::SIGKILL);
            }
            // Short runs are noticed at once, long ones cost little.
            pause = (pause * 2).min(POLL);
            match stop.recv_timeout(pause) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    self.ending = true;
                    terminate_at = Some(terminate_at.map_or(now, |at| at.min(now)));
                    thread::sleep(pause);
                }
            }
        }
    }

    fn restart_later(&mut self, rank: u32, status: ExitStatus, which: String) {
        let now = Instant::now();
        let delay = self.paces.get_mut(&rank).map_or(Duration::ZERO, |pace| pace.delay(now));
        if !delay.is_zero() {
            say(Level::Info, || format!("rank {rank} is started again in {delay:?}"));
        }
        self.due.push(Due { rank, status, at: now + delay, which });
    }

    /// Starts the ranks that are due. Returns those that cannot be started.
    fn restart_due(&mut self, again: &mut impl FnMut(u32) -> io::Result<Child>) -> Vec<(u32, ExitStatus)> {
        let now = Instant::now();
        let (due, later): (Vec<Due>, Vec<Due>) =
            std::mem::take(&mut self.due).into_iter().partition(|due| due.at <= now);
        self.due = later;
        let mut failed = Vec::new();
        for Due { rank, status, which, .. } in due {
            match again(rank) {
                Ok(child) => self.add(rank, child, Some(&which)),
                Err(error) => {
                    say(Level::Warn, || format!("cannot start rank {rank} again: {error}"));
                    failed.push((rank, status));
                }
            }
        }
        failed
    }

    /// Removes the children that have ended, and returns those that failed. A killed one comes before those that exited
    /// by themselves, which may have exited because they lost it. Of one that something else has reaped, `lost` becomes the
    /// error: how it ended is not known, and its id may be that of another process.
    fn reap(&mut self, lost: &mut Option<io::Error>) -> io::Result<Vec<(u32, ExitStatus)>> {
        let mut failed: Vec<(u32, ExitStatus)> = Vec::new();
        let mut i = 0;
        while i < self.children.len() {
            let (rank, child) = &mut self.children[i];
            // Until it is reaped, nobody else can get its id: the server is told before that.
            if let Some(deaths) = &self.deaths
                && matches!(has_ended(child), Ok(true))
                && !deaths.report(*rank, child.id())
            {
                i += 1; // the server is busy: try again next time
                continue;
            }
            match child.try_wait() {
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    let (rank, id) = (*rank, child.id());
                    say(Level::Warn, || format!("rank {rank}, process {id}, was reaped by somebody else"));
                    self.processes.lock().remove(&rank);
                    self.children.remove(i);
                    *lost = Some(error);
                }
                Err(error) => return Err(error),
                Ok(Some(status)) => {
                    let (rank, id) = (*rank, child.id());
                    let level = if status.success() || self.ending { Level::Info } else { Level::Warn };
                    say(level, || format!("rank {rank}, process {id}, has ended: {status}"));
                    if !status.success() {
                        failed.push((rank, status));
                    }
                    self.processes.lock().remove(&rank);
                    self.children.remove(i);
                }
                Ok(None) => i += 1,
            }
        }
        failed.sort_by_key(|(_, status)| status.signal().is_none());
        Ok(failed)
    }

    fn signal(&self, signal: libc::c_int) {
        for (_, child) in &self.children {
            // SAFETY: kill() touches no memory. The child has not been reaped (it would have left `children`), so its id
            // cannot have passed to another process; unless something else reaps children, since the last look.
            unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        }
    }

    /// Those that run.
    fn ranks(&self) -> Mask {
        self.children.iter().map(|(rank, _)| *rank).collect()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        for (_, child) in &mut self.children {
            // Returns soon, because a killed process ends. An error means that it has been reaped already.
            let _ = child.wait();
        }
        self.processes.lock().clear();
    }
}

/// Whether a child has ended; it still has to be reaped.
fn has_ended(child: &Child) -> io::Result<bool> {
    // SAFETY: siginfo_t is plain data, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: waitid writes to `info` only, which outlives the call.
    let status = unsafe { libc::waitid(libc::P_PID, child.id(), &mut info, options) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid has filled it in as for SIGCHLD, or left it zeroed.
    Ok(unsafe { info.si_pid() } != 0)
}

/// What the launcher reports: a line of the log, and with the feature `tracing` an event.
fn say(level: Level, text: impl Fn() -> String) {
    log::line(level, None, &text);
    #[cfg(feature = "tracing")]
    match level {
        Level::Warn => tracing::warn!("{}", text()),
        Level::Info => tracing::info!("{}", text()),
        Level::Trace => tracing::trace!("{}", text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_count_for_a_period_or_for_ever() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let mut taken = Restarts::new(2, Some(10 * second));
        let at: Vec<bool> = [0, 4, 9, 10, 13, 14].map(|s| taken.take(began + s * second)).into();
        assert_eq!(at, [true, true, false, true, false, true], "a refused one does not count");
        assert_eq!(taken.to_string(), "restart 2 of 2 in 10s");

        let mut taken = Restarts::new(2, None);
        let at: Vec<bool> = [0, 9, 99_999].map(|s| taken.take(began + s * second)).into();
        assert_eq!(at, [true, true, false]);
        assert_eq!(taken.to_string(), "restart 2 of 2");
        assert!(!Restarts::new(0, Some(second)).take(began), "none at all");
    }

    #[test]
    fn a_rank_that_somebody_else_has_reaped_ends_the_others_in_their_grace() {
        let shell = |script: &str| std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let file = std::env::temp_dir().join(format!("epwire-supervise-{}", std::process::id()));
        let ends =
            format!("trap 'echo ended > {}; exit 0' TERM; while :; do sleep 0.05; done", file.display());
        let processes = Processes::default();
        let mut supervised = Supervised::new(None, processes.clone());
        supervised.add(0, shell("exit 0"), None);
        supervised.add(1, shell(&ends), None);
        let id = supervised.ids()[0] as libc::pid_t;
        // SAFETY: waitpid may be given no place for the status.
        assert_eq!(unsafe { libc::waitpid(id, std::ptr::null_mut(), 0) }, id);
        let (_open, stop) = mpsc::channel();
        let grace = Duration::from_secs(2);
        let again = |_| Err(io::ErrorKind::Unsupported.into());
        let error = supervised.supervise(grace, &stop, Restarts::new(5, None), again).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECHILD), "{error}");
        let text = std::fs::read_to_string(&file).expect("rank 1 was killed without SIGTERM");
        let _ = std::fs::remove_file(&file);
        assert_eq!((text.as_str(), processes.id(0), processes.id(1)), ("ended\n", None, None));
    }

    #[test]
    fn a_rank_that_fails_soon_is_started_again_later_and_later() {
        let mut now = Instant::now();
        let mut pace = Pace { started: now, next: Duration::ZERO };
        let mut delays = |ran: [u64; 9]| {
            ran.map(|ran| {
                now += Duration::from_millis(ran);
                let delay = pace.delay(now);
                now += delay;
                pace.started = now;
                delay.as_millis()
            })
        };
        assert_eq!(delays([9; 9]), [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(
            delays([5000, 5001, 0, 0, 60_000, 0, 0, 0, 0]),
            [5000, 0, 100, 200, 0, 100, 200, 400, 800]
        );
    }
}
