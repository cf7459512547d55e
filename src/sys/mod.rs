//! The C core's interface, `c/include/epwire.h`, as Rust sees it. Only `ffi` calls it, and, below
//! the errors that `ffi` makes, `log` and `settings`.
//!
//! `bindings.rs` is generated and checked in, so that building the crate needs no libclang; feature `bindgen`
//! compares it to the header. Sizes and offsets are asserted while compiling.

// It mirrors the whole header: the names are C's and not every item is used.
#![allow(dead_code, missing_docs, non_camel_case_types, unreachable_pub, clippy::all)]
// The generator writes no safety comments: the blocks are `Default` of structs with pointers, for which all zeros are
// valid.
#![allow(clippy::undocumented_unsafe_blocks)]

include!("bindings.rs");

/// From `c/peer/trial.h`, which is not part of the interface; for the bench and the doctor.
#[repr(C)]
#[derive(Debug)]
pub struct epw_trial_options {
    pub rank: u32,
    pub ranks: u32,
    pub bytes: u64,
    pub count: u32,
    pub deadline_ns: u64,
    pub paths: u32,
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
    pub fn epw_trial_path(trial: *mut epw_trial, peer: u32) -> u32;
    pub fn epw_trial_wire(trial: *mut epw_trial, peer: u32) -> u32;
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

unsafe extern "C" {
    /// From `c/base/log.h`, for the group and the launcher.
    pub fn epw_log_open(place: epw_where) -> epw_status;
    pub fn epw_log_listens(subsystem: u32, level: u32) -> bool;
    pub fn epw_log_line(subsystem: u32, level: u32, rank: u32, text: *const ::core::ffi::c_char);
}

/// From `c/base/status.h`.
#[repr(C)]
#[derive(Debug)]
pub struct epw_where {
    pub op: *const ::core::ffi::c_char,
    pub rank: ::core::ffi::c_int,
    pub peer: ::core::ffi::c_int,
}

impl epw_where {
    /// No operation of a rank: a launcher reads the environment.
    pub const NOWHERE: Self = Self { op: c"environment".as_ptr(), rank: -1, peer: -1 };
}

/// From `c/numerics/numerics.h`.
#[repr(C)]
#[derive(Debug)]
pub struct epw_numerics {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    pub fn epw_numerics_choose(place: epw_where, out: *mut *const epw_numerics) -> epw_status;
}

// From `c/coll/pull.h`.
unsafe extern "C" {
    pub fn epw_pull_wanted(place: epw_where, out: *mut u64) -> epw_status;
}

/// From `c/device/memory_limit.h`, for the doctor.
#[repr(C)]
#[derive(Debug)]
pub struct epw_memory_limit {
    pub left: u64,
    pub limit: u64,
    pub cgroup: [::core::ffi::c_char; 256],
    pub file: *const ::core::ffi::c_char,
}

unsafe extern "C" {
    pub fn epw_memory_limit_find(root: *const ::core::ffi::c_char, out: *mut epw_memory_limit) -> bool;
}

/// From `c/device/gpus.h`, for the doctor.
#[repr(C)]
#[derive(Debug)]
pub struct epw_gpu_facts {
    pub name: [::core::ffi::c_char; 96],
    pub bus: [::core::ffi::c_char; 32],
    pub major: u32,
    pub minor: u32,
    pub memory_bytes: u64,
    pub dma_buf: u32,
    pub access: u64,
    pub atomics: u64,
}

unsafe extern "C" {
    pub fn epw_gpus_count(count: *mut u32) -> epw_status;
    pub fn epw_gpu_look(ordinal: u32, count: u32, out: *mut epw_gpu_facts) -> epw_status;
    pub fn epw_gpu_try(ordinal: u32, path: u32) -> epw_status;
}

unsafe extern "C" {
    /// From `c/ep/buffer.h`, for the doctor.
    pub fn epw_buffer_time_copies(
        buffer: *mut epw_buffer,
        peer: u32,
        timeout_ns: u64,
        bytes: *mut u64,
        ns: *mut u64,
    ) -> epw_status;
}

/// From `c/peer/await.h`, as its functions.
pub type epw_look = unsafe extern "C" fn(awaited: *mut epw_awaited, sleeps: bool, now: u64);

#[repr(C)]
#[derive(Debug)]
pub struct epw_awaited {
    pub look: epw_look,
    pub owner: *mut ::core::ffi::c_void,
    pub of: u64,
    pub since: u64,
    pub limit_ns: u64,
    pub ready: bool,
    pub young: bool,
    pub seen: u32,
    pub word: *mut u32,
    pub sleepers: *mut u32,
    pub ns: u64,
    pub peers: *const ::core::ffi::c_void,
}

#[repr(C)]
#[derive(Debug, Default)]
pub struct epw_interrupt {
    pub count: ::core::sync::atomic::AtomicU32,
    pub sleepers: ::core::sync::atomic::AtomicU32,
}

unsafe extern "C" {
    pub fn epw_interrupt_raise(interrupt: *const epw_interrupt);
    pub fn epw_await_any(all: *const *mut epw_awaited, n: u32, interrupt: *const epw_interrupt, count: u32);
    /// From `c/ep/buffer.h`.
    pub fn epw_buffer_try_destroy(buffer: *mut epw_buffer) -> bool;
    pub fn epw_buffer_look(awaited: *mut epw_awaited, sleeps: bool, now: u64);
    pub fn epw_buffer_tend(buffer: *mut epw_buffer, handle: epw_handle) -> epw_status;
    /// From `c/coll/parts.h`.
    pub fn epw_comm_look(awaited: *mut epw_awaited, sleeps: bool, now: u64);
    pub fn epw_comm_leave(comm: *mut epw_comm);
    pub fn epw_comm_try_destroy(comm: *mut epw_comm) -> bool;
    /// From `c/prefill/parts.h`.
    pub fn epw_prefill_look(awaited: *mut epw_awaited, sleeps: bool, now: u64);
    pub fn epw_prefill_tend(prefill: *mut epw_prefill, lane: u32) -> epw_status;
    pub fn epw_prefill_try_destroy(prefill: *mut epw_prefill) -> bool;
}

/// From `c/nic/bus.h`, for the doctor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct epw_bus_place {
    pub path: [::core::ffi::c_char; 256],
    pub node: i32,
}

/// From `c/nic/choice.h`, for the doctor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct epw_adapter_listed {
    pub name: *const ::core::ffi::c_char,
    pub place: *const epw_bus_place,
}

/// From `c/nic/choice.h`, for the doctor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct epw_adapter_wish {
    pub filter: *const ::core::ffi::c_char,
    pub except: *const ::core::ffi::c_char,
    pub gpu: *const epw_bus_place,
    pub turn: u32,
}

/// From `c/nic/probe.h`, for the doctor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct epw_probe_finding {
    pub verdict: u32,
    pub name: [::core::ffi::c_char; 32],
    pub text: [::core::ffi::c_char; 512],
    pub remedy: [::core::ffi::c_char; 256],
}

pub const EPW_PROBE_FINDINGS_MAX: usize = 12;

unsafe extern "C" {
    pub fn epw_bus_distance_of(a: *const epw_bus_place, b: *const epw_bus_place) -> u32;
    pub fn epw_bus_distance_name(distance: u32) -> *const ::core::ffi::c_char;
    pub fn epw_bus_turn_of_gpu(root: *const ::core::ffi::c_char, bus: *const ::core::ffi::c_char) -> u32;
    /// From `c/nic/choice.h`.
    pub fn epw_adapter_wanted(
        filter: *const ::core::ffi::c_char,
        name: *const ::core::ffi::c_char,
        port: u32,
    ) -> bool;
    pub fn epw_gid_worth(gid: *const u8, roce_v2: bool) -> u32;
    pub fn epw_adapter_filter_check(
        filter: *const ::core::ffi::c_char,
        field: *const ::core::ffi::c_char,
        place: epw_where,
    ) -> epw_status;
    pub fn epw_adapters_order(
        all: *const epw_adapter_listed,
        count: u32,
        wish: *const epw_adapter_wish,
        order: *mut u32,
    ) -> u32;
    pub fn epw_mlx5_probe(name: *const ::core::ffi::c_char, gpu: i32, out: *mut epw_probe_finding) -> u32;
    pub fn epw_mlx5_probe_fake(lacks: u64, gpu: i32, out: *mut epw_probe_finding) -> u32;
    pub fn epw_verbs_probe(name: *const ::core::ffi::c_char, gpu: i32, out: *mut epw_probe_finding) -> u32;
}
