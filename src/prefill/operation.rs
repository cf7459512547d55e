//! Running an operation of a routing, either on this thread, or in the polls of a future while a watcher thread waits
//! for it.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::buffer::Inner;
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::peers::{LONGEST_LOOK, Watched};
use crate::sys;

/// Runs a call on this thread, and turns what it fills into an outcome.
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

/// An operation; dropping this before it has ended gives it up.
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
    let longest = (inner.config.ep.deadline / 4).min(LONGEST_LOOK);
    let mut watchers = inner.watchers.iter().take(inner.config.ep.lanes as usize);
    watchers.try_for_each(|watcher| watcher.start(&inner.ffi, longest)).map_err(|error| {
        let text =
            format!("cannot start the thread that watches a lane: {error}; check the limit on threads");
        Error::System(Failure::new("prefill", inner.rank, text))
    })?;
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
            inner.watchers[lane as usize].wake_later(lane.into(), cx.waker());
            Poll::Pending
        })
        .await;
        under_way.ended = ended.is_ok();
        ended
    };
    observed.end(ended.await, |outcome| outcome)
}

/// Handles are lanes: the watcher touches no routing, because a routing may be dropped at any time.
impl Watched for ffi::Prefill {
    fn sleep(&self, lanes: &[u64], longest: Duration) {
        // An error means that the operation has ended: its task must look as well.
        let _ = lanes.last().map(|lane| ffi::Prefill::sleep(self, *lane as u32, longest));
    }

    fn is_over(&self, _: u64) -> bool {
        true // operations here are never tended
    }
}
