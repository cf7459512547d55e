//! The state of a client's connection with the server of its run.

use std::fmt;
use std::time::Instant;

use crate::rendezvous::wire::Host;

/// Which server a client is connected with, or since when it has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contact {
    /// The member that serves the run, or served it last; `None` if a separate server does.
    pub(super) server: Option<Host>,
    pub(crate) outage: Option<Outage>,
}

impl Contact {
    /// The member that serves the run, if a member does; none during an outage.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.server.as_ref().filter(|_| self.outage.is_none())
    }
}

/// The server of the run cannot be reached. Operations continue; changes of the membership wait until it can be reached
/// again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Outage {
    /// When the connection was lost.
    pub since: Instant,
    /// How that was noticed.
    pub detail: String,
    /// No more attempts are made to reach a server: the run has ended, or continues without this member.
    pub is_final: bool,
}

impl Outage {
    pub(super) fn new(since: Instant, detail: &str, is_final: bool) -> Self {
        Self { since, detail: detail.to_owned(), is_final }
    }
}

/// One line: `no server for 1.2 s (connection reset)`, or `no server for good for 1.2 s (...)` if it is final.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { since, detail, is_final } = self;
        let ever = if *is_final { " for good" } else { "" };
        let seconds = since.elapsed().as_secs_f64();
        // Keep to one line, whatever the operating system's text contains.
        write!(f, "no server{ever} for {seconds:.1} s ({})", detail.replace(['\n', '\r'], " "))
    }
}
