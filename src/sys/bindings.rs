// Generated from c/include/epwire.h by bindgen: see build.rs. Do not edit.

pub const EPW_VERSION_MAJOR: u32 = 0;
pub const EPW_VERSION_MINOR: u32 = 1;
pub const EPW_VERSION_PATCH: u32 = 0;
pub const EPW_MAX_RANKS: u32 = 1024;
pub const EPW_MAX_TOPK: u32 = 32;
pub const EPW_MAX_TOKENS: u32 = 65536;
pub const EPW_MAX_LANES: u32 = 2;
pub const EPW_MAX_SIDEBAND: u32 = 64;
pub const EPW_FP8_BLOCK: u32 = 128;
pub const EPW_WAIT_DEADLINES_MAX: u32 = 4;
pub const EPW_PATH_ALL: u32 = 4294967295;
pub const EPW_DEVICE_HOST: i32 = -1;
pub const EPW_CONFIG_VERSION: u32 = 1;
pub const EPW_QUEUE_DEPTH_MIN: u32 = 16;
pub const EPW_QUEUE_DEPTH_MAX: u32 = 32768;
pub const EPW_RING_BYTES_MIN: u32 = 4096;
pub const EPW_RING_BYTES_MAX: u32 = 1073741824;
pub const EPW_FABRIC_TEXT: u32 = 800;
pub const EPW_BLOB_MAX: u32 = 1024;
pub const EPW_TROUBLE_TEXT: u32 = 512;
pub const EPW_STEP_MAX: u64 = 2199023255551;
pub const EPW_COMM_CONFIG_VERSION: u32 = 1;
pub const EPW_TAG_MAX: u32 = 2147483647;
pub const EPW_NORM_HIDDEN_MAX: u32 = 16384;
pub const EPW_PREFILL_RING_TOKENS: u32 = 512;
pub const EPW_PREFILL_RING_TOKENS_GPU: u32 = 2048;
pub type epw_status = i32;
pub const EPW_OK: i32 = 0;
/// a non-blocking operation has not finished yet; not an error
pub const EPW_PENDING: i32 = 1;
/// an argument is wrong
pub const EPW_ERR_INVALID: i32 = -1;
/// a size passes a limit of the plan or of the library
pub const EPW_ERR_LIMIT: i32 = -2;
/// not possible now: lane held, handle already consumed, no membership yet
pub const EPW_ERR_STATE: i32 = -3;
/// the system has no memory to give
pub const EPW_ERR_NO_MEMORY: i32 = -4;
/// an operating system call failed
pub const EPW_ERR_SYSTEM: i32 = -5;
/// no permitted path leads to the peer
pub const EPW_ERR_NO_PATH: i32 = -6;
/// the peer's configuration or version differs
pub const EPW_ERR_MISMATCH: i32 = -7;
/// the place still belongs to another, living incarnation
pub const EPW_ERR_FENCED: i32 = -8;
/// a bounded wait outside dispatch and combine expired
pub const EPW_ERR_TIMEOUT: i32 = -9;
/// the peer refused or is gone
pub const EPW_ERR_PEER: i32 = -10;
unsafe extern "C" {
    /// Short name of a status, for example "EPW_ERR_LIMIT". Never NULL.
    pub fn epw_status_name(status: epw_status) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /** The text of the last error on the calling thread: operation, rank, peer, what was found, remedy. Valid
 until the thread's next failing call. Empty if there was none.*/
    pub fn epw_last_error() -> *const ::core::ffi::c_char;
}
/// The same in parts. op and text live as long as epw_last_error's text.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_error_detail {
    pub size: u32,
    /// this rank, -1 if not known
    pub rank: i32,
    /// the peer concerned, -1 if none
    pub peer: i32,
    pub reserved: u32,
    /// the operation, for example "dispatch"; "" if there was no error
    pub op: *const ::core::ffi::c_char,
    /// what was found and what to do
    pub text: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_error_detail"][::core::mem::size_of::<epw_error_detail>() - 32usize];
    [
        "Alignment of epw_error_detail",
    ][::core::mem::align_of::<epw_error_detail>() - 8usize];
    [
        "Offset of field: epw_error_detail::size",
    ][::core::mem::offset_of!(epw_error_detail, size) - 0usize];
    [
        "Offset of field: epw_error_detail::rank",
    ][::core::mem::offset_of!(epw_error_detail, rank) - 4usize];
    [
        "Offset of field: epw_error_detail::peer",
    ][::core::mem::offset_of!(epw_error_detail, peer) - 8usize];
    [
        "Offset of field: epw_error_detail::reserved",
    ][::core::mem::offset_of!(epw_error_detail, reserved) - 12usize];
    [
        "Offset of field: epw_error_detail::op",
    ][::core::mem::offset_of!(epw_error_detail, op) - 16usize];
    [
        "Offset of field: epw_error_detail::text",
    ][::core::mem::offset_of!(epw_error_detail, text) - 24usize];
};
impl Default for epw_error_detail {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_error_detail_init(detail: *mut epw_error_detail);
}
unsafe extern "C" {
    /// Nothing beyond `size` is written. detail [in: size, out]
    pub fn epw_last_error_detail(detail: *mut epw_error_detail);
}
unsafe extern "C" {
    /// "0.1.0"
    pub fn epw_version() -> *const ::core::ffi::c_char;
}
pub const EPW_LOG_OFF: u32 = 0;
pub const EPW_LOG_WARN: u32 = 1;
pub const EPW_LOG_INFO: u32 = 2;
pub const EPW_LOG_TRACE: u32 = 3;
/** What the library says while it runs: which path leads to a peer and why others do not, sizes, memberships,
 peers that are given up and why. The variable EPWIRE_LOG has it printed on stderr, or appended to the file
 EPWIRE_LOG_FILE (%p in its name: the process): "off", "warn", "info" or "trace", or a level for each of the
 subsystems plan, path, member, wait and nic, as in "warn,path=trace". Nothing is said of operations that go
 well, and nothing costs more than a load where nobody listens.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_log_record {
    pub size: u32,
    /// EPW_LOG_WARN to EPW_LOG_TRACE
    pub level: u32,
    /// this rank, -1 if not known
    pub rank: i32,
    /// the peer concerned, -1 if none
    pub peer: i32,
    /// the name, for example "path"
    pub subsystem: *const ::core::ffi::c_char,
    /// without line ends; like the record valid until the function returns
    pub text: *const ::core::ffi::c_char,
    /// since 1970
    pub time_ns: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_log_record"][::core::mem::size_of::<epw_log_record>() - 40usize];
    ["Alignment of epw_log_record"][::core::mem::align_of::<epw_log_record>() - 8usize];
    [
        "Offset of field: epw_log_record::size",
    ][::core::mem::offset_of!(epw_log_record, size) - 0usize];
    [
        "Offset of field: epw_log_record::level",
    ][::core::mem::offset_of!(epw_log_record, level) - 4usize];
    [
        "Offset of field: epw_log_record::rank",
    ][::core::mem::offset_of!(epw_log_record, rank) - 8usize];
    [
        "Offset of field: epw_log_record::peer",
    ][::core::mem::offset_of!(epw_log_record, peer) - 12usize];
    [
        "Offset of field: epw_log_record::subsystem",
    ][::core::mem::offset_of!(epw_log_record, subsystem) - 16usize];
    [
        "Offset of field: epw_log_record::text",
    ][::core::mem::offset_of!(epw_log_record, text) - 24usize];
    [
        "Offset of field: epw_log_record::time_ns",
    ][::core::mem::offset_of!(epw_log_record, time_ns) - 32usize];
};
impl Default for epw_log_record {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** Called by the thread that has something to say, with locks of the library held: it may not call the
 library, and returns soon.*/
pub type epw_log_fn = ::core::option::Option<
    unsafe extern "C" fn(
        context: *mut ::core::ffi::c_void,
        record: *const epw_log_record,
    ),
>;
unsafe extern "C" {
    /** Has `fn` called with `context` for what `levels` names, in the form of EPWIRE_LOG, beside what EPWIRE_LOG
 asks for; instead of the function that was given before. NULL: no more. A call that is under way in another
 thread may still use the former function, with either context. EPW_ERR_INVALID: `levels` is something else.*/
    pub fn epw_log_set(
        levels: *const ::core::ffi::c_char,
        fn_: epw_log_fn,
        context: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
pub const EPW_BF16: u32 = 0;
pub const EPW_F16: u32 = 1;
/// the input's own 16-bit values
pub const EPW_PAYLOAD_SAME: u32 = 0;
/// e4m3, one f32 scale per 128 channels
pub const EPW_PAYLOAD_FP8_F32: u32 = 1;
/// e4m3, f32 scales rounded up to powers of two
pub const EPW_PAYLOAD_FP8_POW2: u32 = 2;
/// e4m3, the same scales as 8-bit exponents, four to an i32
pub const EPW_PAYLOAD_FP8_UE8M0: u32 = 3;
/// the caller's own bytes and scales
pub const EPW_PAYLOAD_OPAQUE: u32 = 4;
pub const EPW_EXPERT_MAJOR: u32 = 0;
pub const EPW_RANK_MAJOR: u32 = 1;
/// one row per (token, rank), summed over that rank's experts there
pub const EPW_COMBINE_RANK_REDUCED: u32 = 0;
/// one row per (token, expert), summed at home in top-k order
pub const EPW_COMBINE_ORDERED: u32 = 1;
pub const EPW_I32: u32 = 0;
pub const EPW_U32: u32 = 1;
pub const EPW_I64: u32 = 2;
pub const EPW_TYPE_I8: u32 = 0;
pub const EPW_TYPE_U8: u32 = 1;
pub const EPW_TYPE_I32: u32 = 2;
pub const EPW_TYPE_U32: u32 = 3;
pub const EPW_TYPE_I64: u32 = 4;
pub const EPW_TYPE_U64: u32 = 5;
pub const EPW_TYPE_F16: u32 = 6;
pub const EPW_TYPE_BF16: u32 = 7;
pub const EPW_TYPE_F32: u32 = 8;
pub const EPW_TYPE_F64: u32 = 9;
pub const EPW_SUM: u32 = 0;
pub const EPW_PRODUCT: u32 = 1;
pub const EPW_MIN: u32 = 2;
pub const EPW_MAX: u32 = 3;
pub const EPW_AVERAGE: u32 = 4;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_fabric {
    _unused: [u8; 0],
}
pub const EPW_PATH_NONE: u32 = 0;
/// the rank itself
pub const EPW_PATH_SELF: u32 = 1;
/// another rank of this process: its window is used directly
pub const EPW_PATH_THREAD: u32 = 2;
/// another process of this host: its window, of host memory, is mapped
pub const EPW_PATH_SHM: u32 = 4;
/// another process of this host: its window, of GPU memory, is mapped by a VMM handle
pub const EPW_PATH_VMM: u32 = 8;
/// the same by a CUDA IPC handle
pub const EPW_PATH_IPC: u32 = 16;
/// a rank of any host: what is written for it travels by a queue, see epw_fabric
pub const EPW_PATH_QUEUE: u32 = 32;
/// A set of ranks: bit r%64 of bits[r/64]. It never changes.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_mask {
    pub bits: [u64; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_mask"][::core::mem::size_of::<epw_mask>() - 128usize];
    ["Alignment of epw_mask"][::core::mem::align_of::<epw_mask>() - 8usize];
    [
        "Offset of field: epw_mask::bits",
    ][::core::mem::offset_of!(epw_mask, bits) - 0usize];
};
/** What a buffer must be able to do. All fields but `rank`, `threads`, `paths`, `sms`, `queue_depth` and the
 ordinal in `device` must be equal on every rank; connect refuses a peer whose value differs and names the
 field.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_config {
    /// sizeof(epw_config)
    pub size: u32,
    /// EPW_CONFIG_VERSION
    pub version: u32,
    /// [0, ranks)
    pub rank: u32,
    /// [1, EPW_MAX_RANKS]
    pub ranks: u32,
    /// tokens per rank and operation, [1, EPW_MAX_TOKENS]
    pub max_tokens: u32,
    /// channels of a token, a multiple of 8 (of 128 for FP8), at most 2^24
    pub hidden: u32,
    /// physical experts in all, a multiple of ranks; expert e lives on e / (experts/ranks)
    pub experts: u32,
    /// experts per token at most, [1, min(EPW_MAX_TOPK, experts)]
    pub topk: u32,
    /// operations in flight, 1 or 2
    pub lanes: u32,
    /// EPW_BF16 or EPW_F16: type of tokens
    pub dtype: u32,
    /// EPW_BF16 or EPW_F16: type of expert outputs and of combine's result
    pub combine_dtype: u32,
    /// most payload + scale bytes of an opaque row, up to 2^30; 0: no such payloads
    pub opaque_bytes: u32,
    /// most opaque bytes per token, [0, EPW_MAX_SIDEBAND]
    pub sideband_bytes: u32,
    /// 1: also reserve what EPW_COMBINE_ORDERED needs
    pub ordered: u32,
    /// 1: also reserve an expert-major area for epw_next_combine_buffer
    pub zero_copy: u32,
    /// threads that move data for this rank, the caller included; 0: chosen by the library
    pub threads: u32,
    /// permitted EPW_PATH_* bits; EPW_PATH_ALL: any
    pub paths: u32,
    /** EPW_DEVICE_HOST, or the CUDA ordinal, in this process, of the GPU that holds tokens,
outputs and the window. All ranks on the host or all on GPUs*/
    pub device: i32,
    /** CUDA: SMs that the kernels of all lanes take together at most, a thread block to each; 0:
all of the GPU's that no other buffer or communicator of this process has. Kernels that
wait for peers must find room together: else one keeps another off the GPU that a peer
waits for, until the deadline. So the SMs are this buffer's until it is destroyed, and
what would not fit is refused with EPW_ERR_LIMIT, which names who has how many. What
other processes run on the GPU is theirs to bound*/
    pub sms: u32,
    /** entries of a queue at least, a power of two from EPW_QUEUE_DEPTH_MIN to
EPW_QUEUE_DEPTH_MAX; 0: that of the fabric, if there is one. For plans that are
made before the fabric*/
    pub queue_depth: u32,
    /// a peer silent for so long is given up: 1 ms to 1 day
    pub deadline_ns: u64,
    /** by which peers behind a queue are reached; of this rank, and outlives the buffer.
NULL: none are. With one, and EPW_PATH_QUEUE in `paths`, max_tokens is at most
16254, and a buffer on a GPU also has pinned host memory: see epw_plan*/
    pub fabric: *mut epw_fabric,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_config"][::core::mem::size_of::<epw_config>() - 96usize];
    ["Alignment of epw_config"][::core::mem::align_of::<epw_config>() - 8usize];
    [
        "Offset of field: epw_config::size",
    ][::core::mem::offset_of!(epw_config, size) - 0usize];
    [
        "Offset of field: epw_config::version",
    ][::core::mem::offset_of!(epw_config, version) - 4usize];
    [
        "Offset of field: epw_config::rank",
    ][::core::mem::offset_of!(epw_config, rank) - 8usize];
    [
        "Offset of field: epw_config::ranks",
    ][::core::mem::offset_of!(epw_config, ranks) - 12usize];
    [
        "Offset of field: epw_config::max_tokens",
    ][::core::mem::offset_of!(epw_config, max_tokens) - 16usize];
    [
        "Offset of field: epw_config::hidden",
    ][::core::mem::offset_of!(epw_config, hidden) - 20usize];
    [
        "Offset of field: epw_config::experts",
    ][::core::mem::offset_of!(epw_config, experts) - 24usize];
    [
        "Offset of field: epw_config::topk",
    ][::core::mem::offset_of!(epw_config, topk) - 28usize];
    [
        "Offset of field: epw_config::lanes",
    ][::core::mem::offset_of!(epw_config, lanes) - 32usize];
    [
        "Offset of field: epw_config::dtype",
    ][::core::mem::offset_of!(epw_config, dtype) - 36usize];
    [
        "Offset of field: epw_config::combine_dtype",
    ][::core::mem::offset_of!(epw_config, combine_dtype) - 40usize];
    [
        "Offset of field: epw_config::opaque_bytes",
    ][::core::mem::offset_of!(epw_config, opaque_bytes) - 44usize];
    [
        "Offset of field: epw_config::sideband_bytes",
    ][::core::mem::offset_of!(epw_config, sideband_bytes) - 48usize];
    [
        "Offset of field: epw_config::ordered",
    ][::core::mem::offset_of!(epw_config, ordered) - 52usize];
    [
        "Offset of field: epw_config::zero_copy",
    ][::core::mem::offset_of!(epw_config, zero_copy) - 56usize];
    [
        "Offset of field: epw_config::threads",
    ][::core::mem::offset_of!(epw_config, threads) - 60usize];
    [
        "Offset of field: epw_config::paths",
    ][::core::mem::offset_of!(epw_config, paths) - 64usize];
    [
        "Offset of field: epw_config::device",
    ][::core::mem::offset_of!(epw_config, device) - 68usize];
    [
        "Offset of field: epw_config::sms",
    ][::core::mem::offset_of!(epw_config, sms) - 72usize];
    [
        "Offset of field: epw_config::queue_depth",
    ][::core::mem::offset_of!(epw_config, queue_depth) - 76usize];
    [
        "Offset of field: epw_config::deadline_ns",
    ][::core::mem::offset_of!(epw_config, deadline_ns) - 80usize];
    [
        "Offset of field: epw_config::fabric",
    ][::core::mem::offset_of!(epw_config, fabric) - 88usize];
};
impl Default for epw_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_config_init(config: *mut epw_config);
}
/// Sizes that follow from a configuration. Computed without allocating anything.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_plan {
    /// sizeof(epw_plan)
    pub size: u32,
    /// experts / ranks
    pub local_experts: u32,
    /// ranks * max_tokens: rows per local expert (expert-major) or in all (rank-major)
    pub rows: u64,
    /// One dispatch slot: [header][payload][scales], and where in it the payload begins.
    pub slot_bytes: u64,
    pub slot_header_bytes: u64,
    /// header and signal words
    pub control_bytes: u64,
    /// dispatch slots of all lanes
    pub dispatch_bytes: u64,
    /// combine slots of all lanes, rank-reduced
    pub combine_bytes: u64,
    /// what `ordered` adds to them
    pub ordered_bytes: u64,
    /// what `zero_copy` adds
    pub zero_copy_bytes: u64,
    /// sum of the above, rounded up to pages; a GPU takes 2 MiB at a time
    pub window_bytes: u64,
    /** memory of this rank's own beside the window; with `threads` 0 it is that of the
threads that would be chosen now. On a GPU it is device memory: some 50 KB of
pinned host memory, through which kernels report, are not in it*/
    pub private_bytes: u64,
    /// what is written for them and read by the NIC; for all ranks at a time
    pub image_bytes: u64,
    /** queues by which lanes post to them; for each. What the wire local shares with
peers is the fabric's: epw_fabric_options.ring_bytes*/
    pub ring_bytes: u64,
    /** what they write here, of a rank on a GPU, whose window mapped peers alone write;
for each its places of the window*/
    pub inbox_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_plan"][::core::mem::size_of::<epw_plan>() - 112usize];
    ["Alignment of epw_plan"][::core::mem::align_of::<epw_plan>() - 8usize];
    [
        "Offset of field: epw_plan::size",
    ][::core::mem::offset_of!(epw_plan, size) - 0usize];
    [
        "Offset of field: epw_plan::local_experts",
    ][::core::mem::offset_of!(epw_plan, local_experts) - 4usize];
    [
        "Offset of field: epw_plan::rows",
    ][::core::mem::offset_of!(epw_plan, rows) - 8usize];
    [
        "Offset of field: epw_plan::slot_bytes",
    ][::core::mem::offset_of!(epw_plan, slot_bytes) - 16usize];
    [
        "Offset of field: epw_plan::slot_header_bytes",
    ][::core::mem::offset_of!(epw_plan, slot_header_bytes) - 24usize];
    [
        "Offset of field: epw_plan::control_bytes",
    ][::core::mem::offset_of!(epw_plan, control_bytes) - 32usize];
    [
        "Offset of field: epw_plan::dispatch_bytes",
    ][::core::mem::offset_of!(epw_plan, dispatch_bytes) - 40usize];
    [
        "Offset of field: epw_plan::combine_bytes",
    ][::core::mem::offset_of!(epw_plan, combine_bytes) - 48usize];
    [
        "Offset of field: epw_plan::ordered_bytes",
    ][::core::mem::offset_of!(epw_plan, ordered_bytes) - 56usize];
    [
        "Offset of field: epw_plan::zero_copy_bytes",
    ][::core::mem::offset_of!(epw_plan, zero_copy_bytes) - 64usize];
    [
        "Offset of field: epw_plan::window_bytes",
    ][::core::mem::offset_of!(epw_plan, window_bytes) - 72usize];
    [
        "Offset of field: epw_plan::private_bytes",
    ][::core::mem::offset_of!(epw_plan, private_bytes) - 80usize];
    [
        "Offset of field: epw_plan::image_bytes",
    ][::core::mem::offset_of!(epw_plan, image_bytes) - 88usize];
    [
        "Offset of field: epw_plan::ring_bytes",
    ][::core::mem::offset_of!(epw_plan, ring_bytes) - 96usize];
    [
        "Offset of field: epw_plan::inbox_bytes",
    ][::core::mem::offset_of!(epw_plan, inbox_bytes) - 104usize];
};
unsafe extern "C" {
    pub fn epw_plan_init(plan: *mut epw_plan);
}
unsafe extern "C" {
    /** Checks `config` and computes its plan. EPW_ERR_INVALID or EPW_ERR_LIMIT name the field and the limit.
 config [in], plan [in: size, out].*/
    pub fn epw_plan_make(config: *const epw_config, plan: *mut epw_plan) -> epw_status;
}
/// Shapes of the rows that a dispatch with this payload delivers.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_row_shape {
    pub size: u32,
    /// of one row, scales not included
    pub payload_bytes: u32,
    /// scales of one row: hidden/128 for FP8, the caller's for opaque rows
    pub scale_count: u32,
    /// bytes of one scale as it travels: 4 (f32), 1 (UE8M0), the caller's
    pub scale_bytes: u32,
    /// expert-major payload output: local_experts * rows * payload_bytes
    pub expert_rows_bytes: u64,
    /// expert-major scale output, see epw_dispatch_output.scales
    pub expert_scales_bytes: u64,
    /// rank-major payload copy: rows * payload_bytes
    pub rank_rows_bytes: u64,
    /// rank-major scale copy
    pub rank_scales_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_row_shape"][::core::mem::size_of::<epw_row_shape>() - 48usize];
    ["Alignment of epw_row_shape"][::core::mem::align_of::<epw_row_shape>() - 8usize];
    [
        "Offset of field: epw_row_shape::size",
    ][::core::mem::offset_of!(epw_row_shape, size) - 0usize];
    [
        "Offset of field: epw_row_shape::payload_bytes",
    ][::core::mem::offset_of!(epw_row_shape, payload_bytes) - 4usize];
    [
        "Offset of field: epw_row_shape::scale_count",
    ][::core::mem::offset_of!(epw_row_shape, scale_count) - 8usize];
    [
        "Offset of field: epw_row_shape::scale_bytes",
    ][::core::mem::offset_of!(epw_row_shape, scale_bytes) - 12usize];
    [
        "Offset of field: epw_row_shape::expert_rows_bytes",
    ][::core::mem::offset_of!(epw_row_shape, expert_rows_bytes) - 16usize];
    [
        "Offset of field: epw_row_shape::expert_scales_bytes",
    ][::core::mem::offset_of!(epw_row_shape, expert_scales_bytes) - 24usize];
    [
        "Offset of field: epw_row_shape::rank_rows_bytes",
    ][::core::mem::offset_of!(epw_row_shape, rank_rows_bytes) - 32usize];
    [
        "Offset of field: epw_row_shape::rank_scales_bytes",
    ][::core::mem::offset_of!(epw_row_shape, rank_scales_bytes) - 40usize];
};
unsafe extern "C" {
    pub fn epw_row_shape_init(shape: *mut epw_row_shape);
}
/// memory of this host, shared by a socket of its network namespace
pub const EPW_WIRE_LOCAL: u32 = 1;
/// TCP over IPv4 or IPv6
pub const EPW_WIRE_TCP: u32 = 2;
/** an RDMA adapter of any make, by libibverbs: the first with an active port and, on
Ethernet, a RoCEv2 address that others can reach. Ranks still call each other
within a host, or by TCP where they have a key, and see so who has ended*/
pub const EPW_WIRE_VERBS: u32 = 4;
/// a thread of this process
pub const EPW_NIC_SOFT: u32 = 1;
/** the same for tests: it delays fetches, overwrites entries that are done, and breaks
a queue whose entries or bytes have changed behind the doorbell; slow*/
pub const EPW_NIC_STRICT: u32 = 2;
/** for tests: an mlx5 adapter in software, which takes a real one's commands, and is as
strict with them as firmware*/
pub const EPW_NIC_FAKE: u32 = 3;
/** an mlx5 adapter with an active port, by libibverbs and libmlx5. Unproven: no adapter
has been tried yet*/
pub const EPW_NIC_MLX5: u32 = 4;
/// the first of those below that can be had; epw_fabric_describe says which
pub const EPW_DOORBELLS_AUTO: u32 = 0;
/// they write the adapter's registers, which the GPU's driver has to map
pub const EPW_DOORBELLS_GPU: u32 = 1;
/** they write words that a thread of this process copies to the registers: it takes
a core while they post, and up to 0.1 ms when they begin again after 2 ms*/
pub const EPW_DOORBELLS_HOST: u32 = 2;
/// pinned host memory
pub const EPW_RINGS_HOST: u32 = 0;
/// entries and rows in the memory of the GPU, if the adapter reaches it
pub const EPW_RINGS_GPU: u32 = 1;
/// the same, else host memory; epw_fabric_describe says which
pub const EPW_RINGS_AUTO: u32 = 2;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_fabric_options {
    /// sizeof(epw_fabric_options)
    pub size: u32,
    /// [0, EPW_MAX_RANKS): that of the buffers that use it
    pub rank: u32,
    /** EPW_WIRE_* bits. Two ranks of one host that both have it take EPW_WIRE_LOCAL, others
the last of these bits that they have in common*/
    pub wires: u32,
    /// EPW_NIC_*
    pub nic: u32,
    /// TCP: listens on one of these for each address; 0, 0: on any
    pub first_port: u16,
    /// TCP: listens on one of these for each address; 0, 0: on any
    pub last_port: u16,
    /** TCP: on the addresses of these interfaces, in the grammar of
NCCL_SOCKET_IFNAME, "eth,ib", "=eth0" or "^docker"; NULL: of all*/
    pub interfaces: *const ::core::ffi::c_char,
    /** TCP: 32 secret bytes, the same on all ranks: both ends of a connection
prove that they know them. What follows is neither encrypted nor protected
on the way. NULL: none. Copied*/
    pub key: *const ::core::ffi::c_uchar,
    /** Local: of the ring in shared memory by which this rank sends to a peer, a power of two from
 EPW_RING_BYTES_MIN to EPW_RING_BYTES_MAX; 0: 2^22. Each peer of this host that is reached by a queue
 takes so much, 68 KiB more, and what its own options say for the way back, once for all buffers of the
 fabric. It is in no plan; pages are taken as they are used.*/
    pub ring_bytes: u32,
    /// EPW_DOORBELLS_*: of an adapter, for buffers on a GPU
    pub doorbells: u32,
    /** Adapters: which ones, in the grammar of NCCL_IB_HCA: "mlx5" for all whose names begin so, "=mlx5_0:1"
 for this one and this port of it, "^mlx5_1,mlx5_2" for all but these, "^=mlx5_1" for all but exactly
 this one. NULL: any. Of those the nearest to `device` on the PCI bus is taken; ranks take turns at what
 is equally near. epw_fabric_describe tells which it is. Copied*/
    pub adapters: *const ::core::ffi::c_char,
    /// the GPU of the buffers that use it, as in epw_config; EPW_DEVICE_HOST: all are near
    pub device: i32,
    /** how many, at which lanes take turns: 1 or 2; 0: 1. EPW_ERR_NO_PATH if there are
fewer*/
    pub adapter_count: u32,
    /// InfiniBand: [0, 15]; Ethernet: the priority, [0, 7]
    pub service_level: u32,
    /** Ethernet: [0, 255], four times the DSCP; what the kernel has for the port does
not hold for queue pairs of this kind*/
    pub traffic_class: u32,
    /// Ethernet: [1, 255]; 0: 255
    pub hop_limit: u32,
    /// EPW_RINGS_*: of an adapter, for buffers on a GPU
    pub rings: u32,
    /** Of each queue, of a buffer's lane to a peer: at least so many entries of 64 bytes, a power of two from
 EPW_QUEUE_DEPTH_MIN to EPW_QUEUE_DEPTH_MAX; 0, or fewer than its operations may post at a time: as many
 as these need. A peer that takes nothing is given up once its queue is full. In epw_plan.ring_bytes if
 epw_config.fabric is set.*/
    pub queue_depth: u32,
    /** the host rings whenever it has posted so many entries of an operation's rows
to a peer, and behind the last: [1, EPW_QUEUE_DEPTH_MAX]; 0: behind the last
alone. Kernels post all that a peer is sent at once, and ring once*/
    pub doorbell_batch: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_fabric_options",
    ][::core::mem::size_of::<epw_fabric_options>() - 88usize];
    [
        "Alignment of epw_fabric_options",
    ][::core::mem::align_of::<epw_fabric_options>() - 8usize];
    [
        "Offset of field: epw_fabric_options::size",
    ][::core::mem::offset_of!(epw_fabric_options, size) - 0usize];
    [
        "Offset of field: epw_fabric_options::rank",
    ][::core::mem::offset_of!(epw_fabric_options, rank) - 4usize];
    [
        "Offset of field: epw_fabric_options::wires",
    ][::core::mem::offset_of!(epw_fabric_options, wires) - 8usize];
    [
        "Offset of field: epw_fabric_options::nic",
    ][::core::mem::offset_of!(epw_fabric_options, nic) - 12usize];
    [
        "Offset of field: epw_fabric_options::first_port",
    ][::core::mem::offset_of!(epw_fabric_options, first_port) - 16usize];
    [
        "Offset of field: epw_fabric_options::last_port",
    ][::core::mem::offset_of!(epw_fabric_options, last_port) - 18usize];
    [
        "Offset of field: epw_fabric_options::interfaces",
    ][::core::mem::offset_of!(epw_fabric_options, interfaces) - 24usize];
    [
        "Offset of field: epw_fabric_options::key",
    ][::core::mem::offset_of!(epw_fabric_options, key) - 32usize];
    [
        "Offset of field: epw_fabric_options::ring_bytes",
    ][::core::mem::offset_of!(epw_fabric_options, ring_bytes) - 40usize];
    [
        "Offset of field: epw_fabric_options::doorbells",
    ][::core::mem::offset_of!(epw_fabric_options, doorbells) - 44usize];
    [
        "Offset of field: epw_fabric_options::adapters",
    ][::core::mem::offset_of!(epw_fabric_options, adapters) - 48usize];
    [
        "Offset of field: epw_fabric_options::device",
    ][::core::mem::offset_of!(epw_fabric_options, device) - 56usize];
    [
        "Offset of field: epw_fabric_options::adapter_count",
    ][::core::mem::offset_of!(epw_fabric_options, adapter_count) - 60usize];
    [
        "Offset of field: epw_fabric_options::service_level",
    ][::core::mem::offset_of!(epw_fabric_options, service_level) - 64usize];
    [
        "Offset of field: epw_fabric_options::traffic_class",
    ][::core::mem::offset_of!(epw_fabric_options, traffic_class) - 68usize];
    [
        "Offset of field: epw_fabric_options::hop_limit",
    ][::core::mem::offset_of!(epw_fabric_options, hop_limit) - 72usize];
    [
        "Offset of field: epw_fabric_options::rings",
    ][::core::mem::offset_of!(epw_fabric_options, rings) - 76usize];
    [
        "Offset of field: epw_fabric_options::queue_depth",
    ][::core::mem::offset_of!(epw_fabric_options, queue_depth) - 80usize];
    [
        "Offset of field: epw_fabric_options::doorbell_batch",
    ][::core::mem::offset_of!(epw_fabric_options, doorbell_batch) - 84usize];
};
impl Default for epw_fabric_options {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_fabric_options_init(options: *mut epw_fabric_options);
}
unsafe extern "C" {
    /// Starts its threads and listens. options [in], out [out]. Any thread.
    pub fn epw_fabric_create(
        options: *const epw_fabric_options,
        out: *mut *mut epw_fabric,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_fabric_describe(
        fabric: *const epw_fabric,
        text: *mut ::core::ffi::c_char,
    ) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /** Ends them. All buffers that used it have been destroyed. NULL is allowed. In a forked child it does
 nothing.*/
    pub fn epw_fabric_destroy(fabric: *mut epw_fabric);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_buffer {
    _unused: [u8; 0],
}
unsafe extern "C" {
    /** Allocates the window and starts the rank's threads. EPW_ERR_INVALID also if the environment variable
 EPWIRE_ISA names an instruction set that is unknown or cannot run here. config [in], out [out].*/
    pub fn epw_buffer_create(
        config: *const epw_config,
        out: *mut *mut epw_buffer,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Tells active peers that this rank leaves, ends its threads, unmaps the peers and frees the window. Not
 while another thread uses the buffer. NULL is allowed. In a forked child, the only call on a buffer that it
 inherited: frees its memory and reaches no peer; the parent's buffer lives on.*/
    pub fn epw_buffer_destroy(buffer: *mut epw_buffer);
}
unsafe extern "C" {
    /** Writes what `peer` needs to reach this rank's window, to be carried there by any means and given to its
 epw_buffer_connect. It holds a secret that lets processes of the same user map the window: carry it over a
 channel you trust. blob [out, EPW_BLOB_MAX bytes], length [out].*/
    pub fn epw_buffer_export(
        buffer: *mut epw_buffer,
        peer: u32,
        blob: *mut ::core::ffi::c_void,
        length: *mut usize,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Maps the window that `peer` exported for this rank. Every peer needs it once before it may be active, the
 rank itself not. Refused with EPW_ERR_MISMATCH if a field of the configuration differs, with EPW_ERR_FENCED
 while a former incarnation of this rank, be it another buffer of this process, still has the peer's window
 mapped. Bounded by the deadline; no other call on the buffer waits for it, one that connects or disconnects
 the same peer is EPW_ERR_STATE.
 Connecting a peer again first disconnects it. Any thread, at any time where the peer is not active: beside
 operations, none of which it waits for. A peer that is active must have been given up, and no lane be held.*/
    pub fn epw_buffer_connect(
        buffer: *mut epw_buffer,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The same, bounded by deadline_ns, not 0, instead of the buffer's deadline: for one bound over many peers.
    pub fn epw_buffer_connect_within(
        buffer: *mut epw_buffer,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
        deadline_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Unmaps the peer's window, after telling the peer. It must not be active, unless it has been given up: then
 no lane may be held. Otherwise any thread, at any time, as epw_buffer_connect.*/
    pub fn epw_buffer_disconnect(buffer: *mut epw_buffer, peer: u32) -> epw_status;
}
unsafe extern "C" {
    /** Is the path to `peer` alive? Asks its process by a word written the way rows are, beside all operations,
 and waits for the answer, which its library gives whether or not its program calls anything. Any thread.
 EPW_ERR_TIMEOUT: no answer within timeout_ns, and, on GPUs, the time for some copies of 8 bytes.
 EPW_ERR_PEER: its process has ended. EPW_ERR_STATE: not connected, or another thread probes a path of this
 buffer.
 With this rank itself as the peer, its own device is probed: whether its window takes a word and gives it
 back, on the host by this process, on GPUs by copies on a stream of the library's own. EPW_ERR_SYSTEM: it
 does not; EPW_ERR_TIMEOUT: not within timeout_ns.*/
    pub fn epw_buffer_probe(
        buffer: *mut epw_buffer,
        peer: u32,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The EPW_PATH_* by which `peer` is reached, EPW_PATH_NONE if it is not connected.
    pub fn epw_buffer_path(buffer: *const epw_buffer, peer: u32) -> u32;
}
unsafe extern "C" {
    /** The EPW_WIRE_* that carries what is written for `peer`, 0 unless its path is EPW_PATH_QUEUE, and where
 adapters carry it, which have their own.*/
    pub fn epw_buffer_wire(buffer: *const epw_buffer, peer: u32) -> u32;
}
unsafe extern "C" {
    pub fn epw_buffer_trouble(
        buffer: *const epw_buffer,
        peer: u32,
        text: *mut ::core::ffi::c_char,
    ) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /// What to call one EPW_PATH_* in print, for example "CUDA IPC". Never NULL.
    pub fn epw_path_name(path: u32) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /** Begins a membership: every member calls it with the same mask, epoch and step, with no lane held and its
 own writes done. epoch is in [1, 8388607] and larger than any before, or once more one that a GPU was not
 seen to begin (EPW_ERR_TIMEOUT); step is that of the group at which
 the membership begins, in [0, EPW_STEP_MAX], 0 in programs that count none; all other members must be
 connected. Clears suspects and restarts the operation counters. Members that begin the epoch at different
 steps do not take part in each other's operations (EPW_CAUSE_STEP). Who is left out is told: its operations
 end without this rank at once (EPW_CAUSE_SUPERSEDED). Who decides mask, epoch and step is the caller's
 affair. CUDA: waits for what has been enqueued before, see section CUDA.*/
    pub fn epw_buffer_set_active(
        buffer: *mut epw_buffer,
        active: *const epw_mask,
        epoch: u32,
        step: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** The group goes on without these peers: they become suspects of this membership, and waits for them, running
 and future ones, end at once (EPW_CAUSE_SUPERSEDED). For callers that have learnt so otherwise, and need
 not wait for a deadline to see it; no accusation, so it makes none of them `silent`. Peers that are no
 members are ignored; EPW_ERR_INVALID if the mask names this rank. Any thread, beside running operations,
 none of which it waits for: a wait ends some milliseconds later at most. CUDA: kernels ask after some tens
 of microseconds of waiting; an operation that finds a peer's words there goes on with it.*/
    pub fn epw_buffer_revoke(
        buffer: *mut epw_buffer,
        peers: *const epw_mask,
    ) -> epw_status;
}
/// A membership, and what has become of it.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_membership {
    pub size: u32,
    /// 0: none yet
    pub epoch: u32,
    /// at which it began
    pub step: u64,
    pub active: epw_mask,
    /** active peers given up since set_active, neither sent to nor waited for until the
next one. CUDA: also this rank itself, see epw_error_record.peer*/
    pub suspects: epw_mask,
    /** those of them that this rank has seen silent for a whole deadline
(EPW_CAUSE_TIMEOUT). Of the others it has been told, which is no evidence that they
fail*/
    pub silent: epw_mask,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_membership"][::core::mem::size_of::<epw_membership>() - 400usize];
    ["Alignment of epw_membership"][::core::mem::align_of::<epw_membership>() - 8usize];
    [
        "Offset of field: epw_membership::size",
    ][::core::mem::offset_of!(epw_membership, size) - 0usize];
    [
        "Offset of field: epw_membership::epoch",
    ][::core::mem::offset_of!(epw_membership, epoch) - 4usize];
    [
        "Offset of field: epw_membership::step",
    ][::core::mem::offset_of!(epw_membership, step) - 8usize];
    [
        "Offset of field: epw_membership::active",
    ][::core::mem::offset_of!(epw_membership, active) - 16usize];
    [
        "Offset of field: epw_membership::suspects",
    ][::core::mem::offset_of!(epw_membership, suspects) - 144usize];
    [
        "Offset of field: epw_membership::silent",
    ][::core::mem::offset_of!(epw_membership, silent) - 272usize];
};
unsafe extern "C" {
    pub fn epw_membership_init(membership: *mut epw_membership);
}
unsafe extern "C" {
    /// The current membership. membership [in: size, out]. Any thread.
    pub fn epw_buffer_membership(
        buffer: *const epw_buffer,
        membership: *mut epw_membership,
    ) -> epw_status;
}
unsafe extern "C" {
    /** The newest epoch that this rank or one of its active peers has begun: larger than this rank's own where
 others have gone on, and await it there. epoch [out]. Any thread. CUDA: copies a word for each peer;
 EPW_ERR_TIMEOUT where the GPU does not do so within 10 ms.*/
    pub fn epw_buffer_newest_epoch(
        buffer: *mut epw_buffer,
        epoch: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Active ranks, this one included, that have begun `epoch` at another step than this one: they count steps
 otherwise than was agreed, and no operation of theirs meets one of the others (EPW_CAUSE_STEP). Says
 nothing about ranks that are in another epoch. epoch is in [0, 8388607], step in [0, EPW_STEP_MAX]. ranks
 [out]. Any thread. CUDA: as epw_buffer_newest_epoch.*/
    pub fn epw_buffer_diverged(
        buffer: *mut epw_buffer,
        epoch: u32,
        step: u64,
        ranks: *mut epw_mask,
    ) -> epw_status;
}
/** not known yet: some member has not ended the step; or one that was lost leaves
it open until the next membership has begun everywhere*/
pub const EPW_VERDICT_PENDING: u32 = 0;
/** all members have completed everything that ended in the step. Where the
membership   has changed since: all those that belong to both*/
pub const EPW_VERDICT_CLEAN: u32 = 1;
/// some have not: an outcome was degraded, or a handle was released
pub const EPW_VERDICT_FAULTED: u32 = 2;
unsafe extern "C" {
    /** Ends a step of this buffer: posts to all members whether everything that has ended since the checkpoint
 before was complete. An operation counts for the step in which its combine ends. All members end the same
 steps, at least that at which the membership began and larger than any before, at most EPW_STEP_MAX; steps
 left out share the verdict of the next. epoch [out]: the present one, by which to ask for the verdict.
 Waits for nobody. EPW_ERR_STATE: no membership yet, or CUDA: `stream` is under capture.
 CUDA: enqueues on `stream` a kernel of one block, which comes behind what calls have enqueued on all lanes,
 and ahead of their next calls. Replays of graphs, before and after it, are put in order by the caller.*/
    pub fn epw_checkpoint(
        buffer: *mut epw_buffer,
        step: u64,
        stream: *mut ::core::ffi::c_void,
        epoch: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Counts the step that the next checkpoint ends as incomplete: for what a program does beside this buffer,
 such as collectives (epw_comm_take_fault). Any thread, also while operations run.*/
    pub fn epw_checkpoint_fault(buffer: *mut epw_buffer) -> epw_status;
}
unsafe extern "C" {
    /** The verdict, EPW_VERDICT_*, of a step that this rank has ended with a checkpoint, in that epoch. The same
 for all that belong to the present membership, though not at the same moment. An answer once given stays
 right; but who asks again after the membership has changed may get EPW_VERDICT_PENDING until all have begun
 the next. EPW_ERR_LIMIT: it is not known any more, 16 steps or 3 memberships later, not counting steps that
 began after some member was given up; or this rank does not belong to the membership that judges the step.
 Waits for no peer, any thread. CUDA: copies 384 bytes for each rank, beside the streams of the caller, and
 is EPW_VERDICT_PENDING where that takes more than 200 microseconds: ask again. verdict [out].*/
    pub fn epw_checkpoint_verdict(
        buffer: *mut epw_buffer,
        epoch: u32,
        step: u64,
        verdict: *mut u32,
    ) -> epw_status;
}
/// What a buffer on the host has moved since it was created. Rows to and from this rank itself count too.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_traffic {
    pub size: u32,
    pub reserved: u32,
    /// by dispatch: one for each token and rank that it goes to
    pub rows_sent: u64,
    /// by dispatch, and found good
    pub rows_received: u64,
    /// by combine: of each received row one, ordered one for each of its experts here
    pub rows_answered: u64,
    /// of rows with their scales, and of answers; no headers, counts and words
    pub bytes_sent: u64,
    /// of rows with their scales
    pub bytes_received: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_traffic"][::core::mem::size_of::<epw_traffic>() - 48usize];
    ["Alignment of epw_traffic"][::core::mem::align_of::<epw_traffic>() - 8usize];
    [
        "Offset of field: epw_traffic::size",
    ][::core::mem::offset_of!(epw_traffic, size) - 0usize];
    [
        "Offset of field: epw_traffic::reserved",
    ][::core::mem::offset_of!(epw_traffic, reserved) - 4usize];
    [
        "Offset of field: epw_traffic::rows_sent",
    ][::core::mem::offset_of!(epw_traffic, rows_sent) - 8usize];
    [
        "Offset of field: epw_traffic::rows_received",
    ][::core::mem::offset_of!(epw_traffic, rows_received) - 16usize];
    [
        "Offset of field: epw_traffic::rows_answered",
    ][::core::mem::offset_of!(epw_traffic, rows_answered) - 24usize];
    [
        "Offset of field: epw_traffic::bytes_sent",
    ][::core::mem::offset_of!(epw_traffic, bytes_sent) - 32usize];
    [
        "Offset of field: epw_traffic::bytes_received",
    ][::core::mem::offset_of!(epw_traffic, bytes_received) - 40usize];
};
unsafe extern "C" {
    pub fn epw_traffic_init(traffic: *mut epw_traffic);
}
unsafe extern "C" {
    /** wait_ns [out, may be NULL]: [ranks], how long operations have waited for each peer, as the outputs of this
 name tell of one operation. Any thread, also while operations run. EPW_ERR_STATE on a GPU, where kernels
 count nothing: there ask for source_counts and wait_ns. traffic [in: size, out].*/
    pub fn epw_buffer_traffic(
        buffer: *const epw_buffer,
        traffic: *mut epw_traffic,
        wait_ns: *mut u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Which experts can be reached now: reachable[e] = 1 if expert e's rank is active and not suspected, else 0.
 reachable [out, experts bytes].*/
    pub fn epw_buffer_reachable_experts(
        buffer: *const epw_buffer,
        reachable: *mut u8,
    ) -> epw_status;
}
/// waiting for permission to write the peer's dispatch slots
pub const EPW_PHASE_DISPATCH_SEND: u32 = 1;
/// waiting for the peer's rows
pub const EPW_PHASE_DISPATCH_RECEIVE: u32 = 2;
/// answering: the peer's rows were never seen
pub const EPW_PHASE_COMBINE_SEND: u32 = 3;
/// waiting for the peer's answer
pub const EPW_PHASE_COMBINE_RECEIVE: u32 = 4;
/// waiting for the peer's part of a collective
pub const EPW_PHASE_COLLECTIVE: u32 = 5;
/// waiting for the peer in a send or receive
pub const EPW_PHASE_POINT: u32 = 6;
pub const EPW_CAUSE_NONE: u32 = 0;
/// it was silent for a whole deadline
pub const EPW_CAUSE_TIMEOUT: u32 = 1;
/// it said that it dropped this rank, or left
pub const EPW_CAUSE_DROPPED: u32 = 2;
/// it was given up by an earlier operation of this epoch
pub const EPW_CAUSE_SUSPECTED: u32 = 3;
/** its rows have another payload or sideband than this rank's, or weights where
this rank's have none, or it answers in another EPW_COMBINE_* mode*/
pub const EPW_CAUSE_FORMAT: u32 = 4;
/** it answered fewer rows than it was sent: it gave the operation up, and takes
part in the next one. No reason for a change of membership: that
is a peer among epw_membership.suspects*/
pub const EPW_CAUSE_PARTIAL: u32 = 5;
/// CUDA: not a peer's fault: a routing id was out of range or repeated
pub const EPW_CAUSE_ROUTING: u32 = 6;
/** CUDA: not a peer's fault: the lane was not in the state that the replayed
operation needs (held, or not held), which has therefore done nothing*/
pub const EPW_CAUSE_HELD: u32 = 7;
/** it moved on to a newer epoch, or the group goes on without it: see
epw_buffer_revoke*/
pub const EPW_CAUSE_SUPERSEDED: u32 = 8;
/// it begins this epoch at another step
pub const EPW_CAUSE_STEP: u32 = 9;
/** of a peer behind a queue: the connection to it is gone, or it has taken nothing
for so long that the queue had no room for what it was to be sent next*/
pub const EPW_CAUSE_LINK: u32 = 10;
/** prefill, and not a peer's fault: `expected` rows were received, and only `seen`
of them fit the capacity of the output*/
pub const EPW_CAUSE_OVERFLOW: u32 = 11;
/** The first peer that an operation gave up on, with every variable of that wait. The library fills it in,
 within an outcome and by epw_take_errors, which both know how large the caller takes it to be.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_error_record {
    /// EPW_PHASE_*
    pub phase: u32,
    /// EPW_CAUSE_*
    pub cause: u32,
    /// this rank
    pub rank: u32,
    /** the peer given up. CUDA: this rank itself if other work kept its own kernel off the GPU
until the wait's bound; it is a suspect of its own then*/
    pub peer: u32,
    pub lane: u32,
    pub epoch: u32,
    /// operation number in the lane, from 1 in each epoch; wraps after 2^24 - 1
    pub op: u32,
    /// how many peers were still awaited
    pub waiting: u32,
    /// the signal word awaited; value bits zero, but not those of an epoch word
    pub expected: u64,
    /// the word found
    pub seen: u64,
    /// since the wait began
    pub elapsed_ns: u64,
    /// its bound
    pub deadline_ns: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_error_record"][::core::mem::size_of::<epw_error_record>() - 64usize];
    [
        "Alignment of epw_error_record",
    ][::core::mem::align_of::<epw_error_record>() - 8usize];
    [
        "Offset of field: epw_error_record::phase",
    ][::core::mem::offset_of!(epw_error_record, phase) - 0usize];
    [
        "Offset of field: epw_error_record::cause",
    ][::core::mem::offset_of!(epw_error_record, cause) - 4usize];
    [
        "Offset of field: epw_error_record::rank",
    ][::core::mem::offset_of!(epw_error_record, rank) - 8usize];
    [
        "Offset of field: epw_error_record::peer",
    ][::core::mem::offset_of!(epw_error_record, peer) - 12usize];
    [
        "Offset of field: epw_error_record::lane",
    ][::core::mem::offset_of!(epw_error_record, lane) - 16usize];
    [
        "Offset of field: epw_error_record::epoch",
    ][::core::mem::offset_of!(epw_error_record, epoch) - 20usize];
    [
        "Offset of field: epw_error_record::op",
    ][::core::mem::offset_of!(epw_error_record, op) - 24usize];
    [
        "Offset of field: epw_error_record::waiting",
    ][::core::mem::offset_of!(epw_error_record, waiting) - 28usize];
    [
        "Offset of field: epw_error_record::expected",
    ][::core::mem::offset_of!(epw_error_record, expected) - 32usize];
    [
        "Offset of field: epw_error_record::seen",
    ][::core::mem::offset_of!(epw_error_record, seen) - 40usize];
    [
        "Offset of field: epw_error_record::elapsed_ns",
    ][::core::mem::offset_of!(epw_error_record, elapsed_ns) - 48usize];
    [
        "Offset of field: epw_error_record::deadline_ns",
    ][::core::mem::offset_of!(epw_error_record, deadline_ns) - 56usize];
};
/// How an operation ended: complete, or without the rows of some peers.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_outcome {
    pub size: u32,
    /// 0: every active peer took part; 1: see missing
    pub degraded: u32,
    /// active peers whose part of this operation is absent
    pub missing: epw_mask,
    /// record.cause is EPW_CAUSE_NONE if complete
    pub record: epw_error_record,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_outcome"][::core::mem::size_of::<epw_outcome>() - 200usize];
    ["Alignment of epw_outcome"][::core::mem::align_of::<epw_outcome>() - 8usize];
    [
        "Offset of field: epw_outcome::size",
    ][::core::mem::offset_of!(epw_outcome, size) - 0usize];
    [
        "Offset of field: epw_outcome::degraded",
    ][::core::mem::offset_of!(epw_outcome, degraded) - 4usize];
    [
        "Offset of field: epw_outcome::missing",
    ][::core::mem::offset_of!(epw_outcome, missing) - 8usize];
    [
        "Offset of field: epw_outcome::record",
    ][::core::mem::offset_of!(epw_outcome, record) - 136usize];
};
unsafe extern "C" {
    pub fn epw_outcome_init(outcome: *mut epw_outcome);
}
/** Names one dispatch until its combine has been received or it is released. Never 0. Consumed handles are
 recognised and refused.*/
pub type epw_handle = u64;
/// What a rank sends.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_dispatch_input {
    pub size: u32,
    /// n, [0, max_tokens]
    pub tokens: u32,
    /// [n, hidden] of config.dtype, or [n, opaque_row_bytes]
    pub x: *const ::core::ffi::c_void,
    /// bytes from row to row; 0: dense
    pub x_stride: u64,
    /// [n, topk] of idx_type, dense
    pub topk_idx: *const ::core::ffi::c_void,
    /// [n, topk] f32, dense; NULL where no one needs weights at dispatch
    pub topk_weights: *const f32,
    /// [n, sideband_bytes], dense; NULL if sideband_bytes is 0
    pub sideband: *const ::core::ffi::c_void,
    /// opaque only: [n, scale_count] of scale_bytes each; NULL without scales
    pub scales: *const ::core::ffi::c_void,
    /// bytes from token to token
    pub scale_row_stride: u64,
    /// bytes from scale to scale of one token
    pub scale_col_stride: u64,
    /// EPW_I32, EPW_U32 or EPW_I64
    pub idx_type: u32,
    /// k of this call, [1, config.topk]
    pub topk: u32,
    /// EPW_PAYLOAD_*; the same on all ranks
    pub payload: u32,
    /// opaque only: payload bytes of a row, a multiple of 16
    pub opaque_row_bytes: u32,
    /// opaque only: scales of a row, 0 for none
    pub scale_count: u32,
    /// opaque only: bytes of one scale: 1, 2, 4 or 8
    pub scale_bytes: u32,
    /// of this call, [0, config.sideband_bytes]; the same on all ranks
    pub sideband_bytes: u32,
    /// EPW_EXPERT_MAJOR or EPW_RANK_MAJOR: how this rank wants what it receives
    pub layout: u32,
    /// 0, 1, or -1: lanes in turn. All ranks use the same lane for the same operation
    pub lane: i32,
    /** 1: return EPW_PENDING instead of waiting; go on with epw_poll. The memory of all
inputs and outputs must live until the operation has finished or been released*/
    pub nonblocking: u32,
    /// of this rank's waits; 0: the buffer's; else at least that
    pub deadline_ns: u64,
    /// CUDA: the cudaStream_t to enqueue on; see "CUDA"
    pub stream: *mut ::core::ffi::c_void,
    /** CUDA: the most SMs for the kernels of this operation, those of both halves; 0, or more
than the lane's part of config.sms: all of that. A captured call keeps it. Each rank
chooses its own*/
    pub sms: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_dispatch_input",
    ][::core::mem::size_of::<epw_dispatch_input>() - 136usize];
    [
        "Alignment of epw_dispatch_input",
    ][::core::mem::align_of::<epw_dispatch_input>() - 8usize];
    [
        "Offset of field: epw_dispatch_input::size",
    ][::core::mem::offset_of!(epw_dispatch_input, size) - 0usize];
    [
        "Offset of field: epw_dispatch_input::tokens",
    ][::core::mem::offset_of!(epw_dispatch_input, tokens) - 4usize];
    [
        "Offset of field: epw_dispatch_input::x",
    ][::core::mem::offset_of!(epw_dispatch_input, x) - 8usize];
    [
        "Offset of field: epw_dispatch_input::x_stride",
    ][::core::mem::offset_of!(epw_dispatch_input, x_stride) - 16usize];
    [
        "Offset of field: epw_dispatch_input::topk_idx",
    ][::core::mem::offset_of!(epw_dispatch_input, topk_idx) - 24usize];
    [
        "Offset of field: epw_dispatch_input::topk_weights",
    ][::core::mem::offset_of!(epw_dispatch_input, topk_weights) - 32usize];
    [
        "Offset of field: epw_dispatch_input::sideband",
    ][::core::mem::offset_of!(epw_dispatch_input, sideband) - 40usize];
    [
        "Offset of field: epw_dispatch_input::scales",
    ][::core::mem::offset_of!(epw_dispatch_input, scales) - 48usize];
    [
        "Offset of field: epw_dispatch_input::scale_row_stride",
    ][::core::mem::offset_of!(epw_dispatch_input, scale_row_stride) - 56usize];
    [
        "Offset of field: epw_dispatch_input::scale_col_stride",
    ][::core::mem::offset_of!(epw_dispatch_input, scale_col_stride) - 64usize];
    [
        "Offset of field: epw_dispatch_input::idx_type",
    ][::core::mem::offset_of!(epw_dispatch_input, idx_type) - 72usize];
    [
        "Offset of field: epw_dispatch_input::topk",
    ][::core::mem::offset_of!(epw_dispatch_input, topk) - 76usize];
    [
        "Offset of field: epw_dispatch_input::payload",
    ][::core::mem::offset_of!(epw_dispatch_input, payload) - 80usize];
    [
        "Offset of field: epw_dispatch_input::opaque_row_bytes",
    ][::core::mem::offset_of!(epw_dispatch_input, opaque_row_bytes) - 84usize];
    [
        "Offset of field: epw_dispatch_input::scale_count",
    ][::core::mem::offset_of!(epw_dispatch_input, scale_count) - 88usize];
    [
        "Offset of field: epw_dispatch_input::scale_bytes",
    ][::core::mem::offset_of!(epw_dispatch_input, scale_bytes) - 92usize];
    [
        "Offset of field: epw_dispatch_input::sideband_bytes",
    ][::core::mem::offset_of!(epw_dispatch_input, sideband_bytes) - 96usize];
    [
        "Offset of field: epw_dispatch_input::layout",
    ][::core::mem::offset_of!(epw_dispatch_input, layout) - 100usize];
    [
        "Offset of field: epw_dispatch_input::lane",
    ][::core::mem::offset_of!(epw_dispatch_input, lane) - 104usize];
    [
        "Offset of field: epw_dispatch_input::nonblocking",
    ][::core::mem::offset_of!(epw_dispatch_input, nonblocking) - 108usize];
    [
        "Offset of field: epw_dispatch_input::deadline_ns",
    ][::core::mem::offset_of!(epw_dispatch_input, deadline_ns) - 112usize];
    [
        "Offset of field: epw_dispatch_input::stream",
    ][::core::mem::offset_of!(epw_dispatch_input, stream) - 120usize];
    [
        "Offset of field: epw_dispatch_input::sms",
    ][::core::mem::offset_of!(epw_dispatch_input, sms) - 128usize];
    [
        "Offset of field: epw_dispatch_input::reserved",
    ][::core::mem::offset_of!(epw_dispatch_input, reserved) - 132usize];
};
impl Default for epw_dispatch_input {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_dispatch_input_init(input: *mut epw_dispatch_input);
}
/** Where received rows go. M = plan.rows = ranks*max_tokens, E = local experts, K = scales per row. Rows are
 ordered by source rank, then by token at the source. Any pointer may be NULL where that output is not
 wanted, except that expert-major needs `rows` and `counts`; those that a layout does not fill must be NULL.
 Rows beyond the counts are left as they were (CUDA: of a degraded operation they may hold anything).*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_dispatch_output {
    pub size: u32,
    /// 0: scales column-major; 1: row-major
    pub scale_order: u32,
    /// for epw_dispatch_receive: as in epw_dispatch_input
    pub nonblocking: u32,
    pub reserved: u32,
    /** expert-major [E, M, payload]; rank-major [M, payload], source s from s*max_tokens on
(NULL: read them in place, see epw_rows_view)*/
    pub rows: *mut ::core::ffi::c_void,
    /** expert-major, column-major: [E, K, M]; row-major: [E, M, K]; rank-major: the same
with E = 1. UE8M0 column-major: i32 [E, ceil(K/4), M], exponent of channel block b
in byte b%4 of word b/4, zero-padded*/
    pub scales: *mut ::core::ffi::c_void,
    /// expert-major [E, M, sideband_bytes], rank-major [M, sideband_bytes]
    pub sideband: *mut ::core::ffi::c_void,
    /// rows per local expert [E]
    pub counts: *mut u32,
    /// rows per source rank [ranks]
    pub source_counts: *mut u32,
    /** [E, ranks, 2]: where each source rank's rows begin in the expert's list, and how
many there are; rank-major, that list is the expert's in expert_rows*/
    pub ranges: *mut u32,
    /// expert-major [E, M], rank-major [M]: the row's token index at its source
    pub source_token: *mut u32,
    /// rank-major [M, topk]: local expert id, -1 where the entry lives elsewhere
    pub row_experts: *mut i32,
    /// rank-major [M, topk]: routing weights, 0 where the expert id is -1
    pub row_weights: *mut f32,
    /// rank-major [E, M]: the rows of each local expert, counts[e] of them
    pub expert_rows: *mut u32,
    /// [E]: adds the tokens of each local physical expert
    pub expert_totals: *mut u64,
    /// [ranks]: adds the time spent waiting for each source
    pub wait_ns: *mut u64,
    /// for epw_dispatch_receive, CUDA: the cudaStream_t to enqueue on
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_dispatch_output",
    ][::core::mem::size_of::<epw_dispatch_output>() - 120usize];
    [
        "Alignment of epw_dispatch_output",
    ][::core::mem::align_of::<epw_dispatch_output>() - 8usize];
    [
        "Offset of field: epw_dispatch_output::size",
    ][::core::mem::offset_of!(epw_dispatch_output, size) - 0usize];
    [
        "Offset of field: epw_dispatch_output::scale_order",
    ][::core::mem::offset_of!(epw_dispatch_output, scale_order) - 4usize];
    [
        "Offset of field: epw_dispatch_output::nonblocking",
    ][::core::mem::offset_of!(epw_dispatch_output, nonblocking) - 8usize];
    [
        "Offset of field: epw_dispatch_output::reserved",
    ][::core::mem::offset_of!(epw_dispatch_output, reserved) - 12usize];
    [
        "Offset of field: epw_dispatch_output::rows",
    ][::core::mem::offset_of!(epw_dispatch_output, rows) - 16usize];
    [
        "Offset of field: epw_dispatch_output::scales",
    ][::core::mem::offset_of!(epw_dispatch_output, scales) - 24usize];
    [
        "Offset of field: epw_dispatch_output::sideband",
    ][::core::mem::offset_of!(epw_dispatch_output, sideband) - 32usize];
    [
        "Offset of field: epw_dispatch_output::counts",
    ][::core::mem::offset_of!(epw_dispatch_output, counts) - 40usize];
    [
        "Offset of field: epw_dispatch_output::source_counts",
    ][::core::mem::offset_of!(epw_dispatch_output, source_counts) - 48usize];
    [
        "Offset of field: epw_dispatch_output::ranges",
    ][::core::mem::offset_of!(epw_dispatch_output, ranges) - 56usize];
    [
        "Offset of field: epw_dispatch_output::source_token",
    ][::core::mem::offset_of!(epw_dispatch_output, source_token) - 64usize];
    [
        "Offset of field: epw_dispatch_output::row_experts",
    ][::core::mem::offset_of!(epw_dispatch_output, row_experts) - 72usize];
    [
        "Offset of field: epw_dispatch_output::row_weights",
    ][::core::mem::offset_of!(epw_dispatch_output, row_weights) - 80usize];
    [
        "Offset of field: epw_dispatch_output::expert_rows",
    ][::core::mem::offset_of!(epw_dispatch_output, expert_rows) - 88usize];
    [
        "Offset of field: epw_dispatch_output::expert_totals",
    ][::core::mem::offset_of!(epw_dispatch_output, expert_totals) - 96usize];
    [
        "Offset of field: epw_dispatch_output::wait_ns",
    ][::core::mem::offset_of!(epw_dispatch_output, wait_ns) - 104usize];
    [
        "Offset of field: epw_dispatch_output::stream",
    ][::core::mem::offset_of!(epw_dispatch_output, stream) - 112usize];
};
impl Default for epw_dispatch_output {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_dispatch_output_init(output: *mut epw_dispatch_output);
}
/// What combine takes.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_combine_input {
    pub size: u32,
    /// EPW_COMBINE_RANK_REDUCED or, expert-major and planned for, EPW_COMBINE_ORDERED
    pub mode: u32,
    /** expert-major [E, M, hidden], rank-major [M, hidden] (already reduced over this
rank's experts with the weights), of combine_dtype. NULL: the caller has
written into epw_next_combine_buffer*/
    pub expert_out: *const ::core::ffi::c_void,
    /** ordered only: [n, topk] f32, dense; NULL: those given at dispatch, and
always so if rank-reduced*/
    pub topk_weights: *const f32,
    /// as in epw_dispatch_input
    pub nonblocking: u32,
    /// CUDA: as in epw_dispatch_input
    pub sms: u32,
    /// 0: the buffer's; else at least that
    pub deadline_ns: u64,
    /// CUDA: the cudaStream_t to enqueue on
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_combine_input"][::core::mem::size_of::<epw_combine_input>() - 48usize];
    [
        "Alignment of epw_combine_input",
    ][::core::mem::align_of::<epw_combine_input>() - 8usize];
    [
        "Offset of field: epw_combine_input::size",
    ][::core::mem::offset_of!(epw_combine_input, size) - 0usize];
    [
        "Offset of field: epw_combine_input::mode",
    ][::core::mem::offset_of!(epw_combine_input, mode) - 4usize];
    [
        "Offset of field: epw_combine_input::expert_out",
    ][::core::mem::offset_of!(epw_combine_input, expert_out) - 8usize];
    [
        "Offset of field: epw_combine_input::topk_weights",
    ][::core::mem::offset_of!(epw_combine_input, topk_weights) - 16usize];
    [
        "Offset of field: epw_combine_input::nonblocking",
    ][::core::mem::offset_of!(epw_combine_input, nonblocking) - 24usize];
    [
        "Offset of field: epw_combine_input::sms",
    ][::core::mem::offset_of!(epw_combine_input, sms) - 28usize];
    [
        "Offset of field: epw_combine_input::deadline_ns",
    ][::core::mem::offset_of!(epw_combine_input, deadline_ns) - 32usize];
    [
        "Offset of field: epw_combine_input::stream",
    ][::core::mem::offset_of!(epw_combine_input, stream) - 40usize];
};
impl Default for epw_combine_input {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_combine_input_init(input: *mut epw_combine_input);
}
/// Where the combined tokens go.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_combine_output {
    pub size: u32,
    /// for epw_combine_receive: as in epw_dispatch_input
    pub nonblocking: u32,
    /// [n, hidden] of combine_dtype, dense. Tokens routed nowhere become zeros
    pub out: *mut ::core::ffi::c_void,
    /// [n, 2]: expert contributions arrived, expected; NULL if not wanted
    pub contributions: *mut u16,
    /// [ranks]: adds the time spent waiting for each peer; NULL if not wanted
    pub wait_ns: *mut u64,
    /// for epw_combine_receive, CUDA: the cudaStream_t to enqueue on
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_combine_output",
    ][::core::mem::size_of::<epw_combine_output>() - 40usize];
    [
        "Alignment of epw_combine_output",
    ][::core::mem::align_of::<epw_combine_output>() - 8usize];
    [
        "Offset of field: epw_combine_output::size",
    ][::core::mem::offset_of!(epw_combine_output, size) - 0usize];
    [
        "Offset of field: epw_combine_output::nonblocking",
    ][::core::mem::offset_of!(epw_combine_output, nonblocking) - 4usize];
    [
        "Offset of field: epw_combine_output::out",
    ][::core::mem::offset_of!(epw_combine_output, out) - 8usize];
    [
        "Offset of field: epw_combine_output::contributions",
    ][::core::mem::offset_of!(epw_combine_output, contributions) - 16usize];
    [
        "Offset of field: epw_combine_output::wait_ns",
    ][::core::mem::offset_of!(epw_combine_output, wait_ns) - 24usize];
    [
        "Offset of field: epw_combine_output::stream",
    ][::core::mem::offset_of!(epw_combine_output, stream) - 32usize];
};
impl Default for epw_combine_output {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_combine_output_init(output: *mut epw_combine_output);
}
unsafe extern "C" {
    /** The shape of the rows that `input` would deliver under `config`. Checks the fields of `input` that decide
 it: payload, opaque sizes, sideband.*/
    pub fn epw_row_shape_make(
        config: *const epw_config,
        input: *const epw_dispatch_input,
        shape: *mut epw_row_shape,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Sends this rank's tokens and, if `output` is not NULL, receives those of the others. With `output` NULL
 this is the sending half; receive with epw_dispatch_receive. handle [out] is valid for every status but an
 error. outcome [out] may be NULL; it is filled when the receiving half ends. A wrong or repeated expert id
 is EPW_ERR_INVALID naming row and column, and nothing is sent.*/
    pub fn epw_dispatch(
        buffer: *mut epw_buffer,
        input: *const epw_dispatch_input,
        output: *const epw_dispatch_output,
        handle: *mut epw_handle,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The receiving half of a dispatch. Like any next call, to be made within one deadline of the sending half.
    pub fn epw_dispatch_receive(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        output: *const epw_dispatch_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
/** Rows in place in the window, source s's from row s*max_tokens on. Valid from the end of dispatch until
 combine or release. `rows` may be written (rank-major zero-copy combine) once all experts have read the
 row: the row then holds [hidden] of combine_dtype.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_rows_view {
    pub size: u32,
    pub reserved: u32,
    /// bytes from row to row, also of scales
    pub stride: u64,
    /// the first row's payload
    pub rows: *mut ::core::ffi::c_void,
    /// the first row's scales, row-major; NULL if the payload has none
    pub scales: *const ::core::ffi::c_void,
    /// [ranks]: rows of each source; owned by the buffer, valid as the rows are
    pub source_counts: *const u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_rows_view"][::core::mem::size_of::<epw_rows_view>() - 40usize];
    ["Alignment of epw_rows_view"][::core::mem::align_of::<epw_rows_view>() - 8usize];
    [
        "Offset of field: epw_rows_view::size",
    ][::core::mem::offset_of!(epw_rows_view, size) - 0usize];
    [
        "Offset of field: epw_rows_view::reserved",
    ][::core::mem::offset_of!(epw_rows_view, reserved) - 4usize];
    [
        "Offset of field: epw_rows_view::stride",
    ][::core::mem::offset_of!(epw_rows_view, stride) - 8usize];
    [
        "Offset of field: epw_rows_view::rows",
    ][::core::mem::offset_of!(epw_rows_view, rows) - 16usize];
    [
        "Offset of field: epw_rows_view::scales",
    ][::core::mem::offset_of!(epw_rows_view, scales) - 24usize];
    [
        "Offset of field: epw_rows_view::source_counts",
    ][::core::mem::offset_of!(epw_rows_view, source_counts) - 32usize];
};
impl Default for epw_rows_view {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_rows_view_init(view: *mut epw_rows_view);
}
unsafe extern "C" {
    /// The received rows of a rank-major dispatch, in place.
    pub fn epw_dispatched_rows(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        view: *mut epw_rows_view,
    ) -> epw_status;
}
unsafe extern "C" {
    /** The area that experts may write their outputs into, so that combine copies nothing before sending:
 rank-major the lane's own rows, expert-major [E, M, hidden] where the plan has zero_copy. Pass expert_out =
 NULL to combine.*/
    pub fn epw_next_combine_buffer(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        view: *mut epw_rows_view,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Answers every received row and, if `output` is not NULL, receives the answers to this rank's own rows, sums
 them and consumes the handle. With `output` NULL this is the sending half.*/
    pub fn epw_combine(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        input: *const epw_combine_input,
        output: *const epw_combine_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The receiving half of a combine. Consumes the handle.
    pub fn epw_combine_receive(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        output: *const epw_combine_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Goes on with a non-blocking operation without waiting: EPW_PENDING, EPW_OK (outcome is filled) or an error.
 It takes in what peers behind queues have sent, as far as it is there, and so does epw_ready: a program
 that only looks needs no other thread.*/
    pub fn epw_poll(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Sleeps until epw_poll may find something new, at most timeout_ns. Touches no memory of the operation: any
 thread may call it while another polls. Returns EPW_OK, or EPW_ERR_STATE if the handle is not in an
 operation.*/
    pub fn epw_await(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** After the sending half of a dispatch or combine: EPW_OK if the receiving half would not wait for anybody,
 else EPW_PENDING. The first such call begins the wait that the receiving half goes on with: from then on
 peers are told that this rank waits, and who is silent for a deadline is given up. So call it again
 whenever epw_await, which sleeps as it does between polls, returns.*/
    pub fn epw_ready(buffer: *mut epw_buffer, handle: epw_handle) -> epw_status;
}
unsafe extern "C" {
    /** Gives the handle up: peers that sent rows are answered with none, in the background where they have not
 sent yet. Does not wait, touches no caller memory afterwards.*/
    pub fn epw_release(buffer: *mut epw_buffer, handle: epw_handle) -> epw_status;
}
unsafe extern "C" {
    /** epw_release with the stream that the release is enqueued on; epw_release takes that of the handle's last
 call. The host device ignores `stream`.*/
    pub fn epw_release_on(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: lets `stream` (as in a call; of the buffer's GPU) wait for what calls have enqueued so far on the
 handle's lane: what is enqueued on it later runs after that. Enqueues nothing where that is so already, on
 the stream of the lane's last call. Also for a consumed handle, until the lane's next dispatch. The host
 waits for nothing; any thread, also beside one that drives the handle.
 EPW_ERR_STATE: the lane has gone on to another dispatch, or the handle is another buffer's; the
 handle's last call was captured, or `stream` is under capture (order such streams by events of the program,
 captured with the calls, or around the graph's launch); the buffer is on the host.*/
    pub fn epw_stream_wait(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: the outcome of the last half that was enqueued for `handle`: EPW_PENDING if the GPU has not come so
 far. Also for a consumed handle, until the lane's next dispatch. Not for captured calls: their outcomes are
 in `contributions` and epw_take_errors. outcome [out].*/
    pub fn epw_outcome_read(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: moves up to `capacity` of the error records that kernels have written since the last call, oldest
 first, to `records` [out], each of `record_size` bytes, sizeof(epw_error_record); *count [out] is how many,
 *lost [out, may be NULL] how many more there would have been since then. A record with cause
 EPW_CAUSE_ROUTING is of a routing id: `expected` is token << 32 | column, `seen` the id. Lost are records
 overwritten before anybody took them, and bad ids of one operation beyond 64. The host device has none: its
 outcomes and errors say all.*/
    pub fn epw_take_errors(
        buffer: *mut epw_buffer,
        records: *mut epw_error_record,
        record_size: usize,
        capacity: u32,
        count: *mut u32,
        lost: *mut u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Quantises [rows, hidden] of `dtype` to e4m3 with one scale per 128 channels: the code that dispatch uses,
 of the instruction set that EPWIRE_ISA may name (see epw_buffer_create).
 q [out, rows*hidden], scales [out]: f32 [rows, hidden/128], for EPW_PAYLOAD_FP8_UE8M0 bytes [rows,
 hidden/128].*/
    pub fn epw_quantize_fp8(
        payload: u32,
        dtype: u32,
        rows: u64,
        hidden: u32,
        x: *const ::core::ffi::c_void,
        q: *mut u8,
        scales: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The inverse: x = q * scale, rounded to `dtype`.
    pub fn epw_dequantize_fp8(
        payload: u32,
        dtype: u32,
        rows: u64,
        hidden: u32,
        q: *const u8,
        scales: *const ::core::ffi::c_void,
        x: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_comm {
    _unused: [u8; 0],
}
/** All fields but `rank`, `paths`, the ordinal in `device` and `fabric` must be equal on every rank.

 CUDA. Calls enqueue a kernel on the stream of their epw_call and return. Buffers are device memory. What an
 operation lacks is known when it has run: `outcome` is NULL, and whoever wants it asks for `work`, or looks
 at the suspects of epw_comm_membership. Calls on different streams run in the order of the calls. Streams
 may be under capture: replays take their turn as kernels do, all ranks in the same order, and find the
 membership of then; such calls have no `work`.
     Sends and receives of a group progress together, before its collectives; of different calls they are in
 stream order, so that a large send waits for its receive before whatever comes behind it. They meet in the
 order of the calls: one that differs from its other end in type or tag, or has no room for what comes, is a
 mismatch. So far all peers map each other's windows.
     Blocks that are uneven, or have offsets or rows, are of at most 96 ranks. Uneven ones take the way of
 large ones at any size, once each pair of ranks has told each other the same counts.
     slots and slot_bytes are those of each block; 0: 4, and so many that all rings take 64 MiB, but at
 least 1 KiB and at most 32 KiB.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_comm_config {
    /// sizeof(epw_comm_config)
    pub size: u32,
    /// EPW_COMM_CONFIG_VERSION
    pub version: u32,
    /// [0, ranks)
    pub rank: u32,
    /// [1, EPW_MAX_RANKS]
    pub ranks: u32,
    /// of the ring from one rank to another, a power of two in [2, 256]; 0: 8
    pub slots: u32,
    /** that a slot carries, a multiple of 64 in [64, 2^24]; 0: so many that the rings of
all ranks take 16 MiB together, but at least 1 KiB and at most 32 KiB*/
    pub slot_bytes: u32,
    /// permitted EPW_PATH_* bits; EPW_PATH_ALL: any
    pub paths: u32,
    /// EPW_DEVICE_HOST, or the CUDA ordinal of the GPU whose memory is sent and received
    pub device: i32,
    /// for epw_comm_alloc; CUDA: 0
    pub heap_bytes: u64,
    /// a peer silent for so long is given up: 1 ms to 1 day
    pub deadline_ns: u64,
    /// as in epw_config; CUDA: NULL
    pub fabric: *mut epw_fabric,
    /** CUDA: blocks of a kernel at most, [1, 64], the same on all ranks; 0: 32. As in epw_config
the SMs are this communicator's: create it before a buffer that takes all that are free*/
    pub sms: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_comm_config"][::core::mem::size_of::<epw_comm_config>() - 64usize];
    [
        "Alignment of epw_comm_config",
    ][::core::mem::align_of::<epw_comm_config>() - 8usize];
    [
        "Offset of field: epw_comm_config::size",
    ][::core::mem::offset_of!(epw_comm_config, size) - 0usize];
    [
        "Offset of field: epw_comm_config::version",
    ][::core::mem::offset_of!(epw_comm_config, version) - 4usize];
    [
        "Offset of field: epw_comm_config::rank",
    ][::core::mem::offset_of!(epw_comm_config, rank) - 8usize];
    [
        "Offset of field: epw_comm_config::ranks",
    ][::core::mem::offset_of!(epw_comm_config, ranks) - 12usize];
    [
        "Offset of field: epw_comm_config::slots",
    ][::core::mem::offset_of!(epw_comm_config, slots) - 16usize];
    [
        "Offset of field: epw_comm_config::slot_bytes",
    ][::core::mem::offset_of!(epw_comm_config, slot_bytes) - 20usize];
    [
        "Offset of field: epw_comm_config::paths",
    ][::core::mem::offset_of!(epw_comm_config, paths) - 24usize];
    [
        "Offset of field: epw_comm_config::device",
    ][::core::mem::offset_of!(epw_comm_config, device) - 28usize];
    [
        "Offset of field: epw_comm_config::heap_bytes",
    ][::core::mem::offset_of!(epw_comm_config, heap_bytes) - 32usize];
    [
        "Offset of field: epw_comm_config::deadline_ns",
    ][::core::mem::offset_of!(epw_comm_config, deadline_ns) - 40usize];
    [
        "Offset of field: epw_comm_config::fabric",
    ][::core::mem::offset_of!(epw_comm_config, fabric) - 48usize];
    [
        "Offset of field: epw_comm_config::sms",
    ][::core::mem::offset_of!(epw_comm_config, sms) - 56usize];
    [
        "Offset of field: epw_comm_config::reserved",
    ][::core::mem::offset_of!(epw_comm_config, reserved) - 60usize];
};
impl Default for epw_comm_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_comm_config_init(config: *mut epw_comm_config);
}
unsafe extern "C" {
    /// As the functions of these names for a buffer.
    pub fn epw_comm_create(
        config: *const epw_comm_config,
        out: *mut *mut epw_comm,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_destroy(comm: *mut epw_comm);
}
unsafe extern "C" {
    pub fn epw_comm_export(
        comm: *mut epw_comm,
        peer: u32,
        blob: *mut ::core::ffi::c_void,
        length: *mut usize,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_connect(
        comm: *mut epw_comm,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_connect_within(
        comm: *mut epw_comm,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
        deadline_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_disconnect(comm: *mut epw_comm, peer: u32) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_probe(comm: *mut epw_comm, peer: u32, timeout_ns: u64) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_path(comm: *const epw_comm, peer: u32) -> u32;
}
unsafe extern "C" {
    pub fn epw_comm_wire(comm: *const epw_comm, peer: u32) -> u32;
}
unsafe extern "C" {
    pub fn epw_comm_set_active(
        comm: *mut epw_comm,
        active: *const epw_mask,
        epoch: u32,
        step: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_revoke(comm: *mut epw_comm, peers: *const epw_mask) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_membership(
        comm: *const epw_comm,
        membership: *mut epw_membership,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_newest_epoch(comm: *mut epw_comm, epoch: *mut u32) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_diverged(
        comm: *mut epw_comm,
        epoch: u32,
        step: u64,
        ranks: *mut epw_mask,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Memory of the communicator's window, aligned to 64, zeroed when the communicator is created: peers that map
 the window read what lies there with no copy on the way. EPW_ERR_LIMIT where heap_bytes does not suffice.
 Freed in any order, by any thread, when no operation uses it; all of it is gone with the communicator.*/
    pub fn epw_comm_alloc(
        comm: *mut epw_comm,
        bytes: u64,
        memory: *mut *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_free(comm: *mut epw_comm, memory: *mut ::core::ffi::c_void);
}
unsafe extern "C" {
    /** Whether something that has ended since the last such call was incomplete: an outcome was degraded, work was
 dropped, or ranks had called different operations. Complete here does not mean complete everywhere: a
 program that commits what a step has computed hands this to the checkpoint of a buffer,
 epw_checkpoint_fault, and asks for its verdict. faulted [out]: 0 or 1. Any thread.*/
    pub fn epw_comm_take_fault(comm: *mut epw_comm, faulted: *mut u32) -> epw_status;
}
pub const EPW_BARRIER: u32 = 0;
/// root's send to all recv; root's own recv may be send, or NULL
pub const EPW_BROADCAST: u32 = 1;
/// in place: recv == send
pub const EPW_ALL_REDUCE: u32 = 2;
/// recv of root alone; in place there: recv == send
pub const EPW_REDUCE: u32 = 3;
/// block r of send is reduced to rank r's recv; in place: recv is its own block
pub const EPW_REDUCE_SCATTER: u32 = 4;
/// rank r's send to block r of all recv; in place: send is its own block
pub const EPW_ALL_GATHER: u32 = 5;
/** block p of send to rank p, where it is this rank's block; in place: recv == send,
with equal blocks*/
pub const EPW_ALL_TO_ALL: u32 = 6;
/// to root's recv; in place at root: send is its own block
pub const EPW_GATHER: u32 = 7;
/// from root's send; in place at root: recv is its own block
pub const EPW_SCATTER: u32 = 8;
pub const EPW_SEND: u32 = 9;
pub const EPW_RECV: u32 = 10;
/** What follows a sum of all_reduce in the same call, as between two layers of a tensor-parallel model: it is
 added to the residual, and each row is normalised (RMSNorm) and, by choice, quantised. Ranks may differ in
 all but rows * hidden. On a GPU one kernel does all of it where the call goes by packets, up to 1 MiB with
 2 ranks, 512 KiB with 4; beyond, a second one that waits for nobody; memory is aligned to 16 bytes there,
 also the call's send and recv. Results have the same bits on host and GPU: see the rules in
 c/numerics/norm.h. Where a member is missing there is no result: of `residual` and `out` each row is the
 old one or none.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_norm {
    pub size: u32,
    /// of out: EPW_PAYLOAD_SAME, or one of EPW_PAYLOAD_FP8_*
    pub payload: u32,
    /// elements of a row: a multiple of 8, of FP8 of 128, in [8, EPW_NORM_HIDDEN_MAX]
    pub hidden: u32,
    /// at least 0, finite
    pub epsilon: f32,
    /// rows * hidden is the call's count
    pub rows: u64,
    /** [rows][hidden] of the call's type, in: the residual, out: its sum with the call's;
NULL: none*/
    pub residual: *mut ::core::ffi::c_void,
    /// [hidden] of the call's type
    pub weight: *const ::core::ffi::c_void,
    /// [rows][hidden]; may be recv where payload is EPW_PAYLOAD_SAME
    pub out: *mut ::core::ffi::c_void,
    /// [rows][hidden / 128]: f32, of EPW_PAYLOAD_FP8_UE8M0 bytes; else NULL
    pub scales: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_norm"][::core::mem::size_of::<epw_norm>() - 56usize];
    ["Alignment of epw_norm"][::core::mem::align_of::<epw_norm>() - 8usize];
    [
        "Offset of field: epw_norm::size",
    ][::core::mem::offset_of!(epw_norm, size) - 0usize];
    [
        "Offset of field: epw_norm::payload",
    ][::core::mem::offset_of!(epw_norm, payload) - 4usize];
    [
        "Offset of field: epw_norm::hidden",
    ][::core::mem::offset_of!(epw_norm, hidden) - 8usize];
    [
        "Offset of field: epw_norm::epsilon",
    ][::core::mem::offset_of!(epw_norm, epsilon) - 12usize];
    [
        "Offset of field: epw_norm::rows",
    ][::core::mem::offset_of!(epw_norm, rows) - 16usize];
    [
        "Offset of field: epw_norm::residual",
    ][::core::mem::offset_of!(epw_norm, residual) - 24usize];
    [
        "Offset of field: epw_norm::weight",
    ][::core::mem::offset_of!(epw_norm, weight) - 32usize];
    ["Offset of field: epw_norm::out"][::core::mem::offset_of!(epw_norm, out) - 40usize];
    [
        "Offset of field: epw_norm::scales",
    ][::core::mem::offset_of!(epw_norm, scales) - 48usize];
};
impl Default for epw_norm {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_norm_init(norm: *mut epw_norm);
}
/// One operation, for epw_group. Counts, offsets and pitches are elements of `type`.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_coll {
    pub size: u32,
    /// EPW_BARRIER to EPW_RECV
    pub kind: u32,
    /// EPW_TYPE_*: any for what only moves
    pub type_: u32,
    /// EPW_SUM to EPW_AVERAGE, of reductions
    pub op: u32,
    /// the root, or of EPW_SEND and EPW_RECV whom to or from
    pub peer: u32,
    /// of these two, at most EPW_TAG_MAX
    pub tag: u32,
    pub send: *const ::core::ffi::c_void,
    pub recv: *mut ::core::ffi::c_void,
    /// of all, or of each block; EPW_RECV: the most that may come
    pub count: u64,
    /** Uneven blocks: of reduce_scatter (send), all_gather and gather (recv), scatter (send), all_to_all
 (both). [ranks], the same everywhere but for all_to_all, where send_counts[p] here are recv_counts of
 this rank at p. NULL: `count` each, one behind the other. Offsets NULL: one behind the other.*/
    pub send_counts: *const u64,
    /** Uneven blocks: of reduce_scatter (send), all_gather and gather (recv), scatter (send), all_to_all
 (both). [ranks], the same everywhere but for all_to_all, where send_counts[p] here are recv_counts of
 this rank at p. NULL: `count` each, one behind the other. Offsets NULL: one behind the other.*/
    pub send_offsets: *const u64,
    /** Uneven blocks: of reduce_scatter (send), all_gather and gather (recv), scatter (send), all_to_all
 (both). [ranks], the same everywhere but for all_to_all, where send_counts[p] here are recv_counts of
 this rank at p. NULL: `count` each, one behind the other. Offsets NULL: one behind the other.*/
    pub recv_counts: *const u64,
    /** Uneven blocks: of reduce_scatter (send), all_gather and gather (recv), scatter (send), all_to_all
 (both). [ranks], the same everywhere but for all_to_all, where send_counts[p] here are recv_counts of
 this rank at p. NULL: `count` each, one behind the other. Offsets NULL: one behind the other.*/
    pub recv_offsets: *const u64,
    /** Blocks of `rows` rows, with a count of elements in each, and pitches from row to row; 0 rows: one. Of
 all_gather: send_pitch within send, recv_pitch within recv, where block r begins at its offset. Of
 reduce_scatter the other way round. Pitches 0: the elements of a row, in the matrix of all blocks those
 of all blocks' rows.*/
    pub rows: u64,
    /** Blocks of `rows` rows, with a count of elements in each, and pitches from row to row; 0 rows: one. Of
 all_gather: send_pitch within send, recv_pitch within recv, where block r begins at its offset. Of
 reduce_scatter the other way round. Pitches 0: the elements of a row, in the matrix of all blocks those
 of all blocks' rows.*/
    pub send_pitch: u64,
    /** Blocks of `rows` rows, with a count of elements in each, and pitches from row to row; 0 rows: one. Of
 all_gather: send_pitch within send, recv_pitch within recv, where block r begins at its offset. Of
 reduce_scatter the other way round. Pitches 0: the elements of a row, in the matrix of all blocks those
 of all blocks' rows.*/
    pub recv_pitch: u64,
    /// of all_reduce by EPW_SUM of bf16 or f16; NULL: none. Copied by the call
    pub norm: *const epw_norm,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_coll"][::core::mem::size_of::<epw_coll>() - 112usize];
    ["Alignment of epw_coll"][::core::mem::align_of::<epw_coll>() - 8usize];
    [
        "Offset of field: epw_coll::size",
    ][::core::mem::offset_of!(epw_coll, size) - 0usize];
    [
        "Offset of field: epw_coll::kind",
    ][::core::mem::offset_of!(epw_coll, kind) - 4usize];
    [
        "Offset of field: epw_coll::type_",
    ][::core::mem::offset_of!(epw_coll, type_) - 8usize];
    ["Offset of field: epw_coll::op"][::core::mem::offset_of!(epw_coll, op) - 12usize];
    [
        "Offset of field: epw_coll::peer",
    ][::core::mem::offset_of!(epw_coll, peer) - 16usize];
    ["Offset of field: epw_coll::tag"][::core::mem::offset_of!(epw_coll, tag) - 20usize];
    [
        "Offset of field: epw_coll::send",
    ][::core::mem::offset_of!(epw_coll, send) - 24usize];
    [
        "Offset of field: epw_coll::recv",
    ][::core::mem::offset_of!(epw_coll, recv) - 32usize];
    [
        "Offset of field: epw_coll::count",
    ][::core::mem::offset_of!(epw_coll, count) - 40usize];
    [
        "Offset of field: epw_coll::send_counts",
    ][::core::mem::offset_of!(epw_coll, send_counts) - 48usize];
    [
        "Offset of field: epw_coll::send_offsets",
    ][::core::mem::offset_of!(epw_coll, send_offsets) - 56usize];
    [
        "Offset of field: epw_coll::recv_counts",
    ][::core::mem::offset_of!(epw_coll, recv_counts) - 64usize];
    [
        "Offset of field: epw_coll::recv_offsets",
    ][::core::mem::offset_of!(epw_coll, recv_offsets) - 72usize];
    [
        "Offset of field: epw_coll::rows",
    ][::core::mem::offset_of!(epw_coll, rows) - 80usize];
    [
        "Offset of field: epw_coll::send_pitch",
    ][::core::mem::offset_of!(epw_coll, send_pitch) - 88usize];
    [
        "Offset of field: epw_coll::recv_pitch",
    ][::core::mem::offset_of!(epw_coll, recv_pitch) - 96usize];
    [
        "Offset of field: epw_coll::norm",
    ][::core::mem::offset_of!(epw_coll, norm) - 104usize];
};
impl Default for epw_coll {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_coll_init(coll: *mut epw_coll);
}
/// Names operations that have been begun, until they are waited for or dropped. Never 0.
pub type epw_work = u64;
/// How to call: may be NULL for all defaults.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_call {
    pub size: u32,
    pub reserved: u32,
    /// of this rank's waits; 0: the communicator's; else at least that
    pub deadline_ns: u64,
    /** [out]: the call begins the operation and returns; buffers stay valid and unchanged
until it has ended or been dropped. NULL: it waits; CUDA: it does not, and nobody asks*/
    pub work: *mut epw_work,
    /// CUDA: a cudaStream_t of the communicator's GPU; NULL: the default stream
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_call"][::core::mem::size_of::<epw_call>() - 32usize];
    ["Alignment of epw_call"][::core::mem::align_of::<epw_call>() - 8usize];
    [
        "Offset of field: epw_call::size",
    ][::core::mem::offset_of!(epw_call, size) - 0usize];
    [
        "Offset of field: epw_call::reserved",
    ][::core::mem::offset_of!(epw_call, reserved) - 4usize];
    [
        "Offset of field: epw_call::deadline_ns",
    ][::core::mem::offset_of!(epw_call, deadline_ns) - 8usize];
    [
        "Offset of field: epw_call::work",
    ][::core::mem::offset_of!(epw_call, work) - 16usize];
    [
        "Offset of field: epw_call::stream",
    ][::core::mem::offset_of!(epw_call, stream) - 24usize];
};
impl Default for epw_call {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_call_init(call: *mut epw_call);
}
unsafe extern "C" {
    /** Begins `count` operations, which progress together: sends that cross do not wait for each other.
 Collectives among them keep their order. A refused call has no effect. outcome [out], of all of them, may
 be NULL; it is filled by the call that sees the end.*/
    pub fn epw_group(
        comm: *mut epw_comm,
        ops: *const epw_coll,
        count: usize,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_barrier(
        comm: *mut epw_comm,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_broadcast(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        root: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_all_reduce(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        op: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// recv: the sum itself, may be send.
    pub fn epw_all_reduce_norm(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        type_: u32,
        norm: *const epw_norm,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_reduce(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        op: u32,
        root: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// count: of each rank's block.
    pub fn epw_reduce_scatter(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        op: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_all_gather(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_all_to_all(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_gather(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        root: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_scatter(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        root: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_send(
        comm: *mut epw_comm,
        send: *const ::core::ffi::c_void,
        count: u64,
        type_: u32,
        peer: u32,
        tag: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** A longer message than `count` elements is EPW_ERR_LIMIT here, and is consumed; a shorter one leaves the
 rest as it was.*/
    pub fn epw_recv(
        comm: *mut epw_comm,
        recv: *mut ::core::ffi::c_void,
        count: u64,
        type_: u32,
        peer: u32,
        tag: u32,
        call: *const epw_call,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Waits for the work to end, timeout_ns at most (UINT64_MAX: its own deadlines bound it): EPW_PENDING if it
 has not; else it is consumed, and the result is as the call's would have been.*/
    pub fn epw_work_wait(
        comm: *mut epw_comm,
        work: epw_work,
        timeout_ns: u64,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The same without waiting.
    pub fn epw_work_poll(
        comm: *mut epw_comm,
        work: epw_work,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Sleeps until epw_work_poll may find something new, at most timeout_ns. Touches no buffer of an operation:
 any thread, beside one that polls.*/
    pub fn epw_work_await(
        comm: *mut epw_comm,
        work: epw_work,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Gives it up: its buffers are not touched again. Peers find this rank missing from it (EPW_CAUSE_PARTIAL),
 now or when this rank's calls come so far.*/
    pub fn epw_work_drop(comm: *mut epw_comm, work: epw_work) -> epw_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_routing {
    _unused: [u8; 0],
}
pub const EPW_PACKED: u32 = 2;
/// rows by source, one source behind the other
pub const EPW_DENSE: u32 = 3;
/** ep: as for a buffer, and so must its fields be equal on every rank. `ordered` and `zero_copy` are 0:
 ordered combine needs nothing more. max_tokens is of an operation.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_config {
    /// sizeof(epw_prefill_config)
    pub size: u32,
    /** slots of the ring from one rank to another, [1, EPW_MAX_TOKENS + 1], equal on
every rank; 0: as many as EPW_PREFILL_RING_TOKENS, on GPUs
EPW_PREFILL_RING_TOKENS_GPU, or fewer where max_tokens is less, or the windows
would pass 256 MiB, down to 16*/
    pub ring_tokens: u32,
    pub ep: epw_config,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_prefill_config",
    ][::core::mem::size_of::<epw_prefill_config>() - 104usize];
    [
        "Alignment of epw_prefill_config",
    ][::core::mem::align_of::<epw_prefill_config>() - 8usize];
    [
        "Offset of field: epw_prefill_config::size",
    ][::core::mem::offset_of!(epw_prefill_config, size) - 0usize];
    [
        "Offset of field: epw_prefill_config::ring_tokens",
    ][::core::mem::offset_of!(epw_prefill_config, ring_tokens) - 4usize];
    [
        "Offset of field: epw_prefill_config::ep",
    ][::core::mem::offset_of!(epw_prefill_config, ep) - 8usize];
};
impl Default for epw_prefill_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_prefill_config_init(config: *mut epw_prefill_config);
}
/// Sizes that follow from a configuration. Computed without allocating anything.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_prefill_sizes {
    /// sizeof(epw_prefill_sizes)
    pub size: u32,
    /// experts / ranks
    pub local_experts: u32,
    /// as chosen
    pub ring_tokens: u32,
    /// most tokens of a sending half of dispatch or of rank-reduced combine
    pub split_tokens: u32,
    /// ordered combine: the ring holds several rows of a token
    pub split_tokens_ordered: u32,
    pub reserved: u32,
    /// of a dispatched row in a ring
    pub slot_bytes: u64,
    /// of an answer in a ring
    pub answer_bytes: u64,
    /// header and signal words
    pub control_bytes: u64,
    /// rings of dispatched rows, of all lanes
    pub dispatch_bytes: u64,
    /// rings of answers, of all lanes
    pub combine_bytes: u64,
    /// sum of the above, rounded up to pages
    pub window_bytes: u64,
    /// of this rank's own beside the window, as in epw_plan
    pub private_bytes: u64,
    /** of an epw_routing, with max_tokens tokens of this rank; for each row received,
routing_row_bytes more. On a GPU all of it, in its memory*/
    pub routing_bytes: u64,
    pub routing_row_bytes: u64,
    /// as in epw_plan, for peers behind queues
    pub image_bytes: u64,
    /// as in epw_plan, for peers behind queues
    pub ring_bytes: u64,
    /// as in epw_plan, for peers behind queues
    pub inbox_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_prefill_sizes",
    ][::core::mem::size_of::<epw_prefill_sizes>() - 120usize];
    [
        "Alignment of epw_prefill_sizes",
    ][::core::mem::align_of::<epw_prefill_sizes>() - 8usize];
    [
        "Offset of field: epw_prefill_sizes::size",
    ][::core::mem::offset_of!(epw_prefill_sizes, size) - 0usize];
    [
        "Offset of field: epw_prefill_sizes::local_experts",
    ][::core::mem::offset_of!(epw_prefill_sizes, local_experts) - 4usize];
    [
        "Offset of field: epw_prefill_sizes::ring_tokens",
    ][::core::mem::offset_of!(epw_prefill_sizes, ring_tokens) - 8usize];
    [
        "Offset of field: epw_prefill_sizes::split_tokens",
    ][::core::mem::offset_of!(epw_prefill_sizes, split_tokens) - 12usize];
    [
        "Offset of field: epw_prefill_sizes::split_tokens_ordered",
    ][::core::mem::offset_of!(epw_prefill_sizes, split_tokens_ordered) - 16usize];
    [
        "Offset of field: epw_prefill_sizes::reserved",
    ][::core::mem::offset_of!(epw_prefill_sizes, reserved) - 20usize];
    [
        "Offset of field: epw_prefill_sizes::slot_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, slot_bytes) - 24usize];
    [
        "Offset of field: epw_prefill_sizes::answer_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, answer_bytes) - 32usize];
    [
        "Offset of field: epw_prefill_sizes::control_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, control_bytes) - 40usize];
    [
        "Offset of field: epw_prefill_sizes::dispatch_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, dispatch_bytes) - 48usize];
    [
        "Offset of field: epw_prefill_sizes::combine_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, combine_bytes) - 56usize];
    [
        "Offset of field: epw_prefill_sizes::window_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, window_bytes) - 64usize];
    [
        "Offset of field: epw_prefill_sizes::private_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, private_bytes) - 72usize];
    [
        "Offset of field: epw_prefill_sizes::routing_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, routing_bytes) - 80usize];
    [
        "Offset of field: epw_prefill_sizes::routing_row_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, routing_row_bytes) - 88usize];
    [
        "Offset of field: epw_prefill_sizes::image_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, image_bytes) - 96usize];
    [
        "Offset of field: epw_prefill_sizes::ring_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, ring_bytes) - 104usize];
    [
        "Offset of field: epw_prefill_sizes::inbox_bytes",
    ][::core::mem::offset_of!(epw_prefill_sizes, inbox_bytes) - 112usize];
};
unsafe extern "C" {
    pub fn epw_prefill_sizes_init(sizes: *mut epw_prefill_sizes);
}
unsafe extern "C" {
    /// Checks `config` and computes its sizes. config [in], sizes [in: size, out].
    pub fn epw_prefill_plan(
        config: *const epw_prefill_config,
        sizes: *mut epw_prefill_sizes,
    ) -> epw_status;
}
unsafe extern "C" {
    /// As the functions of these names for a buffer. Before epw_prefill_destroy all routings are freed.
    pub fn epw_prefill_create(
        config: *const epw_prefill_config,
        out: *mut *mut epw_prefill,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_destroy(prefill: *mut epw_prefill);
}
unsafe extern "C" {
    pub fn epw_prefill_export(
        prefill: *mut epw_prefill,
        peer: u32,
        blob: *mut ::core::ffi::c_void,
        length: *mut usize,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_connect(
        prefill: *mut epw_prefill,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_connect_within(
        prefill: *mut epw_prefill,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
        deadline_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_disconnect(prefill: *mut epw_prefill, peer: u32) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_probe(
        prefill: *mut epw_prefill,
        peer: u32,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_path(prefill: *const epw_prefill, peer: u32) -> u32;
}
unsafe extern "C" {
    pub fn epw_prefill_wire(prefill: *const epw_prefill, peer: u32) -> u32;
}
unsafe extern "C" {
    pub fn epw_prefill_set_active(
        prefill: *mut epw_prefill,
        active: *const epw_mask,
        epoch: u32,
        step: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_revoke(
        prefill: *mut epw_prefill,
        peers: *const epw_mask,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_membership(
        prefill: *const epw_prefill,
        membership: *mut epw_membership,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_newest_epoch(
        prefill: *mut epw_prefill,
        epoch: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_prefill_diverged(
        prefill: *mut epw_prefill,
        epoch: u32,
        step: u64,
        ranks: *mut epw_mask,
    ) -> epw_status;
}
unsafe extern "C" {
    /// Whether something that has ended since the last such call was incomplete, as epw_comm_take_fault.
    pub fn epw_prefill_take_fault(
        prefill: *mut epw_prefill,
        faulted: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /// An empty routing. It takes memory as dispatches need it, and keeps it for the next.
    pub fn epw_routing_create(
        prefill: *mut epw_prefill,
        out: *mut *mut epw_routing,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Frees it. An operation of it that is under way, or of which a half is still to come, is given up: peers
 find this rank missing from it (EPW_CAUSE_PARTIAL), now or when this rank's next call on the lane comes so
 far. Waits for nobody, and no memory of the operation is touched afterwards. NULL is allowed.
 On a GPU what has been enqueued runs all the same, and graphs may be replayed: the routing's own memory is
 kept until that has run, and if any call was captured until epw_prefill_destroy. A program that captures
 again and again keeps a routing for it.*/
    pub fn epw_routing_free(routing: *mut epw_routing);
}
/** Where received rows go. E = local experts, C = capacity, K = scales per row. Rows of an expert or source
 are ordered by source rank, then by token. Any pointer may be NULL where that output is not wanted; those
 that the layout does not fill must be NULL.

 A row's place in `rows` and in every array [C]:
   EPW_PACKED        offsets[e] + its number among the rows of expert e; offsets are multiples of alignment
   EPW_EXPERT_MAJOR  e * C + its number, arrays are [E, C]
   EPW_DENSE         source_offsets[s] + its number among the rows of source s
   EPW_RANK_MAJOR    s * max_tokens + its number, C is at least ranks * max_tokens
 The first two have a token once for each of its experts that this rank owns, the others once.

 Overflow: rows whose place is C or more (expert-major: whose number is) are left out, are counted in
 `overflow`, and make the outcome degraded, with EPW_CAUSE_OVERFLOW unless a peer is missing as well.
 Combine adds nothing for them.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_output {
    pub size: u32,
    /// EPW_EXPERT_MAJOR, EPW_RANK_MAJOR, EPW_PACKED or EPW_DENSE: this rank's affair
    pub layout: u32,
    /// packed: rows, at least 1; else 0
    pub alignment: u32,
    /// 0: scales column-major; 1: row-major
    pub scale_order: u32,
    /** packed: 1: zeroes the rows between an expert's last and the next one's first,
and in all places of lost sources*/
    pub zero_padding: u32,
    /// for epw_prefill_receive: as in epw_dispatch_input
    pub nonblocking: u32,
    /// C, below 2^32 - 1
    pub capacity: u64,
    /// payloads
    pub rows: *mut ::core::ffi::c_void,
    /** row-major [C, K], column-major [K, stride] with columns of C scales, each rounded up to 16
bytes; expert-major one of these for each expert. UE8M0: i32 with four exponents,
that of block b in byte b%4, ceil(K/4) in place of K, zero-padded*/
    pub scales: *mut ::core::ffi::c_void,
    /// [C, sideband_bytes]
    pub sideband: *mut ::core::ffi::c_void,
    /// [E]: places of each expert, those of lost sources included
    pub counts: *mut u32,
    /// [E]: packed: first place of each expert; expert-major: e * C
    pub offsets: *mut u32,
    /// [E]: rows of each expert that did not fit
    pub overflow: *mut u32,
    /// [ranks]: rows of each source that have come; 0 of one that was lost
    pub source_counts: *mut u32,
    /// [ranks]: dense and rank-major: first place of each source
    pub source_offsets: *mut u32,
    /** packed and expert-major [C]: local expert; -1 in places of nobody: padding, what
is beyond the last, lost sources*/
    pub row_expert: *mut i32,
    /// [C]: source rank, -1 as above
    pub row_source: *mut i32,
    /// [C]: token index there, -1 as above
    pub row_token: *mut i32,
    /// packed and expert-major [C]: which of the token's top-k, -1 as above
    pub row_position: *mut i32,
    /// packed and expert-major [C]: routing weight, 0 as above
    pub row_weight: *mut f32,
    /** dense and rank-major [C, topk]: local expert ids, -1 where the entry lives
elsewhere, and as above*/
    pub row_experts: *mut i32,
    /// dense and rank-major [C, topk]: routing weights, 0 where the id is -1
    pub row_weights: *mut f32,
    /** packed and expert-major [E, ranks], as DeepEP packs them: in the lower 32 bits how
many rows of the expert each source has, 0 of one that was lost, in the upper ones
the number of the first of them among the expert's*/
    pub ranges: *mut u64,
    /// [E]: adds the rows of each local expert
    pub expert_totals: *mut u64,
    /// [E]: adds them too, modulo 2^32
    pub expert_totals_i32: *mut i32,
    /// [ranks]: adds the time spent waiting for each source
    pub wait_ns: *mut u64,
    /// for GPUs
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_prefill_output",
    ][::core::mem::size_of::<epw_prefill_output>() - 192usize];
    [
        "Alignment of epw_prefill_output",
    ][::core::mem::align_of::<epw_prefill_output>() - 8usize];
    [
        "Offset of field: epw_prefill_output::size",
    ][::core::mem::offset_of!(epw_prefill_output, size) - 0usize];
    [
        "Offset of field: epw_prefill_output::layout",
    ][::core::mem::offset_of!(epw_prefill_output, layout) - 4usize];
    [
        "Offset of field: epw_prefill_output::alignment",
    ][::core::mem::offset_of!(epw_prefill_output, alignment) - 8usize];
    [
        "Offset of field: epw_prefill_output::scale_order",
    ][::core::mem::offset_of!(epw_prefill_output, scale_order) - 12usize];
    [
        "Offset of field: epw_prefill_output::zero_padding",
    ][::core::mem::offset_of!(epw_prefill_output, zero_padding) - 16usize];
    [
        "Offset of field: epw_prefill_output::nonblocking",
    ][::core::mem::offset_of!(epw_prefill_output, nonblocking) - 20usize];
    [
        "Offset of field: epw_prefill_output::capacity",
    ][::core::mem::offset_of!(epw_prefill_output, capacity) - 24usize];
    [
        "Offset of field: epw_prefill_output::rows",
    ][::core::mem::offset_of!(epw_prefill_output, rows) - 32usize];
    [
        "Offset of field: epw_prefill_output::scales",
    ][::core::mem::offset_of!(epw_prefill_output, scales) - 40usize];
    [
        "Offset of field: epw_prefill_output::sideband",
    ][::core::mem::offset_of!(epw_prefill_output, sideband) - 48usize];
    [
        "Offset of field: epw_prefill_output::counts",
    ][::core::mem::offset_of!(epw_prefill_output, counts) - 56usize];
    [
        "Offset of field: epw_prefill_output::offsets",
    ][::core::mem::offset_of!(epw_prefill_output, offsets) - 64usize];
    [
        "Offset of field: epw_prefill_output::overflow",
    ][::core::mem::offset_of!(epw_prefill_output, overflow) - 72usize];
    [
        "Offset of field: epw_prefill_output::source_counts",
    ][::core::mem::offset_of!(epw_prefill_output, source_counts) - 80usize];
    [
        "Offset of field: epw_prefill_output::source_offsets",
    ][::core::mem::offset_of!(epw_prefill_output, source_offsets) - 88usize];
    [
        "Offset of field: epw_prefill_output::row_expert",
    ][::core::mem::offset_of!(epw_prefill_output, row_expert) - 96usize];
    [
        "Offset of field: epw_prefill_output::row_source",
    ][::core::mem::offset_of!(epw_prefill_output, row_source) - 104usize];
    [
        "Offset of field: epw_prefill_output::row_token",
    ][::core::mem::offset_of!(epw_prefill_output, row_token) - 112usize];
    [
        "Offset of field: epw_prefill_output::row_position",
    ][::core::mem::offset_of!(epw_prefill_output, row_position) - 120usize];
    [
        "Offset of field: epw_prefill_output::row_weight",
    ][::core::mem::offset_of!(epw_prefill_output, row_weight) - 128usize];
    [
        "Offset of field: epw_prefill_output::row_experts",
    ][::core::mem::offset_of!(epw_prefill_output, row_experts) - 136usize];
    [
        "Offset of field: epw_prefill_output::row_weights",
    ][::core::mem::offset_of!(epw_prefill_output, row_weights) - 144usize];
    [
        "Offset of field: epw_prefill_output::ranges",
    ][::core::mem::offset_of!(epw_prefill_output, ranges) - 152usize];
    [
        "Offset of field: epw_prefill_output::expert_totals",
    ][::core::mem::offset_of!(epw_prefill_output, expert_totals) - 160usize];
    [
        "Offset of field: epw_prefill_output::expert_totals_i32",
    ][::core::mem::offset_of!(epw_prefill_output, expert_totals_i32) - 168usize];
    [
        "Offset of field: epw_prefill_output::wait_ns",
    ][::core::mem::offset_of!(epw_prefill_output, wait_ns) - 176usize];
    [
        "Offset of field: epw_prefill_output::stream",
    ][::core::mem::offset_of!(epw_prefill_output, stream) - 184usize];
};
impl Default for epw_prefill_output {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_prefill_output_init(output: *mut epw_prefill_output);
}
/// counts go first; the routing is filled
pub const EPW_ROUTE_NEW: u32 = 0;
/** the routing's: input.topk_idx is not read, tokens are as many, nothing is counted,
and rows take the places that they took before, by the same layout and capacity.
Without topk_weights the weights stay as they were*/
pub const EPW_ROUTE_AGAIN: u32 = 1;
/// sends the rows: at most split_tokens of the plan, else EPW_ERR_LIMIT
pub const EPW_HALF_SENDS: u32 = 0;
/** sends the counts alone and waits for those of all: epw_prefill_received says how
many rows come. The rows go and come in the receiving half*/
pub const EPW_HALF_COUNTS: u32 = 1;
unsafe extern "C" {
    /** Sends this rank's tokens and, if `output` is not NULL, receives those of the others. input->layout is left
 as it is initialised. With input->nonblocking go on by epw_prefill_poll. outcome [out] may be NULL; it is
 filled when the operation ends. A refused call changes nothing.*/
    pub fn epw_prefill_dispatch(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        input: *const epw_dispatch_input,
        route: u32,
        half: u32,
        output: *const epw_prefill_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** How many rows come, when that is known: after a dispatch of any kind; after a sending half EPW_PENDING
 until all counts have come. *rows [out]: the capacity that takes all of them in this layout and alignment
 (expert-major: of an expert). counts [out, E] and source_counts [out, ranks] may be NULL.*/
    pub fn epw_prefill_received(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        layout: u32,
        alignment: u32,
        rows: *mut u64,
        counts: *mut u32,
        source_counts: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The receiving half of a dispatch.
    pub fn epw_prefill_receive(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        output: *const epw_prefill_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
/// What combine takes. `rows` are places as dispatch gave them.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_combine_input {
    pub size: u32,
    /** EPW_COMBINE_RANK_REDUCED; packed and expert-major also EPW_COMBINE_ORDERED, where the
rings  have a slot for each of a token's experts on a rank*/
    pub mode: u32,
    /// channels of a row, a multiple of 8, at most hidden; 0: hidden. The same on all ranks
    pub width: u32,
    /// as in epw_dispatch_input
    pub nonblocking: u32,
    /** [rows, width] of combine_dtype, dense; dense and rank-major layouts: already
reduced over this rank's experts with the weights*/
    pub expert_out: *const ::core::ffi::c_void,
    /// rank-reduced, packed and expert-major: [rows], instead of those of dispatch
    pub row_weights: *const f32,
    /// ordered: [n, topk] of this rank's own tokens, instead of those of dispatch
    pub topk_weights: *const f32,
    /** packed and expert-major [rows], else [rows, topk]: carried back to
epw_prefill_combine_output.values. All ranks, or none*/
    pub row_values: *const f32,
    /** [n, width] of combine_dtype: added to this rank's own tokens behind all else, the
first first, ahead of the rounding; NULL: none*/
    pub bias: [*const ::core::ffi::c_void; 2usize],
    /// 0: the buffer's; else at least that
    pub deadline_ns: u64,
    /// for GPUs
    pub stream: *mut ::core::ffi::c_void,
    /// for GPUs: as in epw_dispatch_input
    pub sms: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_prefill_combine_input",
    ][::core::mem::size_of::<epw_prefill_combine_input>() - 88usize];
    [
        "Alignment of epw_prefill_combine_input",
    ][::core::mem::align_of::<epw_prefill_combine_input>() - 8usize];
    [
        "Offset of field: epw_prefill_combine_input::size",
    ][::core::mem::offset_of!(epw_prefill_combine_input, size) - 0usize];
    [
        "Offset of field: epw_prefill_combine_input::mode",
    ][::core::mem::offset_of!(epw_prefill_combine_input, mode) - 4usize];
    [
        "Offset of field: epw_prefill_combine_input::width",
    ][::core::mem::offset_of!(epw_prefill_combine_input, width) - 8usize];
    [
        "Offset of field: epw_prefill_combine_input::nonblocking",
    ][::core::mem::offset_of!(epw_prefill_combine_input, nonblocking) - 12usize];
    [
        "Offset of field: epw_prefill_combine_input::expert_out",
    ][::core::mem::offset_of!(epw_prefill_combine_input, expert_out) - 16usize];
    [
        "Offset of field: epw_prefill_combine_input::row_weights",
    ][::core::mem::offset_of!(epw_prefill_combine_input, row_weights) - 24usize];
    [
        "Offset of field: epw_prefill_combine_input::topk_weights",
    ][::core::mem::offset_of!(epw_prefill_combine_input, topk_weights) - 32usize];
    [
        "Offset of field: epw_prefill_combine_input::row_values",
    ][::core::mem::offset_of!(epw_prefill_combine_input, row_values) - 40usize];
    [
        "Offset of field: epw_prefill_combine_input::bias",
    ][::core::mem::offset_of!(epw_prefill_combine_input, bias) - 48usize];
    [
        "Offset of field: epw_prefill_combine_input::deadline_ns",
    ][::core::mem::offset_of!(epw_prefill_combine_input, deadline_ns) - 64usize];
    [
        "Offset of field: epw_prefill_combine_input::stream",
    ][::core::mem::offset_of!(epw_prefill_combine_input, stream) - 72usize];
    [
        "Offset of field: epw_prefill_combine_input::sms",
    ][::core::mem::offset_of!(epw_prefill_combine_input, sms) - 80usize];
    [
        "Offset of field: epw_prefill_combine_input::reserved",
    ][::core::mem::offset_of!(epw_prefill_combine_input, reserved) - 84usize];
};
impl Default for epw_prefill_combine_input {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_prefill_combine_input_init(input: *mut epw_prefill_combine_input);
}
/// Where the combined tokens go.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_combine_output {
    pub size: u32,
    /// for epw_prefill_collect: as in epw_dispatch_input
    pub nonblocking: u32,
    /// [n, width] of combine_dtype, dense. Tokens routed nowhere become zeros, and bias
    pub out: *mut ::core::ffi::c_void,
    /// [n, 2]: expert contributions arrived, expected
    pub contributions: *mut u16,
    /// [n, ceil(ranks/32)]: bit r%32 of word r/32: the sum lacks the answer of rank r
    pub lacks: *mut u32,
    /// [n, topk of the dispatch]: what row_values was for each, 0 where none came
    pub values: *mut f32,
    /// [ranks]: adds the time spent waiting for each peer
    pub wait_ns: *mut u64,
    /// for GPUs
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_prefill_combine_output",
    ][::core::mem::size_of::<epw_prefill_combine_output>() - 56usize];
    [
        "Alignment of epw_prefill_combine_output",
    ][::core::mem::align_of::<epw_prefill_combine_output>() - 8usize];
    [
        "Offset of field: epw_prefill_combine_output::size",
    ][::core::mem::offset_of!(epw_prefill_combine_output, size) - 0usize];
    [
        "Offset of field: epw_prefill_combine_output::nonblocking",
    ][::core::mem::offset_of!(epw_prefill_combine_output, nonblocking) - 4usize];
    [
        "Offset of field: epw_prefill_combine_output::out",
    ][::core::mem::offset_of!(epw_prefill_combine_output, out) - 8usize];
    [
        "Offset of field: epw_prefill_combine_output::contributions",
    ][::core::mem::offset_of!(epw_prefill_combine_output, contributions) - 16usize];
    [
        "Offset of field: epw_prefill_combine_output::lacks",
    ][::core::mem::offset_of!(epw_prefill_combine_output, lacks) - 24usize];
    [
        "Offset of field: epw_prefill_combine_output::values",
    ][::core::mem::offset_of!(epw_prefill_combine_output, values) - 32usize];
    [
        "Offset of field: epw_prefill_combine_output::wait_ns",
    ][::core::mem::offset_of!(epw_prefill_combine_output, wait_ns) - 40usize];
    [
        "Offset of field: epw_prefill_combine_output::stream",
    ][::core::mem::offset_of!(epw_prefill_combine_output, stream) - 48usize];
};
impl Default for epw_prefill_combine_output {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn epw_prefill_combine_output_init(output: *mut epw_prefill_combine_output);
}
unsafe extern "C" {
    /** Answers every received row of the routing's dispatch and, if `output` is not NULL, receives the answers to
 this rank's own rows and sums them. With `output` NULL this is the sending half, of at most
 split_tokens (split_tokens_ordered) rows from each rank.*/
    pub fn epw_prefill_combine(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        input: *const epw_prefill_combine_input,
        output: *const epw_prefill_combine_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The receiving half of a combine.
    pub fn epw_prefill_collect(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        output: *const epw_prefill_combine_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// Goes on with a non-blocking operation without waiting, as epw_poll.
    pub fn epw_prefill_poll(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Sleeps until epw_prefill_poll may find something new on the lane, at most timeout_ns. Touches no memory of
 the operation: any thread, beside one that polls. EPW_ERR_STATE: no operation runs there.*/
    pub fn epw_prefill_await(
        prefill: *mut epw_prefill,
        lane: u32,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Gives up an operation of the routing that is under way, or of which a half is still to come, as
 epw_routing_free does, and keeps the routing: after a dispatch it is empty; after a combine, and after a
 dispatch with EPW_ROUTE_AGAIN that had no topk_weights, it is as before, and may be combined or used again.
 A call that waits for the operation in another thread ends with EPW_ERR_STATE.*/
    pub fn epw_prefill_cancel(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The lane of its last operation.
    pub fn epw_routing_lane(routing: *const epw_routing) -> u32;
}
unsafe extern "C" {
    /** Who gets what, of a routing that need not be sent: pure, of any thread. rank_tokens [out, ranks]: tokens
 that go to each rank; expert_tokens [out, experts]: to each expert; in_rank [out, tokens * ranks]: 1 where
 the token goes to the rank. Each may be NULL. Ids are as in epw_dispatch_input.*/
    pub fn epw_prefill_count(
        config: *const epw_prefill_config,
        topk_idx: *const ::core::ffi::c_void,
        idx_type: u32,
        tokens: u32,
        topk: u32,
        rank_tokens: *mut u32,
        expert_tokens: *mut u32,
        in_rank: *mut u8,
    ) -> epw_status;
}
