//! The [`Server`] at which the ranks of a run meet, and its [`Client`]s. [`Group`](crate::Group) holds both for programs;
//! launchers and tools use them here.
//!
//! Both run on threads of their own, each with a small tokio runtime, so that they do not depend on a runtime of the
//! program, and dropping a handle never waits.

mod attendant;
mod background;
mod calls;
mod carrier;
mod client;
mod connection;
mod contact;
mod dial;
mod door;
#[cfg(feature = "succession")]
mod former;
mod heartbeat;
mod hub;
mod ledger;
mod local;
mod neighbours;
mod news;
mod options;
#[cfg(feature = "succession")]
mod peers;
mod search;
mod server;
mod service;
#[cfg(feature = "succession")]
mod shared;
mod stream;
mod told;
mod turn;
#[cfg(feature = "succession")]
mod voters;

pub(crate) use attendant::{Attendant, Later};
pub(crate) use background::block_on;
pub use client::{Client, ClientOptions};
pub(crate) use connection::random;
pub use contact::Outage;
pub(crate) use dial::is_loopback;
pub use heartbeat::Heartbeat;
pub(crate) use local::local;
pub(crate) use neighbours::process_space;
pub use options::ServerOptions;
pub use server::Server;
pub(crate) use server::{Deaths, Elector, Seat};
