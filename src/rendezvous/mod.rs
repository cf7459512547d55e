//! How the ranks of a run meet, agree, and stay informed about each other.
//!
//! Most programs use [`Group`](crate::group::Group), and come here only for its errors ([`BootstrapError`]), or to host
//! a [`Server`] of their own, as launchers do.

// Modules:
//
// * `machine`: what the server decides, as a pure state machine: no I/O, no clock, no randomness;
// * `rounds` and `removal`: its two larger rules, named collective rounds and who is removed after a failure;
// * `leases`: for how long the server has heard nothing from each client, also pure;
// * `pace`: a member's part in a change of membership, also pure;
// * `record`: events and their times, as bytes from which they can be replayed;
// * `log`: records in one order on several servers, kept as long as most of them live; `journal`: those of one
//   server, in a file;
// * `wire`: the frames, with a decoder that accepts arbitrary bytes; `display`: how logs show parts of them;
// * `auth`: the shared token, proven by HMAC challenge in both directions;
// * `driver`: sockets and timers around all this, on tokio.

pub(crate) mod auth;
mod call;
pub(crate) mod codec;
pub(crate) mod display;
pub mod driver;
mod error;
mod journal;
mod leases;
#[cfg(feature = "succession")]
mod log;
pub(crate) mod machine;
pub(crate) mod pace;
#[cfg(any(test, feature = "succession"))]
mod random;
pub(crate) mod record;
pub(crate) mod removal;
pub(crate) mod rounds;
#[cfg(test)]
mod seeds;
pub(crate) mod wire;

pub use crate::mask::{MAX_WORLD, Mask};
pub use codec::Blob;
#[doc(inline)]
pub use driver::{Heartbeat, Server, ServerOptions};
pub use error::BootstrapError;
pub use wire::{Decision, Fields, Identity, RankState, View};
