//! Reproducible pseudorandom numbers.

/// SplitMix64 with this seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number in `0..n`; 0 if `n` is 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31).checked_rem(n).unwrap_or(0)
    }
}
