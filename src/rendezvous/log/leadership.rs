//! Who leads.

use std::time::Duration;

use openraft::ServerState;

use super::types::{Metrics, Voter};

/// Who leads, as far as a voter knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// A term has one leader at most.
    pub(crate) term: u64,
    /// The last one that was heard in it, dead or alive.
    pub(crate) leader: Option<Voter>,
    /// This voter does: all that was committed before is applied here, and a majority has answered lately.
    pub(crate) leads: bool,
}

impl Leadership {
    pub(super) fn of(metrics: &Metrics, lease: Duration) -> Self {
        let term = metrics.current_term;
        let leader = metrics.current_leader.and_then(|id| voter(metrics, id));
        // An entry of one's own term is behind all that was committed before it.
        let current = metrics.last_applied.is_some_and(|last| last.leader_id.term == term);
        let answered = metrics.millis_since_quorum_ack.is_some_and(|ms| Duration::from_millis(ms) < lease);
        Self { term, leader, leads: metrics.state == ServerState::Leader && current && answered }
    }
}

/// The voter, or whoever is becoming one, with this id.
pub(super) fn voter(metrics: &Metrics, id: u128) -> Option<Voter> {
    let address = metrics.membership_config.membership().get_node(&id)?;
    Some(Voter { id, address: address.clone() })
}
