//! Memory that is registered on the host, where peers read any memory without that.

use std::future::Future;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use epwire::comm::{CommConfig, Reduction};
use epwire::{Comm, Error, Group, Mask};

use crate::{complete, groups};

/// Runs this on a thread for each of three ranks.
fn on_ranks(run: impl Fn(&Group, &Comm) + Sync) {
    thread::scope(|scope| {
        let run = &run;
        for group in groups(3) {
            scope.spawn(move || {
                let comm = Comm::create_blocking(&group, CommConfig::default()).unwrap();
                run(&group, &comm);
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}

#[test]
fn memory_of_the_host_is_registered_and_used_as_any_other() {
    on_ranks(|group, comm| {
        let pair: Mask = [0, 2].into_iter().collect();
        let pair = comm.subset_blocking(&pair).unwrap();
        for comm in [Some(comm), pair.as_ref()].into_iter().flatten() {
            let mut memory = vec![1u32; 100_000];
            let (address, bytes) = (memory.as_ptr() as u64, 4 * memory.len());
            // SAFETY: the memory stays until it has been deregistered.
            let mut registration = unsafe { comm.register_blocking(group, address, bytes) }.unwrap();
            assert_eq!((registration.address(), registration.bytes()), (address, bytes));
            complete(comm.all_reduce_in_place_blocking(&mut memory, Reduction::Sum));
            assert_eq!(memory, vec![comm.ranks(); 100_000]);
            registration.deregister_blocking().unwrap();
            registration.deregister_blocking().unwrap();
            assert!(format!("{registration:?}").ends_with(", deregistered]"), "{registration:?}");
        }
    });
}

#[test]
fn all_ranks_learn_that_one_has_registered_nothing() {
    on_ranks(|group, comm| {
        let memory = [0u8; 64];
        let bytes = if group.rank() == 1 { 0 } else { memory.len() };
        // SAFETY: the memory stays until the communicators have been dropped.
        let refused = unsafe { comm.register_blocking(group, memory.as_ptr() as u64, bytes) };
        match (group.rank(), refused.unwrap_err()) {
            (1, Error::Invalid(failure)) => assert!(failure.text.contains("of 0 bytes"), "{failure:?}"),
            (0 | 2, Error::Peer(failure)) => assert_eq!(failure.peer, Some(1)),
            other => panic!("{other:?}"),
        }
        // SAFETY: as above.
        let again = unsafe { comm.register_blocking(group, memory.as_ptr() as u64, memory.len()) };
        again.unwrap().deregister_blocking().unwrap();
    });
}

#[test]
fn memory_is_deregistered_though_the_future_that_asks_for_it_is_dropped() {
    on_ranks(|group, comm| {
        let memory = [0u8; 64];
        // SAFETY: the memory stays until the communicators have been dropped.
        let made = unsafe { comm.register_blocking(group, memory.as_ptr() as u64, memory.len()) };
        let mut registration = made.unwrap();
        drop(pin!(registration.deregister()).poll(&mut Context::from_waker(Waker::noop())));
        let began = Instant::now();
        while !format!("{registration:?}").ends_with(", deregistered]") {
            assert!(began.elapsed() < Duration::from_secs(10), "{registration:?}");
            thread::sleep(Duration::from_millis(1));
        }
        registration.deregister_blocking().unwrap();
    });
}

#[test]
fn who_keeps_only_memory_of_a_communicator_holds_up_nobody() {
    let (deadline, gone) = (Duration::from_secs(20), Barrier::new(3));
    thread::scope(|scope| {
        for group in groups(3) {
            let gone = &gone;
            scope.spawn(move || {
                let config = CommConfig::default().deadline(deadline).heap_bytes(1 << 20);
                let comm = Comm::create_blocking(&group, config).unwrap();
                let memory = comm.alloc::<u32>(1000).unwrap();
                // SAFETY: the memory stays until the communicators have been dropped.
                let registered = unsafe { comm.register_blocking(&group, memory.as_ptr() as u64, 4000) };
                if group.rank() == 2 {
                    drop(comm);
                    gone.wait();
                } else {
                    gone.wait();
                    let began = Instant::now();
                    let outcome = comm.barrier_blocking().unwrap();
                    assert_eq!(outcome.missing, [2].into_iter().collect(), "{outcome}");
                    assert!(began.elapsed() < deadline / 2, "{outcome}");
                }
                group.barrier_blocking("end").unwrap();
                registered.unwrap().deregister_blocking().unwrap();
                drop(memory);
            });
        }
    });
}
