//! Operations in flight: an owned handle, and futures over it that never block the polling thread.
//!
//! An operation accesses its caller's memory only inside a poll (or a blocking call), on the polling thread, while the
//! borrow is alive. So a future may be dropped or forgotten at any point: all that continues without it are the words
//! that a release owes the peers. In the meantime the process's progress thread waits, which reads only signal words
//! in windows.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::ep_buffer::Inner;
use crate::error::Result;
use crate::ffi::{self, Progress};
use crate::observe::Observed;
use crate::outcome::{Outcome, Reader};
use crate::peers::Awaiting;
use crate::sys;

/// A live handle of the C core: its lane is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenHandle {
    pub(crate) inner: Arc<Inner>,
    pub(crate) handle: sys::epw_handle,
    /// Of the half that began last.
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

    pub(crate) fn is_consumed(&self) -> bool {
        self.consumed
    }

    /// Runs an operation on this thread. `start` begins it; its argument says whether not to block.
    pub(super) fn run(
        &self,
        name: &'static str,
        reader: Reader,
        start: impl FnOnce(bool, &mut sys::epw_outcome) -> Result<Progress>,
    ) -> Result<Outcome> {
        let observed = Observed::begin(name, self.inner.rank);
        let mut outcome = ffi::empty_outcome();
        let ended = start(false, &mut outcome).and_then(|_| self.inner.ended(&outcome, reader));
        observed.end(ended, |outcome| outcome)
    }

    /// The same without blocking the polling thread.
    ///
    /// # Safety
    /// The memory that `start` passes to the operation stays valid until this future has ended or been dropped.
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
            unsafe { self.finish(progress, outcome, Reader::Program) }.await
        };
        observed.end(ended.await, |outcome| outcome)
    }

    /// Polls the current operation to its end. The progress thread runs: see [`Inner::start_waits`].
    ///
    /// # Safety
    /// The memory passed to it stays valid until this future has ended or been dropped.
    pub(super) async unsafe fn finish(
        &self,
        mut first: Progress,
        mut outcome: sys::epw_outcome,
        reader: Reader,
    ) -> Result<Outcome> {
        poll_fn(|cx| {
            if first == Progress::Pending {
                // SAFETY: by this function's contract: the future is being polled, so it has not ended.
                first = unsafe { self.inner.ffi.poll(self.handle, &mut outcome) }?;
            }
            match first {
                Progress::Done => Poll::Ready(self.inner.ended(&outcome, reader)),
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
/// deadline, counted from the creation of the event, has passed. The caller must still receive; a consumed or released
/// operation counts as ready.
///
/// Awaiting it takes part in the wait: peers see that this rank is alive, even while its executor is busy. That begins with
/// its first poll and ends when it is dropped; each clone takes part for itself. Only holding it, or calling
/// [`Event::is_ready`] now and then, does not. Await it as a future on any executor, or with [`Event::wait_blocking`].
/// Work on a GPU has a `cuda::Completion` instead.
#[derive(Debug, Clone)]
pub struct Event {
    inner: Arc<Inner>,
    handle: sys::epw_handle,
    /// `None`: beyond the range of the clock.
    until: Option<Instant>,
    awaiting: Awaiting,
}

impl Event {
    pub(super) fn new(open: &OpenHandle) -> Self {
        let until = Instant::now().checked_add(open.deadline);
        Self { inner: open.inner.clone(), handle: open.handle, until, awaiting: Awaiting::default() }
    }

    /// Whether it is ready now. Never waits.
    pub fn is_ready(&self) -> bool {
        !matches!(self.inner.ffi.ready(self.handle), Ok(Progress::Pending)) || self.left().is_zero()
    }

    /// Waits on this thread, at most for the operation's deadline. Not for a thread that serves an async executor.
    pub fn wait_blocking(&self) {
        // Each look keeps this rank in the wait: peers see that it is alive.
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
        // Without a thread it stays alive by being polled again at once.
        let _ = self.inner.start_waits("wait");
        self.inner.waits.tend(self.handle, self.until, &self.awaiting);
        self.inner.waits.wake_later(self.handle, cx.waker());
        Poll::Pending
    }
}
