//! A handle is consumed by its combine.
use epwire::{Combine, CombineOutput, Dispatched};

fn step(dispatched: Dispatched, first: CombineOutput<'_>, second: CombineOutput<'_>) {
    let _ = dispatched.combine_blocking(Combine::in_place(), first);
    let _ = dispatched.combine_blocking(Combine::in_place(), second);
}

fn main() {}
