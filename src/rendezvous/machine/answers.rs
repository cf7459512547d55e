//! Calls and answers of each session. A client that has lost its connection asks again over another one: calls are not
//! carried out twice, and an answer that it may not have received is sent again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::rendezvous::call::{Call, SessionId};
use crate::rendezvous::codec::wire;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::Reply;

/// The sessions of a run.
#[derive(Debug, Default)]
pub(super) struct Answers {
    sessions: BTreeMap<SessionId, Session>,
}
wire!(struct Answers { sessions });

#[derive(Debug, Default)]
struct Session {
    /// Calls not answered yet.
    open: BTreeSet<u64>,
    /// Answers that the client has not acknowledged yet, with their calls, in the order in which they were given.
    given: VecDeque<(u64, Result<Reply, BootstrapError>)>,
    /// Its client is no member and has no connection: when it is given up.
    until: Option<Duration>,
}
wire!(struct Session { open, given, until });

/// What is known of an incoming call.
pub(super) enum Asked {
    /// It is new.
    First,
    /// It is a repetition.
    Again {
        /// The answer, unless it is still outstanding.
        answer: Option<Result<Reply, BootstrapError>>,
    },
}

/// Answers kept for one session, the last ones given. A client never has more calls waiting, and a connection carries
/// answers in the order in which they are given.
const MAX_GIVEN: usize = 512;

impl Answers {
    pub(super) fn ask(&mut self, call: Call) -> Asked {
        let session = self.sessions.entry(call.session).or_default();
        session.until = None;
        if let Some((_, answer)) = session.given.iter().find(|(id, _)| *id == call.id) {
            return Asked::Again { answer: Some(answer.clone()) };
        }
        if session.open.insert(call.id) { Asked::First } else { Asked::Again { answer: None } }
    }

    pub(super) fn give(&mut self, call: Call, answer: &Result<Reply, BootstrapError>) {
        let Some(session) = self.sessions.get_mut(&call.session) else { return };
        if session.open.remove(&call.id) {
            session.given.push_back((call.id, answer.clone()));
        }
        if session.given.len() > MAX_GIVEN {
            session.given.pop_front();
        }
    }

    /// The client has the answers to its calls up to `through`, except for some. Those that it has do not stay because it
    /// still waits for an earlier one.
    pub(super) fn received(&mut self, session: SessionId, through: u64, except: &BTreeSet<u64>) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.given.retain(|(id, _)| *id > through || except.contains(id));
        }
    }

    /// The client has no connection, and has until then to come back.
    pub(super) fn await_client(&mut self, session: SessionId, until: Duration) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.until.get_or_insert(until);
        }
    }

    /// The sessions whose clients have not come back in time.
    pub(super) fn given_up(&self, now: Duration) -> Vec<SessionId> {
        let late = |session: &Session| session.until.is_some_and(|until| until <= now);
        self.sessions.iter().filter(|(_, session)| late(session)).map(|(id, _)| *id).collect()
    }

    /// Whether these are sessions of a machine whose members have the sessions `members`.
    pub(super) fn can_be(&self, members: &BTreeMap<SessionId, u32>) -> bool {
        self.sessions.iter().all(|(id, session)| session.until.is_none() || !members.contains_key(id))
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.sessions.values().filter_map(|session| session.until).min()
    }

    /// How many answers are kept for a session.
    #[cfg(test)]
    pub(super) fn given(&self, session: SessionId) -> usize {
        self.sessions[&session].given.len()
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }
}
