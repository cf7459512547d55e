//! The inputs and outputs of the machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::mask::Mask;
use crate::rendezvous::call::{Call, SessionId};
use crate::rendezvous::codec::wire;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Ask, Decision, Identity, Notice, Reply, Request, Standby, View};

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request arrived (also a sign of life).
    Request {
        /// Where the answer goes.
        call: Call,
        /// What is asked.
        request: Box<Request>,
    },
    /// The client has received the answers to its calls up to this one, except for some.
    Received {
        /// Whose session.
        session: SessionId,
        /// The last of them.
        through: u64,
        /// The calls that it still waits for.
        except: BTreeSet<u64>,
    },
    /// A member that was silent gives signs of life again.
    Heard {
        /// Whose session.
        session: SessionId,
    },
    /// A client has given no sign of life for a lease.
    Silent {
        /// Whose session.
        session: SessionId,
    },
    /// A notice arrived (also a sign of life).
    Noticed {
        /// Whose session.
        session: SessionId,
        /// The notice.
        notice: Notice,
    },
    /// The connection of a client is closed, and there is no other.
    Closed {
        /// Which session.
        session: SessionId,
        /// Whether the peer's kernel closed it, as it does when a process ends. Otherwise this side or the network
        /// broke it, and there has been no other connection for a lease.
        by_peer: bool,
    },
    /// Somebody who can see the processes, as a launcher sees its children, reports that this one has ended.
    Ended {
        /// Its rank.
        rank: u32,
        /// Its process id, as it was stated when joining.
        pid: u32,
    },
    /// Time passed; due at [`Machine::next_deadline`](super::Machine::next_deadline).
    Tick,
}
wire!(enum Event {
    1 => Request { call, request },
    2 => Heard { session },
    3 => Noticed { session, notice },
    4 => Closed { session, by_peer },
    5 => Ended { rank, pid },
    6 => Tick {},
    7 => Received { session, through, except },
    8 => Silent { session },
});

/// What the server has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Answer a request.
    Answer {
        /// The call to answer.
        call: Call,
        /// The outcome.
        result: Result<Reply, BootstrapError>,
    },
    /// Ask a member something about a change of membership.
    Ask {
        /// Its session.
        session: SessionId,
        /// The question.
        ask: Ask,
    },
    /// Tell a member how a change has ended.
    Settle {
        /// Its session.
        session: SessionId,
        /// Number of the change.
        change: u64,
        /// What was decided, or why the membership is unchanged.
        outcome: Result<Decision, BootstrapError>,
        /// Members that leave with this change and take part in the steps before it.
        retired: Mask,
        /// Who was on standby and still is.
        waiting: Box<Standby>,
    },
    /// Tell a member which member has which place.
    Seat {
        /// Its session.
        session: SessionId,
        /// All members, or only the latest ones.
        members: Arc<Vec<Identity>>,
    },
    /// Show a member the state of the membership.
    Show {
        /// Its session.
        session: SessionId,
        /// The state.
        view: Arc<View>,
    },
    /// End a session: close its connection once everything sent over it is written.
    Close {
        /// The session.
        session: SessionId,
    },
}
