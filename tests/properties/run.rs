//! Runs a case: a thread for each rank, and a watchdog over all of them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::{Duration, Instant};

use epwire::{Comm, EpBuffer, Mask, Membership};

use crate::calls::{self, Begun, Call};
use crate::case::{Case, Op, PHASES, Step, Turn};
use crate::flight::Flight;
use crate::random::Random;
use crate::refused;

/// A case takes some milliseconds; this allows for a busy machine.
const WATCHDOG: Duration = Duration::from_secs(30);

thread_local! {
    /// Where and why this rank panicked.
    static PANIC: RefCell<String> = RefCell::default();
}

/// Panics of ranks are reported with their case, and only the first, because those of its peers follow from it.
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

/// Returns the names of the refused calls, or what went wrong.
pub(crate) fn run(case: Case) -> Result<Vec<&'static str>, String> {
    let case = Arc::new(case);
    let barrier = Arc::new(Barrier::new(case.ranks));
    let (sender, reports) = channel();
    let mut comms = connect_comms(&case);
    for (rank, buffer) in connect(&case).into_iter().enumerate() {
        let (case, barrier, sender) = (case.clone(), barrier.clone(), sender.clone());
        let own = Own { rank, buffer, comms: std::mem::take(&mut comms[rank]) };
        // A failed rank leaves its peers waiting, so they are never joined.
        let body = move || report(&case, &own, &barrier, &sender);
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

/// By rank, the communicators of the rank.
fn connect_comms(case: &Case) -> Vec<Vec<Comm>> {
    let ranks = case.ranks as u32;
    let of_rank = |rank| {
        let create = |config| Comm::unconnected(rank, ranks, config).expect("a valid configuration");
        case.comms.iter().cloned().map(create).collect()
    };
    let all: Vec<Vec<Comm>> = (0..ranks).map(of_rank).collect();
    for a in all.iter().flat_map(|of_rank| of_rank.iter().enumerate()) {
        let (comm, a) = a;
        for b in all.iter().map(|of_rank| &of_rank[comm]).filter(|b| b.rank() != a.rank()) {
            a.connect_blocking(b.rank(), &b.export(a.rank()).expect("export")).expect("connect");
        }
    }
    all
}

/// What a rank has.
struct Own {
    rank: usize,
    buffer: EpBuffer,
    comms: Vec<Comm>,
}

fn report(case: &Case, own: &Own, barrier: &Barrier, sender: &Sender<Report>) {
    let rank = own.rank;
    let ended = catch_unwind(AssertUnwindSafe(|| run_rank(case, own, barrier)));
    let ended = ended.map_err(|_| format!("rank {rank}: {}", PANIC.take()));
    if ended.is_ok() {
        // Nobody leaves while another may still be in an operation with this rank.
        barrier.wait();
    }
    let _ = sender.send(ended);
}

fn run_rank(case: &Case, own: &Own, barrier: &Barrier) -> Vec<&'static str> {
    let Own { rank, buffer, comms } = own;
    let rank = *rank;
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (mut active, mut epoch) = (Mask::EMPTY, 0);
    // Ranks that continued without this one tell it so: a released operation that still waits for one gives it up.
    let mut gone_on = Mask::EMPTY;
    let mut refused = Vec::new();
    for step in &case.steps {
        match step {
            Step::Activate { mask, epoch: next } => {
                // Like a group's agreement: everybody has left the old membership.
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
                for comm in comms {
                    comm.set_active(&active, epoch, 0).expect("a valid membership");
                }
            }
            Step::Exchange { ops, calls, order }
                if active.contains(rank as u32) && ops[0].active == active =>
            {
                refused.extend(runtime.block_on(exchange(case, own, epoch, ops, calls, order)));
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
        assert!(
            suspects.iter().all(|peer| gone_on.contains(peer)),
            "at the end only ranks that have moved on may be suspects, not {suspects:?}"
        );
        let reachable: Vec<bool> =
            (0..).zip(expected).map(|(e, expected)| expected && !suspects.contains(home(&e))).collect();
        assert_eq!(buffer.reachable_experts().expect("reachable experts"), reachable);
    }
    for comm in comms {
        assert!(
            !comm.take_fault().expect("take_fault"),
            "a fault is reported although every call was complete"
        );
    }
    refused
}

async fn exchange(
    case: &Case,
    own: &Own,
    epoch: u32,
    ops: &[Op],
    calls: &[Call],
    order: &[Turn],
) -> Vec<&'static str> {
    let rank = own.rank;
    let mut flights: Vec<_> = ops.iter().map(|op| Flight::new(case, op, rank, &own.buffer, epoch)).collect();
    if ops[0].parts[rank].joined {
        joined(own, Random::new(case.seed ^ (rank + 1) as u64), ops[0].active, calls, order, &mut flights)
            .await;
    } else {
        let mut begun: Vec<Option<Box<dyn Begun>>> = calls.iter().map(|_| None).collect();
        for turn in order {
            match turn {
                Turn::Phase(i, phase) => flights[*i].run(*phase).await,
                Turn::Begin(i) => {
                    begun[*i] = Some(calls[*i].begin(&own.comms[calls[*i].comm], ops[0].active))
                }
                Turn::Await(i) => {
                    let call = begun[*i].take().expect("a call begins before it is awaited");
                    call.end(calls[*i].is_awaited(rank)).await;
                }
            }
        }
    }
    flights.into_iter().flat_map(|flight| flight.refused).collect()
}

/// Everything at once, in this rank's own order: a future for each operation of the buffer and for each communicator.
async fn joined(
    own: &Own,
    mut random: Random,
    active: Mask,
    calls: &[Call],
    order: &[Turn],
    flights: &mut [Flight<'_>],
) {
    let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for flight in flights {
        all.push(Box::pin(async {
            for phase in PHASES {
                flight.run(phase).await;
            }
        }));
    }
    for (i, comm) in own.comms.iter().enumerate() {
        let begun = order.iter().filter_map(|turn| match turn {
            Turn::Begin(call) => Some(&calls[*call]),
            _ => None,
        });
        let its = begun.filter(|call| call.comm == i).collect();
        let at = random.below(all.len() + 1);
        let numbers = Random::new(random.bits());
        all.insert(at, Box::pin(calls::in_any_order(its, comm, active, numbers)));
    }
    std::future::poll_fn(|cx| {
        all.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
