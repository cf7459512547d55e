//! How a run comes together, and which joins it refuses.

use super::*;

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
    let error = refused(&mut run, Join { version: 99, ..join(0, 1, 2) });
    assert!(
        matches!(error, BootstrapError::WrongVersion { ours: PROTOCOL_VERSION, theirs: 99, .. }),
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
    assert_eq!(
        run.machine.next_deadline(),
        Some(2 * SECOND),
        "nothing else is due before the run has come together"
    );
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
fn who_falls_silent_while_the_run_gathers_begins_as_a_suspect() {
    let mut run = Run::new(3);
    run.join(0, 0, 0);
    run.join(1, 1, 1);
    run.pass(6 * SECOND, &[0]);
    run.join(3, 2, 2);
    assert_eq!((run.machine.view().epoch, run.state(1)), (1, RankState::Suspect {}));
    run.reply(&[0, 3], &[(0, &[1]), (3, &[1])]);
    assert_eq!(run.decided().0, "0,2");
}

#[test]
fn who_is_heard_again_while_the_run_gathers_begins_as_a_member_like_others() {
    let mut run = Run::new(2);
    run.join(0, 0, 0);
    run.pass(6 * SECOND, &[]);
    run.hear(0);
    run.join(1, 1, 1);
    assert_eq!((run.state(0), run.state(1)), (RankState::Alive {}, RankState::Alive {}));
    assert!(run.asks.is_empty());
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
fn the_end_of_a_session_whose_member_was_seen_dead_before_the_start_is_not_that_of_its_successor() {
    let mut run = Run::new(2);
    run.join(1, 1, 1);
    run.event(Event::Ended { rank: 1, pid: 101 });
    run.join(9, 1, 9);
    run.join(0, 0, 0);
    run.event(Event::Closed { session: 1, by_peer: true });
    assert_eq!((run.state(1), run.closed.as_slice()), (RankState::Alive {}, &[1][..]));
}
