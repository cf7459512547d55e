//! The decoder of records, as they come from a log or another server: any bytes give a record or an error, a record has
//! one encoding, and the machine accepts every record.
#![no_main]

use std::cell::LazyCell;
use std::time::Duration;

use epwire::internals::machine::{Event, Machine};
use epwire::internals::record::Record;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static FORMED: LazyCell<Vec<u8>> = LazyCell::new(|| epwire_fuzz::formed().snapshot());
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = Record::decode(bytes) else { return };
    assert_eq!(record.encode(), bytes, "{record:?}");
    let mut machine = FORMED.with(|formed| Machine::restore(formed)).expect("a snapshot");
    let Record { at, event } = record;
    machine.handle(at, event);
    machine.handle(at + Duration::from_secs(9), Event::Tick);
    Machine::restore(&machine.snapshot()).expect("a snapshot");
});
