//! A small key-value store that the ranks of a run share, for what they tell each other besides their collective
//! rounds.
//!
//! The rendezvous server keeps it, also for ranks that are threads; a [`Store`] is a handle on a connection to it,
//! either that of a group ([`Group::store`](crate::Group::store)) or one of its own ([`Store::connect`]). Keys are
//! texts of at most [`MAX_KEY_BYTES`], values have at most [`MAX_VALUE_BYTES`], and all together at most
//! [`MAX_STORE_BYTES`]: the store is for names and addresses, not for data. A key stays until it is deleted, so a run
//! that goes on for long should delete those that nobody needs any more ([`Store::delete`], [`Store::delete_prefix`]).

use std::time::Duration;

pub use crate::rendezvous::machine::{MAX_KEY_BYTES, MAX_STORE_BYTES, MAX_VALUE_BYTES};

use crate::rendezvous::driver::{Client, ClientOptions, block_on};
use crate::rendezvous::wire::{Reply, Request};
use crate::rendezvous::{Blob, BootstrapError};

/// A handle on the store of a run. Clones share it.
///
/// `Send` and `Sync`. Each operation is a future that needs no particular runtime, and has a `_blocking` form for plain
/// threads, which gives [`BootstrapError::BlockingInAsync`] on a thread of an async runtime. Errors common to all:
/// [`BootstrapError::ServerLost`], [`BootstrapError::NoQuorum`], and [`BootstrapError::Limit`] for a key, prefix or
/// value that is too long, a store that is full ([`MAX_STORE_BYTES`]), more than 4,096 keys or 2 MiB of values in one
/// wait, and more than 64 waits of one connection.
#[derive(Clone, Debug)]
pub struct Store {
    client: Client,
}

/// How long operations may take that wait for no other rank.
const PROMPT: Duration = Duration::from_secs(10);

impl Store {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Connects to the store of a run without being a member of it.
    ///
    /// Errors: as [`Client::connect`].
    pub async fn connect(options: ClientOptions) -> Result<Self, BootstrapError> {
        Client::connect(options).await.map(Self::new)
    }

    /// Sets a key.
    pub async fn set(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<(), BootstrapError> {
        let request = Request::Set { key: key.to_owned(), value: Blob(value.into()) };
        self.client.call(&format!("set {key}"), request, PROMPT).await.map(drop)
    }

    /// Adds to a counter, kept as decimal text; an absent one counts as 0. Returns the sum.
    ///
    /// Errors: [`BootstrapError::Invalid`] if the value is not a number or the sum does not fit 64 bits.
    pub async fn add(&self, key: &str, amount: i64) -> Result<i64, BootstrapError> {
        let op = format!("add to {key}");
        match self.client.call(&op, Request::Add { key: key.to_owned(), amount }, PROMPT).await? {
            Reply::Sum { sum } => Ok(sum),
            _ => Err(BootstrapError::unexpected_answer(&op)),
        }
    }

    /// The value of a key, waiting until somebody sets it, at most `deadline`.
    ///
    /// Errors: [`BootstrapError::Timeout`] if nobody does.
    pub async fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, BootstrapError> {
        self.wait(&[key], deadline).await?.pop().ok_or_else(|| BootstrapError::unexpected_answer("get"))
    }

    /// The values of keys in the order asked, waiting until all are set, at most `deadline`. One that is deleted before
    /// the last is set has to be set again.
    ///
    /// Errors: [`BootstrapError::Timeout`], which names a key that is missing.
    pub async fn wait(&self, keys: &[&str], deadline: Duration) -> Result<Vec<Vec<u8>>, BootstrapError> {
        const OP: &str = "wait for keys";
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        match self.client.call(OP, Request::Get { keys, deadline }, deadline).await? {
            Reply::Values { values } => Ok(values.into_iter().map(|value| value.0.clone()).collect()),
            _ => Err(BootstrapError::unexpected_answer(OP)),
        }
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// Who waits for it, or is going to, waits until somebody sets it again. An addition to it counts from 0 again.
    #[doc(alias = "delete_key")]
    pub async fn delete(&self, key: &str) -> Result<bool, BootstrapError> {
        let op = format!("delete {key}");
        self.deleted(&op, Request::Delete { key: key.to_owned() }).await.map(|keys| keys > 0)
    }

    /// Deletes all keys that begin with `prefix`, all at once: nobody sees only some of them deleted. Returns how many
    /// existed; a key that is only waited for does not count, and the wait goes on.
    ///
    /// `step/1` is also a prefix of `step/10/a`: end it with a separator, as in `step/1/`. A prefix may have as many
    /// bytes as a key.
    ///
    /// Errors: [`BootstrapError::Invalid`] if the prefix is empty, because all keys begin with it.
    pub async fn delete_prefix(&self, prefix: &str) -> Result<u64, BootstrapError> {
        let op = format!("delete keys with prefix {prefix}");
        self.deleted(&op, Request::DeletePrefix { prefix: prefix.to_owned() }).await
    }

    async fn deleted(&self, op: &str, request: Request) -> Result<u64, BootstrapError> {
        match self.client.call(op, request, PROMPT).await? {
            Reply::Deleted { keys } => Ok(keys),
            _ => Err(BootstrapError::unexpected_answer(op)),
        }
    }

    /// [`Store::connect`] for a plain thread.
    pub fn connect_blocking(options: ClientOptions) -> Result<Self, BootstrapError> {
        block_on("connect to the store", Self::connect(options))
    }

    /// [`Store::set`] for a plain thread.
    pub fn set_blocking(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<(), BootstrapError> {
        block_on("set", self.set(key, value))
    }

    /// [`Store::add`] for a plain thread.
    pub fn add_blocking(&self, key: &str, amount: i64) -> Result<i64, BootstrapError> {
        block_on("add", self.add(key, amount))
    }

    /// [`Store::get`] for a plain thread.
    pub fn get_blocking(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, BootstrapError> {
        block_on("get", self.get(key, deadline))
    }

    /// [`Store::wait`] for a plain thread.
    pub fn wait_blocking(&self, keys: &[&str], deadline: Duration) -> Result<Vec<Vec<u8>>, BootstrapError> {
        block_on("wait for keys", self.wait(keys, deadline))
    }

    /// [`Store::delete`] for a plain thread.
    pub fn delete_blocking(&self, key: &str) -> Result<bool, BootstrapError> {
        block_on("delete", self.delete(key))
    }

    /// [`Store::delete_prefix`] for a plain thread.
    pub fn delete_prefix_blocking(&self, prefix: &str) -> Result<u64, BootstrapError> {
        block_on("delete keys with a prefix", self.delete_prefix(prefix))
    }
}
