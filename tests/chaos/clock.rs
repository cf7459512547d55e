//! Whether a future lets the thread that polls it go on.

use std::time::{Duration, Instant};

use crate::cluster::DEADLINE;
use crate::step::Stop;

/// Awaits on a runtime of this thread alone, beside a task that looks at the clock every other millisecond. It is wrong if
/// that task ever had to wait for a good part of a deadline, beyond what `noise` says the machine made threads wait.
pub(crate) fn beside<T>(work: impl Future<Output = T>, noise: impl Fn() -> Duration) -> Result<T, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (ended, gap) = runtime.block_on(async {
        let mut last = Instant::now();
        let mut gap = Duration::ZERO;
        let mut look = || {
            gap = gap.max(last.elapsed());
            last = Instant::now();
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
    if gap > DEADLINE / 4 + noise() {
        return Err(Stop::Wrong(format!("the thread was blocked for {gap:?} (noise {:?})", noise())));
    }
    Ok(ended)
}
