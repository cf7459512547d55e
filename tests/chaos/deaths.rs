//! Ranks that die while the others work.

use crate::cluster::{Choices, Cluster, RANKS, Rows, all_but};
use crate::noise::deadline;
use crate::traffic::Sender;
use crate::verdict;
use crate::wire::{Call, Command, Place, Point, Run};

/// Steps of a run: some before the death, some after it in the same epoch.
const STEPS: u32 = 6;

pub(crate) fn killed_before_send(seed: u64) {
    killed_at(seed, Point::BeforeSend);
}

pub(crate) fn killed_between_dispatch_send_and_receive(seed: u64) {
    killed_at(seed, Point::DispatchSent);
}

pub(crate) fn killed_between_dispatch_and_combine(seed: u64) {
    killed_at(seed, Point::Dispatched);
}

pub(crate) fn killed_between_combine_send_and_receive(seed: u64) {
    killed_at(seed, Point::CombineSent);
}

pub(crate) fn killed_while_writing_rows(seed: u64) {
    killed_soon_after(seed, Point::BeforeSend);
}

pub(crate) fn killed_while_writing_answers(seed: u64) {
    killed_soon_after(seed, Point::Dispatched);
}

/// Where the others notice that a rank stopped at `point` of `step` is missing.
fn missed_at(step: u32, point: Point) -> (u32, Call) {
    match point {
        Point::BeforeSend => (step, Call::Dispatch),
        Point::DispatchSent | Point::Dispatched => (step, Call::Combine),
        Point::CombineSent => (step + 1, Call::Dispatch),
        Point::Begun | Point::Counted => unreachable!("of communicators and prefill"),
    }
}

fn killed_at(seed: u64, point: Point) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::ready(seed, &mut choices, Rows::Small);
    let victim = choices.rank();
    let survivors = all_but(victim);
    let step = 2 + choices.below(3) as u32;
    let run = Run { split: choices.coin(), ..Run::new(1, 1, STEPS) };
    // One survivor may be late, by less than half a deadline: that is not death.
    let late = choices.coin().then(|| (victim + 1 + choices.below(u64::from(RANKS) - 1) as u32) % RANKS);
    let lateness = deadline() / 10 * choices.below(5) as u32;

    for rank in 0..RANKS {
        let run = match rank {
            _ if rank == victim => run.hold(step, point),
            _ if Some(rank) == late => run.hold(step, Point::BeforeSend),
            _ => run.clone(),
        };
        cluster.tell_run(&[rank], &run);
    }
    if let Some(late) = late {
        cluster.worker(late).held();
        if point == Point::BeforeSend {
            cluster.worker(victim).held();
            cluster.worker(victim).kill();
        }
        std::thread::sleep(lateness);
        cluster.worker(late).tell(&Command::Go);
    }
    if late.is_none() || point != Point::BeforeSend {
        cluster.worker(victim).held();
        cluster.worker(victim).kill();
    }
    let reports = cluster.hear_ran(&survivors);
    verdict::lost(&reports, victim, 1);
    verdict::first_loss(&reports, |_| missed_at(step, point));

    // Like a graph of operations that nobody interrupts: the deadline has been waited for once.
    cluster.tell_run(&survivors, &Run::new(1, STEPS + 1, 20));
    let reports = cluster.hear_ran(&survivors);
    verdict::swift(&reports, 20, victim);
    cluster.go_on(&survivors, 2);
}

/// Kills a rank shortly after it has passed `point`, with rows so large that it may be writing them.
fn killed_soon_after(seed: u64, point: Point) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::ready(seed, &mut choices, Rows::Large);
    let victim = choices.rank();
    let survivors = all_but(victim);
    let run = Run { split: choices.coin(), ..Run::new(1, 1, STEPS) };
    cluster.tell_run(&survivors, &run);
    cluster.tell_run(&[victim], &run.hold(3, point));
    cluster.worker(victim).held();
    let moment = choices.micros(1200);
    cluster.worker(victim).tell(&Command::Go);
    std::thread::sleep(moment);
    cluster.worker(victim).kill();
    let reports = cluster.hear_ran(&survivors);
    verdict::lost(&reports, victim, 1);
    cluster.go_on(&survivors, 2);
}

/// It dies in the middle of a row, or after it has told some ranks and not others. A rank that was not told is busy
/// between its send and its receive, so that the ranks that know wait for it longer than it waits for the dead one: its
/// beacon keeps it from being given up.
pub(crate) fn killed_at_an_exact_byte(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::ready(seed, &mut choices, Rows::Large);
    let victim = choices.rank();
    let survivors = all_but(victim);
    let step = 3 + choices.below(2) as u32;
    let trap = choices.trap(victim, step, false);
    let run = Run { split: choices.coin(), ..Run::new(1, 1, STEPS) };
    let busy = trap.peer;
    let between = match trap.place {
        Place::Rows | Place::DispatchWord => Point::DispatchSent,
        Place::Answers | Place::CombineWord => Point::CombineSent,
        Place::Message | Place::Word => unreachable!("of communicators"),
    };
    for rank in &survivors {
        let run = if *rank == busy { run.hold(step, between) } else { run.clone() };
        cluster.tell_run(&[*rank], &run);
    }
    cluster.tell_run(&[victim], &Run { trap: Some(trap), ..run });
    cluster.worker(victim).died();
    cluster.worker(busy).held();
    std::thread::sleep(deadline() * choices.below(40) as u32 / 100);
    cluster.worker(busy).tell(&Command::Go);
    let reports = cluster.hear_ran(&survivors);
    verdict::lost(&reports, victim, 1);
    let after = |rank: u32| (rank + RANKS - victim) % RANKS;
    let sends_there =
        cluster.traffic().sent_to(Sender { source: victim, epoch: 1, step }, trap.peer).count() > 0;
    verdict::first_loss(&reports, |rank| match trap.place {
        Place::Rows if sends_there => (step, Call::Dispatch),
        Place::Rows | Place::DispatchWord if rank < trap.peer => (step, Call::Combine),
        Place::Rows | Place::DispatchWord => (step, Call::Dispatch),
        Place::Answers | Place::CombineWord if after(rank) < after(trap.peer) => (step + 1, Call::Dispatch),
        Place::Answers | Place::CombineWord => (step, Call::Combine),
        Place::Message | Place::Word => unreachable!("of communicators"),
    });
    cluster.go_on(&survivors, 2);
}

/// A survivor gives its handle up while another rank is dead: every rank that waits for either returns in time, and the
/// one that released takes part in the next step.
pub(crate) fn a_release_beside_a_dead_rank_holds_nobody_up(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::ready(seed, &mut choices, Rows::Small);
    let victim = choices.rank();
    let survivors = all_but(victim);
    let releaser = survivors[choices.below(3) as usize];
    let point = [Point::DispatchSent, Point::Dispatched, Point::CombineSent][choices.below(3) as usize];
    let step = 2 + choices.below(2) as u32;
    let run = Run::new(1, 1, STEPS);
    for rank in &survivors {
        let release = (*rank == releaser).then_some((step, point));
        cluster.tell_run(&[*rank], &Run { release, ..run.clone() });
    }
    cluster.tell_run(&[victim], &run.hold(step, Point::BeforeSend));
    cluster.worker(victim).held();
    cluster.worker(victim).kill();
    let mut reports = cluster.hear_ran(&survivors);
    for (rank, ran) in &mut reports {
        for op in &mut ran.ops {
            // Its rows of that step were not answered. That is no reason to wait for it, or to count it as missing
            // again.
            let unanswered = *rank != releaser
                && point != Point::CombineSent
                && (op.step, op.call) == (step, Call::Combine);
            if unanswered {
                op.missing.retain(|peer| *peer != releaser);
            }
        }
    }
    verdict::lost_beside_release(&reports, victim, 1, Some(releaser));
    cluster.go_on(&survivors, 2);
}
