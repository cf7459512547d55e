//! Waiting for any of several operations that are under way: `c/peer/await.h`.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::status::nanos;
use crate::sys;

/// An operation that is under way, of an owner that lives as long.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Awaited<'a>(sys::epw_awaited, PhantomData<&'a ()>);

impl<'a> Awaited<'a> {
    /// `of`: its handle, work or lane.
    ///
    /// # Safety
    /// `look` is the one of this owner's kind, and the owner is alive for `'a`.
    pub(super) unsafe fn new<T>(look: sys::epw_look, owner: *mut T, of: u64) -> Self {
        let awaited = sys::epw_awaited {
            look,
            owner: owner.cast::<c_void>(),
            of,
            age_ns: 0,
            ready: false,
            young: false,
            seen: 0,
            word: ptr::null_mut(),
            sleepers: ptr::null_mut(),
            ns: 0,
            peers: ptr::null(),
        };
        Self(awaited, PhantomData)
    }

    /// It has been awaited for so long, since its last poll.
    pub(crate) fn aged(mut self, age: Duration) -> Self {
        self.0.age_ns = nanos(age);
        self
    }

    /// Whether a poll may find something new, or nothing is under way any more.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.ready
    }
}

/// Somebody's wish that [`await_any`] should return, because what is awaited has changed.
#[derive(Debug, Default)]
pub(crate) struct News(sys::epw_news);

impl News {
    /// How many there have been.
    pub(crate) fn told(&self) -> u32 {
        self.0.told.load(Ordering::SeqCst)
    }

    pub(crate) fn tell(&self) {
        // SAFETY: alive; its fields are atomic there and here.
        unsafe { sys::epw_news_tell(&self.0) }
    }
}

/// Returns once one of them is ready, more than `told` news have come, or the time is over. One thread at a time.
pub(crate) fn await_any(all: &mut [Awaited<'_>], news: &News, told: u32, timeout: Duration) {
    let count = u32::try_from(all.len()).unwrap_or(u32::MAX); // of the rest none is ready: theirs is the time
    // SAFETY: the layout of `Awaited` is that of what it wraps; owners are alive, as is the news.
    unsafe { sys::epw_await_any(all.as_mut_ptr().cast(), count, &news.0, told, nanos(timeout)) }
}
