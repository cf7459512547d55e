//! A task of its own cannot borrow from the stack of the one that starts it.
use epwire::{Combine, CombineOutput, Dispatched, TensorMut};
use half::bf16;

fn spawn(_: impl Future + Send + 'static) {}

fn step(dispatched: Dispatched) {
    let mut out = vec![bf16::ZERO; 8];
    let output = CombineOutput::new(TensorMut::new(&mut out));
    spawn(dispatched.combine(Combine::in_place(), output));
}

fn main() {}
