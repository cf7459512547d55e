//! Whole histories of a run: the server's machine and each member's [`Pace`], with messages that are delayed and
//! sometimes duplicated. Members die, leave, stop and continue, links break, devices fail, the network splits into two
//! halves, newcomers join, take their time and make the run grow, changes are called off, calls cancelled. The
//! invariants are checked at every moment, and once the faults stop, everybody who can must take part again. Now and
//! then the server continues in another process, from what was recorded: everything that happens is a record.
//!
//! Generated [from seeds](crate::rendezvous::seeds).

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
        // A run that has lost all members starts again with newcomers.
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
