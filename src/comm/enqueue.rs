//! Operations of a communicator on a GPU: enqueued on the caller's stream, never waited for.

use super::call::Calls;
use super::communicator::Comm;
use super::work::Work;
use crate::cuda::{Gpu, StreamRef, TensorMut, enqueue_suspects};
use crate::error::Result;

/// Calls of a communicator on a GPU ([`CommConfig::device`](super::CommConfig::device)). Their buffers are views of its
/// memory, [`cuda::TensorRef`](crate::cuda::TensorRef) and [`cuda::TensorMut`](crate::cuda::TensorMut), of the types
/// that [`Number`](super::Number) has; `f64` by address.
///
/// A call checks its arguments, enqueues on its stream and returns; later work on that stream sees its results. Calls
/// on different streams run in the order of the calls, by waiting for an event; any thread may call. Kernels wait for
/// those of peers: see [`cuda`](crate::cuda), which also says how long memory and streams are needed, and what may be
/// captured, and how. All members replay their graphs in the same order as each other, and among their calls. The communicator must
/// outlive the graphs into which its calls were captured, and replays must have ended before it is dropped, its membership
/// changes, or a peer is connected, see [graphs](crate::cuda#graphs).
///
/// Sends and receives of a group progress together, before its collectives. Those of different calls run in the order of
/// the calls, and a large send waits for its receive before later work runs. A message that is longer than its receive,
/// or of another type or tag, is [`Error::Mismatch`](crate::Error::Mismatch) for the receive, for a send that still waits
/// for it, and for the next collective of every rank: the communicator can be used again from the next membership on.
///
/// # Limits
/// * 256 ranks; 96 for blocks that are uneven, have gaps, or are columns of a matrix.
/// * 48 sends and receives in a group.
/// * In a group, 4 peers for each SM of [`CommConfig::sms`](super::CommConfig::sms) to send to or receive from. A peer
///   that is both sent to and received from counts twice.
impl Comm {
    /// Enqueues a call, or a group of them. It gives no outcome, as [`Comm::begin_on`] does; a peer that is missing
    /// shows in [`Comm::membership`] and [`Comm::take_fault`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) and [`Error::Limit`](crate::Error::Limit) name the argument;
    /// [`Error::State`](crate::Error::State) without a membership, or of a communicator on the host;
    /// [`Error::Mismatch`](crate::Error::Mismatch) once kernels have found that ranks call different operations. After
    /// these nothing has been enqueued. After a failure of CUDA or of the system, [`Error::System`](crate::Error::System) or
    /// [`Error::NoMemory`](crate::Error::NoMemory), some of the calls of a group may have been: their memory is needed
    /// until the stream has run them.
    ///
    /// ```no_run
    /// use epwire::comm::{Call, Comm};
    /// use epwire::cuda::{StreamRef, TensorMut};
    /// use epwire::{DType, Reduction};
    ///
    /// /// Sums `len` values of bf16 at a device address over all ranks.
    /// fn sum(comm: &Comm, address: u64, len: usize, stream: StreamRef<'_>) -> epwire::Result<()> {
    ///     // SAFETY: the caller keeps the memory until the stream has run this work.
    ///     let activations = unsafe { TensorMut::from_raw(address, DType::Bf16, len) };
    ///     comm.enqueue(Call::all_reduce_in_place(activations, Reduction::Sum), stream)
    /// }
    /// ```
    pub fn enqueue<C: Calls<Gpu>>(&self, mut calls: C, stream: StreamRef<'_>) -> Result<()> {
        let site = self.inner.site(&calls, &stream)?;
        let lowered = self.inner.lower_on(&mut calls, &site)?;
        // SAFETY: sizes were checked. That the memory stays until the work has run, and that the stream exists, is
        // promised by whoever made the views and the stream, or ensured by the guards in `calls`, which are dropped
        // after this.
        unsafe { self.inner.ffi.enqueue(&lowered.ops, self.deadline(), site.stream(), None) }?;
        self.inner.tell_traffic();
        Ok(())
    }

    /// [`Comm::enqueue`] with a handle to wait for the end on the host, and to get the outcome. It costs an event on
    /// the stream. Dropping it does not affect the operation. The end is known when the GPU has reached it:
    /// [`Work::wait`] takes as long as everything enqueued before it, [`Work::wait_for`] has a limit.
    ///
    /// # Errors
    /// Those of [`Comm::enqueue`]; also [`Error::Invalid`](crate::Error::Invalid) for a stream that may be captured and is
    /// under capture, because replays have no handle.
    pub fn begin_on<C: Calls<Gpu>>(&self, mut calls: C, stream: StreamRef<'_>) -> Result<Work<()>> {
        let site = self.inner.site(&calls, &stream)?;
        let lowered = self.inner.lower_on(&mut calls, &site)?;
        let mut work = 0;
        // SAFETY: as in `enqueue`.
        unsafe { self.inner.ffi.enqueue(&lowered.ops, self.deadline(), site.stream(), Some(&mut work)) }?;
        self.inner.tell_traffic();
        Ok(Work::enqueued(&self.inner, work))
    }

    /// As [`EpBuffer::enqueue_suspects`](crate::EpBuffer::enqueue_suspects); a subset writes for its own ranks.
    pub fn enqueue_suspects(&self, suspects: TensorMut<'_>, stream: StreamRef<'_>) -> Result<()> {
        let Self { inner, .. } = self;
        let place = (inner.rank, inner.plan.ranks);
        enqueue_suspects(&*inner.ffi, place, inner.config.device, suspects, &stream)
    }
}
