//! Signs of life, and how long a side goes without them.

use std::time::Duration;

/// How often and how long the two sides of a connection listen for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time between two signs of life.
    pub interval: Duration,
    /// Silence after which the other side is suspect.
    pub lease: Duration,
    /// Time that a new connection has to show who it is.
    pub handshake: Duration,
}

/// A sign of life each second, suspicion after 5 s, 5 s for the handshake.
impl Default for Heartbeat {
    fn default() -> Self {
        let interval = Duration::from_secs(1);
        Self { interval, lease: Duration::from_secs(5), handshake: Duration::from_secs(5) }
    }
}
