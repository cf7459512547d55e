//! Prefill buffers as a program uses them: every layout and payload against a plain reference, operations in halves, by
//! futures, on two lanes at a time and with a routing that is used again, ranks that are lost, invalid calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod failures;
#[path = "../groups/mod.rs"]
mod groups;
mod layouts;
mod reference;
mod refused;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use epwire::prefill::{PrefillBuffer, PrefillConfig};
use epwire::{EpConfig, Outcome};

use groups::groups;
use reference::{EXPERTS, HIDDEN, RANKS, TOKENS, TOPK};

/// Rings with fewer slots than a rank has rows for another.
const RING: u32 = 8;

fn config() -> PrefillConfig {
    let ep = EpConfig::new(TOKENS as u32, HIDDEN as u32, EXPERTS as u32, TOPK as u32)
        .threads(1)
        .deadline(Duration::from_secs(20));
    PrefillConfig::new(ep).ring_tokens(RING)
}

/// Runs this on a thread for each rank of a buffer.
fn ranks(config: &PrefillConfig, run: impl Fn(&PrefillBuffer) + Sync) {
    std::thread::scope(|scope| {
        for group in groups(RANKS as u32) {
            let run = &run;
            scope.spawn(move || {
                let buffer = PrefillBuffer::create_blocking(&group, config.clone()).unwrap();
                run(&buffer);
                // Nobody leaves before all have received everything from it.
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// The operation must be complete.
fn complete(outcome: &Outcome) {
    assert!(outcome.is_complete(), "{outcome}");
}

/// Polls it once. Futures may move between threads.
async fn is_pending<T>(mut future: Pin<&mut (impl Future<Output = T> + Send)>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

async fn is_set(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
