//! A copy of the state machine that the log drives, and its snapshots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::RaftStateMachine;
use openraft::{AnyError, EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageIOError};
use tokio::sync::{Notify, watch};

use super::storage::bytes;
use super::types::{Entry, LogId, Record, Snapshot, SnapshotMeta, StorageError, StoredMembers, Types};
use crate::rendezvous::codec::{Blob, WireError};

/// The state machine: each voter has a copy of it, and all copies go through the same states.
pub(crate) trait StateMachine: Send + Sync + 'static {
    /// Applies a record. Called in the order of the log, once for each record since the last restore.
    fn apply(&self, record: &[u8]);
    /// The state that the records so far have led to.
    fn snapshot(&self) -> Vec<u8>;
    /// Takes over the state of another copy at its snapshot. After an error the copy is unusable.
    fn restore(&self, snapshot: &[u8]) -> Result<(), WireError>;
}

/// What others than openraft need to know of a copy.
#[derive(Debug)]
pub(crate) struct Progress {
    entries: AtomicU64,
    bytes: AtomicU64,
    /// The numbers of entries and bytes after which a snapshot is due.
    limits: (u64, u64),
    /// Bytes of the last snapshot: writing snapshots must not cost more than the records that have arrived since.
    last: AtomicU64,
    /// Wakes the task that takes snapshots.
    pub(crate) due: Notify,
    /// How many times the copy was restored.
    pub(crate) restored: watch::Sender<u64>,
}

impl Progress {
    fn add(&self, bytes: u64) {
        let entries = self.entries.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let last = self.last.load(Ordering::Relaxed);
        if (entries >= self.limits.0 || bytes >= self.limits.1) && bytes >= last {
            self.due.notify_one();
        }
    }

    fn reset(&self) {
        self.entries.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// The state machine in the form that openraft expects.
pub(crate) struct Copy {
    machine: Arc<dyn StateMachine>,
    progress: Arc<Progress>,
    applied: Option<LogId>,
    members: StoredMembers,
    /// The last snapshot that was built or installed; shared with builders.
    current: Arc<Mutex<Option<Built>>>,
}

#[derive(Clone, Debug)]
struct Built {
    meta: SnapshotMeta,
    data: Record,
}

impl Built {
    fn snapshot(self) -> Snapshot {
        Snapshot { meta: self.meta, snapshot: Box::new(self.data) }
    }
}

/// Holds a snapshot that is already complete: it was taken between two entries, so it covers exactly those applied.
pub(crate) struct Builder {
    built: Built,
    current: Arc<Mutex<Option<Built>>>,
}

impl Copy {
    pub(super) fn new(machine: Arc<dyn StateMachine>, limits: (u64, u64)) -> Self {
        let progress = Progress {
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            limits,
            last: AtomicU64::new(0),
            due: Notify::new(),
            restored: watch::channel(0).0,
        };
        Self {
            machine,
            progress: Arc::new(progress),
            applied: None,
            members: StoredMembers::default(),
            current: Arc::default(),
        }
    }

    pub(super) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }
}

fn lock(current: &Mutex<Option<Built>>) -> MutexGuard<'_, Option<Built>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let mut current = lock(&self.current);
        // A snapshot installed meanwhile is newer.
        if current.as_ref().is_none_or(|it| it.meta.last_log_id < self.built.meta.last_log_id) {
            *current = Some(self.built.clone());
        }
        Ok(self.built.clone().snapshot())
    }
}

impl RaftStateMachine<Types> for Copy {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), StorageError> {
        Ok((self.applied, self.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut results = Vec::new();
        for entry in entries {
            self.progress.add(bytes(&entry) as u64);
            self.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(record) => self.machine.apply(&record.0),
                EntryPayload::Membership(members) => {
                    self.members = StoredMembers::new(Some(entry.log_id), members);
                }
            }
            results.push(());
        }
        Ok(results)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.progress.reset();
        let meta = SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.members.clone(),
            snapshot_id: self.applied.map_or_else(String::new, |id| id.to_string()),
        };
        let built = Built { meta, data: Arc::new(Blob(self.machine.snapshot())) };
        self.progress.last.store(built.data.0.len() as u64, Ordering::Relaxed);
        Builder { built, current: self.current.clone() }
    }

    /// The parts are assembled elsewhere, so this is not used.
    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Record>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: Box<Record>) -> Result<(), StorageError> {
        self.machine
            .restore(&data.0)
            .map_err(|error| StorageIOError::write_snapshot(Some(meta.signature()), AnyError::new(&error)))?;
        self.applied = meta.last_log_id;
        self.members = meta.last_membership.clone();
        *lock(&self.current) = Some(Built { meta: meta.clone(), data: *data });
        self.progress.reset();
        self.progress.restored.send_modify(|times| *times += 1);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        Ok(lock(&self.current).clone().map(Built::snapshot))
    }
}
