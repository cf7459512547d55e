//! An `epw_prefill` and an `epw_routing` as owned values.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::awaited::Watched;
use super::fabric::Fabric;
use super::floor::floor;
use super::known::Known;
use super::records;
use super::status::{Progress, c_mask, check, check_of_group, error, initialised, nanos, place};
use super::streams::Streams;
use crate::error::Result;
use crate::mask::Mask;
use crate::sys;

/// An `epw_prefill`. Dropping this value destroys it, and then the fabric that it uses, if nothing else does.
#[derive(Debug)]
pub(crate) struct Prefill(
    NonNull<sys::epw_prefill>,
    /// Dropped after the buffer.
    Option<Arc<Fabric>>,
    /// The suspects that the program knows of.
    Known,
    /// Dropped after the C object, unless the process keeps that.
    Streams,
    /// On a GPU.
    Option<Mutex<Spare>>,
);

/// Routings of a buffer on a GPU that have no owner any more.
#[derive(Debug, Default)]
struct Spare {
    /// Reused by later dispatches, which then need not allocate: CUDA may wait for the GPU in an allocation.
    free: Vec<NonNull<sys::epw_routing>>,
    /// Graphs may use their memory as long as the buffer exists.
    captured: Vec<NonNull<sys::epw_routing>>,
}

/// The most free ones that are kept.
const SPARE_ROUTINGS: usize = 4;

// SAFETY: the C core guards the state of each lane with its lock; any thread may call.
unsafe impl Send for Prefill {}
// SAFETY: as above.
unsafe impl Sync for Prefill {}

impl Drop for Prefill {
    fn drop(&mut self) {
        if let Some(spare) = &mut self.4 {
            let Spare { free, captured } = spare.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: created by epw_routing_create of this buffer; this is their only owner.
            free.drain(..)
                .chain(captured.drain(..))
                .for_each(|at| unsafe { sys::epw_routing_free(at.as_ptr()) });
        }
        // SAFETY: created by epw_prefill_create. Routings hold it, so all of them are gone, and this is the last owner.
        if !unsafe { sys::epw_prefill_try_destroy(self.0.as_ptr()) } {
            self.3.leak(); // the process keeps it, because kernels may still run
        }
    }
}

floor!(Prefill: epw_prefill_export, epw_prefill_connect_within, epw_prefill_disconnect, epw_prefill_probe, epw_prefill_path,
    epw_prefill_wire, epw_prefill_trouble, epw_prefill_set_active, epw_prefill_revoke, epw_prefill_membership, epw_prefill_suspects, epw_prefill_newest_epoch,
    epw_prefill_diverged, epw_prefill_traffic);

/// The sizes of a group's buffers. They hold for every rank, so errors name none.
pub(crate) fn plan(config: &sys::epw_prefill_config) -> Result<sys::epw_prefill_sizes> {
    // SAFETY: it is one of the header's init functions.
    let mut sizes = unsafe { initialised(sys::epw_prefill_sizes_init) };
    // SAFETY: both are valid for the call, sizes carries its size.
    check_of_group(unsafe { sys::epw_prefill_plan(config, &mut sizes) })?;
    Ok(sizes)
}

pub(crate) fn empty_config() -> sys::epw_prefill_config {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_prefill_config_init) }
}

pub(crate) fn empty_output() -> sys::epw_prefill_output {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_prefill_output_init) }
}

pub(crate) fn empty_combine() -> sys::epw_prefill_combine_input {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_prefill_combine_input_init) }
}

pub(crate) fn empty_combine_output() -> sys::epw_prefill_combine_output {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_prefill_combine_output_init) }
}

/// How many tokens go to each rank, to each expert, and which goes where.
///
/// # Safety
/// `topk_idx` has `tokens * topk` ids of `idx_type`; the slices have the ranks, the experts, and tokens times ranks.
pub(crate) unsafe fn count(
    config: &sys::epw_prefill_config,
    topk_idx: *const u8,
    (idx_type, tokens, topk): (u32, u32, u32),
    rank_tokens: &mut [u32],
    expert_tokens: &mut [u32],
    in_rank: &mut [u8],
) -> Result<()> {
    let (ranks, experts, map) = (rank_tokens.as_mut_ptr(), expert_tokens.as_mut_ptr(), in_rank.as_mut_ptr());
    // SAFETY: by this function's contract.
    let status = unsafe {
        sys::epw_prefill_count(config, topk_idx.cast(), idx_type, tokens, topk, ranks, experts, map)
    };
    check(status)?;
    Ok(())
}

/// Where a count on a GPU goes; null: not wanted.
#[derive(Debug)]
pub(crate) struct EnqueuedCounts {
    pub(crate) rank_tokens: *mut u32,
    pub(crate) expert_tokens: *mut u32,
    pub(crate) in_rank: *mut u8,
    pub(crate) bad_ids: *mut u32,
}

impl Prefill {
    /// Enqueues a count on the buffer's GPU.
    ///
    /// # Safety
    /// In its memory `topk_idx` has `tokens * topk` ids of `idx_type`, and the lists have the ranks, the experts, tokens times
    /// ranks, and one, until what is enqueued has run. The stream is one of that GPU.
    pub(crate) unsafe fn enqueue_count(
        &self,
        topk_idx: *const u8,
        (idx_type, tokens, topk): (u32, u32, u32),
        to: &EnqueuedCounts,
        stream: *mut c_void,
    ) -> Result<()> {
        let &EnqueuedCounts { rank_tokens, expert_tokens, in_rank, bad_ids } = to;
        let (of, ids) = (self.0.as_ptr(), topk_idx.cast());
        // SAFETY: by this function's contract.
        check(unsafe {
            sys::epw_prefill_enqueue_count(
                of,
                ids,
                idx_type,
                tokens,
                topk,
                rank_tokens,
                expert_tokens,
                in_rank,
                bad_ids,
                stream,
            )
        })?;
        Ok(())
    }

    pub(crate) fn create(config: &sys::epw_prefill_config, fabric: Option<Arc<Fabric>>) -> Result<Self> {
        let at = fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.as_ptr());
        let ep = sys::epw_config { fabric: at, ..config.ep };
        let config = sys::epw_prefill_config { ep, ..*config };
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and the fabric is held until the buffer is destroyed.
        check(unsafe { sys::epw_prefill_create(&config, &mut out) })?;
        let spare = (config.ep.device != sys::EPW_DEVICE_HOST).then(Mutex::default);
        NonNull::new(out)
            .map(|at| Self(at, fabric, Known::new(config.ep.rank), Streams::default(), spare))
            .ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// What its fabric ended up using (NIC and transports), in words.
    pub(crate) fn nic(&self) -> Option<String> {
        self.1.as_ref().map(|fabric| fabric.describe())
    }

    /// Sleeps until an operation on the lane may make progress. Touches no caller memory.
    pub(crate) fn sleep(&self, lane: u32, timeout: Duration) -> Result<()> {
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_prefill_await(self.0.as_ptr(), lane, nanos(timeout)) })?;
        Ok(())
    }

    /// Whether any operation since the last such call was incomplete.
    pub(crate) fn take_fault(&self) -> Result<bool> {
        let mut faulted = 0;
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_prefill_take_fault(self.0.as_ptr(), &mut faulted) })?;
        Ok(faulted == 1)
    }

    /// Up to `capacity` of the records written since the last call, and how many were lost.
    pub(crate) fn take_errors(&self, capacity: u32) -> Result<(Vec<sys::epw_error_record>, u64)> {
        // SAFETY: the buffer is alive; `take` gives valid places.
        records::take(capacity, |records, size, count, lost| unsafe {
            sys::epw_prefill_take_errors(self.0.as_ptr(), records, size, capacity, count, lost)
        })
    }
}

/// An `epw_routing`, freed or given back with this value; an operation of it that is still running is given up.
#[derive(Debug)]
pub(crate) struct Routing {
    at: NonNull<sys::epw_routing>,
    of: Arc<Prefill>,
    /// A call has begun an operation.
    used: bool,
    /// A graph may contain an operation of it.
    captured: bool,
}

// SAFETY: the lane's lock guards what operations change, and `&mut` guards what calls change.
unsafe impl Send for Routing {}
// SAFETY: shared references only read.
unsafe impl Sync for Routing {}

impl Drop for Routing {
    fn drop(&mut self) {
        let of = self.of.clone();
        if let Some(spare) = &of.4
            && self.cancel()
        {
            let mut spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
            if self.captured {
                return spare.captured.push(self.at);
            } else if spare.free.len() < SPARE_ROUTINGS {
                return spare.free.push(self.at);
            }
        }
        // SAFETY: created by epw_routing_create of a buffer that is alive; this is its owner.
        unsafe { sys::epw_routing_free(self.at.as_ptr()) }
    }
}

impl Routing {
    /// An empty one. On a GPU this allocates its memory.
    pub(crate) fn new(of: &Arc<Prefill>) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: the buffer is alive, out is a place to write to.
        check(unsafe { sys::epw_routing_create(of.0.as_ptr(), &mut out) })?;
        let at = NonNull::new(out).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))?;
        Ok(Self::owning(at, of))
    }

    /// For an operation on this lane. On a GPU it may be one that the lane's last operations used: operations of a
    /// routing are kept in order, like those of the lane.
    pub(crate) fn kept_or_new(of: &Arc<Prefill>, lane: u32) -> Result<Self> {
        if let Some(spare) = &of.4 {
            let mut spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: it is alive.
            let fits = |at: &NonNull<_>| unsafe { sys::epw_routing_lane(at.as_ptr()) } == lane;
            if let Some(index) = spare.free.iter().position(fits) {
                return Ok(Self::owning(spare.free.swap_remove(index), of));
            }
        }
        Self::new(of)
    }

    fn owning(at: NonNull<sys::epw_routing>, of: &Arc<Prefill>) -> Self {
        Self { at, of: of.clone(), used: false, captured: false }
    }

    /// Called after a call. On a GPU it finds out whether calls were captured, once no half is due any more (`ends`).
    fn called(&mut self, status: sys::epw_status, ends: bool) -> Result<Progress> {
        let progress = check(status)?;
        self.used = true;
        if ends && self.of.4.is_some() {
            self.note_capture();
        }
        Ok(progress)
    }

    fn note_capture(&mut self) {
        let (of, at) = (self.of.0.as_ptr(), self.at.as_ptr());
        // SAFETY: both are alive; on a GPU it touches no memory of the operation.
        self.captured |=
            self.used && unsafe { sys::epw_prefill_poll(of, at, ptr::null_mut()) } == sys::EPW_ERR_STATE;
    }

    pub(crate) fn is_of(&self, buffer: &Arc<Prefill>) -> bool {
        Arc::ptr_eq(&self.of, buffer)
    }

    /// With an output the whole dispatch, otherwise the half that `half` names. On a GPU without an outcome: the call
    /// enqueues.
    ///
    /// # Safety
    ///
    /// The memory of `input` and `output` has the sizes that they state, until the operation has ended or this value is
    /// freed; on a GPU until what the call enqueues has run, that of `input` until the receiving half has. The stream
    /// is one of the buffer's GPU.
    pub(crate) unsafe fn dispatch(
        &mut self,
        input: &sys::epw_dispatch_input,
        (route, half): (u32, u32),
        output: Option<&sys::epw_prefill_output>,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        let (of, whole) = (self.of.0.as_ptr(), output.is_some());
        let (output, outcome) = (output.map_or(ptr::null(), ptr::from_ref), place(outcome));
        // SAFETY: by this function's contract.
        let status =
            unsafe { sys::epw_prefill_dispatch(of, self.at.as_ptr(), input, route, half, output, outcome) };
        self.called(status, whole)
    }

    /// # Safety
    /// As for `dispatch`.
    pub(crate) unsafe fn receive(
        &mut self,
        output: &sys::epw_prefill_output,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        let status =
            unsafe { sys::epw_prefill_receive(self.of.0.as_ptr(), self.at.as_ptr(), output, place(outcome)) };
        self.called(status, true)
    }

    /// The capacity that holds all rows; fills `counts`, one per local expert, and `source_counts`, one per rank.
    /// Pending: some counts have not arrived yet.
    pub(crate) fn received(
        &self,
        (layout, alignment): (u32, u32),
        counts: &mut [u32],
        source_counts: &mut [u32],
    ) -> Result<(Progress, u64)> {
        let mut rows = 0;
        let (of, at) = (self.of.0.as_ptr(), self.at.as_ptr());
        let (counts, sources) = (counts.as_mut_ptr(), source_counts.as_mut_ptr());
        // SAFETY: both are alive, and the callers in `prefill` pass slices of the plan's lengths.
        let status =
            unsafe { sys::epw_prefill_received(of, at, layout, alignment, &mut rows, counts, sources) };
        Ok((check(status)?, rows))
    }

    /// With an output the whole combine, otherwise its sending half.
    ///
    /// # Safety
    ///
    /// As for `dispatch`.
    pub(crate) unsafe fn combine(
        &mut self,
        input: &sys::epw_prefill_combine_input,
        output: Option<&sys::epw_prefill_combine_output>,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        let (of, whole) = (self.of.0.as_ptr(), output.is_some());
        let (output, outcome) = (output.map_or(ptr::null(), ptr::from_ref), place(outcome));
        // SAFETY: by this function's contract.
        let status = unsafe { sys::epw_prefill_combine(of, self.at.as_ptr(), input, output, outcome) };
        self.called(status, whole)
    }

    /// # Safety
    /// As for `dispatch`.
    pub(crate) unsafe fn collect(
        &mut self,
        output: &sys::epw_prefill_combine_output,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        let status =
            unsafe { sys::epw_prefill_collect(self.of.0.as_ptr(), self.at.as_ptr(), output, place(outcome)) };
        self.called(status, true)
    }

    /// # Safety
    ///
    /// The memory given to the operation is still valid.
    pub(crate) unsafe fn poll(&mut self, outcome: &mut sys::epw_outcome) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_prefill_poll(self.of.0.as_ptr(), self.at.as_ptr(), outcome) })
    }

    /// [`Routing::poll`] of a routing on a GPU, where it changes nothing.
    ///
    /// # Safety
    ///
    /// It is on a GPU, or as for `poll`.
    pub(crate) unsafe fn look(&self, outcome: &mut sys::epw_outcome) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_prefill_poll(self.of.0.as_ptr(), self.at.as_ptr(), outcome) })
    }

    /// On a GPU: makes `stream` wait for the last call.
    ///
    /// # Safety
    ///
    /// `stream` is one of the buffer's GPU.
    pub(crate) unsafe fn stream_wait(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract; both are alive.
        check(unsafe { sys::epw_prefill_stream_wait(self.of.0.as_ptr(), self.at.as_ptr(), stream) })?;
        Ok(())
    }

    /// The lane of the last operation.
    pub(crate) fn lane(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { sys::epw_routing_lane(self.at.as_ptr()) }
    }

    /// Gives up the running operation: its memory is not touched afterwards. Returns whether that was possible.
    pub(crate) fn cancel(&mut self) -> bool {
        // SAFETY: both are alive.
        let given_up =
            unsafe { sys::epw_prefill_cancel(self.of.0.as_ptr(), self.at.as_ptr()) == sys::EPW_OK };
        if given_up && self.of.4.is_some() {
            self.note_capture(); // the next call may be an eager one
        }
        given_up
    }
}

/// Operations are lanes: whoever waits touches no routing, because a routing may be dropped at any time.
// SAFETY: the look is that of prefill buffers, and this one lives as long as `self`; the lanes are those of its routings.
unsafe impl Watched for Prefill {
    fn look(&self) -> sys::epw_look {
        sys::epw_prefill_look
    }

    fn owner(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// Only operations that were given up are continued: they touch no memory of a caller.
    fn tend(&self, lane: u64) -> bool {
        // SAFETY: the buffer is alive, and has the lane.
        unsafe { sys::epw_prefill_tend(self.0.as_ptr(), lane as u32) != sys::EPW_PENDING }
    }
}
