//! The state of a run: who has which seat, what is decided, what is still pending.

use std::collections::BTreeMap;
use std::time::Duration;

use super::answers::Answers;
use super::changes::Changes;
use super::event::Action;
use super::introductions::Introductions;

use super::store::Store;
use crate::mask::{MAX_WORLD, Mask};
use crate::rendezvous::call::{Call, SessionId};
use crate::rendezvous::codec::wire;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::rounds::{Outcome, Rounds};
use crate::rendezvous::wire::{Decision, Fields, Identity, Listener, MAX_TEXT_BYTES, RankState, Reply, View};

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the run; members must state the same.
    pub run_id: String,
    /// Number of ranks, 1 to 1024.
    pub world: u32,
    /// The run begins when the ranks below this are there, 1 to `world`. The others are places to grow into.
    pub initial: u32,
    /// Longest time from the first join until all ranks are there.
    pub join_deadline: Duration,
    /// Silence after which a member is suspect, and how long to wait for the answers of members.
    pub lease: Duration,
    /// The server does not depend on the life of any member: it may decide who is lost even if most members are.
    pub arbiter: bool,
}
wire!(struct Settings { run_id, world, initial, join_deadline, lease, arbiter });

/// The server's state of a run.
#[derive(Debug)]
pub struct Machine {
    pub(super) settings: Settings,
    /// One seat per rank, so that two living incarnations of a rank cannot be represented.
    pub(super) seats: Vec<Option<Member>>,
    /// The rank of each session whose client has joined.
    pub(super) sessions: BTreeMap<SessionId, u32>,
    pub(super) answers: Answers,
    pub(super) gathering: Option<Gathering>,
    /// Epoch 0 until the run has come together.
    pub(super) decision: Decision,
    /// Ranks that are members or have been.
    pub(super) taken: Mask,
    pub(super) changes: Changes,
    pub(super) introductions: Introductions,
    pub(super) config: Fields,
    pub(super) rounds: Rounds,
    pub(super) store: Store,
    pub(super) actions: Vec<Action>,
    pub(super) view_changed: bool,
}

impl Machine {
    /// A run that nobody has joined.
    ///
    /// Errors: [`BootstrapError::Limit`] for a world outside 1 to 1024, for no initial ranks or more than the world
    /// has, or for a run id that is too long.
    pub fn new(settings: Settings) -> Result<Self, BootstrapError> {
        let op = "start the rendezvous";
        BootstrapError::check(op, "world", settings.world as usize, MAX_WORLD as usize)?;
        BootstrapError::check(op, "bytes of the run id", settings.run_id.len(), MAX_TEXT_BYTES)?;
        BootstrapError::check(op, "initial ranks", settings.initial as usize, settings.world as usize)?;
        for (field, value) in [("world", settings.world), ("initial ranks", settings.initial)] {
            if value == 0 {
                let (op, field) = (op.to_owned(), field.to_owned());
                return Err(BootstrapError::Limit { op, field, value: 0, limit: 1 });
            }
        }
        Ok(Self {
            seats: (0..settings.world).map(|_| None).collect(),
            settings,
            sessions: BTreeMap::new(),
            answers: Answers::default(),
            gathering: None,
            decision: Decision { mask: Mask::EMPTY, epoch: 0, step: 0 },
            taken: Mask::EMPTY,
            changes: Changes::default(),
            introductions: Introductions::default(),
            config: Fields::new(),
            rounds: Rounds::default(),
            store: Store::default(),
            actions: Vec::new(),
            view_changed: false,
        })
    }

    /// The settings of the run.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The current view of the membership.
    pub fn view(&self) -> View {
        let state = |seat: &Option<Member>| match seat.as_ref().map(|member| (member.role, member.life)) {
            None => RankState::Absent {},
            Some((_, Life::Dead)) if seat.as_ref().is_some_and(|member| member.left) => RankState::Left {},
            Some((_, Life::Dead)) => RankState::Dead {},
            Some((Role::Evicted, _)) => RankState::Evicted {},
            Some((Role::Retired { .. }, _)) => RankState::Retired {},
            Some((_, Life::Suspect)) => RankState::Suspect {},
            Some((Role::Standby, Life::Heard)) if seat.as_ref().is_some_and(|member| member.ready) => {
                RankState::Ready {}
            }
            Some((Role::Standby, Life::Heard)) => RankState::Standby {},
            Some((Role::Active, Life::Heard)) => RankState::Alive {},
        };
        let Decision { mask, epoch, step } = self.decision;
        View { epoch, mask, step, taken: self.taken, states: self.seats.iter().map(state).collect() }
    }

    /// All present members, by ascending rank.
    pub(super) fn roster(&self) -> Vec<Identity> {
        let living = self.members().filter(|member| member.life != Life::Dead);
        living.map(|member| member.identity.clone()).collect()
    }

    /// The ranks whose members satisfy `which`.
    pub(super) fn ranks(&self, which: impl Fn(&Member) -> bool) -> Mask {
        self.members().filter(|member| which(member)).map(|member| member.identity.rank).collect()
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.seats.iter().flatten()
    }

    pub(super) fn members_of(&mut self, ranks: &Mask) -> impl Iterator<Item = &mut Member> {
        self.seats.iter_mut().flatten().filter(|member| ranks.contains(member.identity.rank))
    }

    pub(super) fn seat(&self, rank: u32) -> Option<&Member> {
        self.seats.get(rank as usize)?.as_ref()
    }

    pub(super) fn seat_mut(&mut self, rank: u32) -> Option<&mut Member> {
        self.seats.get_mut(rank as usize)?.as_mut()
    }

    pub(super) fn answer(&mut self, call: Call, result: Result<Reply, BootstrapError>) {
        self.answers.give(call, &result);
        self.actions.push(Action::Answer { call, result });
    }

    pub(super) fn answer_all(&mut self, outcomes: Vec<Outcome>) {
        outcomes.into_iter().for_each(|(call, result)| self.answer(call, result));
    }
}

/// The time until the run has come together; it begins with the first join.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathering {
    pub(super) began: Duration,
    pub(super) deadline: Duration,
    /// When those who wait are shown the next time who is there.
    pub(super) show: Duration,
}
wire!(struct Gathering { began, deadline, show });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Active,
    Standby,
    Evicted,
    /// It takes part in the steps before the membership that this change has decided, and in no later ones.
    Retired {
        change: u64,
        decision: Decision,
    },
}
wire!(enum Role { 1 => Active {}, 2 => Standby {}, 3 => Evicted {}, 4 => Retired { change, decision } });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Heard,
    /// Silent past its lease, or without a connection for as long.
    Suspect,
    Dead,
}
wire!(enum Life { 1 => Heard {}, 2 => Suspect {}, 3 => Dead {} });

#[derive(Debug)]
pub(super) struct Member {
    pub(super) identity: Identity,
    pub(super) role: Role,
    pub(super) life: Life,
    /// Dead, because it has left by itself.
    pub(super) left: bool,
    pub(super) session: Option<SessionId>,
    pub(super) joining: Option<Call>,
    /// On standby: it waits to be admitted.
    pub(super) ready: bool,
    /// Peers that it has reported to be connected with; this counts as if the peers had reported it too.
    pub(super) met: Mask,
    /// Peers that it was asked to introduce itself to.
    pub(super) meeting: Mask,
    pub(super) config: Fields,
    pub(super) listener: Option<Listener>,
}
wire!(struct Member { identity, role, life, left, session, joining, ready, met, meeting, config, listener });
