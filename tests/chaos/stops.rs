//! Ranks that are stopped and continued later, and processes that take the place of a stopped one.

use std::time::Duration;

use crate::case::Case;
use crate::cluster::{Choices, Cluster, RANKS, Rows, all_but, everyone};
use crate::noise::deadline;
use crate::verdict;
use crate::wire::{Command, Point, Reply, Run};

/// Enough that on a busy machine too a rank is stopped before the last one.
const STEPS: u32 = 20;

/// Stops `victim` in step 3 of a run of all ranks: exactly between two calls or, with large rows, while it writes to a
/// peer or shortly after a call began. Returns whether it waits there and must be told to continue.
fn stop_in_step(cluster: &mut Cluster, choices: &mut Choices, victim: u32, rows: Rows, run: &Run) -> bool {
    cluster.tell_run(&all_but(victim), run);
    if rows == Rows::Large && choices.coin() {
        let trap = Some(choices.trap(victim, 3, true));
        cluster.tell_run(&[victim], &Run { trap, ..run.clone() });
        cluster.worker(victim).stopped();
        return false;
    }
    let points = [Point::BeforeSend, Point::Dispatched, Point::DispatchSent, Point::CombineSent];
    let point = points[choices.below(if rows == Rows::Small { 4 } else { 2 }) as usize];
    cluster.tell_run(&[victim], &run.hold(3, point));
    let victim = cluster.worker(victim);
    victim.held();
    if rows == Rows::Large {
        victim.tell(&Command::Go);
        std::thread::sleep(choices.micros(1200));
    }
    victim.stop();
    rows == Rows::Small
}

/// A case whose victim was stopped in step 3 of a run of all ranks.
fn stopped(seed: u64) -> (Case, Rows) {
    let mut choices = Choices::new(seed);
    let rows = if choices.coin() { Rows::Small } else { Rows::Large };
    let mut cluster = Cluster::ready(seed, &mut choices, rows);
    let victim = choices.rank();
    let run = Run { split: choices.coin(), ..Run::new(1, 1, STEPS) };
    let held = stop_in_step(&mut cluster, &mut choices, victim, rows, &run);
    (Case { choices, cluster, victim, survivors: all_but(victim), steps: STEPS, held }, rows)
}

pub(crate) fn a_short_stop_is_forgiven(seed: u64) {
    stopped(seed).0.forgiven();
}

/// Some ranks give it up, some do not, and it may give up some: in any case no row is wrong, nobody waits too long,
/// nobody loses another rank, and all can continue without it.
pub(crate) fn a_stop_of_about_a_deadline_confuses_nobody(seed: u64) {
    let (mut case, _) = stopped(seed);
    std::thread::sleep(deadline() * (90 + case.choices.below(21) as u32) / 100);
    case.let_go();
    let Case { mut cluster, victim, survivors, .. } = case;
    let reports = cluster.hear_ran(&survivors);
    verdict::at_most_lost(&reports, victim);
    cluster.worker(victim).ran();
    cluster.go_on(&survivors, 2);
}

/// The others continue without a stopped rank. When it runs again, its late writes do not change what they read, it
/// learns that it was dropped, and after another handshake it is a member again.
pub(crate) fn an_evicted_rank_changes_nothing_and_comes_back(seed: u64) {
    let (mut case, rows) = stopped(seed);
    let reports = case.cluster.hear_ran(&case.survivors);
    verdict::lost(&reports, case.victim, 1);
    case.evicted(if rows == Rows::Small { 60 } else { 12 }, verdict::evicted);
}

/// Another process cannot take the place of a stopped rank while that may still write: whether it is stopped, continued
/// or evicted, only its end frees the place.
pub(crate) fn a_replacement_waits_for_the_old_process_to_end(seed: u64) {
    let Case { mut choices, mut cluster, victim, survivors, held, .. } = stopped(seed).0;
    let reports = cluster.hear_ran(&survivors);
    verdict::lost(&reports, victim, 1);
    cluster.set_active(&survivors, 2);

    let mut old = cluster.replace(victim);
    for rank in &survivors {
        cluster.connect(*rank, &[victim]);
    }
    refused(&mut cluster, victim, &survivors, old.pid());
    if choices.coin() {
        if held {
            old.tell(&Command::Go);
        }
        old.cont();
        verdict::evicted(victim, &old.ran(), &survivors);
        refused(&mut cluster, victim, &survivors, old.pid());
    }
    cluster.run_exactly(&survivors, 2, 3);
    old.kill();
    drop(old);
    cluster.connect(victim, &survivors);
    cluster.go_on(&everyone(), 3);
}

/// Every member refuses the newcomer at once, and names the process that has its place.
fn refused(cluster: &mut Cluster, newcomer: u32, members: &[u32], pid: u32) {
    for member in members {
        let blobs = cluster.blobs_for(newcomer, &[*member]);
        cluster.worker(newcomer).tell(&Command::Connect(blobs));
        match cluster.worker(newcomer).hear() {
            Reply::Refused { kind, text, elapsed_us, noise_us } => {
                assert_eq!(kind, "Fenced", "{text}");
                assert!(text.contains(&pid.to_string()), "process {pid} is not named: {text}");
                assert!(text.contains(&format!("peer {member}")), "rank {member} is not named: {text}");
                let bound = deadline() + Duration::from_micros(noise_us);
                assert!(Duration::from_micros(elapsed_us) < bound, "it took {elapsed_us} us to refuse");
            }
            other => panic!(
                "rank {newcomer} was let in by rank {member} of {RANKS} beside process {pid}: {other:?}"
            ),
        }
    }
}
