//! What has not been received cannot be combined.
use epwire::{Combine, Dispatching};

fn step(dispatching: Dispatching) {
    let _ = dispatching.combine_send(Combine::in_place());
}

fn main() {}
