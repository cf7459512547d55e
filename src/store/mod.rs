//! A small key-value store that the ranks of a run share: what they tell each other before they are a group, and
//! beside it.
//!
//! The rendezvous server keeps it ([`Store::connect`]); for tests and for ranks as threads there is one in the process
//! ([`Store::in_process`]). Keys are texts of at most [`MAX_KEY_BYTES`], values of at most [`MAX_VALUE_BYTES`]; nothing
//! is ever deleted, so the store is for names and addresses, not for data.

pub(crate) mod memory;
mod tcp;

pub use memory::{MAX_KEY_BYTES, MAX_STORE_BYTES, MAX_VALUE_BYTES};

use std::time::Duration;

use crate::rendezvous::driver::{Client, block_on};
use crate::rendezvous::wire::{Reply, Request, StoreReply, StoreRequest};
use crate::rendezvous::{Blob, BootstrapError};

/// A handle on a store. Clones share it.
///
/// `Send` and `Sync`. Each verb is a future that needs no particular runtime, and has a `_blocking` form for plain
/// threads, which gives [`BootstrapError::BlockingInAsync`] on a thread of an async runtime. Errors common to all:
/// [`BootstrapError::ServerLost`], and [`BootstrapError::Limit`] for a key or value that is too long.
#[derive(Clone, Debug)]
pub struct Store {
    client: Client,
}

/// The outcome of [`Store::cas`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Whether the value was the expected one, and the key was set.
    pub done: bool,
    /// The value that the key has now.
    pub current: Option<Vec<u8>>,
}

/// Follows the keys under a prefix; made by [`Store::watch`].
#[derive(Debug)]
pub struct Watch {
    store: Store,
    prefix: String,
    seen: u64,
}

/// How long verbs that wait for nothing may take.
const PROMPT: Duration = Duration::from_secs(10);

impl Store {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Sets a key; gives the store's revision, which counts its changes from 1.
    pub async fn set(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<u64, BootstrapError> {
        let request = StoreRequest::Set { key: key.to_owned(), value: Blob(value.into()) };
        match self.ask(&format!("set {key}"), request, PROMPT).await? {
            StoreReply::Revision { revision } => Ok(revision),
            _ => Err(odd("set")),
        }
    }

    /// The value of a key, waiting until somebody sets it, at most `deadline`.
    ///
    /// Errors: [`BootstrapError::Timeout`] if nobody does.
    pub async fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, BootstrapError> {
        self.wait(&[key], deadline).await?.pop().ok_or_else(|| odd("get"))
    }

    /// The values of keys in the order asked, waiting until all are set, at most `deadline`.
    ///
    /// Errors: [`BootstrapError::Timeout`], which names the first key that is missing.
    pub async fn wait(&self, keys: &[&str], deadline: Duration) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let request =
            StoreRequest::Get { keys: keys.iter().map(|key| (*key).to_owned()).collect(), deadline };
        match self.ask("wait for keys", request, deadline).await? {
            StoreReply::Values { values } => Ok(values.into_iter().map(|value| value.0).collect()),
            _ => Err(odd("wait")),
        }
    }

    /// Adds to a counter, kept as decimal text; an absent one counts as 0. Gives the sum.
    ///
    /// Errors: [`BootstrapError::Invalid`] if the value is no number or the sum does not fit 64 bits.
    pub async fn add(&self, key: &str, amount: i64) -> Result<i64, BootstrapError> {
        let request = StoreRequest::Add { key: key.to_owned(), amount };
        match self.ask(&format!("add to {key}"), request, PROMPT).await? {
            StoreReply::Counter { value } => Ok(value),
            _ => Err(odd("add")),
        }
    }

    /// Sets a key if it has the expected value, or, with `None`, if it is absent.
    pub async fn cas(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: impl Into<Vec<u8>>,
    ) -> Result<Swap, BootstrapError> {
        let expected = expected.map(|expected| Blob(expected.to_vec()));
        let request = StoreRequest::Cas { key: key.to_owned(), expected, value: Blob(value.into()) };
        match self.ask(&format!("compare and set {key}"), request, PROMPT).await? {
            StoreReply::Swap { done, current } => {
                Ok(Swap { done, current: current.map(|current| current.0) })
            }
            _ => Err(odd("compare and set")),
        }
    }

    /// Follows all keys that start with `prefix`, from their present values on.
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch { store: self.clone(), prefix: prefix.to_owned(), seen: 0 }
    }

    /// [`Store::set`] for a plain thread.
    pub fn set_blocking(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<u64, BootstrapError> {
        block_on("set", self.set(key, value))
    }

    /// [`Store::get`] for a plain thread.
    pub fn get_blocking(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, BootstrapError> {
        block_on("get", self.get(key, deadline))
    }

    /// [`Store::wait`] for a plain thread.
    pub fn wait_blocking(&self, keys: &[&str], deadline: Duration) -> Result<Vec<Vec<u8>>, BootstrapError> {
        block_on("wait for keys", self.wait(keys, deadline))
    }

    /// [`Store::add`] for a plain thread.
    pub fn add_blocking(&self, key: &str, amount: i64) -> Result<i64, BootstrapError> {
        block_on("add", self.add(key, amount))
    }

    /// [`Store::cas`] for a plain thread.
    pub fn cas_blocking(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: impl Into<Vec<u8>>,
    ) -> Result<Swap, BootstrapError> {
        block_on("compare and set", self.cas(key, expected, value))
    }

    async fn ask(
        &self,
        op: &str,
        request: StoreRequest,
        deadline: Duration,
    ) -> Result<StoreReply, BootstrapError> {
        match self.client.call(op, Request::Store { request }, deadline).await? {
            Reply::Store { reply } => Ok(reply),
            _ => Err(odd(op)),
        }
    }
}

impl Watch {
    /// The keys that were set since the last call and their newest values, by key, waiting for a change at most
    /// `deadline`. A key set twice meanwhile comes once. The first call gives the keys that are there already.
    ///
    /// Errors: [`BootstrapError::Timeout`] if nothing changes; the watch stays usable.
    pub async fn changed(&mut self, deadline: Duration) -> Result<Vec<(String, Vec<u8>)>, BootstrapError> {
        let request = StoreRequest::Changes { prefix: self.prefix.clone(), after: self.seen, deadline };
        match self.store.ask(&format!("watch {}", self.prefix), request, deadline).await? {
            StoreReply::Changes { revision, entries } => {
                self.seen = revision;
                Ok(entries.into_iter().map(|(key, value)| (key, value.0)).collect())
            }
            _ => Err(odd("watch")),
        }
    }

    /// [`Watch::changed`] for a plain thread.
    pub fn changed_blocking(&mut self, deadline: Duration) -> Result<Vec<(String, Vec<u8>)>, BootstrapError> {
        block_on("watch", self.changed(deadline))
    }
}

/// The server answered with something else than was asked.
fn odd(op: &str) -> BootstrapError {
    BootstrapError::Garbage {
        op: op.to_owned(),
        peer: "the rendezvous server".to_owned(),
        detail: "an answer to another question".to_owned(),
    }
}
