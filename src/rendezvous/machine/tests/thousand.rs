//! How long a change takes with a thousand members and slow messages.

use std::mem::take;

use super::*;
use crate::rendezvous::pace::{Next, Pace};
use crate::rendezvous::random::Random;

const MS: Duration = Duration::from_millis(1);
/// Longest time of a message.
const WAY_MS: u64 = 50;
/// Duration of a member's step.
const STEP_MS: u32 = 20;
/// The member that is lost, and its session.
const LOST: SessionId = 1000;

/// A message from the server.
enum Said {
    Ask(Ask),
    Settled(Result<Decision, BootstrapError>),
}

#[test]
fn a_change_among_a_thousand_members_is_in_effect_within_a_second() {
    let messages = change(|run| run.close(LOST));
    assert_eq!(messages, 3 * 1023, "a question for each member, its promise, and the outcome");
}

#[test]
fn a_silent_member_costs_each_of_the_others_one_more_question_and_its_answer() {
    let others: Vec<SessionId> = (0..MAX_WORLD.into()).filter(|session| *session != LOST).collect();
    let messages = change(|run| run.pass(5 * SECOND, &others));
    assert_eq!(messages, 5 * 1023 + 1, "to the silent one the outcome is told as well");
}

/// A member is lost while the others run steps: counts the messages until each of them has begun a step without it.
fn change(lose: impl FnOnce(&mut Run)) -> u64 {
    let mut run = Run::formed(MAX_WORLD);
    let mut random = Random(1);
    let mut arrival = |now: Duration| now + MS * (1 + random.below(WAY_MS) as u32);
    let mut paces: Vec<Pace> = (0..MAX_WORLD).map(|rank| Pace::new(rank, run.machine.decision, 0)).collect();
    let (mut to_members, mut to_server, mut messages) = (Vec::new(), Vec::new(), 0);
    let mut asked = 0;
    lose(&mut run);
    let began = run.now;
    let behind = |paces: &[Pace]| {
        (0..)
            .zip(paces)
            .any(|(session, pace): (SessionId, &Pace)| session != LOST && pace.current().epoch < 2)
    };
    while behind(&paces) {
        let asks = take(&mut run.asks).into_iter().map(|(session, ask)| (session, Said::Ask(ask)));
        let settled = take(&mut run.settled).into_iter().map(|(session, end)| (session, Said::Settled(end)));
        to_members.extend(asks.chain(settled).map(|(session, said)| (arrival(run.now), session, said)));
        run.now += MS;
        assert!(run.now - began < SECOND, "{messages} messages");
        let now = run.now;
        for (_, session, said) in to_members.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            messages += 1;
            let pace = &mut paces[session as usize];
            match said {
                Said::Ask(Ask::Promise { change, lossy }) => {
                    asked = change;
                    let notice = Notice::Promise { change, step: pace.promise(change, lossy) };
                    to_server.push((arrival(now), session, notice));
                }
                Said::Ask(Ask::Reach { change, peers, .. }) => {
                    let diverged = Box::default();
                    to_server.push((
                        arrival(now),
                        session,
                        Notice::Reached { change, missing: peers, diverged },
                    ));
                }
                Said::Ask(ask) => panic!("{ask:?}"),
                Said::Settled(end) => drop(pace.settle(asked, end.ok(), Mask::EMPTY)),
            }
        }
        for (_, session, notice) in to_server.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            messages += 1;
            run.notice(session, notice);
        }
        for (rank, pace) in (0u32..).zip(&mut paces).filter(|(rank, _)| u64::from(*rank) != LOST) {
            if (now.as_millis() as u32 + rank).is_multiple_of(STEP_MS) {
                match pace.next(false) {
                    Next::Begin { .. } | Next::Wait => {}
                    Next::Apply { decision } => pace.applied(decision),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    println!("in effect for all after {:?} of simulated time, {messages} messages", run.now - began);
    messages
}
