//! Signs of life, and how long a side waits for one.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::attendant::LONGEST;
use crate::names::setters;

/// How often the two sides of a connection send signs of life, and how long they wait for them. More than a year counts
/// as a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Heartbeat {
    /// Time between two signs of life.
    pub interval: Duration,
    /// Silence after which the other side is suspect.
    pub lease: Duration,
    /// Time that a new connection has to complete the handshake.
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

impl Heartbeat {
    /// With no time so long that sums with it exceed what clocks can express.
    pub(crate) fn bounded(self) -> Self {
        let Self { interval, lease, handshake } = self;
        Self { interval: interval.min(LONGEST), lease: lease.min(LONGEST), handshake: handshake.min(LONGEST) }
    }
}

/// `every 1s, lease 5s, handshake 5s`.
impl fmt::Display for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval, lease, handshake } = self;
        write!(f, "every {interval:?}, lease {lease:?}, handshake {handshake:?}")
    }
}

/// How long the other side has been silent, counting only time in which this process ran.
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

    /// To be called at each heartbeat: whether the silence has lasted for a lease.
    pub(super) fn lasts(&mut self) -> bool {
        self.heard_nothing += self.awake.passed();
        self.heard_nothing >= self.lease
    }
}

/// Time in which this process ran. While it was stopped, signs of life arrived that have not been read yet, so nobody
/// may be considered silent because of that time. A caller that asks at least once per interval gets hardly more than
/// one interval per call.
pub(super) struct Awake {
    pub(super) interval: Duration,
    pub(super) looked: Instant,
}

impl Awake {
    pub(super) fn of(heartbeat: Heartbeat) -> Self {
        Self { interval: heartbeat.interval.max(Duration::from_millis(1)), looked: Instant::now() }
    }

    /// The time since the last call.
    pub(super) fn passed(&mut self) -> Duration {
        let passed = self.looked.elapsed().min(self.interval + self.interval / 2);
        self.looked = Instant::now();
        passed
    }
}
