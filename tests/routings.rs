//! A routing that is filled anew takes no more memory. In a process of its own, whose memory nothing else changes.

#![cfg(target_env = "gnu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput, Routing,
};
use epwire::{Dispatch, EpConfig, HostBuffer, Mask, TensorMut, TensorRef};
use half::bf16;

const TOKENS: usize = 4096;
const HIDDEN: usize = 64;
const LAYOUT: PrefillLayout = PrefillLayout::Packed { alignment: 1 };

/// Bytes that are allocated, by the C core too.
fn in_use() -> usize {
    // SAFETY: it only reads what malloc counts.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

#[test]
fn dispatches_into_a_routing_do_not_add_to_its_memory() {
    let config = PrefillConfig::new(EpConfig::new(TOKENS as u32, HIDDEN as u32, 4, 2));
    let buffer = PrefillBuffer::unconnected(0, 1, config.ring_tokens(TOKENS as u32 + 1)).unwrap();
    buffer.set_active(&Mask::all(1), 1, 0).unwrap();
    let (x, weights) = (vec![bf16::ONE; TOKENS * HIDDEN], vec![0.5f32; TOKENS * 2]);
    let ids: Vec<i32> = (0..TOKENS as i32).flat_map(|t| [t % 4, (t + 1) % 4]).collect();
    let mut out = HostBuffer::<bf16>::zeroed(TOKENS * HIDDEN);
    let rows = vec![bf16::ONE; 2 * TOKENS * HIDDEN];
    let input = || {
        let of_weights = TensorRef::new(&weights, 2);
        Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, 2)).weights(of_weights)
    };
    let output = || PrefillOutput::new(LAYOUT, 2 * TOKENS);
    let mut turn = |routing: &mut Routing| {
        assert!(buffer.dispatch_into_blocking(routing, input(), output()).unwrap().is_complete());
        let made = PrefillCombine::new(TensorRef::new(&rows, HIDDEN));
        let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
        assert!(buffer.combine_blocking(routing, made, to).unwrap().is_complete());
        let counted = buffer.dispatch_count_into_blocking(routing, input()).unwrap();
        assert!(counted.receive_blocking(output()).unwrap().is_complete());
        drop(buffer.dispatch_send_into_blocking(routing, input()).unwrap());
    };
    let before = in_use();
    let mut routing = Routing::new(&buffer).unwrap();
    turn(&mut routing);
    let (used, bytes) = (in_use(), buffer.plan().routing_bytes as usize);
    assert!(used - before >= bytes, "a routing has {} bytes, of {bytes}", used - before);
    for _ in 0..8 {
        turn(&mut routing);
    }
    let more = in_use().saturating_sub(used);
    assert!(more < bytes / 8, "{more} bytes more than after the first turn; a routing has {bytes}");
}
