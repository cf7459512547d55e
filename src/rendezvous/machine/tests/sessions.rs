//! Sessions: silence, clients that come back, and what they have missed.

use super::*;

#[test]
fn silence_makes_suspect_and_a_sign_of_life_undoes_it() {
    let mut run = Run::formed(2);
    run.pass(5 * SECOND, &[0]);
    assert_eq!((run.state(0), run.state(1)), (RankState::Alive {}, RankState::Suspect {}));
    run.event(Event::Heard { session: 1 });
    assert_eq!(run.state(1), RankState::Alive {});
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
    run.event(Event::Received { session: 0, through: call.1, except: BTreeSet::new() });
    let barrier = run.round(0, "x", Mask::all(2), RoundKind::Barrier {});
    let kind = RoundKind::Barrier {};
    let round = Round { tag: "x".to_owned(), ranks: Mask::all(2), deadline: 10 * SECOND, kind };
    run.ask_as(barrier, Request::Round { round });
    assert_eq!(run.answer(barrier), None, "asked again, it still waits");
    run.round(1, "x", Mask::all(2), RoundKind::Barrier {});
    assert_eq!(run.answer(barrier), Some(&Ok(Reply::Done {})));
}

#[test]
fn answers_that_a_client_has_are_not_kept_though_it_waits_for_earlier_ones() {
    let mut run = Run::formed(2);
    let add = || Request::Add { key: "n".to_owned(), amount: 1 };
    let get = |key: &str| Request::Get { keys: vec![key.to_owned()], deadline: 10 * SECOND };
    let (waits, lost) = (run.ask(0, get("never")), run.ask(0, add()));
    let calls: Vec<_> = (0..10).map(|_| run.ask(0, add())).collect();
    assert_eq!(run.machine.answers.given(0), 12, "with that to its join");
    let through = calls[9].1;
    run.event(Event::Received { session: 0, through, except: [waits.1, lost.1].into() });
    assert_eq!(run.machine.answers.given(0), 1);
    assert_eq!(run.answers.remove(&lost), Some(Ok(Reply::Sum { sum: 1 })));
    run.ask_as(lost, add());
    run.ask_as(waits, get("never"));
    assert_eq!((run.answer(lost), run.answer(waits)), (Some(&Ok(Reply::Sum { sum: 1 })), None));
}

/// The client has had the others for long, because answers arrive in the order in which they were given.
#[test]
fn an_answer_that_was_given_late_is_kept_longer_than_those_to_later_calls() {
    let mut run = Run::formed(2);
    let barrier = || Round {
        tag: "x".to_owned(),
        ranks: Mask::all(2),
        deadline: 10 * SECOND,
        kind: RoundKind::Barrier {},
    };
    let late = run.ask(0, Request::Round { round: barrier() });
    for _ in 0..600 {
        run.ask(0, Request::Add { key: "n".to_owned(), amount: 1 });
    }
    run.ask(1, Request::Round { round: barrier() });
    assert_eq!(run.machine.answers.given(0), 512);
    assert_eq!(run.answers.remove(&late), Some(Ok(Reply::Done {})));
    run.ask_as(late, Request::Round { round: barrier() });
    assert_eq!(run.answer(late), Some(&Ok(Reply::Done {})), "it is not another barrier");
}

/// A server that has taken over grants everybody a lease, but a client may take longer to notice that it must come back.
#[test]
fn a_client_that_is_no_member_has_longer_than_a_lease_to_come_back() {
    let mut run = Run::formed(2);
    let add = || Request::Add { key: "n".to_owned(), amount: 1 };
    let call = run.ask(7, add());
    for _ in 0..2 {
        run.event(Event::Closed { session: 7, by_peer: false });
        run.pass(29 * SECOND, &[0, 1]);
        assert_eq!(run.answers.remove(&call), Some(Ok(Reply::Sum { sum: 1 })));
        run.ask_as(call, add());
    }
    run.event(Event::Closed { session: 7, by_peer: false });
    run.pass(30 * SECOND, &[0, 1]);
    assert_eq!(run.machine.sessions(), [0, 1, 0, 1]);
    run.ask(7, add());
    run.event(Event::Closed { session: 7, by_peer: true });
    assert_eq!(run.machine.sessions(), [0, 1, 0, 1]);
}

#[test]
fn who_comes_back_is_told_how_the_last_change_ended_and_asked_again() {
    let mut run = Run::formed(4);
    run.close(3);
    run.reply(&[0, 1, 2], &[]);
    assert_eq!(run.decided(), ("0-2".to_owned(), 2, 21));
    run.close(2);
    run.reply(&[0], &[]);
    // Neither the outcome of the first change nor the question of the second has arrived.
    run.settled.remove(&1);
    run.asks.clear();
    let resume = run.ask(1, Request::Resume { standby: false });
    assert_eq!(run.answer(resume), Some(&Ok(Reply::Done {})));
    assert_eq!(run.settled[&1].as_ref().unwrap().epoch, 2);
    run.reply(&[1], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 3, 11));
}

#[test]
fn who_comes_back_in_the_moment_in_which_a_change_expires_is_told_so() {
    let mut run = Run::formed(3);
    run.ask(0, Request::Retire { rank: 1 });
    run.reply(&[0, 1], &[]);
    run.pass(4 * SECOND, &[0, 1]);
    run.now += SECOND;
    run.ask(2, Request::Resume { standby: false });
    for session in 0..3 {
        let told = &run.settled[&session];
        assert!(matches!(told, Err(BootstrapError::Timeout { .. })), "session {session}: {told:?}");
    }
}

#[test]
fn an_answer_that_is_given_again_is_followed_by_what_has_happened_since() {
    let mut run = Run::formed(3);
    run.pass(6 * SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2]), (1, &[2])]);
    assert_eq!(run.decided().0, "0-1");
    // Rank 2 has received neither the answer to its join, its third call, nor anything since.
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
