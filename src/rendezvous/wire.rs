//! The frames between members and the rendezvous server.
//!
//! A frame is a header of 10 bytes, little-endian {magic u32 | version u16 | body length u32}, and a body {kind u16 |
//! fields in a fixed order}. [`decode`] is total: any bytes give a frame or a [`WireError`], and no length found in
//! them is trusted before the bytes are there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use super::codec::WireError;
use super::codec::{Blob, Reader, Wire, wire};
use super::error::BootstrapError;
use crate::mask::Mask;

pub use super::codec::PROTOCOL_VERSION;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 10;
/// Most bytes of a frame's body once the peer has proven that it knows the token.
pub const MAX_BODY_BYTES: usize = 4 << 20;
/// Most bytes of the body of a frame between the servers of members, which carries several records.
pub const MAX_PEER_BYTES: usize = 9 << 20;
/// Most bytes of a frame's body during the handshake.
pub const MAX_HANDSHAKE_BYTES: usize = 4 << 10;
/// Most bytes of one blob of an exchange.
pub const MAX_BLOB_BYTES: usize = 64 << 10;
/// Most bytes of a tag, a run id, a host name, or the name or value of a config field.
pub const MAX_TEXT_BYTES: usize = 1 << 10;
/// Most config fields of an agreement.
pub const MAX_FIELDS: usize = 256;

/// Config fields as (name, value), compared between members by name.
pub type Fields = Vec<(String, String)>;

/// One incarnation of a rank: a process, or a thread that acts as a rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Identity {
    /// Its rank in `0..world`.
    pub rank: u32,
    /// 128 random bits, chosen once when it starts; a replacement for the same rank has different ones.
    pub member: u128,
    /// Name of its host, for people.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Kernel and namespace of the process id: members with the same value watch each other's processes. Empty if
    /// unknown.
    pub process_space: String,
}
wire!(struct Identity { rank, member, host, pid, process_space });

impl Identity {
    /// A process in an unknown space. Members make their own; this is for tests.
    #[doc(hidden)]
    pub fn new(rank: u32, member: u128, host: &str, pid: u32) -> Self {
        Self { rank, member, host: host.to_owned(), pid, process_space: String::new() }
    }
}

/// The server of a member, which serves the run if it leads, and refers to the leader otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// 128 random bits, chosen when it starts: a server with another id at the same address is a different server.
    pub id: u128,
    /// `host:port` at which the others reach it.
    pub address: String,
}
wire!(struct Listener { id, address });

/// Which member serves the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its rank.
    pub rank: u32,
    /// The member.
    pub member: u128,
    /// `host:port` of its server, which listens for as long as the member lives.
    pub address: String,
}
wire!(struct Host { rank, member, address });

/// A member's request to take part in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// [`PROTOCOL_VERSION`] of the member.
    pub version: u16,
    /// The run it wants to take part in.
    pub run_id: String,
    /// Number of ranks it expects.
    pub world: u32,
    /// How many of them it expects from the beginning.
    pub initial: u32,
    /// Who joins.
    pub identity: Identity,
    /// How long it waits for the others.
    pub deadline: Duration,
    /// Fields that must be equal on every rank.
    pub config: Fields,
    /// Its own server, if it has one.
    pub listener: Option<Listener>,
}
wire!(struct Join { version, run_id, world, initial, identity, deadline, config, listener });

/// What the members of a round contribute, and get out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundKind {
    /// One blob per rank of the world, empty for ranks that do not take part; each gets the blobs meant for it.
    Exchange {
        /// Indexed by the receiver's rank.
        blobs: Vec<Blob>,
    },
    /// Nothing: ends when all parts have arrived.
    Barrier {},
    /// Fields that must be equal.
    Agree {
        /// This member's values.
        fields: Fields,
    },
}
wire!(enum RoundKind { 1 => Exchange { blobs }, 2 => Barrier {}, 3 => Agree { fields } });

/// A member's part in a collective round. Parts with the same tag and ranks belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Name of the round.
    pub tag: String,
    /// Who takes part.
    pub ranks: Mask,
    /// How long the round may take from its first part on.
    pub deadline: Duration,
    /// The kind of round.
    pub kind: RoundKind,
}
wire!(struct Round { tag, ranks, deadline, kind });

/// A client's request to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Take part in the run.
    Join {
        /// The member, and the run.
        join: Join,
    },
    /// Take part in a collective round.
    Round {
        /// The member's part.
        round: Round,
    },
    /// Connect this member, which is on standby, with a peer; answered by the blobs that the peer exports for it.
    Introduce {
        /// The peer.
        rank: u32,
        /// What this member exports for it, a blob for each of its buffers.
        blobs: Vec<Blob>,
        /// How long to wait for the peer.
        deadline: Duration,
    },
    /// Resume a session over a new connection: the member is told and asked again what it may have missed.
    Resume {
        /// Whether it believes to be on standby: it has begun no step since it joined.
        standby: bool,
    },
    /// Remove a member from the group, once it has ended the steps before that; answered when this is decided.
    Retire {
        /// Its rank.
        rank: u32,
    },
    /// The process of a member has ended, according to somebody who knows. Ignored if the rank has another member by
    /// now.
    ReportDeath {
        /// Its rank.
        rank: u32,
        /// The member.
        member: u128,
    },
    /// Call off a change of membership that is under way.
    Abort {
        /// Its number.
        change: u64,
    },
    /// End the membership.
    Leave {},
    /// Set a key of the store.
    Set {
        /// The key.
        key: String,
        /// Its new value.
        value: Blob,
    },
    /// Add to a number in the store; an absent one counts as 0.
    Add {
        /// Its key.
        key: String,
        /// What is added.
        amount: i64,
    },
    /// Wait until all keys exist, and get their values.
    Get {
        /// The keys.
        keys: Vec<String>,
        /// How long to wait; zero means not at all.
        deadline: Duration,
    },
    /// Delete a key of the store, if it exists.
    Delete {
        /// The key.
        key: String,
    },
    /// Delete all keys of the store with a prefix.
    DeletePrefix {
        /// What they begin with.
        prefix: String,
    },
}
wire!(enum Request {
    1 => Join { join },
    2 => Round { round },
    3 => Introduce { rank, blobs, deadline },
    4 => Leave {},
    5 => Set { key, value },
    6 => Add { key, amount },
    7 => Get { keys, deadline },
    8 => Resume { standby },
    9 => Retire { rank },
    10 => Abort { change },
    11 => ReportDeath { rank, member },
    12 => Delete { key },
    13 => DeletePrefix { prefix },
});

/// The state of a rank, as the rendezvous server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankState {
    /// Nobody has joined as this rank yet.
    Absent {},
    /// A member, heard within its lease.
    Alive {},
    /// A member, silent past its lease or unreachable; it may still run.
    Suspect {},
    /// The kernel closed its socket, or somebody has seen its process end: it will not write any more.
    Dead {},
    /// Running, but the others continue without it.
    Evicted {},
    /// Joined, and has not reported yet that it is ready to be admitted.
    Standby {},
    /// Running, and no longer in the group, as was requested.
    Retired {},
    /// On standby, and ready: it waits to be admitted.
    Ready {},
    /// It left by itself, with [`Group::leave`](crate::Group::leave).
    Left {},
}
wire!(enum RankState {
    0 => Absent {}, 1 => Alive {}, 2 => Suspect {}, 3 => Dead {}, 4 => Evicted {}, 5 => Standby {},
    6 => Retired {}, 7 => Ready {}, 8 => Left {},
});

impl RankState {
    /// The ranks in this state, of the states of all ranks.
    pub(crate) fn ranks(self, states: &[Self]) -> Mask {
        (0..).zip(states).filter(|(_, state)| **state == self).map(|(rank, _)| rank).collect()
    }
}

/// The membership at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct View {
    /// Current epoch; 0 until the run has come together.
    pub epoch: u32,
    /// Ranks that are members in this epoch.
    pub mask: Mask,
    /// The first step of this epoch.
    pub step: u64,
    /// Ranks that are members or have been. The others are places that the run can still grow into.
    pub taken: Mask,
    /// The state of each rank, indexed by rank.
    pub states: Vec<RankState>,
}
wire!(struct View { epoch, mask, step, taken, states });

impl View {
    /// The view of a run that has not come together.
    pub(crate) fn before() -> Self {
        Self { epoch: 0, mask: Mask::EMPTY, step: 0, taken: Mask::EMPTY, states: Vec::new() }
    }
}

/// The answer to a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// All present members, by ascending rank.
    pub roster: Vec<Identity>,
    /// The membership. The member itself is in the mask, or else on standby.
    pub view: View,
}
wire!(struct Joined { roster, view });

/// The members from a step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Decision {
    /// The members.
    pub mask: Mask,
    /// Their epoch.
    pub epoch: u32,
    /// Its first step, counted from 1 since the run began.
    pub step: u64,
}
wire!(struct Decision { mask, epoch, step });

/// Ranks that have joined and do not take part yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Standby {
    /// Those that have reported that they are ready, and wait in [`Group::step`](crate::Group::step) to be admitted.
    pub ready: Mask,
    /// Those that have not, for instance because they are creating buffers or warming up.
    pub preparing: Mask,
}
wire!(struct Standby { ready, preparing });

impl Standby {
    /// Derived from the states of ranks.
    pub(crate) fn among(states: &[RankState]) -> Self {
        Self { ready: RankState::Ready {}.ranks(states), preparing: RankState::Standby {}.ranks(states) }
    }
}

/// What the group asks a member when the membership is about to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To a member on standby: introduce yourself to these peers; answered by [`Notice::Met`].
    Meet {
        /// The peers.
        peers: Mask,
    },
    /// Connect a newcomer; answered by [`Notice::Introduced`].
    Introduce {
        /// Repeated in the answer.
        ticket: u64,
        /// The newcomer's rank.
        rank: u32,
        /// What it exports for this member, a blob for each of its buffers.
        blobs: Vec<Blob>,
    },
    /// Does your own device work, which of these peers can you not reach, and which members have begun the current
    /// membership at another step than was decided? Answered by [`Notice::Reached`].
    Reach {
        /// Number of the change.
        change: u64,
        /// The peers.
        peers: Mask,
        /// The epoch of the current membership.
        epoch: u32,
        /// Its first step, as decided.
        step: u64,
    },
    /// How far will you go under the current membership? Answered by [`Notice::Promise`].
    Promise {
        /// Number of the change.
        change: u64,
        /// Whether operations may be running that cannot be completed.
        lossy: bool,
    },
}
wire!(enum Ask {
    1 => Reach { change, peers, epoch, step },
    2 => Promise { change, lossy },
    3 => Meet { peers },
    4 => Introduce { ticket, rank, blobs },
});

/// What a member reports without waiting for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// From a member on standby: it has all its buffers, and waits to be admitted.
    Ready {},
    /// The answer to [`Ask::Meet`].
    Met {
        /// The peers with which it is connected now.
        peers: Mask,
    },
    /// The answer to [`Ask::Introduce`].
    Introduced {
        /// The ticket of the question.
        ticket: u64,
        /// What this member exports for the newcomer, or why it did not connect it.
        result: Result<Vec<Blob>, BootstrapError>,
    },
    /// Peers were silent for a deadline in its operations of this epoch, or have begun the epoch at another step.
    Doubt {
        /// The epoch.
        epoch: u32,
        /// The peers.
        peers: Mask,
    },
    /// The process of a member has ended, according to this member's kernel. It is reported repeatedly, because there
    /// is no answer.
    Ended {
        /// Its rank.
        rank: u32,
        /// The member.
        member: u128,
    },
    /// The answer to [`Ask::Reach`].
    Reached {
        /// Number of the change.
        change: u64,
        /// The peers that it does not reach, and itself if its own device does not work.
        missing: Mask,
        /// The members that have begun the current membership at another step than was decided, including itself if it
        /// has.
        diverged: Box<Mask>,
    },
    /// The answer to [`Ask::Promise`].
    Promise {
        /// Number of the change.
        change: u64,
        /// The last step that it begins before it knows the outcome.
        step: u64,
    },
}
wire!(enum Notice {
    1 => Ready {},
    2 => Doubt { epoch, peers },
    3 => Reached { change, missing, diverged },
    4 => Promise { change, step },
    5 => Met { peers },
    6 => Introduced { ticket, result },
    7 => Ended { rank, member },
});

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to a join.
    Joined {
        /// Who is there.
        joined: Arc<Joined>,
    },
    /// The answer to an exchange or an introduction.
    Blobs {
        /// Indexed by the sender's rank; for an introduction by buffer.
        blobs: Vec<Blob>,
    },
    /// The answer to a barrier, an agreement on fields, a leave, or the setting of a key.
    Done {},
    /// The answer to an addition.
    Sum {
        /// The new value.
        sum: i64,
    },
    /// The answer to a get.
    Values {
        /// In the order of the keys. Shared, because many clients may wait for the same values.
        values: Vec<Arc<Blob>>,
    },
    /// The answer to a deletion.
    Deleted {
        /// How many keys existed.
        keys: u64,
    },
}
wire!(enum Reply {
    1 => Joined { joined },
    2 => Blobs { blobs },
    3 => Done {},
    5 => Sum { sum },
    6 => Values { values },
    7 => Deleted { keys },
});

/// Every message, in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Client: opens the handshake.
    Hello {
        /// The run it wants.
        run_id: String,
        /// Its challenge.
        nonce: [u8; 32],
    },
    /// Server: answers it.
    Challenge {
        /// The server's challenge.
        nonce: [u8; 32],
    },
    /// Either side: proves that it knows the token; the client first.
    Proof {
        /// The code over both challenges.
        mac: [u8; 32],
    },
    /// Server: closes the connection.
    Refused {
        /// The reason.
        error: BootstrapError,
    },
    /// Client, after the handshake: who it is.
    Open {
        /// 64 random bits that it has chosen, the same for all its connections.
        session: u64,
    },
    /// Server: it serves this client.
    Opened {
        /// The member whose server this is, if it belongs to one.
        host: Option<Host>,
    },
    /// Server: the members whose servers can take over from it; replaces any earlier list.
    Servers {
        /// These members, including its own.
        hosts: Vec<Host>,
    },
    /// From one member's server to that of another: questions follow, each answered before the next.
    Peer {},
    /// A question about the log of what happened.
    Question {
        /// The question.
        body: Blob,
    },
    /// Its answer.
    Replied {
        /// The answer.
        body: Blob,
    },
    /// Server: another server serves the run.
    Refer {
        /// Its address, if known.
        leader: Option<String>,
    },
    /// Client: a request.
    Call {
        /// Chosen by the client, unique in its session.
        id: u64,
        /// What it asks.
        request: Request,
    },
    /// Server: the answer to a request.
    Answer {
        /// The id of the call.
        id: u64,
        /// The outcome.
        result: Result<Reply, BootstrapError>,
    },
    /// Server: the membership changed.
    Changed {
        /// The new membership.
        view: Arc<View>,
    },
    /// Client: a sign of life.
    Ping {
        /// It needs no answer any more to its calls up to this one,
        received: u64,
        /// except for these, which it still waits for; at most 512.
        except: BTreeSet<u64>,
    },
    /// Server: a sign of life.
    Pong {},
    /// Client: a message that needs no answer.
    Notice {
        /// The message.
        notice: Notice,
    },
    /// Server: the membership is about to change.
    Ask {
        /// The question.
        ask: Ask,
    },
    /// Server: a change has ended.
    Settled {
        /// Number of the change.
        change: u64,
        /// What was decided, or why the membership is unchanged.
        outcome: Result<Decision, BootstrapError>,
        /// Members that leave with this change and take part in the steps before it.
        retired: Mask,
        /// Who was on standby and still is.
        waiting: Box<Standby>,
    },
    /// Server: members that have taken these places, each replacing any earlier member there.
    Seated {
        /// All members, or only the latest ones.
        members: Arc<Vec<Identity>>,
    },
}
wire!(enum Frame {
    1 => Hello { run_id, nonce },
    2 => Challenge { nonce },
    3 => Proof { mac },
    4 => Refused { error },
    5 => Call { id, request },
    6 => Answer { id, result },
    7 => Changed { view },
    8 => Ping { received, except },
    9 => Pong {},
    10 => Notice { notice },
    11 => Ask { ask },
    12 => Settled { change, outcome, retired, waiting },
    13 => Open { session },
    14 => Opened { host },
    15 => Refer { leader },
    16 => Servers { hosts },
    17 => Peer {},
    18 => Question { body },
    19 => Replied { body },
    20 => Seated { members },
});

/// The bytes of a frame, or [`WireError::TooLong`] if its body exceeds [`MAX_BODY_BYTES`], or [`MAX_PEER_BYTES`]
/// between servers.
pub fn encode(frame: &Frame) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::with_capacity(64);
    MAGIC.put(&mut bytes);
    PROTOCOL_VERSION.put(&mut bytes);
    0u32.put(&mut bytes);
    frame.put(&mut bytes);
    let body = bytes.len() - HEADER_BYTES;
    let limit = match frame {
        Frame::Question { .. } | Frame::Replied { .. } => MAX_PEER_BYTES,
        _ => MAX_BODY_BYTES,
    };
    if body > limit {
        return Err(WireError::TooLong { bytes: body, limit });
    }
    bytes[LENGTH_AT..HEADER_BYTES].copy_from_slice(&(body as u32).to_le_bytes());
    Ok(bytes)
}

/// Checks a header and gives the number of body bytes that follow it, at most `limit`.
pub fn body_length(header: &[u8; HEADER_BYTES], limit: usize) -> Result<usize, WireError> {
    let mut from = Reader::new(header);
    if u32::get(&mut from)? != MAGIC {
        return Err(WireError::Magic);
    }
    let theirs = u16::get(&mut from)?;
    if theirs != PROTOCOL_VERSION {
        return Err(WireError::Version { ours: PROTOCOL_VERSION, theirs });
    }
    let bytes = u32::get(&mut from)? as usize;
    if bytes > limit { Err(WireError::TooLong { bytes, limit }) } else { Ok(bytes) }
}

/// The frame that `bytes` contain, with its header and nothing after it.
pub fn decode(bytes: &[u8]) -> Result<Frame, WireError> {
    let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(WireError::Truncated)?;
    let length = body_length(header, MAX_PEER_BYTES)?;
    let mut from = Reader::new(body.get(..length).ok_or(WireError::Truncated)?);
    let frame = Frame::get(&mut from)?;
    if from.remaining() > 0 || body.len() > length { Err(WireError::Trailing) } else { Ok(frame) }
}

const MAGIC: u32 = u32::from_le_bytes(*b"EPWR");
const LENGTH_AT: usize = 6;

#[cfg(test)]
mod tests;
