//! Whether calls on a stream under capture are captured.

use std::ffi::{CStr, c_char};
use std::ptr;

use crate::sys;

/// While it exists, such calls of this thread are captured, or refused.
#[derive(Debug)]
pub(crate) struct Captures {
    /// What held before.
    before: *const c_char,
}

impl Captures {
    /// `refusal`: why they are refused; `None`: they are captured.
    pub(crate) fn new(refusal: Option<&'static CStr>) -> Self {
        // SAFETY: the text is always valid.
        let before = unsafe { sys::epw_refuse_captures(refusal.map_or(ptr::null(), CStr::as_ptr)) };
        Self { before }
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        // SAFETY: whoever had set this text has promised that it stays valid.
        unsafe { sys::epw_refuse_captures(self.before) };
    }
}
