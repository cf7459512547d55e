//! A machine that is encoded and restored at any time behaves like one that is not, and other bytes are refused or give
//! a machine that is just as valid.

use proptest::prelude::*;

use super::*;
use crate::rendezvous::random::Random;
use crate::rendezvous::record::Record;
use crate::rendezvous::seeds::{Seen, play};
use crate::rendezvous::wire::WireError;

const WORLD: u32 = 4;

/// Events of every kind, few of which make sense.
struct Chaos {
    random: Random,
    now: Duration,
    calls: u64,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        Self { random: Random(seed), now: Duration::ZERO, calls: 0 }
    }

    /// A machine, usually one whose run has come together.
    fn machine(&mut self) -> Machine {
        match self.below(4) {
            0 => Run::new(WORLD).machine,
            _ => Run::formed(WORLD).machine,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn ranks(&mut self) -> Mask {
        Mask::from_words(std::array::from_fn(
            |word| if word == 0 { self.random.below(1 << WORLD) } else { 0 },
        ))
    }

    fn time(&mut self) -> Duration {
        SECOND * self.below(12) as u32
    }

    fn blobs(&mut self, count: u64) -> Vec<Blob> {
        (0..count).map(|byte| Blob(vec![byte as u8; self.random.below(9) as usize])).collect()
    }

    fn key(&mut self) -> String {
        ["a", "b", "c", "n", "m"][self.below(5) as usize].to_owned()
    }

    fn record(&mut self, machine: &Machine) -> Record {
        if self.below(3) == 0 {
            self.now += Duration::from_millis(self.random.below(3000));
        }
        let session = self.below(8);
        if let Some(change) = machine.changes.running.as_ref().filter(|_| self.random.below(4) == 0) {
            // Some changes must be completed.
            let notice =
                Notice::Reached { change: change.number, missing: Mask::EMPTY, diverged: Box::default() };
            return Record {
                at: self.now,
                event: Event::Noticed { session: session % u64::from(WORLD), notice },
            };
        }
        let event = match self.below(18) {
            0 => Event::Tick,
            1 => Event::Closed { session, by_peer: self.below(2) == 0 },
            2 => Event::Ended { rank: self.below(5) as u32, pid: 100 + self.below(5) as u32 },
            3 => Event::Silent { session },
            4..7 => Event::Heard { session },
            7 => {
                let through = self.below(self.calls + 1);
                let except = (0..through).filter(|_| self.random.below(4) == 0).collect();
                Event::Received { session, through, except }
            }
            8..13 => Event::Noticed { session, notice: self.notice(machine) },
            _ => {
                self.calls += 1;
                let request = self.request(session);
                // Sometimes a repetition of an earlier call.
                let id = if self.below(8) == 0 { self.below(self.calls) } else { self.calls };
                Event::Request { call: Call { session, id }, request: Box::new(request) }
            }
        };
        Record { at: self.now, event }
    }

    fn request(&mut self, session: SessionId) -> Request {
        let deadline = self.time();
        match self.below(17) {
            0 => Request::Leave {},
            14 => Request::ReportDeath { rank: self.below(5) as u32, member: u128::from(self.below(16)) },
            13 => Request::Retire { rank: self.below(5) as u32 },
            12 => Request::Resume { standby: self.below(2) == 0 },
            1..4 => {
                let rank = if self.below(4) == 0 { self.below(5) } else { session % u64::from(WORLD) };
                let join = join(rank as u32, u128::from(self.below(2) * 10 + rank), WORLD);
                Request::Join { join: Join { deadline, ..join } }
            }
            16 => Request::DeletePrefix { prefix: self.key() },
            15 => Request::Delete { key: self.key() },
            4 => Request::Set { key: self.key(), value: self.blobs(2).remove(1) },
            5 => Request::Add { key: self.key(), amount: 1 },
            6 => Request::Get { keys: (0..self.below(4)).map(|_| self.key()).collect(), deadline },
            7 | 8 => {
                let count = self.below(3);
                Request::Introduce { rank: self.below(5) as u32, blobs: self.blobs(count), deadline }
            }
            _ => {
                let kind = match self.below(4) {
                    0 => RoundKind::Barrier {},
                    1 => RoundKind::Agree { fields: vec![(self.key(), String::new())] },
                    _ => RoundKind::Exchange { blobs: self.blobs(u64::from(WORLD)) },
                };
                let ranks = if self.below(2) == 0 { Mask::all(WORLD) } else { self.ranks() };
                Request::Round { round: Round { tag: self.key(), ranks, deadline, kind } }
            }
        }
    }

    fn notice(&mut self, machine: &Machine) -> Notice {
        let change = machine.changes.last;
        match self.below(24) {
            0 => Notice::Ready {},
            1 => Notice::Met { peers: self.ranks() },
            2 | 20 => Notice::Doubt { epoch: machine.decision.epoch, peers: self.ranks() },
            3 => Notice::Ended { rank: self.below(4) as u32, member: u128::from(self.below(16)) },
            4 => {
                let ticket = machine.introductions.last.saturating_sub(self.below(3));
                Notice::Introduced { ticket, result: Ok(self.blobs(2)) }
            }
            5..20 => Notice::Reached {
                change,
                missing: if self.below(4) > 0 { Mask::EMPTY } else { self.ranks() },
                diverged: Box::new(if self.below(16) > 0 { Mask::EMPTY } else { self.ranks() }),
            },
            _ => {
                let step = if self.below(200) == 0 { u64::MAX } else { self.below(100) };
                Notice::Promise { change, step }
            }
        }
    }
}

#[test]
fn a_machine_that_is_restored_goes_on_as_if_nothing_had_been() {
    play(25, (STATES, 5), |seed| {
        let mut seen = Seen::new();
        let mut chaos = Chaos::new(seed);
        let mut machine = chaos.machine();
        let mut lasting = Machine::restore(&machine.snapshot()).unwrap();
        for _ in 0..400 {
            let record = chaos.record(&machine);
            let actions = lasting.handle(record.at, record.event.clone());
            let Record { at, event } = Record::decode(&record.encode()).unwrap();
            assert_eq!(machine.handle(at, event), actions, "{record:?}");
            let bytes = machine.snapshot();
            assert_eq!(machine.next_deadline(), lasting.next_deadline());
            assert_eq!(lasting.snapshot(), bytes);
            let restored = Machine::restore(&bytes).unwrap();
            assert_eq!(restored.snapshot(), bytes);
            match chaos.below(4) {
                0 => machine = restored,
                1 => {
                    let text = format!("{machine:?}");
                    for what in STATES {
                        *seen.entry(what).or_default() += u32::from(text.contains(what));
                    }
                }
                _ => {}
            }
        }
        seen
    });
}

/// States that must have been encoded several times, as they appear in the debug text of a machine. The histories cover
/// the others.
const STATES: &[&str] = &[
    "gathering: Some",
    "open: {",
    "given: [",
    "joining: Some",
    "role: Standby",
    "life: Suspect",
    "ready: true",
    "Survey {",
    "Promises {",
    "doubts: {0: ",
    "doubted: [(",
    "newcomer:",
    "Open {",
    "Failed {",
    "entries: {\"",
    "waiting: {\"",
];

proptest! {
    #[test]
    fn no_bytes_bring_a_machine_down(
        seed in any::<u64>(),
        events in 0usize..200,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut chaos = Chaos::new(seed);
        let mut machine = chaos.machine();
        for _ in 0..events {
            let Record { at, event } = chaos.record(&machine);
            machine.handle(at, event);
        }
        let mut bytes = machine.snapshot();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Bytes that are accepted have been read completely, and the machine handles any events.
        if let Ok(mut accepted) = Machine::restore(&bytes) {
            prop_assert_eq!(accepted.snapshot(), bytes);
            for _ in 0..100 {
                let Record { at, event } = chaos.record(&accepted);
                accepted.handle(at, event);
                prop_assert!(Machine::restore(&accepted.snapshot()).is_ok());
            }
        }
        prop_assert!(Machine::restore(&noise).is_err());
        let _ = Record::decode(&noise);
    }

    #[test]
    fn a_snapshot_cut_or_lengthened_anywhere_is_an_error(seed in any::<u64>(), cut in any::<prop::sample::Index>()) {
        let mut chaos = Chaos::new(seed);
        let mut machine = chaos.machine();
        for _ in 0..50 {
            let record = chaos.record(&machine);
            let mut bytes = record.encode();
            prop_assert!(Record::decode(&bytes[..cut.index(bytes.len())]).is_err());
            bytes.push(0);
            prop_assert_eq!(Record::decode(&bytes), Err(WireError::Trailing));
            machine.handle(record.at, record.event);
        }
        let mut bytes = machine.snapshot();
        prop_assert!(Machine::restore(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert_eq!(Machine::restore(&bytes).unwrap_err(), WireError::Trailing);
    }
}

/// The error for a formed machine's snapshot after this change.
fn refused(change: impl FnOnce(&mut Machine)) -> &'static str {
    let mut machine = Run::formed(3).machine;
    change(&mut machine);
    match Machine::restore(&machine.snapshot()) {
        Err(WireError::Invalid { what }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_can_not_be_is_not_restored() {
    let member = |machine: &mut Machine| machine.seats.remove(1).unwrap();
    assert_eq!(refused(|m| m.seats.swap(0, 1)), "a seat");
    assert_eq!(refused(|m| m.seats[1].as_mut().unwrap().identity.rank = 7), "a seat");
    assert_eq!(refused(|m| m.seats[1].as_mut().unwrap().met.insert(3)), "a seat");
    assert_eq!(refused(|m| m.seats[1].as_mut().unwrap().life = Life::Dead), "a seat");
    assert_eq!(refused(|m| assert!(m.sessions.remove(&1).is_some())), "a seat");
    assert_eq!(refused(|m| assert!(m.sessions.insert(9, 1).is_none())), "a session");
    assert_eq!(refused(|m| assert!(m.sessions.insert(9, 7).is_none())), "a session");
    assert_eq!(
        refused(|m| m.gathering = Some(Gathering { began: SECOND, deadline: SECOND, show: SECOND })),
        "the gathering"
    );
    assert_eq!(refused(|m| m.decision.mask.insert(3)), "the membership");
    assert_eq!(refused(|m| m.taken.insert(3)), "the membership");
    assert_eq!(refused(|m| m.taken = Mask::all(2)), "the membership");
    assert_eq!(refused(|m| m.decision.epoch = MAX_EPOCH + 1), "the membership");
    assert_eq!(
        refused(|m| assert!(m.changes.doubts.insert(1, Mask::all(4)).is_none())),
        "a change of membership"
    );
    assert_eq!(refused(|m| m.changes.last = u64::MAX), "a change of membership");
    assert_eq!(refused(|m| m.introductions.last = u64::MAX), "an introduction");
    assert_eq!(refused(|m| m.settings.world = 0), "the settings");
    assert_eq!(refused(|m| m.settings.initial = 4), "the settings");
    // One seat too few or too many: what follows is read at another offset.
    for change in [
        |m: &mut Machine| (m.settings.world, m.settings.initial) = (2, 2),
        |m: &mut Machine| m.settings.world = 4,
    ] {
        let mut machine = Run::formed(3).machine;
        change(&mut machine);
        assert!(Machine::restore(&machine.snapshot()).is_err());
        let _ = member(&mut machine);
        assert!(Machine::restore(&machine.snapshot()).is_err());
    }
}

#[test]
fn a_snapshot_of_another_version_says_so() {
    let mut bytes = Run::new(2).machine.snapshot();
    bytes[0] += 1;
    let error = Machine::restore(&bytes).unwrap_err();
    let ours = u16::from(bytes[0]) - 1;
    assert_eq!(error.to_string(), format!("bytes of version {} (this side: {ours})", ours + 1));
}
