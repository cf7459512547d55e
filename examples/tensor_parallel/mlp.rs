//! The model: `y = relu(x w1) w2`, whole or a rank's part of it.

use epwire::Outcome;

use crate::Result;

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub tokens: usize,
    pub hidden: usize,
    pub intermediate: usize,
}

/// Two layers: `up` `[hidden, channels]`, `down` `[channels, hidden]`.
pub struct Mlp {
    pub hidden: usize,
    pub channels: usize,
    pub up: Vec<f32>,
    pub down: Vec<f32>,
}

/// `[tokens, hidden]`, the same on all ranks.
pub fn input(shape: Shape) -> Vec<f32> {
    numbers(1, shape.tokens * shape.hidden).collect()
}

impl Mlp {
    /// The whole model, the same on all ranks.
    pub fn random(shape: Shape) -> Self {
        let Shape { hidden, intermediate: channels, .. } = shape;
        let weights = |seed| numbers(seed, hidden * channels).map(|x| x / 16.0).collect();
        Self { hidden, channels, up: weights(2), down: weights(3) }
    }

    /// A rank's part of it: columns of the first layer, and the rows of the second that take their outputs. So a rank
    /// needs nothing from the others between the two, and the outputs of all ranks sum up to that of the whole model.
    pub fn part(&self, rank: usize, ranks: usize) -> Self {
        let own = self.channels / ranks;
        let columns = rank * own..(rank + 1) * own;
        let up = self.up.chunks_exact(self.channels).flat_map(|row| &row[columns.clone()]).copied().collect();
        let down = self.down[columns.start * self.hidden..columns.end * self.hidden].to_vec();
        Self { hidden: self.hidden, channels: own, up, down }
    }

    /// `[n, hidden]` of `x` `[n, hidden]`.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut between = multiply(x, self.hidden, &self.up, self.channels);
        between.iter_mut().for_each(|x| *x = x.max(0.0));
        multiply(&between, self.channels, &self.down, self.hidden)
    }
}

/// `[n, columns]` of `x` `[n, inner]` and `w` `[inner, columns]`.
fn multiply(x: &[f32], inner: usize, w: &[f32], columns: usize) -> Vec<f32> {
    let row = |x: &[f32]| {
        let mut y = vec![0.0; columns];
        for (x, w) in x.iter().zip(w.chunks_exact(columns)) {
            y.iter_mut().zip(w).for_each(|(y, w)| *y += x * w);
        }
        y
    };
    x.chunks_exact(inner).flat_map(row).collect()
}

/// Between -1 and 1, from a seed.
fn numbers(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        // Knuth's MMIX.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
    .take(count)
}

/// Relative to the largest value expected.
pub fn max_rel_err(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    found.iter().zip(expected).map(|(x, y)| (x - y).abs() / largest).fold(0.0, worse)
}

/// The larger one, or not a number if either is not: `f32::max` would drop that.
pub fn worse(one: f32, other: f32) -> f32 {
    if one.is_nan() || other.is_nan() { f32::NAN } else { one.max(other) }
}

/// Without the part of every rank there is no result.
pub fn complete(outcome: Outcome) -> Result<()> {
    match (outcome.is_complete(), outcome.record) {
        (true, _) => Ok(()),
        (false, Some(record)) => Err(record.to_string().into()),
        (false, None) => Err(format!("ranks {:?} are missing", outcome.missing).into()),
    }
}
