//! A set of ranks: the mask of a membership, the suspects of a member, the participants of a step.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Sub, SubAssign};
use std::str::FromStr;

use crate::names::ParseNameError;

/// Largest world size, in ranks.
pub const MAX_WORLD: u32 = 1024;

const WORDS: usize = (MAX_WORLD / 64) as usize;

/// A set of ranks in `0..1024`, one bit each: bit `r % 64` of word `r / 64`, as `epw_mask` of the C core has it.
///
/// Ranks outside the range are never members; inserting one changes nothing. It is printed and read as runs of ranks, `0-3,7`, and
/// `none`.
///
/// ```
/// # use epwire::Mask;
/// let members: Mask = "0-3,7".parse()?;
/// let lost: Mask = [2, 7].into_iter().collect();
/// assert_eq!((members - lost).to_string(), "0-1,3");
/// assert_eq!(members | lost, members);
/// assert_eq!((members & lost).into_iter().sum::<u32>(), 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mask {
    words: [u64; WORDS],
}

impl Mask {
    /// The empty set.
    pub const EMPTY: Mask = Mask { words: [0; WORDS] };

    /// The ranks `0..world`, [`MAX_WORLD`] at most.
    pub fn all(world: u32) -> Self {
        (0..world.min(MAX_WORLD)).collect()
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
    pub fn iter(&self) -> Iter {
        Iter { words: self.words, word: 0 }
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

    /// For messages: `rank 2`, `ranks 0-1,3`, or `no rank`.
    pub(crate) fn named(&self) -> impl fmt::Display {
        let words = match self.len() {
            0 => return "no rank".to_owned(),
            1 => "rank",
            _ => "ranks",
        };
        format!("{words} {self}")
    }

    /// Whether every member is a rank of a world of `world` ranks.
    pub fn fits(&self, world: u32) -> bool {
        self.minus(&Self::all(world)).is_empty()
    }
}

/// The members of a [`Mask`], ascending.
#[derive(Debug, Clone)]
pub struct Iter {
    words: [u64; WORDS],
    /// The first word that may have bits left.
    word: usize,
}

impl Iterator for Iter {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let left = self.words.get(self.word..)?.iter().position(|word| *word != 0)?;
        self.word += left;
        let word = &mut self.words[self.word];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        Some(self.word as u32 * 64 + bit)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = Mask { words: self.words }.len();
        (count, Some(count))
    }
}

impl ExactSizeIterator for Iter {}
impl std::iter::FusedIterator for Iter {}

impl IntoIterator for Mask {
    type Item = u32;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}

impl IntoIterator for &Mask {
    type Item = u32;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}

/// Implements an operator and its assigning form with the method that does the same.
macro_rules! operators {
    ($($operator:ident::$function:ident, $assign:ident::$function_assign:ident: $method:ident;)+) => {$(
        impl $operator for Mask {
            type Output = Mask;

            fn $function(self, other: Mask) -> Mask {
                self.$method(&other)
            }
        }

        impl $assign for Mask {
            fn $function_assign(&mut self, other: Mask) {
                *self = self.$method(&other);
            }
        }
    )+};
}

operators! {
    BitOr::bitor, BitOrAssign::bitor_assign: or;
    BitAnd::bitand, BitAndAssign::bitand_assign: and;
    Sub::sub, SubAssign::sub_assign: minus;
}

impl Extend<u32> for Mask {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, ranks: I) {
        ranks.into_iter().for_each(|rank| self.insert(rank));
    }
}

impl FromIterator<u32> for Mask {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut set = Self::EMPTY;
        set.extend(ranks);
        set
    }
}

/// `Mask::from([1, 4])`; ranks from 1024 on cannot be members and are left out.
impl<const N: usize> From<[u32; N]> for Mask {
    fn from(ranks: [u32; N]) -> Self {
        ranks.into_iter().collect()
    }
}

/// Reads what is printed: ranks and runs of ranks separated by commas, or `none`.
impl FromStr for Mask {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let wrong = || ParseNameError::new(text, "a set of ranks below 1024 such as 0-3,7, or none");
        let rank = |text: &str| text.trim().parse().ok().filter(|rank| *rank < MAX_WORLD).ok_or_else(wrong);
        let mut set = Self::EMPTY;
        for run in text.split(',').filter(|_| text != "none") {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last) = (rank(first)?, rank(last)?);
            if first > last {
                return Err(wrong());
            }
            set.extend(first..=last);
        }
        Ok(set)
    }
}

/// Serialised as it is printed.
#[cfg(feature = "serde")]
impl serde::Serialize for Mask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Mask {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
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
    fn a_printed_set_is_read_again() {
        let sets = [Mask::EMPTY, Mask::all(MAX_WORLD), [0, 1, 2, 7, 63, 64, 1023].into_iter().collect()];
        for set in sets {
            assert_eq!(set.to_string().parse(), Ok(set));
            assert_eq!(set.iter().len(), set.len());
            assert_eq!(set.into_iter().collect::<Mask>(), set);
        }
        for wrong in ["", "3-1", "1024", "1,,2", "a", "-1"] {
            let error = wrong.parse::<Mask>().unwrap_err();
            assert!(
                error.to_string().ends_with("a set of ranks below 1024 such as 0-3,7, or none"),
                "{error}"
            );
        }
    }

    #[test]
    fn operators_are_those_of_sets() {
        let [mut a, b] = ["0-3", "2-5"].map(|set| set.parse::<Mask>().unwrap());
        assert_eq!([a | b, a & b, a - b].map(|set| set.to_string()), ["0-5", "2-3", "0-1"]);
        a |= b;
        a -= Mask::all(1);
        a &= Mask::all(5);
        assert_eq!(a.to_string(), "1-4");
    }

    #[test]
    fn a_list_of_ranks_is_a_set() {
        assert_eq!(Mask::from([1, 4, 1]).to_string(), "1,4");
        assert_eq!(Mask::from([2, 1024]), Mask::from([2]));
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
