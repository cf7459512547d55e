//! Dispatch of prefill on a GPU, whole and in halves.

use std::time::Duration;

use super::completion::PrefillCompletion;
use super::memory::PrefillOutput;
use super::routing::Routing;
use super::shared::{ordinal, site};
use crate::buffer::{Consuming, Dispatch, Refused, Request};
use crate::config::Payload;
use crate::cuda::held::Held;
use crate::cuda::stream::StreamRef;
use crate::cuda::view::TensorRef;
use crate::error::{Error, Failure, Result};
use crate::prefill::{PrefillBuffer, PrefillLayout, Received};
use crate::sys;

/// Dispatches of a buffer on a GPU ([`Device::Cuda`](crate::Device::Cuda)). The calls check their arguments, enqueue one
/// kernel on `stream` and return: see [`cuda`](crate::cuda#prefill) for streams, memory and graphs. The
/// [layout](Dispatch::layout) of the output applies, that of the input is ignored.
impl PrefillBuffer {
    /// Enqueues a whole dispatch: sends this rank's tokens, receives those of the others. If rows overflow the output's
    /// capacity, the last in order are left out, and that is reported. Never waits for peers; without a former routing of
    /// the lane to reuse it allocates one, see [`Routing::new`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] name the argument; [`Error::State`] without a membership, while the lane has
    /// half an operation, or of a buffer on the host; [`Error::NoMemory`] without memory for the routing. Nothing has been
    /// enqueued then.
    ///
    /// ```no_run
    /// use epwire::cuda::{PrefillOutput, Routing, StreamRef, TensorMut, TensorRef};
    /// use epwire::prefill::{PrefillBuffer, PrefillLayout};
    /// use epwire::{DType, Dispatch};
    ///
    /// /// 1000 tokens of hidden 7168 with top-8 lie at `x`, `ids` and `weights`, `capacity` rows have room at `rows`.
    /// fn dispatch(
    ///     buffer: &PrefillBuffer,
    ///     [x, ids, weights, rows]: [u64; 4],
    ///     capacity: usize,
    ///     stream: StreamRef<'_>,
    /// ) -> epwire::Result<Routing> {
    ///     // SAFETY: the caller keeps the memory until the stream has run this work.
    ///     let (x, ids, weights, rows) = unsafe {
    ///         (
    ///             TensorRef::from_raw(x, DType::Bf16, 1000, 7168, 7168 * 2),
    ///             TensorRef::from_raw(ids, DType::I64, 1000, 8, 8 * 8),
    ///             TensorRef::from_raw(weights, DType::F32, 1000, 8, 8 * 4),
    ///             TensorMut::from_raw(rows, DType::Bf16, capacity * 7168),
    ///         )
    ///     };
    ///     let layout = PrefillLayout::Packed { alignment: 128 };
    ///     let output = PrefillOutput::new(layout, capacity).rows(rows);
    ///     buffer.enqueue_dispatch(Dispatch::new(x, ids).weights(weights), output, stream)
    /// }
    /// ```
    pub fn enqueue_dispatch(
        &self,
        input: Dispatch<'_, TensorRef<'_>>,
        mut output: PrefillOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Result<Routing> {
        ordinal(&self.inner, "dispatch")?;
        let mut routing = Routing::kept_or_new(&self.inner, &input)?;
        let how = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_SENDS);
        routing.dispatch(&input, how, Some(&mut output), &stream)?;
        Ok(routing)
    }

    /// Enqueues the sending half of a dispatch, of at most [`split_tokens`](crate::prefill::PrefillPlan::split_tokens)
    /// tokens. No SM is held between it and the receiving half, which reads the inputs as well.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::enqueue_dispatch`]; [`Error::Limit`] for more tokens.
    pub fn enqueue_dispatch_send<'a>(
        &self,
        input: Dispatch<'a, TensorRef<'a>>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillDispatching<'a>> {
        self.enqueue_half(input, sys::EPW_HALF_SENDS, stream)
    }

    /// Enqueues the counts of a dispatch: sends this rank's, receives those of the others.
    /// [`PrefillDispatching::received`] then waits for them on the host, and reports how much to allocate. The receiving half
    /// sends and receives the rows. For any number of tokens.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::enqueue_dispatch`].
    ///
    /// ```no_run
    /// use epwire::Dispatch;
    /// use epwire::cuda::{PrefillOutput, Routing, StreamRef, TensorMut, TensorRef};
    /// use epwire::prefill::{PrefillBuffer, PrefillLayout};
    ///
    /// async fn dispatch<'a>(
    ///     buffer: &PrefillBuffer,
    ///     input: Dispatch<'a, TensorRef<'a>>,
    ///     allocate: impl Fn(usize) -> TensorMut<'a>, // memory for this many rows
    ///     stream: StreamRef<'_>,
    /// ) -> epwire::Result<Routing> {
    ///     let counted = buffer.enqueue_dispatch_count(input, stream)?;
    ///     let layout = PrefillLayout::Packed { alignment: 128 };
    ///     let capacity = counted.received(layout, buffer.config().ep.deadline * 4).await?.capacity;
    ///     let output = PrefillOutput::new(layout, capacity).rows(allocate(capacity));
    ///     Ok(counted.enqueue_receive(output, stream)?)
    /// }
    /// ```
    pub fn enqueue_dispatch_count<'a>(
        &self,
        input: Dispatch<'a, TensorRef<'a>>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillDispatching<'a>> {
        self.enqueue_half(input, sys::EPW_HALF_COUNTS, stream)
    }

    fn enqueue_half<'a>(
        &self,
        input: Dispatch<'a, TensorRef<'a>>,
        half: u32,
        stream: StreamRef<'_>,
    ) -> Result<PrefillDispatching<'a>> {
        ordinal(&self.inner, "dispatch")?;
        let mut routing = Routing::kept_or_new(&self.inner, &input)?;
        let half = routing.begin((sys::EPW_ROUTE_NEW, half), input, &stream)?;
        Ok(PrefillDispatching { routing, half })
    }
}

/// Halves into this routing. What it held is overwritten; if the dispatch is given up, the routing is empty.
impl Routing {
    /// [`PrefillBuffer::enqueue_dispatch_send`] into this routing, as [`Routing::enqueue_dispatch`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn enqueue_dispatch_send<'a>(
        &'a mut self,
        input: Dispatch<'a, TensorRef<'a>>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin((sys::EPW_ROUTE_NEW, sys::EPW_HALF_SENDS), input, &stream)?;
        Ok(PrefillDispatchingInto { routing: self, received: false, half })
    }

    /// [`PrefillBuffer::enqueue_dispatch_count`] into this routing, as [`Routing::enqueue_dispatch`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn enqueue_dispatch_count<'a>(
        &'a mut self,
        input: Dispatch<'a, TensorRef<'a>>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin((sys::EPW_ROUTE_NEW, sys::EPW_HALF_COUNTS), input, &stream)?;
        Ok(PrefillDispatchingInto { routing: self, received: false, half })
    }

    /// Enqueues the sending half of [`Routing::enqueue_dispatch_again`], of at most
    /// [`split_tokens`](crate::prefill::PrefillPlan::split_tokens) tokens. If it is given up, the routing stays as it was
    /// unless weights were given, else it is empty.
    ///
    /// # Errors
    ///
    /// As for `enqueue_dispatch_again`; [`Error::Limit`] for more tokens.
    pub fn enqueue_dispatch_again_send<'a>(
        &'a mut self,
        input: Dispatch<'a, TensorRef<'a>>,
        stream: StreamRef<'_>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin((sys::EPW_ROUTE_AGAIN, sys::EPW_HALF_SENDS), input, &stream)?;
        Ok(PrefillDispatchingInto { routing: self, received: false, half })
    }

    /// Enqueues the first half that `how` names.
    fn begin<'a>(
        &mut self,
        how: (u32, u32),
        input: Dispatch<'a, TensorRef<'a>>,
        stream: &StreamRef<'_>,
    ) -> Result<Half<'a>> {
        let Request { payload, sideband_bytes, .. } = input.request();
        self.dispatch(&input, how, None, stream)?;
        Ok(Half { payload, sideband_bytes, held: Held::new(input.into_views(), stream) })
    }
}

/// A dispatch whose first half is enqueued: the counts, or the rows. Its inputs are read by the receiving half as well, so
/// they stay borrowed. Dropping it gives the dispatch up: after the counts alone peers report this rank as
/// [missing](crate::Outcome::missing); what a sending half has sent arrives. `Send` and `Sync`.
#[derive(Debug)]
#[must_use = "dropping it gives the dispatch up"]
pub struct PrefillDispatching<'a> {
    routing: Routing,
    half: Half<'a>,
}

impl PrefillDispatching<'_> {
    /// How many rows will be received, and which capacity this layout needs for them, after
    /// [`PrefillBuffer::enqueue_dispatch_count`]: waits until the GPU has all counts, [`Error::Timeout`] if `timeout` passes first. A thread of the buffer looks, and the executor is not blocked. Dropping the future gives up waiting, nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::State`] after a sending half, which counts nothing.
    pub async fn received(&self, layout: PrefillLayout, timeout: Duration) -> Result<Received> {
        self.routing.received(layout, timeout).await
    }

    /// [`PrefillDispatching::received`] on this thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    ///
    /// As for `received`.
    pub fn received_blocking(&self, layout: PrefillLayout, timeout: Duration) -> Result<Received> {
        self.routing.received_blocking(layout, timeout)
    }

    /// Enqueues the receiving half, with the deadline of the first one. It must run within one deadline of that. Inputs that
    /// are views of `cudarc` slices have it run on the stream of the first half.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] for outputs that do not fit: call it again, or drop what is returned.
    pub fn enqueue_receive(
        mut self,
        mut output: PrefillOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Consuming<Routing, Self> {
        match self.half.receive(&mut self.routing, &mut output, &stream) {
            Ok(()) => Ok(self.routing),
            Err(error) => Err(Refused::new(self)(error)),
        }
    }
}

/// [`PrefillDispatching`] with a routing of the caller, which is borrowed until the receiving half is enqueued. Dropping it
/// gives the dispatch up. `Send` and `Sync`.
#[derive(Debug)]
#[must_use = "dropping it gives the dispatch up"]
pub struct PrefillDispatchingInto<'a> {
    routing: &'a mut Routing,
    received: bool,
    half: Half<'a>,
}

impl PrefillDispatchingInto<'_> {
    /// As [`PrefillDispatching::received`].
    pub async fn received(&self, layout: PrefillLayout, timeout: Duration) -> Result<Received> {
        self.routing.received(layout, timeout).await
    }

    /// As [`PrefillDispatching::received_blocking`].
    pub fn received_blocking(&self, layout: PrefillLayout, timeout: Duration) -> Result<Received> {
        self.routing.received_blocking(layout, timeout)
    }

    /// As [`PrefillDispatching::enqueue_receive`].
    pub fn enqueue_receive(
        mut self,
        mut output: PrefillOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Consuming<PrefillCompletion, Self> {
        match self.half.receive(self.routing, &mut output, &stream) {
            Ok(()) => {
                self.received = true;
                Ok(self.routing.completion())
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }
}

impl Drop for PrefillDispatchingInto<'_> {
    fn drop(&mut self) {
        if !self.received {
            self.routing.shared.lock().routing.cancel();
        }
    }
}

/// What the receiving half needs to know of the first one, and the guards of its inputs.
#[derive(Debug)]
struct Half<'a> {
    payload: Payload,
    sideband_bytes: usize,
    held: Held<'a>,
}

impl Half<'_> {
    fn receive(
        &mut self,
        routing: &mut Routing,
        output: &mut PrefillOutput<'_>,
        stream: &StreamRef<'_>,
    ) -> Result<()> {
        let inner = &*routing.shared.inner;
        let site = site(inner, "dispatch_receive", stream)?;
        let invalid = |text| Error::Invalid(Failure::new("dispatch_receive", inner.rank, text));
        self.held.admit(stream).map_err(invalid)?;
        let to = output.as_c(inner, self.payload, self.sideband_bytes, &site)?;
        let to = sys::epw_prefill_output { stream: site.stream(), ..to };
        // SAFETY: as in `Routing::dispatch`; `held` has the guards of the inputs.
        routing.shared.enqueue(|routing| unsafe { routing.receive(&to, None) })?;
        self.held.received();
        routing.shape = routing.shape.of_output(inner, output);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::prefill::{PrefillCombining, PrefillCounts};
    use crate::prefill::PrefillConfig;
    use crate::{DType, EpConfig, Mask};

    #[test]
    fn routings_halves_and_completions_may_move_between_threads() {
        fn send_sync<T: Send + Sync>() {}
        send_sync::<Routing>();
        send_sync::<PrefillDispatching<'_>>();
        send_sync::<PrefillDispatchingInto<'_>>();
        send_sync::<PrefillCombining<'_>>();
        send_sync::<PrefillCompletion>();
    }

    #[test]
    fn a_host_buffer_refuses_to_enqueue() {
        // SAFETY: every call that takes it is refused: nothing is enqueued that could read it.
        let matrix = |dtype: DType, cols: usize| unsafe {
            TensorRef::from_raw(4096, dtype, 2, cols, cols * dtype.bytes())
        };
        let input = || Dispatch::new(matrix(DType::Bf16, 64), matrix(DType::I32, 2));
        let config = PrefillConfig::new(EpConfig::new(4, 64, 4, 2));
        let buffer = PrefillBuffer::unconnected(0, 1, config).unwrap();
        buffer.set_active(&Mask::all(1), 1, 0).unwrap();
        let (output, stream) = (PrefillOutput::new(PrefillLayout::default(), 0), StreamRef::legacy());
        let errors = [
            buffer.enqueue_dispatch(input(), output, stream).map(drop).unwrap_err(),
            buffer.enqueue_dispatch_send(input(), stream).map(drop).unwrap_err(),
            buffer.enqueue_dispatch_count(input(), stream).map(drop).unwrap_err(),
            buffer.enqueue_count(matrix(DType::I32, 2), PrefillCounts::new(), stream).unwrap_err(),
            Routing::new(&buffer).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(&error, Error::State(f) if f.text.contains("Device::Cuda")), "{error}");
        }
        assert_eq!(buffer.take_errors().unwrap(), crate::cuda::Errors::default());
    }
}
