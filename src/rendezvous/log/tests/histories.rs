//! Whole histories of a log: up to seven processes, five of which vote, on a network that delays, loses and duplicates
//! messages and cuts processes off; leaders and voters die, restart with nothing, are replaced. The invariants are
//! checked all the time; once the faults stop, a leader is elected and records are accepted wherever a majority of the
//! voters lives.
//!
//! Generated [from seeds](crate::rendezvous::seeds).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::*;
use super::world::{MS, Process, World};
use crate::rendezvous::seeds::{Seen, play};

const SLOTS: u64 = 7;
const SECOND: Duration = Duration::from_secs(1);

impl World {
    fn any(&mut self) -> Option<Process> {
        let count = self.processes.len() as u64;
        if count == 0 {
            return None;
        }
        let at = self.random.below(count) as usize;
        Some(self.processes[at].clone())
    }

    fn count(&self, what: &'static str) {
        *self.seen().counts.entry(what).or_default() += 1;
    }

    /// Whether the remaining processes are a majority of the voters, whichever copy is right about who the voters are.
    fn is_majority_without(&self, dead: Option<u128>) -> bool {
        let lives = |id: &&u128| Some(**id) != dead && self.processes.iter().any(|it| it.voter.id == **id);
        let sets = self.processes.iter().flat_map(|process| process.log.configs()).collect::<Vec<_>>();
        !sets.is_empty() && sets.iter().all(|voters| 2 * voters.iter().filter(lives).count() > voters.len())
    }

    /// Appends some records without waiting for each.
    fn write(&mut self, at: &Process) {
        for _ in 0..1 + self.random.below(8) {
            let record = self.record(8);
            let (number, term) = (self.numbers, at.log.leadership().borrow().term);
            let (done, seen) = (at.log.append(record), self.seen.clone());
            tokio::spawn(async move {
                let what = match done.await {
                    Ok(()) => {
                        let mut seen = seen.lock().unwrap();
                        if !seen.order.contains(&number) {
                            seen.is_wrong(format!("{number} was acknowledged, and is in no copy"));
                        }
                        seen.acknowledged.insert(number, term);
                        "acknowledged"
                    }
                    Err(AppendError::NotLeader { .. }) => {
                        seen.lock().unwrap().refused.insert(number);
                        "refused"
                    }
                    Err(AppendError::Unsure) => "unsure",
                    Err(AppendError::Stopped) => "stopped",
                    Err(error) => panic!("{error}"),
                };
                *seen.lock().unwrap().counts.entry(what).or_default() += 1;
            });
        }
    }

    /// The voters that there should be: the living ones, filled up to five.
    fn wanted(&self, leader: &Process) -> Vec<Voter> {
        let lives = |voter: &Voter| self.processes.iter().any(|it| it.voter.id == voter.id);
        let mut wanted: Vec<Voter> = leader.log.voters().into_iter().filter(|voter| lives(voter)).collect();
        let others = self.processes.iter().map(|it| it.voter.clone());
        let others: Vec<Voter> = others.filter(|voter| !wanted.contains(voter)).collect();
        wanted.extend(others);
        wanted.truncate(5);
        wanted
    }

    /// Lets something happen, mostly a fault.
    async fn happen(&mut self) {
        match self.random.below(20) {
            0..=6 => {
                let at = if self.random.below(4) > 0 { self.leader() } else { self.any() };
                if let Some(at) = at {
                    self.write(&at);
                }
            }
            7..=9 => {
                let leads = self.random.below(2) > 0;
                let Some(dies) = (if leads { self.leader() } else { self.any() }) else { return };
                if self.processes.len() < 2 || !self.is_majority_without(Some(dies.voter.id)) {
                    return;
                }
                self.kill(dies.voter.id).await;
                self.count("killed");
                if leads && self.random.below(2) > 0 {
                    self.processes.iter().for_each(|process| process.log.elect(false));
                }
            }
            10..=12 => {
                let free = |slot: &u64| self.processes.iter().all(|process| process.slot != *slot);
                if let Some(slot) = (0..SLOTS).find(free) {
                    self.start(slot, false).await;
                }
            }
            13..=15 => {
                let Some(leader) = self.leader() else { return };
                let (wanted, seen) = (self.wanted(&leader), self.seen.clone());
                tokio::spawn(async move {
                    if leader.log.set_voters(wanted, 3 * SECOND).await.is_ok() {
                        sleep(200 * MS).await;
                        let _ = leader.log.forget_learners(3 * SECOND).await;
                        *seen.lock().unwrap().counts.entry("changed").or_default() += 1;
                    }
                });
            }
            16 => {
                let (a, b) = (self.random.below(SLOTS), self.random.below(SLOTS));
                self.net().blocked.insert((a, b));
            }
            17 => {
                let side = self.random.below(1 << SLOTS);
                let apart = |a: u64, b: u64| (side >> a ^ side >> b) & 1 > 0;
                let links = (0..SLOTS).flat_map(|a| (0..SLOTS).map(move |b| (a, b)));
                let links: Vec<(u64, u64)> = links.filter(|(a, b)| apart(*a, *b)).collect();
                self.net().blocked.extend(links);
            }
            18 => self.net().blocked.clear(),
            _ => {
                let odds = [self.random.below(20), self.random.below(20), self.random.below(10)];
                let slow = 1 + self.random.below(40);
                let mut net = self.net();
                (net.odds, net.slow) = (odds, slow);
            }
        }
    }

    /// No more faults: the log continues, unless it has lost too many voters at once.
    async fn calm_down(&mut self) {
        {
            let mut net = self.net();
            net.blocked.clear();
            (net.odds, net.slow) = ([0; 3], 10);
        }
        if !self.is_majority_without(None) {
            self.count("lost");
            return;
        }
        let until = Instant::now() + 30 * SECOND;
        loop {
            assert!(Instant::now() < until, "nobody leads the living");
            let leader = self.await_leader(20 * SECOND).await;
            let wanted = self.wanted(&leader);
            let changed = leader.log.set_voters(wanted, 5 * SECOND).await;
            if changed.is_ok() && self.append(&leader, 8).await.is_ok() {
                break;
            }
            sleep(10 * MS).await;
        }
        // Processes that do not vote are not told anything.
        let Some(leader) = self.leader() else { panic!("nobody leads any more") };
        let voters = leader.log.voters();
        let outside = self.processes.extract_if(.., |it| !voters.contains(&it.voter)).collect::<Vec<_>>();
        self.await_even(10 * SECOND).await;
        self.processes.extend(outside);
        let order = self.seen().order.clone();
        assert!(self.processes.iter().all(|process| order.starts_with(&process.tape.numbers())));
    }
}

async fn history(seed: u64) -> Seen {
    // Some truncate their log all the time.
    let snapshot = if seed.is_multiple_of(2) { Timing::default().snapshot } else { (20, 16 << 20) };
    let mut world = World::new(seed, Timing { snapshot, ..Timing::default() }).await;
    let voters = 1 + world.random.below(5);
    for slot in 1..voters {
        world.start(slot, false).await;
    }
    let founder = world.processes[0].clone();
    let wanted = world.wanted(&founder);
    founder.log.set_voters(wanted, 5 * SECOND).await.unwrap();
    for _ in 0..10 + world.random.below(30) {
        world.happen().await;
        let most = if world.random.below(4) > 0 { 100 } else { 1_500 };
        let pause = world.random.below(most) as u32;
        sleep(MS * pause).await;
        world.check();
    }
    world.calm_down().await;
    world.check();
    world.seen.lock().unwrap().counts.clone()
}

#[test]
fn whatever_happens_copies_agree_and_nothing_acknowledged_is_lost() {
    let common = ["acknowledged", "refused", "killed", "changed", "terms led", "former leaders", "restored"];
    play(30, (&common, 20), |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(history(seed))
    });
}
