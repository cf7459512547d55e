//! A small generator of random numbers whose sequence is fixed for all time: SplitMix64 (Steele, Lea and Flood, 2014).

/// The state: one 64-bit counter.
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed and purpose, so that adding a layer does not change the others.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut random = Self(seed);
        for byte in purpose.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly distributed in [-1, 1), a multiple of 2^-23 and thus exact in f32.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_sequence_is_that_of_the_paper() {
        let mut random = Random(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn units_fill_their_interval_evenly() {
        let mut random = Random::new(7, "test");
        let values: Vec<f32> = (0..10_000).map(|_| random.unit()).collect();
        assert!(values.iter().all(|v| (-1.0..1.0).contains(v)));
        let mean = values.iter().sum::<f32>() / 1e4;
        let square = values.iter().map(|v| v * v).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.03 && (square - 1.0 / 3.0).abs() < 0.03, "mean {mean}, mean square {square}");
    }

    #[test]
    fn purposes_have_sequences_of_their_own() {
        assert_ne!(Random::new(7, "a").next(), Random::new(7, "b").next());
        assert_ne!(Random::new(7, "a").next(), Random::new(8, "a").next());
    }
}
