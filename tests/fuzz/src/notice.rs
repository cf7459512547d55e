//! For the target of registrations: `c/coll/notice.h`, which the public interface reaches on GPUs alone.

use std::ffi::{CStr, c_char, c_int, c_void};

use arbitrary::Arbitrary;

use crate::links::Where;

/// `EPW_NOTICE_BYTES`.
pub const NOTICE_BYTES: usize = 68;
/// `EPW_REGISTRATIONS_MAX`.
pub const SLOTS: u32 = 32;

/// `epw_notice`.
#[repr(C)]
#[derive(Arbitrary, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    pub id: u64,
    pub first: u64,
    pub bytes: u64,
    pub offset: u64,
    pub slot: u32,
    pub owner: [u8; 16],
}

unsafe extern "C" {
    fn epw_notice_write(notice: *const Notice, bytes: *mut u8);
    fn epw_notice_parse(
        bytes: *const c_void,
        length: usize,
        least: u64,
        most: u64,
        at: Where,
        out: *mut Notice,
    ) -> c_int;
    fn epw_notice_fits(notice: *const Notice, window_bytes: u64) -> bool;
    fn epw_last_error() -> *const c_char;
}

impl Notice {
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = vec![0; NOTICE_BYTES];
        // SAFETY: room for as many bytes as it writes.
        unsafe { epw_notice_write(self, bytes.as_mut_ptr()) };
        bytes
    }

    /// `None`, with a text, if the bytes are refused.
    pub fn parse(bytes: &[u8], least: u64, most: u64) -> Option<Self> {
        let mut notice = Self::default();
        let at = Where { op: c"fuzz".as_ptr(), rank: 0, peer: 1 };
        // SAFETY: the slice's own pointer and length, and room for the result; the text lives until the next error.
        unsafe {
            if epw_notice_parse(bytes.as_ptr().cast(), bytes.len(), least, most, at, &raw mut notice) == 0 {
                return Some(notice);
            }
            assert!(!CStr::from_ptr(epw_last_error()).is_empty());
        }
        None
    }

    pub fn fits(&self, window_bytes: u64) -> bool {
        // SAFETY: it only reads the notice.
        unsafe { epw_notice_fits(self, window_bytes) }
    }
}
