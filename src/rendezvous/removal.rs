//! The rule for removing members that nobody has seen dead.
//!
//! The group asks every member whether its own device works, which peers it cannot reach, and which have begun the
//! current membership at another step than was decided, see [`Survey`]. Then:
//!
//! 1. a member is *silent* if it has not answered for a lease; it is removed if at least half of the other members report
//!    that they cannot reach it either;
//! 2. a member is removed that reports that its own device does not work; what it reports about others is ignored;
//! 3. a member has *broken its promise* if it has begun the membership at another step; it is removed if it reports so
//!    itself, or if at least two others do, and at least half of the others;
//! 4. a *link* is a pair of members; it is broken if neither reaches the other. While there are broken links among the
//!    remaining members, the member with most of them is removed; if several have equally many, the one that more of the
//!    others cannot reach, then the higher rank;
//! 5. the removed members must be fewer than half of those that are not dead: otherwise nobody is removed.
//!
//! So an accusation alone costs nobody its place, and a member that is cut off from the others cannot take over the
//! run.
//!
//! If the run is served by a separate server and not by a member, only the server's side can continue: the server is
//! then the *arbiter*. For a member that does not answer the server, half of those that do answer must be unable to
//! reach it; rule 5 does not apply, and the run can continue with a single member.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::wire;
use crate::mask::Mask;

/// The answer of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// The members it cannot reach, including itself if its own device does not work.
    pub unreachable: Mask,
    /// The members that, as far as it can see, have begun the membership at another step than was decided.
    pub diverged: Mask,
}
wire!(struct Findings { unreachable, diverged });

/// What is known of the members of an epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Those that nobody has seen dead.
    pub living: Mask,
    /// What each member that has answered has found.
    pub findings: BTreeMap<u32, Findings>,
    /// Links, lower rank first, that count as broken although both ends reach each other, because they have been in
    /// doubt too often. They are ignored if too many members would be removed because of them.
    pub worn: BTreeSet<(u32, u32)>,
    /// The asking server does not belong to a member.
    pub arbiter: bool,
}

/// The result of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// These members stay.
    Stay {
        /// The members.
        members: Mask,
    },
    /// A silent member can be reached by the others: without its promise nothing can be decided.
    Unsure {
        /// The silent members.
        silent: Mask,
    },
    /// Too many members would be removed that nobody has seen dead.
    NoQuorum {
        /// Those members.
        missing: Mask,
    },
}

impl Survey {
    /// The verdict on the answers so far; a member that has not answered counts as silent.
    pub(crate) fn decide(&self) -> Verdict {
        let answered: Mask = self.findings.keys().copied().collect();
        let silent = self.living.minus(&answered);
        let others = if self.arbiter { answered.len() } else { self.others() };
        let reached = |rank: &u32| 2 * self.unreached_by(*rank) < others;
        let unsure: Mask = silent.iter().filter(reached).collect();
        if !unsure.is_empty() {
            return Verdict::Unsure { silent: unsure };
        }
        let fit = |rank: &u32| self.has_device(*rank) && self.has_kept_promise(*rank);
        let fit = self.living.and(&answered).iter().filter(fit).collect();
        let members = self.without_broken_links(fit);
        let missing = self.living.minus(&members);
        let many = 2 * missing.len() >= self.living.len() && !self.arbiter;
        if !missing.is_empty() && (many || members.is_empty()) {
            return match self.worn.is_empty() {
                true => Verdict::NoQuorum { missing },
                false => Self { worn: BTreeSet::new(), ..self.clone() }.decide(),
            };
        }
        Verdict::Stay { members }
    }

    fn others(&self) -> usize {
        self.living.len().saturating_sub(1)
    }

    /// How many members report that they cannot reach it, not counting those whose own device does not work.
    fn unreached_by(&self, rank: u32) -> usize {
        let says = |(from, found): &(&u32, &Findings)| {
            **from != rank && self.has_device(**from) && found.unreachable.contains(rank)
        };
        self.findings.iter().filter(says).count()
    }

    fn has_device(&self, rank: u32) -> bool {
        self.findings.get(&rank).is_none_or(|found| !found.unreachable.contains(rank))
    }

    fn has_kept_promise(&self, rank: u32) -> bool {
        let says = |from: &u32| self.findings.get(from).is_some_and(|found| found.diverged.contains(rank));
        let witnesses = self.living.without(rank).iter().filter(says).count();
        !says(&rank) && (witnesses < 2 || 2 * witnesses < self.others())
    }

    fn is_broken(&self, a: u32, b: u32) -> bool {
        let unreached =
            |from: u32, to: u32| self.findings.get(&from).is_some_and(|found| found.unreachable.contains(to));
        unreached(a, b) && unreached(b, a) || self.worn.contains(&(a.min(b), a.max(b)))
    }

    fn without_broken_links(&self, mut members: Mask) -> Mask {
        loop {
            let broken = |rank: u32| {
                members.iter().filter(|peer| *peer != rank && self.is_broken(rank, *peer)).count()
            };
            match members.iter().map(|rank| (broken(rank), self.unreached_by(rank), rank)).max() {
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
        let found =
            |peers: &[u32]| Findings { unreachable: peers.iter().copied().collect(), ..Findings::default() };
        let findings = unreachable.iter().map(|(rank, peers)| (*rank, found(peers))).collect();
        Survey { living: Mask::all(living), findings, ..Survey::default() }
    }

    /// All reach one another; `diverged` lists whom each has seen at another step.
    fn diverged(living: u32, diverged: &[(u32, &[u32])]) -> Survey {
        let mut survey = survey(living, &[]);
        for (rank, seen) in diverged {
            let seen = seen.iter().copied().collect();
            survey.findings.insert(*rank, Findings { diverged: seen, ..Findings::default() });
        }
        survey
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
        // Rank 1 was stopped while the others probed it, and then was too slow to reach one of them.
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
        // But not without members that the others reach, and not with nobody.
        assert_eq!(verdict(&arbitrated(2, &[(0, &[])])), "1 silent");
        assert_eq!(
            verdict(&arbitrated(4, &[(0, &[2, 3]), (1, &[])])),
            "0-1 stay",
            "half of those who answer"
        );
        assert_eq!(verdict(&arbitrated(5, &[(0, &[3, 4]), (1, &[]), (2, &[])])), "3-4 silent");
        assert_eq!(verdict(&arbitrated(3, &[])), "without 0-2: no quorum");
        // A member that answers keeps its place, as always.
        assert_eq!(verdict(&arbitrated(3, &[(0, &[1, 2]), (1, &[]), (2, &[])])), "0-2 stay");
    }

    #[test]
    fn a_link_in_doubt_too_often_counts_as_broken() {
        let mut survey = survey(3, &[(0, &[]), (1, &[]), (2, &[])]);
        survey.worn.insert((0, 1));
        assert_eq!(verdict(&survey), "0,2 stay");
        // Two halves whose links were in doubt, and now work.
        let all: [(u32, &[u32]); 4] = [(0, &[]), (1, &[]), (2, &[]), (3, &[])];
        let mut halves = self::survey(4, &all);
        halves.worn = [(0, 2), (0, 3), (1, 2), (1, 3)].into();
        assert_eq!(verdict(&halves), "0-3 stay");
        let of_3 = Findings { unreachable: [3].into_iter().collect(), ..Findings::default() };
        halves.findings.insert(3, of_3);
        assert_eq!(verdict(&halves), "0-2 stay", "what is broken counts all the same");
    }

    #[test]
    fn a_member_whose_own_device_fails_goes_before_links_are_counted() {
        // Rank 3 would be removed because of its links.
        let found: [(u32, &[u32]); 4] = [(0, &[0, 3]), (1, &[3]), (2, &[]), (3, &[0])];
        assert_eq!(verdict(&survey(4, &found)), "1-3 stay");
        // What it reports about others is ignored: rank 3 is silent, and half of the others would have to report it.
        let silent: [(u32, &[u32]); 4] = [(0, &[4]), (1, &[1, 4]), (2, &[]), (3, &[])];
        assert_eq!(verdict(&survey(5, &silent)), "4 silent");
        assert_eq!(verdict(&survey(2, &[(0, &[0]), (1, &[])])), "without 0: no quorum");
        assert_eq!(verdict(&arbitrated(2, &[(0, &[0]), (1, &[])])), "1 stay");
        assert_eq!(
            verdict(&survey(4, &[(0, &[0]), (1, &[1]), (2, &[]), (3, &[])])),
            "without 0-1: no quorum"
        );
    }

    #[test]
    fn who_has_broken_its_promise_goes_by_its_own_word_or_that_of_two() {
        let of_itself: [(u32, &[u32]); 3] = [(0, &[]), (1, &[]), (2, &[2])];
        assert_eq!(verdict(&diverged(3, &of_itself)), "0-1 stay");
        assert_eq!(verdict(&diverged(3, &[(0, &[2]), (1, &[2]), (2, &[])])), "0-1 stay");
        let half: [(u32, &[u32]); 5] = [(0, &[4]), (1, &[4]), (2, &[]), (3, &[]), (4, &[])];
        assert_eq!(verdict(&diverged(5, &half)), "0-3 stay");
        let fewer: [(u32, &[u32]); 6] = [(0, &[5]), (1, &[5]), (2, &[]), (3, &[]), (4, &[]), (5, &[])];
        assert_eq!(verdict(&diverged(6, &fewer)), "0-5 stay");
    }

    #[test]
    fn a_lone_accuser_of_a_broken_promise_costs_nobody_its_place() {
        assert_eq!(verdict(&diverged(2, &[(0, &[1]), (1, &[])])), "0-1 stay");
        assert_eq!(verdict(&diverged(2, &[(0, &[1]), (1, &[0])])), "0-1 stay");
        assert_eq!(verdict(&diverged(3, &[(0, &[1, 2]), (1, &[]), (2, &[])])), "0-2 stay");
        // Nor can one half of a larger group remove the other.
        let pairs: [(u32, &[u32]); 4] = [(0, &[2, 3]), (1, &[2, 3]), (2, &[0, 1]), (3, &[0, 1])];
        assert_eq!(verdict(&diverged(4, &pairs)), "without 0-3: no quorum");
    }
}
