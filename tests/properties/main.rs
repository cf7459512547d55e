//! Dispatch and combine, and calls of communicators beside them, against a plain reference, over random cases with ranks as
//! threads.
//!
//! A case is a configuration and a few operations, all drawn from one seed: shapes, routings, payloads, layouts (also of
//! different ranks in one operation), lanes, two operations in flight, split and whole forms, blocking and async, handles and
//! futures dropped on the way, bad calls, changes of membership. Every byte that dispatch delivers and every bit that combine
//! returns must be what `reference.rs` says. One case in six has communicators of the same ranks, too, whose calls are begun and
//! awaited between the phases of these operations, or beside them as futures that each rank orders as it likes.
//!
//! A failure prints the seed of its case. Variables:
//! - `EPWIRE_SEED=0x...` runs that case alone: `EPWIRE_SEED=0x1234 cargo test --test properties -- --nocapture`
//! - `EPWIRE_CASES=N` runs N cases instead of 2,000.
//! - `EPWIRE_BASE_SEED=0x...` draws other cases.

// Failing is what a test is for.
#![allow(clippy::expect_used, clippy::panic)]

mod calls;
mod case;
mod flight;
mod folds;
mod numbers;
mod outputs;
#[path = "../random/mod.rs"]
mod random;
mod reference;
mod refused;
mod run;
mod tally;

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use epwire::{Dispatch, EpBuffer, EpConfig, Error, Mask, TensorRef};
use half::bf16;

use crate::case::Case;
use crate::random::Random;
use crate::tally::Tally;

const CASES: usize = 2000;
const BASE_SEED: u64 = 0x6570_7769_7265;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{name} is {text:?}, must be a number")))
}

#[test]
fn every_byte_is_what_the_reference_says() {
    run::keep_panics_of_ranks();
    if let Some(seed) = variable("EPWIRE_SEED") {
        let case = Case::draw(seed);
        println!("{case:#?}");
        return run::run(case).map(drop).unwrap_or_else(|why| panic!("{why}"));
    }
    let cases = variable("EPWIRE_CASES").map_or(CASES, |n| n as usize);
    let base = variable("EPWIRE_BASE_SEED").unwrap_or(BASE_SEED);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let tally = Mutex::new(Tally::default());
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= cases {
                return;
            }
            let seed = Random::new(base.wrapping_add(i as u64)).bits();
            let case = Case::draw(seed);
            let mut counts = Tally::of(&case);
            match run::run(case) {
                Ok(refused) => {
                    counts.refused(refused);
                    tally.lock().expect("no panic").add(counts);
                }
                Err(why) => {
                    failed.store(true, Ordering::Relaxed);
                    let again = format!("EPWIRE_SEED={seed:#x} cargo test --test properties -- --nocapture");
                    panic!("case {i} of base seed {base:#x}: {why}\nto run it alone: {again}");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let tally = tally.into_inner().expect("no panic");
    // Past the harness, which shows what a passing test prints to nobody.
    let _ = writeln!(std::io::stderr().lock(), "properties: {cases} cases of base seed {base:#x}:\n{tally}");
    if cases >= CASES && base == BASE_SEED {
        tally.assert_every_kind();
    }
}

#[test]
fn a_buffer_refuses_what_needs_its_peers_until_it_has_them() {
    let buffer = EpBuffer::unconnected(0, 2, EpConfig::new(2, 8, 2, 1)).expect("a valid configuration");
    let x = [bf16::ONE; 8];
    let refused = refused::unconnected(&buffer, TensorRef::new(&x, 8), TensorRef::new(&[1i32], 1));
    assert_eq!(refused.len(), 2);
}

#[test]
fn a_third_dispatch_is_refused_until_a_lane_is_free() {
    let buffer = EpBuffer::unconnected(0, 1, EpConfig::new(2, 8, 2, 1)).expect("a valid configuration");
    buffer.set_active(&Mask::all(1), 1, 0).expect("a valid membership");
    let (x, ids) = ([bf16::ONE; 8], [1i32]);
    let send =
        || buffer.dispatch_send_blocking(Dispatch::new(TensorRef::new(&x, 8), TensorRef::new(&ids, 1)));
    let first = send().expect("lane 0");
    let second = send().expect("lane 1");
    let error = send().expect_err("both lanes are taken");
    assert!(matches!(&error, Error::State(why) if why.text.starts_with("lane 0 is held")), "{error}");
    drop(first);
    let third = send().expect("lane 0 again");
    assert!(send().is_err());
    drop((second, third));
}
