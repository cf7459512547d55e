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
//! **When the membership changes**, because a member has died or another one is admitted, all members learn from which
//! step on, and put it into effect in the [`Group::step`] that begins it. A member that was only slow gets
//! [`Evicted`](crate::rendezvous::BootstrapError::Evicted): it stops using its buffers, calls [`Group::rejoin`], and waits in `step` to be
//! admitted, as a replacement for a dead rank does after its [`Group::join`].

mod change;
mod course;
mod member;
mod options;
mod step;

pub use change::{Change, Progress, Step};
pub(crate) use course::Follower;
pub use member::Group;
pub use options::GroupOptions;
