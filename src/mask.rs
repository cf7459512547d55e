//! A set of ranks.

use std::fmt;

use crate::sys;

/// A set of ranks, up to [`Mask::MAX_RANKS`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask {
    bits: [u64; Mask::MAX_RANKS / 64],
}

impl Mask {
    /// Ranks of a group at most.
    pub const MAX_RANKS: usize = sys::EPW_MAX_RANKS as usize;

    /// The ranks `0..n`; those beyond [`Mask::MAX_RANKS`] are left out.
    pub fn first(n: u32) -> Self {
        (0..n).collect()
    }

    /// Whether `rank` is in the set.
    pub fn contains(&self, rank: u32) -> bool {
        self.bits.get(rank as usize / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// Adds `rank`. A rank of [`Mask::MAX_RANKS`] or more is ignored.
    pub fn insert(&mut self, rank: u32) {
        if let Some(word) = self.bits.get_mut(rank as usize / 64) {
            *word |= 1 << (rank % 64);
        }
    }

    /// Takes `rank` out.
    pub fn remove(&mut self, rank: u32) {
        if let Some(word) = self.bits.get_mut(rank as usize / 64) {
            *word &= !(1 << (rank % 64));
        }
    }

    /// The set without `rank`.
    #[must_use]
    pub fn without(mut self, rank: u32) -> Self {
        self.remove(rank);
        self
    }

    /// How many ranks are in the set.
    pub fn len(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| *word == 0)
    }

    /// The ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..Self::MAX_RANKS as u32).filter(|rank| self.contains(*rank))
    }

    pub(crate) fn to_c(self) -> sys::epw_mask {
        sys::epw_mask { bits: self.bits }
    }

    pub(crate) fn from_c(mask: &sys::epw_mask) -> Self {
        Self { bits: mask.bits }
    }
}

impl FromIterator<u32> for Mask {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut mask = Self::default();
        ranks.into_iter().for_each(|rank| mask.insert(rank));
        mask
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_is_put_in_and_nothing_else() {
        let mask: Mask = [0, 63, 64, 1023].into_iter().collect();
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 63, 64, 1023]);
        assert_eq!(mask.len(), 4);
        assert!(!mask.contains(1) && !mask.contains(4096));
        assert_eq!(mask.without(64).len(), 3);
        assert_eq!(Mask::first(3), [0, 1, 2].into_iter().collect());
        assert!(Mask::default().is_empty());
    }
}
