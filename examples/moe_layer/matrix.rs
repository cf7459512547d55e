//! Row-vector times matrix in f32, fast enough for the example and with one fixed order of summation per output: a row's
//! result does not depend on which other rows are computed with it. So experts give the same bits wherever they run.

use crate::random::Random;

/// Columns of a panel: as many accumulators as two rows can keep in 128-bit registers, or four in 256-bit ones.
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

    /// `rows` `[m, inputs]` times this matrix: `[m, outputs]`. The same bits on every processor: no product is fused with a
    /// sum, and vectors run along the outputs.
    pub fn multiply(&self, rows: &[f32]) -> Vec<f32> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just asked.
            return unsafe { self.multiply_avx2(rows) };
        }
        self.multiply_by::<2>(rows)
    }

    /// Registers are twice as wide, and hold the accumulators of twice as many rows.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn multiply_avx2(&self, rows: &[f32]) -> Vec<f32> {
        self.multiply_by::<4>(rows)
    }

    /// `ROWS` rows at a time, so that a weight is loaded once for all of them, and the rest one by one.
    #[inline(always)]
    fn multiply_by<const ROWS: usize>(&self, rows: &[f32]) -> Vec<f32> {
        let mut products = vec![0.0; rows.len() / self.inputs * self.outputs];
        let blocks = rows.chunks(ROWS * self.inputs).zip(products.chunks_mut(ROWS * self.outputs));
        for (block, out) in blocks {
            let row = |r: usize| &block[r * self.inputs..][..self.inputs];
            if block.len() == ROWS * self.inputs {
                self.multiply_block(std::array::from_fn::<_, ROWS, _>(row), out);
            } else {
                for (r, out) in out.chunks_mut(self.outputs).enumerate() {
                    self.multiply_block([row(r)], out);
                }
            }
        }
        products
    }

    #[inline(always)]
    fn multiply_block<const ROWS: usize>(&self, rows: [&[f32]; ROWS], out: &mut [f32]) {
        for (p, panel) in self.panels.chunks_exact(self.inputs).enumerate() {
            let mut sums = [[0.0f32; PANEL]; ROWS];
            for (input, weights) in panel.iter().enumerate() {
                // By index: iterators over the rows keep the sums from staying in registers.
                for r in 0..ROWS {
                    let x = rows[r][input];
                    for column in 0..PANEL {
                        sums[r][column] += x * weights[column];
                    }
                }
            }
            let columns = p * PANEL..self.outputs.min((p + 1) * PANEL);
            for (sum, out) in sums.iter().zip(out.chunks_exact_mut(self.outputs)) {
                out[columns.clone()].copy_from_slice(&sum[..columns.len()]);
            }
        }
    }

    /// All entries `[inputs, outputs]`, row by row.
    #[cfg(any(test, all(feature = "cuda", feature = "cudarc")))]
    pub fn dense(&self) -> Vec<f32> {
        let row = |input: usize| {
            (0..self.outputs).map(move |o| self.panels[o / PANEL * self.inputs + input][o % PANEL])
        };
        (0..self.inputs).flat_map(row).collect()
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
            let (entries, products) = (matrix.dense(), matrix.multiply(&rows));
            assert_eq!(products.len(), m * outputs);
            assert_eq!(products, matrix.multiply_by::<2>(&rows), "with and without wide registers");
            for (r, row) in rows.chunks(inputs).enumerate() {
                for output in 0..outputs {
                    let sum =
                        row.iter().enumerate().fold(0.0, |s, (i, x)| s + x * entries[i * outputs + output]);
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
