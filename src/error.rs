//! Errors, each with the operation, the rank, the peer concerned and what to do about it.
//!
//! The text of an error of this crate contains all of that in one line, including what the system reported, because
//! programs often show no more than the text. `{:?}` is the same behind the variant's name. So errors that only wrap
//! others are transparent, and none has a `source` that its text already contains.

use std::fmt;

use crate::names::readable;

/// The result type of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where and why a call of the data plane was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Failure {
    /// The operation, for example `dispatch`.
    pub operation: String,
    /// This rank, if known.
    pub rank: Option<u32>,
    /// The peer concerned, if any.
    pub peer: Option<u32>,
    /// What was found, which limit it violates, and what to do.
    pub text: String,
}

impl Failure {
    pub(crate) fn new(operation: &str, rank: u32, text: impl Into<String>) -> Self {
        Self { operation: operation.into(), rank: Some(rank), peer: None, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(rank) = self.rank {
            write!(f, ": rank {rank}")?;
        }
        if let Some(peer) = self.peer {
            write!(f, ": peer {peer}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Errors of groups and buffers. A refused call has no effect.
///
/// A rank that dies or falls silent is not an error but an [`Outcome`](crate::Outcome): the operation ends with what
/// has arrived.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is wrong.
    #[error("{0}")]
    Invalid(Failure),
    /// A size exceeds a limit of the plan or of the library.
    #[error("{0}")]
    Limit(Failure),
    /// Not possible now: lane held, handle consumed, no membership yet.
    #[error("{0}")]
    State(Failure),
    /// The system has no memory left.
    #[error("{0}")]
    NoMemory(Failure),
    /// An operating system call failed.
    #[error("{0}")]
    System(Failure),
    /// No permitted path leads to the peer.
    #[error("{0}")]
    NoPath(Failure),
    /// The peer's configuration or version differs.
    #[error("{0}")]
    Mismatch(Failure),
    /// The rank still belongs to another, living incarnation.
    #[error("{0}")]
    Fenced(Failure),
    /// A bounded wait outside dispatch and combine expired.
    #[error("{0}")]
    Timeout(Failure),
    /// The peer refused or has ended.
    #[error("{0}")]
    Peer(Failure),
    /// The ranks could not meet or agree.
    #[error(transparent)]
    Bootstrap(Box<crate::rendezvous::BootstrapError>),
    /// The launcher's variables are inconsistent.
    #[error(transparent)]
    Launch(#[from] crate::launch::LaunchError),
}

readable!(Error {
    Invalid, Limit, State, NoMemory, System, NoPath, Mismatch, Fenced, Timeout, Peer; Bootstrap, Launch
});

impl From<crate::rendezvous::BootstrapError> for Error {
    fn from(error: crate::rendezvous::BootstrapError) -> Self {
        Self::Bootstrap(Box::new(error))
    }
}

/// Of a reference to an error, that to its place and reason.
macro_rules! failure_of {
    ($error:expr) => {
        match $error {
            Self::Invalid(f)
            | Self::Limit(f)
            | Self::State(f)
            | Self::NoMemory(f)
            | Self::System(f)
            | Self::NoPath(f)
            | Self::Mismatch(f)
            | Self::Fenced(f)
            | Self::Timeout(f)
            | Self::Peer(f) => Some(f),
            Self::Bootstrap(_) | Self::Launch(_) => None,
        }
    };
}

impl Error {
    /// The place and reason of an error of the data plane; `None` for errors of the bootstrap and the launch.
    pub fn failure(&self) -> Option<&Failure> {
        failure_of!(self)
    }

    /// An error of a call of a communicator's subset, whose ranks are these of the communicator, as one of `op` of the
    /// communicator.
    pub(crate) fn renumbered(mut self, op: &str, ranks: &[u32]) -> Self {
        if let Some(f) = failure_of!(&mut self).filter(|f| f.operation != op) {
            let place = |index: u32| ranks.get(index as usize).copied();
            (f.rank, f.peer) = (f.rank.and_then(place), f.peer.and_then(place));
            f.text = format!("{}: {}", f.operation, f.text);
            f.operation = op.to_owned();
        }
        self
    }

    /// Whether a bounded wait expired, either in the data plane or for the group or its server. The same call may
    /// succeed later.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::Bootstrap(error) => error.is_timeout(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
