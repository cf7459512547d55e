//! What a program learns of steps and of changes of membership.

use super::experts::Experts;
use crate::mask::Mask;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::machine::MAX_EPOCH;
use crate::rendezvous::wire::Standby;

/// A step of the group, which the caller runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Its number, from 1: the same on all members for the same step.
    pub number: u64,
    /// If the membership is another one from this step on.
    pub change: Option<Change>,
}

/// A change of membership that has come into effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The epoch that begins.
    pub epoch: u32,
    /// Its members.
    pub members: Mask,
    /// Those of them that are new.
    pub entered: Mask,
    /// Members of the epoch before that are not.
    pub left: Mask,
    /// Who was on standby when this was decided, and is left waiting: those who were not ready, and those who were but had not been
    /// connected with everybody yet. They are admitted by a later change.
    pub waiting: Standby,
}

/// How far a change of membership has come, see [`Group::changes`](super::Group::changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "there are a few in a minute at most")]
pub enum Progress {
    /// The group has asked this member how far it has come.
    Proposed {
        /// Number of the change, for [`Group::abort_change`](super::Group::abort_change).
        change: u64,
    },
    /// It is decided, and comes into effect with this step.
    Due {
        /// Number of the change.
        change: u64,
        /// The epoch that begins.
        epoch: u32,
        /// Its members.
        members: Mask,
        /// Its first step.
        step: u64,
        /// Who was on standby and is left waiting, as in [`Change::waiting`].
        waiting: Standby,
    },
    /// It is in effect.
    InEffect {
        /// The change.
        change: Change,
        /// What that means for the experts of each of the group's buffers that still exist, in the order of their creation.
        experts: Vec<Experts>,
    },
    /// It came to nothing: the membership stays as it is. Where a member was lost meanwhile another change follows at once, else
    /// a lease later if there is still reason.
    Aborted {
        /// Number of the change.
        change: u64,
        /// Why: [`BootstrapError::Aborted`] where a member has called it off, [`BootstrapError::NoQuorum`] where too many would have to go that nobody has seen dead, [`BootstrapError::PeerLost`]
        /// where a member died meanwhile, [`BootstrapError::Timeout`] where somebody fell silent or did not answer, and
        /// [`BootstrapError::OutOfOrder`] where this member had no connection at the time.
        error: BootstrapError,
    },
}

/// How many epochs there are after this one, once nine of ten are used.
pub(super) fn few_epochs_left(epoch: u32) -> Option<u32> {
    (u64::from(epoch) * 10 >= u64::from(MAX_EPOCH) * 9).then(|| MAX_EPOCH.saturating_sub(epoch))
}
