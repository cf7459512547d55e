//! Waking tasks from this crate's own threads. A waker is code of somebody else's executor: if it panics, when called
//! or dropped, that must not end a thread that other operations need.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

/// Wakes a task. A panic of the waker stops here; the panic hook has reported it.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// Awaits something that another thread of this crate will wake: that thread is shielded from the waker.
pub(crate) async fn shielded<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let shield = Waker::from(Arc::new(Shield(Some(cx.waker().clone()))));
        future.as_mut().poll(&mut Context::from_waker(&shield))
    })
    .await
}

/// Calls code of others: such as wakes or drops their wakers.
pub(crate) fn contain(call: impl FnOnce()) {
    // Nothing of ours is left half changed, because the closures only hand over whole values.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Dropping the payload could panic again.
        std::mem::forget(payload);
    }
}

/// A waker that contains its own panics. `None` only while it is being dropped.
struct Shield(Option<Waker>);

impl Wake for Shield {
    fn wake(self: Arc<Self>) {
        contain(|| self.0.iter().for_each(Waker::wake_by_ref));
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        let waker = self.0.take();
        contain(|| drop(waker));
    }
}
