//! What a group asks of the buffers that were created with it.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use crate::cause::Cause;
use crate::error::Result;
use crate::mask::Mask;
use crate::rendezvous::wire::Decision;

/// What follows the membership of a group: a buffer, or a communicator.
pub(crate) trait Follower: Send + Sync + Debug {
    /// Puts the membership into effect, between two steps. Called again with the same one if another follower failed.
    /// May wait for work that was enqueued before, within its deadline.
    fn begin(&self, decision: &Decision) -> Result<()>;
    /// Ends waits for these peers, which are not in the next membership. Does not wait.
    fn revoke(&self, peers: &Mask, why: Cause) -> Result<()>;
    /// The peers given up in the current epoch.
    fn given_up(&self) -> Result<GivenUp>;
    /// The experts that these ranks hold, as ascending ids; none for a follower without experts.
    fn experts(&self, ranks: &Mask) -> Option<Vec<Range<u32>>>;
    /// Whether a peer has begun this epoch, although this rank has not.
    fn is_overtaken(&self, epoch: u32) -> bool;
    /// The ranks that have begun this epoch at a step other than this one, including this rank itself.
    fn diverged(&self, epoch: u32, step: u64) -> Mask;
    /// Whether the peer answers within `timeout` on the path that rows take; for this rank itself, whether its device
    /// does.
    fn reaches(&self, peer: u32, timeout: Duration) -> bool;
    /// What the peer needs to connect with this one.
    fn export(&self, peer: u32) -> Result<Vec<u8>>;
    /// Connects a peer that is not active, using what it has exported; operations may be running.
    fn connect(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()>;
}

/// The peers that a follower has given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenUp {
    /// The epoch that this holds for.
    pub(crate) epoch: u32,
    pub(crate) peers: Mask,
    /// Those peers that were silent for a whole deadline.
    pub(crate) silent: Mask,
}
