//! The rule by which members are removed that nobody has seen dead.
//!
//! The group asks every member for whom it cannot reach, see [`Survey`]. Then:
//!
//! 1. a member is *silent* if it has not answered for a lease; it goes if at least half of the other members say that they
//!    cannot reach it either;
//! 2. a *link* is a pair of members, and broken if neither reaches the other; while there are broken links the member
//!    with most of them goes; among equals the one that more of the others cannot reach, then the higher rank;
//! 3. those who go must be fewer than half of the members that are not dead: else nobody goes.
//!
//! So an accusation alone costs nobody its place, and a member that is cut off from the others does not get the run to itself.
//!
//! Where the run is served by itself, and not by a member, there is one side on which it can go on: that of the server, which
//! is then the *arbiter*. Those who do not answer it need to be out of reach for half of those who do, rule 3 does not hold, and the run goes on
//! with as few as one.

use std::collections::{BTreeMap, BTreeSet};

use crate::mask::Mask;

/// What is known of the members of an epoch.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Those that nobody has seen dead.
    pub living: Mask,
    /// Of those that have answered: whom each cannot reach.
    pub unreachable: BTreeMap<u32, Mask>,
    /// Links, lower rank first, that count as broken though both ends reach each other: they have been in doubt too often.
    pub worn: BTreeSet<(u32, u32)>,
    /// Who asks is no member's server.
    pub arbiter: bool,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These members stay.
    Stay {
        /// Who.
        members: Mask,
    },
    /// A member is silent that the others can reach: without its promise nothing can be decided.
    Unsure {
        /// Who.
        silent: Mask,
    },
    /// Too many would go that nobody has seen dead.
    NoQuorum {
        /// Who.
        missing: Mask,
    },
}

impl Survey {
    /// The verdict on what has been answered so far; who has not counts as silent.
    pub fn decide(&self) -> Verdict {
        let answered: Mask = self.unreachable.keys().copied().collect();
        let silent = self.living.minus(&answered);
        let others = if self.arbiter { answered.len() } else { self.living.len().saturating_sub(1) };
        let reached =
            |rank: &u32| 2 * self.unreachable.values().filter(|peers| peers.contains(*rank)).count() < others;
        let unsure: Mask = silent.iter().filter(reached).collect();
        if !unsure.is_empty() {
            return Verdict::Unsure { silent: unsure };
        }
        let members = self.without_broken_links(self.living.and(&answered));
        let missing = self.living.minus(&members);
        let many = 2 * missing.len() >= self.living.len() && !self.arbiter;
        if !missing.is_empty() && (many || members.is_empty()) {
            return Verdict::NoQuorum { missing };
        }
        Verdict::Stay { members }
    }

    fn is_broken(&self, a: u32, b: u32) -> bool {
        let unreached =
            |from: u32, to: u32| self.unreachable.get(&from).is_some_and(|peers| peers.contains(to));
        unreached(a, b) && unreached(b, a) || self.worn.contains(&(a.min(b), a.max(b)))
    }

    fn without_broken_links(&self, mut members: Mask) -> Mask {
        loop {
            let broken = |rank: u32| {
                members.iter().filter(|peer| *peer != rank && self.is_broken(rank, *peer)).count()
            };
            let accused = |rank: u32| self.unreachable.values().filter(|peers| peers.contains(rank)).count();
            match members.iter().map(|rank| (broken(rank), accused(rank), rank)).max() {
                Some((links, _, rank)) if links > 0 => members.remove(rank),
                _ => return members,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(living: u32, unreachable: &[(u32, &[u32])]) -> Survey {
        let unreachable =
            unreachable.iter().map(|(rank, peers)| (*rank, peers.iter().copied().collect())).collect();
        Survey { living: Mask::all(living), unreachable, ..Survey::default() }
    }

    fn arbitrated(living: u32, unreachable: &[(u32, &[u32])]) -> Survey {
        Survey { arbiter: true, ..survey(living, unreachable) }
    }

    fn verdict(survey: &Survey) -> String {
        match survey.decide() {
            Verdict::Stay { members } => format!("{members} stay"),
            Verdict::Unsure { silent } => format!("{silent} silent"),
            Verdict::NoQuorum { missing } => format!("without {missing}: no quorum"),
        }
    }

    #[test]
    fn a_link_that_one_end_reaches_is_not_broken() {
        let lone: [(u32, &[u32]); 4] = [(0, &[1, 2, 3]), (1, &[]), (2, &[]), (3, &[])];
        assert_eq!(verdict(&survey(4, &lone)), "0-3 stay");
    }

    #[test]
    fn a_member_that_nobody_reaches_goes() {
        let each: [(u32, &[u32]); 4] = [(0, &[1, 2, 3]), (1, &[0]), (2, &[0]), (3, &[0])];
        assert_eq!(verdict(&survey(4, &each)), "1-3 stay");
        let pair: [(u32, &[u32]); 3] = [(0, &[2]), (1, &[]), (2, &[0])];
        assert_eq!(verdict(&survey(3, &pair)), "0-1 stay", "the higher rank among equals");
        // Rank 1 was stopped while the others looked for it, and then was too slow to reach one of them.
        let slow: [(u32, &[u32]); 4] = [(0, &[1]), (1, &[3]), (2, &[1]), (3, &[1])];
        assert_eq!(verdict(&survey(4, &slow)), "0,2-3 stay");
    }

    #[test]
    fn who_is_silent_goes_if_half_of_the_others_cannot_reach_it() {
        assert_eq!(verdict(&survey(4, &[(0, &[3]), (1, &[3]), (2, &[])])), "0-2 stay");
        assert_eq!(verdict(&survey(4, &[(0, &[3]), (1, &[]), (2, &[])])), "3 silent");
        assert_eq!(verdict(&survey(3, &[(0, &[2]), (1, &[])])), "0-1 stay");
    }

    #[test]
    fn fewer_than_half_of_the_living_may_go() {
        assert_eq!(verdict(&survey(2, &[(0, &[1])])), "without 1: no quorum");
        assert_eq!(verdict(&survey(2, &[(0, &[1]), (1, &[0])])), "without 1: no quorum");
        assert_eq!(verdict(&survey(4, &[(0, &[2, 3]), (1, &[2, 3])])), "without 2-3: no quorum");
        assert_eq!(verdict(&survey(5, &[(0, &[3, 4]), (1, &[3, 4]), (2, &[3, 4])])), "0-2 stay");
        assert_eq!(verdict(&survey(1, &[(0, &[])])), "0 stay");
    }

    #[test]
    fn an_arbiter_goes_on_with_whoever_answers() {
        assert_eq!(verdict(&arbitrated(2, &[(0, &[1])])), "0 stay");
        assert_eq!(verdict(&arbitrated(4, &[(0, &[2, 3]), (1, &[2, 3])])), "0-1 stay");
        assert_eq!(verdict(&arbitrated(4, &[(2, &[0, 1, 3])])), "2 stay");
        assert_eq!(verdict(&arbitrated(2, &[(0, &[1]), (1, &[0])])), "0 stay", "a broken link");
        // But not without those whom the others reach, nor with nobody.
        assert_eq!(verdict(&arbitrated(2, &[(0, &[])])), "1 silent");
        assert_eq!(
            verdict(&arbitrated(4, &[(0, &[2, 3]), (1, &[])])),
            "0-1 stay",
            "half of those who answer"
        );
        assert_eq!(verdict(&arbitrated(5, &[(0, &[3, 4]), (1, &[]), (2, &[])])), "3-4 silent");
        assert_eq!(verdict(&arbitrated(3, &[])), "without 0-2: no quorum");
        // Who answers keeps its place as everywhere.
        assert_eq!(verdict(&arbitrated(3, &[(0, &[1, 2]), (1, &[]), (2, &[])])), "0-2 stay");
    }

    #[test]
    fn a_link_in_doubt_too_often_counts_as_broken() {
        let mut survey = survey(3, &[(0, &[]), (1, &[]), (2, &[])]);
        survey.worn.insert((0, 1));
        assert_eq!(verdict(&survey), "0,2 stay");
    }
}
