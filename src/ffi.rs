//! The only module that calls C. It owns every raw pointer to C objects and turns statuses into errors.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Failure, Result};
use crate::mask::Mask;
use crate::sys;

/// The last error of this thread as `status` classes it.
fn error(status: sys::epw_status) -> Error {
    let mut detail = sys::epw_error_detail { op: ptr::null(), text: ptr::null(), rank: -1, peer: -1 };
    // SAFETY: detail is a valid place to write to.
    unsafe { sys::epw_last_error_detail(&mut detail) };
    let text = |p: *const std::ffi::c_char| {
        if p.is_null() {
            return String::new();
        }
        // SAFETY: epw_last_error_detail gives NUL-terminated texts that live until this thread's next failing call.
        unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
    };
    let failure = Failure {
        operation: text(detail.op),
        rank: detail.rank.try_into().ok(),
        peer: detail.peer.try_into().ok(),
        text: text(detail.text),
    };
    match status {
        sys::EPW_ERR_LIMIT => Error::Limit(failure),
        sys::EPW_ERR_STATE => Error::State(failure),
        sys::EPW_ERR_NO_MEMORY => Error::NoMemory(failure),
        sys::EPW_ERR_SYSTEM => Error::System(failure),
        sys::EPW_ERR_NO_PATH => Error::NoPath(failure),
        sys::EPW_ERR_MISMATCH => Error::Mismatch(failure),
        sys::EPW_ERR_FENCED => Error::Fenced(failure),
        sys::EPW_ERR_TIMEOUT => Error::Timeout(failure),
        sys::EPW_ERR_PEER => Error::Peer(failure),
        _ => Error::Invalid(failure),
    }
}

/// Whether an operation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Done,
}

fn check(status: sys::epw_status) -> Result<Progress> {
    match status {
        sys::EPW_OK => Ok(Progress::Done),
        sys::EPW_PENDING => Ok(Progress::Pending),
        status => Err(error(status)),
    }
}

/// As the C core counts time: at least 1, where 0 may mean something else.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}

fn c_mask(mask: &Mask) -> sys::epw_mask {
    sys::epw_mask { bits: *mask.words() }
}

/// As `check`, of a call about a whole group: the rank of its configuration stands for all.
fn check_of_group(status: sys::epw_status) -> Result<()> {
    let checked = check(status).map(|_| ());
    checked.map_err(|error| match error {
        Error::Invalid(failure) => Error::Invalid(Failure { rank: None, ..failure }),
        Error::Limit(failure) => Error::Limit(Failure { rank: None, ..failure }),
        Error::NoPath(failure) => Error::NoPath(Failure { rank: None, ..failure }),
        other => other,
    })
}

/// The plan of any rank: errors name none.
pub(crate) fn plan(config: &sys::epw_config) -> Result<sys::epw_plan> {
    // SAFETY: it is the header's.
    let mut plan = unsafe { initialised(sys::epw_plan_init) };
    // SAFETY: both are valid for the call, plan carries its size.
    check_of_group(unsafe { sys::epw_plan_make(config, &mut plan) })?;
    Ok(plan)
}

/// The row shape of any rank: errors name none.
pub(crate) fn row_shape(
    config: &sys::epw_config,
    input: &sys::epw_dispatch_input,
) -> Result<sys::epw_row_shape> {
    // SAFETY: it is the header's.
    let mut shape = unsafe { initialised(sys::epw_row_shape_init) };
    // SAFETY: all are valid for the call; only the fields of input that decide the shape are read, no memory behind it.
    check_of_group(unsafe { sys::epw_row_shape_make(config, input, &mut shape) })?;
    Ok(shape)
}

/// A struct of the interface with the header's defaults.
///
/// # Safety
/// `init` is one of the header's `epw_*_init`, which write every byte of the struct and read none.
unsafe fn initialised<T>(init: unsafe extern "C" fn(*mut T)) -> T {
    let mut made = MaybeUninit::uninit();
    // SAFETY: it is a valid place to write to, and `init` fills it.
    unsafe {
        init(made.as_mut_ptr());
        made.assume_init()
    }
}

pub(crate) fn empty_input() -> sys::epw_dispatch_input {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_dispatch_input_init) }
}

pub(crate) fn empty_output() -> sys::epw_dispatch_output {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_dispatch_output_init) }
}

pub(crate) fn empty_combine() -> sys::epw_combine_input {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_combine_input_init) }
}

pub(crate) fn empty_combine_output() -> sys::epw_combine_output {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_combine_output_init) }
}

pub(crate) fn empty_outcome() -> sys::epw_outcome {
    // SAFETY: it is the header's.
    unsafe { initialised(sys::epw_outcome_init) }
}

fn place<T>(out: Option<&mut T>) -> *mut T {
    out.map_or(ptr::null_mut(), ptr::from_mut)
}

/// Rows in place in the window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: NonNull<u8>,
    pub(crate) scales: Option<NonNull<u8>>,
    pub(crate) stride: usize,
    /// `[ranks]`
    pub(crate) source_counts: NonNull<u32>,
}

// SAFETY: addresses only; what may be done with them is decided where they are dereferenced.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

/// An `epw_fabric`, destroyed with this value.
#[derive(Debug)]
pub(crate) struct Fabric(NonNull<sys::epw_fabric>);

// SAFETY: the C core guards a fabric's state with locks; any thread may call.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: created by epw_fabric_create, and the buffers that used it, each of which holds it, are gone.
        unsafe { sys::epw_fabric_destroy(self.0.as_ptr()) }
    }
}

/// As `epw_fabric_options`.
pub(crate) struct FabricOptions {
    /// `EPW_WIRE_*` bits.
    pub(crate) wires: u32,
    /// `EPW_NIC_*`.
    pub(crate) nic: u32,
    /// First and last.
    pub(crate) ports: (u16, u16),
    pub(crate) interfaces: Option<String>,
    pub(crate) key: Option<[u8; 32]>,
    /// 0: as many as the library chooses.
    pub(crate) ring_bytes: u32,
    /// `EPW_DOORBELLS_*`.
    pub(crate) doorbells: u32,
    /// To which adapters are to be near, as in `epw_config`.
    pub(crate) device: i32,
    pub(crate) adapters: Adapters,
}

/// What of it concerns RDMA adapters.
pub(crate) struct Adapters {
    /// In the grammar of `NCCL_IB_HCA`.
    pub(crate) filter: Option<String>,
    pub(crate) count: u32,
    pub(crate) service_level: u32,
    pub(crate) traffic_class: u32,
    /// 0: the library's own.
    pub(crate) hop_limit: u32,
    /// `EPW_RINGS_*`.
    pub(crate) rings: u32,
}

impl Fabric {
    /// That of a rank.
    pub(crate) fn create(rank: u32, asked: &FabricOptions) -> Result<Self> {
        let text = |text: &Option<String>| text.as_deref().map(|text| CString::new(text).unwrap_or_default());
        let (interfaces, filter) = (text(&asked.interfaces), text(&asked.adapters.filter));
        let Adapters { count, service_level, traffic_class, hop_limit, rings, .. } = asked.adapters;
        // SAFETY: it is the header's.
        let mut options = unsafe { initialised(sys::epw_fabric_options_init) };
        options.rank = rank;
        options.wires = asked.wires;
        options.nic = asked.nic;
        (options.first_port, options.last_port) = asked.ports;
        options.interfaces = interfaces.as_ref().map_or(ptr::null(), |names| names.as_ptr());
        options.key = asked.key.as_ref().map_or(ptr::null(), |key| key.as_ptr());
        options.ring_bytes = asked.ring_bytes;
        options.doorbells = asked.doorbells;
        options.adapters = filter.as_ref().map_or(ptr::null(), |filter| filter.as_ptr());
        options.device = asked.device;
        options.adapter_count = count;
        (options.service_level, options.traffic_class) = (service_level, traffic_class);
        (options.hop_limit, options.rings) = (hop_limit, rings);
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and so is what the options point to.
        check(unsafe { sys::epw_fabric_create(&options, &mut out) })?;
        NonNull::new(out).map(Self).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// See `epw_fabric_describe`.
    fn describe(&self) -> String {
        let mut text = [0; sys::EPW_FABRIC_TEXT as usize];
        // SAFETY: the fabric is valid, and the text has room for so much.
        let text = unsafe { CStr::from_ptr(sys::epw_fabric_describe(self.0.as_ptr(), text.as_mut_ptr())) };
        text.to_string_lossy().into_owned()
    }
}

/// An `epw_buffer`, destroyed with this value, and then the fabric that it uses, if this was its last buffer.
#[derive(Debug)]
pub(crate) struct Buffer(
    NonNull<sys::epw_buffer>,
    /// Is dropped behind the buffer.
    Option<Arc<Fabric>>,
);

// SAFETY: the C core guards a buffer's state with its lanes' locks; any thread may call.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: created by epw_buffer_create, and nobody else uses it any more: this is the last owner.
        unsafe { sys::epw_buffer_destroy(self.0.as_ptr()) }
    }
}

impl Buffer {
    pub(crate) fn create(config: &sys::epw_config, fabric: Option<Arc<Fabric>>) -> Result<Self> {
        let at = fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.0.as_ptr());
        let config = sys::epw_config { fabric: at, ..*config };
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and the fabric is held until the buffer is destroyed.
        check(unsafe { sys::epw_buffer_create(&config, &mut out) })?;
        NonNull::new(out).map(|at| Self(at, fabric)).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// What its fabric has come to.
    pub(crate) fn nic(&self) -> Option<String> {
        self.1.as_ref().map(|fabric| fabric.describe())
    }

    pub(crate) fn export(&self, peer: u32) -> Result<Vec<u8>> {
        let mut blob = vec![0; sys::EPW_BLOB_MAX as usize];
        let mut length = 0;
        // SAFETY: blob has the EPW_BLOB_MAX bytes that export may write.
        check(unsafe {
            sys::epw_buffer_export(self.0.as_ptr(), peer, blob.as_mut_ptr().cast(), &mut length)
        })?;
        blob.truncate(length);
        Ok(blob)
    }

    /// Bounded by `deadline` instead of the buffer's.
    pub(crate) fn connect(&self, peer: u32, blob: &[u8], deadline: Duration) -> Result<()> {
        let (bytes, length, deadline_ns) = (blob.as_ptr().cast(), blob.len(), nanos(deadline));
        // SAFETY: blob is valid for its length; its bytes are checked by the C core.
        check(unsafe { sys::epw_buffer_connect_within(self.0.as_ptr(), peer, bytes, length, deadline_ns) })?;
        Ok(())
    }

    pub(crate) fn disconnect(&self, peer: u32) -> Result<()> {
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_buffer_disconnect(self.0.as_ptr(), peer) })?;
        Ok(())
    }

    pub(crate) fn probe(&self, peer: u32, timeout: Duration) -> Result<()> {
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_buffer_probe(self.0.as_ptr(), peer, nanos(timeout)) })?;
        Ok(())
    }

    pub(crate) fn path(&self, peer: u32) -> u32 {
        // SAFETY: the buffer is alive.
        unsafe { sys::epw_buffer_path(self.0.as_ptr(), peer) }
    }

    pub(crate) fn wire(&self, peer: u32) -> u32 {
        // SAFETY: the buffer is alive.
        unsafe { sys::epw_buffer_wire(self.0.as_ptr(), peer) }
    }

    pub(crate) fn trouble(&self, peer: u32) -> Option<String> {
        let mut text = [0; sys::EPW_TROUBLE_TEXT as usize];
        // SAFETY: the buffer is alive, and the text has room for so much.
        let text =
            unsafe { CStr::from_ptr(sys::epw_buffer_trouble(self.0.as_ptr(), peer, text.as_mut_ptr())) };
        Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
    }

    /// Bytes that this rank's GPU has copied into the peer's window, and the time that took. The peer is not active.
    pub(crate) fn time_copies(&self, peer: u32, timeout: Duration) -> Result<(u64, Duration)> {
        let (mut bytes, mut ns) = (0, 0);
        // SAFETY: the buffer is alive; the others are valid places to write to.
        check(unsafe {
            sys::epw_buffer_time_copies(self.0.as_ptr(), peer, nanos(timeout), &mut bytes, &mut ns)
        })?;
        Ok((bytes, Duration::from_nanos(ns)))
    }

    pub(crate) fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
        // SAFETY: the buffer is alive, the mask is read during the call only.
        check(unsafe { sys::epw_buffer_set_active(self.0.as_ptr(), &c_mask(active), epoch, step) })?;
        Ok(())
    }

    pub(crate) fn revoke(&self, peers: &Mask) -> Result<()> {
        // SAFETY: the buffer is alive, the mask is read during the call only.
        check(unsafe { sys::epw_buffer_revoke(self.0.as_ptr(), &c_mask(peers)) })?;
        Ok(())
    }

    pub(crate) fn membership(&self) -> Result<sys::epw_membership> {
        // SAFETY: it is the header's.
        let mut membership = unsafe { initialised(sys::epw_membership_init) };
        // SAFETY: the buffer is alive, membership carries its size.
        check(unsafe { sys::epw_buffer_membership(self.0.as_ptr(), &mut membership) })?;
        Ok(membership)
    }

    pub(crate) fn newest_epoch(&self) -> Result<u32> {
        let mut epoch = 0;
        // SAFETY: the buffer is alive.
        check(unsafe { sys::epw_buffer_newest_epoch(self.0.as_ptr(), &mut epoch) })?;
        Ok(epoch)
    }

    /// Who has begun the epoch at another step.
    pub(crate) fn diverged(&self, epoch: u32, step: u64) -> Result<Mask> {
        let mut ranks = c_mask(&Mask::EMPTY);
        // SAFETY: the buffer is alive, ranks is the header's.
        check(unsafe { sys::epw_buffer_diverged(self.0.as_ptr(), epoch, step, &mut ranks) })?;
        Ok(Mask::from_words(ranks.bits))
    }

    /// One byte per expert of the buffer's configuration.
    pub(crate) fn reachable_experts(&self, experts: u32) -> Result<Vec<bool>> {
        let mut reachable = vec![0u8; experts as usize];
        // SAFETY: `experts` bytes, as many as the configuration that this buffer was made with has experts.
        check(unsafe { sys::epw_buffer_reachable_experts(self.0.as_ptr(), reachable.as_mut_ptr()) })?;
        Ok(reachable.into_iter().map(|x| x == 1).collect())
    }

    /// `outcome`: with a GPU buffer none, with another one some.
    ///
    /// # Safety
    /// The memory named by `input` and `output` has the sizes that the plan demands. It must stay valid as long as the
    /// operation is polled; with a GPU buffer it is that GPU's, stays valid until what this call enqueues has run, and
    /// `stream` is one of that GPU that lives until the handle is consumed or gone on to another.
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

    /// Sleeps until `poll` or `ready` may say something new. Touches no caller memory.
    /// On a GPU: until the handle's last call has run, `Pending` if `timeout` is over first.
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

    /// The same on `stream`.
    ///
    /// # Safety
    /// `stream` is one of the buffer's GPU.
    pub(crate) unsafe fn release_on(&self, handle: sys::epw_handle, stream: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract; a handle already consumed is refused.
        check(unsafe { sys::epw_release_on(self.0.as_ptr(), handle, stream) })?;
        Ok(())
    }

    /// On a GPU: lets `stream` wait for the handle's last call.
    ///
    /// # Safety
    /// `stream` is one of the buffer's GPU.
    pub(crate) unsafe fn stream_wait(&self, handle: sys::epw_handle, stream: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract; a handle that the lane has left is refused.
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

    /// Ends a step: the epoch that it belongs to.
    ///
    /// # Safety
    /// `stream` is one of the buffer's GPU, if it has one.
    pub(crate) unsafe fn checkpoint(&self, step: u64, stream: *mut c_void) -> Result<u32> {
        let mut epoch = 0;
        // SAFETY: by this function's contract; epoch is a valid place to write to.
        check(unsafe { sys::epw_checkpoint(self.0.as_ptr(), step, stream, &mut epoch) })?;
        Ok(epoch)
    }

    pub(crate) fn verdict(&self, epoch: u32, step: u64) -> Result<u32> {
        let mut verdict = 0;
        // SAFETY: the buffer is alive; verdict is a valid place to write to.
        check(unsafe { sys::epw_checkpoint_verdict(self.0.as_ptr(), epoch, step, &mut verdict) })?;
        Ok(verdict)
    }

    /// Up to `capacity` of the records written since the last call, and how many were lost.
    pub(crate) fn take_errors(&self, capacity: u32) -> Result<(Vec<sys::epw_error_record>, u64)> {
        let mut records = vec![sys::epw_error_record::default(); capacity as usize];
        let (mut count, mut lost) = (0, 0);
        // SAFETY: records has `capacity` places; the others are valid places to write to.
        check(unsafe {
            sys::epw_take_errors(self.0.as_ptr(), records.as_mut_ptr(), capacity, &mut count, &mut lost)
        })?;
        records.truncate(count as usize);
        Ok((records, lost))
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
        // SAFETY: it is the header's.
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

/// An `epw_trial`, closed with this value, and then the fabric that it uses, if nothing else does.
#[derive(Debug)]
pub(crate) struct Trial(
    NonNull<sys::epw_trial>,
    #[expect(dead_code, reason = "is dropped behind the trial")] Option<Arc<Fabric>>,
);

// SAFETY: one thread at a time uses a trial, which is not `Sync`; none of its state is of a thread.
unsafe impl Send for Trial {}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: opened by epw_trial_open, and this is its only owner.
        unsafe { sys::epw_trial_close(self.0.as_ptr()) }
    }
}

impl Trial {
    /// `most`: bytes of a range, and how many a put has. `paths`: as in C, with a fabric if they permit queues.
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
            fabric: fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.0.as_ptr()),
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

/// How much more host memory this process may take, and who says so.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    pub(crate) left: u64,
    /// Name, limit, and the file that has it; none where the machine itself has no more.
    pub(crate) cgroup: Option<(String, u64, String)>,
}

/// As the files below `root` tell; none if they tell nothing.
pub(crate) fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let root = match root.as_os_str().as_bytes() {
        b"/" => CString::default(),
        root => CString::new(root).ok()?,
    };
    let mut found = sys::epw_memory_limit { left: 0, limit: 0, cgroup: [0; 256], file: ptr::null() };
    // SAFETY: the path ends with a NUL, and found is a valid place to write to.
    if !unsafe { sys::epw_memory_limit_find(root.as_ptr(), &mut found) } {
        return None;
    }
    let sys::epw_memory_limit { left, limit, cgroup, file } = found;
    let text = |at| {
        // SAFETY: C has written a text that ends with a NUL, or one of its own constants.
        unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
    };
    let cgroup = (!file.is_null()).then(|| (text(cgroup.as_ptr()), limit, text(file)));
    Some(MemoryLimit { left, cgroup })
}

/// What there is to know of a GPU of this process.
#[derive(Debug)]
pub(crate) struct GpuFacts {
    pub(crate) name: String,
    pub(crate) bus: String,
    pub(crate) capability: (u32, u32),
    pub(crate) memory: u64,
    pub(crate) dma_buf: bool,
    /// `1 << ordinal` of those whose memory it may reach, and of these with atomics on the way.
    pub(crate) access: u64,
    pub(crate) atomics: u64,
}

/// By ordinal.
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
    // SAFETY: every field may be zero, and C has filled them.
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

/// Has the GPU make memory that other processes could map by `path`, `EPW_PATH_VMM` or `EPW_PATH_IPC`.
pub(crate) fn try_gpu(ordinal: u32, path: u32) -> Result<()> {
    // SAFETY: any numbers will do.
    check(unsafe { sys::epw_gpu_try(ordinal, path) })?;
    Ok(())
}

/// Where a device is on the PCI bus: its path below `/sys/devices`, and its node of memory, -1 if that is not known.
pub(crate) struct BusPlace(sys::epw_bus_place);

impl BusPlace {
    pub(crate) fn new(path: &str, node: i32) -> Self {
        let mut place = sys::epw_bus_place { path: [0; 256], node };
        // One that does not fit is not known.
        if path.len() < place.path.len() && !path.contains('\0') {
            for (to, from) in place.path.iter_mut().zip(path.bytes()) {
                *to = from as std::ffi::c_char;
            }
        }
        Self(place)
    }

    /// As a number, the nearest least, and in words.
    pub(crate) fn distance(&self, other: &Self) -> (u32, String) {
        // SAFETY: both are places whose paths end with a NUL.
        let distance = unsafe { sys::epw_bus_distance_of(&self.0, &other.0) };
        // SAFETY: C gives one of its own constants.
        let name = unsafe { CStr::from_ptr(sys::epw_bus_distance_name(distance)) };
        (distance, name.to_string_lossy().into_owned())
    }
}

/// In which order a rank tries adapters at these places, the nearest to the GPU first: see `c/nic/choice.h`.
pub(crate) fn adapters_order(places: &[BusPlace], gpu: &BusPlace, turn: u32) -> Vec<usize> {
    let list: Vec<*const sys::epw_bus_place> = places.iter().map(|place| &raw const place.0).collect();
    let mut order = vec![0; places.len()];
    // SAFETY: the list and the order have as many elements as is said, all of them valid for the call.
    unsafe {
        sys::epw_adapters_order(list.as_ptr(), list.len() as u32, &gpu.0, turn, order.as_mut_ptr());
    }
    order.into_iter().map(|index| index as usize).collect()
}

/// Whether a filter lets a port of an adapter through.
pub(crate) fn adapter_wanted(filter: &str, name: &str, port: u32) -> bool {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let (filter, name) = (text(filter), text(name));
    // SAFETY: both end with a NUL.
    unsafe { sys::epw_adapter_wanted(filter.as_ptr(), name.as_ptr(), port) }
}

/// What an open adapter tells of one prerequisite.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// `EPW_PROBE_*`: 0 ok, 1 unknown, 2 warning, 3 missing.
    pub(crate) verdict: u32,
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Opens the adapter of this name, for a GPU of this process if there is one.
pub(crate) fn probe_adapter(name: &str, gpu: Option<u32>) -> Vec<Finding> {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the name ends with a NUL, and there is room for all findings.
    findings(|out| unsafe { sys::epw_mlx5_probe(name.as_ptr(), ordinal(gpu), out) })
}

/// The same of a fake adapter, which lacks this: bits of `epw_fake_lack`.
pub(crate) fn probe_fake_adapter(lacks: u64, gpu: Option<u32>) -> Vec<Finding> {
    // SAFETY: there is room for all findings.
    findings(|out| unsafe { sys::epw_mlx5_probe_fake(lacks, ordinal(gpu), out) })
}

fn ordinal(gpu: Option<u32>) -> i32 {
    gpu.and_then(|gpu| i32::try_from(gpu).ok()).unwrap_or(-1)
}

fn findings(look: impl FnOnce(*mut sys::epw_probe_finding) -> u32) -> Vec<Finding> {
    let none = sys::epw_probe_finding { verdict: 0, name: [0; 32], text: [0; 512] };
    let mut found = [none; sys::EPW_PROBE_FINDINGS_MAX];
    let count = look(found.as_mut_ptr()) as usize;
    let text = |text: &[std::ffi::c_char]| {
        // SAFETY: C has written a text that ends with a NUL inside its field.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    };
    let finding =
        |f: &sys::epw_probe_finding| Finding { verdict: f.verdict, name: text(&f.name), text: text(&f.text) };
    found.iter().take(count).map(finding).collect()
}
