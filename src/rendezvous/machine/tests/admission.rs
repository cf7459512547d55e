//! How replacements and newcomers become members.

use super::*;

#[test]
fn a_stopped_rank_comes_back_by_rejoining_and_being_admitted() {
    let mut run = Run::formed(3);
    run.pass(5 * SECOND, &[0, 1]);
    run.reply(&[0, 1], &[(0, &[2]), (1, &[2])]);
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11));
    // It is not dead: nobody else gets its rank meanwhile.
    let replacement = run.join(50, 2, 999);
    assert!(matches!(run.error(replacement), BootstrapError::Fenced { rank: 2, pid: 102, .. }));
    run.join(2, 2, 2);
    assert_eq!(run.state(2), RankState::Standby {});
    assert_eq!(run.asks, [], "it has not said that it is ready");
    run.notice(2, Notice::Ready {});
    assert_eq!(run.decided(), ("0-1".to_owned(), 2, 11), "it has to connect again first");
    run.notice(2, Notice::Met { peers: Mask::all(2) });
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
fn members_learn_who_has_taken_a_place() {
    let mut run = Run::formed(3);
    assert!(run.rosters.is_empty(), "all know each other from joining");
    run.close(2);
    run.join(12, 2, 12);
    assert_eq!(run.rosters[&0], [(2, 12)].into());
    assert!(!run.rosters.contains_key(&12), "it has got the roster as it joined");
    run.join(12, 2, 12);
    assert_eq!(run.rosters.len(), 2);
    // A member that may have missed it is told of all members.
    run.rosters.clear();
    run.ask(1, Request::Resume { standby: false });
    assert_eq!(run.rosters, [(1, [(0, 0), (1, 1), (2, 12)].into())].into());
}

#[test]
fn a_change_names_those_whom_it_leaves_waiting() {
    let mut run = Run::formed(5);
    [2, 3, 4].into_iter().for_each(|session| run.close(session));
    run.reply(&[0, 1], &[]);
    [12, 13, 14].into_iter().for_each(|session| {
        run.join(session, session as u32 - 10, session.into());
    });
    run.notice(13, Notice::Ready {});
    assert_eq!((run.state(2), run.state(3)), (RankState::Standby {}, RankState::Ready {}));
    run.reply(&[13], &[]); // it has met the members
    run.notice(14, Notice::Ready {}); // this one has not met them
    let of = |ranks: &[u32]| -> Mask { ranks.iter().copied().collect() };
    let waiting = Standby { ready: of(&[3, 4]), preparing: of(&[2]) };
    assert_eq!(Standby::among(&run.machine.view().states), waiting);
    run.reply(&[0, 1], &[]);
    assert_eq!(run.decided().0, "0-1,3");
    assert_eq!(run.waiting, Standby { ready: of(&[4]), preparing: of(&[2]) });
    run.reply(&[0, 1, 13, 14], &[]);
    assert_eq!((run.decided().0.as_str(), run.waiting.ready), ("0-1,3-4", Mask::EMPTY));
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
    // Another process in the place of rank 1 is not connected with anybody.
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
fn a_run_grows_into_the_places_that_it_has() {
    let settings = Settings {
        run_id: "run".to_owned(),
        world: 4,
        initial: 2,
        join_deadline: 30 * SECOND,
        lease: 5 * SECOND,
        arbiter: false,
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
    assert_eq!(run.machine.view().taken, Mask::all(2));
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
    assert_eq!(run.machine.view().taken, Mask::all(4));
}
