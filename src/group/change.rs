//! What a program learns of steps and of changes of membership.

use super::experts::Experts;
use crate::mask::Mask;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::machine::MAX_EPOCH;
use crate::rendezvous::wire::Standby;

/// A step of the group, for the caller to run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Its number, from 1: the same on all members for the same step.
    pub number: u64,
    /// The change of membership that takes effect with this step, if any.
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
    /// Members that are new.
    pub entered: Mask,
    /// Members of the previous epoch that are no longer members.
    pub left: Mask,
    /// The ranks that were on standby when this was decided and stay on standby: those that were not ready, and those
    /// that were ready but not yet connected with all members. A later change admits them.
    pub waiting: Standby,
}

/// The progress of a change of membership, see [`Group::changes`](super::Group::changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "there are a few in a minute at most")]
pub enum Progress {
    /// The group has asked this member which step it has reached.
    Proposed {
        /// Number of the change, for [`Group::abort_change`](super::Group::abort_change).
        change: u64,
    },
    /// It is decided, and takes effect with this step.
    Due {
        /// Number of the change.
        change: u64,
        /// The epoch that begins.
        epoch: u32,
        /// Its members.
        members: Mask,
        /// Its first step.
        step: u64,
        /// Who was on standby and stays there, as in [`Change::waiting`].
        waiting: Standby,
    },
    /// It is in effect.
    InEffect {
        /// The change.
        change: Change,
        /// What that means for the experts of each of the group's buffers that still exist, in the order of their
        /// creation.
        experts: Vec<Experts>,
    },
    /// It was abandoned: the membership stays as it is. If a member was lost meanwhile, another change follows at once;
    /// otherwise a lease later, if there is still a reason.
    Aborted {
        /// Number of the change.
        change: u64,
        /// Why: [`BootstrapError::Aborted`] if a member has called it off, [`BootstrapError::NoQuorum`] if too many
        /// members would be removed that nobody has seen dead, [`BootstrapError::PeerLost`] if a member died meanwhile,
        /// [`BootstrapError::Timeout`] if a member fell silent or did not answer, and [`BootstrapError::OutOfOrder`] if
        /// this member had no connection at the time.
        error: BootstrapError,
    },
}

/// How many epochs are left after this one, once nine tenths of them are used.
pub(super) fn few_epochs_left(epoch: u32) -> Option<u32> {
    (u64::from(epoch) * 10 >= u64::from(MAX_EPOCH) * 9).then(|| MAX_EPOCH.saturating_sub(epoch))
}
