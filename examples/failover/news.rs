//! What a rank tells its parent, one line each.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// It has joined and has its buffer; on standby it waits to be admitted.
    Ready,
    /// Its last step was of another kind than the one before: in this epoch of these members, without those that are missing.
    Served { epoch: u32, members: Vec<u32>, missing: Vec<u32> },
    /// The others have gone on without it, and it asks to be let in again.
    Evicted,
}
