//! Messages between members and the server, and the server itself.

use std::collections::BTreeSet;

use super::world::{Heard, LEASE, MS, Member, PLACES, RANKS, Said, World};
use crate::rendezvous::machine::tests::*;
use crate::rendezvous::record::Record;

impl World {
    /// A message takes 1 to 30 ms, and sometimes much longer.
    fn arrival(&mut self, session: SessionId, up: bool) -> Duration {
        let long = if !self.calm && self.below(60) == 0 { 400 } else { 30 };
        let arrives = self.now + MS * (1 + self.below(long) as u32);
        let last = self.arrives.entry((session, up)).or_default();
        *last = arrives.max(*last);
        *last
    }

    pub(super) fn tell(&mut self, session: SessionId, heard: Heard) {
        let at = self.arrival(session, true);
        // A notice may arrive once more, after everything said since, from a server that has given up its lead.
        if matches!(heard, Heard::Notice(_)) && !self.calm && self.below(12) == 0 {
            let late = at + MS * self.below(1500) as u32;
            self.to_server.push((late, session, heard.clone()));
            self.see("twice");
        }
        self.to_server.push((at, session, heard));
    }

    fn call(&mut self, session: SessionId, request: Request) -> Event {
        self.calls += 1;
        Event::Request { call: Call { session, id: self.calls }, request: Box::new(request) }
    }

    /// The sessions of members that are cut off: their messages wait.
    fn out_of_touch(&self) -> BTreeSet<SessionId> {
        let far = self.members.iter().filter(|member| self.cut_off.contains(member.rank));
        far.map(|member| member.session).collect()
    }

    pub(super) fn deliver_to_server(&mut self) {
        let now = self.now;
        let lost = self.out_of_touch();
        let arrives =
            |(at, session, _): &mut (Duration, SessionId, Heard)| *at <= now && !lost.contains(session);
        let due = self.to_server.extract_if(.., arrives).collect::<Vec<_>>();
        for (_, session, heard) in due {
            let Some(member) = self.members.iter().find(|member| member.session == session) else { continue };
            let join = Join {
                version: PROTOCOL_VERSION,
                run_id: "run".to_owned(),
                world: PLACES,
                initial: RANKS,
                identity: Identity {
                    rank: member.rank,
                    member: member.member,
                    host: String::new(),
                    pid: session as u32,
                    process_space: String::new(),
                },
                deadline: 60 * LEASE,
                config: Vec::new(),
                listener: None,
            };
            if let Some(event) = self.leases.heard(now, session) {
                self.event(event);
            }
            let event = match heard {
                Heard::Join(id) => {
                    let call = Call { session, id };
                    Event::Request { call, request: Box::new(Request::Join { join }) }
                }
                Heard::Resume { standby } => {
                    let id = self.calls + 1;
                    let resumes = self.members.iter_mut().find(|member| member.session == session);
                    resumes.into_iter().for_each(|member| member.resuming = Some(id));
                    self.call(session, Request::Resume { standby })
                }
                Heard::Retire(rank) => self.call(session, Request::Retire { rank }),
                Heard::Abort(change) => self.call(session, Request::Abort { change }),
                Heard::Leave => self.call(session, Request::Leave {}),
                Heard::Notice(notice) => Event::Noticed { session, notice },
                Heard::Ping => continue,
                Heard::Closed => {
                    self.leases.forget(session);
                    Event::Closed { session, by_peer: true }
                }
            };
            self.event(event);
        }
        for event in self.leases.expire(now) {
            self.event(event);
        }
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.event(Event::Tick);
        }
    }

    pub(super) fn deliver_to_members(&mut self) {
        let (now, lost) = (self.now, self.out_of_touch());
        let running = |members: &[Member], session: SessionId| {
            members.iter().any(|m| m.session == session && !m.stopped && !m.dead)
        };
        let members = &self.members;
        let due: Vec<_> = self
            .to_member
            .extract_if(.., |(at, session, _)| {
                *at <= now && running(members, *session) && !lost.contains(session)
            })
            .collect();
        for (_, session, said) in due {
            self.hear(session, said);
        }
    }

    fn event(&mut self, event: Event) {
        let before = self.machine.decision;
        let living = self.machine.ranks(|member| member.role == Role::Active && member.life != Life::Dead);
        let retired_by = self.retired_by();
        for action in self.handle(event) {
            let (session, said) = match action {
                Action::Answer { call, result: Ok(Reply::Joined { joined }) } => {
                    (call.session, Said::Joined(joined.view.clone()))
                }
                // The news that the former member's connection has closed is still on its way.
                Action::Answer { call, result: Err(BootstrapError::Fenced { .. }) } => {
                    let living = |member: &Member| member.session == call.session && !member.dead;
                    if let Some(at) = self.members.iter().position(living) {
                        self.join(at);
                    }
                    continue;
                }
                Action::Answer { call, result: Ok(Reply::Done {}) } => {
                    let resumes =
                        |member: &Member| member.session == call.session && member.resuming == Some(call.id);
                    if !self.members.iter().any(resumes) {
                        continue; // of another call
                    }
                    (call.session, Said::Resumed)
                }
                Action::Answer { result: Err(BootstrapError::Aborted { .. }), .. } => continue, // of a retirement
                // It has not been admitted yet.
                Action::Answer { result: Err(BootstrapError::OutOfOrder { .. }), .. } => continue,
                Action::Answer { result, .. } => panic!("{result:?}"),
                Action::Ask { session, ask } => (session, Said::Ask(ask)),
                Action::Settle { session, change, outcome, retired, .. } => {
                    (session, Said::Settled(change, outcome, retired))
                }
                Action::Show { .. } | Action::Seat { .. } | Action::Close { .. } => continue,
            };
            let at = self.arrival(session, false);
            self.to_member.push((at, session, said));
        }
        let after = self.machine.decision;
        if after != before && before.epoch > 0 {
            self.check_decision(&before, &after, &living, &retired_by);
        }
        let former = self.decisions.insert(after.epoch, after);
        assert!(
            former.is_none_or(|former| former == after),
            "two memberships of an epoch: {former:?}, {after:?}"
        );
    }

    /// Passes an event to the server, which may then continue in another process.
    fn handle(&mut self, event: Event) -> Vec<Action> {
        let record = Record { at: self.now, event };
        let Record { at, event } = Record::decode(&record.encode()).unwrap();
        assert_eq!(event, record.event);
        let actions = self.machine.handle(at, event);
        assert_eq!(actions, self.lasting.handle(record.at, record.event));
        if self.restarts.below(8) == 0 {
            let written = self.machine.snapshot();
            assert!(written == self.lasting.snapshot(), "{:?} and {:?}", self.machine, self.lasting);
            self.machine = Machine::restore(&written).unwrap();
            assert!(written == self.machine.snapshot());
        }
        assert_eq!(self.machine.next_deadline(), self.lasting.next_deadline());
        actions
    }
}
