//! The contents of rows: each has its own, which the receiver can tell without being told, and which is cheap to make and
//! to check.

use epwire::{Float16, TensorMut, TensorRef};
use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

/// Starting points in the table. A row that is not the expected one passes for it about once in this many tries.
const STARTS: usize = 1 << 16;

/// Random numbers in [-1, 1); a row is a stretch of them.
#[derive(Debug)]
pub struct Pattern {
    table: Vec<u16>,
    hidden: usize,
}

impl Pattern {
    pub fn new(dtype: Float16, hidden: u32) -> Self {
        let value = |i: u32| (mix(&[0, i]) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
        let values: Vec<f32> = (0..STARTS as u32 + hidden).map(value).collect();
        let mut table = vec![0; values.len()];
        round_all(dtype, &values, &mut table);
        Self { table, hidden: hidden as usize }
    }

    /// The row of 16-bit values that belongs to `key`.
    pub fn row(&self, key: &[u32]) -> &[u16] {
        &self.table[mix(key) as usize % STARTS..][..self.hidden]
    }
}

/// A hash of a few numbers: SplitMix64 (Steele, Lea and Flood, 2014) over them in turn.
pub fn mix(key: &[u32]) -> u64 {
    key.iter().fold(0x5eed, |state: u64, &number| {
        let z = (state ^ u64::from(number)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Each to the nearest 16-bit value, ties to even.
pub fn round_all(dtype: Float16, values: &[f32], bits: &mut [u16]) {
    let channels = bits.iter_mut().zip(values);
    match dtype {
        Float16::Bf16 => channels.for_each(|(b, &v)| *b = bf16::from_f32(v).to_bits()),
        Float16::F16 => channels.for_each(|(b, &v)| *b = f16::from_f32(v).to_bits()),
    }
}

/// `sum += weight * row`, channel by channel, multiplication and addition rounded each.
pub fn add(dtype: Float16, sum: &mut [f32], weight: f32, row: &[u16]) {
    let channels = sum.iter_mut().zip(row);
    match dtype {
        Float16::Bf16 => channels.for_each(|(s, &v)| *s += weight * bf16::from_bits(v).to_f32()),
        Float16::F16 => channels.for_each(|(s, &v)| *s += weight * f16::from_bits(v).to_f32()),
    }
}

/// Rows of `cols` 16-bit values, as epwire takes them.
pub fn tensor(dtype: Float16, bits: &[u16], cols: u32) -> TensorRef<'_> {
    match dtype {
        Float16::Bf16 => TensorRef::new(bits.reinterpret_cast::<bf16>(), cols as usize),
        Float16::F16 => TensorRef::new(bits.reinterpret_cast::<f16>(), cols as usize),
    }
}

/// Memory for 16-bit values, as epwire fills it.
pub fn tensor_mut(dtype: Float16, bits: &mut [u16]) -> TensorMut<'_> {
    match dtype {
        Float16::Bf16 => TensorMut::new(bits.reinterpret_cast_mut::<bf16>()),
        Float16::F16 => TensorMut::new(bits.reinterpret_cast_mut::<f16>()),
    }
}

/// 16-bit values aligned to 64 bytes, zero until written, and no memory of the machine's until then.
#[derive(Debug)]
pub struct Memory {
    values: Vec<u16>,
    first: usize,
    len: usize,
}

impl Memory {
    pub fn zeroed(len: usize) -> Self {
        let values = vec![0; len + 32];
        let first = values.as_ptr().align_offset(64).min(32);
        Self { values, first, len }
    }
}

impl std::ops::Deref for Memory {
    type Target = [u16];
    fn deref(&self) -> &[u16] {
        &self.values[self.first..][..self.len]
    }
}

impl std::ops::DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u16] {
        &mut self.values[self.first..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_different_keys_differ_and_are_finite() {
        let pattern = Pattern::new(Float16::F16, 128);
        let row = pattern.row(&[1, 2, 3]);
        for other in [[2, 2, 3], [1, 3, 3], [1, 2, 4], [3, 2, 1]] {
            assert_ne!(row, pattern.row(&other));
        }
        assert!(pattern.table.iter().all(|&bits| f16::from_bits(bits).to_f32().abs() <= 1.0));
    }

    #[test]
    fn memory_is_aligned_and_keeps_what_is_written() {
        let mut memory = Memory::zeroed(100);
        assert_eq!(memory.as_ptr() as usize % 64, 0);
        memory[99] = 7;
        assert_eq!((memory.len(), memory[98], memory[99]), (100, 0, 7));
    }
}
