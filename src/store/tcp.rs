//! The store of a rendezvous server, over its connection.

use super::Store;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::driver::{Client, ClientOptions, block_on};

impl Store {
    /// Connects to the store of a rendezvous server, without being a member of its run.
    ///
    /// Errors: as [`Client::connect`].
    pub async fn connect(options: ClientOptions) -> Result<Self, BootstrapError> {
        Client::connect(options).await.map(Self::new)
    }

    /// [`Store::connect`] for a plain thread.
    ///
    /// Errors: as there, and [`BootstrapError::BlockingInAsync`] on a thread of an async runtime.
    pub fn connect_blocking(options: ClientOptions) -> Result<Self, BootstrapError> {
        block_on("connect to the store", Self::connect(options))
    }
}
