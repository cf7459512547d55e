//! The model: bytes are tokens, and every layer is a Mixture of Experts with a residual connection. All weights follow
//! from a seed, so that every rank has them without communication. Nothing here knows epwire.
//!
//! A layer, for a token's hidden state `h` in 16 bits:
//! ```text
//! x       = round(rms_norm(h))                                 what dispatch sends
//! experts = the top k of x * router, weights by softmax over their logits
//! y_e     = round(down_e * (silu(gate_e * x) * (up_e * x)))    what combine takes
//! h       = round(h + combine(sum over e of weight_e * y_e))
//! ```

use std::{fmt, ops::Range};

use half::{bf16, f16};

use crate::{matrix::Matrix, random::Random, silu::silu};

/// A 16-bit floating-point type. Values are kept as bits, `u16`, in the form that epwire takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float16 {
    Bf16,
    F16,
}

impl Float16 {
    /// Rounds to nearest, ties to even.
    pub fn bits(self, value: f32) -> u16 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_bits(),
            Self::F16 => f16::from_f32(value).to_bits(),
        }
    }

    /// Exact.
    pub fn value(self, bits: u16) -> f32 {
        match self {
            Self::Bf16 => bf16::from_bits(bits).to_f32(),
            Self::F16 => f16::from_bits(bits).to_f32(),
        }
    }

    /// [`Float16::bits`] of every value.
    pub fn round(self, values: &[f32]) -> Vec<u16> {
        values.iter().map(|&v| self.bits(v)).collect()
    }

    /// [`Float16::value`] of every value.
    pub fn widen(self, bits: &[u16]) -> Vec<f32> {
        bits.iter().map(|&b| self.value(b)).collect()
    }
}

impl fmt::Display for Float16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// Sizes of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub hidden: usize,
    pub intermediate: usize,
    pub experts: usize,
    pub topk: usize,
    pub layers: usize,
}

/// All weights.
pub struct Model {
    pub shape: Shape,
    /// `[256, hidden]`.
    embedding: Vec<f32>,
    pub layers: Vec<Layer>,
}

/// A router and its experts.
pub struct Layer {
    /// Its position in the model.
    #[cfg(all(feature = "cuda", feature = "cudarc"))]
    pub index: usize,
    topk: usize,
    router: Matrix,
    pub experts: Vec<Expert>,
}

/// A SwiGLU feed-forward network.
pub struct Expert {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// Where tokens go: `[n, topk]` each, best expert first. The weights of a token sum to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    pub topk: usize,
    pub topk_idx: Vec<i32>,
    pub topk_weights: Vec<f32>,
}

impl Model {
    pub fn new(shape: Shape, seed: u64) -> Self {
        let Shape { hidden, intermediate, experts, topk, layers } = shape;
        let mut random = Random::new(seed, "embedding");
        let embedding = (0..256 * hidden).map(|_| random.unit()).collect();
        let layers = (0..layers)
            .map(|layer| {
                let common =
                    Expert::random(hidden, intermediate, &mut Random::new(seed, &format!("layer {layer}")));
                let own = |e| Random::new(seed, &format!("layer {layer} expert {e}"));
                Layer {
                    #[cfg(all(feature = "cuda", feature = "cudarc"))]
                    index: layer,
                    topk,
                    router: Matrix::random(
                        hidden,
                        experts,
                        &mut Random::new(seed, &format!("layer {layer} router")),
                    ),
                    experts: (0..experts).map(|e| common.variant(&mut own(e))).collect(),
                }
            })
            .collect();
        Self { shape, embedding, layers }
    }

    /// Hidden states `[range.len(), hidden]` of the tokens `range` of `text`. A token also carries a half of the byte
    /// before it and a quarter of the one before that; without them a text would have no more than 256 different rows.
    pub fn embed(&self, text: &[u8], range: Range<usize>, dtype: Float16) -> Vec<u16> {
        let row = |byte: u8| self.embedding[usize::from(byte) * self.shape.hidden..].iter();
        range
            .flat_map(|i| {
                let before = |distance| i.checked_sub(distance).map_or(0, |j| text[j]);
                let rows = row(text[i]).zip(row(before(1))).zip(row(before(2)));
                rows.take(self.shape.hidden).map(|((a, b), c)| dtype.bits(a + 0.5 * b + 0.25 * c))
            })
            .collect()
    }
}

/// What a layer sends: hidden states `[n, hidden]` divided by their root mean square.
pub fn normalize(states: &[u16], hidden: usize, dtype: Float16) -> Vec<u16> {
    let mut normalized = Vec::with_capacity(states.len());
    for row in states.chunks_exact(hidden) {
        let row = dtype.widen(row);
        let mean_square = row.iter().map(|v| v * v).sum::<f32>() / hidden as f32;
        let scale = 1.0 / (mean_square + 1e-6).sqrt();
        normalized.extend(row.iter().map(|v| dtype.bits(v * scale)));
    }
    normalized
}

/// The residual connection: adds a layer's output to the hidden states.
pub fn add_residual(states: &mut [u16], output: &[u16], dtype: Float16) {
    for (state, &out) in states.iter_mut().zip(output) {
        *state = dtype.bits(dtype.value(*state) + dtype.value(out));
    }
}

impl Layer {
    /// Routes rows `x` `[n, hidden]`. Of equal logits the lower expert wins.
    pub fn route(&self, x: &[u16], dtype: Float16) -> Routing {
        let logits = self.router.multiply(&dtype.widen(x));
        let mut routing = Routing { topk: self.topk, topk_idx: Vec::new(), topk_weights: Vec::new() };
        for logits in logits.chunks_exact(self.experts.len()) {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            order.truncate(self.topk);
            let powers: Vec<f32> = order.iter().map(|&e| (logits[e] - logits[order[0]]).exp()).collect();
            let sum: f32 = powers.iter().sum();
            routing.topk_idx.extend(order.iter().map(|&e| e as i32));
            routing.topk_weights.extend(powers.iter().map(|p| p / sum));
        }
        routing
    }
}

/// What experts of a layer have in common, as those do that were grown from one dense layer. Entirely independent ones
/// would cancel each other in the weighted sum, and what is left would show the 16-bit roundings larger than they are.
const COMMON: f32 = 0.9;

impl Expert {
    fn random(hidden: usize, intermediate: usize, random: &mut Random) -> Self {
        Self {
            gate: Matrix::random(hidden, intermediate, random),
            up: Matrix::random(hidden, intermediate, random),
            down: Matrix::random(intermediate, hidden, random),
        }
    }

    fn variant(&self, random: &mut Random) -> Self {
        Self {
            gate: self.gate.variant(COMMON, random),
            up: self.up.variant(COMMON, random),
            down: self.down.variant(COMMON, random),
        }
    }

    /// Outputs for rows `[m, hidden]`, not rounded.
    pub fn forward(&self, rows: &[f32]) -> Vec<f32> {
        let gate = self.gate.multiply(rows);
        let mut inner = self.up.multiply(rows);
        for (u, g) in inner.iter_mut().zip(gate) {
            *u *= silu(g);
        }
        self.down.multiply(&inner)
    }

    /// Its weights `[gate, up, down]`, each `[inputs, outputs]`.
    #[cfg(all(feature = "cuda", feature = "cudarc"))]
    pub fn weights(&self) -> [Vec<f32>; 3] {
        [&self.gate, &self.up, &self.down].map(Matrix::dense)
    }
}

/// The tokens of `rank` when `tokens` are split evenly: the first ranks get one more where it does not come out even.
pub fn share(tokens: usize, ranks: usize, rank: usize) -> Range<usize> {
    let begin = |r: usize| r * (tokens / ranks) + r.min(tokens % ranks);
    begin(rank)..begin(rank + 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SMALL: Shape = Shape { hidden: 32, intermediate: 24, experts: 6, topk: 3, layers: 2 };
    const TEXT: &[u8] = b"It was a bright cold day in April, and the clocks were striking thirteen.";

    #[test]
    fn the_same_seed_gives_the_same_model() {
        let outputs = |seed| {
            let model = Model::new(SMALL, seed);
            let x = model.embed(TEXT, 0..TEXT.len(), Float16::Bf16);
            (x.clone(), model.layers[1].experts[5].forward(&Float16::Bf16.widen(&x)))
        };
        assert_eq!(outputs(3), outputs(3));
        assert_ne!(outputs(3).1, outputs(4).1);
    }

    #[test]
    fn tokens_embed_alike_wherever_the_text_is_cut() {
        let model = Model::new(SMALL, 1);
        let whole = model.embed(TEXT, 0..TEXT.len(), Float16::F16);
        let parts: Vec<u16> =
            (0..3).flat_map(|rank| model.embed(TEXT, share(TEXT.len(), 3, rank), Float16::F16)).collect();
        assert_eq!(whole, parts);
        let rows: std::collections::HashSet<&[u16]> = whole.chunks(SMALL.hidden).collect();
        assert!(rows.len() > 60, "only {} different rows", rows.len());
    }

    #[test]
    fn shares_are_even_and_whole() {
        for (tokens, ranks) in [(10, 4), (3, 4), (0, 2), (8, 8), (1000, 7)] {
            let shares: Vec<_> = (0..ranks).map(|rank| share(tokens, ranks, rank)).collect();
            assert_eq!((shares[0].start, shares[ranks - 1].end), (0, tokens));
            assert!(shares.windows(2).all(|s| s[0].end == s[1].start));
            assert!(shares.iter().all(|s| s.len() == tokens / ranks || s.len() == tokens / ranks + 1));
        }
    }

    #[test]
    fn routing_picks_the_best_distinct_experts_with_weights_that_sum_to_one() {
        let model = Model::new(SMALL, 5);
        let x = normalize(&model.embed(TEXT, 0..TEXT.len(), Float16::Bf16), SMALL.hidden, Float16::Bf16);
        let routing = model.layers[0].route(&x, Float16::Bf16);
        assert_eq!(routing.topk_idx.len(), TEXT.len() * SMALL.topk);
        for (ids, weights) in routing.topk_idx.chunks(3).zip(routing.topk_weights.chunks(3)) {
            assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
            assert!(ids.iter().all(|e| (0..6).contains(e)));
            assert!(weights[0] >= weights[1] && weights[1] >= weights[2]);
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        let used: std::collections::HashSet<i32> = routing.topk_idx.iter().copied().collect();
        assert_eq!(used.len(), SMALL.experts, "every expert is chosen by some token");
    }

    #[test]
    fn an_experts_row_does_not_depend_on_its_neighbours() {
        let model = Model::new(SMALL, 5);
        let rows = Float16::Bf16.widen(&model.embed(TEXT, 0..7, Float16::Bf16));
        let together = model.layers[0].experts[2].forward(&rows);
        let alone: Vec<f32> =
            rows.chunks(SMALL.hidden).flat_map(|row| model.layers[0].experts[2].forward(row)).collect();
        assert_eq!(together, alone);
    }

    #[test]
    fn norms_are_one_and_states_stay_sane() {
        let rms = |row: &[u16]| {
            (Float16::F16.widen(row).iter().map(|v| v * v).sum::<f32>() / row.len() as f32).sqrt()
        };
        let model = Model::new(SMALL, 9);
        let mut states = model.embed(TEXT, 0..TEXT.len(), Float16::F16);
        for _ in 0..20 {
            let x = normalize(&states, SMALL.hidden, Float16::F16);
            assert!(x.chunks(SMALL.hidden).all(|row| (rms(row) - 1.0).abs() < 1e-2));
            let output = model.layers[0].experts[0].forward(&Float16::F16.widen(&x));
            add_residual(&mut states, &Float16::F16.round(&output), Float16::F16);
        }
        assert!(states.chunks(SMALL.hidden).all(|row| (0.1..100.0).contains(&rms(row))));
    }
}
