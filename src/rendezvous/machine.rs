//! What the rendezvous server decides: who is a member, who is dead, which round is complete, who continues after a
//! failure.
//!
//! A pure state machine. Events and the time are its inputs, actions its outputs; sockets, timers and randomness are in
//! [`driver`](super::driver). The same events at the same times give the same actions.
//!
//! **Dead and suspect are different things.** A member is *dead* when the kernel of its host closed its socket, when it
//! left, or when somebody who can see the process reports its end ([`Event::Ended`]): it writes nothing more, so
//! another incarnation may take its rank. A member that is silent beyond its lease, or has had no connection for a
//! lease, is only *suspect*: it may be stopped and run again, so its rank is refused to others.
//!
//! **Sessions outlive connections.** A client that has lost its connection comes back over another one, to this server
//! or to the next leader, and repeats its unanswered calls: each call is carried out once, and its answer is kept until
//! the client has it.

mod answers;
mod change;
mod changes;
mod event;
mod introductions;
mod life;
mod meet;
#[cfg(feature = "succession")]
mod servers;
mod snapshot;
mod state;
mod store;

pub use super::call::{Call, SessionId};
pub use change::MAX_EPOCH;
pub use event::{Action, Event};
pub use state::{Machine, Settings};
pub use store::{MAX_KEY_BYTES, MAX_STORE_BYTES, MAX_VALUE_BYTES};

use std::sync::Arc;
use std::time::Duration;

use self::answers::Asked;
use self::state::{Gathering, Life, Member, Role};
use super::error::BootstrapError;
use super::rounds::{check_fields, compare};
use super::wire::{
    Decision, Identity, Join, Joined, MAX_TEXT_BYTES, PROTOCOL_VERSION, Reply, Request, Round,
};
use crate::mask::Mask;

impl Machine {
    /// Handles one event at time `now` (since any fixed origin, never decreasing) and returns what follows from it.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Request { call, request } => {
                self.heard(call.session);
                match self.answers.ask(call) {
                    Asked::First => self.request(now, call, *request),
                    Asked::Again { answer: Some(result) } => {
                        let joined = matches!(result, Ok(Reply::Joined { .. }));
                        self.actions.push(Action::Answer { call, result });
                        // The answer is from the time of the call: what has happened since is sent after it.
                        if let Some(rank) = self.sessions.get(&call.session).filter(|_| joined) {
                            self.resumed(*rank);
                        }
                    }
                    Asked::Again { answer: None } => {} // the answer will come
                }
            }
            Event::Received { session, through, except } => {
                self.answers.received(session, through, &except);
            }
            Event::Heard { session } => self.heard(session),
            Event::Noticed { session, notice } => {
                self.heard(session);
                if let Some(rank) = self.sessions.get(&session).copied() {
                    self.noticed(rank, notice);
                }
            }
            Event::Silent { session } => self.silent(session),
            Event::Closed { session, by_peer } => self.closed(now, session, by_peer),
            Event::Ended { rank, pid } => {
                if self.seat(rank).is_some_and(|member| member.identity.pid == pid) {
                    self.member_died(rank);
                }
            }
            Event::Tick => {}
        }
        self.expire(now);
        self.consider(now);
        self.show();
        std::mem::take(&mut self.actions)
    }

    /// When the next [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let gathering = self.gathering.map(|of| of.deadline.min(of.show));
        let (changes, introductions) = (self.changes.next_deadline(), self.introductions.next_deadline());
        let (rounds, store) = (self.rounds.next_deadline(), self.store.next_deadline());
        let answers = self.answers.next_deadline();
        [gathering, changes, introductions, rounds, store, answers].into_iter().flatten().min()
    }

    /// The sessions of all clients that may come back by another connection.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.answers.sessions().chain(self.sessions.keys().copied()).collect()
    }

    /// The rank of the member whose session this is.
    pub(crate) fn rank(&self, session: SessionId) -> Option<u32> {
        self.sessions.get(&session).copied()
    }

    fn request(&mut self, now: Duration, call: Call, request: Request) {
        match (request, self.sessions.get(&call.session).copied()) {
            (Request::Join { join }, _) => {
                if let Err(error) = self.join(now, call, join) {
                    self.answer(call, Err(error));
                }
            }
            (Request::Round { round }, Some(rank)) => self.round(now, rank, call, round),
            (Request::Introduce { rank: peer, blobs, deadline }, Some(rank)) => {
                self.introduce(now, (call, rank), peer, blobs, deadline);
            }
            (Request::Retire { rank: retired }, Some(_)) => self.retire(call, retired),
            (Request::ReportDeath { rank, member }, Some(_)) => {
                self.answer(call, Ok(Reply::Done {}));
                self.ended(rank, member);
            }
            (Request::Abort { change }, Some(rank)) => self.call_off(now, call, rank, change),
            (Request::Leave {}, Some(rank)) => {
                self.answer(call, Ok(Reply::Done {}));
                if let Some(member) = self.seat_mut(rank) {
                    member.left = true;
                }
                self.member_died(rank);
            }
            // It has left already, and asks again because the answer got lost.
            (Request::Leave {}, None) => self.answer(call, Ok(Reply::Done {})),
            (Request::Resume { standby }, Some(rank)) => {
                self.answer(call, Ok(Reply::Done {}));
                if standby {
                    self.missed_admission(rank);
                }
                self.resumed(rank);
            }
            (Request::Resume { .. }, None) => {
                let (op, reason) =
                    ("come back".to_owned(), "no member of this run has this session".to_owned());
                self.answer(call, Err(BootstrapError::OutOfOrder { op, reason }));
            }
            // Every admitted client may use the store, member or not.
            (Request::Set { key, value }, _) => {
                let outcomes = self.store.set(call, key, value);
                self.answer_all(outcomes);
            }
            (Request::Add { key, amount }, _) => {
                let outcomes = self.store.add(call, key, amount);
                self.answer_all(outcomes);
            }
            (Request::Get { keys, deadline }, _) => {
                let outcomes = self.store.get(now, call, keys, deadline);
                self.answer_all(outcomes);
            }
            (Request::Delete { key }, _) => {
                let deleted = self.store.delete(&key);
                self.answer(call, deleted);
            }
            (Request::DeletePrefix { prefix }, _) => {
                let deleted = self.store.delete_prefix(&prefix);
                self.answer(call, deleted);
            }
            (_, None) => {
                let reason = "this client has not joined the run; join first".to_owned();
                self.answer(call, Err(BootstrapError::OutOfOrder { op: "use the run".to_owned(), reason }));
            }
        }
    }

    /// Seats a member, or says why not. While the run is gathering, the answer waits for the others.
    fn join(&mut self, now: Duration, call: Call, join: Join) -> Result<(), BootstrapError> {
        self.check_join(call, &join)?;
        let rank = join.identity.rank;
        let former = self.seat(rank);
        let same = former.is_some_and(|member| member.identity.member == join.identity.member);
        let mut role = if rank < self.settings.initial { Role::Active } else { Role::Standby };
        if self.decision.epoch == 0 {
            if let Some(Member { identity: Identity { host, pid, .. }, .. }) = former.filter(|_| !same) {
                return Err(BootstrapError::DuplicateRank {
                    op: op_join(),
                    rank,
                    host: host.clone(),
                    pid: *pid,
                });
            }
        } else if let Some(former) = former {
            if !same && former.life != Life::Dead {
                let Identity { host, pid, .. } = &former.identity;
                return Err(BootstrapError::Fenced { op: op_join(), rank, host: host.clone(), pid: *pid });
            }
            let takes_part = former.life != Life::Dead && former.role == Role::Active;
            role = if takes_part { Role::Active } else { Role::Standby };
        }
        if self.decision.epoch > 0
            && let Some(error) = compare(&op_join(), (rank, &join.config), (rank, &self.config))
        {
            return Err(error);
        }
        // An incarnation that comes with a new session has given up the former one.
        let former_session =
            former.and_then(|member| member.session).filter(|session| *session != call.session);
        let superseded = former.and_then(|member| member.joining);
        // An evicted member was out of reach: its connections may stay silent for the same time again, so they
        // are made anew.
        let keeps = same && former.is_some_and(|member| member.role != Role::Evicted);
        let former_met = former.map(|member| member.met).unwrap_or_default();
        if let Some(call) = superseded {
            let reason = "the same member joined again".to_owned();
            self.answer(call, Err(BootstrapError::OutOfOrder { op: op_join(), reason }));
        }
        if let Some(session) = former_session {
            self.end_session(session);
        }
        if role == Role::Standby {
            self.rounds.replace(rank);
        }
        self.sessions.insert(call.session, rank);
        self.changes.forget(rank);
        self.view_changed = self.decision.epoch > 0;
        let met = if keeps { former_met } else { self.forget_meetings(rank) };
        let deadline = now + join.deadline.min(self.settings.join_deadline);
        if self.decision.epoch > 0 && !same {
            let members = Arc::new(vec![join.identity.clone()]);
            let others = self.sessions.keys().filter(|session| **session != call.session);
            let told = others.map(|session| Action::Seat { session: *session, members: members.clone() });
            self.actions.extend(told);
        }
        self.seats[rank as usize] = Some(Member {
            identity: join.identity,
            role,
            life: Life::Heard,
            left: false,
            session: Some(call.session),
            joining: Some(call),
            ready: false,
            met,
            meeting: Mask::EMPTY,
            config: join.config,
            listener: join.listener,
        });
        if self.decision.epoch > 0 {
            self.welcome();
        } else {
            let show = now.saturating_add(FIRST_REPORT);
            let gathering = self.gathering.get_or_insert(Gathering { began: now, deadline, show });
            gathering.deadline = gathering.deadline.min(deadline);
            if self.seats.iter().take(self.settings.initial as usize).all(Option::is_some) {
                self.form();
            }
        }
        Ok(())
    }

    fn check_join(&self, call: Call, join: &Join) -> Result<(), BootstrapError> {
        let rank = join.identity.rank;
        let mismatch = |field: &str, ours: String, theirs: String| {
            Err(BootstrapError::Mismatch { op: op_join(), rank, field: field.to_owned(), ours, theirs })
        };
        if join.version != PROTOCOL_VERSION {
            let peer = format!("rank {rank}");
            let (ours, theirs) = (PROTOCOL_VERSION, join.version);
            return Err(BootstrapError::WrongVersion { op: op_join(), peer, ours, theirs });
        }
        if join.run_id != self.settings.run_id {
            return mismatch("run id", self.settings.run_id.clone(), join.run_id.clone());
        }
        if join.world != self.settings.world {
            return mismatch("world", self.settings.world.to_string(), join.world.to_string());
        }
        if join.initial != self.settings.initial {
            let (ours, theirs) = (self.settings.initial.to_string(), join.initial.to_string());
            return mismatch("initial ranks", ours, theirs);
        }
        if rank >= self.settings.world {
            return mismatch("rank", format!("ranks below {}", self.settings.world), rank.to_string());
        }
        if let Some(bound) = self.sessions.get(&call.session).filter(|bound| **bound != rank) {
            return mismatch("rank", format!("rank {bound} in this session"), rank.to_string());
        }
        BootstrapError::check(
            &op_join(),
            "bytes of the host name",
            join.identity.host.len(),
            MAX_TEXT_BYTES,
        )?;
        check_fields(&op_join(), &join.config)
    }

    /// All initial members are here: the run begins, unless their configurations differ.
    fn form(&mut self) {
        self.gathering = None;
        let mut members = self.members();
        let verdict = members.next().and_then(|first| {
            let lowest = (first.identity.rank, &first.config);
            members.find_map(|other| compare(&op_join(), lowest, (other.identity.rank, &other.config)))
        });
        drop(members);
        if let Some(error) = verdict {
            return self.fail_to_form(error);
        }
        self.config = self.seats[0].as_ref().map(|member| member.config.clone()).unwrap_or_default();
        self.decision = Decision { mask: Mask::all(self.settings.initial), epoch: 1, step: 1 };
        let everybody = self.decision.mask;
        self.taken = everybody;
        for member in self.seats.iter_mut().flatten().filter(|member| member.role == Role::Active) {
            member.met = everybody;
        }
        self.welcome();
    }

    /// Answers the joins of all who wait for the run to begin.
    fn welcome(&mut self) {
        let joined = Arc::new(Joined { roster: self.roster(), view: self.view() });
        let waiting: Vec<Call> =
            self.seats.iter_mut().flatten().filter_map(|member| member.joining.take()).collect();
        for call in waiting {
            self.answer(call, Ok(Reply::Joined { joined: joined.clone() }));
        }
    }

    /// The run did not form: everybody who has joined gets the error, and all seats are free for another attempt.
    fn fail_to_form(&mut self, error: BootstrapError) {
        self.gathering = None;
        self.sessions.clear();
        for member in std::mem::take(&mut self.seats) {
            if let Some(call) = member.and_then(|member| member.joining) {
                self.answer(call, Err(error.clone()));
            }
        }
        self.seats = (0..self.settings.world).map(|_| None).collect();
    }

    fn round(&mut self, now: Duration, rank: u32, call: Call, round: Round) {
        let op = || format!("round \"{}\"", round.tag.chars().take(64).collect::<String>());
        let refusal = match self.seat(rank).map(|member| member.role) {
            Some(Role::Evicted) => {
                Some(BootstrapError::Evicted { op: op(), rank, epoch: self.decision.epoch })
            }
            _ if self.decision.epoch == 0 => Some(BootstrapError::OutOfOrder {
                op: op(),
                reason: "the run has not come together yet".to_owned(),
            }),
            _ => round.ranks.iter().find_map(|peer| {
                let gone = self
                    .seat(peer)
                    .filter(|member| member.life == Life::Dead || member.role == Role::Evicted)?;
                let Identity { host, pid, .. } = &gone.identity;
                Some(BootstrapError::PeerLost { op: op(), rank: peer, host: host.clone(), pid: *pid })
            }),
        };
        match refusal {
            Some(error) => self.answer(call, Err(error)),
            None => {
                let outcomes = self.rounds.post(now, rank, self.settings.world, call, round);
                self.answer_all(outcomes);
            }
        }
    }

    fn expire(&mut self, now: Duration) {
        if let Some(gathering) = self.gathering.as_mut().filter(|of| of.show <= now) {
            gathering.show = now.saturating_add(NEXT_REPORT);
            self.view_changed = true;
        }
        if let Some(Gathering { began, .. }) = self.gathering.filter(|of| of.deadline <= now) {
            let present: Mask = self.members().map(|member| member.identity.rank).collect();
            self.fail_to_form(BootstrapError::MissingRanks {
                op: op_join(),
                present: present.len() as u32,
                world: self.settings.initial,
                missing: Box::new(Mask::all(self.settings.initial).minus(&present)),
                deadline: now - began,
            });
        }
        let mut outcomes = self.rounds.expire(now);
        outcomes.extend(self.store.expire(now));
        outcomes.extend(self.introductions.expire(now));
        self.answer_all(outcomes);
        self.answers.given_up(now).into_iter().for_each(|session| self.forget_session(session));
    }

    /// Shows the membership to all connected members if it changed, or if they have waited for it long enough.
    fn show(&mut self) {
        if !std::mem::take(&mut self.view_changed) {
            return;
        }
        let view = Arc::new(self.view());
        let shows =
            self.sessions.keys().map(|session| Action::Show { session: *session, view: view.clone() });
        self.actions.extend(shows);
    }
}

/// Those who wait for the run to come together are told who is missing: after this time, and then every [`NEXT_REPORT`].
pub(crate) const FIRST_REPORT: Duration = Duration::from_secs(2);
pub(crate) const NEXT_REPORT: Duration = Duration::from_secs(10);

fn op_join() -> String {
    "join".to_owned()
}

#[cfg(test)]
mod tests;
