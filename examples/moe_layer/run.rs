//! One rank's pass over the text: step by step, layer by layer, with every output checked.

use indicatif::ProgressBar;

use crate::{
    model::{self, Float16, Layer, Model, Routing},
    reference::{self, Summation},
    report::RankReport,
};

/// Any error; the example prints it and exits.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;

/// How tokens reach the experts, and how the outputs return.
pub trait Exchange {
    /// The output `[n, hidden]` of `layer` for rows `x` `[n, hidden]`, n at most max_tokens. All ranks call it for the same
    /// layers in the same order, with any n each. Adds rows, bytes and times to `report`.
    fn forward(
        &mut self,
        layer: &Layer,
        x: &[u16],
        routing: &Routing,
        report: &mut RankReport,
    ) -> Result<Vec<u16>>;

    /// How each rank is reached, itself included.
    fn paths(&self) -> Vec<String>;

    /// What drains its queues, where it has some.
    fn nic(&self) -> Option<String>;

    /// The values that experts receive for rows `x` `[n, hidden]`.
    fn payload(&self, x: &[u16]) -> Result<Vec<f32>>;
}

/// How the text is divided, the same on all ranks except `rank`.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    pub rank: usize,
    pub ranks: usize,
    pub max_tokens: usize,
}

impl Cut {
    /// Steps that every rank takes: as many as the largest share needs. In its last steps a rank may have no tokens.
    pub fn steps(&self, tokens: usize) -> usize {
        model::share(tokens, self.ranks, 0).len().div_ceil(self.max_tokens)
    }

    fn tokens(&self, tokens: usize, step: usize) -> std::ops::Range<usize> {
        let share = model::share(tokens, self.ranks, self.rank);
        let begin = (share.start + step * self.max_tokens).min(share.end);
        begin..(begin + self.max_tokens).min(share.end)
    }
}

/// Runs this rank's share of `text` through the model. The bar advances by one per layer and step.
pub fn run(
    model: &Model,
    text: &[u8],
    cut: Cut,
    dtype: Float16,
    summation: Summation,
    exchange: &mut dyn Exchange,
    bar: &ProgressBar,
) -> Result<RankReport> {
    let hidden = model.shape.hidden;
    let (rank, paths, nic) = (cut.rank as u32, exchange.paths(), exchange.nic());
    let mut report = RankReport { rank, paths, nic, ..RankReport::default() };
    for step in 0..cut.steps(text.len()) {
        let tokens = cut.tokens(text.len(), step);
        report.tokens += tokens.len() as u64;
        let mut states = model.embed(text, tokens, dtype);
        for layer in &model.layers {
            let x = model::normalize(&states, hidden, dtype);
            let routing = layer.route(&x, dtype);
            let output = exchange.forward(layer, &x, &routing, &mut report)?;

            let rows = exchange.payload(&x)?;
            let expected = reference::reference_layer(layer, &rows, hidden, &routing, summation, dtype);
            report.wrong_rows += reference::wrong_rows(&output, &expected.exact, hidden) as u64;
            let error = reference::max_rel_err(&output, &expected.plain, hidden, dtype);
            report.max_rel_err = reference::larger(report.max_rel_err, error);

            model::add_residual(&mut states, &output, dtype);
            bar.inc(1);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experts, model::tests::SMALL};

    /// All experts in this process, and optionally one wrong bit in the second layer's first output.
    struct Home {
        calls: usize,
        flip: bool,
    }

    impl Exchange for Home {
        fn forward(
            &mut self,
            layer: &Layer,
            x: &[u16],
            routing: &Routing,
            _: &mut RankReport,
        ) -> Result<Vec<u16>> {
            let n = x.len() / SMALL.hidden;
            let lists: Vec<Vec<u32>> = (0..SMALL.experts as i32)
                .map(|e| {
                    (0..n as u32).filter(|&t| routing.topk_idx[t as usize * 3..][..3].contains(&e)).collect()
                })
                .collect();
            let received = experts::RankMajorRows {
                source_counts: &[n as u32],
                counts: &lists.iter().map(|l| l.len() as u32).collect::<Vec<_>>(),
                expert_rows: &lists
                    .iter()
                    .flat_map(|l| [l.as_slice(), &vec![0; n - l.len()]].concat())
                    .collect::<Vec<_>>(),
                row_experts: &routing.topk_idx,
                row_weights: &routing.topk_weights,
                topk: 3,
            };
            let values = self.payload(x)?;
            let rows = |list: &[u32]| {
                let row = |&r: &u32| &values[r as usize * SMALL.hidden..][..SMALL.hidden];
                Ok(list.iter().flat_map(row).copied().collect())
            };
            let outputs = experts::rank_major(&layer.experts, received, Float16::Bf16, &rows)?;
            let mut out = Vec::new();
            let answer = |_, _, sum: &[u16]| {
                out.extend_from_slice(sum);
                Ok(())
            };
            experts::reduce(&outputs, received, SMALL.hidden, Float16::Bf16, answer)?;
            self.calls += 1;
            if self.flip && self.calls == 2 {
                out[0] ^= 1;
            }
            Ok(out)
        }

        fn paths(&self) -> Vec<String> {
            vec!["self".to_owned()]
        }

        fn nic(&self) -> Option<String> {
            None
        }

        fn payload(&self, x: &[u16]) -> Result<Vec<f32>> {
            Ok(Float16::Bf16.widen(x))
        }
    }

    fn report(cut: Cut, flip: bool) -> (RankReport, usize) {
        let text: Vec<u8> = (0..100u8).map(|i| i.wrapping_mul(37)).collect();
        let mut home = Home { calls: 0, flip };
        let bar = ProgressBar::hidden();
        let summation = Summation::RankReduced { ranks: 1 };
        let report =
            run(&Model::new(SMALL, 1), &text, cut, Float16::Bf16, summation, &mut home, &bar).unwrap();
        (report, home.calls)
    }

    #[test]
    fn a_share_is_run_whole_and_found_right() {
        let (report, calls) = report(Cut { rank: 2, ranks: 3, max_tokens: 8 }, false);
        assert_eq!((report.rank, report.tokens, report.wrong_rows), (2, 33, 0));
        assert_eq!(calls, 5 * SMALL.layers, "34 tokens of rank 0 need 5 steps of 8, on every rank");
        assert!(report.max_rel_err > 0.0 && report.max_rel_err < 1e-2);
    }

    #[test]
    fn a_rank_without_tokens_still_takes_every_step() {
        let (report, calls) = report(Cut { rank: 100, ranks: 101, max_tokens: 8 }, false);
        assert_eq!((report.tokens, calls), (0, SMALL.layers));
    }

    #[test]
    fn one_wrong_bit_is_found() {
        assert_eq!(report(Cut { rank: 0, ranks: 1, max_tokens: 64 }, true).0.wrong_rows, 1);
    }
}
