//! A newcomer must not slow down the running members more than twice as much as any other process that starts on their
//! machine.

use std::time::{Duration, Instant};

use super::crew::Crew;
use super::plan::Served;
use crate::noise::{self, deadline};
use crate::wire::{End, Setup};

const MEMBERS: u32 = 3;
/// Steps of this size are shorter than a message to the server and back, the case for `GroupOptions::lead`.
const LEAD: u64 = 8;
/// Newcomers, each followed by unrelated processes, before the first verdict.
const TURNS: usize = 16;
/// How many more times samples are added on a machine with other work.
const MORE: usize = 2;
const PERCENTILES: [usize; 3] = [50, 90, 99];

/// Compares the steps of three members while a process for a fourth rank starts, joins and connects, up to the step
/// with which it is admitted, with steps while an unrelated process starts and takes as much memory.
pub(crate) fn a_newcomer_costs_no_more_than_twice_what_an_unrelated_process_does(seed: u64) {
    let setup = Setup {
        end: End::Buffer,
        seed,
        rank: 0,
        ranks: MEMBERS + 1,
        max_tokens: 16,
        hidden: 512,
        lanes: 2,
        threads: 1,
        rank_major: true,
        ring_tokens: 0,
        deadline_ms: deadline().as_millis() as u64,
    };
    let mut crew = Crew::start(setup, MEMBERS, 5 * deadline() / 2, LEAD, Served::Apart);
    super::settled(&mut crew);
    let (mut beside_newcomers, mut beside_others, mut epoch) = (Vec::new(), Vec::new(), 1);
    for round in 0..=MORE {
        for _ in 0..TURNS {
            epoch = turn(&mut crew, epoch, &mut beside_newcomers, &mut beside_others);
        }
        let (newcomers, others) = (percentiles(&mut beside_newcomers), percentiles(&mut beside_others));
        eprintln!(
            "chaos: microseconds of a step at percentiles {PERCENTILES:?}: {newcomers:?} while a newcomer enters ({} steps), \
             {others:?} while an unrelated process starts ({} steps)",
            beside_newcomers.len(),
            beside_others.len()
        );
        // Percentiles of many steps do not show a single step that waits for a newcomer: that takes a deadline, or
        // until an accusation is settled.
        let (longest, other) = (longest(&beside_newcomers), longest(&beside_others));
        let bound = (deadline() / 2).max(2 * other) + 4 * noise::worst();
        eprintln!(
            "chaos: the longest step beside a newcomer took {longest:?}, beside an unrelated process {other:?}"
        );
        assert!(longest < bound, "a step beside a newcomer took {longest:?}, more than {bound:?}");
        if newcomers.iter().zip(others).all(|(newcomer, other)| *newcomer <= 2 * other) {
            return;
        }
        assert!(round < MORE, "newcomers cost more than twice what unrelated processes do");
    }
}

/// A newcomer that leaves again, then unrelated processes. Returns the epoch in which all is as before.
fn turn(crew: &mut Crew, epoch: u32, newcomers: &mut Vec<u64>, others: &mut Vec<u64>) -> u32 {
    let patience = 10 * deadline();
    crew.times();
    let began = Instant::now();
    crew.add(MEMBERS, Duration::ZERO);
    let admitted =
        crew.listen_until(began + patience, |crew| crew.began_after(epoch, MEMBERS as usize + 1).is_some());
    assert!(admitted, "the newcomer is not admitted: {}", crew.state());
    let (epoch, admission) = crew.began_after(epoch, MEMBERS as usize + 1).expect("it is");
    let before = |(step, took): (u64, u64)| (step < admission).then_some(took);
    newcomers.extend(crew.times().into_iter().filter_map(before));

    crew.leave(MEMBERS);
    let until = Instant::now() + patience;
    let gone = |crew: &Crew| !crew.is_there(MEMBERS) && crew.began_after(epoch, MEMBERS as usize).is_some();
    assert!(crew.listen_until(until, gone), "the newcomer does not leave: {}", crew.state());
    let (epoch, _) = crew.began_after(epoch, MEMBERS as usize).expect("it has begun");
    super::settled(crew);

    crew.times();
    // These end sooner, so there are two.
    crew.disturb(MEMBERS);
    crew.disturb(MEMBERS);
    others.extend(crew.times().into_iter().map(|(_, took)| took));
    epoch
}

fn longest(samples: &[u64]) -> Duration {
    Duration::from_micros(samples.iter().copied().max().unwrap_or(0))
}

fn percentiles(samples: &mut [u64]) -> [u64; 3] {
    samples.sort_unstable();
    PERCENTILES.map(|percent| samples[(samples.len() - 1) * percent / 100])
}
