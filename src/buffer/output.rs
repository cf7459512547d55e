//! The outputs of dispatch and combine: memory of the caller, of the host or of a GPU, checked against the plan before
//! a pointer leaves Rust.

use super::memory::{Host, List, Memory, Need, Place, Tensor, place};
use crate::config::{EpConfig, Layout, Plan, RowShape};
use crate::error::{Error, Failure, Result};
use crate::names::{names, setters};
use crate::{ffi, sys};

use super::input::Request;

/// The outputs of a dispatch in host memory; see [`GenericDispatchOutput`].
pub type DispatchOutput<'a> = GenericDispatchOutput<'a, Host>;

/// The output of a combine in host memory; see [`GenericCombineOutput`].
pub type CombineOutput<'a> = GenericCombineOutput<'a, Host>;

/// The order of scales in an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ScaleOrder {
    /// `[local_experts, scales, rows]`, as grouped GEMMs take them; UE8M0 packed four to an i32,
    /// `[local_experts, ceil(scales / 4), rows]`, zero-padded.
    #[default]
    ColumnMajor,
    /// `[local_experts, rows, scales]`, as they are sent.
    RowMajor,
}

names!(ScaleOrder, "an order of scales: column-major or row-major" { ColumnMajor = "column-major", RowMajor = "row-major" });

/// The outputs of a dispatch: in host memory ([`DispatchOutput`]) slices, in a GPU's
/// ([`cuda::DispatchOutput`](crate::cuda::DispatchOutput)) views of dense elements, for which signed integers are
/// accepted as well where unsigned ones of that size are named.
///
/// With `M` = [`Plan::rows`] and `E` local experts; rank-major has one list instead of `E`. Rows are ordered by source
/// rank, then by token. Memory beyond the counts stays as it was; on a GPU, in a degraded operation, it may hold
/// anything. Every output may be larger. Expert-major needs `rows` and `counts`, and refuses outputs that it would not
/// fill: `row_experts`, `row_weights` and `expert_rows`.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct GenericDispatchOutput<'a, M: Memory> {
    /// `[E, M, payload]`, or rank-major `[M, payload]` (if left out, read the rows in place), of any type.
    pub rows: Option<Tensor<'a, M>>,
    /// In `scale_order`, of any type.
    pub scales: Option<Tensor<'a, M>>,
    /// Order of `scales`.
    pub scale_order: ScaleOrder,
    /// `[E, M, sideband_bytes]`, or rank-major `[M, sideband_bytes]`.
    pub sideband: Option<List<'a, M, u8>>,
    /// Rows per local expert `[E]`.
    pub counts: Option<List<'a, M, u32>>,
    /// Rows per source rank `[ranks]`.
    pub source_counts: Option<List<'a, M, u32>>,
    /// `[E, ranks]` pairs: where each source rank's rows begin in the expert's list, and how many there are. In
    /// rank-major that list is the expert's in `expert_rows`.
    pub ranges: Option<List<'a, M, [u32; 2]>>,
    /// `[E, ranks]`: the same, packed as in DeepEP: the count in the lower 32 bits, the beginning in the upper.
    pub packed_ranges: Option<List<'a, M, u64>>,
    /// `[E, M]`, or rank-major `[M]`: the row's token index at its source.
    pub source_token: Option<List<'a, M, u32>>,
    /// Rank-major `[M, topk]` (the plan's top-k): local expert id, -1 if the expert is on another rank.
    pub row_experts: Option<List<'a, M, i32>>,
    /// Rank-major `[M, topk]`: weights, 0 where the expert id is -1.
    pub row_weights: Option<List<'a, M, f32>>,
    /// Rank-major `[E, M]`: the rows of each local expert, `counts[e]` of them.
    pub expert_rows: Option<List<'a, M, u32>>,
    /// `[E]`: the number of tokens of each local physical expert is added to this, for expert load balancing.
    pub expert_totals: Option<List<'a, M, u64>>,
    /// `[E]`: the same, modulo 2^32.
    pub expert_totals_i32: Option<List<'a, M, i32>>,
    /// `[ranks]`: the nanoseconds spent waiting for each source are added to this, to find the slow one. On a GPU,
    /// waits of less than about 15 us are not counted.
    pub wait_ns: Option<List<'a, M, u64>>,
}

setters!(impl['a, M: Memory] GenericDispatchOutput['a, M] {
    rows: Tensor<'a, M>,
    scales: Tensor<'a, M>,
    scale_order: ScaleOrder,
    sideband: List<'a, M, u8>,
    counts: List<'a, M, u32>,
    source_counts: List<'a, M, u32>,
    ranges: List<'a, M, [u32; 2]>,
    packed_ranges: List<'a, M, u64>,
    source_token: List<'a, M, u32>,
    row_experts: List<'a, M, i32>,
    row_weights: List<'a, M, f32>,
    expert_rows: List<'a, M, u32>,
    expert_totals: List<'a, M, u64>,
    expert_totals_i32: List<'a, M, i32>,
    wait_ns: List<'a, M, u64>,
});

impl<'a, M: Memory> GenericDispatchOutput<'a, M> {
    /// The two outputs that the expert-major layout needs; rank-major needs none, so that its outputs begin with
    /// `default()`.
    pub fn new(rows: Tensor<'a, M>, counts: List<'a, M, u32>) -> Self {
        Self::default().rows(rows).counts(counts)
    }
}

/// The outputs of a combine: in host memory ([`CombineOutput`]) or in a GPU's
/// ([`cuda::CombineOutput`](crate::cuda::CombineOutput)).
#[derive(Debug)]
#[non_exhaustive]
pub struct GenericCombineOutput<'a, M: Memory> {
    /// `[n, hidden]` of the combine type, aligned to 16 bytes. Tokens that are not routed become zeros.
    pub out: Tensor<'a, M>,
    /// `[n]` pairs: expert contributions that arrived, and that were expected (every routed id, also those of inactive
    /// ranks).
    pub contributions: Option<List<'a, M, [u16; 2]>>,
    /// `[ranks]`: the nanoseconds spent waiting for each peer are added to this, as in [`GenericDispatchOutput`].
    pub wait_ns: Option<List<'a, M, u64>>,
}

setters!(impl['a, M: Memory] GenericCombineOutput['a, M] {
    out: Tensor<'a, M>,
    contributions: List<'a, M, [u16; 2]>,
    wait_ns: List<'a, M, u64>,
});

impl<'a, M: Memory> GenericCombineOutput<'a, M> {
    /// Only the tokens.
    pub fn new(out: Tensor<'a, M>) -> Self {
        Self { out, contributions: None, wait_ns: None }
    }
}

impl<M: Memory> GenericDispatchOutput<'_, M> {
    /// Checks every size and type and returns the C view, for use at `site`.
    pub(crate) fn as_c(
        &mut self,
        rank: u32,
        config: &EpConfig,
        plan: &Plan,
        request: &Request,
        site: &M::Site,
    ) -> Result<sys::epw_dispatch_output> {
        let needs = Needs::new(config, plan, request)?;
        self.place(&needs, site).map_err(|text| Error::Invalid(Failure::new("dispatch", rank, text)))
    }

    fn place(&mut self, needs: &Needs, site: &M::Site) -> Result<sys::epw_dispatch_output, String> {
        let Needs { experts, ranks, entries, .. } = *needs;
        let mut output = ffi::empty_output();
        output.scale_order = u32::from(self.scale_order == ScaleOrder::RowMajor);
        place! {
            output of self, at site;
            rows: Need::Bytes(needs.row_bytes),
            scales: Need::Bytes(needs.scale_bytes),
            sideband: Need::of::<u8>(needs.sideband),
            counts: Need::of::<u32>(experts),
            source_counts: Need::of::<u32>(ranks),
            ranges: Need::of::<u32>(experts * ranks * 2),
            packed_ranges: Need::of::<u64>(experts * ranks),
            source_token: Need::of::<u32>(needs.source_token),
            row_experts: Need::of::<i32>(entries).only("rank-major", needs.by_rank),
            row_weights: Need::of::<f32>(entries).only("rank-major", needs.by_rank),
            expert_rows: Need::of::<u32>(needs.expert_rows).only("rank-major", needs.by_rank),
            expert_totals: Need::of::<u64>(experts),
            expert_totals_i32: Need::of::<i32>(experts),
            wait_ns: Need::of::<u64>(ranks),
        }
        Ok(output)
    }
}

impl<M: Memory> GenericCombineOutput<'_, M> {
    /// Checks every size and type and returns the C view, for use at `site`.
    pub(crate) fn as_c(
        &mut self,
        rank: u32,
        config: &EpConfig,
        plan: &Plan,
        request: &Request,
        site: &M::Site,
    ) -> Result<sys::epw_combine_output> {
        // A dispatch has accepted this number of tokens, so the product cannot overflow.
        let out = Need::Elements(config.combine_dtype.dtype(), request.tokens * config.hidden as usize);
        let placed = self.place(out, request.tokens, plan.ranks as usize, site);
        placed.map_err(|text| Error::Invalid(Failure::new("combine", rank, text)))
    }

    fn place(
        &mut self,
        out: Need,
        tokens: usize,
        ranks: usize,
        site: &M::Site,
    ) -> Result<sys::epw_combine_output, String> {
        let mut output = ffi::empty_combine_output();
        output.out = self.out.place("output.out", out, site)?.cast();
        place! {
            output of self, at site;
            contributions: Need::of::<u16>(tokens * 2),
            wait_ns: Need::of::<u64>(ranks),
        }
        Ok(output)
    }
}

/// The least sizes of a dispatch's outputs, in elements, or in bytes where stated.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// The layout is rank-major.
    by_rank: bool,
    row_bytes: usize,
    scale_bytes: usize,
    sideband: usize,
    /// Local experts.
    experts: usize,
    ranks: usize,
    source_token: usize,
    /// Of `row_experts` and `row_weights`.
    entries: usize,
    expert_rows: usize,
}

impl Needs {
    fn new(config: &EpConfig, plan: &Plan, request: &Request) -> Result<Self> {
        let shape = RowShape::new(config, plan.ranks, request.payload)?;
        let (experts, rows) = (plan.local_experts as usize, plan.rows);
        let (lists, row_bytes, scale_bytes) = match request.layout {
            Layout::ExpertMajor => (experts, shape.expert_rows_bytes, shape.expert_scales_bytes),
            Layout::RankMajor => (1, shape.rank_rows_bytes, shape.rank_scales_bytes),
        };
        Ok(Self {
            by_rank: request.layout == Layout::RankMajor,
            row_bytes,
            scale_bytes,
            // The caller's choice, which the C core has not checked yet: too large a value is refused there, or here
            // for lack of room.
            sideband: (lists * rows).saturating_mul(request.sideband_bytes),
            experts,
            ranks: plan.ranks as usize,
            source_token: lists * rows,
            entries: rows * config.topk as usize,
            expert_rows: experts * rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Payload;

    #[test]
    fn a_sideband_past_all_memory_is_too_much_and_no_panic() {
        let config = EpConfig { lanes: 1, ..EpConfig::new(65_536, 8192, 1 << 20, 1) };
        let plan = Plan::new(&config, 1).unwrap();
        let (payload, layout) = (Payload::SameAsInput, Layout::ExpertMajor);
        let request = Request { tokens: 0, topk: 1, payload, layout, sideband_bytes: u32::MAX as usize };
        assert_eq!(Needs::new(&config, &plan, &request).unwrap().sideband, usize::MAX);
    }
}
