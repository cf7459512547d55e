use epwire::cuda::StreamRef;
use epwire::{Dispatch, EpBuffer, TensorRef};

fn send(buffer: &EpBuffer, x: TensorRef<'_>, ids: TensorRef<'_>) {
    let _ = buffer.enqueue_dispatch_send(Dispatch::new(x, ids), StreamRef::legacy());
}

fn main() {}
