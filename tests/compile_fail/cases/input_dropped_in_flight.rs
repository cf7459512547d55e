//! A dispatch in flight still reads its tokens.
use epwire::{Dispatch, DispatchOutput, EpBuffer, TensorRef};
use half::bf16;

async fn step(buffer: EpBuffer, x: Vec<bf16>, ids: Vec<i32>) {
    let input = Dispatch::new(TensorRef::new(&x, 8), TensorRef::new(&ids, 1));
    let flight = buffer.dispatch(input, DispatchOutput::default());
    drop(x);
    let _ = flight.await;
}

fn main() {}
