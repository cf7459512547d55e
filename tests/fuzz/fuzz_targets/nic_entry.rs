//! Entries of a send queue: any bytes are an entry or are refused, and an accepted entry belongs to its queue and its
//! index, and carries no more than it has room for.
#![no_main]

use epwire_fuzz::nic::{ENTRY_BYTES, fetch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u32, u16, [u8; ENTRY_BYTES])| {
    let (mends, number, index, mut entry) = input;
    let number = number & 0x00ff_ffff;
    if mends & 1 != 0 {
        entry[..3].copy_from_slice(&[0, (index >> 8) as u8, index as u8]);
        entry[4..7].copy_from_slice(&number.to_be_bytes()[1..]);
        entry[7] &= 7;
        entry[11] &= 8;
    }
    if mends & 2 != 0 {
        entry[3] = [0x00, 0x08, 0x10, 0x12][usize::from(mends >> 2 & 3)];
    }
    match fetch(&entry, number, index) {
        Ok(fetched) => {
            assert_eq!(entry[1..3], index.to_be_bytes());
            assert_eq!(entry[4..7], number.to_be_bytes()[1..]);
            assert_eq!(fetched.opcode, entry[3]);
            assert!(!fetched.is_inline || fetched.bytes <= 28, "{fetched:?}");
            assert!(fetched.bytes <= 1 << 31, "{fetched:?}");
            let local = &fetched.local[..fetched.local_count as usize];
            let bytes: u64 = local.iter().map(|segment| u64::from(segment.bytes)).sum();
            assert!(local.is_empty() || bytes == u64::from(fetched.bytes), "{fetched:?}");
            assert!(local.len() < 2 || (fetched.opcode == 0x08 && !fetched.is_inline), "{fetched:?}");
            assert!(fetched.opcode != 0x12 || fetched.bytes == 8, "{fetched:?}");
        }
        Err(syndrome) => assert_eq!(syndrome, 2),
    }
});
