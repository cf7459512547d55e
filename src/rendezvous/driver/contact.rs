//! How a client stands with the server of its run.

use std::time::Instant;

use crate::rendezvous::wire::Host;

/// Whom a client is connected with, or since when with nobody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contact {
    /// The member that serves the run, or served it last; `None` where a server by itself does.
    pub(super) server: Option<Host>,
    pub(crate) outage: Option<Outage>,
}

impl Contact {
    /// The member that serves the run, if one does; none during an outage.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.server.as_ref().filter(|_| self.outage.is_none())
    }
}

/// The server of the run cannot be reached. Operations go on; changes of the membership wait until it can be again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// When the connection was lost.
    pub since: Instant,
    /// How that was noticed.
    pub detail: String,
    /// Nobody looks for a server any more: the run has ended, or goes on without this member.
    pub is_final: bool,
}

impl Outage {
    pub(super) fn new(since: Instant, detail: &str, is_final: bool) -> Self {
        Self { since, detail: detail.to_owned(), is_final }
    }
}
