//! The server's state about changes of membership, see [`change`](super::change).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::mask::Mask;
use crate::rendezvous::call::Call;
use crate::rendezvous::codec::wire;
use crate::rendezvous::removal::Findings;
use crate::rendezvous::wire::{Ask, Decision};

/// A link that was in doubt this often within [`WORN_WITHIN`] counts as broken even if its ends reach each other.
const WORN_AFTER: usize = 3;
const WORN_WITHIN: Duration = Duration::from_secs(60);

/// The current change, and what the next ones need.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Number of the last change.
    pub(super) last: u64,
    pub(super) running: Option<Change>,
    /// No change begins before this time.
    pub(super) rest_until: Duration,
    /// Who doubts whom in this epoch.
    pub(super) doubts: BTreeMap<u32, Mask>,
    /// Links that were in doubt and found not to be broken, lower rank first, and when.
    pub(super) doubted: Vec<(Duration, Link)>,
    /// The highest step that any member has promised not to exceed.
    pub(super) furthest: u64,
    /// Members to be retired, and the calls that asked for it.
    pub(super) retiring: BTreeMap<u32, Vec<Call>>,
    /// The members that the last decision has retired.
    pub(super) retired: Mask,
}
wire!(struct Changes { last, running, rest_until, doubts, doubted, furthest, retiring, retired });

pub(super) type Link = (u32, u32);

#[derive(Debug)]
pub(super) struct Change {
    pub(super) number: u64,
    /// Until when to wait for those who have not answered.
    pub(super) until: Duration,
    pub(super) asked: Mask,
    pub(super) stage: Stage,
}
wire!(struct Change { number, until, asked, stage });

#[derive(Debug)]
pub(super) enum Stage {
    Survey {
        /// Members that all others probe.
        silent: Mask,
        doubts: BTreeMap<u32, Mask>,
        /// What each member has found.
        findings: BTreeMap<u32, Findings>,
    },
    Promises {
        stay: Mask,
        steps: BTreeMap<u32, u64>,
    },
}
wire!(enum Stage { 1 => Survey { silent, doubts, findings }, 2 => Promises { stay, steps } });

impl Change {
    pub(super) fn question(&self, rank: u32, present: &Decision) -> Ask {
        let change = self.number;
        match &self.stage {
            Stage::Survey { silent, doubts, .. } => {
                let by_it = doubts.get(&rank).copied().unwrap_or_default();
                let of_it = doubts.iter().filter(|(_, peers)| peers.contains(rank)).map(|(peer, _)| *peer);
                let peers = of_it.collect::<Mask>().or(&by_it).or(silent).without(rank);
                Ask::Reach { change, peers, epoch: present.epoch, step: present.step }
            }
            Stage::Promises { stay, .. } => Ask::Promise { change, lossy: *stay != present.mask },
        }
    }
}

impl Changes {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match &self.running {
            Some(change) => Some(change.until),
            None => Some(self.rest_until).filter(|rest| !rest.is_zero()),
        }
    }

    /// Discards what the member of `rank` has said and was asked, and what was said about it: it is dead, or there is
    /// another connection.
    pub(super) fn forget(&mut self, rank: u32) {
        self.doubts.remove(&rank);
        self.doubts.values_mut().for_each(|peers| peers.remove(rank));
        self.doubts.retain(|_, peers| !peers.is_empty());
        let Some(change) = &mut self.running else { return };
        change.asked.remove(rank);
        match &mut change.stage {
            Stage::Survey { findings, .. } => drop(findings.remove(&rank)),
            Stage::Promises { steps, .. } => drop(steps.remove(&rank)),
        }
    }

    /// The number of the last change that has ended.
    pub(super) fn ended(&self) -> u64 {
        self.running.as_ref().map_or(self.last, |change| change.number - 1)
    }

    /// The links that become worn through this doubt.
    pub(super) fn worn(&mut self, now: Duration, links: &BTreeSet<Link>) -> BTreeSet<Link> {
        self.doubted.retain(|(when, _)| *when + WORN_WITHIN > now);
        let times = |link: &Link| self.doubted.iter().filter(|(_, doubted)| doubted == link).count();
        links.iter().filter(|link| times(link) + 1 >= WORN_AFTER).copied().collect()
    }

    /// Whether this is a possible state for a run of `world` ranks.
    pub(super) fn can_be(&self, world: u32) -> bool {
        let masks = |masks: &BTreeMap<u32, Mask>| {
            masks.iter().all(|(rank, peers)| *rank < world && peers.fits(world))
        };
        let running = self.running.as_ref().is_none_or(|change| {
            let stage = match &change.stage {
                Stage::Survey { silent, doubts, findings } => {
                    let fits = |(rank, found): (&u32, &Findings)| {
                        *rank < world && found.unreachable.fits(world) && found.diverged.fits(world)
                    };
                    silent.fits(world) && masks(doubts) && findings.iter().all(fits)
                }
                Stage::Promises { stay, steps } => stay.fits(world) && steps.keys().all(|rank| *rank < world),
            };
            stage && change.number == self.last && change.asked.fits(world)
        });
        running
            && masks(&self.doubts)
            && self.doubted.iter().all(|(_, (low, high))| low < high && *high < world)
    }
}

/// The links in doubt.
pub(super) fn links(doubts: &BTreeMap<u32, Mask>) -> BTreeSet<Link> {
    let link = |rank: u32, peer: u32| (rank.min(peer), rank.max(peer));
    doubts
        .iter()
        .flat_map(|(rank, peers)| peers.iter().map(|peer| link(*rank, peer)).collect::<Vec<_>>())
        .collect()
}
