//! Ranks that die or stop while the others are still meeting.

use std::time::Duration;

use epwire::rendezvous::driver::{Server, ServerOptions};

use crate::cluster::{Choices, Cluster, RANKS, Rows, all_but, everyone};
use crate::noise::{self, deadline};
use crate::verdict;
use crate::wire::{Call, Command, Reply, Run};

pub(crate) const JOIN_DEADLINE: Duration = Duration::from_millis(1500);
pub(crate) const GROUP_DEADLINE: Duration = Duration::from_millis(1500);
/// How much longer than its deadline a call through the group may take: the client gives the server half a second to
/// report a timeout itself.
pub(crate) const GROUP_MARGIN: Duration = Duration::from_millis(600);
/// The same for a connect.
pub(crate) const CONNECT_MARGIN: Duration = Duration::from_millis(100);

pub(crate) fn serve() -> Server {
    let options = ServerOptions::new("default", RANKS).join_deadline(JOIN_DEADLINE).token(crate::token());
    Server::bind_blocking("127.0.0.1:0", options).expect("a loopback port is free")
}

pub(crate) fn join(server: &Server, rank: u32) -> Command {
    Command::Join {
        rank,
        ranks: RANKS,
        address: server.local_addr().to_string(),
        join_deadline_ms: JOIN_DEADLINE.as_millis() as u64,
        deadline_ms: GROUP_DEADLINE.as_millis() as u64,
    }
}

/// The number of threads that wake each other in succession when a call through the group is answered: the caller's,
/// the one that speaks to the server, the server's, and those of another rank that is awaited.
const HANDOVERS: u32 = 6;

/// The rank's answer to a call of the bootstrap, within `bound` plus the machine's noise: done, or one of these kinds
/// of errors with one of these texts, which name the rank to blame.
pub(crate) fn done_or(cluster: &mut Cluster, rank: u32, bound: Duration, errors: &[(&str, String)]) -> bool {
    let (done, text, elapsed_us, noise_us) = match cluster.worker(rank).hear() {
        Reply::Done { elapsed_us, noise_us } => (true, String::new(), elapsed_us, noise_us),
        Reply::Refused { kind, text, elapsed_us, noise_us } => {
            let expected = errors.iter().any(|(k, names)| *k == kind && text.contains(names));
            assert!(expected, "rank {rank} was told something else than {errors:?}: {kind}: {text}");
            (false, text, elapsed_us, noise_us)
        }
        other => panic!("rank {rank}: {other:?}"),
    };
    let noise = Duration::from_micros(noise_us).max(noise::worst()); // the server is in the test's process
    assert!(
        Duration::from_micros(elapsed_us) <= bound + noise * HANDOVERS,
        "rank {rank} took {elapsed_us} us, not {bound:?} (noise {noise:?}): {text}"
    );
    done
}

/// All have joined, or all are told that the victim did not come.
fn joined_or_missed(cluster: &mut Cluster, victim: u32) -> bool {
    let errors = [("MissingRanks", format!("missing: {victim};"))];
    let bound = JOIN_DEADLINE + GROUP_MARGIN;
    let joined: Vec<bool> =
        all_but(victim).into_iter().map(|rank| done_or(cluster, rank, bound, &errors)).collect();
    assert!(joined.iter().all(|j| *j == joined[0]), "some joined and some did not: {joined:?}");
    joined[0]
}

/// Killed before it joins, or shortly after it began to: the others are told who is missing or, if it had joined, who
/// is lost in the first thing that they do together.
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
    if joined_or_missed(&mut cluster, victim) {
        assert!(!create_without(&mut cluster, victim), "buffers were connected to a dead rank");
    }
}

/// The survivors create buffers through the group while `victim` dies or is dead. Returns whether all succeeded.
fn create_without(cluster: &mut Cluster, victim: u32) -> bool {
    for rank in all_but(victim) {
        let setup = cluster.setup_of(rank);
        cluster.worker(rank).tell(&Command::CreateInGroup(setup));
    }
    answers_without(cluster, victim)
}

fn answers_without(cluster: &mut Cluster, victim: u32) -> bool {
    // The victim is lost in a step of the group, or its window is gone when the others connect.
    let errors = [
        ("PeerLost", format!("rank {victim} (process")),
        ("Peer", format!("peer {victim}:")),
        // Another rank has noticed that first, and has destroyed its own buffer.
        ("Peer", "it has ended, or destroyed its buffer".to_owned()),
        ("Peer", "the peer's fabric is gone".to_owned()),
        ("Peer", "a former connection of this rank, or are gone".to_owned()),
        // Its end was not noticed in time.
        ("Timeout", format!("still missing: {victim};")),
    ];
    // Three steps through the group and a connect.
    let bound = 3 * GROUP_DEADLINE + deadline() + GROUP_MARGIN;
    let made: Vec<bool> =
        all_but(victim).into_iter().map(|rank| done_or(cluster, rank, bound, &errors)).collect();
    assert!(made.iter().all(|m| *m == made[0]), "some have a buffer and some do not: {made:?}");
    made[0]
}

/// Killed while buffers are exchanged and connected: an error that names it on every rank or, if all had connected
/// before, a degraded first step and an agreement to continue without it.
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
    verdict::lost_in_group(&reports, victim, 1);
    for rank in &survivors {
        cluster.worker(*rank).tell(&Command::Change);
    }
    for rank in &survivors {
        match cluster.worker(*rank).hear() {
            Reply::Changed { ranks, epoch } => assert_eq!((&ranks, epoch), (&survivors, 2), "rank {rank}"),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
    cluster.run_exactly(&survivors, 2, 4);
}

/// Stopped for less than the join deadline: all join. For longer: the others are told who is missing, and the victim is
/// told that it is late.
pub(crate) fn stopped_while_joining(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::spawn(seed, &mut choices, Rows::Small);
    let server = serve();
    let victim = choices.rank();
    let early = choices.coin();
    if !early {
        // Otherwise it might join before it is stopped.
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
    assert!(!joined_or_missed(&mut cluster, victim), "all joined without rank {victim}");
    cluster.worker(victim).cont();
    // It finds nobody left to join, and is told so.
    let missed = format!("1 of {RANKS} ranks joined");
    let joined = done_or(&mut cluster, victim, JOIN_DEADLINE + GROUP_MARGIN, &[("MissingRanks", missed)]);
    assert!(!joined, "rank {victim} joined alone");
}

/// Blobs of a dead rank are refused at once, and those of a stopped rank within the deadline, with its name; once it
/// continues its blobs are valid again.
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
    let errors = [(if dies { "Peer" } else { "Timeout" }, format!("peer {victim}:"))];
    for (rank, blobs) in survivors.iter().zip(&blobs) {
        cluster.worker(*rank).tell(&Command::Connect(blobs.clone()));
    }
    for rank in &survivors {
        let connected = done_or(&mut cluster, *rank, deadline() + CONNECT_MARGIN, &errors);
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
