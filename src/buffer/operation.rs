//! Operations in flight: an owned handle, and futures over it that never block the thread that polls them.
//!
//! An operation touches its caller's memory only inside a poll (or a blocking call), on the polling thread, while the
//! borrow is alive. So a future may be dropped or forgotten at any point: nothing runs on without it but the words that
//! a release owes the peers. What waits in the meantime is the process's progress thread, which looks at signal words in
//! windows only.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::ep_buffer::Inner;
use crate::error::Result;
use crate::ffi::{self, Progress};
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::sys;

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
        let ended = start(false, &mut outcome).and_then(|_| self.inner.ended(&outcome));
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
            self.inner.start_waits(name)?;
            let mut outcome = ffi::empty_outcome();
            let progress = start(true, &mut outcome)?;
            // SAFETY: by this function's contract.
            unsafe { self.finish(progress, outcome) }.await
        };
        observed.end(ended.await, |outcome| outcome)
    }

    /// Polls the running operation to its end. It is waited for: see [`Inner::start_waits`].
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
                Progress::Done => Poll::Ready(self.inner.ended(&outcome)),
                Progress::Pending => {
                    self.inner.waits.wake_later(self.handle, cx.waker());
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
        // No thread to wait with: it stays live by being polled again at once.
        let _ = self.inner.start_waits("wait");
        self.inner.waits.tend(self.handle, self.until);
        self.inner.waits.wake_later(self.handle, cx.waker());
        Poll::Pending
    }
}
