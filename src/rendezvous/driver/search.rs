//! The search for the server of the run, once a client has lost its connection.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dial::{Credentials, Open, Silent, dial, is_refused};
use crate::mask::Mask;
use crate::rendezvous::wire::Host;

/// How to make other connections once the first is lost.
pub(super) struct Ways {
    pub(super) addresses: Vec<String>,
    /// The servers that can take over.
    pub(super) servers: Vec<Host>,
    pub(super) credentials: Credentials,
}

impl Ways {
    /// The address to try first from now on.
    pub(super) fn prefer(&mut self, address: String) {
        self.addresses.retain(|known| *known != address);
        self.addresses.insert(0, address);
    }

    /// All addresses where the server may be.
    fn all(&self) -> Vec<String> {
        let others = self.servers.iter().map(|host| &host.address);
        let others = others.filter(|address| !self.addresses.contains(address));
        self.addresses.iter().chain(others).cloned().collect()
    }

    /// The members whose servers have not answered `search`, if the others are too few to elect a leader. `host`: the
    /// last that served, which is the only one if no others are known.
    pub(super) fn missing(&self, search: &Search, host: Option<&Host>) -> Option<Mask> {
        let mut hosts: Vec<&Host> = self.servers.iter().collect();
        if hosts.is_empty() {
            hosts.extend(host);
        }
        let silent = hosts.iter().filter(|host| search.silent.contains(&host.address));
        let missing: Vec<u32> = silent.map(|host| host.rank).collect();
        let elects = 2 * (hosts.len() - missing.len()) > hosts.len();
        (!missing.is_empty() && !elects).then(|| missing.into_iter().collect())
    }
}

/// How long one search for the server lasts before it starts again.
const ROUND: Duration = Duration::from_secs(60);

/// A search that continues until a server is found; dropping this ends it.
pub(super) struct Search {
    found: mpsc::Receiver<Found>,
    silent: Silent,
    _task: JoinSet<()>,
}

/// The result of a search.
pub(super) enum Found {
    /// The process of this member, which served the run, has ended.
    Ended(Host),
    Open(Open),
}

impl Search {
    /// `closed`: the member to which the other side belongs, if that side closed the connection.
    pub(super) fn begin(ways: &Ways, closed: Option<Host>) -> Self {
        let (find, found) = mpsc::channel(2);
        let (addresses, credentials) = (ways.all(), ways.credentials.clone());
        let mut task = JoinSet::new();
        let silent = Silent::default();
        let notes = silent.clone();
        task.spawn(async move {
            // A server listens for as long as its member lives. A closed connection alone says little.
            if let Some(host) = closed
                && is_refused(&host.address).await
            {
                let _ = find.send(Found::Ended(host)).await;
            }
            loop {
                // Errors that are permanent for one server may not be for the next.
                match dial(&addresses, &credentials, ROUND, &notes).await {
                    Ok(open) => return drop(find.send(Found::Open(open)).await),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        Self { found, silent, _task: task }
    }

    /// A search that finds nothing.
    pub(super) fn none() -> Self {
        Self { found: mpsc::channel(1).1, silent: Silent::default(), _task: JoinSet::new() }
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Found {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::heartbeat::Heartbeat;
    use super::*;

    fn host(rank: u32) -> Host {
        Host { rank, member: u128::from(rank), address: format!("a{rank}") }
    }

    /// The ranks that an error names if those have not answered.
    fn missing(servers: &[u32], last: Option<u32>, silent: &[u32]) -> Option<String> {
        let credentials =
            Credentials { run_id: String::new(), token: None, session: 0, heartbeat: Heartbeat::default() };
        let servers = servers.iter().copied().map(host).collect();
        let ways = Ways { addresses: Vec::new(), servers, credentials };
        let search = Search::none();
        silent.iter().for_each(|rank| search.silent.add(&host(*rank).address));
        ways.missing(&search, last.map(host).as_ref()).map(|missing| missing.to_string())
    }

    #[test]
    fn those_who_do_not_answer_are_missing_once_the_others_are_too_few() {
        assert_eq!(missing(&[0, 1, 2], Some(0), &[]), None, "nobody has been asked yet");
        assert_eq!(missing(&[0, 1, 2], Some(0), &[0]), None);
        assert_eq!(missing(&[0, 1, 2], Some(0), &[0, 2]).as_deref(), Some("0,2"));
        assert_eq!(missing(&[], Some(1), &[1]).as_deref(), Some("1"), "the only one that votes");
        assert_eq!(missing(&[], Some(1), &[]), None);
        assert_eq!(missing(&[], None, &[1]), None, "a server by itself");
        // Two servers of one rank, while one takes the place of the other.
        assert_eq!(missing(&[0, 1, 1], Some(0), &[1]).as_deref(), Some("1"));
    }
}
