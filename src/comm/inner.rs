//! The state that the clones of a communicator, its works and its subsets share; and the list of these subsets. A
//! subset is a part of its parent: whatever the parent exports, connects and begins, it does for the subset too, so
//! that the group's changes reach both at the same step.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use super::call::{Calls, Lowered, Place};
use super::config::{CommConfig, CommPlan};
use crate::config::Device;
use crate::cuda::{Gpu, Site, StreamRef};
use crate::error::{Error, Failure, Result};
use crate::mask::Mask;
use crate::outcome::{Outcome, Reader};
use crate::peers::{Setting, Waits};
use crate::{ffi, observe, sys};

/// The state that the clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Before `ffi`: the progress thread leaves the communicator before its last owner drops it.
    waits: Waits,
    _farewell: Farewell,
    pub(super) ffi: Arc<ffi::Comm>,
    pub(super) rank: u32,
    pub(super) config: CommConfig,
    pub(super) plan: CommPlan,
    pub(super) setting: Setting,
    told: observe::Told,
    /// The subsets of this communicator.
    subsets: Mutex<Subsets>,
    /// The parent of a subset, which keeps it alive: through it the group reaches this one.
    parent: Option<Arc<Self>>,
}

/// Says farewell to the peers when the last clone is dropped, though memory of the window may be kept for longer.
#[derive(Debug)]
struct Farewell(Arc<ffi::Comm>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Inner {
    pub(super) fn made(rank: u32, ranks: u32, mut config: CommConfig, setting: Setting) -> Result<Arc<Self>> {
        observe::describe();
        config.paths = setting.comm_paths(rank, config.paths, config.device)?;
        let plan = config.plan(ranks)?;
        let fabric = setting.fabric(rank, config.paths, config.device)?;
        let ffi = Arc::new(ffi::Comm::create(&config.to_c(rank, ranks), fabric)?);
        let (waits, subsets) = (Waits::default(), Mutex::new(Subsets::default()));
        let told = observe::Told::of("comm", false);
        let farewell = Farewell(ffi.clone());
        Ok(Arc::new(Self {
            waits,
            _farewell: farewell,
            ffi,
            rank,
            config,
            plan,
            setting,
            told,
            subsets,
            parent: None,
        }))
    }

    /// Adds what has been moved to the metrics.
    pub(super) fn tell_traffic(&self) {
        self.told.tell(&*self.ffi, self.rank, self.plan.ranks);
    }

    /// The outcome of calls that have ended.
    pub(super) fn ended(&self, outcome: &sys::epw_outcome) -> Result<Outcome> {
        self.tell_traffic();
        Outcome::of(&*self.ffi, outcome, Reader::Program)
    }

    /// Exchanges blocks of host memory, one for each rank, on whichever device the communicator is. Waits.
    pub(super) fn exchange(
        &self,
        mut memory: Vec<u8>,
        deadline: Option<Duration>,
    ) -> Result<(Outcome, Vec<u8>)> {
        let bytes = memory.len() / self.plan.ranks as usize;
        let mut outcome = ffi::empty_outcome();
        // SAFETY: memory has so many bytes for each rank.
        unsafe { self.ffi.exchange(&mut memory, bytes as u64, deadline, &mut outcome) }?;
        Ok((self.ended(&outcome)?, memory))
    }

    /// For host memory.
    pub(super) fn lower(&self, calls: &mut impl Calls) -> Result<Lowered> {
        if self.config.device != Device::Host {
            let text =
                "the communicator is on a GPU: enqueue the call with views of its memory, see Comm::enqueue";
            return Err(Error::State(Failure::new(calls.name(), self.rank, text)));
        }
        let mut lowered = Lowered::default();
        calls.lower(&mut lowered, Place { rank: self.rank, ranks: self.plan.ranks, site: None })?;
        Ok(lowered)
    }

    /// Where calls on this stream are enqueued.
    pub(super) fn site(&self, calls: &impl Calls<Gpu>, stream: &StreamRef<'_>) -> Result<Site> {
        let Device::Cuda(device) = self.config.device else {
            let text =
                "the communicator is on the host: run or begin the call, or create it with Device::Cuda";
            return Err(Error::State(Failure::new(calls.name(), self.rank, text)));
        };
        Site::of(&*self.ffi, calls.name(), (self.rank, device), stream)
    }

    /// For memory of the communicator's GPU, viewed for this site's stream.
    pub(super) fn lower_on(&self, calls: &mut impl Calls<Gpu>, site: &Site) -> Result<Lowered> {
        let mut lowered = Lowered::default();
        calls.lower(&mut lowered, Place { rank: self.rank, ranks: self.plan.ranks, site: Some(site) })?;
        Ok(lowered)
    }

    pub(super) fn require_heap_of_host(&self) -> Result<()> {
        self.require_heap(
            self.config.device == Device::Host,
            "the communicator is on a GPU: use Comm::alloc_gpu",
        )
    }

    pub(super) fn require_heap_of_gpu(&self) -> Result<()> {
        self.require_heap(
            self.config.device != Device::Host,
            "the communicator is on the host: use Comm::alloc",
        )
    }

    fn require_heap(&self, is_there: bool, otherwise: &str) -> Result<()> {
        if is_there { Ok(()) } else { Err(Error::State(Failure::new("alloc", self.rank, otherwise))) }
    }

    /// Makes this a subset, before anybody else knows it.
    pub(super) fn below(self: Arc<Self>, parent: &Arc<Self>) -> Arc<Self> {
        match Arc::try_unwrap(self) {
            Ok(inner) => Arc::new(Self { parent: Some(parent.clone()), ..inner }),
            Err(shared) => shared,
        }
    }

    /// Wakes the task when the work may continue.
    pub(super) fn wake_later(&self, work: u64, waker: &Waker) {
        // Without a thread it stays alive by being polled again at once.
        let _ = self.waits.start("wait", self.rank, &self.ffi, self.config.deadline);
        self.waits.wake_later(work, waker);
    }
}

/// The subsets of a communicator.
#[derive(Debug, Default)]
struct Subsets(Vec<(Mask, Weak<Inner>)>);

/// A subset that still exists.
#[derive(Debug)]
pub(super) struct Subset {
    /// From 1, among those of the same mask that still exist: a rank that replaces another one makes only these.
    pub(super) number: u32,
    /// Its ranks, in the parent's numbering.
    pub(super) mask: Mask,
    pub(super) inner: Arc<Inner>,
}

impl Subset {
    /// The subset's number of this rank of the parent, if it has the rank.
    pub(super) fn index_of(&self, rank: u32) -> Option<u32> {
        index_of(&self.mask, rank)
    }

    /// These ranks of the parent, as far as the subset has them, in the subset's numbering.
    pub(super) fn mask_of(&self, ranks: &Mask) -> Mask {
        renumbered(&self.mask, ranks)
    }

    /// These ranks of the subset, in the parent's numbering.
    pub(super) fn ranks_of(&self, indices: &Mask) -> Mask {
        (0..)
            .zip(self.mask.iter())
            .filter(|(index, _)| indices.contains(*index))
            .map(|(_, rank)| rank)
            .collect()
    }
}

pub(super) fn index_of(mask: &Mask, rank: u32) -> Option<u32> {
    mask.contains(rank).then(|| mask.iter().take_while(|other| *other < rank).count() as u32)
}

pub(super) fn renumbered(mask: &Mask, ranks: &Mask) -> Mask {
    (0..).zip(mask.iter()).filter(|(_, rank)| ranks.contains(*rank)).map(|(index, _)| index).collect()
}

impl Inner {
    /// The subsets that still exist, in the order of creation.
    pub(super) fn subsets(&self) -> Vec<Subset> {
        let subsets = self.subsets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alive: Vec<Subset> = Vec::new();
        for (mask, inner) in subsets.0.iter().filter_map(|(mask, inner)| Some((*mask, inner.upgrade()?))) {
            let number = 1 + alive.iter().filter(|other| other.mask == mask).count() as u32;
            alive.push(Subset { number, mask, inner });
        }
        alive
    }

    /// Its ranks in the numbering of the group. Empty for a subset that its parent does not know.
    pub(super) fn places(self: &Arc<Self>) -> Vec<u32> {
        let Some(parent) = &self.parent else { return (0..self.plan.ranks).collect() };
        let (places, subsets) = (parent.places(), parent.subsets());
        let found = subsets.iter().find(|subset| Arc::ptr_eq(&subset.inner, self));
        found.map_or_else(Vec::new, |subset| subset.mask.iter().map(|rank| places[rank as usize]).collect())
    }

    /// Adds a subset.
    pub(super) fn adopt(&self, mask: Mask, inner: &Arc<Self>) {
        let mut subsets = self.subsets.lock().unwrap_or_else(PoisonError::into_inner);
        subsets.0.retain(|(_, inner)| inner.strong_count() > 0);
        subsets.0.push((mask, Arc::downgrade(inner)));
    }
}
