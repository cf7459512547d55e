//! What a dispatch leaves behind.
//!
//! C touches the memory of an operation only inside calls on its routing, which has exactly one owner. So leaking a
//! half (`mem::forget`) does not endanger memory: its lane just stays occupied until the routing is dropped.

use std::fmt;
use std::sync::{Arc, Weak};

use super::buffer::{Inner, PrefillBuffer};
use super::output::{PrefillLayout, Shape};
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Progress};
use crate::sys;

/// What a dispatch has found out about which rows go where and where they lie. With it, experts' outputs are combined,
/// any number of times and with any width, and other rows can be dispatched in the same way without counting. Valid for
/// the membership of its dispatch; [`PrefillBuffer::dispatch_into`] fills it again, in its memory.
///
/// Dropping it gives up an operation that is under way. What peers still send this rank in that operation is taken and
/// dropped by the process's progress thread, which waits for them at most a deadline, and gives nobody up. Otherwise it leaves no
/// obligation towards peers: they wait for this rank only in operations that they call and this rank does not.
#[derive(Debug)]
pub struct Routing {
    of: Weak<Inner>,
    pub(super) ffi: ffi::Routing,
    /// Of the last call that was not refused, so that it is the C core's as long as that deems the routing filled.
    pub(super) shape: Shape,
}

impl Drop for Routing {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// How many rows will be received.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Received {
    /// The capacity that holds all of them in the layout asked for.
    pub capacity: usize,
    /// `[local_experts]` rows of each expert.
    pub counts: Vec<u32>,
    /// `[ranks]` rows from each source; each token counts once.
    pub source_counts: Vec<u32>,
}

/// `a capacity of 512; rows by expert [12, 0], by source [4, 8]`.
impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, counts, source_counts } = self;
        write!(f, "a capacity of {capacity}; rows by expert {counts:?}, by source {source_counts:?}")
    }
}

impl PrefillBuffer {
    pub(super) fn check_own(&self, routing: &Routing) -> Result<()> {
        self.inner.host("routing")?;
        if routing.ffi.is_of(&self.inner.ffi) {
            return Ok(());
        }
        let text = "the routing is of another prefill buffer".to_owned();
        Err(Error::Invalid(Failure::new("routing", self.inner.rank, text)))
    }
}

impl Routing {
    /// An empty one, to be filled by [`PrefillBuffer::dispatch_into`] and the like. The first dispatch allocates its memory
    /// ([`routing_bytes`](super::PrefillPlan::routing_bytes) for as many tokens as the buffer takes, and more for rows
    /// that come); later ones allocate only what they need beyond that.
    ///
    /// # Errors
    ///
    /// [`Error::State`] for a buffer on a GPU, whose routings are [`cuda::Routing`](crate::cuda::Routing);
    /// [`Error::NoMemory`].
    pub fn new(buffer: &PrefillBuffer) -> Result<Self> {
        Self::empty(buffer, "routing")
    }

    /// Empty, for an operation of this name; fails for a buffer on a GPU.
    pub(super) fn empty(buffer: &PrefillBuffer, operation: &str) -> Result<Self> {
        buffer.inner.host(operation)?;
        let (of, shape) = (Arc::downgrade(&buffer.inner), Shape::default());
        Ok(Self { of, ffi: ffi::Routing::new(&buffer.inner.ffi)?, shape })
    }

    /// Gives up the operation that is under way, if there is one.
    pub(super) fn give_up(&mut self) {
        self.ffi.cancel();
        if let Some(inner) = self.of.upgrade() {
            inner.tend(self.ffi.lane());
        }
    }

    /// A dispatch of this shape, see [`ffi::Routing::dispatch`].
    ///
    /// # Safety
    ///
    /// That of the function named.
    pub(super) unsafe fn dispatch(
        &mut self,
        shape: Shape,
        input: &sys::epw_dispatch_input,
        how: (u32, u32),
        output: Option<&sys::epw_prefill_output>,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        let progress = unsafe { self.ffi.dispatch(input, how, output, Some(outcome)) }?;
        self.shape = shape;
        Ok(progress)
    }

    /// The receiving half, with the shape that it leaves, see [`ffi::Routing::receive`].
    ///
    /// # Safety
    ///
    /// That of the function named.
    pub(super) unsafe fn receive(
        &mut self,
        shape: Shape,
        output: &sys::epw_prefill_output,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        let progress = unsafe { self.ffi.receive(output, Some(outcome)) }?;
        self.shape = shape;
        Ok(progress)
    }

    /// How many rows were received, and which capacity this layout would have needed for them.
    pub fn received(&self, buffer: &PrefillBuffer, layout: PrefillLayout) -> Result<Received> {
        buffer.check_own(self)?;
        Received::of(&self.ffi, &buffer.inner, layout)?.ok_or_else(|| {
            let text = "not all counts have arrived: use dispatch_count_blocking to wait for them";
            Error::State(Failure::new("received", buffer.inner.rank, text))
        })
    }
}

impl Received {
    /// `None`: not all counts have arrived.
    pub(crate) fn of(routing: &ffi::Routing, inner: &Inner, layout: PrefillLayout) -> Result<Option<Self>> {
        let mut counts = vec![0; inner.plan.local_experts as usize];
        let mut source_counts = vec![0; inner.plan.ranks as usize];
        let (progress, rows) = routing.received(layout.to_c(), &mut counts, &mut source_counts)?;
        let capacity = usize::try_from(rows).unwrap_or(usize::MAX);
        Ok((progress == Progress::Done).then_some(Self { capacity, counts, source_counts }))
    }
}
