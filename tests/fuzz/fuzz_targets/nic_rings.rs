//! What a software NIC finds in the rings that it shares with a peer, which may write anything there at any time:
//! bytes, cursors, and the flags of sleepers. Only the bytes that its key permits are accessed, and the connection ends
//! with the peer.
#![no_main]

use arbitrary::Arbitrary;
use epwire_fuzz::nic::{Nic, Said};
use epwire_fuzz::rings::{RING_BYTES, Rings, WORDS};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Say(Said),
    Bytes(&'a [u8]),
    /// By a small amount, by about the ring's size, or by any amount.
    Move {
        of_answers: bool,
        word: u8,
        by: i8,
        ring: bool,
        far: Option<u64>,
    },
    /// The beginning of a long frame, with a claim of how many of its bytes are there.
    Claim {
        bytes: u32,
        there: u64,
    },
    Poke {
        at: u32,
        byte: u8,
    },
    /// Into the bytes that are being sent, before or while they are read.
    PokeRing {
        at: u16,
        byte: u8,
    },
    Poll,
    Call,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut nic = Nic::by_rings();
    let mut rings = Rings::offer(&nic);
    for step in steps.iter().take(60) {
        match step {
            Step::Say(said) => rings.write(&nic, &said.bytes(&nic)),
            Step::Bytes(bytes) => rings.write(&nic, bytes),
            Step::Move { of_answers, word, by, ring, far } => {
                let near = i64::from(*by) + if *ring { i64::from(RING_BYTES) } else { 0 };
                rings.add(*of_answers, WORDS[usize::from(word % 4)], far.unwrap_or(near as u64));
            }
            Step::Claim { bytes, there } => {
                rings.write(&nic, &Said::begin_write(&nic, *bytes));
                rings.add(false, WORDS[0], *there);
            }
            Step::Poke { at, byte } => rings.poke(*at, *byte),
            Step::PokeRing { at, byte } => rings.poke(4096 + u32::from(*at) % RING_BYTES, *byte),
            Step::Poll => nic.poll(),
            Step::Call => nic.call(),
        }
    }
    nic.end();
    assert!(nic.is_untouched());
});
