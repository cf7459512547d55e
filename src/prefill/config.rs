//! The configuration of a prefill buffer, and the sizes that follow from it.

use std::fmt;

use crate::config::{EpConfig, QueueMemory, write_queues};
use crate::error::Result;
use crate::names::setters;
use crate::{ffi, sys};

/// The configuration of a prefill buffer: an [`EpConfig`], whose `max_tokens` applies to one operation, and the size of
/// the rings.
///
/// ```
/// use epwire::EpConfig;
/// use epwire::prefill::{PrefillConfig, PrefillPlan};
///
/// let config = PrefillConfig::new(EpConfig::new(8192, 7168, 256, 8));
/// let plan = PrefillPlan::new(&config, 8)?;
/// assert!(plan.window_bytes < 320 << 20);
/// println!("{plan}");
/// # Ok::<(), epwire::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default = "PrefillConfig::empty", deny_unknown_fields)
)]
#[non_exhaustive]
pub struct PrefillConfig {
    /// As for a decode buffer, equal on all ranks. `ordered` and `zero_copy` must be off: ordered combine needs no
    /// extra memory here.
    pub ep: EpConfig,
    /// Slots of the ring from one rank to another, one row each, equal on all ranks. 0, the default, means 512 on the
    /// host and 2048 on GPUs, but fewer if `max_tokens` is smaller, or if a window would exceed 256 MiB (then at least
    /// 16). From 1 to 65,537, with queues to 16,248.
    pub ring_tokens: u32,
}

impl PrefillConfig {
    /// A configuration with rings of a size that the library chooses.
    pub fn new(ep: EpConfig) -> Self {
        Self { ep, ring_tokens: 0 }
    }

    /// What `serde` takes for fields that a text leaves out.
    #[cfg(feature = "serde")]
    fn empty() -> Self {
        Self::new(EpConfig::empty())
    }

    pub(super) fn to_c(&self, rank: u32, ranks: u32) -> sys::epw_prefill_config {
        sys::epw_prefill_config {
            ring_tokens: self.ring_tokens,
            ep: self.ep.to_c(rank, ranks),
            ..ffi::empty_prefill_config()
        }
    }

    /// The fields that must be equal on all ranks, by name.
    pub(super) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = self.ep.fields();
        fields.push(("ring_tokens".to_owned(), self.ring_tokens.to_string()));
        fields
    }
}

setters!(PrefillConfig { ep: EpConfig, ring_tokens: u32 });

/// The line of its [`EpConfig`], then `, rings of 512 tokens` if their size is given.
impl fmt::Display for PrefillConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ep, ring_tokens } = self;
        write!(f, "{ep}")?;
        if *ring_tokens > 0 { write!(f, ", rings of {ring_tokens} tokens") } else { Ok(()) }
    }
}

/// Sizes that follow from a [`PrefillConfig`], computed without allocating anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PrefillPlan {
    /// Ranks.
    pub ranks: u32,
    /// Experts of each rank.
    pub local_experts: u32,
    /// Slots of a ring, as chosen.
    pub ring_tokens: u32,
    /// How many tokens [`PrefillBuffer::dispatch_send_blocking`](super::PrefillBuffer::dispatch_send_blocking) may
    /// have, and how many rows of each source the sending half of a combine.
    pub split_tokens: u32,
    /// The same for an ordered combine, which sends several rows per token.
    pub split_tokens_ordered: u32,
    /// Size of a dispatched row in a ring.
    pub slot_bytes: u64,
    /// Size of an answer in a ring.
    pub answer_bytes: u64,
    /// Header and signal words.
    pub control_bytes: u64,
    /// Rings of dispatched rows, for all lanes.
    pub dispatch_bytes: u64,
    /// Rings of answers, for all lanes.
    pub combine_bytes: u64,
    /// The whole window of a rank.
    pub window_bytes: u64,
    /// This rank's own memory outside the window. On a GPU it is device memory with counts for each block of a kernel:
    /// for as many as [`EpConfig::sms`](crate::EpConfig::sms) permits or, if that is 0, as 1024 SMs would have, more than
    /// a buffer then allocates.
    pub private_bytes: u64,
    /// A [`Routing`](super::Routing) for `max_tokens` tokens of this rank.
    pub routing_bytes: u64,
    /// Additional memory of a routing for each received row.
    pub routing_row_bytes: u64,
    /// Memory for what is written for peers behind queues, if all other ranks are such peers, as in
    /// [`Plan`](crate::Plan).
    pub image_bytes: u64,
    /// The queues themselves, as in [`Plan`](crate::Plan).
    pub ring_bytes: u64,
    /// On a GPU: pinned host memory for what these peers write, as in [`Plan`](crate::Plan).
    pub inbox_bytes: u64,
}

impl PrefillPlan {
    /// Checks the configuration for `ranks` ranks and computes the sizes. Errors name the field and the limit. Queues
    /// have at least the depth that `EPWIRE_QUEUE_DEPTH` asks for; a value of it or of `EPWIRE_RINGS` that nobody accepts
    /// is an error too.
    pub fn new(config: &PrefillConfig, ranks: u32) -> Result<Self> {
        Self::with(config, ranks, QueueMemory::read()?)
    }

    fn with(config: &PrefillConfig, ranks: u32, queues: QueueMemory) -> Result<Self> {
        let mut config = config.to_c(0, ranks);
        config.ep.queue_depth = queues.depth;
        let sizes = ffi::prefill_plan(&config)?;
        Ok(Self {
            ranks,
            local_experts: sizes.local_experts,
            ring_tokens: sizes.ring_tokens,
            split_tokens: sizes.split_tokens,
            split_tokens_ordered: sizes.split_tokens_ordered,
            slot_bytes: sizes.slot_bytes,
            answer_bytes: sizes.answer_bytes,
            control_bytes: sizes.control_bytes,
            dispatch_bytes: sizes.dispatch_bytes,
            combine_bytes: sizes.combine_bytes,
            window_bytes: sizes.window_bytes,
            private_bytes: sizes.private_bytes,
            routing_bytes: sizes.routing_bytes,
            routing_row_bytes: sizes.routing_row_bytes,
            image_bytes: sizes.image_bytes,
            ring_bytes: sizes.ring_bytes,
            inbox_bytes: queues.inbox(sizes.inbox_bytes),
        })
    }
}

/// The window of a rank, and what peers behind queues take, by lines, in MiB.
impl fmt::Display for PrefillPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(f, "window {:.1} MiB: rings of {} tokens", mib(self.window_bytes), self.ring_tokens)?;
        for (what, bytes) in [
            ("signal words", self.control_bytes),
            ("rings of dispatched rows", self.dispatch_bytes),
            ("rings of answers", self.combine_bytes),
        ] {
            writeln!(f, "  {:>10.1} MiB  {what}", mib(bytes))?;
        }
        writeln!(f, "beside the window {:.1} MiB", mib(self.private_bytes))?;
        writeln!(
            f,
            "a routing of all tokens {:.1} MiB, and {} bytes for each row that comes",
            mib(self.routing_bytes),
            self.routing_row_bytes
        )?;
        write!(f, "halves of up to {} tokens, ordered {}", self.split_tokens, self.split_tokens_ordered)?;
        write_queues(f, self.image_bytes, self.ring_bytes, self.inbox_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Paths;

    fn config(queue: bool) -> PrefillConfig {
        PrefillConfig::new(EpConfig::new(64, 64, 8, 2).paths(Paths { queue, ..Paths::default() }))
    }

    fn plan(config: &PrefillConfig, depth: u32) -> PrefillPlan {
        PrefillPlan::with(config, 4, QueueMemory { depth, ..QueueMemory::default() }).unwrap()
    }

    #[test]
    fn a_plan_prints_what_peers_behind_queues_take() {
        let mapped = plan(&config(false), 0).to_string();
        assert!(mapped.starts_with("window ") && mapped.ends_with("ordered 32"), "{mapped}");
        let queues = plan(&config(true), 0).to_string();
        let added = queues.strip_prefix(&mapped).unwrap();
        assert!(
            added.starts_with("\nmemory for peers behind queues, if all others are such peers\n"),
            "{added}"
        );
        assert!(added.ends_with("MiB  their queues"), "the host has no inbox: {added}");
    }

    #[test]
    fn a_chosen_ring_has_at_least_16_slots_if_there_are_as_many_tokens() {
        for (max_tokens, slots) in [(400, 16), (4096, 16), (16, 17), (15, 16), (8, 9)] {
            let config = PrefillConfig::new(EpConfig::new(max_tokens, 7168, 256, 8).lanes(2));
            let plan = PrefillPlan::with(&config, 256, QueueMemory::default()).unwrap();
            assert_eq!(plan.ring_tokens, slots, "{max_tokens} tokens");
        }
    }

    #[test]
    fn a_plan_counts_queues_as_deep_as_is_asked() {
        let (needed, deep) = (plan(&config(true), 16), plan(&config(true), 32768));
        assert_eq!(needed, plan(&config(true), 0), "operations need more than that");
        assert_eq!(PrefillPlan { ring_bytes: needed.ring_bytes, ..deep }, needed);
        // Two lanes have a queue to each of three peers.
        assert!(deep.ring_bytes >= 6 * 64 * 32768 && deep.ring_bytes > needed.ring_bytes);
    }
}
