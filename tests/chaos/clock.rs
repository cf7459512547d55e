//! Checks that a future does not block the thread that polls it.

use std::time::Duration;

use crate::noise::{self, Begun, deadline};
use crate::step::Stop;

/// Awaits on a single-threaded runtime, beside a task that looks at the clock every other millisecond. It is an error
/// if that task ever had to wait for a good part of a deadline, beyond the time that this thread itself waited for a
/// core.
pub(crate) fn beside<T>(work: impl Future<Output = T>) -> Result<T, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (ended, gap) = runtime.block_on(async {
        let mut last = Begun::now();
        let mut gap = Duration::ZERO;
        let mut look = || {
            let (elapsed, queued) = last.elapsed();
            gap = gap.max(elapsed.saturating_sub(queued));
            last = Begun::now();
        };
        let clock = async {
            loop {
                tokio::time::sleep(Duration::from_millis(2)).await;
                look();
            }
        };
        let ended = tokio::select! {
            ended = work => ended,
            () = clock => unreachable!("a clock never ends"),
        };
        look();
        (ended, gap)
    });
    if gap > deadline() / 4 + noise::worst() {
        return Err(Stop::Wrong(format!("the thread was blocked for {gap:?} (noise {:?})", noise::worst())));
    }
    Ok(ended)
}
