//! The buffer itself, shared by its clones and its operations in flight.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Device, EpConfig, Payload, Plan, RowShape};
use crate::error::{Error, Failure, Result};
use crate::ffi::Progress;
use crate::peers::{LONGEST_LOOK, Setting, Watched, Watcher};
use crate::{ffi, observe, sys};

/// A rank's window, its mappings of the peers' windows, and its lanes. Cheap to clone; clones share it.
///
/// `Send` and `Sync`: different threads and tasks may use different lanes at the same time. All ranks must begin the
/// same operations in the same order on the same lanes.
///
/// Waits are bounded by [`EpConfig::deadline`]: an operation whose peers fall silent ends with a degraded
/// [`Outcome`](crate::Outcome). Async forms never block the polling thread; the work of moving bytes is done in `poll`,
/// like any computation.
///
/// On a GPU ([`EpConfig::device`]) operations are enqueued instead, see [`cuda`](crate::cuda). Each kind of buffer
/// refuses the calls of the other with [`Error::State`].
#[derive(Debug, Clone)]
pub struct EpBuffer {
    pub(crate) inner: Arc<Inner>,
}

impl EpBuffer {
    /// A buffer that is not connected, for programs that distribute blobs by their own means: call [`EpBuffer::export`]
    /// on every rank, [`EpBuffer::connect`] on every other rank, then [`EpBuffer::set_active`]. Allocates the window;
    /// waits for nobody. Its queues, if [`Paths::queue`](crate::Paths::queue) permits them, reach ranks of this host.
    /// To reach those of other hosts a key is needed: that of a group or, if `EPWIRE_WIRES` asks for `tcp`, that of the
    /// process's token and `EPWIRE_RUN_ID`.
    ///
    /// # Errors
    /// Those of [`Plan::new`]; also [`Error::Invalid`] if `EPWIRE_PATHS` names an unknown path, or the token cannot be
    /// read.
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
            watchers: Default::default(),
            ffi,
            rank,
            config,
            plan,
            told: observe::Told::of("buffer"),
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

    /// The sizes that follow from the configuration.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }
}

/// What the clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: their threads end before the last owner drops the C buffer.
    watchers: [Watcher; sys::EPW_MAX_LANES as usize],
    pub(crate) ffi: Arc<ffi::Buffer>,
    pub(crate) rank: u32,
    pub(crate) config: EpConfig,
    pub(crate) plan: Plan,
    pub(super) told: observe::Told,
}

impl Inner {
    /// Refuses a call that has another form for buffers on GPUs.
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

    /// Starts the watchers before an operation begins, so that a process that cannot start a thread is refused an
    /// operation that it could not complete.
    pub(crate) fn watch_lanes(&self, operation: &str) -> Result<()> {
        let mut lanes = self.watchers.iter().take(self.config.lanes as usize);
        lanes.try_for_each(|watcher| watcher.start(&self.ffi, self.slice())).map_err(|error| {
            let text =
                format!("cannot start the thread that watches a lane: {error}; check the limit on threads");
            Error::System(Failure::new(operation, self.rank, text))
        })
    }

    /// The longest time between two looks at an operation: peers expect a beacon in every half of a deadline.
    pub(super) fn slice(&self) -> Duration {
        (self.config.deadline / 4).min(LONGEST_LOOK)
    }

    pub(crate) fn watcher(&self, handle: sys::epw_handle) -> &Watcher {
        &self.watchers[(handle & 1) as usize]
    }
}

impl Watched for ffi::Buffer {
    fn sleep(&self, handles: &[u64], longest: Duration) {
        // Each lane has at most one live handle. For another handle the wait fails, because it is gone; then its task
        // must be woken as well.
        let _ = handles.last().map(|handle| self.wait(*handle, longest));
    }

    fn is_over(&self, handle: u64) -> bool {
        !matches!(self.ready(handle), Ok(Progress::Pending))
    }
}
