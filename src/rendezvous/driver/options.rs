//! What a server is told.

use std::path::PathBuf;
use std::time::Duration;

use super::heartbeat::Heartbeat;
use crate::env::Token;
use crate::names::setters;

/// What a server serves, and within which bounds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Name of the run; members must give the same.
    pub run_id: String,
    /// Number of ranks, 1 to 1024.
    pub world: u32,
    /// The run begins when the ranks below this are there, 1 to `world`. The others are places to grow into.
    pub initial: u32,
    /// The secret of the run; needed to bind any address but loopback ones.
    pub token: Option<Token>,
    /// Longest time from the first join until all ranks are there.
    pub join_deadline: Duration,
    /// Signs of life and the handshake.
    pub heartbeat: Heartbeat,
    /// A file in which the run is kept: a server that is started with it again goes on where the former one has ended, and members
    /// come back to it. What is answered is on disk before. One server at a time uses it.
    pub state: Option<PathBuf>,
    /// Connections that may be in the handshake at a time; more wait to be accepted.
    pub max_unauthenticated: usize,
    /// Connections past the handshake: members and clients of the store.
    pub max_connections: usize,
}

setters!(ServerOptions {
    run_id: String,
    world: u32,
    initial: u32,
    token: Option<Token>,
    join_deadline: Duration,
    heartbeat: Heartbeat,
    state: Option<PathBuf>,
    max_unauthenticated: usize,
    max_connections: usize,
});

impl ServerOptions {
    /// A run of `world` ranks: no token, 120 s to come together, 64 handshakes at a time, four connections a rank.
    pub fn new(run_id: impl Into<String>, world: u32) -> Self {
        Self {
            run_id: run_id.into(),
            world,
            initial: world,
            token: None,
            join_deadline: Duration::from_secs(120),
            heartbeat: Heartbeat::default(),
            state: None,
            max_unauthenticated: 64,
            max_connections: 64 + 4 * world as usize,
        }
    }
}
