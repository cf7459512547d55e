//! Exporting to all peers, and connecting with them one by one.

use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::ffi::Floor;

/// What each of `ranks` peers needs from this rank, by peer; empty for itself.
pub(crate) fn exported(floor: &impl Floor, rank: u32, ranks: u32) -> Result<Vec<Vec<u8>>> {
    (0..ranks).map(|peer| if peer == rank { Ok(Vec::new()) } else { floor.export(peer) }).collect()
}

/// The blobs that are not empty, with their ranks.
pub(crate) fn present(blobs: &[Vec<u8>]) -> impl Iterator<Item = (u32, &[u8])> {
    (0..).zip(blobs).filter(|(_, blob)| !blob.is_empty()).map(|(peer, blob)| (peer, blob.as_slice()))
}

/// Connects with these peers, all within one deadline.
pub(crate) fn connect_all<'a>(
    floor: &impl Floor,
    rank: u32,
    deadline: Duration,
    blobs: impl IntoIterator<Item = (u32, &'a [u8])>,
) -> Result<()> {
    let began = Instant::now();
    blobs
        .into_iter()
        .try_for_each(|(peer, blob)| floor.connect(peer, blob, left(began, deadline, rank, peer)?))
}

/// What is left of the deadline for this peer; an error if nothing is.
pub(crate) fn left(began: Instant, deadline: Duration, rank: u32, peer: u32) -> Result<Duration> {
    let left = deadline.saturating_sub(began.elapsed());
    if left.is_zero() {
        let text = format!("the peers before it took all of {deadline:?}; raise the deadline");
        let failure = Failure::new("connect", rank, text);
        return Err(Error::Timeout(Failure { peer: Some(peer), ..failure }));
    }
    Ok(left)
}
