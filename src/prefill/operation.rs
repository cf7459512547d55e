//! Running an operation of a routing, either on this thread, or in the polls of a future while the progress thread
//! waits for it.

use std::future::poll_fn;
use std::task::Poll;

use super::buffer::Inner;
use crate::error::Result;
use crate::ffi::{self, Progress};
use crate::observe::Observed;
use crate::outcome::{Outcome, Reader};
use crate::sys;

/// Runs a call on this thread, and turns what it fills into an outcome.
pub(super) fn run(
    inner: &Inner,
    name: &'static str,
    reader: Reader,
    call: impl FnOnce(&mut sys::epw_outcome) -> Result<Progress>,
) -> Result<Outcome> {
    let observed = Observed::begin(name, inner.rank);
    let mut outcome = ffi::empty_outcome();
    let ended = call(&mut outcome).and_then(|_| inner.ended(&outcome, reader));
    observed.end(ended, |outcome| outcome)
}

/// An operation; dropping this before it has ended gives it up.
struct UnderWay<'a> {
    inner: &'a Inner,
    routing: &'a mut ffi::Routing,
    ended: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.routing.cancel();
            self.inner.tend(self.routing.lane());
        }
    }
}

/// A call that has begun, and its progress.
pub(super) struct Begun {
    progress: Progress,
    outcome: sys::epw_outcome,
}

/// Begins a non-blocking call.
pub(super) fn begin(
    inner: &Inner,
    call: impl FnOnce(&mut sys::epw_outcome) -> Result<Progress>,
) -> Result<Begun> {
    inner.start_waits()?;
    let mut outcome = ffi::empty_outcome();
    Ok(Begun { progress: call(&mut outcome)?, outcome })
}

/// Polls the call until it ends.
///
/// # Safety
///
/// The memory given to it stays valid until this future has ended or been dropped.
pub(super) async unsafe fn finish(
    inner: &Inner,
    name: &'static str,
    reader: Reader,
    routing: &mut ffi::Routing,
    begun: Result<Begun>,
) -> Result<Outcome> {
    let observed = Observed::begin(name, inner.rank);
    let ended = async {
        let Begun { mut progress, mut outcome } = begun?;
        let mut under_way = UnderWay { inner, routing, ended: false };
        let ended = poll_fn(|cx| {
            if progress == Progress::Pending {
                // SAFETY: by this function's contract: the future is being polled, so it has not ended.
                progress = unsafe { under_way.routing.poll(&mut outcome) }?;
            }
            if progress == Progress::Done {
                return Poll::Ready(inner.ended(&outcome, reader));
            }
            let lane = under_way.routing.lane();
            inner.waits.wake_later(lane.into(), cx.waker());
            Poll::Pending
        })
        .await;
        under_way.ended = ended.is_ok();
        ended
    };
    observed.end(ended.await, |outcome| outcome)
}
