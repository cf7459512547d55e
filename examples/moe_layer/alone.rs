//! The exchange of a world of one rank: nothing to send.

use std::time::Instant;

use crate::{
    args::Layout,
    experts::{self, RankMajorRows},
    model::{Float16, Layer, Routing},
    report::RankReport,
    run::{Error, Exchange},
};

/// All experts are here. Rows are laid out as a dispatch from this rank to itself would.
pub struct Alone {
    pub layout: Layout,
    pub hidden: usize,
    pub dtype: Float16,
}

impl Exchange for Alone {
    fn forward(
        &mut self,
        layer: &Layer,
        x: &[u16],
        routing: &Routing,
        report: &mut RankReport,
    ) -> Result<Vec<u16>, Error> {
        let begin = Instant::now();
        let Self { hidden, dtype, .. } = *self;
        let n = x.len() / hidden;
        let topk = routing.topk;
        let values = self.payload(x);
        let tokens_of = |e: i32| (0..n).filter(move |t| routing.topk_idx[t * topk..][..topk].contains(&e));
        let lists: Vec<Vec<u32>> =
            (0..layer.experts.len()).map(|e| tokens_of(e as i32).map(|t| t as u32).collect()).collect();
        let counts: Vec<u32> = lists.iter().map(|list| list.len() as u32).collect();
        let values_of = |list: &[u32]| -> Vec<f32> {
            list.iter().flat_map(|&t| &values[t as usize * hidden..][..hidden]).copied().collect()
        };
        let mut out = vec![0; n * hidden];
        match self.layout {
            Layout::RankMajor => {
                let mut expert_rows = vec![0; lists.len() * n];
                for (list, place) in lists.iter().zip(expert_rows.chunks_mut(n.max(1))) {
                    place[..list.len()].copy_from_slice(list);
                }
                let received = RankMajorRows {
                    source_counts: &[n as u32],
                    counts: &counts,
                    expert_rows: &expert_rows,
                    row_experts: &routing.topk_idx,
                    row_weights: &routing.topk_weights,
                    topk,
                };
                experts::rank_major(&layer.experts, received, hidden, dtype, &values_of, &mut out);
            }
            Layout::ExpertMajor => {
                let mut outputs = vec![0; lists.len() * n * hidden];
                let rows = |first: usize, count: usize| match first.checked_div(n) {
                    Some(e) => values_of(&lists[e][..count]),
                    None => Vec::new(),
                };
                experts::expert_major(&layer.experts, &counts, hidden, dtype, &rows, &mut outputs);
                for t in 0..n {
                    let mut sum = vec![0.0f32; hidden];
                    for slot in t * topk..(t + 1) * topk {
                        let e = routing.topk_idx[slot] as usize;
                        let row = e * n + lists[e].partition_point(|&other| (other as usize) < t);
                        for (s, &y) in sum.iter_mut().zip(&outputs[row * hidden..][..hidden]) {
                            *s += routing.topk_weights[slot] * dtype.value(y);
                        }
                    }
                    out[t * hidden..][..hidden].copy_from_slice(&dtype.round(&sum));
                }
            }
        }
        report.experts_seconds += begin.elapsed().as_secs_f64();
        Ok(out)
    }

    fn payload(&self, x: &[u16]) -> Vec<f32> {
        self.dtype.widen(x)
    }
}
