//! The experts of one rank at work on what dispatch delivered, in either layout. Sizes: E local experts, M = ranks *
//! max_tokens rows, H channels, K experts per token.

use crate::{
    model::{Expert, Float16},
    run::Result,
};

/// Expert-major: `counts[e]` rows of expert e begin at row e*M. `rows(first, count)` gives their values `[count, H]`;
/// outputs go to the same rows of `out` `[E, M, H]`, rounded. Other rows of `out` are left as they are.
pub fn expert_major(
    experts: &[Expert],
    counts: &[u32],
    hidden: usize,
    dtype: Float16,
    rows: &dyn Fn(usize, usize) -> Result<Vec<f32>>,
    out: &mut [u16],
) -> Result<()> {
    let max_rows = out.len() / hidden / experts.len();
    for ((e, expert), &count) in experts.iter().enumerate().zip(counts) {
        let (first, count) = (e * max_rows, count as usize);
        let outputs = dtype.round(&expert.forward(&rows(first, count)?));
        out[first * hidden..][..count * hidden].copy_from_slice(&outputs);
    }
    Ok(())
}

/// What a rank-major dispatch says about its rows.
#[derive(Debug, Clone, Copy)]
pub struct RankMajorRows<'a> {
    /// `[ranks]`: rows of each source s, which begin at row s*max_tokens.
    pub source_counts: &'a [u32],
    /// `[E]` and `[E, M]`: how many rows an expert has, and which, ascending.
    pub counts: &'a [u32],
    pub expert_rows: &'a [u32],
    /// `[M, K]`: local expert ids, -1 elsewhere, and weights.
    pub row_experts: &'a [i32],
    pub row_weights: &'a [f32],
    pub topk: usize,
}

/// Rank-major, first half: every expert's outputs, rounded, for its rows in the order of its list. `rows(list)` gives the
/// values `[list.len(), H]` of rows.
pub fn rank_major(
    experts: &[Expert],
    received: RankMajorRows<'_>,
    dtype: Float16,
    rows: &dyn Fn(&[u32]) -> Result<Vec<f32>>,
) -> Result<Vec<Vec<u16>>> {
    let max_rows = received.row_experts.len() / received.topk;
    let list = |e: usize| &received.expert_rows[e * max_rows..][..received.counts[e] as usize];
    let outputs = |(e, expert): (usize, &Expert)| Ok(dtype.round(&expert.forward(&rows(list(e))?)));
    experts.iter().enumerate().map(outputs).collect()
}

/// Rank-major, second half: sums every row's `outputs` with the row's weights in top-k order, rounds, and hands the result
/// `[H]` to `answer(source, row, result)`. All experts have read the rows by now, so an answer may take its row's place.
pub fn reduce(
    outputs: &[Vec<u16>],
    received: RankMajorRows<'_>,
    hidden: usize,
    dtype: Float16,
    mut answer: impl FnMut(u32, usize, &[u16]) -> Result<()>,
) -> Result<()> {
    let max_tokens = received.row_experts.len() / received.topk / received.source_counts.len();
    // An expert's outputs come in ascending order of rows, as the rows are visited here.
    let mut next: Vec<_> = outputs.iter().map(|outputs| outputs.chunks_exact(hidden)).collect();
    for (source, &count) in (0..).zip(received.source_counts) {
        for row in 0..count as usize {
            let first = (source as usize * max_tokens + row) * received.topk;
            let mut sum = vec![0.0f32; hidden];
            for slot in first..first + received.topk {
                let Ok(e) = usize::try_from(received.row_experts[slot]) else { continue };
                for (s, &y) in sum.iter_mut().zip(next[e].next().unwrap_or_default()) {
                    *s += received.row_weights[slot] * dtype.value(y);
                }
            }
            answer(source, row, &dtype.round(&sum))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, tests::SMALL};

    const H: usize = SMALL.hidden;

    #[test]
    fn expert_major_fills_the_counted_rows_only() {
        let model = Model::new(SMALL, 2);
        let experts = &model.layers[0].experts[..2];
        let input: Vec<f32> = (0..2 * 4 * H).map(|i| (i % 13) as f32 / 13.0).collect();
        let mut out = vec![7; 2 * 4 * H];
        let rows = |first: usize, count: usize| Ok(input[first * H..][..count * H].to_vec());
        expert_major(experts, &[3, 0], H, Float16::Bf16, &rows, &mut out).unwrap();
        assert_eq!(out[..3 * H], Float16::Bf16.round(&experts[0].forward(&input[..3 * H])));
        assert!(out[3 * H..].iter().all(|&bits| bits == 7));
    }

    #[test]
    fn rank_major_sums_each_row_over_its_experts_in_order() {
        // Two sources of at most 2 rows: rows 0 and 2. Row 0 goes to experts 1 then 0, row 2 to expert 1 alone.
        let model = Model::new(SMALL, 2);
        let experts = &model.layers[0].experts[..2];
        let dtype = Float16::F16;
        let input: Vec<f32> = (0..4 * H).map(|i| (i % 11) as f32 / 11.0).collect();
        let received = RankMajorRows {
            source_counts: &[1, 1],
            counts: &[1, 2],
            expert_rows: &[0, 9, 9, 9, 0, 2, 9, 9],
            row_experts: &[1, 0, 9, 9, -1, 1, 9, 9],
            row_weights: &[0.75, 0.25, 9.0, 9.0, 0.0, 0.5, 9.0, 9.0],
            topk: 2,
        };
        let rows =
            |list: &[u32]| Ok(list.iter().flat_map(|&r| &input[r as usize * H..][..H]).copied().collect());
        let outputs = rank_major(experts, received, dtype, &rows).unwrap();
        let mut out = vec![7; 4 * H];
        let answer = |source: u32, row: usize, sum: &[u16]| {
            out[(source as usize * 2 + row) * H..][..H].copy_from_slice(sum);
            Ok(())
        };
        reduce(&outputs, received, H, dtype, answer).unwrap();

        let y = |e: usize, row: usize| dtype.widen(&dtype.round(&experts[e].forward(&input[row * H..][..H])));
        let (y10, y00, y12) = (y(1, 0), y(0, 0), y(1, 2));
        for c in 0..H {
            assert_eq!(out[c], dtype.bits(0.75 * y10[c] + 0.25 * y00[c]));
            assert_eq!(out[2 * H + c], dtype.bits(0.5 * y12[c]));
            assert_eq!((out[H + c], out[3 * H + c]), (7, 7));
        }
    }
}
