//! The sizes that follow from a configuration.

use super::choices::Payload;
use super::ep_config::EpConfig;
use crate::error::{Error, Failure, Result};
use crate::{env, ffi, sys};

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
    /// This rank's own memory beside the window; on a GPU only device memory, without about 50 KB of pinned host
    /// memory.
    pub private_bytes: u64,
    /// Host memory for what is written for peers behind queues, if all other ranks are such peers and
    /// [`Paths::queue`](field@crate::Paths::queue) permits them; allocated with the first such peer. On a GPU it is
    /// pinned; so are the next two.
    pub image_bytes: u64,
    /// The queues themselves, allocated for each such peer. What the wire `local` shares with peers of this host is not
    /// part of a plan: the buffers of a rank use it together, see `EPWIRE_RING_BYTES`.
    pub ring_bytes: u64,
    /// What such peers write if the window is on a GPU, where only mapped peers write it: allocated for each. With
    /// `EPWIRE_RINGS=gpu` an adapter writes it too, and none of this is allocated.
    pub inbox_bytes: u64,
}

impl Plan {
    /// Checks the configuration for a group of `ranks` ranks and computes its plan. Errors name the field and the
    /// limit. The depth of queues is the one that `EPWIRE_QUEUE_DEPTH` asks for.
    pub fn new(config: &EpConfig, ranks: u32) -> Result<Self> {
        let failure = |text| Failure { operation: "plan".into(), rank: None, peer: None, text };
        let depth = env::queue_depth().map_err(|text| Error::Invalid(failure(text)))?;
        Self::with_depth(config, ranks, depth)
    }

    /// The same with queues of at least this many entries; 0: as many as operations need.
    pub(super) fn with_depth(config: &EpConfig, ranks: u32, depth: u32) -> Result<Self> {
        let plan = ffi::plan(&sys::epw_config { queue_depth: depth, ..config.to_c(0, ranks) })?;
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

    /// What one place of the group takes in the window of every rank, whether a rank has taken it or not: the cost of
    /// leaving room for a group to grow. Outputs of dispatch have [`Plan::rows`] rows, `max_tokens` of them for each
    /// place.
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
        write_queues(f, self.image_bytes, self.ring_bytes, self.inbox_bytes)
    }
}

/// The lines of a plan about peers behind queues; none if there are no queues.
pub(crate) fn write_queues(
    f: &mut std::fmt::Formatter<'_>,
    images: u64,
    queues: u64,
    inbox: u64,
) -> std::fmt::Result {
    if [images, queues, inbox] == [0; 3] {
        return Ok(());
    }
    write!(f, "\nhost memory for peers behind queues, if all others are such peers")?;
    for (what, bytes) in [
        ("images, all allocated with the first of them", images),
        ("their queues", queues),
        ("what they write", inbox),
    ] {
        if bytes > 0 {
            write!(f, "\n  {:>10.1} MiB  {what}", bytes as f64 / f64::from(1 << 20))?;
        }
    }
    Ok(())
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
        let expert_major = self.expert_rows_bytes + self.expert_scales_bytes;
        let rank_major = self.rank_rows_bytes + self.rank_scales_bytes;
        write!(f, "; {expert_major} bytes expert-major, {rank_major} rank-major")
    }
}
