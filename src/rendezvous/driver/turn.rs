//! What a ledger asks its server to do.

#[cfg(feature = "succession")]
use tokio::time::Instant;

use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::machine::Action;
#[cfg(feature = "succession")]
use crate::rendezvous::machine::SessionId;
#[cfg(feature = "succession")]
use crate::rendezvous::wire::Host;

/// What to do next.
pub(super) enum Turn {
    /// Carry out what followed from the events recorded here.
    Do(Action),
    /// Nothing can be recorded any more.
    Fail(BootstrapError),
    /// This server leads from now on.
    #[cfg(feature = "succession")]
    Lead {
        /// The member whose server led before, and when that was heard last, if that is meaningful.
        former: Option<(SessionId, Instant)>,
    },
    /// Another server leads, at this address if known.
    #[cfg(feature = "succession")]
    Follow { leader: Option<String> },
    /// These servers can take over.
    #[cfg(feature = "succession")]
    Servers { hosts: Vec<Host> },
}
