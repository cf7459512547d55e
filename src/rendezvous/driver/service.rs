//! Who serves the run, as a server tells its guests.

use crate::rendezvous::wire::Host;

/// What a server does for the clients of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// It serves them.
    Serves {
        /// The member that the server belongs to, if it belongs to one.
        host: Option<Host>,
    },
    /// It refers them to the leader.
    #[cfg_attr(not(feature = "succession"), allow(dead_code, reason = "nobody else does"))]
    Refers {
        /// The address of the leader's server, if known.
        leader: Option<String>,
    },
}
