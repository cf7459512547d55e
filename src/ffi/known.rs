//! What is known about suspects besides what the C core knows: whether the program has been told of the loss, and why a
//! peer was revoked.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::cause::Cause;
use crate::mask::Mask;

/// What is known of the suspects of the newest epoch, and why peers were revoked in the one before, of which errors may
/// still be reported.
#[derive(Debug, Default)]
pub(crate) struct Known {
    rank: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    epoch: u32,
    /// Those that an outcome has named, or that the program has revoked.
    told: Mask,
    /// Why waits for peers ended before the program revoked them.
    found: BTreeMap<u32, Cause>,
    /// Why peers were revoked.
    revoked: BTreeMap<u32, Cause>,
    /// The epoch before, and why peers were revoked in it.
    former: (u32, BTreeMap<u32, Cause>),
}

impl Known {
    /// What this rank knows.
    pub(super) fn new(rank: u32) -> Self {
        Self { rank, state: Mutex::default() }
    }

    /// This rank.
    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    /// Adds these suspects of an epoch, and returns those that the program had not been told of.
    pub(crate) fn add(&self, epoch: u32, ranks: &Mask) -> Mask {
        self.of(epoch, |state| {
            let news = *ranks - state.told;
            state.told |= *ranks;
            news
        })
    }

    /// A wait for this peer has ended in this epoch, for this cause of its own.
    pub(crate) fn found(&self, epoch: u32, peer: u32, cause: Cause) {
        self.of(epoch, |state| _ = state.found.entry(peer).or_insert(cause));
    }

    /// These peers are revoked in this epoch. [`Cause::Revoked`], by the program, is no news to it, and counts less than
    /// what a wait has found, or the group says.
    pub(crate) fn revoke(&self, epoch: u32, ranks: &Mask, why: Cause) {
        self.of(epoch, |state| {
            for rank in ranks {
                match why {
                    Cause::Revoked => {
                        let why = state.found.get(&rank).copied().unwrap_or(why);
                        state.revoked.entry(rank).or_insert(why);
                    }
                    _ => _ = state.revoked.insert(rank, why),
                }
            }
            if why == Cause::Revoked {
                state.told |= *ranks;
            }
        });
    }

    /// Why the peer was revoked in this epoch, if it was.
    pub(crate) fn why(&self, epoch: u32, peer: u32) -> Option<Cause> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (former, revoked) = &state.former;
        let known = [(state.epoch, &state.revoked), (*former, revoked)];
        known.into_iter().find(|(of, _)| *of == epoch).and_then(|(_, revoked)| revoked.get(&peer).copied())
    }

    /// Nothing is noted of an epoch that is over.
    fn of<T: Default>(&self, epoch: u32, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.epoch > epoch {
            return T::default();
        }
        if state.epoch < epoch {
            let former = (state.epoch, std::mem::take(&mut state.revoked));
            *state = State { epoch, former, ..State::default() };
        }
        f(&mut state)
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

    #[test]
    fn what_the_group_knows_of_a_revoked_peer_counts_more_than_the_program_until_the_next_epoch() {
        let (known, one) = (Known::default(), Mask::all(1));
        assert_eq!(known.why(1, 0), None);
        for why in [Cause::Revoked, Cause::LeftOut, Cause::Ended] {
            known.revoke(1, &one, why);
            assert_eq!((known.why(1, 0), known.why(1, 1)), (Some(why), None));
        }
        known.revoke(1, &one, Cause::Revoked);
        assert_eq!(known.why(1, 0), Some(Cause::Ended));
    }

    #[test]
    fn what_is_known_stays_though_an_earlier_epoch_is_asked_about() {
        let (known, one) = (Known::default(), Mask::all(1));
        known.revoke(1, &one, Cause::Ended);
        known.revoke(2, &one, Cause::Revoked);
        assert_eq!(known.why(1, 0), Some(Cause::Ended));
        assert_eq!(known.add(1, &one), Mask::EMPTY);
        assert_eq!((known.why(2, 0), known.add(2, &one)), (Some(Cause::Revoked), Mask::EMPTY));
        known.revoke(3, &one, Cause::LeftOut);
        assert_eq!((known.why(1, 0), known.why(2, 0)), (None, Some(Cause::Revoked)));
    }

    #[test]
    fn a_revoked_peer_keeps_the_cause_that_a_wait_has_found() {
        let (known, one) = (Known::default(), Mask::all(1));
        known.found(1, 0, Cause::Timeout);
        known.revoke(1, &one, Cause::Revoked);
        assert_eq!(known.why(1, 0), Some(Cause::Timeout));
        known.revoke(1, &one, Cause::Ended);
        assert_eq!(known.why(1, 0), Some(Cause::Ended));
        assert_eq!(known.add(1, &one), Mask::EMPTY);
        assert_eq!(known.why(2, 0), None);
    }
}
