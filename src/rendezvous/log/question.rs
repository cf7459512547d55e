//! What voters ask each other, and how it is encoded in a frame.
//!
//! Decoding is total. openraft asserts what a correct sender guarantees, so it must not be passed anything else: fields
//! are valid once decoded, [`Append::is_sound`] and [`Install::is_sound`] check whether they fit each other, and
//! whether they fit the receiver's state is checked where it answers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use openraft::{CommittedLeaderId, EntryPayload, LeaderId};

use super::types::{Ballot, Entry, LogId, MAX_SNAPSHOT_BYTES, MAX_VOTERS, Members, Record};
use crate::rendezvous::codec::{Blob, Reader, Wire, WireError, wire};

/// A question from one voter to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    /// The voter it is meant for: a process with another id by now must not answer.
    pub(crate) to: u128,
    pub(crate) body: Body,
}
wire!(struct Question { to, body });
impl Eq for Question {}

/// The question itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    /// From a leader: append these entries. Without entries it is a heartbeat.
    Append { append: Append },
    /// From a candidate: a request for this voter's vote.
    Vote { ballot: Ballot, last: Option<LogId> },
    /// From a leader: take over a part of a snapshot.
    Install { install: Install },
}
wire!(enum Body { 1 => Append { append }, 2 => Vote { ballot, last }, 3 => Install { install } });

impl Body {
    /// The voter that asks.
    pub(super) fn asker(&self) -> Option<u128> {
        let (Self::Append { append: Append { ballot, .. } }
        | Self::Vote { ballot, .. }
        | Self::Install { install: Install { ballot, .. } }) = self;
        ballot.leader_id.voted_for
    }
}

/// Consecutive entries.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Append {
    pub(crate) ballot: Ballot,
    /// The entry before them.
    pub(crate) prev: Option<LogId>,
    pub(crate) entries: Vec<Entry>,
    /// The last one that the leader knows to be committed.
    pub(crate) committed: Option<LogId>,
}
wire!(struct Append { ballot, prev, entries, committed });

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Install {
    pub(crate) ballot: Ballot,
    /// The last entry that the snapshot covers.
    pub(crate) last: LogId,
    /// The voters at that point, and the entry that made them voters.
    pub(crate) members_at: Option<LogId>,
    pub(crate) members: Members,
    /// Bytes of the whole snapshot.
    pub(crate) total: u64,
    /// Offset of this part.
    pub(crate) offset: u64,
    pub(crate) data: Blob,
}
wire!(struct Install { ballot, last, members_at, members, total, offset, data });

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This voter does not answer, or not now.
    Refused { why: String },
    /// The entries are in the log.
    Appended {},
    /// The entry before them is not in the log.
    Conflict {},
    /// There has been a later ballot.
    Outvoted { ballot: Ballot },
    /// The answer to a candidate.
    Voted { ballot: Ballot, granted: bool, last: Option<LogId> },
    /// How many bytes of the snapshot have arrived; once all have, it is installed.
    Installed { bytes: u64 },
}
wire!(enum Answer {
    1 => Refused { why },
    2 => Appended {},
    3 => Conflict {},
    4 => Outvoted { ballot },
    5 => Voted { ballot, granted, last },
    6 => Installed { bytes },
});

impl Answer {
    pub(crate) fn refused(why: &str) -> Self {
        Self::Refused { why: why.to_owned() }
    }
}

/// Terms and indices stay below this, so that one can be added to them.
const LIMIT: u64 = 1 << 62;

fn number(from: &mut Reader<'_>) -> Result<u64, WireError> {
    ensure(u64::get(from)?, |number| *number < LIMIT, "a term or an index")
}

fn ensure<T>(value: T, holds: impl FnOnce(&T) -> bool, what: &'static str) -> Result<T, WireError> {
    if holds(&value) { Ok(value) } else { Err(WireError::Invalid { what }) }
}

/// The id of the entry with this index, made in this term.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, 0), index)
}

/// Whether one log can contain both.
pub(super) fn fit(a: LogId, b: LogId) -> bool {
    match a.leader_id.cmp(&b.leader_id) {
        Ordering::Equal => true,
        order => a.index.cmp(&b.index) == order,
    }
}

impl Wire for LogId {
    const LEAST: usize = 16;
    fn put(&self, out: &mut Vec<u8>) {
        self.leader_id.term.put(out);
        self.index.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(log_id(number(from)?, number(from)?))
    }
}

impl Wire for Ballot {
    const LEAST: usize = 10;
    fn put(&self, out: &mut Vec<u8>) {
        self.leader_id.term.put(out);
        self.leader_id.voted_for.put(out);
        self.committed.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let leader_id = LeaderId { term: number(from)?, voted_for: Wire::get(from)? };
        let ballot = Self { leader_id, committed: bool::get(from)? };
        ensure(ballot, |it| it.leader_id.voted_for.is_some() || !it.committed, "a ballot")
    }
}

/// One or two sets of voters, of which each decides by a majority; others only listen.
impl Wire for Members {
    const LEAST: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        let configs = self.get_joint_config().iter();
        configs.map(|voters| voters.iter().copied().collect()).collect::<Vec<Vec<u128>>>().put(out);
        self.nodes().map(|(id, address)| (*id, address.clone())).collect::<Vec<_>>().put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let configs: Vec<Vec<u128>> = Wire::get(from)?;
        let configs: Vec<BTreeSet<u128>> =
            configs.into_iter().map(|voters| voters.into_iter().collect()).collect();
        let nodes: BTreeMap<u128, String> = Vec::get(from)?.into_iter().collect();
        let sizes = |voters: &BTreeSet<u128>| (1..=MAX_VOTERS).contains(&voters.len());
        let known = |voters: &BTreeSet<u128>| voters.iter().all(|id| nodes.contains_key(id));
        let sound =
            (1..=2).contains(&configs.len()) && configs.iter().all(|voters| sizes(voters) && known(voters));
        ensure(Self::new(configs, nodes), |_| sound, "the voters")
    }
}

impl Wire for Entry {
    const LEAST: usize = 18;
    fn put(&self, out: &mut Vec<u8>) {
        self.log_id.put(out);
        match &self.payload {
            EntryPayload::Blank => 0u16.put(out),
            EntryPayload::Normal(record) => {
                1u16.put(out);
                record.put(out);
            }
            EntryPayload::Membership(members) => {
                2u16.put(out);
                members.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let log_id = LogId::get(from)?;
        let payload = match u16::get(from)? {
            0 => EntryPayload::Blank,
            1 => EntryPayload::Normal(Record::get(from)?),
            2 => EntryPayload::Membership(Members::get(from)?),
            _ => return Err(WireError::Invalid { what: "an entry" }),
        };
        Ok(Self { log_id, payload })
    }
}

impl Append {
    /// Whether this can be part of the log of an elected leader: indices without a gap, terms that never decrease. It
    /// is not if a deposed leader reads its log while that is being overwritten.
    pub(super) fn is_sound(&self) -> bool {
        let in_order = |before: &Option<LogId>, next: &LogId| match before {
            None => next.index == 0,
            Some(before) => next.index == before.index + 1 && next.leader_id >= before.leader_id,
        };
        let mut before = self.prev;
        let follow = self.entries.iter().all(|entry| {
            let follows = in_order(&before, &entry.log_id);
            before = Some(entry.log_id);
            follows
        });
        let committed = self.committed.into_iter();
        let fits = committed.clone().all(|committed| self.ids().all(|id| fit(id, committed)));
        let past =
            before.into_iter().chain(committed).all(|id| id.leader_id.term <= self.ballot.leader_id.term);
        self.ballot.committed && follow && fits && past
    }

    /// The ids of all entries that the leader mentions.
    pub(super) fn ids(&self) -> impl Iterator<Item = LogId> {
        let entries = self.entries.iter().map(|entry| entry.log_id);
        self.prev.into_iter().chain(entries).chain(self.committed)
    }

    /// The last of these entries, or the one before them.
    pub(super) fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.log_id).or(self.prev)
    }
}

impl Install {
    pub(super) fn is_sound(&self) -> bool {
        let ends = self.offset.checked_add(self.data.0.len() as u64);
        self.ballot.committed
            && self.last.leader_id.term <= self.ballot.leader_id.term
            && self.members_at.is_none_or(|at| at.index <= self.last.index && fit(at, self.last))
            && self.total <= MAX_SNAPSHOT_BYTES as u64
            && ends.is_some_and(|ends| ends <= self.total)
    }
}
