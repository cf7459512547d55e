//! How members are heard, fall silent, come back and end, and what happens to whoever waited for them.

use std::sync::Arc;
use std::time::Duration;

use super::event::Action;
use super::state::{Life, Machine, Role};
use crate::mask::Mask;
use crate::rendezvous::call::SessionId;
use crate::rendezvous::wire::{Ask, Identity};

impl Machine {
    pub(super) fn heard(&mut self, session: SessionId) {
        self.turn(session, Life::Suspect, Life::Heard);
    }

    /// Before the run has come together this has no consequences yet: if the member is still silent then, it begins as
    /// a suspect.
    pub(super) fn silent(&mut self, session: SessionId) {
        self.turn(session, Life::Heard, Life::Suspect);
    }

    fn turn(&mut self, session: SessionId, from: Life, to: Life) {
        let member = self.sessions.get(&session).copied().and_then(|rank| self.seat_mut(rank));
        if let Some(member) = member.filter(|member| member.life == from) {
            member.life = to;
            self.view_changed |= self.decision.epoch > 0;
        }
    }

    pub(super) fn closed(&mut self, now: Duration, session: SessionId, by_peer: bool) {
        match self.sessions.get(&session).copied() {
            None if by_peer => self.forget_session(session),
            // It repeats its calls if it comes back, which may take longer than a lease if the server has changed.
            None => {
                let patience = self.settings.lease.max(self.settings.join_deadline);
                self.answers.await_client(session, now.saturating_add(patience));
            }
            Some(rank) if by_peer || self.decision.epoch == 0 => self.member_died(rank),
            Some(_) => self.silent(session),
        }
    }

    /// The client will not come back to this session, or is refused.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.forget_session(session);
        self.actions.push(Action::Close { session });
    }

    pub(super) fn forget_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.answers.forget(session);
        self.store.forget(session);
    }

    /// The member of `rank` has another connection. What was sent in either direction over the former one may have been
    /// lost: the member is told how the last change has ended, and asked again what is still open.
    pub(super) fn resumed(&mut self, rank: u32) {
        let Some(member) = self.seat_mut(rank) else { return };
        member.meeting = Mask::EMPTY;
        let (role, Some(session)) = (member.role, member.session) else { return };
        if self.decision.epoch == 0 {
            return;
        }
        self.actions.push(Action::Show { session, view: Arc::new(self.view()) });
        // A later decision by itself would tell a retired member that it was evicted.
        if let Role::Retired { change, decision } = role
            && decision.epoch < self.decision.epoch
        {
            let retired = self.ranks(|member| member.role == role);
            self.settle_one(session, change, Ok(decision), retired);
        }
        let (change, outcome) = (self.changes.ended(), Ok(self.decision));
        self.settle_one(session, change, outcome, self.changes.retired);
        self.actions.push(Action::Seat { session, members: Arc::new(self.roster()) });
        let asked = self.changes.running.as_ref().filter(|change| change.asked.contains(rank));
        let again = asked.map(|change| Action::Ask { session, ask: change.question(rank, &self.decision) });
        self.actions.extend(again);
        let open = self.introductions.waiting.iter().filter(|waiting| waiting.peer == rank);
        let open = open.map(|waiting| Ask::Introduce {
            ticket: waiting.ticket,
            rank: waiting.newcomer,
            blobs: waiting.blobs.clone(),
        });
        let asks: Vec<Action> = open.map(|ask| Action::Ask { session, ask }).collect();
        self.actions.extend(asks);
    }

    /// The member of `rank` believes that it is on standby. If it was admitted and evicted since, it has learned of
    /// neither.
    pub(super) fn missed_admission(&mut self, rank: u32) {
        if let Some(member) =
            self.seat_mut(rank).filter(|member| matches!(member.role, Role::Evicted | Role::Retired { .. }))
        {
            member.role = Role::Standby;
            self.view_changed = true;
        }
    }

    /// The process of a member has ended, as reported by somebody who can see it. Nothing happens if the rank has
    /// another member.
    pub(super) fn ended(&mut self, rank: u32, member: u128) {
        if self.seat(rank).is_some_and(|seated| seated.identity.member == member) {
            self.member_died(rank);
        }
    }

    /// The member of `rank` is dead. Before the run has come together its seat is simply free again.
    pub(super) fn member_died(&mut self, rank: u32) {
        let epoch = self.decision.epoch;
        let Some(member) = self.seat_mut(rank).filter(|member| member.life != Life::Dead) else { return };
        member.life = Life::Dead;
        if let Some(session) = member.session.take() {
            self.end_session(session);
        }
        if epoch == 0 {
            self.seats[rank as usize] = None;
            if self.seats.iter().all(Option::is_none) {
                self.gathering = None;
            }
            return;
        }
        self.view_changed = true;
        self.changes.forget(rank);
        self.answer_retired(rank);
        self.abandon(rank);
    }

    /// Ends the rounds and introductions that wait for a rank that can no longer take part.
    pub(super) fn abandon(&mut self, rank: u32) {
        let Some(Identity { host, pid, .. }) = self.seat(rank).map(|member| member.identity.clone()) else {
            return;
        };
        let mut outcomes = self.rounds.lose(rank, &host, pid);
        outcomes.extend(self.introductions.lose(rank, &host, pid));
        self.answer_all(outcomes);
    }
}
