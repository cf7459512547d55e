//! The communicator itself, as its clones, its works and its subsets share it.

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use super::call::Calls;
use super::config::{CommConfig, CommPlan};
use super::memory::CommBuffer;
use super::number::Number;
use super::subset::Subsets;
use super::work::Work;
use crate::config::Device;
use crate::error::Result;
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::peers::{LONGEST_LOOK, Setting, Watched, Watcher};
use crate::{ffi, observe};

/// A rank's end of a communicator: collectives, and sends and receives, among the ranks of a group. Cheap to clone; clones share
/// it. `Send` and `Sync`: any thread may call. See the [module](super).
#[derive(Debug, Clone)]
pub struct Comm {
    pub(super) inner: Arc<Inner>,
    /// Of its operations, where it is not the configuration's.
    deadline: Option<Duration>,
}

impl Comm {
    /// A communicator that knows nobody yet, for programs that carry blobs by means of their own: [`Comm::export`] on every rank,
    /// [`Comm::connect`] on every other, then [`Comm::set_active`]. Allocates the window; waits for nobody.
    ///
    /// # Errors
    /// As of [`CommConfig::plan`], and as of [`EpBuffer::unconnected`](crate::EpBuffer::unconnected).
    pub fn unconnected(rank: u32, ranks: u32, config: CommConfig) -> Result<Self> {
        Self::made(rank, ranks, config, Setting::alone(rank)?).map(Self::of)
    }

    pub(super) fn of(inner: Arc<Inner>) -> Self {
        Self { inner, deadline: None }
    }

    pub(super) fn made(
        rank: u32,
        ranks: u32,
        mut config: CommConfig,
        setting: Setting,
    ) -> Result<Arc<Inner>> {
        config.paths = setting.paths(rank, config.paths)?;
        let plan = config.plan(ranks)?;
        let fabric = setting.fabric(rank, config.paths, Device::Host)?;
        let ffi = Arc::new(ffi::Comm::create(&config.to_c(rank, ranks), fabric)?);
        observe::describe();
        let (watcher, subsets) = (Watcher::default(), Mutex::new(Subsets::default()));
        Ok(Arc::new(Inner { watcher, ffi, rank, config, plan, setting, subsets, parent: None }))
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Ranks of it, with those that are no members now.
    pub fn ranks(&self) -> u32 {
        self.inner.plan.ranks
    }

    /// The configuration.
    pub fn config(&self) -> &CommConfig {
        &self.inner.config
    }

    /// The sizes that follow from it.
    pub fn plan(&self) -> &CommPlan {
        &self.inner.plan
    }

    /// The same communicator with another deadline for its operations, at least that of the [configuration](CommConfig::deadline):
    /// peers bear with this rank as long, and need not use the same. A shorter one, or one past a day, is refused by the
    /// operations.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { inner: self.inner.clone(), deadline: Some(deadline) }
    }

    /// Memory of the window for `len` elements, zeros, out of [`CommConfig::heap_bytes`]: peers on this host read it with no
    /// copy on the way.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) where that does not suffice.
    pub fn alloc<T: Number>(&self, len: usize) -> Result<CommBuffer<T>> {
        CommBuffer::zeroed(&self.inner.ffi, self.rank(), len)
    }

    /// Whether something that has ended since the last such call was incomplete: an outcome was degraded, work was dropped, or
    /// ranks had called different operations. Complete here does not mean complete everywhere: a program that commits what a
    /// step has computed hands this to the [checkpoint](crate::EpBuffer::checkpoint) of a buffer by
    /// [`EpBuffer::fault`](crate::EpBuffer::fault).
    pub fn take_fault(&self) -> Result<bool> {
        self.inner.ffi.take_fault()
    }

    /// Begins a call, or several that progress together, with buffers that it owns until it has ended. What is wrong with it, the
    /// [`Work`] tells when it is awaited: it has done nothing then. Never waits.
    pub fn begin<C: Calls + Send + 'static>(&self, calls: C) -> Work<C::Buffers> {
        Work::begin(&self.inner, calls, self.deadline)
    }

    /// Carries out a call, or several that progress together, on this thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) and [`Error::Limit`](crate::Error::Limit) for what cannot be;
    /// [`Error::State`](crate::Error::State) without a membership; [`Error::Mismatch`](crate::Error::Mismatch) where ranks have
    /// called different operations.
    pub fn run_blocking<C: Calls>(&self, mut calls: C) -> Result<Outcome> {
        let observed = Observed::begin(calls.name(), self.inner.rank);
        let ended = self.inner.lower(&mut calls).and_then(|lowered| {
            let mut outcome = ffi::empty_outcome();
            // SAFETY: `lower` has checked all sizes; the memory is that of `calls`, which stays where it is until this returns.
            unsafe { self.inner.ffi.run(&lowered.ops, self.deadline, &mut outcome) }?;
            Outcome::of(&*self.inner.ffi, &outcome)
        });
        observed.end(ended, |outcome| outcome)
    }
}

/// What the clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: its thread ends before the last owner of the C communicator goes.
    watcher: Watcher,
    pub(super) ffi: Arc<ffi::Comm>,
    pub(super) rank: u32,
    pub(super) config: CommConfig,
    pub(super) plan: CommPlan,
    pub(super) setting: Setting,
    /// Those that follow this one.
    pub(super) subsets: Mutex<Subsets>,
    /// Whom a subset follows.
    #[expect(dead_code, reason = "keeps it alive, by which the group reaches this one")]
    parent: Option<Arc<Self>>,
}

impl Inner {
    /// Of a subset, before anybody else knows it.
    pub(super) fn below(self: Arc<Self>, parent: &Arc<Self>) -> Arc<Self> {
        match Arc::try_unwrap(self) {
            Ok(inner) => Arc::new(Self { parent: Some(parent.clone()), ..inner }),
            Err(shared) => shared,
        }
    }

    /// Has the task polled again when the work may go on.
    pub(super) fn wake_later(&self, work: u64, waker: &Waker) {
        let longest = (self.config.deadline / 4).min(LONGEST_LOOK);
        match self.watcher.start(&self.ffi, longest) {
            Ok(()) => self.watcher.wake_later(work, waker),
            // No thread to watch with: stay live by asking to be polled again.
            Err(_) => waker.wake_by_ref(),
        }
    }
}

impl Watched for ffi::Comm {
    fn sleep(&self, handles: &[u64], longest: Duration) {
        // Collectives end in the order of their calls.
        let _ = handles.iter().min().map(|work| ffi::Comm::sleep(self, *work, longest));
    }

    fn is_over(&self, _: u64) -> bool {
        true // nobody tends a work
    }
}
