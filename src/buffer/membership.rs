//! Who takes part in a buffer's operations: beginning a membership, and going on without the ranks that failed.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::ep_buffer::{EpBuffer, Inner};
use crate::error::{Error, Result};
use crate::group::{Follower, GivenUp, held_by};
use crate::mask::Mask;
use crate::rendezvous::Decision;

/// A membership of one buffer, and what has become of it since [`EpBuffer::set_active`]. How that of the group stands is
/// [`group::Membership`](crate::group::Membership).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Membership {
    /// The ranks that take part.
    pub active: Mask,
    /// Those of them given up since, neither sent to nor waited for until the next membership.
    pub suspects: Mask,
    /// Those of the suspects that this rank has seen silent for a whole deadline. Of the others it has been told, which is no
    /// evidence that they fail.
    pub silent: Mask,
    /// 0: none yet.
    pub epoch: u32,
    /// The step at which it began.
    pub step: u64,
}

impl EpBuffer {
    /// Begins a membership: every member calls it with the same mask, epoch and step, with no lane held. `epoch` is in
    /// `1..=8388607` and larger than any before. `step` is that of the group at which the membership begins, below 2^41; 0 in
    /// programs that count none. Members that begin the epoch at different steps do not take part in each other's operations:
    /// [`Cause::Step`](crate::Cause::Step). Clears suspects. For a buffer
    /// that was created with a group [`Group::step`](crate::Group::step) does this.
    ///
    /// On GPUs this waits on the calling thread for what has been enqueued before, and then for the GPU to take the change, each
    /// for a deadline at most: [`Error::Timeout`](crate::Error::Timeout). Between them the buffer's other calls go on.
    pub fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
        self.inner.ffi.set_active(active, epoch, step)
    }

    /// The group goes on without these ranks: they become suspects of this membership, and waits for them, running and future
    /// ones, end at once, with [`Cause::Superseded`](crate::Cause::Superseded). No accusation: it makes none of them
    /// [`silent`](Membership::silent). Ranks that are no members are ignored. From any thread, beside running operations, none of
    /// which it waits for; on GPUs kernels ask after some tens of microseconds of waiting.
    ///
    /// Errors: [`Error::Invalid`](crate::Error::Invalid) if this rank is among them.
    pub fn revoke(&self, ranks: &Mask) -> Result<()> {
        self.inner.ffi.revoke(ranks)
    }

    /// The current membership, and what has become of it.
    pub fn membership(&self) -> Result<Membership> {
        let now = self.inner.ffi.membership()?;
        Ok(Membership {
            active: Mask::from_words(now.active.bits),
            suspects: Mask::from_words(now.suspects.bits),
            silent: Mask::from_words(now.silent.bits),
            epoch: now.epoch,
            step: now.step,
        })
    }

    /// For every expert, whether its rank is active and not given up.
    pub fn reachable_experts(&self) -> Result<Vec<bool>> {
        self.inner.ffi.reachable_experts(self.inner.config.experts)
    }
}

impl Follower for Inner {
    fn begin(&self, decision: &Decision) -> Result<()> {
        let now = self.ffi.membership()?;
        let begun = (Mask::from_words(now.active.bits), now.epoch, now.step);
        if begun == (decision.mask, decision.epoch, decision.step) {
            return Ok(()); // by a call that another follower made fail
        }
        self.ffi.set_active(&decision.mask, decision.epoch, decision.step)
    }

    fn revoke(&self, peers: &Mask) -> Result<()> {
        self.ffi.revoke(peers)
    }

    fn given_up(&self) -> Result<GivenUp> {
        let now = self.ffi.membership()?;
        let (peers, silent) = (Mask::from_words(now.suspects.bits), Mask::from_words(now.silent.bits));
        Ok(GivenUp { epoch: now.epoch, peers, silent })
    }

    fn experts(&self, ranks: &Mask) -> Vec<Range<u32>> {
        held_by(ranks, self.plan.ranks, self.config.experts)
    }

    fn is_overtaken(&self, epoch: u32) -> bool {
        self.ffi.newest_epoch().is_ok_and(|newest| newest >= epoch)
    }

    fn diverged(&self, epoch: u32, step: u64) -> Mask {
        // Who cannot say accuses nobody.
        self.ffi.diverged(epoch, step).unwrap_or(Mask::EMPTY)
    }

    fn reaches(&self, peer: u32, timeout: Duration) -> bool {
        const PAUSE: Duration = Duration::from_millis(1);
        let began = Instant::now();
        loop {
            match self.ffi.probe(peer, timeout.saturating_sub(began.elapsed()).max(PAUSE)) {
                Ok(()) => return true,
                // The program itself may be probing a path at this moment, which says nothing about the peer.
                Err(Error::State(_)) if began.elapsed() < timeout => std::thread::sleep(PAUSE),
                Err(_) => return false,
            }
        }
    }

    fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.ffi.export(peer)
    }

    fn connect(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()> {
        self.ffi.connect(peer, blob, timeout)
    }
}
