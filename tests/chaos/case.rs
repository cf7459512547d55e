//! Histories of one rank, the victim, that dies or is stopped in a run of all ranks.

use std::time::Instant;

use crate::cluster::{Choices, Cluster, everyone};
use crate::noise::deadline;
use crate::verdict;
use crate::wire::{Command, Ran, Run};

/// A run in which the victim has died or stopped.
pub(crate) struct Case {
    pub(crate) choices: Choices,
    pub(crate) cluster: Cluster,
    pub(crate) victim: u32,
    pub(crate) survivors: Vec<u32>,
    /// Of the run.
    pub(crate) steps: u32,
    /// The victim waits until it is told to continue.
    pub(crate) held: bool,
}

impl Case {
    pub(crate) fn let_go(&mut self) {
        let victim = self.cluster.worker(self.victim);
        if self.held {
            victim.tell(&Command::Go);
        }
        victim.cont();
    }

    /// The stop is short, and only costs time. It begins slightly before, and ends slightly after, what is measured, and the
    /// waiting ranks are delayed as well. One that the machine has prolonged to a deadline, according to its noise, does
    /// not count as short.
    pub(crate) fn forgiven(mut self) {
        let began = Instant::now();
        std::thread::sleep(deadline() * (30 + self.choices.below(31) as u32) / 100);
        self.let_go();
        let stopped = began.elapsed();
        let Self { mut cluster, victim, survivors, steps, .. } = self;
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

    /// The others have lost the victim and continue, `busy` steps, while it is let go: what it does then changes nothing, it
    /// learns that it was dropped, and after another handshake it is a member again.
    pub(crate) fn evicted(mut self, busy: u32, learned: fn(u32, &Ran, &[u32])) {
        self.cluster.set_active(&self.survivors, 2);
        self.cluster.tell_run(&self.survivors, &Run::new(2, 1, busy));
        std::thread::sleep(self.choices.micros(5000));
        self.let_go();
        let Self { mut choices, mut cluster, victim, survivors, .. } = self;
        let late = cluster.worker(victim).ran();
        let reports = cluster.hear_ran(&survivors);
        verdict::complete(&reports, busy);
        learned(victim, &late, &survivors);
        cluster.connect(victim, &survivors);
        // Over queues each side needs the current blob of the other.
        if choices.coin() || crate::is_by_queue() {
            for rank in &survivors {
                cluster.connect(*rank, &[victim]);
            }
        }
        cluster.go_on(&everyone(), 3);
    }
}
