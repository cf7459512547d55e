//! Who leaves the membership and who comes back: deaths, reports, and the decisions that follow from them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::Action;
use super::state::{Life, Machine, Member, Role};
use crate::mask::Mask;
use crate::rendezvous::agreement::{Agreement, Standing, Verdict};
use crate::rendezvous::call::{Call, ConnId};
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Decision, Identity, Reply, Report};

/// Largest epoch: 23 bits of a signal word hold it.
pub const MAX_EPOCH: u32 = (1 << 23) - 1;

impl Machine {
    pub(super) fn report(
        &mut self,
        now: Duration,
        rank: u32,
        call: Call,
        mut report: Report,
    ) -> Result<(), BootstrapError> {
        let Some(role) = self.seat(rank).map(|member| member.role) else { return Ok(()) };
        if self.epoch == 0 {
            let reason = "the run has not come together yet".to_owned();
            return Err(BootstrapError::OutOfOrder { op: op_agree(), reason });
        }
        let former = match role {
            Role::Evicted => return Err(BootstrapError::Evicted { op: op_agree(), rank, epoch: self.epoch }),
            Role::Standby => {
                self.ready.insert(rank, (call, now, now + report.deadline)).map(|(call, ..)| call)
            }
            // It took part in the decision, or was counted in, but the answer got lost on the way.
            Role::Active if report.epoch < self.epoch => {
                let decision = Decision { mask: self.mask, epoch: self.epoch };
                self.answer(call, Ok(Reply::Decided { decision }));
                return Ok(());
            }
            Role::Active if report.epoch > self.epoch => {
                return Err(BootstrapError::Mismatch {
                    op: op_agree(),
                    rank,
                    field: "epoch".to_owned(),
                    ours: self.epoch.to_string(),
                    theirs: report.epoch.to_string(),
                });
            }
            Role::Active => {
                report.suspects = report.suspects.and(&self.mask);
                let deadline = report.deadline;
                let agreement = self.agreement.get_or_insert_with(|| Agreement::new(now, deadline));
                agreement.reports.insert(rank, (call, report)).map(|(call, _)| call)
            }
        };
        if let Some(former) = former {
            let reason = "the same member reported again; one call at a time".to_owned();
            self.answer(former, Err(BootstrapError::OutOfOrder { op: op_agree(), reason }));
        }
        Ok(())
    }

    pub(super) fn closed(&mut self, conn: ConnId, by_peer: bool) {
        let Some(rank) = self.conns.remove(&conn) else { return };
        if by_peer || self.epoch == 0 {
            return self.bury(rank);
        }
        if let Some(member) = self.seat_mut(rank) {
            member.conn = None;
            member.life = Life::Suspect;
            self.view_changed = true;
        }
    }

    /// The member of `rank` is dead. Before the run has come together its seat is simply free again.
    pub(super) fn bury(&mut self, rank: u32) {
        let epoch = self.epoch;
        let Some(member) = self.seat_mut(rank).filter(|member| member.life != Life::Dead) else { return };
        if epoch == 0 {
            self.seats[rank as usize] = None;
            if self.seats.iter().all(Option::is_none) {
                self.gathering = None;
            }
            return;
        }
        member.life = Life::Dead;
        let conn = member.conn.take();
        if let Some(conn) = conn.filter(|conn| self.conns.remove(conn).is_some()) {
            self.actions.push(Action::Close { conn });
        }
        self.view_changed = true;
        self.ready.remove(&rank);
        if let Some(agreement) = &mut self.agreement {
            agreement.reports.remove(&rank);
        }
        self.abandon(rank);
    }

    /// Ends the rounds that wait for a rank that can not take part any more.
    fn abandon(&mut self, rank: u32) {
        let Some(Identity { host, pid, .. }) = self.seat(rank).map(|member| member.identity.clone()) else {
            return;
        };
        let outcomes = self.rounds.lose(rank, &host, pid);
        self.answer_all(outcomes);
    }

    /// Decides the next mask, if the agreement's rule says that it can be decided.
    pub(super) fn decide(&mut self, now: Duration) {
        let Some(agreement) = &self.agreement else { return };
        if agreement.reports.is_empty() {
            self.agreement = None;
            return;
        }
        let ranks = |which: &dyn Fn(&Member) -> bool| -> Mask {
            self.members().filter(|member| which(member)).map(|member| member.identity.rank).collect()
        };
        let active = |member: &Member| member.role == Role::Active && member.life != Life::Dead;
        let standing = Standing {
            living: ranks(&active),
            heard: ranks(&|member| active(member) && member.life == Life::Heard),
            standby: ranks(&|member| member.role == Role::Standby && member.life == Life::Heard),
            ready: self.ready.keys().copied().collect(),
        };
        let Some(verdict) = agreement.decide(now, &standing) else { return };
        if let Some(agreement) = self.agreement.take() {
            self.conclude(&standing, verdict, agreement);
        }
    }

    fn conclude(&mut self, standing: &Standing, verdict: Verdict, agreement: Agreement) {
        let mut waiting: BTreeMap<u32, Call> =
            agreement.reports.into_iter().map(|(rank, (call, _))| (rank, call)).collect();
        let change = match verdict {
            Verdict::NoQuorum { missing } => {
                Err(BootstrapError::NoQuorum { op: op_agree(), missing: Box::new(missing) })
            }
            Verdict::Change { .. } if self.epoch == MAX_EPOCH => {
                let (value, limit) = (u64::from(MAX_EPOCH) + 1, u64::from(MAX_EPOCH));
                Err(BootstrapError::Limit { op: op_agree(), field: "epoch".to_owned(), value, limit })
            }
            Verdict::Change { stay, enter } => Ok((stay, enter)),
        };
        let (stay, enter) = match change {
            Ok(change) => change,
            Err(error) => {
                waiting.into_values().for_each(|call| self.answer(call, Err(error.clone())));
                return;
            }
        };
        self.epoch += 1;
        self.mask = stay.or(&enter);
        self.view_changed = true;
        for rank in enter.iter() {
            if let Some((call, ..)) = self.ready.remove(&rank) {
                waiting.insert(rank, call);
            }
            if let Some(member) = self.seat_mut(rank) {
                member.role = Role::Active;
            }
        }
        for rank in standing.living.minus(&stay).iter() {
            if let Some(member) = self.seat_mut(rank) {
                member.role = Role::Evicted;
            }
            self.abandon(rank);
        }
        let decision = Decision { mask: self.mask, epoch: self.epoch };
        for (rank, call) in waiting {
            let result = match decision.mask.contains(rank) {
                true => Ok(Reply::Decided { decision }),
                false => Err(BootstrapError::Evicted { op: op_agree(), rank, epoch: decision.epoch }),
            };
            self.answer(call, result);
        }
    }
}

fn op_agree() -> String {
    "agree on the active ranks".to_owned()
}
