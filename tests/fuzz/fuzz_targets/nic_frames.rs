//! What a software NIC receives over a connection: whatever a peer sends, in any order, only the bytes that its key
//! permits are accessed. And frames have one encoding.
#![no_main]

use epwire_fuzz::nic::{FRAME_BYTES, Nic, Said, parse, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<Said>, &[u8])| {
    let (frames, rest) = input;
    let mut nic = Nic::new();
    let mut bytes = Vec::new();
    for said in frames.iter().take(40) {
        bytes.extend(said.bytes(&nic));
    }
    bytes.extend(&rest[..rest.len().min(1000)]);
    for header in bytes.chunks_exact(FRAME_BYTES) {
        let header = header.try_into().expect("a header's length");
        if let Some(frame) = parse(header) {
            assert_eq!(write(&frame), *header);
        }
    }
    nic.take(&bytes);
    assert!(nic.is_untouched());
});
