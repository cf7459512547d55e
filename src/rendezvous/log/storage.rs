//! The entries, in memory: a voter that loses them becomes another voter, so nothing is written to disk.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};

use super::types::{Ballot, Entry, LogId, StorageError, Types};

/// Most bytes of entries that are sent together, not counting a first one, which may be as long as a record.
const APPEND_BYTES: usize = 2 << 20;
/// Size of an entry besides its record.
const ENTRY_BYTES: usize = 64;

/// A handle of one log; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Storage {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    ballot: Option<Ballot>,
    purged: Option<LogId>,
    committed: Option<LogId>,
    /// How often entries were replaced by those of another leader.
    truncations: u64,
    entries: BTreeMap<u64, Entry>,
}

impl Storage {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last entry that is known to be committed.
    pub(super) fn committed(&self) -> Option<LogId> {
        self.lock().committed
    }

    /// Increases when entries are replaced by those of another leader.
    pub(super) fn truncations(&self) -> u64 {
        self.lock().truncations
    }

    /// Number of entries that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.lock().entries.len()
    }
}

/// Approximate size of an entry in memory and in a frame.
pub(super) fn bytes(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(record) => ENTRY_BYTES + record.0.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => ENTRY_BYTES,
    }
}

impl RaftLogReader<Types> for Storage {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        Ok(self.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    /// As many as are sent together: openraft asks again for the rest.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        let mut room = APPEND_BYTES;
        let inner = self.lock();
        let mut fits = |entry: &Entry| {
            let bytes = bytes(entry);
            let fits = entry.log_id.index == start || bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        };
        let entries = inner.entries.range(start..end).map(|(_, entry)| entry);
        Ok(entries.take_while(|entry| fits(entry)).cloned().collect())
    }
}

impl RaftLogStorage<Types> for Storage {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let inner = self.lock();
        let last = inner.entries.last_key_value().map(|(_, entry)| entry.log_id).or(inner.purged);
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, ballot: &Ballot) -> Result<(), StorageError> {
        self.lock().ballot = Some(*ballot);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Ballot>, StorageError> {
        Ok(self.lock().ballot)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        self.lock().committed = committed;
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.lock().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, since: LogId) -> Result<(), StorageError> {
        let mut inner = self.lock();
        inner.entries.split_off(&since.index);
        inner.truncations += 1;
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        let mut inner = self.lock();
        inner.entries = inner.entries.split_off(&(upto.index + 1));
        inner.purged = Some(upto);
        Ok(())
    }
}
