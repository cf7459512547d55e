//! A rank's end of dispatch and combine.

mod dispatched;
mod io;
mod operation;

use std::sync::Arc;

pub use dispatched::{CombineRows, Combining, Consuming, Dispatched, Dispatching, Refused, RowsView};
pub(crate) use io::set_payload;
pub use io::{Combine, CombineOutput, Dispatch, DispatchBuffers, DispatchOutput, ScaleOrder};
pub use operation::Event;
use operation::{OpenHandle, Watcher};

use crate::config::{EpConfig, Path, Payload, Plan, RowShape};
use crate::error::Result;
use crate::ffi;
use crate::group::Group;
use crate::mask::Mask;
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::sys;

/// A rank's window, its mappings of the peers' windows, and its lanes. Cheap to clone; clones share it.
///
/// `Send` and `Sync`: lanes may be used from different threads and tasks at a time. All ranks must begin the same
/// operations in the same order on the same lanes.
///
/// Waits are bounded by [`EpConfig::deadline`]: an operation whose peers fall silent ends with a degraded [`Outcome`]. Async
/// forms never block the polling thread; the work of moving bytes is done in `poll`, as any computation.
#[derive(Debug, Clone)]
pub struct EpBuffer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: their threads end before the last owner of the C buffer goes.
    watchers: [Watcher; sys::EPW_MAX_LANES as usize],
    ffi: Arc<ffi::Buffer>,
    rank: u32,
    config: EpConfig,
    plan: Plan,
}

impl Inner {
    fn payload_bytes(&self, payload: Payload) -> usize {
        match payload {
            Payload::SameAsInput => self.config.hidden as usize * 2,
            Payload::Fp8 { .. } => self.config.hidden as usize,
            Payload::Opaque { row_bytes, .. } => row_bytes as usize,
        }
    }

    fn scale_bytes(&self, payload: Payload) -> usize {
        RowShape::new(&self.config, self.plan.ranks, payload).map_or(0, |s| s.scale_count * s.scale_bytes)
    }
}

impl EpBuffer {
    /// Creates the buffer of every member of `group` and connects them: all members call this with equal configurations
    /// (`threads` and `paths` may differ), as often and in the same order. Bounded by the group's deadline; a field that
    /// differs is named.
    pub async fn create(group: &Group, config: EpConfig) -> Result<Self> {
        let buffer = Self::unconnected(group.rank(), group.world(), config)?;
        group.agree("buffer", buffer.inner.config.fields()).await?;
        let blobs = buffer.export_all()?;
        let blobs = group.exchange("buffer", blobs).await?;
        buffer.connect_all(&blobs)?;
        // Nobody may send before everybody is connected: an epoch word posted by set_active is the first thing a peer reads.
        group.barrier("buffer").await?;
        buffer.set_active(&Mask::all(group.world()), 1)?;
        Ok(buffer)
    }

    /// [`EpBuffer::create`] for a plain thread. Not for a thread that serves an async executor.
    pub fn create_blocking(group: &Group, config: EpConfig) -> Result<Self> {
        let buffer = Self::unconnected(group.rank(), group.world(), config)?;
        group.agree_blocking("buffer", buffer.inner.config.fields())?;
        let blobs = buffer.export_all()?;
        let blobs = group.exchange_blocking("buffer", blobs)?;
        buffer.connect_all(&blobs)?;
        group.barrier_blocking("buffer")?;
        buffer.set_active(&Mask::all(group.world()), 1)?;
        Ok(buffer)
    }

    /// A buffer that knows nobody yet, for programs that carry blobs by means of their own: [`EpBuffer::export`] on every rank,
    /// [`EpBuffer::connect`] on every other, then [`EpBuffer::set_active`].
    pub fn unconnected(rank: u32, ranks: u32, config: EpConfig) -> Result<Self> {
        let plan = Plan::new(&config, ranks)?;
        let ffi = Arc::new(ffi::Buffer::create(&config.to_c(rank, ranks))?);
        let inner = Inner { watchers: Default::default(), ffi, rank, config, plan };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn export_all(&self) -> Result<Vec<Vec<u8>>> {
        (0..self.ranks())
            .map(|peer| if peer == self.rank() { Ok(Vec::new()) } else { self.export(peer) })
            .collect()
    }

    fn connect_all(&self, blobs: &[Vec<u8>]) -> Result<()> {
        let peers = (0..self.ranks()).zip(blobs).filter(|(peer, _)| *peer != self.rank());
        peers.into_iter().try_for_each(|(peer, blob)| self.connect(peer, blob))
    }

    /// What `peer` needs to reach this rank's window, to be given to its [`EpBuffer::connect`]. Holds a secret that lets
    /// processes of the same user map the window.
    pub fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.inner.ffi.export(peer)
    }

    /// Maps the window that `peer` exported for this rank. Refused with [`Error::Mismatch`](crate::Error::Mismatch) if a field of
    /// the configuration differs, with [`Error::Fenced`](crate::Error::Fenced) while a former process of this rank still has that
    /// window mapped. Takes at most the deadline, on this thread.
    pub fn connect(&self, peer: u32, blob: &[u8]) -> Result<()> {
        self.inner.ffi.connect(peer, blob)
    }

    /// Unmaps the window of a peer that is not active.
    pub fn disconnect(&self, peer: u32) -> Result<()> {
        self.inner.ffi.disconnect(peer)
    }

    /// The path by which `peer` is reached.
    pub fn path(&self, peer: u32) -> Path {
        match self.inner.ffi.path(peer) {
            sys::EPW_PATH_SELF => Path::SelfRank,
            sys::EPW_PATH_THREAD => Path::Thread,
            sys::EPW_PATH_SHM => Path::SharedMemory,
            _ => Path::None,
        }
    }

    /// Begins a membership: every member calls it with the same mask and epoch, with no lane held. `epoch` is in
    /// `1..=32767` and larger than any before. Clears suspects. [`EpBuffer::recover`] finds mask and epoch by agreement.
    pub fn set_active(&self, active: &Mask, epoch: u32) -> Result<()> {
        self.inner.ffi.set_active(active, epoch)
    }

    /// Agrees with the surviving members of `group` on who goes on and in which epoch, then begins that membership. All
    /// survivors call it, each with no lane held. Not for replacements: those connect first.
    pub async fn recover(&self, group: &Group) -> Result<(Mask, u32)> {
        let (_, suspects, _) = self.inner.ffi.membership()?;
        let decision = group.agree_active(suspects, false).await?;
        self.adopt(decision)
    }

    /// [`EpBuffer::recover`] for a plain thread. Not for a thread that serves an async executor.
    pub fn recover_blocking(&self, group: &Group) -> Result<(Mask, u32)> {
        let (_, suspects, _) = self.inner.ffi.membership()?;
        let decision = group.agree_active_blocking(suspects, false)?;
        self.adopt(decision)
    }

    fn adopt(&self, decision: crate::rendezvous::Decision) -> Result<(Mask, u32)> {
        self.set_active(&decision.mask, decision.epoch)?;
        Ok((decision.mask, decision.epoch))
    }

    /// The active ranks, those of them given up since the last [`EpBuffer::set_active`], and the epoch (0: none yet).
    pub fn membership(&self) -> Result<(Mask, Mask, u32)> {
        self.inner.ffi.membership()
    }

    /// For every expert, whether its rank is active and not given up.
    pub fn reachable_experts(&self) -> Result<Vec<bool>> {
        self.inner.ffi.reachable_experts(self.inner.config.experts)
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

    /// Memory for what a dispatch with this payload and layout delivers.
    pub fn dispatch_buffers(
        &self,
        payload: Payload,
        layout: crate::Layout,
        sideband_bytes: u32,
    ) -> Result<DispatchBuffers> {
        DispatchBuffers::new(&self.inner.config, self.ranks(), payload, layout, sideband_bytes)
    }

    /// Sends this rank's tokens and receives those of the others. Never blocks the executor. A wrong or repeated expert id
    /// is an error that names row and column, and nothing is sent. Dropping the future gives the operation up.
    pub async fn dispatch(&self, input: Dispatch<'_>, mut output: DispatchOutput<'_>) -> Result<Dispatched> {
        let (open, outcome) = self.run("dispatch", &input, Some(&mut output)).await?;
        Ok(Dispatched { open, request: input.request(), outcome })
    }

    /// [`EpBuffer::dispatch`] on this thread. Bounded by the deadline. Not for a thread that serves an async executor.
    pub fn dispatch_blocking(
        &self,
        input: Dispatch<'_>,
        mut output: DispatchOutput<'_>,
    ) -> Result<Dispatched> {
        let (open, outcome) = self.run_blocking("dispatch", &input, Some(&mut output))?;
        Ok(Dispatched { open, request: input.request(), outcome })
    }

    /// The sending half of a dispatch. Never blocks the executor; waits only where a peer has not yet read an earlier
    /// operation.
    pub async fn dispatch_send(&self, input: Dispatch<'_>) -> Result<Dispatching> {
        let (open, _) = self.run("dispatch_send", &input, None).await?;
        Ok(Dispatching { open, request: input.request() })
    }

    /// [`EpBuffer::dispatch_send`] on this thread. Bounded by the deadline.
    pub fn dispatch_send_blocking(&self, input: Dispatch<'_>) -> Result<Dispatching> {
        let (open, _) = self.run_blocking("dispatch_send", &input, None)?;
        Ok(Dispatching { open, request: input.request() })
    }

    async fn run(
        &self,
        name: &'static str,
        input: &Dispatch<'_>,
        output: Option<&mut DispatchOutput<'_>>,
    ) -> Result<(OpenHandle, Outcome)> {
        let observed = Observed::begin(name, self.rank());
        let ended = async {
            self.inner.watch_lanes(name)?;
            let (open, progress, outcome) = self.start(input, output, true)?;
            // SAFETY: `input` and `output` are borrowed by this future, to its end.
            let outcome = unsafe { open.finish(progress, outcome) }.await?;
            Ok((open, outcome))
        };
        observed.end(ended.await, |(_, outcome)| outcome)
    }

    fn run_blocking(
        &self,
        name: &'static str,
        input: &Dispatch<'_>,
        output: Option<&mut DispatchOutput<'_>>,
    ) -> Result<(OpenHandle, Outcome)> {
        let observed = Observed::begin(name, self.rank());
        let ended = self.start(input, output, false);
        let ended = ended.map(|(open, _, outcome)| (open, Outcome::from_c(&outcome)));
        observed.end(ended, |(_, outcome)| outcome)
    }

    fn start(
        &self,
        input: &Dispatch<'_>,
        output: Option<&mut DispatchOutput<'_>>,
        nonblocking: bool,
    ) -> Result<(OpenHandle, ffi::Progress, sys::epw_outcome)> {
        let inner = &self.inner;
        let mut c_input = input.to_c(inner.rank, &inner.config)?;
        c_input.nonblocking = nonblocking.into();
        let output = match output {
            Some(output) => Some(output.as_c(inner.rank, &inner.config, &inner.plan, &input.request())?),
            None => None,
        };
        let mut outcome = ffi::empty_outcome();
        // SAFETY: sizes were checked; callers keep input and output borrowed while the operation is polled.
        let (handle, progress) = unsafe { inner.ffi.dispatch(&c_input, output.as_ref(), &mut outcome) }?;
        let deadline = input.deadline_or(inner.config.deadline);
        Ok((OpenHandle::new(inner.clone(), handle, deadline), progress, outcome))
    }
}
