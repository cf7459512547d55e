//! One rank's buffer and memory on its GPU for one shape: the operations, enqueued, and the check of what they leave.

use epwire::Path;

use crate::Error;
use crate::cases::Case;
use crate::expected::Expected;

/// What is enqueued between two halves.
pub type Between<'a> = &'a dyn Fn() -> Result<(), Error>;

pub trait Subject {
    /// A dispatch that has been enqueued.
    type Dispatched;

    fn expected(&self) -> &Expected;

    fn window_bytes(&self) -> u64;

    /// How a peer is reached.
    fn path(&self, peer: u32) -> Path;

    fn dispatch(&self) -> Result<Self::Dispatched, Error>;

    /// What the case combines.
    fn combine(&self, dispatched: Self::Dispatched, case: Case) -> Result<(), Error>;

    /// Ends a dispatch that is not combined.
    fn release(&self, dispatched: Self::Dispatched) -> Result<(), Error>;

    fn dispatch_halves(&self, between: Between<'_>) -> Result<Self::Dispatched, Error>;

    fn combine_halves(&self, dispatched: Self::Dispatched, between: Between<'_>) -> Result<(), Error>;

    /// Waits for what is enqueued. A rank that was missing, or anything else that kernels have recorded, ends the run.
    fn finish(&self) -> Result<(), Error>;

    /// New tokens and expert outputs; what the last iteration has left of results is overwritten.
    fn renew(&mut self) -> Result<(), Error>;

    /// An iteration of its own, and how many rows of it are wrong.
    fn check(&mut self, case: Case) -> Result<u64, Error>;

    /// How many rows are wrong of those that timed operations of the case have left in memory of the caller.
    fn wrong_after_timing(&mut self, case: Case) -> Result<u64, Error>;
}
