//! What goes into the machine, and what comes out of it.

use std::sync::Arc;

use crate::mask::Mask;
use crate::rendezvous::call::{Call, ConnId};
use crate::rendezvous::codec::wire;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Ask, Decision, Notice, Reply, Request, View};

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
        /// Which client.
        conn: ConnId,
        /// The last of them.
        through: u64,
    },
    /// A member that was silent gives signs of life again.
    Heard {
        /// From where.
        conn: ConnId,
    },
    /// A client has given no sign of life for a lease.
    Silent {
        /// Which.
        conn: ConnId,
    },
    /// A notice came (also a sign of life).
    Noticed {
        /// From where.
        conn: ConnId,
        /// What it says.
        notice: Notice,
    },
    /// The connection of a client is gone.
    Closed {
        /// Whose.
        conn: ConnId,
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
    2 => Heard { conn },
    3 => Noticed { conn, notice },
    4 => Closed { conn, by_peer },
    5 => Ended { rank, pid },
    6 => Tick {},
    7 => Received { conn, through },
    8 => Silent { conn },
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
        conn: ConnId,
        /// What.
        ask: Ask,
    },
    /// Tell a member how a change has ended.
    Settle {
        /// Whom.
        conn: ConnId,
        /// Number of the change.
        change: u64,
        /// What is decided, or why all stays as it is.
        outcome: Result<Decision, BootstrapError>,
        /// Those who belong to it no more and take part in the steps before.
        retired: Mask,
    },
    /// Tell a member how the membership stands.
    Show {
        /// To whom.
        conn: ConnId,
        /// How it stands.
        view: Arc<View>,
    },
    /// Close a connection once what was sent to it is out.
    Close {
        /// Which.
        conn: ConnId,
    },
}
