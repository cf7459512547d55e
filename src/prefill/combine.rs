//! The inputs of a combine.

use std::marker::PhantomData;
use std::time::Duration;

use super::buffer::Inner;
use super::output::Shape;
use crate::config::CombineMode;
use crate::error::{Error, Failure, Result};
use crate::tensor::{DType, TensorRef, View, sealed::Matrix};
use crate::{ffi, sys};

/// The inputs of combine: the experts' outputs, in the places of the dispatch. `C` is its capacity.
#[derive(Debug, Clone)]
pub struct PrefillCombine<'a, T = TensorRef<'a>> {
    mode: CombineMode,
    expert_out: T,
    row_weights: Option<T>,
    topk_weights: Option<T>,
    values: Option<T>,
    bias: [Option<T>; 2],
    deadline: Option<Duration>,
    sms: u32,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> PrefillCombine<'a> {
    /// For rank-reduced combine in layouts by expert: weights of the places, `[C]`, instead of those of dispatch.
    #[must_use]
    pub fn row_weights(self, weights: &'a [f32]) -> Self {
        self.with_row_weights(TensorRef::new(weights, 1))
    }

    /// Numbers that are carried back to [`PrefillCombineOutput::values`](super::PrefillCombineOutput::values), for
    /// instance gradients of weights: `[C]` in layouts by expert, `[C, topk]` in others. Either all ranks pass them, or
    /// none.
    #[must_use]
    pub fn values(self, values: &'a [f32]) -> Self {
        self.with_values(TensorRef::new(values, 1))
    }
}

impl<T: View> PrefillCombine<'_, T> {
    /// Expert outputs `[places, width]` of the combine type, dense. `width` is at most the configuration's `hidden`,
    /// and the same on all ranks. In layouts by source, rows are already reduced over this rank's experts with the
    /// weights.
    pub fn new(expert_out: T) -> Self {
        Self {
            mode: CombineMode::default(),
            expert_out,
            row_weights: None,
            topk_weights: None,
            values: None,
            bias: [None, None],
            deadline: None,
            sms: 0,
            lifetime: PhantomData,
        }
    }

    /// The combine mode, rank-reduced by default. The same on all ranks. Ordered combine needs a layout by expert.
    #[must_use]
    pub fn mode(self, mode: CombineMode) -> Self {
        Self { mode, ..self }
    }

    /// For ordered combine: this rank's weights `[n, k]` f32, dense, instead of those of dispatch.
    #[must_use]
    pub fn weights(self, topk_weights: T) -> Self {
        Self { topk_weights: Some(topk_weights), ..self }
    }

    /// Rows `[n, width]` of the combine type, dense, that are added to this rank's tokens after everything else. A
    /// second one is added after the first; any further one replaces the second.
    #[must_use]
    pub fn bias(mut self, rows: T) -> Self {
        let at = usize::from(self.bias[0].is_some());
        self.bias[at] = Some(rows);
        self
    }

    /// A longer deadline than the buffer's, at most 1 day.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// On a GPU: the most SMs that the kernels of this combine take, in both halves. 0, the default, or more than its
    /// lane may take of [`EpConfig::sms`](crate::EpConfig::sms): as many as that. A captured call keeps the number. Ranks
    /// may choose different ones.
    #[must_use]
    pub fn sms(self, sms: u32) -> Self {
        Self { sms, ..self }
    }

    pub(crate) fn with_row_weights(self, weights: T) -> Self {
        Self { row_weights: Some(weights), ..self }
    }

    pub(crate) fn with_values(self, values: T) -> Self {
        Self { values: Some(values), ..self }
    }

    /// What it was made of.
    pub(crate) fn into_views(self) -> impl Iterator<Item = T> {
        let [bias, second] = self.bias;
        let views = [Some(self.expert_out), self.row_weights, self.topk_weights, self.values, bias, second];
        views.into_iter().flatten()
    }

    pub(crate) fn width(&self) -> usize {
        self.expert_out.matrix().cols
    }

    /// Checks every size and returns the C view, which borrows from `self`, for use at `site`.
    pub(crate) fn to_c(
        &self,
        inner: &Inner,
        shape: &Shape,
        site: &T::Site,
    ) -> Result<sys::epw_prefill_combine_input> {
        let invalid = |text: String| Error::Invalid(Failure::new("combine", inner.rank, text));
        let at = |name: &str, view: &T| view.at(name, site).map_err(invalid);
        let list = |name: &str, of: &str, view: &T, want: usize| {
            let list = at(name, view)?;
            let have = list.rows.saturating_mul(list.cols);
            match list.dtype == DType::F32 && list.is_dense() && have >= want {
                true => Ok(list.ptr.cast()),
                false if list.dtype == DType::F32 && list.is_dense() => {
                    Err(invalid(format!("{name} has {have} {of}, must have {want}")))
                }
                false => {
                    Err(invalid(format!("{name} is of {:?} or not dense, must be dense F32", list.dtype)))
                }
            }
        };
        let dtype = inner.config.ep.combine_dtype.dtype();
        let (out, width) = (at("expert_out", &self.expert_out)?, self.width());
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
        if let Some(weights) = &self.row_weights {
            input.row_weights = list("row_weights", "weights", weights, shape.places)?;
        }
        if let Some(weights) = &self.topk_weights {
            let weights = at("topk_weights", weights)?;
            if !is(&weights, shape.tokens, shape.topk, DType::F32) {
                let (n, k) = (shape.tokens, shape.topk);
                return Err(invalid(format!("topk_weights must be a dense [{n}, {k}] of F32")));
            }
            input.topk_weights = weights.ptr.cast();
        }
        if let Some(values) = &self.values {
            let of_each = if shape.layout.is_by_expert() { 1 } else { inner.config.ep.topk as usize };
            let want = shape.places.saturating_mul(of_each);
            input.row_values = list("values", "numbers", values, want)?;
        }
        for (to, bias) in input.bias.iter_mut().zip(&self.bias) {
            let Some(bias) = bias else { continue };
            let bias = at("bias", bias)?;
            if !is(&bias, shape.tokens, width, dtype) {
                let n = shape.tokens;
                return Err(invalid(format!("bias must be a dense [{n}, {width}] of {dtype:?}")));
            }
            *to = bias.ptr.cast();
        }
        input.deadline_ns = self.deadline.map_or(0, ffi::nanos);
        input.sms = self.sms;
        Ok(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpConfig;
    use crate::prefill::{PrefillBuffer, PrefillConfig, PrefillLayout};
    use half::bf16;

    #[test]
    fn a_combine_asks_for_the_sms_that_it_was_given() {
        let config = PrefillConfig::new(EpConfig::new(4, 64, 4, 2));
        let buffer = PrefillBuffer::unconnected(0, 1, config).unwrap();
        let shape = Shape { tokens: 2, topk: 2, layout: PrefillLayout::Dense, places: 2 };
        let rows = [bf16::ZERO; 2 * 64];
        let combine = PrefillCombine::new(TensorRef::new(&rows, 64));
        let sms = |combine: PrefillCombine<'_>| combine.to_c(&buffer.inner, &shape, &()).unwrap().sms;
        assert_eq!([sms(combine.clone()), sms(combine.sms(3))], [0, 3]);
    }
}
