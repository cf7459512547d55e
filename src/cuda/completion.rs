//! Whether and how enqueued work has ended, seen from the host.

use std::sync::Arc;
use std::time::Duration;

use super::stream::StreamRef;
use super::waiting::{late, until};
use crate::buffer::Inner;
use crate::error::Result;
use crate::ffi::Progress;
use crate::outcome::{Outcome, Reader};
use crate::sys;

/// The last call that was enqueued for a handle, and those before it: wait on the host for the GPU to have run them, then ask
/// how it ended; or let another stream wait for them. The stream of the call itself needs no wait: what comes later on it
/// runs later.
///
/// Valid until the lane's next dispatch is enqueued: [`Error::State`](crate::Error::State). That of a captured call is only
/// good for [`Completion::wait_on`].
/// Cheap to clone; `Send` and `Sync`. Keeps its buffer alive.
#[doc(alias = "Event")]
#[derive(Debug, Clone)]
pub struct Completion {
    inner: Arc<Inner>,
    handle: sys::epw_handle,
}

impl Completion {
    pub(super) fn new(inner: Arc<Inner>, handle: sys::epw_handle) -> Self {
        Self { inner, handle }
    }

    /// Whether the work has run. Never waits.
    pub fn is_done(&self) -> Result<bool> {
        Ok(self.inner.ffi.wait(self.handle, Duration::ZERO)? == Progress::Done)
    }

    /// Waits on this thread until it has run, [`Error::Timeout`](crate::Error::Timeout) if `timeout` passes first: wait
    /// again, or look at what is enqueued before it. Each wait for peers ends by itself within 4 deadlines, and a half
    /// waits twice at most; if other work keeps some of its blocks off the GPU it may take 16 deadlines more. Not for a
    /// thread that serves an async executor.
    pub fn wait_blocking(&self, timeout: Duration) -> Result<()> {
        match self.inner.ffi.wait(self.handle, timeout)? {
            Progress::Done => Ok(()),
            Progress::Pending => Err(late(self.inner.rank, timeout)),
        }
    }

    /// [`Completion::wait_blocking`] without blocking the executor: the progress thread looks. Dropping the future gives up
    /// waiting, nothing else.
    pub async fn wait(&self, timeout: Duration) -> Result<()> {
        self.inner.start_waits("wait")?;
        let look = || Ok(self.is_done()?.then_some(()));
        let wake_later = |waker: &_| self.inner.waits.wake_later(self.handle, waker);
        until(self.inner.rank, timeout, look, wake_later).await
    }

    /// Makes `stream` wait for the work: what is enqueued on it from now on runs afterwards. Returns at once, and
    /// enqueues nothing on the stream of the call itself. Under capture:
    ///
    /// * If the call was captured, `stream` joins that capture, unless it is in it already. Like every stream that has
    ///   joined, it must be waited for by the first one before the capture ends, by an event of the program.
    /// * If only `stream` is under capture, its graph waits, whenever it is launched, for what eager calls have enqueued
    ///   on the lane before the launch. It must not be launched any more once the buffer is gone.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid): a stream of another GPU. [`Error::State`](crate::Error::State): as
    /// above; or the call was captured, and its capture has ended (then let `stream` wait for the graph), or `stream` is
    /// under another capture or the legacy default stream. Captures are not harmed.
    pub fn wait_on(&self, stream: StreamRef<'_>) -> Result<()> {
        let site = self.inner.site("stream_wait", &stream)?;
        // SAFETY: it is a stream of the buffer's GPU: its maker promised that, or it was checked.
        unsafe { self.inner.ffi.stream_wait(self.handle, site.stream()) }
    }

    /// How the work ended, `None` if it has not run yet. Copies a few hundred bytes from the GPU. That takes
    /// microseconds, or as long as copies enqueued by the program earlier keep the copy engine busy; at most the
    /// deadline. With the feature `metrics` it copies the counts of what was moved too, at most every 100 ms.
    pub fn outcome(&self) -> Result<Option<Outcome>> {
        let outcome = self.inner.ffi.outcome(self.handle)?;
        outcome.map(|outcome| self.inner.ended(&outcome, Reader::Program)).transpose()
    }
}
