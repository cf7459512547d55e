//! Faults, and which members may be considered lost because of them.

use super::world::{Heard, Member, PLACES, World};
use crate::rendezvous::machine::tests::*;
use crate::rendezvous::pace::Pace;

impl World {
    /// Ranks that may be considered lost.
    pub(super) fn unwell(&self) -> Mask {
        let mut unwell: Mask = self.broken.iter().flat_map(|(a, b)| [*a, *b]).collect();
        self.members.iter().filter(|m| m.dead || m.stopped || m.sick).for_each(|m| unwell.insert(m.rank));
        // A link between the halves costs one of its ends its place, in whichever half that is.
        if self.cut_off.is_empty() { unwell } else { Mask::all(PLACES) }
    }

    /// A fault begins or ends.
    pub(super) fn disturb(&mut self) {
        let at = self.below(self.members.len() as u64) as usize;
        let (rank, session) = (self.members[at].rank, self.members[at].session);
        match self.below(22) {
            13 | 14 if !self.members[at].dead => {
                let retired = self.below(u64::from(PLACES)) as u32;
                self.tell(session, Heard::Retire(retired));
            }
            0 | 1 if !self.members[at].dead => self.kill(at),
            2 | 3 if !self.members[at].dead => self.members[at].stopped = !self.members[at].stopped,
            4 => {
                let other = self.below(u64::from(PLACES)) as u32;
                if other != rank {
                    self.broken.push((rank, other));
                    if self.below(3) > 0 {
                        self.broken.push((other, rank));
                    }
                }
            }
            5 | 6 => {
                self.broken.clear();
                self.cut_off = Mask::EMPTY;
            }
            7 | 8 => {
                let free = |rank: &u32| !self.members.iter().any(|m| m.rank == *rank && !m.dead);
                if let Some(rank) = (0..PLACES).find(free) {
                    self.start(rank);
                }
            }
            9 => self.members[at].eager = true,
            10 => {
                let mut peers = Mask::EMPTY;
                peers.insert(self.below(u64::from(PLACES)) as u32);
                let epoch = self.machine.decision.epoch;
                self.tell(session, Heard::Notice(Notice::Doubt { epoch, peers: peers.without(rank) }));
            }
            11 | 12 if !self.members[at].dead => self.reconnect(at),
            15 if !self.members[at].dead => self.leave(at),
            16 => self.members[at].sick = !self.members[at].sick,
            17 => {
                let halves = self.below(1 << PLACES);
                self.cut_off = (0..PLACES).filter(|rank| halves >> rank & 1 == 1).collect();
                self.see("cut");
            }
            18..21 if !self.members[at].dead => {
                let change = self.machine.changes.last;
                self.tell(session, Heard::Abort(change));
            }
            // A call of its program is cancelled: it continues without the rows of that step and accuses nobody; nor do
            // peers that miss its rows.
            21 if self.members[at].operating.take().is_some() => self.see("cancelled"),
            _ => {}
        }
    }

    /// The connection breaks with all messages on it, and the member comes back over another one.
    fn reconnect(&mut self, at: usize) {
        let Member { session, joining, .. } = self.members[at];
        self.to_server.retain(|(_, of, _)| *of != session);
        self.to_member.retain(|(_, of, _)| *of != session);
        if self.members[at].pace.is_some() || self.members[at].evicted {
            let standby = self.members[at].pace.as_ref().is_some_and(Pace::is_standby);
            self.tell(session, Heard::Resume { standby });
            self.members[at].resuming = Some(0);
        }
        if let Some(id) = joining {
            self.tell(session, Heard::Join(id));
        }
        let member = &mut self.members[at];
        member.eager |= member.pace.as_ref().is_some_and(Pace::is_standby);
        member.told = member.excused;
    }

    fn kill(&mut self, at: usize) {
        self.members[at].dead = true;
        self.members[at].died_in = self.machine.decision.epoch;
        self.members[at].stopped = false;
        let session = self.members[at].session;
        // What it has sent still arrives, then the end of its connection.
        self.tell(session, Heard::Closed);
    }

    /// It leaves, and its process ends.
    fn leave(&mut self, at: usize) {
        self.see("left");
        self.tell(self.members[at].session, Heard::Leave);
        self.kill(at);
    }
}
