//! What has become of enqueued work, seen from the host.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::stream::StreamRef;
use super::view::Site;
use crate::buffer::{EpBuffer, Inner};
use crate::error::{Error, Failure, Result};
use crate::ffi::Progress;
use crate::outcome::{ErrorRecord, Outcome};
use crate::sys;

/// The last call that was enqueued for a handle, and those before it: wait on the host for the GPU to have run them, then ask
/// how it ended; or let another stream wait for them. The stream of the call itself needs no wait: what comes later on it
/// runs later.
///
/// Valid until the lane's next dispatch is enqueued, and not for captured calls: [`Error::State`]. Cheap to clone; `Send`
/// and `Sync`. Keeps its buffer alive.
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

    /// Whether it has run. Never waits.
    pub fn is_done(&self) -> Result<bool> {
        Ok(self.inner.ffi.wait(self.handle, Duration::ZERO)? == Progress::Done)
    }

    /// Waits on this thread until it has run, [`Error::Timeout`] if `timeout` is over first: wait again, or look at what
    /// is enqueued before it. Each wait for peers ends by itself within 4 deadlines, and a half waits twice at most; where other
    /// work keeps some of its blocks off the GPU it may take 16 deadlines more. Not for a thread that serves an async executor.
    pub fn wait_blocking(&self, timeout: Duration) -> Result<()> {
        match self.inner.ffi.wait(self.handle, timeout)? {
            Progress::Done => Ok(()),
            Progress::Pending => Err(self.late(timeout)),
        }
    }

    /// [`Completion::wait_blocking`] without blocking the executor: the progress thread looks. Dropping the future gives up
    /// waiting, nothing else.
    pub async fn wait(&self, timeout: Duration) -> Result<()> {
        let until = Instant::now().checked_add(timeout); // none: past all clocks
        self.inner.start_waits("wait")?;
        poll_fn(|cx| {
            if self.is_done()? {
                return Poll::Ready(Ok(()));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Poll::Ready(Err(self.late(timeout)));
            }
            self.inner.waits.wake_later(self.handle, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Lets `stream` wait for it: what is enqueued there from now on runs after it. Returns at once, and enqueues nothing on
    /// the stream of the call itself.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a stream of another GPU. [`Error::State`]: as above, or `stream` is under capture. Order
    /// the streams of a capture by events captured with them, or let the stream that launches the graph wait.
    pub fn wait_on(&self, stream: StreamRef<'_>) -> Result<()> {
        let device = self.inner.gpu("stream_wait")?;
        Site::new("stream_wait", self.inner.rank, device, &stream)?;
        // SAFETY: a stream of the buffer's GPU, as its maker has promised or was checked.
        unsafe { self.inner.ffi.stream_wait(self.handle, stream.raw) }
    }

    /// How it ended, `None` if it has not run yet. Copies some hundred bytes from the GPU, which takes microseconds, or as
    /// long as copies that the program has enqueued before keep its copy engine busy; at most the deadline.
    pub fn outcome(&self) -> Result<Option<Outcome>> {
        let ffi = &self.inner.ffi;
        ffi.outcome(self.handle)?.map(|outcome| Outcome::of(&**ffi, &outcome)).transpose()
    }

    fn late(&self, timeout: Duration) -> Error {
        let text = format!(
            "the GPU has not run what was enqueued within {timeout:?}: wait again, or look at what is enqueued before it"
        );
        Error::Timeout(Failure::new("wait", self.inner.rank, text))
    }
}

/// What kernels have recorded since the last look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "they are given out once"]
pub struct Errors {
    /// Oldest first.
    pub records: Vec<ErrorRecord>,
    /// How many more there would be: overwritten before anybody took them, or bad ids of one operation beyond 64.
    pub lost: u64,
}

impl EpBuffer {
    /// Takes the records that kernels have written since the last call: peers given up, routing ids not followed, replays out
    /// of turn. They lie in host memory: the GPU is not asked, and nothing is waited for. Always empty for a host buffer,
    /// whose outcomes and errors say all.
    pub fn take_errors(&self) -> Result<Errors> {
        /// More than the kernels' ring holds.
        const CAPACITY: u32 = 512;
        let (records, lost) = self.inner.ffi.take_errors(CAPACITY)?;
        Ok(Errors { records: records.iter().filter_map(ErrorRecord::from_c).collect(), lost })
    }
}
