//! The inputs of dispatch and combine: builders over borrowed memory, checked against the plan before a pointer leaves
//! Rust.

use std::marker::PhantomData;
use std::time::Duration;

use crate::config::{CombineMode, EpConfig, Layout, Payload, Plan};
use crate::error::{Error, Failure, Result};
use crate::tensor::{DType, TensorRef, View};
use crate::{ffi, sys};

/// What a rank sends: its tokens, their experts, and in which form.
///
/// In one operation all ranks use the same payload, sideband size and lane, and all give weights or none does.
#[derive(Debug, Clone)]
pub struct Dispatch<'a, T = TensorRef<'a>> {
    x: T,
    topk_idx: T,
    topk_weights: Option<T>,
    /// The bytes, and how many there are per token.
    sideband: Option<(T, u32)>,
    scales: Option<(T, bool)>,
    payload: Payload,
    layout: Layout,
    lane: Option<u32>,
    deadline: Option<Duration>,
    sms: u32,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Dispatch<'a> {
    /// `bytes_per_token` opaque bytes of each token, `[n, bytes_per_token]`, that travel with its row.
    #[must_use]
    pub fn sideband(self, bytes: &'a [u8], bytes_per_token: u32) -> Self {
        self.with_sideband(TensorRef::new(bytes, 1), bytes_per_token)
    }
}

impl<T: View> Dispatch<'_, T> {
    /// Tokens `x [n, hidden]` of the configured 16-bit type (opaque payloads: `[n, row_bytes]` as bytes) and their
    /// experts `topk_idx [n, k]`, i32, u32 or i64, dense; -1 or the unsigned maximum: not routed.
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
            sms: 0,
            lifetime: PhantomData,
        }
    }

    /// Routing weights `[n, k]` f32, dense. Rank-reduced combine needs them here.
    #[must_use]
    pub fn weights(self, topk_weights: T) -> Self {
        Self { topk_weights: Some(topk_weights), ..self }
    }

    /// The payload of rows; the input's own values by default.
    #[must_use]
    pub fn payload(self, payload: Payload) -> Self {
        Self { payload, ..self }
    }

    /// The layout of what this rank receives; expert-major by default.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    pub(crate) fn with_sideband(self, bytes: T, bytes_per_token: u32) -> Self {
        Self { sideband: Some((bytes, bytes_per_token)), ..self }
    }

    /// Scales of opaque rows, `[n, scale_count]`; elements have the payload's `scale_bytes`. Not permitted with other
    /// payloads.
    #[must_use]
    pub fn scales(self, scales: T) -> Self {
        Self { scales: Some((scales, false)), ..self }
    }

    /// Scales of opaque rows stored by column, `[scale_count, n]`.
    #[must_use]
    pub fn scales_by_column(self, scales: T) -> Self {
        Self { scales: Some((scales, true)), ..self }
    }

    /// The lane; by default lanes alternate, and prefill takes lane 0. All ranks use the same lane for the same
    /// operation.
    #[must_use]
    pub fn lane(self, lane: u32) -> Self {
        Self { lane: Some(lane), ..self }
    }

    /// A longer deadline than the buffer's, at most 1 day. Ranks that wait for this one meanwhile learn of it, and wait
    /// as long: they need not lengthen theirs.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// On a GPU: the most SMs that the kernels of this dispatch take, in both halves. 0, the default, or more than the
    /// lane's part of [`EpConfig::sms`]: that part. A captured call keeps the number. Ranks may choose different ones.
    #[must_use]
    pub fn sms(self, sms: u32) -> Self {
        Self { sms, ..self }
    }

    pub(crate) fn deadline_or(&self, buffers: Duration) -> Duration {
        self.deadline.unwrap_or(buffers)
    }

    pub(super) fn tokens(&self) -> usize {
        self.x.matrix().rows
    }

    /// The tensors that it was made of.
    pub(crate) fn into_views(self) -> impl Iterator<Item = T> {
        let Self { x, topk_idx, topk_weights, sideband, scales, .. } = self;
        let (sideband, scales) = (sideband.map(|(bytes, _)| bytes), scales.map(|(scales, _)| scales));
        [Some(x), Some(topk_idx), topk_weights, sideband, scales].into_iter().flatten()
    }

    /// The lane of a prefill.
    pub(crate) fn lane_or_first(&self) -> u32 {
        self.lane.unwrap_or(0)
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

    /// Checks every size and returns the C view, which borrows from `self`, for use at `site`.
    pub(crate) fn to_c(
        &self,
        rank: u32,
        config: &EpConfig,
        site: &T::Site,
    ) -> Result<sys::epw_dispatch_input> {
        let invalid = |text: String| Error::Invalid(Failure::new("dispatch", rank, text));
        let at = |name: &str, view: &T| view.at(name, site).map_err(invalid);
        let (x, topk_idx) = (at("x", &self.x)?, at("topk_idx", &self.topk_idx)?);
        let (n, k) = (x.rows, topk_idx.cols);
        let u32_of = |name: &str, value: usize| {
            u32::try_from(value).map_err(|_| invalid(format!("{name} is {value}, does not fit 32 bits")))
        };

        let mut input = ffi::empty_input();
        self.payload.set(&mut input);
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
            let weights = at("topk_weights", weights)?;
            if weights.dtype != DType::F32 || weights.rows != n || weights.cols != k || !weights.is_dense() {
                return Err(invalid(format!(
                    "topk_weights is [{}, {}] of {:?}, must be a dense [{n}, {k}] of F32",
                    weights.rows, weights.cols, weights.dtype
                )));
            }
            input.topk_weights = weights.ptr.cast();
        }
        if let Some((bytes, per_token)) = &self.sideband {
            let (bytes, per_token) = (at("sideband", bytes)?, *per_token);
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
        self.set_scales(&mut input, site).map_err(invalid)?;
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
        input.deadline_ns = self.deadline.map_or(0, ffi::nanos);
        input.sms = self.sms;
        Ok(input)
    }

    /// Scales must be given if the payload has some, in its shape, and only then.
    fn set_scales(&self, input: &mut sys::epw_dispatch_input, site: &T::Site) -> Result<(), String> {
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
        let scales = scales.at("scales", site)?;
        // The shape of an empty matrix does not matter.
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

/// The input of combine: the experts' outputs.
#[derive(Debug, Clone)]
pub struct Combine<'a, T = TensorRef<'a>> {
    mode: CombineMode,
    expert_out: Option<T>,
    topk_weights: Option<T>,
    deadline: Option<Duration>,
    sms: u32,
    lifetime: PhantomData<&'a ()>,
}

impl<T: View> Combine<'_, T> {
    /// Expert outputs of the combine type, dense: expert-major `[E * M, hidden]`, rank-major `[M, hidden]` already
    /// reduced over this rank's experts with the weights.
    pub fn new(expert_out: T) -> Self {
        Self {
            mode: CombineMode::default(),
            expert_out: Some(expert_out),
            topk_weights: None,
            deadline: None,
            sms: 0,
            lifetime: PhantomData,
        }
    }

    /// The experts have written their outputs into
    /// [`Dispatched::combine_rows_mut`](crate::Dispatched::combine_rows_mut).
    pub fn in_place() -> Self {
        Self {
            mode: CombineMode::default(),
            expert_out: None,
            topk_weights: None,
            deadline: None,
            sms: 0,
            lifetime: PhantomData,
        }
    }

    /// What answers contain; rank-reduced by default. The same on all ranks.
    #[must_use]
    pub fn mode(self, mode: CombineMode) -> Self {
        Self { mode, ..self }
    }

    /// This rank's weights `[n, k]` f32, dense; by default those given at dispatch. Only in ordered mode: rank-reduced
    /// combine applies those of dispatch, and refuses these.
    #[must_use]
    pub fn weights(self, topk_weights: T) -> Self {
        Self { topk_weights: Some(topk_weights), ..self }
    }

    /// A longer deadline than the buffer's, at most 1 day. Ranks that wait for this one meanwhile learn of it, and wait
    /// as long: they need not lengthen theirs.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// On a GPU: the most SMs that the kernels of this combine take, in both halves. 0, the default, or more than the
    /// lane's part of [`EpConfig::sms`]: that part. A captured call keeps the number. Ranks may choose different ones.
    #[must_use]
    pub fn sms(self, sms: u32) -> Self {
        Self { sms, ..self }
    }

    pub(crate) fn own_weights(&self) -> Option<&T> {
        self.topk_weights.as_ref()
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
        site: &T::Site,
    ) -> Result<sys::epw_combine_input> {
        let invalid = |text: String| Error::Invalid(Failure::new("combine", rank, text));
        let at = |name: &str, view: &T| view.at(name, site).map_err(invalid);
        let mut input = ffi::empty_combine();
        input.mode = match self.mode {
            CombineMode::RankReduced => sys::EPW_COMBINE_RANK_REDUCED,
            CombineMode::Ordered => sys::EPW_COMBINE_ORDERED,
        };
        if let Some(out) = &self.expert_out {
            let out = at("expert_out", out)?;
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
            let weights = at("topk_weights", weights)?;
            let (n, k) = (request.tokens, request.topk);
            if weights.dtype != DType::F32 || weights.rows != n || weights.cols != k || !weights.is_dense() {
                return Err(invalid(format!("topk_weights must be a dense [{n}, {k}] of F32")));
            }
            input.topk_weights = weights.ptr.cast();
        }
        input.deadline_ns = self.deadline.map_or(0, ffi::nanos);
        input.sms = self.sms;
        Ok(input)
    }
}

/// The request of a dispatch, kept for its receiving half and its combine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) tokens: usize,
    pub(crate) topk: usize,
    pub(crate) payload: Payload,
    pub(crate) layout: Layout,
    pub(crate) sideband_bytes: usize,
}

fn layout_to_c(layout: Layout) -> u32 {
    match layout {
        Layout::ExpertMajor => sys::EPW_EXPERT_MAJOR,
        Layout::RankMajor => sys::EPW_RANK_MAJOR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn an_operation_asks_for_the_sms_that_it_was_given() {
        let config = EpConfig::new(4, 64, 4, 2);
        let plan = Plan::new(&config, 1).unwrap();
        let places = plan.local_experts as usize * plan.rows;
        let (x, ids, out) = ([bf16::ZERO; 2 * 64], [0i32; 4], vec![bf16::ZERO; places * 64]);
        let dispatch = Dispatch::new(TensorRef::new(&x, 64), TensorRef::new(&ids, 2));
        let request = dispatch.request();
        let sms = |dispatch: Dispatch<'_>| dispatch.to_c(0, &config, &()).unwrap().sms;
        assert_eq!([sms(dispatch.clone()), sms(dispatch.sms(7))], [0, 7]);
        for combine in [Combine::in_place(), Combine::new(TensorRef::new(&out, 64))] {
            let sms = |combine: Combine<'_>| combine.to_c(0, &config, &plan, &request, &()).unwrap().sms;
            assert_eq!([sms(combine.clone()), sms(combine.sms(5))], [0, 5]);
        }
    }

    #[test]
    fn no_deadline_is_taken_for_the_buffers() {
        let config = EpConfig::new(4, 64, 4, 2);
        let plan = Plan::new(&config, 1).unwrap();
        let (x, ids) = ([bf16::ZERO; 2 * 64], [0i32; 4]);
        let dispatch = Dispatch::new(TensorRef::new(&x, 64), TensorRef::new(&ids, 2));
        let request = dispatch.request();
        let asked = |given: Option<Duration>| {
            let (mut dispatch, mut combine) = (dispatch.clone(), Combine::<TensorRef<'_>>::in_place());
            if let Some(given) = given {
                (dispatch, combine) = (dispatch.deadline(given), combine.deadline(given));
            }
            let combine = combine.to_c(0, &config, &plan, &request, &()).unwrap();
            [dispatch.to_c(0, &config, &()).unwrap().deadline_ns, combine.deadline_ns]
        };
        let nanos = [None, Some(Duration::ZERO), Some(Duration::from_nanos(7))].map(asked);
        assert_eq!(nanos, [[0; 2], [1; 2], [7; 2]]);
    }
}
