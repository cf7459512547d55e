//! The outputs of a prefill dispatch and combine: memory of the caller, of the host or of a GPU, checked before a
//! pointer leaves Rust.

use std::fmt;
use std::str::FromStr;

use crate::buffer::{Dispatch, Host, List, Memory, Need, Place, Request, ScaleOrder, Tensor, place};
use crate::config::{EpConfig, Payload, RowShape};
use crate::error::{Error, Failure, Result};
use crate::names::{ParseNameError, setters};
use crate::tensor::View;
use crate::{ffi, sys};

use super::buffer::Inner;

/// Where the rows received in host memory go; see [`GenericPrefillOutput`].
pub type PrefillOutput<'a> = GenericPrefillOutput<'a, Host>;

/// Where combined tokens go in host memory; see [`GenericPrefillCombineOutput`].
pub type PrefillCombineOutput<'a> = GenericPrefillCombineOutput<'a, Host>;

/// How received rows are laid out. Rows of an expert or source are ordered by source rank, then by token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PrefillLayout {
    /// Rows of each local expert together, in the order of experts, each expert's first row at a multiple of
    /// `alignment` rows, as contiguous grouped GEMMs need them. A token has one row for each of its experts here.
    Packed {
        /// Number of rows, at least 1.
        alignment: u32,
    },
    /// Rows by source, one source after the other, one row per token, with its local expert ids and weights.
    Dense,
    /// `[local_experts, capacity]`; rows beyond an expert's capacity have no place.
    ExpertMajor,
    /// As dense, but source `s` begins at row `s * max_tokens`; needs a capacity of `ranks * max_tokens`.
    RankMajor,
}

impl Default for PrefillLayout {
    fn default() -> Self {
        Self::Packed { alignment: 1 }
    }
}

/// `packed:128` with the alignment, `dense`, `expert-major` or `rank-major`.
impl fmt::Display for PrefillLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Packed { alignment } => return f.pad(&format!("packed:{alignment}")),
            Self::Dense => "dense",
            Self::ExpertMajor => "expert-major",
            Self::RankMajor => "rank-major",
        })
    }
}

/// Reads what is printed; `packed` alone is `packed:1`.
impl FromStr for PrefillLayout {
    type Err = ParseNameError;

    fn from_str(text: &str) -> std::result::Result<Self, ParseNameError> {
        let unknown = || {
            let expected = "a layout: packed, packed: and an alignment, dense, expert-major or rank-major";
            ParseNameError::new(text, expected)
        };
        Ok(match text {
            "packed" => Self::default(),
            "dense" => Self::Dense,
            "expert-major" => Self::ExpertMajor,
            "rank-major" => Self::RankMajor,
            _ => {
                let alignment = text.strip_prefix("packed:").and_then(|alignment| alignment.parse().ok());
                Self::Packed { alignment: alignment.filter(|rows| *rows > 0).ok_or_else(unknown)? }
            }
        })
    }
}

impl PrefillLayout {
    /// Layout and alignment for C.
    pub(super) fn to_c(self) -> (u32, u32) {
        match self {
            Self::Packed { alignment } => (sys::EPW_PACKED, alignment),
            Self::Dense => (sys::EPW_DENSE, 0),
            Self::ExpertMajor => (sys::EPW_EXPERT_MAJOR, 0),
            Self::RankMajor => (sys::EPW_RANK_MAJOR, 0),
        }
    }

    /// Whether each row belongs to one expert.
    pub(super) fn is_by_expert(self) -> bool {
        matches!(self, Self::Packed { .. } | Self::ExpertMajor)
    }

    /// Number of places for a capacity.
    pub(super) fn places(self, capacity: usize, local_experts: usize) -> usize {
        if self == Self::ExpertMajor { capacity.saturating_mul(local_experts) } else { capacity }
    }
}

/// What later combines need to know of a dispatch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    pub(crate) tokens: usize,
    pub(crate) topk: usize,
    pub(crate) layout: PrefillLayout,
    pub(crate) places: usize,
}

impl Shape {
    pub(crate) fn of_input<T: View>(self, input: &Dispatch<'_, T>) -> Self {
        let Request { tokens, topk, .. } = input.request();
        Self { tokens, topk, ..self }
    }

    pub(crate) fn of_output<M: Memory>(self, inner: &Inner, output: &GenericPrefillOutput<'_, M>) -> Self {
        let places = output.layout.places(output.capacity, inner.plan.local_experts as usize);
        Self { layout: output.layout, places, ..self }
    }
}

/// Where received rows go: in host memory ([`PrefillOutput`]) slices, in a GPU's
/// ([`cuda::PrefillOutput`](crate::cuda::PrefillOutput)) views of dense elements, for which signed integers are accepted
/// as well where unsigned ones of that size are named.
///
/// `C` places, `E` local experts; every list may be longer. In places without a row (padding, places after the last row,
/// rows of lost sources) indices are -1 and weights 0. An output that the layout does not fill is refused.
///
/// If the capacity is too small, the last rows in order have no place and are left out: the outcome then has
/// [`Cause::Overflow`](crate::Cause::Overflow), and combine adds nothing for them.
#[derive(Debug)]
#[non_exhaustive]
pub struct GenericPrefillOutput<'a, M: Memory> {
    /// How rows are laid out; each rank chooses its own.
    pub layout: PrefillLayout,
    /// Number of places for rows, `C`; expert-major: for each expert.
    pub capacity: usize,
    /// Payloads `[C, payload]`, of any type, aligned to 16 bytes.
    pub rows: Option<Tensor<'a, M>>,
    /// Row-major `[C, K]`; column-major `[K, stride]` with columns of `C` scales rounded up to 16 bytes each,
    /// expert-major one of these for each expert. [`Fp8Scale::Ue8m0`](crate::Fp8Scale::Ue8m0): i32 with four exponents
    /// each.
    pub scales: Option<Tensor<'a, M>>,
    /// Order of `scales`.
    pub scale_order: ScaleOrder,
    /// `[C, sideband_bytes]`.
    pub sideband: Option<List<'a, M, u8>>,
    /// Packed: zeroes the padding between the last row of an expert and the first of the next, and all places of lost
    /// sources; not their scales.
    pub zero_padding: bool,
    /// `[E]` places of each expert, including those of lost sources.
    pub counts: Option<List<'a, M, u32>>,
    /// By expert: `[E]` first place of each expert.
    pub offsets: Option<List<'a, M, u32>>,
    /// By expert: `[E]` rows of each expert that have no place. By source: `[ranks]` rows of each source, 0 in
    /// rank-major.
    pub overflow: Option<List<'a, M, u32>>,
    /// `[ranks]` rows received from each source; 0 for a lost one.
    pub source_counts: Option<List<'a, M, u32>>,
    /// By source: `[ranks]` first place of each source.
    pub source_offsets: Option<List<'a, M, u32>>,
    /// By expert: `[C]` local expert.
    pub row_expert: Option<List<'a, M, i32>>,
    /// `[C]` source rank.
    pub row_source: Option<List<'a, M, i32>>,
    /// `[C]` index of the token at its source.
    pub row_token: Option<List<'a, M, i32>>,
    /// By expert: `[C]` index in the token's top-k.
    pub row_position: Option<List<'a, M, i32>>,
    /// By expert: `[C]` routing weight.
    pub row_weight: Option<List<'a, M, f32>>,
    /// By source: `[C, topk]` (the plan's top-k) local expert ids, -1 where the expert lives on another rank.
    pub row_experts: Option<List<'a, M, i32>>,
    /// By source: `[C, topk]` weights, 0 where the id is -1.
    pub row_weights: Option<List<'a, M, f32>>,
    /// By expert: `[E, ranks]`, packed as in DeepEP: in the lower 32 bits the number of rows of the expert from each
    /// source, 0 for a lost one; in the upper 32 bits the index of the first of them among the expert's rows.
    pub ranges: Option<List<'a, M, u64>>,
    /// `[E]`: the number of rows of each local expert is added to this.
    pub expert_totals: Option<List<'a, M, u64>>,
    /// `[E]`: the same, modulo 2^32.
    pub expert_totals_i32: Option<List<'a, M, i32>>,
    /// `[ranks]`: the nanoseconds spent waiting for each source are added to this.
    pub wait_ns: Option<List<'a, M, u64>>,
}

setters!(impl['a, M: Memory] GenericPrefillOutput['a, M] {
    layout: PrefillLayout,
    capacity: usize,
    rows: Tensor<'a, M>,
    scales: Tensor<'a, M>,
    scale_order: ScaleOrder,
    sideband: List<'a, M, u8>,
    zero_padding: bool,
    counts: List<'a, M, u32>,
    offsets: List<'a, M, u32>,
    overflow: List<'a, M, u32>,
    source_counts: List<'a, M, u32>,
    source_offsets: List<'a, M, u32>,
    row_expert: List<'a, M, i32>,
    row_source: List<'a, M, i32>,
    row_token: List<'a, M, i32>,
    row_position: List<'a, M, i32>,
    row_weight: List<'a, M, f32>,
    row_experts: List<'a, M, i32>,
    row_weights: List<'a, M, f32>,
    ranges: List<'a, M, u64>,
    expert_totals: List<'a, M, u64>,
    expert_totals_i32: List<'a, M, i32>,
    wait_ns: List<'a, M, u64>,
});

impl<M: Memory> GenericPrefillOutput<'_, M> {
    /// Places for rows in this layout, and no output yet.
    pub fn new(layout: PrefillLayout, capacity: usize) -> Self {
        Self {
            layout,
            capacity,
            rows: None,
            scales: None,
            scale_order: ScaleOrder::default(),
            sideband: None,
            zero_padding: false,
            counts: None,
            offsets: None,
            overflow: None,
            source_counts: None,
            source_offsets: None,
            row_expert: None,
            row_source: None,
            row_token: None,
            row_position: None,
            row_weight: None,
            row_experts: None,
            row_weights: None,
            ranges: None,
            expert_totals: None,
            expert_totals_i32: None,
            wait_ns: None,
        }
    }
}

/// Where combined tokens go: in host memory ([`PrefillCombineOutput`]) or in a GPU's
/// ([`cuda::PrefillCombineOutput`](crate::cuda::PrefillCombineOutput)).
#[derive(Debug)]
#[non_exhaustive]
pub struct GenericPrefillCombineOutput<'a, M: Memory> {
    /// `[n, width]` of the combine type, aligned to 16 bytes. Tokens routed nowhere become zeros, plus bias.
    pub out: Tensor<'a, M>,
    /// `[n]` pairs: expert contributions arrived, and expected.
    pub contributions: Option<List<'a, M, [u16; 2]>>,
    /// `[n, ceil(ranks / 32)]`: bit `r % 32` of word `r / 32` is set if the sum lacks the answer of rank `r`.
    pub lacks: Option<List<'a, M, u32>>,
    /// `[n, topk]` of the dispatch: the element of [`PrefillCombine::values`](super::PrefillCombine::values) for each
    /// entry, 0 where none arrived.
    pub values: Option<List<'a, M, f32>>,
    /// `[ranks]`: the nanoseconds spent waiting for each peer are added to this.
    pub wait_ns: Option<List<'a, M, u64>>,
}

setters!(impl['a, M: Memory] GenericPrefillCombineOutput['a, M] {
    out: Tensor<'a, M>,
    contributions: List<'a, M, [u16; 2]>,
    lacks: List<'a, M, u32>,
    values: List<'a, M, f32>,
    wait_ns: List<'a, M, u64>,
});

impl<'a, M: Memory> GenericPrefillCombineOutput<'a, M> {
    /// Only the tokens.
    pub fn new(out: Tensor<'a, M>) -> Self {
        Self { out, contributions: None, lacks: None, values: None, wait_ns: None }
    }
}

/// Size in bytes of the scales of `places` rows, in lists of `capacity`.
fn scale_bytes(
    shape: &RowShape,
    payload: Payload,
    order: ScaleOrder,
    capacity: usize,
    lists: usize,
) -> usize {
    let packed = matches!(payload, Payload::Fp8 { scale: crate::config::Fp8Scale::Ue8m0 });
    let (count, bytes) =
        if packed { (shape.scale_count.div_ceil(4), 4) } else { (shape.scale_count, shape.scale_bytes) };
    let column = capacity.saturating_mul(bytes);
    let column =
        if order == ScaleOrder::ColumnMajor { column.div_ceil(16).saturating_mul(16) } else { column };
    column.saturating_mul(count).saturating_mul(lists)
}

/// What a row has: of one token, since prefill has no window with room for all rows that might fail to fit.
fn row_shape(config: &EpConfig, ranks: u32, payload: Payload) -> Result<RowShape> {
    RowShape::new(&EpConfig { max_tokens: 1, ..config.clone() }, ranks, payload)
}

impl<M: Memory> GenericPrefillOutput<'_, M> {
    /// Checks every size and returns the C view, for use at `site`.
    pub(crate) fn as_c(
        &mut self,
        inner: &Inner,
        payload: Payload,
        sideband_bytes: usize,
        site: &M::Site,
    ) -> Result<sys::epw_prefill_output> {
        let shape = row_shape(&inner.config.ep, inner.plan.ranks, payload)?;
        let placed = self.place(inner, &shape, payload, sideband_bytes, site);
        placed.map_err(|text| Error::Invalid(Failure::new("dispatch", inner.rank, text)))
    }

    fn place(
        &mut self,
        inner: &Inner,
        shape: &RowShape,
        payload: Payload,
        sideband_bytes: usize,
        site: &M::Site,
    ) -> Result<sys::epw_prefill_output, String> {
        let (experts, ranks) = (inner.plan.local_experts as usize, inner.plan.ranks as usize);
        let places = self.layout.places(self.capacity, experts);
        let lists = if self.layout == PrefillLayout::ExpertMajor { experts } else { 1 };
        let entries = places.saturating_mul(inner.config.ep.topk as usize);
        let scales = scale_bytes(shape, payload, self.scale_order, self.capacity, lists);
        let by_expert = self.layout.is_by_expert();
        let of_expert = |need: Need| need.only("packed or expert-major", by_expert);
        let of_source = |need: Need| need.only("dense or rank-major", !by_expert);
        let mut output = ffi::empty_prefill_output();
        (output.layout, output.alignment) = self.layout.to_c();
        output.capacity = self.capacity as u64;
        output.scale_order = u32::from(self.scale_order == ScaleOrder::RowMajor);
        output.zero_padding = self.zero_padding.into();
        place! {
            output of self, at site;
            rows: Need::Bytes(places.saturating_mul(shape.payload_bytes)),
            scales: Need::Bytes(scales),
            sideband: Need::of::<u8>(places.saturating_mul(sideband_bytes)),
            counts: Need::of::<u32>(experts),
            offsets: of_expert(Need::of::<u32>(experts)),
            overflow: Need::of::<u32>(if by_expert { experts } else { ranks }),
            source_counts: Need::of::<u32>(ranks),
            source_offsets: of_source(Need::of::<u32>(ranks)),
            row_expert: of_expert(Need::of::<i32>(places)),
            row_source: Need::of::<i32>(places),
            row_token: Need::of::<i32>(places),
            row_position: of_expert(Need::of::<i32>(places)),
            row_weight: of_expert(Need::of::<f32>(places)),
            row_experts: of_source(Need::of::<i32>(entries)),
            row_weights: of_source(Need::of::<f32>(entries)),
            ranges: of_expert(Need::of::<u64>(experts * ranks)),
            expert_totals: Need::of::<u64>(experts),
            expert_totals_i32: Need::of::<i32>(experts),
            wait_ns: Need::of::<u64>(ranks),
        }
        Ok(output)
    }
}

impl<M: Memory> GenericPrefillCombineOutput<'_, M> {
    /// Checks every size and returns the C view, for `tokens` tokens with `topk` experts and `width` channels, for use
    /// at `site`.
    pub(crate) fn as_c(
        &mut self,
        inner: &Inner,
        tokens_topk_width: (usize, usize, usize),
        site: &M::Site,
    ) -> Result<sys::epw_prefill_combine_output> {
        let placed = self.place(inner, tokens_topk_width, site);
        placed.map_err(|text| Error::Invalid(Failure::new("combine", inner.rank, text)))
    }

    fn place(
        &mut self,
        inner: &Inner,
        (tokens, topk, width): (usize, usize, usize),
        site: &M::Site,
    ) -> Result<sys::epw_prefill_combine_output, String> {
        let ranks = inner.plan.ranks as usize;
        let out = Need::Elements(inner.config.ep.combine_dtype.dtype(), tokens.saturating_mul(width));
        let mut output = ffi::empty_prefill_combine_output();
        output.out = self.out.place("output.out", out, site)?.cast();
        place! {
            output of self, at site;
            contributions: Need::of::<u16>(tokens * 2),
            lacks: Need::of::<u32>(tokens * ranks.div_ceil(32)),
            values: Need::of::<f32>(tokens * topk),
            wait_ns: Need::of::<u64>(ranks),
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Plan;

    #[test]
    fn rows_may_be_more_than_a_window_of_decode_could_hold() {
        let config = EpConfig::new(65536, 1 << 24, 16, 1);
        assert!(Plan::new(&config, 16).is_err());
        assert_eq!(row_shape(&config, 16, Payload::SameAsInput).unwrap().payload_bytes, 2 << 24);
    }

    #[test]
    fn a_layout_is_read_as_it_is_printed() {
        let packed = |alignment| PrefillLayout::Packed { alignment };
        let others = [PrefillLayout::Dense, PrefillLayout::ExpertMajor, PrefillLayout::RankMajor];
        for layout in [packed(1), packed(128)].into_iter().chain(others) {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        assert_eq!("packed".parse(), Ok(packed(1)));
        for wrong in ["packed:0", "packed:", "packed:-1", "Dense"] {
            let error = wrong.parse::<PrefillLayout>().unwrap_err().to_string();
            assert!(error.ends_with(
                "is not a layout: packed, packed: and an alignment, dense, expert-major or rank-major"
            ));
        }
    }
}
