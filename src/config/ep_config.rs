//! What a buffer must be able to do.

use std::fmt;
use std::time::Duration;

use super::choices::{Device, Float16};
use super::path::Paths;
use crate::names::setters;
use crate::sys;

/// What a buffer must be able to do. Everything but `threads`, `paths`, `sms`, `serial_lanes` and the ordinal in `device`
/// must be equal on all ranks.
///
/// ```
/// # use epwire::{EpConfig, Plan};
/// let config = EpConfig::new(128, 7168, 256, 8);
/// let plan = Plan::new(&config, 8)?;
/// assert!(plan.window_bytes <= 64 << 20);
/// # Ok::<(), epwire::Error>(())
/// ```
///
/// Setters adjust it: `EpConfig::new(128, 7168, 256, 8).lanes(1).ordered(true)`. Fields that are missing when feature
/// `serde` reads one have the values of `EpConfig::new(0, 0, 0, 0)`, whose zeros [`Plan::new`](crate::Plan::new)
/// refuses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default = "EpConfig::empty", deny_unknown_fields)
)]
#[non_exhaustive]
pub struct EpConfig {
    /// The most tokens per rank and operation, up to 65,536; in decode up to 16,254 with queues.
    pub max_tokens: u32,
    /// Channels of a token, a multiple of 8 (of 128 for FP8), up to 2^24.
    pub hidden: u32,
    /// Physical experts in all, a multiple of the ranks: fill up with replicas, or with ids to which nothing is routed.
    /// Expert `e` lives on rank `e / (experts / ranks)`.
    pub experts: u32,
    /// The most experts per token, up to 32.
    pub topk: u32,
    /// Steps in flight, 1 or 2: each has a lane from its dispatch to the end of its combine.
    pub lanes: u32,
    /// Type of tokens.
    pub dtype: Float16,
    /// Type of expert outputs and of combine's result.
    pub combine_dtype: Float16,
    /// The most payload plus scale bytes of an opaque row, up to 2^30; 0: no opaque payloads.
    pub opaque_bytes: u32,
    /// The most opaque bytes per token that travel with the row, up to 64.
    pub sideband_bytes: u32,
    /// Also reserve what [`CombineMode::Ordered`](crate::CombineMode::Ordered) needs.
    pub ordered: bool,
    /// Also reserve an expert-major area for [`Dispatched::combine_rows_mut`](crate::Dispatched::combine_rows_mut).
    pub zero_copy: bool,
    /// Threads that move data for this rank, including the caller; 0: chosen by the library.
    pub threads: u32,
    /// The paths by which peers may be reached; by default all, but queues only where the members of the group are on several
    /// hosts. `EPWIRE_PATHS` overrides it.
    pub paths: Paths,
    /// Where tokens, outputs and the window are; the host by default. All ranks use the host, or all use GPUs.
    pub device: Device,
    /// The most SMs that the kernels of all lanes use together, with one thread block on each; 0: all SMs of the GPU
    /// that no other buffer or communicator of this process has reserved. All kernels that wait for peers must be
    /// resident at once: otherwise a kernel that waits can keep another one from starting, and the peers that need that
    /// other one wait until the deadline. So the SMs are reserved for this buffer until it is dropped, and a buffer that
    /// does not fit is refused with [`Error::Limit`](crate::Error::Limit), which names the holders of SMs. What other processes run on the GPU is
    /// not limited by this. No effect on the host.
    pub sms: u32,
    /// Kernels of the two lanes never run at the same time, as when both lanes are used on one stream: then each kernel
    /// may take all of `sms`. Otherwise a lane of decode has half of them, and lanes of prefill share them as the guide's
    /// page on prefill says. The library puts eager calls of both lanes one behind the other, whatever their streams; the
    /// order in which graphs run is up to the program: kernels of two lanes that run at the same time may keep each other
    /// off the GPU until the deadline. No effect on the host.
    pub serial_lanes: bool,
    /// The limit of every wait for a peer, 1 ms to 1 day. Ranks that wait for each other send each other beacons, which
    /// lengthen a wait to at most 4 deadlines. A rank that peers wait for must call its next operation, or the other
    /// half of the current one, within one deadline of its last call: set this to more than the longest time that a
    /// rank computes between two calls.
    pub deadline: Duration,
}

setters!(EpConfig {
    max_tokens: u32,
    hidden: u32,
    experts: u32,
    topk: u32,
    lanes: u32,
    dtype: Float16,
    combine_dtype: Float16,
    opaque_bytes: u32,
    sideband_bytes: u32,
    ordered: bool,
    zero_copy: bool,
    threads: u32,
    paths: Paths,
    device: Device,
    sms: u32,
    serial_lanes: bool,
    deadline: Duration,
});

impl EpConfig {
    /// Two lanes of bf16, a deadline of ten seconds, and no optional features.
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
            serial_lanes: false,
            deadline: Duration::from_secs(10),
        }
    }

    #[cfg(feature = "serde")]
    pub(crate) fn empty() -> Self {
        Self::new(0, 0, 0, 0)
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
            queue_depth: 0,
            deadline_ns: self.deadline.as_nanos().try_into().unwrap_or(u64::MAX),
            fabric: std::ptr::null_mut(), // whoever creates a buffer sets it
            serial_lanes: self.serial_lanes.into(),
            reserved: 0,
        }
    }

    /// The fields that must be equal on all ranks, by name: the ranks compare them before they connect.
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

/// One line: `128 tokens of hidden 7168, top-8 of 256 experts, bf16, 2 lanes, on host, ...`. Of the other fields only those
/// that are not as [`EpConfig::new`] sets them.
impl fmt::Display for EpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            max_tokens,
            hidden,
            experts,
            topk,
            lanes,
            dtype,
            combine_dtype,
            device,
            paths,
            deadline,
            ..
        } = self;
        write!(f, "{max_tokens} tokens of hidden {hidden}, top-{topk} of {experts} experts, {dtype}")?;
        if combine_dtype != dtype {
            write!(f, ", combined in {combine_dtype}")?;
        }
        write!(f, ", {lanes} lane{}", if *lanes == 1 { "" } else { "s" })?;
        for (bytes, what) in [(self.opaque_bytes, "opaque rows"), (self.sideband_bytes, "sidebands")] {
            if bytes > 0 {
                write!(f, ", {what} of up to {bytes} bytes")?;
            }
        }
        for (on, what) in
            [(self.ordered, "ordered"), (self.zero_copy, "zero-copy"), (self.serial_lanes, "serial lanes")]
        {
            if on {
                write!(f, ", {what}")?;
            }
        }
        for (count, what) in [(self.threads, "threads"), (self.sms, "SMs")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        write!(f, ", on {device}, paths {paths}, deadline {deadline:?}")
    }
}
