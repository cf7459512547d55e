//! The table behind every store, and the store that lives in the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Store;
use crate::rendezvous::driver::local;
use crate::rendezvous::machine::{Machine, Settings};
use crate::rendezvous::wire::{StoreReply, StoreRequest};
use crate::rendezvous::{Blob, BootstrapError};

/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// Most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 64 << 10;
/// Most bytes of all keys and values together, each entry counted with 64 bytes of its own.
pub const MAX_STORE_BYTES: usize = 256 << 20;
/// What an entry costs beside its key and value.
const ENTRY_BYTES: usize = 64;
/// Most keys of one wait, and most bytes of one answer.
const MAX_KEYS: usize = 4096;
const MAX_ANSWER_BYTES: usize = 2 << 20;

impl Store {
    /// A store in this process, on a small thread of its own that ends with the last handle.
    ///
    /// Errors: [`BootstrapError::System`] if the thread can not be started.
    pub fn in_process() -> Result<Self, BootstrapError> {
        let (second, run_id) = (Duration::from_secs(1), "store".to_owned());
        let machine = Machine::new(Settings { run_id, world: 1, join_deadline: second, lease: second })?;
        let mut clients = local(machine, 1)?;
        clients.pop().map(Self::new).ok_or_else(|| BootstrapError::System {
            op: "start a store".to_owned(),
            detail: "it has no client".to_owned(),
        })
    }
}

/// Keys, values, and who waits for them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Mutex<Entries>,
    /// The revision, for those that wait for it to grow.
    revision: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: BTreeMap<String, Entry>,
    revision: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    value: Vec<u8>,
    revision: u64,
}

impl Table {
    /// Carries out one verb, waiting where the verb waits.
    pub(crate) async fn handle(&self, request: StoreRequest) -> Result<StoreReply, BootstrapError> {
        match request {
            StoreRequest::Set { key, value } => {
                let revision = self.change(|entries| entries.set("set", &key, value.0))?;
                Ok(StoreReply::Revision { revision })
            }
            StoreRequest::Add { key, amount } => {
                let value = self.change(|entries| entries.add(&key, amount))?;
                Ok(StoreReply::Counter { value })
            }
            StoreRequest::Cas { key, expected, value } => {
                self.change(|entries| entries.compare_and_set(&key, expected, value.0))
            }
            StoreRequest::Get { keys, deadline } => {
                BootstrapError::check("wait for keys", "keys", keys.len(), MAX_KEYS)?;
                let what = |entries: &Entries| {
                    let missing = keys.iter().find(|key| !entries.by_key.contains_key(*key));
                    format!("wait for key {}", missing.map_or("", String::as_str))
                };
                self.when(deadline, what, |entries| entries.get(&keys).transpose()).await
            }
            StoreRequest::Changes { prefix, after, deadline } => {
                let what = |_: &Entries| format!("watch {prefix}");
                self.when(deadline, what, |entries| entries.changes(&prefix, after).transpose()).await
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Every change is complete before anything in it can panic.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(
        &self,
        f: impl FnOnce(&mut Entries) -> Result<T, BootstrapError>,
    ) -> Result<T, BootstrapError> {
        let mut entries = self.lock();
        let result = f(&mut entries);
        let revision = entries.revision;
        drop(entries);
        // Writers may pass each other here, so the revision shown only grows.
        self.revision.send_if_modified(|shown| {
            let grown = revision > *shown;
            *shown = revision.max(*shown);
            grown
        });
        result
    }

    /// Asks `find` after every change until it gives something.
    async fn when<T>(
        &self,
        deadline: Duration,
        what: impl Fn(&Entries) -> String,
        find: impl Fn(&Entries) -> Option<Result<T, BootstrapError>>,
    ) -> Result<T, BootstrapError> {
        let began = Instant::now();
        let mut changes = self.revision.subscribe();
        let wait = async {
            loop {
                changes.mark_unchanged();
                if let Some(result) = find(&self.lock()) {
                    return result;
                }
                // The sender is this table's, so it is there.
                let _ = changes.changed().await;
            }
        };
        let result = timeout(deadline, wait).await;
        result.unwrap_or_else(|_| {
            let (op, elapsed) = (what(&self.lock()), began.elapsed());
            Err(BootstrapError::Timeout { op, elapsed, deadline, missing: Box::default() })
        })
    }
}

impl Entries {
    fn set(&mut self, op: &str, key: &str, value: Vec<u8>) -> Result<u64, BootstrapError> {
        BootstrapError::check(op, "bytes of the key", key.len(), MAX_KEY_BYTES)?;
        BootstrapError::check(op, &format!("bytes of the value of {key}"), value.len(), MAX_VALUE_BYTES)?;
        let freed = self.by_key.get(key).map_or(0, |entry| entry.value.len() + key.len() + ENTRY_BYTES);
        let bytes = self.bytes - freed + value.len() + key.len() + ENTRY_BYTES;
        BootstrapError::check(op, "bytes of the store", bytes, MAX_STORE_BYTES)?;
        self.bytes = bytes;
        self.revision += 1;
        self.by_key.insert(key.to_owned(), Entry { value, revision: self.revision });
        Ok(self.revision)
    }

    fn add(&mut self, key: &str, amount: i64) -> Result<i64, BootstrapError> {
        let invalid = |value: &[u8], reason: &str| BootstrapError::Invalid {
            op: format!("add to {key}"),
            field: "value".to_owned(),
            value: String::from_utf8_lossy(&value[..value.len().min(32)]).into_owned(),
            reason: reason.to_owned(),
        };
        let former = match self.by_key.get(key) {
            None => 0,
            Some(Entry { value, .. }) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                number.ok_or_else(|| invalid(value, "is no decimal number of 64 bits"))?
            }
        };
        let sum = former.checked_add(amount);
        let sum =
            sum.ok_or_else(|| invalid(former.to_string().as_bytes(), "the sum does not fit 64 bits"))?;
        self.set("add", key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    fn compare_and_set(
        &mut self,
        key: &str,
        expected: Option<Blob>,
        value: Vec<u8>,
    ) -> Result<StoreReply, BootstrapError> {
        let current = self.by_key.get(key).map(|entry| Blob(entry.value.clone()));
        if current != expected {
            return Ok(StoreReply::Swap { done: false, current });
        }
        self.set("compare and set", key, value.clone())?;
        Ok(StoreReply::Swap { done: true, current: Some(Blob(value)) })
    }

    fn get(&self, keys: &[String]) -> Result<Option<StoreReply>, BootstrapError> {
        let entries: Option<Vec<&Entry>> = keys.iter().map(|key| self.by_key.get(key)).collect();
        let Some(entries) = entries else { return Ok(None) };
        let bytes = entries.iter().map(|entry| entry.value.len()).sum();
        BootstrapError::check("wait for keys", "bytes of the values together", bytes, MAX_ANSWER_BYTES)?;
        Ok(Some(StoreReply::Values {
            values: entries.iter().map(|entry| Blob(entry.value.clone())).collect(),
        }))
    }

    fn changes(&self, prefix: &str, after: u64) -> Result<Option<StoreReply>, BootstrapError> {
        let under = self.by_key.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let mut changed: Vec<(&String, &Entry)> = under.filter(|(_, entry)| entry.revision > after).collect();
        // What does not fit one answer comes with the next: oldest first, up to the revision that is told.
        changed.sort_by_key(|(_, entry)| entry.revision);
        let mut bytes = 0;
        let fits = |(key, entry): &&(&String, &Entry)| {
            bytes += key.len() + entry.value.len();
            bytes <= MAX_ANSWER_BYTES
        };
        let mut told: Vec<&(&String, &Entry)> = changed.iter().take_while(fits).collect();
        let Some(last) = told.last() else { return Ok(None) };
        let revision = last.1.revision;
        told.sort_by_key(|(key, _)| *key);
        let entries =
            told.into_iter().map(|(key, entry)| ((*key).clone(), Blob(entry.value.clone()))).collect();
        Ok(Some(StoreReply::Changes { revision, entries }))
    }
}
