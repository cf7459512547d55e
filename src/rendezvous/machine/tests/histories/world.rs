//! The run, its members, and the messages between them.

use std::collections::BTreeMap;

use crate::rendezvous::leases::Leases;
use crate::rendezvous::machine::tests::*;
use crate::rendezvous::pace::Pace;
use crate::rendezvous::random::Random;
use crate::rendezvous::seeds::Seen;
use crate::rendezvous::wire::{Ask, Notice, View};

/// How many ranks a run begins with, and how many places it has.
pub(super) const RANKS: u32 = 5;
pub(super) const PLACES: u32 = 7;
pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const LEASE: Duration = Duration::from_millis(1000);
/// Deadline of an operation: a peer that has not sent by then is suspected.
pub(super) const DEADLINE: Duration = Duration::from_millis(200);
pub(super) const PING: Duration = Duration::from_millis(200);

/// A message from the server.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Joined(View),
    Resumed,
    Ask(Ask),
    Settled(u64, Result<Decision, BootstrapError>, Mask),
}

/// A message to the server.
#[derive(Clone, Debug)]
pub(super) enum Heard {
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
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) member: u128,
    pub(super) session: SessionId,
    pub(super) dead: bool,
    pub(super) stopped: bool,
    /// Its own device does not work.
    pub(super) sick: bool,
    /// On standby: it will report that it is ready.
    pub(super) eager: bool,
    pub(super) evicted: bool,
    /// The call with which it joins, not answered yet.
    pub(super) joining: Option<u64>,
    /// It has a new connection, over which it hears nothing of changes until this call is answered; 0 until the call is
    /// made.
    pub(super) resuming: Option<u64>,
    pub(super) pace: Option<Pace>,
    /// The operation that it is in: its step and when it began.
    pub(super) operating: Option<(u64, Duration)>,
    pub(super) lost: Mask,
    pub(super) told: Mask,
    /// Those of `told` that it does not report: they continued without it, or the group without them.
    pub(super) excused: Mask,
    pub(super) overtaken: bool,
    pub(super) pinged: Duration,
    /// The first and the last step begun, by epoch.
    pub(super) begun: BTreeMap<u32, (u64, u64)>,
    /// The epochs between its admission and its death.
    pub(super) admitted_in: u32,
    pub(super) died_in: u32,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: Duration,
    pub(super) machine: Machine,
    pub(super) leases: Leases,
    /// A second machine, fed the same events, that is never restored.
    pub(super) lasting: Machine,
    pub(super) restarts: Random,
    pub(super) members: Vec<Member>,
    pub(super) to_server: Vec<(Duration, SessionId, Heard)>,
    pub(super) to_member: Vec<(Duration, SessionId, Said)>,
    /// When the last message on each connection and direction arrives: later ones do not overtake it.
    pub(super) arrives: BTreeMap<(SessionId, bool), Duration>,
    pub(super) broken: Vec<(u32, u32)>,
    /// The half of the network that reaches neither the other half nor the server.
    pub(super) cut_off: Mask,
    pub(super) sessions: SessionId,
    pub(super) calls: u64,
    pub(super) decisions: BTreeMap<u32, Decision>,
    /// Members that were not well at some time since the last decision.
    pub(super) trouble: Mask,
    pub(super) calm: bool,
    pub(super) seen: Seen,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
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

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// A few milliseconds.
    pub(super) fn advance(&mut self) {
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

    pub(super) fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}
