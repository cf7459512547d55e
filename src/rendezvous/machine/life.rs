//! How members end: closed connections, and what waited for them.

use super::event::Action;
use super::state::{Life, Machine};
use crate::rendezvous::call::ConnId;
use crate::rendezvous::wire::Identity;

impl Machine {
    pub(super) fn closed(&mut self, conn: ConnId, by_peer: bool) {
        let Some(rank) = self.conns.remove(&conn) else { return };
        if by_peer || self.decision.epoch == 0 {
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
        let epoch = self.decision.epoch;
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
        self.changes.forget(rank);
        self.abandon(rank);
    }

    /// Ends the rounds and introductions that wait for a rank that can not take part any more.
    pub(super) fn abandon(&mut self, rank: u32) {
        let Some(Identity { host, pid, .. }) = self.seat(rank).map(|member| member.identity.clone()) else {
            return;
        };
        let mut outcomes = self.rounds.lose(rank, &host, pid);
        outcomes.extend(self.introductions.lose(rank, &host, pid));
        self.answer_all(outcomes);
    }
}
