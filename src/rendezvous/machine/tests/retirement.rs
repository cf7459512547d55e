//! Members that are removed from the run on request.

use super::*;

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
    // Rounds continue with it until it leaves.
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
fn a_member_is_retired_though_another_one_dies_before_its_last_step() {
    let mut run = Run::formed(4);
    run.ask(0, Request::Retire { rank: 2 });
    run.reply(&[0, 1, 2, 3], &[]);
    assert_eq!(run.decided(), ("0-1,3".to_owned(), 2, 31));
    run.close(3);
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 3, 11), "nobody has begun the one before");
    assert_eq!(run.machine.changes.retired.to_string(), "2");
}

#[test]
fn a_member_ends_its_last_step_though_another_change_follows_that_is_not_urgent() {
    let mut run = Run::formed(4);
    let mut pace = Pace::joined(2, &run.machine.view(), 0);
    run.ask(0, Request::Retire { rank: 2 });
    run.reply(&[0, 1, 2, 3], &[]);
    let first = run.machine.decision;
    assert_eq!(run.decided(), ("0-1,3".to_owned(), 2, 31));
    pace.settle(run.machine.changes.last, Some(first), run.machine.changes.retired);
    // By now it may have begun step 30, which none of the others has reached.
    run.ask(0, Request::Retire { rank: 1 });
    run.promise(&[0, 1, 3], 28);
    assert_eq!(run.decided(), ("0,3".to_owned(), 3, 31));
    assert_eq!(run.machine.changes.retired.to_string(), "1-2");
    pace.settle(run.machine.changes.last, Some(run.machine.decision), run.machine.changes.retired);
    while let Next::Begin { .. } = pace.next(false) {}
    assert_eq!((pace.begun(), pace.next(false)), (30, Next::Retired { epoch: 3 }));
    // Later changes are no concern of those who have left.
    run.ask(0, Request::Retire { rank: 3 });
    run.promise(&[0, 3], 40);
    assert_eq!(run.decided(), ("0".to_owned(), 4, 41));
}

#[test]
fn a_retired_member_learns_of_it_though_others_are_lost_before_it_comes_back() {
    for ahead in [1, 100] {
        let mut run = Run::formed(4);
        let mut pace = Pace::joined(2, &run.machine.view(), 0);
        run.ask(0, Request::Retire { rank: 2 });
        run.reply(&[0, 1, 2, 3], &[]);
        let first = run.machine.decision;
        run.close(3);
        run.promise(&[0, 1], ahead);
        let second = run.machine.decision;
        assert_eq!((run.decided().0.as_str(), second.step < first.step), ("0-1", ahead == 1));
        let call = Call { session: 2, id: 99 };
        let request = Box::new(Request::Resume { standby: false });
        for action in run.machine.handle(run.now, Event::Request { call, request }) {
            if let Action::Settle { change, outcome, retired, .. } = action {
                pace.settle(change, outcome.ok(), retired);
            }
        }
        let leaves = if ahead == 1 { second } else { first };
        while let Next::Begin { .. } = pace.next(false) {}
        assert_eq!(pace.next(false), Next::Retired { epoch: leaves.epoch });
        assert_eq!(pace.begun() + 1, leaves.step);
    }
}

#[test]
fn a_member_is_retired_though_several_memberships_never_begin() {
    let mut run = Run::formed(5);
    run.ask(0, Request::Retire { rank: 2 });
    run.reply(&[0, 1, 2, 3, 4], &[]);
    assert_eq!(run.decided(), ("0-1,3-4".to_owned(), 2, 41));
    // The next membership begins later, and the one after it before both.
    run.close(4);
    run.promise(&[0, 1, 3], 50);
    run.close(3);
    run.promise(&[0, 1], 7);
    assert_eq!(run.decided(), ("0-1".to_owned(), 4, 8));
    assert_eq!(run.machine.changes.retired.to_string(), "2");
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
    // Nor is it retired when all others die.
    run.close(0);
    run.reply(&[1], &[]);
    assert_eq!(run.decided(), ("1".to_owned(), 2, 11));
    assert!(matches!(run.error(first), BootstrapError::OutOfOrder { .. }));
}

#[test]
fn leaving_is_a_death_that_says_so() {
    let mut run = Run::formed(2);
    let leave = run.ask(1, Request::Leave {});
    assert_eq!(run.answer(leave), Some(&Ok(Reply::Done {})));
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Left {}, &[1][..]));
}

#[test]
fn a_change_that_is_called_off_takes_along_what_asked_for_it() {
    let mut run = Run::formed(4);
    run.close(3);
    run.reply(&[0, 1, 2], &[]);
    run.join(13, 3, 13);
    run.notice(13, Notice::Ready {});
    run.reply(&[13], &[]);
    let retire = run.ask(0, Request::Retire { rank: 2 });
    let number = run.machine.changes.last;
    run.reply(&[0, 1], &[]);
    let abort = run.ask(1, Request::Abort { change: number });
    assert_eq!(run.answer(abort), Some(&Ok(Reply::Done {})));
    let aborted = |op: &str| BootstrapError::Aborted { op: op.to_owned(), change: number, rank: 1 };
    assert_eq!(*run.error(retire), aborted("retire rank 2"));
    for session in [0, 1, 2, 13] {
        assert_eq!(run.settled[&session], Err(aborted("change the membership")), "session {session}");
    }
    run.asks.clear();
    run.pass(20 * SECOND, &[0, 1, 2, 13]);
    assert_eq!((run.decided().1, run.asks.len(), run.state(3)), (2, 0, RankState::Standby {}));
    // It can be requested again.
    run.notice(13, Notice::Ready {});
    run.reply(&[0, 1, 2, 13], &[]);
    assert_eq!(run.decided().0, "0-3");
}

#[test]
fn what_is_decided_is_called_off_no_more() {
    let mut run = Run::formed(3);
    run.ask(0, Request::Retire { rank: 2 });
    let number = run.machine.changes.last;
    run.reply(&[0, 1, 2], &[]);
    let late = run.ask(1, Request::Abort { change: number });
    assert_eq!(
        run.error(late).to_string(),
        "abort change 1 of the membership: it has already been decided or aborted"
    );
    for number in [0, 2, u64::MAX] {
        let unknown = run.ask(1, Request::Abort { change: number });
        assert!(
            run.error(unknown).to_string().ends_with("there is no such change"),
            "{}",
            run.error(unknown)
        );
    }
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 21));
}

#[test]
fn a_death_is_a_reason_for_another_change_though_the_first_was_called_off() {
    let mut run = Run::formed(3);
    run.close(2);
    let number = run.machine.changes.last;
    run.ask(0, Request::Abort { change: number });
    run.asks.clear();
    run.pass(4 * SECOND, &[0, 1]);
    assert_eq!((run.decided().1, run.asks.len()), (1, 0));
    run.pass(SECOND, &[0, 1]);
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided().0, "0-1");
}
