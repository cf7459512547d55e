//! The group's decisions as a replicated log: records on up to five voters, in one order, kept as long as a majority of
//! the voters lives.
//!
//! The log is Raft, implemented by openraft. What the records mean is up to a [`StateMachine`], and how questions reach
//! other voters is up to a [`Carrier`]. Everything is in memory, and an id names one copy: a process that restarts gets
//! a new id.
//!
//! * [`types`]: who votes, and the types with which openraft is used;
//! * [`question`]: what voters ask each other, with a total decoder;
//! * [`storage`] and [`copy`]: the entries, and the state that they lead to, with snapshots that allow older
//!   entries to be dropped;
//! * [`network`] and [`inbox`]: asking, and answering what may be answered;
//! * [`clock`]: heartbeats, elections, snapshots; [`leadership`]: who leads;
//! * [`handle`]: a voter's handle of all this.

mod clock;
mod copy;
mod handle;
mod inbox;
mod leadership;
mod network;
mod question;
mod storage;
mod timing;
mod types;

pub(crate) use copy::StateMachine;
pub(crate) use handle::{AppendError, Log, VotersError};
pub(crate) use leadership::Leadership;
pub(crate) use network::{Asked, Carrier};
pub(crate) use question::{Answer, Question};
pub(crate) use timing::Timing;
pub(crate) use types::{MAX_VOTERS, Voter};

#[cfg(test)]
mod tests;
