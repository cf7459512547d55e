//! GPU memory as inputs and outputs of prefill.

use crate::cuda::memory::Gpu;
use crate::cuda::view::TensorRef;
use crate::prefill::{GenericPrefillCombineOutput, GenericPrefillOutput, PrefillCombine};

/// Where the rows received in GPU memory go; see [`GenericPrefillOutput`].
pub type PrefillOutput<'a> = GenericPrefillOutput<'a, Gpu>;

/// Where combined tokens go in GPU memory; see [`GenericPrefillCombineOutput`].
pub type PrefillCombineOutput<'a> = GenericPrefillCombineOutput<'a, Gpu>;

impl<'a> PrefillCombine<'a, TensorRef<'a>> {
    /// For rank-reduced combine in layouts by expert: weights of the places, `[C]` f32, dense, in a matrix of any shape,
    /// instead of those of dispatch.
    #[must_use]
    pub fn row_weights(self, weights: TensorRef<'a>) -> Self {
        self.with_row_weights(weights)
    }

    /// Numbers that are carried back to [`GenericPrefillCombineOutput::values`], for instance gradients of weights: f32,
    /// dense, `[C]` in layouts by expert, `[C, topk]` in others. Either all ranks pass them, or none.
    #[must_use]
    pub fn values(self, values: TensorRef<'a>) -> Self {
        self.with_values(values)
    }
}
