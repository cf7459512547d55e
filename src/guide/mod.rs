//! Pages about more than one item. For users: [`steps`], [`serving`], [`failures`], [`gpus`], [`launching`], [`paths`],
//! [`collectives`], [`c`], [`prefill`], [`benchmarking`], [`programs`], [`coming_from`], [`threads`], [`security`]. For
//! those who run it on RDMA adapters: [`operators`], [`adapter`], [`first_run`]. For those who work on it: [`testing`],
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
