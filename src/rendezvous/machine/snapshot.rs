//! The encoding of the machine's state, from which another process can continue.
//!
//! A state has exactly one encoding, and bytes that no machine can have written are refused: a disk or a peer may have
//! altered them in any way, and a machine restored from them must be as valid as one that got there by events.

use super::change::MAX_EPOCH;
use super::state::{Life, Machine, Member, Role, Settings};
use crate::rendezvous::codec::{Reader, Wire, WireError};

/// Increases whenever anything that is written changes, including every type in it.
const VERSION: u16 = 12;

impl Machine {
    /// All that this machine knows, for [`Machine::restore`].
    pub fn snapshot(&self) -> Vec<u8> {
        let Self {
            settings,
            seats,
            sessions,
            answers,
            gathering,
            decision,
            taken,
            changes,
            introductions,
            config,
            rounds,
            store,
            // Between events there are no actions, and changes have been shown.
            actions: _,
            view_changed: _,
        } = self;
        let mut out = Vec::new();
        VERSION.put(&mut out);
        settings.put(&mut out);
        seats.iter().for_each(|seat| seat.put(&mut out)); // one for each rank of the world
        sessions.put(&mut out);
        answers.put(&mut out);
        gathering.put(&mut out);
        decision.put(&mut out);
        taken.put(&mut out);
        changes.put(&mut out);
        introductions.put(&mut out);
        config.put(&mut out);
        rounds.put(&mut out);
        store.put(&mut out);
        out
    }

    /// The machine that this snapshot describes: the same events at the same times give the same actions.
    ///
    /// Errors: bytes that are not a snapshot, or one of another version.
    pub fn restore(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let theirs = u16::get(&mut from)?;
        if theirs != VERSION {
            return Err(WireError::Version { ours: VERSION, theirs });
        }
        let fresh = Machine::new(Settings::get(&mut from)?);
        let Machine { settings, mut seats, .. } =
            fresh.map_err(|_| WireError::Invalid { what: "the settings" })?;
        for seat in &mut seats {
            *seat = Wire::get(&mut from)?;
        }
        let machine = Self {
            settings,
            seats,
            sessions: Wire::get(&mut from)?,
            answers: Wire::get(&mut from)?,
            gathering: Wire::get(&mut from)?,
            decision: Wire::get(&mut from)?,
            taken: Wire::get(&mut from)?,
            changes: Wire::get(&mut from)?,
            introductions: Wire::get(&mut from)?,
            config: Wire::get(&mut from)?,
            rounds: Wire::get(&mut from)?,
            store: Wire::get(&mut from)?,
            actions: Vec::new(),
            view_changed: false,
        };
        from.end()?;
        machine.check().map(|()| machine)
    }

    /// Checks the invariants of the machine, on which the rest of it relies.
    fn check(&self) -> Result<(), WireError> {
        let world = self.settings.world;
        let seats = (0..).zip(&self.seats).all(|(rank, seat)| {
            seat.as_ref().is_none_or(|member| member.identity.rank == rank && self.can_sit(member))
        });
        // Each session leads to a seat that leads back, so no two sessions lead to the same seat.
        let sessions = self
            .sessions
            .iter()
            .all(|(session, rank)| self.seat(*rank).is_some_and(|m| m.session == Some(*session)));
        let gathering = self.gathering.is_none_or(|of| of.began <= of.deadline && of.began <= of.show);
        let decision = self.decision.mask.minus(&self.taken).is_empty()
            && self.taken.fits(world)
            && self.decision.epoch <= MAX_EPOCH;
        let formed = self.decision.epoch == 0
            || self.gathering.is_none()
                && self.seats.iter().take(self.settings.initial as usize).all(Option::is_some);
        for (holds, what) in [
            (seats, "a seat"),
            (sessions && self.answers.can_be(&self.sessions), "a session"),
            (gathering && formed, "the gathering"),
            (decision, "the membership"),
            (self.changes.can_be(world) && self.changes.last < MAX_NUMBER, "a change of membership"),
            (self.introductions.can_be(world) && self.introductions.last < MAX_NUMBER, "an introduction"),
            (self.rounds.can_be(world), "a round"),
            (self.store.can_be(), "the store"),
        ] {
            if !holds {
                return Err(WireError::Invalid { what });
            }
        }
        Ok(())
    }

    fn can_sit(&self, member: &Member) -> bool {
        let Member { identity, role, life, left, session, met, meeting, .. } = member;
        let known = session
            .is_none_or(|session| *life != Life::Dead && self.sessions.get(&session) == Some(&identity.rank));
        let ended = !left || *life == Life::Dead;
        let retired = match role {
            Role::Retired { change, decision } => {
                *change <= self.changes.last
                    && decision.epoch <= self.decision.epoch
                    && decision.mask.fits(self.settings.world)
            }
            Role::Active | Role::Standby | Role::Evicted => true,
        };
        known && ended && retired && met.fits(self.settings.world) && meeting.fits(self.settings.world)
    }
}

/// Changes and introductions are numbered from 1: counting never gets this far.
const MAX_NUMBER: u64 = 1 << 63;
