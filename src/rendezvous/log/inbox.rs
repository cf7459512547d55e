//! Questions of other voters.
//!
//! openraft judges ballots and entries. Before that, this module decides whether to pass a question to it at all: not
//! if it is meant for another copy, arrives while a leader is being heard, or contradicts what is known for certain.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use tokio::sync::watch;
use tokio::time::Instant;

use super::leadership::Leadership;
use super::question::{Answer, Append, Body, Install, Question, fit};
use super::storage::Storage;
use super::types::{Ballot, LogId, Raft, Snapshot, SnapshotMeta, StoredMembers};
use crate::rendezvous::codec::Blob;

/// What is known of the leader.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// When it was heard last.
    pub(crate) at: Option<Instant>,
    /// Its process has ended, and no leader has been heard since.
    pub(crate) gone: bool,
    /// Who has resigned as leader, and in which term. It may still send entries; they only show that it is alive.
    pub(crate) resigned: Option<(u64, u128)>,
    /// When a candidate last got this vote.
    voted: Option<Instant>,
    /// The last term in which somebody stood for election.
    pub(crate) stood: u64,
    /// The last term that had a leader, and that leader. A term never has two.
    leader: Option<(u64, u128)>,
    /// The last entry that this leader mentioned.
    last: Option<LogId>,
    /// Who led last, unless this voter has led since, and when anything last arrived from it, even an answer: a deposed
    /// leader says nothing unless asked.
    former: Option<((u64, u128), Instant)>,
}

impl Heard {
    /// Since when this voter has known of nobody who leads or may do so soon.
    pub(crate) fn quiet_since(&self) -> Option<Instant> {
        self.at.filter(|_| !self.gone).max(self.voted)
    }

    /// Something has arrived from this voter.
    pub(crate) fn sign_of(&mut self, voter: u128) {
        if let Some((former, at)) = &mut self.former
            && former.1 == voter
        {
            *at = Instant::now();
        }
    }

    /// Who led last and must be heard until another one leads, and since when it has been silent. None if it has
    /// resigned, because then it has no reason to send anything.
    pub(crate) fn former(&self) -> Option<(u128, Instant)> {
        let former = self.former.filter(|(former, _)| self.resigned != Some(*former));
        former.map(|((_, id), at)| (id, at))
    }

    /// This voter leads.
    pub(crate) fn lead(&mut self) {
        self.former = None;
    }
}

/// The parts of a snapshot so far.
#[derive(Debug)]
struct Incoming {
    of: (Ballot, LogId, u64),
    bytes: Vec<u8>,
}

pub(crate) struct Inbox {
    pub(crate) own: u128,
    pub(crate) raft: Raft,
    pub(crate) storage: Storage,
    pub(crate) leadership: watch::Receiver<Leadership>,
    /// While a leader has been heard within this time, nobody gets a vote.
    pub(crate) lease: Duration,
    pub(crate) heard: Arc<Mutex<Heard>>,
    incoming: tokio::sync::Mutex<Option<Incoming>>,
}

/// openraft has stopped.
fn failed(error: impl std::fmt::Display) -> Answer {
    Answer::refused(&error.to_string())
}

pub(crate) fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(crate) fn new(
        own: u128,
        raft: Raft,
        storage: Storage,
        leadership: watch::Receiver<Leadership>,
        lease: Duration,
        heard: Arc<Mutex<Heard>>,
    ) -> Self {
        Self { own, raft, storage, leadership, lease, heard, incoming: Default::default() }
    }

    pub(crate) async fn answer(&self, question: Question) -> Answer {
        if question.to != self.own {
            return Answer::refused("the question is for another copy");
        }
        if let Some(voter) = question.body.asker() {
            lock(&self.heard).sign_of(voter);
        }
        let answered = match question.body {
            Body::Append { append } if !append.is_sound() => {
                Err(Answer::refused("entries that no log can have"))
            }
            Body::Install { install } if !install.is_sound() => {
                Err(Answer::refused("a part that no snapshot can have"))
            }
            Body::Append { append } => self.append(append).await,
            Body::Vote { ballot, last } => self.vote(ballot, last).await,
            Body::Install { install } => self.install(install).await,
        };
        answered.unwrap_or_else(|refused| refused)
    }

    /// Checks that the sender can be the elected leader of its term, and that the term is not over.
    fn check_leader(&self, ballot: &Ballot) -> Result<(u64, u128), Answer> {
        let term = ballot.leader_id.term;
        let elected = ballot.leader_id.voted_for.filter(|leader| ballot.committed && *leader != self.own);
        let leader = (term, elected.ok_or_else(|| Answer::refused("a ballot that names no elected leader"))?);
        let own = self.leadership.borrow().clone();
        let known = own.leader.map(|leader| (own.term, leader.id));
        let mut heard = lock(&self.heard);
        let latest = heard.leader.max(known);
        if latest.is_some_and(|latest| latest.0 == term && latest != leader) {
            return Err(Answer::refused("a second leader in a term"));
        }
        if let Some((term, later)) = latest.filter(|latest| latest.0 > term) {
            return Err(Answer::Outvoted { ballot: Ballot::new_committed(term, later) });
        }
        if heard.leader != Some(leader) {
            (heard.leader, heard.last) = (Some(leader), None);
        }
        Ok(leader)
    }

    /// The leader of this ballot has been heard, unless there has been a later one.
    fn hear(&self, leader: (u64, u128)) {
        let mut heard = lock(&self.heard);
        if heard.leader == Some(leader) {
            let now = Instant::now();
            (heard.at, heard.former) = (Some(now), Some((leader, now)));
            heard.gone &= heard.resigned == Some(leader);
        }
    }

    /// Checks that these entries contradict neither committed ones nor others of the same leader.
    fn check_entries(&self, append: &Append, leader: (u64, u128)) -> Result<(), Answer> {
        if !append.ids().all(|id| self.fits_committed(id)) {
            return Err(Answer::refused("entries that differ from committed ones"));
        }
        let mut heard = lock(&self.heard);
        if heard.leader == Some(leader) {
            heard.last = heard.last.max(append.last());
            if heard.last.is_some_and(|last| !append.ids().all(|id| fit(id, last))) {
                return Err(Answer::refused("another log than before"));
            }
        }
        Ok(())
    }

    fn fits_committed(&self, id: LogId) -> bool {
        self.storage.committed().is_none_or(|committed| fit(id, committed))
    }

    async fn append(&self, append: Append) -> Result<Answer, Answer> {
        let leader = self.check_leader(&append.ballot)?;
        self.check_entries(&append, leader)?;
        let request = AppendEntriesRequest {
            vote: append.ballot,
            prev_log_id: append.prev,
            entries: append.entries,
            leader_commit: append.committed,
        };
        let appended = self.raft.append_entries(request).await.map_err(failed)?;
        if !matches!(appended, AppendEntriesResponse::HigherVote(_)) {
            self.hear(leader);
        }
        match appended {
            AppendEntriesResponse::Success => Ok(Answer::Appended {}),
            AppendEntriesResponse::Conflict => Ok(Answer::Conflict {}),
            AppendEntriesResponse::HigherVote(ballot) => Ok(Answer::Outvoted { ballot }),
            AppendEntriesResponse::PartialSuccess(_) => {
                Err(Answer::refused("entries that were accepted only in part"))
            }
        }
    }

    /// A voter that hears a leader, or leads, does not help others to depose it: their connection may be worse than its
    /// own.
    async fn vote(&self, ballot: Ballot, last: Option<LogId>) -> Result<Answer, Answer> {
        let candidate = ballot.leader_id.voted_for.filter(|candidate| *candidate != self.own);
        if ballot.committed || candidate.is_none() {
            return Err(Answer::refused("a ballot that names no candidate"));
        }
        let heard = {
            let heard = lock(&self.heard);
            !heard.gone && heard.at.is_some_and(|at| at.elapsed() < self.lease)
        };
        if heard || self.leadership.borrow().leads {
            return Err(Answer::refused("there is a leader"));
        }
        {
            let mut heard = lock(&self.heard);
            heard.stood = heard.stood.max(ballot.leader_id.term);
        }
        let request = VoteRequest { vote: ballot, last_log_id: last };
        let voted = self.raft.vote(request).await.map_err(failed)?;
        if voted.vote_granted {
            lock(&self.heard).voted = Some(Instant::now());
        }
        Ok(Answer::Voted { ballot: voted.vote, granted: voted.vote_granted, last: voted.last_log_id })
    }

    async fn install(&self, install: Install) -> Result<Answer, Answer> {
        let leader = self.check_leader(&install.ballot)?;
        if !self.fits_committed(install.last) {
            return Err(Answer::refused("a snapshot of entries that differ from committed ones"));
        }
        let mut incoming = self.incoming.lock().await;
        let current = self.raft.with_raft_state(|state| *state.vote_ref()).await;
        let current = current.map_err(failed)?;
        if current.leader_id.term > leader.0 {
            return Ok(Answer::Outvoted { ballot: current });
        }
        self.hear(leader);
        let of = (install.ballot, install.last, install.total);
        if install.offset == 0 {
            *incoming = Some(Incoming { of, bytes: Vec::new() });
        }
        let Some(parts) = incoming.as_mut().filter(|parts| parts.of == of) else {
            return Ok(Answer::Installed { bytes: 0 });
        };
        if parts.bytes.len() as u64 == install.offset {
            parts.bytes.extend_from_slice(&install.data.0);
        }
        let bytes = parts.bytes.len() as u64;
        if bytes < install.total {
            return Ok(Answer::Installed { bytes });
        }
        let Some(Incoming { bytes: data, .. }) = incoming.take() else {
            return Ok(Answer::Installed { bytes: 0 });
        };
        let snapshot = Snapshot {
            meta: SnapshotMeta {
                last_log_id: Some(install.last),
                last_membership: StoredMembers::new(install.members_at, install.members),
                snapshot_id: install.last.to_string(),
            },
            snapshot: Box::new(Arc::new(Blob(data))),
        };
        let installed = self.raft.install_full_snapshot(install.ballot, snapshot).await;
        let ballot = installed.map_err(failed)?.vote;
        self.hear(leader);
        Ok(if ballot == install.ballot { Answer::Installed { bytes } } else { Answer::Outvoted { ballot } })
    }
}
