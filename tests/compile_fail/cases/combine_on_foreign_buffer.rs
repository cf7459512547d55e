//! A handle knows its buffer: there is no way to name another one.
use epwire::{Combine, CombineOutput, Dispatched, EpBuffer};

fn step(other: EpBuffer, dispatched: Dispatched, output: CombineOutput<'_>) {
    let _ = other.combine_blocking(dispatched, Combine::in_place(), output);
}

fn main() {}
