//! A dispatch is received once.
use epwire::{DispatchOutput, Dispatching};

fn step(dispatching: Dispatching) {
    let _ = dispatching.receive_blocking(DispatchOutput::default());
    let _ = dispatching.event();
}

fn main() {}
