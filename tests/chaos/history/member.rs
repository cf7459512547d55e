//! A rank of a history: runs steps as a program does, checks every row and every sum, and does between two steps what
//! it is told.

use std::io::Write;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use epwire::group::{GroupOptions, Step};
use epwire::prefill::PrefillBuffer;
use epwire::rendezvous::BootstrapError;
use epwire::rendezvous::driver::Heartbeat;
use epwire::{EpBuffer, Error, Group};
use tokio::runtime::{Builder, Runtime};

use super::ends::Ends;
use super::news::{News, Order, Start};
use crate::cluster::Choices;
use crate::noise;
use crate::prefill::{Prefill, prefill_config};
use crate::step::{Bench, Stop};
use crate::wire::{Point, Run};
use crate::worker::config;

/// Set for the processes of a history.
pub(crate) const VARIABLE: &str = "EPWIRE_CHAOS_MEMBER";

/// No call of the group takes longer, unless a test says otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The program's time beside its steps, because members have to share few cores.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) fn main() {
    // SAFETY: plain system calls. The kernel kills this process when the test dies, even while it is stopped.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    noise::watch();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the test says what to do");
    let start: Start = serde_json::from_str(&line).expect("the test speaks this language");
    let (tell, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line).expect("the test speaks this language");
            if tell.send(order).is_err() {
                return;
            }
        }
    });
    if start.unrelated {
        let buffer = EpBuffer::unconnected(start.setup.rank, start.setup.ranks, config(&start.setup));
        let _memory = Bench::new(start.setup, buffer.expect("memory for a buffer"));
        say(&News::Ready { listens: None });
        let _ = orders.recv(); // until the test ends it
        return;
    }
    if let Err(stop) = Member::join(&start).and_then(|member| member.serve(&start, &orders)) {
        say(&News::Wrong(match stop {
            Stop::Error(error) => error.to_string(),
            Stop::Wrong(text) => text,
        }));
    }
}

fn say(news: &News) {
    let line = serde_json::to_string(news).expect("news are plain data");
    let mut out = std::io::stdout().lock();
    // If this fails the test is gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

pub(crate) fn heartbeat(lease: Duration) -> Heartbeat {
    Heartbeat::default().interval(lease / 10).lease(lease).handshake(PATIENCE)
}

/// A fenced rank retries: the end of another process of the rank may not have been noticed yet.
fn unless_fenced<T>(mut attempt: impl FnMut() -> Result<T, BootstrapError>) -> Result<T, Stop> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(BootstrapError::Fenced { .. }) if began.elapsed() < PATIENCE => std::thread::sleep(5 * PAUSE),
            result => return result.map_err(|error| Stop::Error(error.into())),
        }
    }
}

struct Member {
    group: Group,
    bench: Bench,
    prefill: Option<Prefill>,
    runtime: Runtime,
    choices: Choices,
    /// Number of steps in which calls are still to be cancelled.
    cancels: u32,
    /// It asks to be admitted again when it has been retired.
    rejoins: bool,
}

impl Member {
    fn join(start: &Start) -> Result<Self, Stop> {
        let setup = start.setup.clone();
        let options = GroupOptions::new(setup.rank, setup.ranks, &start.servers)
            .initial(start.initial)
            .host_server(start.first)
            .lead(start.lead)
            .heartbeat(heartbeat(Duration::from_millis(start.lease_ms)))
            .token(crate::token())
            .join_deadline(PATIENCE)
            .deadline(Duration::from_millis(start.patience_ms));
        let group = unless_fenced(|| Group::join_blocking(options.clone()))?;
        let buffer = EpBuffer::create_blocking(&group, config(&setup))?;
        let mut prefill = None;
        if setup.ring_tokens > 0 {
            let buffer = PrefillBuffer::create_blocking(&group, prefill_config(&setup))?;
            prefill = Some(Prefill::new(setup.clone(), buffer));
        }
        say(&News::Ready { listens: group.server().map(|server| server.local_addr().to_string()) });
        let choices = Choices::new(setup.seed << 8 | u64::from(setup.rank));
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let bench = Bench::new(setup, buffer)?;
        Ok(Self { bench, prefill, group, runtime, choices, cancels: 0, rejoins: false })
    }

    fn serve(mut self, start: &Start, orders: &Receiver<Order>) -> Result<(), Stop> {
        std::thread::sleep(Duration::from_millis(start.slow_ms));
        let (mut known, mut begun, mut ran, mut took) = (None, 0, None, Vec::new());
        let mut ends = Ends::default();
        loop {
            for order in orders.try_iter() {
                match order {
                    Order::Retire(rank) => self.retire(rank),
                    Order::Ask => self.ask(),
                    Order::Rejoin => self.rejoins = true,
                    Order::Cancel(steps) => self.cancels = steps,
                    Order::Times => say(&News::Took(std::mem::take(&mut took))),
                    Order::Leave => return self.leave(),
                }
            }
            let knows = News::Known { leader: self.group.leader(), servers: self.group.servers() };
            if known.as_ref() != Some(&knows) {
                say(&knows);
                known = Some(knows);
            }
            let began = Instant::now();
            let step = match self.begin() {
                Ok(step) => step,
                Err(Error::Bootstrap(error)) => match *error {
                    BootstrapError::Evicted { .. } => {
                        say(&News::Evicted { noise_us: noise::worst_us() });
                        ends.forget();
                        self.rejoin()?;
                        continue;
                    }
                    BootstrapError::Retired { .. } => {
                        say(&News::Retired);
                        ends.forget();
                        if !self.rejoins {
                            return self.leave();
                        }
                        self.rejoin()?;
                        continue;
                    }
                    error => return Err(Stop::Error(error.into())),
                },
                Err(error) => return Err(Stop::Error(error)),
            };
            let membership = self.bench.buffer.membership()?;
            let (epoch, members) = (membership.epoch, membership.active.iter().collect());
            if epoch != begun {
                say(&News::Began { epoch, step: step.number, members });
                begun = epoch;
            }
            let (missing, whole) = self.run(epoch, step.number as u32)?;
            ends.end(&self.bench.buffer, step.number, whole)?;
            ends.judge(epoch)?.iter().for_each(say);
            took.push((step.number, began.elapsed().as_micros() as u64));
            say_now_and_then(&mut ran, News::Ran { step: step.number, epoch, missing });
            std::thread::sleep(PAUSE);
        }
    }

    /// `Group::step`, sometimes dropped while it waits, and then called again.
    fn begin(&mut self) -> Result<Step, Error> {
        let Self { group, runtime, choices, cancels, .. } = self;
        runtime.block_on(async {
            for _ in 0..(*cancels).min(3) {
                if let Ok(step) = tokio::time::timeout(choices.micros(500), group.step()).await {
                    return step;
                }
            }
            group.step().await
        })
    }

    /// Runs a step, or gives it up at some point. Returns the missing ranks, and whether the step may be complete.
    fn run(&mut self, epoch: u32, step: u32) -> Result<(Vec<u32>, bool), Stop> {
        let mut run = Run::new(epoch, step, 1);
        if self.cancels > 0 {
            self.cancels -= 1;
            let points = [Point::DispatchSent, Point::Dispatched, Point::CombineSent];
            if self.choices.coin() {
                run.release = Some((step, points[self.choices.below(3) as usize]));
                run.drops = self.choices.coin();
            }
        }
        let mut ops = Vec::new();
        self.bench.step(&run, step, &mut |_| {}, &mut ops)?;
        if let Some(prefill) = &mut self.prefill {
            prefill.step(&Run::new(epoch, step, 1), step, &mut |_| {}, &mut ops)?;
            if prefill.buffer.take_fault()? {
                self.bench.buffer.fault()?;
            }
        }
        let mut missing: Vec<u32> = ops.into_iter().flat_map(|op| op.missing).collect();
        missing.sort_unstable();
        missing.dedup();
        // A call that was polled and dropped may have ended by then.
        let whole = missing.is_empty() && (run.release.is_none() || run.drops);
        Ok((missing, whole))
    }

    fn rejoin(&mut self) -> Result<(), Stop> {
        unless_fenced(|| self.group.rejoin_blocking())
    }

    /// Runs beside the steps, for which it waits.
    fn retire(&self, rank: u32) {
        let group = self.group.clone();
        std::thread::spawn(move || {
            let ended = group.retire_blocking(rank);
            say(&News::Told(format!("to retire rank {rank}: {ended:?}")));
        });
    }

    /// Asks for a barrier of this rank alone.
    fn ask(&self) {
        let group = self.group.clone();
        std::thread::spawn(move || {
            let own = [group.rank()].into_iter().collect();
            match group.barrier_among_blocking(own, "alone") {
                Err(error @ BootstrapError::NoQuorum { .. }) => say(&News::NoQuorum(error.to_string())),
                ended => say(&News::Told(format!("a barrier by itself: {ended:?}"))),
            }
        });
    }

    fn leave(self) -> Result<(), Stop> {
        self.group.leave_blocking().map_err(|error| Stop::Error(error.into()))
    }
}

/// Reports what differs from the last report in more than the step, and anything after some milliseconds.
fn say_now_and_then(said: &mut Option<(Instant, u32, Vec<u32>)>, news: News) {
    const PAUSE: Duration = Duration::from_millis(10);
    let News::Ran { epoch, missing, .. } = &news else { return };
    let is_known = |(when, of, without): &(Instant, u32, Vec<u32>)| {
        when.elapsed() < PAUSE && of == epoch && without == missing
    };
    if !said.as_ref().is_some_and(is_known) {
        *said = Some((Instant::now(), *epoch, missing.clone()));
        say(&news);
    }
}
