//! What newcomers export for members, while an answer is pending; see [`meet`](super::meet).

use std::time::Duration;

use crate::rendezvous::call::Call;
use crate::rendezvous::codec::{Blob, wire};
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::rounds::Outcome;

/// Introductions that wait for the answer of a member.
#[derive(Debug, Default)]
pub(super) struct Introductions {
    pub(super) last: u64,
    pub(super) waiting: Vec<Waiting>,
}
wire!(struct Introductions { last, waiting });

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) call: Call,
    pub(super) newcomer: u32,
    pub(super) peer: u32,
    /// What the newcomer exports for it.
    pub(super) blobs: Vec<Blob>,
    pub(super) began: Duration,
    pub(super) until: Duration,
}
wire!(struct Waiting { ticket, call, newcomer, peer, blobs, began, until });

impl Introductions {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// Ends those that nobody has answered in time.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Outcome> {
        let late = self.waiting.extract_if(.., |waiting| waiting.until <= now);
        late.map(|Waiting { call, peer, began, until, .. }| {
            let missing = Box::new([peer].into_iter().collect());
            let (elapsed, deadline) = (now - began, until - began);
            (call, Err(BootstrapError::Timeout { op: op(), elapsed, deadline, missing }))
        })
        .collect()
    }

    /// Ends those that wait for a rank that is gone, and forgets those from it.
    pub(super) fn lose(&mut self, rank: u32, host: &str, pid: u32) -> Vec<Outcome> {
        self.waiting.retain(|waiting| waiting.newcomer != rank);
        let lost = self.waiting.extract_if(.., |waiting| waiting.peer == rank);
        lost.map(|waiting| {
            (waiting.call, Err(BootstrapError::PeerLost { op: op(), rank, host: host.to_owned(), pid }))
        })
        .collect()
    }

    /// Whether this is a possible state for a run of `world` ranks.
    pub(super) fn can_be(&self, world: u32) -> bool {
        let known = |waiting: &Waiting| waiting.newcomer < world && waiting.peer < world;
        let all = |which: &dyn Fn(&Waiting) -> bool| self.waiting.iter().all(which);
        all(&known) && all(&|waiting| waiting.began <= waiting.until && waiting.ticket <= self.last)
    }
}

pub(super) fn op() -> String {
    "introduce a newcomer".to_owned()
}
