//! The ranks that were given up, told to kernels of the program in stream order.

use super::stream::StreamRef;
use super::view::{Site, TensorMut};
use crate::buffer::{EpBuffer, Need, Place};
use crate::config::Device;
use crate::error::{Error, Failure, Result};
use crate::ffi::Floor;
use crate::prefill::PrefillBuffer;

const OPERATION: &str = "suspects";

/// Of the owner of `floor`, which is this rank of so many, on this device.
pub(crate) fn enqueue_suspects(
    floor: &dyn Floor,
    (rank, ranks): (u32, u32),
    device: Device,
    mut suspects: TensorMut<'_>,
    stream: &StreamRef<'_>,
) -> Result<()> {
    let Device::Cuda(ordinal) = device else {
        let text = "on the host nothing is enqueued: the suspects are in the membership";
        return Err(Error::State(Failure::new(OPERATION, rank, text)));
    };
    let site = Site::of(floor, OPERATION, (rank, ordinal), stream)?;
    let out = suspects
        .place("suspects", Need::of::<i32>(ranks as usize), &site)
        .map_err(|text| Error::Invalid(Failure::new(OPERATION, rank, text)))?;
    // SAFETY: there is a place for each rank. That the memory stays until the work has run, and that the stream is one of
    // this GPU, is promised by whoever made the view and the stream, or ensured by the view's guard, which is dropped
    // after this.
    unsafe { floor.suspects(out.cast(), site.stream()) }
}

impl EpBuffer {
    /// Enqueues a small kernel that tells the program's kernels which ranks take part: for each rank it writes into
    /// `suspects`, `[ranks]` of I32, 0 if it does, 1 if it is a [suspect](crate::Membership::suspects), and -1 if it is no
    /// member. All as of this point of the stream: what work before it on the stream has found is there, without asking the
    /// host. Not 0 means that nothing is sent there or awaited from there until the next membership.
    ///
    /// May be captured: each replay looks again. It waits for nothing but its stream, and for earlier such kernels on
    /// streams that no lane's last call has used; to look behind a call on another stream, use
    /// [`Completion::wait_on`](super::Completion::wait_on) first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: memory or a stream of another GPU, another type, or too few elements. [`Error::State`]: a
    /// buffer on the host, or a stream whose capture was invalidated.
    #[doc(alias = "low_latency_query_mask_buffer")]
    #[doc(alias = "active_ranks")]
    pub fn enqueue_suspects(&self, suspects: TensorMut<'_>, stream: StreamRef<'_>) -> Result<()> {
        let Self { inner } = self;
        enqueue_suspects(&*inner.ffi, (inner.rank, inner.plan.ranks), inner.config.device, suspects, &stream)
    }
}

impl PrefillBuffer {
    /// As [`EpBuffer::enqueue_suspects`].
    pub fn enqueue_suspects(&self, suspects: TensorMut<'_>, stream: StreamRef<'_>) -> Result<()> {
        let Self { inner } = self;
        enqueue_suspects(&*inner.ffi, (inner.rank, self.ranks()), inner.config.ep.device, suspects, &stream)
    }
}
