//! The run's key-value store. A request for keys that do not exist yet is parked at the first missing one, and stays
//! there if an earlier one is deleted.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::rendezvous::call::{Call, SessionId};
use crate::rendezvous::codec::{Blob, Reader, Wire, WireError, wire};
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::rounds::Outcome;
use crate::rendezvous::wire::Reply;

/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// Most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 64 << 10;
/// Most bytes of all keys and values together, where each entry counts 64 bytes in addition.
pub const MAX_STORE_BYTES: usize = 256 << 20;
/// What an entry costs besides its key and value.
const ENTRY_BYTES: usize = 64;
/// Most keys of one wait, and most bytes of one answer.
const MAX_KEYS: usize = 4096;
const MAX_ANSWER_BYTES: usize = 2 << 20;
/// Waiting requests of one session.
const MAX_WAITS: usize = 64;

/// Keys, values, and the requests that wait for them.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Shared with answers that are being sent.
    entries: BTreeMap<String, Arc<Blob>>,
    bytes: usize,
    /// By a key that they are waiting for.
    waiting: BTreeMap<String, Vec<Waiting>>,
}

/// The total cost of the entries is not encoded but counted again.
impl Wire for Store {
    const LEAST: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        let Self { entries, bytes: _, waiting } = self;
        entries.put(out);
        waiting.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let (entries, waiting): (BTreeMap<String, Arc<Blob>>, _) = Wire::get(from)?;
        let bytes = entries.iter().map(|(key, value)| cost(key, value)).sum();
        Ok(Self { entries, bytes, waiting })
    }
}

#[derive(Debug)]
struct Waiting {
    call: Call,
    keys: Vec<String>,
    began: Duration,
    until: Duration,
}
wire!(struct Waiting { call, keys, began, until });

/// The cost of an entry.
fn cost(key: &str, value: &Blob) -> usize {
    key.len() + value.0.len() + ENTRY_BYTES
}

impl Store {
    /// Sets a key, and answers those who have waited for it.
    pub(super) fn set(&mut self, call: Call, key: String, value: Blob) -> Vec<Outcome> {
        self.change(call, |store| store.put("set", &key, value).map(|()| (key, Reply::Done {})))
    }

    /// Adds to a number; an absent one counts as 0.
    pub(super) fn add(&mut self, call: Call, key: String, amount: i64) -> Vec<Outcome> {
        self.change(call, |store| {
            let sum = store.sum(&key, amount)?;
            store.put("add", &key, Blob(sum.to_string().into_bytes()))?;
            Ok((key, Reply::Sum { sum }))
        })
    }

    /// Returns the values of keys, once all exist.
    pub(super) fn get(
        &mut self,
        now: Duration,
        call: Call,
        keys: Vec<String>,
        deadline: Duration,
    ) -> Vec<Outcome> {
        const OP: &str = "wait for keys";
        let waits =
            self.waiting.values().flatten().filter(|waiting| waiting.call.session == call.session).count();
        let longest = keys.iter().map(String::len).max().unwrap_or(0);
        let checked = BootstrapError::check(OP, "keys", keys.len(), MAX_KEYS)
            .and_then(|()| BootstrapError::check(OP, "bytes of a key", longest, MAX_KEY_BYTES))
            .and_then(|()| {
                BootstrapError::check(OP, "requests waiting in one session", waits + 1, MAX_WAITS)
            });
        if let Err(error) = checked {
            return vec![(call, Err(error))];
        }
        self.park(Waiting { call, keys, began: now, until: now + deadline }).into_iter().collect()
    }

    /// Deletes a key, if it exists. No wait is parked at one that exists, so all stay where they are.
    pub(super) fn delete(&mut self, key: &str) -> Result<Reply, BootstrapError> {
        BootstrapError::check("delete", "bytes of the key", key.len(), MAX_KEY_BYTES)?;
        Ok(Reply::Deleted { keys: u64::from(self.remove(key)) })
    }

    /// Deletes all keys that begin with `prefix`.
    pub(super) fn delete_prefix(&mut self, prefix: &str) -> Result<Reply, BootstrapError> {
        const OP: &str = "delete keys with a prefix";
        BootstrapError::check(OP, "bytes of the prefix", prefix.len(), MAX_KEY_BYTES)?;
        if prefix.is_empty() {
            return Err(BootstrapError::Invalid {
                op: OP.to_owned(),
                field: "prefix".to_owned(),
                value: String::new(),
                reason: "all keys begin with it; give at least a character".to_owned(),
            });
        }
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let mut keys = 0;
        while let Some((key, _)) = self.entries.range::<str, _>(from).next()
            && key.starts_with(prefix)
        {
            let key = key.clone();
            keys += u64::from(self.remove(&key));
        }
        Ok(Reply::Deleted { keys })
    }

    /// Ends the waits whose time is over.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (key, waiting) in &mut self.waiting {
            for Waiting { call, began, until, .. } in waiting.extract_if(.., |waiting| waiting.until <= now) {
                let (op, elapsed, deadline) = (format!("wait for key {key}"), now - began, until - began);
                let missing = Box::default();
                outcomes.push((call, Err(BootstrapError::Timeout { op, elapsed, deadline, missing })));
            }
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
        outcomes
    }

    /// The earliest deadline of a wait.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.waiting.values().flatten().map(|waiting| waiting.until).min()
    }

    /// Ends the waits of a session that is gone.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|_, waiting| {
            waiting.retain(|waiting| waiting.call.session != session);
            !waiting.is_empty()
        });
    }

    /// Whether this is a possible state of a run.
    pub(super) fn can_be(&self) -> bool {
        let fits = |(key, value): (&String, &Arc<Blob>)| {
            key.len() <= MAX_KEY_BYTES && value.0.len() <= MAX_VALUE_BYTES
        };
        let parked = |(key, waiting): (&String, &Vec<Waiting>)| {
            let here = |waiting: &Waiting| waiting.keys.contains(key) && waiting.began <= waiting.until;
            !self.entries.contains_key(key) && !waiting.is_empty() && waiting.iter().all(here)
        };
        self.bytes <= MAX_STORE_BYTES && self.entries.iter().all(fits) && self.waiting.iter().all(parked)
    }

    /// The first of its keys that does not exist.
    fn missing<'a>(&self, waiting: &'a Waiting) -> Option<&'a String> {
        waiting.keys.iter().find(|key| !self.entries.contains_key(*key))
    }

    fn change(
        &mut self,
        call: Call,
        change: impl FnOnce(&mut Self) -> Result<(String, Reply), BootstrapError>,
    ) -> Vec<Outcome> {
        match change(self) {
            Err(error) => vec![(call, Err(error))],
            Ok((key, reply)) => {
                let mut outcomes = vec![(call, Ok(reply))];
                let waited = self.waiting.remove(&key).unwrap_or_default();
                outcomes.extend(waited.into_iter().filter_map(|waiting| self.park(waiting)));
                outcomes
            }
        }
    }

    /// Answers, or waits at the first missing key.
    fn park(&mut self, waiting: Waiting) -> Option<Outcome> {
        if let Some(missing) = self.missing(&waiting) {
            self.waiting.entry(missing.clone()).or_default().push(waiting);
            return None;
        }
        let values: Vec<Arc<Blob>> =
            waiting.keys.iter().filter_map(|key| self.entries.get(key).cloned()).collect();
        let bytes = values.iter().map(|value| value.0.len()).sum();
        let what = "bytes of the values together";
        let checked = BootstrapError::check("wait for keys", what, bytes, MAX_ANSWER_BYTES);
        Some((waiting.call, checked.map(|()| Reply::Values { values })))
    }

    fn put(&mut self, op: &str, key: &str, value: Blob) -> Result<(), BootstrapError> {
        BootstrapError::check(op, "bytes of the key", key.len(), MAX_KEY_BYTES)?;
        BootstrapError::check(op, &format!("bytes of the value of {key}"), value.0.len(), MAX_VALUE_BYTES)?;
        let freed = self.entries.get(key).map_or(0, |former| cost(key, former));
        let bytes = self.bytes - freed + cost(key, &value);
        BootstrapError::check(op, "bytes of the store", bytes, MAX_STORE_BYTES)?;
        self.bytes = bytes;
        self.entries.insert(key.to_owned(), Arc::new(value));
        Ok(())
    }

    /// Whether the key existed.
    fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.entries.remove(key) else { return false };
        self.bytes -= cost(key, &value);
        true
    }

    fn sum(&self, key: &str, amount: i64) -> Result<i64, BootstrapError> {
        let Some(value) = self.entries.get(key) else { return Ok(amount) };
        let text = std::str::from_utf8(&value.0).ok();
        let sum =
            text.and_then(|text| text.parse::<i64>().ok()).and_then(|former| former.checked_add(amount));
        sum.ok_or_else(|| BootstrapError::Invalid {
            op: format!("add {amount} to {key}"),
            field: "value".to_owned(),
            value: String::from_utf8_lossy(&value.0[..value.0.len().min(32)]).into_owned(),
            reason: "it is not a decimal number, or the sum does not fit 64 bits".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rendezvous::wire::Request;

    const SECOND: Duration = Duration::from_secs(1);

    fn call(session: SessionId, id: u64) -> Call {
        Call { session, id }
    }

    fn texts(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn blob(text: &str) -> Blob {
        Blob(text.as_bytes().to_vec())
    }

    #[test]
    fn who_waits_for_several_keys_is_answered_once_with_the_last_of_them() {
        let mut store = Store::default();
        assert!(store.get(SECOND, call(1, 1), texts(&["a", "b"]), SECOND).is_empty());
        assert_eq!(store.set(call(2, 1), "b".into(), blob("2")), [(call(2, 1), Ok(Reply::Done {}))]);
        assert_eq!(store.next_deadline(), Some(2 * SECOND));
        let values = [blob("1"), blob("2")].map(Arc::new).to_vec();
        assert_eq!(
            store.set(call(2, 2), "a".into(), blob("1")),
            [(call(2, 2), Ok(Reply::Done {})), (call(1, 1), Ok(Reply::Values { values }))]
        );
        assert_eq!((store.next_deadline(), store.expire(9 * SECOND).len()), (None, 0));
    }

    #[test]
    fn a_wait_ends_at_its_deadline_with_the_key_that_is_missing() {
        let mut store = Store::default();
        store.set(call(1, 1), "a".into(), blob("1"));
        store.get(SECOND, call(1, 2), texts(&["a", "b"]), SECOND);
        assert!(store.expire(2 * SECOND - Duration::from_nanos(1)).is_empty());
        let expired = store.expire(2 * SECOND);
        let [(ended, Err(error))] = &expired[..] else { panic!("{expired:?}") };
        assert_eq!(*ended, call(1, 2));
        assert!(error.to_string().starts_with("wait for key b: not done after 1s"), "{error}");
    }

    #[test]
    fn a_session_has_a_limit_of_waits_and_takes_them_along() {
        let mut store = Store::default();
        for id in 0..MAX_WAITS as u64 {
            assert!(store.get(SECOND, call(1, id), texts(&["never"]), SECOND).is_empty());
        }
        let refused = store.get(SECOND, call(1, 99), texts(&["never"]), SECOND);
        assert!(matches!(&refused[..], [(_, Err(BootstrapError::Limit { limit: 64, .. }))]), "{refused:?}");
        assert!(store.get(SECOND, call(2, 1), texts(&["never"]), SECOND).is_empty());
        store.forget(1);
        assert_eq!(store.expire(2 * SECOND).len(), 1);
    }

    #[test]
    fn the_store_has_a_limit_and_counts_what_a_new_value_frees() {
        let mut store = Store { bytes: MAX_STORE_BYTES - 300, ..Store::default() };
        let fits = |outcomes: Vec<Outcome>| matches!(&outcomes[..], [(_, Ok(_))]);
        assert!(fits(store.set(call(1, 1), "k".into(), Blob(vec![0; 200]))));
        assert!(fits(store.set(call(1, 2), "k".into(), Blob(vec![0; 235]))));
        assert!(!fits(store.set(call(1, 3), "k".into(), Blob(vec![0; 236]))));
    }

    #[test]
    fn a_deletion_frees_what_the_key_has_cost() {
        let mut store = Store { bytes: MAX_STORE_BYTES - 300, ..Store::default() };
        let fits = |outcomes: Vec<Outcome>| matches!(&outcomes[..], [(_, Ok(_))]);
        for _ in 0..3 {
            assert!(fits(store.set(call(1, 1), "k".into(), Blob(vec![0; 235]))));
            assert!(!fits(store.set(call(1, 2), "l".into(), blob(""))));
            assert_eq!(store.delete("k"), deleted(1));
            assert_eq!(store.delete("k"), deleted(0));
            assert!(fits(store.set(call(1, 3), "l".into(), Blob(vec![0; 235]))));
            assert!(!fits(store.set(call(1, 4), "k".into(), blob(""))));
            assert_eq!(store.delete_prefix("l"), deleted(1));
        }
        assert_eq!(store.bytes, MAX_STORE_BYTES - 300);
    }

    #[test]
    fn a_prefix_deletes_the_keys_that_begin_with_it_and_counts_no_others() {
        let mut store = Store::default();
        for key in ["step", "step/", "step/1", "step/1/a", "step/1/\u{10ffff}", "step/10/a", "step/2"] {
            store.set(call(1, 1), key.into(), blob(key));
        }
        store.get(SECOND, call(1, 2), texts(&["step/1/never"]), SECOND);
        assert_eq!(store.delete_prefix("step/1/"), deleted(2));
        assert_eq!(store.delete_prefix("step/1/"), deleted(0));
        assert!(store.entries.keys().eq(["step", "step/", "step/1", "step/10/a", "step/2"]));
        assert_eq!(store.delete_prefix("step"), deleted(5));
        assert_eq!((store.bytes, store.expire(2 * SECOND).len()), (0, 1));
    }

    #[test]
    fn no_prefix_and_what_is_longer_than_keys_are_deletes_nothing() {
        let mut store = Store::default();
        store.set(call(1, 1), "a".into(), blob("1"));
        let said = |refused: Result<Reply, BootstrapError>| refused.unwrap_err().to_string();
        assert_eq!(
            said(store.delete_prefix("")),
            "delete keys with a prefix: prefix is \"\": all keys begin with it; give at least a character"
        );
        let long = "a".repeat(513);
        assert_eq!(said(store.delete(&long)), "delete: bytes of the key is 513, the limit is 512");
        assert_eq!(
            said(store.delete_prefix(&long)),
            "delete keys with a prefix: bytes of the prefix is 513, the limit is 512"
        );
        assert_eq!(store.delete_prefix("a"), deleted(1));
    }

    #[test]
    fn who_waits_goes_on_waiting_when_keys_are_deleted() {
        let mut store = Store::default();
        store.set(call(1, 1), "a".into(), blob("old"));
        assert!(store.get(SECOND, call(2, 1), texts(&["a", "b"]), SECOND).is_empty());
        assert_eq!((store.delete("b"), store.delete("a")), (deleted(0), deleted(1)));
        assert!(store.can_be() && store.next_deadline() == Some(2 * SECOND));
        // Now it lacks the other one.
        assert_eq!(store.set(call(1, 2), "b".into(), blob("2")), [(call(1, 2), Ok(Reply::Done {}))]);
        assert!(store.can_be() && store.next_deadline() == Some(2 * SECOND));
        let values = [blob("new"), blob("2")].map(Arc::new).to_vec();
        assert_eq!(
            store.set(call(1, 3), "a".into(), blob("new")),
            [(call(1, 3), Ok(Reply::Done {})), (call(2, 1), Ok(Reply::Values { values }))]
        );
    }

    #[test]
    fn nobody_waits_for_a_key_that_exists_or_was_not_asked_for() {
        let waits = |at: &str, set: &str| {
            let mut store = Store::default();
            store.set(call(1, 1), set.into(), blob("1"));
            let (keys, began, until) = (texts(&["a", "b"]), SECOND, SECOND);
            store.waiting.insert(at.into(), vec![Waiting { call: call(2, 1), keys, began, until }]);
            store
        };
        assert!(waits("a", "b").can_be() && waits("b", "a").can_be() && waits("b", "c").can_be());
        assert!(!waits("a", "a").can_be() && !waits("c", "a").can_be());
    }

    fn deleted(keys: u64) -> Result<Reply, BootstrapError> {
        Ok(Reply::Deleted { keys })
    }

    /// What changes a few keys, many of which are prefixes of others.
    fn change() -> impl Strategy<Value = Request> {
        let key = || "[ab]{1,3}";
        let value = proptest::collection::vec(any::<u8>(), 0..40).prop_map(Blob);
        prop_oneof![
            (key(), value).prop_map(|(key, value)| Request::Set { key, value }),
            (key(), any::<i64>()).prop_map(|(key, amount)| Request::Add { key, amount }),
            key().prop_map(|key| Request::Delete { key }),
            "[ab]{0,2}".prop_map(|prefix| Request::DeletePrefix { prefix }),
        ]
    }

    proptest! {
        #[test]
        fn the_store_holds_and_counts_what_was_set_and_not_deleted(
            changes in proptest::collection::vec(change(), 0..80),
        ) {
            let mut store = Store::default();
            let mut held: BTreeMap<String, Arc<Blob>> = BTreeMap::new();
            for change in changes {
                let before = held.len();
                match change {
                    Request::Set { key, value } => {
                        store.set(call(1, 1), key.clone(), value.clone());
                        held.insert(key, Arc::new(value));
                    }
                    Request::Add { key, amount } => {
                        if let [(_, Ok(Reply::Sum { sum }))] = &store.add(call(1, 1), key.clone(), amount)[..] {
                            held.insert(key, Arc::new(blob(&sum.to_string())));
                        }
                    }
                    Request::Delete { key } => {
                        held.remove(&key);
                        prop_assert_eq!(store.delete(&key), deleted((before - held.len()) as u64));
                    }
                    Request::DeletePrefix { prefix } if prefix.is_empty() => {
                        prop_assert!(store.delete_prefix(&prefix).is_err());
                    }
                    Request::DeletePrefix { prefix } => {
                        held.retain(|key, _| !key.starts_with(&prefix));
                        prop_assert_eq!(store.delete_prefix(&prefix), deleted((before - held.len()) as u64));
                    }
                    other => panic!("{other:?}"),
                }
                prop_assert_eq!(&store.entries, &held);
                let bytes: usize = held.iter().map(|(key, value)| key.len() + value.0.len() + 64).sum();
                prop_assert_eq!(store.bytes, bytes);
            }
        }
    }

    #[test]
    fn a_sum_past_64_bits_or_of_no_number_changes_nothing() {
        let mut store = Store::default();
        store.add(call(1, 1), "n".into(), i64::MAX);
        for (key, id) in [("n", 2), ("t", 4)] {
            store.set(call(1, 3), "t".into(), blob("text"));
            let refused = store.add(call(1, id), key.into(), 1);
            assert!(matches!(&refused[..], [(_, Err(BootstrapError::Invalid { .. }))]), "{refused:?}");
        }
        assert_eq!(
            store.add(call(1, 5), "n".into(), -1),
            [(call(1, 5), Ok(Reply::Sum { sum: i64::MAX - 1 }))]
        );
    }
}
