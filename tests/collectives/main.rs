//! Communicators as a program uses them: every operation against a plain reference, several communicators and a buffer
//! at once over processes, ranks that die, futures that are dropped, invalid calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocks;
mod failures;
#[path = "../groups/mod.rs"]
mod groups;
mod large;
mod norms;
mod operations;
mod processes;
#[path = "../random/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod random;
mod refused;
mod registrations;
mod subsets;
mod together;
mod wide;

use epwire::comm::CommConfig;
use epwire::{Comm, Group};

use groups::groups;

/// Runs this on a thread for each rank of a communicator, and returns the results by rank.
fn ranks<T: Send>(ranks: u32, config: &CommConfig, run: impl Fn(&Comm) -> T + Sync) -> Vec<T> {
    let groups = groups(ranks);
    std::thread::scope(|scope| {
        let run = &run;
        let rank = |group: Group| {
            scope.spawn(move || {
                let comm = Comm::create_blocking(&group, config.clone()).unwrap();
                let result = run(&comm);
                // Nobody leaves before all have received everything from it.
                group.barrier_blocking("end").unwrap();
                result
            })
        };
        let threads: Vec<_> = groups.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The operation must be complete.
fn complete(ended: epwire::Result<epwire::Outcome>) {
    let outcome = ended.unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
}

/// Awaits works of several communicators, each in a task of its own: waiting for one of them does not advance another.
fn all_of<W>(works: Vec<W>) -> Vec<W::Output>
where
    W: Future<Output: Send + 'static> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = works.into_iter().map(tokio::spawn).collect();
        let mut ended = Vec::new();
        for task in tasks {
            ended.push(task.await.unwrap());
        }
        ended
    })
}
