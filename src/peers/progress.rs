//! The thread that waits so that no task of an executor has to: one in a process, for all its buffers and communicators. It
//! reads only signal words in windows, never the memory of an operation's caller; polls of tasks move the bytes.
//! Only of prefill operations that were given up it also takes what peers still send, because nobody polls those.
//!
//! In each round it takes all that is awaited, sleeps until one of these operations may make progress or is due for a
//! look, and wakes the tasks of those. It holds no lock while it wakes them, because a waker may do anything: begin
//! operations, await them, drop buffers.
//!
//! It starts with the first operation that is awaited, and ends with the last buffer or communicator that had one.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::ffi::{Awaited, Interrupt, Watched, await_any};
use crate::waking;

/// The longest time between two looks at an operation: peers expect a beacon in every half of a deadline.
pub(crate) fn longest_look(deadline: Duration) -> Duration {
    (deadline / 4).min(Duration::from_millis(10))
}

/// The operations of one buffer or communicator that are awaited. Drop it before that: the thread then looks at nothing
/// of it any more.
#[derive(Debug, Default)]
pub(crate) struct Waits(OnceLock<Seat>);

#[derive(Debug)]
struct Seat {
    progress: Arc<Progress>,
    watched: Arc<dyn Watched>,
    longest: Duration,
}

impl Waits {
    /// Makes sure that the thread runs. Before an operation begins, so that a process that cannot start a thread is refused
    /// an operation that it could not complete. `deadline`: the buffer's or communicator's.
    pub(crate) fn start(
        &self,
        operation: &str,
        rank: u32,
        watched: &Arc<impl Watched>,
        deadline: Duration,
    ) -> Result<()> {
        if self.0.get().is_some() {
            return Ok(());
        }
        let progress = Progress::of_process().map_err(|error| {
            let text = format!("cannot start the progress thread: {error}; check the limit on threads");
            Error::System(Failure::new(operation, rank, text))
        })?;
        self.0.get_or_init(|| Seat { progress, watched: watched.clone(), longest: longest_look(deadline) });
        Ok(())
    }

    /// Keeps polling the operation of a handle until it is over, at most until `until`, and as long as `awaiting` lives. It
    /// is polled however busy the task's executor is, because the polls show the peers that this rank waits too.
    pub(crate) fn tend(&self, handle: u64, until: Option<Instant>, awaiting: &Awaiting) {
        self.enter(handle, Purpose::Tend(until, Some(Arc::downgrade(&awaiting.0))));
    }

    /// The same until it is over, for one that nobody awaits.
    pub(crate) fn tend_alone(&self, handle: u64) {
        self.enter(handle, Purpose::Tend(None, None));
    }

    /// Has the task polled again when its operation may make progress; without a thread, at once.
    pub(crate) fn wake_later(&self, handle: u64, waker: &Waker) {
        match self.0.get() {
            Some(_) => self.enter(handle, Purpose::Wake(waker.clone())),
            None => waker.wake_by_ref(),
        }
    }

    fn enter(&self, handle: u64, purpose: Purpose) {
        let Some(Seat { progress, watched, longest }) = self.0.get() else { return };
        let awaited = Awaited::new(watched.clone(), handle, *longest);
        progress.shared.enter(Entry { awaited, purpose });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.progress.leave(&*self.watched);
    }
}

/// What awaits an operation that is [tended](Waits::tend), until it is dropped. A clone awaits for itself.
#[derive(Debug, Default)]
pub(crate) struct Awaiting(Arc<()>);

impl Clone for Awaiting {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// An operation that is awaited, and what to do about it.
#[derive(Debug)]
struct Entry {
    awaited: Awaited,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// Wake a task. Several tasks may await one operation.
    Wake(Waker),
    /// Tend the operation, at most until then, and as long as that lives.
    Tend(Option<Instant>, Option<Weak<()>>),
}

impl Entry {
    /// Whether one of them is enough.
    fn is_same(&self, other: &Self) -> bool {
        let same = match (&self.purpose, &other.purpose) {
            (Purpose::Wake(task), Purpose::Wake(other)) => task.will_wake(other),
            (Purpose::Tend(_, one), Purpose::Tend(_, other)) => {
                one.as_ref().map(Weak::as_ptr) == other.as_ref().map(Weak::as_ptr)
            }
            _ => false,
        };
        same && self.awaited.is_same(&other.awaited)
    }
}

/// The thread, which ends when this is dropped.
#[derive(Debug)]
struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// A child of `fork` inherits this value and not the thread.
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A round has ended, or the last of those who leave has left.
    changed: Condvar,
    /// Raised after each change of the state that the thread must see.
    interrupt: Interrupt,
}

#[derive(Debug, Default)]
struct State {
    /// Except those of the current round, which the thread has.
    entries: Vec<Entry>,
    in_round: bool,
    /// Who waits for the end of the round; before all these have left, none begins.
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

    /// Forgets all operations of this owner. The thread looks at none of them once this returns.
    fn leave(&self, owner: &dyn Watched) {
        if self.process != std::process::id() {
            return; // the thread may have held the lock when the process forked
        }
        let mut state = self.shared.lock();
        state.leaving += 1;
        self.shared.interrupt.raise();
        // The thread itself, in a waker that drops the owner, is in no round.
        while state.in_round {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let left: Vec<_> = state.entries.extract_if(.., |entry| entry.awaited.is_of(owner)).collect();
        state.leaving -= 1;
        drop(state);
        self.shared.changed.notify_all();
        left.into_iter().for_each(|entry| waking::contain(|| drop(entry)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.shared.lock().ending = true;
        self.shared.interrupt.raise();
        // A waker called on that thread may have dropped the last owner: the thread cannot join itself.
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

    fn enter(&self, entry: Entry) {
        let mut state = self.lock();
        let old = state.entries.extract_if(.., |old| old.is_same(&entry)).next();
        state.entries.push(entry);
        drop(state);
        self.interrupt.raise();
        drop(old); // outside the lock: wakers are code of executors
    }

    fn run(&self) {
        loop {
            // Before the state is read: whoever changes it afterwards raises the interrupt after that.
            let count = self.interrupt.count();
            let mut state = self.lock();
            while state.leaving > 0 {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.ending {
                return;
            }
            let entries = mem::take(&mut state.entries);
            state.in_round = true;
            drop(state);
            let (entries, woken) = self.round(entries, count);
            let spare = self.end_round(entries);
            woken.into_iter().for_each(waking::wake);
            spare.into_iter().for_each(|purpose| waking::contain(|| drop(purpose)));
        }
    }

    /// Sleeps until something is ready. Returns what is still awaited, and the tasks to wake.
    fn round(&self, mut entries: Vec<Entry>, count: u32) -> (Vec<Entry>, Vec<Waker>) {
        await_any(entries.iter_mut().map(|entry| &mut entry.awaited), &self.interrupt, count);
        let (mut kept, mut woken) = (Vec::with_capacity(entries.len()), Vec::new());
        for mut entry in entries {
            let ready = entry.awaited.is_ready();
            match entry.purpose {
                Purpose::Wake(task) if ready => woken.push(task),
                Purpose::Tend(_, Some(ref awaiting)) if awaiting.strong_count() == 0 => {}
                Purpose::Tend(Some(until), _) if Instant::now() >= until => {}
                Purpose::Tend(..) if ready && entry.awaited.tend() => {}
                _ => kept.push(entry),
            }
        }
        (kept, woken)
    }

    /// Puts back what is still awaited, unless it has been entered again in the meantime. Returns what is left over.
    fn end_round(&self, entries: Vec<Entry>) -> Vec<Purpose> {
        let mut state = self.lock();
        let (mut kept, mut spare) = (entries, Vec::new());
        let twice = kept.extract_if(.., |old| state.entries.iter().any(|entry| entry.is_same(old)));
        spare.extend(twice.map(|entry| entry.purpose));
        state.entries.append(&mut kept);
        state.in_round = false;
        if state.leaving > 0 {
            self.changed.notify_all();
        }
        spare
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::ffi::c_void;
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An owner of operations that never end, which counts how often they are tended.
    #[derive(Debug, Default)]
    struct Endless([AtomicUsize; 2]);

    unsafe extern "C" fn look(awaited: *mut sys::epw_awaited, _: bool, _: u64) {
        // SAFETY: looks get what is awaited.
        unsafe { (*awaited).ns = 1_000_000 };
    }

    // SAFETY: the look does not use the owner.
    unsafe impl Watched for Endless {
        fn look(&self) -> sys::epw_look {
            look
        }

        fn owner(&self) -> *mut c_void {
            ptr::from_ref(self).cast_mut().cast()
        }

        fn tend(&self, operation: u64) -> bool {
            self.0[operation as usize].fetch_add(1, Ordering::SeqCst);
            false
        }
    }

    #[test]
    fn an_operation_is_tended_as_long_as_something_awaits_it() {
        let (waits, owner) = (Waits::default(), Arc::new(Endless::default()));
        waits.start("wait", 0, &owner, Duration::from_millis(4)).unwrap();
        let tended = |operation: usize| owner.0[operation].load(Ordering::SeqCst);
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !holds() {
                assert!(began.elapsed() < Duration::from_secs(20), "not in time: {what}");
                thread::sleep(Duration::from_millis(1));
            }
        };
        let goes_on = |operation| {
            let before = tended(operation);
            until("goes on", &|| tended(operation) > before + 3);
        };
        let [first, other] = [Awaiting::default(), Awaiting::default()];
        let second = first.clone();
        for (operation, awaiting) in [(0, &first), (0, &second), (1, &other)] {
            waits.tend(operation, None, awaiting);
        }
        drop(first);
        goes_on(0);
        drop(second);
        until("is over", &|| {
            let before = tended(0);
            goes_on(1);
            goes_on(1);
            tended(0) == before
        });
        goes_on(1);
    }
}
