//! The decoder of rendezvous frames: any bytes give a frame or an error, and a frame has one encoding.
#![no_main]

use epwire::internals::wire::{PROTOCOL_VERSION, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // After a valid header, so that not every input has to find one.
    let length = (bytes.len() as u32).to_le_bytes();
    check(&[b"EPWR", &PROTOCOL_VERSION.to_le_bytes()[..], &length, bytes].concat());
});

fn check(bytes: &[u8]) {
    if let Ok(frame) = decode(bytes) {
        let again = encode(&frame).expect("what was decoded has the length of a frame");
        assert_eq!(again, bytes, "{frame:?}");
    }
}
