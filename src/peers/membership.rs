//! A membership as the C core knows it.

use std::fmt;

use crate::error::Result;
use crate::ffi::Floor;
use crate::mask::Mask;

/// The membership of one buffer or communicator, and which members have been given up since it began. For that of the
/// group see [`group::Membership`](crate::group::Membership).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Membership {
    /// The ranks that take part.
    pub active: Mask,
    /// Active ranks that have been given up since then: nothing is sent to them or awaited from them until the next
    /// membership. On a GPU this rank itself may be among them, see
    /// [`Outcome::suspects`](crate::Outcome::suspects).
    pub suspects: Mask,
    /// Suspects that this rank itself has seen silent for a whole deadline. It has only been told of the others, which
    /// is no evidence that they have failed.
    pub silent: Mask,
    /// 0: no membership yet.
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

/// `epoch 2 of ranks 0-3 from step 90`, then `; suspects: 1,3, silent: 3` if there are any.
impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { active, suspects, silent, epoch, step } = self;
        if *epoch == 0 {
            return f.pad("no membership yet");
        }
        write!(f, "epoch {epoch} of {} from step {step}", active.named())?;
        if suspects.is_empty() { Ok(()) } else { write!(f, "; suspects: {suspects}, silent: {silent}") }
    }
}
