//! The communicator itself, and its basic functions.

use std::sync::Arc;
use std::time::Duration;

use super::call::Calls;
use super::config::{CommConfig, CommPlan};
use super::inner::Inner;
use super::memory::{CommBuffer, GpuBuffer};
use super::number::Number;
use super::work::Work;
use crate::error::Result;
use crate::ffi::{self, Floor};
use crate::observe::Observed;
use crate::outcome::Outcome;
use crate::peers::Setting;
use crate::traffic::Traffic;

/// One rank's side of a communicator: collectives, sends and receives among the ranks of a group. Cheap to clone;
/// clones share it. `Send` and `Sync`: any thread may call. See the [module](super).
#[derive(Debug, Clone)]
pub struct Comm {
    pub(super) inner: Arc<Inner>,
    /// For its operations, if it is not the configuration's.
    deadline: Option<Duration>,
}

impl Comm {
    /// A communicator that is not connected, for programs that distribute blobs by their own means: call
    /// [`Comm::export`] on every rank, [`Comm::connect`] on every other rank, then [`Comm::set_active`]. Allocates the
    /// window; waits for nobody.
    ///
    /// # Errors
    /// Those of [`CommConfig::plan`], and of [`EpBuffer::unconnected`](crate::EpBuffer::unconnected).
    pub fn unconnected(rank: u32, ranks: u32, config: CommConfig) -> Result<Self> {
        Inner::made(rank, ranks, config, Setting::alone(rank)?).map(Self::of)
    }

    pub(super) fn of(inner: Arc<Inner>) -> Self {
        Self { inner, deadline: None }
    }

    /// For its operations, if it is not the configuration's.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// The number of its ranks, including those that are not members now.
    pub fn ranks(&self) -> u32 {
        self.inner.plan.ranks
    }

    /// The configuration.
    pub fn config(&self) -> &CommConfig {
        &self.inner.config
    }

    /// The sizes that follow from the configuration.
    pub fn plan(&self) -> &CommPlan {
        &self.inner.plan
    }

    /// The same communicator with a longer deadline for its operations than that of the
    /// [configuration](CommConfig::deadline). Peers that wait for this rank learn of it and wait as long; they need not
    /// use the same deadline. Operations refuse one that is shorter than the configuration's or longer than a day.
    /// Creating a [subset](Comm::subset) takes it too.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { inner: self.inner.clone(), deadline: Some(deadline) }
    }

    /// Memory of the window for `len` elements, zeroed, from [`CommConfig::heap_bytes`]: peers on this host read it
    /// without an intermediate copy and without a system call, see [Memory](super#memory).
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) if there is not enough left; [`Error::State`](crate::Error::State) on a
    /// GPU.
    pub fn alloc<T: Number>(&self, len: usize) -> Result<CommBuffer<T>> {
        self.inner.require_heap_of_host()?;
        CommBuffer::zeroed(&self.inner.ffi, self.rank(), len)
    }

    /// The same on a GPU: memory that peers read without an intermediate copy, see [Memory](super#memory). All of it is
    /// zero when the communicator is created; memory that is freed and allocated again keeps its contents.
    /// [`Comm::register`] makes the program's own memory readable in the same way.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) if [`CommConfig::heap_bytes`] does not suffice;
    /// [`Error::State`](crate::Error::State) on the host.
    pub fn alloc_gpu(&self, bytes: usize) -> Result<GpuBuffer> {
        self.inner.require_heap_of_gpu()?;
        GpuBuffer::of(&self.inner.ffi, bytes)
    }

    /// Whether something that has ended since the last call of this was incomplete: an outcome was degraded, work was
    /// dropped, or ranks had called different operations. Complete on this rank does not mean complete everywhere: a
    /// program that commits the results of a step passes this to the [checkpoint](crate::EpBuffer::checkpoint) of a
    /// buffer by [`EpBuffer::fault`](crate::EpBuffer::fault).
    pub fn take_fault(&self) -> Result<bool> {
        self.inner.ffi.take_fault()
    }

    /// What this rank has sent and received, and how long it has waited for each peer: all bytes that go from rank to
    /// rank, which for an all-reduce are more than its own. Communicates with nobody and waits for nobody.
    ///
    /// On a GPU it counts calls that are not captured, when they are enqueued and as if no rank were missing, and no
    /// waits.
    pub fn traffic(&self) -> Result<Traffic> {
        self.inner.ffi.traffic(self.ranks())
    }

    /// Begins a call, or several that progress together, with buffers that it owns until it has ended. Never waits. An
    /// invalid call does nothing; the [`Work`] returns the error when it is awaited.
    pub fn begin<C: Calls + Send + 'static>(&self, calls: C) -> Work<C::Buffers> {
        Work::begin(&self.inner, calls, self.deadline)
    }

    /// Runs a call, or several that progress together, on this thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) and [`Error::Limit`](crate::Error::Limit) for invalid arguments;
    /// [`Error::State`](crate::Error::State) without a membership; [`Error::Mismatch`](crate::Error::Mismatch) if ranks
    /// have called different operations.
    pub fn run_blocking<C: Calls>(&self, mut calls: C) -> Result<Outcome> {
        let observed = Observed::begin(calls.name(), self.inner.rank);
        let ended = self.inner.lower(&mut calls).and_then(|lowered| {
            let mut outcome = ffi::empty_outcome();
            // SAFETY: `lower` has checked all sizes; the memory is that of `calls`, which stays where it is until this returns.
            unsafe { self.inner.ffi.run(&lowered.ops, self.deadline, &mut outcome) }?;
            self.inner.ended(&outcome)
        });
        observed.end(ended, |outcome| outcome)
    }
}
