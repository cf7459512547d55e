//! Who serves the run, as a server tells its guests.

use crate::rendezvous::wire::Host;

/// What a server does for the clients of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// It serves them.
    Serves {
        /// The member that it belongs to, if it does.
        host: Option<Host>,
    },
    /// It sends them to whoever leads.
    #[cfg_attr(not(feature = "succession"), allow(dead_code, reason = "nobody else does"))]
    Refers {
        /// The address of its server, if that is known.
        leader: Option<String>,
    },
}
