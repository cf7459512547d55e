//! Counting on a GPU where tokens would go.

use super::shared::site;
use crate::buffer::{Need, Place};
use crate::cuda::stream::StreamRef;
use crate::cuda::view::{TensorMut, TensorRef};
use crate::error::{Error, Failure, Result};
use crate::ffi::EnqueuedCounts;
use crate::names::setters;
use crate::prefill::{PrefillBuffer, shape_of_ids};
use crate::tensor::sealed::View as _;

/// Where [`PrefillBuffer::enqueue_count`] writes, in GPU memory. Every list may be longer, and each may be left out.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PrefillCounts<'a> {
    /// `[ranks]` u32 or i32: tokens that go to each rank.
    pub rank_tokens: Option<TensorMut<'a>>,
    /// `[experts]` u32 or i32: tokens that go to each expert.
    pub expert_tokens: Option<TensorMut<'a>>,
    /// `[tokens, ranks]`, of one byte each: 1 if the token goes to the rank, else 0.
    pub in_rank: Option<TensorMut<'a>>,
    /// `[1]` u32 or i32: how many ids are out of range, or repeat one of their token.
    pub bad_ids: Option<TensorMut<'a>>,
}

setters!(impl['a] PrefillCounts['a] {
    rank_tokens: TensorMut<'a>,
    expert_tokens: TensorMut<'a>,
    in_rank: TensorMut<'a>,
    bad_ids: TensorMut<'a>,
});

impl PrefillCounts<'_> {
    /// None of them yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl PrefillBuffer {
    /// Enqueues a count of how many of these tokens go to each rank and to each expert, and of which token goes where.
    /// `topk_idx`, `[tokens, topk]`, as for [`Dispatch::new`](crate::Dispatch::new), of at most
    /// [`max_tokens`](crate::EpConfig::max_tokens) tokens. The numbers are those of [`PrefillBuffer::count`], except that ids
    /// out of range or repeated are ignored, and counted in [`bad_ids`](PrefillCounts::bad_ids).
    ///
    /// A few SMs count, for some microseconds. Nothing is sent and no peer is waited for. The work belongs to no lane: it is
    /// in order with what else is on `stream`, and with nothing else. It may be captured. A dispatch needs no such count.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Limit`] name the argument; [`Error::State`] of a buffer on the host. Nothing has been
    /// enqueued then.
    ///
    /// ```no_run
    /// use epwire::DType;
    /// use epwire::cuda::{PrefillCounts, StreamRef, TensorMut, TensorRef};
    /// use epwire::prefill::PrefillBuffer;
    ///
    /// /// Top-8 of 1000 tokens lie at `ids`; numbers for 4 ranks and 256 experts have room.
    /// fn count(
    ///     buffer: &PrefillBuffer,
    ///     [ids, rank_tokens, expert_tokens, in_rank]: [u64; 4],
    ///     stream: StreamRef<'_>,
    /// ) -> epwire::Result<()> {
    ///     // SAFETY: the caller keeps the memory until the stream has run this work.
    ///     let (ids, counts) = unsafe {
    ///         let counts = PrefillCounts::new()
    ///             .rank_tokens(TensorMut::from_raw(rank_tokens, DType::I32, 4))
    ///             .expert_tokens(TensorMut::from_raw(expert_tokens, DType::I32, 256))
    ///             .in_rank(TensorMut::from_raw(in_rank, DType::U8, 1000 * 4));
    ///         (TensorRef::from_raw(ids, DType::I64, 1000, 8, 8 * 8), counts)
    ///     };
    ///     buffer.enqueue_count(ids, counts, stream)
    /// }
    /// ```
    pub fn enqueue_count(
        &self,
        topk_idx: TensorRef<'_>,
        mut counts: PrefillCounts<'_>,
        stream: StreamRef<'_>,
    ) -> Result<()> {
        let inner = &*self.inner;
        let site = site(inner, "count", &stream)?;
        let invalid = |text| Error::Invalid(Failure::new("count", inner.rank, text));
        let ids = topk_idx.at("topk_idx", &site).map_err(invalid)?;
        let shape = shape_of_ids(inner, &ids)?;
        let (ranks, experts) = (inner.plan.ranks as usize, inner.config.ep.experts as usize);
        let map = Need::Bytes(ids.rows.saturating_mul(ranks));
        let place = |list: &mut Option<TensorMut<'_>>, name: &str, need| match list {
            Some(list) => list.place(name, need, &site).map_err(invalid),
            None => Ok(std::ptr::null_mut()),
        };
        let to = EnqueuedCounts {
            rank_tokens: place(&mut counts.rank_tokens, "rank_tokens", Need::of::<u32>(ranks))?.cast(),
            expert_tokens: place(&mut counts.expert_tokens, "expert_tokens", Need::of::<u32>(experts))?
                .cast(),
            in_rank: place(&mut counts.in_rank, "in_rank", map)?,
            bad_ids: place(&mut counts.bad_ids, "bad_ids", Need::of::<u32>(1))?.cast(),
        };
        // SAFETY: the ids are a dense matrix of that shape, the lists have the required lengths. The memory stays valid until
        // the work has run: whoever made the views has promised that, or their guards, dropped behind the call, ensure it. The
        // stream is one of the buffer's GPU: its maker promised that, or it was checked.
        unsafe { inner.ffi.enqueue_count(ids.ptr, shape, &to, site.stream()) }
    }
}
