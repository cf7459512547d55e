//! The module that calls C. It owns every raw pointer to C objects and turns statuses into errors.

mod awaited;
mod captures;
mod comm;
mod fabric;
mod floor;
mod known;
mod prefill;
mod records;
mod status;
mod streams;

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::mask::Mask;
use crate::sys;

pub(crate) use awaited::{Awaited, Interrupt, Watched, await_any};
pub(crate) use captures::Captures;
pub(crate) use comm::{Comm, empty_coll, empty_config as empty_comm_config, plan as comm_plan};
pub(crate) use fabric::{Adapters, Fabric, FabricOptions};
pub(crate) use floor::Floor;
use floor::floor;
pub(crate) use known::Known;
pub(crate) use prefill::{
    EnqueuedCounts, Prefill, Routing, count as prefill_count, empty_combine as empty_prefill_combine,
    empty_combine_output as empty_prefill_combine_output, empty_config as empty_prefill_config,
    empty_output as empty_prefill_output, plan as prefill_plan,
};
pub(crate) use status::{Progress, empty_outcome, nanos};
use status::{c_mask, check, check_of_group, error, initialised, place};
pub(crate) use streams::Streams;

/// The plan of a group. It holds for every rank, so errors name none.
pub(crate) fn plan(config: &sys::epw_config) -> Result<sys::epw_plan> {
    // SAFETY: it is one of the header's init functions.
    let mut plan = unsafe { initialised(sys::epw_plan_init) };
    // SAFETY: both are valid for the call, plan carries its size.
    check_of_group(unsafe { sys::epw_plan_make(config, &mut plan) })?;
    Ok(plan)
}

/// The row shape of a group. It holds for every rank, so errors name none.
pub(crate) fn row_shape(
    config: &sys::epw_config,
    input: &sys::epw_dispatch_input,
) -> Result<sys::epw_row_shape> {
    // SAFETY: it is one of the header's init functions.
    let mut shape = unsafe { initialised(sys::epw_row_shape_init) };
    // SAFETY: all are valid for the call; only the fields of input that decide the shape are read, no memory behind it.
    check_of_group(unsafe { sys::epw_row_shape_make(config, input, &mut shape) })?;
    Ok(shape)
}

pub(crate) fn empty_input() -> sys::epw_dispatch_input {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_dispatch_input_init) }
}

pub(crate) fn empty_output() -> sys::epw_dispatch_output {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_dispatch_output_init) }
}

pub(crate) fn empty_combine() -> sys::epw_combine_input {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_combine_input_init) }
}

pub(crate) fn empty_combine_output() -> sys::epw_combine_output {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_combine_output_init) }
}

/// Where rows lie in the window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: NonNull<u8>,
    pub(crate) scales: Option<NonNull<u8>>,
    pub(crate) stride: usize,
    /// `[ranks]`
    pub(crate) source_counts: NonNull<u32>,
}

// SAFETY: it only holds addresses; whoever dereferences them decides what is allowed.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

/// An `epw_buffer`. Dropping this value destroys it, and then the fabric that it uses, if this was the last user.
#[derive(Debug)]
pub(crate) struct Buffer(
    NonNull<sys::epw_buffer>,
    /// Dropped after the buffer.
    Option<Arc<Fabric>>,
    /// The suspects that the program knows of.
    Known,
    /// Dropped after the C object, unless the process keeps that.
    Streams,
);

// SAFETY: the C core guards a buffer's state with its lanes' locks; any thread may call.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

// SAFETY: the look is that of buffers, and this one lives as long as `self`.
unsafe impl Watched for Buffer {
    fn look(&self) -> sys::epw_look {
        sys::epw_buffer_look
    }

    fn owner(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    fn tend(&self, handle: sys::epw_handle) -> bool {
        // SAFETY: as for `wait`.
        unsafe { sys::epw_buffer_tend(self.0.as_ptr(), handle) != sys::EPW_PENDING }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: created by epw_buffer_create, and nobody else uses it any more: this is the last owner.
        if !unsafe { sys::epw_buffer_try_destroy(self.0.as_ptr()) } {
            self.3.leak(); // the process keeps it, because kernels may still run
        }
    }
}

floor!(Buffer: epw_buffer_export, epw_buffer_connect_within, epw_buffer_disconnect, epw_buffer_probe, epw_buffer_path,
    epw_buffer_wire, epw_buffer_trouble, epw_buffer_set_active, epw_buffer_revoke, epw_buffer_membership,
    epw_buffer_suspects, epw_buffer_newest_epoch, epw_buffer_diverged, epw_buffer_traffic);

impl Buffer {
    pub(crate) fn create(config: &sys::epw_config, fabric: Option<Arc<Fabric>>) -> Result<Self> {
        let at = fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.as_ptr());
        let config = sys::epw_config { fabric: at, ..*config };
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and the fabric is held until the buffer is destroyed.
        check(unsafe { sys::epw_buffer_create(&config, &mut out) })?;
        let made = NonNull::new(out).map(|at| Self(at, fabric, Known::new(config.rank), Streams::default()));
        made.ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// What its fabric ended up using (NIC and transports), in words.
    pub(crate) fn nic(&self) -> Option<String> {
        self.1.as_ref().map(|fabric| fabric.describe())
    }

    /// Bytes that this rank's GPU has copied into the peer's window, and the time that took. The peer must not be
    /// active.
    pub(crate) fn time_copies(&self, peer: u32, timeout: Duration) -> Result<(u64, Duration)> {
        let (mut bytes, mut ns) = (0, 0);
        // SAFETY: the buffer is alive; the others are valid places to write to.
        check(unsafe {
            sys::epw_buffer_time_copies(self.0.as_ptr(), peer, nanos(timeout), &mut bytes, &mut ns)
        })?;
        Ok((bytes, Duration::from_nanos(ns)))
    }

    /// One flag per expert of the buffer's configuration.
    pub(crate) fn reachable_experts(&self, experts: u32) -> Result<Vec<bool>> {
        let mut reachable = vec![0u8; experts as usize];
        // SAFETY: `experts` bytes, as many as the configuration that this buffer was made with has experts.
        check(unsafe { sys::epw_buffer_reachable_experts(self.0.as_ptr(), reachable.as_mut_ptr()) })?;
        Ok(reachable.into_iter().map(|x| x == 1).collect())
    }

    /// `outcome` is none for a GPU buffer and some for a host buffer.
    ///
    /// # Safety
    ///
    /// The memory named by `input` and `output` has the sizes that the plan demands. It must stay valid as long as the
    /// operation is polled. For a GPU buffer it belongs to that GPU and stays valid until what this call enqueues has
    /// run, and `stream` is a stream of that GPU that lives until the handle is consumed or has moved on to another
    /// stream.
    pub(crate) unsafe fn dispatch(
        &self,
        input: &sys::epw_dispatch_input,
        output: Option<&sys::epw_dispatch_output>,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<(sys::epw_handle, Progress)> {
        let mut handle = 0;
        let output = output.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: by this function's contract.
        let status =
            unsafe { sys::epw_dispatch(self.0.as_ptr(), input, output, &mut handle, place(outcome)) };
        Ok((handle, check(status)?))
    }

    /// # Safety
    /// As for `dispatch`.
    pub(crate) unsafe fn dispatch_receive(
        &self,
        handle: sys::epw_handle,
        output: &sys::epw_dispatch_output,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_dispatch_receive(self.0.as_ptr(), handle, output, place(outcome)) })
    }

    /// # Safety
    /// As for `dispatch`; `input` is read during the call only.
    pub(crate) unsafe fn combine(
        &self,
        handle: sys::epw_handle,
        input: &sys::epw_combine_input,
        output: Option<&sys::epw_combine_output>,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        let output = output.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_combine(self.0.as_ptr(), handle, input, output, place(outcome)) })
    }

    /// # Safety
    /// As for `dispatch`.
    pub(crate) unsafe fn combine_receive(
        &self,
        handle: sys::epw_handle,
        output: &sys::epw_combine_output,
        outcome: Option<&mut sys::epw_outcome>,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_combine_receive(self.0.as_ptr(), handle, output, place(outcome)) })
    }

    /// # Safety
    /// The memory given to the running operation is still valid.
    pub(crate) unsafe fn poll(
        &self,
        handle: sys::epw_handle,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_poll(self.0.as_ptr(), handle, outcome) })
    }

    /// Sleeps until `poll` or `ready` may report something new. Touches no caller memory. On a GPU: until the handle's
    /// last call has run, `Pending` if `timeout` expires first.
    pub(crate) fn wait(&self, handle: sys::epw_handle, timeout: Duration) -> Result<Progress> {
        // SAFETY: the buffer is alive; a consumed handle is recognised.
        check(unsafe { sys::epw_await(self.0.as_ptr(), handle, nanos(timeout)) })
    }

    pub(crate) fn ready(&self, handle: sys::epw_handle) -> Result<Progress> {
        // SAFETY: as for `wait`.
        check(unsafe { sys::epw_ready(self.0.as_ptr(), handle) })
    }

    /// Ends the handle; the C core touches no caller memory of it afterwards.
    pub(crate) fn release(&self, handle: sys::epw_handle) {
        // SAFETY: as for `wait`. A handle already consumed is refused, which is what is wanted.
        unsafe { sys::epw_release(self.0.as_ptr(), handle) };
    }

    /// Like `release`, on `stream`.
    ///
    /// # Safety
    ///
    /// `stream` is one of the buffer's GPU.
    pub(crate) unsafe fn release_on(&self, handle: sys::epw_handle, stream: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract; a handle already consumed is refused.
        check(unsafe { sys::epw_release_on(self.0.as_ptr(), handle, stream) })?;
        Ok(())
    }

    /// On a GPU: makes `stream` wait for the handle's last call.
    ///
    /// # Safety
    ///
    /// `stream` is one of the buffer's GPU.
    pub(crate) unsafe fn stream_wait(&self, handle: sys::epw_handle, stream: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract; a handle that no longer owns its lane is refused.
        check(unsafe { sys::epw_stream_wait(self.0.as_ptr(), handle, stream) })?;
        Ok(())
    }

    /// On a GPU: how the handle's last call ended, `None` if it has not run yet.
    pub(crate) fn outcome(&self, handle: sys::epw_handle) -> Result<Option<sys::epw_outcome>> {
        let mut outcome = empty_outcome();
        // SAFETY: as for `wait`; outcome carries its size.
        let read = check(unsafe { sys::epw_outcome_read(self.0.as_ptr(), handle, &mut outcome) })?;
        Ok((read == Progress::Done).then_some(outcome))
    }

    /// Ends a step and returns the epoch that it belongs to.
    ///
    /// # Safety
    ///
    /// `stream` is one of the buffer's GPU, if it has one.
    pub(crate) unsafe fn checkpoint(&self, step: u64, stream: *mut c_void) -> Result<u32> {
        let mut epoch = 0;
        // SAFETY: by this function's contract; epoch is a valid place to write to.
        check(unsafe { sys::epw_checkpoint(self.0.as_ptr(), step, stream, &mut epoch) })?;
        Ok(epoch)
    }

    pub(crate) fn checkpoint_fault(&self) -> Result<()> {
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_checkpoint_fault(self.0.as_ptr()) })?;
        Ok(())
    }

    pub(crate) fn verdict(&self, epoch: u32, step: u64) -> Result<u32> {
        let mut verdict = 0;
        // SAFETY: the buffer is alive; verdict is a valid place to write to.
        check(unsafe { sys::epw_checkpoint_verdict(self.0.as_ptr(), epoch, step, &mut verdict) })?;
        Ok(verdict)
    }

    /// Up to `capacity` of the records written since the last call, and how many were lost.
    pub(crate) fn take_errors(&self, capacity: u32) -> Result<(Vec<sys::epw_error_record>, u64)> {
        // SAFETY: the buffer is alive; `take` gives valid places.
        records::take(capacity, |records, size, count, lost| unsafe {
            sys::epw_take_errors(self.0.as_ptr(), records, size, capacity, count, lost)
        })
    }

    pub(crate) fn dispatched_rows(&self, handle: sys::epw_handle) -> Result<Rows> {
        // SAFETY: as for `wait`; view carries its size.
        self.view(|view| unsafe { sys::epw_dispatched_rows(self.0.as_ptr(), handle, view) })
    }

    pub(crate) fn next_combine_buffer(&self, handle: sys::epw_handle) -> Result<Rows> {
        // SAFETY: as for `wait`; view carries its size.
        self.view(|view| unsafe { sys::epw_next_combine_buffer(self.0.as_ptr(), handle, view) })
    }

    fn view(&self, call: impl FnOnce(*mut sys::epw_rows_view) -> sys::epw_status) -> Result<Rows> {
        // SAFETY: it is one of the header's init functions.
        let mut view = unsafe { initialised(sys::epw_rows_view_init) };
        check(call(&mut view))?;
        let missing = || error(sys::EPW_ERR_STATE);
        Ok(Rows {
            first: NonNull::new(view.rows.cast()).ok_or_else(missing)?,
            scales: NonNull::new(view.scales.cast_mut().cast()),
            stride: view.stride as usize,
            source_counts: NonNull::new(view.source_counts.cast_mut()).ok_or_else(missing)?,
        })
    }
}

/// Quantises whole rows; slices are of matching sizes (checked by the caller, see `numerics`).
///
/// # Safety
/// x has `rows * hidden` 16-bit values, q as many bytes, scales `rows * hidden / 128` of the payload's scales.
pub(crate) unsafe fn quantize(
    payload: u32,
    dtype: u32,
    rows: u64,
    hidden: u32,
    x: *const u8,
    q: *mut u8,
    scales: *mut u8,
) -> Result<()> {
    // SAFETY: by this function's contract.
    check(unsafe { sys::epw_quantize_fp8(payload, dtype, rows, hidden, x.cast(), q, scales.cast()) })?;
    Ok(())
}

/// # Safety
/// As for `quantize`, x being written.
pub(crate) unsafe fn dequantize(
    payload: u32,
    dtype: u32,
    rows: u64,
    hidden: u32,
    q: *const u8,
    scales: *const u8,
    x: *mut u8,
) -> Result<()> {
    // SAFETY: by this function's contract.
    check(unsafe { sys::epw_dequantize_fp8(payload, dtype, rows, hidden, q, scales.cast(), x.cast()) })?;
    Ok(())
}

/// An `epw_trial`. Dropping this value closes it, and then the fabric that it uses, if nothing else does.
#[derive(Debug)]
pub(crate) struct Trial(
    NonNull<sys::epw_trial>,
    #[expect(dead_code, reason = "is dropped behind the trial")] Option<Arc<Fabric>>,
);

// SAFETY: a trial is used by one thread at a time, being not `Sync`, and has no thread-local state.
unsafe impl Send for Trial {}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: opened by epw_trial_open, and this is its only owner.
        unsafe { sys::epw_trial_close(self.0.as_ptr()) }
    }
}

impl Trial {
    /// `most` is the size of a range in bytes and the number of ranges in a put. `paths` is as in C; a fabric is needed
    /// if they permit queues.
    pub(crate) fn open(
        (rank, ranks): (u32, u32),
        most: (u64, u32),
        deadline: Duration,
        paths: u32,
        fabric: Option<Arc<Fabric>>,
    ) -> Result<Self> {
        let (bytes, count) = most;
        let options = sys::epw_trial_options {
            rank,
            ranks,
            bytes,
            count,
            deadline_ns: nanos(deadline),
            paths,
            fabric: fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.as_ptr()),
        };
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and the fabric is held until the trial is closed.
        check(unsafe { sys::epw_trial_open(&options, &mut out) })?;
        NonNull::new(out).map(|at| Self(at, fabric)).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    pub(crate) fn export(&self, peer: u32) -> Result<Vec<u8>> {
        let mut blob = vec![0; sys::EPW_BLOB_MAX as usize];
        let mut length = 0;
        // SAFETY: blob has the EPW_BLOB_MAX bytes that export may write.
        check(unsafe {
            sys::epw_trial_export(self.0.as_ptr(), peer, blob.as_mut_ptr().cast(), &mut length)
        })?;
        blob.truncate(length);
        Ok(blob)
    }

    pub(crate) fn connect(&self, peer: u32, blob: &[u8]) -> Result<()> {
        // SAFETY: blob is valid for its length; its bytes are checked by the C core.
        check(unsafe { sys::epw_trial_connect(self.0.as_ptr(), peer, blob.as_ptr().cast(), blob.len()) })?;
        Ok(())
    }

    pub(crate) fn path(&self, peer: u32) -> u32 {
        // SAFETY: the trial is alive.
        unsafe { sys::epw_trial_path(self.0.as_ptr(), peer) }
    }

    pub(crate) fn wire(&self, peer: u32) -> u32 {
        // SAFETY: the trial is alive.
        unsafe { sys::epw_trial_wire(self.0.as_ptr(), peer) }
    }

    pub(crate) fn put(&self, peer: u32, bytes: u64, count: u32, number: u64) -> Result<()> {
        // SAFETY: the trial is alive, and checks its arguments.
        check(unsafe { sys::epw_trial_put(self.0.as_ptr(), peer, bytes, count, number) })?;
        Ok(())
    }

    pub(crate) fn wait(&self, peer: u32, bytes: u64, count: u32, number: u64) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { sys::epw_trial_await(self.0.as_ptr(), peer, bytes, count, number) })?;
        Ok(())
    }
}

/// How much more host memory this process may take, and which limit says so.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    pub(crate) left: u64,
    /// Name, limit and file of the cgroup; none where the machine itself has no more memory.
    pub(crate) cgroup: Option<(String, u64, String)>,
}

/// The folder in front of paths that begin with `/`.
fn root_text(root: &Path) -> Option<CString> {
    match root.as_os_str().as_bytes() {
        b"/" => Some(CString::default()),
        root => CString::new(root).ok(),
    }
}

/// From the files below `root`; none if they tell nothing.
pub(crate) fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let root = root_text(root)?;
    let mut found = sys::epw_memory_limit { left: 0, limit: 0, cgroup: [0; 256], file: ptr::null() };
    // SAFETY: the path ends with a NUL, and found is a valid place to write to.
    if !unsafe { sys::epw_memory_limit_find(root.as_ptr(), &mut found) } {
        return None;
    }
    let sys::epw_memory_limit { left, limit, cgroup, file } = found;
    let text = |at| {
        // SAFETY: it is a NUL-terminated text that C has written, or one of its constants.
        unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
    };
    let cgroup = (!file.is_null()).then(|| (text(cgroup.as_ptr()), limit, text(file)));
    Some(MemoryLimit { left, cgroup })
}

/// What is known of one GPU of this process.
#[derive(Debug)]
pub(crate) struct GpuFacts {
    pub(crate) name: String,
    pub(crate) bus: String,
    pub(crate) capability: (u32, u32),
    pub(crate) memory: u64,
    pub(crate) dma_buf: bool,
    /// `1 << ordinal` of each GPU whose memory it can access, and of those it can also access with atomics.
    pub(crate) access: u64,
    pub(crate) atomics: u64,
}

/// Indexed by ordinal.
pub(crate) fn gpus() -> Result<Vec<GpuFacts>> {
    let mut count = 0;
    // SAFETY: count is a valid place to write to.
    check(unsafe { sys::epw_gpus_count(&mut count) })?;
    (0..count).map(|ordinal| gpu(ordinal, count)).collect()
}

fn gpu(ordinal: u32, count: u32) -> Result<GpuFacts> {
    let mut facts = MaybeUninit::<sys::epw_gpu_facts>::zeroed();
    // SAFETY: facts is a valid place to write to.
    check(unsafe { sys::epw_gpu_look(ordinal, count, facts.as_mut_ptr()) })?;
    // SAFETY: all zeros is valid for every field, and C has filled them.
    let facts = unsafe { facts.assume_init() };
    let text = |text: &[std::ffi::c_char]| {
        // SAFETY: C has written a text that ends with a NUL inside its field.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    };
    let sys::epw_gpu_facts { name, bus, major, minor, memory_bytes, dma_buf, access, atomics } = facts;
    Ok(GpuFacts {
        name: text(&name),
        bus: text(&bus).to_lowercase(),
        capability: (major, minor),
        memory: memory_bytes,
        dma_buf: dma_buf == 1,
        access,
        atomics,
    })
}

/// Makes the GPU allocate memory that other processes could map by `path`, `EPW_PATH_VMM` or `EPW_PATH_IPC`.
pub(crate) fn try_gpu(ordinal: u32, path: u32) -> Result<()> {
    // SAFETY: it accepts any numbers.
    check(unsafe { sys::epw_gpu_try(ordinal, path) })?;
    Ok(())
}

/// Where a device is on the PCI bus: its path below `/sys/devices`, and its NUMA node, -1 if unknown.
pub(crate) struct BusPlace(sys::epw_bus_place);

impl BusPlace {
    pub(crate) fn new(path: &str, node: i32) -> Self {
        let mut place = sys::epw_bus_place { path: [0; 256], node };
        // A path that does not fit counts as unknown.
        if path.len() < place.path.len() && !path.contains('\0') {
            for (to, from) in place.path.iter_mut().zip(path.bytes()) {
                *to = from as std::ffi::c_char;
            }
        }
        Self(place)
    }

    /// As a number, smallest for the nearest, and in words.
    pub(crate) fn distance(&self, other: &Self) -> (u32, String) {
        // SAFETY: both are places whose paths end with a NUL.
        let distance = unsafe { sys::epw_bus_distance_of(&self.0, &other.0) };
        // SAFETY: C returns one of its own constants.
        let name = unsafe { CStr::from_ptr(sys::epw_bus_distance_name(distance)) };
        (distance, name.to_string_lossy().into_owned())
    }
}

/// The turn of the GPU at this bus address among those of the host, by the files below `root`: see `c/nic/bus.h`.
pub(crate) fn turn_of_gpu(root: &Path, bus: &str) -> u32 {
    let (Some(root), Ok(bus)) = (root_text(root), CString::new(bus)) else { return 0 };
    // SAFETY: both end with a NUL.
    unsafe { sys::epw_bus_turn_of_gpu(root.as_ptr(), bus.as_ptr()) }
}

/// The numbers of those of these adapters that the filter admits, in the order in which a rank on a GPU with this place
/// and turn tries them: see `c/nic/choice.h`.
pub(crate) fn adapters_order(
    all: &[(&str, &BusPlace)],
    filter: &str,
    gpu: &BusPlace,
    turn: u32,
) -> Vec<usize> {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let names: Vec<CString> = all.iter().map(|(name, _)| text(name)).collect();
    let listed = |(name, (_, place)): (&CString, &(&str, &BusPlace))| sys::epw_adapter_listed {
        name: name.as_ptr(),
        place: &raw const place.0,
    };
    let list: Vec<sys::epw_adapter_listed> = names.iter().zip(all).map(listed).collect();
    let filter = text(filter);
    let wish =
        sys::epw_adapter_wish { filter: filter.as_ptr(), except: ptr::null(), gpu: &raw const gpu.0, turn };
    let mut order = vec![0; list.len()];
    // SAFETY: the list and the order have as many elements as stated, and all that they and the wish point to lives here.
    let found = unsafe {
        sys::epw_adapters_order(list.as_ptr(), list.len() as u32, &raw const wish, order.as_mut_ptr())
    };
    order.into_iter().take(found as usize).map(|index| index as usize).collect()
}

/// Whether a filter lets a port of an adapter through.
pub(crate) fn adapter_wanted(filter: &str, name: &str, port: u32) -> bool {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let (filter, name) = (text(filter), text(name));
    // SAFETY: both end with a NUL.
    unsafe { sys::epw_adapter_wanted(filter.as_ptr(), name.as_ptr(), port) }
}

/// How widely others reach a GID of an Ethernet port; 0: the core does not use it.
pub(crate) fn gid_worth(gid: &[u8; 16], roce_v2: bool) -> u32 {
    // SAFETY: it reads these 16 bytes.
    unsafe { sys::epw_gid_worth(gid.as_ptr(), roce_v2) }
}

/// What an open adapter reports about one prerequisite.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// `EPW_PROBE_*`: 0 ok, 1 unknown, 2 warning, 3 missing.
    pub(crate) verdict: u32,
    pub(crate) name: String,
    pub(crate) text: String,
    /// Empty if the text has it, or there is nothing to do.
    pub(crate) remedy: String,
}

/// Opens the mlx5 adapter of this name, for a GPU of this process if there is one.
pub(crate) fn probe_adapter(name: &str, gpu: Option<u32>) -> Vec<Finding> {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the name ends with a NUL, and there is room for all findings.
    findings(|out| unsafe { sys::epw_mlx5_probe(name.as_ptr(), ordinal(gpu), out) })
}

/// The same for an adapter of any make, by plain verbs.
pub(crate) fn probe_verbs_adapter(name: &str, gpu: Option<u32>) -> Vec<Finding> {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the name ends with a NUL, and there is room for all findings.
    findings(|out| unsafe { sys::epw_verbs_probe(name.as_ptr(), ordinal(gpu), out) })
}

/// As [`probe_adapter`] for a fake adapter that lacks the features in `lacks`, bits of `epw_fake_lack`.
pub(crate) fn probe_fake_adapter(lacks: u64, gpu: Option<u32>) -> Vec<Finding> {
    // SAFETY: there is room for all findings.
    findings(|out| unsafe { sys::epw_mlx5_probe_fake(lacks, ordinal(gpu), out) })
}

fn ordinal(gpu: Option<u32>) -> i32 {
    gpu.and_then(|gpu| i32::try_from(gpu).ok()).unwrap_or(-1)
}

fn findings(look: impl FnOnce(*mut sys::epw_probe_finding) -> u32) -> Vec<Finding> {
    let none = sys::epw_probe_finding { verdict: 0, name: [0; 32], text: [0; 512], remedy: [0; 256] };
    let mut found = [none; sys::EPW_PROBE_FINDINGS_MAX];
    let count = look(found.as_mut_ptr()) as usize;
    let text = |text: &[std::ffi::c_char]| {
        // SAFETY: C has written a text that ends with a NUL inside its field.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    };
    let finding = |f: &sys::epw_probe_finding| Finding {
        verdict: f.verdict,
        name: text(&f.name),
        text: text(&f.text),
        remedy: text(&f.remedy),
    };
    found.iter().take(count).map(finding).collect()
}
