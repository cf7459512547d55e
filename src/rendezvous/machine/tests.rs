//! The machine by itself: each case is a list of events, and time is what the case says.

mod histories;
mod random;
mod restored;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::mask::MAX_WORLD;
use crate::rendezvous::Blob;
use crate::rendezvous::leases::Leases;
use crate::rendezvous::wire::{Ask, Notice, RankState, RoundKind};

const SECOND: Duration = Duration::from_secs(1);

/// A machine, its clock, and what it answered to whom.
struct Run {
    machine: Machine,
    leases: Leases,
    now: Duration,
    answers: BTreeMap<(SessionId, u64), Result<Reply, BootstrapError>>,
    closed: Vec<SessionId>,
    asks: Vec<(SessionId, Ask)>,
    /// The last outcome that each session was told.
    settled: BTreeMap<SessionId, Result<Decision, BootstrapError>>,
    next_id: u64,
}

impl Run {
    fn new(world: u32) -> Self {
        let settings = Settings {
            run_id: "run".to_owned(),
            world,
            initial: world,
            join_deadline: 30 * SECOND,
            lease: 5 * SECOND,
        };
        let machine = Machine::new(settings).unwrap();
        Self {
            machine,
            leases: Leases::new(5 * SECOND),
            now: Duration::ZERO,
            answers: BTreeMap::new(),
            closed: Vec::new(),
            asks: Vec::new(),
            settled: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// A run that has come together; rank r has session r, with member id r.
    fn formed(world: u32) -> Self {
        let mut run = Self::new(world);
        for rank in 0..world {
            run.join(u64::from(rank), rank, u128::from(rank));
        }
        assert_eq!(run.machine.view().epoch, 1);
        run
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Request { call: Call { session, .. }, .. } | Event::Noticed { session, .. } => {
                self.hear(session)
            }
            Event::Closed { session, by_peer: true } => self.leases.forget(session),
            _ => {}
        }
        for action in self.machine.handle(self.now, event) {
            match action {
                Action::Answer { call, result } => {
                    let former = self.answers.insert((call.session, call.id), result);
                    assert!(former.is_none(), "{call:?} was answered twice");
                }
                Action::Close { session } => self.closed.push(session),
                Action::Ask { session, ask } => self.asks.push((session, ask)),
                Action::Settle { session, outcome, .. } => drop(self.settled.insert(session, outcome)),
                Action::Show { .. } => {}
            }
        }
    }

    /// A sign of life.
    fn hear(&mut self, session: SessionId) {
        if let Some(event) = self.leases.heard(self.now, session) {
            self.event(event);
        }
    }

    fn ask(&mut self, session: SessionId, request: Request) -> (SessionId, u64) {
        self.next_id += 1;
        self.ask_as((session, self.next_id), request);
        (session, self.next_id)
    }

    fn ask_as(&mut self, (session, id): (SessionId, u64), request: Request) {
        self.event(Event::Request { call: Call { session, id }, request: Box::new(request) });
    }

    fn join(&mut self, session: SessionId, rank: u32, member: u128) -> (SessionId, u64) {
        let join = join(rank, member, self.machine.settings.world);
        self.ask(session, Request::Join { join })
    }

    fn notice(&mut self, session: SessionId, notice: Notice) {
        self.event(Event::Noticed { session, notice });
    }

    fn doubt(&mut self, session: SessionId, peers: &[u32]) {
        let epoch = self.machine.decision.epoch;
        self.notice(session, Notice::Doubt { epoch, peers: peers.iter().copied().collect() });
    }

    /// Answers what was asked in these sessions, until nothing more is: the member of session s promises step 10 * s, and
    /// does not reach the peers that `missing` lists for it.
    fn reply(&mut self, sessions: &[SessionId], missing: &[(SessionId, &[u32])]) {
        while let Some(at) = self.asks.iter().position(|(session, _)| sessions.contains(session)) {
            let (session, ask) = self.asks.remove(at);
            let notice = match ask {
                Ask::Promise { change, .. } => Notice::Promise { change, step: 10 * session },
                Ask::Reach { change, peers } => {
                    let mine =
                        missing.iter().filter(|(of, _)| *of == session).flat_map(|(_, peers)| peers.iter());
                    let missing = mine.copied().collect::<Mask>().and(&peers);
                    Notice::Reached { change, missing }
                }
                Ask::Meet { peers } => Notice::Met { peers },
                Ask::Introduce { ticket, .. } => Notice::Introduced { ticket, result: Ok(Vec::new()) },
            };
            self.notice(session, notice);
        }
    }

    /// The membership, and the first step of it.
    fn decided(&self) -> (String, u32, u64) {
        let Decision { mask, epoch, step } = self.machine.decision;
        (mask.to_string(), epoch, step)
    }

    fn round(&mut self, session: SessionId, tag: &str, ranks: Mask, kind: RoundKind) -> (SessionId, u64) {
        self.ask(
            session,
            Request::Round { round: Round { tag: tag.to_owned(), ranks, deadline: 10 * SECOND, kind } },
        )
    }

    fn close(&mut self, session: SessionId) {
        self.asks.retain(|(of, _)| *of != session);
        self.event(Event::Closed { session, by_peer: true });
    }

    /// Lets time pass while the clients of these sessions give signs of life.
    fn pass(&mut self, time: Duration, alive: &[SessionId]) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + SECOND).min(end);
            alive.iter().for_each(|session| self.hear(*session));
            self.leases.expire(self.now).into_iter().for_each(|event| self.event(event));
            self.event(Event::Tick);
            let next =
                [self.machine.next_deadline(), self.leases.next_deadline()].into_iter().flatten().min();
            assert!(next.is_none_or(|next| next > self.now), "still due at {:?}: {next:?}", self.now);
        }
    }

    fn answer(&self, call: (SessionId, u64)) -> Option<&Result<Reply, BootstrapError>> {
        self.answers.get(&call)
    }

    fn error(&self, call: (SessionId, u64)) -> &BootstrapError {
        self.answer(call).expect("no answer").as_ref().expect_err("no error")
    }

    fn state(&self, rank: u32) -> RankState {
        self.machine.view().states[rank as usize]
    }
}

fn join(rank: u32, member: u128, world: u32) -> Join {
    Join {
        version: PROTOCOL_VERSION,
        run_id: "run".to_owned(),
        world,
        initial: world,
        identity: Identity { rank, member, host: format!("host{rank}"), pid: 100 + rank },
        deadline: 20 * SECOND,
        config: vec![("hidden".to_owned(), "7168".to_owned())],
        listener: None,
    }
}

#[test]
fn a_thousand_members_join_exchange_and_agree() {
    let world = MAX_WORLD;
    let mut run = Run::formed(world);
    assert_eq!(run.answers.len(), 1024);
    for result in run.answers.values() {
        let Ok(Reply::Joined { joined }) = result else { panic!("{result:?}") };
        assert_eq!((joined.roster.len(), joined.view.mask.len(), joined.view.epoch), (1024, 1024, 1));
    }
    let all = Mask::all(world);
    let calls: Vec<_> = (0..world)
        .map(|rank| {
            let blobs = (0..world).map(|to| Blob((rank ^ to).to_le_bytes().to_vec())).collect();
            run.round(u64::from(rank), "keys", all, RoundKind::Exchange { blobs })
        })
        .collect();
    for (rank, call) in (0u32..).zip(calls) {
        let Some(Ok(Reply::Blobs { blobs })) = run.answer(call) else { panic!("rank {rank} has no blobs") };
        assert!((0u32..).zip(blobs).all(|(from, blob)| blob.0 == (from ^ rank).to_le_bytes()), "rank {rank}");
    }
    run.close(1000);
    let everybody: Vec<SessionId> = (0..u64::from(world)).collect();
    assert_eq!(run.asks.len(), 1023, "a question for each member, a promise back, and the outcome");
    run.reply(&everybody, &[]);
    assert_eq!(run.settled.len(), 1023);
    assert_eq!(run.decided(), ("0-999,1001-1023".to_owned(), 2, 10_231));
}

#[test]
fn what_does_not_fit_the_run_is_refused_with_both_values() {
    let mut run = Run::new(2);
    let refused = |run: &mut Run, join: Join| {
        let call = run.ask(9, Request::Join { join });
        run.error(call).clone()
    };
    let error = refused(&mut run, Join { version: 7, ..join(0, 1, 2) });
    assert!(
        matches!(error, BootstrapError::WrongVersion { ours: PROTOCOL_VERSION, theirs: 7, .. }),
        "{error}"
    );
    for (join, field, ours, theirs) in [
        (Join { run_id: "other".to_owned(), ..join(0, 1, 2) }, "run id", "run", "other"),
        (join(0, 1, 3), "world", "2", "3"),
        (join(2, 1, 2), "rank", "ranks below 2", "2"),
    ] {
        match refused(&mut run, join) {
            BootstrapError::Mismatch { field: f, ours: o, theirs: t, .. } => {
                assert_eq!((f.as_str(), o.as_str(), t.as_str()), (field, ours, theirs));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(run.state(0), RankState::Absent {});
}

#[test]
fn a_second_process_for_a_rank_is_a_duplicate_until_the_first_dies() {
    let mut run = Run::new(2);
    run.join(0, 0, 10);
    let second = run.join(1, 0, 11);
    assert_eq!(
        *run.error(second),
        BootstrapError::DuplicateRank { op: "join".to_owned(), rank: 0, host: "host0".to_owned(), pid: 100 }
    );
    run.close(0);
    let third = run.join(2, 0, 12);
    run.join(3, 1, 13);
    assert!(matches!(run.answer(third), Some(Ok(Reply::Joined { .. }))));
}

#[test]
fn missing_ranks_are_listed_to_everyone_at_the_deadline_and_a_new_try_is_possible() {
    let mut run = Run::new(4);
    let calls = [run.join(0, 0, 0), run.join(1, 3, 3)];
    assert_eq!(run.machine.next_deadline(), Some(20 * SECOND), "no leases before the run has come together");
    run.pass(19 * SECOND, &[0, 1]);
    assert!(calls.iter().all(|call| run.answer(*call).is_none()));
    run.pass(SECOND, &[]);
    for call in calls {
        match run.error(call) {
            BootstrapError::MissingRanks { present, world, missing, deadline, .. } => {
                assert_eq!((*present, *world, missing.to_string().as_str()), (2, 4, "1-2"));
                assert_eq!(*deadline, 20 * SECOND);
            }
            other => panic!("{other}"),
        }
    }
    let again: Vec<_> = (0..4).map(|rank| run.join(10 + u64::from(rank), rank, 50)).collect();
    assert!(again.iter().all(|call| run.answer(*call).is_some_and(Result::is_ok)));
}

#[test]
fn configs_that_differ_fail_every_member_with_field_values_and_ranks() {
    let mut run = Run::new(3);
    let calls: Vec<_> = (0..3u32)
        .map(|rank| {
            let hidden = if rank == 2 { "4096" } else { "7168" };
            let config = vec![("hidden".to_owned(), hidden.to_owned())];
            run.ask(
                u64::from(rank),
                Request::Join { join: Join { config, ..join(rank, u128::from(rank), 3) } },
            )
        })
        .collect();
    for call in calls {
        match run.error(call) {
            BootstrapError::ConfigMismatch { field, rank, value, other_rank, other_value, .. } => {
                assert_eq!((field.as_str(), *rank, value.as_str()), ("hidden", 0, "7168"));
                assert_eq!((*other_rank, other_value.as_str()), (2, "4096"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_step_that_fails_fails_for_the_late_one_too_and_can_be_repeated() {
    let mut run = Run::formed(3);
    let all = Mask::all(3);
    let early =
        [run.round(0, "go", all, RoundKind::Barrier {}), run.round(2, "go", all, RoundKind::Barrier {})];
    run.pass(10 * SECOND, &[0, 1, 2]);
    for call in early {
        let BootstrapError::Timeout { missing, elapsed, .. } = run.error(call) else {
            panic!("{:?}", run.error(call))
        };
        assert_eq!((missing.to_string().as_str(), *elapsed), ("1", 10 * SECOND));
    }
    let late = run.round(1, "go", all, RoundKind::Barrier {});
    assert!(matches!(run.error(late), BootstrapError::Timeout { .. }));
    let again: Vec<_> = (0..3).map(|session| run.round(session, "go", all, RoundKind::Barrier {})).collect();
    assert!(again.iter().all(|call| run.answer(*call) == Some(&Ok(Reply::Done {}))));
}

#[test]
fn a_step_ends_at_once_when_a_participant_dies_and_others_are_untouched() {
    let mut run = Run::formed(4);
    let with = run.round(0, "a", Mask::all(4), RoundKind::Barrier {});
    let without = run.round(0, "b", [0, 1].into_iter().collect(), RoundKind::Barrier {});
    run.close(3);
    assert!(matches!(run.error(with), BootstrapError::PeerLost { rank: 3, pid: 103, .. }));
    assert_eq!(run.answer(without), None);
    let after = run.round(1, "c", Mask::all(4), RoundKind::Barrier {});
    assert!(matches!(run.error(after), BootstrapError::PeerLost { rank: 3, .. }));
    run.round(1, "b", [0, 1].into_iter().collect(), RoundKind::Barrier {});
    assert_eq!(run.answer(without), Some(&Ok(Reply::Done {})));
}

#[test]
fn fields_that_differ_are_named_and_absent_ones_too() {
    let mut run = Run::formed(2);
    let all = Mask::all(2);
    let fields = |names: &[&str]| RoundKind::Agree {
        fields: names.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect(),
    };
    let call = run.round(0, "plan", all, fields(&["topk"]));
    run.round(1, "plan", all, fields(&["topk", "lanes"]));
    let BootstrapError::ConfigMismatch { field, value, other_rank: 1, .. } = run.error(call) else {
        panic!()
    };
    assert_eq!((field.as_str(), value.as_str()), ("lanes", "(absent)"));
    let call = run.round(0, "plan", all, fields(&["topk", "lanes"]));
    run.round(1, "plan", all, fields(&["lanes", "topk"]));
    assert_eq!(run.answer(call), Some(&Ok(Reply::Done {})), "order does not matter");
    let call = run.round(0, "plan", all, fields(&["topk"]));
    run.round(1, "plan", all, RoundKind::Barrier {});
    assert!(matches!(run.error(call), BootstrapError::OutOfOrder { .. }), "a barrier is no agreement");
}

#[test]
fn a_blob_past_the_limit_is_an_error_of_its_sender_alone() {
    let mut run = Run::formed(2);
    let blobs = vec![Blob(vec![0; (64 << 10) + 1]), Blob::default()];
    let call = run.round(0, "keys", Mask::all(2), RoundKind::Exchange { blobs });
    assert!(matches!(run.error(call), BootstrapError::Limit { value: 65_537, limit: 65_536, .. }));
    let call = run.round(0, "keys", Mask::all(2), RoundKind::Exchange { blobs: vec![Blob::default()] });
    assert!(matches!(run.error(call), BootstrapError::Invalid { .. }));
    let call = run.round(0, "keys", [1].into_iter().collect(), RoundKind::Barrier {});
    assert!(matches!(run.error(call), BootstrapError::Invalid { .. }));
}

#[test]
fn silence_makes_suspect_and_a_sign_of_life_undoes_it() {
    let mut run = Run::formed(2);
    run.pass(5 * SECOND, &[0]);
    assert_eq!((run.state(0), run.state(1)), (RankState::Alive {}, RankState::Suspect {}));
    run.event(Event::Heard { session: 1 });
    assert_eq!(run.state(1), RankState::Alive {});
}

#[test]
fn survivors_go_on_with_the_step_after_the_highest_promise() {
    let mut run = Run::formed(4);
    run.close(3);
    assert!(
        run.asks.iter().all(|(_, ask)| matches!(ask, Ask::Promise { lossy: true, .. })),
        "{:?}",
        run.asks
    );
    run.reply(&[0, 2], &[]);
    assert_eq!(run.decided(), ("0-3".to_owned(), 1, 1), "rank 1 has not promised");
    run.reply(&[1], &[]);
    assert_eq!(run.decided(), ("0-2".to_owned(), 2, 21));
    assert_eq!(run.settled.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_death_among_promises_starts_the_change_over() {
    let mut run = Run::formed(4);
    run.close(3);
    run.reply(&[0, 2], &[]);
    run.close(2);
    assert!(run.settled[&0].is_err(), "what it promised is void");
    run.reply(&[0], &[]);
    run.reply(&[1], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
}

#[test]
fn a_doubt_that_the_survey_dispels_costs_nobody_its_place() {
    let mut run = Run::formed(3);
    run.doubt(0, &[2]);
    let asked: Vec<String> = run
        .asks
        .iter()
        .map(|(session, ask)| match ask {
            Ask::Reach { peers, .. } => format!("{session}: {peers}"),
            other => panic!("{other:?} while nobody has looked"),
        })
        .collect();
    assert_eq!(asked, ["0: 2", "1: none", "2: 0"]);
    run.reply(&[0, 1, 2], &[(0, &[2])]);
    assert_eq!(run.decided(), ("0-2".to_owned(), 2, 21), "one end reaches the other");
}

#[test]
fn a_link_that_both_ends_find_broken_costs_the_higher_rank_which_is_told() {
    let mut run = Run::formed(3);
    run.doubt(0, &[2]);
    run.reply(&[0, 1, 2], &[(0, &[2]), (2, &[0])]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
    assert_eq!(run.state(2), RankState::Evicted {});
    assert_eq!(run.settled[&2].as_ref().ok().map(|decision| decision.epoch), Some(2));
    let round = run.round(2, "x", Mask::all(3), RoundKind::Barrier {});
    assert!(matches!(run.error(round), BootstrapError::Evicted { rank: 2, .. }));
}

#[test]
fn a_lone_accuser_does_not_evict_the_majority() {
    let mut run = Run::formed(3);
    run.doubt(2, &[0, 1]);
    run.reply(&[0, 1, 2], &[(2, &[0, 1])]);
    assert_eq!(run.decided().0, "0-2");
    // Though it were true for both ends, a member would go, and not two of three.
    run.doubt(2, &[0, 1]);
    run.reply(&[0, 1, 2], &[(2, &[0, 1]), (0, &[2]), (1, &[2])]);
    assert_eq!(run.decided().0, "0-1");
}

#[test]
fn a_link_in_doubt_for_the_third_time_in_a_minute_counts_as_broken() {
    let mut run = Run::formed(3);
    for seconds in [0, 30, 20] {
        assert_eq!(run.decided().0, "0-2");
        run.pass(SECOND * seconds, &[0, 1, 2]);
        run.doubt(0, &[1]);
        run.reply(&[0, 1, 2], &[]);
    }
    assert_eq!(run.decided().0, "0,2");
    let mut run = Run::formed(3);
    for _ in 0..4 {
        run.pass(30 * SECOND, &[0, 1, 2]);
        run.doubt(0, &[1]);
        run.reply(&[0, 1, 2], &[]);
    }
    assert_eq!(run.decided().0, "0-2");
}

#[test]
fn a_silent_member_goes_after_its_lease_if_the_others_do_not_reach_it() {
    let mut run = Run::formed(3);
    run.pass(4 * SECOND, &[0, 1]);
    assert_eq!(run.asks, []);
    run.pass(SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2]), (1, &[2])]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
    assert_eq!(
        run.settled[&2].as_ref().ok().map(|decision| decision.epoch),
        Some(2),
        "it learns that once it goes on"
    );
}

#[test]
fn a_silent_member_that_the_others_reach_holds_nobody_up() {
    let mut run = Run::formed(3);
    run.pass(5 * SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2])]);
    assert_eq!(run.decided().1, 2, "half of the others do not reach it");
    let mut run = Run::formed(4);
    run.pass(5 * SECOND, &[0, 1, 2]);
    for _ in 0..20 {
        run.reply(&[0, 1, 2], &[(0, &[3])]);
        assert!(run.asks.is_empty(), "nobody is asked to promise");
        run.pass(SECOND, &[0, 1, 2]);
    }
    assert_eq!(run.decided().1, 1);
    run.event(Event::Heard { session: 3 });
    run.pass(20 * SECOND, &[0, 1, 2, 3]);
    run.reply(&[0, 1, 2, 3], &[]);
    assert_eq!(run.decided().0, "0-3");
}

#[test]
fn half_of_the_members_are_not_removed_unless_they_are_dead() {
    let mut run = Run::formed(4);
    for _ in 0..3 {
        run.pass(5 * SECOND, &[0, 1]);
        run.reply(&[0, 1], &[(0, &[2, 3]), (1, &[2, 3])]);
        assert_eq!(run.decided().1, 1);
    }
    assert_eq!(run.state(3), RankState::Suspect {}, "nothing has changed");
    let Err(BootstrapError::NoQuorum { missing, .. }) = &run.settled[&1] else { panic!("{:?}", run.settled) };
    assert_eq!(missing.to_string(), "2-3");
    run.close(3);
    for _ in 0..3 {
        run.pass(5 * SECOND, &[0, 1]);
        run.reply(&[0, 1], &[(0, &[2]), (1, &[2])]);
    }
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
}

/// Two hosts, one without power: no kernel tells, and of two members none can be outvoted.
#[test]
fn a_death_that_is_reported_needs_no_quorum() {
    let mut run = Run::formed(2);
    run.pass(20 * SECOND, &[0]);
    run.reply(&[0], &[(0, &[1])]);
    assert_eq!(run.decided().1, 1);
    run.notice(0, Notice::Ended { rank: 1, member: 7 });
    assert_eq!(run.state(1), RankState::Suspect {}, "another member");
    run.notice(0, Notice::Ended { rank: 1, member: 1 });
    assert_eq!(run.state(1), RankState::Dead {});
    run.pass(5 * SECOND, &[0]);
    run.reply(&[0], &[]);
    assert_eq!(run.decided(), ("0".to_owned(), 2, 1));
    run.join(9, 1, 9);
    assert_eq!(run.state(1), RankState::Standby {});
}

#[test]
fn a_member_that_comes_with_another_session_is_asked_again() {
    let mut run = Run::formed(3);
    run.close(2);
    run.reply(&[0], &[]);
    run.event(Event::Closed { session: 1, by_peer: false });
    run.join(9, 1, 1);
    run.reply(&[0, 9], &[(0, &[1])]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 91));
}

#[test]
fn a_round_that_waits_for_an_evicted_member_ends_with_the_decision() {
    let mut run = Run::formed(3);
    let round = run.round(0, "x", Mask::all(3), RoundKind::Barrier {});
    run.doubt(0, &[2]);
    assert_eq!(run.answer(round), None);
    run.reply(&[0, 1, 2], &[(0, &[2]), (2, &[0])]);
    assert!(matches!(run.error(round), BootstrapError::PeerLost { rank: 2, .. }));
}

#[test]
fn a_stopped_rank_comes_back_by_rejoining_and_being_admitted() {
    let mut run = Run::formed(3);
    run.pass(5 * SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2]), (1, &[2])]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
    // It continues: its rank is not given to anybody else meanwhile.
    let replacement = run.join(50, 2, 999);
    assert!(matches!(run.error(replacement), BootstrapError::Fenced { rank: 2, pid: 102, .. }));
    run.join(2, 2, 2);
    assert_eq!(run.state(2), RankState::Standby {});
    assert_eq!(run.asks, [], "it has not said that it is ready");
    run.notice(2, Notice::Ready {});
    run.reply(&[0, 1], &[]);
    assert_eq!((run.decided(), run.state(2)), (("0-2".to_owned(), 3, 11), RankState::Alive {}));
    assert_eq!(run.settled[&2].as_ref().ok().map(|decision| decision.epoch), Some(3));
}

#[test]
fn a_replacement_is_refused_while_the_former_lives_then_exchanges_and_is_admitted() {
    let mut run = Run::formed(2);
    run.pass(6 * SECOND, &[0]);
    assert_eq!(run.state(1), RankState::Suspect {});
    let refused = run.join(7, 1, 77);
    assert_eq!(
        *run.error(refused),
        BootstrapError::Fenced { op: "join".to_owned(), rank: 1, host: "host1".to_owned(), pid: 101 }
    );
    run.close(1);
    let joined = run.join(7, 1, 77);
    let Some(Ok(Reply::Joined { joined })) = run.answer(joined) else { panic!("not admitted to standby") };
    assert_eq!(joined.view.states[1], RankState::Standby {});
    assert_eq!(joined.roster[1].member, 77);
    let all = Mask::all(2);
    let exchange = |byte: u8| RoundKind::Exchange { blobs: vec![Blob(vec![byte, 0]), Blob(vec![byte, 1])] };
    run.round(7, "connect", all, exchange(7));
    let call = run.round(0, "connect", all, exchange(9));
    let Some(Ok(Reply::Blobs { blobs })) = run.answer(call) else { panic!("no exchange with standby") };
    assert_eq!(blobs[1].0, [7, 0]);
    run.notice(7, Notice::Ready {});
    run.reply(&[0, 7], &[]);
    assert_eq!(
        run.decided(),
        ("0-1".to_owned(), 3, 1),
        "first without the former member, then with the new one"
    );
}

#[test]
fn a_newcomer_that_is_not_ready_holds_up_neither_serving_nor_others() {
    let mut run = Run::formed(4);
    run.close(2);
    run.close(3);
    run.reply(&[0, 1], &[]);
    run.join(12, 2, 12);
    run.join(13, 3, 13);
    run.pass(20 * SECOND, &[0, 1, 12, 13]);
    assert_eq!((run.decided().1, run.asks.len()), (2, 0));
    run.notice(13, Notice::Ready {});
    assert_eq!(run.asks, [(13, Ask::Meet { peers: Mask::all(2) })]);
    run.reply(&[0, 1, 13], &[]);
    assert_eq!(run.decided().0, "0-1,3");
    assert_eq!(run.state(2), RankState::Standby {});
    run.notice(12, Notice::Ready {});
    run.reply(&[0, 1, 12, 13], &[]);
    assert_eq!(run.decided(), ("0-3".to_owned(), 4, 131));
}

#[test]
fn newcomers_that_know_each_other_enter_together() {
    let mut run = Run::formed(4);
    run.close(2);
    run.close(3);
    run.join(12, 2, 12);
    run.join(13, 3, 13);
    [12, 13].into_iter().for_each(|session| run.notice(session, Notice::Ready {}));
    run.reply(&[12, 13], &[]);
    run.reply(&[0, 1], &[]);
    assert_eq!(
        run.decided(),
        ("0-3".to_owned(), 3, 11),
        "one change for those who go, and one for those who come"
    );
}

#[test]
fn a_newcomer_waits_for_a_member_that_it_could_not_connect() {
    let mut run = Run::formed(3);
    run.close(2);
    run.reply(&[0, 1], &[]);
    run.join(12, 2, 12);
    run.notice(12, Notice::Ready {});
    assert_eq!(run.asks.pop(), Some((12, Ask::Meet { peers: Mask::all(2) })));
    run.notice(12, Notice::Met { peers: Mask::all(1) });
    assert_eq!(run.asks, [(12, Ask::Meet { peers: Mask::all(2).without(0) })], "it is to try again");
    run.reply(&[12], &[]);
    assert!(matches!(run.asks[0], (0, Ask::Promise { .. })));
    // Another process in the place of rank 1 knows nobody.
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided().0, "0-2");
}

#[test]
fn an_introduction_is_passed_on_and_answered() {
    let mut run = Run::formed(3);
    run.close(2);
    run.reply(&[0, 1], &[]);
    run.join(12, 2, 12);
    let introduce = |run: &mut Run, session, rank| {
        let blobs = vec![Blob(vec![rank as u8; 3])];
        run.ask(session, Request::Introduce { rank, blobs, deadline: SECOND })
    };
    let (first, second) = (introduce(&mut run, 12, 0), introduce(&mut run, 12, 1));
    let (0, Ask::Introduce { ticket, rank: 2, blobs }) = run.asks.remove(0) else { panic!() };
    assert_eq!(blobs, [Blob(vec![0; 3])]);
    run.notice(1, Notice::Introduced { ticket, result: Ok(Vec::new()) });
    assert_eq!(run.answer(first), None, "rank 1 was not asked that");
    run.notice(0, Notice::Introduced { ticket, result: Ok(vec![Blob(vec![7])]) });
    assert_eq!(run.answer(first), Some(&Ok(Reply::Blobs { blobs: vec![Blob(vec![7])] })));
    run.pass(SECOND, &[0, 1, 12]);
    assert!(matches!(run.error(second), BootstrapError::Timeout { .. }));
    let third = introduce(&mut run, 12, 1);
    run.close(1);
    assert!(matches!(run.error(third), BootstrapError::PeerLost { rank: 1, .. }));
    for (session, rank) in [(12, 1), (12, 2), (0, 2)] {
        let call = introduce(&mut run, session, rank);
        assert!(matches!(run.error(call), BootstrapError::OutOfOrder { .. }), "{session} to {rank}");
    }
    let call =
        run.ask(12, Request::Introduce { rank: 0, blobs: vec![Blob::default(); 65], deadline: SECOND });
    assert!(matches!(run.error(call), BootstrapError::Limit { limit: 64, .. }));
}

#[test]
fn those_on_standby_go_on_where_no_member_is_left() {
    let mut run = Run::formed(2);
    run.close(0);
    run.reply(&[1], &[]);
    run.join(10, 0, 10);
    run.close(1);
    run.notice(10, Notice::Ready {});
    assert_eq!(run.decided(), ("0".to_owned(), 3, 11), "after all that the former members may have begun");
    run.join(11, 1, 11);
    run.notice(11, Notice::Ready {});
    run.reply(&[10, 11], &[]);
    assert_eq!(run.decided().0, "0-1");
}

#[test]
fn what_was_said_of_another_epoch_or_change_is_void() {
    let mut run = Run::formed(3);
    run.notice(0, Notice::Doubt { epoch: 7, peers: [1].into_iter().collect() });
    run.notice(0, Notice::Promise { change: 9, step: 1 << 40 });
    run.notice(0, Notice::Reached { change: 9, missing: Mask::all(3) });
    assert_eq!(run.asks, []);
    run.close(2);
    run.notice(1, Notice::Promise { change: 9, step: 1 << 40 });
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
}

#[test]
fn who_does_not_promise_holds_the_others_for_a_lease_and_no_longer() {
    let mut run = Run::formed(3);
    run.close(2);
    run.reply(&[0], &[]);
    run.pass(4 * SECOND, &[0, 1]);
    assert!(!run.settled.contains_key(&0));
    run.pass(SECOND, &[0, 1]);
    let Err(BootstrapError::Timeout { missing, .. }) = &run.settled[&0] else { panic!("{:?}", run.settled) };
    assert_eq!(missing.to_string(), "1");
    run.asks.clear();
    run.pass(4 * SECOND, &[0, 1]);
    assert_eq!(run.asks, [], "steps go on for a while");
    run.pass(SECOND, &[0, 1]);
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided().0, "0-1");
}

#[test]
fn a_change_that_starts_over_says_because_of_whom() {
    let mut run = Run::formed(4);
    run.close(3);
    run.reply(&[0], &[]);
    run.close(2);
    let Err(error) = &run.settled[&0] else { panic!("{:?}", run.settled) };
    let lost = BootstrapError::PeerLost {
        op: "change the membership".to_owned(),
        rank: 2,
        host: "host2".to_owned(),
        pid: 102,
    };
    assert_eq!(*error, lost);
    run.reply(&[0], &[]);
    run.pass(3 * SECOND, &[0, 1]);
    // One that was heard is silent now, and is not seen dead.
    run.event(Event::Silent { session: 1 });
    let Err(BootstrapError::Timeout { missing, elapsed, .. }) = &run.settled[&0] else {
        panic!("{:?}", run.settled)
    };
    assert_eq!((missing.to_string().as_str(), *elapsed), ("1", 3 * SECOND));
}

#[test]
fn the_last_epoch_is_the_last() {
    let mut run = Run::formed(3);
    run.machine.decision.epoch = MAX_EPOCH - 1;
    run.close(2);
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided().1, MAX_EPOCH);
    run.close(1);
    run.reply(&[0], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), MAX_EPOCH, 11));
}

#[test]
fn a_replacement_is_not_told_the_failures_of_its_predecessor() {
    let mut run = Run::formed(2);
    run.round(0, "x", Mask::all(2), RoundKind::Barrier {});
    run.pass(10 * SECOND, &[0]);
    run.close(1);
    run.join(7, 1, 77);
    let call = run.round(7, "x", Mask::all(2), RoundKind::Barrier {});
    run.round(0, "x", Mask::all(2), RoundKind::Barrier {});
    assert_eq!(run.answer(call), Some(&Ok(Reply::Done {})));
}

#[test]
fn a_connection_that_this_side_gave_up_fences_nobody_until_a_witness_speaks() {
    let mut run = Run::formed(2);
    run.event(Event::Closed { session: 1, by_peer: false });
    assert_eq!(run.state(1), RankState::Suspect {});
    let refused = run.join(7, 1, 77);
    assert!(matches!(run.error(refused), BootstrapError::Fenced { .. }));
    run.event(Event::Ended { rank: 1, pid: 5 });
    assert_eq!(run.state(1), RankState::Suspect {}, "another process");
    run.event(Event::Ended { rank: 1, pid: 101 });
    assert_eq!(run.state(1), RankState::Dead {});
    run.join(7, 1, 77);
    assert_eq!(run.state(1), RankState::Standby {});
}

#[test]
fn the_same_incarnation_may_come_back_with_a_new_session() {
    let mut run = Run::formed(2);
    let back = run.join(9, 1, 1);
    assert!(matches!(run.answer(back), Some(Ok(Reply::Joined { .. }))));
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Alive {}, &[1][..]));
    run.close(1);
    assert_eq!(run.state(1), RankState::Alive {}, "the former session is nobody's any more");
}

#[test]
fn a_call_is_carried_out_once_and_its_answer_kept_until_the_client_has_it() {
    let mut run = Run::formed(2);
    let add = || Request::Add { key: "n".to_owned(), amount: 1 };
    let call = run.ask(0, add());
    let again = |run: &mut Run| {
        let former = run.answers.remove(&call);
        run.ask_as(call, add());
        (former, run.answers.get(&call).cloned())
    };
    let (former, answer) = again(&mut run);
    assert_eq!(former, Some(Ok(Reply::Sum { sum: 1 })));
    assert_eq!(answer, former);
    run.event(Event::Received { session: 0, through: call.1 });
    let barrier = run.round(0, "x", Mask::all(2), RoundKind::Barrier {});
    let kind = RoundKind::Barrier {};
    let round = Round { tag: "x".to_owned(), ranks: Mask::all(2), deadline: 10 * SECOND, kind };
    run.ask_as(barrier, Request::Round { round });
    assert_eq!(run.answer(barrier), None, "asked again, it still waits");
    run.round(1, "x", Mask::all(2), RoundKind::Barrier {});
    assert_eq!(run.answer(barrier), Some(&Ok(Reply::Done {})));
}

#[test]
fn who_comes_back_is_told_how_the_last_change_ended_and_asked_again() {
    let mut run = Run::formed(4);
    run.close(3);
    run.reply(&[0, 1, 2], &[]);
    assert_eq!(run.decided(), ("0-2".to_owned(), 2, 21));
    run.close(2);
    run.reply(&[0], &[]);
    // Neither the outcome of the first nor the question of the second has come.
    run.settled.remove(&1);
    run.asks.clear();
    let resume = run.ask(1, Request::Resume { standby: false });
    assert_eq!(run.answer(resume), Some(&Ok(Reply::Done {})));
    assert_eq!(run.settled[&1].as_ref().unwrap().epoch, 2);
    run.reply(&[1], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 3, 11));
}

#[test]
fn an_answer_that_is_given_again_is_followed_by_what_has_happened_since() {
    let mut run = Run::formed(3);
    run.pass(6 * SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2]), (1, &[2])]);
    assert_eq!(run.decided().0, "0-1");
    // Rank 2 has got neither the answer to its join, its third call in all, nor any word since.
    let call = (2, 3);
    run.settled.remove(&2);
    run.answers.remove(&call);
    run.ask_as(call, Request::Join { join: join(2, 2, 3) });
    let Some(Ok(Reply::Joined { joined })) = run.answer(call) else { panic!("not answered again") };
    assert_eq!(joined.view.epoch, 1, "as old as the call");
    assert_eq!(run.settled[&2].as_ref().unwrap().epoch, 2);
}

#[test]
fn who_was_admitted_and_evicted_without_learning_of_either_waits_again() {
    let mut run = Run::formed(4);
    run.close(3);
    run.reply(&[0, 1, 2], &[]);
    run.join(9, 3, 9);
    run.notice(9, Notice::Ready {});
    run.reply(&[0, 1, 2, 9], &[]);
    assert_eq!(run.decided().0, "0-3");
    run.pass(6 * SECOND, &[0, 1, 2]);
    run.asks.retain(|(session, _)| *session != 9);
    run.reply(&[0, 1, 2], &[(0, &[3]), (1, &[3]), (2, &[3])]);
    assert_eq!((run.decided().0.as_str(), run.state(3)), ("0-2", RankState::Evicted {}));
    run.ask(9, Request::Resume { standby: true });
    assert_eq!(run.state(3), RankState::Standby {});
}

#[test]
fn who_is_no_member_any_more_cannot_come_back() {
    let mut run = Run::formed(2);
    run.close(1);
    let resume = run.ask(1, Request::Resume { standby: false });
    assert!(matches!(run.error(resume), BootstrapError::OutOfOrder { .. }));
    let leave = run.ask(1, Request::Leave {});
    assert_eq!(run.answer(leave), Some(&Ok(Reply::Done {})), "it has left already");
}

#[test]
fn a_retired_member_promises_like_the_others_and_goes_with_the_next_membership() {
    let mut run = Run::formed(3);
    let retire = run.ask(0, Request::Retire { rank: 2 });
    assert_eq!(run.answer(retire), None);
    assert!(
        run.asks.iter().all(|(_, ask)| matches!(ask, Ask::Promise { lossy: false, .. })),
        "{:?}",
        run.asks
    );
    run.reply(&[0, 1], &[]);
    assert_eq!(run.answer(retire), None, "it has not said how far it goes");
    run.reply(&[2], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 21));
    assert_eq!(run.answer(retire), Some(&Ok(Reply::Done {})));
    assert_eq!(run.state(2), RankState::Retired {});
    // Rounds go on with it until it leaves.
    let round = run.round(0, "x", Mask::all(3), RoundKind::Barrier {});
    run.round(1, "x", Mask::all(3), RoundKind::Barrier {});
    run.round(2, "x", Mask::all(3), RoundKind::Barrier {});
    assert_eq!(run.answer(round), Some(&Ok(Reply::Done {})));
    run.close(2);
    run.pass(10 * SECOND, &[0, 1]);
    assert_eq!((run.decided().1, run.asks.len()), (2, 0), "nothing follows from its end");
    let again = run.ask(1, Request::Retire { rank: 2 });
    assert_eq!(run.answer(again), Some(&Ok(Reply::Done {})), "it is gone");
}

#[test]
fn a_retired_member_may_come_back() {
    let mut run = Run::formed(3);
    run.ask(2, Request::Retire { rank: 2 });
    run.reply(&[0, 1, 2], &[]);
    run.join(2, 2, 2);
    assert_eq!(run.state(2), RankState::Standby {});
    run.notice(2, Notice::Ready {});
    run.reply(&[0, 1, 2], &[]);
    assert_eq!(run.decided().0, "0-2");
}

#[test]
fn the_last_member_cannot_be_retired() {
    let mut run = Run::formed(2);
    let first = run.ask(0, Request::Retire { rank: 1 });
    let second = run.ask(0, Request::Retire { rank: 0 });
    assert!(matches!(run.error(second), BootstrapError::OutOfOrder { .. }));
    // Nor does the death of all others make it go.
    run.close(0);
    run.reply(&[1], &[]);
    assert_eq!(run.decided(), ("1".to_owned(), 2, 11));
    assert!(matches!(run.error(first), BootstrapError::OutOfOrder { .. }));
}

#[test]
fn a_run_grows_into_the_places_that_it_has() {
    let settings = Settings {
        run_id: "run".to_owned(),
        world: 4,
        initial: 2,
        join_deadline: 30 * SECOND,
        lease: 5 * SECOND,
    };
    let mut run = Run { machine: Machine::new(settings).unwrap(), ..Run::new(4) };
    let ask_to_join = |run: &mut Run, rank: u32| {
        let join = Join { initial: 2, ..join(rank, u128::from(rank), 4) };
        run.ask(u64::from(rank), Request::Join { join })
    };
    let early = ask_to_join(&mut run, 3);
    ask_to_join(&mut run, 0);
    assert_eq!(run.answer(early), None, "the run has not begun");
    ask_to_join(&mut run, 1);
    assert_eq!(run.decided(), ("0-1".to_owned(), 1, 1));
    assert!(matches!(run.answer(early), Some(Ok(Reply::Joined { .. }))));
    assert_eq!((run.state(2), run.state(3)), (RankState::Absent {}, RankState::Standby {}));
    let other = run.ask(9, Request::Join { join: join(2, 2, 4) });
    assert!(matches!(run.error(other), BootstrapError::Mismatch { field, .. } if field == "initial ranks"));
    ask_to_join(&mut run, 2);
    run.notice(2, Notice::Ready {});
    run.notice(3, Notice::Ready {});
    run.reply(&[0, 1, 2, 3], &[]);
    assert_eq!(run.decided().0, "0-3");
    for rank in [1, 2] {
        run.ask(0, Request::Retire { rank });
    }
    run.reply(&[0, 1, 2, 3], &[]);
    assert_eq!(run.decided().0, "0,3");
}

#[test]
fn leaving_is_a_death_that_says_so() {
    let mut run = Run::formed(2);
    let leave = run.ask(1, Request::Leave {});
    assert_eq!(run.answer(leave), Some(&Ok(Reply::Done {})));
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Dead {}, &[1][..]));
}

#[test]
fn the_end_of_a_session_whose_member_was_seen_dead_before_the_start_is_not_that_of_its_successor() {
    let mut run = Run::new(2);
    run.join(1, 1, 1);
    run.event(Event::Ended { rank: 1, pid: 101 });
    run.join(9, 1, 9);
    run.join(0, 0, 0);
    run.event(Event::Closed { session: 1, by_peer: true });
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Alive {}, &[1][..]));
}
