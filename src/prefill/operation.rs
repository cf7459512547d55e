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

/// Runs a call on this thread, and turns what it fills into an outcome. The call checks its arguments itself, so that
/// what it refuses is observed.
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

/// A call that has begun or been refused, and its progress.
pub(super) struct Begun {
    observed: Observed,
    progress: Result<Progress>,
    outcome: sys::epw_outcome,
}

/// Begins a non-blocking call, which checks its arguments and may already move rows.
pub(super) fn begin(
    inner: &Inner,
    name: &'static str,
    call: impl FnOnce(&mut sys::epw_outcome) -> Result<Progress>,
) -> Begun {
    let observed = Observed::begin(name, inner.rank);
    let mut outcome = ffi::empty_outcome();
    let progress = inner.start_waits().and_then(|()| call(&mut outcome));
    Begun { observed, progress, outcome }
}

/// Polls the call until it ends.
///
/// # Safety
///
/// The memory given to it stays valid until this future has ended or been dropped.
pub(super) async unsafe fn finish(
    inner: &Inner,
    reader: Reader,
    routing: &mut ffi::Routing,
    begun: Begun,
) -> Result<Outcome> {
    let Begun { observed, progress, mut outcome } = begun;
    let ended = async {
        let mut progress = progress?;
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
