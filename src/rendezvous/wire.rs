//! The frames between members and the rendezvous server.
//!
//! A frame is a header of 10 bytes, little-endian {magic u32 | version u16 | body length u32}, and a body {kind u16 |
//! fields in a fixed order}. [`decode`] is total: any bytes give a frame or a [`WireError`], and no length found in
//! them is believed before the bytes are there.

use std::sync::Arc;
use std::time::Duration;

pub use super::codec::WireError;
use super::codec::{Blob, Reader, Wire, wire};
use super::error::BootstrapError;
use crate::mask::Mask;

pub use super::codec::PROTOCOL_VERSION;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 10;
/// Most bytes of a frame's body once the peer has shown that it knows the token.
pub const MAX_BODY_BYTES: usize = 4 << 20;
/// Most bytes of the body of a frame between the servers of members, which carries several records.
pub const MAX_PEER_BYTES: usize = 9 << 20;
/// Most bytes of a frame's body before that.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its rank in `0..world`.
    pub rank: u32,
    /// 128 random bits, chosen once when it starts; a replacement for the same rank has others.
    pub member: u128,
    /// Name of its host, for people.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Kernel and namespace of the process id: members of the same watch each other's processes. Empty if unknown.
    pub process_space: String,
}
wire!(struct Identity { rank, member, host, pid, process_space });

/// The server of a member, which serves the run if it leads, and refers to the leader otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// 128 random bits, chosen when it starts: another one at the same address is somebody else.
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

/// A member's wish to take part in a run.
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
    /// Who it is.
    pub identity: Identity,
    /// How long it waits for the others.
    pub deadline: Duration,
    /// Fields that must be equal on every rank.
    pub config: Fields,
    /// Its own server, if it has one.
    pub listener: Option<Listener>,
}
wire!(struct Join { version, run_id, world, initial, identity, deadline, config, listener });

/// What the members of a round hand in, and get out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundKind {
    /// One blob per rank of the world, those of ranks that do not take part empty; each gets the blobs meant for it.
    Exchange {
        /// Indexed by the receiver's rank.
        blobs: Vec<Blob>,
    },
    /// Nothing: ends when all have come.
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
    /// What is done.
    pub kind: RoundKind,
}
wire!(struct Round { tag, ranks, deadline, kind });

/// What a client asks of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Take part in the run.
    Join {
        /// Who, and in what.
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
    /// Go on with a session by a new connection: the member is told and asked again what it may have missed.
    Resume {
        /// Whether it is on standby as far as it knows: it has begun no step since it joined.
        standby: bool,
    },
    /// A member is to belong to the group no more, once it has ended the steps before that; answered when this is decided.
    Retire {
        /// Its rank.
        rank: u32,
    },
    /// The process of a member has ended, as somebody who knows says. Another member by that rank is let be.
    ReportDeath {
        /// Its rank.
        rank: u32,
        /// The member.
        member: u128,
    },
    /// A change of membership that is under way is to come to nothing.
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
    /// Add to a number in the store, absent meaning 0.
    Add {
        /// Its key.
        key: String,
        /// What is added.
        amount: i64,
    },
    /// Wait until all keys are there, and get their values.
    Get {
        /// The keys.
        keys: Vec<String>,
        /// How long to wait; zero: not at all.
        deadline: Duration,
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
});

/// How a rank stands, seen from the rendezvous server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankState {
    /// Nobody has joined as this rank yet.
    Absent {},
    /// A member, heard within its lease.
    Alive {},
    /// A member, silent past its lease or unreachable; it may still run.
    Suspect {},
    /// The kernel closed its socket, or it left: it will not write any more.
    Dead {},
    /// Runs, but the others went on without it.
    Evicted {},
    /// Joined, and has not said yet that it is ready to be admitted.
    Standby {},
    /// Runs, and does not belong to the group any more, as was asked for.
    Retired {},
    /// On standby, and ready: it waits to be admitted.
    Ready {},
}
wire!(enum RankState {
    0 => Absent {}, 1 => Alive {}, 2 => Suspect {}, 3 => Dead {}, 4 => Evicted {}, 5 => Standby {},
    6 => Retired {}, 7 => Ready {},
});

/// The membership at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Current epoch; 0 until the run has come together.
    pub epoch: u32,
    /// Ranks that are members in this epoch.
    pub mask: Mask,
    /// The first step of it.
    pub step: u64,
    /// Ranks that are members or have been. The others are places that the run can still grow into.
    pub taken: Mask,
    /// How each rank stands, indexed by rank.
    pub states: Vec<RankState>,
}
wire!(struct View { epoch, mask, step, taken, states });

impl View {
    /// Of a run that has not come together.
    pub(crate) fn before() -> Self {
        Self { epoch: 0, mask: Mask::EMPTY, step: 0, taken: Mask::EMPTY, states: Vec::new() }
    }
}

/// The answer to a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Everybody who is there, by ascending rank.
    pub roster: Vec<Identity>,
    /// How they stand. The member itself is in the mask, or else on standby.
    pub view: View,
}
wire!(struct Joined { roster, view });

/// Who the members are from a step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The members.
    pub mask: Mask,
    /// The epoch in which they are.
    pub epoch: u32,
    /// The first step of it, counted from 1 since the run began.
    pub step: u64,
}
wire!(struct Decision { mask, epoch, step });

/// Ranks that have joined and do not take part yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standby {
    /// They have said that they are ready, and wait in [`Group::step`](crate::Group::step) to be admitted.
    pub ready: Mask,
    /// They have not: they create their buffers, say, or warm up.
    pub preparing: Mask,
}
wire!(struct Standby { ready, preparing });

impl Standby {
    /// As the states of ranks show it.
    pub(crate) fn among(states: &[RankState]) -> Self {
        let of = |which: RankState| {
            (0..).zip(states).filter(|(_, state)| **state == which).map(|(rank, _)| rank).collect()
        };
        Self { ready: of(RankState::Ready {}), preparing: of(RankState::Standby {}) }
    }
}

/// What the group asks of a member when the membership is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// On standby: introduce itself to these peers; answered by [`Notice::Met`].
    Meet {
        /// The peers.
        peers: Mask,
    },
    /// Connect a newcomer; answered by [`Notice::Introduced`].
    Introduce {
        /// For the answer.
        ticket: u64,
        /// The newcomer's rank.
        rank: u32,
        /// What it exports for this member, a blob for each of its buffers.
        blobs: Vec<Blob>,
    },
    /// Whether its own device works, which of these peers it does not reach, and who has begun the present membership otherwise
    /// than was decided; answered by [`Notice::Reached`].
    Reach {
        /// Number of the change.
        change: u64,
        /// The peers.
        peers: Mask,
        /// Of the present membership.
        epoch: u32,
        /// The first step of it, as was decided.
        step: u64,
    },
    /// How far it goes under the present membership; answered by [`Notice::Promise`].
    Promise {
        /// Number of the change.
        change: u64,
        /// Whether operations may be under way that cannot be completed.
        lossy: bool,
    },
}
wire!(enum Ask {
    1 => Reach { change, peers, epoch, step },
    2 => Promise { change, lossy },
    3 => Meet { peers },
    4 => Introduce { ticket, rank, blobs },
});

/// What a member says without waiting for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// On standby: it has all its buffers, and waits to be admitted.
    Ready {},
    /// To [`Ask::Meet`].
    Met {
        /// Those with which it is connected now.
        peers: Mask,
    },
    /// To [`Ask::Introduce`].
    Introduced {
        /// That of the question.
        ticket: u64,
        /// What this member exports for the newcomer, or why it did not connect it.
        result: Result<Vec<Blob>, BootstrapError>,
    },
    /// Peers were silent for a deadline in its operations of this epoch, or have begun it at another step.
    Doubt {
        /// The epoch.
        epoch: u32,
        /// The peers.
        peers: Mask,
    },
    /// The process of a member has ended, as this one's kernel says. It is told again and again, as nobody waits for an answer.
    Ended {
        /// Its rank.
        rank: u32,
        /// The member.
        member: u128,
    },
    /// To [`Ask::Reach`].
    Reached {
        /// Number of the change.
        change: u64,
        /// Those of the peers that it does not reach, and itself if its own device does not answer it.
        missing: Mask,
        /// Those that have begun the present membership at another step than was decided, itself among them if it has.
        diverged: Box<Mask>,
    },
    /// To [`Ask::Promise`].
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
    /// To a join.
    Joined {
        /// Who is there.
        joined: Arc<Joined>,
    },
    /// To an exchange or an introduction.
    Blobs {
        /// Indexed by the sender's rank; of an introduction by buffer.
        blobs: Vec<Blob>,
    },
    /// To a barrier, an agreement on fields, a leave, or the setting of a key.
    Done {},
    /// To an addition.
    Sum {
        /// What it gave.
        sum: i64,
    },
    /// To a get.
    Values {
        /// In the order asked. Shared, as many may wait for the same.
        values: Vec<Arc<Blob>>,
    },
}
wire!(enum Reply {
    1 => Joined { joined },
    2 => Blobs { blobs },
    3 => Done {},
    5 => Sum { sum },
    6 => Values { values },
});

/// Everything that travels, either way.
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
    /// Either: shows that it knows the token; the client first.
    Proof {
        /// The code over both challenges.
        mac: [u8; 32],
    },
    /// Server: gives the connection up.
    Refused {
        /// The reason.
        error: BootstrapError,
    },
    /// Client, once the token is shown: who it is.
    Open {
        /// 64 random bits that it has chosen, the same for all its connections.
        session: u64,
    },
    /// Server: it serves this client.
    Opened {
        /// The member whose server this is, if it belongs to one.
        host: Option<Host>,
    },
    /// Server: those that can take over from it, in place of any told before.
    Servers {
        /// The members that they belong to, its own among them.
        hosts: Vec<Host>,
    },
    /// One member's server to another one's: questions follow, each answered before the next.
    Peer {},
    /// A question about the log of what happened.
    Question {
        /// Which.
        body: Blob,
    },
    /// Its answer.
    Replied {
        /// What.
        body: Blob,
    },
    /// Server: another one does.
    Refer {
        /// Its address, if that is known.
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
        /// That of the call.
        id: u64,
        /// The outcome.
        result: Result<Reply, BootstrapError>,
    },
    /// Server: the membership changed.
    Changed {
        /// How it is now.
        view: Arc<View>,
    },
    /// Client: I live.
    Ping {
        /// It has the answers of all its calls up to this one.
        received: u64,
    },
    /// Server: so do I.
    Pong {},
    /// Client: what needs no answer.
    Notice {
        /// What.
        notice: Notice,
    },
    /// Server: the membership is to change.
    Ask {
        /// What it asks.
        ask: Ask,
    },
    /// Server: a change has come to its end.
    Settled {
        /// Number of the change.
        change: u64,
        /// What is decided, or why all stays as it is.
        outcome: Result<Decision, BootstrapError>,
        /// Those who belong to it no more and take part in the steps before.
        retired: Mask,
        /// Who was on standby and still is.
        waiting: Box<Standby>,
    },
    /// Server: members that have taken these places, each in place of any before.
    Seated {
        /// All of them, or those that came last.
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
    8 => Ping { received },
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

/// The bytes of a frame, or [`WireError::TooLong`] if its body is past [`MAX_BODY_BYTES`], or [`MAX_PEER_BYTES`] between servers.
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

/// The frame that `bytes` hold, header included and nothing after it.
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
