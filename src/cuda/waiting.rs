//! Waiting on the host for what is enqueued, within a limit.

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};

/// The error of a wait that took too long.
pub(super) fn late(rank: u32, timeout: Duration) -> Error {
    let text = format!(
        "the GPU has not run what was enqueued within {timeout:?}: wait again, or look at what is enqueued before it"
    );
    Error::Timeout(Failure::new("wait", rank, text))
}

/// Ends when `look` finds something, with [`late`] if `timeout` passes first. `wake_later` has a task polled again.
pub(super) async fn until<T>(
    rank: u32,
    timeout: Duration,
    look: impl Fn() -> Result<Option<T>>,
    wake_later: impl Fn(&Waker),
) -> Result<T> {
    let end = Instant::now().checked_add(timeout); // None: beyond the range of the clock
    poll_fn(|cx| {
        if let Some(found) = look()? {
            return Poll::Ready(Ok(found));
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return Poll::Ready(Err(late(rank, timeout)));
        }
        wake_later(cx.waker());
        Poll::Pending
    })
    .await
}

/// [`until`] on this thread. `sleep` returns when it is worth looking again, at the latest after the time given.
pub(super) fn until_blocking<T>(
    rank: u32,
    timeout: Duration,
    look: impl Fn() -> Result<Option<T>>,
    sleep: impl Fn(Duration) -> Result<()>,
) -> Result<T> {
    let end = Instant::now().checked_add(timeout);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(late(rank, timeout));
        }
        sleep(left)?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_wait_looks_once_more_than_it_sleeps() {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            Ok((looks.get() == 3).then_some(looks.get()))
        };
        let slept = Cell::new(0);
        let sleep = |left: Duration| {
            assert!(left > Duration::from_secs(1));
            slept.set(slept.get() + 1);
            Ok(())
        };
        assert_eq!(until_blocking(0, Duration::MAX, look, sleep).unwrap(), 3);
        assert_eq!(slept.get(), 2);
    }

    #[test]
    fn without_time_a_wait_looks_and_does_not_sleep() {
        let never = || Ok(None::<()>);
        let error = until_blocking(4, Duration::ZERO, never, |_| panic!("it sleeps")).unwrap_err();
        assert!(matches!(&error, Error::Timeout(f) if f.rank == Some(4)), "{error}");
        assert!(until_blocking(0, Duration::ZERO, || Ok(Some(())), |_| panic!("it sleeps")).is_ok());
    }
}
