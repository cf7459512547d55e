//! Waiting for any of several operations: `c/peer/await.h`.

use std::ffi::c_void;
use std::fmt::Debug;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::status::nanos;
use crate::sys;

/// What has operations to wait for, each named by a number.
///
/// # Safety
///
/// `look` is that of the C object at `owner`, which is alive as long as `self`.
pub(crate) unsafe trait Watched: Debug + Send + Sync + 'static {
    /// What looks at an operation; recognises one that is over.
    fn look(&self) -> sys::epw_look;
    fn owner(&self) -> *mut c_void;
    /// Continues the wait of an operation that perhaps nobody polls, unless another thread does. Returns whether that is
    /// over. Waits for no lock.
    fn tend(&self, _operation: u64) -> bool {
        true
    }
}

/// An operation to wait for. Keeps its owner alive.
#[derive(Debug)]
pub(crate) struct Awaited {
    raw: sys::epw_awaited,
    owner: Arc<dyn Watched>,
}

// SAFETY: the look may be called on any thread, and the owner is Send and Sync.
unsafe impl Send for Awaited {}

impl Awaited {
    /// It counts as ready after `limit` in any case.
    pub(crate) fn new(owner: Arc<dyn Watched>, operation: u64, limit: Duration) -> Self {
        let raw = sys::epw_awaited {
            look: owner.look(),
            owner: owner.owner(),
            of: operation,
            since: 0,
            limit_ns: nanos(limit),
            ready: false,
            young: false,
            seen: 0,
            word: ptr::null_mut(),
            sleepers: ptr::null_mut(),
            ns: 0,
            peers: ptr::null(),
        };
        Self { raw, owner }
    }

    pub(crate) fn is_of(&self, owner: &dyn Watched) -> bool {
        self.raw.owner == owner.owner()
    }

    /// Whether both are the same operation.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.raw.owner, self.raw.of) == (other.raw.owner, other.raw.of)
    }

    /// Whether a poll may find something new, or nothing runs any more.
    pub(crate) fn is_ready(&self) -> bool {
        self.raw.ready
    }

    /// See [`Watched::tend`]. If it is not over, it is awaited again.
    pub(crate) fn tend(&mut self) -> bool {
        self.raw.since = 0;
        self.owner.tend(self.raw.of)
    }
}

/// Makes [`await_any`] return, because there is something else to wait for.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(sys::epw_interrupt);

impl Interrupt {
    /// How often it was raised.
    pub(crate) fn count(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst)
    }

    pub(crate) fn raise(&self) {
        // SAFETY: it is alive; its fields are atomic in C and here.
        unsafe { sys::epw_interrupt_raise(&self.0) }
    }
}

/// Returns when one of them is ready, or when the interrupt's count is not `count` any more. One thread at a time.
pub(crate) fn await_any<'a>(all: impl Iterator<Item = &'a mut Awaited>, interrupt: &Interrupt, count: u32) {
    let all: Vec<_> = all.map(|awaited| &raw mut awaited.raw).collect();
    // More than the type can hold: the rest counts as not looked at.
    let n = u32::try_from(all.len()).unwrap_or(u32::MAX);
    // SAFETY: the pointers are those of distinct, mutably borrowed values; their owners are alive.
    unsafe { sys::epw_await_any(all.as_ptr(), n, &interrupt.0, count) }
}
