//! The buffer itself: its creation, its connections, and how it follows the membership.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::config::{PrefillConfig, PrefillPlan};
use crate::cause::Cause;
use crate::config::{Device, Path};
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Floor, Watched};
use crate::group::{Follower, GivenUp, Group, held_by};
use crate::mask::Mask;
use crate::outcome::{Outcome, Reader};
use crate::peers::{self, End, Membership, Setting, Waits, present};
use crate::rendezvous::Decision;
use crate::spawn_blocking::spawn_blocking;
use crate::traffic::Traffic;
use crate::{observe, sys};

/// Sends many tokens at a time to the ranks that own their experts (dispatch) and returns the experts' outputs, summed
/// with the weights (combine), through rings whose memory does not grow with the tokens. Each rank has one, and all ranks
/// [create](PrefillBuffer::create) theirs together, with the group. See the [module](super).
///
/// Cheap to clone; clones share it. `Send` and `Sync`: different threads may use different lanes at the same time, each
/// with one operation.
///
/// On a GPU ([`EpConfig::device`](crate::EpConfig::device)) operations are enqueued instead, see
/// [`cuda`](crate::cuda#prefill). A buffer on the host refuses the calls for GPUs with [`Error::State`], and a buffer
/// on a GPU refuses those for the host.
#[derive(Debug, Clone)]
pub struct PrefillBuffer {
    pub(crate) inner: Arc<Inner>,
}

/// What the clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: the progress thread leaves the buffer before its last owner drops it.
    pub(crate) waits: Waits,
    pub(crate) ffi: Arc<ffi::Prefill>,
    pub(crate) rank: u32,
    pub(crate) config: PrefillConfig,
    pub(crate) plan: PrefillPlan,
    told: observe::Told,
}

impl Inner {
    fn made(rank: u32, ranks: u32, mut config: PrefillConfig, setting: Setting) -> Result<Arc<Self>> {
        observe::describe();
        config.ep.paths = setting.paths(rank, config.ep.paths)?;
        let plan = PrefillPlan::new(&config, ranks)?;
        let fabric = setting.fabric(rank, config.ep.paths, config.ep.device)?;
        let ffi = Arc::new(ffi::Prefill::create(&config.to_c(rank, ranks), fabric)?);
        let told = observe::Told::of("prefill", config.ep.device != Device::Host);
        Ok(Arc::new(Self { waits: Waits::default(), ffi, rank, config, plan, told }))
    }

    /// The outcome of an operation that has ended; its traffic is added to the metrics.
    pub(crate) fn ended(&self, outcome: &sys::epw_outcome, reader: Reader) -> Result<Outcome> {
        self.tell();
        Outcome::of(&*self.ffi, outcome, reader)
    }

    /// Adds the traffic to the metrics. On a GPU this may wait for a copy.
    pub(crate) fn tell(&self) {
        self.told.tell(&*self.ffi, self.rank, self.plan.ranks);
    }

    /// Refuses a call that has another form for buffers on GPUs.
    pub(super) fn host(&self, operation: &str) -> Result<()> {
        if self.config.ep.device == Device::Host {
            return Ok(());
        }
        let text = "the buffer is on a GPU: enqueue the operation with a method whose name begins with `enqueue`, see epwire::cuda";
        Err(Error::State(Failure::new(operation, self.rank, text)))
    }

    /// Before an operation that is awaited, see [`Waits::start`].
    pub(crate) fn start_waits(&self) -> Result<()> {
        self.waits.start("prefill", self.rank, &self.ffi, self.config.ep.deadline)
    }

    /// After an operation was given up on this lane: the progress thread continues it until no peer is in it any
    /// more, or one has not come for a deadline.
    /// Without such a thread the lane's next call does.
    pub(super) fn tend(&self, lane: u32) {
        let lane = u64::from(lane);
        if !self.ffi.tend(lane) && self.start_waits().is_ok() {
            self.waits.tend_alone(lane);
        }
    }
}

impl PrefillBuffer {
    /// Creates the buffer of every member of `group` and connects them, as
    /// [`EpBuffer::create`](crate::EpBuffer::create) does. All members create what belongs to the group in the same
    /// order. From then on the buffer follows the group, with the same steps as its other buffers. Never blocks the
    /// executor.
    pub async fn create(group: &Group, config: PrefillConfig) -> Result<Self> {
        let (rank, world, setting) = (group.rank(), group.world(), Setting::of(group));
        let fields = config.fields();
        let make = move || Inner::made(rank, world, config, setting);
        Ok(Self::following(peers::meet(group, "prefill buffer", fields, make).await?, group))
    }

    /// [`PrefillBuffer::create`] for a plain thread. Not for a thread that serves an async executor.
    pub fn create_blocking(group: &Group, config: PrefillConfig) -> Result<Self> {
        let (rank, world, setting) = (group.rank(), group.world(), Setting::of(group));
        let fields = config.fields();
        let make = move || Inner::made(rank, world, config, setting);
        Ok(Self::following(peers::meet_blocking(group, "prefill buffer", fields, make)?, group))
    }

    fn following(inner: Arc<Inner>, group: &Group) -> Self {
        let follower: Weak<Inner> = Arc::downgrade(&inner);
        group.follow(follower);
        Self { inner }
    }

    /// A buffer without connections, as [`EpBuffer::unconnected`](crate::EpBuffer::unconnected), for programs that
    /// carry blobs by means of their own.
    pub fn unconnected(rank: u32, ranks: u32, config: PrefillConfig) -> Result<Self> {
        Ok(Self { inner: Inner::made(rank, ranks, config, Setting::alone(rank)?)? })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.inner.plan.ranks
    }

    /// The configuration.
    pub fn config(&self) -> &PrefillConfig {
        &self.inner.config
    }

    /// The sizes that follow from it.
    pub fn plan(&self) -> &PrefillPlan {
        &self.inner.plan
    }

    /// What `peer` needs to reach this rank's window, to be passed to its [`PrefillBuffer::connect`]. Does not wait.
    pub fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.inner.ffi.export(peer)
    }

    /// Maps the window that `peer` exported for this rank: as [`EpBuffer::connect`](crate::EpBuffer::connect), with the
    /// same errors. Never blocks the executor.
    pub async fn connect(&self, peer: u32, blob: &[u8]) -> Result<()> {
        let (inner, blob) = (self.inner.clone(), blob.to_vec());
        let connect = move || inner.ffi.connect(peer, &blob, inner.config.ep.deadline);
        spawn_blocking("connect", self.rank(), connect).await
    }

    /// [`PrefillBuffer::connect`] on this thread. Not for a thread that serves an async executor.
    pub fn connect_blocking(&self, peer: u32, blob: &[u8]) -> Result<()> {
        self.inner.ffi.connect(peer, blob, self.inner.config.ep.deadline)
    }

    /// Unmaps the window of a peer that is not active, as [`EpBuffer::disconnect`](crate::EpBuffer::disconnect) does.
    pub fn disconnect(&self, peer: u32) -> Result<()> {
        self.inner.ffi.disconnect(peer)
    }

    /// Checks that the path to `peer` carries words in both directions and that its process is alive: as
    /// [`EpBuffer::probe`](crate::EpBuffer::probe). Never blocks the executor.
    pub async fn probe(&self, peer: u32, timeout: Duration) -> Result<()> {
        let inner = self.inner.clone();
        spawn_blocking("probe", self.rank(), move || inner.ffi.probe(peer, timeout)).await
    }

    /// [`PrefillBuffer::probe`] on this thread. Not for a thread that serves an async executor.
    pub fn probe_blocking(&self, peer: u32, timeout: Duration) -> Result<()> {
        self.inner.ffi.probe(peer, timeout)
    }

    /// The path by which `peer` is reached.
    pub fn path(&self, peer: u32) -> Path {
        Path::from_c(self.inner.ffi.path(peer), self.inner.ffi.wire(peer))
    }

    /// For display only: why the queues to `peer` carry nothing any more ([`Cause::Link`](crate::Cause::Link)), and a
    /// remedy, until it is connected again. `None` if they work, or if its path is not a queue. Programs must not parse
    /// it.
    pub fn trouble(&self, peer: u32) -> Option<String> {
        self.inner.ffi.trouble(peer)
    }

    /// For messages: what drives this rank's queues. `None` if the configuration permits no queues.
    pub fn nic(&self) -> Option<String> {
        self.inner.ffi.nic()
    }

    /// Begins a membership: as [`EpBuffer::set_active`](crate::EpBuffer::set_active), with no operation in flight.
    /// Routings of the previous membership become invalid.
    pub fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
        self.inner.ffi.set_active(active, epoch, step)
    }

    /// Tells the buffer that the group continues without these ranks: as [`EpBuffer::revoke`](crate::EpBuffer::revoke).
    pub fn revoke(&self, ranks: &Mask) -> Result<()> {
        self.inner.ffi.revoke(ranks, Cause::Revoked)
    }

    /// The current membership, and what has become of it.
    pub fn membership(&self) -> Result<Membership> {
        Membership::of(&*self.inner.ffi)
    }

    /// For every expert, whether its rank is active and this buffer has not given it up: as
    /// [`EpBuffer::reachable_experts`](crate::EpBuffer::reachable_experts).
    pub fn reachable_experts(&self) -> Result<Vec<bool>> {
        let Membership { active, suspects, .. } = self.membership()?;
        let (reached, experts) = (active.minus(&suspects), self.inner.config.ep.experts);
        Ok((0..experts).map(|expert| reached.contains(expert / (experts / self.ranks()))).collect())
    }

    /// Whether any operation that has ended since the last such call was incomplete, to be passed to
    /// [`EpBuffer::fault`](crate::EpBuffer::fault): as [`Comm::take_fault`](crate::Comm::take_fault).
    pub fn take_fault(&self) -> Result<bool> {
        self.inner.ffi.take_fault()
    }

    /// What this rank has sent and received through this buffer, and how long it has waited for each peer: as
    /// [`EpBuffer::traffic`](crate::EpBuffer::traffic), but with times waited on GPUs too. A split operation counts
    /// when its second half has ended; on a GPU what each half has moved counts when that half has ended.
    pub fn traffic(&self) -> Result<Traffic> {
        self.inner.ffi.traffic(self.ranks())
    }
}

impl End for Inner {
    fn exported(&self) -> Result<Vec<Vec<u8>>> {
        peers::exported(&*self.ffi, self.rank, self.plan.ranks)
    }

    fn connect_present(&self, blobs: &[Vec<u8>]) -> Result<()> {
        peers::connect_all(&*self.ffi, self.rank, self.config.ep.deadline, present(blobs))
    }
}

impl Follower for Inner {
    fn begin(&self, decision: &Decision) -> Result<()> {
        peers::begin(&*self.ffi, decision)
    }

    fn revoke(&self, peers: &Mask, why: Cause) -> Result<()> {
        self.ffi.revoke(peers, why)
    }

    fn given_up(&self) -> Result<GivenUp> {
        peers::given_up(&*self.ffi)
    }

    fn experts(&self, ranks: &Mask) -> Option<Vec<Range<u32>>> {
        Some(held_by(ranks, self.plan.ranks, self.config.ep.experts))
    }

    fn is_overtaken(&self, epoch: u32) -> bool {
        peers::is_overtaken(&*self.ffi, epoch)
    }

    fn diverged(&self, epoch: u32, step: u64) -> Mask {
        peers::diverged(&*self.ffi, epoch, step)
    }

    fn reaches(&self, peer: u32, timeout: Duration) -> bool {
        peers::reaches(&*self.ffi, peer, timeout)
    }

    fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.ffi.export(peer)
    }

    fn connect(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()> {
        self.ffi.connect(peer, blob, timeout)
    }
}
