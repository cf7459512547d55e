//! Work that may block, done beside the executor.

use crate::error::{Error, Failure, Result};

/// Does on a thread of its own what may block the one that polls. `work` bounds itself: it goes on to its end if the
/// future is dropped, and its result is dropped there.
pub(crate) async fn aside<T: Send + 'static>(
    operation: &str,
    rank: u32,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let failed = |text: String| Error::System(Failure::new(operation, rank, text));
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("epwire-aside".into()).spawn(move || drop(done.send(work()))).map_err(
        |error| failed(format!("cannot start a thread for it: {error}; check the limit on threads")),
    )?;
    let lost = |_| Err(failed("its thread ended without an answer; its message on stderr says why".into()));
    result.await.unwrap_or_else(lost)
}
