//! Work that may block, on a thread of its own, away from the executor.

use crate::error::{Error, Failure, Result};

/// Runs work that may block on a thread of its own instead of the polling thread. `work` must bound its own time: if
/// the future is dropped, it still runs to its end, and its result is dropped.
pub(crate) async fn spawn_blocking<T: Send + 'static>(
    operation: &str,
    rank: u32,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let failed = |text: String| Error::System(Failure::new(operation, rank, text));
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("epwire-blocking".into())
        .spawn(move || drop(done.send(work())))
        .map_err(|error| {
            failed(format!("cannot start a thread for it: {error}; check the limit on threads"))
        })?;
    let lost = |_| Err(failed("its thread ended without an answer; its message on stderr says why".into()));
    result.await.unwrap_or_else(lost)
}
