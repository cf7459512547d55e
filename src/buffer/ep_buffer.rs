//! The buffer itself, as its clones and its operations in flight share it.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Device, EpConfig, Payload, Plan, RowShape};
use crate::error::{Error, Failure, Result};
use crate::ffi::Awaited;
use crate::peers::{Setting, Waits, Watched, longest_look};
use crate::{ffi, observe};

/// A rank's window, its mappings of the peers' windows, and its lanes. Cheap to clone; clones share it.
///
/// `Send` and `Sync`: lanes may be used from different threads and tasks at a time. All ranks must begin the same
/// operations in the same order on the same lanes.
///
/// Waits are bounded by [`EpConfig::deadline`]: an operation whose peers fall silent ends with a degraded [`Outcome`](crate::Outcome).
/// Async forms never block the polling thread; the work of moving bytes is done in `poll`, as any computation. Their tasks are woken by
/// the process's progress thread: wakers must not block.
///
/// On a GPU ([`EpConfig::device`]) operations are enqueued instead, see [`cuda`](crate::cuda): the calls of the other kind of
/// buffer are [`Error::State`].
#[derive(Debug, Clone)]
pub struct EpBuffer {
    pub(crate) inner: Arc<Inner>,
}

impl EpBuffer {
    /// A buffer that knows nobody yet, for programs that carry blobs by means of their own: [`EpBuffer::export`] on every rank,
    /// [`EpBuffer::connect`] on every other, then [`EpBuffer::set_active`]. Allocates the window; waits for nobody. Its queues,
    /// if [`Paths::queue`](crate::Paths::queue) permits them, reach ranks of this host. Those of other hosts need a key, which is that of a group, or
    /// where `EPWIRE_WIRES` asks for `tcp` that of the process's token and `EPWIRE_RUN_ID`.
    ///
    /// # Errors
    /// As of [`Plan::new`]; [`Error::Invalid`] too if `EPWIRE_PATHS` names what is no path, or the token cannot be read.
    pub fn unconnected(rank: u32, ranks: u32, config: EpConfig) -> Result<Self> {
        Self::made(rank, ranks, config, Setting::alone(rank)?)
    }

    pub(super) fn made(rank: u32, ranks: u32, mut config: EpConfig, setting: Setting) -> Result<Self> {
        config.paths = setting.paths(rank, config.paths)?;
        let plan = Plan::new(&config, ranks)?;
        let fabric = setting.fabric(rank, config.paths, config.device)?;
        let ffi = Arc::new(ffi::Buffer::create(&config.to_c(rank, ranks), fabric)?);
        observe::describe();
        let inner = Inner {
            waits: Waits::default(),
            ffi,
            rank,
            config,
            plan,
            #[cfg(feature = "metrics")]
            told: std::sync::Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.inner.plan.ranks
    }

    /// The configuration.
    pub fn config(&self) -> &EpConfig {
        &self.inner.config
    }

    /// The sizes that follow from it.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }
}

/// What the clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: the progress thread leaves the buffer before its last owner goes.
    pub(crate) waits: Waits,
    pub(crate) ffi: Arc<ffi::Buffer>,
    pub(crate) rank: u32,
    pub(crate) config: EpConfig,
    pub(crate) plan: Plan,
    /// What the metrics have been told.
    #[cfg(feature = "metrics")]
    pub(super) told: std::sync::Mutex<crate::traffic::Traffic>,
}

impl Inner {
    /// Refuses what a buffer on a GPU has another call for.
    pub(super) fn host(&self, operation: &str) -> Result<()> {
        if self.config.device == Device::Host {
            return Ok(());
        }
        let text = format!(
            "the buffer is on a GPU: enqueue the operation with enqueue_{operation}, see epwire::cuda"
        );
        Err(Error::State(Failure::new(operation, self.rank, text)))
    }

    /// Bytes of one row without its scales.
    pub(super) fn payload_bytes(&self, payload: Payload) -> usize {
        match payload {
            Payload::SameAsInput => self.config.hidden as usize * 2,
            Payload::Fp8 { .. } => self.config.hidden as usize,
            Payload::Opaque { row_bytes, .. } => row_bytes as usize,
        }
    }

    /// Bytes of the scales of one row.
    pub(super) fn scale_bytes(&self, payload: Payload) -> usize {
        RowShape::new(&self.config, self.plan.ranks, payload).map_or(0, |s| s.scale_count * s.scale_bytes)
    }

    /// Before an operation that is awaited, see [`Waits::start`].
    pub(crate) fn start_waits(&self, operation: &str) -> Result<()> {
        self.waits.start(operation, self.rank, &self.ffi, self.config.deadline)
    }

    /// Longest time between two looks at an operation.
    pub(super) fn slice(&self) -> Duration {
        longest_look(self.config.deadline)
    }
}

impl Watched for ffi::Buffer {
    fn awaited(&self, handle: u64) -> Awaited<'_> {
        Self::awaited(self, handle)
    }

    fn tend(&self, handle: u64) -> bool {
        Self::tend(self, handle)
    }
}
