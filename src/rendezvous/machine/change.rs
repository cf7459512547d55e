//! Changes of membership, one at a time: who leaves, who enters, and from which step on.
//!
//! A change is due when a member has died or fallen silent, when a member doubts another, or when a member on standby
//! is ready. If there is doubt, the change begins with a *survey*: while steps continue, members find out which peers
//! they reach and which have begun another step. It ends by the rule of [`removal`](crate::rendezvous::removal). Then
//! those who stay *promise* how far they will go under the current membership, see [`pace`](crate::rendezvous::pace),
//! and the new one begins with the step after that.
//!
//! The change starts over if a member dies, falls silent or is doubted after its answers were given. An abandoned
//! change leaves everything as it is, and the next one is tried a lease later.

use std::collections::BTreeMap;
use std::time::Duration;

use super::changes::{Change, Stage, links};
use super::event::Action;
use super::state::{Life, Machine, Role};
use crate::mask::Mask;
use crate::rendezvous::call::{Call, SessionId};
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::removal::{Findings, Survey, Verdict};
use crate::rendezvous::wire::{Decision, Identity, Notice, Reply, Standby};

/// Largest epoch: 23 bits of a signal word hold it.
pub const MAX_EPOCH: u32 = (1 << 23) - 1;

impl Machine {
    pub(super) fn noticed(&mut self, rank: u32, notice: Notice) {
        let Some(role) = self.seat(rank).map(|member| member.role) else { return };
        match notice {
            Notice::Ready {} => {
                if let Some(member) = self.seat_mut(rank).filter(|member| !member.ready) {
                    member.ready = true;
                    self.view_changed = true;
                }
            }
            Notice::Doubt { epoch, peers } if role == Role::Active && epoch == self.decision.epoch => {
                let peers = peers.and(&self.living()).without(rank);
                if !peers.is_empty() {
                    let doubts = self.changes.doubts.entry(rank).or_default();
                    *doubts = doubts.or(&peers);
                }
            }
            Notice::Reached { change, missing, diverged } => {
                let living = self.living();
                if let Some(Change { number, stage: Stage::Survey { findings, .. }, .. }) =
                    &mut self.changes.running
                    && *number == change
                {
                    let (unreachable, diverged) = (missing.and(&living), diverged.and(&living));
                    findings.insert(rank, Findings { unreachable, diverged });
                }
            }
            Notice::Promise { change, step } => {
                if let Some(Change { number, stage: Stage::Promises { steps, .. }, .. }) =
                    &mut self.changes.running
                    && *number == change
                {
                    steps.insert(rank, step);
                    self.changes.furthest = self.changes.furthest.max(step);
                }
            }
            Notice::Doubt { .. } => {}
            Notice::Ended { rank, member } => self.ended(rank, member),
            Notice::Met { peers } => self.have_met(rank, &peers),
            Notice::Introduced { ticket, result } => self.introduced(rank, ticket, result),
        }
    }

    /// Begins the change that is due, and advances the current one as far as the answers allow.
    pub(super) fn consider(&mut self, now: Duration) {
        if self.decision.epoch == 0 {
            return;
        }
        self.ask_to_meet();
        loop {
            let change = match self.changes.running.take() {
                Some(change) => change,
                None if now < self.changes.rest_until => return,
                None => {
                    self.changes.rest_until = Duration::ZERO; // no longer a deadline
                    if !self.is_change_due() {
                        return;
                    }
                    self.begin_change(now)
                }
            };
            if let Some(change) = self.advance(now, change) {
                self.changes.running = Some(change);
                return;
            }
        }
    }

    /// Members that nobody has seen dead.
    pub(super) fn living(&self) -> Mask {
        self.ranks(|member| member.role == Role::Active && member.life != Life::Dead)
    }

    /// Members that have been heard within their lease.
    fn audible(&self) -> Mask {
        self.ranks(|member| member.role == Role::Active && member.life == Life::Heard)
    }

    /// Members on standby that may enter: those that are ready and connected with all who stay and with one another. If
    /// the former member of a rank is still in the membership, its successor must wait until it is not, so that the
    /// others are told; except if there are no others.
    fn entering(&self, stay: &Mask) -> Mask {
        let ready = if stay.is_empty() { self.ready() } else { self.ready().minus(&self.decision.mask) };
        ready.iter().fold(Mask::EMPTY, |mut enter, rank| {
            if stay.or(&enter).iter().all(|peer| self.are_connected(rank, peer)) {
                enter.insert(rank);
            }
            enter
        })
    }

    /// Those on standby that wait to be admitted.
    pub(super) fn ready(&self) -> Mask {
        self.ranks(|member| member.role == Role::Standby && member.life == Life::Heard && member.ready)
    }

    /// All members on standby.
    fn waiting(&self) -> Standby {
        let ready = self.ready();
        let preparing = self.ranks(|member| member.role == Role::Standby && member.life == Life::Heard);
        Standby { ready, preparing: preparing.minus(&ready) }
    }

    fn is_change_due(&self) -> bool {
        let living = self.living();
        let lost = self.decision.mask != self.audible() || !self.changes.doubts.is_empty();
        let due = lost && !living.is_empty()
            || !self.changes.retiring.is_empty()
            || !self.entering(&living).is_empty();
        due && self.decision.epoch < MAX_EPOCH
    }

    fn begin_change(&mut self, now: Duration) -> Change {
        let (silent, doubts) = (self.living().minus(&self.audible()), self.changes.doubts.clone());
        let stage = if silent.is_empty() && doubts.is_empty() {
            Stage::Promises { stay: self.living(), steps: BTreeMap::new() }
        } else {
            Stage::Survey { silent, doubts, findings: BTreeMap::new() }
        };
        self.change_in(now, stage)
    }

    fn change_in(&mut self, now: Duration, stage: Stage) -> Change {
        self.changes.last += 1;
        Change {
            number: self.changes.last,
            until: now.saturating_add(self.settings.lease),
            asked: Mask::EMPTY,
            stage,
        }
    }

    /// Advances the change. Returns it if it still has to wait for somebody.
    fn advance(&mut self, now: Duration, change: Change) -> Option<Change> {
        match &change.stage {
            Stage::Survey { .. } => self.advance_survey(now, change),
            Stage::Promises { .. } => self.advance_promises(now, change),
        }
    }

    fn advance_survey(&mut self, now: Duration, mut change: Change) -> Option<Change> {
        let Stage::Survey { silent, doubts, findings } = &change.stage else { return None };
        let (living, audible) = (self.living(), self.audible());
        if !living.minus(&audible).minus(silent).is_empty() || *doubts != self.changes.doubts {
            return None; // the next change takes the news into account
        }
        let answered: Mask = findings.keys().copied().collect();
        let late = now >= change.until;
        if !late && !audible.minus(&answered).is_empty() {
            self.ask(&mut change, audible);
            return Some(change);
        }
        let links = links(doubts);
        let worn = self.changes.worn(now, &links);
        let arbiter = self.settings.arbiter;
        match (Survey { living, findings: findings.clone(), worn, arbiter }).decide() {
            Verdict::Stay { members } => {
                let passed = links.into_iter().filter(|(a, b)| members.contains(*a) && members.contains(*b));
                self.changes.doubted.extend(passed.map(|link| (now, link)));
                let promises = self.change_in(now, Stage::Promises { stay: members, steps: BTreeMap::new() });
                self.advance_promises(now, promises)
            }
            // A member may be heard again, or be seen dead.
            Verdict::Unsure { .. } | Verdict::NoQuorum { .. } if !late => Some(change),
            Verdict::Unsure { silent } => self.abort(
                now,
                &change,
                BootstrapError::Timeout {
                    op: op(),
                    elapsed: self.settings.lease,
                    deadline: self.settings.lease,
                    missing: Box::new(silent),
                },
            ),
            Verdict::NoQuorum { missing } => {
                let reason = "they are half of the active ranks or more, and not seen dead; wait for them, end them, or report their deaths";
                let (missing, reason) = (Box::new(missing), reason.to_owned());
                self.abort(now, &change, BootstrapError::NoQuorum { op: op(), missing, reason })
            }
        }
    }

    fn advance_promises(&mut self, now: Duration, mut change: Change) -> Option<Change> {
        let Stage::Promises { stay, steps } = &change.stage else { return None };
        let inaudible = stay.minus(&self.audible());
        let lost = !inaudible.is_empty();
        if !lost && stay.iter().all(|rank| steps.contains_key(&rank)) {
            let furthest = steps.values().copied().max().unwrap_or(self.changes.furthest);
            let step = furthest.saturating_add(1); // after the highest promise
            // If nobody is lost, nothing is urgent: those who are being retired end their steps first.
            let last = if *stay == self.decision.mask { self.retired_by() } else { 0 };
            self.conclude(*stay, step.max(last));
            return None;
        }
        if lost || now >= change.until {
            let late = || stay.iter().filter(|rank| !steps.contains_key(rank)).collect();
            let missing = if lost { inaudible } else { late() };
            let error = self.dead(&inaudible).unwrap_or_else(|| {
                let deadline = self.settings.lease;
                let elapsed = now.saturating_add(deadline).saturating_sub(change.until);
                BootstrapError::Timeout { op: op(), elapsed, deadline, missing: Box::new(missing) }
            });
            self.abort(now, &change, error);
            if lost {
                self.changes.rest_until = Duration::ZERO; // another change can be decided at once
            }
            return None;
        }
        let stay = *stay;
        self.ask(&mut change, stay);
        Some(change)
    }

    /// The step from which on none of the retired members takes part any more.
    fn retired_by(&self) -> u64 {
        let living = self.members().filter(|member| member.life != Life::Dead);
        let steps = living.filter_map(|member| match member.role {
            Role::Retired { decision, .. } => Some(decision.step),
            _ => None,
        });
        steps.max().unwrap_or(0)
    }

    /// The error for the first of these members that was seen dead, if any.
    fn dead(&self, ranks: &Mask) -> Option<BootstrapError> {
        let mut members = ranks.iter().filter_map(|rank| self.seat(rank));
        let member = members.find(|member| member.life == Life::Dead)?;
        let Identity { rank, host, pid, .. } = member.identity.clone();
        Some(BootstrapError::PeerLost { op: op(), rank, host, pid })
    }

    /// Asks those who have not been asked.
    fn ask(&mut self, change: &mut Change, ranks: Mask) {
        for rank in ranks.minus(&change.asked).iter() {
            if let Some(session) = self.seat(rank).and_then(|member| member.session) {
                change.asked.insert(rank);
                self.actions.push(Action::Ask { session, ask: change.question(rank, &self.decision) });
            }
        }
    }

    fn settle(&mut self, ranks: Mask, change: u64, outcome: &Result<Decision, BootstrapError>) {
        for session in ranks.iter().filter_map(|rank| self.seat(rank)?.session).collect::<Vec<_>>() {
            self.settle_one(session, change, outcome.clone(), self.changes.retired);
        }
    }

    /// Reports how a change has ended, and whom it has retired.
    pub(super) fn settle_one(
        &mut self,
        session: SessionId,
        change: u64,
        outcome: Result<Decision, BootstrapError>,
        retired: Mask,
    ) {
        let waiting = Box::new(self.waiting());
        self.actions.push(Action::Settle { session, change, outcome, retired, waiting });
    }

    /// Abandons the change; those who were asked are told why.
    fn abort(&mut self, now: Duration, change: &Change, error: BootstrapError) -> Option<Change> {
        self.settle(change.asked, change.number, &Err(error));
        self.changes.rest_until = now.saturating_add(self.settings.lease);
        None
    }

    /// The member of `rank` calls the change off, and with it the requests that led to it: retirements, and the
    /// admission of those who are ready, all of which have to be requested again. A death or a doubt remains a reason
    /// for another change, a lease later.
    pub(super) fn call_off(&mut self, now: Duration, call: Call, rank: u32, number: u64) {
        let aborted = |op: &str| BootstrapError::Aborted { op: op.to_owned(), change: number, rank };
        let Some(change) = self.changes.running.take_if(|change| change.number == number) else {
            let reason = match number {
                1.. if number <= self.changes.ended() => "it has already been decided or aborted",
                _ => "there is no such change",
            };
            let (op, reason) = (format!("abort change {number} of the membership"), reason.to_owned());
            return self.answer(call, Err(BootstrapError::OutOfOrder { op, reason }));
        };
        for (rank, calls) in std::mem::take(&mut self.changes.retiring) {
            calls.into_iter().for_each(|call| self.answer(call, Err(aborted(&retiring(rank)))));
        }
        let ready = self.ready();
        self.members_of(&ready).for_each(|member| member.ready = false);
        self.view_changed |= !ready.is_empty();
        let told = Change { asked: change.asked.or(&ready), ..change };
        self.abort(now, &told, aborted(&op()));
        self.answer(call, Ok(Reply::Done {}));
    }

    /// Decides the next membership: these members, and those who wait to be admitted.
    fn conclude(&mut self, stay: Mask, step: u64) {
        let retired = self.retiring(&stay);
        let evicted = self.living().minus(&stay);
        let stay = stay.minus(&retired);
        let enter = self.entering(&stay);
        let epoch = self.decision.epoch + 1;
        // If a former membership never begins, those that it would have retired leave with this one.
        let still = self.ranks(|member| {
            matches!(member.role, Role::Retired { decision, .. } if step <= decision.step)
                && member.life != Life::Dead
        });
        self.decision = Decision { mask: stay.or(&enter), epoch, step };
        self.taken = self.taken.or(&enter);
        self.changes.retired = retired.or(&still);
        self.changes.doubts.clear();
        let leaves = Role::Retired { change: self.changes.last, decision: self.decision };
        let retiring = self.changes.retired;
        for (ranks, role) in [(enter, Role::Active), (evicted, Role::Evicted), (retiring, leaves)] {
            for member in self.members_of(&ranks) {
                member.role = role;
                member.ready = false;
            }
        }
        // A member that acts upon the decision must see the membership as of that decision.
        self.view_changed = true;
        self.show();
        self.settle(self.ranks(|_| true), self.changes.last, &Ok(self.decision));
        evicted.iter().for_each(|rank| self.abandon(rank));
        evicted.or(&retired).iter().for_each(|rank| self.answer_retired(rank));
    }

    /// Retires a member with the next membership. The call is answered once that is decided.
    pub(super) fn retire(&mut self, call: Call, rank: u32) {
        let others = self.living().without(rank);
        let (op, reason) = match self.seat(rank).map(|member| member.role) {
            Some(Role::Active) if others.iter().all(|rank| self.changes.retiring.contains_key(&rank)) => {
                (retiring(rank), "nobody would be left".to_owned())
            }
            Some(Role::Active) if self.living().contains(rank) => {
                self.changes.retiring.entry(rank).or_default().push(call);
                return;
            }
            _ => return self.answer(call, Ok(Reply::Done {})), // it is not in the group
        };
        self.answer(call, Err(BootstrapError::OutOfOrder { op, reason }));
    }

    /// Those of them that are to be retired, unless nobody would be left.
    fn retiring(&mut self, stay: &Mask) -> Mask {
        let retired = stay.and(&self.changes.retiring.keys().copied().collect());
        if retired != *stay {
            return retired;
        }
        for (rank, calls) in std::mem::take(&mut self.changes.retiring) {
            for call in calls {
                let (op, reason) = (retiring(rank), "nobody would be left".to_owned());
                self.answer(call, Err(BootstrapError::OutOfOrder { op, reason }));
            }
        }
        Mask::EMPTY
    }

    /// The member of `rank` is no longer in the group.
    pub(super) fn answer_retired(&mut self, rank: u32) {
        for call in self.changes.retiring.remove(&rank).unwrap_or_default() {
            self.answer(call, Ok(Reply::Done {}));
        }
    }
}

fn retiring(rank: u32) -> String {
    format!("retire rank {rank}")
}

fn op() -> String {
    "change the membership".to_owned()
}
