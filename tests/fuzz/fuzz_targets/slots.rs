//! What a peer writes into this rank's window: its signal words, counts, rows and answers, with any bytes changed after
//! it has sent and after it has answered. Every operation ends within its deadlines, with any outcome, and accesses
//! only the memory of the outputs.
#![no_main]

use std::ops::Range;
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use epwire::{
    Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Fp8Scale, HostBuffer, Layout, Mask, Payload,
    TensorMut, TensorRef,
};
use epwire_fuzz::only_window;
use half::bf16;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    rank_major: bool,
    fp8: bool,
    topk_idx: [[i8; TOPK]; 2],
    after_send: Vec<Change>,
    after_answer: Vec<Change>,
}

/// Bytes at an offset in one of the areas that rank 1 writes.
#[derive(Arbitrary, Debug)]
struct Change {
    area: u8,
    at: u16,
    bytes: [u8; 4],
}

const TOKENS: usize = 2;
const HIDDEN: usize = 128;
const EXPERTS: u32 = 4;
const TOPK: usize = 2;
const DEADLINE: Duration = Duration::from_millis(1);

fuzz_target!(|input: Input| {
    let config = EpConfig::new(TOKENS as u32, HIDDEN as u32, EXPERTS, TOPK as u32)
        .lanes(1)
        .threads(1)
        .deadline(DEADLINE);
    let create = |rank| EpBuffer::unconnected(rank, 2, config.clone()).expect("a small buffer");
    let victim = create(0);
    let window = only_window();
    let peer = create(1);
    victim.connect_blocking(1, &peer.export(0).expect("a blob")).expect("a right blob");
    peer.connect_blocking(0, &victim.export(1).expect("a blob")).expect("a right blob");
    for buffer in [&victim, &peer] {
        buffer.set_active(&Mask::all(2), 1, 0).expect("both are connected");
    }

    let areas = areas(&victim);
    let change = |changes: &[Change]| {
        for Change { area, at, bytes } in changes {
            let area = areas[usize::from(*area) % areas.len()].clone();
            let at = area.start + usize::from(*at) % (area.len() - bytes.len() + 1);
            // SAFETY: inside the victim's window, which lives as long as its buffer. Unlike with a real peer, nobody
            // accesses it meanwhile: both ranks' threads are idle.
            unsafe { window.add(at).cast::<[u8; 4]>().write_unaligned(*bytes) };
        }
    };
    let begun = Instant::now();
    let layout = if input.rank_major { Layout::RankMajor } else { Layout::ExpertMajor };
    let payload = if input.fp8 { Payload::Fp8 { scale: Fp8Scale::Ue8m0 } } else { Payload::SameAsInput };
    let x = vec![bf16::ONE; TOKENS * HIDDEN];
    let weights = [0.5f32; TOKENS * TOPK];
    let topk_idx = input.topk_idx.map(|ids| ids.map(|id| i32::from(id).rem_euclid(EXPERTS as i32 + 1) - 1));
    let topk_idx = topk_idx.map(|[a, b]| if a == b { [a, -1] } else { [a, b] });
    let send = |buffer: &EpBuffer| {
        let step = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(topk_idx.as_flattened(), TOPK))
            .weights(TensorRef::new(&weights, TOPK))
            .layout(layout)
            .payload(payload);
        buffer.dispatch_send_blocking(step).expect("right input")
    };
    let sent = [send(&victim), send(&peer)];
    change(&input.after_send);

    let expert_rows = EXPERTS as usize / 2 * TOKENS * 2;
    let expert_out = vec![bf16::ONE; if input.rank_major { TOKENS * 2 } else { expert_rows } * HIDDEN];
    let answer = |buffer: &EpBuffer, dispatching: epwire::Dispatching| {
        let mut received = buffer.dispatch_buffers(payload, layout, 0).expect("right sizes");
        let dispatched = dispatching.receive_blocking(received.output()).expect("right output");
        dispatched.combine_send(Combine::new(TensorRef::new(&expert_out, HIDDEN))).expect("right input")
    };
    let [of_victim, of_peer] = sent;
    let of_victim = answer(&victim, of_victim);
    let of_peer = answer(&peer, of_peer);
    change(&input.after_answer);
    for combining in [of_victim, of_peer] {
        let mut out = HostBuffer::<bf16>::zeroed(TOKENS * HIDDEN);
        let _ =
            combining.receive_blocking(CombineOutput::new(TensorMut::new(&mut out))).expect("right output");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} of waits of {DEADLINE:?}", begun.elapsed());
});

/// The areas of rank 0's window that rank 1 writes, by `c/ep/layout.h`: its words, its counts, its rows, its answers.
fn areas(buffer: &EpBuffer) -> [Range<usize>; 4] {
    const LINES: usize = 4096;
    const LINE: usize = 64;
    let plan = buffer.plan();
    let half = |start: u64, bytes: u64| (start + bytes / 2) as usize..(start + bytes) as usize;
    let counts = LINES + 2 * LINE;
    [
        LINES + LINE..LINES + 2 * LINE,
        counts + LINE..counts + LINE + EXPERTS as usize / 2 * 4,
        half(plan.control_bytes, plan.dispatch_bytes),
        half(plan.control_bytes + plan.dispatch_bytes, plan.combine_bytes),
    ]
}
