//! How far each change of membership has come at this member, and since when.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::change::Progress;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::wire::Decision;

/// The changes that have begun and are not over.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The one about which the group has asked this member, and when it first did.
    proposed: Option<(u64, Instant)>,
    /// Of those that are decided, by epoch: when they were proposed.
    due: BTreeMap<u32, Instant>,
}

impl Account {
    /// The group asks how far this member goes. Whether it does for the first time.
    pub(super) fn propose(&mut self, change: u64) -> bool {
        if self.proposed.is_some_and(|(of, _)| of == change) {
            return false;
        }
        self.proposed = Some((change, Instant::now()));
        true
    }

    /// The outcome of a change, and of all before it. `is_new`: the decision was not known. What there is to tell.
    pub(super) fn settle(
        &mut self,
        change: u64,
        outcome: Result<Decision, BootstrapError>,
        is_new: bool,
    ) -> Option<Progress> {
        let proposed = self.proposed.take_if(|(of, _)| *of <= change).map(|(_, when)| when);
        match outcome {
            Ok(Decision { mask: members, epoch, step }) if is_new => {
                self.due.insert(epoch, proposed.unwrap_or_else(Instant::now));
                Some(Progress::Due { epoch, members, step })
            }
            // Told again, to a member with a new connection: what was proposed meanwhile has ended without it.
            Ok(_) => proposed.map(|_| Progress::Aborted { error: unheard() }),
            Err(error) => Some(Progress::Aborted { error }),
        }
    }

    /// The membership of `epoch` is in effect, those before are or never will be. Gives the time since it was proposed; to a member that
    /// was not asked, as who is on standby, since it was decided.
    pub(super) fn begin(&mut self, epoch: u32) -> Duration {
        let proposed = self.due.remove(&epoch);
        self.due.retain(|due, _| *due > epoch);
        proposed.map_or(Duration::ZERO, |proposed| proposed.elapsed())
    }
}

fn unheard() -> BootstrapError {
    BootstrapError::OutOfOrder {
        op: "change the membership".to_owned(),
        reason: "it came to nothing while this member had no connection to the server".to_owned(),
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
        let due = account.settle(7, Ok(decision(2)), true);
        assert_eq!(due, Some(Progress::Due { epoch: 2, members: Mask::all(2), step: 10 }));
        assert_eq!(account.settle(7, Ok(decision(2)), false), None);
        std::thread::sleep(Duration::from_millis(2));
        assert!(account.begin(2) >= Duration::from_millis(2));
        assert_eq!(account.begin(2), Duration::ZERO);
    }

    #[test]
    fn each_proposal_has_its_end_though_that_went_unheard() {
        let mut account = Account::default();
        account.propose(7);
        let Some(Progress::Aborted { error }) = account.settle(8, Ok(decision(1)), false) else { panic!() };
        assert!(error.to_string().contains("no connection"), "{error}");
        account.propose(9);
        assert_eq!(account.settle(8, Ok(decision(1)), false), None, "this one is still open");
        assert!(account.settle(9, Ok(decision(2)), true).is_some());
    }
}
