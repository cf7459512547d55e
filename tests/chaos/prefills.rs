//! Ranks that die or are stopped in the phases of prefill, also while the others wait for slots of their rings.

use crate::case::Case;
use crate::cluster::{Choices, Cluster, RANKS, Ring, Rows, all_but, everyone};
use crate::prefill;
use crate::traffic::Sender;
use crate::verdict;
use crate::wire::{Call, Command, Place, Point, Run, Trap};

const STEPS: u32 = 6;
/// Where a time, or the slot of a message, decides when the rank is lost: so many that the run outlasts a pause that the
/// machine draws out.
const MANY_STEPS: u32 = 24;

/// When in a step something happens to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before it has called anything. With short rings the others wait for its rows.
    Before,
    /// When it knows the counts of all. With short rings the others wait for its rows and for slots that it gives back.
    Counted,
    /// Between the halves of a dispatch.
    DispatchSent,
    /// When it has all rows, and has answered none.
    Dispatched,
    /// Between the halves of a combine.
    CombineSent,
    /// Soon after one of these points, while it moves much data, for which the others need slots.
    Moving(Point),
    /// When it next writes to the first slot of its ring at a peer, or one of its words.
    At(Place),
}

const PHASES: [Phase; 12] = [
    Phase::Before,
    Phase::Counted,
    Phase::Moving(Point::BeforeSend),
    Phase::At(Place::DispatchWord),
    Phase::At(Place::Rows),
    Phase::DispatchSent,
    Phase::Moving(Point::Counted),
    Phase::Dispatched,
    Phase::Moving(Point::Dispatched),
    Phase::At(Place::CombineWord),
    Phase::At(Place::Answers),
    Phase::CombineSent,
];

/// So many consecutive seeds have each phase once; as many more have it with the other choice, see [`is_even`].
pub(crate) const CASES: u64 = PHASES.len() as u64;

/// A choice that alternates between the phases of one round of seeds, and for each phase between rounds.
fn is_even(seed: u64) -> bool {
    (seed + seed / CASES).is_multiple_of(2)
}

impl Phase {
    fn of(seed: u64) -> Self {
        match PHASES[(seed % CASES) as usize] {
            // It would die before it writes anything.
            Self::At(_) if crate::is_by_queue() => Self::Moving(Point::BeforeSend),
            phase => phase,
        }
    }

    fn rows(self, choices: &mut Choices) -> Rows {
        match self {
            Self::Moving(_) | Self::At(_) => Rows::Large,
            _ if choices.coin() => Rows::Large,
            _ => Rows::Small,
        }
    }

    fn ring(self, choices: &mut Choices) -> Ring {
        match self {
            Self::DispatchSent | Self::CombineSent => Ring::HoldsAll,
            Self::Counted | Self::Moving(_) | Self::At(_) => Ring::Short,
            _ if choices.coin() => Ring::HoldsAll,
            _ => Ring::Short,
        }
    }

    /// The point at which it waits, if it does.
    fn point(self) -> Option<Point> {
        match self {
            Self::Before => Some(Point::BeforeSend),
            Self::Counted => Some(Point::Counted),
            Self::DispatchSent => Some(Point::DispatchSent),
            Self::Dispatched => Some(Point::Dispatched),
            Self::CombineSent => Some(Point::CombineSent),
            Self::Moving(point) => Some(point),
            Self::At(_) => None,
        }
    }

    /// Where the others miss it first, if that is certain.
    fn missed_at(self, step: u32) -> Option<(u32, Call)> {
        match self {
            Self::Before | Self::Counted => Some((step, Call::Dispatch)),
            Self::DispatchSent | Self::Dispatched => Some((step, Call::Combine)),
            Self::CombineSent => Some((step + 1, Call::Dispatch)),
            Self::Moving(_) | Self::At(_) => None,
        }
    }
}

/// A run with all ranks in which the victim has died or stopped, in the phase of the seed.
struct Loss {
    case: Case,
    phase: Phase,
    /// In which it happens.
    step: u32,
}

impl Loss {
    fn begin(seed: u64, stop: bool) -> Self {
        let mut choices = Choices::new(seed);
        let phase = Phase::of(seed);
        let (rows, ring) = (phase.rows(&mut choices), phase.ring(&mut choices));
        let mut cluster = Cluster::ready_prefill(seed, &mut choices, rows, ring);
        let victim = choices.rank();
        let survivors = all_but(victim);
        let step = 2 + choices.below(3) as u32;
        let steps = if matches!(phase, Phase::Moving(_) | Phase::At(_)) { MANY_STEPS } else { STEPS };
        let run = Run { split: choices.coin(), ..Run::new(1, 1, steps) };
        cluster.tell_run(&survivors, &run);
        let held = phase.point().is_some() && !matches!(phase, Phase::Moving(_));
        if let Some(point) = phase.point() {
            cluster.tell_run(&[victim], &run.hold(step, point));
            let worker = cluster.worker(victim);
            worker.held();
            if !held {
                worker.tell(&Command::Go);
                std::thread::sleep(choices.micros(2000));
            }
            if stop { worker.stop() } else { worker.kill() }
        } else if let Phase::At(place) = phase {
            let peer = survivors[choices.below(u64::from(RANKS) - 1) as usize];
            let trap = Some(Trap { step, peer, place, stop });
            cluster.tell_run(&[victim], &Run { trap, ..run });
            let worker = cluster.worker(victim);
            if stop { worker.stopped() } else { worker.died() }
        }
        Self { case: Case { choices, cluster, victim, survivors, steps, held }, phase, step }
    }

    /// The others have lost it and nobody else, in time, where they had to.
    fn lost(&mut self) {
        let case = &mut self.case;
        let reports = case.cluster.hear_ran(&case.survivors);
        verdict::lost(&reports, case.victim, 1);
        let Some(missed_at) = self.phase.missed_at(self.step) else { return };
        // A rank to which it sends nothing may end the dispatch without it, once all are counted.
        let own = Sender { source: case.victim, epoch: 1, step: self.step };
        let traffic = prefill::traffic(&case.cluster.setup);
        let certain = |rank: u32| self.phase != Phase::Counted || traffic.sent_to(own, rank).count() > 0;
        let certain: Vec<_> = reports.into_iter().filter(|(rank, _)| certain(*rank)).collect();
        verdict::first_loss(&certain, |_| missed_at);
    }
}

/// No row and no sum is wrong; what follows in the same epoch waits for nobody; and the next epoch is exact, without the
/// rank or with another process in its place.
pub(crate) fn killed_in_prefill(seed: u64) {
    const MORE: u32 = 10;
    let mut loss = Loss::begin(seed, false);
    loss.lost();
    let Case { mut cluster, victim, survivors, steps, .. } = loss.case;
    cluster.tell_run(&survivors, &Run::new(1, steps + 1, MORE));
    let reports = cluster.hear_ran(&survivors);
    verdict::swift(&reports, MORE, victim);
    if is_even(seed) {
        cluster.go_on(&survivors, 2);
        return;
    }
    drop(cluster.replace(victim));
    cluster.connect(victim, &survivors);
    for rank in &survivors {
        cluster.connect(*rank, &[victim]);
    }
    cluster.go_on(&everyone(), 2);
}

/// A short stop only costs time. After a long one the others have continued.
pub(crate) fn stopped_in_prefill(seed: u64) {
    let mut loss = Loss::begin(seed, true);
    if is_even(seed) {
        loss.case.forgiven();
    } else {
        loss.lost();
        loss.case.evicted(8, verdict::evicted_from_prefill);
    }
}
