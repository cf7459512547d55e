//! Whether and how an enqueued operation of prefill has ended, seen from the host.

use std::sync::Arc;
use std::time::Duration;

use super::shared::{Shared, State};
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::outcome::Outcome;

/// The last operation that was enqueued for a [`Routing`](super::Routing): wait on the host for the GPU to have run it, and
/// learn how it ended. The stream of the call itself needs no wait: what comes later on it runs later.
///
/// Valid until the next operation of the routing is enqueued, and not for captured calls: [`Error::State`]. Cheap to
/// clone; `Send` and `Sync`. Keeps the routing's memory and its buffer alive; dropping it affects nothing.
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
        Ok(self.outcome()?.is_some())
    }

    /// How the operation ended, `None` if it has not run yet. Reads host memory; never waits.
    pub fn outcome(&self) -> Result<Option<Outcome>> {
        self.look(&self.shared.lock())
    }

    /// Waits on this thread until it has run, [`Error::Timeout`] if `timeout` passes first: wait again, or look at what
    /// is enqueued before it. A wait for peers that make no progress ends within the operation's deadline by itself.
    /// Not for a thread that serves an async executor.
    pub fn wait_blocking(&self, timeout: Duration) -> Result<Outcome> {
        self.shared.wait_blocking(timeout, |state| self.look(state))
    }

    /// [`PrefillCompletion::wait_blocking`] without blocking the executor: the progress thread looks. Dropping the future
    /// gives up waiting, nothing else.
    pub async fn wait(&self, timeout: Duration) -> Result<Outcome> {
        self.shared.wait(timeout, |state| self.look(state)).await
    }

    fn look(&self, state: &State) -> Result<Option<Outcome>> {
        let inner = &self.shared.inner;
        if state.calls != self.call {
            let text = "the routing's next operation has been enqueued: take its completion";
            return Err(Error::State(Failure::new("wait", inner.rank, text)));
        }
        let mut outcome = ffi::empty_outcome();
        // SAFETY: on a GPU it asks for the state of an event, and touches no memory of the operation.
        let progress = unsafe { state.routing.look(&mut outcome) }?;
        (progress == Progress::Done).then(|| Outcome::of(&*inner.ffi, &outcome)).transpose()
    }
}
