//! Operations that have begun.
//!
//! Bytes move whenever any call on the communicator makes progress, not only while a future is polled. So a [`Work`]
//! owns the buffers that it uses, at an address that does not change, and returns them when it has ended: one that is
//! forgotten leaks them.

use std::fmt;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::call::Calls;
use super::inner::Inner;
use crate::error::{Error, Result};
use crate::ffi::{self, Progress};
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::sys;

/// Operations in flight, with the buffers `B` that they use. It ends as a future, on any executor; with [`Work::wait`];
/// or with [`Work::try_wait`] and [`Work::wait_for`]. Each returns the buffers, with the outcome.
///
/// It makes progress while it is awaited or waited for, and whenever another operation of the communicator is. A work
/// that is only held shows peers no sign of life: await it within a deadline.
///
/// Dropping it gives the operations up: the buffers are dropped with it and not accessed again, and this rank is
/// [missing](Outcome::missing) from them for its peers. Forgetting it leaks the buffers.
#[must_use = "dropping it gives the operations up; await it, or call wait"]
pub struct Work<B> {
    inner: Arc<Inner>,
    state: State,
    /// Dropped after `state`, whose end stops all use of it. `None`: returned.
    held: Option<Held<B>>,
    observed: Option<Observed>,
}

enum State {
    Begun(sys::epw_work),
    Refused(Error),
    Over,
}

// SAFETY: the buffers that it points to are Send, see Held::new, and so is the rest.
unsafe impl<B> Send for Work<B> {}
// A shared reference to it does not reach the buffers. SAFETY: for that reason.
unsafe impl<B> Sync for Work<B> {}
// The buffers stay at their place on the heap when the handle moves.
impl<B> Unpin for Work<B> {}

impl Work<()> {
    /// For calls that have been enqueued on a GPU: whoever made the views is responsible for their memory.
    pub(super) fn enqueued(inner: &Arc<Inner>, work: sys::epw_work) -> Self {
        let held = Held(NonNull::from(Box::leak(Box::new(()))));
        Self { inner: inner.clone(), state: State::Begun(work), held: Some(held), observed: None }
    }
}

impl<B> Work<B> {
    pub(super) fn begin<C>(inner: &Arc<Inner>, calls: C, deadline: Option<Duration>) -> Self
    where
        C: Calls<Buffers = B> + Send + 'static,
    {
        let observed = Observed::begin(calls.name(), inner.rank);
        let mut held = Held::new(calls);
        let begun = inner.lower(held.calls()).and_then(|lowered| {
            // SAFETY: `lower` has checked all sizes; the memory belongs to `held`, which outlives the work, see `drop`
            // and `look`.
            unsafe { inner.ffi.begin(&lowered.ops, deadline) }
        });
        let (state, observed) = match begun {
            Ok(work) => (State::Begun(work), Some(observed)),
            Err(error) => {
                observed.refuse(&error); // now, because nobody needs to await it
                (State::Refused(error), None)
            }
        };
        Self { inner: inner.clone(), state, held: Some(held.erase()), observed }
    }

    /// Waits on this thread until it has ended, which its deadline bounds. Not for a thread that serves an async
    /// executor.
    pub fn wait(mut self) -> (Result<Outcome>, B) {
        loop {
            if let Some(ended) = self.look(Duration::MAX) {
                return ended;
            }
        }
    }

    /// The same for at most `timeout`: returns the work itself if it has not ended by then.
    ///
    /// # Errors
    /// The work, which continues.
    #[allow(clippy::result_large_err, reason = "the work goes back to whoever continues with it")]
    pub fn wait_for(mut self, timeout: Duration) -> Result<(Result<Outcome>, B), Self> {
        self.look(timeout).ok_or(self)
    }

    /// Whether it has ended: never waits, and makes progress.
    ///
    /// # Errors
    /// The work, which continues.
    #[allow(clippy::result_large_err, reason = "the work goes back to whoever continues with it")]
    pub fn try_wait(self) -> Result<(Result<Outcome>, B), Self> {
        self.wait_for(Duration::ZERO)
    }

    fn look(&mut self, timeout: Duration) -> Option<(Result<Outcome>, B)> {
        let ended = match &self.state {
            State::Over => return None,
            State::Begun(work) => {
                let mut outcome = ffi::empty_outcome();
                match self.inner.ffi.wait(*work, timeout, &mut outcome) {
                    Ok(Progress::Pending) => return None,
                    Ok(Progress::Done) => self.inner.ended(&outcome),
                    Err(error) => Err(error),
                }
            }
            State::Refused(_) => match std::mem::replace(&mut self.state, State::Over) {
                State::Refused(error) => Err(error),
                _ => return None,
            },
        };
        // The C core has consumed it, and no longer accesses its memory.
        self.state = State::Over;
        let ended = match self.observed.take() {
            Some(observed) => observed.end(ended, |outcome| outcome),
            None => ended,
        };
        self.held.take().map(|held| (ended, held.give()))
    }
}

/// Ready when it has ended. Pending for ever if it is polled again after that.
impl<B> Future for Work<B> {
    type Output = (Result<Outcome>, B);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(ended) = self.look(Duration::ZERO) {
            return Poll::Ready(ended);
        }
        if let State::Begun(work) = self.state {
            self.inner.wake_later(work, cx.waker());
        }
        Poll::Pending
    }
}

impl<B> Drop for Work<B> {
    fn drop(&mut self) {
        if let State::Begun(work) = self.state {
            self.inner.ffi.drop_work(work);
        }
    }
}

impl<B> fmt::Debug for Work<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Begun(work) => format!("begun as {work}"),
            State::Refused(error) => format!("refused: {error}"),
            State::Over => "over".to_owned(),
        };
        write!(f, "Work({state})")
    }
}

/// Calls on the heap, behind a raw pointer: moving the handle does not claim exclusive access to the memory that C
/// writes.
struct Owned<C>(NonNull<C>);

/// The same, of any type.
struct Held<B>(NonNull<dyn Give<B>>);

trait Give<B> {
    fn give(self: Box<Self>) -> B;
}

impl Give<()> for () {
    fn give(self: Box<Self>) {}
}

impl<C: Calls> Give<C::Buffers> for C {
    fn give(self: Box<Self>) -> C::Buffers {
        self.into_buffers()
    }
}

impl<B> Held<B> {
    // It may be sent to other threads, and may outlive every borrow.
    #[expect(clippy::new_ret_no_self, reason = "its kind is forgotten once the calls are lowered")]
    fn new<C: Calls<Buffers = B> + Send + 'static>(calls: C) -> Owned<C> {
        Owned(NonNull::from(Box::leak(Box::new(calls))))
    }

    fn give(self) -> B {
        let calls = self.0;
        std::mem::forget(self);
        // SAFETY: from `Held::new`, taken back once, because this value is forgotten.
        unsafe { Box::from_raw(calls.as_ptr()) }.give()
    }
}

impl<C: Calls + 'static> Owned<C> {
    fn calls(&mut self) -> &mut C {
        // SAFETY: a leaked box, to which only this value points.
        unsafe { self.0.as_mut() }
    }

    fn erase(self) -> Held<C::Buffers> {
        Held(self.0)
    }
}

impl<B> Drop for Held<B> {
    fn drop(&mut self) {
        // SAFETY: from `Held::new`, not returned, because that forgets this value.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
