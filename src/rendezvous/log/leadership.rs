//! The leader, as voters know it.

use std::time::Duration;

use openraft::ServerState;

use super::types::{Metrics, Voter};

/// Who leads, as far as a voter knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// A term has at most one leader.
    pub(crate) term: u64,
    /// The last one that was heard in this term, dead or alive.
    pub(crate) leader: Option<Voter>,
    /// This voter leads: all that was committed before is applied here, and a majority has answered recently.
    pub(crate) leads: bool,
}

impl Leadership {
    pub(super) fn of(metrics: &Metrics, lease: Duration) -> Self {
        let term = metrics.current_term;
        let leader = metrics.current_leader.and_then(|id| voter(metrics, id));
        // An entry of the own term comes after all that was committed before it.
        let current = metrics.last_applied.is_some_and(|last| last.leader_id.term == term);
        let answered = metrics.millis_since_quorum_ack.is_some_and(|ms| Duration::from_millis(ms) < lease);
        Self { term, leader, leads: metrics.state == ServerState::Leader && current && answered }
    }
}

/// The voter with this id, or the learner that is becoming one.
pub(super) fn voter(metrics: &Metrics, id: u128) -> Option<Voter> {
    let address = metrics.membership_config.membership().get_node(&id)?;
    Some(Voter { id, address: address.clone() })
}
