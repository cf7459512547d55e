//! What can go wrong between starting a rank and agreeing on the members.

use std::time::Duration;

use super::codec::wire;
use crate::mask::Mask;
use crate::names::readable;

/// An error of the bootstrap, of a collective round, of the membership or of the store.
///
/// Each variant names the operation, the ranks or the field concerned, and what to do about it. The server sends the
/// same values to its members, so an error has the same text on every rank.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The two sides do not share the token, or only one of them has one.
    #[error(
        "{op}: the token of this side and that of {peer} differ; give all ranks the same EPWIRE_TOKEN or EPWIRE_TOKEN_FILE"
    )]
    WrongToken {
        /// What was being done.
        op: String,
        /// Address of the other side.
        peer: String,
    },
    /// An address other than loopback was to be bound or connected to without a token.
    #[error(
        "{op}: {address} leaves the loopback interface, which needs a token; set EPWIRE_TOKEN to a secret of at least {least} bytes, or EPWIRE_TOKEN_FILE to a file that holds one, on every rank"
    )]
    TokenRequired {
        /// What was being done.
        op: String,
        /// The address concerned.
        address: String,
        /// Fewest bytes that a token has.
        least: u64,
    },
    /// The two sides speak different versions of the protocol.
    #[error(
        "{op}: {peer} speaks version {theirs} of the bootstrap protocol and this side {ours}; run the same epwire everywhere"
    )]
    WrongVersion {
        /// What was being done.
        op: String,
        /// Address of the other side.
        peer: String,
        /// Version of the side that reports.
        ours: u16,
        /// Version of the other side.
        theirs: u16,
    },
    /// A member's request does not match the run: run id, world size or epoch.
    #[error(
        "{op}: rank {rank} has {field} = {theirs}, but the run has {ours}; start all ranks with the same {field}"
    )]
    Mismatch {
        /// What was being done.
        op: String,
        /// The member that was refused.
        rank: u32,
        /// Which field differs.
        field: String,
        /// The value of the run.
        ours: String,
        /// The value of the member.
        theirs: String,
    },
    /// Two members do not agree on a field that must be equal everywhere.
    #[error(
        "{op}: {field} differs: rank {rank} has {value}, rank {other_rank} has {other_value}; give both the same {field}"
    )]
    ConfigMismatch {
        /// What was being agreed on.
        op: String,
        /// The first field that differs.
        field: String,
        /// The lowest rank that takes part.
        rank: u32,
        /// Its value.
        value: String,
        /// The lowest rank that differs from it.
        other_rank: u32,
        /// Its value.
        other_value: String,
    },
    /// Another process already joined as this rank.
    #[error("{op}: rank {rank} has already joined from process {pid} on {host}; start each rank once")]
    DuplicateRank {
        /// What was being done.
        op: String,
        /// The rank taken twice.
        rank: u32,
        /// Host of the process that has it.
        host: String,
        /// That process.
        pid: u32,
    },
    /// The run did not come together in time.
    #[error(
        "{op}: {present} of {world} ranks joined within {deadline:?}; missing: {missing}; check that they have started and can reach the rendezvous, or set a longer join deadline"
    )]
    MissingRanks {
        /// What was being done.
        op: String,
        /// Number of ranks that joined.
        present: u32,
        /// Ranks expected.
        world: u32,
        /// The ranks that did not join.
        missing: Box<Mask>,
        /// How long the run waited.
        deadline: Duration,
    },
    /// Bytes that are not a frame of this protocol, or a frame at the wrong place.
    #[error("{op}: {peer} sent {detail}; is that address an epwire rendezvous of this run?")]
    Garbage {
        /// What was being done.
        op: String,
        /// Address of the other side.
        peer: String,
        /// What is wrong with the bytes.
        detail: String,
    },
    /// A connection over which nothing arrived within the handshake deadline.
    #[error(
        "{op}: {peer} said nothing for {deadline:?}; is that address an epwire rendezvous, and is it overloaded?"
    )]
    SilentPeer {
        /// What was being done.
        op: String,
        /// Address of the other side.
        peer: String,
        /// How long it had.
        deadline: Duration,
    },
    /// Nobody accepts connections at the rendezvous address.
    #[error(
        "{op}: cannot reach {address} within {deadline:?}: {detail}; is the rendezvous server running there?"
    )]
    Unreachable {
        /// What was being done.
        op: String,
        /// The address tried.
        address: String,
        /// How long it was tried.
        deadline: Duration,
        /// The last error of the operating system.
        detail: String,
    },
    /// An operation did not end within its deadline.
    #[error(
        "{op}: not done after {elapsed:?} (deadline {deadline:?}); still missing: {missing}; look at those ranks, or give a longer deadline"
    )]
    Timeout {
        /// What was being done, with its tag or key.
        op: String,
        /// Time since it began.
        elapsed: Duration,
        /// Its limit.
        deadline: Duration,
        /// The ranks it waited for, if it waits for ranks.
        missing: Box<Mask>,
    },
    /// A participant died, left or was evicted while the others waited for it.
    #[error(
        "{op}: rank {rank} (process {pid} on {host}) is gone; repeat it once Group::step has begun the next membership"
    )]
    PeerLost {
        /// What was being done, with its tag.
        op: String,
        /// The rank that is gone.
        rank: u32,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
    },
    /// Nothing is decided, and the membership stays as it is: half or more of the ranks whose agreement is needed are
    /// missing. For a change of membership these are the active ranks that nobody has seen dead, unless a separate
    /// server decides. For any call of a run that its members serve themselves, they are the members whose servers keep
    /// the log.
    #[error("{op}: no quorum without {missing}: {reason}")]
    NoQuorum {
        /// What was being done.
        op: String,
        /// The missing ranks.
        missing: Box<Mask>,
        /// The set of which they are half or more, and what helps.
        reason: String,
    },
    /// A member has called off the change of membership that this call waited for, with
    /// [`Group::abort_change`](crate::Group::abort_change).
    #[error(
        "{op}: rank {rank} has aborted change {change} of the membership; ask again if it is still wanted"
    )]
    Aborted {
        /// What was being done.
        op: String,
        /// The change.
        change: u64,
        /// The rank that called it off.
        rank: u32,
    },
    /// The other members continue without this one.
    #[error(
        "{op}: the others have continued without rank {rank} since epoch {epoch}; stop using its buffers, rejoin, and wait to be admitted"
    )]
    Evicted {
        /// What was being done.
        op: String,
        /// This rank.
        rank: u32,
        /// The first epoch without it.
        epoch: u32,
    },
    /// This rank has been retired: it has taken part in all earlier steps, and the others continue without it.
    #[error("{op}: rank {rank} is retired as of epoch {epoch}; leave, or rejoin and wait to be admitted")]
    Retired {
        /// What was being done.
        op: String,
        /// This rank.
        rank: u32,
        /// The first epoch without it.
        epoch: u32,
    },
    /// A replacement joined while the process that it would replace may still write.
    #[error(
        "{op}: rank {rank} is held by process {pid} on {host}, which is not known to be dead; end that process first"
    )]
    Fenced {
        /// What was being done.
        op: String,
        /// The rank asked for.
        rank: u32,
        /// Host of the process that has it.
        host: String,
        /// That process.
        pid: u32,
    },
    /// The connection to the rendezvous server is lost.
    #[error(
        "{op}: lost the rendezvous server at {address}: {detail}; membership cannot change any more: end this rank, or join a new run"
    )]
    ServerLost {
        /// What was being done.
        op: String,
        /// Address of the server.
        address: String,
        /// How it was noticed.
        detail: String,
    },
    /// A value exceeds a limit.
    #[error("{op}: {field} is {value}, the limit is {limit}")]
    Limit {
        /// What was being done.
        op: String,
        /// Which value.
        field: String,
        /// What it is.
        value: u64,
        /// The largest allowed value, or for a minimum the smallest.
        limit: u64,
    },
    /// An argument that cannot be right.
    #[error("{op}: {field} is {value:?}: {reason}")]
    Invalid {
        /// What was being done.
        op: String,
        /// Which argument.
        field: String,
        /// What it is.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The call is not possible in the current state of the member.
    #[error("{op}: {reason}")]
    OutOfOrder {
        /// What was being done.
        op: String,
        /// The obstacle, and what to do first.
        reason: String,
    },
    /// A blocking form was called where blocking would stall an async runtime: on any thread that tokio knows. Those of
    /// its `spawn_blocking` are among them, because nothing tells them apart; there pass the async form to
    /// `Handle::block_on`.
    #[error("{op}: the blocking form was called on a thread of an async runtime; await the async form there")]
    BlockingInAsync {
        /// What was being done.
        op: String,
    },
    /// The operating system refused something.
    #[error("{op}: {detail}")]
    System {
        /// What was being done.
        op: String,
        /// The system's error text.
        detail: String,
    },
}

readable!(BootstrapError {
    WrongToken,
    TokenRequired,
    WrongVersion,
    Mismatch,
    ConfigMismatch,
    DuplicateRank,
    MissingRanks,
    Garbage,
    SilentPeer,
    Unreachable,
    Timeout,
    PeerLost,
    NoQuorum,
    Aborted,
    Evicted,
    Retired,
    Fenced,
    ServerLost,
    Limit,
    Invalid,
    OutOfOrder,
    BlockingInAsync,
    System
});

wire!(enum BootstrapError {
    1 => WrongToken { op, peer },
    2 => TokenRequired { op, address, least },
    3 => WrongVersion { op, peer, ours, theirs },
    4 => Mismatch { op, rank, field, ours, theirs },
    5 => ConfigMismatch { op, field, rank, value, other_rank, other_value },
    6 => DuplicateRank { op, rank, host, pid },
    7 => MissingRanks { op, present, world, missing, deadline },
    8 => Garbage { op, peer, detail },
    9 => SilentPeer { op, peer, deadline },
    10 => Unreachable { op, address, deadline, detail },
    11 => Timeout { op, elapsed, deadline, missing },
    12 => PeerLost { op, rank, host, pid },
    13 => Evicted { op, rank, epoch },
    14 => Fenced { op, rank, host, pid },
    15 => ServerLost { op, address, detail },
    16 => Limit { op, field, value, limit },
    17 => Invalid { op, field, value, reason },
    18 => OutOfOrder { op, reason },
    19 => BlockingInAsync { op },
    20 => System { op, detail },
    21 => NoQuorum { op, missing, reason },
    22 => Retired { op, rank, epoch },
    23 => Aborted { op, change, rank },
});

impl BootstrapError {
    /// Whether a bounded wait expired: ranks or answers were missing at the deadline, or the server was silent or could
    /// not be reached.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::MissingRanks { .. }
                | Self::SilentPeer { .. }
                | Self::Unreachable { .. }
                | Self::Timeout { .. }
        )
    }

    pub(crate) fn system(op: &str, error: &std::io::Error) -> Self {
        Self::System { op: op.to_owned(), detail: error.to_string() }
    }

    pub(crate) fn lost(op: &str, address: &str, detail: &str) -> Self {
        Self::ServerLost { op: op.to_owned(), address: address.to_owned(), detail: detail.to_owned() }
    }

    /// The server's answer does not belong to the request.
    pub(crate) fn unexpected_answer(op: &str) -> Self {
        Self::Garbage {
            op: op.to_owned(),
            peer: "the rendezvous server".to_owned(),
            detail: "an answer to another question".to_owned(),
        }
    }

    /// Checks a length or count against its limit, where the value is first passed in.
    pub(crate) fn check(op: &str, field: &str, value: usize, limit: usize) -> Result<(), Self> {
        if value <= limit {
            return Ok(());
        }
        Err(Self::Limit {
            op: op.to_owned(),
            field: field.to_owned(),
            value: value as u64,
            limit: limit as u64,
        })
    }
}
