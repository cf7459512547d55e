//! The decoder of a saved machine: any bytes, and a valid snapshot with some bytes changed, give a machine with exactly
//! this snapshot, or an error.
#![no_main]

use std::cell::LazyCell;
use std::time::Duration;

use arbitrary::Arbitrary;
use epwire::internals::machine::{Event, Machine};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    /// A valid snapshot, with these bits flipped at these offsets.
    Changed {
        changes: Vec<(u16, u8)>,
        length: Option<u16>,
    },
}

thread_local! {
    static FORMED: LazyCell<Vec<u8>> = LazyCell::new(|| epwire_fuzz::formed().snapshot());
}

fuzz_target!(|input: Input| {
    let changed;
    let bytes = match input {
        Input::Bytes(bytes) => bytes,
        Input::Changed { changes, length } => {
            let mut snapshot = FORMED.with(|formed| formed.to_vec());
            for (at, bits) in changes {
                let at = usize::from(at) % snapshot.len();
                snapshot[at] ^= bits;
            }
            snapshot.truncate(length.map_or(snapshot.len(), usize::from));
            changed = snapshot;
            &changed
        }
    };
    if let Ok(mut machine) = Machine::restore(bytes) {
        assert_eq!(machine.snapshot(), bytes);
        for seconds in [0, 9, 99] {
            machine.handle(Duration::from_secs(seconds), Event::Tick);
        }
        Machine::restore(&machine.snapshot()).expect("a snapshot");
    }
});
