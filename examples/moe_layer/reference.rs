//! What a layer must give, computed in one process, in scalar code, without epwire.
//!
//! Two answers: `exact`, with every rounding that the protocol defines, which epwire must match bit for bit; and `plain`,
//! the same sum in f32 without roundings in between, which shows how much the 16-bit types cost.

use crate::model::{Float16, Layer, Routing};

/// How contributions are summed, as in section "numbers" of the design.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Summation {
    /// Per rank in top-k order, rounded; then ranks in ascending order, rounded. Expert e lives on rank e / (experts/ranks).
    RankReduced { ranks: usize },
    /// All experts in top-k order, rounded once.
    Ordered,
}

/// A layer's output `[n, hidden]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// With all roundings, in 16 bits.
    pub exact: Vec<u16>,
    /// Without them.
    pub plain: Vec<f32>,
}

/// The output of `layer` for tokens routed by `routing`. `rows` `[n, hidden]` are the values that experts receive: the
/// tokens widened, or through an FP8 quantiser and back. `dtype` is the type of the experts' outputs and of the result.
pub fn reference_layer(
    layer: &Layer,
    rows: &[f32],
    hidden: usize,
    routing: &Routing,
    summation: Summation,
    dtype: Float16,
) -> Expected {
    let experts = layer.experts.len();
    let outputs = expert_outputs(layer, rows, hidden, routing);
    let mut expected =
        Expected { exact: Vec::with_capacity(rows.len()), plain: Vec::with_capacity(rows.len()) };
    for (token, outputs) in outputs.chunks_exact(routing.topk).enumerate() {
        let at = token * routing.topk;
        let ids = &routing.topk_idx[at..at + routing.topk];
        let weights = &routing.topk_weights[at..at + routing.topk];
        // The weighted sum over the experts [low, high), from +0, in top-k order.
        let sum = |low: usize, high: usize, rows: &[Vec<f32>]| {
            let mut sum = vec![0.0f32; hidden];
            for slot in (0..routing.topk).filter(|&s| ids[s] >= 0 && (low..high).contains(&(ids[s] as usize)))
            {
                for (s, y) in sum.iter_mut().zip(&rows[slot]) {
                    *s += weights[slot] * y;
                }
            }
            sum
        };
        let rounded: Vec<Vec<f32>> = outputs.iter().map(|row| dtype.widen(&dtype.round(row))).collect();
        let total = match summation {
            Summation::Ordered => sum(0, experts, &rounded),
            Summation::RankReduced { ranks } => {
                let local = experts / ranks;
                let mut total = vec![0.0f32; hidden];
                // A rank that has none of the token's experts sends no row. Adding its zeros instead would change
                // nothing, but most ranks have none.
                let has = |rank: usize| ids.iter().any(|&id| id >= 0 && id as usize / local == rank);
                for rank in (0..ranks).filter(|&rank| has(rank)) {
                    let row = dtype.round(&sum(rank * local, (rank + 1) * local, &rounded));
                    for (t, &y) in total.iter_mut().zip(&row) {
                        *t += dtype.value(y);
                    }
                }
                total
            }
        };
        expected.exact.extend(dtype.round(&total));
        expected.plain.extend(sum(0, experts, outputs));
    }
    expected
}

/// For every entry of `topk_idx` the expert's output row, empty where nothing is routed.
fn expert_outputs(layer: &Layer, rows: &[f32], hidden: usize, routing: &Routing) -> Vec<Vec<f32>> {
    let mut outputs = vec![Vec::new(); routing.topk_idx.len()];
    for (e, expert) in layer.experts.iter().enumerate() {
        let entries: Vec<usize> =
            (0..outputs.len()).filter(|&entry| routing.topk_idx[entry] == e as i32).collect();
        let gathered: Vec<f32> = entries
            .iter()
            .flat_map(|entry| &rows[entry / routing.topk * hidden..][..hidden])
            .copied()
            .collect();
        for (entry, row) in entries.iter().zip(expert.forward(&gathered).chunks_exact(hidden)) {
            outputs[*entry] = row.to_vec();
        }
    }
    outputs
}

/// Largest over rows of max|output - plain| / max|plain|. A row that should be zero counts with its largest element. Not
/// a number if the output holds one.
pub fn max_rel_err(output: &[u16], plain: &[f32], hidden: usize, dtype: Float16) -> f64 {
    let rows = output.chunks_exact(hidden).zip(plain.chunks_exact(hidden));
    rows.fold(0.0, |worst, (output, plain)| {
        let differences = output.iter().zip(plain).map(|(&o, p)| f64::from(dtype.value(o) - p).abs());
        let difference = differences.fold(0.0, larger);
        let scale = plain.iter().map(|p| f64::from(p.abs())).fold(0.0, larger);
        larger(worst, if scale > 0.0 { difference / scale } else { difference })
    })
}

/// The larger error; unlike `f64::max` it keeps a NaN, which must fail a run.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Rows of `output` that differ from `exact` in any bit.
pub fn wrong_rows(output: &[u16], exact: &[u16], hidden: usize) -> usize {
    output.chunks_exact(hidden).zip(exact.chunks_exact(hidden)).filter(|(out, exact)| out != exact).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, normalize, tests::SMALL};

    const HIDDEN: usize = SMALL.hidden;

    fn layer_input(dtype: Float16) -> (Model, Vec<u16>, Routing) {
        let model = Model::new(SMALL, 11);
        let text = b"To be, or not to be, that is the question";
        let x = normalize(&model.embed(text, 0..text.len(), dtype), HIDDEN, dtype);
        let routing = model.layers[0].route(&x, dtype);
        (model, x, routing)
    }

    fn reference(
        model: &Model,
        x: &[u16],
        routing: &Routing,
        summation: Summation,
        dtype: Float16,
    ) -> Expected {
        reference_layer(&model.layers[0], &dtype.widen(x), HIDDEN, routing, summation, dtype)
    }

    #[test]
    fn both_summations_are_close_to_the_plain_sum_and_differ_from_each_other() {
        for dtype in [Float16::Bf16, Float16::F16] {
            let (model, x, routing) = layer_input(dtype);
            let reduced = reference(&model, &x, &routing, Summation::RankReduced { ranks: 3 }, dtype);
            let ordered = reference(&model, &x, &routing, Summation::Ordered, dtype);
            assert_eq!(reduced.plain, ordered.plain);
            assert!(wrong_rows(&reduced.exact, &ordered.exact, HIDDEN) > 0);
            for expected in [reduced, ordered] {
                let error = max_rel_err(&expected.exact, &expected.plain, HIDDEN, dtype);
                assert!(error > 0.0 && error < 1e-2, "{dtype}: {error}");
            }
        }
    }

    #[test]
    fn on_one_rank_reduced_is_ordered() {
        let (model, x, routing) = layer_input(Float16::Bf16);
        let reduced = reference(&model, &x, &routing, Summation::RankReduced { ranks: 1 }, Float16::Bf16);
        assert_eq!(reduced, reference(&model, &x, &routing, Summation::Ordered, Float16::Bf16));
    }

    #[test]
    fn sums_follow_the_definition_by_hand() {
        // Three experts on three ranks, in the order 2, 0, 1: by rank it is (y0 + y1) + y2, each rounded before.
        let dtype = Float16::Bf16;
        let (model, x, mut routing) = layer_input(dtype);
        routing.topk_idx[..3].copy_from_slice(&[4, 1, 2]);
        let x0 = dtype.widen(&x[..HIDDEN]);
        let y: Vec<Vec<u16>> =
            [4, 1, 2].map(|e: usize| dtype.round(&model.layers[0].experts[e].forward(&x0))).to_vec();
        let w = &routing.topk_weights[..3];
        let term = |slot: usize, channel: usize| w[slot] * dtype.value(y[slot][channel]);
        let rounded = |v: f32| dtype.value(dtype.bits(v));
        let reduced = reference(&model, &x, &routing, Summation::RankReduced { ranks: 3 }, dtype);
        let ordered = reference(&model, &x, &routing, Summation::Ordered, dtype);
        for c in 0..HIDDEN {
            let by_rank = rounded(term(1, c)) + rounded(term(2, c)) + rounded(term(0, c));
            assert_eq!(reduced.exact[c], dtype.bits(by_rank));
            assert_eq!(ordered.exact[c], dtype.bits(term(0, c) + term(1, c) + term(2, c)));
        }
    }

    #[test]
    fn entries_not_routed_contribute_nothing() {
        let (model, x, mut routing) = layer_input(Float16::F16);
        routing.topk_idx[..3].fill(-1);
        routing.topk_idx[4..6].fill(-1);
        let expected = reference(&model, &x, &routing, Summation::RankReduced { ranks: 2 }, Float16::F16);
        assert!(expected.exact[..HIDDEN].iter().all(|&bits| bits == 0), "a token routed nowhere gives +0");
        assert_eq!(
            max_rel_err(&expected.exact[..HIDDEN], &expected.plain[..HIDDEN], HIDDEN, Float16::F16),
            0.0
        );
        let only = model.layers[0].experts[routing.topk_idx[3] as usize]
            .forward(&Float16::F16.widen(&x[HIDDEN..2 * HIDDEN]));
        let weight = routing.topk_weights[3];
        assert_eq!(expected.plain[HIDDEN], weight * only[0]);
    }

    #[test]
    fn the_payload_is_what_experts_see() {
        let (model, x, routing) = layer_input(Float16::Bf16);
        let zeros = vec![0.0; x.len()];
        let ordered = Summation::Ordered;
        let expected = reference_layer(&model.layers[0], &zeros, HIDDEN, &routing, ordered, Float16::Bf16);
        assert!(expected.plain.iter().all(|&v| v == 0.0));
    }

    #[test]
    fn errors_are_relative_to_the_rows_largest_value() {
        let bits = |values: &[f32]| Float16::F16.round(values);
        let plain = [1.0, -4.0, 0.0, 0.5];
        assert_eq!(max_rel_err(&bits(&[1.0, -4.0, 0.0, 0.5]), &plain, 2, Float16::F16), 0.0);
        assert_eq!(max_rel_err(&bits(&[3.0, -4.0, 0.0, 0.5]), &plain, 2, Float16::F16), 0.5);
        assert_eq!(max_rel_err(&bits(&[1.0, -4.0, 0.5, 0.5]), &plain, 2, Float16::F16), 1.0);
        assert!(max_rel_err(&bits(&[f32::NAN, -4.0, 0.0, 0.5]), &plain, 2, Float16::F16).is_nan());
        assert_eq!(wrong_rows(&[1, 2, 3, 4], &[1, 2, 3, 5], 2), 1);
    }
}
