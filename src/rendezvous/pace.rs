//! How far a member may go while a change of membership is under way.
//!
//! A change takes effect at a step that all members know. For that, the group asks every member that stays; each
//! answers with a *promise*, the last step that it has begun or may still begin, and begins no later step until it
//! learns the outcome. The outcome names the step after the highest promise, which nobody has begun, or a later one so
//! that a retired member can end its steps: earlier steps belong to the old membership, that step and later ones to the
//! new one.
//!
//! [`Pace`] is a member's part of this, without I/O and clock. The server's part is in [`machine`](super::machine).

use std::collections::{BTreeMap, VecDeque};

use super::wire::{Decision, RankState, View};
use crate::mask::Mask;

/// What a member may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Run this step.
    Begin {
        /// Its number.
        step: u64,
    },
    /// Put this membership into effect, call [`Pace::applied`], and ask again.
    Apply {
        /// The membership.
        decision: Decision,
    },
    /// Wait for news of the group.
    Wait,
    /// No more steps: this member has been retired, and has ended the steps before.
    Retired {
        /// Since this epoch.
        epoch: u32,
    },
    /// No steps: the others continue without this member.
    Evicted {
        /// Since this epoch.
        epoch: u32,
    },
}

/// A member's state with respect to steps.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    rank: u32,
    /// The membership in effect. If this rank is not in it, it is on standby.
    current: Decision,
    /// The memberships that come after it, each from its step on.
    due: VecDeque<Due>,
    /// By the epoch of a membership: ranks of earlier ones that it leaves out, except those that still end their
    /// steps.
    removed: BTreeMap<u32, Mask>,
    /// The last step begun.
    begun: u64,
    /// How many steps it may begin beyond the last one while it waits for an outcome.
    lead: u64,
    promised: Option<Promised>,
}

/// A future membership, and who takes part only until it begins.
#[derive(Clone, Copy, Debug)]
struct Due {
    decision: Decision,
    retired: Mask,
}

/// A promise: begin nothing beyond `step` before the outcome of `change` is known.
#[derive(Clone, Copy, Debug)]
struct Promised {
    change: u64,
    step: u64,
}

impl Pace {
    /// A member that has just joined, according to the server's view: a member of this membership, or on standby.
    pub(crate) fn joined(rank: u32, view: &View, lead: u64) -> Self {
        let mut current = Decision { mask: view.mask, epoch: view.epoch, step: view.step };
        if matches!(view.states.get(rank as usize), Some(RankState::Standby {} | RankState::Ready {})) {
            current.mask.remove(rank); // it belongs to a former member of this rank
        }
        Self::new(rank, current, lead)
    }

    /// A member of `current`, or on standby, that has begun no step of it.
    pub(crate) fn new(rank: u32, current: Decision, lead: u64) -> Self {
        let begun = current.step.saturating_sub(1);
        Self { rank, current, due: VecDeque::new(), removed: BTreeMap::new(), begun, lead, promised: None }
    }

    /// The membership in effect; for a member on standby that of the others.
    pub(crate) fn current(&self) -> Decision {
        self.current
    }

    /// The last step begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether it waits to be admitted.
    pub(crate) fn is_standby(&self) -> bool {
        !self.current.mask.contains(self.rank)
    }

    /// The next membership, if it is decided.
    pub(crate) fn due(&self) -> Option<Decision> {
        self.due.front().map(|due| due.decision)
    }

    /// The newest known membership.
    pub(crate) fn newest(&self) -> Decision {
        self.due.back().map_or(self.current, |due| due.decision)
    }

    /// The first epoch without this member, if it was evicted.
    pub(crate) fn evicted(&self) -> Option<u32> {
        // The first membership without it decides, whatever comes afterwards.
        let gone = self.due.iter().find(|due| !due.decision.mask.contains(self.rank));
        gone.filter(|due| !due.retired.contains(self.rank)).map(|due| due.decision.epoch)
    }

    /// The first epoch without this member, if it was retired and has begun its last step.
    pub(crate) fn retired(&self) -> Option<u32> {
        let next = self.due.front().filter(|due| due.retired.contains(self.rank));
        next.filter(|due| self.begun + 1 >= due.decision.step).map(|due| due.decision.epoch)
    }

    /// The next membership's epoch, if there are still steps before it.
    pub(crate) fn is_behind(&self) -> Option<u32> {
        let next = self.due.front().map(|due| due.decision);
        next.filter(|next| next.mask.contains(self.rank) && next.step > self.begun + 1).map(|next| next.epoch)
    }

    /// Begins the next step, or says what must be done first. `overtaken`: a peer has already begun the next
    /// membership. That peer has completed the remaining steps of the current one without this member, which then skips
    /// them.
    pub(crate) fn next(&mut self, overtaken: bool) -> Next {
        let mut step = self.begun + 1;
        if let Some(due) = self.due.front().filter(|_| overtaken) {
            step = step.max(due.decision.step);
        }
        if let Some(epoch) = self.evicted() {
            return Next::Evicted { epoch };
        }
        if self.promised.is_some_and(|promised| step > promised.step) {
            return Next::Wait;
        }
        match self.due.front() {
            Some(Due { decision, retired }) if step >= decision.step => match retired.contains(self.rank) {
                true => Next::Retired { epoch: decision.epoch },
                false => Next::Apply { decision: *decision },
            },
            None if self.is_standby() => Next::Wait,
            _ => {
                self.begun = step;
                Next::Begin { step }
            }
        }
    }

    /// Answers the group's question with a promise. The same change asked about again, as a server does that has lost
    /// the answer, gets the same promise. Another change, asked about before this member has learned how the last one
    /// ended, as can happen on a new connection, gets no more than was promised then. `idle`: the program is not
    /// beginning steps at the moment, or cannot end the current one.
    pub(crate) fn promise(&mut self, change: u64, idle: bool) -> u64 {
        if let Some(promised) = self.promised.filter(|promised| promised.change == change) {
            return promised.step;
        }
        let unknown = self.promised.map_or(u64::MAX, |promised| promised.step);
        let step = unknown.min(self.begun.saturating_add(if idle { 0 } else { self.lead }));
        self.promised = Some(Promised { change, step });
        step
    }

    /// Notes the outcome of a change, which ends all earlier ones too: a membership, or nothing changes. Returns the
    /// members of the current membership that this removes, and that will end no further step. `retired`: those that
    /// will still end their steps.
    pub(crate) fn settle(&mut self, change: u64, outcome: Option<Decision>, retired: Mask) -> Mask {
        if self.promised.is_some_and(|promised| promised.change <= change) {
            self.promised = None;
        }
        let newest = self.newest().epoch;
        let Some(decision) = outcome.filter(|decision| decision.epoch > newest) else { return Mask::EMPTY };
        if self.is_standby() && self.due.is_empty() {
            if !decision.mask.contains(self.rank) {
                self.current = decision;
                return Mask::EMPTY;
            }
            self.begun = decision.step.saturating_sub(1);
        }
        // A membership that no member has begun when the next one is decided never begins anywhere.
        self.due.retain(|due| due.decision.step < decision.step);
        let before = self.due.iter().fold(self.current.mask, |before, due| before.or(&due.decision.mask));
        self.due.push_back(Due { decision, retired });
        let removed = before.minus(&decision.mask);
        let removed = self.due.iter().fold(removed, |removed, due| removed.minus(&due.retired));
        self.removed.insert(decision.epoch, removed);
        removed.and(&self.current.mask)
    }

    /// The members of the current membership that are no longer members and will end no further step.
    pub(crate) fn removed(&self) -> Mask {
        self.removed.values().fold(Mask::EMPTY, |all, removed| all.or(removed)).and(&self.current.mask)
    }

    /// Breaks the current promise.
    #[cfg(test)]
    pub(crate) fn run_ahead(&mut self, steps: u64) {
        self.begun += steps;
    }

    /// The membership is in effect.
    pub(crate) fn applied(&mut self, decision: Decision) {
        self.current = decision;
        self.begun = self.begun.max(decision.step.saturating_sub(1));
        self.due.retain(|due| due.decision.epoch > decision.epoch);
        self.removed.retain(|epoch, _| *epoch > decision.epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(epoch: u32, step: u64, ranks: &[u32]) -> Decision {
        Decision { mask: ranks.iter().copied().collect(), epoch, step }
    }

    fn begin(pace: &mut Pace, steps: std::ops::RangeInclusive<u64>) {
        for step in steps {
            assert_eq!(pace.next(false), Next::Begin { step });
        }
    }

    #[test]
    fn steps_are_counted_while_nothing_is_due() {
        begin(&mut Pace::new(0, decision(1, 1, &[0, 1]), 0), 1..=5);
    }

    #[test]
    fn a_promise_holds_until_the_outcome_is_known() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1, 2]), 0);
        begin(&mut pace, 1..=3);
        assert_eq!(pace.promise(7, false), 3);
        assert_eq!(pace.next(false), Next::Wait);
        let next = decision(2, 6, &[0, 1]);
        assert_eq!(pace.settle(7, Some(next), Mask::EMPTY), [2].into_iter().collect());
        begin(&mut pace, 4..=5);
        assert_eq!(pace.next(false), Next::Apply { decision: next });
        assert_eq!(pace.next(false), Next::Apply { decision: next }, "until it is said to be in effect");
        pace.applied(next);
        begin(&mut pace, 6..=8);
    }

    #[test]
    fn a_lead_is_promised_too_unless_the_program_stands_still() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1]), 2);
        begin(&mut pace, 1..=1);
        assert_eq!(pace.promise(1, false), 3);
        assert_eq!(pace.promise(1, true), 3, "the same change gets the same answer");
        begin(&mut pace, 2..=3);
        assert_eq!(pace.next(false), Next::Wait);
        pace.settle(1, None, Mask::EMPTY);
        begin(&mut pace, 4..=4);
        assert_eq!(pace.promise(2, true), 4);
    }

    #[test]
    fn a_lead_goes_no_further_than_steps_can_be_counted() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1]), u64::MAX);
        begin(&mut pace, 1..=1);
        assert_eq!(pace.promise(1, false), u64::MAX);
    }

    #[test]
    fn a_promise_holds_through_the_next_question_while_the_outcome_is_not_known() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1]), 2);
        begin(&mut pace, 1..=2);
        assert_eq!(pace.promise(1, true), 2);
        assert_eq!(pace.promise(2, false), 2, "the first may be decided, with step 3");
        assert_eq!(pace.next(false), Next::Wait);
        let next = decision(2, 3, &[0]);
        pace.settle(1, Some(next), Mask::EMPTY);
        pace.settle(2, None, Mask::EMPTY);
        assert_eq!(pace.next(false), Next::Apply { decision: next });
    }

    #[test]
    fn an_aborted_change_leaves_everything_as_it_was() {
        let mut pace = Pace::new(1, decision(1, 1, &[0, 1]), 0);
        pace.promise(1, false);
        assert_eq!(pace.next(false), Next::Wait);
        assert_eq!(pace.settle(1, None, Mask::EMPTY), Mask::EMPTY);
        begin(&mut pace, 1..=1);
        assert_eq!(pace.current(), decision(1, 1, &[0, 1]));
    }

    #[test]
    fn a_second_change_may_come_before_the_first_is_in_effect() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1, 2, 3]), 0);
        begin(&mut pace, 1..=2);
        pace.promise(1, false);
        pace.settle(1, Some(decision(2, 5, &[0, 1, 2])), Mask::EMPTY);
        begin(&mut pace, 3..=3);
        assert_eq!(pace.promise(2, false), 3);
        assert_eq!(pace.next(false), Next::Wait, "the outcome of the second is not known");
        pace.settle(2, Some(decision(3, 4, &[0, 1])), Mask::EMPTY);
        assert_eq!(pace.next(false), Next::Apply { decision: decision(3, 4, &[0, 1]) });
        assert_eq!(
            pace.settle(1, Some(decision(2, 5, &[0, 1, 2])), Mask::EMPTY),
            Mask::EMPTY,
            "an old outcome, again"
        );
        pace.applied(decision(3, 4, &[0, 1]));
        begin(&mut pace, 4..=6);
    }

    #[test]
    fn each_membership_has_its_own_steps_though_a_member_is_late() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1, 2, 3]), 0);
        begin(&mut pace, 1..=2);
        let (second, third) = (decision(2, 5, &[0, 1, 2]), decision(3, 7, &[0, 1]));
        pace.settle(1, Some(second), Mask::EMPTY);
        pace.settle(2, Some(third), Mask::EMPTY);
        begin(&mut pace, 3..=4);
        assert_eq!(pace.next(false), Next::Apply { decision: second });
        pace.applied(second);
        begin(&mut pace, 5..=6);
        assert_eq!(pace.next(false), Next::Apply { decision: third });
    }

    #[test]
    fn who_is_overtaken_goes_on_with_the_others() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1, 2]), 0);
        begin(&mut pace, 1..=2);
        assert_eq!(pace.next(true), Next::Begin { step: 3 }, "it has not learnt of it yet");
        pace.settle(1, Some(decision(2, 100, &[0, 1])), Mask::EMPTY);
        assert_eq!(pace.promise(2, true), 3);
        assert_eq!(pace.next(true), Next::Wait, "a promise holds");
        pace.settle(2, None, Mask::EMPTY);
        assert_eq!(pace.next(true), Next::Apply { decision: decision(2, 100, &[0, 1]) });
        pace.applied(decision(2, 100, &[0, 1]));
        begin(&mut pace, 100..=101);
    }

    #[test]
    fn who_is_left_out_begins_nothing_more() {
        let mut pace = Pace::new(2, decision(1, 1, &[0, 1, 2]), 0);
        begin(&mut pace, 1..=2);
        pace.promise(1, false);
        pace.settle(1, Some(decision(2, 9, &[0, 1])), Mask::EMPTY);
        assert_eq!(pace.next(false), Next::Evicted { epoch: 2 });
    }

    #[test]
    fn who_is_retired_ends_the_steps_before_and_revokes_nobody() {
        let (next, retired) = (decision(2, 6, &[0, 1]), [2].into_iter().collect());
        for rank in 0..3 {
            let mut pace = Pace::new(rank, decision(1, 1, &[0, 1, 2]), 0);
            begin(&mut pace, 1..=2);
            pace.promise(1, false);
            assert_eq!(pace.settle(1, Some(next), retired), Mask::EMPTY);
            begin(&mut pace, 3..=5);
            let last = if rank == 2 { Next::Retired { epoch: 2 } } else { Next::Apply { decision: next } };
            assert_eq!(pace.next(false), last);
        }
    }

    #[test]
    fn who_is_retired_stays_so_though_others_are_lost_meanwhile() {
        let (next, retired) = (decision(2, 6, &[0, 1, 3]), [2].into_iter().collect());
        for step in [6, 8] {
            // If the second membership never begins, the group repeats who is retired.
            let again = if step == 6 { retired } else { Mask::EMPTY };
            let after = decision(3, step, &[0, 1]);
            for rank in [0, 2] {
                let mut pace = Pace::new(rank, decision(1, 1, &[0, 1, 2, 3]), 0);
                begin(&mut pace, 1..=2);
                pace.settle(1, Some(next), retired);
                assert_eq!(pace.settle(2, Some(after), again), [3].into_iter().collect());
                begin(&mut pace, 3..=5);
                let epoch = if step == 6 { 3 } else { 2 };
                let decision = if step == 6 { after } else { next };
                let last = if rank == 2 { Next::Retired { epoch } } else { Next::Apply { decision } };
                assert_eq!(pace.next(false), last);
            }
        }
    }

    #[test]
    fn who_is_removed_stays_so_in_the_memberships_before() {
        let mut pace = Pace::new(0, decision(1, 1, &[0, 1, 2, 3, 4]), 0);
        begin(&mut pace, 1..=2);
        let second = decision(2, 4, &[0, 1, 2, 3, 5]);
        pace.settle(1, Some(second), Mask::EMPTY);
        // A newcomer is removed as well, and a place is taken again with the same step: nobody begins the third.
        let third = decision(3, 6, &[0, 1, 2]);
        pace.settle(2, Some(third), Mask::EMPTY);
        let fourth = decision(4, 6, &[0, 1, 3]);
        pace.settle(3, Some(fourth), [2].into_iter().collect());
        assert_eq!(pace.removed(), [3, 4].into_iter().collect());
        pace.applied(second);
        assert_eq!(pace.removed(), [3, 5].into_iter().collect(), "the one that is retired ends its steps");
        pace.applied(fourth);
        assert_eq!(pace.removed(), Mask::EMPTY, "it has another member");
    }

    #[test]
    fn a_newcomer_waits_and_begins_with_the_step_of_its_admission() {
        let mut pace = Pace::new(2, decision(4, 10, &[0, 1]), 0);
        assert!(pace.is_standby());
        assert_eq!(pace.next(false), Next::Wait);
        pace.settle(5, Some(decision(5, 20, &[0])), Mask::EMPTY);
        assert_eq!((pace.next(false), pace.current().epoch), (Next::Wait, 5), "a change among the others");
        let admitted = decision(6, 31, &[0, 2]);
        pace.settle(6, Some(admitted), Mask::EMPTY);
        assert_eq!(pace.next(false), Next::Apply { decision: admitted });
        pace.applied(admitted);
        assert!(!pace.is_standby());
        begin(&mut pace, 31..=32);
    }
}
