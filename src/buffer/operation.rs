//! Operations in flight: an owned handle, and futures over it that never block the thread that polls them.
//!
//! An operation touches its caller's memory only inside a poll (or a blocking call), on the polling thread, while the
//! borrow is alive. So a future may be dropped or forgotten at any point: nothing runs on without it but the words that
//! a release owes the peers. What waits in the meantime is a watcher thread per lane, which looks at signal words in the
//! window only.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Inner;
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::{sys, waking};

/// A live handle of the C core: its lane is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenHandle {
    pub(crate) inner: Arc<Inner>,
    pub(crate) handle: sys::epw_handle,
    /// Of the half that has begun last.
    deadline: Duration,
    consumed: bool,
}

impl OpenHandle {
    pub(crate) fn new(inner: Arc<Inner>, handle: sys::epw_handle, deadline: Duration) -> Self {
        Self { inner, handle, deadline, consumed: false }
    }

    /// That of the combine, once it has begun.
    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// The C core has consumed the handle: there is nothing to release.
    pub(crate) fn mark_consumed(&mut self) {
        self.consumed = true;
    }

    /// Runs an operation on this thread. `start` begins it (its argument: whether not to block).
    pub(super) fn run(
        &self,
        name: &'static str,
        start: impl FnOnce(bool, &mut sys::epw_outcome) -> Result<Progress>,
    ) -> Result<Outcome> {
        let observed = Observed::begin(name, self.inner.rank);
        let mut outcome = ffi::empty_outcome();
        let ended = start(false, &mut outcome).map(|_| Outcome::from_c(&outcome));
        observed.end(ended, |outcome| outcome)
    }

    /// The same without blocking the thread that polls.
    ///
    /// # Safety
    /// The memory that `start` gives to the operation stays valid until this future has ended or been dropped.
    pub(super) async unsafe fn run_async(
        &self,
        name: &'static str,
        start: impl FnOnce(bool, &mut sys::epw_outcome) -> Result<Progress>,
    ) -> Result<Outcome> {
        let observed = Observed::begin(name, self.inner.rank);
        let ended = async {
            self.inner.watch_lanes(name)?;
            let mut outcome = ffi::empty_outcome();
            let progress = start(true, &mut outcome)?;
            // SAFETY: by this function's contract.
            unsafe { self.finish(progress, outcome) }.await
        };
        observed.end(ended.await, |outcome| outcome)
    }

    /// Polls the running operation to its end. Its lane is watched: see [`Inner::watch_lanes`].
    ///
    /// # Safety
    /// The memory given to it stays valid until this future has ended or been dropped.
    pub(super) async unsafe fn finish(
        &self,
        mut first: Progress,
        mut outcome: sys::epw_outcome,
    ) -> Result<Outcome> {
        poll_fn(|cx| {
            if first == Progress::Pending {
                // SAFETY: by this function's contract: the future is being polled, so it has not ended.
                first = unsafe { self.inner.ffi.poll(self.handle, &mut outcome) }?;
            }
            match first {
                Progress::Done => Poll::Ready(Ok(Outcome::from_c(&outcome))),
                Progress::Pending => {
                    self.inner.watcher(self.handle).wake_later(self.handle, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if !self.consumed {
            self.inner.ffi.release(self.handle);
        }
    }
}

/// Becomes ready when the receiving half of a split operation would not wait for anybody, or when the operation's
/// deadline, counted from the making of the event, has passed. Receiving stays the caller's to do; a consumed or
/// released operation counts as ready.
///
/// Awaiting it takes part in the wait: peers see that this rank lives, also while its executor is busy. Merely holding it,
/// or asking [`Event::is_ready`] now and then, does not. Wait for it as a future from any executor, or with
/// [`Event::wait_blocking`]. Work on a GPU has a `cuda::Completion` instead.
#[derive(Debug, Clone)]
pub struct Event {
    inner: Arc<Inner>,
    handle: sys::epw_handle,
    /// `None`: past all clocks.
    until: Option<Instant>,
}

impl Event {
    pub(super) fn new(open: &OpenHandle) -> Self {
        let until = Instant::now().checked_add(open.deadline);
        Self { inner: open.inner.clone(), handle: open.handle, until }
    }

    /// Whether it is ready now. Never waits.
    pub fn is_ready(&self) -> bool {
        !matches!(self.inner.ffi.ready(self.handle), Ok(Progress::Pending)) || self.left().is_zero()
    }

    /// Waits on this thread, at most for the operation's deadline. Not for a thread that serves an async executor.
    pub fn wait_blocking(&self) {
        // Each look keeps this rank in the wait: peers see that it lives.
        while !self.is_ready() {
            if self.inner.ffi.wait(self.handle, self.left().min(self.inner.slice())).is_err() {
                return;
            }
        }
    }

    fn left(&self) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }
}

impl Future for Event {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_ready() {
            return Poll::Ready(());
        }
        match self.inner.watch_lanes("wait") {
            Ok(()) => {
                let watcher = self.inner.watcher(self.handle);
                watcher.tend(self.handle, self.until);
                watcher.wake_later(self.handle, cx.waker());
            }
            // No thread to watch with: stay live by asking to be polled again.
            Err(_) => cx.waker().wake_by_ref(),
        }
        Poll::Pending
    }
}

/// Wakes a task when the words that its operation awaits may have come.
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
    /// Several where clones of an event are awaited by different tasks.
    tasks: Vec<(sys::epw_handle, Waker)>,
    /// The operation that is awaited by an event, and until when. It is looked at however busy the task's executor is,
    /// which is what shows the peers that this rank waits too.
    tended: Option<(sys::epw_handle, Option<Instant>)>,
    ending: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Request> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at least once in each `slice`, whatever the C core says.
    fn run(&self, buffer: &ffi::Buffer, slice: Duration) {
        let mut request = self.lock();
        while !request.ending {
            let (tasks, tended) = (std::mem::take(&mut request.tasks), request.tended);
            let newest = tasks.last().map(|(handle, _)| *handle);
            let Some(handle) = newest.or(tended.map(|(handle, _)| handle)) else {
                request = self.changed.wait(request).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(request);
            // One lane has one live handle; others, and an error, say that a handle is gone: its task must look too.
            let _ = buffer.wait(handle, slice);
            let over = tended.is_some_and(|(handle, until)| {
                !matches!(buffer.ready(handle), Ok(Progress::Pending))
                    || until.is_some_and(|until| Instant::now() >= until)
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
    /// Starts the thread unless it runs. One that could not be started is tried again.
    fn start(&self, buffer: &Arc<ffi::Buffer>, slice: Duration) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (shared, buffer) = (self.shared.clone(), buffer.clone());
            let watch = std::thread::Builder::new().name("epwire-watch".into());
            *thread = Some(watch.spawn(move || shared.run(&buffer, slice))?);
        }
        Ok(())
    }

    /// Keeps the operation of a handle in its wait until that is over, `until` at the latest.
    fn tend(&self, handle: sys::epw_handle, until: Option<Instant>) {
        self.shared.lock().tended = Some((handle, until));
    }

    /// Has the task polled again when its operation may go on.
    pub(crate) fn wake_later(&self, handle: sys::epw_handle, waker: &Waker) {
        // Outside the lock: cloning and dropping it runs code of the executor.
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
        // A waker called there may have dropped the last owner: that thread can not wait for itself.
        let elsewhere = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && elsewhere(&thread)
        {
            // Ends within a slice.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Starts the watchers. Before an operation begins, so that a process without a thread to spare is refused one that
    /// it could not see to its end.
    pub(crate) fn watch_lanes(&self, operation: &str) -> Result<()> {
        let lanes = self.watchers.iter().take(self.config.lanes as usize);
        lanes.into_iter().try_for_each(|watcher| watcher.start(&self.ffi, self.slice())).map_err(|error| {
            let text =
                format!("can not start the thread that watches a lane: {error}; check the limit on threads");
            Error::System(Failure::new(operation, self.rank, text))
        })
    }

    /// Longest time between two looks at an operation: peers expect a sign of life in every half of a deadline.
    fn slice(&self) -> Duration {
        const LONGEST: Duration = Duration::from_millis(10);
        (self.config.deadline / 4).min(LONGEST)
    }

    pub(crate) fn watcher(&self, handle: sys::epw_handle) -> &Watcher {
        &self.watchers[(handle & 1) as usize]
    }
}
