//! Sockets and timers around the [machine](super::machine): a server for a run, and clients of it.
//!
//! Both live on threads of their own, each with a small tokio runtime, so that they do not depend on the runtime of
//! the program, if it has one, and dropping a handle never waits.

mod background;
mod client;
mod connection;
mod hub;
mod local;
mod options;
mod server;

pub(crate) use background::block_on;
pub use client::{Client, ClientOptions};
pub(crate) use connection::random;
pub(crate) use local::local;
pub use options::ServerOptions;
pub use server::Server;

use std::time::Duration;

/// How often and how long the two sides of a connection listen for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time between two signs of life.
    pub interval: Duration,
    /// Silence after which the other side is suspect.
    pub lease: Duration,
    /// Time that a new connection has to show who it is.
    pub handshake: Duration,
}

/// A sign of life each second, suspicion after 5 s, 5 s for the handshake.
impl Default for Heartbeat {
    fn default() -> Self {
        let interval = Duration::from_secs(1);
        Self { interval, lease: Duration::from_secs(5), handshake: Duration::from_secs(5) }
    }
}
