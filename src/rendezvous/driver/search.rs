//! The search for whoever serves the run, once a client has lost its connection.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dial::{Credentials, Heard, Open, dial, is_refused};
use crate::mask::Mask;
use crate::rendezvous::wire::Host;

/// Where other connections come from, once the first is lost.
pub(super) struct Ways {
    pub(super) addresses: Vec<String>,
    /// Those that can take over.
    pub(super) servers: Vec<Host>,
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
        let others = self.servers.iter().map(|host| &host.address);
        let others = others.filter(|address| !self.addresses.contains(address));
        self.addresses.iter().chain(others).cloned().collect()
    }

    /// The members whose servers do not answer `search`, where those that do are too few to elect one. `host`: the last that served,
    /// which is the only one where no others are known.
    pub(super) fn missing(&self, search: &Search, host: Option<&Host>) -> Option<Mask> {
        let hosts =
            if self.servers.is_empty() { host.into_iter().collect() } else { Vec::from_iter(&self.servers) };
        let silent = hosts.iter().filter(|host| !search.heard.contains(&host.address));
        let missing: Mask = silent.map(|host| host.rank).collect();
        (!hosts.is_empty() && 2 * missing.len() >= hosts.len()).then_some(missing)
    }
}

/// How long one search for the server goes on before it begins again.
const ROUND: Duration = Duration::from_secs(60);

/// A search that goes on until a server is found, and ends with this.
pub(super) struct Search {
    found: mpsc::Receiver<Found>,
    heard: Heard,
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
        let heard = Heard::default();
        let hears = heard.clone();
        task.spawn(async move {
            // A server listens for as long as its member lives. That it has closed the connection alone says little.
            if let Some(host) = closed
                && is_refused(&host.address).await
            {
                let _ = find.send(Found::Ended(host)).await;
            }
            loop {
                // What no other try would change here may change with the server.
                match dial(&addresses, &credentials, ROUND, &hears).await {
                    Ok(open) => return drop(find.send(Found::Open(open)).await),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        Self { found, heard, _task: task }
    }

    /// One that finds nothing.
    pub(super) fn none() -> Self {
        Self { found: mpsc::channel(1).1, heard: Heard::default(), _task: JoinSet::new() }
    }

    /// May be cancelled.
    pub(super) async fn next(&mut self) -> Found {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}
