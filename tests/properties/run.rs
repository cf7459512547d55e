//! Runs a case: a thread per rank, a watchdog over all of them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use epwire::{EpBuffer, Mask, Membership};

use crate::case::{Case, Op, PHASES, Phase, Step};
use crate::flight::Flight;
use crate::refused;

/// A case takes some milliseconds; this allows for a machine that has much else to do.
const WATCHDOG: Duration = Duration::from_secs(30);

thread_local! {
    /// Where and why this rank panicked.
    static PANIC: RefCell<String> = RefCell::default();
}

/// Panics of ranks are told with their case, and only the first: those of its peers follow from it.
pub(crate) fn keep_panics_of_ranks() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        match std::thread::current().name().is_some_and(|name| name.starts_with("rank ")) {
            true => PANIC.set(info.to_string()),
            false => others(info),
        }
    }));
}

type Report = Result<Vec<&'static str>, String>;

/// Names of the calls that were refused, or what went wrong.
pub(crate) fn run(case: Case) -> Result<Vec<&'static str>, String> {
    let case = Arc::new(case);
    let barrier = Arc::new(Barrier::new(case.ranks));
    let (sender, reports) = channel();
    for (rank, buffer) in connect(&case).into_iter().enumerate() {
        let (case, barrier, sender) = (case.clone(), barrier.clone(), sender.clone());
        // A failed rank leaves its peers waiting: they are never joined.
        let body = move || report(&case, rank, &buffer, &barrier, &sender);
        std::thread::Builder::new().name(format!("rank {rank}")).spawn(body).map_err(|e| e.to_string())?;
    }
    let until = Instant::now() + WATCHDOG;
    let mut names = Vec::new();
    for _ in 0..case.ranks {
        let left = until.saturating_duration_since(Instant::now());
        names.extend(reports.recv_timeout(left).map_err(|_| format!("no end after {WATCHDOG:?}"))??);
    }
    Ok(names)
}

fn connect(case: &Case) -> Vec<EpBuffer> {
    let ranks = case.ranks as u32;
    let config = |rank: u32| case.config.clone().threads(case.threads[rank as usize]);
    let create = |rank| EpBuffer::unconnected(rank, ranks, config(rank)).expect("a valid configuration");
    let buffers: Vec<EpBuffer> = (0..ranks).map(create).collect();
    for a in &buffers {
        for b in buffers.iter().filter(|b| b.rank() != a.rank()) {
            a.connect_blocking(b.rank(), &b.export(a.rank()).expect("export")).expect("connect");
        }
    }
    buffers
}

fn report(case: &Case, rank: usize, buffer: &EpBuffer, barrier: &Barrier, sender: &Sender<Report>) {
    let ended = catch_unwind(AssertUnwindSafe(|| run_rank(case, rank, buffer, barrier)));
    let ended = ended.map_err(|_| format!("rank {rank}: {}", PANIC.take()));
    if ended.is_ok() {
        // Nobody leaves while another may still be in an operation with this rank.
        barrier.wait();
    }
    let _ = sender.send(ended);
}

fn run_rank(case: &Case, rank: usize, buffer: &EpBuffer, barrier: &Barrier) -> Vec<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (mut active, mut epoch) = (Mask::EMPTY, 0);
    // Those that have gone on without this rank tell it so: a released operation that still waits for one gives it up.
    let mut gone_on = Mask::EMPTY;
    let mut refused = Vec::new();
    for step in &case.steps {
        match step {
            Step::Activate { mask, epoch: next } => {
                // As a group's agreement would: everybody has left the old membership.
                barrier.wait();
                if !mask.contains(rank as u32) {
                    gone_on = gone_on.iter().chain(mask.iter()).collect();
                    continue;
                }
                (active, epoch, gone_on) = (*mask, *next, Mask::EMPTY);
                if case.seed.is_multiple_of(7) && epoch > 1 {
                    refused.extend(refused::memberships(buffer));
                }
                buffer.set_active(&active, epoch, 0).expect("a valid membership");
            }
            Step::Exchange { ops, order } if active.contains(rank as u32) && ops[0].active == active => {
                refused.extend(runtime.block_on(exchange(case, rank, buffer, epoch, ops, order)));
            }
            Step::Exchange { .. } => {}
        }
    }
    let home = |e: &u32| (*e as usize / case.local_experts()) as u32;
    let expected: Vec<bool> = (0..case.config.experts).map(|e| active.contains(home(&e))).collect();
    if epoch > 0 {
        let Membership { active: mask, suspects, epoch: current, .. } =
            buffer.membership().expect("membership");
        assert_eq!((mask, current), (active, epoch), "at the end");
        assert!(suspects.iter().all(|peer| gone_on.contains(peer)), "at the end {suspects:?} are suspects");
        let reachable: Vec<bool> =
            (0..).zip(expected).map(|(e, expected)| expected && !suspects.contains(home(&e))).collect();
        assert_eq!(buffer.reachable_experts().expect("reachable experts"), reachable);
    }
    refused
}

async fn exchange(
    case: &Case,
    rank: usize,
    buffer: &EpBuffer,
    epoch: u32,
    ops: &[Op],
    order: &[(usize, Phase)],
) -> Vec<&'static str> {
    let mut flights: Vec<_> = ops.iter().map(|op| Flight::new(case, op, rank, buffer, epoch)).collect();
    match &mut flights[..] {
        [first, second] if ops[0].parts[rank].joined => {
            let all = async |flight: &mut Flight<'_>| {
                for phase in PHASES {
                    flight.run(phase).await;
                }
            };
            tokio::join!(all(first), all(second));
        }
        flights => {
            for (i, phase) in order {
                flights[*i].run(*phase).await;
            }
        }
    }
    flights.into_iter().flat_map(|flight| flight.refused).collect()
}
