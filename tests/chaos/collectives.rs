//! Ranks that die or are stopped in the phases of each collective, while the others run theirs.

use crate::case::Case;
use crate::cluster::{Choices, Cluster, RANKS, Rows};
use crate::collective::{KINDS, kind};
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

/// The kind and the phase of a seed, as places in their lists.
const fn cell(seed: u64) -> (usize, usize) {
    ((seed % KINDS.len() as u64) as usize, (seed % PHASES.len() as u64) as usize)
}

/// So many consecutive seeds have each phase of each kind once.
const CELLS: usize = KINDS.len() * PHASES.len();
const _: () = {
    let (mut reached, mut seed) = ([[false; PHASES.len()]; KINDS.len()], 0);
    while seed < CELLS {
        let (kind, phase) = cell(seed as u64);
        assert!(!reached[kind][phase], "two seeds of a round have the same phase of the same kind");
        reached[kind][phase] = true;
        seed += 1;
    }
};

/// A run with all of so many ranks in which the victim has died or stopped, in the phase and the kind of the seed. A kind
/// that writes no message to a peer leaves a trap there for the next one that does.
fn begin(ranks: u32, seed: u64, stop: bool) -> Case {
    let mut choices = Choices::new(seed);
    let (of_kinds, of_phases) = cell(seed);
    let phase = PHASES[of_phases];
    // The address of the first message of an epoch is known.
    let step = if phase == Phase::Message { 1 } else { 1 + choices.below(3) as u32 };
    let rows = if phase == Phase::Moving || choices.coin() { Rows::Large } else { Rows::Small };
    // Of traffic whose step of this number has the kind.
    let kinds = KINDS.len() as u64;
    let traffic = seed * kinds + (of_kinds as u64 + kinds - u64::from(step)) % kinds;
    assert_eq!(kind(traffic, step), KINDS[of_kinds]);
    let mut cluster = Cluster::ready_comms(ranks, traffic, &mut choices, rows);
    let victim = choices.below(u64::from(ranks)) as u32;
    let survivors = cluster.all_but(victim);
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
            let peer = survivors[choices.below(survivors.len() as u64) as usize];
            let trap = Some(Trap { step, peer, place, stop });
            cluster.tell_run(&[victim], &Run { trap, ..run });
            let worker = cluster.worker(victim);
            if stop { worker.stopped() } else { worker.died() }
        }
    }
    Case { choices, cluster, victim, survivors, steps, held }
}

/// The others lose it and nobody else, in time; no sum is wrong, and the next epoch is exact.
pub(crate) fn killed_in_a_collective(seed: u64) {
    let Case { mut cluster, victim, survivors, .. } = begin(RANKS, seed, false);
    let reports = cluster.hear_ran(&survivors);
    verdict::lost_in_collectives(&reports, victim, 1);
    cluster.go_on(&survivors, 2);
}

/// One of two: nobody else tells the other one, which goes on alone, and then with another process in that place.
pub(crate) fn one_of_two_is_killed_in_a_collective(seed: u64) {
    let Case { mut cluster, victim, survivors, .. } = begin(2, seed, false);
    let reports = cluster.hear_ran(&survivors);
    verdict::lost_in_collectives(&reports, victim, 1);
    cluster.go_on(&survivors, 2);
    drop(cluster.replace(victim));
    cluster.connect_all();
    cluster.go_on(&cluster.everyone(), 3);
}

/// A short stop only costs time. After a long one the others have continued. The seeds of a kind and those of a phase
/// alternate, and so do those of both.
pub(crate) fn stopped_in_a_collective(seed: u64) {
    let mut case = begin(RANKS, seed, true);
    if (seed + seed / KINDS.len() as u64).is_multiple_of(2) {
        case.forgiven();
    } else {
        let reports = case.cluster.hear_ran(&case.survivors);
        verdict::lost_in_collectives(&reports, case.victim, 1);
        case.evicted(12, verdict::evicted_from_collectives);
    }
}
