//! An `epw_prefill` and an `epw_routing` as owned values.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use super::awaited::Awaited;
use super::fabric::Fabric;
use super::floor::floor;
use super::status::{Progress, c_mask, check, check_of_group, error, initialised, nanos};
use crate::error::Result;
use crate::mask::Mask;
use crate::sys;

/// An `epw_prefill`, destroyed with this value, and then the fabric that it uses, if nothing else does.
#[derive(Debug)]
pub(crate) struct Prefill(
    NonNull<sys::epw_prefill>,
    /// Is dropped behind the buffer.
    Option<Arc<Fabric>>,
);

// SAFETY: the C core guards the state of each lane with its lock; any thread may call.
unsafe impl Send for Prefill {}
// SAFETY: as above.
unsafe impl Sync for Prefill {}

impl Drop for Prefill {
    fn drop(&mut self) {
        // SAFETY: created by epw_prefill_create; routings hold it, so that all of them are gone, and this is the last owner.
        unsafe { sys::epw_prefill_destroy(self.0.as_ptr()) }
    }
}

floor!(Prefill: epw_prefill_export, epw_prefill_connect_within, epw_prefill_disconnect, epw_prefill_probe, epw_prefill_path,
    epw_prefill_wire, epw_prefill_set_active, epw_prefill_revoke, epw_prefill_membership, epw_prefill_newest_epoch,
    epw_prefill_diverged);

/// The sizes of any rank's buffer: errors name none.
pub(crate) fn plan(config: &sys::epw_prefill_config) -> Result<sys::epw_prefill_sizes> {
    // SAFETY: it is the header's.
    let mut sizes = unsafe { initialised(sys::epw_prefill_sizes_init) };
    // SAFETY: both are valid for the call, sizes carries its size.
    check_of_group(unsafe { sys::epw_prefill_plan(config, &mut sizes) })?;
    Ok(sizes)
}

pub(crate) fn empty_config() -> sys::epw_prefill_config {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_prefill_config_init) }
}

pub(crate) fn empty_output() -> sys::epw_prefill_output {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_prefill_output_init) }
}

pub(crate) fn empty_combine() -> sys::epw_prefill_combine_input {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_prefill_combine_input_init) }
}

pub(crate) fn empty_combine_output() -> sys::epw_prefill_combine_output {
    // SAFETY: it is the header's.
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

impl Prefill {
    pub(crate) fn create(config: &sys::epw_prefill_config, fabric: Option<Arc<Fabric>>) -> Result<Self> {
        let at = fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.as_ptr());
        let ep = sys::epw_config { fabric: at, ..config.ep };
        let config = sys::epw_prefill_config { ep, ..*config };
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and the fabric is held until the buffer is destroyed.
        check(unsafe { sys::epw_prefill_create(&config, &mut out) })?;
        NonNull::new(out).map(|at| Self(at, fabric)).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// What its fabric has come to.
    pub(crate) fn nic(&self) -> Option<String> {
        self.1.as_ref().map(|fabric| fabric.describe())
    }

    /// Of one of its lanes.
    pub(crate) fn awaited(&self, lane: u64) -> Awaited<'_> {
        // SAFETY: the buffer lives as long as `self`, and lanes are those of its routings.
        unsafe { Awaited::new(sys::epw_prefill_look, self.0.as_ptr(), lane) }
    }

    /// Whether something since the last such call was incomplete.
    pub(crate) fn take_fault(&self) -> Result<bool> {
        let mut faulted = 0;
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_prefill_take_fault(self.0.as_ptr(), &mut faulted) })?;
        Ok(faulted == 1)
    }
}

/// An `epw_routing`, freed with this value: an operation of it that is under way is given up.
#[derive(Debug)]
pub(crate) struct Routing {
    at: NonNull<sys::epw_routing>,
    of: Arc<Prefill>,
}

// SAFETY: the C core guards what operations change with the lane's lock, and `&mut` what calls do.
unsafe impl Send for Routing {}
// SAFETY: shared references only read.
unsafe impl Sync for Routing {}

impl Drop for Routing {
    fn drop(&mut self) {
        // SAFETY: created by epw_routing_create of a buffer that is alive; this is its owner.
        unsafe { sys::epw_routing_free(self.at.as_ptr()) }
    }
}

impl Routing {
    pub(crate) fn new(of: &Arc<Prefill>) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: the buffer is alive, out is a place to write to.
        check(unsafe { sys::epw_routing_create(of.0.as_ptr(), &mut out) })?;
        let at = NonNull::new(out).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))?;
        Ok(Self { at, of: of.clone() })
    }

    pub(crate) fn is_of(&self, buffer: &Arc<Prefill>) -> bool {
        Arc::ptr_eq(&self.of, buffer)
    }

    /// With an output the whole dispatch, else the half that is named.
    ///
    /// # Safety
    /// The memory of `input` and `output` has the sizes that they say, until the operation has ended or this is freed.
    pub(crate) unsafe fn dispatch(
        &mut self,
        input: &sys::epw_dispatch_input,
        (route, half): (u32, u32),
        output: Option<&sys::epw_prefill_output>,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        let (of, output) = (self.of.0.as_ptr(), output.map_or(ptr::null(), ptr::from_ref));
        // SAFETY: by this function's contract.
        let status =
            unsafe { sys::epw_prefill_dispatch(of, self.at.as_ptr(), input, route, half, output, outcome) };
        check(status)
    }

    /// # Safety
    /// As of `dispatch`.
    pub(crate) unsafe fn receive(
        &mut self,
        output: &sys::epw_prefill_output,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_prefill_receive(self.of.0.as_ptr(), self.at.as_ptr(), output, outcome) })
    }

    /// The capacity that takes all rows; fills `counts`, of the local experts, and `source_counts`, of the ranks.
    /// Pending: not all counts have come.
    pub(crate) fn received(
        &self,
        (layout, alignment): (u32, u32),
        counts: &mut [u32],
        source_counts: &mut [u32],
    ) -> Result<(Progress, u64)> {
        let mut rows = 0;
        let (of, at) = (self.of.0.as_ptr(), self.at.as_ptr());
        let (counts, sources) = (counts.as_mut_ptr(), source_counts.as_mut_ptr());
        // SAFETY: both are alive, and the slices have the lengths of the plan, by the callers in `prefill`.
        let status =
            unsafe { sys::epw_prefill_received(of, at, layout, alignment, &mut rows, counts, sources) };
        Ok((check(status)?, rows))
    }

    /// With an output the whole combine, else its sending half.
    ///
    /// # Safety
    /// As of `dispatch`.
    pub(crate) unsafe fn combine(
        &mut self,
        input: &sys::epw_prefill_combine_input,
        output: Option<&sys::epw_prefill_combine_output>,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        let (of, output) = (self.of.0.as_ptr(), output.map_or(ptr::null(), ptr::from_ref));
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_prefill_combine(of, self.at.as_ptr(), input, output, outcome) })
    }

    /// # Safety
    /// As of `dispatch`.
    pub(crate) unsafe fn collect(
        &mut self,
        output: &sys::epw_prefill_combine_output,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_prefill_collect(self.of.0.as_ptr(), self.at.as_ptr(), output, outcome) })
    }

    /// # Safety
    /// The memory of the operation is still as it was given.
    pub(crate) unsafe fn poll(&mut self, outcome: &mut sys::epw_outcome) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_prefill_poll(self.of.0.as_ptr(), self.at.as_ptr(), outcome) })
    }

    /// That of the last operation.
    pub(crate) fn lane(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { sys::epw_routing_lane(self.at.as_ptr()) }
    }

    /// Gives up what is under way: no memory of it is touched afterwards.
    pub(crate) fn cancel(&mut self) {
        // SAFETY: both are alive.
        unsafe { sys::epw_prefill_cancel(self.of.0.as_ptr(), self.at.as_ptr()) };
    }
}
