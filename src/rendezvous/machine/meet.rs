//! How newcomers and members connect while everything else continues: the server passes on what each exports for the
//! other, and records who is connected with whom.

use std::time::Duration;

use super::event::Action;
use super::introductions::{Waiting, op};
use super::state::{Life, Machine, Member, Role};
use crate::mask::Mask;
use crate::rendezvous::call::Call;
use crate::rendezvous::codec::Blob;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Ask, MAX_BLOB_BYTES, Reply};

/// Most buffers of a member.
const MAX_BUFFERS: usize = 64;

impl Machine {
    /// Passes to `peer` what the newcomer exports for it.
    pub(super) fn introduce(
        &mut self,
        now: Duration,
        (call, newcomer): (Call, u32),
        peer: u32,
        blobs: Vec<Blob>,
        deadline: Duration,
    ) {
        let largest = blobs.iter().map(|blob| blob.0.len()).max().unwrap_or(0);
        let sizes = BootstrapError::check(&op(), "buffers", blobs.len(), MAX_BUFFERS)
            .and_then(|()| BootstrapError::check(&op(), "bytes of a blob", largest, MAX_BLOB_BYTES));
        let session =
            self.seat(peer).filter(|member| member.life != Life::Dead).and_then(|member| member.session);
        // A member that was asked to meet a peer may be admitted meanwhile, without that peer.
        let is_new = |member: &Member| member.role == Role::Standby || member.meeting.contains(peer);
        let new = peer != newcomer && self.seat(newcomer).is_some_and(is_new);
        let refusal = match (sizes, session) {
            (Err(error), _) => error,
            (_, Some(session)) if new => {
                let introductions = &mut self.introductions;
                introductions.last += 1;
                let ticket = introductions.last;
                let until = now + deadline;
                let ask = Ask::Introduce { ticket, rank: newcomer, blobs: blobs.clone() };
                introductions.waiting.push(Waiting {
                    ticket,
                    call,
                    newcomer,
                    peer,
                    blobs,
                    began: now,
                    until,
                });
                return self.actions.push(Action::Ask { session, ask });
            }
            _ => BootstrapError::OutOfOrder {
                op: op(),
                reason: format!("rank {newcomer} is not on standby, or rank {peer} is not connected"),
            },
        };
        self.answer(call, Err(refusal));
    }

    /// The member of `rank` has answered.
    pub(super) fn introduced(&mut self, rank: u32, ticket: u64, result: Result<Vec<Blob>, BootstrapError>) {
        let asked = |waiting: &Waiting| waiting.ticket == ticket && waiting.peer == rank;
        let Some(at) = self.introductions.waiting.iter().position(asked) else { return }; // too late
        let Waiting { call, .. } = self.introductions.waiting.swap_remove(at);
        self.answer(call, result.map(|blobs| Reply::Blobs { blobs }));
    }

    pub(super) fn are_connected(&self, rank: u32, peer: u32) -> bool {
        let met = |rank, peer| self.seat(rank).is_some_and(|member| member.met.contains(peer));
        rank == peer || met(rank, peer) || met(peer, rank)
    }

    /// Asks newcomers that are ready to introduce themselves to members that they are not connected with, and to those
    /// of lower rank that are ready as well.
    pub(super) fn ask_to_meet(&mut self) {
        let ready = self.ready();
        if ready.is_empty() {
            return; // the usual case
        }
        let living = self.living();
        for rank in ready.iter() {
            let lower: Mask = ready.iter().filter(|other| *other < rank).collect();
            // Not from both ends at the same time: the second connection would undo the first, which may be in use by
            // then.
            let is_meeting =
                |peer| self.seat(peer).is_some_and(|member: &Member| member.meeting.contains(rank));
            let unknown = |peer: &u32| !self.are_connected(rank, *peer) && !is_meeting(*peer);
            let peers: Mask = living.or(&lower).iter().filter(unknown).collect();
            let Some(member) = self.seat_mut(rank) else { continue };
            // One request at a time: it answers once it has tried.
            if let Some(session) = member.session.filter(|_| member.meeting.is_empty() && !peers.is_empty()) {
                member.meeting = peers;
                self.actions.push(Action::Ask { session, ask: Ask::Meet { peers } });
            }
        }
    }

    pub(super) fn have_met(&mut self, rank: u32, peers: &Mask) {
        let Some(member) = self.seat_mut(rank) else { return };
        let met = member.meeting.and(peers);
        member.met = member.met.or(&met);
        member.meeting = Mask::EMPTY;
    }

    /// There is a new incarnation of this rank, which nobody is connected with.
    pub(super) fn forget_meetings(&mut self, rank: u32) -> Mask {
        for member in self.seats.iter_mut().flatten() {
            member.met.remove(rank);
            member.meeting.remove(rank);
        }
        Mask::EMPTY
    }
}
