//! The rule by which survivors agree on the next mask.
//!
//! Every member reports whom it gave up. The rule waits for each living member that nobody named, then decides:
//!
//! 1. dead members, and members that did not report, are out;
//! 2. while one of those left accuses another of them, the most accused goes, the higher rank among equals, and what
//!    it said about others counts no more;
//! 3. those who would go without being dead must be fewer than half of the members that are not dead: else nobody goes,
//!    and once the deadline has passed everybody who reported is told so.
//!
//! So two that accuse each other cost one of them, and who named a dead member is not held against it. A member that
//! is named but still heard by the server is not passed over lightly: before the deadline the decision waits for its
//! own report, unless the others are a majority of the members heard.
//!
//! Without the third rule one confused member that names everybody would be left alone with the run: its peers may be
//! waiting for one another, and not for an agreement.

use std::collections::BTreeMap;
use std::time::Duration;

use super::call::Call;
use super::wire::Report;
use crate::mask::Mask;

/// Reports collected for the next epoch.
#[derive(Debug)]
pub struct Agreement {
    /// When the first member reported.
    pub started: Duration,
    /// When members that have not reported are left out.
    pub deadline: Duration,
    /// What each member said, and the call that waits for the decision.
    pub reports: BTreeMap<u32, (Call, Report)>,
}

/// What the server knows when it asks whether to decide.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Members of the current mask that are not dead.
    pub living: Mask,
    /// Those of them heard within their lease.
    pub heard: Mask,
    /// Ranks whose living incarnation is on standby and heard.
    pub standby: Mask,
    /// Those of them that asked to be admitted.
    pub ready: Mask,
}

/// How an agreement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is a next epoch.
    Change {
        /// Members that stay.
        stay: Mask,
        /// Standby members that enter.
        enter: Mask,
    },
    /// Nothing changes: too many would go that nobody has seen dead.
    NoQuorum {
        /// Who would go.
        missing: Mask,
    },
}

impl Agreement {
    /// An agreement that begins with its first report.
    pub fn new(now: Duration, deadline: Duration) -> Self {
        Self { started: now, deadline: now + deadline, reports: BTreeMap::new() }
    }

    /// The decision, or `None` while there is somebody to wait for.
    pub fn decide(&self, now: Duration, standing: &Standing) -> Option<Verdict> {
        let late = now >= self.deadline;
        let reported: Mask =
            self.reports.keys().copied().filter(|rank| standing.living.contains(*rank)).collect();
        let named = self.reports.values().fold(Mask::EMPTY, |named, (_, said)| named.or(&said.suspects));
        let missing = standing.living.minus(&reported);
        if !late && !missing.minus(&named).is_empty() {
            return None;
        }
        let stay = self.survivors(&reported);
        let admit = self.reports.iter().all(|(rank, (_, said))| said.admit || !stay.contains(*rank));
        let going = standing.living.minus(&stay);
        if 2 * going.len() >= standing.living.len() && !going.is_empty() {
            return late.then_some(Verdict::NoQuorum { missing: going });
        }
        let outvoted = missing.is_empty() || 2 * stay.len() > standing.heard.len();
        let waits_for_entry = admit && !standing.standby.minus(&standing.ready).is_empty();
        let enter = if admit { standing.standby.and(&standing.ready) } else { Mask::EMPTY };
        (late || outvoted && !waits_for_entry).then_some(Verdict::Change { stay, enter })
    }

    /// Who of those that reported is left when accusations among them are settled.
    fn survivors(&self, reported: &Mask) -> Mask {
        let mut left = *reported;
        loop {
            let mut accusers: BTreeMap<u32, usize> = BTreeMap::new();
            for (rank, (_, said)) in self.reports.iter().filter(|(rank, _)| left.contains(**rank)) {
                for accused in said.suspects.and(&left).iter().filter(|accused| accused != rank) {
                    *accusers.entry(accused).or_default() += 1;
                }
            }
            match accusers.into_iter().max_by_key(|(rank, count)| (*count, *rank)) {
                Some((rank, _)) => left.remove(rank),
                None => return left,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(reports: &[(u32, &[u32])]) -> Agreement {
        let mut agreement = Agreement::new(Duration::ZERO, Duration::from_secs(10));
        for (rank, suspects) in reports {
            let suspects = suspects.iter().copied().collect();
            let report = Report { epoch: 1, suspects, admit: false, deadline: Duration::from_secs(10) };
            agreement.reports.insert(*rank, (Call { conn: u64::from(*rank), id: 1 }, report));
        }
        agreement
    }

    fn decide(living: &[u32], heard: &[u32], reports: &[(u32, &[u32])], now: u64) -> Option<String> {
        let standing = Standing {
            living: living.iter().copied().collect(),
            heard: heard.iter().copied().collect(),
            standby: Mask::EMPTY,
            ready: Mask::EMPTY,
        };
        let verdict = agreement(reports).decide(Duration::from_secs(now), &standing)?;
        Some(match verdict {
            Verdict::Change { stay, .. } => stay.to_string(),
            Verdict::NoQuorum { missing } => format!("without {missing}: no quorum"),
        })
    }

    #[test]
    fn nobody_is_passed_over_unless_named() {
        let all = [0, 1, 2, 3];
        assert_eq!(decide(&all, &all, &[(0, &[3]), (1, &[3])], 0), None);
        assert_eq!(decide(&all, &all, &[(0, &[3]), (1, &[3]), (2, &[])], 0).as_deref(), Some("0-2"));
    }

    #[test]
    fn two_that_accuse_each_other_cost_the_higher_rank() {
        assert_eq!(
            decide(&[0, 1, 2], &[0, 1, 2], &[(0, &[2]), (1, &[]), (2, &[0])], 0).as_deref(),
            Some("0-1")
        );
    }

    #[test]
    fn the_most_accused_goes_first_and_its_own_accusations_with_it() {
        let reports: [(u32, &[u32]); 4] = [(0, &[1, 2, 3]), (1, &[0]), (2, &[0]), (3, &[0])];
        assert_eq!(decide(&[0, 1, 2, 3], &[0, 1, 2, 3], &reports, 0).as_deref(), Some("1-3"));
    }

    #[test]
    fn one_that_names_everybody_does_not_get_the_run_to_itself() {
        let all = [0, 1, 2, 3];
        for heard in [&all[..], &[0]] {
            assert_eq!(decide(&all, heard, &[(0, &[1, 2, 3])], 0), None);
            let end = decide(&all, heard, &[(0, &[1, 2, 3])], 10);
            assert_eq!(end.as_deref(), Some("without 1-3: no quorum"));
        }
    }

    #[test]
    fn fewer_than_half_of_those_not_seen_dead_may_go() {
        for (living, suspects, end) in [
            (2, &[1][..], "without 1: no quorum"),
            (3, &[2], "0-1"),
            (4, &[3], "0-2"),
            (4, &[2, 3], "without 2-3: no quorum"),
            (5, &[3, 4], "0-2"),
        ] {
            let living: Vec<u32> = (0..living).collect();
            let stay: Vec<(u32, &[u32])> =
                living.iter().filter(|rank| !suspects.contains(rank)).map(|rank| (*rank, suspects)).collect();
            assert_eq!(
                decide(&living, &stay.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), &stay, 10)
                    .as_deref(),
                Some(end)
            );
        }
        assert_eq!(decide(&[0], &[0], &[(0, &[1, 2])], 0).as_deref(), Some("0"), "the others are dead");
        let each_other: [(u32, &[u32]); 2] = [(0, &[1]), (1, &[0])];
        assert_eq!(decide(&[0, 1], &[0, 1], &each_other, 10).as_deref(), Some("without 1: no quorum"));
    }

    #[test]
    fn an_accusation_of_oneself_is_void() {
        assert_eq!(decide(&[0, 1], &[0, 1], &[(0, &[0]), (1, &[1])], 0).as_deref(), Some("0-1"));
    }
}
