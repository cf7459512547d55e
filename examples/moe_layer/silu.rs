//! The gate's activation, by additions, multiplications and a division alone: the same bits on every processor, those of GPUs
//! included (experts.cu has the same steps), which no library's exponential promises.

/// `x / (1 + exp(-x))`
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exponential(-x))
}

/// Within a few units in the last place from -87 to 88, and as there beyond.
fn exponential(x: f32) -> f32 {
    // exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2, a Taylor series. ln(2) in two parts, of which n times the first is exact.
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = (x - n * (355.0 / 512.0)) - n * -2.121_944_4e-4;
    let factors = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let sum = factors.into_iter().fold(0.0f32, |sum, factor| sum * r + factor);
    sum * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_a_few_units_in_the_last_place() {
        for i in -8700..=8800 {
            let x = i as f32 / 100.0;
            let (have, want) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((have / want - 1.0).abs() < 3e-7, "exp({x}) is {have}, not {want}");
        }
        assert_eq!(exponential(0.0), 1.0);
    }

    #[test]
    fn silu_is_a_soft_ramp_and_keeps_a_nan() {
        for (x, want) in [(0.0, 0.0), (100.0, 100.0), (1.0, 0.731_058_6), (-1.0, -0.268_941_43)] {
            assert!((silu(x) - want).abs() <= 1e-6 * want.abs(), "silu({x}) is {}", silu(x));
        }
        assert!(silu(-200.0).abs() < 1e-30 && silu(f32::NAN).is_nan());
    }
}
