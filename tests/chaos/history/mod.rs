//! Histories of faults: ranks run steps through the group as programs do, while processes are killed, stopped,
//! replaced, retired and told to leave, and calls are cancelled, all chosen by a seed.
//!
//! In each history: no rank reads a wrong row; two ranks that begin an epoch begin it with the same step and the same
//! members; ranks that continue learn the same verdict of every step; a rank to which nothing is done is never removed;
//! and after the last fault all running ranks, newcomers too, soon run complete steps with each other.

pub(crate) mod arbiter;
mod crew;
mod ends;
pub(crate) mod hosts;
pub(crate) mod member;
mod news;
pub(crate) mod pace;
mod plan;

use std::time::Instant;

use crate::cluster::Choices;
use crate::noise::{self, deadline};
use crate::wire::{End, Setup};

use self::crew::Crew;
use self::news::Order;
use self::plan::{Deed, Plan, Scene, Served};

/// The members keep the run: the one that serves it may be the one that leaves.
pub(crate) fn of_a_run_that_its_members_serve(seed: u64) {
    if cfg!(feature = "succession") {
        history(seed, Served::ByMembers);
    }
}

/// Any members may leave, several at a time.
pub(crate) fn of_a_run_with_a_server_by_itself(seed: u64) {
    history(seed, Served::Apart);
}

fn history(seed: u64, served: Served) {
    let mut choices = Choices::new(seed);
    let lease = deadline() * 5 / 4;
    let plan = Plan::draw(&mut choices, served, lease);
    let mut setup = Setup {
        end: End::Buffer,
        seed,
        rank: 0,
        ranks: plan.world,
        max_tokens: 4,
        hidden: 64,
        lanes: 1 + choices.below(2) as u32,
        threads: 1,
        rank_major: choices.coin(),
        ring_tokens: 0,
        deadline_ms: deadline().as_millis() as u64 / 2,
    };
    let lead = 4 * choices.below(2);
    // In half of the runs ranks have a prefill buffer too, whose rings hold from one row to all of an operation.
    if choices.coin() {
        setup.ring_tokens = 1 + choices.below(u64::from(setup.max_tokens) + 2) as u32;
    }
    let mut crew = Crew::start(setup, plan.initial, lease, lead, served);
    settled(&mut crew);
    for scene in &plan.scenes {
        play(&mut crew, scene);
    }
    settled(&mut crew);
    crew.nobody_went_without_reason();
    crew.all_learnt_the_same();
}

/// All running ranks must run complete steps within a bound that allows for a lease, an election and an admission one
/// after the other.
fn settled(crew: &mut Crew) {
    let (floor, began) = (crew.furthest(), Instant::now());
    let bound = 10 * deadline();
    let until = began + bound + 20 * noise::worst();
    let whole = crew.listen_until(until, |crew| crew.is_whole(floor));
    assert!(whole, "not all serve together again after {:?}: {}", began.elapsed(), crew.state());
    crew.remark(format!("all serve together after {:?}", began.elapsed()));
}

fn play(crew: &mut Crew, scene: &Scene) {
    let mut ranks = scene.ranks.clone();
    if crew.is_served_by_members() && scene.losses > 0 {
        let until = Instant::now() + 10 * deadline();
        let may = crew.listen_until(until, |crew| crew.can_lose(scene.losses));
        assert!(may, "the run cannot do without {} of its members: {}", scene.losses, crew.state());
        if let Some(leader) = crew.leader().filter(|leader| scene.leader && !ranks.contains(leader)) {
            ranks[0] = leader;
        }
    }
    crew.remark(format!("now {scene:?} with ranks {ranks:?}"));
    let began = Instant::now();
    for (at, index, deed) in &scene.deeds {
        crew.listen(began + *at);
        act(crew, ranks[*index], *deed);
    }
}

fn act(crew: &mut Crew, rank: u32, deed: Deed) {
    match deed {
        Deed::Start { slow } => {
            // A rank that was told to leave must have ended.
            crew.listen_until(Instant::now() + 2 * deadline(), |crew| !crew.is_going(rank));
            if !crew.is_there(rank) {
                crew.add(rank, slow);
            }
        }
        _ if !crew.is_there(rank) => {} // nothing can be done to it
        Deed::Kill => crew.kill(rank),
        Deed::Stop => crew.stop(rank),
        Deed::Continue => crew.cont(rank),
        Deed::Leave => crew.leave(rank),
        Deed::Cancel { steps } => crew.order(rank, Order::Cancel(steps)),
        Deed::Retire { by, rejoins } => {
            let running = crew.running();
            let by = if running.contains(&by) { Some(by) } else { running.first().copied() };
            if rejoins {
                crew.order(rank, Order::Rejoin);
            } else {
                crew.may_go(rank);
            }
            if let Some(by) = by {
                crew.order(by, Order::Retire(rank));
            }
        }
    }
}
