//! What a rank and its parent tell each other, one line each.

use serde::{Deserialize, Serialize};

/// What the parent asks of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Tell the free memory of your GPU.
    Memory,
    /// Retire another member.
    Retire { rank: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// It has joined and has its buffer; on standby it waits to be admitted. Its own server, if it has one, is at this address.
    Ready { listens: Option<String> },
    /// Its last step differed from the previous one: it was in this epoch of these members, and lacked the missing
    /// ones.
    Served { epoch: u32, members: Vec<u32>, missing: Vec<u32> },
    /// The rank whose server serves the run as far as it knows, and the addresses that newcomers may use.
    Known { leader: Option<u32>, servers: Vec<String> },
    /// The others have continued without it, and it asks to be let in again.
    Evicted,
    /// It was asked for the free bytes of its GPU.
    Memory { free: u64 },
    /// It has retired a member as asked, or says why it could not.
    Retired { rank: u32, error: Option<String> },
}
