//! What a peer says of memory that it has registered: any bytes, or a notice with any values, some of its bits flipped and
//! its checksum corrected. What is accepted has values in their ranges, and one encoding.
#![no_main]

use arbitrary::Arbitrary;
use epwire_fuzz::fix_checksum;
use epwire_fuzz::notice::{NOTICE_BYTES, Notice, SLOTS};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    Said { notice: Notice, small: bool, flips: Vec<(u8, u8)>, length: Option<u8>, fix: bool, more: &'a [u8] },
}

/// As for a heap of 4 KiB.
const LEAST: u64 = 4096;
const MOST: u64 = 1 << 35;

fuzz_target!(|input: (Input, u64)| {
    let (input, window_bytes) = input;
    let bytes = match input {
        Input::Bytes(bytes) => bytes.to_vec(),
        Input::Said { mut notice, small, flips, length, fix, more } => {
            if small {
                // Near what can be: numbers of 64 bits seldom are.
                notice.slot %= SLOTS + 1;
                notice.first = notice.first % (MOST / 16 + 2) * 16;
                notice.bytes %= MOST + 1;
            }
            let mut bytes = notice.write();
            if flips.is_empty() {
                assert_eq!(Notice::parse(&bytes, LEAST, MOST).is_some(), is_right(&notice), "{notice:?}");
            }
            for (at, bits) in flips {
                bytes[usize::from(at) % NOTICE_BYTES] ^= bits;
            }
            if fix {
                fix_checksum(&mut bytes);
            }
            bytes.extend(more);
            bytes.truncate(length.map_or(bytes.len(), usize::from));
            bytes
        }
    };
    if let Some(notice) = Notice::parse(&bytes, LEAST, MOST) {
        assert!(is_right(&notice), "{notice:?}");
        assert_eq!(notice.write(), bytes[..NOTICE_BYTES]);
        let end = u128::from(notice.offset) + u128::from(notice.bytes);
        assert_eq!(
            notice.fits(window_bytes),
            end <= window_bytes.into(),
            "{notice:?} in {window_bytes} bytes"
        );
    }
});

fn is_right(notice: &Notice) -> bool {
    let end = u128::from(notice.first) + u128::from(notice.bytes);
    let placed = notice.first > LEAST && notice.first % 16 == 0 && end <= MOST.into();
    placed && notice.id != 0 && notice.slot < SLOTS && notice.bytes > 0
}
