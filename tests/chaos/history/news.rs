//! The messages to and from the members of a history, one JSON value on each line.

use serde::{Deserialize, Serialize};

use crate::wire::Setup;

/// The first line that a member reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) setup: Setup,
    pub(crate) initial: u32,
    /// The addresses of the servers, separated by commas.
    pub(crate) servers: String,
    /// It begins the run, and serves it first.
    pub(crate) first: bool,
    pub(crate) lease_ms: u64,
    /// No call of the group takes longer.
    pub(crate) patience_ms: u64,
    /// For how long the program is busy with other things before it asks for its first step.
    pub(crate) slow_ms: u64,
    /// `GroupOptions::lead`.
    pub(crate) lead: u64,
    /// It has nothing to do with the run, and only takes as much memory as a member.
    pub(crate) unrelated: bool,
}

/// Every other line.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Retire this rank from the group.
    Retire(u32),
    /// When you have been retired, ask to be admitted again instead of ending.
    Rejoin,
    /// Leave between two steps, and end.
    Leave,
    /// Drop futures during this many steps.
    Cancel(u32),
    /// Ask the group for something, beside the steps.
    Ask,
    /// Report how long the steps have taken since the last time.
    Times,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum News {
    /// It has joined and has a buffer, and its own server listens at this address.
    Ready { listens: Option<String> },
    /// Which rank serves the run, and at which addresses, as far as it knows.
    Known { leader: Option<u32>, servers: Vec<String> },
    /// It begins its first step under this membership.
    Began { epoch: u32, step: u64, members: Vec<u32> },
    /// It has run this step. Reported if other ranks are missing than in the previous step, and otherwise at intervals.
    Ran { step: u64, epoch: u32, missing: Vec<u32> },
    /// Steps whose verdict it knows: epoch, step, and whether it is clean.
    Judged(Vec<(u32, u64, bool)>),
    /// The others continue without it. The delays of the machine so far.
    Evicted { noise_us: u64 },
    /// Each of its steps, and how many microseconds it took.
    Took(Vec<(u64, u64)>),
    /// Its question to the group cannot be decided: the ranks that the text names are unreachable.
    NoQuorum(String),
    /// It has run its last step, at another rank's request.
    Retired,
    /// Something that helps to understand a failed history.
    Told(String),
    /// Something that must never happen.
    Wrong(String),
}
