//! The buffer itself, shared by its clones and its operations in flight.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Device, EpConfig, Payload, Plan, RowShape};
use crate::error::{Error, Failure, Result};
use crate::peers::{Setting, Waits, longest_look};
use crate::{ffi, observe};

/// Sends tokens to the ranks that own their experts (dispatch) and returns the experts' outputs, summed with the weights
/// (combine). Each rank has one, and all ranks [create](EpBuffer::create) theirs together, with the group. For prompts of
/// thousands of tokens see [`PrefillBuffer`](crate::prefill::PrefillBuffer).
///
/// It holds the rank's window (the memory that peers write into), the mappings of the peers' windows, and the lanes. A
/// lane carries one operation at a time. Cheap to clone; clones share it.
///
/// `Send` and `Sync`: different threads and tasks may use different lanes at the same time. All ranks must begin the
/// same operations in the same order on the same lanes.
///
/// Waits are bounded by [`EpConfig::deadline`]: an operation whose peers fall silent ends with a degraded
/// [`Outcome`](crate::Outcome). Async forms never block the polling thread; bytes are moved in `poll`. The process's
/// progress thread calls the tasks' wakers, so wakers must not block.
///
/// On a GPU ([`EpConfig::device`]) operations are enqueued instead, see [`cuda`](crate::cuda). A buffer on the host
/// refuses the calls for GPUs with [`Error::State`], and a buffer on a GPU refuses those for the host.
#[derive(Debug, Clone)]
pub struct EpBuffer {
    pub(crate) inner: Arc<Inner>,
}

impl EpBuffer {
    /// A buffer that is not connected, for programs that distribute blobs by their own means: call [`EpBuffer::export`]
    /// on every rank, [`EpBuffer::connect`] on every other rank, then [`EpBuffer::set_active`]. Allocates the window;
    /// waits for nobody.
    ///
    /// If [`Paths::queue`](crate::Paths::queue) permits queues, they reach the ranks of this host. To reach ranks of
    /// other hosts a key is needed: that of a group or, if `EPWIRE_WIRES` asks for `tcp`, one made from the process's
    /// token and `EPWIRE_RUN_ID`.
    ///
    /// # Errors
    /// Those of [`Plan::new`]; also [`Error::Invalid`] if `EPWIRE_PATHS` names an unknown path, or the token cannot be
    /// read.
    pub fn unconnected(rank: u32, ranks: u32, config: EpConfig) -> Result<Self> {
        Self::made(rank, ranks, config, Setting::alone(rank)?)
    }

    pub(super) fn made(rank: u32, ranks: u32, mut config: EpConfig, setting: Setting) -> Result<Self> {
        observe::describe();
        config.paths = setting.paths(rank, config.paths)?;
        let plan = Plan::new(&config, ranks)?;
        let fabric = setting.fabric(rank, config.paths, config.device)?;
        let ffi = Arc::new(ffi::Buffer::create(&config.to_c(rank, ranks), fabric)?);
        let told = observe::Told::of("buffer", config.device != Device::Host);
        Ok(Self { inner: Arc::new(Inner { waits: Waits::default(), ffi, rank, config, plan, told }) })
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
    /// Before `ffi`: the progress thread leaves the buffer before its last owner drops it.
    pub(crate) waits: Waits,
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

    /// Before an operation that is awaited, see [`Waits::start`].
    pub(crate) fn start_waits(&self, operation: &str) -> Result<()> {
        self.waits.start(operation, self.rank, &self.ffi, self.config.deadline)
    }

    /// The longest time between two looks at an operation.
    pub(super) fn slice(&self) -> Duration {
        longest_look(self.config.deadline)
    }
}
