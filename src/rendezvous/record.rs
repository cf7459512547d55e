//! Events of the machine with their times, as bytes: a machine that is fed the same records gets into the same state.

use std::time::Duration;

use super::codec::{Reader, Wire, WireError, wire};
use super::machine::Event;

/// An event, and the machine's time of its arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The time, in whole nanoseconds: fractions are not written.
    pub at: Duration,
    /// The event.
    pub event: Event,
}
wire!(struct Record { at, event });

impl Record {
    /// The record in bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// The record that `bytes` contain, with nothing after it.
    ///
    /// Errors: bytes that [`Record::encode`] cannot have written.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let record = Self::get(&mut from)?;
        from.end().map(|()| record)
    }
}
