//! Three ranks on three hosts, reached by queues over TCP, and a network that fails.

use std::time::{Duration, Instant};

use super::crew::Crew;
use super::news::Order;
use crate::cluster::Choices;
use crate::network::Hosts;
use crate::wire::{End, Setup};

const RANKS: u32 = 3;
const DEADLINE: Duration = Duration::from_secs(10);
/// A short lease, so that a rank that is cut off is soon noticed, and long enough that a machine that is slow to end a
/// cut costs no rank its place.
const SHORT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(12);
const PATIENCE: Duration = Duration::from_secs(5);

/// A network that works again must be noticed first: connections may wait for as long as it was cut.
const AFTER: Duration = Duration::from_secs(30);

fn start(seed: u64, lease: Duration) -> Crew {
    let mut choices = Choices::new(seed);
    let setup = Setup {
        end: End::Buffer,
        seed,
        rank: 0,
        ranks: RANKS,
        max_tokens: 64,
        hidden: 512,
        lanes: 1,
        threads: 1,
        rank_major: choices.coin(),
        ring_tokens: 0,
        deadline_ms: DEADLINE.as_millis() as u64,
    };
    let mut crew = Crew::on_hosts(setup, lease, PATIENCE, Hosts::new(RANKS));
    together(&mut crew, "at the beginning");
    let until = Instant::now() + AFTER;
    assert!(crew.listen_until(until, |crew| crew.can_lose(1)), "no servers: {}", crew.state());
    crew
}

fn together(crew: &mut Crew, when: &str) {
    let (floor, began) = (crew.furthest(), Instant::now());
    let whole = crew.listen_until(began + AFTER, |crew| crew.is_whole(floor));
    assert!(whole, "not all serve together {when}, {:?} later: {}", began.elapsed(), crew.state());
    crew.remark(format!("all serve together {when}, after {:?}", began.elapsed()));
}

/// A host is cut off for 2 s, less than a lease and a deadline: no rank is missing and none is removed. Machines that are
/// busy have taken a minute to end a cut; then the ranks need only serve together again, and the cut is tried again.
pub(crate) fn a_cut_of_2_s_costs_time_only(seed: u64) {
    /// The longest cut of which a connection still hears in time: it tries again after as long as the cut at the latest.
    const MOST: Duration = Duration::from_secs(4);
    for _ in 0..4 {
        let mut crew = start(seed, LONG);
        let (rank, epoch, began) = (seed as u32 % RANKS, crew.epoch(), Instant::now());
        crew.cut(rank);
        crew.listen(began + Duration::from_secs(2));
        crew.heal(rank);
        let lasted = began.elapsed();
        together(&mut crew, "after the cut");
        if lasted <= MOST {
            assert_eq!(crew.epoch(), epoch, "the membership has changed: {}", crew.state());
            assert!(!crew.missed_anybody(), "a step was incomplete: {}", crew.state());
            return;
        }
        eprintln!("chaos: the machine has drawn a cut of 2 s out to {lasted:?}");
    }
    panic!("the machine is too busy for a cut of 2 s: nothing has been looked at");
}

/// A host is cut off for 30 s: the two others remove it and continue; it learns that it cannot decide alone, and comes
/// back.
pub(crate) fn a_cut_of_30_s_costs_one_its_place(seed: u64) {
    let mut crew = start(seed, SHORT);
    let rank = seed as u32 % RANKS;
    let (floor, began) = (crew.furthest(), Instant::now());
    crew.cut(rank);
    let without = |crew: &Crew| crew.is_whole_without(rank, floor);
    let went_on = crew.listen_until(began + Duration::from_secs(29), without);
    assert!(went_on, "the others do not continue without rank {rank}: {}", crew.state());
    crew.remark(format!("the others continue without rank {rank} after {:?}", began.elapsed()));
    crew.order(rank, Order::Ask);
    crew.listen(began + Duration::from_secs(30));
    assert!(crew.is_whole_without(rank, floor), "they did not continue: {}", crew.state());
    assert!(crew.had_no_quorum(rank), "rank {rank} was not told that it has no quorum: {}", crew.state());
    crew.heal(rank);
    together(&mut crew, "after the cut");
    crew.nobody_went_without_reason();
}

/// One percent of the packets is lost, then five: steps are slower, and all are complete.
pub(crate) fn lost_packets_cost_time_only(seed: u64) {
    let mut crew = start(seed, LONG);
    let epoch = crew.epoch();
    for percent in [1, 5] {
        (0..RANKS).for_each(|rank| crew.lose(rank, percent));
        let (floor, began) = (crew.furthest(), Instant::now());
        crew.listen(began + Duration::from_secs(5));
        together(&mut crew, "while packets are lost");
        crew.remark(format!(
            "{} steps in {:?} with {percent} % lost",
            crew.furthest() - floor,
            began.elapsed()
        ));
        (0..RANKS).for_each(|rank| crew.heal(rank));
    }
    together(&mut crew, "at the end");
    assert_eq!(crew.epoch(), epoch, "the membership has changed: {}", crew.state());
    assert!(!crew.missed_anybody(), "a step was incomplete: {}", crew.state());
}
