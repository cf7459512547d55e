//! What a buffer has moved, in rows and bytes, and how long it has waited for each rank.

use std::time::Duration;

use crate::sys;

/// What a buffer on the host has moved since it was created; see [`EpBuffer::traffic`](crate::EpBuffer::traffic). Rows
/// to and from this rank itself count too. The feature `metrics` exports all of it as counters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Traffic {
    /// Rows of dispatch: one for each token and rank that the token goes to.
    pub rows_sent: u64,
    /// Rows of dispatch received.
    pub rows_received: u64,
    /// Rows that combine has sent as answers: one for each received row, or with ordered combine one for each of its
    /// experts here.
    pub rows_answered: u64,
    /// Bytes of rows with their scales, and of answers; without headers, counts and signal words.
    pub bytes_sent: u64,
    /// Bytes of received rows with their scales.
    pub bytes_received: u64,
    /// How long operations have waited for each rank, indexed by rank.
    pub waited: Vec<Duration>,
}

impl Traffic {
    pub(crate) fn from_c(traffic: &sys::epw_traffic, wait_ns: &[u64]) -> Self {
        let &sys::epw_traffic { rows_sent, rows_received, rows_answered, bytes_sent, bytes_received, .. } =
            traffic;
        let waited = wait_ns.iter().map(|ns| Duration::from_nanos(*ns)).collect();
        Self { rows_sent, rows_received, rows_answered, bytes_sent, bytes_received, waited }
    }
}
