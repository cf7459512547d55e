//! Delays that the machine itself causes, measured during the run that is judged.
//!
//! Every process of a case, also the test with the rendezvous server, has a bystander: a thread that repeatedly sleeps
//! for 2 ms and records by how much it overslept at worst. A scheduler that delays it delays the library's threads as
//! well. Threads that compute are delayed longer than one that only sleeps, so the thread that calls the library also
//! records how long it was ready to run without a core during a call, which Linux counts. The greater of both is the
//! noise. Every time limit is that of an idle machine plus the noise times the number of threads that wake each other
//! in succession in what is limited. On an idle machine the noise is at most a millisecond, and the limits are tight.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

static WORST_US: AtomicU64 = AtomicU64::new(0);

/// The deadline of every wait on an idle machine.
const DEADLINE_MS: u32 = 400;
static CHOSEN_MS: AtomicU32 = AtomicU32::new(DEADLINE_MS);

/// The deadline of every wait in this case. The scenarios' times are fractions of it.
pub(crate) fn deadline() -> Duration {
    Duration::from_millis(CHOSEN_MS.load(Ordering::Relaxed).into())
}

/// Takes a deadline that another process has chosen.
pub(crate) fn set_deadline(ms: u32) {
    CHOSEN_MS.store(ms, Ordering::Relaxed);
}

/// Chooses the deadline of a case: that of an idle machine, unless other programs leave a computing thread less than
/// half of a core. Then a living rank may be late by the same factor, and the deadline grows with it, up to four times.
pub(crate) fn choose_deadline() {
    const SAMPLE: Duration = Duration::from_millis(20);
    let begun = Begun::now();
    let (elapsed, queued) = loop {
        let (elapsed, queued) = begun.elapsed();
        if elapsed.saturating_sub(queued) >= SAMPLE {
            break (elapsed, queued);
        }
    };
    let stretch = elapsed.as_secs_f64() / (elapsed - queued).as_secs_f64();
    set_deadline((f64::from(DEADLINE_MS) * (stretch / 2.0).clamp(1.0, 4.0)) as u32);
}

/// Starts the bystander of this process.
pub(crate) fn watch() {
    const NAP: Duration = Duration::from_millis(2);
    std::thread::spawn(|| {
        loop {
            let began = Instant::now();
            std::thread::sleep(NAP);
            WORST_US.fetch_max((began.elapsed() - NAP).as_micros() as u64, Ordering::Relaxed);
        }
    });
}

/// A call that has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    at: Instant,
    queued: Duration,
}

impl Begun {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), queued: queued() }
    }

    /// The time since then, and how much of it this thread, which must be the same, was ready to run without a core.
    pub(crate) fn elapsed(self) -> (Duration, Duration) {
        (self.at.elapsed(), queued().saturating_sub(self.queued))
    }

    /// The time since then. The part of it that was spent without a core is noise.
    pub(crate) fn end(self) -> Duration {
        let (elapsed, queued) = self.elapsed();
        WORST_US.fetch_max(queued.as_micros() as u64, Ordering::Relaxed);
        elapsed
    }
}

/// How long this thread has been ready to run without a core in its life. `None` if the kernel does not count it.
fn queued() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// Begins a new measurement.
pub(crate) fn forget() {
    WORST_US.store(0, Ordering::Relaxed);
}

/// The longest delay of this process's bystander since then.
pub(crate) fn worst() -> Duration {
    Duration::from_micros(worst_us())
}

pub(crate) fn worst_us() -> u64 {
    WORST_US.load(Ordering::Relaxed)
}
