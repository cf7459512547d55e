//! What holds at every moment, and at the end.

use super::world::{LEASE, Member, RANKS, World};
use crate::rendezvous::machine::tests::*;
use crate::rendezvous::pace::Pace;

impl World {
    /// For each member that was retired before and is not dead, the first step without it.
    pub(super) fn retired_by(&self) -> BTreeMap<u128, u64> {
        let steps = self.machine.members().filter(|member| member.life != Life::Dead);
        let steps = steps.filter_map(|member| match member.role {
            Role::Retired { decision, .. } => Some((member.identity.member, decision.step)),
            _ => None,
        });
        steps.collect()
    }

    /// No healthy member is removed, and never too many. `retired_by`: before this decision.
    pub(super) fn check_decision(
        &mut self,
        before: &Decision,
        after: &Decision,
        living: &Mask,
        retired_by: &BTreeMap<u128, u64>,
    ) {
        assert_eq!(after.epoch, before.epoch + 1);
        // A rank whose member died may have a new member by now, which is not in this decision.
        let dead = self.machine.ranks(|member| member.life == Life::Dead);
        let living = living.minus(&dead);
        let removed = living.minus(&after.mask).minus(&self.machine.changes.retired);
        if before.mask == living && removed.is_empty() {
            let now = self.retired_by();
            let is_in_time = |(member, step)| now.get(member).is_none_or(|now| now >= step);
            assert!(retired_by.iter().all(is_in_time), "{retired_by:?}: now {now:?}, though nobody was lost");
        }
        let few = 2 * removed.len() < living.len();
        let arbiter = self.machine.settings().arbiter && removed != living;
        assert!(removed.is_empty() || few || arbiter, "{removed} of {living} removed");
        *self.seen.entry("most removed").or_default() += u32::from(!few);
        let doubted = &self.machine.changes.doubted;
        let often =
            doubted.iter().filter(|(_, link)| doubted.iter().filter(|(_, other)| link == other).count() > 1);
        let suspicious: Mask = often.flat_map(|(_, (a, b))| [*a, *b]).collect();
        let unwell = self.trouble.or(&suspicious);
        assert!(removed.minus(&unwell).is_empty(), "{removed} removed, but only {unwell} were unwell");
        *self.seen.entry("decisions").or_default() += 1;
        *self.seen.entry("removed alive").or_default() += removed.len() as u32;
        let grown = after.mask.minus(&before.mask).iter().filter(|rank| *rank >= RANKS).count();
        *self.seen.entry("grown").or_default() += grown as u32;
        *self.seen.entry("entered").or_default() += after.mask.minus(&before.mask).len() as u32;
        self.trouble = self.unwell();
    }

    /// A member of an epoch begins the steps of that epoch under it alone, and no others under it.
    pub(super) fn check_steps(&self) {
        for member in &self.members {
            let of_it =
                |decision: &&Decision| decision.mask.contains(member.rank) && self.is_of(member, decision);
            for decision in self.decisions.values().filter(of_it) {
                for (epoch, (first, last)) in &member.begun {
                    for step in [first, last] {
                        let (in_step, in_epoch) = (*step >= decision.step, *epoch >= decision.epoch);
                        assert_eq!(
                            in_step, in_epoch,
                            "rank {}: step {step} of epoch {epoch}: {decision:?}",
                            member.rank
                        );
                    }
                }
            }
        }
    }

    /// Whether the decision concerns this incarnation: it was admitted before and has not been evicted. A decision that
    /// was superseded before any of its members had begun it concerns nobody.
    fn is_of(&self, member: &Member, decision: &Decision) -> bool {
        let gave_way =
            self.decisions.values().any(|later| later.epoch > decision.epoch && later.step <= decision.step);
        let lived = member.admitted_in..=member.died_in;
        !gave_way && !member.evicted && lived.contains(&decision.epoch) && !member.begun.is_empty()
    }

    /// No more faults: everybody takes part in the end.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        self.broken.clear();
        self.cut_off = Mask::EMPTY;
        for at in 0..self.members.len() {
            (self.members[at].stopped, self.members[at].sick) = (false, false);
            self.members[at].eager |= self.members[at].pace.as_ref().is_none_or(Pace::is_standby);
        }
        let quiet = self.now + 90 * LEASE;
        while self.now < quiet {
            self.advance();
            let living: Vec<&Member> = self.members.iter().filter(|member| !member.dead).collect();
            let mask: Mask = living.iter().map(|member| member.rank).collect();
            let together = |member: &&Member| {
                member.pace.as_ref().is_some_and(|pace| pace.current() == self.machine.decision)
                    && member.lost.is_empty()
                    && member
                        .begun
                        .get(&self.machine.decision.epoch)
                        .is_some_and(|(first, last)| last - first > 3)
            };
            if self.machine.decision.mask == mask && living.iter().all(together) {
                return;
            }
        }
        let living: Vec<_> = self.members.iter().filter(|member| !member.dead).collect();
        for member in &living {
            eprintln!(
                "{} {}: {:?} lost {} {:?}",
                member.rank, member.session, member.pace, member.lost, member.operating
            );
        }
        panic!("not together: {:?} {:?}", self.machine.decision, self.machine.view());
    }
}
