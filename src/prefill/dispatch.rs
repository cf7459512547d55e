//! Dispatch on the host, whole and in halves.

use std::marker::PhantomData;

use super::buffer::PrefillBuffer;
use super::operation::{begin, finish, run};
use super::output::{PrefillLayout, PrefillOutput};
use super::routing::{Received, Routing};
use crate::buffer::{Consuming, Dispatch, Refused, Request};
use crate::config::Payload;
use crate::error::Result;
use crate::outcome::{Outcome, Reader};
use crate::sys;

impl PrefillBuffer {
    /// Sends this rank's tokens and receives those of the others, on this thread. The [layout](Dispatch::layout) of the
    /// output applies, that of the input is ignored. Not for a thread that serves an async executor.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) and [`Error::Limit`](crate::Error::Limit) for impossible arguments;
    /// [`Error::State`](crate::Error::State) without a membership, or while the lane has another operation. A refused
    /// call has no effect.
    pub fn dispatch_blocking(
        &self,
        input: Dispatch<'_>,
        output: PrefillOutput<'_>,
    ) -> Result<(Routing, Outcome)> {
        let mut routing = Routing::empty(self, "dispatch")?;
        let outcome = self.move_rows_blocking(&mut routing, sys::EPW_ROUTE_NEW, &input, output)?;
        Ok((routing, outcome))
    }

    /// [`PrefillBuffer::dispatch_blocking`] that never blocks the executor: rows move in `poll`. Dropping the future
    /// gives the dispatch up.
    ///
    /// # Errors
    ///
    /// As for `dispatch_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an operation of
    /// the lane that was given up here: try again.
    pub async fn dispatch(
        &self,
        input: Dispatch<'_>,
        output: PrefillOutput<'_>,
    ) -> Result<(Routing, Outcome)> {
        let mut routing = Routing::empty(self, "dispatch")?;
        let outcome = self.move_rows(&mut routing, sys::EPW_ROUTE_NEW, &input, output).await?;
        Ok((routing, outcome))
    }

    /// The sending half of a dispatch, of at most [`split_tokens`](super::PrefillPlan::split_tokens) tokens: returns
    /// once all rows are handed over for the peers, for which it may wait until they have begun. What is computed before
    /// [`PrefillDispatching::receive_blocking`] overlaps with their transfer. Not for a thread that serves an async
    /// executor.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch_blocking`]; [`Error::Limit`](crate::Error::Limit) for more tokens, before
    /// anything is sent.
    pub fn dispatch_send_blocking<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        let mut routing = Routing::empty(self, "dispatch")?;
        let half = self.begin_blocking(&mut routing, SENDS, &input)?;
        Ok(PrefillDispatching { routing, half, input: PhantomData })
    }

    /// [`PrefillBuffer::dispatch_send_blocking`] that never blocks the executor: rows are sent in `poll`. Dropping the
    /// future gives the dispatch up.
    ///
    /// # Errors
    ///
    /// As for `dispatch_send_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an
    /// operation of the lane that was given up here: try again.
    pub async fn dispatch_send<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        let mut routing = Routing::empty(self, "dispatch")?;
        let half = self.begin(&mut routing, SENDS, &input).await?;
        Ok(PrefillDispatching { routing, half, input: PhantomData })
    }

    /// Sends the counts of a dispatch and waits for those of all peers: [`PrefillDispatching::received`] then reports how
    /// much to allocate. The receiving half sends and receives the rows. For any number of tokens.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch_blocking`].
    pub fn dispatch_count_blocking<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        let mut routing = Routing::empty(self, "dispatch")?;
        let half = self.begin_blocking(&mut routing, COUNTS, &input)?;
        Ok(PrefillDispatching { routing, half, input: PhantomData })
    }

    /// [`PrefillBuffer::dispatch_count_blocking`] that never blocks the executor. Dropping the future gives the
    /// dispatch up.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch`].
    pub async fn dispatch_count<'a>(&self, input: Dispatch<'a>) -> Result<PrefillDispatching<'a>> {
        let mut routing = Routing::empty(self, "dispatch")?;
        let half = self.begin(&mut routing, COUNTS, &input).await?;
        Ok(PrefillDispatching { routing, half, input: PhantomData })
    }

    /// [`PrefillBuffer::dispatch_blocking`] into an existing routing, whose memory is used again as far as it suffices: of
    /// a [new](Routing::new) one, or of one that is no longer needed. What the routing held is gone once the dispatch has
    /// begun; if the dispatch is given up, the routing is empty.
    ///
    /// # Errors
    ///
    /// As for `dispatch_blocking`; [`Error::State`](crate::Error::State) also while an operation of the routing is under
    /// way. A refused call leaves the routing as it was.
    pub fn dispatch_into_blocking(
        &self,
        routing: &mut Routing,
        input: Dispatch<'_>,
        output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        self.move_rows_blocking(routing, sys::EPW_ROUTE_NEW, &input, output)
    }

    /// [`PrefillBuffer::dispatch_into_blocking`] that never blocks the executor. Dropping the future gives the dispatch
    /// up, and leaves the routing empty.
    ///
    /// # Errors
    ///
    /// As for `dispatch_into_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an
    /// operation of the lane that was given up here: try again.
    pub async fn dispatch_into(
        &self,
        routing: &mut Routing,
        input: Dispatch<'_>,
        output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        self.move_rows(routing, sys::EPW_ROUTE_NEW, &input, output).await
    }

    /// [`PrefillBuffer::dispatch_send_blocking`] into an existing routing, as
    /// [`PrefillBuffer::dispatch_into_blocking`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn dispatch_send_into_blocking<'a>(
        &self,
        routing: &'a mut Routing,
        input: Dispatch<'a>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin_blocking(routing, SENDS, &input)?;
        Ok(PrefillDispatchingInto { routing, half, received: false })
    }

    /// [`PrefillBuffer::dispatch_send`] into an existing routing, as [`PrefillBuffer::dispatch_into`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub async fn dispatch_send_into<'a>(
        &self,
        routing: &'a mut Routing,
        input: Dispatch<'a>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin(routing, SENDS, &input).await?;
        Ok(PrefillDispatchingInto { routing, half, received: false })
    }

    /// [`PrefillBuffer::dispatch_count_blocking`] into an existing routing, as
    /// [`PrefillBuffer::dispatch_into_blocking`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn dispatch_count_into_blocking<'a>(
        &self,
        routing: &'a mut Routing,
        input: Dispatch<'a>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin_blocking(routing, COUNTS, &input)?;
        Ok(PrefillDispatchingInto { routing, half, received: false })
    }

    /// [`PrefillBuffer::dispatch_count`] into an existing routing, as [`PrefillBuffer::dispatch_into`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub async fn dispatch_count_into<'a>(
        &self,
        routing: &'a mut Routing,
        input: Dispatch<'a>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin(routing, COUNTS, &input).await?;
        Ok(PrefillDispatchingInto { routing, half, received: false })
    }

    /// Dispatches other rows with a routing: the same number of tokens and top-k, the same places and capacity, no
    /// counts. Without [`Dispatch::weights`] the previous weights are used; the ids are not read.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::dispatch_blocking`]; [`Error::State`](crate::Error::State) also if the membership has
    /// changed since.
    pub fn dispatch_again_blocking(
        &self,
        routing: &mut Routing,
        input: Dispatch<'_>,
        output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        self.move_rows_blocking(routing, sys::EPW_ROUTE_AGAIN, &input, output)
    }

    /// [`PrefillBuffer::dispatch_again_blocking`] that never blocks the executor. Dropping the future gives the dispatch up:
    /// the routing stays as it was unless weights were given, else it is empty.
    ///
    /// # Errors
    ///
    /// As for `dispatch_again_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an
    /// operation of the lane that was given up here: try again.
    pub async fn dispatch_again(
        &self,
        routing: &mut Routing,
        input: Dispatch<'_>,
        output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        self.move_rows(routing, sys::EPW_ROUTE_AGAIN, &input, output).await
    }

    /// The sending half of [`PrefillBuffer::dispatch_again_blocking`], of at most
    /// [`split_tokens`](super::PrefillPlan::split_tokens) tokens, as [`PrefillBuffer::dispatch_send_blocking`]. If it is
    /// given up, the routing stays as it was unless weights were given, else it is empty.
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn dispatch_again_send_blocking<'a>(
        &self,
        routing: &'a mut Routing,
        input: Dispatch<'a>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin_blocking(routing, SENDS_AGAIN, &input)?;
        Ok(PrefillDispatchingInto { routing, half, received: false })
    }

    /// [`PrefillBuffer::dispatch_again_send_blocking`] that never blocks the executor: rows are sent in `poll`. Dropping
    /// the future gives the dispatch up.
    ///
    /// # Errors
    ///
    /// As for `dispatch_again_send_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an
    /// operation of the lane that was given up here: try again.
    pub async fn dispatch_again_send<'a>(
        &self,
        routing: &'a mut Routing,
        input: Dispatch<'a>,
    ) -> Result<PrefillDispatchingInto<'a>> {
        let half = self.begin(routing, SENDS_AGAIN, &input).await?;
        Ok(PrefillDispatchingInto { routing, half, received: false })
    }

    /// A whole dispatch on this thread.
    fn move_rows_blocking(
        &self,
        routing: &mut Routing,
        route: u32,
        input: &Dispatch<'_>,
        mut output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        run(inner, "dispatch", Reader::Program, |outcome| {
            let c = self.input(routing, input)?;
            let Request { payload, sideband_bytes, .. } = input.request();
            let to = output.as_c(inner, payload, sideband_bytes, &())?;
            let shape = routing.shape.of_input(input).of_output(inner, &output);
            let how = (route, sys::EPW_HALF_SENDS);
            // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
            unsafe { routing.dispatch(shape, &c, how, Some(&to), outcome) }
        })
    }

    /// The same in the polls of this future.
    async fn move_rows(
        &self,
        routing: &mut Routing,
        route: u32,
        input: &Dispatch<'_>,
        mut output: PrefillOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        let begun = begin(inner, "dispatch", |outcome| {
            let c = sys::epw_dispatch_input { nonblocking: 1, ..self.input(routing, input)? };
            let Request { payload, sideband_bytes, .. } = input.request();
            let to = output.as_c(inner, payload, sideband_bytes, &())?;
            let shape = routing.shape.of_input(input).of_output(inner, &output);
            let how = (route, sys::EPW_HALF_SENDS);
            // SAFETY: all sizes have been checked, and the borrows outlive this future, which ends the operation or gives it up.
            unsafe { routing.dispatch(shape, &c, how, Some(&to), outcome) }
        });
        // SAFETY: as above.
        unsafe { finish(inner, Reader::Program, &mut routing.ffi, begun) }.await
    }

    /// The first half of a dispatch on this thread. The caller keeps what `input` borrows until the receiving half has
    /// ended, or the operation has been given up; if the routing is forgotten, the operation stays and no call continues
    /// it.
    fn begin_blocking(&self, routing: &mut Routing, how: (u32, u32), input: &Dispatch<'_>) -> Result<Half> {
        let _ = run(&self.inner, "dispatch_send", Reader::Observer, |outcome| {
            let c = self.input(routing, input)?;
            let shape = routing.shape.of_input(input);
            // SAFETY: all sizes have been checked, and the borrows outlive the operation, see above.
            unsafe { routing.dispatch(shape, &c, how, None, outcome) }
        })?;
        Ok(Half::new(self, input))
    }

    /// The same in the polls of this future.
    async fn begin(&self, routing: &mut Routing, how: (u32, u32), input: &Dispatch<'_>) -> Result<Half> {
        let begun = begin(&self.inner, "dispatch_send", |outcome| {
            let c = sys::epw_dispatch_input { nonblocking: 1, ..self.input(routing, input)? };
            let shape = routing.shape.of_input(input);
            // SAFETY: all sizes have been checked, and the borrows outlive this future and the operation, see
            // `begin_blocking`.
            unsafe { routing.dispatch(shape, &c, how, None, outcome) }
        });
        // SAFETY: as above.
        let _ = unsafe { finish(&self.inner, Reader::Observer, &mut routing.ffi, begun) }.await?;
        Ok(Half::new(self, input))
    }

    fn input(&self, routing: &Routing, input: &Dispatch<'_>) -> Result<sys::epw_dispatch_input> {
        self.check_own(routing)?;
        let c = input.to_c(self.inner.rank, &self.inner.config.ep, &())?;
        Ok(sys::epw_dispatch_input { layout: sys::EPW_EXPERT_MAJOR, ..c })
    }
}

/// A dispatch whose receiving half is still to be called. Dropping it gives the dispatch up: peers that have not been sent
/// all their rows, as after [`PrefillBuffer::dispatch_count`], report this rank as [missing](Outcome::missing). What a
/// sending half has sent arrives, and the peers' dispatch may be complete.
#[derive(Debug)]
#[must_use = "dropping it gives the dispatch up"]
pub struct PrefillDispatching<'a> {
    routing: Routing,
    half: Half,
    input: PhantomData<&'a ()>,
}

impl PrefillDispatching<'_> {
    /// How many rows will be received, and which capacity this layout needs for them. Known after
    /// [`PrefillBuffer::dispatch_count_blocking`]. After a sending half each call looks whether the counts of all peers have
    /// arrived, without waiting; from the first one on a peer that is silent for a whole deadline is given up, as in the
    /// receiving half.
    ///
    /// # Errors
    ///
    /// [`Error::State`](crate::Error::State) after a sending half, while some counts have not arrived.
    pub fn received(&self, layout: PrefillLayout) -> Result<Received> {
        self.routing.received(&self.half.buffer, layout)
    }

    /// [`PrefillDispatching::receive_blocking`] that never blocks the executor. Dropping the future gives the dispatch
    /// up.
    ///
    /// # Errors
    ///
    /// As for `receive_blocking`.
    pub async fn receive(mut self, output: PrefillOutput<'_>) -> Consuming<(Routing, Outcome), Self> {
        let ended = self.half.receive(&mut self.routing, output).await;
        self.end(ended)
    }

    /// The receiving half, on this thread. It must be called within one deadline of the first half.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) and [`Error::Limit`](crate::Error::Limit) for outputs that do not fit:
    /// call it again, or drop what is returned.
    pub fn receive_blocking(mut self, output: PrefillOutput<'_>) -> Consuming<(Routing, Outcome), Self> {
        let ended = self.half.receive_blocking(&mut self.routing, output);
        self.end(ended)
    }

    fn end(self, ended: Result<Outcome>) -> Consuming<(Routing, Outcome), Self> {
        match ended {
            Ok(outcome) => Ok((self.routing, outcome)),
            Err(error) => Err(Refused::new(self)(error)),
        }
    }
}

/// [`PrefillDispatching`] with a routing of the caller, which is borrowed until the dispatch has ended. Dropping it gives
/// the dispatch up.
#[derive(Debug)]
#[must_use = "dropping it gives the dispatch up"]
pub struct PrefillDispatchingInto<'a> {
    routing: &'a mut Routing,
    half: Half,
    received: bool,
}

impl PrefillDispatchingInto<'_> {
    /// As [`PrefillDispatching::received`].
    pub fn received(&self, layout: PrefillLayout) -> Result<Received> {
        self.routing.received(&self.half.buffer, layout)
    }

    /// As [`PrefillDispatching::receive`].
    pub async fn receive(self, output: PrefillOutput<'_>) -> Consuming<Outcome, Self> {
        let ended = self.half.receive(self.routing, output).await;
        self.end(ended)
    }

    /// As [`PrefillDispatching::receive_blocking`].
    pub fn receive_blocking(self, output: PrefillOutput<'_>) -> Consuming<Outcome, Self> {
        let ended = self.half.receive_blocking(self.routing, output);
        self.end(ended)
    }

    fn end(mut self, ended: Result<Outcome>) -> Consuming<Outcome, Self> {
        match ended {
            Ok(outcome) => {
                self.received = true;
                Ok(outcome)
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }
}

impl Drop for PrefillDispatchingInto<'_> {
    fn drop(&mut self) {
        if !self.received {
            self.routing.give_up();
        }
    }
}

/// What the receiving half needs to know of the first one. Whoever has it holds what that one borrows.
#[derive(Debug)]
struct Half {
    buffer: PrefillBuffer,
    payload: Payload,
    sideband_bytes: usize,
}

impl Half {
    fn new(buffer: &PrefillBuffer, input: &Dispatch<'_>) -> Self {
        let Request { payload, sideband_bytes, .. } = input.request();
        Self { buffer: buffer.clone(), payload, sideband_bytes }
    }

    async fn receive(&self, routing: &mut Routing, mut output: PrefillOutput<'_>) -> Result<Outcome> {
        let inner = &*self.buffer.inner;
        let begun = begin(inner, "dispatch_receive", |outcome| {
            let to = output.as_c(inner, self.payload, self.sideband_bytes, &())?;
            let to = sys::epw_prefill_output { nonblocking: 1, ..to };
            let shape = routing.shape.of_output(inner, &output);
            // SAFETY: all sizes have been checked, and the borrows, those of the first half too, outlive this future.
            unsafe { routing.receive(shape, &to, outcome) }
        });
        // SAFETY: as above.
        unsafe { finish(inner, Reader::Program, &mut routing.ffi, begun) }.await
    }

    fn receive_blocking(&self, routing: &mut Routing, mut output: PrefillOutput<'_>) -> Result<Outcome> {
        let inner = &*self.buffer.inner;
        run(inner, "dispatch_receive", Reader::Program, |outcome| {
            let to = output.as_c(inner, self.payload, self.sideband_bytes, &())?;
            let shape = routing.shape.of_output(inner, &output);
            // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
            unsafe { routing.receive(shape, &to, outcome) }
        })
    }
}

/// `EPW_ROUTE_*` and `EPW_HALF_*` of first halves.
const SENDS: (u32, u32) = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_SENDS);
const COUNTS: (u32, u32) = (sys::EPW_ROUTE_NEW, sys::EPW_HALF_COUNTS);
const SENDS_AGAIN: (u32, u32) = (sys::EPW_ROUTE_AGAIN, sys::EPW_HALF_SENDS);
