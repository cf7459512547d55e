//! The thread that waits so that no task of an executor has to: one in a process, for all its buffers and communicators. It looks at
//! signal words in windows only, never at the memory of an operation's caller; the bytes are moved in the polls of tasks.
//!
//! It goes in rounds. In a round it looks at all that is awaited, and sleeps until one of these may go on, or is due for a look; then
//! it wakes the tasks in question. It holds no lock while it wakes them: a waker may do anything, enter operations or drop buffers,
//! but while it runs all other tasks wait for theirs.
//!
//! It starts with the first operation that is awaited, and ends with the last buffer or communicator that had one.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::registry::{Entry, Found, Operation, Registry, Turn};
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Awaited, News};
use crate::waking;

/// Longest time between two looks at an operation, however long its deadline is.
const LONGEST_LOOK: Duration = Duration::from_millis(10);

/// Longest time between two looks: peers expect a sign of life in every half of a deadline.
pub(crate) fn longest_look(deadline: Duration) -> Duration {
    (deadline / 4).min(LONGEST_LOOK)
}

/// Whose operations are awaited. A handle names one that is under way, or has been.
pub(crate) trait Watched: Debug + Send + Sync + 'static {
    fn awaited(&self, handle: u64) -> Awaited<'_>;
    /// Goes on with the wait of an operation that nobody may be polling. Whether that is over. Waits for no lock.
    fn tend(&self, handle: u64) -> bool;
}

/// The awaited operations of one buffer or communicator. To be dropped before that: the thread then looks there no more.
#[derive(Debug, Default)]
pub(crate) struct Waits(OnceLock<Seat>);

/// A place among those whom the thread serves.
#[derive(Debug)]
struct Seat {
    progress: Arc<Progress>,
    owner: u64,
    watched: Arc<dyn Watched>,
    slice: Duration,
}

impl Waits {
    /// Sees to it that the thread runs. Before an operation begins, so that a process without a thread to spare is refused one
    /// that it could not see to its end. `deadline`: the buffer's or communicator's.
    pub(crate) fn start(
        &self,
        operation: &str,
        rank: u32,
        watched: &Arc<impl Watched>,
        deadline: Duration,
    ) -> Result<()> {
        static OWNERS: AtomicU64 = AtomicU64::new(0);
        if self.0.get().is_some() {
            return Ok(());
        }
        let progress = Progress::of_process().map_err(|error| {
            let text = format!("cannot start the progress thread: {error}; check the limit on threads");
            Error::System(Failure::new(operation, rank, text))
        })?;
        let owner = OWNERS.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { progress, owner, watched: watched.clone(), slice: longest_look(deadline) };
        // Another thread may have been faster: then this one is not needed.
        drop(self.0.set(seat));
        Ok(())
    }

    /// Keeps the operation of a handle in its wait until that is over, `until` at the latest.
    pub(crate) fn tend(&self, handle: u64, until: Option<Instant>) {
        if let Some(seat) = self.0.get() {
            let of = seat.operation(handle);
            seat.progress.shared.lock().registry.tend(of, until, Instant::now());
            seat.progress.shared.news.tell();
        }
    }

    /// Has the task polled again when its operation may go on. Without a thread, at once.
    pub(crate) fn wake_later(&self, handle: u64, waker: &Waker) {
        let Some(seat) = self.0.get() else { return waker.wake_by_ref() };
        // Outside the lock: cloning and dropping it runs code of the executor.
        let (of, task) = (seat.operation(handle), waker.clone());
        let spare = seat.progress.shared.lock().registry.wake_later(of, task, Instant::now());
        seat.progress.shared.news.tell();
        drop(spare);
    }
}

impl Seat {
    fn operation(&self, handle: u64) -> Operation<Arc<dyn Watched>> {
        Operation { owner: self.owner, what: self.watched.clone(), handle, slice: self.slice }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.progress.leave(self.owner);
    }
}

/// The thread, which ends when this is dropped.
#[derive(Debug)]
struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// A child of `fork` has this value and not the thread.
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A round has ended.
    ended: Condvar,
    news: News,
}

#[derive(Debug, Default)]
struct State {
    registry: Registry<Arc<dyn Watched>>,
    /// Rounds that have begun, and whether the last still looks.
    rounds: u64,
    looks: bool,
    /// Who waits for its end.
    leaving: u32,
    ending: bool,
}

impl Progress {
    /// That of this process, started unless it runs.
    fn of_process() -> std::io::Result<Arc<Self>> {
        static RUNNING: Mutex<Weak<Progress>> = Mutex::new(Weak::new());
        let process = std::process::id();
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(progress) = running.upgrade().filter(|progress| progress.process == process) {
            return Ok(progress);
        }
        let shared = Arc::<Shared>::default();
        let run = {
            let shared = shared.clone();
            move || shared.run()
        };
        let thread = Some(thread::Builder::new().name("epwire-progress".into()).spawn(run)?);
        let progress = Arc::new(Self { shared, thread, process });
        *running = Arc::downgrade(&progress);
        Ok(progress)
    }

    /// Forgets all that is this owner's. The thread looks at nothing of it once this returns.
    fn leave(&self, owner: u64) {
        if self.process != std::process::id() {
            return; // locks may be held for ever
        }
        let mut state = self.shared.lock();
        let left = state.registry.leave(owner);
        let round = state.rounds;
        state.leaving += 1;
        // The thread itself, in a waker that has dropped the owner, is in no round.
        while state.looks && state.rounds == round {
            self.shared.news.tell();
            state = self.shared.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.leaving -= 1;
        drop(state);
        let forget = |entry: Entry<_>| waking::contain(|| drop(entry));
        left.into_iter().for_each(forget);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.shared.lock().ending = true;
        self.shared.news.tell();
        // A waker called there may have dropped the last owner: that thread cannot wait for itself.
        let elsewhere = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(elsewhere) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.ending {
            // Whoever enters something from now on tells of it behind this.
            let (told, now) = (self.news.told(), Instant::now());
            let (turns, time) = (state.registry.round(now), state.registry.time(now));
            state.rounds += 1;
            state.looks = true;
            drop(state);
            let found = self.look(&turns, told, time, now);
            // Before the round ends: the last to own a buffer is whoever drops it.
            drop(turns);
            state = self.lock();
            state.looks = false;
            let woken = state.registry.end_round(&found, Instant::now());
            if state.leaving > 0 {
                self.ended.notify_all(); // a system call, whether anybody waits or not
            }
            if !woken.is_empty() {
                drop(state);
                woken.into_iter().for_each(waking::wake);
                state = self.lock();
            }
        }
    }

    /// One round: sleeps, and tends what is to be tended.
    fn look(
        &self,
        turns: &[Turn<Arc<dyn Watched>>],
        told: u32,
        time: Duration,
        began: Instant,
    ) -> Vec<(u64, Found)> {
        let mut all: Vec<_> =
            turns.iter().map(|turn| turn.of.what.awaited(turn.of.handle).aged(turn.age)).collect();
        ffi::await_any(&mut all, &self.news, told, time);
        let later = began.elapsed();
        let found = |turn: &Turn<Arc<dyn Watched>>, awaited: &Awaited<'_>| {
            if !awaited.is_ready() && !turn.is_due(later) {
                return Found::Nothing;
            }
            let is_over = turn.is_tended && turn.of.what.tend(turn.of.handle);
            if is_over { Found::End } else { Found::News }
        };
        turns.iter().zip(&all).map(|(turn, awaited)| (turn.number, found(turn, awaited))).collect()
    }
}
