//! Combine of prefill on a GPU, whole and in halves.

use super::completion::PrefillCompletion;
use super::memory::PrefillCombineOutput;
use super::routing::Routing;
use super::shared::site;
use crate::buffer::{Consuming, Refused};
use crate::cuda::held::Held;
use crate::cuda::stream::StreamRef;
use crate::cuda::view::TensorRef;
use crate::error::{Error, Failure, Result};
use crate::prefill::PrefillCombine;
use crate::sys;

impl Routing {
    /// Enqueues a whole combine: answers every row of the routing's dispatch, receives the answers to this rank's own and
    /// sums them into `output`. Never waits. Dropping the completion does not affect the combine.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] for impossible arguments; [`Error::State`] if the membership has changed
    /// since the dispatch, or the lane has half an operation. Nothing has been enqueued then.
    ///
    /// ```no_run
    /// use epwire::cuda::{PrefillCombineOutput, Routing, StreamRef, TensorMut, TensorRef};
    /// use epwire::prefill::PrefillCombine;
    ///
    /// /// `made`: what the experts have made of the rows, in their places.
    /// fn combine(
    ///     routing: &mut Routing,
    ///     made: TensorRef<'_>,
    ///     out: TensorMut<'_>,
    ///     stream: StreamRef<'_>,
    /// ) -> epwire::Result<()> {
    ///     let output = PrefillCombineOutput::new(out);
    ///     routing.enqueue_combine(PrefillCombine::new(made), output, stream)?;
    ///     Ok(()) // what is enqueued on the stream from now on finds the sums
    /// }
    /// ```
    pub fn enqueue_combine(
        &mut self,
        input: PrefillCombine<'_, TensorRef<'_>>,
        mut output: PrefillCombineOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillCompletion> {
        self.combine(&input, Some(&mut output), &stream)?;
        Ok(self.completion())
    }

    /// Enqueues the sending half of a combine. The rings must hold the answers to the rows of each source, at most
    /// [`split_tokens`](crate::prefill::PrefillPlan::split_tokens). Until an eager dispatch has been awaited, and of a
    /// routing that has been captured, the host does not know how many rows have come: then `max_tokens` must be within
    /// that limit. Weights and bias are read by the receiving half, so the inputs stay borrowed.
    ///
    /// # Errors
    ///
    /// As for [`Routing::enqueue_combine`]; [`Error::Limit`] for smaller rings.
    pub fn enqueue_combine_send<'a>(
        &'a mut self,
        input: PrefillCombine<'a, TensorRef<'a>>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillCombining<'a>> {
        self.combine(&input, None, &stream)?;
        let width = input.width();
        let held = Held::new(input.into_views(), &stream);
        Ok(PrefillCombining { routing: self, width, collected: false, held })
    }

    fn combine(
        &mut self,
        input: &PrefillCombine<'_, TensorRef<'_>>,
        output: Option<&mut PrefillCombineOutput<'_>>,
        stream: &StreamRef<'_>,
    ) -> Result<()> {
        let (inner, shape) = (&*self.shared.inner, &self.shape);
        let site = site(inner, "combine", stream)?;
        let c = input.to_c(inner, shape, &site)?;
        let c = sys::epw_prefill_combine_input { stream: site.stream(), ..c };
        let sizes = (shape.tokens, shape.topk, input.width());
        let to = output.map(|output| output.as_c(inner, sizes, &site)).transpose()?;
        // SAFETY: as in `Routing::dispatch`.
        self.shared.enqueue(|routing| unsafe { routing.combine(&c, to.as_ref(), None) })
    }
}

/// A combine whose sending half is enqueued. Dropping it gives the combine up, and leaves the routing as it was. `Send` and
/// `Sync`.
#[derive(Debug)]
#[must_use = "dropping it gives the combine up"]
pub struct PrefillCombining<'a> {
    routing: &'a mut Routing,
    width: usize,
    collected: bool,
    held: Held<'a>,
}

impl PrefillCombining<'_> {
    /// Enqueues the receiving half, which sums the answers into `output`, with the deadline of the sending half. Inputs that
    /// are views of `cudarc` slices have it run on the stream of the sending half.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for outputs that do not fit: call it again, or drop what is returned.
    pub fn enqueue_receive(
        mut self,
        mut output: PrefillCombineOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Consuming<PrefillCompletion, Self> {
        match self.receive(&mut output, &stream) {
            Ok(()) => {
                self.collected = true;
                Ok(self.routing.completion())
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }

    fn receive(&mut self, output: &mut PrefillCombineOutput<'_>, stream: &StreamRef<'_>) -> Result<()> {
        let (inner, shape) = (&*self.routing.shared.inner, &self.routing.shape);
        let site = site(inner, "combine_receive", stream)?;
        let invalid = |text| Error::Invalid(Failure::new("combine_receive", inner.rank, text));
        self.held.admit(stream).map_err(invalid)?;
        let to = output.as_c(inner, (shape.tokens, shape.topk, self.width), &site)?;
        let to = sys::epw_prefill_combine_output { stream: site.stream(), ..to };
        // SAFETY: as in `Routing::dispatch`; `held` has the guards of the inputs.
        self.routing.shared.enqueue(|routing| unsafe { routing.collect(&to, None) })?;
        self.held.received();
        Ok(())
    }
}

impl Drop for PrefillCombining<'_> {
    fn drop(&mut self) {
        if !self.collected {
            self.routing.shared.lock().routing.cancel();
        }
    }
}
