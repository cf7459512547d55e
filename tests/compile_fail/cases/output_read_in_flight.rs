//! A dispatch in flight still writes its outputs.
use epwire::{Dispatch, DispatchBuffers, EpBuffer};

async fn step(buffer: EpBuffer, input: Dispatch<'_>, received: &mut DispatchBuffers) -> u32 {
    let flight = buffer.dispatch(input, received.output());
    let early = received.counts[0];
    let _ = flight.await;
    early
}

fn main() {}
