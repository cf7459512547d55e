//! What kernels have recorded, also in replays of graphs, which have no outcome.

use std::fmt;

use crate::buffer::EpBuffer;
use crate::error::Result;
use crate::ffi::Floor;
use crate::outcome::ErrorRecord;
use crate::prefill::PrefillBuffer;
use crate::sys;

/// More than the kernels' ring holds.
const CAPACITY: u32 = 512;

/// What kernels have recorded since the last [`EpBuffer::take_errors`], or [`PrefillBuffer::take_errors`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[must_use = "they are given out once"]
pub struct Errors {
    /// Oldest first.
    pub records: Vec<ErrorRecord>,
    /// How many were lost: records overwritten before anybody took them, and bad ids of one operation beyond 64.
    pub lost: u64,
}

/// `none`, or the records in their order, with a semicolon between them, and how many were lost.
impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for record in &self.records {
            write!(f, "{between}{record}")?;
            between = "; ";
        }
        match self.lost {
            0 if self.records.is_empty() => f.pad("none"),
            0 => Ok(()),
            lost => write!(f, "{between}{lost} lost"),
        }
    }
}

impl Errors {
    fn of(floor: &impl Floor, (records, lost): (Vec<sys::epw_error_record>, u64)) -> Self {
        let record = |record| ErrorRecord::from_c(record, floor.known());
        Self { records: records.iter().filter_map(record).collect(), lost }
    }
}

impl EpBuffer {
    /// Takes the records that kernels have written since the last call: peers given up, routing ids not followed,
    /// replays out of turn. They lie in host memory: the call neither asks the GPU nor waits. Always empty for a host
    /// buffer, whose outcomes and errors already say everything.
    pub fn take_errors(&self) -> Result<Errors> {
        Ok(Errors::of(&*self.inner.ffi, self.inner.ffi.take_errors(CAPACITY)?))
    }
}

impl PrefillBuffer {
    /// Takes the records that kernels have written since the last call, as
    /// [`EpBuffer::take_errors`](crate::EpBuffer::take_errors): the first peer that an operation has lost, ids not
    /// followed, and rows without a place ([`Cause::Overflow`](crate::Cause::Overflow)). A complete operation leaves
    /// none. Operations that began without a suspect have no record of it: see
    /// [`membership`](PrefillBuffer::membership).
    pub fn take_errors(&self) -> Result<Errors> {
        Ok(Errors::of(&*self.inner.ffi, self.inner.ffi.take_errors(CAPACITY)?))
    }
}
