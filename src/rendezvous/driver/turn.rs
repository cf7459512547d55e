//! What a ledger has its server do.

#[cfg(feature = "succession")]
use tokio::time::Instant;

use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::machine::Action;
#[cfg(feature = "succession")]
use crate::rendezvous::machine::SessionId;
#[cfg(feature = "succession")]
use crate::rendezvous::wire::Host;

/// What is to be done next.
pub(super) enum Turn {
    /// What followed from the events recorded here.
    Do(Action),
    /// Nothing can be recorded any more.
    Fail(BootstrapError),
    /// This server leads from now on.
    #[cfg(feature = "succession")]
    Lead {
        /// The member whose server led before, and when that was heard last, if that tells anything.
        former: Option<(SessionId, Instant)>,
    },
    /// Another one does, at this address if that is known.
    #[cfg(feature = "succession")]
    Follow { leader: Option<String> },
    /// These servers can take over.
    #[cfg(feature = "succession")]
    Servers { hosts: Vec<Host> },
}
