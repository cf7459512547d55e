//! Running an operation of a routing: on this thread, or in the polls of a future, while the progress thread waits in its place.

use std::future::poll_fn;
use std::task::Poll;

use super::buffer::Inner;
use crate::error::Result;
use crate::ffi::{self, Awaited, Progress};
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::peers::Watched;
use crate::sys;

/// Runs a call on this thread, and makes an outcome of what it fills.
pub(super) fn run(
    inner: &Inner,
    name: &'static str,
    call: impl FnOnce(&mut sys::epw_outcome) -> Result<Progress>,
) -> Result<Outcome> {
    let observed = Observed::begin(name, inner.rank);
    let mut outcome = ffi::empty_outcome();
    let ended = call(&mut outcome).and_then(|_| Outcome::of(&*inner.ffi, &outcome));
    observed.end(ended, |outcome| outcome)
}

/// An operation that is given up if this is dropped before it has ended.
struct UnderWay<'a> {
    routing: &'a mut ffi::Routing,
    ended: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.routing.cancel();
        }
    }
}

/// A call that has begun, and how far it has come.
pub(super) struct Begun {
    progress: Progress,
    outcome: sys::epw_outcome,
}

/// Begins a call that does not block.
pub(super) fn begin(
    inner: &Inner,
    call: impl FnOnce(&mut sys::epw_outcome) -> Result<Progress>,
) -> Result<Begun> {
    inner.waits.start("prefill", inner.rank, &inner.ffi, inner.config.ep.deadline)?;
    let mut outcome = ffi::empty_outcome();
    Ok(Begun { progress: call(&mut outcome)?, outcome })
}

/// Polls it to its end.
///
/// # Safety
/// The memory given to it stays valid until this future has ended or been dropped.
pub(super) async unsafe fn finish(
    inner: &Inner,
    name: &'static str,
    routing: &mut ffi::Routing,
    begun: Result<Begun>,
) -> Result<Outcome> {
    let observed = Observed::begin(name, inner.rank);
    let ended = async {
        let Begun { mut progress, mut outcome } = begun?;
        let mut under_way = UnderWay { routing, ended: false };
        let ended = poll_fn(|cx| {
            if progress == Progress::Pending {
                // SAFETY: by this function's contract: the future is being polled, so it has not ended.
                progress = unsafe { under_way.routing.poll(&mut outcome) }?;
            }
            if progress == Progress::Done {
                return Poll::Ready(Outcome::of(&*inner.ffi, &outcome));
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

/// Handles are lanes: what waits touches no routing, which may go at any time.
impl Watched for ffi::Prefill {
    fn awaited(&self, lane: u64) -> Awaited<'_> {
        Self::awaited(self, lane)
    }

    fn tend(&self, _: u64) -> bool {
        true // nobody asks for it
    }
}
