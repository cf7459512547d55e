//! Looking at what may hang in the kernel: each look has a thread and a time limit of its own, so that one that hangs
//! costs nothing but its own result.

use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A look that has begun. Several that begin together end together.
pub(super) struct Looking<T> {
    begun: Instant,
    patience: Duration,
    /// The thread and what it finds, or why it could not start.
    thread: Result<(JoinHandle<()>, Receiver<T>), String>,
}

/// Begins to look. `patience`: how long that may take.
pub(super) fn begin<T: Send + 'static>(
    patience: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Looking<T> {
    let (tell, told) = mpsc::channel();
    let started = thread::Builder::new().name("epwire doctor".to_owned()).spawn(move || {
        // Nobody listens any more if the time has expired.
        let _ = tell.send(look());
    });
    let thread = started.map(|thread| (thread, told));
    let thread = thread.map_err(|error| format!("cannot start a thread for the checks: {error}"));
    Looking { begun: Instant::now(), patience, thread }
}

impl<T> Looking<T> {
    /// What was found. If it hangs, its thread is left behind.
    ///
    /// # Errors
    ///
    /// Why nothing was found in time, in words.
    pub(super) fn end(self) -> Result<T, String> {
        let Self { begun, patience, thread } = self;
        let (thread, told) = thread?;
        let found = told.recv_timeout(patience.saturating_sub(begun.elapsed()));
        let found = found.map_err(|_| format!("no answer within {patience:?}"))?;
        // It has sent its result, and only has to end.
        let _ = thread.join();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_hangs_costs_the_others_nothing() {
        let patience = Duration::from_secs(2);
        let (keep, held) = mpsc::channel::<()>();
        let begun = Instant::now();
        let hung = begin(patience, move || held.recv().is_ok());
        let others = [begin(patience, || 1), begin(patience, || 2)];
        assert_eq!(hung.end(), Err("no answer within 2s".to_owned()));
        // They have answered long ago, however late it is now.
        assert_eq!(others.map(Looking::end), [Ok(1), Ok(2)]);
        assert!(begun.elapsed() < 2 * patience, "{:?}", begun.elapsed());
        drop(keep);
    }
}
