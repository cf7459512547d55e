//! What goes into dispatch and combine and what comes out: builders over borrowed memory, checked against the plan before
//! a pointer leaves Rust.

use std::marker::PhantomData;
use std::time::Duration;

use crate::config::{CombineMode, EpConfig, Layout, Payload, Plan, RowShape};
use crate::error::{Error, Failure, Result};
use crate::tensor::{DType, HostBuffer, TensorMut, TensorRef, View};
use crate::{cuda, ffi, sys};

/// What a rank sends: tokens, where they go, and how.
///
/// All ranks give the same payload, sideband size, lane and presence of weights to the same operation.
#[derive(Debug, Clone)]
pub struct Dispatch<'a, T = TensorRef<'a>> {
    x: T,
    topk_idx: T,
    topk_weights: Option<T>,
    /// With the bytes per token.
    sideband: Option<(T, u32)>,
    scales: Option<(T, bool)>,
    payload: Payload,
    layout: Layout,
    lane: Option<u32>,
    deadline: Option<Duration>,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Dispatch<'a> {
    /// `bytes_per_token` opaque bytes of each token, `[n, bytes_per_token]`, that travel with its row.
    #[must_use]
    pub fn sideband(self, bytes: &'a [u8], bytes_per_token: u32) -> Self {
        Self { sideband: Some((TensorRef::new(bytes, 1), bytes_per_token)), ..self }
    }
}

impl<'a> Dispatch<'a, cuda::TensorRef<'a>> {
    /// Opaque bytes of each token, `[n, bytes_per_token]` of U8, dense, that travel with its row.
    #[must_use]
    pub fn sideband(self, bytes: cuda::TensorRef<'a>) -> Self {
        let per_token = u32::try_from(bytes.cols()).unwrap_or(u32::MAX);
        Self { sideband: Some((bytes, per_token)), ..self }
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = (&'static str, &cuda::TensorRef<'a>)> {
        let optional = [
            ("topk_weights", self.topk_weights.as_ref()),
            ("sideband", self.sideband.as_ref().map(|(bytes, _)| bytes)),
            ("scales", self.scales.as_ref().map(|(scales, _)| scales)),
        ];
        let given = optional.into_iter().filter_map(|(name, view)| Some((name, view?)));
        [("x", &self.x), ("topk_idx", &self.topk_idx)].into_iter().chain(given)
    }
}

impl<T: View> Dispatch<'_, T> {
    /// Tokens `x [n, hidden]` of the configured 16-bit type (opaque payloads: `[n, row_bytes]` as bytes) and their experts
    /// `topk_idx [n, k]`, i32, u32 or i64, dense; -1 or the unsigned maximum: not routed.
    pub fn new(x: T, topk_idx: T) -> Self {
        Self {
            x,
            topk_idx,
            topk_weights: None,
            sideband: None,
            scales: None,
            payload: Payload::default(),
            layout: Layout::default(),
            lane: None,
            deadline: None,
            lifetime: PhantomData,
        }
    }

    /// Routing weights `[n, k]` f32, dense. Rank-reduced combine needs them here.
    #[must_use]
    pub fn weights(self, topk_weights: T) -> Self {
        Self { topk_weights: Some(topk_weights), ..self }
    }

    /// What travels; the input's own values by default.
    #[must_use]
    pub fn payload(self, payload: Payload) -> Self {
        Self { payload, ..self }
    }

    /// How this rank wants what it receives; expert-major by default.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Scales of opaque rows, `[n, scale_count]`; elements have the payload's `scale_bytes`. Other payloads refuse them.
    #[must_use]
    pub fn scales(self, scales: T) -> Self {
        Self { scales: Some((scales, false)), ..self }
    }

    /// Scales of opaque rows stored by column, `[scale_count, n]`.
    #[must_use]
    pub fn scales_by_column(self, scales: T) -> Self {
        Self { scales: Some((scales, true)), ..self }
    }

    /// The lane; lanes in turn by default. All ranks use the same lane for the same operation.
    #[must_use]
    pub fn lane(self, lane: u32) -> Self {
        Self { lane: Some(lane), ..self }
    }

    /// A longer deadline than the buffer's, 1 day at most.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    pub(crate) fn deadline_or(&self, buffers: Duration) -> Duration {
        self.deadline.unwrap_or(buffers)
    }

    pub(super) fn tokens(&self) -> usize {
        self.x.matrix().rows
    }

    pub(crate) fn request(&self) -> Request {
        Request {
            tokens: self.tokens(),
            topk: self.topk_idx.matrix().cols,
            payload: self.payload,
            layout: self.layout,
            sideband_bytes: self.sideband.as_ref().map_or(0, |(_, bytes)| *bytes as usize),
        }
    }

    /// Checks every size and gives the C view, which borrows from `self`.
    pub(crate) fn to_c(&self, rank: u32, config: &EpConfig) -> Result<sys::epw_dispatch_input> {
        let invalid = |text: String| Error::Invalid(Failure::new("dispatch", rank, text));
        let (x, topk_idx) = (self.x.matrix(), self.topk_idx.matrix());
        let (n, k) = (x.rows, topk_idx.cols);
        let u32_of = |name: &str, value: usize| {
            u32::try_from(value).map_err(|_| invalid(format!("{name} is {value}, does not fit 32 bits")))
        };

        let mut input = ffi::empty_input();
        set_payload(&mut input, self.payload);
        let (want_type, want_cols) = match self.payload {
            Payload::Opaque { row_bytes, .. } => (DType::U8, row_bytes),
            _ => (config.dtype.dtype(), config.hidden),
        };
        if x.dtype != want_type || x.cols != want_cols as usize {
            return Err(invalid(format!(
                "x is [{n}, {}] of {:?}, must be [n, {want_cols}] of {want_type:?}",
                x.cols, x.dtype
            )));
        }
        input.idx_type = match topk_idx.dtype {
            DType::I32 => sys::EPW_I32,
            DType::U32 => sys::EPW_U32,
            DType::I64 => sys::EPW_I64,
            other => return Err(invalid(format!("topk_idx is {other:?}, must be I32, U32 or I64"))),
        };
        if topk_idx.rows != n || !topk_idx.is_dense() {
            return Err(invalid(format!(
                "topk_idx has {} rows for {n} tokens, or is not dense",
                topk_idx.rows
            )));
        }
        if let Some(weights) = &self.topk_weights {
            let weights = weights.matrix();
            if weights.dtype != DType::F32 || weights.rows != n || weights.cols != k || !weights.is_dense() {
                return Err(invalid(format!(
                    "topk_weights is [{}, {}] of {:?}, must be a dense [{n}, {k}] of F32",
                    weights.rows, weights.cols, weights.dtype
                )));
            }
            input.topk_weights = weights.ptr.cast();
        }
        if let Some((bytes, per_token)) = &self.sideband {
            let (bytes, per_token) = (bytes.matrix(), *per_token);
            let have = bytes.rows.saturating_mul(bytes.cols);
            if n.checked_mul(per_token as usize) != Some(have) {
                return Err(invalid(format!("sideband has {have} bytes for {n} tokens of {per_token} each")));
            }
            if bytes.dtype != DType::U8 || !bytes.is_dense() {
                return Err(invalid(format!(
                    "sideband is of {:?} or not dense, must be dense U8",
                    bytes.dtype
                )));
            }
            if per_token > 0 {
                input.sideband = bytes.ptr.cast();
            }
            input.sideband_bytes = per_token;
        }
        self.set_scales(&mut input).map_err(invalid)?;
        input.tokens = u32_of("tokens", n)?;
        input.topk = u32_of("topk", k)?;
        input.x = x.ptr.cast();
        input.x_stride = x.row_stride as u64;
        input.topk_idx = topk_idx.ptr.cast();
        input.layout = layout_to_c(self.layout);
        input.lane = match self.lane {
            None => -1,
            Some(lane) => i32::try_from(lane).unwrap_or(i32::MAX),
        };
        input.deadline_ns = nanos(self.deadline);
        Ok(input)
    }

    /// Scales are given where the payload has some, in its shape, and nowhere else.
    fn set_scales(&self, input: &mut sys::epw_dispatch_input) -> Result<(), String> {
        let n = self.tokens();
        let (count, bytes) = match (self.payload, &self.scales) {
            (Payload::Opaque { scale_count, scale_bytes, .. }, _) => {
                (scale_count as usize, scale_bytes as usize)
            }
            (_, None) => return Ok(()),
            (payload, Some(_)) => {
                return Err(format!("scales are given, which {payload:?} does not take: leave them out"));
            }
        };
        let Some((scales, by_column)) = &self.scales else {
            return match count == 0 || n == 0 {
                true => Ok(()),
                false => Err("the payload has scales, give them with Dispatch::scales".into()),
            };
        };
        let scales = scales.matrix();
        // An empty matrix has no shape worth comparing.
        if n == 0 || (count == 0 && scales.rows.min(scales.cols) == 0) {
            return Ok(());
        }
        if count == 0 {
            return Err(format!("scales are given, which {:?} does not take: leave them out", self.payload));
        }
        let want = if *by_column { (count, n) } else { (n, count) };
        if (scales.rows, scales.cols) != want || scales.dtype.bytes() != bytes {
            return Err(format!(
                "scales is [{}, {}] of {} bytes each, must be [{}, {}] of {bytes}",
                scales.rows,
                scales.cols,
                scales.dtype.bytes(),
                want.0,
                want.1
            ));
        }
        input.scales = scales.ptr.cast();
        let (row, element) = (scales.row_stride as u64, bytes as u64);
        (input.scale_row_stride, input.scale_col_stride) =
            if *by_column { (element, row) } else { (row, element) };
        Ok(())
    }
}

/// What a dispatch asked for, remembered for its receiving half and its combine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) tokens: usize,
    pub(crate) topk: usize,
    pub(crate) payload: Payload,
    pub(crate) layout: Layout,
    pub(crate) sideband_bytes: usize,
}

pub(crate) fn set_payload(input: &mut sys::epw_dispatch_input, payload: Payload) {
    input.payload = payload.to_c();
    if let Payload::Opaque { row_bytes, scale_count, scale_bytes } = payload {
        (input.opaque_row_bytes, input.scale_count, input.scale_bytes) =
            (row_bytes, scale_count, scale_bytes);
    }
}

fn layout_to_c(layout: Layout) -> u32 {
    match layout {
        Layout::ExpertMajor => sys::EPW_EXPERT_MAJOR,
        Layout::RankMajor => sys::EPW_RANK_MAJOR,
    }
}

fn nanos(deadline: Option<Duration>) -> u64 {
    deadline.map_or(0, |d| d.as_nanos().try_into().unwrap_or(u64::MAX))
}

/// The order of scales in an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScaleOrder {
    /// `[local_experts, scales, rows]`, as grouped GEMMs take them; UE8M0 packed four to an i32,
    /// `[local_experts, ceil(scales / 4), rows]`, zero-padded.
    #[default]
    ColumnMajor,
    /// `[local_experts, rows, scales]`, as they travel.
    RowMajor,
}

/// Where received rows go. With `M` = [`Plan::rows`] and `E` local experts; rank-major has one list instead of `E`. Rows are
/// ordered by source rank, then by token. Memory beyond the counts is left as it was. Every slice may be larger. Expert-major needs
/// `rows` and `counts`, and refuses what it would not fill: `row_experts`, `row_weights` and `expert_rows`.
#[derive(Debug, Default)]
pub struct DispatchOutput<'a> {
    /// `[E, M, payload]`, or rank-major `[M, payload]` (without: read the rows in place).
    pub rows: Option<TensorMut<'a>>,
    /// In `scale_order`.
    pub scales: Option<TensorMut<'a>>,
    /// Order of `scales`.
    pub scale_order: ScaleOrder,
    /// `[E, M, sideband_bytes]`, or rank-major `[M, sideband_bytes]`.
    pub sideband: Option<&'a mut [u8]>,
    /// Rows per local expert `[E]`.
    pub counts: Option<&'a mut [u32]>,
    /// Rows per source rank `[ranks]`.
    pub source_counts: Option<&'a mut [u32]>,
    /// `[E, ranks]`: where each source rank's rows begin in the expert's list, and how many there are. Rank-major, that list is
    /// the expert's in `expert_rows`.
    pub ranges: Option<&'a mut [[u32; 2]]>,
    /// `[E, M]`, or rank-major `[M]`: the row's token index at its source.
    pub source_token: Option<&'a mut [u32]>,
    /// Rank-major `[M, topk]` (the plan's top-k): local expert id, -1 where the entry lives elsewhere.
    pub row_experts: Option<&'a mut [i32]>,
    /// Rank-major `[M, topk]`: weights, 0 where the expert id is -1.
    pub row_weights: Option<&'a mut [f32]>,
    /// Rank-major `[E, M]`: the rows of each local expert, `counts[e]` of them.
    pub expert_rows: Option<&'a mut [u32]>,
    /// `[E]`: adds the tokens of each local physical expert, for expert load balancing.
    pub expert_totals: Option<&'a mut [u64]>,
    /// `[ranks]`: adds the nanoseconds spent waiting for each source, to find the slow one.
    pub wait_ns: Option<&'a mut [u64]>,
}

/// What the outputs of a dispatch must hold at least: elements, or bytes where that is said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) row_bytes: usize,
    pub(crate) scale_bytes: usize,
    pub(crate) sideband: usize,
    /// Local experts.
    pub(crate) experts: usize,
    pub(crate) ranks: usize,
    pub(crate) source_token: usize,
    /// Of `row_experts` and `row_weights`.
    pub(crate) entries: usize,
    pub(crate) expert_rows: usize,
}

impl Needs {
    pub(crate) fn new(config: &EpConfig, plan: &Plan, request: &Request) -> Result<Self> {
        let shape = RowShape::new(config, plan.ranks, request.payload)?;
        let (experts, rows) = (plan.local_experts as usize, plan.rows);
        let (lists, row_bytes, scale_bytes) = match request.layout {
            Layout::ExpertMajor => (experts, shape.expert_rows_bytes, shape.expert_scales_bytes),
            Layout::RankMajor => (1, shape.rank_rows_bytes, shape.rank_scales_bytes),
        };
        Ok(Self {
            row_bytes,
            scale_bytes,
            sideband: lists * rows * request.sideband_bytes,
            experts,
            ranks: plan.ranks as usize,
            source_token: lists * rows,
            entries: rows * config.topk as usize,
            expert_rows: experts * rows,
        })
    }
}

fn pointer<T>(slice: &mut Option<&mut [T]>) -> *mut T {
    slice.as_deref_mut().map_or(std::ptr::null_mut(), <[T]>::as_mut_ptr)
}

impl DispatchOutput<'_> {
    pub(super) fn as_c(
        &mut self,
        rank: u32,
        config: &EpConfig,
        plan: &Plan,
        request: &Request,
    ) -> Result<sys::epw_dispatch_output> {
        let needs = Needs::new(config, plan, request)?;
        let sizes = [
            ("rows (bytes)", self.rows.as_ref().map(TensorMut::bytes), needs.row_bytes),
            ("scales (bytes)", self.scales.as_ref().map(TensorMut::bytes), needs.scale_bytes),
            ("sideband", self.sideband.as_ref().map(|s| s.len()), needs.sideband),
            ("counts", self.counts.as_ref().map(|s| s.len()), needs.experts),
            ("source_counts", self.source_counts.as_ref().map(|s| s.len()), needs.ranks),
            ("ranges", self.ranges.as_ref().map(|s| s.len()), needs.experts * needs.ranks),
            ("source_token", self.source_token.as_ref().map(|s| s.len()), needs.source_token),
            ("row_experts", self.row_experts.as_ref().map(|s| s.len()), needs.entries),
            ("row_weights", self.row_weights.as_ref().map(|s| s.len()), needs.entries),
            ("expert_rows", self.expert_rows.as_ref().map(|s| s.len()), needs.expert_rows),
            ("expert_totals", self.expert_totals.as_ref().map(|s| s.len()), needs.experts),
            ("wait_ns", self.wait_ns.as_ref().map(|s| s.len()), needs.ranks),
        ];
        for (name, have, need) in sizes {
            if have.is_some_and(|have| have < need) {
                let text = format!("output.{name} has {}, the plan needs {need}", have.unwrap_or(0));
                return Err(Error::Invalid(Failure::new("dispatch", rank, text)));
            }
        }
        let mut output = ffi::empty_output();
        output.scale_order = u32::from(self.scale_order == ScaleOrder::RowMajor);
        output.rows = self.rows.as_ref().map_or(std::ptr::null_mut(), |t| t.ptr.as_ptr().cast());
        output.scales = self.scales.as_ref().map_or(std::ptr::null_mut(), |t| t.ptr.as_ptr().cast());
        output.sideband = pointer(&mut self.sideband).cast();
        output.counts = pointer(&mut self.counts);
        output.source_counts = pointer(&mut self.source_counts);
        output.ranges = pointer(&mut self.ranges).cast();
        output.source_token = pointer(&mut self.source_token);
        output.row_experts = pointer(&mut self.row_experts);
        output.row_weights = pointer(&mut self.row_weights);
        output.expert_rows = pointer(&mut self.expert_rows);
        output.expert_totals = pointer(&mut self.expert_totals);
        output.wait_ns = pointer(&mut self.wait_ns);
        Ok(output)
    }
}

/// Memory for everything a dispatch can deliver in one layout, allocated once and used again and again.
#[derive(Debug)]
pub struct DispatchBuffers {
    layout: Layout,
    /// Expert-major `[E, M, payload]`; rank-major empty: rows are read in place.
    pub rows: HostBuffer<u8>,
    /// In column-major order; see [`ScaleOrder`].
    pub scales: HostBuffer<u8>,
    /// `[E, M, sideband_bytes]`, rank-major `[M, sideband_bytes]`.
    pub sideband: Vec<u8>,
    /// `[E]`
    pub counts: Vec<u32>,
    /// `[ranks]`
    pub source_counts: Vec<u32>,
    /// `[E, ranks]`
    pub ranges: Vec<[u32; 2]>,
    /// `[E, M]`, rank-major `[M]`.
    pub source_token: Vec<u32>,
    /// `[M, topk]`, rank-major only.
    pub row_experts: Vec<i32>,
    /// `[M, topk]`, rank-major only.
    pub row_weights: Vec<f32>,
    /// `[E, M]`, rank-major only.
    pub expert_rows: Vec<u32>,
}

impl DispatchBuffers {
    /// Memory for `payload` in `layout`, with `sideband_bytes` opaque bytes per token, in a group of `ranks` ranks.
    ///
    /// # Errors
    /// Those of [`Plan::new`] and [`RowShape::new`], [`Error::Limit`] if the configuration has less sideband, and
    /// [`Error::NoMemory`], which names the output that there was no memory for.
    pub fn new(
        config: &EpConfig,
        ranks: u32,
        payload: Payload,
        layout: Layout,
        sideband_bytes: u32,
    ) -> Result<Self> {
        let plan = Plan::new(config, ranks)?;
        let shape = RowShape::new(config, ranks, payload)?;
        let (experts, rows) = (plan.local_experts as usize, plan.rows);
        let failure = |text: String| Failure { operation: "buffers".into(), rank: None, peer: None, text };
        if sideband_bytes > config.sideband_bytes {
            let text = format!(
                "sideband_bytes is {sideband_bytes}, the plan has room for {}",
                config.sideband_bytes
            );
            return Err(Error::Limit(failure(text)));
        }
        let expert_major = layout == Layout::ExpertMajor;
        let lists = if expert_major { experts } else { 1 };
        let when = |wanted: bool, len: usize| if wanted { len } else { 0 };
        let no_memory = |name: &str, bytes: usize| {
            let text = format!("no memory for {name} of {bytes} bytes: lower max_tokens, or use rank-major");
            Error::NoMemory(failure(text))
        };
        let host = |name, bytes| HostBuffer::try_zeroed(bytes).map_err(|_| no_memory(name, bytes));
        let scales = if expert_major { shape.expert_scales_bytes } else { shape.rank_scales_bytes };
        let entries = rows * config.topk as usize;
        Ok(Self {
            layout,
            rows: host("rows", when(expert_major, shape.expert_rows_bytes))?,
            scales: host("scales", scales)?,
            sideband: filled(0, lists * rows * sideband_bytes as usize)
                .map_err(|n| no_memory("sideband", n))?,
            counts: filled(0, experts).map_err(|n| no_memory("counts", n))?,
            source_counts: filled(0, ranks as usize).map_err(|n| no_memory("source_counts", n))?,
            ranges: filled([0; 2], experts * ranks as usize).map_err(|n| no_memory("ranges", n))?,
            source_token: filled(0, lists * rows).map_err(|n| no_memory("source_token", n))?,
            row_experts: filled(-1, when(!expert_major, entries)).map_err(|n| no_memory("row_experts", n))?,
            row_weights: filled(0.0, when(!expert_major, entries))
                .map_err(|n| no_memory("row_weights", n))?,
            expert_rows: filled(0, when(!expert_major, experts * rows))
                .map_err(|n| no_memory("expert_rows", n))?,
        })
    }

    /// All of it as an output.
    pub fn output(&mut self) -> DispatchOutput<'_> {
        let expert_major = self.layout == Layout::ExpertMajor;
        DispatchOutput {
            rows: expert_major.then(|| TensorMut::new(&mut self.rows)),
            scales: Some(TensorMut::new(&mut self.scales)),
            scale_order: ScaleOrder::ColumnMajor,
            sideband: Some(&mut self.sideband),
            counts: Some(&mut self.counts),
            source_counts: Some(&mut self.source_counts),
            ranges: Some(&mut self.ranges),
            source_token: Some(&mut self.source_token),
            row_experts: (!expert_major).then_some(&mut self.row_experts),
            row_weights: (!expert_major).then_some(&mut self.row_weights),
            expert_rows: (!expert_major).then_some(&mut self.expert_rows),
            expert_totals: None,
            wait_ns: None,
        }
    }
}

/// `len` copies of `value`, or the bytes that there was no memory for.
fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>, usize> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| len.saturating_mul(size_of::<T>()))?;
    list.resize(len, value);
    Ok(list)
}

/// What combine takes: the experts' outputs.
#[derive(Debug, Clone)]
pub struct Combine<'a, T = TensorRef<'a>> {
    mode: CombineMode,
    expert_out: Option<T>,
    topk_weights: Option<T>,
    deadline: Option<Duration>,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Combine<'a, cuda::TensorRef<'a>> {
    pub(crate) fn views(&self) -> impl Iterator<Item = (&'static str, &cuda::TensorRef<'a>)> {
        let optional =
            [("expert_out", self.expert_out.as_ref()), ("topk_weights", self.topk_weights.as_ref())];
        optional.into_iter().filter_map(|(name, view)| Some((name, view?)))
    }
}

impl<T: View> Combine<'_, T> {
    /// Expert outputs of the combine type, dense: expert-major `[E * M, hidden]`, rank-major `[M, hidden]` already reduced over
    /// this rank's experts with the weights.
    pub fn new(expert_out: T) -> Self {
        Self {
            mode: CombineMode::default(),
            expert_out: Some(expert_out),
            topk_weights: None,
            deadline: None,
            lifetime: PhantomData,
        }
    }

    /// The experts have written into [`Dispatched::combine_rows_mut`](crate::Dispatched::combine_rows_mut).
    pub fn in_place() -> Self {
        Self {
            mode: CombineMode::default(),
            expert_out: None,
            topk_weights: None,
            deadline: None,
            lifetime: PhantomData,
        }
    }

    /// What combine returns over the wire; rank-reduced by default. The same on all ranks.
    #[must_use]
    pub fn mode(self, mode: CombineMode) -> Self {
        Self { mode, ..self }
    }

    /// This rank's weights `[n, k]` f32, dense; those given at dispatch by default. Ordered mode only: rank-reduced combine, which
    /// applies those of dispatch, refuses them.
    #[must_use]
    pub fn weights(self, topk_weights: T) -> Self {
        Self { topk_weights: Some(topk_weights), ..self }
    }

    /// A longer deadline than the buffer's, 1 day at most.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    pub(crate) fn deadline_or(&self, buffers: Duration) -> Duration {
        self.deadline.unwrap_or(buffers)
    }

    pub(crate) fn to_c(
        &self,
        rank: u32,
        config: &EpConfig,
        plan: &Plan,
        request: &Request,
    ) -> Result<sys::epw_combine_input> {
        let invalid = |text: String| Error::Invalid(Failure::new("combine", rank, text));
        let mut input = ffi::empty_combine();
        input.mode = match self.mode {
            CombineMode::RankReduced => sys::EPW_COMBINE_RANK_REDUCED,
            CombineMode::Ordered => sys::EPW_COMBINE_ORDERED,
        };
        if let Some(out) = &self.expert_out {
            let out = out.matrix();
            let lists = if request.layout == Layout::ExpertMajor { plan.local_experts as usize } else { 1 };
            let (want, rows) = (config.combine_dtype.dtype(), lists * plan.rows);
            if out.dtype != want || out.cols != config.hidden as usize || out.rows < rows || !out.is_dense() {
                return Err(invalid(format!(
                    "expert_out is [{}, {}] of {:?}, must be a dense [{rows}, {}] of {want:?}",
                    out.rows, out.cols, out.dtype, config.hidden
                )));
            }
            input.expert_out = out.ptr.cast();
        }
        if let Some(weights) = &self.topk_weights {
            let weights = weights.matrix();
            let (n, k) = (request.tokens, request.topk);
            if weights.dtype != DType::F32 || weights.rows != n || weights.cols != k || !weights.is_dense() {
                return Err(invalid(format!("topk_weights must be a dense [{n}, {k}] of F32")));
            }
            input.topk_weights = weights.ptr.cast();
        }
        input.deadline_ns = nanos(self.deadline);
        Ok(input)
    }
}

/// Where combined tokens go.
#[derive(Debug)]
pub struct CombineOutput<'a> {
    /// `[n, hidden]` of the combine type, aligned to 16 bytes. Tokens routed nowhere become zeros.
    pub out: TensorMut<'a>,
    /// `[n]`: expert contributions arrived, and expected (every routed id, those of inactive ranks too).
    pub contributions: Option<&'a mut [[u16; 2]]>,
    /// `[ranks]`: adds the nanoseconds spent waiting for each peer.
    pub wait_ns: Option<&'a mut [u64]>,
}

impl<'a> CombineOutput<'a> {
    /// Only the tokens.
    pub fn new(out: TensorMut<'a>) -> Self {
        Self { out, contributions: None, wait_ns: None }
    }

    pub(super) fn as_c(
        &mut self,
        rank: u32,
        config: &EpConfig,
        plan: &Plan,
        request: &Request,
    ) -> Result<sys::epw_combine_output> {
        let invalid = |text: String| Error::Invalid(Failure::new("combine", rank, text));
        let (n, want) = (request.tokens, config.combine_dtype.dtype());
        let need = n * config.hidden as usize; // a dispatch took as many tokens: it can not wrap
        if self.out.dtype != want || self.out.len < need {
            return Err(invalid(format!(
                "out has {} of {:?}, [{n}, {}] of {want:?} need {need}",
                self.out.len, self.out.dtype, config.hidden,
            )));
        }
        if self.contributions.as_ref().is_some_and(|c| c.len() < n) {
            return Err(invalid(format!("contributions has fewer than {n} entries")));
        }
        if self.wait_ns.as_ref().is_some_and(|w| w.len() < plan.ranks as usize) {
            return Err(invalid(format!("wait_ns has fewer than {} entries", plan.ranks)));
        }
        let mut output = ffi::empty_combine_output();
        output.out = self.out.ptr.as_ptr().cast();
        output.contributions = pointer(&mut self.contributions).cast();
        output.wait_ns = pointer(&mut self.wait_ns);
        Ok(output)
    }
}
