//! One dispatch has one handle.
use epwire::Dispatched;

fn copy(dispatched: &Dispatched) -> Dispatched {
    dispatched.clone()
}

fn main() {}
