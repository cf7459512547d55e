//! The messages between the test and its workers: one JSON value on each line, commands on a worker's standard input,
//! replies on its standard output.

use serde::{Deserialize, Serialize};

/// What a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Buffer,
    Comm,
    Prefill,
}

/// A worker's buffer or communicator or prefill buffer, and the seed that determines all traffic.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) end: End,
    pub(crate) seed: u64,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) max_tokens: u32,
    pub(crate) hidden: u32,
    pub(crate) lanes: u32,
    pub(crate) threads: u32,
    pub(crate) rank_major: bool,
    /// Of a prefill buffer. In a history 0: there is none beside the buffer.
    pub(crate) ring_tokens: u32,
    pub(crate) deadline_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Create a buffer or communicator that is not connected.
    Create(Setup),
    /// Answered with a blob for each rank.
    Export,
    /// Connect these peers, in this order, until one is refused.
    Connect(Vec<(u32, Vec<u8>)>),
    /// `EpBuffer::connect_all` with these blobs, by peer, on the thread of an async runtime.
    ConnectAwaiting(Vec<Vec<u8>>),
    /// `EpBuffer::connect` to a stopped rank, dropped soon after it has begun; done when the attempt has ended.
    GiveUpConnect {
        peer: u32,
        blob: Vec<u8>,
    },
    SetActive {
        ranks: Vec<u32>,
        epoch: u32,
    },
    Run(Run),
    /// Join the group whose server is at this address.
    Join {
        rank: u32,
        ranks: u32,
        address: String,
        join_deadline_ms: u64,
        deadline_ms: u64,
    },
    /// `EpBuffer::create` or `Comm::create` through the group.
    CreateInGroup(Setup),
    /// The same on the thread of an async runtime.
    CreateAwaiting(Setup),
    /// `Group::step`, on the thread of an async runtime, until the membership changes.
    Change,
    /// End a wait at a point.
    Go,
}

/// Steps to run, whatever their results: all ranks run the same steps, so that nobody waits for one that has stopped
/// early.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) epoch: u32,
    pub(crate) first: u32,
    pub(crate) steps: u32,
    /// Use the split calls throughout.
    pub(crate) split: bool,
    /// Report this point of this step, and wait there for `Go`.
    pub(crate) hold: Option<(u32, Point)>,
    /// Give up the handle at this point of this step.
    pub(crate) release: Option<(u32, Point)>,
    /// If that is between two halves: drop the future of the second half, which has begun to wait.
    pub(crate) drops: bool,
    /// Die or stop while writing to a peer.
    pub(crate) trap: Option<Trap>,
}

/// Where in a step a rank dies or stops: at its first write to this place of this peer's window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Trap {
    pub(crate) step: u32,
    pub(crate) peer: u32,
    pub(crate) place: Place,
    /// Stop; otherwise die.
    pub(crate) stop: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// In the middle of one of the rows that it sends there, if any.
    Rows,
    /// Before it announces its rows: lower ranks have been told.
    DispatchWord,
    /// In the middle of one of its answers, if any.
    Answers,
    /// Before it announces its answers: the ranks between it and the peer, in ascending order from it, have been told.
    CombineWord,
    /// For a communicator: the first message of an epoch, while it is being written.
    Message,
    /// Before it tells the peer anything.
    Word,
}

/// Points of a step at which a rank can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Point {
    BeforeSend,
    DispatchSent,
    /// For a prefill buffer: all know how many rows come, and none has been sent.
    Counted,
    Dispatched,
    CombineSent,
    /// For a communicator: the operation has begun and is not awaited yet.
    Begun,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done {
        elapsed_us: u64,
        noise_us: u64,
    },
    Blobs(Vec<Vec<u8>>),
    Held,
    Ran(Ran),
    Changed {
        ranks: Vec<u32>,
        epoch: u32,
    },
    /// An error of the library: its variant and its text.
    Refused {
        kind: String,
        text: String,
        elapsed_us: u64,
        noise_us: u64,
    },
    /// Something that must never happen.
    Wrong(String),
}

/// The result of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ran {
    pub(crate) ops: Vec<Op>,
    /// Delays that the machine caused, not the library: see noise.rs.
    pub(crate) noise_us: u64,
}

/// A call that can wait, as its caller saw it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Op {
    pub(crate) step: u32,
    pub(crate) call: Call,
    pub(crate) elapsed_us: u64,
    pub(crate) missing: Vec<u32>,
    pub(crate) record: Option<Record>,
    /// When the last of the participating peers had arrived.
    pub(crate) last_arrival_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    Dispatch,
    Combine,
    /// For a communicator: a collective, or sends and receives between neighbours, and the sum after it.
    Collective,
    Exchange,
    Total,
}

/// The part of `ErrorRecord` that the test judges.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) peer: u32,
    pub(crate) cause: String,
    pub(crate) epoch: u32,
    pub(crate) elapsed_us: u64,
}
