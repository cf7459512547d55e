//! What a group asks of its followers, answered by the C core.

use std::time::Duration;

use crate::error::Result;
use crate::ffi::Floor;
use crate::group::GivenUp;
use crate::mask::Mask;
use crate::rendezvous::Decision;

/// Begins the membership, unless an earlier call that failed for another follower has already done so.
pub(crate) fn begin(floor: &impl Floor, decision: &Decision) -> Result<()> {
    let now = floor.membership()?;
    let begun = (Mask::from_words(now.active.bits), now.epoch, now.step);
    if begun == (decision.mask, decision.epoch, decision.step) {
        return Ok(());
    }
    floor.set_active(&decision.mask, decision.epoch, decision.step)
}

pub(crate) fn given_up(floor: &impl Floor) -> Result<GivenUp> {
    let now = floor.membership()?;
    let (peers, silent) = (Mask::from_words(now.suspects.bits), Mask::from_words(now.silent.bits));
    Ok(GivenUp { epoch: now.epoch, peers, silent })
}

pub(crate) fn is_overtaken(floor: &impl Floor, epoch: u32) -> bool {
    floor.newest_epoch().is_ok_and(|newest| newest >= epoch)
}

pub(crate) fn diverged(floor: &impl Floor, epoch: u32, step: u64) -> Mask {
    // A rank that cannot tell accuses nobody.
    floor.diverged(epoch, step).unwrap_or(Mask::EMPTY)
}

pub(crate) fn reaches(floor: &impl Floor, peer: u32, timeout: Duration) -> bool {
    floor.probe(peer, timeout).is_ok()
}
