//! Host memory of the right sizes for the outputs of a dispatch.

use std::ops::Range;

use super::output::DispatchOutput;
use crate::config::{EpConfig, Layout, Payload, Plan, RowShape};
use crate::error::{Error, Failure, Result};
use crate::tensor::{Element, HostBuffer, TensorMut};

/// Memory for the outputs of a dispatch in one layout, allocated once and used many times. What a program may ask for
/// besides (packed ranges, expert totals, times waited) is added to the [`DispatchOutput`] that it gives.
#[derive(Debug)]
pub struct DispatchBuffers {
    layout: Layout,
    /// Expert-major `[E, M, payload]`; rank-major empty: rows are read in place.
    pub rows: HostBuffer<u8>,
    /// In column-major order; see [`ScaleOrder`](crate::ScaleOrder).
    pub scales: HostBuffer<u8>,
    /// `[E, M, sideband_bytes]`, rank-major `[M, sideband_bytes]`.
    pub sideband: Vec<u8>,
    /// Rows that have arrived for each local expert, `[E]`.
    pub counts: Vec<u32>,
    /// Rows that have arrived from each rank, `[ranks]`.
    pub source_counts: Vec<u32>,
    /// Where the rows of each rank begin in each expert's list, and how many there are, `[E, ranks]`.
    pub ranges: Vec<[u32; 2]>,
    /// The number of each row's token at its source, `[E, M]`, rank-major `[M]`.
    pub source_token: Vec<u32>,
    /// The local experts of each row, -1 where the expert is on another rank, `[M, topk]`, rank-major only.
    pub row_experts: Vec<i32>,
    /// The weights that belong to them, `[M, topk]`, rank-major only.
    pub row_weights: Vec<f32>,
    /// The rows of each local expert, `[E, M]`, rank-major only.
    pub expert_rows: Vec<u32>,
}

impl DispatchBuffers {
    /// Memory for `payload` in `layout`, with `sideband_bytes` opaque bytes per token, in a group of `ranks` ranks.
    ///
    /// # Errors
    /// Those of [`Plan::new`] and [`RowShape::new`], [`Error::Limit`] if the configuration has less sideband, and
    /// [`Error::NoMemory`], which names the output for which there was no memory.
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

    /// The rows of an expert-major dispatch as elements of `T`, `[E, M, payload]`: 16-bit floats of
    /// [`Payload::SameAsInput`], or any type that the caller's own bytes have.
    ///
    /// ```
    /// # use epwire::{DispatchBuffers, EpConfig, Layout, Payload};
    /// # let config = EpConfig::new(4, 128, 8, 2);
    /// let received = DispatchBuffers::new(&config, 2, Payload::SameAsInput, Layout::ExpertMajor, 0)?;
    /// assert_eq!(received.rows_as::<half::bf16>().len(), 4 * (2 * 4) * 128); // local experts, rows, hidden
    /// # Ok::<(), epwire::Error>(())
    /// ```
    pub fn rows_as<T: Element>(&self) -> &[T] {
        let len = self.rows.len() / size_of::<T>();
        // SAFETY: the memory is aligned to 64 bytes, holds `len` elements, and every bit pattern is one (Element).
        unsafe { std::slice::from_raw_parts(self.rows.as_ptr().cast(), len) }
    }

    /// Where the rows that have arrived for a local expert lie in `[E, M, width]`: among the
    /// [elements](DispatchBuffers::rows_as) received, and among the outputs that [`Combine::new`](crate::Combine::new)
    /// takes. Expert-major only; empty for a number that is no local expert.
    ///
    /// ```
    /// # use epwire::{DispatchBuffers, EpConfig, Layout, Payload};
    /// # use half::bf16;
    /// # let config = EpConfig::new(4, 128, 8, 2);
    /// let mut received = DispatchBuffers::new(&config, 2, Payload::SameAsInput, Layout::ExpertMajor, 0)?;
    /// received.counts[1] = 3; // as a dispatch would say
    /// let rows = received.rows_as::<bf16>();
    /// let mut out = vec![bf16::ZERO; rows.len()];
    /// for expert in 0..received.counts.len() {
    ///     let at = received.places(expert, 128);
    ///     out[at.clone()].copy_from_slice(&rows[at]); // an expert would run here
    /// }
    /// assert_eq!(received.places(1, 128), 8 * 128..(8 + 3) * 128);
    /// # Ok::<(), epwire::Error>(())
    /// ```
    pub fn places(&self, expert: usize, width: usize) -> Range<usize> {
        let count = match self.layout {
            Layout::ExpertMajor => self.counts.get(expert).map_or(0, |count| *count as usize),
            Layout::RankMajor => 0,
        };
        if count == 0 {
            return 0..0;
        }
        let list = (self.source_token.len() / self.counts.len()).saturating_mul(width);
        let first = expert.saturating_mul(list);
        first..first.saturating_add(count.saturating_mul(width))
    }

    /// All of it as an output.
    pub fn output(&mut self) -> DispatchOutput<'_> {
        let output = DispatchOutput::default()
            .scales(TensorMut::new(&mut self.scales))
            .sideband(&mut self.sideband)
            .counts(&mut self.counts)
            .source_counts(&mut self.source_counts)
            .ranges(&mut self.ranges)
            .source_token(&mut self.source_token);
        match self.layout {
            Layout::ExpertMajor => output.rows(TensorMut::new(&mut self.rows)),
            Layout::RankMajor => output
                .row_experts(&mut self.row_experts)
                .row_weights(&mut self.row_weights)
                .expert_rows(&mut self.expert_rows),
        }
    }
}

/// `len` copies of `value`; on failure, the bytes for which there was no memory.
fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>, usize> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| len.saturating_mul(size_of::<T>()))?;
    list.resize(len, value);
    Ok(list)
}
