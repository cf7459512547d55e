//! What a software NIC finds in the rings that it shares with a peer, who may write there what it likes at any time: bytes,
//! cursors, and who sleeps. Nothing is touched but the bytes that its key opens, and the connection ends with the peer.
#![no_main]

use arbitrary::Arbitrary;
use epwire_fuzz::nic::{Nic, Said};
use epwire_fuzz::rings::{RING_BYTES, Rings, WORDS};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Say(Said),
    Bytes(&'a [u8]),
    /// By little, by about the ring's size, or by anything.
    Move {
        of_answers: bool,
        word: u8,
        by: i8,
        ring: bool,
        far: Option<u64>,
    },
    /// The beginning of a long frame, of whose bytes so many are said to be there.
    Claim {
        bytes: u32,
        there: u64,
    },
    Poke {
        at: u32,
        byte: u8,
    },
    /// Into what is being said now, before or while it is read.
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
