//! Which suspects a program knows of, so that it is told of each loss once.

use std::sync::{Mutex, PoisonError};

use crate::mask::Mask;

/// The suspects of an epoch that an outcome has named, or that the program has revoked.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<(u32, Mask)>);

impl Known {
    /// Adds these suspects of an epoch, and returns those that were not among them.
    pub(crate) fn add(&self, epoch: u32, ranks: &Mask) -> Mask {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != epoch {
            *known = (epoch, Mask::EMPTY);
        }
        let news = ranks.minus(&known.1);
        known.1 = known.1.or(ranks);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspect_is_news_once_in_each_epoch() {
        let (known, [one, two]) = (Known::default(), [Mask::all(1), Mask::all(2)]);
        assert_eq!(known.add(1, &one), one);
        assert_eq!(known.add(1, &two), two.minus(&one));
        assert_eq!(known.add(1, &two), Mask::EMPTY);
        assert_eq!(known.add(2, &one), one);
    }
}
