//! Signs of life, and how long a side goes without them.

use std::time::Duration;

use tokio::time::Instant;

use crate::names::setters;

/// How often and how long the two sides of a connection listen for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// Time between two signs of life.
    pub interval: Duration,
    /// Silence after which the other side is suspect.
    pub lease: Duration,
    /// Time that a new connection has to show who it is.
    pub handshake: Duration,
}

setters!(Heartbeat { interval: Duration, lease: Duration, handshake: Duration });

/// A sign of life each second, suspicion after 5 s, 5 s for the handshake.
impl Default for Heartbeat {
    fn default() -> Self {
        let interval = Duration::from_secs(1);
        Self { interval, lease: Duration::from_secs(5), handshake: Duration::from_secs(5) }
    }
}

/// How long the other side has been silent while this process ran.
pub(super) struct Silence {
    pub(super) awake: Awake,
    lease: Duration,
    heard_nothing: Duration,
}

impl Silence {
    pub(super) fn of(heartbeat: Heartbeat) -> Self {
        Self { awake: Awake::of(heartbeat), lease: heartbeat.lease, heard_nothing: Duration::ZERO }
    }

    pub(super) fn broken(&mut self) {
        self.awake.passed();
        self.heard_nothing = Duration::ZERO;
    }

    /// At each beat: whether the silence has lasted for a lease.
    pub(super) fn lasts(&mut self) -> bool {
        self.heard_nothing += self.awake.passed();
        self.heard_nothing >= self.lease
    }
}

/// Time in which this process ran. While it was stopped signs of life came that are still to be read, so nobody is taken for
/// silent because of that: who looks at least once in an interval counts no look for much more than one.
pub(super) struct Awake {
    pub(super) interval: Duration,
    pub(super) looked: Instant,
}

impl Awake {
    pub(super) fn of(heartbeat: Heartbeat) -> Self {
        Self { interval: heartbeat.interval.max(Duration::from_millis(1)), looked: Instant::now() }
    }

    /// Since the last look.
    pub(super) fn passed(&mut self) -> Duration {
        let passed = self.looked.elapsed().min(self.interval + self.interval / 2);
        self.looked = Instant::now();
        passed
    }
}
