//! The group of ranks: who is a member, what they tell each other, and how they agree after a failure.
//!
//! ```
//! use epwire::group::Group;
//! # fn main() -> Result<(), epwire::rendezvous::BootstrapError> {
//! let groups = Group::threads(2)?;
//! std::thread::scope(|scope| {
//!     for group in &groups {
//!         scope.spawn(move || group.barrier_blocking("ready"));
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! **When the membership changes**, because a member has died or another one is admitted, all members learn with which
//! step, and put the change into effect in the [`Group::step`] that begins this step. A member that was only slow gets
//! [`Evicted`](crate::rendezvous::BootstrapError::Evicted): it stops using its buffers, calls [`Group::rejoin`], and
//! waits in `step` to be admitted, like a replacement for a dead rank after its [`Group::join`]. [`Group::retire`]
//! removes a member in an orderly way, and [`GroupOptions::initial`] leaves places to grow into.
//!
//! **The run outlives any single member** once it has three servers, with the feature `succession`: if rank 0 serves it
//! first, all members have servers of their own, up to five of them share the log of decisions, and when the leading
//! one ends, another is elected. That one answers the pending calls, each of which is carried out once; dispatch and
//! combine need no server.

mod account;
mod change;
mod course;
mod experts;
mod follower;
mod health;
mod meetings;
mod member;
mod membership;
mod options;
mod outbox;
mod step;
mod survey;
#[cfg(test)]
mod tests;

pub use crate::rendezvous::driver::Outage;
pub use crate::rendezvous::wire::Standby;
pub use change::{Change, Progress, Step};
pub use experts::Experts;
pub(crate) use experts::held_by;
pub(crate) use follower::{Follower, GivenUp};
pub use health::{Health, Reason, Status};
pub use member::Group;
pub use membership::{Membership, Role};
pub use options::GroupOptions;
pub use step::Recovery;
