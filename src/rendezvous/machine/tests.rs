//! The machine by itself: each case is a list of events, and time is what the case says.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::mask::MAX_WORLD;
use crate::rendezvous::Blob;
use crate::rendezvous::wire::{RankState, Report, RoundKind};

const SECOND: Duration = Duration::from_secs(1);

/// A machine, its clock, and what it answered to whom.
struct Run {
    machine: Machine,
    now: Duration,
    answers: BTreeMap<(ConnId, u64), Result<Reply, BootstrapError>>,
    closed: Vec<ConnId>,
    next_id: u64,
}

impl Run {
    fn new(world: u32) -> Self {
        let settings =
            Settings { run_id: "run".to_owned(), world, join_deadline: 30 * SECOND, lease: 5 * SECOND };
        let machine = Machine::new(settings).unwrap();
        Self { machine, now: Duration::ZERO, answers: BTreeMap::new(), closed: Vec::new(), next_id: 0 }
    }

    /// A run that has come together; rank r is on connection r, with member id r.
    fn formed(world: u32) -> Self {
        let mut run = Self::new(world);
        for rank in 0..world {
            run.join(u64::from(rank), rank, u128::from(rank));
        }
        assert_eq!(run.machine.view().epoch, 1);
        run
    }

    fn event(&mut self, event: Event) {
        for action in self.machine.handle(self.now, event) {
            match action {
                Action::Answer { call, result } => {
                    let former = self.answers.insert((call.conn, call.id), result);
                    assert!(former.is_none(), "{call:?} was answered twice");
                }
                Action::Close { conn } => self.closed.push(conn),
                Action::Show { .. } => {}
            }
        }
    }

    fn ask(&mut self, conn: ConnId, request: Request) -> (ConnId, u64) {
        self.next_id += 1;
        let call = Call { conn, id: self.next_id };
        self.event(Event::Request { call, request: Box::new(request) });
        (conn, self.next_id)
    }

    fn join(&mut self, conn: ConnId, rank: u32, member: u128) -> (ConnId, u64) {
        let join = join(rank, member, self.machine.settings.world);
        self.ask(conn, Request::Join { join })
    }

    fn report(&mut self, conn: ConnId, suspects: &[u32], admit: bool) -> (ConnId, u64) {
        let epoch = self.machine.epoch;
        let suspects = suspects.iter().copied().collect();
        self.ask(conn, Request::Report { report: Report { epoch, suspects, admit, deadline: 10 * SECOND } })
    }

    fn round(&mut self, conn: ConnId, tag: &str, ranks: Mask, kind: RoundKind) -> (ConnId, u64) {
        self.ask(
            conn,
            Request::Round { round: Round { tag: tag.to_owned(), ranks, deadline: 10 * SECOND, kind } },
        )
    }

    fn close(&mut self, conn: ConnId) {
        self.event(Event::Closed { conn, by_peer: true });
    }

    /// Lets time pass while these connections give signs of life.
    fn pass(&mut self, time: Duration, alive: &[ConnId]) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + SECOND).min(end);
            for conn in alive {
                self.event(Event::Heard { conn: *conn });
            }
            self.event(Event::Tick);
        }
    }

    fn answer(&self, call: (ConnId, u64)) -> Option<&Result<Reply, BootstrapError>> {
        self.answers.get(&call)
    }

    fn error(&self, call: (ConnId, u64)) -> &BootstrapError {
        self.answer(call).expect("no answer").as_ref().expect_err("no error")
    }

    fn decision(&self, call: (ConnId, u64)) -> (String, u32) {
        match self.answer(call) {
            Some(Ok(Reply::Decided { decision })) => (decision.mask.to_string(), decision.epoch),
            other => panic!("no decision but {other:?}"),
        }
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
        identity: Identity { rank, member, host: format!("host{rank}"), pid: 100 + rank },
        deadline: 20 * SECOND,
        config: vec![("hidden".to_owned(), "7168".to_owned())],
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
    let calls: Vec<_> = (0..world)
        .filter(|rank| *rank != 1000)
        .map(|rank| run.report(u64::from(rank), &[1000], false))
        .collect();
    for call in calls {
        assert_eq!(run.decision(call), ("0-999,1001-1023".to_owned(), 2));
    }
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
    let again: Vec<_> = (0..3).map(|conn| run.round(conn, "go", all, RoundKind::Barrier {})).collect();
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
    run.event(Event::Heard { conn: 1 });
    assert_eq!(run.state(1), RankState::Alive {});
}

#[test]
fn survivors_of_one_death_agree_without_waiting() {
    let mut run = Run::formed(4);
    run.close(2);
    let calls: Vec<_> = [0, 1, 3].map(|conn| run.report(conn, &[], false)).into();
    for call in calls {
        assert_eq!(run.decision(call), ("0-1,3".to_owned(), 2));
    }
}

#[test]
fn a_death_during_the_agreement_ends_the_wait_for_it() {
    let mut run = Run::formed(3);
    let calls = [run.report(0, &[], false), run.report(1, &[], false)];
    assert_eq!(run.answer(calls[0]), None);
    run.close(2);
    assert_eq!(run.decision(calls[0]), ("0-1".to_owned(), 2));
    assert_eq!(run.decision(calls[1]), ("0-1".to_owned(), 2));
}

#[test]
fn what_a_member_said_before_it_died_is_void() {
    let mut run = Run::formed(4);
    run.report(3, &[1], false);
    run.close(3);
    let call = run.report(0, &[], false);
    run.report(2, &[], false);
    assert_eq!(run.answer(call), None, "rank 1 is named by nobody who lives");
    run.report(1, &[], false);
    assert_eq!(run.decision(call), ("0-2".to_owned(), 2));
}

#[test]
fn a_step_that_waits_for_an_evicted_member_ends_with_the_decision() {
    let mut run = Run::formed(3);
    let round = run.round(0, "x", Mask::all(3), RoundKind::Barrier {});
    run.report(0, &[2], false);
    assert_eq!(run.answer(round), None);
    run.report(1, &[2], false);
    assert!(matches!(run.error(round), BootstrapError::PeerLost { rank: 2, .. }));
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
fn two_stopped_ranks_of_five_are_left_out() {
    let mut run = Run::formed(5);
    let calls = [0, 1, 2].map(|conn| run.report(conn, &[3, 4], false));
    for call in calls {
        assert_eq!(run.decision(call), ("0-2".to_owned(), 2));
    }
    assert_eq!(run.state(3), RankState::Evicted {});
}

#[test]
fn half_of_the_members_are_not_left_out_unless_they_are_dead() {
    let mut run = Run::formed(4);
    let calls = [0, 1].map(|conn| run.report(conn, &[2, 3], false));
    run.pass(9 * SECOND, &[0, 1]);
    assert_eq!(run.answer(calls[0]), None, "they may come yet");
    run.pass(SECOND, &[0, 1]);
    for call in calls {
        let BootstrapError::NoQuorum { missing, .. } = run.error(call) else {
            panic!("{:?}", run.answer(call))
        };
        assert_eq!(missing.to_string(), "2-3");
    }
    assert_eq!(run.state(3), RankState::Suspect {}, "nothing has changed");
    run.close(3);
    for call in [0, 1].map(|conn| run.report(conn, &[2, 3], false)) {
        assert_eq!(run.decision(call), ("0-1".to_owned(), 2));
    }
}

#[test]
fn one_that_never_reports_is_left_out_at_the_deadline_and_told_when_it_comes() {
    let mut run = Run::formed(3);
    let calls = [run.report(0, &[], false), run.report(1, &[], false)];
    run.pass(9 * SECOND, &[0, 1, 2]);
    assert_eq!(run.answer(calls[0]), None);
    run.pass(SECOND, &[0, 1, 2]);
    assert_eq!(run.decision(calls[0]), ("0-1".to_owned(), 2));
    let late = run.ask(
        2,
        Request::Report {
            report: Report { epoch: 1, suspects: Mask::EMPTY, admit: false, deadline: SECOND },
        },
    );
    assert!(matches!(run.error(late), BootstrapError::Evicted { rank: 2, epoch: 2, .. }));
    let round = run.round(2, "x", Mask::all(3), RoundKind::Barrier {});
    assert!(matches!(run.error(round), BootstrapError::Evicted { rank: 2, .. }));
}

#[test]
fn a_mutual_accusation_costs_the_higher_rank_which_is_told() {
    let mut run = Run::formed(3);
    let low = run.report(0, &[2], false);
    let high = run.report(2, &[0], false);
    let third = run.report(1, &[], false);
    assert_eq!(run.decision(low), ("0-1".to_owned(), 2));
    assert_eq!(run.decision(third), ("0-1".to_owned(), 2));
    assert!(matches!(run.error(high), BootstrapError::Evicted { rank: 2, epoch: 2, .. }));
}

/// Two members are in a call that another's cancelled future holds up, and call nothing else; that one accuses both.
#[test]
fn a_lone_accuser_does_not_evict_the_majority() {
    let mut run = Run::formed(3);
    let accuser = run.report(2, &[0, 1], false);
    run.pass(10 * SECOND, &[0, 1, 2]);
    let BootstrapError::NoQuorum { missing, .. } = run.error(accuser) else {
        panic!("{:?}", run.answer(accuser))
    };
    assert_eq!(missing.to_string(), "0-1");
    for call in [0, 1, 2].map(|conn| run.report(conn, &[], false)) {
        assert_eq!(run.decision(call), ("0-2".to_owned(), 2));
    }
}

#[test]
fn a_stopped_rank_comes_back_by_rejoining_and_being_admitted() {
    let mut run = Run::formed(3);
    run.pass(5 * SECOND, &[0, 1]);
    let calls = [run.report(0, &[2], false), run.report(1, &[2], false)];
    assert_eq!(run.decision(calls[0]), ("0-1".to_owned(), 2));
    // It continues: its rank is not given to anybody else meanwhile.
    let replacement = run.join(50, 2, 999);
    assert!(matches!(run.error(replacement), BootstrapError::Fenced { rank: 2, pid: 102, .. }));
    run.join(2, 2, 2);
    assert_eq!(run.state(2), RankState::Standby {});
    let back = run.report(2, &[], false);
    let refused = [run.report(0, &[], false), run.report(1, &[], true)];
    assert_eq!(run.decision(refused[0]), ("0-1".to_owned(), 3), "one member did not admit");
    assert_eq!(run.answer(back), None);
    let admitted = [run.report(0, &[], true), run.report(1, &[], true)];
    for call in admitted.into_iter().chain([back]) {
        assert_eq!(run.decision(call), ("0-2".to_owned(), 4));
    }
    assert_eq!(run.state(2), RankState::Alive {});
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
    let member = run.report(0, &[1], true);
    assert_eq!(run.answer(member), None, "waits for the standby member to be ready");
    let standby = run.report(7, &[], false);
    assert_eq!(run.decision(member), ("0-1".to_owned(), 2));
    assert_eq!(run.decision(standby), ("0-1".to_owned(), 2));
}

#[test]
fn a_connection_that_this_side_gave_up_fences_nobody_until_a_witness_speaks() {
    let mut run = Run::formed(2);
    run.event(Event::Closed { conn: 1, by_peer: false });
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
fn the_same_incarnation_may_come_back_by_a_new_connection() {
    let mut run = Run::formed(2);
    let back = run.join(9, 1, 1);
    assert!(matches!(run.answer(back), Some(Ok(Reply::Joined { .. }))));
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Alive {}, &[1][..]));
    run.close(1);
    assert_eq!(run.state(1), RankState::Alive {}, "the former connection is nobody's any more");
}

#[test]
fn leaving_is_a_death_that_says_so() {
    let mut run = Run::formed(2);
    let leave = run.ask(1, Request::Leave {});
    assert_eq!(run.answer(leave), Some(&Ok(Reply::Done {})));
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Dead {}, &[1][..]));
}

#[test]
fn epochs_end_with_an_error_not_with_a_repetition() {
    let mut run = Run::formed(1);
    run.machine.epoch = MAX_EPOCH - 1;
    let last = run.report(0, &[], false);
    assert_eq!(run.decision(last), ("0".to_owned(), MAX_EPOCH));
    let past = run.report(0, &[], false);
    let limit = u64::from(MAX_EPOCH);
    assert!(matches!(run.error(past), BootstrapError::Limit { limit: of, .. } if *of == limit));
}

#[test]
fn a_stale_epoch_is_refused_with_both_values() {
    let mut run = Run::formed(2);
    let report = Report { epoch: 9, suspects: Mask::EMPTY, admit: false, deadline: SECOND };
    let call = run.ask(0, Request::Report { report });
    let BootstrapError::Mismatch { field, ours, theirs, .. } = run.error(call) else { panic!() };
    assert_eq!((field.as_str(), ours.as_str(), theirs.as_str()), ("epoch", "1", "9"));
}

#[test]
fn a_member_whose_answer_got_lost_gets_the_same_decision_again() {
    let mut run = Run::formed(3);
    run.close(2);
    let calls = [run.report(0, &[], false), run.report(1, &[], false)];
    let report = Report { epoch: 1, suspects: [1].into_iter().collect(), admit: false, deadline: SECOND };
    let again = run.ask(0, Request::Report { report });
    assert_eq!(run.decision(again), run.decision(calls[1]));
    assert_eq!(
        run.state(1),
        RankState::Alive {},
        "what it said about the former epoch is not counted in the next"
    );
}

/// One move of the random walk: what happens, and to which rank.
#[derive(Clone, Debug)]
enum Move {
    Report { rank: u32, suspects: u8, admit: bool },
    Barrier { rank: u32 },
    Die { rank: u32 },
    Cut { rank: u32 },
    Replace { rank: u32 },
    Rejoin { rank: u32 },
    Pass { quarters: u32, alive: u8 },
}

const WALKERS: u32 = 5;

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let rank = || 0..WALKERS;
    let one = prop_oneof![
        6 => (rank(), any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(rank, a, b, admit)| Move::Report { rank, suspects: a & b & 31, admit }),
        2 => rank().prop_map(|rank| Move::Barrier { rank }),
        1 => rank().prop_map(|rank| Move::Die { rank }),
        1 => rank().prop_map(|rank| Move::Cut { rank }),
        2 => rank().prop_map(|rank| Move::Replace { rank }),
        2 => rank().prop_map(|rank| Move::Rejoin { rank }),
        3 => (1..30u32, any::<u8>()).prop_map(|(quarters, alive)| Move::Pass { quarters, alive }),
    ];
    proptest::collection::vec(one, 1..120)
}

/// An incarnation as it sees itself.
#[derive(Clone, Debug)]
struct Walker {
    conn: ConnId,
    member: u128,
    dead: bool,
    epoch: u32,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happens in whichever order: all decisions of an epoch are the same, only those in the mask get one,
    /// epochs go upward for each incarnation, no rank is given away while its incarnation lives, every call is
    /// answered once, and none stays open past its deadline.
    #[test]
    fn members_never_disagree(moves in moves()) {
        let mut run = Run::formed(WALKERS);
        let mut walkers: Vec<Walker> = (0..WALKERS)
            .map(|rank| Walker { conn: u64::from(rank), member: u128::from(rank), dead: false, epoch: 1 })
            .collect();
        let mut next = 100u64;
        let mut asked: Vec<((ConnId, u64), u32, Duration)> = Vec::new();
        let mut decided: BTreeMap<u32, Mask> = BTreeMap::new();
        let mut seen = run.machine.epoch;
        let (mut mask, mut died) = (Mask::all(WALKERS), Mask::EMPTY); // since the last change
        for step in moves {
            match step {
                Move::Report { rank, suspects, admit } => {
                    let walker = &walkers[rank as usize];
                    if !walker.dead {
                        let suspects = (0..WALKERS).filter(|peer| suspects >> peer & 1 == 1).collect();
                        let report = Report { epoch: walker.epoch, suspects, admit, deadline: 10 * SECOND };
                        let call = run.ask(walker.conn, Request::Report { report });
                        asked.push((call, rank, run.now));
                    }
                }
                Move::Barrier { rank } => {
                    let walker = &walkers[rank as usize];
                    if !walker.dead {
                        let call = run.round(walker.conn, "b", Mask::all(WALKERS), RoundKind::Barrier {});
                        asked.push((call, rank, run.now));
                    }
                }
                Move::Die { rank } => {
                    walkers[rank as usize].dead = true;
                    died.insert(rank);
                    run.close(walkers[rank as usize].conn);
                    // One whose connection had been given up before is seen dead by its launcher only.
                    run.event(Event::Ended { rank, pid: 100 + rank });
                }
                Move::Cut { rank } => run.event(Event::Closed { conn: walkers[rank as usize].conn, by_peer: false }),
                Move::Replace { rank } => {
                    next += 1;
                    let call = run.join(next, rank, u128::from(next));
                    let joined = run.answer(call).expect("joins of a formed run are answered at once").is_ok();
                    prop_assert_eq!(joined, walkers[rank as usize].dead, "rank {} given away while held", rank);
                    if joined {
                        let epoch = run.machine.epoch;
                        walkers[rank as usize] = Walker { conn: next, member: u128::from(next), dead: false, epoch };
                    }
                }
                Move::Rejoin { rank } => {
                    if !walkers[rank as usize].dead {
                        next += 1;
                        let call = run.join(next, rank, walkers[rank as usize].member);
                        prop_assert!(run.answer(call).is_some_and(Result::is_ok));
                        walkers[rank as usize].conn = next;
                    }
                }
                Move::Pass { quarters, alive } => {
                    run.now += SECOND * quarters / 4;
                    for (rank, walker) in (0..).zip(&walkers) {
                        if alive >> rank & 1 == 1 {
                            run.event(Event::Heard { conn: walker.conn });
                        }
                    }
                    run.event(Event::Tick);
                }
            }
            let epoch = run.machine.epoch;
            prop_assert!(epoch >= seen);
            if epoch > seen {
                let living = mask.minus(&std::mem::take(&mut died));
                let gone = living.minus(&run.machine.mask);
                prop_assert!(gone.is_empty() || 2 * gone.len() < living.len(), "{} of {} removed", gone, living);
            }
            (seen, mask) = (epoch, run.machine.mask);
            asked.retain(|(call, rank, _)| match run.answer(*call) {
                None => true,
                Some(Ok(Reply::Decided { decision })) => {
                    assert_eq!(*decided.entry(decision.epoch).or_insert(decision.mask), decision.mask);
                    assert!(decision.mask.contains(*rank), "rank {rank} got a mask that it is not in");
                    let walker = &mut walkers[*rank as usize];
                    if walker.conn == call.0 {
                        assert!(decision.epoch > walker.epoch, "{decision:?} {walker:?}");
                        walker.epoch = decision.epoch;
                    }
                    false
                }
                Some(_) => false,
            });
            // A dead incarnation's calls are nobody's; one that came back by a new connection gave the former's up.
            asked.retain(|(call, rank, _)| call.0 == walkers[*rank as usize].conn && !walkers[*rank as usize].dead);
            for (call, _, since) in &asked {
                prop_assert!(run.now < *since + 10 * SECOND, "{:?} is open past its deadline", call);
            }
        }
    }
}
