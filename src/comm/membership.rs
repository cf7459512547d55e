//! The members of a communicator's operations. A subset has those members of its parent that belong to it.

use std::ops::Range;
use std::time::Duration;

use super::communicator::Comm;
use super::inner::Inner;
use crate::cause::Cause;
use crate::error::Result;
use crate::ffi::Floor;
use crate::group::{Follower, GivenUp};
use crate::mask::Mask;
use crate::peers::{self, Membership};
use crate::rendezvous::Decision;

impl Comm {
    /// Begins a membership: every member calls it with the same mask, epoch and step, with no operation in flight. As
    /// [`EpBuffer::set_active`](crate::EpBuffer::set_active); its [subsets](Comm::subset) begin theirs with it. For a
    /// communicator that was created with a group [`Group::step`](crate::Group::step) does this.
    pub fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
        self.inner.set_active(active, epoch, step)
    }

    /// Tells the communicator and its subsets that the group continues without these ranks: as
    /// [`EpBuffer::revoke`](crate::EpBuffer::revoke).
    pub fn revoke(&self, ranks: &Mask) -> Result<()> {
        self.inner.revoke(ranks, Cause::Revoked)
    }

    /// The current membership, and its suspects.
    pub fn membership(&self) -> Result<Membership> {
        Membership::of(&*self.inner.ffi)
    }
}

impl Inner {
    fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
        self.ffi.set_active(active, epoch, step)?;
        let mut subsets = self.subsets().into_iter();
        subsets.try_for_each(|subset| subset.inner.set_active(&subset.mask_of(active), epoch, step))
    }
}

impl Follower for Inner {
    fn begin(&self, decision: &Decision) -> Result<()> {
        peers::begin(&*self.ffi, decision)?;
        self.subsets().iter().try_for_each(|subset| {
            let mask = subset.mask_of(&decision.mask);
            subset.inner.begin(&Decision { mask, ..*decision })
        })
    }

    fn revoke(&self, peers: &Mask, why: Cause) -> Result<()> {
        self.ffi.revoke(peers, why)?;
        self.subsets().iter().try_for_each(|subset| subset.inner.revoke(&subset.mask_of(peers), why))
    }

    fn given_up(&self) -> Result<GivenUp> {
        let mut all = peers::given_up(&*self.ffi)?;
        for subset in self.subsets() {
            let of = subset.inner.given_up()?;
            if of.epoch == all.epoch {
                all.peers = all.peers.or(&subset.ranks_of(&of.peers));
                all.silent = all.silent.or(&subset.ranks_of(&of.silent));
            }
        }
        Ok(all)
    }

    fn experts(&self, _: &Mask) -> Option<Vec<Range<u32>>> {
        None
    }

    fn is_overtaken(&self, epoch: u32) -> bool {
        peers::is_overtaken(&*self.ffi, epoch)
            || self.subsets().iter().any(|subset| subset.inner.is_overtaken(epoch))
    }

    fn diverged(&self, epoch: u32, step: u64) -> Mask {
        self.subsets().iter().fold(peers::diverged(&*self.ffi, epoch, step), |all, subset| {
            all.or(&subset.ranks_of(&subset.inner.diverged(epoch, step)))
        })
    }

    fn reaches(&self, peer: u32, timeout: Duration) -> bool {
        let subsets = self.subsets();
        let with_peer = || subsets.iter().filter_map(|subset| Some((subset, subset.index_of(peer)?)));
        let part = timeout / (1 + with_peer().count() as u32);
        peers::reaches(&*self.ffi, peer, part)
            && with_peer().all(|(subset, index)| subset.inner.reaches(index, part))
    }

    fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.export_all(peer)
    }

    fn connect(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()> {
        self.connect_all_parts(peer, blob, timeout)
    }
}
