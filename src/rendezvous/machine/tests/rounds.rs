//! Rounds: barriers, agreements and exchanges.

use super::*;

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
fn a_round_that_waits_for_an_evicted_member_ends_with_the_decision() {
    let mut run = Run::formed(3);
    let round = run.round(0, "x", Mask::all(3), RoundKind::Barrier {});
    run.doubt(0, &[2]);
    assert_eq!(run.answer(round), None);
    run.reply(&[0, 1, 2], &[(0, &[2]), (2, &[0])]);
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
