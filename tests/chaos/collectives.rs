//! Ranks that die or are stopped in the phases of each collective, while the others run theirs.

use std::time::{Duration, Instant};

use crate::cluster::{Choices, Cluster, RANKS, Rows, all_but, everyone};
use crate::noise::deadline;
use crate::verdict;
use crate::wire::{Command, Place, Point, Run, Trap};

const STEPS: u32 = 6;
/// Where a time decides when the rank is lost: so many that the run outlasts a pause that the machine draws out.
const MANY_STEPS: u32 = 60;

/// When in a collective something happens to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before it has called it.
    Before,
    /// After it has called it, while it does nothing more for it.
    Begun,
    /// While it moves much data.
    Moving,
    /// When it first writes a message for a peer.
    Message,
    /// When it first tells a peer something.
    Word,
}

const PHASES: [Phase; 5] = [Phase::Before, Phase::Begun, Phase::Moving, Phase::Message, Phase::Word];

/// A case in whose run, with all ranks, the victim has died or stopped. Seeds cover all phases, and with them all
/// kinds.
struct Case {
    choices: Choices,
    cluster: Cluster,
    victim: u32,
    survivors: Vec<u32>,
    steps: u32,
    /// It waits until it is told to continue.
    held: bool,
}

impl Case {
    fn begin(seed: u64, stop: bool) -> Self {
        let mut choices = Choices::new(seed);
        let phase = PHASES[(seed / 2 % PHASES.len() as u64) as usize];
        let rows = if phase == Phase::Moving || choices.coin() { Rows::Large } else { Rows::Small };
        let mut cluster = Cluster::ready_comms(seed, &mut choices, rows);
        let victim = choices.rank();
        let survivors = all_but(victim);
        // The address of the first message of an epoch is known.
        let step = if phase == Phase::Message { 1 } else { 1 + choices.below(3) as u32 };
        let steps = if phase == Phase::Moving { MANY_STEPS } else { STEPS };
        let run = Run::new(1, 1, steps);
        cluster.tell_run(&survivors, &run);
        let mut held = false;
        match phase {
            Phase::Before | Phase::Begun | Phase::Moving => {
                let point = if phase == Phase::Begun { Point::Begun } else { Point::BeforeSend };
                cluster.tell_run(&[victim], &run.hold(step, point));
                let worker = cluster.worker(victim);
                worker.held();
                if phase == Phase::Moving {
                    worker.tell(&Command::Go);
                    std::thread::sleep(choices.micros(2000));
                } else {
                    held = true;
                }
                if stop { worker.stop() } else { worker.kill() }
            }
            Phase::Message | Phase::Word => {
                let place = if phase == Phase::Message { Place::Message } else { Place::Word };
                let peer = survivors[choices.below(u64::from(RANKS) - 1) as usize];
                let trap = Some(Trap { step, peer, place, stop });
                cluster.tell_run(&[victim], &Run { trap, ..run });
                let worker = cluster.worker(victim);
                if stop { worker.stopped() } else { worker.died() }
            }
        }
        Self { choices, cluster, victim, survivors, steps, held }
    }

    fn let_go(&mut self) {
        let victim = self.cluster.worker(self.victim);
        if self.held {
            victim.tell(&Command::Go);
        }
        victim.cont();
    }
}

/// The others lose it and nobody else, in time; no sum is wrong, and the next epoch is exact.
pub(crate) fn killed_in_a_collective(seed: u64) {
    let Case { mut cluster, victim, survivors, .. } = Case::begin(seed, false);
    let reports = cluster.hear_ran(&survivors);
    verdict::lost_in_collectives(&reports, victim, 1);
    cluster.go_on(&survivors, 2);
}

/// A short stop only costs time. After a long one the others have continued: what the rank does then changes nothing,
/// it learns that it was dropped, and after another handshake it is a member again.
pub(crate) fn stopped_in_a_collective(seed: u64) {
    let mut case = Case::begin(seed, true);
    let began = Instant::now();
    if seed.is_multiple_of(2) {
        std::thread::sleep(deadline() * (30 + case.choices.below(31) as u32) / 100);
        case.let_go();
        forgiven(case, began.elapsed());
    } else {
        evicted(case);
    }
}

/// A stop that the machine has prolonged to a deadline, according to its noise, does not count as short.
fn forgiven(case: Case, stopped: Duration) {
    let Case { mut cluster, victim, survivors, steps, .. } = case;
    let others = cluster.hear_ran(&survivors);
    let ran = cluster.worker(victim).ran();
    if stopped + 3 * verdict::noise(&others) < deadline() {
        verdict::complete(&others, steps);
        verdict::complete(&[(victim, ran)], steps);
        cluster.go_on(&everyone(), 2);
    } else {
        eprintln!("chaos: the machine drew a stop out to {stopped:?}");
        verdict::at_most_lost(&others, victim);
        cluster.go_on(&survivors, 2);
    }
}

fn evicted(mut case: Case) {
    const BUSY: u32 = 12;
    let survivors = case.survivors.clone();
    let reports = case.cluster.hear_ran(&survivors);
    verdict::lost_in_collectives(&reports, case.victim, 1);
    case.cluster.set_active(&survivors, 2);
    case.cluster.tell_run(&survivors, &Run::new(2, 1, BUSY));
    std::thread::sleep(case.choices.micros(5000));
    case.let_go();
    let Case { mut cluster, victim, .. } = case;
    let late = cluster.worker(victim).ran();
    let reports = cluster.hear_ran(&survivors);
    verdict::complete(&reports, BUSY);
    verdict::evicted_from_collectives(victim, &late, &survivors);
    cluster.connect(victim, &survivors);
    // Over queues each side needs the current blob of the other.
    if crate::is_by_queue() {
        for rank in &survivors {
            cluster.connect(*rank, &[victim]);
        }
    }
    cluster.go_on(&everyone(), 3);
}
