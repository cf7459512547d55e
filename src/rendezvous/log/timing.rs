//! Time limits, and limits for the length of the log.

use std::time::Duration;

/// The time limits of a log. All its voters should have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Interval of a leader's heartbeats; also how long it waits for an answer without contents.
    pub(crate) heartbeat: Duration,
    /// A voter stands for election after a random time between these two without a leader.
    pub(crate) election: (Duration, Duration),
    /// How long one question with records or a part of a snapshot may take.
    pub(crate) transfer: Duration,
    /// How long a record may wait for a majority.
    pub(crate) patience: Duration,
    /// A snapshot is taken, and earlier entries are dropped, after this many entries or this many bytes of entries
    /// since the last one.
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
