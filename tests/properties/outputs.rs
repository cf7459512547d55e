//! All outputs of a dispatch, in memory filled with a pattern: the reference fills in a copy, and both must then be
//! equal to the last byte, so that memory beyond the counts is seen to be unchanged.

use epwire::{DispatchOutput, HostBuffer, Layout, RowShape, ScaleOrder, TensorMut};

use crate::case::{Case, Op, Part, SOURCE_COUNTS};

const PATTERN: u8 = 0xa5;
const PATTERN_32: u32 = 0xa5a5_a5a5;
const PATTERN_64: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// `None`: not requested.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) row_major_scales: bool,
    pub(crate) rows: Option<HostBuffer<u8>>,
    pub(crate) scales: Option<HostBuffer<u8>>,
    pub(crate) sideband: Option<Vec<u8>>,
    pub(crate) counts: Option<Vec<u32>>,
    pub(crate) source_counts: Option<Vec<u32>>,
    pub(crate) ranges: Option<Vec<[u32; 2]>>,
    pub(crate) packed_ranges: Option<Vec<u64>>,
    pub(crate) source_token: Option<Vec<u32>>,
    pub(crate) row_experts: Option<Vec<i32>>,
    pub(crate) row_weights: Option<Vec<f32>>,
    pub(crate) expert_rows: Option<Vec<u32>>,
    pub(crate) expert_totals: Option<Vec<u64>>,
    pub(crate) expert_totals_i32: Option<Vec<i32>>,
    pub(crate) wait_ns: Option<Vec<u64>>,
}

fn patterned(len: usize) -> HostBuffer<u8> {
    let mut buffer = HostBuffer::zeroed(len);
    buffer.fill(PATTERN);
    buffer
}

impl Outputs {
    /// The outputs that `part` requests, none of them written yet. Slices are larger than needed by `part.outputs % 3`.
    pub(crate) fn blank(case: &Case, op: &Op, part: &Part) -> Self {
        let shape = RowShape::new(&case.config, case.ranks as u32, op.payload).expect("a planned payload");
        let (experts, ranks, rows) = (case.local_experts(), case.ranks, case.rows());
        let expert_major = part.layout == Layout::ExpertMajor;
        let (lists, row_bytes, scale_bytes) = if expert_major {
            (experts, shape.expert_rows_bytes, shape.expert_scales_bytes)
        } else {
            (1, shape.rank_rows_bytes, shape.rank_scales_bytes)
        };
        let (entries, slack) = (rows * case.config.topk as usize, (part.outputs % 3) as usize);
        let wanted = |bit: u32| part.outputs >> bit & 1 == 1;
        let words = |want: bool, len: usize| want.then(|| vec![PATTERN_32; len + slack]);
        Self {
            row_major_scales: part.scales_row_major,
            rows: (expert_major || wanted(8)).then(|| patterned(row_bytes + slack)),
            scales: wanted(9).then(|| patterned(scale_bytes + slack)),
            sideband: wanted(10).then(|| vec![PATTERN; lists * rows * op.sideband + slack]),
            counts: words(expert_major || wanted(11), experts),
            source_counts: words(part.outputs & SOURCE_COUNTS != 0, ranks),
            ranges: wanted(13).then(|| vec![[PATTERN_32; 2]; experts * ranks + slack]),
            packed_ranges: wanted(20).then(|| vec![PATTERN_64; experts * ranks + slack]),
            source_token: words(wanted(14), lists * rows),
            row_experts: (!expert_major && wanted(15)).then(|| vec![-7; entries + slack]),
            row_weights: (!expert_major && wanted(16)).then(|| vec![-7.0; entries + slack]),
            expert_rows: words(!expert_major && wanted(17), experts * rows),
            expert_totals: wanted(18).then(|| vec![1 << 40; experts + slack]),
            // Some additions go beyond the end of the type.
            expert_totals_i32: wanted(21).then(|| vec![i32::MAX - 1; experts + slack]),
            wait_ns: wanted(19).then(|| vec![1 << 40; ranks + slack]),
        }
    }

    pub(crate) fn as_output(&mut self) -> DispatchOutput<'_> {
        let mut output = DispatchOutput::default();
        output.rows = self.rows.as_deref_mut().map(TensorMut::new);
        output.scales = self.scales.as_deref_mut().map(TensorMut::new);
        output.scale_order =
            if self.row_major_scales { ScaleOrder::RowMajor } else { ScaleOrder::ColumnMajor };
        output.sideband = self.sideband.as_deref_mut();
        output.counts = self.counts.as_deref_mut();
        output.source_counts = self.source_counts.as_deref_mut();
        output.ranges = self.ranges.as_deref_mut();
        output.packed_ranges = self.packed_ranges.as_deref_mut();
        output.source_token = self.source_token.as_deref_mut();
        output.row_experts = self.row_experts.as_deref_mut();
        output.row_weights = self.row_weights.as_deref_mut();
        output.expert_rows = self.expert_rows.as_deref_mut();
        output.expert_totals = self.expert_totals.as_deref_mut();
        output.expert_totals_i32 = self.expert_totals_i32.as_deref_mut();
        output.wait_ns = self.wait_ns.as_deref_mut();
        output
    }

    /// Fails with the name of the output and the first position at which it differs from `expected`.
    pub(crate) fn assert_equal(&self, expected: &Self) {
        same("rows", self.rows.as_deref(), expected.rows.as_deref());
        same("scales", self.scales.as_deref(), expected.scales.as_deref());
        same("sideband", self.sideband.as_deref(), expected.sideband.as_deref());
        same("counts", self.counts.as_deref(), expected.counts.as_deref());
        same("source_counts", self.source_counts.as_deref(), expected.source_counts.as_deref());
        same("ranges", self.ranges.as_deref(), expected.ranges.as_deref());
        same("packed_ranges", self.packed_ranges.as_deref(), expected.packed_ranges.as_deref());
        same("source_token", self.source_token.as_deref(), expected.source_token.as_deref());
        same("row_experts", self.row_experts.as_deref(), expected.row_experts.as_deref());
        let bits = |weights: &Option<Vec<f32>>| -> Option<Vec<u32>> {
            weights.as_ref().map(|w| w.iter().map(|x| x.to_bits()).collect())
        };
        let (have, want) = (bits(&self.row_weights), bits(&expected.row_weights));
        same("row_weights", have.as_deref(), want.as_deref());
        same("expert_rows", self.expert_rows.as_deref(), expected.expert_rows.as_deref());
        same("expert_totals", self.expert_totals.as_deref(), expected.expert_totals.as_deref());
        same("expert_totals_i32", self.expert_totals_i32.as_deref(), expected.expert_totals_i32.as_deref());
        // Times cannot be predicted, but they must be added to the former values.
        let waited = |w: &Vec<u64>| w.iter().all(|ns| (1 << 40..1 << 41).contains(ns));
        assert!(self.wait_ns.as_ref().is_none_or(waited), "wait_ns: {:?}", self.wait_ns);
    }
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(name: &str, have: Option<&[T]>, want: Option<&[T]>) {
    let (Some(have), Some(want)) = (have, want) else { return };
    if have == want {
        return;
    }
    let at = have.iter().zip(want).position(|(a, b)| a != b);
    match at {
        Some(at) => panic!("{name}[{at}] of {} is {:?}, must be {:?}", have.len(), have[at], want[at]),
        None => panic!("{name} has {} elements, must have {}", have.len(), want.len()),
    }
}
