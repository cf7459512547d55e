//! A routing of the C core, and the number of calls enqueued with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::Device;
use crate::cuda::stream::StreamRef;
use crate::cuda::view::Site;
use crate::cuda::waiting::{until, until_blocking};
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::peers::longest_look;
use crate::prefill::Inner;

/// What a routing shares with the completions of its calls. The memory of the routing is free when the last of them is
/// gone.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) inner: Arc<Inner>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) routing: ffi::Routing,
    /// Calls that have been enqueued.
    pub(super) calls: u64,
}

impl Shared {
    pub(super) fn new(inner: &Arc<Inner>, routing: ffi::Routing) -> Self {
        Self { inner: inner.clone(), state: Mutex::new(State { routing, calls: 0 }) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that enqueues.
    pub(super) fn enqueue(&self, call: impl FnOnce(&mut ffi::Routing) -> Result<Progress>) -> Result<()> {
        let mut state = self.lock();
        call(&mut state.routing)?;
        state.calls += 1;
        Ok(())
    }

    /// Waits on this thread until `look` finds something that the routing's last call brings about.
    pub(super) fn wait_blocking<T>(
        &self,
        timeout: Duration,
        look: impl Fn(&State) -> Result<Option<T>>,
    ) -> Result<T> {
        let inner = &self.inner;
        let lane = || self.lock().routing.lane();
        let sleep =
            |left: Duration| inner.ffi.sleep(lane(), left.min(longest_look(inner.config.ep.deadline)));
        until_blocking(inner.rank, timeout, || look(&self.lock()), sleep)
    }

    /// The same, while the progress thread waits.
    pub(super) async fn wait<T>(
        &self,
        timeout: Duration,
        look: impl Fn(&State) -> Result<Option<T>>,
    ) -> Result<T> {
        let inner = &self.inner;
        inner.start_waits()?;
        let lane = || self.lock().routing.lane();
        let wake_later = |waker: &_| inner.waits.wake_later(lane().into(), waker);
        until(inner.rank, timeout, || look(&self.lock()), wake_later).await
    }
}

/// Where an operation runs; fails for a buffer on the host and for a stream of another GPU.
pub(super) fn site(inner: &Inner, operation: &str, stream: &StreamRef<'_>) -> Result<Site> {
    Site::of(&*inner.ffi, operation, (inner.rank, ordinal(inner, operation)?), stream)
}

/// The buffer's GPU; fails for a buffer on the host.
pub(super) fn ordinal(inner: &Inner, operation: &str) -> Result<u32> {
    match inner.config.ep.device {
        Device::Cuda(ordinal) => Ok(ordinal),
        Device::Host => {
            let text = "the buffer is on the host: use what has this name in epwire::prefill, without the `enqueue_` prefix, or create it with Device::Cuda";
            Err(Error::State(Failure::new(operation, inner.rank, text)))
        }
    }
}
