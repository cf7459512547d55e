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
pub const EPW_COPY_ENGINES_FROM: u32 = 33554432;
pub const EPW_EXCHANGE_MAX: u32 = 65536;
pub const EPW_REGISTRATIONS_MAX: u32 = 32;
pub const EPW_REGISTRATION_BLOB_MAX: u32 = 1152;
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
/// a size exceeds a limit of the plan or of the library
pub const EPW_ERR_LIMIT: i32 = -2;
/** not possible now: the lane is held, the handle is already consumed, there is no
membership yet*/
pub const EPW_ERR_STATE: i32 = -3;
/// the system has no memory to give
pub const EPW_ERR_NO_MEMORY: i32 = -4;
/// an operating system call failed
pub const EPW_ERR_SYSTEM: i32 = -5;
/// no permitted path leads to the peer
pub const EPW_ERR_NO_PATH: i32 = -6;
/// the peer's configuration or version differs
pub const EPW_ERR_MISMATCH: i32 = -7;
/// another living incarnation of the rank still holds its place
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
/// The last error in parts. `op` and `text` are valid as long as the text of epw_last_error.
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
    /// Fills in the last error of the calling thread; writes at most `size` bytes. detail [in: size, out]
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
/** The log: which path leads to a peer and why others do not, sizes, memberships, which peers are given up and
 why. The environment variable EPWIRE_LOG turns it on: "off", "warn", "info" or "trace", or a level for each
 of the subsystems plan, path, member, wait and nic, as in "warn,path=trace". Lines go to stderr, or are
 appended to the file EPWIRE_LOG_FILE (%p in the name stands for the process id). Operations that succeed
 log nothing. A message that is turned off costs one load.*/
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
    /** one line, without a line end; valid until the function returns, as the record
is*/
    pub text: *const ::core::ffi::c_char,
    /// since 1970-01-01 UTC
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
/** Called by the thread that logs, with locks of the library held: it must not call the library, and must
 return soon.*/
pub type epw_log_fn = ::core::option::Option<
    unsafe extern "C" fn(
        context: *mut ::core::ffi::c_void,
        record: *const epw_log_record,
    ),
>;
unsafe extern "C" {
    /** From now on calls `fn` with `context` for each message that `levels` selects; `levels` has the form of
 EPWIRE_LOG, which continues to print by itself. `fn` replaces the function set before; NULL only removes
 that one. Another thread that is logging at this moment may still call the former function, with either
 context. EPW_ERR_INVALID: `levels` has another form.*/
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
/// one row per (token, rank), summed by that rank over its experts
pub const EPW_COMBINE_RANK_REDUCED: u32 = 0;
/** one row per (token, expert), summed at the token's own rank in top-k
order*/
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
/// a rank on any host: what is written for it travels by a queue, see epw_fabric
pub const EPW_PATH_QUEUE: u32 = 32;
/// A set of ranks: rank r is bit r%64 of bits[r/64]. This struct never grows.
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
/** What a buffer must be able to do. All fields but `rank`, `threads`, `paths`, `sms`, `serial_lanes`,
 `queue_depth`, `fabric` and the ordinal in `device` must be equal on every rank; epw_buffer_connect refuses
 a peer whose value differs, and names the field.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_config {
    /// sizeof(epw_config)
    pub size: u32,
    /// EPW_CONFIG_VERSION
    pub version: u32,
    /// [0, ranks)
    pub rank: u32,
    /// [1, EPW_MAX_RANKS]; on GPUs at most 256
    pub ranks: u32,
    /// tokens per rank and operation, [1, EPW_MAX_TOKENS]; 65535 with `ordered`
    pub max_tokens: u32,
    /// channels of a token, a multiple of 8 (of 128 for FP8), at most 2^24
    pub hidden: u32,
    /** physical experts in all, a multiple of ranks, at most 2^20, on GPUs 8192; expert e
lives on e / (experts/ranks)*/
    pub experts: u32,
    /// experts per token at most, [1, min(EPW_MAX_TOPK, experts)]
    pub topk: u32,
    /// operations in flight, 1 or 2
    pub lanes: u32,
    /// EPW_BF16 or EPW_F16: type of tokens
    pub dtype: u32,
    /// EPW_BF16 or EPW_F16: type of expert outputs and of combine's result
    pub combine_dtype: u32,
    /// most payload + scale bytes of an opaque row, up to 2^30; 0: no opaque rows
    pub opaque_bytes: u32,
    /// most opaque bytes per token, [0, EPW_MAX_SIDEBAND]
    pub sideband_bytes: u32,
    /// 1: also reserve what EPW_COMBINE_ORDERED needs
    pub ordered: u32,
    /// 1: also reserve an expert-major area for epw_next_combine_buffer
    pub zero_copy: u32,
    /** threads that move data for this rank, the caller included, at most 256; 0: chosen by
the library*/
    pub threads: u32,
    /// permitted EPW_PATH_* bits; EPW_PATH_ALL: any
    pub paths: u32,
    /** EPW_DEVICE_HOST, or the CUDA ordinal, in this process, of the GPU that holds tokens,
outputs and the window. All ranks use the host, or all use GPUs*/
    pub device: i32,
    /** CUDA: the most SMs that the kernels of all lanes take together, one thread block on each,
at most 1024; 0: all SMs of the GPU that no other buffer or communicator of this process
has. All kernels that wait for peers must be resident at once: otherwise a kernel that
waits can keep another one from starting, and the peers that need that other one wait
until the deadline. The SMs therefore belong to this buffer until it is destroyed, and a
buffer that does not fit is refused with EPW_ERR_LIMIT, which names the holders and how
many each has. What other processes take of the GPU is not counted*/
    pub sms: u32,
    /** least number of entries of a queue, a power of two from EPW_QUEUE_DEPTH_MIN to
EPW_QUEUE_DEPTH_MAX; 0: queue_depth of the fabric, if there is one. Lets a plan
be made before the fabric exists*/
    pub queue_depth: u32,
    /// a peer silent for so long is given up: 1 ms to 1 day
    pub deadline_ns: u64,
    /** reaches the peers behind queues. It belongs to this rank and must outlive the
buffer. NULL: no peer is reached by a queue. With a fabric, and EPW_PATH_QUEUE in
`paths`, max_tokens of decode is at most 16254, and a buffer on a GPU also takes
pinned host memory: see epw_plan*/
    pub fabric: *mut epw_fabric,
    /** CUDA: 1: kernels of the two lanes never run at the same time, as when both lanes
are used on one stream; then each kernel may take all of `sms`. With 0 a lane of
decode has half of them, and for prefill see epw_prefill. The library puts eager
calls of both lanes one behind the other, whatever their streams; the order in
which graphs run is up to the caller: kernels of two lanes that run at once may
keep each other off the GPU until the deadline*/
    pub serial_lanes: u32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_config"][::core::mem::size_of::<epw_config>() - 104usize];
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
    [
        "Offset of field: epw_config::serial_lanes",
    ][::core::mem::offset_of!(epw_config, serial_lanes) - 96usize];
    [
        "Offset of field: epw_config::reserved",
    ][::core::mem::offset_of!(epw_config, reserved) - 100usize];
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
    /// sum of the above; the host takes 64 KiB at a time, a GPU 2 MiB
    pub window_bytes: u64,
    /** this rank's memory outside the window; with `threads` 0, for the threads that
the library would choose now. On a GPU it is device memory; about 0.4 MB of
pinned host memory, through which kernels report, are not counted*/
    pub private_bytes: u64,
    /** what this rank writes for them, and the NIC reads; allocated for all ranks at
once*/
    pub image_bytes: u64,
    /** queues to which lanes post; allocated for each peer. Memory that EPW_WIRE_LOCAL
shares with peers belongs to the fabric: epw_fabric_options.ring_bytes*/
    pub ring_bytes: u64,
    /** GPU only: what they write to this rank if only mapped peers write into its
window; allocated for each peer, as large as the peer's part of the window. 0 if
`fabric` has EPW_RINGS_GPU, since they then write into the window; with
EPW_RINGS_AUTO it is allocated only if the adapter does not reach that*/
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
/// memory shared within one host, by way of a Unix socket of its network namespace
pub const EPW_WIRE_LOCAL: u32 = 1;
/// TCP over IPv4 or IPv6
pub const EPW_WIRE_TCP: u32 = 2;
/** an RDMA adapter of any make, by libibverbs: the first with an active port and, on
Ethernet, a RoCEv2 address that others can reach. Ranks still connect to each other
by a Unix socket within a host, or by TCP if they have a key, and so see which
ranks have ended*/
pub const EPW_WIRE_VERBS: u32 = 4;
/// a thread of this process
pub const EPW_NIC_SOFT: u32 = 1;
/** the same for tests, and slow: it delays fetches, overwrites entries that are done,
and breaks a queue whose entries or bytes change after their doorbell*/
pub const EPW_NIC_STRICT: u32 = 2;
/** for tests: an mlx5 adapter in software, which takes the commands of a real one, and
is as strict with them as its firmware*/
pub const EPW_NIC_FAKE: u32 = 3;
/** an mlx5 adapter with an active port, by libibverbs and libmlx5. Unproven: no adapter
has been tried yet*/
pub const EPW_NIC_MLX5: u32 = 4;
/// the first of the two below that works here; epw_fabric_describe says which
pub const EPW_DOORBELLS_AUTO: u32 = 0;
/// kernels write the adapter's registers, which the GPU's driver must map
pub const EPW_DOORBELLS_GPU: u32 = 1;
/** kernels write words that a thread of this process copies to the registers. The
thread takes a core while kernels post; after 2 ms without a post, the next one
takes up to 0.1 ms longer*/
pub const EPW_DOORBELLS_HOST: u32 = 2;
/// pinned host memory
pub const EPW_RINGS_HOST: u32 = 0;
/** memory of the GPU, for each of them; the adapter must reach it. What peers send goes
to the window itself. EPW_ERR_NO_PATH if it cannot*/
pub const EPW_RINGS_GPU: u32 = 1;
/** for each of them GPU memory if the adapter reaches it, else host memory;
epw_fabric_describe says which*/
pub const EPW_RINGS_AUTO: u32 = 2;
/** Adapters: where the queues that kernels post to lie, the rows that kernels send by them, and what peers
 send. With EPW_WIRE_VERBS as the only wire this is about the last alone, for its NIC reads the first two.*/
/// as the device's transport promises: InfiniBand's and RoCE's do
pub const EPW_ORDER_AUTO: u32 = 0;
/** it does not, for example because switches spread the packets of one queue pair over
several paths. EPW_ERR_INVALID with an mlx5 adapter as the NIC: nobody holds back
what is posted to its queues*/
pub const EPW_ORDER_NONE: u32 = 1;
/** Whether an adapter of EPW_WIRE_VERBS places what it writes in the order of posting. Where it may not, a
 word is posted only when everything before it is done, one round trip later.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_fabric_options {
    /// sizeof(epw_fabric_options)
    pub size: u32,
    /// [0, EPW_MAX_RANKS): the rank of the buffers that use this fabric
    pub rank: u32,
    /** EPW_WIRE_* bits. Two ranks of one host that both have EPW_WIRE_LOCAL use it; others use
the highest bit that they have in common*/
    pub wires: u32,
    /// EPW_NIC_*
    pub nic: u32,
    /** TCP: for each address it listens on a port of this range; 0, 0: on any
port*/
    pub first_port: u16,
    /** TCP: for each address it listens on a port of this range; 0, 0: on any
port*/
    pub last_port: u16,
    /** TCP: listens on the addresses of these interfaces, in the grammar of
NCCL_SOCKET_IFNAME: "eth,ib", "=eth0" or "^docker"; NULL: of all*/
    pub interfaces: *const ::core::ffi::c_char,
    /** TCP: 32 secret bytes, the same on all ranks: both ends of a connection
prove that they know them. The data is neither encrypted nor protected
on the way. NULL: no key. Copied*/
    pub key: *const ::core::ffi::c_uchar,
    /** EPW_WIRE_LOCAL: size of the ring in shared memory by which this rank sends to one peer, a power of two
 from EPW_RING_BYTES_MIN to EPW_RING_BYTES_MAX; 0: 2^22. Each peer on this host that a buffer reaches
 by a queue takes this much, 68 KiB more, and a ring for the way back, whose size the peer's options
 set. No plan counts them; pages are allocated as they are used.*/
    pub ring_bytes: u32,
    /// EPW_DOORBELLS_*: of an adapter, for buffers on a GPU
    pub doorbells: u32,
    /** Which adapters may be used, in the grammar of NCCL_IB_HCA: "mlx5": all whose names begin so;
 "=mlx5_0:1": exactly this one, and this port of it; "^mlx5_1,mlx5_2": all but those whose names begin
 so; "^=mlx5_1": all but exactly this one. NULL: any. Of these the one nearest to `device` on the PCI
 bus is taken; among equally near ones each rank takes the next. epw_fabric_describe says which it is.
 Copied*/
    pub adapters: *const ::core::ffi::c_char,
    /** the GPU of the buffers that use this fabric, as in epw_config; EPW_DEVICE_HOST: all
adapters are equally near*/
    pub device: i32,
    /** number of adapters, which lanes use in turn: 1 or 2; 0: 1. EPW_ERR_NO_PATH if
there are fewer*/
    pub adapter_count: u32,
    /// InfiniBand: [0, 15]; Ethernet: the priority, [0, 7]
    pub service_level: u32,
    /** Ethernet: [0, 255], four times the DSCP; a traffic class that the kernel sets
for the port does not apply to these queue pairs*/
    pub traffic_class: u32,
    /// Ethernet: [1, 255]; 0: 255
    pub hop_limit: u32,
    /// EPW_RINGS_*: of an adapter, for buffers on a GPU
    pub rings: u32,
    /** Least number of entries, of 64 bytes each, of a queue; each lane of a buffer has a queue to each peer.
 A power of two from EPW_QUEUE_DEPTH_MIN to EPW_QUEUE_DEPTH_MAX; 0, or fewer than the lane's operations
 may post at a time: as many as these need. A peer that takes nothing is given up once its queue is
 full. epw_plan.ring_bytes takes this into account if epw_config.fabric is set.*/
    pub queue_depth: u32,
    /** the host rings the doorbell each time it has posted this many entries of an
operation's rows to a peer, and after the last: [1, EPW_QUEUE_DEPTH_MAX]; 0:
only after the last. Kernels post all entries for a peer at once, and ring
once*/
    pub doorbell_batch: u32,
    /// EPW_ORDER_*: of EPW_WIRE_VERBS
    pub order: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_fabric_options",
    ][::core::mem::size_of::<epw_fabric_options>() - 96usize];
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
    [
        "Offset of field: epw_fabric_options::order",
    ][::core::mem::offset_of!(epw_fabric_options, order) - 88usize];
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
    /// Creates a fabric: starts its threads and listens for connections. options [in], out [out]. Any thread.
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
    /** Ends its threads and connections. All buffers that used the fabric must have been destroyed before; if the
 process keeps one of them, because a GPU may still write to it, it keeps the fabric too. NULL is allowed.
 Does nothing in a forked child.*/
    pub fn epw_fabric_destroy(fabric: *mut epw_fabric);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_buffer {
    _unused: [u8; 0],
}
unsafe extern "C" {
    /** Allocates the window and starts the rank's threads. EPW_ERR_INVALID also if an environment variable cannot
 be followed: EPWIRE_ISA names an instruction set that is unknown or cannot run here, or EPWIRE_LOG is no
 list of levels. EPW_ERR_SYSTEM also if the file of EPWIRE_LOG_FILE cannot be opened, EPW_ERR_LIMIT if its
 name has more than 1023 bytes. config [in], out [out].*/
    pub fn epw_buffer_create(
        config: *const epw_config,
        out: *mut *mut epw_buffer,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Tells active peers that this rank leaves, ends its threads, unmaps the peers and frees the window. No other
 thread may be using the buffer. NULL is allowed. In a forked child this is the only call allowed on a
 buffer that it inherited: it frees the child's memory and tells no peer; the parent's buffer lives on.*/
    pub fn epw_buffer_destroy(buffer: *mut epw_buffer);
}
unsafe extern "C" {
    /** Writes what `peer` needs to reach this rank's window. The program carries it there and passes it to the
 peer's epw_buffer_connect. It holds a secret that lets processes of the same user map the window: carry it
 over a channel that you trust. blob [out, EPW_BLOB_MAX bytes], length [out].*/
    pub fn epw_buffer_export(
        buffer: *mut epw_buffer,
        peer: u32,
        blob: *mut ::core::ffi::c_void,
        length: *mut usize,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Maps the window that `peer` exported for this rank. Every peer must be connected once before it may be
 active; this rank itself cannot be (EPW_ERR_INVALID). EPW_ERR_MISMATCH: a field of the configuration
 differs. EPW_ERR_FENCED: a former incarnation of this rank, which may be another buffer of this process,
 still has the peer's window mapped; or a former incarnation of the peer has this rank's, and a queue leads
 to the peer. EPW_ERR_PEER: its process has ended; or it has exported queues that serve a former connection
 of this rank, whose end it had not noticed yet: let it export again. Bounded by the deadline. No other call
 on the buffer waits for it; one that connects or disconnects the same peer meanwhile gets EPW_ERR_STATE.
 Connecting a peer again first disconnects it, unless the blob is refused for what it says: cut, damaged,
 of another rank or of another configuration. While the peer is not active, any thread may call this at
 any time, also beside operations, none of which it waits for. An active peer must have been given up, and
 no lane may be held.*/
    pub fn epw_buffer_connect(
        buffer: *mut epw_buffer,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
    ) -> epw_status;
}
unsafe extern "C" {
    /** The same, bounded by deadline_ns (not 0) instead of the buffer's deadline: lets a program connect many
 peers within one bound.*/
    pub fn epw_buffer_connect_within(
        buffer: *mut epw_buffer,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
        deadline_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Tells the peer, then unmaps its window. The peer must not be active, unless it has been given up and no
 lane is held. Any thread, at any time.*/
    pub fn epw_buffer_disconnect(buffer: *mut epw_buffer, peer: u32) -> epw_status;
}
unsafe extern "C" {
    /** Finds out whether the path to `peer` works: sends its process a word in the way in which rows travel,
 beside all operations, and waits for the answer, which the library there gives even if its program makes no
 call. Any thread; a probe first waits for those of the peer by other threads, on a GPU for all of theirs.
 EPW_ERR_TIMEOUT: no answer within timeout_ns, in all, plus, on GPUs, the time of a few copies of 8 bytes.
 EPW_ERR_PEER: the peer's process has ended, or the queue to it is broken, for instance because it has
 disconnected this rank. EPW_ERR_STATE: not connected. If `peer` is this rank itself, its own device is
 probed: a word is written into its window and read back, on the host by this process, on GPUs by copies on
 a stream of the library's own. EPW_ERR_SYSTEM: this fails; EPW_ERR_TIMEOUT: it takes longer than
 timeout_ns.*/
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
    /** The EPW_WIRE_* that carries what is written for `peer`; 0 if its path is not EPW_PATH_QUEUE, or if mlx5
 adapters drain the queues, since they have a wire of their own.*/
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
    /// The name of one EPW_PATH_* for printing, for example "CUDA IPC". Never NULL.
    pub fn epw_path_name(path: u32) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /** Begins a membership: every member calls it with the same mask, epoch and step, with no lane held and its
 own writes done. `epoch` is in [1, 8388607] and larger than any before; only after EPW_ERR_TIMEOUT, when
 the GPU was not seen to begin the epoch, may the same one be passed again, with the same step. `step` is
 the group's step at which the membership begins, in [0, EPW_STEP_MAX]; programs that count no steps pass 0.
 All other members must be connected. Clears suspects and restarts the operation counters. Members that
 begin the epoch at different steps do not take part in each other's operations (EPW_CAUSE_STEP). Former
 members that are left out are told: their operations end at once without this rank (EPW_CAUSE_SUPERSEDED).
 How mask, epoch and step are decided is up to the caller. CUDA: waits for what has been enqueued before,
 see section CUDA.*/
    pub fn epw_buffer_set_active(
        buffer: *mut epw_buffer,
        active: *const epw_mask,
        epoch: u32,
        step: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Says that the group continues without these peers: they become suspects of this membership, and present and
 future waits for them end at once (EPW_CAUSE_SUPERSEDED). For callers that already know it, so that
 nobody waits for a deadline to find out. It does not say that the peers have failed, so none of them
 becomes `silent`. Peers that are no members are ignored; EPW_ERR_INVALID if the mask names this rank. Any
 thread, beside running operations, none of which it waits for: they stop waiting within some milliseconds.
 CUDA: a kernel looks for this once it has waited for some tens of microseconds; an operation that finds a
 peer's words in place completes with that peer.*/
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
    /** active peers given up since epw_buffer_set_active; until the next one this rank
neither sends to them nor waits for them. CUDA: may contain this rank itself, see
epw_error_record.peer*/
    pub suspects: epw_mask,
    /** suspects that this rank itself has seen silent for a whole deadline
(EPW_CAUSE_TIMEOUT). It was told of the others, which is no evidence that they have
failed*/
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
    /** CUDA: enqueues on `stream` a small kernel that tells the program's kernels of the suspects. It writes for
 each rank 0 if it takes part, 1 if it is a suspect of the membership, or -1 if it is no member, all as of
 this point of the stream: what work before it has found is there. Not 0 means that nothing is sent there or
 awaited from there. May be captured; each replay looks again. It waits for no work but that of `stream`,
 and of earlier such kernels on streams that no lane's last call used. As calls are, it is waited for before
 the membership changes and before the buffer is destroyed; replays must have run. Any thread.
 suspects [out, device memory, ranks]. EPW_ERR_STATE: the buffer is on the host.*/
    pub fn epw_buffer_suspects(
        buffer: *mut epw_buffer,
        suspects: *mut i32,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /** The newest epoch that this rank or one of its active peers has begun. If it is larger than this rank's own,
 others have moved on, and wait for this rank there. epoch [out]. Any thread. CUDA: copies a word for each
 peer; EPW_ERR_TIMEOUT if the GPU does not finish that within 10 ms.*/
    pub fn epw_buffer_newest_epoch(
        buffer: *mut epw_buffer,
        epoch: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Active ranks, this one included, that have begun `epoch` at a step other than `step`: they do not count
 steps as the group agreed, and their operations match none of the others (EPW_CAUSE_STEP). Ranks that are
 in another epoch are never in the set. epoch is in [0, 8388607], step in [0, EPW_STEP_MAX]. ranks
 [out]. Any thread. CUDA: as epw_buffer_newest_epoch.*/
    pub fn epw_buffer_diverged(
        buffer: *mut epw_buffer,
        epoch: u32,
        step: u64,
        ranks: *mut epw_mask,
    ) -> epw_status;
}
/** not known yet: some member has not ended the step; if that member was lost,
the verdict is open until the next membership has begun everywhere*/
pub const EPW_VERDICT_PENDING: u32 = 0;
/** all members have completed everything that ended in the step. If the
membership has changed since: all that are members of both*/
pub const EPW_VERDICT_CLEAN: u32 = 1;
/// some member has not: an outcome was degraded, or a handle was released
pub const EPW_VERDICT_FAULTED: u32 = 2;
unsafe extern "C" {
    /** Ends a step of this buffer: tells all members whether everything that has ended since the last checkpoint
 was complete. An operation counts for the step in which its combine ends. All members end the same steps.
 `step` is at least the one at which the membership began, larger than any before, and at most EPW_STEP_MAX;
 at most 2^22 more than the one before, if the membership has had one. A step that is skipped has the
 verdict of the next one. epoch [out]: the present epoch, with which to ask for the verdict. Waits for
 nobody. EPW_ERR_STATE: no membership yet, or CUDA: `stream` is under capture. CUDA: enqueues on `stream` a
 kernel of one block, which runs after everything that calls have enqueued on all lanes so far, and before
 what their next calls enqueue. The caller must order replays of graphs before or after it.*/
    pub fn epw_checkpoint(
        buffer: *mut epw_buffer,
        step: u64,
        stream: *mut ::core::ffi::c_void,
        epoch: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Makes the step that the next checkpoint ends count as incomplete: for failures outside this buffer, such as
 those of collectives (epw_comm_take_fault). Any thread, also while operations run.*/
    pub fn epw_checkpoint_fault(buffer: *mut epw_buffer) -> epw_status;
}
unsafe extern "C" {
    /** The verdict, EPW_VERDICT_*, of a step that this rank has ended with a checkpoint in `epoch`. All members of
 the present membership get the same verdict, though not at the same moment. A verdict once given stays
 right; but a rank that asks again after the membership has changed may get EPW_VERDICT_PENDING until all
 have begun the next one. EPW_ERR_LIMIT: the verdict is not known any more, 16 steps or 3 memberships later
 (steps that began after some member was given up do not count), or this rank does not belong to the
 membership that judges the step. Waits for no peer. Any thread. CUDA: copies 384 bytes for each rank, on no
 stream of the caller; gives EPW_VERDICT_PENDING if that takes more than 200 microseconds: ask again.
 verdict [out].*/
    pub fn epw_checkpoint_verdict(
        buffer: *mut epw_buffer,
        epoch: u32,
        step: u64,
        verdict: *mut u32,
    ) -> epw_status;
}
/** What a buffer or communicator has moved since it was created, traffic with this rank itself included. Bytes
 are those of rows with their scales, of answers, and of the messages of collectives, sends and receives;
 without headers, counts and signal words.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_traffic {
    pub size: u32,
    /// of epw_peer_traffic
    pub peer_size: u32,
    /** that have ended, complete or degraded: dispatches and combines; of a
communicator, collectives, sends and receives*/
    pub operations: u64,
    /// by dispatch: one for each token and each rank that it goes to
    pub rows_sent: u64,
    /// by dispatch, and valid
    pub rows_received: u64,
    /** by combine: one for each received row; ordered: one for each of the row's
experts on this rank*/
    pub rows_answered: u64,
    /// to all ranks
    pub bytes_sent: u64,
    /// from all ranks
    pub bytes_received: u64,
    /** of a communicator on a GPU: how often copy engines have moved the bytes of
an operation, in replays too; see epw_comm_alloc*/
    pub operations_copied: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_traffic"][::core::mem::size_of::<epw_traffic>() - 64usize];
    ["Alignment of epw_traffic"][::core::mem::align_of::<epw_traffic>() - 8usize];
    [
        "Offset of field: epw_traffic::size",
    ][::core::mem::offset_of!(epw_traffic, size) - 0usize];
    [
        "Offset of field: epw_traffic::peer_size",
    ][::core::mem::offset_of!(epw_traffic, peer_size) - 4usize];
    [
        "Offset of field: epw_traffic::operations",
    ][::core::mem::offset_of!(epw_traffic, operations) - 8usize];
    [
        "Offset of field: epw_traffic::rows_sent",
    ][::core::mem::offset_of!(epw_traffic, rows_sent) - 16usize];
    [
        "Offset of field: epw_traffic::rows_received",
    ][::core::mem::offset_of!(epw_traffic, rows_received) - 24usize];
    [
        "Offset of field: epw_traffic::rows_answered",
    ][::core::mem::offset_of!(epw_traffic, rows_answered) - 32usize];
    [
        "Offset of field: epw_traffic::bytes_sent",
    ][::core::mem::offset_of!(epw_traffic, bytes_sent) - 40usize];
    [
        "Offset of field: epw_traffic::bytes_received",
    ][::core::mem::offset_of!(epw_traffic, bytes_received) - 48usize];
    [
        "Offset of field: epw_traffic::operations_copied",
    ][::core::mem::offset_of!(epw_traffic, operations_copied) - 56usize];
};
/// Its part with one rank; the way to that rank is epw_buffer_path, epw_prefill_path or epw_comm_path.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_peer_traffic {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /** how long operations could not continue without the peer, in nanoseconds. The output
wait_ns of a dispatch or combine is the same for that operation*/
    pub wait_ns: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_peer_traffic"][::core::mem::size_of::<epw_peer_traffic>() - 24usize];
    [
        "Alignment of epw_peer_traffic",
    ][::core::mem::align_of::<epw_peer_traffic>() - 8usize];
    [
        "Offset of field: epw_peer_traffic::bytes_sent",
    ][::core::mem::offset_of!(epw_peer_traffic, bytes_sent) - 0usize];
    [
        "Offset of field: epw_peer_traffic::bytes_received",
    ][::core::mem::offset_of!(epw_peer_traffic, bytes_received) - 8usize];
    [
        "Offset of field: epw_peer_traffic::wait_ns",
    ][::core::mem::offset_of!(epw_peer_traffic, wait_ns) - 16usize];
};
unsafe extern "C" {
    pub fn epw_traffic_init(traffic: *mut epw_traffic);
}
unsafe extern "C" {
    /** traffic [in: sizes, out]. peers [out, may be NULL]: [ranks]. Any thread, also while operations run, whose
 bytes count at their end at the latest. What an operation had moved before it was given up may be missing.
 CUDA: kernels count, in replays of graphs too, from the first such call on: those of operations and graphs
 that were enqueued or captured before do not. Copies their counts, on no stream of the caller.
 EPW_ERR_TIMEOUT if the copy takes longer than the group's deadline. wait_ns is 0: use the output wait_ns.
 The same for the others: epw_prefill_traffic, epw_comm_traffic.*/
    pub fn epw_buffer_traffic(
        buffer: *const epw_buffer,
        traffic: *mut epw_traffic,
        peers: *mut epw_peer_traffic,
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
/// it has told this rank that it continues without it, or that it leaves
pub const EPW_CAUSE_DROPPED: u32 = 2;
/// it was given up by an earlier operation of this epoch
pub const EPW_CAUSE_SUSPECTED: u32 = 3;
/** its rows have another payload or sideband than this rank's, or weights where
this rank's have none, or it answers in another EPW_COMBINE_* mode*/
pub const EPW_CAUSE_FORMAT: u32 = 4;
/** it answered fewer rows than it was sent: it gave the operation up, and takes
part in the next one. Or a routing is used again that never had all of its
rows, because it was missing from the dispatch that filled the routing. This
is no reason to change the membership; a peer in epw_membership.suspects is*/
pub const EPW_CAUSE_PARTIAL: u32 = 5;
/// CUDA: not a peer's fault: a routing id was out of range or repeated
pub const EPW_CAUSE_ROUTING: u32 = 6;
/** CUDA: not a peer's fault: the replayed operation did nothing, because the
lane was not in the state that it needs (held, or not held)*/
pub const EPW_CAUSE_HELD: u32 = 7;
/** it moved on to a newer epoch, or the group continues without it: see
epw_buffer_revoke*/
pub const EPW_CAUSE_SUPERSEDED: u32 = 8;
/// it has begun this epoch at another step
pub const EPW_CAUSE_STEP: u32 = 9;
/** a peer behind a queue: the connection to it is gone, or it has taken nothing
for so long that the queue has no room for more*/
pub const EPW_CAUSE_LINK: u32 = 10;
/** prefill, not a peer's fault: `expected` rows were received, and only `seen` of
them fit the capacity of the output*/
pub const EPW_CAUSE_OVERFLOW: u32 = 11;
/** The first peer that an operation gave up, with every variable of that wait. The library fills it in as a
 part of epw_outcome, and in epw_take_errors and its like; in all cases the caller has passed its size.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_error_record {
    /// EPW_PHASE_*
    pub phase: u32,
    /// EPW_CAUSE_*
    pub cause: u32,
    /// this rank
    pub rank: u32,
    /** the peer given up. CUDA: this rank itself if other work kept its kernel off the GPU
until the wait's bound; the rank is then among its own suspects*/
    pub peer: u32,
    pub lane: u32,
    pub epoch: u32,
    /// operation number in the lane, from 1 in each epoch; wraps after 2^24 - 1
    pub op: u32,
    /// how many peers were still awaited
    pub waiting: u32,
    /// the signal word awaited; its value bits are zero, except in an epoch word
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
    /** 0: every active peer took part; 1: see missing, which may be empty, and
record.cause*/
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
    /** [n, topk] f32, dense; NULL if no rank needs weights at dispatch. Not NULL
even with 0 tokens, if other ranks give it*/
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
    /** 0, 1, or -1: the lanes in turn, of prefill lane 0. All ranks use the same lane for the
same operation*/
    pub lane: i32,
    /** 1: return EPW_PENDING instead of waiting; epw_poll continues. The memory of all
inputs and outputs must live until the operation has finished or been released*/
    pub nonblocking: u32,
    /// of this rank's waits, at least the buffer's; 0: the buffer's
    pub deadline_ns: u64,
    /// CUDA: the cudaStream_t to enqueue on; see "CUDA"
    pub stream: *mut ::core::ffi::c_void,
    /** CUDA: the most SMs for the kernels of this operation, both halves; 0, or more than the
lane's part of config.sms (of prefill: than what its lane may take): that part. A
captured call keeps the number. Ranks may have different ones*/
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
 ordered by source rank, then by token at the source. Any pointer may be NULL if that output is not wanted,
 except that expert-major needs `rows` and `counts`; pointers that the layout does not fill must be NULL.
 Rows beyond the counts are left as they were (CUDA: after a degraded operation they may hold anything).*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_dispatch_output {
    pub size: u32,
    /// 0: scales column-major; 1: row-major
    pub scale_order: u32,
    /// for epw_dispatch_receive: as in epw_dispatch_input
    pub nonblocking: u32,
    pub reserved: u32,
    /** a multiple of 16: expert-major [E, M, payload]; rank-major [M, payload], source s from
s*max_tokens on (NULL: read them in place, see epw_rows_view)*/
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
    /** [E, ranks]: the same, packed as in DeepEP: the count in the lower 32 bits, the
beginning in the upper*/
    pub packed_ranges: *mut u64,
    /// expert-major [E, M], rank-major [M]: the row's token index at its source
    pub source_token: *mut u32,
    /// rank-major [M, config.topk]: local expert id, -1 where the entry lives elsewhere
    pub row_experts: *mut i32,
    /// rank-major [M, config.topk]: routing weights, 0 where the expert id is -1
    pub row_weights: *mut f32,
    /// rank-major [E, M]: the rows of each local expert, counts[e] of them
    pub expert_rows: *mut u32,
    /// [E]: adds the tokens of each local physical expert
    pub expert_totals: *mut u64,
    /// [E]: adds the same, modulo 2^32
    pub expert_totals_i32: *mut i32,
    /** [ranks]: adds the time spent waiting for each source; on the host from the first
epw_ready on, if that came before the receiving half*/
    pub wait_ns: *mut u64,
    /// for epw_dispatch_receive, CUDA: the cudaStream_t to enqueue on
    pub stream: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_dispatch_output",
    ][::core::mem::size_of::<epw_dispatch_output>() - 136usize];
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
        "Offset of field: epw_dispatch_output::packed_ranges",
    ][::core::mem::offset_of!(epw_dispatch_output, packed_ranges) - 64usize];
    [
        "Offset of field: epw_dispatch_output::source_token",
    ][::core::mem::offset_of!(epw_dispatch_output, source_token) - 72usize];
    [
        "Offset of field: epw_dispatch_output::row_experts",
    ][::core::mem::offset_of!(epw_dispatch_output, row_experts) - 80usize];
    [
        "Offset of field: epw_dispatch_output::row_weights",
    ][::core::mem::offset_of!(epw_dispatch_output, row_weights) - 88usize];
    [
        "Offset of field: epw_dispatch_output::expert_rows",
    ][::core::mem::offset_of!(epw_dispatch_output, expert_rows) - 96usize];
    [
        "Offset of field: epw_dispatch_output::expert_totals",
    ][::core::mem::offset_of!(epw_dispatch_output, expert_totals) - 104usize];
    [
        "Offset of field: epw_dispatch_output::expert_totals_i32",
    ][::core::mem::offset_of!(epw_dispatch_output, expert_totals_i32) - 112usize];
    [
        "Offset of field: epw_dispatch_output::wait_ns",
    ][::core::mem::offset_of!(epw_dispatch_output, wait_ns) - 120usize];
    [
        "Offset of field: epw_dispatch_output::stream",
    ][::core::mem::offset_of!(epw_dispatch_output, stream) - 128usize];
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
    /** ordered only: [n, topk] f32, dense; NULL: those given at dispatch, which
rank-reduced always uses*/
    pub topk_weights: *const f32,
    /// as in epw_dispatch_input
    pub nonblocking: u32,
    /// CUDA: as in epw_dispatch_input
    pub sms: u32,
    /// at least the buffer's; 0: the buffer's
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
    /// a multiple of 16: [n, hidden] of combine_dtype, dense. Tokens routed nowhere become zeros
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
 error. outcome [out] may be NULL; it is filled when the call ends, and by a sending half on the host too,
 as far as it knows. A wrong or repeated expert id is EPW_ERR_INVALID naming row and column, and nothing is
 sent.*/
    pub fn epw_dispatch(
        buffer: *mut epw_buffer,
        input: *const epw_dispatch_input,
        output: *const epw_dispatch_output,
        handle: *mut epw_handle,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The receiving half of a dispatch. Call it, like any next call, within one deadline of the sending half.
    pub fn epw_dispatch_receive(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        output: *const epw_dispatch_output,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
/** Rows where they lie in the window; those of source s begin at row s*max_tokens. Valid from the end of
 dispatch until combine or release. `rows` may be written (rank-major zero-copy combine) once all experts
 have read the row: the row then holds [hidden] of combine_dtype.*/
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
 rank-major, the received rows themselves; expert-major, [E, M, hidden], if config.zero_copy is set. Then
 pass expert_out = NULL to epw_combine.*/
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
    /** Continues a non-blocking operation without waiting: EPW_PENDING, EPW_OK (outcome is filled) or an error.
 Like epw_ready it also receives what peers behind queues have sent so far: a program that only polls needs
 no other thread.*/
    pub fn epw_poll(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Sleeps until epw_poll may find something new, at most timeout_ns. Touches no memory of the operation: any
 thread may call it while another polls. Returns EPW_OK, or EPW_ERR_STATE if no operation of the handle is
 under way and no receiving half is due.*/
    pub fn epw_await(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** After the sending half of a dispatch or combine: EPW_OK if the receiving half would not wait for anybody,
 else EPW_PENDING. The first such call begins the wait that the receiving half continues with: from then on
 peers are told that this rank waits, and who is silent for a deadline is given up. Between calls of
 epw_ready, epw_await sleeps as it does between polls; call epw_ready again whenever it returns.*/
    pub fn epw_ready(buffer: *mut epw_buffer, handle: epw_handle) -> epw_status;
}
unsafe extern "C" {
    /** Gives the handle up: answers with no rows every peer that has sent rows, and in the background those that
 have not sent yet. Does not wait, and touches no memory of the caller afterwards.*/
    pub fn epw_release(buffer: *mut epw_buffer, handle: epw_handle) -> epw_status;
}
unsafe extern "C" {
    /** From now on, calls of the calling thread for buffers, prefill buffers and communicators are refused if
 their stream is under capture: EPW_ERR_STATE with the text `why`, which must stay valid. NULL, as at first:
 they are captured. epw_release is not refused: the lane's next dispatch does it first. Returns what was set
 before. For callers that cannot promise that a graph is launched only while what it uses is there.*/
    pub fn epw_refuse_captures(
        why: *const ::core::ffi::c_char,
    ) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /** epw_release on a given stream; epw_release itself uses the one of the handle's last call. The host device
 ignores `stream`.*/
    pub fn epw_release_on(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: makes `stream` (as in a call; of the buffer's GPU) wait for what calls have enqueued so far on the
 handle's lane: what is enqueued on `stream` later runs after that. Enqueues nothing if `stream` is that of
 the lane's last call, since this then holds already. Also takes a consumed handle, until the lane's next
 dispatch. The host waits for nothing. Any thread, also while another uses the handle. Under capture:
 - The handle's last call was captured: `stream` joins its capture, if it is not in it already, and waits
   for that call, as by an event that the program records behind it. Before the capture ends, the program
   makes its first stream wait for `stream`, as CUDA demands of all streams that have joined.
 - Only `stream` is under capture: whenever the graph is launched, it waits for what eager calls have
   enqueued on the lane before the launch. It must not be launched any more once the buffer is destroyed.
 EPW_ERR_STATE: the lane has moved on to another dispatch, or the handle is another buffer's; the handle's
 last call was captured, and its capture has ended (let `stream` wait for the graph), or `stream` is under
 another capture, or is the legacy default stream; the buffer is on the host. A refused call leaves captures
 as they were.*/
    pub fn epw_stream_wait(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: the outcome of the last half that was enqueued for `handle`; EPW_PENDING if the GPU has not run it
 yet. Also takes a consumed handle, until the lane's next dispatch. Not for captured calls: their outcomes
 are in `contributions` and epw_take_errors. outcome [out].*/
    pub fn epw_outcome_read(
        buffer: *mut epw_buffer,
        handle: epw_handle,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: moves up to `capacity` of the error records that kernels have written since the last call, oldest
 first, to `records` [out], each of `record_size` bytes, sizeof(epw_error_record). *count [out] is how many
 it has moved, *lost [out, may be NULL] how many have been lost since the last call: records overwritten
 before anybody took them, and bad ids of one operation beyond 64. A record with cause EPW_CAUSE_ROUTING
 describes a routing id: `expected` is token << 32 | column, `seen` the id. The host device has no records:
 its outcomes and errors say everything.*/
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
 for the instruction set that EPWIRE_ISA may name (see epw_buffer_create).
 q [out, rows*hidden], scales [out]: f32 [rows, hidden/128]; with EPW_PAYLOAD_FP8_UE8M0 bytes [rows,
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
/** All fields but `rank`, `paths`, the ordinal in `device`, `fabric` and `queue_depth` must be equal on every
 rank.

 CUDA. Calls enqueue a kernel on the stream of their epw_call and return. Buffers are device memory. Who is
 missing is known only when the operation has run: `outcome` must be NULL; pass `work` to ask for it later,
 or look at the suspects in epw_comm_membership. Calls on different streams run in the order of the calls.
 Streams may be under capture: a replay takes its turn like a call, on all ranks in the same order, and uses
 the membership that it finds when it runs; captured calls have no `work`.
     Sends and receives of one epw_group progress together, before its collectives; those of different calls
     run in stream order, so that a large send holds up what comes after it until it is received. Each pair
     of ranks matches sends with receives in the order of the calls: if the two ends differ in type or tag,
     or the receiver has too little room, that is a mismatch.
     With `fabric`, and EPW_PATH_QUEUE in `paths`, peers whose windows cannot be mapped are reached by
     queues. Either all ranks permit that or none does. If they do, all operations of any size, with mapped
     peers too, go in pieces through rings, without what makes operations by windows alone fast: so leave
     EPW_PATH_QUEUE out where all peers map each other. Results are the same. The communicator then also
     takes pinned host memory: images and an inbox, each at most as large as the rings of all ranks, and the
     queues. epw_comm_plan computes the sizes.
     Blocks that are uneven, or have offsets or rows, are limited to 96 ranks. Uneven ones always go as
     large operations do, once each pair of ranks has exchanged its counts and found them equal.
     `slots` and `slot_bytes` are for each thread block of a kernel; 0: 8 slots, and such a size that all
     rings together take 64 MiB, but at least 1 KiB and at most 32 KiB. If both are 0, the window has
     another 56 MiB, by which operations of medium size (an all-reduce of 2 to 4 ranks: up to 16 MiB)
     take as little as half the time where switches of NVLink join the GPUs; if one is given, they use
     the rings.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_comm_config {
    /// sizeof(epw_comm_config)
    pub size: u32,
    /// EPW_COMM_CONFIG_VERSION
    pub version: u32,
    /// [0, ranks)
    pub rank: u32,
    /// [1, EPW_MAX_RANKS]; CUDA: at most 256
    pub ranks: u32,
    /// slots of the ring from one rank to another, a power of two in [2, 256]; 0: 8
    pub slots: u32,
    /** payload of a slot, a multiple of 64 in [64, 2^24]; 0: such that the rings of all
ranks take 16 MiB together, but at least 1 KiB and at most 32 KiB*/
    pub slot_bytes: u32,
    /// permitted EPW_PATH_* bits; EPW_PATH_ALL: any
    pub paths: u32,
    /// EPW_DEVICE_HOST, or the CUDA ordinal of the GPU whose memory is sent and received
    pub device: i32,
    /// for epw_comm_alloc, the same on all ranks, at most 2^44
    pub heap_bytes: u64,
    /// a peer silent for so long is given up: 1 ms to 1 day
    pub deadline_ns: u64,
    /// as in epw_config; CUDA: see above
    pub fabric: *mut epw_fabric,
    /** CUDA: the most thread blocks of a kernel, [1, 64], the same on all ranks; 0: 32, or 8
where queues are permitted. As in epw_config the SMs belong to this communicator: create
it before a buffer that takes all that are free*/
    pub sms: u32,
    /// as in epw_config; each rank may have its own
    pub queue_depth: u32,
    /** CUDA: bytes of recv from which on copy engines move an all-gather or
all-to-all of equal blocks, see epw_comm_alloc; 0: none*/
    pub copy_engines_from: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_comm_config"][::core::mem::size_of::<epw_comm_config>() - 72usize];
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
        "Offset of field: epw_comm_config::queue_depth",
    ][::core::mem::offset_of!(epw_comm_config, queue_depth) - 60usize];
    [
        "Offset of field: epw_comm_config::copy_engines_from",
    ][::core::mem::offset_of!(epw_comm_config, copy_engines_from) - 64usize];
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
/// Sizes that follow from a configuration. Computed without allocating anything.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct epw_comm_sizes {
    /// sizeof(epw_comm_sizes)
    pub size: u32,
    /// of a ring, as chosen if `slots` is 0; likewise the next two
    pub slots: u32,
    /// that a slot carries
    pub slot_bytes: u32,
    /// CUDA: the most thread blocks of a kernel; 0 on the host
    pub sms: u32,
    /// signal words, and what goes with them
    pub control_bytes: u64,
    /// rings from all ranks, for collectives and for sends
    pub ring_bytes: u64,
    pub heap_bytes: u64,
    /// sum of the above; the host takes 64 KiB at a time, a GPU 2 MiB
    pub window_bytes: u64,
    /// what this rank writes for them
    pub image_bytes: u64,
    /// the queues: ring_bytes of epw_plan
    pub queue_bytes: u64,
    /// GPU only: what they write to this rank
    pub inbox_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of epw_comm_sizes"][::core::mem::size_of::<epw_comm_sizes>() - 72usize];
    ["Alignment of epw_comm_sizes"][::core::mem::align_of::<epw_comm_sizes>() - 8usize];
    [
        "Offset of field: epw_comm_sizes::size",
    ][::core::mem::offset_of!(epw_comm_sizes, size) - 0usize];
    [
        "Offset of field: epw_comm_sizes::slots",
    ][::core::mem::offset_of!(epw_comm_sizes, slots) - 4usize];
    [
        "Offset of field: epw_comm_sizes::slot_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, slot_bytes) - 8usize];
    [
        "Offset of field: epw_comm_sizes::sms",
    ][::core::mem::offset_of!(epw_comm_sizes, sms) - 12usize];
    [
        "Offset of field: epw_comm_sizes::control_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, control_bytes) - 16usize];
    [
        "Offset of field: epw_comm_sizes::ring_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, ring_bytes) - 24usize];
    [
        "Offset of field: epw_comm_sizes::heap_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, heap_bytes) - 32usize];
    [
        "Offset of field: epw_comm_sizes::window_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, window_bytes) - 40usize];
    [
        "Offset of field: epw_comm_sizes::image_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, image_bytes) - 48usize];
    [
        "Offset of field: epw_comm_sizes::queue_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, queue_bytes) - 56usize];
    [
        "Offset of field: epw_comm_sizes::inbox_bytes",
    ][::core::mem::offset_of!(epw_comm_sizes, inbox_bytes) - 64usize];
};
unsafe extern "C" {
    pub fn epw_comm_sizes_init(sizes: *mut epw_comm_sizes);
}
unsafe extern "C" {
    /** Checks `config` and computes its sizes. `paths` alone says whether there are queues: on a GPU the window is
 another one with them, so leave EPW_PATH_QUEUE out of it if there will be no fabric. config [in], sizes
 [in: size, out].*/
    pub fn epw_comm_plan(
        config: *const epw_comm_config,
        sizes: *mut epw_comm_sizes,
    ) -> epw_status;
}
unsafe extern "C" {
    /** As the functions of these names for a buffer. epw_comm_create: EPW_ERR_INVALID also if EPWIRE_PULL_FROM is
 no number of bytes. epw_comm_set_active on the host: EPW_ERR_STATE while work is under way; wait for it, or
 drop it. On a GPU it waits for what has been enqueued.*/
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
    pub fn epw_comm_trouble(
        comm: *const epw_comm,
        peer: u32,
        text: *mut ::core::ffi::c_char,
    ) -> *const ::core::ffi::c_char;
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
    pub fn epw_comm_suspects(
        comm: *mut epw_comm,
        suspects: *mut i32,
        stream: *mut ::core::ffi::c_void,
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
    pub fn epw_comm_exchange(
        comm: *mut epw_comm,
        memory: *mut ::core::ffi::c_void,
        bytes: u64,
        deadline_ns: u64,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** A communicator of the ranks of `mask`, renumbered from 0 in ascending order, without connections that the
 program makes: what its ranks need goes by collectives of `comm`, on a GPU by epw_comm_exchange, with all
 that is said there. All members of `comm` call it, in the same order relative to its collectives. Each
 passes a mask that contains it, or one that does not: then *out is NULL. All ranks of a mask pass that same
 mask, and masks do not overlap. NULL as `config` is that of `comm`: the subset is on the same device.
 Otherwise it is equal on all ranks of the mask where epw_comm_create wants that, and rank and ranks in it
 are not read: with it one on the host makes a subset on GPUs, and the other way round. On a GPU a subset
 takes SMs of its own, config.sms of them. A fabric must be one that was created for this rank's number in
 the subset, which may differ from its number in `comm`: where there are queues, give a config. Blocks for
 as long as `comm` waits for its members, and connections take. Its membership is that of `comm`, as far as
 ranks are in the mask, with its epoch and step. From then on it is a communicator of its own, with a window
 of its own: its program tells it of later memberships, exports it to ranks that come and connects them, and
 destroys it. EPW_ERR_MISMATCH: masks overlap. EPW_ERR_PEER: a member is missing, or a rank of the mask,
 which is named, could not make or connect its part. A mask or config.size that is wrong on this rank alone
 is refused before anything is exchanged: the others wait for it, as in any collective. Of anything else
 that is wrong there they are told, by EPW_ERR_PEER. After an error *out is NULL, on all
 ranks of the mask unless the last exchange has lost a rank, and `comm` goes on; on a GPU what was made is
 freed, which waits for the work that runs there. mask [in], config [in], out [out].*/
    pub fn epw_comm_subset(
        comm: *mut epw_comm,
        mask: *const epw_mask,
        config: *const epw_comm_config,
        out: *mut *mut epw_comm,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Memory in the communicator's window, aligned to 64 bytes; the window is zeroed when the communicator is
 created. On a GPU it is that GPU's memory. Peers that map the window read this memory directly, without a
 copy in between; on GPUs if on every rank all buffers that peers read lie in such memory (or in that of
 epw_comm_register), at multiples of 16 bytes, and blocks are multiples of 16 bytes. These buffers are those
 that send; of an all-reduce also those that receive. An in-place all-to-all copies, and so does a
 broadcast. EPW_ERR_LIMIT: heap_bytes does not suffice. Any thread may free it, in any order, when no
 operation uses it; epw_comm_destroy frees all of it.

 On GPUs, with config.copy_engines_from, copy engines instead of SMs read the peers' memory, in an
 all-gather or all-to-all of equal blocks that peers can read so and that has at least so many bytes at
 recv. A kernel of one block begins the operation; one that has nothing to move ends it. The send of each
 rank must be at the same offset: allocate in the same order on all ranks, or register ranges of the same
 sizes in the same order. If some are elsewhere, or a rank is missing, this is found on the GPU, and the
 last kernel moves the bytes, with the same result after a longer time; epw_traffic counts the operations
 where copies did. The copies of an operation must take less than the deadline. If a rank is missing or
 calls differ, recv holds anything, also in the place of that rank; and so do, in replays, places of ranks
 that are no members any more.

 In a graph, only memory of epw_comm_alloc is read so, by copies from fixed addresses: the window of a
 member that such a graph was captured with stays mapped, and its memory allocated, until epw_comm_destroy,
 even if the peer is disconnected or ends. Replays with another peer in its place have the right result, by
 kernels, until the graph is captured again. Three streams of the communicator's own copy at the same time
 as the caller's; where one of them belongs to another capture that has not ended, only the caller's does.

 Kernels move the bytes if one process has the communicators of several GPUs and they have registered memory
 of cudaMalloc, or share windows by EPW_PATH_IPC only: CUDA copies such memory in the order in which the
 copies were enqueued, whatever their streams are, so a copy that waits for a peer would hold up the one
 that the peer waits for.*/
    pub fn epw_comm_alloc(
        comm: *mut epw_comm,
        bytes: u64,
        memory: *mut *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    pub fn epw_comm_free(comm: *mut epw_comm, memory: *mut ::core::ffi::c_void);
}
/// A running number of the rank that has registered the memory, from 1.
pub type epw_registration = u64;
unsafe extern "C" {
    /** Registers memory of this communicator's GPU, which begins at a multiple of 16 and lies in one allocation.
 Nobody reads it yet. Peers map the whole allocation (CUDA also shares the 2 MiB in which a small one lies),
 so they must be trusted with all of it. registration [out].
 EPW_ERR_INVALID: no memory. On a GPU also host memory, managed memory, memory of a pool (cudaMallocAsync)
 or of another GPU, which peers cannot map; memory that is registered already, or is the communicator's own.
 EPW_ERR_LIMIT: see above.*/
    pub fn epw_comm_register(
        comm: *mut epw_comm,
        memory: *mut ::core::ffi::c_void,
        bytes: u64,
        registration: *mut epw_registration,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Writes what `peer` needs to map it. As epw_comm_export, to be carried over a channel that you trust. blob
 [out, EPW_REGISTRATION_BLOB_MAX bytes], length [out].*/
    pub fn epw_comm_export_registration(
        comm: *mut epw_comm,
        registration: epw_registration,
        peer: u32,
        blob: *mut ::core::ffi::c_void,
        length: *mut usize,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Maps what `peer`, which is connected, exported for this rank. Bounded by the deadline. registration [out]:
 the peer's number of it. EPW_ERR_STATE: it is mapped already, or another incarnation of the peer is
 connected. Otherwise as epw_comm_connect.*/
    pub fn epw_comm_import_registration(
        comm: *mut epw_comm,
        peer: u32,
        blob: *const ::core::ffi::c_void,
        length: usize,
        registration: *mut epw_registration,
    ) -> epw_status;
}
unsafe extern "C" {
    /** From now on lends it to these ranks, which have mapped it, and to no others: `ranks` replaces what was said
 before. This rank itself may be missing. EPW_ERR_STATE: one of them is not connected.*/
    pub fn epw_comm_lend(
        comm: *mut epw_comm,
        registration: epw_registration,
        ranks: *const epw_mask,
    ) -> epw_status;
}
unsafe extern "C" {
    /// Unmaps the peer's registration, if it is mapped.
    pub fn epw_comm_unmap(
        comm: *mut epw_comm,
        peer: u32,
        registration: epw_registration,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Ends this rank's registration. EPW_ERR_STATE: a peer, which is named, still has it mapped; the mappings of
 a process that has ended are gone. After an error the memory must not be freed.*/
    pub fn epw_comm_deregister(
        comm: *mut epw_comm,
        registration: epw_registration,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Whether something that has ended since the last such call was incomplete: an outcome was degraded, work was
 dropped (on the host), or ranks had called different operations. Complete here does not mean complete
 everywhere: a program that must know before it uses what a step has computed calls epw_checkpoint_fault of
 a buffer if this is 1, and asks for the verdict of that buffer's checkpoint. faulted [out]: 0 or 1. Any
 thread.*/
    pub fn epw_comm_take_fault(comm: *mut epw_comm, faulted: *mut u32) -> epw_status;
}
unsafe extern "C" {
    /** As epw_buffer_traffic. All bytes are counted that go from rank to rank: an all-reduce of n bytes moves more
 than n. Rows are 0. CUDA: calls that are not captured count when they are enqueued, as if no rank were
 missing, and receives as what they have room for; wait_ns is 0.*/
    pub fn epw_comm_traffic(
        comm: *const epw_comm,
        traffic: *mut epw_traffic,
        peers: *mut epw_peer_traffic,
    ) -> epw_status;
}
pub const EPW_BARRIER: u32 = 0;
/// root's send to everyone's recv; root's own recv may be send, or NULL
pub const EPW_BROADCAST: u32 = 1;
/// in place: recv == send
pub const EPW_ALL_REDUCE: u32 = 2;
/// only root has a recv; in place there: recv == send
pub const EPW_REDUCE: u32 = 3;
/** block r of send is reduced to rank r's recv; in place: recv is this rank's
block of send*/
pub const EPW_REDUCE_SCATTER: u32 = 4;
/** rank r's send to block r of everyone's recv; in place: send is this rank's
block of recv*/
pub const EPW_ALL_GATHER: u32 = 5;
/** block p of send to rank p, into this rank's block of recv there; in place: recv ==
send, where block p is sent to rank p and then holds what rank p has sent*/
pub const EPW_ALL_TO_ALL: u32 = 6;
/// rank r's send to block r of root's recv; in place at root: send is its own block
pub const EPW_GATHER: u32 = 7;
/// block r of root's send to rank r's recv; in place at root: recv is its own block
pub const EPW_SCATTER: u32 = 8;
pub const EPW_SEND: u32 = 9;
pub const EPW_RECV: u32 = 10;
/** What all_reduce does with its sum in the same call, as between two layers of a tensor-parallel model: the
 sum is added to the residual, and each row is normalised (RMSNorm) and, optionally, quantised. payload,
 hidden, epsilon and rows are the same on every rank; an all_reduce without a norm is another operation. On
 a GPU one kernel does all of it if peers are reached without queues, the sum travels in packets, and the
 communicator has an SM for each 15 pieces of 128 elements: with 32 SMs, and up to 32 ranks, 8 rows of 7168.
 A larger call takes a second kernel, which waits for nobody. On a GPU all memory, send and recv included,
 must be aligned to 16 bytes. Results have the same bits on host and GPU: see the rules in
 c/numerics/norm.h. If a member is missing there is no result: each row of `residual` and `out` is either
 the old one or unspecified.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_norm {
    pub size: u32,
    /// of out: EPW_PAYLOAD_SAME, or one of EPW_PAYLOAD_FP8_*
    pub payload: u32,
    /// elements of a row: a multiple of 8 (for FP8 of 128), in [8, EPW_NORM_HIDDEN_MAX]
    pub hidden: u32,
    /// in [0, 1e30]
    pub epsilon: f32,
    /// rows * hidden is the call's count
    pub rows: u64,
    /** [rows][hidden] of the call's type; in: the residual, out: the residual plus the
call's sum; NULL: none*/
    pub residual: *mut ::core::ffi::c_void,
    /// [hidden] of the call's type
    pub weight: *const ::core::ffi::c_void,
    /// [rows][hidden]; may be recv where payload is EPW_PAYLOAD_SAME
    pub out: *mut ::core::ffi::c_void,
    /** [rows][hidden / 128]: f32, or bytes for EPW_PAYLOAD_FP8_UE8M0; NULL if payload is
EPW_PAYLOAD_SAME*/
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
    /// EPW_TYPE_*; any type if nothing is reduced
    pub type_: u32,
    /// reductions: EPW_SUM to EPW_AVERAGE
    pub op: u32,
    /// the root; EPW_SEND: the receiver; EPW_RECV: the sender
    pub peer: u32,
    /// EPW_SEND and EPW_RECV: at most EPW_TAG_MAX
    pub tag: u32,
    pub send: *const ::core::ffi::c_void,
    pub recv: *mut ::core::ffi::c_void,
    /// of the operation, or of each block; EPW_RECV: the most that may come
    pub count: u64,
    /** Uneven blocks: in send of reduce_scatter and scatter, in recv of all_gather and gather, in both of
 all_to_all. [ranks]; counts are the same on every rank, except that in all_to_all send_counts[p] here
 equals recv_counts[this rank] at p. Counts NULL: `count` elements each. Offsets NULL: one block after
 the other. In an all_to_all in place, block p is what goes to rank p and what comes from it:
 send_counts and send_offsets must be NULL or equal those of recv, and recv_counts[p] here equals
 recv_counts[this rank] at p. As with other counts, a rank that has another one there is
 EPW_ERR_MISMATCH.*/
    pub send_counts: *const u64,
    /** Uneven blocks: in send of reduce_scatter and scatter, in recv of all_gather and gather, in both of
 all_to_all. [ranks]; counts are the same on every rank, except that in all_to_all send_counts[p] here
 equals recv_counts[this rank] at p. Counts NULL: `count` elements each. Offsets NULL: one block after
 the other. In an all_to_all in place, block p is what goes to rank p and what comes from it:
 send_counts and send_offsets must be NULL or equal those of recv, and recv_counts[p] here equals
 recv_counts[this rank] at p. As with other counts, a rank that has another one there is
 EPW_ERR_MISMATCH.*/
    pub send_offsets: *const u64,
    /** Uneven blocks: in send of reduce_scatter and scatter, in recv of all_gather and gather, in both of
 all_to_all. [ranks]; counts are the same on every rank, except that in all_to_all send_counts[p] here
 equals recv_counts[this rank] at p. Counts NULL: `count` elements each. Offsets NULL: one block after
 the other. In an all_to_all in place, block p is what goes to rank p and what comes from it:
 send_counts and send_offsets must be NULL or equal those of recv, and recv_counts[p] here equals
 recv_counts[this rank] at p. As with other counts, a rank that has another one there is
 EPW_ERR_MISMATCH.*/
    pub recv_counts: *const u64,
    /** Uneven blocks: in send of reduce_scatter and scatter, in recv of all_gather and gather, in both of
 all_to_all. [ranks]; counts are the same on every rank, except that in all_to_all send_counts[p] here
 equals recv_counts[this rank] at p. Counts NULL: `count` elements each. Offsets NULL: one block after
 the other. In an all_to_all in place, block p is what goes to rank p and what comes from it:
 send_counts and send_offsets must be NULL or equal those of recv, and recv_counts[p] here equals
 recv_counts[this rank] at p. As with other counts, a rank that has another one there is
 EPW_ERR_MISMATCH.*/
    pub recv_offsets: *const u64,
    /** Blocks of `rows` rows; the counts are then elements of one row, and a pitch is the distance from row to
 row. `rows` 0: one row. For all_gather and reduce_scatter: in all_gather send_pitch applies to this
 rank's block, and recv_pitch to the matrix of all blocks, in which block r begins at its offset; in
 reduce_scatter send_pitch applies to the matrix, and recv_pitch to the block. Pitch 0: dense, that is,
 the elements of one row of the block, or of one row of all blocks together. Other pitches are at least
 that; with offsets, that of the matrix at least the largest count.*/
    pub rows: u64,
    /** Blocks of `rows` rows; the counts are then elements of one row, and a pitch is the distance from row to
 row. `rows` 0: one row. For all_gather and reduce_scatter: in all_gather send_pitch applies to this
 rank's block, and recv_pitch to the matrix of all blocks, in which block r begins at its offset; in
 reduce_scatter send_pitch applies to the matrix, and recv_pitch to the block. Pitch 0: dense, that is,
 the elements of one row of the block, or of one row of all blocks together. Other pitches are at least
 that; with offsets, that of the matrix at least the largest count.*/
    pub send_pitch: u64,
    /** Blocks of `rows` rows; the counts are then elements of one row, and a pitch is the distance from row to
 row. `rows` 0: one row. For all_gather and reduce_scatter: in all_gather send_pitch applies to this
 rank's block, and recv_pitch to the matrix of all blocks, in which block r begins at its offset; in
 reduce_scatter send_pitch applies to the matrix, and recv_pitch to the block. Pitch 0: dense, that is,
 the elements of one row of the block, or of one row of all blocks together. Other pitches are at least
 that; with offsets, that of the matrix at least the largest count.*/
    pub recv_pitch: u64,
    /// for all_reduce with EPW_SUM of bf16 or f16; NULL: none. Copied by the call
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
/// A handle to operations in flight, valid until they are waited for or dropped. Never 0.
pub type epw_work = u64;
/// How a call behaves; a NULL pointer to it stands for all defaults.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_call {
    pub size: u32,
    pub reserved: u32,
    /// of this rank's waits, at least the communicator's; 0: the communicator's
    pub deadline_ns: u64,
    /** [out]: the call begins the operation and returns; buffers must stay valid and unchanged
until it has ended or been dropped (CUDA: until the stream has run it, dropped or not).
NULL: the call waits; CUDA: it does not wait, and its result cannot be asked for*/
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
 Collectives among them keep their order. At most 65536 operations, on GPUs at most 48 sends and receives,
 which are for at most 4 peers per SM of the communicator; one that is both sent to and received from counts
 twice. A refused call has no effect. outcome [out], of
 all of them, may be NULL; it is filled by the call that sees the end.*/
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
    /** On the host a message that fits a slot (slot_bytes of epw_comm_plan) is complete once it has been copied,
 as long as such messages to the peer that it has not received take at most 256 KiB. Any other is complete
 when it has been received, and so is one to the rank itself: EPW_ERR_TIMEOUT if no receive matches it
 within the deadline. At most 1,024 messages of one rank to another are announced and not received: further
 sends wait for receives. A rank takes in messages while it waits in any call of the communicator, or polls
 a work; for one that does neither there is room for `slots` of them, and further sends wait for it as for a
 peer.*/
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
    /** EPW_ERR_LIMIT: the message, which the error names, is longer than `count` elements; it is consumed. A
 shorter one leaves the rest of `recv` as it was. EPW_ERR_MISMATCH: it is of another type. Until they are
 received messages are kept here, within the limits of epw_send, so none of them holds up another one. As
 long as anything comes from the peer, also of other calls, it is not given up; otherwise it is after the
 deadline, for other calls too.*/
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
    /** Waits for the work to end, at most timeout_ns (UINT64_MAX: as long as its own deadlines permit).
 EPW_PENDING: it has not ended. Otherwise `work` is consumed, and status and outcome are those that the call
 would have given; but a call that is refused (EPW_ERR_STATE: there is no such work) consumes nothing. CUDA:
 EPW_ERR_LIMIT if the outcome is not known any more, because an operation that lacked a rank, 256 or more
 operations later, has taken its place.*/
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
 any thread may call it while another polls. EPW_OK also if the time is over or there is no such work.*/
    pub fn epw_work_await(
        comm: *mut epw_comm,
        work: epw_work,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Gives the work up: its buffers are not touched again. Peers find this rank missing from it
 (EPW_CAUSE_PARTIAL), now or when this rank's later calls get there. CUDA: only its outcome cannot be asked
 for any more; the operation runs all the same, and its buffers are needed until the stream has run it.*/
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
/** rows of each local expert together, experts in order, each beginning at a multiple of
`alignment` rows, at most 65536*/
pub const EPW_PACKED: u32 = 2;
/// rows by source, one source after the other
pub const EPW_DENSE: u32 = 3;
/** `ep` is as for a buffer, and the same fields must be equal on every rank. `ordered` and `zero_copy` are 0:
 ordered combine needs no reservation. max_tokens is the most tokens of a rank in one operation.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_config {
    /// sizeof(epw_prefill_config)
    pub size: u32,
    /** slots of the ring from one rank to another, [1, EPW_MAX_TOKENS + 1], with
EPW_PATH_QUEUE at most 16248, equal on
every rank; 0: EPW_PREFILL_RING_TOKENS, on GPUs EPW_PREFILL_RING_TOKENS_GPU;
fewer if max_tokens is less, or if the windows would exceed 256 MiB, but at least
16*/
    pub ring_tokens: u32,
    pub ep: epw_config,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of epw_prefill_config",
    ][::core::mem::size_of::<epw_prefill_config>() - 112usize];
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
    /** most tokens of the sending half of a dispatch or of a rank-reduced
combine*/
    pub split_tokens: u32,
    /** the same for an ordered combine, whose ring holds several rows of a
token*/
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
    /// sum of the above; the host takes 64 KiB at a time, a GPU 2 MiB
    pub window_bytes: u64,
    /** this rank's memory outside the window, as in epw_plan. On a GPU that has counts
for each block of a kernel: for as many as config.ep.sms permits or, if that
is 0, as 1024 SMs would have, more than a buffer then allocates*/
    pub private_bytes: u64,
    /** of an epw_routing for max_tokens tokens of this rank; each row received takes
routing_row_bytes more. On a GPU it includes those, and is device memory*/
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
    /** As the functions of these names for a buffer. epw_prefill_set_active: EPW_ERR_STATE while an operation is
 under way or (also on a GPU) a half of one is still to come. Free all routings before epw_prefill_destroy.*/
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
    pub fn epw_prefill_trouble(
        prefill: *const epw_prefill,
        peer: u32,
        text: *mut ::core::ffi::c_char,
    ) -> *const ::core::ffi::c_char;
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
    pub fn epw_prefill_suspects(
        prefill: *mut epw_prefill,
        suspects: *mut i32,
        stream: *mut ::core::ffi::c_void,
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
    /// Whether an operation that has ended since the last such call was incomplete, as epw_comm_take_fault.
    pub fn epw_prefill_take_fault(
        prefill: *mut epw_prefill,
        faulted: *mut u32,
    ) -> epw_status;
}
unsafe extern "C" {
    /** CUDA: moves error records, as epw_take_errors does, also those of replays, which have no outcome. Each
 kernel writes one for the first peer that it loses (not for peers that were suspects before), one with
 cause EPW_CAUSE_ROUTING for each bad id, at most 64 for one operation, and one with EPW_CAUSE_OVERFLOW if
 rows had no place. Of a kernel whose blocks did not all get SMs in time, `peer` is this rank, all active
 ranks are missing, and the outputs are as they were. A complete operation writes none. On the host there
 are none.*/
    pub fn epw_prefill_take_errors(
        prefill: *mut epw_prefill,
        records: *mut epw_error_record,
        record_size: usize,
        capacity: u32,
        count: *mut u32,
        lost: *mut u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** As epw_buffer_traffic, but with wait_ns on GPUs too. Of a split operation all of it counts when its second
 half ends; on a GPU what each half has moved counts when that half ends. An answer counts as a whole row,
 of the width that combine was given.*/
    pub fn epw_prefill_traffic(
        prefill: *const epw_prefill,
        traffic: *mut epw_traffic,
        peers: *mut epw_peer_traffic,
    ) -> epw_status;
}
unsafe extern "C" {
    /// Creates an empty routing. It allocates memory when a dispatch needs it, and keeps it for later ones.
    pub fn epw_routing_create(
        prefill: *mut epw_prefill,
        out: *mut *mut epw_routing,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Frees it. An operation of it that is under way, or of which a half is still to come, is given up: peers
 find this rank missing from it (EPW_CAUSE_PARTIAL) if rows or answers are still to be sent, now or when
 this rank's next call on the lane gets there; what a sending half has sent arrives completely. Waits for
 nobody, and touches no memory of the operation afterwards. NULL is allowed. On a GPU work that has been
 enqueued still runs, and graphs may be replayed: the routing's own memory is kept until that work has run,
 or until epw_prefill_destroy if any call was captured. A program that captures repeatedly should therefore
 use one routing for all captures. In a forked child this frees the child's memory, as epw_prefill_destroy
 does then, and the parent's operation goes on.*/
    pub fn epw_routing_free(routing: *mut epw_routing);
}
/** Where received rows go. E = local experts, C = capacity, K = scales per row. Rows of an expert or source
 are ordered by source rank, then by token. Any pointer may be NULL if that output is not wanted; those that
 the layout does not fill must be NULL.

 A row's place in `rows` and in every array [C]:
   EPW_PACKED        offsets[e] + its number among the rows of expert e; offsets are multiples of alignment
   EPW_EXPERT_MAJOR  e * C + its number, arrays are [E, C]
   EPW_DENSE         source_offsets[s] + its number among the rows of source s
   EPW_RANK_MAJOR    s * max_tokens + its number, C is at least ranks * max_tokens
 The first two hold a token once for each of its experts that this rank owns, the others once.

 Overflow: rows whose place, in expert-major order whose number, is C or more are left out, are counted in
 `overflow`, and make the outcome degraded, with EPW_CAUSE_OVERFLOW unless a peer is missing as well.
 Combine adds nothing for them.*/
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_output {
    pub size: u32,
    /// EPW_EXPERT_MAJOR, EPW_RANK_MAJOR, EPW_PACKED or EPW_DENSE; ranks may differ
    pub layout: u32,
    /// packed: rows, at least 1; else 0
    pub alignment: u32,
    /// 0: scales column-major; 1: row-major
    pub scale_order: u32,
    /** packed: 1: zeroes the rows between the last of an expert and the first of the
next, and the places of lost sources; not their scales*/
    pub zero_padding: u32,
    /// for epw_prefill_receive: as in epw_dispatch_input
    pub nonblocking: u32,
    /// C, below 2^32 - 1; expert-major: below that divided by E
    pub capacity: u64,
    /// payloads; a multiple of 16
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
    /** packed and expert-major [E]: rows of each expert that did not fit; dense and
rank-major [ranks]: rows of each source, 0 in rank-major*/
    pub overflow: *mut u32,
    /// [ranks]: rows received from each source; 0 for one that was lost
    pub source_counts: *mut u32,
    /// [ranks]: dense and rank-major: first place of each source
    pub source_offsets: *mut u32,
    /** packed and expert-major [C]: local expert; -1 in places without a row: padding,
places beyond the last row, lost sources*/
    pub row_expert: *mut i32,
    /// [C]: source rank, -1 as above
    pub row_source: *mut i32,
    /// [C]: token index there, -1 as above
    pub row_token: *mut i32,
    /// packed and expert-major [C]: which of the token's top-k, -1 as above
    pub row_position: *mut i32,
    /// packed and expert-major [C]: routing weight, 0 as above
    pub row_weight: *mut f32,
    /** dense and rank-major [C, config.ep.topk]: local expert ids, -1 where the entry
lives elsewhere, and as above*/
    pub row_experts: *mut i32,
    /// dense and rank-major [C, config.ep.topk]: routing weights, 0 where the id is -1
    pub row_weights: *mut f32,
    /** packed and expert-major [E, ranks], packed as in DeepEP: the lower 32 bits count the
rows of the expert from each source (0 for one that was lost), the upper 32 bits are
the index of the first of them among the expert's rows*/
    pub ranges: *mut u64,
    /// [E]: adds the rows of each local expert
    pub expert_totals: *mut u64,
    /// [E]: adds the same, modulo 2^32
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
/** the routing is used again: input.topk_idx is not read, input.tokens must be the
same, nothing is counted, and rows take the same places as before, with the same
layout and capacity. Without topk_weights the weights stay as they were*/
pub const EPW_ROUTE_AGAIN: u32 = 1;
/// sends the rows: at most split_tokens of the plan, else EPW_ERR_LIMIT
pub const EPW_HALF_SENDS: u32 = 0;
/** sends only the counts and waits for everyone's: epw_prefill_received then says how
many rows will arrive. The receiving half sends and receives the rows*/
pub const EPW_HALF_COUNTS: u32 = 1;
unsafe extern "C" {
    /** Sends this rank's tokens and, if `output` is not NULL, receives those of the others. input->layout keeps
 its initial value. With input->nonblocking, epw_prefill_poll continues the operation. outcome [out] may be
 NULL; it is filled when the operation ends. A call that is refused has no effect.
 Of a split operation, here and in combine, the inputs of the first half must stay valid and unchanged until
 the receiving half has ended or the operation is given up: that half reads them too (on a GPU: until the
 stream has run it). This differs from epw_dispatch, whose sending half on the host copies everything.*/
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
    /** How many rows arrive. Known after a dispatch of any kind; after a sending half on the host, EPW_PENDING
 until all counts have arrived. Each call looks for them, and from the first one on a peer that is silent
 for a whole deadline is given up, as in the receiving half; meanwhile epw_prefill_await waits for news.
 *rows [out]: the capacity that holds all rows in this layout and alignment (expert-major: the rows of any
 one expert). counts [out, E] and source_counts [out, ranks] may be NULL.*/
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
/// What combine takes. `rows` are the places that dispatch filled.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct epw_prefill_combine_input {
    pub size: u32,
    /** EPW_COMBINE_RANK_REDUCED; packed and expert-major also EPW_COMBINE_ORDERED, if the
rings have a slot for each of a token's experts on a rank*/
    pub mode: u32,
    /// channels of a row, a multiple of 8, at most hidden; 0: hidden. The same on all ranks
    pub width: u32,
    /// as in epw_dispatch_input
    pub nonblocking: u32,
    /** [rows, width] of combine_dtype, dense; dense and rank-major layouts: already
reduced over this rank's experts with the weights. Not read, and may be
NULL, if dispatch had a capacity of 0, and on the host if no row came*/
    pub expert_out: *const ::core::ffi::c_void,
    /** rank-reduced, packed and expert-major: [rows], in place of the weights given
at dispatch; NULL: those*/
    pub row_weights: *const f32,
    /** ordered: [n, topk] of this rank's own tokens, in place of the weights given
at dispatch; NULL: those*/
    pub topk_weights: *const f32,
    /** packed and expert-major [rows], else [rows, config.ep.topk]: carried back to
epw_prefill_combine_output.values. All ranks pass it, or none does: it is
not NULL even without rows, if other ranks give it*/
    pub row_values: *const f32,
    /** [n, width] of combine_dtype: added to this rank's own tokens last, bias[0] before
bias[1], before the sum is rounded; NULL: none*/
    pub bias: [*const ::core::ffi::c_void; 2usize],
    /// at least the buffer's; 0: the buffer's
    pub deadline_ns: u64,
    /// for GPUs
    pub stream: *mut ::core::ffi::c_void,
    /// CUDA: the most SMs for the kernels of this operation; 0: see epw_prefill
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
    /** a multiple of 16: [n, width] of combine_dtype, dense. Tokens routed nowhere become zeros
plus the bias*/
    pub out: *mut ::core::ffi::c_void,
    /// [n, 2]: expert contributions arrived, expected
    pub contributions: *mut u16,
    /** [n, ceil(ranks/32)]: bit r%32 of word r/32 is set if the sum lacks the answer of
rank r*/
    pub lacks: *mut u32,
    /// [n, topk of the dispatch]: the row_values of each entry, 0 where none came
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
 this rank's own rows and sums them. With `output` NULL this is the sending half: at most split_tokens
 (ordered: split_tokens_ordered) rows from each rank. CUDA: the host knows how many there are once an eager
 dispatch has run, of a routing that no graph has; otherwise max_tokens must be within the limit.*/
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
    /// Continues a non-blocking operation without waiting, as epw_poll.
    pub fn epw_prefill_poll(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
        outcome: *mut epw_outcome,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Sleeps until epw_prefill_poll, or epw_prefill_received, may find something new on the lane, at most
 timeout_ns. Touches no memory of the operation: any thread may call it while another polls. EPW_ERR_STATE:
 no operation runs there.*/
    pub fn epw_prefill_await(
        prefill: *mut epw_prefill,
        lane: u32,
        timeout_ns: u64,
    ) -> epw_status;
}
unsafe extern "C" {
    /** On a GPU: makes `stream` wait for the last call that was enqueued for the routing, under capture as
 epw_stream_wait does. EPW_ERR_STATE also if there was no such call. Any thread, one at a time for each
 routing.*/
    pub fn epw_prefill_stream_wait(
        prefill: *mut epw_prefill,
        routing: *const epw_routing,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
unsafe extern "C" {
    /** Gives up an operation of the routing that is under way, or of which a half is still to come, as
 epw_routing_free does, and keeps the routing: after a dispatch it is empty; after a combine, and after a
 dispatch with EPW_ROUTE_AGAIN that had no topk_weights, it is as before, and may be combined or used again.
 A call that waits for the operation in another thread ends with EPW_ERR_STATE. EPW_ERR_STATE in a forked
 child.
 What peers still need of it the lane's next call does first: a blocking one waits for that, a non-blocking
 one is EPW_ERR_STATE until it is done, so call epw_prefill_await and repeat it. The same holds after
 epw_routing_free.*/
    pub fn epw_prefill_cancel(
        prefill: *mut epw_prefill,
        routing: *mut epw_routing,
    ) -> epw_status;
}
unsafe extern "C" {
    /// The lane of the routing's last operation.
    pub fn epw_routing_lane(routing: *const epw_routing) -> u32;
}
unsafe extern "C" {
    /** Counts where tokens would go, without sending anything. Any thread. rank_tokens [out, ranks]: tokens that
 go to each rank; expert_tokens [out, experts]: tokens that go to each expert; in_rank [out, tokens *
 ranks]: 1 if the token goes to the rank, else 0. Each may be NULL. Ids are as in epw_dispatch_input.*/
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
unsafe extern "C" {
    /** The same on the GPU of a prefill buffer: enqueues the count on `stream` and returns. All arrays are in the
 GPU's memory, and any thread may call. rank_tokens, expert_tokens and in_rank as above. bad_ids [out, 1]:
 how many ids were out of range or repeat one of their token: these are ignored, where epw_prefill_count
 refuses them. Each output may be NULL; numbers are aligned as their type needs. It uses a few SMs, waits
 for no peer, needs no membership and belongs to no lane: it comes behind what is on the stream, and is not
 ordered with operations on other streams. It may be captured. tokens is at most the buffer's max_tokens.
 EPW_ERR_STATE: the buffer is on the host.*/
    pub fn epw_prefill_enqueue_count(
        prefill: *mut epw_prefill,
        topk_idx: *const ::core::ffi::c_void,
        idx_type: u32,
        tokens: u32,
        topk: u32,
        rank_tokens: *mut u32,
        expert_tokens: *mut u32,
        in_rank: *mut u8,
        bad_ids: *mut u32,
        stream: *mut ::core::ffi::c_void,
    ) -> epw_status;
}
