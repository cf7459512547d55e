//! Combine on the host, whole and in halves.

use super::buffer::PrefillBuffer;
use super::combine::PrefillCombine;
use super::operation::{begin, finish, run};
use super::output::PrefillCombineOutput;
use super::routing::Routing;
use crate::buffer::{Consuming, Refused};
use crate::error::Result;
use crate::outcome::{Outcome, Reader};
use crate::sys;

impl PrefillBuffer {
    /// Answers every row of the routing's dispatch, receives the answers to this rank's own and sums them, on this
    /// thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) and [`Error::Limit`](crate::Error::Limit) for impossible arguments;
    /// [`Error::State`](crate::Error::State) if the membership has changed since the dispatch, or the lane has another
    /// operation.
    pub fn combine_blocking(
        &self,
        routing: &mut Routing,
        input: PrefillCombine<'_>,
        mut output: PrefillCombineOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        run(inner, "combine", Reader::Program, |outcome| {
            self.check_own(routing)?;
            let c = input.to_c(inner, &routing.shape, &())?;
            let to = output.as_c(inner, (routing.shape.tokens, routing.shape.topk, input.width()), &())?;
            // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
            unsafe { routing.ffi.combine(&c, Some(&to), Some(outcome)) }
        })
    }

    /// [`PrefillBuffer::combine_blocking`] that never blocks the executor. Dropping the future gives the combine up.
    ///
    /// # Errors
    ///
    /// As for `combine_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an operation of
    /// the lane that was given up here: try again.
    pub async fn combine(
        &self,
        routing: &mut Routing,
        input: PrefillCombine<'_>,
        mut output: PrefillCombineOutput<'_>,
    ) -> Result<Outcome> {
        let inner = &*self.inner;
        let begun = begin(inner, "combine", |outcome| {
            self.check_own(routing)?;
            let c = input.to_c(inner, &routing.shape, &())?;
            let c = sys::epw_prefill_combine_input { nonblocking: 1, ..c };
            let to = output.as_c(inner, (routing.shape.tokens, routing.shape.topk, input.width()), &())?;
            // SAFETY: all sizes have been checked, and the borrows outlive this future, which ends the operation or gives it up.
            unsafe { routing.ffi.combine(&c, Some(&to), Some(outcome)) }
        });
        // SAFETY: as above.
        unsafe { finish(inner, Reader::Program, &mut routing.ffi, begun) }.await
    }

    /// The sending half of a combine, of at most [`split_tokens`](super::PrefillPlan::split_tokens) rows of each
    /// source: returns once all answers are handed over for the peers, for which it may wait until they have begun. Not
    /// for a thread that serves an async executor.
    ///
    /// # Errors
    ///
    /// As for [`PrefillBuffer::combine_blocking`]; [`Error::Limit`](crate::Error::Limit) for more rows, before anything
    /// is sent.
    pub fn combine_send_blocking<'a>(
        &self,
        routing: &'a mut Routing,
        input: PrefillCombine<'a>,
    ) -> Result<PrefillCombining<'a>> {
        let inner = &*self.inner;
        let _ = run(inner, "combine_send", Reader::Observer, |outcome| {
            self.check_own(routing)?;
            let c = input.to_c(inner, &routing.shape, &())?;
            // SAFETY: all sizes have been checked, and the borrows outlive the half that is returned, which gives the
            // operation up when dropped. If it is forgotten, the operation stays and no call continues it.
            unsafe { routing.ffi.combine(&c, None, Some(outcome)) }
        })?;
        Ok(PrefillCombining { routing, inner: self.clone(), width: input.width(), collected: false })
    }

    /// [`PrefillBuffer::combine_send_blocking`] that never blocks the executor: answers are sent in `poll`. Dropping the
    /// future gives the combine up, and leaves the routing as it was.
    ///
    /// # Errors
    ///
    /// As for `combine_send_blocking`; [`Error::State`](crate::Error::State) also while peers have not ended an
    /// operation of the lane that was given up here: try again.
    pub async fn combine_send<'a>(
        &self,
        routing: &'a mut Routing,
        input: PrefillCombine<'a>,
    ) -> Result<PrefillCombining<'a>> {
        let inner = &*self.inner;
        let begun = begin(inner, "combine_send", |outcome| {
            self.check_own(routing)?;
            let c = input.to_c(inner, &routing.shape, &())?;
            let c = sys::epw_prefill_combine_input { nonblocking: 1, ..c };
            // SAFETY: all sizes have been checked, and the borrows outlive this future and the half that it returns, as
            // in `combine_send_blocking`.
            unsafe { routing.ffi.combine(&c, None, Some(outcome)) }
        });
        // SAFETY: as above.
        let _ = unsafe { finish(inner, Reader::Observer, &mut routing.ffi, begun) }.await?;
        Ok(PrefillCombining { routing, inner: self.clone(), width: input.width(), collected: false })
    }
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

impl PrefillCombining<'_> {
    /// [`PrefillCombining::receive_blocking`] that never blocks the executor. Dropping the future gives the combine up.
    ///
    /// # Errors
    ///
    /// As for `receive_blocking`.
    pub async fn receive(self, mut output: PrefillCombineOutput<'_>) -> Consuming<Outcome, Self> {
        let shape = self.routing.shape;
        let (routing, inner) = (&mut self.routing.ffi, &*self.inner.inner);
        let begun = begin(inner, "combine_receive", |outcome| {
            let to = output.as_c(inner, (shape.tokens, shape.topk, self.width), &())?;
            let to = sys::epw_prefill_combine_output { nonblocking: 1, ..to };
            // SAFETY: all sizes have been checked, and the borrows, those of the sending half too, outlive this future.
            unsafe { routing.collect(&to, Some(outcome)) }
        });
        // SAFETY: as above.
        let ended = unsafe { finish(inner, Reader::Program, routing, begun) }.await;
        self.end(ended)
    }

    /// The receiving half, on this thread.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for outputs that do not fit: call it again, or drop what is returned.
    pub fn receive_blocking(self, mut output: PrefillCombineOutput<'_>) -> Consuming<Outcome, Self> {
        let shape = self.routing.shape;
        let (routing, inner) = (&mut self.routing.ffi, &*self.inner.inner);
        let ended = run(inner, "combine_receive", Reader::Program, |outcome| {
            let to = output.as_c(inner, (shape.tokens, shape.topk, self.width), &())?;
            // SAFETY: all sizes have been checked, and the borrows outlive the call, which ends the operation.
            unsafe { routing.collect(&to, Some(outcome)) }
        });
        self.end(ended)
    }

    fn end(mut self, ended: Result<Outcome>) -> Consuming<Outcome, Self> {
        match ended {
            Ok(outcome) => {
                self.collected = true;
                Ok(outcome)
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }
}

impl Drop for PrefillCombining<'_> {
    fn drop(&mut self) {
        if !self.collected {
            self.routing.give_up();
        }
    }
}
