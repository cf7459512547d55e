//! Who votes, and the types with which openraft is used.

use std::sync::Arc;

use openraft::impls::OneshotResponder;
use openraft::{RaftTypeConfig, TokioRuntime};

use crate::rendezvous::codec::{Blob, wire};

/// Most voters of a log.
pub(crate) const MAX_VOTERS: usize = 5;
/// Most bytes of a record.
pub(crate) const MAX_RECORD_BYTES: usize = (4 << 20) + (64 << 10);
/// Most bytes of a snapshot: more than the machine can contain.
pub(crate) const MAX_SNAPSHOT_BYTES: usize = 3 << 30;

/// A process that keeps a copy of the log and votes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Voter {
    /// Random, and chosen once for each copy of the log, which starts empty. A process that has lost its copy has
    /// forgotten what it promised, so it is another voter: an id is never used twice.
    pub(crate) id: u128,
    /// Where it answers questions.
    pub(crate) address: String,
}
wire!(struct Voter { id, address });

/// What is replicated. Shared, because the log, messages on their way and the state machine hold it at the same time.
pub(crate) type Record = Arc<Blob>;

/// Type parameters for openraft: an id names a voter, its node is the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl RaftTypeConfig for Types {
    type D = Record;
    type R = ();
    type NodeId = u128;
    type Node = String;
    type Entry = openraft::Entry<Types>;
    type SnapshotData = Record;
    type AsyncRuntime = TokioRuntime;
    type Responder = OneshotResponder<Types>;
}

pub(crate) type Ballot = openraft::Vote<u128>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<u128>;
pub(crate) type Members = openraft::Membership<u128, String>;
pub(crate) type Metrics = openraft::RaftMetrics<u128, String>;
pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type Snapshot = openraft::Snapshot<Types>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u128, String>;
pub(crate) type StorageError = openraft::StorageError<u128>;
pub(crate) type StoredMembers = openraft::StoredMembership<u128, String>;
