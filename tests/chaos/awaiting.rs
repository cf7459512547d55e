//! Ranks whose buffers live on the thread of an async runtime, which must keep running whatever the peers do.

use crate::bootstrap::{CONNECT_MARGIN, GROUP_DEADLINE, GROUP_MARGIN, JOIN_DEADLINE, done_or, join, serve};
use crate::cluster::{Choices, Cluster, RANKS, Rows, all_but, everyone};
use crate::noise::deadline;
use crate::verdict;
use crate::wire::{Command, End, Reply, Run};

/// Two peers do not answer, one of them only for a while: the thread of the rank that connects to both keeps running,
/// and one deadline bounds both. After that the rank is told for whom it has waited in vain.
pub(crate) fn a_connect_to_stopped_ranks(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::created(seed, &mut choices, Rows::Small);
    let rank = choices.rank();
    let mut silent = all_but(rank);
    silent.remove(choices.below(u64::from(RANKS) - 1) as usize);
    let (slow, stopped) = (silent[0], silent[1]);
    let mut blobs = vec![Vec::new(); RANKS as usize];
    for (peer, blob) in cluster.blobs_for(rank, &silent) {
        blobs[peer as usize] = blob;
    }
    silent.iter().for_each(|peer| cluster.worker(*peer).stop());
    cluster.worker(rank).tell(&Command::ConnectAwaiting(blobs));
    std::thread::sleep(deadline() / 2);
    cluster.worker(slow).cont();
    let errors = [("Timeout", format!("peer {stopped}:"))];
    let connected = done_or(&mut cluster, rank, deadline() + CONNECT_MARGIN, &errors);
    assert!(!connected, "rank {rank} connected to rank {stopped}, which is stopped");
    cluster.worker(stopped).cont();
    cluster.connect_all();
    cluster.go_on(&everyone(), 1);
}

/// Dropping the future leaves an attempt that ends by itself; after that another attempt may be made.
pub(crate) fn a_connect_that_is_given_up(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::created(seed, &mut choices, Rows::Small);
    let rank = choices.rank();
    let stopped = all_but(rank)[choices.below(u64::from(RANKS) - 1) as usize];
    let (_, blob) = cluster.blobs_for(rank, &[stopped]).remove(0);
    cluster.worker(stopped).stop();
    cluster.worker(rank).tell(&Command::GiveUpConnect { peer: stopped, blob });
    cluster.worker(rank).done();
    cluster.worker(stopped).cont();
    cluster.connect_all();
    cluster.go_on(&everyone(), 1);
}

/// While a rank is stopped, the threads of the others keep running, and creating ends within its deadlines.
pub(crate) fn stopped_while_creating(seed: u64) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::spawn(seed, &mut choices, Rows::Small);
    let server = serve();
    joined(&mut cluster, &server);
    let victim = choices.rank();
    for rank in 0..RANKS {
        let setup = cluster.setup_of(rank);
        cluster.worker(rank).tell(&Command::CreateAwaiting(setup));
    }
    std::thread::sleep(choices.micros(4000));
    cluster.worker(victim).stop();
    // In the connect, or in a step of the group, in which others may be missing because they have not connected.
    let errors = [("Timeout", format!("peer {victim}:")), ("Timeout", "still missing: ".to_owned())];
    let bound = 3 * GROUP_DEADLINE + deadline() + GROUP_MARGIN;
    for rank in all_but(victim) {
        done_or(&mut cluster, rank, bound, &errors);
    }
}

/// As the guide shows: a rank dies, the others continue without it, a new process takes its place, and the next step of
/// all is exact.
pub(crate) fn a_dead_rank_is_replaced_through_the_group(seed: u64) {
    replaced(seed, End::Buffer);
}

/// The same with a communicator and a subset of it: the newcomer begins both at the step of the others.
pub(crate) fn a_dead_rank_of_a_communicator_is_replaced_through_the_group(seed: u64) {
    replaced(seed, End::Comm);
}

fn replaced(seed: u64, end: End) {
    let mut choices = Choices::new(seed);
    let mut cluster = Cluster::spawn(seed, &mut choices, Rows::Small);
    cluster.setup.end = end;
    let server = serve();
    joined(&mut cluster, &server);
    for rank in 0..RANKS {
        let setup = cluster.setup_of(rank);
        cluster.worker(rank).tell(&Command::CreateAwaiting(setup));
    }
    everyone().iter().for_each(|rank| cluster.worker(*rank).done());

    let victim = choices.rank();
    let survivors = all_but(victim);
    cluster.worker(victim).kill();
    cluster.tell_run(&survivors, &Run::new(1, 1, 3));
    let reports = cluster.hear_ran(&survivors);
    match end {
        End::Buffer => verdict::lost_in_group(&reports, victim, 1),
        // A communicator and its subset lose it independently.
        End::Comm => verdict::at_most_lost(&reports, victim),
        End::Prefill => unreachable!("none of these"),
    }
    survivors.iter().for_each(|rank| cluster.worker(*rank).tell(&Command::Change));
    for rank in &survivors {
        match cluster.worker(*rank).hear() {
            Reply::Changed { ranks, epoch } => assert_eq!((&ranks, epoch), (&survivors, 2), "rank {rank}"),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
    cluster.run_exactly(&survivors, 2, 2);

    drop(cluster.replace_process(victim));
    cluster.worker(victim).tell(&join(&server, victim));
    assert!(done_or(&mut cluster, victim, JOIN_DEADLINE + GROUP_MARGIN, &[]), "on standby");
    let setup = cluster.setup_of(victim);
    cluster.worker(victim).tell(&Command::CreateAwaiting(setup));
    cluster.worker(victim).done();
    everyone().iter().for_each(|rank| cluster.worker(*rank).tell(&Command::Change));
    for rank in everyone() {
        match cluster.worker(rank).hear() {
            Reply::Changed { ranks, epoch } => assert_eq!((ranks, epoch), (everyone(), 3), "rank {rank}"),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
    cluster.run_exactly(&everyone(), 3, 4);
}

fn joined(cluster: &mut Cluster, server: &epwire::rendezvous::driver::Server) {
    everyone().iter().for_each(|rank| cluster.worker(*rank).tell(&join(server, *rank)));
    everyone().iter().for_each(|rank| cluster.worker(*rank).done());
}
