//! Pages about more than one item.
//!
//! To write a server, read [`steps`] (what a step can do), then [`serving`] and [`failures`], then [`prefill`],
//! [`gpus`] or [`collectives`] if you need them. To start one: [`launching`] and [`paths`]. To look up terms: the
//! glossaries of [`paths`](paths#glossary) and [`failures`]. To look up the rest: [`threads`], [`security`], [`c`] (the
//! C API), [`coming_from`] (names of DeepEP and NCCL EP), [`programs`] (the examples) and [`benchmarking`]. For those
//! who run it on RDMA adapters: [`operators`], [`adapter`], [`first_run`]. For those who work on it: [`testing`],
//! [`developers`].

pub mod adapter;
pub mod developers;
pub mod first_run;
pub mod operators;

/// A page in Markdown, whose Rust blocks are tests.
macro_rules! pages {
    ($($name:ident)+) => {$(
        #[doc = include_str!(concat!(stringify!($name), ".md"))]
        pub mod $name {}
    )+};
}

pages! {
    benchmarking c collectives coming_from failures gpus launching paths prefill programs security serving steps testing threads
}
