//! The members of a buffer's operations: beginning a membership, and continuing without ranks that have failed.

use std::ops::Range;
use std::time::Duration;

use super::ep_buffer::{EpBuffer, Inner};
use crate::cause::Cause;
use crate::error::Result;
use crate::ffi::Floor;
use crate::group::{Follower, GivenUp, held_by};
use crate::mask::Mask;
use crate::peers::{self, Membership};
use crate::rendezvous::Decision;

impl EpBuffer {
    /// Begins a membership: every member calls it with the same mask, epoch and step, with no lane held. `epoch` is in
    /// `1..=8388607` and larger than all earlier ones. `step` is the group's step at which the membership begins, below
    /// 2^41; 0 in programs that count no steps. Members that begin the epoch at different steps do not take part in
    /// each other's operations: [`Cause::Step`](crate::Cause::Step). Clears suspects. For a buffer that was created
    /// with a group [`Group::step`](crate::Group::step) does this.
    ///
    /// On GPUs this waits on the calling thread for what has been enqueued before, and then for the GPU to apply the
    /// change, each for at most a deadline: [`Error::Timeout`](crate::Error::Timeout). Between these waits the buffer's
    /// other calls continue.
    pub fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
        self.inner.ffi.set_active(active, epoch, step)
    }

    /// Tells the buffer that the group continues without these ranks: they become suspects of this membership, and all
    /// waits for them, current and future ones, end at once with [`Cause::Revoked`](crate::Cause::Revoked). It
    /// does not say that they have failed, so none of them becomes [`silent`](Membership::silent). Ranks that are not
    /// members are ignored. Callable from any thread while operations run, and waits for none of them; on GPUs, kernels
    /// look for it after waiting for some tens of microseconds.
    ///
    /// Errors: [`Error::Invalid`](crate::Error::Invalid) if this rank is among them.
    pub fn revoke(&self, ranks: &Mask) -> Result<()> {
        self.inner.ffi.revoke(ranks, Cause::Revoked)
    }

    /// The current membership, and its suspects.
    pub fn membership(&self) -> Result<Membership> {
        Membership::of(&*self.inner.ffi)
    }

    /// For every expert, whether its rank is active and not given up.
    pub fn reachable_experts(&self) -> Result<Vec<bool>> {
        self.inner.ffi.reachable_experts(self.inner.config.experts)
    }
}

impl Follower for Inner {
    fn begin(&self, decision: &Decision) -> Result<()> {
        peers::begin(&*self.ffi, decision)
    }

    fn revoke(&self, peers: &Mask, why: Cause) -> Result<()> {
        self.ffi.revoke(peers, why)
    }

    fn given_up(&self) -> Result<GivenUp> {
        peers::given_up(&*self.ffi)
    }

    fn experts(&self, ranks: &Mask) -> Option<Vec<Range<u32>>> {
        Some(held_by(ranks, self.plan.ranks, self.config.experts))
    }

    fn is_overtaken(&self, epoch: u32) -> bool {
        peers::is_overtaken(&*self.ffi, epoch)
    }

    fn diverged(&self, epoch: u32, step: u64) -> Mask {
        peers::diverged(&*self.ffi, epoch, step)
    }

    fn reaches(&self, peer: u32, timeout: Duration) -> bool {
        peers::reaches(&*self.ffi, peer, timeout)
    }

    fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.ffi.export(peer)
    }

    fn connect(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()> {
        self.ffi.connect(peer, blob, timeout)
    }
}
