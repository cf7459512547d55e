//! The log by itself: several voters in one process, on a runtime whose clock the tests control.

mod histories;
mod messages;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::{Entry, EntryPayload};
use tokio::time::Instant;

use super::question::{Append, Body, log_id};
use super::types::{Ballot, MAX_RECORD_BYTES, Metrics, Record};
use super::*;
use crate::rendezvous::Blob;
use world::{MS, Process, World};

const SECOND: Duration = Duration::from_secs(1);

/// This many voters, of which the first leads.
async fn voters(count: u64) -> World {
    let mut world = World::new(count, Timing::default()).await;
    for slot in 1..count {
        world.start(slot, false).await;
    }
    let all = world.processes.iter().map(|process| process.voter.clone()).collect();
    world.processes[0].log.set_voters(all, 5 * SECOND).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn a_founder_leads_at_once_and_alone() {
    let mut world = World::new(1, Timing::default()).await;
    let founder = world.processes[0].clone();
    let leadership = founder.log.leadership().borrow().clone();
    assert!(leadership.leads && leadership.leader == Some(founder.voter.clone()));
    world.append(&founder, 8).await.unwrap();
    assert_eq!(founder.tape.numbers(), [1]);
}

/// Its caller has stopped waiting, as the driver does after a while.
#[tokio::test(start_paused = true)]
async fn a_change_of_voters_that_was_interrupted_is_seen_and_completed() {
    let mut interrupted = 0;
    for ms in 0..60 {
        let mut world = World::new(3, Timing::default()).await;
        for slot in 1..3 {
            world.start(slot, false).await;
        }
        let leader = world.processes[0].clone();
        let all: Vec<Voter> = world.processes.iter().map(|process| process.voter.clone()).collect();
        let _ = leader.log.set_voters(all.clone(), ms * MS).await;
        tokio::time::sleep(SECOND).await;
        if leader.log.is_joint() {
            interrupted += 1;
            assert_eq!(leader.log.voters().len(), 3);
        }
        leader.log.set_voters(all, 5 * SECOND).await.unwrap();
        assert!(!leader.log.is_joint() && leader.log.voters().len() == 3, "{ms}");
    }
    assert!(interrupted > 0);
}

#[tokio::test(start_paused = true)]
async fn another_voter_leads_when_the_leader_dies_and_nothing_acknowledged_is_lost() {
    let mut world = voters(3).await;
    let founder = world.processes[0].clone();
    for _ in 0..20 {
        world.append(&founder, 8).await.unwrap();
    }
    world.kill(founder.voter.id).await;
    let died = Instant::now();
    let leader = world.await_leader(3 * SECOND).await;
    assert!(
        died.elapsed() >= Timing::default().election.0 - 2 * Timing::default().heartbeat,
        "{:?}",
        died.elapsed()
    );
    assert!(leader.log.leadership().borrow().term > 1);
    world.append(&leader, 8).await.unwrap();
    world.await_even(SECOND).await;
    assert_eq!(world.seen().order, (1..=21).collect::<Vec<_>>());
    world.check();
}

#[tokio::test(start_paused = true)]
async fn voters_that_see_the_leader_end_do_not_wait_for_its_silence() {
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let mut world = voters(3).await;
        world.kill(world.processes[0].voter.id).await;
        world.processes.iter().for_each(|process| process.log.elect(false));
        let died = Instant::now();
        world.await_leader(3 * SECOND).await;
        slowest = slowest.max(died.elapsed());
    }
    assert!(slowest < Timing::default().election.1, "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn who_wrongly_takes_the_leader_for_gone_learns_better() {
    let world = voters(3).await;
    let term = world.processes[0].log.leadership().borrow().term;
    world.processes[1].log.elect(false);
    tokio::time::sleep(5 * SECOND).await;
    let leader = world.leader().unwrap();
    assert!(leader.voter.id == world.processes[0].voter.id, "term {term}");
}

/// The asking voter may have the worse connection.
#[tokio::test(start_paused = true)]
async fn a_voter_that_hears_the_leader_helps_nobody_to_depose_it() {
    let world = voters(3).await;
    let [leader, voter, candidate] = [0, 1, 2].map(|slot| world.processes[slot].clone());
    let ballot = Ballot::new(9, candidate.voter.id);
    for asked in [leader, voter] {
        let question =
            Question { to: asked.voter.id, body: Body::Vote { ballot, last: Some(log_id(9, 99)) } };
        assert_eq!(asked.log.answer(question).await, Answer::refused("there is a leader"));
    }
}

#[tokio::test(start_paused = true)]
async fn who_no_longer_votes_and_has_learned_of_it_is_asked_nothing_more() {
    let world = voters(3).await;
    let [leader, other, former] = [0, 1, 2].map(|slot| world.processes[slot].voter.clone());
    let log = world.processes[0].log.clone();
    let known = |voters: &[&Voter]| voters.iter().map(|voter| voter.id).collect::<BTreeSet<_>>();
    log.set_voters(vec![leader.clone(), other.clone()], SECOND).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.net().known[&leader.id], known(&[&leader, &other, &former]));
    log.forget_learners(SECOND).await.unwrap();
    tokio::time::sleep(SECOND).await;
    for voter in [&leader, &other] {
        assert_eq!(world.net().known[&voter.id], known(&[&leader, &other]));
    }
}

/// It continues to send the log, like a leader that no longer votes.
#[tokio::test(start_paused = true)]
async fn a_leader_that_has_resigned_is_succeeded_though_it_is_heard() {
    let mut world = voters(3).await;
    let former = world.processes[0].voter.id;
    let term = world.processes[0].log.leadership().borrow().term;
    world.processes[1..].iter().for_each(|process| process.log.elect(true));
    tokio::time::sleep(2 * SECOND).await;
    let leader = world.await_leader(SECOND).await;
    assert_ne!(leader.voter.id, former);
    assert!(leader.log.leadership().borrow().term <= term + 10, "elections without end");
    world.append(&leader, 8).await.unwrap();
    world.check();
}

/// The lease of its member is based on this, see `driver::former`.
#[tokio::test(start_paused = true)]
async fn a_new_leader_knows_since_when_the_former_one_has_been_silent() {
    let mut world = voters(3).await;
    tokio::time::sleep(SECOND).await;
    let former = world.processes[0].voter.id;
    world.kill(former).await;
    let died = Instant::now();
    let leader = world.await_leader(3 * SECOND).await;
    let (id, since) = world.seen().former.unwrap();
    assert!(id == former && since <= died + 20 * MS && died <= since + 2 * Timing::default().heartbeat);
    assert_eq!(leader.log.former_leader(), None, "once this one leads nobody else need let itself be heard");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_resigned_has_no_reason_to_let_itself_be_heard() {
    let world = voters(3).await;
    tokio::time::sleep(SECOND).await;
    let follower = world.processes[1].log.clone();
    assert!(follower.former_leader().is_some());
    follower.elect(true);
    assert_eq!(follower.former_leader(), None);
}

#[tokio::test(start_paused = true)]
async fn an_empty_copy_never_stands_for_election() {
    let mut world = World::new(1, Timing::default()).await;
    let idle = world.start(1, false).await;
    idle.log.elect(false);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(*idle.log.leadership().borrow(), Leadership::default());
}

#[tokio::test(start_paused = true)]
async fn a_follower_says_who_leads() {
    let mut world = voters(3).await;
    let (leader, follower) = (world.processes[0].voter.clone(), world.processes[1].clone());
    let refused = world.append(&follower, 8).await;
    assert_eq!(refused, Err(AppendError::NotLeader { leader: Some(leader) }));
}

#[tokio::test(start_paused = true)]
async fn records_of_one_caller_keep_their_order_without_waiting() {
    let mut world = voters(3).await;
    let leader = world.processes[0].clone();
    let sent: Vec<_> = (0..500).map(|_| leader.log.append(world.record(8))).collect();
    for done in sent {
        done.await.unwrap();
    }
    world.await_even(SECOND).await;
    assert_eq!(world.seen().order, (1..=500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_new_voter_gets_a_snapshot_where_the_log_has_been_cut() {
    let mut world = voters(3).await;
    let leader = world.processes[0].clone();
    for _ in 0..50 {
        let sent: Vec<_> = (0..100).map(|_| leader.log.append(world.record(8))).collect();
        for done in sent {
            done.await.unwrap();
        }
    }
    assert!(leader.log.kept() < 4_200, "{} entries", leader.log.kept());
    let new = world.start(3, false).await;
    let all = world.processes.iter().map(|process| process.voter.clone()).collect();
    leader.log.set_voters(all, 5 * SECOND).await.unwrap();
    world.await_even(SECOND).await;
    assert_eq!(new.tape.numbers().len(), 5_000);
    assert!(world.seen().counts["restored"] > 0);
    assert_eq!(new.log.voters().len(), 4);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn long_records_cut_the_log_too_and_travel_one_by_one() {
    let mut world = voters(3).await;
    let leader = world.processes[0].clone();
    let sent: Vec<_> = (0..12).map(|_| leader.log.append(world.record(MAX_RECORD_BYTES))).collect();
    for done in sent {
        done.await.unwrap();
    }
    world.await_even(SECOND).await;
    assert!(leader.log.kept() < 8, "{} entries", leader.log.kept());
    let longest = world.net().longest;
    assert!((MAX_RECORD_BYTES..MAX_RECORD_BYTES + 1024).contains(&longest), "{longest} bytes");
    let long = leader.log.append(vec![0; MAX_RECORD_BYTES + 1]).await;
    assert_eq!(long, Err(AppendError::TooLong { bytes: MAX_RECORD_BYTES + 1 }));
}

#[test]
fn a_leader_leads_once_an_entry_of_its_term_is_applied_and_while_a_majority_answers() {
    let mut metrics = Metrics::new_initial(1);
    (metrics.state, metrics.current_term) = (openraft::ServerState::Leader, 3);
    let mut leads = |applied, answered| {
        (metrics.last_applied, metrics.millis_since_quorum_ack) = (Some(applied), answered);
        Leadership::of(&metrics, SECOND).leads
    };
    assert!(leads(log_id(3, 9), Some(10)));
    assert!(!leads(log_id(2, 8), Some(10)));
    assert!(!leads(log_id(3, 9), Some(1_000)));
    assert!(!leads(log_id(3, 9), None));
}

#[tokio::test(start_paused = true)]
async fn records_that_take_longer_than_a_heartbeat_arrive() {
    let mut world = voters(3).await;
    let leader = world.processes[0].clone();
    world.net().slow = 150;
    let mut sent = Vec::new();
    for _ in 0..60 {
        sent.push(leader.log.append(world.record(8)));
        tokio::time::sleep(20 * MS).await;
    }
    for done in sent {
        done.await.unwrap();
    }
    world.await_even(SECOND).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn lost_voters_are_replaced_and_the_replaced_leader_goes() {
    let mut world = voters(5).await;
    for _ in 0..2 {
        world.kill(world.processes[4].voter.id).await;
        world.kill(world.processes[3].voter.id).await;
        let leader = world.await_leader(3 * SECOND).await;
        world.start(5, false).await;
        world.start(6, false).await;
        let all: Vec<Voter> = world.processes.iter().map(|process| process.voter.clone()).collect();
        leader.log.set_voters(all.clone(), 5 * SECOND).await.unwrap();
        assert_eq!(leader.log.voters().len(), 5);
        world.append(&leader, 8).await.unwrap();
    }
    let leader = world.await_leader(SECOND).await;
    let others = world.processes.iter().filter(|process| process.voter.id != leader.voter.id);
    let others: Vec<Voter> = others.map(|process| process.voter.clone()).collect();
    leader.log.set_voters(others, 5 * SECOND).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert!(!leader.log.leadership().borrow().leads);
    let next = world.await_leader(3 * SECOND).await;
    world.append(&next, 8).await.unwrap();
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_new_voter_that_does_not_come_is_named_and_the_others_stay() {
    let mut world = voters(3).await;
    let leader = world.processes[0].clone();
    let missing = Voter { id: 1_234, address: "77".to_owned() };
    let mut wanted = leader.log.voters();
    wanted.push(missing.clone());
    let refused = leader.log.set_voters(wanted, SECOND).await;
    assert_eq!(refused, Err(VotersError::Behind { voters: vec![missing] }));
    assert_eq!(leader.log.voters().len(), 3);
    world.append(&leader, 8).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_hears_no_majority_ceases_to_lead() {
    let mut world = voters(3).await;
    let leader = world.processes[0].clone();
    world.net().blocked.extend([(0, 1), (0, 2), (1, 0), (2, 0)]);
    let lost = leader.log.append(world.record(8));
    tokio::time::sleep(3 * SECOND).await;
    assert!(!leader.log.leadership().borrow().leads);
    let other = world.await_leader(SECOND).await;
    world.append(&other, 8).await.unwrap();
    world.net().blocked.clear();
    assert_eq!(lost.await, Err(AppendError::Unsure));
    world.await_even(SECOND).await;
    assert_eq!(world.seen().order, [2]);
}

#[tokio::test(start_paused = true)]
async fn an_append_of_a_former_term_or_for_another_copy_is_refused() {
    let mut world = voters(3).await;
    let founder = world.processes[0].clone();
    world.append(&founder, 8).await.unwrap();
    world.await_even(SECOND).await;
    let follower = world.processes[1].clone();
    world.kill(founder.voter.id).await;
    let late = Append {
        ballot: Ballot::new_committed(1, founder.voter.id),
        prev: None,
        entries: Vec::new(),
        committed: None,
    };
    let ask = |to: u128, append: &Append| Question { to, body: Body::Append { append: append.clone() } };
    assert_eq!(follower.log.answer(ask(follower.voter.id, &late)).await, Answer::Appended {});
    world.await_leader(3 * SECOND).await;
    tokio::time::sleep(SECOND).await;
    let mut follower = follower;
    if follower.log.leadership().borrow().leads {
        follower = world.processes[1].clone();
    }
    let before = follower.tape.numbers();
    let record: Record = Blob(9_999u64.to_le_bytes().to_vec()).into();
    let entry = Entry { log_id: log_id(1, 40), payload: EntryPayload::Normal(record) };
    let forged = Append {
        prev: Some(log_id(1, 39)),
        entries: vec![entry],
        committed: Some(log_id(1, 40)),
        ..late.clone()
    };
    for append in [late.clone(), forged] {
        let answer = follower.log.answer(ask(follower.voter.id, &append)).await;
        assert!(matches!(answer, Answer::Outvoted { .. }), "{answer:?}");
    }
    let answer = follower.log.answer(ask(4_321, &late)).await;
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    assert_eq!(follower.tape.numbers(), before);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_stopped_log_answers_everybody() {
    let mut world = voters(3).await;
    let leader: Process = world.processes[0].clone();
    world.net().blocked.extend([(0, 1), (0, 2)]);
    let waiting = leader.log.append(world.record(8));
    leader.log.stop().await;
    assert_eq!(waiting.await, Err(AppendError::Stopped));
    assert_eq!(leader.log.append(vec![1; 8]).await, Err(AppendError::Stopped));
    assert_eq!(leader.log.set_voters(leader.log.voters(), SECOND).await, Err(VotersError::Stopped));
    let question =
        Question { to: leader.voter.id, body: Body::Vote { ballot: Ballot::new(9, 1), last: None } };
    assert!(matches!(leader.log.answer(question).await, Answer::Refused { .. }));
    tokio::time::sleep(MS).await;
    assert!(!leader.log.leadership().borrow().leads);
}

#[tokio::test(start_paused = true)]
async fn with_the_last_hold_on_a_log_its_tasks_end() {
    let mut world = voters(3).await;
    let tapes: Vec<_> = world.processes.iter().map(|process| Arc::downgrade(&process.tape)).collect();
    world.net().living.clear();
    world.processes.clear();
    tokio::time::sleep(5 * SECOND).await;
    // The test's own receivers of leadership learn of the end too, and release the log.
    assert!(tapes.iter().all(|tape| tape.upgrade().is_none()));
}
