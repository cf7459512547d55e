//! Once its answers are sent, a handle can only collect.
use epwire::{Combine, CombineOutput, Dispatched};

fn step(dispatched: Dispatched, output: CombineOutput<'_>) {
    let combining = dispatched.combine_send(Combine::in_place());
    let _ = dispatched.combine_blocking(Combine::in_place(), output);
    drop(combining);
}

fn main() {}
