//! Whole histories of a run: the server's machine and each member's [`Pace`], with messages that take their time, some of them
//! twice. Members die, leave, stop and go on, links break, devices fail, the network falls into two halves, newcomers come, dawdle
//! and make the run grow, changes are called off, calls cancelled. What must hold is checked in every moment, and
//! once nothing goes wrong any more everybody who can has to take part again. The server goes on in another process now and
//! then, from what was written down: all that happens is a record.
//!
//! Chosen [by seed](crate::rendezvous::seeds).

mod invariants;
mod members;
mod server;
mod trouble;
mod world;

use self::world::{RANKS, World};
use crate::rendezvous::seeds::play;

#[test]
fn whatever_happens_steps_stay_apart_and_everybody_comes_together_again() {
    let common = [
        "decisions",
        "removed alive",
        "entered",
        "told",
        "retired",
        "grown",
        "left",
        "cut",
        "device failed",
        "twice",
        "cancelled",
        "aborted",
    ];
    play(60, (&common, 10), |seed| {
        let mut world = World::new(seed);
        let disturbances = world.below(25);
        for _ in 0..disturbances {
            world.disturb();
            for _ in 0..world.below(80) {
                world.advance();
            }
            world.check_steps();
        }
        // A run that has lost all members begins again with newcomers.
        for rank in 0..RANKS {
            if world.members.iter().all(|member| member.rank != rank || member.dead) {
                world.start(rank);
            }
        }
        world.calm_down();
        world.check_steps();
        world.seen
    });
}
