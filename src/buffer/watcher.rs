//! The thread of a lane that waits so that no task of an executor has to. It looks at signal words in the window only,
//! never at the memory of an operation's caller.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ffi::{self, Progress};
use crate::{sys, waking};

/// Wakes a task when the words that its operation awaits may have come.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    request: Mutex<Request>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Request {
    /// Several where clones of an event are awaited by different tasks.
    tasks: Vec<(sys::epw_handle, Waker)>,
    /// The operation that is awaited by an event, and until when. It is looked at however busy the task's executor is,
    /// which is what shows the peers that this rank waits too.
    tended: Option<(sys::epw_handle, Option<Instant>)>,
    ending: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Request> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at least once in each `slice`, whatever the C core says.
    fn run(&self, buffer: &ffi::Buffer, slice: Duration) {
        let mut request = self.lock();
        while !request.ending {
            let (tasks, tended) = (std::mem::take(&mut request.tasks), request.tended);
            let newest = tasks.last().map(|(handle, _)| *handle);
            let Some(handle) = newest.or(tended.map(|(handle, _)| handle)) else {
                request = self.changed.wait(request).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(request);
            // One lane has one live handle; others, and an error, say that a handle is gone: its task must look too.
            let _ = buffer.wait(handle, slice);
            let over = tended.is_some_and(|(handle, until)| {
                !matches!(buffer.ready(handle), Ok(Progress::Pending))
                    || until.is_some_and(|until| Instant::now() >= until)
            });
            tasks.into_iter().for_each(|(_, waker)| waking::wake(waker));
            request = self.lock();
            if over && request.tended == tended {
                request.tended = None;
            }
        }
    }
}

impl Watcher {
    /// Starts the thread unless it runs. One that could not be started is tried again.
    pub(super) fn start(&self, buffer: &Arc<ffi::Buffer>, slice: Duration) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (shared, buffer) = (self.shared.clone(), buffer.clone());
            let watch = std::thread::Builder::new().name("epwire-watch".into());
            *thread = Some(watch.spawn(move || shared.run(&buffer, slice))?);
        }
        Ok(())
    }

    /// Keeps the operation of a handle in its wait until that is over, `until` at the latest.
    pub(super) fn tend(&self, handle: sys::epw_handle, until: Option<Instant>) {
        self.shared.lock().tended = Some((handle, until));
    }

    /// Has the task polled again when its operation may go on.
    pub(crate) fn wake_later(&self, handle: sys::epw_handle, waker: &Waker) {
        // Outside the lock: cloning and dropping it runs code of the executor.
        let mut task = Some((handle, waker.clone()));
        let mut request = self.shared.lock();
        if !request.tasks.iter().any(|(of, task)| *of == handle && task.will_wake(waker)) {
            request.tasks.extend(task.take());
        }
        drop(request);
        self.shared.changed.notify_one();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.changed.notify_one();
        // A waker called there may have dropped the last owner: that thread cannot wait for itself.
        let elsewhere = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && elsewhere(&thread)
        {
            // Ends within a slice.
            let _ = thread.join();
        }
    }
}
