//! What goes into the machine, and what comes out of it.

use std::sync::Arc;

use crate::mask::Mask;
use crate::rendezvous::call::{Call, SessionId};
use crate::rendezvous::codec::wire;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Ask, Decision, Identity, Notice, Reply, Request, Standby, View};

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request came (also a sign of life).
    Request {
        /// Where the answer goes.
        call: Call,
        /// What is asked.
        request: Box<Request>,
    },
    /// The client has received the answers to all its calls up to this one.
    Received {
        /// Whose session.
        session: SessionId,
        /// The last of them.
        through: u64,
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
    /// A notice came (also a sign of life).
    Noticed {
        /// Whose session.
        session: SessionId,
        /// What it says.
        notice: Notice,
    },
    /// The connection of a client is gone, and there is no other.
    Closed {
        /// Which session.
        session: SessionId,
        /// Whether the peer's kernel closed it, as it does when a process ends. Else this side or the network did, and for a
        /// lease there has not been another one.
        by_peer: bool,
    },
    /// Somebody who can see the processes, as a launcher sees its children, says that this one has ended.
    Ended {
        /// Its rank.
        rank: u32,
        /// Its process id, as it gave it when it joined.
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
    7 => Received { session, through },
    8 => Silent { session },
});

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Answer a request.
    Answer {
        /// Which.
        call: Call,
        /// The outcome.
        result: Result<Reply, BootstrapError>,
    },
    /// Ask a member something about a change of membership.
    Ask {
        /// Whom.
        session: SessionId,
        /// What.
        ask: Ask,
    },
    /// Tell a member how a change has ended.
    Settle {
        /// Whom.
        session: SessionId,
        /// Number of the change.
        change: u64,
        /// What is decided, or why all stays as it is.
        outcome: Result<Decision, BootstrapError>,
        /// Those who belong to it no more and take part in the steps before.
        retired: Mask,
        /// Who was on standby and still is.
        waiting: Box<Standby>,
    },
    /// Tell a member who has which place.
    Seat {
        /// To whom.
        session: SessionId,
        /// All members, or those that came last.
        members: Arc<Vec<Identity>>,
    },
    /// Tell a member how the membership stands.
    Show {
        /// To whom.
        session: SessionId,
        /// How it stands.
        view: Arc<View>,
    },
    /// End a session: close its connection once what was sent by it is out.
    Close {
        /// Which.
        session: SessionId,
    },
}
