//! What a group asks of the buffers that were created with it.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use crate::error::Result;
use crate::mask::Mask;
use crate::rendezvous::wire::Decision;

/// What follows the membership of a group: a buffer, or a communicator.
pub(crate) trait Follower: Send + Sync + Debug {
    /// Puts the membership into effect, between two steps; again, if another follower could not. May wait for what was enqueued
    /// before, within its deadline.
    fn begin(&self, decision: &Decision) -> Result<()>;
    /// Ends waits for these peers, which belong to the next membership no more. Waits for nobody.
    fn revoke(&self, peers: &Mask) -> Result<()>;
    /// The peers given up in the present epoch.
    fn given_up(&self) -> Result<GivenUp>;
    /// The experts that these ranks hold, by id, ascending; none of a follower that knows no experts.
    fn experts(&self, ranks: &Mask) -> Option<Vec<Range<u32>>>;
    /// Whether a peer has begun this epoch, which this one has not.
    fn is_overtaken(&self, epoch: u32) -> bool;
    /// Who has begun this epoch at another step than this one, this rank included.
    fn diverged(&self, epoch: u32, step: u64) -> Mask;
    /// Whether the peer answers within `timeout` by the way that rows take; of this rank itself, whether its device does.
    fn reaches(&self, peer: u32, timeout: Duration) -> bool;
    /// What the peer needs to connect with this one.
    fn export(&self, peer: u32) -> Result<Vec<u8>>;
    /// Connects a peer that is not active, beside operations, with what it has exported.
    fn connect(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()>;
}

/// Whom a follower goes on without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenUp {
    /// In this epoch.
    pub(crate) epoch: u32,
    pub(crate) peers: Mask,
    /// Those of them that were silent for a deadline.
    pub(crate) silent: Mask,
}
