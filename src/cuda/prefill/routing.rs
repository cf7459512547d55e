//! What a dispatch on a GPU leaves behind.

use std::sync::Arc;
use std::time::Duration;

use super::completion::PrefillCompletion;
use super::memory::PrefillOutput;
use super::shared::{Shared, State, ordinal, site};
use crate::buffer::Dispatch;
use crate::cuda::stream::StreamRef;
use crate::cuda::view::TensorRef;
use crate::error::Result;
use crate::ffi;
use crate::prefill::{Inner, PrefillBuffer, PrefillLayout, Received, Shape};
use crate::sys;

/// What a dispatch finds out about which rows go where and where they lie, in memory of the GPU of
/// [`routing_bytes`](crate::prefill::PrefillPlan::routing_bytes). With it, experts' outputs are combined, any number of
/// times and with any width, and other rows can be dispatched in the same way without counting. Valid for the
/// membership of its dispatch.
///
/// Its operations run in the order of the calls, whatever streams and lanes they are on; with two lanes in flight each
/// needs one of its own. Dropping it leaves no obligation towards peers, and takes no memory from kernels that are
/// enqueued. The memory of a few that are no longer used is kept for the next ones, that of captured operations until the
/// buffer is dropped: a program that captures repeatedly makes one ahead ([`Routing::new`]) and captures every dispatch
/// into it ([`Routing::enqueue_dispatch`]), and orders the replays so that none fills it again between a dispatch and the
/// combines of its rows. `Send` and `Sync`.
#[derive(Debug)]
pub struct Routing {
    pub(super) shared: Arc<Shared>,
    pub(super) shape: Shape,
}

impl Routing {
    /// An empty one, to be filled by [`Routing::enqueue_dispatch`] and its halves, on any lane. Allocates
    /// [`routing_bytes`](crate::prefill::PrefillPlan::routing_bytes) of the GPU's memory, during which CUDA may wait for
    /// the GPU: made ahead, while no kernel waits for peers, it spares dispatches that. Any thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`](crate::Error::NoMemory); [`Error::State`](crate::Error::State) for a buffer on the host, whose
    /// routings are [`prefill::Routing`](crate::prefill::Routing).
    pub fn new(buffer: &PrefillBuffer) -> Result<Self> {
        let inner = &buffer.inner;
        ordinal(inner, "routing")?;
        Ok(Self::owning(inner, ffi::Routing::new(&inner.ffi)?))
    }

    /// For a dispatch of these inputs: it may be one that is no longer used.
    pub(super) fn kept_or_new(inner: &Arc<Inner>, input: &Dispatch<'_, TensorRef<'_>>) -> Result<Self> {
        Ok(Self::owning(inner, ffi::Routing::kept_or_new(&inner.ffi, input.lane_or_first())?))
    }

    fn owning(inner: &Arc<Inner>, routing: ffi::Routing) -> Self {
        Self { shared: Arc::new(Shared::new(inner, routing)), shape: Shape::default() }
    }

    /// Enqueues a dispatch: with an output the whole, otherwise the half that `how` names.
    pub(super) fn dispatch(
        &mut self,
        input: &Dispatch<'_, TensorRef<'_>>,
        how: (u32, u32),
        mut output: Option<&mut PrefillOutput<'_>>,
        stream: &StreamRef<'_>,
    ) -> Result<()> {
        let (inner, request) = (&*self.shared.inner, input.request());
        let site = site(inner, "dispatch", stream)?;
        let c = input.to_c(inner.rank, &inner.config.ep, &site)?;
        let c = sys::epw_dispatch_input { layout: sys::EPW_EXPERT_MAJOR, stream: site.stream(), ..c };
        let to = output.as_deref_mut();
        let to = to.map(|output| output.as_c(inner, request.payload, request.sideband_bytes, &site));
        let to = to.transpose()?;
        // SAFETY: sizes were checked. The memory stays valid until the work has run, and the inputs until that of the
        // receiving half: whoever made the views has promised that, or their guards ensure it, which a half keeps. The
        // stream is one of the buffer's GPU: its maker promised that, or it was checked.
        self.shared.enqueue(|routing| unsafe { routing.dispatch(&c, how, to.as_ref(), None) })?;
        self.shape = self.shape.of_input(input); // after a refused call it is as before, as in the C core
        if let Some(output) = output {
            self.shape = self.shape.of_output(inner, output);
        }
        Ok(())
    }

    /// The completion of the last operation that was enqueued, to wait for on the host.
    pub fn completion(&self) -> PrefillCompletion {
        PrefillCompletion::new(&self.shared)
    }

    /// How many rows were received, and which capacity this layout would have needed for them: waits on this thread
    /// until the GPU has run the routing's last operation, [`Error::Timeout`](crate::Error::Timeout) if `timeout`
    /// passes first. After a captured dispatch it is the result of the last replay, for which the program must wait.
    pub fn received_blocking(&self, layout: PrefillLayout, timeout: Duration) -> Result<Received> {
        self.shared.wait_blocking(timeout, |state| self.look(state, layout))
    }

    /// [`Routing::received_blocking`] without blocking the executor.
    pub async fn received(&self, layout: PrefillLayout, timeout: Duration) -> Result<Received> {
        self.shared.wait(timeout, |state| self.look(state, layout)).await
    }

    fn look(&self, state: &State, layout: PrefillLayout) -> Result<Option<Received>> {
        Received::of(&state.routing, &self.shared.inner, layout)
    }

    /// Enqueues a whole dispatch as [`PrefillBuffer::enqueue_dispatch`] does, into this routing, whose memory it uses again:
    /// nothing is allocated. What the routing held is overwritten on the GPU after its former operations have run.
    ///
    /// # Errors
    ///
    /// As for `PrefillBuffer::enqueue_dispatch`; [`Error::State`](crate::Error::State) also while half an operation of
    /// the routing is under way. A refused call leaves the routing as it was.
    pub fn enqueue_dispatch(
        &mut self,
        input: Dispatch<'_, TensorRef<'_>>,
        mut output: PrefillOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillCompletion> {
        let how = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_SENDS);
        self.dispatch(&input, how, Some(&mut output), &stream)?;
        Ok(self.completion())
    }

    /// Enqueues a dispatch of other rows with this routing: the same number of tokens and top-k, the same places and
    /// capacity, no counts. Without [`Dispatch::weights`] the previous weights are used; the ids are not read.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::enqueue_dispatch`](crate::prefill::PrefillBuffer::enqueue_dispatch);
    /// [`Error::State`](crate::Error::State) also if the membership has changed since its dispatch.
    pub fn enqueue_dispatch_again(
        &mut self,
        input: Dispatch<'_, TensorRef<'_>>,
        mut output: PrefillOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillCompletion> {
        let how = (sys::EPW_ROUTE_AGAIN, sys::EPW_HALF_SENDS);
        self.dispatch(&input, how, Some(&mut output), &stream)?;
        Ok(self.completion())
    }
}

impl Drop for Routing {
    /// Completions may outlive it: half an operation is given up now.
    fn drop(&mut self) {
        self.shared.lock().routing.cancel();
    }
}
