//! The C core's interface, `c/include/epwire.h`, as Rust sees it. Only `ffi` calls it.
//!
//! `bindings.rs` is generated and checked in, so that building the crate needs no libclang; feature `bindgen`
//! compares it to the header. Sizes and offsets are asserted while compiling.

// It mirrors the whole header: the names are C's and not every item is used.
#![allow(dead_code, missing_docs, non_camel_case_types, unreachable_pub, clippy::all)]
// Generated code does not explain itself: `Default` of structs with pointers, which are valid as all zeros.
#![allow(clippy::undocumented_unsafe_blocks)]

include!("bindings.rs");

/// Of `c/peer/trial.h`, which is no part of the interface: the bench's.
#[repr(C)]
#[derive(Debug)]
pub struct epw_trial_options {
    pub rank: u32,
    pub ranks: u32,
    pub bytes: u64,
    pub count: u32,
    pub deadline_ns: u64,
    pub fabric: *mut epw_fabric,
}

#[repr(C)]
#[derive(Debug)]
pub struct epw_trial {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    pub fn epw_trial_open(options: *const epw_trial_options, out: *mut *mut epw_trial) -> epw_status;
    pub fn epw_trial_close(trial: *mut epw_trial);
    pub fn epw_trial_export(
        trial: *mut epw_trial,
        peer: u32,
        blob: *mut ::core::ffi::c_void,
        length: *mut usize,
    ) -> epw_status;
    pub fn epw_trial_connect(
        trial: *mut epw_trial,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
    ) -> epw_status;
    pub fn epw_trial_put(trial: *mut epw_trial, peer: u32, bytes: u64, count: u32, number: u64)
    -> epw_status;
    pub fn epw_trial_await(
        trial: *mut epw_trial,
        peer: u32,
        bytes: u64,
        count: u32,
        number: u64,
    ) -> epw_status;
}
