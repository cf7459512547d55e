//! The thread of a lane or communicator that waits so that no task of an executor has to. It reads only signal words in
//! the window, never the memory of an operation's caller.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::waking;

/// Longest time between two looks at an operation, however long its deadline is.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_millis(10);

/// What has operations to watch. A handle names one that is running, or was.
pub(crate) trait Watched: Send + Sync + 'static {
    /// Sleeps until one of these, of which the newest comes last, may make progress; at most `longest`. Touches no
    /// caller memory.
    fn sleep(&self, handles: &[u64], longest: Duration);
    /// Whether it has nothing to wait for any more.
    fn is_over(&self, handle: u64) -> bool;
}

/// Wakes a task when the words that its operation awaits may have arrived.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    request: Mutex<Request>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Request {
    /// Several if different tasks await clones of an event.
    tasks: Vec<(u64, Waker)>,
    /// The operation that an event awaits, and until when. It is polled however busy the task's executor is, because
    /// the polls show the peers that this rank waits too.
    tended: Option<(u64, Option<Instant>)>,
    ending: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Request> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at least once per `slice`, whatever the C core reports.
    fn run(&self, watched: &impl Watched, slice: Duration) {
        let mut request = self.lock();
        while !request.ending {
            let (tasks, tended) = (std::mem::take(&mut request.tasks), request.tended);
            let handles: Vec<u64> = match tasks.is_empty() {
                true => tended.iter().map(|(handle, _)| *handle).collect(),
                false => tasks.iter().map(|(handle, _)| *handle).collect(),
            };
            if handles.is_empty() {
                request = self.changed.wait(request).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(request);
            watched.sleep(&handles, slice);
            let over = tended.is_some_and(|(handle, until)| {
                watched.is_over(handle) || until.is_some_and(|until| Instant::now() >= until)
            });
            tasks.into_iter().for_each(|(_, waker)| waking::wake(waker));
            request = self.lock();
            if over && request.tended == tended {
                request.tended = None;
            }
        }
    }
}

impl Watcher {
    /// Starts the thread unless it runs. If it cannot be started, the next call tries again.
    pub(crate) fn start(&self, watched: &Arc<impl Watched>, slice: Duration) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (shared, watched) = (self.shared.clone(), watched.clone());
            let watch = std::thread::Builder::new().name("epwire-watch".into());
            *thread = Some(watch.spawn(move || shared.run(&*watched, slice))?);
        }
        Ok(())
    }

    /// Keeps polling the operation of a handle until it is over, at most until `until`.
    pub(crate) fn tend(&self, handle: u64, until: Option<Instant>) {
        self.shared.lock().tended = Some((handle, until));
    }

    /// Has the task polled again when its operation may make progress.
    pub(crate) fn wake_later(&self, handle: u64, waker: &Waker) {
        // Outside the lock, because cloning and dropping a waker runs code of the executor.
        let mut task = Some((handle, waker.clone()));
        let mut request = self.shared.lock();
        if !request.tasks.iter().any(|(of, task)| *of == handle && task.will_wake(waker)) {
            request.tasks.extend(task.take());
        }
        drop(request);
        self.shared.changed.notify_one();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.changed.notify_one();
        // A waker called on that thread may have dropped the last owner: the thread cannot join itself.
        let elsewhere = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && elsewhere(&thread)
        {
            // The thread ends within a slice.
            let _ = thread.join();
        }
    }
}
