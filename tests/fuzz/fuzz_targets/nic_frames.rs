//! What comes to a software NIC over a connection: whatever a peer says, and in whatever order, it touches nothing but
//! the bytes that its key opens. And frames have one encoding.
#![no_main]

use arbitrary::Arbitrary;
use epwire_fuzz::nic::{FRAME_BYTES, Frame, Nic, OPEN, parse, write};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Said {
    kind: u8,
    wants_ack: bool,
    syndrome: u8,
    /// Numbers as they are, and not those that the NIC has given out.
    wrong_pair: Option<u32>,
    wrong_key: Option<u32>,
    from: u8,
    index: u16,
    offset: u16,
    bytes: u16,
    stride: u16,
    more: u8,
    payload: u16,
    fill: u8,
}

fuzz_target!(|input: (Vec<Said>, &[u8])| {
    let (frames, rest) = input;
    let mut nic = Nic::new();
    let mut bytes = Vec::new();
    for said in frames.iter().take(40) {
        let frame = Frame {
            kind: said.kind % 9,
            wants_ack: said.wants_ack,
            syndrome: said.syndrome,
            pair: said.wrong_pair.unwrap_or(nic.number()),
            from: u32::from(said.from),
            index: u32::from(said.index),
            key: said.wrong_key.unwrap_or(nic.key),
            offset: u64::from(said.offset % 4200),
            bytes: u32::from(said.bytes % 4200),
            stride: u32::from(said.stride % 4200),
            more: u32::from(said.more),
        };
        bytes.extend(write(&frame));
        bytes.extend(std::iter::repeat_n(said.fill, usize::from(said.payload % 1000)));
    }
    bytes.extend(&rest[..rest.len().min(1000)]);
    for header in bytes.chunks_exact(FRAME_BYTES) {
        let header = header.try_into().expect("a header's length");
        if let Some(frame) = parse(header) {
            assert_eq!(write(&frame), *header);
        }
    }
    nic.take(&bytes);
    assert!(nic.window[..OPEN.start].iter().all(|byte| *byte == 0x5a));
    assert!(nic.window[OPEN.end..].iter().all(|byte| *byte == 0x5a));
});
