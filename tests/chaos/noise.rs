//! What the machine itself makes threads wait, measured while the run that is judged goes on.
//!
//! Every process of a case, the test with the rendezvous server too, has a bystander: a thread that does nothing but sleep
//! for 2 ms at a time, and notes by how much it overslept at worst. A scheduler that keeps it waiting keeps the library's
//! threads waiting as well. Threads that compute it keeps waiting longer than one that only sleeps: so the thread that calls
//! the library notes besides how long it stood ready for a core during a call, which Linux counts. The greater of both is the
//! noise. Every bound of time is that of an idle machine and so many times the noise as threads wake each other in a row in
//! what is bounded. On an idle machine the noise is a millisecond or less, and the bounds are tight.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

static WORST_US: AtomicU64 = AtomicU64::new(0);

/// Of every wait on an idle machine.
const DEADLINE_MS: u32 = 400;
static CHOSEN_MS: AtomicU32 = AtomicU32::new(DEADLINE_MS);

/// Of every wait in this case. What the scenarios do and demand is in parts of it.
pub(crate) fn deadline() -> Duration {
    Duration::from_millis(CHOSEN_MS.load(Ordering::Relaxed).into())
}

/// Takes a deadline that others have chosen.
pub(crate) fn set_deadline(ms: u32) {
    CHOSEN_MS.store(ms, Ordering::Relaxed);
}

/// Chooses the deadline of a case: that of an idle machine, unless others leave a thread that computes less than half
/// of a core. Then a live rank may be late for as much longer, and the deadline grows with that, up to four times.
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

/// Puts the bystander of this process to its work.
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

    /// Time since then, and how much of it this thread, which must be the same, was ready to run and had no core.
    pub(crate) fn elapsed(self) -> (Duration, Duration) {
        (self.at.elapsed(), queued().saturating_sub(self.queued))
    }

    /// Time since then. What of it was spent without a core is noise.
    pub(crate) fn end(self) -> Duration {
        let (elapsed, queued) = self.elapsed();
        WORST_US.fetch_max(queued.as_micros() as u64, Ordering::Relaxed);
        elapsed
    }
}

/// How long this thread was ready to run and had no core, in its life. None where the kernel does not count it.
fn queued() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// Begins a measurement.
pub(crate) fn forget() {
    WORST_US.store(0, Ordering::Relaxed);
}

/// The longest that the machine kept this process's bystander from its work since then.
pub(crate) fn worst() -> Duration {
    Duration::from_micros(worst_us())
}

pub(crate) fn worst_us() -> u64 {
    WORST_US.load(Ordering::Relaxed)
}
