//! The C core's interface, `c/include/epwire.h`, as Rust sees it. Only `ffi` calls it.
//!
//! `bindings.rs` is generated and checked in, so that building the crate needs no libclang; feature `bindgen`
//! compares it to the header. Sizes and offsets are asserted while compiling.

// It mirrors the whole header: the names are C's and not every item is used.
#![allow(dead_code, missing_docs, non_camel_case_types, unreachable_pub, clippy::all)]
// Generated code does not explain itself: `Default` of structs with pointers, which are valid as all zeros.
#![allow(clippy::undocumented_unsafe_blocks)]

include!("bindings.rs");
