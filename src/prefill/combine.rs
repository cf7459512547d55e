//! The inputs of a combine.

use std::time::Duration;

use super::buffer::Inner;
use super::output::Shape;
use crate::config::CombineMode;
use crate::error::{Error, Failure, Result};
use crate::tensor::{DType, TensorRef, sealed::Matrix, sealed::View as _};
use crate::{ffi, sys};

/// The inputs of combine: the experts' outputs, in the places of the dispatch. `C` is its capacity.
#[derive(Debug, Clone)]
pub struct PrefillCombine<'a> {
    mode: CombineMode,
    expert_out: TensorRef<'a>,
    row_weights: Option<&'a [f32]>,
    topk_weights: Option<TensorRef<'a>>,
    values: Option<&'a [f32]>,
    bias: [Option<TensorRef<'a>>; 2],
    deadline: Option<Duration>,
}

impl<'a> PrefillCombine<'a> {
    /// Expert outputs `[places, width]` of the combine type, dense. `width` is at most the configuration's `hidden`,
    /// and the same on all ranks. In layouts by source, rows are already reduced over this rank's experts with the
    /// weights.
    pub fn new(expert_out: TensorRef<'a>) -> Self {
        Self {
            mode: CombineMode::default(),
            expert_out,
            row_weights: None,
            topk_weights: None,
            values: None,
            bias: [None; 2],
            deadline: None,
        }
    }

    /// The combine mode, rank-reduced by default. The same on all ranks. Ordered combine needs a layout by expert.
    #[must_use]
    pub fn mode(self, mode: CombineMode) -> Self {
        Self { mode, ..self }
    }

    /// For rank-reduced combine in layouts by expert: weights of the places, `[C]`, instead of those of dispatch.
    #[must_use]
    pub fn row_weights(self, weights: &'a [f32]) -> Self {
        Self { row_weights: Some(weights), ..self }
    }

    /// For ordered combine: this rank's weights `[n, k]` f32, dense, instead of those of dispatch.
    #[must_use]
    pub fn weights(self, topk_weights: TensorRef<'a>) -> Self {
        Self { topk_weights: Some(topk_weights), ..self }
    }

    /// Numbers that are carried back to [`PrefillCombineOutput::values`](super::PrefillCombineOutput::values), for
    /// instance gradients of weights: `[C]` in layouts by expert, `[C, topk]` in others. Either all ranks pass them, or
    /// none.
    #[must_use]
    pub fn values(self, values: &'a [f32]) -> Self {
        Self { values: Some(values), ..self }
    }

    /// Rows `[n, width]` of the combine type, dense, that are added to this rank's tokens after everything else. A
    /// second one is added after the first; any further one replaces the second.
    #[must_use]
    pub fn bias(mut self, rows: TensorRef<'a>) -> Self {
        let at = usize::from(self.bias[0].is_some());
        self.bias[at] = Some(rows);
        self
    }

    /// A longer deadline than the buffer's, at most 1 day.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    pub(super) fn width(&self) -> usize {
        self.expert_out.cols()
    }

    /// Checks every size and returns the C view, which borrows from `self`.
    pub(super) fn to_c(&self, inner: &Inner, shape: &Shape) -> Result<sys::epw_prefill_combine_input> {
        let invalid = |text: String| Error::Invalid(Failure::new("combine", inner.rank, text));
        let dtype = inner.config.ep.combine_dtype.dtype();
        let (out, width) = (self.expert_out.matrix(), self.width());
        let is = |of: &Matrix, rows: usize, cols: usize, want: DType| {
            of.dtype == want && of.rows >= rows && of.cols == cols && of.is_dense()
        };
        if !is(&out, shape.places, width, dtype) {
            return Err(invalid(format!(
                "expert_out is [{}, {}] of {:?}, must be a dense [{}, width] of {dtype:?}",
                out.rows, out.cols, out.dtype, shape.places
            )));
        }
        let mut input = ffi::empty_prefill_combine();
        input.mode = match self.mode {
            CombineMode::RankReduced => sys::EPW_COMBINE_RANK_REDUCED,
            CombineMode::Ordered => sys::EPW_COMBINE_ORDERED,
        };
        input.width = u32::try_from(width).unwrap_or(u32::MAX);
        if width == 0 {
            return Err(invalid("expert_out has rows of 0 channels".to_owned()));
        }
        input.expert_out = out.ptr.cast();
        if let Some(weights) = self.row_weights {
            if weights.len() < shape.places {
                let have = weights.len();
                return Err(invalid(format!("row_weights has {have} weights, must have {}", shape.places)));
            }
            input.row_weights = weights.as_ptr();
        }
        if let Some(weights) = &self.topk_weights {
            if !is(&weights.matrix(), shape.tokens, shape.topk, DType::F32) {
                let (n, k) = (shape.tokens, shape.topk);
                return Err(invalid(format!("topk_weights must be a dense [{n}, {k}] of F32")));
            }
            input.topk_weights = weights.matrix().ptr.cast();
        }
        if let Some(values) = self.values {
            let of_each = if shape.layout.is_by_expert() { 1 } else { inner.config.ep.topk as usize };
            let want = shape.places.saturating_mul(of_each);
            if values.len() < want {
                return Err(invalid(format!("values has {} numbers, must have {want}", values.len())));
            }
            input.row_values = values.as_ptr();
        }
        for (to, bias) in input.bias.iter_mut().zip(&self.bias) {
            let Some(bias) = bias else { continue };
            if !is(&bias.matrix(), shape.tokens, width, dtype) {
                let n = shape.tokens;
                return Err(invalid(format!("bias must be a dense [{n}, {width}] of {dtype:?}")));
            }
            *to = bias.matrix().ptr.cast();
        }
        input.deadline_ns = self.deadline.map_or(0, |d| d.as_nanos().try_into().unwrap_or(u64::MAX));
        Ok(input)
    }
}
