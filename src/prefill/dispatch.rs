//! Dispatch on the host, whole and in halves.

use std::marker::PhantomData;

use super::buffer::PrefillBuffer;
use super::operation::{begin, finish, run};
use super::output::{PrefillLayout, PrefillOutput, Shape};
use super::routing::{Received, Routing};
use crate::buffer::Dispatch;
use crate::config::Payload;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::{ffi, sys};

impl PrefillBuffer {
    /// Sends this rank's tokens and receives those of the others, on this thread. The [layout](Dispatch::layout) of the
    /// output applies, that of the input is ignored. Not for a thread that serves an async executor.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] for impossible arguments; [`Error::State`] without a membership, or
    /// while the lane has another operation. A refused call has no effect.
    pub fn dispatch_blocking(
        &self,
        input: Dispatch<'_>,
        mut output: PrefillOutput<'_>,
    ) -> Result<(Routing, Outcome)> {
        let inner = &*self.inner;
        let (mut routing, c) = self.prepare(&input)?;
        let request = input.request();
        let to = output.as_c(inner, request.payload, request.sideband_bytes, &())?;
        let how = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_SENDS);
        // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
        let outcome = run(inner, "dispatch", |outcome| unsafe {
            routing.ffi.dispatch(&c, how, Some(&to), Some(outcome))
        })?;
        routing.shape = routing.shape.of_output(inner, &output);
        Ok((routing, outcome))
    }

    /// [`PrefillBuffer::dispatch_blocking`] that never blocks the executor: rows move in `poll`. Dropping the future
    /// gives the dispatch up.
    ///
    /// # Errors
    ///
    /// As for `dispatch_blocking`; [`Error::State`] also while peers have not ended an operation of the lane that was
    /// given up here: try again.
    pub async fn dispatch(
        &self,
        input: Dispatch<'_>,
        mut output: PrefillOutput<'_>,
    ) -> Result<(Routing, Outcome)> {
        let inner = &*self.inner;
        let (mut routing, begun) = {
            let (mut routing, c) = self.prepare(&input)?;
            let c = sys::epw_dispatch_input { nonblocking: 1, ..c };
            let request = input.request();
            let to = output.as_c(inner, request.payload, request.sideband_bytes, &())?;
            let how = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_SENDS);
            // SAFETY: all sizes have been checked, and the borrows outlive this future, which ends the operation or gives it up.
            let begun =
                begin(inner, |outcome| unsafe { routing.ffi.dispatch(&c, how, Some(&to), Some(outcome)) });
            (routing, begun)
        };
        // SAFETY: as above.
        let outcome = unsafe { finish(inner, "dispatch", &mut routing.ffi, begun) }.await?;
        routing.shape = routing.shape.of_output(inner, &output);
        Ok((routing, outcome))
    }

    /// [`PrefillBuffer::dispatch_count_blocking`] that never blocks the executor. Dropping the future gives the
    /// dispatch up.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch`].
    pub async fn dispatch_count<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        let inner = &*self.inner;
        let request = input.request();
        let (mut routing, begun) = {
            let (mut routing, c) = self.prepare(&input)?;
            let c = sys::epw_dispatch_input { nonblocking: 1, ..c };
            let how = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_COUNTS);
            // SAFETY: all sizes have been checked, and the borrows outlive this future and the half that it returns.
            let begun = begin(inner, |outcome| unsafe { routing.ffi.dispatch(&c, how, None, Some(outcome)) });
            (routing, begun)
        };
        // SAFETY: as above.
        let _ = unsafe { finish(inner, "dispatch_send", &mut routing.ffi, begun) }.await?;
        Ok(self.half(routing, request.payload, request.sideband_bytes))
    }

    fn half<'a>(&self, routing: Routing, payload: Payload, sideband_bytes: usize) -> PrefillDispatching<'a> {
        PrefillDispatching { routing, inner: self.clone(), payload, sideband_bytes, input: PhantomData }
    }

    /// Dispatches other rows with a routing: the same number of tokens and top-k, the same places and capacity, no
    /// counts. Without [`Dispatch::weights`] the previous weights are used; the ids are not read.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch_blocking`]; [`Error::State`] also if the membership has changed since.
    pub fn dispatch_again_blocking(
        &self,
        routing: &mut Routing,
        input: Dispatch<'_>,
        mut output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        self.check_own(routing)?;
        let c = input.to_c(inner.rank, &inner.config.ep, &())?;
        let request = input.request();
        let to = output.as_c(inner, request.payload, request.sideband_bytes, &())?;
        let how = (sys::EPW_ROUTE_AGAIN, sys::EPW_HALF_SENDS);
        // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
        run(inner, "dispatch", |outcome| unsafe { routing.ffi.dispatch(&c, how, Some(&to), Some(outcome)) })
    }

    /// [`PrefillBuffer::dispatch_again_blocking`] that never blocks the executor. Dropping the future gives the dispatch up:
    /// the routing stays as it was unless weights were given, else it is empty.
    ///
    /// # Errors
    ///
    /// As for `dispatch_again_blocking`; [`Error::State`] also while peers have not ended an operation of the lane that was
    /// given up here: try again.
    pub async fn dispatch_again(
        &self,
        routing: &mut Routing,
        input: Dispatch<'_>,
        mut output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        self.check_own(routing)?;
        let begun = {
            let c = input.to_c(inner.rank, &inner.config.ep, &())?;
            let c = sys::epw_dispatch_input { nonblocking: 1, ..c };
            let request = input.request();
            let to = output.as_c(inner, request.payload, request.sideband_bytes, &())?;
            let how = (sys::EPW_ROUTE_AGAIN, sys::EPW_HALF_SENDS);
            // SAFETY: all sizes have been checked, and the borrows outlive this future, which ends the operation or gives it up.
            begin(inner, |outcome| unsafe { routing.ffi.dispatch(&c, how, Some(&to), Some(outcome)) })
        };
        // SAFETY: as above.
        unsafe { finish(inner, "dispatch", &mut routing.ffi, begun) }.await
    }

    /// The sending half of a dispatch, of at most [`split_tokens`](super::PrefillPlan::split_tokens) tokens: returns
    /// once all rows are handed over for the peers. What is computed before [`PrefillDispatching::receive_blocking`]
    /// overlaps with their transfer.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch_blocking`]; [`Error::Limit`] for more tokens, before anything is sent.
    pub fn dispatch_send_blocking<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        self.begin_half(input, sys::EPW_HALF_SENDS)
    }

    /// Sends the counts of a dispatch and waits for those of all peers: [`PrefillDispatching::received`] then reports how
    /// much to allocate. The receiving half sends and receives the rows. For any number of tokens.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch_blocking`].
    pub fn dispatch_count_blocking<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        self.begin_half(input, sys::EPW_HALF_COUNTS)
    }

    fn begin_half<'a>(&self, input: Dispatch<'a>, half: u32) -> Result<PrefillDispatching<'a>> {
        let (mut routing, c) = self.prepare(&input)?;
        let request = input.request();
        // SAFETY: all sizes have been checked, and the borrows outlive the half that is returned, which gives the
        // operation up when dropped. If it is forgotten, the operation stays and no call continues it.
        let _ = run(&self.inner, "dispatch_send", |outcome| unsafe {
            routing.ffi.dispatch(&c, (sys::EPW_ROUTE_NEW, half), None, Some(outcome))
        })?;
        Ok(self.half(routing, request.payload, request.sideband_bytes))
    }

    fn prepare(&self, input: &Dispatch<'_>) -> Result<(Routing, sys::epw_dispatch_input)> {
        let inner = &*self.inner;
        inner.host("dispatch")?;
        let c = input.to_c(inner.rank, &inner.config.ep, &())?;
        let c = sys::epw_dispatch_input { layout: sys::EPW_EXPERT_MAJOR, ..c };
        let request = input.request();
        let shape = Shape { tokens: request.tokens, topk: request.topk, ..Shape::default() };
        Ok((Routing { ffi: ffi::Routing::new(&inner.ffi, 0)?, shape }, c))
    }
}

/// A dispatch whose receiving half is still to be called. Dropping it gives the dispatch up: peers report this rank as
/// [missing](Outcome::missing).
#[derive(Debug)]
#[must_use = "dropping it gives the dispatch up"]
pub struct PrefillDispatching<'a> {
    routing: Routing,
    inner: PrefillBuffer,
    payload: Payload,
    sideband_bytes: usize,
    input: PhantomData<&'a ()>,
}

impl PrefillDispatching<'_> {
    /// How many rows will be received, and which capacity this layout needs for them. Known after
    /// [`PrefillBuffer::dispatch_count_blocking`].
    ///
    /// # Errors
    ///
    /// [`Error::State`] after a sending half, while some counts have not arrived.
    pub fn received(&self, layout: PrefillLayout) -> Result<Received> {
        self.routing.received(&self.inner, layout)
    }

    /// [`PrefillDispatching::receive_blocking`] that never blocks the executor. Dropping the future gives the dispatch
    /// up.
    ///
    /// # Errors
    ///
    /// As for `receive_blocking`.
    pub async fn receive(self, mut output: PrefillOutput<'_>) -> Result<(Routing, Outcome)> {
        let Self { mut routing, inner: buffer, payload, sideband_bytes, .. } = self;
        let inner = &*buffer.inner;
        let begun = {
            let to = output.as_c(inner, payload, sideband_bytes, &())?;
            let to = sys::epw_prefill_output { nonblocking: 1, ..to };
            // SAFETY: all sizes have been checked, and the borrows, those of the first half too, outlive this future.
            begin(inner, |outcome| unsafe { routing.ffi.receive(&to, Some(outcome)) })
        };
        // SAFETY: as above.
        let outcome = unsafe { finish(inner, "dispatch_receive", &mut routing.ffi, begun) }.await?;
        routing.shape = routing.shape.of_output(inner, &output);
        Ok((routing, outcome))
    }

    /// The receiving half, on this thread. It must be called within one deadline of the first half.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] for outputs that do not fit: the dispatch is given up.
    pub fn receive_blocking(self, mut output: PrefillOutput<'_>) -> Result<(Routing, Outcome)> {
        let Self { mut routing, inner, payload, sideband_bytes, .. } = self;
        let to = output.as_c(&inner.inner, payload, sideband_bytes, &())?;
        // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
        let outcome = run(&inner.inner, "dispatch_receive", |outcome| unsafe {
            routing.ffi.receive(&to, Some(outcome))
        })?;
        routing.shape = routing.shape.of_output(&inner.inner, &output);
        Ok((routing, outcome))
    }
}
