//! Whole histories of a run: the server's machine and each member's [`Pace`], with messages that take their time, some of them
//! twice. Members die, leave, stop and go on, links break, devices fail, the network falls into two halves, newcomers come, dawdle
//! and make the run grow, changes are called off. What must hold is checked in every moment, and
//! once nothing goes wrong any more everybody who can has to take part again. The server goes on in another process now and
//! then, from what was written down: all that happens is a record.
//!
//! Chosen [by seed](crate::rendezvous::seeds).

mod invariants;
mod members;
mod server;
mod trouble;

use std::collections::BTreeMap;

use super::*;
use crate::rendezvous::leases::Leases;
use crate::rendezvous::pace::{Next, Pace};
use crate::rendezvous::random::Random;
use crate::rendezvous::record::Record;
use crate::rendezvous::seeds::{Seen, play};
use crate::rendezvous::wire::{Ask, Notice, View};

/// With whom a run begins, and the places that it has.
const RANKS: u32 = 5;
const PLACES: u32 = 7;
const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(1000);
/// Of an operation: whoever has not sent by then is suspected.
const DEADLINE: Duration = Duration::from_millis(200);
const PING: Duration = Duration::from_millis(200);

/// From the server.
#[derive(Clone, Debug)]
enum Said {
    Joined(View),
    Ask(Ask),
    Settled(u64, Result<Decision, BootstrapError>, Mask),
}

/// To the server.
#[derive(Clone, Debug)]
enum Heard {
    /// The number of the call.
    Join(u64),
    Resume {
        standby: bool,
    },
    Retire(u32),
    Abort(u64),
    Leave,
    Notice(Notice),
    Ping,
    Closed,
}

/// One incarnation of a rank.
struct Member {
    rank: u32,
    member: u128,
    session: SessionId,
    dead: bool,
    stopped: bool,
    /// Its own device does not work.
    sick: bool,
    /// On standby: it will say that it is ready.
    eager: bool,
    evicted: bool,
    /// The call by which it joins, not answered yet.
    joining: Option<u64>,
    pace: Option<Pace>,
    /// Of the operation that it is in: its step, when it began, and whom it has given up in this epoch.
    operating: Option<(u64, Duration)>,
    lost: Mask,
    told: Mask,
    /// Those of the told that it has nothing to say about: they went on without it, or the group without them.
    excused: Mask,
    overtaken: bool,
    pinged: Duration,
    /// The first and the last step begun, by epoch.
    begun: BTreeMap<u32, (u64, u64)>,
    /// The epochs between its admission and its death.
    admitted_in: u32,
    died_in: u32,
}

struct World {
    random: Random,
    now: Duration,
    machine: Machine,
    leases: Leases,
    /// One that nobody restores, beside it.
    lasting: Machine,
    restarts: Random,
    members: Vec<Member>,
    to_server: Vec<(Duration, SessionId, Heard)>,
    to_member: Vec<(Duration, SessionId, Said)>,
    /// When the last message on each way arrives: a later one does not overtake it.
    arrives: BTreeMap<(SessionId, bool), Duration>,
    broken: Vec<(u32, u32)>,
    /// The half of the network that reaches neither the other one nor the server.
    cut_off: Mask,
    sessions: SessionId,
    calls: u64,
    decisions: BTreeMap<u32, Decision>,
    /// Members that were well all the time since the last decision.
    trouble: Mask,
    calm: bool,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let settings = Settings {
            run_id: "run".to_owned(),
            world: PLACES,
            initial: RANKS,
            join_deadline: 60 * LEASE,
            lease: LEASE,
            arbiter: random.below(3) == 0,
        };
        let mut world = Self {
            random,
            now: Duration::ZERO,
            machine: Machine::new(settings.clone()).unwrap(),
            lasting: Machine::new(settings).unwrap(),
            restarts: Random(!seed),
            leases: Leases::new(LEASE),
            members: Vec::new(),
            to_server: Vec::new(),
            to_member: Vec::new(),
            arrives: BTreeMap::new(),
            broken: Vec::new(),
            cut_off: Mask::EMPTY,
            sessions: 0,
            calls: 0,
            decisions: BTreeMap::new(),
            trouble: Mask::EMPTY,
            calm: false,
            seen: Seen::new(),
        };
        (0..RANKS).for_each(|rank| world.start(rank));
        while world.machine.view().epoch == 0 {
            world.advance();
        }
        world
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// A few milliseconds.
    fn advance(&mut self) {
        let passes = MS * (1 + self.below(20) as u32);
        self.now += passes;
        self.deliver_to_server();
        self.trouble = self.trouble.or(&self.unwell());
        self.deliver_to_members();
        for at in 0..self.members.len() {
            if !self.members[at].dead && !self.members[at].stopped {
                self.live(at);
            }
        }
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}

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
