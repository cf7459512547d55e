//! Most members are stopped at the same time: a standalone server continues with those that answer it.

use std::time::Instant;

use super::crew::Crew;
use super::plan::Served;
use crate::cluster::Choices;
use crate::noise::{self, deadline};
use crate::wire::{End, Setup};

/// Two of 3 or 4 members, or three of 4, are stopped, and the others continue without them; when they run again they
/// come back.
pub(crate) fn a_server_by_itself_goes_on_without_most_ranks(seed: u64) {
    let mut choices = Choices::new(seed);
    let (ranks, stopped) = [(3, 2), (4, 2), (4, 3)][seed as usize % 3];
    let lease = deadline() * 5 / 4;
    let setup = Setup {
        end: End::Buffer,
        seed,
        rank: 0,
        ranks,
        max_tokens: 4,
        hidden: 64,
        lanes: 1,
        threads: 1,
        rank_major: choices.coin(),
        ring_tokens: 0,
        deadline_ms: deadline().as_millis() as u64 / 2,
    };
    let mut crew = Crew::start(setup, ranks, lease, 0, Served::Apart);
    super::settled(&mut crew);
    let first = choices.below(ranks.into()) as u32;
    let lost: Vec<u32> = (0..stopped).map(|at| (first + at) % ranks).collect();
    lost.iter().for_each(|rank| crew.stop(*rank));
    let (floor, began) = (crew.furthest(), Instant::now());
    let until = began + lease + 10 * deadline() + 20 * noise::worst();
    let go_on = crew.listen_until(until, |crew| crew.is_whole_without_stopped(floor));
    assert!(go_on, "without {lost:?} the others do not continue: {}", crew.state());
    crew.remark(format!("they continue after {:?}", began.elapsed()));
    lost.iter().for_each(|rank| crew.cont(*rank));
    super::settled(&mut crew);
    crew.nobody_went_without_reason();
}
