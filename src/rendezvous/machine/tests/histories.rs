//! Whole histories of a run: the server's machine and each member's [`Pace`], with messages that take their time, members that
//! die, stop and go on, links that break, newcomers that come and dawdle. What must hold is checked in every moment, and
//! once nothing goes wrong any more everybody who can has to take part again. The server goes on in another process now and
//! then, from what was written down: all that happens is a record.
//!
//! Chosen [by seed](crate::rendezvous::seeds).

use std::collections::BTreeMap;

use super::*;
use crate::rendezvous::leases::Leases;
use crate::rendezvous::pace::{Next, Pace};
use crate::rendezvous::random::Random;
use crate::rendezvous::record::Record;
use crate::rendezvous::seeds::{Seen, play};
use crate::rendezvous::wire::{Ask, Notice, View};

const RANKS: u32 = 5;
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
            world: RANKS,
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

    fn start(&mut self, rank: u32) {
        self.sessions += 1;
        let eager = self.below(3) > 0;
        self.members.push(Member {
            rank,
            member: u128::from(self.sessions),
            session: self.sessions,
            dead: false,
            stopped: false,
            eager,
            evicted: false,
            joining: None,
            pace: None,
            operating: None,
            lost: Mask::EMPTY,
            told: Mask::EMPTY,
            excused: Mask::EMPTY,
            overtaken: false,
            pinged: self.now,
            begun: BTreeMap::new(),
            admitted_in: 0,
            died_in: u32::MAX,
        });
        self.join(self.members.len() - 1);
    }

    fn join(&mut self, at: usize) {
        self.calls += 1;
        self.members[at].joining = Some(self.calls);
        self.tell(self.members[at].session, Heard::Join(self.calls));
    }

    /// A way takes 1 to 30 ms, and sometimes much longer.
    fn arrival(&mut self, session: SessionId, up: bool) -> Duration {
        let long = if !self.calm && self.below(60) == 0 { 400 } else { 30 };
        let arrives = self.now + MS * (1 + self.below(long) as u32);
        let last = self.arrives.entry((session, up)).or_default();
        *last = arrives.max(*last);
        *last
    }

    fn tell(&mut self, session: SessionId, heard: Heard) {
        let at = self.arrival(session, true);
        self.to_server.push((at, session, heard));
    }

    fn event(&mut self, event: Event) {
        let before = self.machine.decision;
        let living = self.machine.ranks(|member| member.role == Role::Active && member.life != Life::Dead);
        for action in self.handle(event) {
            let (session, said) = match action {
                Action::Answer { call, result: Ok(Reply::Joined { joined }) } => {
                    (call.session, Said::Joined(joined.view.clone()))
                }
                // The end of the former member's connection is still on its way.
                Action::Answer { call, result: Err(BootstrapError::Fenced { .. }) } => {
                    let living = |member: &Member| member.session == call.session && !member.dead;
                    if let Some(at) = self.members.iter().position(living) {
                        self.join(at);
                    }
                    continue;
                }
                Action::Answer { result: Ok(Reply::Done {}), .. } => continue, // it goes on
                // It has not been let in yet.
                Action::Answer { result: Err(BootstrapError::OutOfOrder { .. }), .. } => continue,
                Action::Answer { result, .. } => panic!("{result:?}"),
                Action::Ask { session, ask } => (session, Said::Ask(ask)),
                Action::Settle { session, change, outcome, retired, .. } => {
                    (session, Said::Settled(change, outcome, retired))
                }
                Action::Show { .. } | Action::Seat { .. } | Action::Close { .. } => continue,
            };
            let at = self.arrival(session, false);
            self.to_member.push((at, session, said));
        }
        let after = self.machine.decision;
        if after != before && before.epoch > 0 {
            self.check_decision(&before, &after, &living);
        }
        self.decisions.insert(after.epoch, after);
    }

    /// Tells the server, which may go on in another process afterwards.
    fn handle(&mut self, event: Event) -> Vec<Action> {
        let record = Record { at: self.now, event };
        let Record { at, event } = Record::decode(&record.encode()).unwrap();
        assert_eq!(event, record.event);
        let actions = self.machine.handle(at, event);
        assert_eq!(actions, self.lasting.handle(record.at, record.event));
        if self.restarts.below(8) == 0 {
            let written = self.machine.snapshot();
            assert!(written == self.lasting.snapshot(), "{:?} and {:?}", self.machine, self.lasting);
            self.machine = Machine::restore(&written).unwrap();
            assert!(written == self.machine.snapshot());
        }
        assert_eq!(self.machine.next_deadline(), self.lasting.next_deadline());
        actions
    }

    /// Nobody is removed who was well, and too many never.
    fn check_decision(&mut self, before: &Decision, after: &Decision, living: &Mask) {
        assert_eq!(after.epoch, before.epoch + 1);
        // A rank whose member died may have another one by now, which is not in this decision.
        let dead = self.machine.ranks(|member| member.life == Life::Dead);
        let living = living.minus(&dead);
        let removed = living.minus(&after.mask).minus(&self.machine.changes.retired);
        let few = 2 * removed.len() < living.len();
        let arbiter = self.machine.settings().arbiter && removed != living;
        assert!(removed.is_empty() || few || arbiter, "{removed} of {living} removed");
        *self.seen.entry("most removed").or_default() += u32::from(!few);
        let doubted = &self.machine.changes.doubted;
        let often =
            doubted.iter().filter(|(_, link)| doubted.iter().filter(|(_, other)| link == other).count() > 1);
        let suspicious: Mask = often.flat_map(|(_, (a, b))| [*a, *b]).collect();
        let unwell = self.trouble.or(&suspicious);
        assert!(removed.minus(&unwell).is_empty(), "{removed} removed, but only {unwell} were unwell");
        *self.seen.entry("decisions").or_default() += 1;
        *self.seen.entry("removed alive").or_default() += removed.len() as u32;
        *self.seen.entry("entered").or_default() += after.mask.minus(&before.mask).len() as u32;
        self.trouble = self.unwell();
    }

    /// Ranks that may be taken for lost.
    fn unwell(&self) -> Mask {
        let mut unwell: Mask = self.broken.iter().flat_map(|(a, b)| [*a, *b]).collect();
        self.members.iter().filter(|m| m.dead || m.stopped).for_each(|m| unwell.insert(m.rank));
        unwell
    }

    fn reaches(&self, from: u32, to: u32) -> bool {
        let runs = |m: &Member| m.rank == to && !m.dead && !m.stopped;
        !self.broken.contains(&(from, to)) && self.members.iter().any(runs)
    }

    /// A few milliseconds.
    fn advance(&mut self) {
        let passes = MS * (1 + self.below(20) as u32);
        self.now += passes;
        let now = self.now;
        let due = self.to_server.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, session, heard) in due {
            let Some(member) = self.members.iter().find(|member| member.session == session) else { continue };
            let join = Join {
                version: PROTOCOL_VERSION,
                run_id: "run".to_owned(),
                world: RANKS,
                initial: RANKS,
                identity: Identity {
                    rank: member.rank,
                    member: member.member,
                    host: String::new(),
                    pid: session as u32,
                },
                deadline: 60 * LEASE,
                config: Vec::new(),
                listener: None,
            };
            if let Some(event) = self.leases.heard(now, session) {
                self.event(event);
            }
            let event = match heard {
                Heard::Join(id) => {
                    let call = Call { session, id };
                    Event::Request { call, request: Box::new(Request::Join { join }) }
                }
                Heard::Resume { standby } => {
                    self.calls += 1;
                    let call = Call { session, id: self.calls };
                    Event::Request { call, request: Box::new(Request::Resume { standby }) }
                }
                Heard::Retire(rank) => {
                    self.calls += 1;
                    let call = Call { session, id: self.calls };
                    Event::Request { call, request: Box::new(Request::Retire { rank }) }
                }
                Heard::Notice(notice) => Event::Noticed { session, notice },
                Heard::Ping => continue,
                Heard::Closed => {
                    self.leases.forget(session);
                    Event::Closed { session, by_peer: true }
                }
            };
            self.event(event);
        }
        for event in self.leases.expire(now) {
            self.event(event);
        }
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.event(Event::Tick);
        }
        self.trouble = self.trouble.or(&self.unwell());
        let running = |members: &[Member], session: SessionId| {
            members.iter().any(|m| m.session == session && !m.stopped && !m.dead)
        };
        let members = &self.members;
        let due: Vec<_> = self
            .to_member
            .extract_if(.., |(at, session, _)| *at <= now && running(members, *session))
            .collect();
        for (_, session, said) in due {
            self.hear(session, said);
        }
        for at in 0..self.members.len() {
            if !self.members[at].dead && !self.members[at].stopped {
                self.live(at);
            }
        }
    }

    fn hear(&mut self, session: SessionId, said: Said) {
        let Some(at) = self.members.iter().position(|member| member.session == session) else { return };
        let rank = self.members[at].rank;
        match said {
            Said::Joined(view) => {
                let lead = self.below(3);
                self.members[at].joining = None;
                self.members[at].pace = Some(Pace::joined(rank, &view, lead));
                self.members[at].admitted_in = view.epoch;
            }
            Said::Ask(Ask::Reach { change, peers, .. }) => {
                let missing = peers.iter().filter(|peer| !self.reaches(rank, *peer)).collect();
                self.tell(
                    session,
                    Heard::Notice(Notice::Reached { change, missing, diverged: Box::default() }),
                );
            }
            Said::Ask(Ask::Meet { peers }) => {
                let peers = peers.iter().filter(|peer| self.reaches(rank, *peer)).collect();
                self.tell(session, Heard::Notice(Notice::Met { peers }));
            }
            Said::Ask(Ask::Introduce { .. }) => {}
            Said::Ask(Ask::Promise { change, lossy }) => {
                let Some(pace) = &mut self.members[at].pace else { return };
                let step = pace.promise(change, lossy);
                self.tell(session, Heard::Notice(Notice::Promise { change, step }));
            }
            Said::Settled(change, outcome, retired) => {
                let member = &mut self.members[at];
                let Some(pace) = &mut member.pace else { return };
                let removed = pace.settle(change, outcome.ok(), retired);
                member.lost = member.lost.or(&removed);
                member.told = member.told.or(&removed);
                member.excused = member.excused.or(&removed);
            }
        }
    }

    /// A running member goes on as far as it can.
    fn live(&mut self, at: usize) {
        let (now, session, rank) = (self.now, self.members[at].session, self.members[at].rank);
        if now >= self.members[at].pinged + PING {
            self.members[at].pinged = now;
            self.tell(session, Heard::Ping);
        }
        let Some(pace) = &self.members[at].pace else { return };
        let current = pace.current();
        if let Some((step, began)) = self.members[at].operating {
            let epoch = current.epoch;
            let has_begun = |peer: u32, which: &dyn Fn(&Member) -> bool| {
                self.members.iter().any(|member| member.rank == peer && which(member))
            };
            let here = |peer: u32| {
                has_begun(peer, &|member| member.begun.get(&epoch).is_some_and(|(_, last)| *last >= step))
            };
            let moved = |peer: u32| {
                has_begun(peer, &|member| member.begun.last_key_value().is_some_and(|(e, _)| *e > epoch))
            };
            let waiting = current.mask.minus(&self.members[at].lost).without(rank);
            let waiting: Mask =
                waiting.iter().filter(|peer| !here(*peer) || self.is_broken(rank, *peer)).collect();
            let reached = |peer: &u32| !self.is_broken(rank, *peer);
            let gone: Mask = waiting.iter().filter(reached).filter(|peer| moved(*peer)).collect();
            let silent = waiting.minus(&gone);
            if !silent.is_empty() && now < began + DEADLINE {
                return;
            }
            let member = &mut self.members[at];
            member.overtaken |= !gone.is_empty();
            member.told = member.told.or(&gone);
            member.excused = member.excused.or(&gone);
            member.lost = member.lost.or(&waiting);
            member.operating = None;
        }
        let unsaid = self.members[at].lost.minus(&self.members[at].told);
        if !unsaid.is_empty() {
            self.members[at].told = self.members[at].lost;
            self.tell(session, Heard::Notice(Notice::Doubt { epoch: current.epoch, peers: unsaid }));
        }
        let member = &mut self.members[at];
        let Some(pace) = &mut member.pace else { return };
        match pace.next(member.overtaken) {
            Next::Begin { step } => {
                member.operating = Some((step, now));
                member.begun.entry(current.epoch).or_insert((step, step)).1 = step;
            }
            Next::Apply { decision } => {
                pace.applied(decision);
                (member.lost, member.told, member.excused) = (Mask::EMPTY, Mask::EMPTY, Mask::EMPTY);
                member.overtaken = false;
                if member.admitted_in == 0 || !current.mask.contains(rank) {
                    member.admitted_in = decision.epoch;
                }
            }
            Next::Wait => {
                if pace.is_standby() && member.eager {
                    self.tell(session, Heard::Notice(Notice::Ready {}));
                    self.members[at].eager = false;
                }
            }
            Next::Retired { epoch } => {
                *self.seen.entry("retired").or_default() += 1;
                // It has taken part in every step before, unless the last ones were not completed without it.
                let first = self.decisions[&epoch].step;
                assert!(pace.begun() + 1 >= first || member.overtaken, "{pace:?}: {first}");
                member.evicted = true;
                member.pace = None;
                member.eager = true;
                self.join(at);
            }
            Next::Evicted { .. } => {
                *self.seen.entry("told").or_default() += 1;
                member.evicted = true;
                member.pace = None;
                member.eager = true;
                self.join(at);
            }
        }
    }

    fn is_broken(&self, a: u32, b: u32) -> bool {
        self.broken.contains(&(a, b)) || self.broken.contains(&(b, a))
    }

    /// Something goes wrong, or ends going wrong.
    fn disturb(&mut self) {
        let at = self.below(self.members.len() as u64) as usize;
        let (rank, session) = (self.members[at].rank, self.members[at].session);
        match self.below(16) {
            13 | 14 if !self.members[at].dead => {
                let retired = self.below(u64::from(RANKS)) as u32;
                self.tell(session, Heard::Retire(retired));
            }
            0 | 1 if !self.members[at].dead => self.kill(at),
            2 | 3 if !self.members[at].dead => self.members[at].stopped = !self.members[at].stopped,
            4 => {
                let other = self.below(u64::from(RANKS)) as u32;
                if other != rank {
                    self.broken.push((rank, other));
                    if self.below(3) > 0 {
                        self.broken.push((other, rank));
                    }
                }
            }
            5 | 6 => self.broken.clear(),
            7 | 8 => {
                let free = |rank: &u32| !self.members.iter().any(|m| m.rank == *rank && !m.dead);
                if let Some(rank) = (0..RANKS).find(free) {
                    self.start(rank);
                }
            }
            9 => self.members[at].eager = true,
            10 => {
                let mut peers = Mask::EMPTY;
                peers.insert(self.below(u64::from(RANKS)) as u32);
                let epoch = self.machine.decision.epoch;
                self.tell(session, Heard::Notice(Notice::Doubt { epoch, peers: peers.without(rank) }));
            }
            11 | 12 if !self.members[at].dead => self.reconnect(at),
            _ => {}
        }
    }

    /// The connection breaks with all that is on its way, and the member comes back by another one.
    fn reconnect(&mut self, at: usize) {
        let Member { session, joining, .. } = self.members[at];
        self.to_server.retain(|(_, of, _)| *of != session);
        self.to_member.retain(|(_, of, _)| *of != session);
        if self.members[at].pace.is_some() || self.members[at].evicted {
            let standby = self.members[at].pace.as_ref().is_some_and(Pace::is_standby);
            self.tell(session, Heard::Resume { standby });
        }
        if let Some(id) = joining {
            self.tell(session, Heard::Join(id));
        }
        let member = &mut self.members[at];
        member.eager |= member.pace.as_ref().is_some_and(Pace::is_standby);
        member.told = member.excused;
    }

    fn kill(&mut self, at: usize) {
        self.members[at].dead = true;
        self.members[at].died_in = self.machine.decision.epoch;
        self.members[at].stopped = false;
        let session = self.members[at].session;
        // What it has sent still comes, then the end of its connection.
        self.tell(session, Heard::Closed);
    }

    /// No member of an epoch begins a step of it under another one, or one of another under it.
    fn check_steps(&self) {
        for member in &self.members {
            let of_it =
                |decision: &&Decision| decision.mask.contains(member.rank) && self.is_of(member, decision);
            for decision in self.decisions.values().filter(of_it) {
                for (epoch, (first, last)) in &member.begun {
                    for step in [first, last] {
                        let (in_step, in_epoch) = (*step >= decision.step, *epoch >= decision.epoch);
                        assert_eq!(
                            in_step, in_epoch,
                            "rank {}: step {step} of epoch {epoch}: {decision:?}",
                            member.rank
                        );
                    }
                }
            }
        }
    }

    /// Whether the decision is about this incarnation: it was admitted before and has not been evicted. One that gave way to
    /// a later decision before anybody of that had begun it is about nobody.
    fn is_of(&self, member: &Member, decision: &Decision) -> bool {
        let gave_way =
            self.decisions.values().any(|later| later.epoch > decision.epoch && later.step <= decision.step);
        let lived = member.admitted_in..=member.died_in;
        !gave_way && !member.evicted && lived.contains(&decision.epoch) && !member.begun.is_empty()
    }

    /// From here on nothing goes wrong: everybody takes part in the end.
    fn calm_down(&mut self) {
        self.calm = true;
        self.broken.clear();
        for at in 0..self.members.len() {
            self.members[at].stopped = false;
            self.members[at].eager |= self.members[at].pace.as_ref().is_none_or(Pace::is_standby);
        }
        let quiet = self.now + 90 * LEASE;
        while self.now < quiet {
            self.advance();
            let living: Vec<&Member> = self.members.iter().filter(|member| !member.dead).collect();
            let mask: Mask = living.iter().map(|member| member.rank).collect();
            let together = |member: &&Member| {
                member.pace.as_ref().is_some_and(|pace| pace.current() == self.machine.decision)
                    && member.lost.is_empty()
                    && member
                        .begun
                        .get(&self.machine.decision.epoch)
                        .is_some_and(|(first, last)| last - first > 3)
            };
            if self.machine.decision.mask == mask && living.iter().all(together) {
                return;
            }
        }
        let living: Vec<_> = self.members.iter().filter(|member| !member.dead).collect();
        for member in &living {
            eprintln!(
                "{} {}: {:?} lost {} {:?}",
                member.rank, member.session, member.pace, member.lost, member.operating
            );
        }
        panic!("not together: {:?} {:?}", self.machine.decision, self.machine.view());
    }
}

#[test]
fn whatever_happens_steps_stay_apart_and_everybody_comes_together_again() {
    let common = ["decisions", "removed alive", "entered", "told", "retired"];
    play(40, (&common, 20), |seed| {
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
