//! The options of a server.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::heartbeat::Heartbeat;
use crate::env::Token;
use crate::names::setters;

/// What a server serves, and within which limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Name of the run; members must state the same.
    pub run_id: String,
    /// Number of ranks, 1 to 1024.
    pub world: u32,
    /// The run begins when the ranks below this are there, 1 to `world`. The others are places to grow into.
    pub initial: u32,
    /// The secret of the run; required to bind any address but loopback.
    pub token: Option<Token>,
    /// Longest time from the first join until all ranks are there.
    pub join_deadline: Duration,
    /// Heartbeats and the handshake. The lease is that of the members
    /// ([`GroupOptions::heartbeat`](crate::group::GroupOptions::heartbeat)).
    pub heartbeat: Heartbeat,
    /// A file that keeps the run: a server started with it again continues where the former one ended, and members come
    /// back to it. Everything is on disk before it is answered. Only one server at a time may use the file.
    pub state: Option<PathBuf>,
    /// Connections in the handshake at the same time; more wait to be accepted.
    pub max_unauthenticated: usize,
    /// Connections after the handshake: members and clients of the store.
    pub max_connections: usize,
}

/// `run "llama" of 8 ranks, with a token`. The token itself does not appear.
impl fmt::Display for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_id, world, initial, token, state, .. } = self;
        write!(f, "run {run_id:?} of {world} ranks")?;
        if initial < world {
            write!(f, ", begins with {initial}")?;
        }
        write!(f, ", {} a token", if token.is_some() { "with" } else { "without" })?;
        state.as_ref().map_or(Ok(()), |path| write!(f, ", kept in {}", path.display()))
    }
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
    /// A run of `world` ranks: no token, 120 s to come together, 64 handshakes at a time, 64 connections and four
    /// more per rank.
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
