//! What the test and its workers say to each other: one JSON value a line, commands on a worker's standard input, replies on
//! its standard output.

use serde::{Deserialize, Serialize};

/// What a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Buffer,
    Comm,
}

/// A worker's buffer or communicator, and the seed from which all traffic follows.
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
    pub(crate) deadline_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Make a buffer or communicator that knows nobody.
    Create(Setup),
    /// Answered with a blob for each rank.
    Export,
    /// Connect these peers, in this order, up to the first refusal.
    Connect(Vec<(u32, Vec<u8>)>),
    /// `EpBuffer::connect_all` with these blobs, by peer, on the thread of an async runtime.
    ConnectAwaiting(Vec<Vec<u8>>),
    /// `EpBuffer::connect` to a rank that is stopped, dropped soon after it has begun; done when nothing is left of it.
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
    /// Ends a hold.
    Go,
}

/// Steps to run, whatever becomes of them: all ranks run the same steps, so that nobody waits for one that has stopped early.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) epoch: u32,
    pub(crate) first: u32,
    pub(crate) steps: u32,
    /// Use the split calls throughout.
    pub(crate) split: bool,
    /// Report and wait for `Go` at this point of this step.
    pub(crate) hold: Option<(u32, Point)>,
    /// Give the handle up at this point of this step.
    pub(crate) release: Option<(u32, Point)>,
    /// Where that is between two halves: by dropping the future of the second one, which has begun to wait.
    pub(crate) drops: bool,
    /// Die or stop while writing to a peer.
    pub(crate) trap: Option<Trap>,
}

/// Where in a step a rank dies or stops: when it first writes to this place of this peer's window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Trap {
    pub(crate) step: u32,
    pub(crate) peer: u32,
    pub(crate) place: Place,
    /// Stop, else die.
    pub(crate) stop: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// In the middle of one of the rows that it sends there, if it sends any.
    Rows,
    /// Before it says that its rows are there: lower ranks have been told.
    DispatchWord,
    /// In the middle of one of its answers, if it gives any.
    Answers,
    /// Before it says that its answers are there: those between it and the peer, going up from it, have been told.
    CombineWord,
    /// Of a communicator: the first message of an epoch, while it writes that.
    Message,
    /// Before it tells the peer anything.
    Word,
}

/// Points of a step at which a rank can be caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Point {
    BeforeSend,
    DispatchSent,
    Dispatched,
    CombineSent,
    /// Of a communicator: the operation has been begun, and is not waited for.
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
    /// Something that must never be.
    Wrong(String),
}

/// What came of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ran {
    pub(crate) ops: Vec<Op>,
    /// Delays that are the machine's, not the library's: see noise.rs.
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
    /// When the last of the peers that did take part had arrived.
    pub(crate) last_arrival_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    Dispatch,
    Combine,
    /// Of a communicator: a collective, or sends and receives between neighbours, and the sum behind it.
    Collective,
    Exchange,
    Total,
}

/// `ErrorRecord`, as far as the test judges it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) peer: u32,
    pub(crate) cause: String,
    pub(crate) epoch: u32,
    pub(crate) elapsed_us: u64,
}
