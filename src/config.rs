//! What a buffer must be able to do, and the sizes that follow from it.

use std::time::Duration;

use crate::error::Result;
use crate::tensor::DType;
use crate::{ffi, sys};

/// 16-bit types of tokens and expert outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Float16 {
    /// 16-bit brain floating point.
    #[default]
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Float16 {
    pub(crate) fn to_c(self) -> u32 {
        match self {
            Self::Bf16 => sys::EPW_BF16,
            Self::F16 => sys::EPW_F16,
        }
    }

    /// As an element type of tensors.
    pub fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::Bf16,
            Self::F16 => DType::F16,
        }
    }
}

/// How FP8 scales are stored, one for each 128 channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8Scale {
    /// f32, `amax / 448`.
    F32,
    /// f32, rounded up to a power of two.
    PowerOfTwo,
    /// The same as 8-bit exponents; column-major output packs four to an i32.
    Ue8m0,
}

/// What travels in a dispatched row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Payload {
    /// The input's own 16-bit values.
    #[default]
    SameAsInput,
    /// e4m3, quantised by dispatch.
    Fp8 {
        /// The kind of scales.
        scale: Fp8Scale,
    },
    /// The caller's own bytes and scales (MXFP8, NVFP4, ...).
    Opaque {
        /// Payload bytes of a row, a multiple of 16.
        row_bytes: u32,
        /// Scales of a row, 0 for none.
        scale_count: u32,
        /// Bytes of one scale: 1, 2, 4 or 8.
        scale_bytes: u32,
    },
}

impl Payload {
    pub(crate) fn to_c(self) -> u32 {
        match self {
            Self::SameAsInput => sys::EPW_PAYLOAD_SAME,
            Self::Fp8 { scale: Fp8Scale::F32 } => sys::EPW_PAYLOAD_FP8_F32,
            Self::Fp8 { scale: Fp8Scale::PowerOfTwo } => sys::EPW_PAYLOAD_FP8_POW2,
            Self::Fp8 { scale: Fp8Scale::Ue8m0 } => sys::EPW_PAYLOAD_FP8_UE8M0,
            Self::Opaque { .. } => sys::EPW_PAYLOAD_OPAQUE,
        }
    }

    /// Fills in the fields that say what travels.
    pub(crate) fn set(self, input: &mut sys::epw_dispatch_input) {
        input.payload = self.to_c();
        if let Self::Opaque { row_bytes, scale_count, scale_bytes } = self {
            (input.opaque_row_bytes, input.scale_count, input.scale_bytes) =
                (row_bytes, scale_count, scale_bytes);
        }
    }
}

/// How received rows are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// `[local_experts, rows, ...]` with a count per local expert, for masked grouped GEMMs.
    #[default]
    ExpertMajor,
    /// `[rows, ...]`, source `s` from row `s * max_tokens` on, with local expert ids and weights per row; may be
    /// read in place in the window.
    RankMajor,
}

/// What combine returns over the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CombineMode {
    /// One row per (token, rank), summed with the weights over that rank's experts there. Needs the weights at
    /// dispatch. With [`Layout::RankMajor`] the caller has done that sum.
    #[default]
    RankReduced,
    /// One row per (token, expert), summed at home in top-k order. Needs [`Layout::ExpertMajor`] and
    /// [`EpConfig::ordered`].
    Ordered,
}

/// The path by which a peer's window is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// Not connected.
    None,
    /// The rank itself.
    SelfRank,
    /// Another rank of this process.
    Thread,
    /// Another process of this host, through shared memory.
    SharedMemory,
    /// Another process of this host: its window in GPU memory, mapped by a VMM handle.
    Vmm,
    /// The same by a CUDA IPC handle.
    Ipc,
    /// What is written for it is sent by a software NIC, over this wire, and placed by the peer's.
    Queue(Wire),
}

/// What carries the bytes of queues between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wire {
    /// A socket of this host.
    Local,
    /// TCP.
    Tcp,
    /// Adapters, whose queue pairs have connections of their own.
    Adapter,
    /// An RDMA adapter of any make, through libibverbs.
    Verbs,
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Local => "local socket",
            Self::Tcp => "TCP",
            Self::Adapter => "RDMA adapters",
            Self::Verbs => "verbs",
        })
    }
}

impl Path {
    /// `EPW_PATH_*`, and `EPW_WIRE_*` of one by queues.
    pub(crate) fn from_c(path: u32, wire: u32) -> Self {
        match path {
            sys::EPW_PATH_SELF => Self::SelfRank,
            sys::EPW_PATH_THREAD => Self::Thread,
            sys::EPW_PATH_SHM => Self::SharedMemory,
            sys::EPW_PATH_VMM => Self::Vmm,
            sys::EPW_PATH_IPC => Self::Ipc,
            sys::EPW_PATH_QUEUE if wire == sys::EPW_WIRE_TCP => Self::Queue(Wire::Tcp),
            sys::EPW_PATH_QUEUE if wire == 0 => Self::Queue(Wire::Adapter),
            sys::EPW_PATH_QUEUE if wire == sys::EPW_WIRE_VERBS => Self::Queue(Wire::Verbs),
            sys::EPW_PATH_QUEUE => Self::Queue(Wire::Local),
            _ => Self::None,
        }
    }
}

/// As `epw_path_name` in C, with the wire.
impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Self::Queue(wire) = self {
            return write!(f, "queue over {wire}");
        }
        f.write_str(match self {
            Self::None => "none",
            Self::SelfRank => "self",
            Self::Thread => "thread",
            Self::SharedMemory => "shared memory",
            Self::Vmm => "VMM",
            Self::Ipc => "CUDA IPC",
            Self::Queue(_) => "queue",
        })
    }
}

/// Where tokens, outputs and the window are, and who moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// Host memory and host threads.
    #[default]
    Host,
    /// Memory and kernels of the GPU with this CUDA ordinal in this process (`CUDA_VISIBLE_DEVICES` counts). Needs the crate's
    /// feature `cuda`; calls are those of [`cuda`](crate::cuda).
    Cuda(u32),
}

impl Device {
    pub(crate) fn to_c(self) -> i32 {
        match self {
            Self::Host => sys::EPW_DEVICE_HOST,
            Self::Cuda(ordinal) => i32::try_from(ordinal).unwrap_or(i32::MAX),
        }
    }

    /// Ranks must agree on this; the ordinal is each rank's own.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda(_) => "cuda",
        }
    }
}

/// What a buffer must be able to do. Everything but `threads`, `paths`, `sms` and the ordinal in `device` must be equal on all
/// ranks.
///
/// ```
/// # use epwire::{EpConfig, Plan};
/// let config = EpConfig::new(128, 7168, 256, 8);
/// let plan = Plan::new(&config, 8)?;
/// assert!(plan.window_bytes <= 64 << 20);
/// # Ok::<(), epwire::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpConfig {
    /// Tokens per rank and operation at most, up to 65,536; up to 16,254 with queues.
    pub max_tokens: u32,
    /// Channels of a token, a multiple of 8 (of 128 for FP8), up to 2^24.
    pub hidden: u32,
    /// Physical experts in all, a multiple of the ranks; expert `e` lives on rank `e / (experts / ranks)`.
    pub experts: u32,
    /// Experts per token at most, up to 32.
    pub topk: u32,
    /// Operations in flight, 1 or 2.
    pub lanes: u32,
    /// Type of tokens.
    pub dtype: Float16,
    /// Type of expert outputs and of combine's result.
    pub combine_dtype: Float16,
    /// Most payload plus scale bytes of an opaque row, up to 2^30; 0: no opaque payloads.
    pub opaque_bytes: u32,
    /// Most opaque bytes per token that travel with the row, up to 64.
    pub sideband_bytes: u32,
    /// Also reserve what [`CombineMode::Ordered`] needs.
    pub ordered: bool,
    /// Also reserve an expert-major area for [`Dispatched::combine_rows_mut`](crate::Dispatched::combine_rows_mut).
    pub zero_copy: bool,
    /// Threads that move data for this rank, the caller included; 0: chosen by the library.
    pub threads: u32,
    /// The paths by which peers may be reached; by default all, but queues only where the members of the group are on several
    /// hosts. `EPWIRE_PATHS` overrides it.
    pub paths: Paths,
    /// Where tokens, outputs and the window are; the host by default. All ranks on the host or all on GPUs.
    pub device: Device,
    /// SMs that the kernels of all lanes take together at most, a thread block to each; 0: all of the GPU's. It bounds this
    /// buffer alone. Buffers that are used at the same time, on streams of their own, must together fit the GPU: else kernels
    /// of one that wait for a peer can keep those of another off it that the peer waits for, until the deadline. Which are used
    /// at the same time is not known here, so nothing checks that. On the host without effect.
    pub sms: u32,
    /// Bound of every wait for a peer, 1 ms to 1 day. Ranks that wait for each other show each other signs of life, which
    /// lengthens a wait, to 4 deadlines at most. A rank that peers wait for calls its next operation, or the other half of
    /// the one it has begun, within one deadline of its last call: set it above the longest time that a rank computes
    /// between two calls.
    pub deadline: Duration,
}

/// Which paths may be used. A peer that only an excluded path reaches is refused at connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paths {
    /// Ranks of this process.
    pub thread: bool,
    /// Processes of this host whose windows are in host memory.
    pub shared_memory: bool,
    /// Processes of this host whose windows are in GPU memory, by VMM handles; tried before `ipc`.
    pub vmm: bool,
    /// The same by CUDA IPC handles.
    pub ipc: bool,
    /// Ranks of any host by queues that a software NIC drains: for those that no other path leads to, or, as the only one,
    /// instead of the others. Such peers write into pinned host memory of a rank on a GPU, see [`Plan::inbox_bytes`]; the others
    /// into its window in GPU memory. Off by default, for it takes two threads, memory for each peer, and, where the run
    /// has a token, a TCP port: [`EpBuffer::create`](crate::EpBuffer::create) turns the default on where the members are on
    /// several hosts. Set it where ranks of other hosts may join later.
    pub queue: bool,
}

/// The names by which `EPWIRE_PATHS` calls them.
const PATH_NAMES: &str = "thread, shm, vmm, ipc, queue";

impl Paths {
    /// None at all: only the rank itself is reached.
    pub const NONE: Self = Self { thread: false, shared_memory: false, vmm: false, ipc: false, queue: false };

    /// Those that are named, as in `EPWIRE_PATHS`: `thread`, `shm`, `vmm`, `ipc`, `queue`, with commas between them.
    ///
    /// # Errors
    /// A text that says which name is unknown.
    pub fn parse(names: &str) -> std::result::Result<Self, String> {
        let mut paths = Self::NONE;
        for name in names.split(',').map(str::trim) {
            *match name {
                "thread" => &mut paths.thread,
                "shm" => &mut paths.shared_memory,
                "vmm" => &mut paths.vmm,
                "ipc" => &mut paths.ipc,
                "queue" => &mut paths.queue,
                _ => {
                    return Err(format!(
                        "{name:?} names no path: give some of {PATH_NAMES}, with commas between them"
                    ));
                }
            } = true;
        }
        Ok(paths)
    }

    pub(crate) fn to_c(self) -> u32 {
        let Paths { thread, shared_memory, vmm, ipc, queue } = self;
        let switches = [
            (thread, sys::EPW_PATH_THREAD),
            (shared_memory, sys::EPW_PATH_SHM),
            (vmm, sys::EPW_PATH_VMM),
            (ipc, sys::EPW_PATH_IPC),
            (queue, sys::EPW_PATH_QUEUE),
        ];
        let permitted = switches.into_iter().filter(|(on, _)| *on);
        permitted.fold(sys::EPW_PATH_SELF, |paths, (_, path)| paths | path)
    }
}

impl Default for Paths {
    fn default() -> Self {
        Self { thread: true, shared_memory: true, vmm: true, ipc: true, queue: false }
    }
}

impl EpConfig {
    /// Two lanes of bf16, ten seconds of deadline, everything optional off.
    pub fn new(max_tokens: u32, hidden: u32, experts: u32, topk: u32) -> Self {
        Self {
            max_tokens,
            hidden,
            experts,
            topk,
            lanes: 2,
            dtype: Float16::Bf16,
            combine_dtype: Float16::Bf16,
            opaque_bytes: 0,
            sideband_bytes: 0,
            ordered: false,
            zero_copy: false,
            threads: 0,
            paths: Paths::default(),
            device: Device::Host,
            sms: 0,
            deadline: Duration::from_secs(10),
        }
    }

    pub(crate) fn to_c(&self, rank: u32, ranks: u32) -> sys::epw_config {
        sys::epw_config {
            size: size_of::<sys::epw_config>() as u32,
            version: sys::EPW_CONFIG_VERSION,
            rank,
            ranks,
            max_tokens: self.max_tokens,
            hidden: self.hidden,
            experts: self.experts,
            topk: self.topk,
            lanes: self.lanes,
            dtype: self.dtype.to_c(),
            combine_dtype: self.combine_dtype.to_c(),
            opaque_bytes: self.opaque_bytes,
            sideband_bytes: self.sideband_bytes,
            ordered: self.ordered.into(),
            zero_copy: self.zero_copy.into(),
            threads: self.threads,
            paths: self.paths.to_c(),
            device: self.device.to_c(),
            sms: self.sms,
            reserved: 0,
            deadline_ns: self.deadline.as_nanos().try_into().unwrap_or(u64::MAX),
            fabric: std::ptr::null_mut(), // whoever creates a buffer gives one
        }
    }

    /// The fields that must be equal on all ranks, by name: what the ranks compare before they connect.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let Self {
            max_tokens,
            hidden,
            experts,
            topk,
            lanes,
            opaque_bytes,
            sideband_bytes,
            ordered,
            zero_copy,
            ..
        } = self;
        [
            ("max_tokens", max_tokens.to_string()),
            ("hidden", hidden.to_string()),
            ("experts", experts.to_string()),
            ("topk", topk.to_string()),
            ("lanes", lanes.to_string()),
            ("dtype", format!("{:?}", self.dtype)),
            ("combine_dtype", format!("{:?}", self.combine_dtype)),
            ("opaque_bytes", opaque_bytes.to_string()),
            ("sideband_bytes", sideband_bytes.to_string()),
            ("ordered", ordered.to_string()),
            ("zero_copy", zero_copy.to_string()),
            ("device", self.device.kind().to_owned()),
            ("deadline", format!("{:?}", self.deadline)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// Sizes that follow from a configuration, computed without allocating anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Ranks of the group.
    pub ranks: u32,
    /// `experts / ranks`.
    pub local_experts: u32,
    /// `ranks * max_tokens`: rows per local expert (expert-major) or in all (rank-major).
    pub rows: usize,
    /// Bytes of one dispatch slot.
    pub slot_bytes: u64,
    /// Header and signal words.
    pub control_bytes: u64,
    /// Dispatch slots of all lanes.
    pub dispatch_bytes: u64,
    /// Combine slots of all lanes, rank-reduced.
    pub combine_bytes: u64,
    /// What [`EpConfig::ordered`] adds.
    pub ordered_bytes: u64,
    /// What [`EpConfig::zero_copy`] adds.
    pub zero_copy_bytes: u64,
    /// The whole window of a rank. A GPU takes memory by 2 MiB at a time.
    pub window_bytes: u64,
    /// This rank's own memory beside the window; on a GPU device memory alone, without some 50 KB of pinned host memory.
    pub private_bytes: u64,
    /// Host memory that peers behind queues would take, if all others were, where [`Paths::queue`] permits them: what is written
    /// for them, taken with the first such peer. Pinned, on a GPU; so are the next two.
    pub image_bytes: u64,
    /// The queues themselves, taken for each such peer. What the wire `local` shares with peers of this host is no line of a
    /// plan: the buffers of a rank use it together, see `EPWIRE_RING_BYTES`.
    pub ring_bytes: u64,
    /// What such peers write, where the window is on a GPU and mapped peers alone write it: taken for each, its places.
    pub inbox_bytes: u64,
}

impl Plan {
    /// Checks the configuration for a group of `ranks` ranks and computes its plan. Errors name the field and the
    /// limit.
    pub fn new(config: &EpConfig, ranks: u32) -> Result<Self> {
        let plan = ffi::plan(&config.to_c(0, ranks))?;
        Ok(Self {
            ranks,
            local_experts: plan.local_experts,
            rows: plan.rows as usize,
            slot_bytes: plan.slot_bytes,
            control_bytes: plan.control_bytes,
            dispatch_bytes: plan.dispatch_bytes,
            combine_bytes: plan.combine_bytes,
            ordered_bytes: plan.ordered_bytes,
            zero_copy_bytes: plan.zero_copy_bytes,
            window_bytes: plan.window_bytes,
            private_bytes: plan.private_bytes,
            image_bytes: plan.image_bytes,
            ring_bytes: plan.ring_bytes,
            inbox_bytes: plan.inbox_bytes,
        })
    }

    /// What one place of the group takes of the window of every rank, whether a rank has taken it or not: what it costs to
    /// leave room for a group to grow. Outputs of dispatch have [`Plan::rows`] rows, `max_tokens` of them for each place.
    pub fn place_bytes(&self) -> u64 {
        self.window_bytes / u64::from(self.ranks)
    }
}

/// The window of a rank, by lines, in MiB.
impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "window {:.1} MiB: {} places, {:.1} MiB each, taken by a rank or not",
            mib(self.window_bytes),
            self.ranks,
            mib(self.place_bytes())
        )?;
        for (what, bytes) in [
            ("signal words and counts", self.control_bytes),
            ("dispatch slots", self.dispatch_bytes),
            ("combine slots", self.combine_bytes),
            ("combine slots of ordered sums", self.ordered_bytes),
            ("expert-major rows combined in place", self.zero_copy_bytes),
        ] {
            if bytes > 0 {
                writeln!(f, "  {:>10.1} MiB  {what}", mib(bytes))?;
            }
        }
        write!(f, "beside the window {:.1} MiB", mib(self.private_bytes))?;
        let queues = [
            ("images, all with the first of them", self.image_bytes),
            ("their queues", self.ring_bytes),
            ("what they write", self.inbox_bytes),
        ];
        if queues.iter().any(|&(_, bytes)| bytes > 0) {
            write!(f, "\nhost memory for peers behind queues, if all others are")?;
        }
        for (what, bytes) in queues {
            if bytes > 0 {
                write!(f, "\n  {:>10.1} MiB  {what}", mib(bytes))?;
            }
        }
        Ok(())
    }
}

/// The shape of the rows that a dispatch delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowShape {
    /// Payload bytes of one row, scales not included.
    pub payload_bytes: usize,
    /// Scales of one row.
    pub scale_count: usize,
    /// Bytes of one scale as it travels.
    pub scale_bytes: usize,
    /// Bytes of an expert-major payload output, `[local_experts, rows, payload]`.
    pub expert_rows_bytes: usize,
    /// Bytes of an expert-major scale output.
    pub expert_scales_bytes: usize,
    /// Bytes of a rank-major payload copy, `[rows, payload]`.
    pub rank_rows_bytes: usize,
    /// Bytes of a rank-major scale copy.
    pub rank_scales_bytes: usize,
}

impl RowShape {
    /// The shape that `payload` gives under `config` in a group of `ranks` ranks.
    pub fn new(config: &EpConfig, ranks: u32, payload: Payload) -> Result<Self> {
        let mut input = ffi::empty_input();
        payload.set(&mut input);
        let shape = ffi::row_shape(&config.to_c(0, ranks), &input)?;
        Ok(Self {
            payload_bytes: shape.payload_bytes as usize,
            scale_count: shape.scale_count as usize,
            scale_bytes: shape.scale_bytes as usize,
            expert_rows_bytes: shape.expert_rows_bytes as usize,
            expert_scales_bytes: shape.expert_scales_bytes as usize,
            rank_rows_bytes: shape.rank_rows_bytes as usize,
            rank_scales_bytes: shape.rank_scales_bytes as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_plan_of_eight_ranks_takes_less_than_64_mib() {
        let plan = Plan::new(&EpConfig::new(128, 7168, 256, 8), 8).unwrap();
        assert!(plan.window_bytes <= 64 << 20, "{} bytes", plan.window_bytes);
        let lines = plan.control_bytes
            + plan.dispatch_bytes
            + plan.combine_bytes
            + plan.ordered_bytes
            + plan.zero_copy_bytes;
        assert!(plan.window_bytes - lines < 4096);
    }

    #[test]
    fn every_limit_is_an_error_that_names_its_field() {
        let good = EpConfig::new(128, 1024, 64, 8);
        let cases: [(&str, u32, EpConfig); 13] = [
            ("ranks", 0, good.clone()),
            ("ranks", 1025, good.clone()),
            ("max_tokens", 4, EpConfig { max_tokens: 0, ..good.clone() }),
            ("max_tokens", 4, EpConfig { max_tokens: 65_537, ..good.clone() }),
            ("max_tokens", 4, EpConfig { max_tokens: 65_536, ordered: true, ..good.clone() }),
            ("hidden", 4, EpConfig { hidden: 12, ..good.clone() }),
            ("experts", 4, EpConfig { experts: 63, ..good.clone() }),
            ("topk", 4, EpConfig { topk: 33, ..good.clone() }),
            ("topk", 4, EpConfig { topk: 0, ..good.clone() }),
            ("lanes", 4, EpConfig { lanes: 3, ..good.clone() }),
            ("opaque_bytes", 4, EpConfig { opaque_bytes: (1 << 30) + 1, ..good.clone() }),
            ("sideband_bytes", 4, EpConfig { sideband_bytes: 65, ..good.clone() }),
            ("deadline_ns", 4, EpConfig { deadline: Duration::from_micros(1), ..good.clone() }),
        ];
        for (field, ranks, config) in cases {
            let error = Plan::new(&config, ranks).unwrap_err();
            let failure = error.failure().unwrap();
            assert!(failure.text.starts_with(field), "{field}: {error}");
            assert_eq!(failure.rank, None, "a plan is that of every rank: {error}");
        }
        assert!(Plan::new(&good, 4).is_ok());
        let widest = EpConfig { opaque_bytes: 1 << 30, ..good.clone() };
        assert!(Plan::new(&widest, 4).unwrap().slot_bytes > 1 << 30);
        let huge = EpConfig { max_tokens: 65_536, hidden: 1 << 24, ..EpConfig::new(1, 8, 1024, 32) };
        assert!(matches!(Plan::new(&huge, 1024), Err(crate::Error::Limit(_))));
    }

    #[test]
    fn a_plan_prints_what_room_to_grow_costs() {
        let plan = Plan::new(&EpConfig::new(128, 7168, 256, 8), 8).unwrap();
        let text = plan.to_string();
        let first = "window 56.3 MiB: 8 places, 7.0 MiB each, taken by a rank or not\n";
        assert!(text.starts_with(first) && text.contains("28.2 MiB  dispatch slots"), "{text}");
        assert!(!text.contains("ordered"), "{text}");
        assert!(!text.contains("queues"), "{text}");
        let queues = Paths { queue: true, ..Paths::default() };
        let text = Plan::new(&EpConfig { paths: queues, ..EpConfig::new(128, 7168, 256, 8) }, 8)
            .unwrap()
            .to_string();
        assert!(text.contains("for peers behind queues, if all others are\n"), "{text}");
        let larger = Plan::new(&EpConfig::new(128, 7168, 512, 8), 16).unwrap();
        let grown = larger.window_bytes - plan.window_bytes;
        assert!(grown.abs_diff(8 * plan.place_bytes()) < 1 << 16, "{grown}");
    }

    #[test]
    fn ranks_agree_on_the_kind_of_device_only() {
        let on = |device| EpConfig { device, sms: 7, ..EpConfig::new(4, 64, 4, 2) }.fields();
        assert_eq!(on(Device::Cuda(0)), on(Device::Cuda(3)));
        assert_ne!(on(Device::Cuda(0)), on(Device::Host));
    }

    #[test]
    fn paths_are_named_with_commas_between_them() {
        assert_eq!(Paths::parse("queue"), Ok(Paths { queue: true, ..Paths::NONE }));
        assert_eq!(Paths::parse("thread, shm,vmm,ipc"), Ok(Paths::default()));
        for wrong in ["", "queue,", "shared", "Queue"] {
            assert!(Paths::parse(wrong).unwrap_err().ends_with(
                "names no path: give some of thread, shm, vmm, ipc, queue, with commas between them"
            ));
        }
    }

    #[test]
    fn every_path_has_a_switch() {
        let none = Paths::NONE;
        let paths = |paths| EpConfig { paths, ..EpConfig::new(4, 64, 4, 2) }.to_c(0, 2).paths;
        assert_eq!(paths(none), sys::EPW_PATH_SELF);
        for (one, bit) in [
            (Paths { thread: true, ..none }, sys::EPW_PATH_THREAD),
            (Paths { shared_memory: true, ..none }, sys::EPW_PATH_SHM),
            (Paths { vmm: true, ..none }, sys::EPW_PATH_VMM),
            (Paths { ipc: true, ..none }, sys::EPW_PATH_IPC),
            (Paths { queue: true, ..none }, sys::EPW_PATH_QUEUE),
        ] {
            assert_eq!(paths(one), sys::EPW_PATH_SELF | bit);
        }
    }

    #[test]
    fn fp8_needs_whole_blocks() {
        let config = EpConfig::new(8, 192, 8, 2);
        let error = RowShape::new(&config, 2, Payload::Fp8 { scale: Fp8Scale::F32 }).unwrap_err();
        assert!(error.to_string().contains("multiple of 128"), "{error}");
        let shape =
            RowShape::new(&EpConfig { hidden: 640, ..config }, 2, Payload::Fp8 { scale: Fp8Scale::Ue8m0 })
                .unwrap();
        assert_eq!((shape.payload_bytes, shape.scale_count, shape.scale_bytes), (640, 5, 1));
        assert_eq!(shape.expert_scales_bytes, 4 * 16 * 8, "five exponents take two words");
    }
}
