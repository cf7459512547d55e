//! The group's decisions as a replicated log: records on up to five voters, in one order, kept as long as a majority of
//! the voters lives.
//!
//! The log is Raft, by openraft; what the records mean is a [`StateMachine`]'s business, and how questions get to other
//! voters a [`Carrier`]'s. Everything is in memory, and an id stands for one copy: a process that restarts has another.
//!
//! * [`types`]: who votes, and the types with which openraft is used;
//! * [`question`]: what voters ask each other, with a total decoder;
//! * [`storage`] and [`copy`]: the entries, and what they drive, with snapshots behind which the log ends;
//! * [`network`] and [`inbox`]: asking, and answering what may be answered;
//! * [`clock`]: heartbeats, elections, snapshots; [`leadership`]: who leads;
//! * [`handle`]: a voter's hold on all that.

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
