//! Who is removed after a failure, and after which step.

use super::*;

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
    // Even if it were true for both ends, one member would be removed, not two of three.
    run.doubt(2, &[0, 1]);
    run.reply(&[0, 1, 2], &[(2, &[0, 1]), (0, &[2]), (1, &[2])]);
    assert_eq!(run.decided().0, "0-1");
}

#[test]
fn a_member_whose_own_device_fails_goes_and_its_peers_keep_their_places() {
    let mut run = Run::formed(3);
    run.doubt(1, &[0]);
    run.reply(&[0, 1, 2], &[(0, &[0, 1]), (1, &[0])]);
    assert_eq!(run.decided(), ("1-2".to_owned(), 2, 21));
    assert_eq!(run.state(0), RankState::Evicted {});
    // One of two is a half.
    run.doubt(1, &[2]);
    run.reply(&[1, 2], &[(1, &[2]), (2, &[2])]);
    run.pass(5 * SECOND, &[1, 2]);
    assert_eq!(run.decided().0, "1-2");
    assert!(matches!(&run.settled[&1], Err(BootstrapError::NoQuorum { .. })), "{:?}", run.settled);
}

#[test]
fn who_has_broken_its_promise_goes_if_two_have_seen_it_and_a_lone_accuser_is_not_believed() {
    let mut run = Run::formed(3);
    run.doubt(0, &[2]);
    run.reply_seeing(&[0, 1, 2], &[], &[(0, &[1, 2])]);
    assert_eq!(run.decided(), ("0-2".to_owned(), 2, 21), "all begin again at a step that all agree on");
    run.doubt(0, &[2]);
    run.reply_seeing(&[0, 1, 2], &[], &[(0, &[2]), (1, &[2]), (2, &[0, 1])]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 3, 11));
    assert_eq!(run.state(2), RankState::Evicted {});
    // Of two members none can be outvoted.
    run.doubt(0, &[1]);
    run.reply_seeing(&[0, 1], &[], &[(0, &[1]), (1, &[0])]);
    assert_eq!(run.decided().0, "0-1");
}

#[test]
fn what_is_said_of_ranks_that_there_are_not_is_not_kept() {
    let mut run = Run::formed(3);
    run.doubt(0, &[2]);
    let (missing, diverged) = (Mask::all(1024), Box::new(Mask::all(1024)));
    run.notice(0, Notice::Reached { change: 1, missing, diverged });
    assert!(Machine::restore(&run.machine.snapshot()).is_ok());
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
        "it learns that once it continues"
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

/// No member's end can end the server: its side is the one that continues.
#[test]
fn a_server_by_itself_goes_on_with_those_who_answer() {
    let mut run = Run::formed(4);
    run.machine.settings.arbiter = true;
    run.pass(5 * SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2, 3]), (1, &[2, 3])]);
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
    run.pass(5 * SECOND, &[1]);
    run.reply(&[1], &[(1, &[0])]);
    run.reply(&[1], &[]);
    assert_eq!(run.decided().0, "1");
    run.pass(20 * SECOND, &[]);
    assert_eq!(run.decided().0, "1", "somebody is to be left");
}

/// Two hosts, one without power: no kernel reports it, and of two members none can be outvoted.
#[test]
fn a_death_that_is_reported_needs_no_quorum() {
    let mut run = Run::formed(2);
    run.pass(20 * SECOND, &[0]);
    run.reply(&[0], &[(0, &[1])]);
    assert_eq!(run.decided().1, 1);
    let answered = |run: &Run, call| matches!(run.answer(call), Some(Ok(Reply::Done {})));
    let reported = run.ask(0, Request::ReportDeath { rank: 1, member: 7 });
    assert_eq!(run.state(1), RankState::Suspect {}, "another member");
    assert!(answered(&run, reported));
    let reported = run.ask(0, Request::ReportDeath { rank: 1, member: 1 });
    assert!(answered(&run, reported));
    assert_eq!(run.state(1), RankState::Dead {});
    run.pass(5 * SECOND, &[0]);
    run.reply(&[0], &[]);
    assert_eq!(run.decided(), ("0".to_owned(), 2, 1));
    run.join(9, 1, 9);
    assert_eq!(run.state(1), RankState::Standby {});
}

#[test]
fn what_was_said_of_another_epoch_or_change_is_void() {
    let mut run = Run::formed(3);
    run.notice(0, Notice::Doubt { epoch: 7, peers: [1].into_iter().collect() });
    run.notice(0, Notice::Promise { change: 9, step: 1 << 40 });
    run.notice(0, Notice::Reached { change: 9, missing: Mask::all(3), diverged: Box::new(Mask::all(3)) });
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
    assert_eq!(run.asks, [], "steps continue for a while");
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
    // A member that was heard is silent now, and nobody has seen it dead.
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
