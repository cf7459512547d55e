//! What a buffer has sent and received, for programs and for metrics.

use super::ep_buffer::{EpBuffer, Inner};
use crate::error::Result;
use crate::ffi::Floor;
use crate::outcome::{Outcome, Reader};
use crate::sys;
use crate::traffic::Traffic;

impl EpBuffer {
    /// What this rank has sent and received through this buffer, and how long it has waited for each peer. Communicates
    /// with nobody.
    ///
    /// On a GPU kernels count, in replays of graphs too, from the first call of this on: operations enqueued and graphs
    /// captured before that are not counted. Counting makes a dispatch and combine of few tokens 1 to 2.6 us longer
    /// (2 H100s, FP8, 1 token: 14.5 to 15.7 us rank-major, 17.2 to 19.8 expert-major). The counts are copied to the host,
    /// on no stream of the caller, so this may be called while a stream is captured. Times waited are 0 there: request
    /// [`wait_ns`](crate::GenericDispatchOutput::wait_ns).
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) if the GPU has not copied the counts within the group's deadline.
    pub fn traffic(&self) -> Result<Traffic> {
        self.inner.ffi.traffic(self.inner.plan.ranks)
    }
}

impl Inner {
    /// The outcome of an operation that has ended; its traffic is added to the metrics.
    pub(crate) fn ended(&self, outcome: &sys::epw_outcome, reader: Reader) -> Result<Outcome> {
        self.told.tell(&*self.ffi, self.rank, self.plan.ranks);
        Outcome::of(&*self.ffi, outcome, reader)
    }
}
