//! A peer's addresses for its links: any bytes give addresses or an error, and addresses have one encoding.
#![no_main]

use epwire_fuzz::links::addresses;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(again) = addresses(bytes) {
        assert_eq!(again, bytes);
    }
});
