//! What happened to the machine and when, in bytes: whoever feeds it the same records has the same machine.

use std::time::Duration;

use super::codec::{Reader, Wire, WireError, wire};
use super::machine::Event;

/// An event, and the machine's time at which it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When, in whole nanoseconds: what is finer is not written.
    pub at: Duration,
    /// What.
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

    /// The record that `bytes` hold, and nothing after it.
    ///
    /// Errors: bytes that [`Record::encode`] does not give.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let record = Self::get(&mut from)?;
        from.end().map(|()| record)
    }
}
