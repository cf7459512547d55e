//! A rank's end of dispatch and combine.

mod buffers;
mod connect;
mod dispatched;
mod input;
mod memory;
mod operation;
mod output;

use std::sync::Arc;

pub use buffers::DispatchBuffers;
pub use dispatched::{CombineRows, Combining, Consuming, Dispatched, Dispatching, Refused, RowsView};
pub(crate) use input::Request;
pub use input::{Combine, Dispatch};
pub use memory::{Host, Memory};
pub(crate) use memory::{Item, Need, Place, sealed};
pub use operation::Event;
pub(crate) use operation::OpenHandle;
use operation::Watcher;
pub use output::{CombineOutput, DispatchOutput, GenericCombineOutput, GenericDispatchOutput, ScaleOrder};

use crate::config::{Device, EpConfig, Payload, Plan, RowShape};
use crate::error::{Error, Failure, Result};
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
///
/// On a GPU ([`EpConfig::device`]) operations are enqueued instead, see [`cuda`](crate::cuda): the calls of the other kind of
/// buffer are [`Error::State`].
#[derive(Debug, Clone)]
pub struct EpBuffer {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: their threads end before the last owner of the C buffer goes.
    watchers: [Watcher; sys::EPW_MAX_LANES as usize],
    pub(crate) ffi: Arc<ffi::Buffer>,
    pub(crate) rank: u32,
    pub(crate) config: EpConfig,
    pub(crate) plan: Plan,
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
    /// Begins a membership: every member calls it with the same mask and epoch, with no lane held. `epoch` is in
    /// `1..=8388607` and larger than any before. Clears suspects. [`EpBuffer::recover`] finds mask and epoch by agreement.
    ///
    /// On GPUs this waits on the calling thread for what has been enqueued before, and then for the GPU to take the change, each
    /// for a deadline at most: [`Error::Timeout`](crate::Error::Timeout). Between them the buffer's other calls go on.
    pub fn set_active(&self, active: &Mask, epoch: u32) -> Result<()> {
        self.inner.ffi.set_active(active, epoch)
    }

    /// Agrees with the surviving members of `group` on who goes on and in which epoch, then begins that membership. All
    /// survivors call it, each with no lane held. Not for replacements: those connect first. Never blocks the executor.
    pub async fn recover(&self, group: &Group) -> Result<(Mask, u32)> {
        let (_, suspects, _) = self.inner.ffi.membership()?;
        let decision = group.agree_active(suspects, false).await?;
        self.begin(decision.mask, decision.epoch).await?;
        Ok((decision.mask, decision.epoch))
    }

    /// [`EpBuffer::recover`] for a plain thread. Not for a thread that serves an async executor.
    pub fn recover_blocking(&self, group: &Group) -> Result<(Mask, u32)> {
        let (_, suspects, _) = self.inner.ffi.membership()?;
        let decision = group.agree_active_blocking(suspects, false)?;
        self.set_active(&decision.mask, decision.epoch)?;
        Ok((decision.mask, decision.epoch))
    }

    /// [`EpBuffer::set_active`] on a thread of its own.
    async fn begin(&self, active: Mask, epoch: u32) -> Result<()> {
        let inner = self.inner.clone();
        connect::aside("set_active", self.rank(), move || inner.ffi.set_active(&active, epoch)).await
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
        if inner.config.device != Device::Host {
            let text =
                "the buffer is on a GPU: enqueue the operation with enqueue_dispatch, see epwire::cuda";
            return Err(Error::State(Failure::new("dispatch", inner.rank, text)));
        }
        let mut c_input = input.to_c(inner.rank, &inner.config, &())?;
        c_input.nonblocking = nonblocking.into();
        let output = match output {
            Some(output) => {
                Some(output.as_c(inner.rank, &inner.config, &inner.plan, &input.request(), &())?)
            }
            None => None,
        };
        let mut outcome = ffi::empty_outcome();
        // SAFETY: sizes were checked; callers keep input and output borrowed while the operation is polled.
        let (handle, progress) =
            unsafe { inner.ffi.dispatch(&c_input, output.as_ref(), Some(&mut outcome)) }?;
        let deadline = input.deadline_or(inner.config.deadline);
        Ok((OpenHandle::new(inner.clone(), handle, deadline), progress, outcome))
    }
}
