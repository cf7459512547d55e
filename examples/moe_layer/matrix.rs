//! Row-vector times matrix in f32, fast enough for the example and with one fixed order of summation per output: a row's
//! result does not depend on which other rows are computed with it. So experts give the same bits wherever they run.

use crate::random::Random;

/// Columns of a panel: as many accumulators as two rows can keep in 128-bit registers.
const PANEL: usize = 16;

/// A matrix `[inputs, outputs]`, stored as panels of 16 columns, each `[inputs, 16]`, the last one padded with zeros.
pub struct Matrix {
    inputs: usize,
    outputs: usize,
    panels: Vec<[f32; PANEL]>,
}

impl Matrix {
    /// Evenly distributed entries with mean square 1/inputs, so that a product keeps the size of its input.
    pub fn random(inputs: usize, outputs: usize, random: &mut Random) -> Self {
        let bound = (3.0 / inputs as f32).sqrt();
        let mut panels = vec![[0.0; PANEL]; outputs.div_ceil(PANEL) * inputs];
        for input in 0..inputs {
            for output in 0..outputs {
                panels[output / PANEL * inputs + input][output % PANEL] = bound * random.unit();
            }
        }
        Self { inputs, outputs, panels }
    }

    /// A matrix that has the part `common` of its mean square from this one and the rest of its own.
    pub fn variant(&self, common: f32, random: &mut Random) -> Self {
        let mut variant = Self::random(self.inputs, self.outputs, random);
        let (from_self, own) = (common.sqrt(), (1.0 - common).sqrt());
        for (v, s) in variant.panels.as_flattened_mut().iter_mut().zip(self.panels.as_flattened()) {
            *v = from_self * s + own * *v;
        }
        variant
    }

    /// `rows` `[m, inputs]` times this matrix: `[m, outputs]`.
    pub fn multiply(&self, rows: &[f32]) -> Vec<f32> {
        let mut products = vec![0.0; rows.len() / self.inputs * self.outputs];
        for (two, out) in rows.chunks(2 * self.inputs).zip(products.chunks_mut(2 * self.outputs)) {
            match two.split_at_checked(self.inputs) {
                Some((a, b)) if !b.is_empty() => self.multiply_block([a, b], out),
                _ => self.multiply_block([two], out),
            }
        }
        products
    }

    fn multiply_block<const ROWS: usize>(&self, rows: [&[f32]; ROWS], out: &mut [f32]) {
        for (p, panel) in self.panels.chunks_exact(self.inputs).enumerate() {
            let mut sums = [[0.0f32; PANEL]; ROWS];
            for (input, weights) in panel.iter().enumerate() {
                for (sum, row) in sums.iter_mut().zip(rows) {
                    let x = row[input];
                    for (s, w) in sum.iter_mut().zip(weights) {
                        *s += x * w;
                    }
                }
            }
            let columns = p * PANEL..self.outputs.min((p + 1) * PANEL);
            for (sum, out) in sums.iter().zip(out.chunks_exact_mut(self.outputs)) {
                out[columns.clone()].copy_from_slice(&sum[..columns.len()]);
            }
        }
    }

    /// The entry that multiplies `input` into `output`.
    #[cfg(test)]
    pub fn entry(&self, input: usize, output: usize) -> f32 {
        self.panels[output / PANEL * self.inputs + input][output % PANEL]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_the_sums_in_order_of_inputs() {
        let mut random = Random::new(1, "matrix");
        for (inputs, outputs, m) in [(8, 16, 2), (24, 40, 5), (7, 3, 1), (5, 17, 4), (4, 4, 0)] {
            let matrix = Matrix::random(inputs, outputs, &mut random);
            let rows: Vec<f32> = (0..m * inputs).map(|_| random.unit()).collect();
            let products = matrix.multiply(&rows);
            assert_eq!(products.len(), m * outputs);
            for (r, row) in rows.chunks(inputs).enumerate() {
                for output in 0..outputs {
                    let sum = row.iter().enumerate().fold(0.0, |s, (i, x)| s + x * matrix.entry(i, output));
                    assert_eq!(
                        products[r * outputs + output].to_bits(),
                        f32::to_bits(sum),
                        "{inputs}x{outputs}"
                    );
                }
            }
        }
    }
}
