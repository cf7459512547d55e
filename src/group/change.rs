//! What a program learns of steps and of changes of membership.

use std::fmt;

use super::experts::Experts;
use crate::mask::Mask;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::machine::MAX_EPOCH;
use crate::rendezvous::wire::Standby;

/// A step of the group, for the caller to run now. Its members and their epoch are those of
/// [`Group::active`](crate::Group::active).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Step {
    /// Its number, from 1: the same on all members for the same step.
    pub number: u64,
    /// The change of membership that takes effect with this step, if any.
    pub change: Option<Change>,
}

/// A change of membership that has come into effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// `step 90`, then `, the first of epoch 3 of ranks 0-2; left: 3` if a [`Change`] takes effect.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.number)?;
        self.change.as_ref().map_or(Ok(()), |change| write!(f, ", the first of {change}"))
    }
}

/// `epoch 3 of ranks 0-2; left: 3`, with those who have entered or left and those who still wait.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, members, entered, left, waiting } = self;
        write!(f, "epoch {epoch} of {}", members.named())?;
        for (ranks, have) in [(entered, "entered"), (left, "left")] {
            if !ranks.is_empty() {
                write!(f, "; {have}: {ranks}")?;
            }
        }
        still_on_standby(waiting, f)
    }
}

fn still_on_standby(waiting: &Standby, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if *waiting == Standby::default() { Ok(()) } else { write!(f, "; still on standby: {waiting}") }
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

/// One line, for logs: `change 4 is due: epoch 3 of ranks 0-2 from step 90`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proposed { change } => write!(f, "change {change} is proposed"),
            Self::Due { change, epoch, members, step, waiting } => {
                let ranks = members.named();
                write!(f, "change {change} is due: epoch {epoch} of {ranks} from step {step}")?;
                still_on_standby(waiting, f)
            }
            Self::InEffect { change, experts } => {
                write!(f, "in effect: {change}")?;
                for (buffer, experts) in
                    experts.iter().enumerate().filter(|(_, experts)| experts.is_changed())
                {
                    write!(f, "; buffer {buffer}: {experts}")?;
                }
                Ok(())
            }
            Self::Aborted { change, error } => write!(f, "change {change} is aborted: {error}"),
        }
    }
}

/// How many epochs are left after this one, once nine tenths of them are used.
pub(super) fn few_epochs_left(epoch: u32) -> Option<u32> {
    (u64::from(epoch) * 10 >= u64::from(MAX_EPOCH) * 9).then(|| MAX_EPOCH.saturating_sub(epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_in_a_line() {
        let members = Mask::all(3);
        let left = [3].into_iter().collect();
        let change = Change { epoch: 3, members, entered: Mask::EMPTY, left, waiting: Standby::default() };
        assert_eq!(
            Step { number: 90, change: Some(change) }.to_string(),
            "step 90, the first of epoch 3 of ranks 0-2; left: 3"
        );
        assert_eq!(Step { number: 91, change: None }.to_string(), "step 91");
        let ids = [12..16, 20..21].to_vec();
        let lost = Experts { lost: ids.clone(), regained: vec![], unheld: ids };
        let progress = Progress::InEffect { change, experts: vec![Experts::default(), lost] };
        assert_eq!(
            progress.to_string(),
            "in effect: epoch 3 of ranks 0-2; left: 3; buffer 1: lost: 12-15,20; held by nobody: 12-15,20"
        );
        let mut waiting = Standby::default();
        waiting.ready.insert(5);
        let due = Progress::Due { change: 4, epoch: 3, members, step: 90, waiting };
        assert_eq!(
            due.to_string(),
            "change 4 is due: epoch 3 of ranks 0-2 from step 90; still on standby: ready: 5"
        );
        assert_eq!(Experts::default().to_string(), "all held");
    }
}
