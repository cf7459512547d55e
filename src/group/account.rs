//! The progress of each change of membership at this member, and since when.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::change::Progress;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::wire::{Decision, Standby};

/// The changes that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The change that the group has asked this member about, and when it first asked.
    proposed: Option<(u64, Instant)>,
    /// The decided changes, by epoch: when they were proposed, and who stays on standby.
    due: BTreeMap<u32, (Instant, Standby)>,
}

impl Account {
    /// Notes that the group has asked about this change. Returns whether it is the first time.
    pub(super) fn propose(&mut self, change: u64) -> bool {
        if self.proposed.is_some_and(|(of, _)| of == change) {
            return false;
        }
        self.proposed = Some((change, Instant::now()));
        true
    }

    /// Notes the outcome of a change, which ends all earlier ones too, and returns what to report. `is_new`: the
    /// decision was not known before.
    pub(super) fn settle(
        &mut self,
        change: u64,
        outcome: Result<Decision, BootstrapError>,
        is_new: bool,
        waiting: Standby,
    ) -> Option<Progress> {
        let proposed = self.proposed.take_if(|(of, _)| *of <= change);
        match outcome {
            Ok(Decision { mask: members, epoch, step }) if is_new => {
                let since = proposed.map_or_else(Instant::now, |(_, when)| when);
                self.due.insert(epoch, (since, waiting));
                Some(Progress::Due { change, epoch, members, step, waiting })
            }
            // A known decision, repeated to a member with a new connection: what was proposed meanwhile has ended
            // without it.
            Ok(_) => proposed.map(|(change, _)| Progress::Aborted { change, error: unheard() }),
            Err(error) => Some(Progress::Aborted { change, error }),
        }
    }

    /// Notes that the membership of `epoch` is in effect; earlier ones are over or will never take effect. Returns the
    /// time since it was proposed, and who stays on standby. For a member that was not asked, such as one on standby,
    /// the time counts from the decision.
    pub(super) fn begin(&mut self, epoch: u32) -> (Duration, Standby) {
        let proposed = self.due.remove(&epoch);
        self.due.retain(|due, _| *due > epoch);
        proposed.map_or_else(Default::default, |(proposed, waiting)| (proposed.elapsed(), waiting))
    }
}

fn unheard() -> BootstrapError {
    BootstrapError::OutOfOrder {
        op: "change the membership".to_owned(),
        reason: "it failed while this member had no connection to the server".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Mask;

    fn decision(epoch: u32) -> Decision {
        Decision { mask: Mask::all(2), epoch, step: 10 }
    }

    #[test]
    fn a_change_is_told_once_however_often_the_group_asks_and_tells() {
        let mut account = Account::default();
        assert!(account.propose(7));
        assert!(!account.propose(7));
        let waiting = Standby { ready: Mask::EMPTY, preparing: Mask::all(1) };
        let due = account.settle(7, Ok(decision(2)), true, waiting);
        assert_eq!(
            due,
            Some(Progress::Due { change: 7, epoch: 2, members: Mask::all(2), step: 10, waiting })
        );
        assert_eq!(account.settle(7, Ok(decision(2)), false, Standby::default()), None);
        std::thread::sleep(Duration::from_millis(2));
        let (took, left) = account.begin(2);
        assert!(took >= Duration::from_millis(2) && left == waiting);
        assert_eq!(account.begin(2), (Duration::ZERO, Standby::default()));
    }

    #[test]
    fn each_proposal_has_its_end_though_that_went_unheard() {
        let mut account = Account::default();
        let nobody = Standby::default();
        account.propose(7);
        let Some(Progress::Aborted { change: 7, error }) = account.settle(8, Ok(decision(1)), false, nobody)
        else {
            panic!()
        };
        assert!(error.to_string().contains("no connection"), "{error}");
        account.propose(9);
        assert_eq!(account.settle(8, Ok(decision(1)), false, nobody), None, "this one is still open");
        assert!(account.settle(9, Ok(decision(2)), true, nobody).is_some());
    }
}
