//! The configuration of a prefill buffer, and the sizes that follow from it.

use crate::config::EpConfig;
use crate::error::Result;
use crate::{ffi, sys};

/// What a prefill buffer is made with: an [`EpConfig`], whose `max_tokens` is of one operation, and the size of the rings.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefillConfig {
    /// As of a decode buffer, with equal fields on all ranks. `ordered` and `zero_copy` are off: ordered combine needs nothing
    /// more here.
    pub ep: EpConfig,
    /// Slots of the ring from one rank to another, a row in each, equal on all ranks; 0, by default: 512, or fewer where
    /// `max_tokens` is less, or a window would pass 256 MiB, down to 16.
    pub ring_tokens: u32,
}

impl PrefillConfig {
    /// With rings of a size that the library chooses.
    pub fn new(ep: EpConfig) -> Self {
        Self { ep, ring_tokens: 0 }
    }

    pub(super) fn to_c(&self, rank: u32, ranks: u32) -> sys::epw_prefill_config {
        sys::epw_prefill_config {
            ring_tokens: self.ring_tokens,
            ep: self.ep.to_c(rank, ranks),
            ..ffi::empty_prefill_config()
        }
    }

    /// Those that must be equal on all ranks, by name.
    pub(super) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = self.ep.fields();
        fields.push(("ring_tokens".to_owned(), self.ring_tokens.to_string()));
        fields
    }
}

/// Sizes that follow from a [`PrefillConfig`], computed without allocating anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefillPlan {
    /// Ranks.
    pub ranks: u32,
    /// Experts of each.
    pub local_experts: u32,
    /// Slots of a ring, as chosen.
    pub ring_tokens: u32,
    /// So many tokens [`PrefillBuffer::dispatch_send_blocking`](super::PrefillBuffer::dispatch_send_blocking) may have, and rows of each source
    /// the sending half of a combine.
    pub split_tokens: u32,
    /// The same of an ordered combine, which sends several rows of a token.
    pub split_tokens_ordered: u32,
    /// A dispatched row in a ring.
    pub slot_bytes: u64,
    /// An answer in a ring.
    pub answer_bytes: u64,
    /// Header and signal words.
    pub control_bytes: u64,
    /// Rings of dispatched rows, of all lanes.
    pub dispatch_bytes: u64,
    /// Rings of answers, of all lanes.
    pub combine_bytes: u64,
    /// The whole window of a rank.
    pub window_bytes: u64,
    /// This rank's own memory beside the window.
    pub private_bytes: u64,
    /// A [`Routing`](super::Routing) with `max_tokens` tokens of this rank.
    pub routing_bytes: u64,
    /// What a routing takes more for each row that comes.
    pub routing_row_bytes: u64,
    /// Host memory that peers behind queues would take, if all others were, as in [`Plan`](crate::Plan).
    pub image_bytes: u64,
    /// The queues themselves.
    pub ring_bytes: u64,
}

impl PrefillPlan {
    /// Checks the configuration for `ranks` ranks and computes the sizes. Errors name the field and the limit.
    pub fn new(config: &PrefillConfig, ranks: u32) -> Result<Self> {
        let sizes = ffi::prefill_plan(&config.to_c(0, ranks))?;
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
        })
    }
}

/// The window of a rank, by lines, in MiB.
impl std::fmt::Display for PrefillPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        write!(f, "halves of up to {} tokens, ordered {}", self.split_tokens, self.split_tokens_ordered)
    }
}
