//! Messages: each decodes to what was encoded, no bytes make the decoder do anything but return an error, and no
//! decoded message does harm.

use std::collections::{BTreeMap, BTreeSet};

use openraft::{EntryPayload, LeaderId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::question::{Append, Body, Install, log_id};
use super::super::types::{Ballot, Entry, LogId, Members, Types};
use super::super::*;
use super::voters;
use super::world::MS;
use crate::rendezvous::Blob;
use crate::rendezvous::codec::{Reader, Wire};

fn ids() -> impl Strategy<Value = LogId> {
    (0..4u64, 0..40u64).prop_map(|(term, index)| log_id(term, index))
}

/// Ids of voters; 0 to 2 stand for those of a test.
fn who() -> impl Strategy<Value = u128> {
    prop_oneof![0..4u128, any::<u128>()]
}

fn ballots() -> impl Strategy<Value = Ballot> {
    (0..6u64, who(), any::<bool>()).prop_map(|(term, voter, committed)| Ballot {
        leader_id: LeaderId { term, voted_for: Some(voter) },
        committed,
    })
}

fn members() -> impl Strategy<Value = Members> {
    (vec(proptest::collection::btree_set(who(), 1..6), 1..3), who()).prop_map(
        |(configs, learner): (Vec<BTreeSet<u128>>, u128)| {
            let all = configs.iter().flatten().copied().chain([learner]);
            let nodes: BTreeMap<u128, String> = all.map(|id| (id, id.to_string())).collect();
            Members::new(configs, nodes)
        },
    )
}

fn entries() -> impl Strategy<Value = Entry> {
    let payload = prop_oneof![
        Just(EntryPayload::<Types>::Blank),
        vec(any::<u8>(), 8..40).prop_map(|bytes| EntryPayload::Normal(Blob(bytes).into())),
        members().prop_map(EntryPayload::Membership),
    ];
    (ids(), payload).prop_map(|(log_id, payload)| Entry { log_id, payload })
}

fn appends() -> impl Strategy<Value = Append> {
    let parts = (ballots(), option::of(ids()), vec(entries(), 0..4), option::of(ids()), any::<bool>());
    parts.prop_map(|(ballot, prev, mut entries, committed, in_order)| {
        // Most entries out of order are refused early.
        if in_order {
            let first = prev.map_or(0, |prev: LogId| prev.index + 1);
            entries.iter_mut().zip(first..).for_each(|(entry, index)| entry.log_id.index = index);
        }
        Append { ballot, prev, entries, committed }
    })
}

fn installs() -> impl Strategy<Value = Install> {
    (ballots(), ids(), option::of(ids()), members(), 0..64u64, 0..64u64, vec(any::<u8>(), 0..64)).prop_map(
        |(ballot, last, members_at, members, total, offset, data)| Install {
            ballot,
            last,
            members_at,
            members,
            total,
            offset,
            data: Blob(data),
        },
    )
}

fn questions() -> impl Strategy<Value = Question> {
    let body = prop_oneof![
        appends().prop_map(|append| Body::Append { append }),
        (ballots(), option::of(ids())).prop_map(|(ballot, last)| Body::Vote { ballot, last }),
        installs().prop_map(|install| Body::Install { install }),
    ];
    (who(), body).prop_map(|(to, body)| Question { to, body })
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        any::<String>().prop_map(|why| Answer::Refused { why }),
        Just(Answer::Appended {}),
        Just(Answer::Conflict {}),
        ballots().prop_map(|ballot| Answer::Outvoted { ballot }),
        (ballots(), any::<bool>(), option::of(ids())).prop_map(|(ballot, granted, last)| Answer::Voted {
            ballot,
            granted,
            last
        }),
        any::<u64>().prop_map(|bytes| Answer::Installed { bytes }),
    ]
}

fn reads_back<T: Wire + PartialEq + std::fmt::Debug>(value: &T) {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    let mut from = Reader::new(&bytes);
    assert_eq!(&T::get(&mut from).unwrap(), value);
    assert_eq!(from.remaining(), 0);
    assert!((0..bytes.len()).all(|end| T::get(&mut Reader::new(&bytes[..end])).is_err()));
}

proptest! {
    #[test]
    fn questions_read_back(question in questions()) {
        reads_back(&question);
    }

    #[test]
    fn answers_read_back(answer in answers()) {
        reads_back(&answer);
    }

    #[test]
    fn any_bytes_give_a_message_or_an_error(bytes in vec(any::<u8>(), 0..200), kind in 0..4u8) {
        let mut question = vec![0; 16];
        question.extend([kind, 0]);
        question.extend(&bytes);
        let _ = Question::get(&mut Reader::new(&question));
        let _ = Answer::get(&mut Reader::new(&bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever they are asked, copies answer, and agree with each other.
    #[test]
    fn questions_that_no_voter_asks_do_no_harm(all in vec(questions(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let mut world = voters(3).await;
            let ids: Vec<u128> = world.processes.iter().map(|process| process.voter.id).collect();
            let leader = world.processes[0].clone();
            for _ in 0..5 {
                let _ = world.append(&leader, 8).await;
            }
            world.check();
            let of = |id: &mut u128| *id = ids.get(*id as usize).copied().unwrap_or(*id);
            for mut question in all {
                of(&mut question.to);
                let ballot = match &mut question.body {
                    Body::Append { append } => &mut append.ballot,
                    Body::Vote { ballot, .. } => ballot,
                    Body::Install { install } => &mut install.ballot,
                };
                ballot.leader_id.voted_for.iter_mut().for_each(of);
                for process in &world.processes {
                    process.log.answer(Question { to: process.voter.id, ..question.clone() }).await;
                    tokio::time::sleep(MS).await;
                    let alive = process.log.leadership().has_changed().is_ok();
                    assert!(alive, "{question:?} has ended the copy of {}", process.slot);
                }
            }
        });
    }
}
