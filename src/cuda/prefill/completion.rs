//! Whether and how an enqueued operation of prefill has ended, seen from the host and from other streams.

use std::sync::Arc;
use std::time::Duration;

use super::shared::{Shared, State, site};
use crate::cuda::stream::StreamRef;
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::outcome::{Outcome, Reader};
use crate::sys;

/// The last operation that was enqueued for a [`Routing`](super::Routing): wait on the host for the GPU to have run it, and
/// learn how it ended; or let another stream wait for it. The stream of the call itself needs no wait: what comes later on it
/// runs later.
///
/// Valid until the next operation of the routing is enqueued: [`Error::State`]. That of a captured call is only good for
/// [`PrefillCompletion::wait_on`]. Cheap to clone; `Send` and `Sync`. Keeps the routing's memory and its buffer alive; dropping it affects nothing.
#[doc(alias = "Event")]
#[derive(Debug, Clone)]
pub struct PrefillCompletion {
    shared: Arc<Shared>,
    /// Which of the routing's calls it belongs to.
    call: u64,
}

impl PrefillCompletion {
    /// Of the last call.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { call: shared.lock().calls, shared: shared.clone() }
    }

    /// Whether the operation has run. Never waits.
    pub fn is_done(&self) -> Result<bool> {
        let state = self.shared.lock();
        Ok(self.poll(&state, &mut ffi::empty_outcome())? == Progress::Done)
    }

    /// How the operation ended, `None` if it has not run yet. Reads host memory and does not wait; except that with the
    /// feature `metrics` it copies the counts of what was moved from the GPU, at most every 100 ms, as
    /// [`Completion::outcome`](crate::cuda::Completion::outcome) does.
    pub fn outcome(&self) -> Result<Option<Outcome>> {
        let ended = self.look(&self.shared.lock())?;
        if ended.is_some() {
            self.shared.inner.tell();
        }
        Ok(ended)
    }

    /// Waits on this thread until it has run, [`Error::Timeout`] if `timeout` passes first: wait again, or look at what
    /// is enqueued before it. A wait for peers that make no progress ends within the operation's deadline by itself.
    /// Not for a thread that serves an async executor.
    pub fn wait_blocking(&self, timeout: Duration) -> Result<Outcome> {
        let outcome = self.shared.wait_blocking(timeout, |state| self.look(state))?;
        self.shared.inner.tell();
        Ok(outcome)
    }

    /// [`PrefillCompletion::wait_blocking`] without blocking the executor: the progress thread looks, and no counts are
    /// copied. Dropping the future gives up waiting, nothing else.
    pub async fn wait(&self, timeout: Duration) -> Result<Outcome> {
        self.shared.wait(timeout, |state| self.look(state)).await
    }

    /// Makes `stream` wait for the operation, under capture too: as
    /// [`Completion::wait_on`](crate::cuda::Completion::wait_on), with the routing's calls instead of the lane's.
    pub fn wait_on(&self, stream: StreamRef<'_>) -> Result<()> {
        let state = self.shared.lock();
        let site = site(&self.shared.inner, "stream_wait", &stream)?;
        self.require_last(&state, "stream_wait")?;
        // SAFETY: it is a stream of the buffer's GPU: its maker promised that, or it was checked.
        unsafe { state.routing.stream_wait(site.stream()) }
    }

    fn require_last(&self, state: &State, operation: &str) -> Result<()> {
        if state.calls == self.call {
            return Ok(());
        }
        let text = "the routing's next operation has been enqueued: take its completion";
        Err(Error::State(Failure::new(operation, self.shared.inner.rank, text)))
    }

    fn look(&self, state: &State) -> Result<Option<Outcome>> {
        let inner = &self.shared.inner;
        let mut outcome = ffi::empty_outcome();
        let progress = self.poll(state, &mut outcome)?;
        (progress == Progress::Done).then(|| Outcome::of(&*inner.ffi, &outcome, Reader::Program)).transpose()
    }

    fn poll(&self, state: &State, outcome: &mut sys::epw_outcome) -> Result<Progress> {
        self.require_last(state, "wait")?;
        // SAFETY: on a GPU it asks for the state of an event, and touches no memory of the operation.
        unsafe { state.routing.look(outcome) }
    }
}
