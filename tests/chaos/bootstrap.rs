//! Ranks that die or stop while the others are still meeting.

use std::time::Duration;

use epwire::rendezvous::driver::{Server, ServerOptions};

use crate::cluster::{Choices, Cluster, DEADLINE, RANKS, Rows, all_but, everyone};
use crate::verdict;
use crate::wire::{Call, Command, Reply, Run};

const JOIN_DEADLINE: Duration = Duration::from_millis(1500);
const GROUP_DEADLINE: Duration = Duration::from_millis(1500);
/// What a call through the group may take beyond its deadline: the client leaves the server half a second to account for a
/// timeout itself.
const GRACE: Duration = Duration::from_millis(1000);

fn serve() -> Server {
    let options = ServerOptions { join_deadline: JOIN_DEADLINE, ..ServerOptions::new("default", RANKS) };
    Server::bind_blocking("127.0.0.1:0", options).expect("a loopback port is free")
}

fn join(server: &Server, rank: u32) -> Command {
    Command::Join {
        rank,
        ranks: RANKS,
        address: server.local_addr().to_string(),
        join_deadline_ms: JOIN_DEADLINE.as_millis() as u64,
        deadline_ms: GROUP_DEADLINE.as_millis() as u64,
    }
}

/// The rank's answer to a call of the bootstrap: done, or an error of one of these kinds that names the victim, in time.
fn done_or_named(cluster: &mut Cluster, rank: u32, victim: u32, kinds: &[&str], deadline: Duration) -> bool {
    match cluster.worker(rank).hear() {
        Reply::Done { elapsed_us } => {
            assert!(
                Duration::from_micros(elapsed_us) <= deadline + GRACE,
                "rank {rank} took {elapsed_us} us"
            );
            true
        }
        Reply::Refused { kind, text, elapsed_us } => {
            assert!(kinds.contains(&kind.as_str()), "rank {rank}: {kind}: {text}");
            assert!(text.contains(&victim.to_string()), "rank {rank}: rank {victim} is not named: {text}");
            assert!(
                Duration::from_micros(elapsed_us) <= deadline + GRACE,
                "rank {rank} took {elapsed_us} us: {text}"
            );
            false
        }
        other => panic!("rank {rank}: {other:?}"),
    }
}

/// Before it joins or a moment after it began to: the others are told who is missing, or, if it had joined, who is lost
/// in the first thing that they do together.
pub(crate) fn killed_while_joining(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::spawn(seed, &mut choices, Rows::Small);
    let server = serve();
    let victim = choices.rank();
    let survivors = all_but(victim);
    if choices.coin() {
        cluster.worker(victim).tell(&join(&server, victim));
        std::thread::sleep(choices.micros(30_000));
    }
    for rank in &survivors {
        cluster.worker(*rank).tell(&join(&server, *rank));
    }
    std::thread::sleep(choices.micros(10_000));
    cluster.worker(victim).kill();
    let kinds = ["MissingRanks"];
    let joined: Vec<bool> = survivors
        .iter()
        .map(|rank| done_or_named(&mut cluster, *rank, victim, &kinds, JOIN_DEADLINE))
        .collect();
    assert!(joined.iter().all(|j| *j == joined[0]), "some joined and some did not: {joined:?}");
    if joined[0] {
        create_without(&mut cluster, victim);
    }
}

/// Lets the survivors create buffers through the group while `victim` dies or is dead. Whether they all could.
fn create_without(cluster: &mut Cluster, victim: u32) -> bool {
    for rank in all_but(victim) {
        let setup = cluster.setup_of(rank);
        cluster.worker(rank).tell(&Command::CreateInGroup(setup));
    }
    answers_without(cluster, victim)
}

fn answers_without(cluster: &mut Cluster, victim: u32) -> bool {
    // Lost in a step of the group, or its window is gone when the others connect.
    let kinds = ["PeerLost", "Peer"];
    // Three steps through the group and a connect.
    let deadline = 3 * GROUP_DEADLINE + DEADLINE;
    let made: Vec<bool> =
        all_but(victim).iter().map(|rank| done_or_named(cluster, *rank, victim, &kinds, deadline)).collect();
    assert!(made.iter().all(|m| *m == made[0]), "some have a buffer and some do not: {made:?}");
    made[0]
}

/// While buffers are exchanged and connected: an error that names it on every rank, or, if all had connected before, a
/// degraded first step and an agreement to go on without it.
pub(crate) fn killed_while_connecting_through_the_group(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::spawn(seed, &mut choices, Rows::Small);
    let server = serve();
    let victim = choices.rank();
    let survivors = all_but(victim);
    for rank in 0..RANKS {
        cluster.worker(rank).tell(&join(&server, rank));
    }
    for rank in 0..RANKS {
        cluster.worker(rank).done();
    }
    for rank in 0..RANKS {
        let setup = cluster.setup_of(rank);
        cluster.worker(rank).tell(&Command::CreateInGroup(setup));
    }
    let all_connected = choices.below(3) == 0;
    if all_connected {
        cluster.worker(victim).done();
    } else {
        std::thread::sleep(choices.micros(12_000));
    }
    cluster.worker(victim).kill();
    if !answers_without(&mut cluster, victim) {
        assert!(!all_connected, "all were connected before rank {victim} died");
        return;
    }
    cluster.tell_run(&survivors, &Run::new(1, 1, 3));
    let reports = cluster.hear_ran(&survivors);
    verdict::lost(&reports, victim, 1);
    for rank in &survivors {
        cluster.worker(*rank).tell(&Command::Recover);
    }
    for rank in &survivors {
        match cluster.worker(*rank).hear() {
            Reply::Recovered { ranks, epoch } => assert_eq!((&ranks, epoch), (&survivors, 2), "rank {rank}"),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
    cluster.run_exactly(&survivors, 2, 4);
}

/// For less than the join deadline: all meet. For longer: the others are told whom they miss, and it is told that it is late.
pub(crate) fn stopped_while_joining(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::spawn(seed, &mut choices, Rows::Small);
    let server = serve();
    let victim = choices.rank();
    let survivors = all_but(victim);
    let early = choices.coin();
    if !early {
        // Else it might have joined before it stops.
        cluster.worker(victim).stop();
    }
    for rank in 0..RANKS {
        cluster.worker(rank).tell(&join(&server, rank));
    }
    if early {
        std::thread::sleep(choices.micros(5000));
        cluster.worker(victim).stop();
        std::thread::sleep(JOIN_DEADLINE / 4);
        cluster.worker(victim).cont();
        for rank in 0..RANKS {
            cluster.worker(rank).done();
        }
        for rank in 0..RANKS {
            let setup = cluster.setup_of(rank);
            cluster.worker(rank).tell(&Command::CreateInGroup(setup));
        }
        for rank in 0..RANKS {
            cluster.worker(rank).done();
        }
        cluster.run_exactly(&everyone(), 1, 3);
        return;
    }
    for rank in &survivors {
        let joined = done_or_named(&mut cluster, *rank, victim, &["MissingRanks"], JOIN_DEADLINE);
        assert!(!joined, "rank {rank} joined without rank {victim}");
    }
    cluster.worker(victim).cont();
    let reply = cluster.worker(victim).hear();
    assert!(matches!(reply, Reply::Refused { .. }), "rank {victim}, alone: {reply:?}");
}

/// Blobs of a rank that has died are refused at once, of a stopped one within the deadline, with its name; after it has gone
/// on they are good.
pub(crate) fn gone_between_export_and_connect(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::created(seed, &mut choices, Rows::Small);
    let victim = choices.rank();
    let survivors = all_but(victim);
    let blobs: Vec<_> = survivors.iter().map(|rank| cluster.blobs_for(*rank, &[victim])).collect();
    let dies = choices.coin();
    if dies {
        cluster.worker(victim).kill();
    } else {
        cluster.worker(victim).stop();
    }
    let kinds: &[&str] = if dies { &["Peer"] } else { &["Timeout"] };
    for (rank, blobs) in survivors.iter().zip(&blobs) {
        cluster.worker(*rank).tell(&Command::Connect(blobs.clone()));
    }
    for rank in &survivors {
        let connected = done_or_named(&mut cluster, *rank, victim, kinds, DEADLINE);
        assert!(!connected, "rank {rank} connected to rank {victim}, which is gone");
    }
    if dies {
        for rank in &survivors {
            cluster.connect(*rank, &survivors);
        }
        cluster.go_on(&survivors, 1);
    } else {
        cluster.worker(victim).cont();
        cluster.connect_all();
        cluster.go_on(&everyone(), 1);
    }
}

/// The others wait for its epoch word and give it up in their first dispatch.
pub(crate) fn killed_between_connect_and_first_step(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::created(seed, &mut choices, Rows::Small);
    cluster.connect_all();
    let victim = choices.rank();
    let survivors = all_but(victim);
    cluster.worker(victim).kill();
    for rank in &survivors {
        cluster.worker(*rank).tell(&Command::SetActive { ranks: everyone(), epoch: 1 });
        cluster.worker(*rank).done();
    }
    cluster.tell_run(&survivors, &Run::new(1, 1, 4));
    let reports = cluster.hear_ran(&survivors);
    verdict::lost(&reports, victim, 1);
    verdict::first_loss(&reports, |_| (1, Call::Dispatch));
    cluster.go_on(&survivors, 2);
}
