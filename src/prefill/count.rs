//! Counting where tokens would go, without sending anything.

use super::buffer::{Inner, PrefillBuffer};
use crate::error::{Error, Failure, Result};
use crate::ffi;
use crate::sys;
use crate::tensor::sealed::{Matrix, View as _};
use crate::tensor::{DType, TensorRef};

/// A dense matrix of ids, as C takes it: the type of the ids, the tokens, and the ids of each.
pub(crate) fn shape_of_ids(inner: &Inner, ids: &Matrix) -> Result<(u32, u32, u32)> {
    let invalid = |text: String| Error::Invalid(Failure::new("count", inner.rank, text));
    let idx_type = match ids.dtype {
        DType::I32 => sys::EPW_I32,
        DType::U32 => sys::EPW_U32,
        DType::I64 => sys::EPW_I64,
        other => return Err(invalid(format!("topk_idx is {other:?}, must be I32, U32 or I64"))),
    };
    if !ids.is_dense() {
        return Err(invalid("topk_idx is not dense".to_owned()));
    }
    match (u32::try_from(ids.rows), u32::try_from(ids.cols)) {
        (Ok(tokens), Ok(topk)) => Ok((idx_type, tokens, topk)),
        _ => Err(invalid("topk_idx does not fit 32 bits".to_owned())),
    }
}

impl PrefillBuffer {
    /// How many of these tokens go to each rank and to each expert, and which token goes where: `[ranks]`, `[experts]`
    /// and `[tokens, ranks]`. `topk_idx` as for [`Dispatch::new`](crate::Dispatch::new), in host memory. Sends nothing.
    /// For ids in GPU memory see [`PrefillBuffer::enqueue_count`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for ids out of range or repeated, [`Error::Limit`] for more tokens than the plan has room for.
    pub fn count(&self, topk_idx: TensorRef<'_>) -> Result<(Vec<u32>, Vec<u32>, Vec<bool>)> {
        let inner = &*self.inner;
        let ids = topk_idx.matrix();
        let shape = shape_of_ids(inner, &ids)?;
        let (tokens, most) = (shape.1, inner.config.ep.max_tokens);
        if tokens > most {
            // As C says it, but before memory for them is taken: a matrix without columns may have any number of rows.
            let text = format!("tokens is {tokens}, the plan's max_tokens is {most}");
            return Err(Error::Limit(Failure::new("count", inner.rank, text)));
        }
        let ranks = inner.plan.ranks as usize;
        let mut rank_tokens = vec![0; ranks];
        let mut expert_tokens = vec![0; inner.config.ep.experts as usize];
        let mut in_rank = vec![0; ids.rows.saturating_mul(ranks)];
        let config = inner.config.to_c(inner.rank, inner.plan.ranks);
        // SAFETY: the ids are a dense matrix of that shape, the lists have the required lengths.
        unsafe {
            ffi::prefill_count(&config, ids.ptr, shape, &mut rank_tokens, &mut expert_tokens, &mut in_rank)
        }?;
        Ok((rank_tokens, expert_tokens, in_rank.into_iter().map(|is| is == 1).collect()))
    }
}
