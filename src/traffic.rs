//! What a buffer or communicator has moved, in rows and bytes, and how long it has waited for each rank.

use std::fmt;
use std::time::Duration;

use crate::sys;

/// What a buffer or communicator has moved since it was created, to and from this rank itself too:
/// [`EpBuffer::traffic`](crate::EpBuffer::traffic), [`PrefillBuffer::traffic`](crate::prefill::PrefillBuffer::traffic),
/// [`Comm::traffic`](crate::Comm::traffic). Bytes are those of rows with their scales, of answers, and of the messages
/// of collectives, sends and receives; without headers, counts and signal words. The feature `metrics` exports all of
/// it as counters, see the [crate's documentation](crate#spans-and-metrics).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Traffic {
    /// Operations that have ended, complete or degraded: dispatches and combines, each whole; of a communicator,
    /// collectives, sends and receives.
    pub operations: u64,
    /// Rows of dispatch: one for each token and rank that the token goes to.
    pub rows_sent: u64,
    /// Rows of dispatch received.
    pub rows_received: u64,
    /// Rows that combine has sent as answers: one for each received row, or with ordered combine one for each of its
    /// experts here.
    pub rows_answered: u64,
    /// Bytes to all ranks.
    pub bytes_sent: u64,
    /// Bytes from all ranks.
    pub bytes_received: u64,
    /// Of a communicator on a GPU: how often copy engines have moved the bytes of an operation, in replays of graphs
    /// too; see [`CommConfig::copy_engines_from`](crate::CommConfig::copy_engines_from).
    pub operations_copied: u64,
    /// The part of each rank, indexed by rank.
    pub peers: Vec<PeerTraffic>,
}

/// The part of one rank in a [`Traffic`]. The way to it is [`EpBuffer::path`](crate::EpBuffer::path) and its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PeerTraffic {
    /// Bytes to it.
    pub bytes_sent: u64,
    /// Bytes from it.
    pub bytes_received: u64,
    /// How long operations could not continue without it; 0 where that is not counted: see the
    /// [crate's documentation](crate#spans-and-metrics).
    pub waited: Duration,
}

impl Traffic {
    pub(crate) fn from_c(traffic: &sys::epw_traffic, peers: &[sys::epw_peer_traffic]) -> Self {
        let &sys::epw_traffic {
            operations,
            rows_sent,
            rows_received,
            rows_answered,
            bytes_sent,
            bytes_received,
            operations_copied,
            ..
        } = traffic;
        let peers = peers.iter().map(|peer| PeerTraffic {
            bytes_sent: peer.bytes_sent,
            bytes_received: peer.bytes_received,
            waited: Duration::from_nanos(peer.wait_ns),
        });
        let peers = peers.collect();
        Self {
            operations,
            rows_sent,
            rows_received,
            rows_answered,
            bytes_sent,
            bytes_received,
            operations_copied,
            peers,
        }
    }
}

/// One line: `96 operations; sent 512 rows, 7340032 bytes; received 500 rows, 7168000 bytes; answered 500 rows`.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operations,
            rows_sent,
            rows_received,
            rows_answered,
            bytes_sent,
            bytes_received,
            operations_copied: _,
            peers: _,
        } = self;
        write!(
            f,
            "{operations} operations; sent {rows_sent} rows, {bytes_sent} bytes; received {rows_received} rows, \
             {bytes_received} bytes; answered {rows_answered} rows"
        )
    }
}

/// `sent 4096 bytes, received 8192 bytes, waited 1.5ms`.
impl fmt::Display for PeerTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes_sent, bytes_received, waited } = self;
        write!(f, "sent {bytes_sent} bytes, received {bytes_received} bytes, waited {waited:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_prints_as_one_line() {
        let traffic = Traffic { operations: 96, rows_sent: 512, bytes_sent: 4096, ..Traffic::default() };
        assert_eq!(
            traffic.to_string(),
            "96 operations; sent 512 rows, 4096 bytes; received 0 rows, 0 bytes; answered 0 rows"
        );
        let peer = PeerTraffic { bytes_sent: 1, bytes_received: 2, waited: Duration::from_micros(1500) };
        assert_eq!(peer.to_string(), "sent 1 bytes, received 2 bytes, waited 1.5ms");
    }
}
