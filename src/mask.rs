//! A set of ranks: the mask of a membership, the suspects of a member, the participants of a step.

use std::fmt;

/// Largest world size, in ranks.
pub const MAX_WORLD: u32 = 1024;

const WORDS: usize = (MAX_WORLD / 64) as usize;

/// A set of ranks in `0..1024`, one bit each: bit `r % 64` of word `r / 64`, as `epw_mask` of the C core has it.
///
/// Ranks outside the range are never members; inserting one changes nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mask {
    words: [u64; WORDS],
}

impl Mask {
    /// The empty set.
    pub const EMPTY: Mask = Mask { words: [0; WORDS] };

    /// The ranks `0..world`.
    pub fn all(world: u32) -> Self {
        (0..world).collect()
    }

    /// A set from its words; the inverse of [`Mask::words`].
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// The 16 words of the set.
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// Whether `rank` is a member.
    pub fn contains(&self, rank: u32) -> bool {
        rank < MAX_WORLD && self.words[(rank / 64) as usize] >> (rank % 64) & 1 == 1
    }

    /// Adds `rank`.
    pub fn insert(&mut self, rank: u32) {
        if rank < MAX_WORLD {
            self.words[(rank / 64) as usize] |= 1 << (rank % 64);
        }
    }

    /// Takes `rank` out.
    pub fn remove(&mut self, rank: u32) {
        if rank < MAX_WORLD {
            self.words[(rank / 64) as usize] &= !(1 << (rank % 64));
        }
    }

    /// The set without `rank`.
    #[must_use]
    pub fn without(mut self, rank: u32) -> Self {
        self.remove(rank);
        self
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(self.words).flat_map(|(index, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
        })
    }

    /// The members of both sets.
    pub fn and(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & other.words[i]) }
    }

    /// The members of either set.
    pub fn or(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] | other.words[i]) }
    }

    /// The members of this set that are not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & !other.words[i]) }
    }

    /// Whether every member is a rank of a world of `world` ranks.
    pub fn fits(&self, world: u32) -> bool {
        self.minus(&Self::all(world)).is_empty()
    }
}

impl FromIterator<u32> for Mask {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut set = Self::EMPTY;
        for rank in ranks {
            set.insert(rank);
        }
        set
    }
}

/// `0-3,7`: runs of ranks, so that a thousand of them still fit an error text.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranks = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = ranks.next() {
            let mut last = first;
            while let Some(next) = ranks.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ranks_are_printed_short() {
        let set: Mask = [0, 1, 2, 7, 63, 64, 65, 1023].into_iter().collect();
        assert_eq!(set.to_string(), "0-2,7,63-65,1023");
        assert_eq!(Mask::EMPTY.to_string(), "none");
    }

    #[test]
    fn a_rank_past_the_limit_is_never_a_member() {
        let mut set = Mask::EMPTY;
        set.insert(MAX_WORLD);
        set.remove(u32::MAX);
        assert!(set.is_empty() && !set.contains(MAX_WORLD));
        assert_eq!(Mask::all(MAX_WORLD).len(), 1024);
        assert!(!Mask::all(5).fits(4) && Mask::all(4).fits(4));
    }
}
