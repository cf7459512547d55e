//! What the machine itself makes threads wait, measured while the run that is judged goes on.
//!
//! Every process of a case, the test with the rendezvous server too, has a bystander: a thread that does nothing but sleep
//! for 2 ms at a time, and notes by how much it overslept at worst. A scheduler that keeps it waiting keeps the library's
//! threads waiting as well. Every bound of time is that of an idle machine and so many times this noise as threads wake each
//! other in a row in what is bounded. On an idle machine the noise is a fraction of a millisecond, and the bounds are tight.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

static WORST_US: AtomicU64 = AtomicU64::new(0);

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
