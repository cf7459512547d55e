//! What members do: join, answer the group, and run steps as far as they may.

use super::world::{DEADLINE, Heard, Member, PING, Said, World};
use crate::rendezvous::machine::tests::*;
use crate::rendezvous::pace::{Next, Pace};

impl World {
    pub(super) fn start(&mut self, rank: u32) {
        self.sessions += 1;
        let eager = self.below(3) > 0;
        self.members.push(Member {
            rank,
            member: u128::from(self.sessions),
            session: self.sessions,
            dead: false,
            stopped: false,
            sick: false,
            eager,
            evicted: false,
            joining: None,
            resuming: None,
            pace: None,
            operating: None,
            lost: Mask::EMPTY,
            told: Mask::EMPTY,
            excused: Mask::EMPTY,
            overtaken: false,
            pinged: self.now,
            begun: BTreeMap::new(),
            admitted_in: 0,
            died_in: u32::MAX,
        });
        self.join(self.members.len() - 1);
    }

    pub(super) fn join(&mut self, at: usize) {
        self.calls += 1;
        self.members[at].joining = Some(self.calls);
        self.tell(self.members[at].session, Heard::Join(self.calls));
    }

    pub(super) fn hear(&mut self, session: SessionId, said: Said) {
        let Some(at) = self.members.iter().position(|member| member.session == session) else { return };
        let rank = self.members[at].rank;
        if self.members[at].resuming.is_some() && matches!(said, Said::Ask(_) | Said::Settled(..)) {
            return;
        }
        match said {
            Said::Resumed => self.members[at].resuming = None,
            Said::Joined(view) => {
                let lead = self.below(3);
                self.members[at].joining = None;
                self.members[at].pace = Some(Pace::joined(rank, &view, lead));
                self.members[at].admitted_in = view.epoch;
            }
            Said::Ask(Ask::Reach { change, peers, .. }) => {
                let mut missing: Mask = peers.iter().filter(|peer| !self.reaches(rank, *peer)).collect();
                if self.members[at].sick {
                    missing = Mask::EMPTY;
                    missing.insert(rank);
                    self.see("device failed");
                }
                self.tell(
                    session,
                    Heard::Notice(Notice::Reached { change, missing, diverged: Box::default() }),
                );
            }
            Said::Ask(Ask::Meet { peers }) => {
                let peers = peers.iter().filter(|peer| self.reaches(rank, *peer)).collect();
                self.tell(session, Heard::Notice(Notice::Met { peers }));
            }
            Said::Ask(Ask::Introduce { .. }) => {}
            Said::Ask(Ask::Promise { change, lossy }) => {
                let Some(pace) = &mut self.members[at].pace else { return };
                let step = pace.promise(change, lossy);
                self.tell(session, Heard::Notice(Notice::Promise { change, step }));
            }
            Said::Settled(change, outcome, retired) => {
                let aborted = matches!(outcome, Err(BootstrapError::Aborted { .. }));
                if aborted {
                    self.see("aborted");
                }
                let member = &mut self.members[at];
                let Some(pace) = &mut member.pace else { return };
                member.eager |= aborted && pace.is_standby(); // its call has ended, and it makes another one
                let removed = pace.settle(change, outcome.ok(), retired);
                member.lost = member.lost.or(&removed);
                member.told = member.told.or(&removed);
                member.excused = member.excused.or(&removed);
            }
        }
    }

    /// A running member continues as far as it can.
    pub(super) fn live(&mut self, at: usize) {
        let (now, session, rank) = (self.now, self.members[at].session, self.members[at].rank);
        if now >= self.members[at].pinged + PING {
            self.members[at].pinged = now;
            self.tell(session, Heard::Ping);
        }
        let Some(pace) = &self.members[at].pace else { return };
        let current = pace.current();
        if let Some((step, began)) = self.members[at].operating {
            let epoch = current.epoch;
            let has_begun = |peer: u32, which: &dyn Fn(&Member) -> bool| {
                self.members.iter().any(|member| member.rank == peer && which(member))
            };
            let here = |peer: u32| {
                has_begun(peer, &|member| member.begun.get(&epoch).is_some_and(|(_, last)| *last >= step))
            };
            let moved = |peer: u32| {
                has_begun(peer, &|member| member.begun.last_key_value().is_some_and(|(e, _)| *e > epoch))
            };
            let waiting = current.mask.minus(&self.members[at].lost).without(rank);
            let waiting: Mask =
                waiting.iter().filter(|peer| !here(*peer) || self.is_broken(rank, *peer)).collect();
            let reached = |peer: &u32| !self.is_broken(rank, *peer);
            let gone: Mask = waiting.iter().filter(reached).filter(|peer| moved(*peer)).collect();
            let silent = waiting.minus(&gone);
            if !silent.is_empty() && now < began + DEADLINE {
                return;
            }
            let member = &mut self.members[at];
            member.overtaken |= !gone.is_empty();
            member.told = member.told.or(&gone);
            member.excused = member.excused.or(&gone);
            member.lost = member.lost.or(&waiting);
            member.operating = None;
        }
        let unsaid = self.members[at].lost.minus(&self.members[at].told);
        if !unsaid.is_empty() {
            self.members[at].told = self.members[at].lost;
            self.tell(session, Heard::Notice(Notice::Doubt { epoch: current.epoch, peers: unsaid }));
        }
        // As peers' signal words show between two steps.
        let behind = self.members[at].pace.as_ref().and_then(Pace::is_behind);
        let overtaken = behind.is_some_and(|next| {
            let begun = |peer: &Member| peer.begun.last_key_value().is_some_and(|(epoch, _)| *epoch >= next);
            let peers = self.members.iter().filter(|peer| current.mask.contains(peer.rank));
            peers.filter(|peer| !self.is_broken(rank, peer.rank)).any(begun)
        });
        let member = &mut self.members[at];
        let Some(pace) = &mut member.pace else { return };
        match pace.next(member.overtaken || overtaken) {
            Next::Begin { step } => {
                member.operating = Some((step, now));
                member.begun.entry(current.epoch).or_insert((step, step)).1 = step;
            }
            Next::Apply { decision } => {
                assert_eq!(self.decisions.get(&decision.epoch), Some(&decision));
                assert!(pace.begun() < decision.step, "it has begun {pace:?} under the membership before");
                pace.applied(decision);
                let removed = pace.removed();
                (member.lost, member.told, member.excused) = (removed, removed, removed);
                member.overtaken = false;
                if member.admitted_in == 0 || !current.mask.contains(rank) {
                    member.admitted_in = decision.epoch;
                }
            }
            Next::Wait => {
                if pace.is_standby() && member.eager {
                    self.tell(session, Heard::Notice(Notice::Ready {}));
                    self.members[at].eager = false;
                }
            }
            Next::Retired { epoch } => {
                *self.seen.entry("retired").or_default() += 1;
                // It has taken part in every earlier step, except for last ones that were completed without it.
                let first = self.decisions[&epoch].step;
                assert!(pace.begun() + 1 >= first || member.overtaken, "{pace:?}: {first}");
                member.evicted = true;
                member.pace = None;
                member.eager = true;
                self.join(at);
            }
            Next::Evicted { .. } => {
                *self.seen.entry("told").or_default() += 1;
                member.evicted = true;
                member.pace = None;
                member.eager = true;
                self.join(at);
            }
        }
    }

    fn reaches(&self, from: u32, to: u32) -> bool {
        let runs = |m: &Member| m.rank == to && !m.dead && !m.stopped;
        !self.broken.contains(&(from, to)) && self.are_together(from, to) && self.members.iter().any(runs)
    }

    /// Whether both are in the same half of the network.
    fn are_together(&self, a: u32, b: u32) -> bool {
        self.cut_off.contains(a) == self.cut_off.contains(b)
    }

    fn is_broken(&self, a: u32, b: u32) -> bool {
        self.broken.contains(&(a, b)) || self.broken.contains(&(b, a)) || !self.are_together(a, b)
    }
}
