//! This crate's own threads for its sockets and timers, and how a plain thread waits for them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::rendezvous::error::BootstrapError;

/// Runs a future to its end on a new thread with a runtime of its own. Nobody joins the thread: the future must end by
/// itself when its handles are gone.
pub(crate) fn spawn<F>(name: &str, future: impl FnOnce() -> F + Send + 'static) -> Result<(), BootstrapError>
where
    F: Future<Output = ()>,
{
    let op = format!("start the thread {name}");
    let system = |error: std::io::Error| BootstrapError::system(&op, &error);
    let (started, outcome) = std::sync::mpsc::channel();
    // The runtime is created and dropped on its own thread: dropping it in an async context, as an early return here
    // would, panics.
    let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let _ = started.send(Ok(()));
            runtime.block_on(future());
        }
        Err(error) => drop(started.send(Err(error))),
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(system)?;
    outcome.recv().unwrap_or_else(|_| Err(std::io::Error::other("the thread ended at once"))).map_err(system)
}

/// Waits for a future that needs no runtime, on a thread that may be blocked.
///
/// Errors: [`BootstrapError::BlockingInAsync`] on a thread of a tokio runtime.
pub(crate) fn block_on<T, E: From<BootstrapError>>(
    op: &str,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(BootstrapError::BlockingInAsync { op: op.to_owned() }.into());
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
