//! Operations of prefill, and the routing that a dispatch leaves behind.
//!
//! C touches the memory of an operation only inside calls on its routing, which has exactly one owner. So leaking a
//! half (`mem::forget`) does not endanger memory: its lane just stays occupied until the routing is dropped.

use std::fmt;
use std::marker::PhantomData;

use super::buffer::{Inner, PrefillBuffer};
use super::combine::PrefillCombine;
use super::operation::{begin, finish, run};
use super::output::{PrefillCombineOutput, PrefillLayout, PrefillOutput, Shape};
use crate::buffer::Dispatch;
use crate::config::Payload;
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::outcome::Outcome;
use crate::sys;

/// What a dispatch has found out about which rows go where and where they lie. With it, experts' outputs are combined,
/// any number of times and with any width, and other rows can be dispatched in the same way without counting. Valid for
/// the membership of its dispatch.
///
/// Dropping it leaves no obligation towards peers; they wait for this rank only in operations that they call and this
/// rank does not.
#[derive(Debug)]
pub struct Routing {
    ffi: ffi::Routing,
    shape: Shape,
}

/// How many rows will be received.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Received {
    /// The capacity that holds all of them in the layout asked for.
    pub capacity: usize,
    /// `[local_experts]` rows of each expert.
    pub counts: Vec<u32>,
    /// `[ranks]` rows from each source; each token counts once.
    pub source_counts: Vec<u32>,
}

/// `a capacity of 512; rows by expert [12, 0], by source [4, 8]`.
impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, counts, source_counts } = self;
        write!(f, "a capacity of {capacity}; rows by expert {counts:?}, by source {source_counts:?}")
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

/// A combine whose receiving half is still to be called. Dropping it gives the combine up.
#[derive(Debug)]
#[must_use = "dropping it gives the combine up"]
pub struct PrefillCombining<'a> {
    routing: &'a mut Routing,
    inner: PrefillBuffer,
    width: usize,
    collected: bool,
}

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

    /// [`PrefillBuffer::dispatch_again_blocking`] that never blocks the executor. Dropping the future gives the
    /// dispatch up: the routing stays as it was unless weights were given, else it is empty.
    ///
    /// # Errors
    ///
    /// As for `dispatch_again_blocking`; [`Error::State`] also while peers have not ended an operation of the lane that
    /// was given up here: try again.
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

    fn check_own(&self, routing: &Routing) -> Result<()> {
        self.inner.host("routing")?;
        if routing.ffi.is_of(&self.inner.ffi) {
            return Ok(());
        }
        let text = "the routing is of another prefill buffer".to_owned();
        Err(Error::Invalid(Failure::new("routing", self.inner.rank, text)))
    }

    /// Answers every row of the routing's dispatch, receives the answers to this rank's own and sums them, on this
    /// thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] for impossible arguments; [`Error::State`] if the membership has changed
    /// since the dispatch, or the lane has another operation.
    pub fn combine_blocking(
        &self,
        routing: &mut Routing,
        input: PrefillCombine<'_>,
        mut output: PrefillCombineOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        self.check_own(routing)?;
        let c = input.to_c(inner, &routing.shape, &())?;
        let to = output.as_c(inner, (routing.shape.tokens, routing.shape.topk, input.width()), &())?;
        // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
        run(inner, "combine", |outcome| unsafe { routing.ffi.combine(&c, Some(&to), Some(outcome)) })
    }

    /// [`PrefillBuffer::combine_blocking`] that never blocks the executor. Dropping the future gives the combine up.
    ///
    /// # Errors
    ///
    /// As for `combine_blocking`; [`Error::State`] also while peers have not ended an operation of the lane that was
    /// given up here: try again.
    pub async fn combine(
        &self,
        routing: &mut Routing,
        input: PrefillCombine<'_>,
        mut output: PrefillCombineOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        self.check_own(routing)?;
        let begun = {
            let c = input.to_c(inner, &routing.shape, &())?;
            let c = sys::epw_prefill_combine_input { nonblocking: 1, ..c };
            let to = output.as_c(inner, (routing.shape.tokens, routing.shape.topk, input.width()), &())?;
            // SAFETY: all sizes have been checked, and the borrows outlive this future, which ends the operation or gives it up.
            begin(inner, |outcome| unsafe { routing.ffi.combine(&c, Some(&to), Some(outcome)) })
        };
        // SAFETY: as above.
        unsafe { finish(inner, "combine", &mut routing.ffi, begun) }.await
    }

    /// The sending half of a combine, of at most [`split_tokens`](super::PrefillPlan::split_tokens) rows of each
    /// source.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::combine_blocking`]; [`Error::Limit`] for more rows, before anything is sent.
    pub fn combine_send_blocking<'a>(
        &self,
        routing: &'a mut Routing,
        input: PrefillCombine<'a>,
    ) -> Result<PrefillCombining<'a>> {
        let inner = &*self.inner;
        self.check_own(routing)?;
        let c = input.to_c(inner, &routing.shape, &())?;
        // SAFETY: as in `begin_half`.
        let _ =
            run(inner, "combine_send", |outcome| unsafe { routing.ffi.combine(&c, None, Some(outcome)) })?;
        Ok(PrefillCombining { routing, inner: self.clone(), width: input.width(), collected: false })
    }
}

impl Routing {
    /// How many rows were received, and which capacity this layout would have needed for them.
    pub fn received(&self, buffer: &PrefillBuffer, layout: PrefillLayout) -> Result<Received> {
        buffer.check_own(self)?;
        Received::of(&self.ffi, &buffer.inner, layout)?.ok_or_else(|| {
            let text = "not all counts have arrived: use dispatch_count_blocking to wait for them";
            Error::State(Failure::new("received", buffer.inner.rank, text))
        })
    }
}

impl Received {
    /// `None`: not all counts have arrived.
    pub(crate) fn of(routing: &ffi::Routing, inner: &Inner, layout: PrefillLayout) -> Result<Option<Self>> {
        let mut counts = vec![0; inner.plan.local_experts as usize];
        let mut source_counts = vec![0; inner.plan.ranks as usize];
        let (progress, rows) = routing.received(layout.to_c(), &mut counts, &mut source_counts)?;
        let capacity = usize::try_from(rows).unwrap_or(usize::MAX);
        Ok((progress == Progress::Done).then_some(Self { capacity, counts, source_counts }))
    }
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

impl PrefillCombining<'_> {
    /// [`PrefillCombining::receive_blocking`] that never blocks the executor. Dropping the future gives the combine up.
    ///
    /// # Errors
    ///
    /// As for `receive_blocking`.
    pub async fn receive(mut self, mut output: PrefillCombineOutput<'_>) -> Result<Outcome> {
        let shape = self.routing.shape;
        let (routing, inner) = (&mut self.routing.ffi, &*self.inner.inner);
        let begun = {
            let to = output.as_c(inner, (shape.tokens, shape.topk, self.width), &())?;
            let to = sys::epw_prefill_combine_output { nonblocking: 1, ..to };
            // SAFETY: all sizes have been checked, and the borrows, those of the sending half too, outlive this future.
            begin(inner, |outcome| unsafe { routing.collect(&to, Some(outcome)) })
        };
        // SAFETY: as above.
        let outcome = unsafe { finish(inner, "combine_receive", routing, begun) }.await?;
        self.collected = true;
        Ok(outcome)
    }

    /// The receiving half, on this thread.
    ///
    /// # Errors
    /// [`Error::Invalid`] for outputs that do not fit: the combine is given up.
    pub fn receive_blocking(mut self, mut output: PrefillCombineOutput<'_>) -> Result<Outcome> {
        let shape = self.routing.shape;
        let to = output.as_c(&self.inner.inner, (shape.tokens, shape.topk, self.width), &())?;
        let (routing, inner) = (&mut self.routing.ffi, &self.inner.inner);
        // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
        let outcome =
            run(inner, "combine_receive", |outcome| unsafe { routing.collect(&to, Some(outcome)) })?;
        self.collected = true;
        Ok(outcome)
    }
}

impl Drop for PrefillCombining<'_> {
    fn drop(&mut self) {
        if !self.collected {
            self.routing.ffi.cancel();
        }
    }
}
