//! Collective rounds by name: exchange, barrier, agreement on fields.
//!
//! A round begins with its first part and ends when every participant has contributed its own, or fails for all of them
//! alike: those whose part has arrived are told at once, the others when their part arrives, so that a late part is
//! never taken for the first part of a repetition.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::call::Call;
use super::codec::{Blob, Reader, Wire, WireError, wire};
use super::error::BootstrapError;
use super::wire::{Fields, MAX_BLOB_BYTES, MAX_FIELDS, MAX_TEXT_BYTES, Reply, Round, RoundKind};
use crate::mask::Mask;

/// The outcome of a call, for its caller.
pub(crate) type Outcome = (Call, Result<Reply, BootstrapError>);

/// Most bytes that the parts of open rounds hold together.
pub(crate) const MAX_HELD_BYTES: usize = 1 << 30;
/// Most rounds open at a time.
pub(crate) const MAX_OPEN_ROUNDS: usize = 4096;
/// Failed rounds that are remembered for the participants whose part has not arrived.
const MAX_FAILED: usize = 1024;

type Key = (String, Mask);

/// The open rounds of a run.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    open: BTreeMap<Key, Open>,
    failed: VecDeque<Failed>,
    held: usize,
}

/// The total size of the parts is not encoded but counted again.
impl Wire for Rounds {
    const LEAST: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        let Self { open, failed, held: _ } = self;
        open.put(out);
        failed.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let (open, failed): (BTreeMap<Key, Open>, _) = Wire::get(from)?;
        let held = open.values().map(Open::bytes).sum();
        Ok(Self { open, failed, held })
    }
}

#[derive(Debug)]
struct Open {
    op: String,
    started: Duration,
    deadline: Duration,
    parts: BTreeMap<u32, Part>,
}
wire!(struct Open { op, started, deadline, parts });

#[derive(Debug)]
struct Part {
    call: Call,
    kind: RoundKind,
}
wire!(struct Part { call, kind });

#[derive(Debug)]
struct Failed {
    key: Key,
    owed: Mask,
    error: BootstrapError,
}
wire!(struct Failed { key, owed, error });

impl Rounds {
    /// Takes `rank`'s part at time `now`. Returns the outcomes that follow, for this rank alone or for all.
    ///
    /// The caller has checked that all of `round.ranks` are alive; sizes and the caller's own place are checked here.
    pub(crate) fn post(
        &mut self,
        now: Duration,
        rank: u32,
        world: u32,
        call: Call,
        round: Round,
    ) -> Vec<Outcome> {
        let op = describe(&round);
        let bytes =
            match check(&op, rank, world, &round).and_then(|bytes| self.room(&op, bytes).map(|()| bytes)) {
                Ok(bytes) => bytes,
                Err(error) => return vec![(call, Err(error))],
            };
        let key = (round.tag, round.ranks);
        if let Some(error) = self.owed(&key, rank) {
            return vec![(call, Err(error))];
        }
        let open = self.open.entry(key.clone()).or_insert_with(|| Open {
            op,
            started: now,
            deadline: now + round.deadline,
            parts: BTreeMap::new(),
        });
        let mut outcomes = Vec::new();
        self.held += bytes;
        if let Some(former) = open.parts.insert(rank, Part { call, kind: round.kind }) {
            self.held -= bytes_of(&former.kind);
            let reason = "the same member began this round again; one call at a time".to_owned();
            outcomes.push((former.call, Err(BootstrapError::OutOfOrder { op: open.op.clone(), reason })));
        }
        if open.parts.len() == key.1.len()
            && let Some(open) = self.open.remove(&key)
        {
            self.held -= open.bytes();
            outcomes.extend(finish(open, world));
        }
        outcomes
    }

    /// Ends every round that waits for `rank`, which is gone.
    pub(crate) fn lose(&mut self, rank: u32, host: &str, pid: u32) -> Vec<Outcome> {
        self.fail(
            |key, _| key.1.contains(rank),
            |open, _| BootstrapError::PeerLost { op: open.op.clone(), rank, host: host.to_owned(), pid },
        )
    }

    /// Ends every round whose deadline is past.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Outcome> {
        self.fail(
            |_, open| open.deadline <= now,
            |open, missing| BootstrapError::Timeout {
                op: open.op.clone(),
                elapsed: now - open.started,
                deadline: open.deadline - open.started,
                missing: Box::new(missing),
            },
        )
    }

    /// Forgets what a former incarnation of `rank` would still have been told.
    pub(crate) fn replace(&mut self, rank: u32) {
        self.failed.iter_mut().for_each(|failed| failed.owed.remove(rank));
        self.failed.retain(|failed| !failed.owed.is_empty());
    }

    /// The earliest deadline of an open round.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|open| open.deadline).min()
    }

    /// Whether this is a possible state for a run of `world` ranks.
    pub(crate) fn can_be(&self, world: u32) -> bool {
        let part = |(ranks, rank, part): (&Mask, &u32, &Part)| {
            let sized = match &part.kind {
                RoundKind::Exchange { blobs } => blobs.len() == world as usize,
                RoundKind::Barrier {} | RoundKind::Agree { .. } => true,
            };
            sized && ranks.contains(*rank)
        };
        let open = |((_, ranks), open): (&Key, &Open)| {
            let parts = (1..ranks.len()).contains(&open.parts.len()); // the last part ends the round
            let known = ranks.fits(world) && open.parts.iter().all(|(rank, of)| part((ranks, rank, of)));
            parts && known && open.started <= open.deadline
        };
        let failed = |Failed { key: (_, ranks), owed, .. }: &Failed| {
            ranks.fits(world) && !owed.is_empty() && owed.minus(ranks).is_empty()
        };
        let few = self.open.len() <= MAX_OPEN_ROUNDS && self.failed.len() <= MAX_FAILED;
        few && self.held <= MAX_HELD_BYTES && self.open.iter().all(open) && self.failed.iter().all(failed)
    }

    fn room(&self, op: &str, bytes: usize) -> Result<(), BootstrapError> {
        BootstrapError::check(op, "bytes held by open rounds", self.held + bytes, MAX_HELD_BYTES)?;
        BootstrapError::check(op, "open rounds", self.open.len() + 1, MAX_OPEN_ROUNDS)
    }

    fn owed(&mut self, key: &Key, rank: u32) -> Option<BootstrapError> {
        let at = self.failed.iter().position(|failed| failed.key == *key && failed.owed.contains(rank))?;
        let failed = &mut self.failed[at];
        failed.owed.remove(rank);
        let error = failed.error.clone();
        if failed.owed.is_empty() {
            self.failed.remove(at);
        }
        Some(error)
    }

    fn fail(
        &mut self,
        which: impl Fn(&Key, &Open) -> bool,
        error: impl Fn(&Open, Mask) -> BootstrapError,
    ) -> Vec<Outcome> {
        let keys: Vec<Key> =
            self.open.iter().filter(|(key, open)| which(key, open)).map(|(key, _)| key.clone()).collect();
        let mut outcomes = Vec::new();
        for key in keys {
            let Some(open) = self.open.remove(&key) else { continue };
            let owed = key.1.minus(&open.parts.keys().copied().collect());
            let error = error(&open, owed);
            self.held -= open.bytes();
            outcomes.extend(open.parts.into_values().map(|part| (part.call, Err(error.clone()))));
            if self.failed.len() == MAX_FAILED {
                self.failed.pop_front();
            }
            self.failed.push_back(Failed { key, owed, error });
        }
        outcomes
    }
}

/// The first field in which `other` differs from `first`, each given with its rank; `None` if they are equal.
pub(crate) fn compare(op: &str, first: (u32, &Fields), other: (u32, &Fields)) -> Option<BootstrapError> {
    let value = |fields: &Fields, name: &str| {
        fields
            .iter()
            .find(|(field, _)| field == name)
            .map_or("(absent)".to_owned(), |(_, value)| value.clone())
    };
    let names = first.1.iter().chain(other.1).map(|(name, _)| name);
    let differing =
        names.map(|name| (name, value(first.1, name), value(other.1, name))).find(|(_, a, b)| a != b);
    differing.map(|(name, mine, theirs)| BootstrapError::ConfigMismatch {
        op: op.to_owned(),
        field: name.clone(),
        rank: first.0,
        value: mine,
        other_rank: other.0,
        other_value: theirs,
    })
}

/// Checks the size of a list of config fields.
pub(crate) fn check_fields(op: &str, fields: &Fields) -> Result<(), BootstrapError> {
    BootstrapError::check(op, "config fields", fields.len(), MAX_FIELDS)?;
    for (name, value) in fields {
        BootstrapError::check(op, "bytes of a field's name", name.len(), MAX_TEXT_BYTES)?;
        BootstrapError::check(op, &format!("bytes of field {name}"), value.len(), MAX_TEXT_BYTES)?;
    }
    Ok(())
}

fn describe(round: &Round) -> String {
    let what = match &round.kind {
        RoundKind::Exchange { .. } => "exchange",
        RoundKind::Barrier {} => "barrier",
        RoundKind::Agree { .. } => "agree",
    };
    let tag: String = round.tag.chars().take(64).collect();
    format!("{what} \"{tag}\"")
}

impl Open {
    /// Total size of its parts.
    fn bytes(&self) -> usize {
        self.parts.values().map(|part| bytes_of(&part.kind)).sum()
    }
}

/// Size of a part of this kind.
fn bytes_of(kind: &RoundKind) -> usize {
    match kind {
        RoundKind::Exchange { blobs } => blobs.iter().map(|blob| blob.0.len()).sum(),
        RoundKind::Barrier {} => 0,
        RoundKind::Agree { fields } => fields.iter().map(|(name, value)| name.len() + value.len()).sum(),
    }
}

/// Checks one part and returns its size.
fn check(op: &str, rank: u32, world: u32, round: &Round) -> Result<usize, BootstrapError> {
    BootstrapError::check(op, "bytes of the tag", round.tag.len(), MAX_TEXT_BYTES)?;
    if !round.ranks.contains(rank) || !round.ranks.fits(world) {
        return Err(BootstrapError::Invalid {
            op: op.to_owned(),
            field: "ranks".to_owned(),
            value: round.ranks.to_string(),
            reason: format!("must be ranks of a world of {world} and hold the caller, rank {rank}"),
        });
    }
    match &round.kind {
        RoundKind::Exchange { blobs } if blobs.len() != world as usize => {
            return Err(BootstrapError::Invalid {
                op: op.to_owned(),
                field: "blobs".to_owned(),
                value: blobs.len().to_string(),
                reason: format!("there must be one blob per rank of the world, {world}"),
            });
        }
        RoundKind::Exchange { blobs } => {
            for (peer, blob) in blobs.iter().enumerate() {
                BootstrapError::check(
                    op,
                    &format!("bytes of the blob for rank {peer}"),
                    blob.0.len(),
                    MAX_BLOB_BYTES,
                )?;
            }
        }
        RoundKind::Barrier {} => {}
        RoundKind::Agree { fields } => check_fields(op, fields)?,
    }
    Ok(bytes_of(&round.kind))
}

/// All parts are there: what each participant gets.
fn finish(open: Open, world: u32) -> Vec<Outcome> {
    let verdict = judge(&open);
    let Open { mut parts, .. } = open;
    let ranks: Vec<u32> = parts.keys().copied().collect();
    if let Err(error) = verdict {
        return parts.into_values().map(|part| (part.call, Err(error.clone()))).collect();
    }
    let mut inboxes: BTreeMap<u32, Vec<Blob>> = BTreeMap::new();
    for (&from, part) in &mut parts {
        if let RoundKind::Exchange { blobs } = &mut part.kind {
            for &to in &ranks {
                let inbox = inboxes.entry(to).or_insert_with(|| vec![Blob::default(); world as usize]);
                inbox[from as usize] = std::mem::take(&mut blobs[to as usize]);
            }
        }
    }
    let reply = |rank| match inboxes.remove(&rank) {
        Some(blobs) => Reply::Blobs { blobs },
        None => Reply::Done {},
    };
    let replies: Vec<Reply> = ranks.into_iter().map(reply).collect();
    parts.into_values().zip(replies).map(|(part, reply)| (part.call, Ok(reply))).collect()
}

/// Checks that the parts fit each other: the same kind of round, and equal fields if they have to agree.
fn judge(open: &Open) -> Result<(), BootstrapError> {
    let mut parts = open.parts.iter();
    let Some((&first, lowest)) = parts.next() else { return Ok(()) };
    for (&rank, part) in parts {
        match (&lowest.kind, &part.kind) {
            (RoundKind::Agree { fields }, RoundKind::Agree { fields: others }) => {
                if let Some(error) = compare(&open.op, (first, fields), (rank, others)) {
                    return Err(error);
                }
            }
            (a, b) if std::mem::discriminant(a) == std::mem::discriminant(b) => {}
            _ => {
                return Err(BootstrapError::OutOfOrder {
                    op: open.op.clone(),
                    reason: format!(
                        "rank {first} and rank {rank} use the same tag for different kinds of round; give each its own tag"
                    ),
                });
            }
        }
    }
    Ok(())
}
