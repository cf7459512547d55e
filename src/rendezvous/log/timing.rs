//! How long things may take, and how long the log may get.

use std::time::Duration;

/// The paces of a log. All its voters should have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// How often a leader lets itself be heard; also how long it waits for an answer that carries nothing.
    pub(crate) heartbeat: Duration,
    /// Without a leader for a random time between these two, a voter wants to become one.
    pub(crate) election: (Duration, Duration),
    /// How long one question with records or a part of a snapshot may take.
    pub(crate) transfer: Duration,
    /// How long a record may wait for a majority.
    pub(crate) patience: Duration,
    /// A snapshot is taken, and the log ends behind it, once so many entries or so many bytes of them have come since the
    /// last one.
    pub(crate) snapshot: (u64, u64),
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            heartbeat: ms(100),
            election: (ms(400), ms(800)),
            transfer: ms(2_000),
            patience: ms(10_000),
            snapshot: (4_096, 16 << 20),
        }
    }
}
