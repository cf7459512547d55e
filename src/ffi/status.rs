//! Statuses of the C core as errors, and what every call of the core needs.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use crate::error::{Error, Failure, Result};
use crate::mask::Mask;
use crate::sys;

/// The last error of this thread, with the class that `status` stands for.
pub(crate) fn error(status: sys::epw_status) -> Error {
    let mut detail = sys::epw_error_detail {
        size: size_of::<sys::epw_error_detail>() as u32,
        rank: -1,
        peer: -1,
        reserved: 0,
        op: ptr::null(),
        text: ptr::null(),
    };
    // SAFETY: detail is a valid place to write to.
    unsafe { sys::epw_last_error_detail(&mut detail) };
    let text = |p: *const std::ffi::c_char| {
        if p.is_null() {
            return String::new();
        }
        // SAFETY: epw_last_error_detail gives NUL-terminated texts that live until this thread's next failing call.
        unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
    };
    let failure = Failure {
        operation: text(detail.op),
        rank: detail.rank.try_into().ok(),
        peer: detail.peer.try_into().ok(),
        text: text(detail.text),
    };
    match status {
        sys::EPW_ERR_LIMIT => Error::Limit(failure),
        sys::EPW_ERR_STATE => Error::State(failure),
        sys::EPW_ERR_NO_MEMORY => Error::NoMemory(failure),
        sys::EPW_ERR_SYSTEM => Error::System(failure),
        sys::EPW_ERR_NO_PATH => Error::NoPath(failure),
        sys::EPW_ERR_MISMATCH => Error::Mismatch(failure),
        sys::EPW_ERR_FENCED => Error::Fenced(failure),
        sys::EPW_ERR_TIMEOUT => Error::Timeout(failure),
        sys::EPW_ERR_PEER => Error::Peer(failure),
        _ => Error::Invalid(failure),
    }
}

/// Whether an operation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Done,
}

pub(crate) fn check(status: sys::epw_status) -> Result<Progress> {
    match status {
        sys::EPW_OK => Ok(Progress::Done),
        sys::EPW_PENDING => Ok(Progress::Pending),
        status => Err(error(status)),
    }
}

/// In the C core's time unit: at least 1, because 0 may have a special meaning.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Where C is to write, if anywhere.
pub(crate) fn place<T>(out: Option<&mut T>) -> *mut T {
    out.map_or(ptr::null_mut(), ptr::from_mut)
}

pub(crate) fn c_mask(mask: &Mask) -> sys::epw_mask {
    sys::epw_mask { bits: *mask.words() }
}

/// Like `check`, for a call about a whole group: errors name no rank.
pub(crate) fn check_of_group(status: sys::epw_status) -> Result<()> {
    let checked = check(status).map(|_| ());
    checked.map_err(|error| match error {
        Error::Invalid(failure) => Error::Invalid(Failure { rank: None, ..failure }),
        Error::Limit(failure) => Error::Limit(Failure { rank: None, ..failure }),
        Error::NoPath(failure) => Error::NoPath(Failure { rank: None, ..failure }),
        other => other,
    })
}

/// A struct of the interface with the header's defaults.
///
/// # Safety
/// `init` is one of the header's `epw_*_init`, which write every byte of the struct and read none.
pub(crate) unsafe fn initialised<T>(init: unsafe extern "C" fn(*mut T)) -> T {
    let mut made = MaybeUninit::uninit();
    // SAFETY: it is a valid place to write to, and `init` fills it.
    unsafe {
        init(made.as_mut_ptr());
        made.assume_init()
    }
}

pub(crate) fn empty_outcome() -> sys::epw_outcome {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_outcome_init) }
}
