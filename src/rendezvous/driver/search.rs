//! The search for whoever serves the run, once a client has lost its connection.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dial::{Credentials, Open, dial, is_refused};
use crate::rendezvous::wire::Host;

/// Where other connections come from, once the first is lost.
pub(super) struct Ways {
    pub(super) addresses: Vec<String>,
    /// Those that can take over.
    pub(super) servers: Vec<String>,
    pub(super) credentials: Credentials,
}

impl Ways {
    /// Whom to try first from now on.
    pub(super) fn prefer(&mut self, address: String) {
        self.addresses.retain(|known| *known != address);
        self.addresses.insert(0, address);
    }

    /// Where the server may be.
    fn all(&self) -> Vec<String> {
        let others = self.servers.iter().filter(|address| !self.addresses.contains(address));
        self.addresses.iter().chain(others).cloned().collect()
    }
}

/// How long one search for the server goes on before it begins again.
const ROUND: Duration = Duration::from_secs(60);

/// A search that goes on until a server is found, and ends with this.
pub(super) struct Search {
    found: mpsc::Receiver<Found>,
    _task: JoinSet<()>,
}

/// What it finds.
pub(super) enum Found {
    /// The process of this member, which served the run, has ended.
    Ended(Host),
    Open(Open),
}

impl Search {
    /// `closed`: the connection was closed by the other side, which belongs to this member.
    pub(super) fn begin(ways: &Ways, closed: Option<Host>) -> Self {
        let (find, found) = mpsc::channel(2);
        let (addresses, credentials) = (ways.all(), ways.credentials.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            // A server listens for as long as its member lives. That it has closed the connection alone says little.
            if let Some(host) = closed
                && is_refused(&host.address).await
            {
                let _ = find.send(Found::Ended(host)).await;
            }
            loop {
                // What no other try would change here may change with the server.
                match dial(&addresses, &credentials, ROUND).await {
                    Ok(open) => return drop(find.send(Found::Open(open)).await),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        Self { found, _task: task }
    }

    /// One that finds nothing.
    pub(super) fn none() -> Self {
        Self { found: mpsc::channel(1).1, _task: JoinSet::new() }
    }

    /// May be cancelled.
    pub(super) async fn next(&mut self) -> Found {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}
