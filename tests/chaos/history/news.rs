//! What the members of a history are told and what they say, one JSON value a line.

use serde::{Deserialize, Serialize};

use crate::wire::Setup;

/// The first line that a member reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) setup: Setup,
    pub(crate) initial: u32,
    /// Where the run is served, between commas.
    pub(crate) servers: String,
    /// It begins the run, and serves it first.
    pub(crate) first: bool,
    pub(crate) lease_ms: u64,
    /// No call of the group takes longer.
    pub(crate) patience_ms: u64,
    /// How long the program is busy with other things before it asks for its first step.
    pub(crate) slow_ms: u64,
    /// `GroupOptions::lead`.
    pub(crate) lead: u64,
    /// It has nothing to do with the run: it takes as much memory as a member, and no more.
    pub(crate) unrelated: bool,
}

/// Every other line.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Take this rank out of the group.
    Retire(u32),
    /// When you have been retired, ask to be let in again instead of ending.
    Rejoin,
    /// Leave between two steps, and end.
    Leave,
    /// Drop futures during so many steps.
    Cancel(u32),
    /// Ask the group for something, beside the steps.
    Ask,
    /// Say how long the steps took since the last time.
    Times,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum News {
    /// It has joined and has a buffer, and its own server listens there.
    Ready { listens: Option<String> },
    /// Who serves the run and where, as far as it knows.
    Known { leader: Option<u32>, servers: Vec<String> },
    /// It begins its first step under this membership.
    Began { epoch: u32, step: u64, members: Vec<u32> },
    /// It has run this step. Said where somebody else is missing than in the step before, and now and then.
    Ran { step: u64, epoch: u32, missing: Vec<u32> },
    /// Steps of which it has the verdict: epoch, step, and whether it is clean.
    Judged(Vec<(u32, u64, bool)>),
    /// The others go on without it. Delays of the machine that it has seen so far.
    Evicted { noise_us: u64 },
    /// Each of its steps, and how many microseconds it took.
    Took(Vec<(u64, u64)>),
    /// What it asked the group for cannot be decided: those that the text names are out of reach.
    NoQuorum(String),
    /// It has run its last step, as somebody asked for.
    Retired,
    /// Something that is worth a line where a history fails.
    Told(String),
    /// Something that must never be.
    Wrong(String),
}
