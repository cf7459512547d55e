//! The sizes that follow from a configuration.

use super::choices::Payload;
use super::ep_config::EpConfig;
use super::queues::{QueueMemory, write_queues};
use crate::error::Result;
use crate::{ffi, sys};

/// Sizes that follow from a configuration, computed without allocating anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// The whole window of a rank. A GPU allocates memory in units of 2 MiB.
    pub window_bytes: u64,
    /// This rank's own memory beside the window; on a GPU only device memory, without about 0.4 MB of pinned
    /// host memory.
    pub private_bytes: u64,
    /// Host memory for what is written for peers behind queues, if all other ranks are such peers and
    /// [`Paths::queue`](field@crate::Paths::queue) permits them; allocated with the first such peer. On a GPU it is
    /// pinned, or the GPU's memory as `EPWIRE_RINGS` says; so are the queues.
    pub image_bytes: u64,
    /// The queues themselves, allocated for each such peer. What the wire `local` shares with peers of this host is not
    /// part of a plan: the buffers of a rank use it together, see `EPWIRE_RING_BYTES`.
    pub ring_bytes: u64,
    /// Pinned memory for what such peers write if the window is on a GPU, where only mapped peers write it: allocated for
    /// each. 0 with `EPWIRE_RINGS=gpu`, where an adapter writes the window too; with `auto` it is allocated only if the
    /// adapter cannot.
    pub inbox_bytes: u64,
}

impl Plan {
    /// Checks the configuration for a group of `ranks` ranks and computes its plan. Errors name the field and the
    /// limit. Queues have at least the depth that `EPWIRE_QUEUE_DEPTH` asks for; a value of it or of `EPWIRE_RINGS` that
    /// nobody accepts is an error too.
    ///
    /// Neither `EPWIRE_PATHS` nor where the members are is known here: for several hosts, plan with
    /// `paths(Paths::default().queue(true))`, since buffers whose `paths` are the default get queues there. A buffer
    /// that exists says by [`EpBuffer::plan`](crate::EpBuffer::plan) what it has.
    pub fn new(config: &EpConfig, ranks: u32) -> Result<Self> {
        Self::with(config, ranks, QueueMemory::read()?)
    }

    pub(super) fn with(config: &EpConfig, ranks: u32, queues: QueueMemory) -> Result<Self> {
        let plan = ffi::plan(&sys::epw_config { queue_depth: queues.depth, ..config.to_c(0, ranks) })?;
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
            inbox_bytes: queues.inbox(plan.inbox_bytes),
        })
    }

    /// What one place of the group takes in the window of every rank, whether a rank has taken it or not: the cost of
    /// leaving room for a group to grow. Outputs of dispatch have [`Plan::rows`] rows, `max_tokens` of them for each
    /// place. 0 for a plan of no ranks, which [`Plan::new`] does not make.
    pub fn place_bytes(&self) -> u64 {
        self.window_bytes.checked_div(self.ranks.into()).unwrap_or(0)
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
        write_queues(f, self.image_bytes, self.ring_bytes, self.inbox_bytes)
    }
}

/// The shape of the rows that a dispatch delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RowShape {
    /// Payload bytes of one row, scales not included.
    pub payload_bytes: usize,
    /// Scales of one row.
    pub scale_count: usize,
    /// Bytes of one scale as it is sent.
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
    /// The shape of `payload` under `config` in a group of `ranks` ranks.
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

/// One line: `7168 bytes and 56 scales of 4 bytes; 58720256 bytes expert-major, 7340032 rank-major`, where the totals
/// include the scales.
impl std::fmt::Display for RowShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { payload_bytes, scale_count, scale_bytes, .. } = self;
        write!(f, "{payload_bytes} bytes")?;
        if *scale_count > 0 {
            write!(
                f,
                " and {scale_count} scales of {scale_bytes} byte{}",
                if *scale_bytes == 1 { "" } else { "s" }
            )?;
        }
        let expert_major = self.expert_rows_bytes.saturating_add(self.expert_scales_bytes);
        let rank_major = self.rank_rows_bytes.saturating_add(self.rank_scales_bytes);
        write!(f, "; {expert_major} bytes expert-major, {rank_major} rank-major")
    }
}
