//! Where kernels write what arrives: views of device memory, checked against the plan before an address leaves Rust.

use std::ffi::c_void;

use super::TensorMut;
use super::view::Origin;
use crate::buffer::{Needs, Request, ScaleOrder};
use crate::config::{EpConfig, Plan};
use crate::error::{Error, Failure, Result};
use crate::tensor::DType;
use crate::{ffi, sys};

/// An output of either operation, and the call of the C core that fills it later than its sending half.
pub(super) trait Output {
    /// The C view.
    type C;
    /// The name of that call.
    const RECEIVE: &'static str;

    /// What was given, by name.
    fn origins(&self) -> impl Iterator<Item = (&'static str, Option<Origin>)>;

    /// Checks every size and type and gives the C view.
    fn to_c(&self, rank: u32, config: &EpConfig, plan: &Plan, request: &Request) -> Result<Self::C>;

    /// # Safety
    /// As for `ffi::Buffer::dispatch`; `stream` is one of the buffer's GPU.
    unsafe fn receive(
        ffi: &ffi::Buffer,
        handle: sys::epw_handle,
        output: Self::C,
        stream: *mut c_void,
    ) -> Result<()>;
}

/// Where received rows go. With `M` = [`Plan::rows`] and `E` local experts; rank-major has one list instead of `E`. Rows are
/// ordered by source rank, then by token. Memory beyond the counts is left as it was, or, of a degraded operation, may hold
/// anything. Every output may be larger. Expert-major needs `rows` and `counts`, and refuses what it would not fill:
/// `row_experts`, `row_weights` and `expert_rows`.
///
/// Where unsigned integers are named, signed ones of that size do as well.
#[derive(Debug, Default)]
pub struct DispatchOutput<'a> {
    /// `[E, M, payload]`, or rank-major `[M, payload]` (without: read the rows in place), of any type.
    pub rows: Option<TensorMut<'a>>,
    /// In `scale_order`, of any type.
    pub scales: Option<TensorMut<'a>>,
    /// Order of `scales`.
    pub scale_order: ScaleOrder,
    /// U8 `[E, M, sideband_bytes]`, or rank-major `[M, sideband_bytes]`.
    pub sideband: Option<TensorMut<'a>>,
    /// U32: rows per local expert `[E]`.
    pub counts: Option<TensorMut<'a>>,
    /// U32: rows per source rank `[ranks]`.
    pub source_counts: Option<TensorMut<'a>>,
    /// U32 `[E, ranks, 2]`: where each source rank's rows begin in the expert's list, and how many there are. Rank-major, that
    /// list is the expert's in `expert_rows`.
    pub ranges: Option<TensorMut<'a>>,
    /// U32 `[E, M]`, or rank-major `[M]`: the row's token index at its source.
    pub source_token: Option<TensorMut<'a>>,
    /// I32, rank-major `[M, topk]` (the plan's top-k): local expert id, -1 where the entry lives elsewhere.
    pub row_experts: Option<TensorMut<'a>>,
    /// F32, rank-major `[M, topk]`: weights, 0 where the expert id is -1.
    pub row_weights: Option<TensorMut<'a>>,
    /// U32, rank-major `[E, M]`: the rows of each local expert, `counts[e]` of them.
    pub expert_rows: Option<TensorMut<'a>>,
    /// U64 `[E]`: adds the tokens of each local physical expert, for expert load balancing.
    pub expert_totals: Option<TensorMut<'a>>,
    /// U64 `[ranks]`: adds the nanoseconds spent waiting for each source, to find the slow one; waits of less than some 15 us
    /// count as none.
    pub wait_ns: Option<TensorMut<'a>>,
}

const COUNTS: &[DType] = &[DType::U32, DType::I32];
const SUMS: &[DType] = &[DType::U64, DType::I64];

impl<'a> DispatchOutput<'a> {
    /// What expert-major needs.
    pub fn new(rows: TensorMut<'a>, counts: TensorMut<'a>) -> Self {
        Self { rows: Some(rows), counts: Some(counts), ..Self::default() }
    }

    fn views(&self) -> [(&'static str, &Option<TensorMut<'a>>); 12] {
        [
            ("output.rows", &self.rows),
            ("output.scales", &self.scales),
            ("output.sideband", &self.sideband),
            ("output.counts", &self.counts),
            ("output.source_counts", &self.source_counts),
            ("output.ranges", &self.ranges),
            ("output.source_token", &self.source_token),
            ("output.row_experts", &self.row_experts),
            ("output.row_weights", &self.row_weights),
            ("output.expert_rows", &self.expert_rows),
            ("output.expert_totals", &self.expert_totals),
            ("output.wait_ns", &self.wait_ns),
        ]
    }
}

impl Output for DispatchOutput<'_> {
    type C = sys::epw_dispatch_output;
    const RECEIVE: &'static str = "dispatch_receive";

    fn origins(&self) -> impl Iterator<Item = (&'static str, Option<Origin>)> {
        self.views().into_iter().filter_map(|(name, view)| Some((name, view.as_ref()?.origin)))
    }

    fn to_c(&self, rank: u32, config: &EpConfig, plan: &Plan, request: &Request) -> Result<Self::C> {
        let invalid = |text: String| Error::Invalid(Failure::new("dispatch", rank, text));
        let needs = Needs::new(config, plan, request)?;
        for (name, view, bytes) in
            [("output.rows", &self.rows, needs.row_bytes), ("output.scales", &self.scales, needs.scale_bytes)]
        {
            if let Some(have) = view.as_ref().map(TensorMut::bytes)
                && have < bytes
            {
                return Err(invalid(format!("{name} has {have} bytes, the plan needs {bytes}")));
            }
        }
        let place = |name: &str, view: &Option<TensorMut<'_>>, types, need| {
            view.as_ref()
                .map_or(Ok(std::ptr::null_mut()), |view| view.place(name, types, need))
                .map_err(invalid)
        };
        let raw = |view: &Option<TensorMut<'_>>| view.as_ref().map_or(std::ptr::null_mut(), |view| view.ptr);

        let Needs { experts, ranks, entries, .. } = needs;
        let mut output = ffi::empty_output();
        output.scale_order = u32::from(self.scale_order == ScaleOrder::RowMajor);
        output.rows = raw(&self.rows).cast();
        output.scales = raw(&self.scales).cast();
        output.sideband = place("output.sideband", &self.sideband, &[DType::U8], needs.sideband)?.cast();
        output.counts = place("output.counts", &self.counts, COUNTS, experts)?.cast();
        output.source_counts = place("output.source_counts", &self.source_counts, COUNTS, ranks)?.cast();
        output.ranges = place("output.ranges", &self.ranges, COUNTS, experts * ranks * 2)?.cast();
        output.source_token =
            place("output.source_token", &self.source_token, COUNTS, needs.source_token)?.cast();
        output.row_experts = place("output.row_experts", &self.row_experts, &[DType::I32], entries)?.cast();
        output.row_weights = place("output.row_weights", &self.row_weights, &[DType::F32], entries)?.cast();
        output.expert_rows =
            place("output.expert_rows", &self.expert_rows, COUNTS, needs.expert_rows)?.cast();
        output.expert_totals = place("output.expert_totals", &self.expert_totals, SUMS, experts)?.cast();
        output.wait_ns = place("output.wait_ns", &self.wait_ns, SUMS, ranks)?.cast();
        Ok(output)
    }

    unsafe fn receive(
        ffi: &ffi::Buffer,
        handle: sys::epw_handle,
        mut output: Self::C,
        stream: *mut c_void,
    ) -> Result<()> {
        output.stream = stream;
        // SAFETY: by this function's contract.
        unsafe { ffi.dispatch_receive(handle, &output, None) }.map(drop)
    }
}

/// Where combined tokens go.
#[derive(Debug)]
pub struct CombineOutput<'a> {
    /// `[n, hidden]` of the combine type. Tokens routed nowhere become zeros.
    pub out: TensorMut<'a>,
    /// U16 `[n, 2]`: expert contributions arrived, and expected (every routed id, those of inactive ranks too).
    pub contributions: Option<TensorMut<'a>>,
    /// U64 `[ranks]`: adds the nanoseconds spent waiting for each peer, as [`DispatchOutput::wait_ns`].
    pub wait_ns: Option<TensorMut<'a>>,
}

impl<'a> CombineOutput<'a> {
    /// Only the tokens.
    pub fn new(out: TensorMut<'a>) -> Self {
        Self { out, contributions: None, wait_ns: None }
    }
}

impl Output for CombineOutput<'_> {
    type C = sys::epw_combine_output;
    const RECEIVE: &'static str = "combine_receive";

    fn origins(&self) -> impl Iterator<Item = (&'static str, Option<Origin>)> {
        let optional = [
            ("output.contributions", self.contributions.as_ref()),
            ("output.wait_ns", self.wait_ns.as_ref()),
        ];
        let given = optional.into_iter().filter_map(|(name, view)| Some((name, view?.origin)));
        [("output.out", self.out.origin)].into_iter().chain(given)
    }

    fn to_c(&self, rank: u32, config: &EpConfig, plan: &Plan, request: &Request) -> Result<Self::C> {
        let invalid = |text: String| Error::Invalid(Failure::new("combine", rank, text));
        let place = |name: &str, view: &Option<TensorMut<'_>>, types: &[DType], need| {
            view.as_ref()
                .map_or(Ok(std::ptr::null_mut()), |view| view.place(name, types, need))
                .map_err(invalid)
        };
        // A dispatch took as many tokens: the product can not wrap.
        let need = request.tokens * config.hidden as usize;
        let mut output = ffi::empty_combine_output();
        output.out =
            self.out.place("output.out", &[config.combine_dtype.dtype()], need).map_err(invalid)?.cast();
        output.contributions =
            place("output.contributions", &self.contributions, &[DType::U16], request.tokens * 2)?.cast();
        output.wait_ns = place("output.wait_ns", &self.wait_ns, SUMS, plan.ranks as usize)?.cast();
        Ok(output)
    }

    unsafe fn receive(
        ffi: &ffi::Buffer,
        handle: sys::epw_handle,
        mut output: Self::C,
        stream: *mut c_void,
    ) -> Result<()> {
        output.stream = stream;
        // SAFETY: by this function's contract.
        unsafe { ffi.combine_receive(handle, &output, None) }.map(drop)
    }
}
