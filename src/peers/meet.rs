//! How all members of a group create one end each and connect them. Connecting asks the process of the peer for its
//! window, and a stopped process does not answer until the deadline: the async forms therefore connect on a thread of
//! their own, which ends within that deadline whether or not somebody still waits for it.

use std::sync::Arc;

use crate::error::Result;
use crate::group::{Follower, Group};
use crate::spawn_blocking::spawn_blocking;

/// What the members create: a buffer or a communicator.
pub(crate) trait End: Follower + 'static {
    /// What each peer needs, by peer; empty for itself.
    fn exported(&self) -> Result<Vec<Vec<u8>>>;
    /// Connects with the peers whose blob is not empty, all within one deadline.
    fn connect_present(&self, blobs: &[Vec<u8>]) -> Result<()>;
}

type Fields = Vec<(String, String)>;

/// Creates an end, connects it with all members and begins the membership of the group; on standby it only creates it.
pub(crate) async fn meet<E: End>(
    group: &Group,
    what: &'static str,
    fields: Fields,
    make: impl FnOnce() -> Result<Arc<E>> + Send + 'static,
) -> Result<Arc<E>> {
    let rank = group.rank();
    if group.is_standby() {
        return spawn_blocking("create", rank, make).await;
    }
    let exported = move || make().and_then(|end| end.exported().map(|blobs| (end, blobs)));
    let (end, blobs) = spawn_blocking("create", rank, exported).await?;
    group.agree(what, fields).await?;
    let blobs = group.exchange(what, blobs).await?;
    let connected = end.clone();
    spawn_blocking("connect", rank, move || connected.connect_present(&blobs)).await?;
    // Nobody may send before everybody is connected: the first thing a peer reads is the epoch word that begin posts.
    group.barrier(what).await?;
    let (begun, decision) = (end.clone(), group.active());
    spawn_blocking("create", rank, move || begun.begin(&decision)).await?;
    Ok(end)
}

/// [`meet`] for a plain thread.
pub(crate) fn meet_blocking<E: End>(
    group: &Group,
    what: &'static str,
    fields: Fields,
    make: impl FnOnce() -> Result<Arc<E>>,
) -> Result<Arc<E>> {
    let end = make()?;
    if group.is_standby() {
        return Ok(end);
    }
    let blobs = end.exported()?;
    group.agree_blocking(what, fields)?;
    let blobs = group.exchange_blocking(what, blobs)?;
    end.connect_present(&blobs)?;
    group.barrier_blocking(what)?;
    end.begin(&group.active())?;
    Ok(end)
}
