//! A membership as the C core knows it.

use crate::error::Result;
use crate::ffi::Floor;
use crate::mask::Mask;

/// A membership of one buffer or communicator, and what has become of it since it began. How that of the group stands is
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

impl Membership {
    pub(crate) fn of(floor: &impl Floor) -> Result<Self> {
        let now = floor.membership()?;
        Ok(Self {
            active: Mask::from_words(now.active.bits),
            suspects: Mask::from_words(now.suspects.bits),
            silent: Mask::from_words(now.silent.bits),
            epoch: now.epoch,
            step: now.step,
        })
    }
}
