//! What a buffer has sent and received, for programs and for metrics.

use super::ep_buffer::{EpBuffer, Inner};
use crate::error::Result;
use crate::ffi::Floor;
use crate::outcome::Outcome;
use crate::sys;
use crate::traffic::Traffic;

impl EpBuffer {
    /// What this rank has sent and received through this buffer, and how long it has waited for each peer. Communicates
    /// with nobody and waits for nobody.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) on a GPU, whose kernels do not count: there request
    /// [`source_counts`](crate::GenericDispatchOutput::source_counts) and
    /// [`wait_ns`](crate::GenericDispatchOutput::wait_ns).
    pub fn traffic(&self) -> Result<Traffic> {
        self.inner.ffi.traffic(self.inner.plan.ranks)
    }
}

impl Inner {
    /// The outcome of an operation that has ended; its traffic is added to the metrics.
    pub(super) fn ended(&self, outcome: &sys::epw_outcome) -> Result<Outcome> {
        self.told.tell(&*self.ffi, self.rank, self.plan.ranks);
        Outcome::of(&*self.ffi, outcome)
    }
}
