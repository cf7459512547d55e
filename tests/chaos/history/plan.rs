//! The faults of a history, chosen by its seed.

use std::time::Duration;

use crate::cluster::Choices;

/// A run and its faults.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) world: u32,
    /// The initial ranks; others may join later.
    pub(crate) initial: u32,
    pub(crate) scenes: Vec<Scene>,
}

/// Faults whose times overlap. The next scene begins when all of these have been done, whatever their effect.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    /// The affected ranks.
    pub(crate) ranks: Vec<u32>,
    /// The first of them is the one that serves the run, if a member does.
    pub(crate) leader: bool,
    /// How many of them the run loses at the same time.
    pub(crate) losses: usize,
    /// When to do what to which of the ranks, in order of time.
    pub(crate) deeds: Vec<(Duration, usize, Deed)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Kill,
    Stop,
    Continue,
    Leave,
    /// At the request of this rank; the retired rank may ask to be admitted again at once.
    Retire {
        by: u32,
        rejoins: bool,
    },
    Cancel {
        steps: u32,
    },
    /// Starts a process for a rank without one. It does other things for this long before its first step.
    Start {
        slow: Duration,
    },
}

/// Who serves the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// Its members, one at a time.
    ByMembers,
    /// The test.
    Apart,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Plan {
    /// For a run whose members count as silent after `lease`.
    pub(crate) fn draw(choices: &mut Choices, served: Served, lease: Duration) -> Self {
        let world = 3 + choices.below(4) as u32;
        let grows = world > 3 && choices.below(4) == 0;
        let initial = if grows { world - 1 } else { world };
        let mut scenes: Vec<Scene> = match served {
            Served::Apart => (0..1 + choices.below(2)).map(|_| overlapping(choices, world, lease)).collect(),
            Served::ByMembers => {
                (0..1 + choices.below(2)).map(|_| one_after_the_other(choices, world, lease)).collect()
            }
        };
        if grows {
            let comes = Deed::Start { slow: slowness(choices) };
            let scene =
                Scene { ranks: vec![initial], leader: false, losses: 0, deeds: vec![(ms(0), 0, comes)] };
            scenes.insert(choices.below(scenes.len() as u64 + 1) as usize, scene);
        }
        Self { world, initial, scenes }
    }
}

/// Several ranks, each with a fault of its own. At least two have none.
fn overlapping(choices: &mut Choices, world: u32, lease: Duration) -> Scene {
    let ranks = distinct(choices, world, world - 2);
    let mut deeds = Vec::new();
    // Half of the time the first two go, and come back, at the same moment.
    let together = choices.coin().then(|| (choices.millis(100), choices.millis(200), choices.coin()));
    for index in 0..ranks.len() {
        match together {
            Some((at, back, slow)) if index < 2 => {
                let slow = if slow { slowness(choices) } else { ms(0) };
                deeds.extend([(at, index, Deed::Kill), (at + back, index, Deed::Start { slow })]);
            }
            _ => fault(choices, world, &ranks, index, lease, &mut deeds),
        }
    }
    deeds.sort_by_key(|(at, ..)| *at);
    Scene { ranks, leader: false, losses: 0, deeds }
}

/// One rank; if there are enough, another one whose calls are cancelled meanwhile.
fn one_after_the_other(choices: &mut Choices, world: u32, lease: Duration) -> Scene {
    let ranks = distinct(choices, world, 2);
    let mut deeds = Vec::new();
    fault(choices, world, &ranks, 0, lease, &mut deeds);
    if ranks.len() > 1 && choices.coin() {
        deeds.push((ms(0), 1, Deed::Cancel { steps: 60 }));
    }
    deeds.sort_by_key(|(at, ..)| *at);
    Scene { ranks, leader: choices.coin(), losses: 1, deeds }
}

/// Chooses the fault of one of the ranks.
fn fault(
    choices: &mut Choices,
    world: u32,
    ranks: &[u32],
    index: usize,
    lease: Duration,
    deeds: &mut Vec<(Duration, usize, Deed)>,
) {
    let at = choices.millis(150);
    let comes =
        |choices: &mut Choices| (at + choices.millis(250), index, Deed::Start { slow: slowness(choices) });
    match choices.below(10) {
        0..4 => {
            deeds.extend([(at, index, Deed::Kill), comes(choices)]);
        }
        4 | 5 => {
            // Not noticed at all, missed by the others, about a lease, or too long.
            let eighths = [1, 4, 8, 11][choices.below(4) as usize] + choices.below(2) as u32;
            deeds.extend([(at, index, Deed::Stop), (at + lease * eighths / 8, index, Deed::Continue)]);
        }
        6 => {
            deeds.extend([(at, index, Deed::Leave), comes(choices)]);
        }
        7 | 8 => {
            let by = choices.below(world.into()) as u32;
            let rejoins = choices.coin();
            deeds.push((at, index, Deed::Retire { by, rejoins }));
            if !rejoins {
                // After time to leave; otherwise the rank still has a process, and this does nothing.
                let (when, index, comes) = comes(choices);
                deeds.push((when + lease / 2, index, comes));
            }
        }
        _ => deeds.push((at, index, Deed::Cancel { steps: 60 })),
    }
    // Sometimes the rank does not come back.
    if ranks.len() + 2 < world as usize && choices.below(3) == 0 {
        deeds.retain(|(_, of, deed)| *of != index || !matches!(deed, Deed::Start { .. }));
    }
}

/// Most newcomers ask for a step at once.
fn slowness(choices: &mut Choices) -> Duration {
    if choices.below(3) == 0 { choices.millis(300) } else { ms(0) }
}

fn distinct(choices: &mut Choices, world: u32, most: u32) -> Vec<u32> {
    let mut ranks: Vec<u32> = (0..world).collect();
    let some = 1 + choices.below(most.into()) as usize;
    (0..some).map(|_| ranks.swap_remove(choices.below(ranks.len() as u64) as usize)).collect()
}
