//! Reports that wait to be delivered, in the order of the events.
//!
//! Delivering runs code of others, wakers and log subscribers, so none of our locks may be held meanwhile. Reports are
//! put in under the lock that orders their events, and delivered after it is released, by one thread at a time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::waking::contain;

#[derive(Debug)]
pub(super) struct Outbox<T> {
    waiting: Mutex<VecDeque<T>>,
    teller: Mutex<()>,
}

impl<T> Outbox<T> {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::default(), teller: Mutex::default() }
    }

    pub(super) fn put(&self, news: T) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(news);
    }

    /// Delivers what waits. If another thread is delivering, or this one further up its stack, that call delivers these
    /// reports as well, perhaps after this one has returned.
    pub(super) fn empty(&self, tell: impl Fn(T)) {
        // A thread that finds the delivery lock taken has put its report in before; the loop sees it after the lock is
        // released.
        while self.waits()
            && let Ok(teller) = self.teller.try_lock()
        {
            while let Some(news) = self.take() {
                contain(|| tell(news));
            }
            drop(teller);
        }
    }

    fn waits(&self) -> bool {
        !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn take(&self) -> Option<T> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn what_many_threads_put_in_is_told_once_and_in_order() {
        const THREADS: usize = 4;
        const EACH: usize = 2000;
        let (outbox, last) = (Arc::new(Outbox::new()), Arc::new(Mutex::new(0)));
        let (tell, told) = mpsc::channel();
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (outbox, last, tell) = (outbox.clone(), last.clone(), tell.clone());
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        let mut last = last.lock().unwrap();
                        *last += 1;
                        outbox.put(*last);
                        drop(last);
                        outbox.empty(|news| tell.send(news).unwrap());
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let told: Vec<usize> = told.try_iter().collect();
        assert_eq!(told, Vec::from_iter(1..=THREADS * EACH));
    }

    #[test]
    fn who_is_told_may_put_in_more_and_panic() {
        let (outbox, told) = (Outbox::new(), RefCell::new(Vec::new()));
        let tell = |news: u32| {
            told.borrow_mut().push(news);
            if news == 1 {
                outbox.put(3);
                outbox.empty(|_| unreachable!("it is told further up the stack"));
                std::panic::resume_unwind(Box::new(()));
            }
        };
        outbox.put(1);
        outbox.put(2);
        outbox.empty(tell);
        assert_eq!(*told.borrow(), [1, 2, 3]);
    }
}
