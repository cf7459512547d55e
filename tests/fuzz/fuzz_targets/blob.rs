//! A rank's blob as its peer may receive it: any bytes, or a valid blob with some bytes changed and its checksum
//! corrected. Connect always ends with an error that has a text, or with a window; and a wrong blob leaves nothing
//! behind: the valid one connects afterwards.
#![no_main]

use std::cell::LazyCell;

use arbitrary::Arbitrary;
use epwire::Path;
use epwire_fuzz::{Pair, fix_checksum};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    /// A valid blob, with these bits flipped at these offsets.
    Changed {
        changes: Vec<(u16, u8)>,
        length: Option<u16>,
        fix: bool,
    },
}

thread_local! {
    static PAIR: LazyCell<Pair> = LazyCell::new(Pair::new);
}

fuzz_target!(|input: Input| {
    PAIR.with(|pair| {
        let changed;
        let bytes = match input {
            Input::Bytes(bytes) => bytes,
            Input::Changed { changes, length, fix } => {
                let mut blob = pair.blob.clone();
                for (at, bits) in changes {
                    let at = usize::from(at) % blob.len();
                    blob[at] ^= bits;
                }
                blob.truncate(length.map_or(blob.len(), usize::from));
                if fix {
                    fix_checksum(&mut blob);
                }
                changed = blob;
                &changed
            }
        };
        match pair.importer.connect_blocking(1, bytes) {
            Ok(()) => assert_ne!(pair.importer.path(1), Path::None),
            Err(error) => assert!(error.failure().is_some_and(|f| !f.text.is_empty()), "{error}"),
        }
        pair.importer.connect_blocking(1, &pair.blob).expect("the right blob");
        assert_eq!(pair.importer.path(1), Path::Thread);
    });
});
