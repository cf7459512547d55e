//! Invalid calls: refused here with the reason, or noticed by the peers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use epwire::comm::{AllReduceNorm, Blocks, CommConfig, Reduction};
use epwire::{Comm, Error, Mask};
use half::{bf16, f16};

use crate::{complete, ranks};

#[test]
fn a_call_that_cannot_be_says_which_size_is_wrong_and_gives_its_buffers_back() {
    ranks(2, &CommConfig::default().heap_bytes(4096), |comm| {
        let refused = |ended: Result<epwire::Outcome, Error>, text: &str| {
            let error = ended.expect_err(text);
            assert!(matches!(error, Error::Invalid(_) | Error::Limit(_)), "{error:?}");
            assert!(error.to_string().contains(text), "{error}, not {text}");
        };
        let (two, three) = (&[1f32; 2][..], &mut [2f32; 3][..]);
        refused(comm.all_reduce_blocking(two, three, Reduction::Sum), "send has 2 elements, recv 3");
        refused(
            comm.reduce_scatter_blocking(two, three, Reduction::Sum),
            "send has 2 elements, must have 3 for each",
        );
        refused(comm.all_gather_blocking(two, three), "recv has 3 elements, must have 2 for each of 2 ranks");
        refused(comm.all_gather_in_place_blocking(three), "the buffer has 3 elements");
        refused(comm.all_to_all_in_place_blocking(three), "the buffer has 3 elements");
        refused(
            comm.all_to_all_blocking(&[1f32; 3], three),
            "both must be the same multiple of the number of ranks, 2",
        );
        refused(comm.gather_blocking(two, three, comm.rank()), "recv has 3 elements, must have 2");
        refused(comm.scatter_blocking(two, three, comm.rank()), "send has 2 elements, must have 3");
        refused(comm.gather_in_place_blocking(three, comm.rank()), "the buffer has 3 elements");
        refused(comm.scatter_in_place_blocking(three, comm.rank()), "the buffer has 3 elements");
        refused(comm.broadcast_blocking(three, 2), "root is 2, must be below 2");
        refused(comm.broadcast_from_blocking(&[1f32; 3], three, 2), "root is 2, must be below 2");
        refused(
            comm.broadcast_from_blocking(two, three, comm.rank()),
            "send has 2 elements, recv of the root 3",
        );
        refused(comm.send_blocking(two, 0, 1 << 31), "tag is 2147483648");
        let blocks = |counts: &[usize]| Blocks::new(counts);
        refused(
            comm.all_gather_blocks_blocking(two, three, blocks(&[1])),
            "counts has 1 entries for 2 ranks",
        );
        refused(comm.all_gather_blocks_blocking(two, three, blocks(&[2, 2])), "its blocks need 4");
        refused(comm.all_gather_blocks_blocking(two, three, blocks(&[3, 3])), "its blocks need 3");
        refused(
            comm.all_gather_blocks_in_place_blocking(three, blocks(&[2, 2])),
            "the buffer has 3 elements",
        );
        let root = 0;
        let wants = if comm.rank() == root { "its blocks need 9" } else { "its blocks need 5" };
        refused(comm.gather_blocks_in_place_blocking(three, blocks(&[4, 5]), root), wants);
        refused(comm.scatter_blocks_in_place_blocking(three, blocks(&[4, 5]), root), wants);
        refused(
            comm.reduce_scatter_blocks_in_place_blocking(
                three,
                blocks(&[1, 1]).rows(2).pitch(3),
                Reduction::Sum,
            ),
            "its blocks need 5",
        );
        let own = [1usize, 2];
        let other: Vec<usize> = own.iter().map(|n| 3 - n).collect();
        let (send, recv) = (&[1f32; 3][..], three);
        refused(
            comm.all_to_all_blocks_blocking(send, blocks(&own), recv, blocks(&other)),
            "this rank sends itself",
        );
        let short = comm.with_deadline(Duration::from_millis(1));
        refused(short.barrier_blocking(), "a call may only lengthen");
        assert!(matches!(comm.alloc::<u8>(4097), Err(Error::Limit(_))));
        let memory = comm.alloc::<u8>(4096).unwrap();
        assert!(matches!(comm.alloc::<u8>(1), Err(Error::Limit(_))));
        drop(memory);
        comm.alloc::<u8>(4096).unwrap();

        let (ended, (send, recv)) = comm.all_gather(vec![5u8; 2], vec![6u8; 3]).wait();
        refused(ended, "recv has 3 elements");
        assert_eq!((send, recv), (vec![5; 2], vec![6; 3]));
        // A group with one invalid call does nothing at all.
        let calls = (epwire::comm::Call::barrier(), epwire::comm::Call::broadcast(vec![1u8; 4], 7));
        let (ended, ((), buffer)) = comm.begin(calls).wait();
        refused(ended, "root is 7");
        assert_eq!(buffer, [1; 4]);
        // Nothing has happened.
        assert!(comm.barrier_blocking().unwrap().is_complete());
    });
}

#[test]
fn a_communicator_without_a_membership_refuses_operations() {
    let comm = Comm::unconnected(0, 1, CommConfig::default()).unwrap();
    let error = comm.barrier_blocking().unwrap_err();
    assert!(matches!(error, Error::State(_)), "{error}");
    comm.set_active(&Mask::all(1), 1, 0).unwrap();
    let mut buffer = [3];
    complete(comm.all_reduce_in_place_blocking(&mut buffer, Reduction::Product));
    assert_eq!(buffer, [3]);
}

#[test]
fn ranks_that_call_different_operations_are_all_told_both() {
    let deadline = Duration::from_secs(2);
    ranks(3, &CommConfig::default().deadline(deadline), |comm| {
        let mut buffer = vec![1i32; if comm.rank() == 1 { 50 } else { 60 }];
        let error = comm.all_reduce_in_place_blocking(&mut buffer, Reduction::Sum).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch(_)), "{text}");
        assert!(text.contains("all_reduce of 50 i32") && text.contains("all_reduce of 60 i32"), "{text}");
        let again = comm.barrier_blocking().unwrap_err();
        assert!(matches!(again, Error::Mismatch(_)), "{again}");
        assert!(comm.take_fault().unwrap() && !comm.take_fault().unwrap());
        comm.set_active(&Mask::all(3), 7, 0).unwrap();
        assert!(comm.barrier_blocking().unwrap().is_complete());
    });
}

#[test]
fn a_message_of_another_type_than_its_receive_is_told_to_all() {
    ranks(3, &CommConfig::default().deadline(Duration::from_secs(2)), |comm| {
        let told = |error: Error| {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch(_)), "{text}");
            let both = ["rank 1 has called recv of 12 u8 with tag 4", "rank 0 is a send of 3 f32 with tag 4"];
            assert!(both.iter().all(|call| text.contains(call)), "{text}");
        };
        let mut recv = [7u8; 12];
        match comm.rank() {
            // Complete, because so small a message needs no receive, or told at once.
            0 => drop(comm.send_blocking(&[1.0f32; 3], 1, 4).map_err(told)),
            1 => told(comm.recv_blocking(&mut recv, 0, 4).unwrap_err()),
            _ => {}
        }
        assert_eq!(recv, [7; 12]);
        told(comm.barrier_blocking().unwrap_err());
        comm.set_active(&Mask::all(3), 7, 0).unwrap();
        assert!(comm.barrier_blocking().unwrap().is_complete());
    });
}

#[test]
fn ranks_that_normalise_a_sum_differently_are_all_told_both() {
    // Nobody goes on to another epoch before all have been told, as a step of the group has it.
    let told_so_far = AtomicU32::new(0);
    let await_all = || {
        let (all, began) = (told_so_far.fetch_add(1, Ordering::SeqCst) / 3 * 3 + 3, Instant::now());
        while told_so_far.load(Ordering::SeqCst) < all && began.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
    };
    ranks(3, &CommConfig::default().deadline(Duration::from_secs(2)), |comm| {
        let (part, weight) = ([bf16::ONE; 256], [bf16::ONE; 128]);
        let (mut sum, mut out) = ([bf16::ZERO; 256], [bf16::ZERO; 256]);
        let mut normalise = |epsilon| {
            let call = AllReduceNorm::new(&part[..], &mut sum[..], &weight[..], &mut out[..], 128);
            comm.run_blocking(call.epsilon(epsilon))
        };
        let told = |ended: Result<epwire::Outcome, Error>, texts: [&str; 2]| {
            await_all();
            let error = ended.expect_err(texts[1]);
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
            assert!(texts.iter().all(|text| error.to_string().contains(text)), "{error}, not {texts:?}");
        };
        let usual = "all_reduce_norm of 2 rows of 128 bf16, epsilon 1e-06";
        told(normalise(if comm.rank() == 1 { 1e-5 } else { 1e-6 }), [usual, "epsilon 1e-05"]);
        comm.set_active(&Mask::all(3), 7, 0).unwrap();
        let ended = match comm.rank() {
            2 => comm.all_reduce_blocking(&part, &mut [bf16::ZERO; 256], Reduction::Sum),
            _ => normalise(1e-6),
        };
        told(ended, [usual, "all_reduce of 256 bf16 (sum)"]);
        comm.set_active(&Mask::all(3), 8, 0).unwrap();
        complete(normalise(1e-6));
        assert_eq!((sum, out), ([bf16::from_f32(3.0); 256], [bf16::ONE; 256]));
    });
}

/// As in a server whose rank 0 ends while the others disagree on what to do: the loss brings another membership.
#[test]
fn after_a_mismatch_the_next_membership_of_the_group_makes_a_communicator_usable() {
    let groups = crate::groups(3);
    let run = |group: epwire::Group| {
        std::thread::spawn(move || {
            let config = CommConfig::default().deadline(Duration::from_secs(2));
            let comm = Comm::create_blocking(&group, config).unwrap();
            group.step_blocking().unwrap();
            let error = match group.rank() {
                1 => comm.broadcast_blocking(&mut [0u32; 2], 0).unwrap_err(),
                _ => comm.barrier_blocking().unwrap_err(),
            };
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
            group.step_blocking().unwrap();
            let error = comm.barrier_blocking().unwrap_err();
            assert!(matches!(error, Error::Mismatch(_)), "the membership is the same: {error}");
            group.barrier_blocking("all have seen it").unwrap();
            if group.rank() == 0 {
                return group.leave_blocking().unwrap();
            }
            while group.active().mask.contains(0) {
                group.step_blocking().unwrap();
            }
            complete(comm.barrier_blocking());
            group.barrier_among_blocking([1, 2].into_iter().collect(), "end").unwrap();
        })
    };
    for rank in groups.into_iter().map(run).collect::<Vec<_>>() {
        rank.join().unwrap();
    }
}

#[test]
fn memory_of_a_norm_must_have_the_size_and_the_type_of_the_sum() {
    ranks(2, &CommConfig::default(), |comm| {
        let (part, weight) = ([bf16::ONE; 16], [bf16::ONE; 8]);
        let (mut sum, mut out) = ([bf16::ZERO; 16], [bf16::ZERO; 16]);
        let (mut other, mut short) = ([f16::ZERO; 16], [bf16::ZERO; 8]);
        let mut refused = |residual: Option<&mut [f16]>, text: &str| {
            let call = AllReduceNorm::new(&part[..], &mut sum[..], &weight[..], &mut out[..], 8);
            let ended = match residual {
                Some(residual) => comm.run_blocking(call.residual(residual)),
                None => comm.run_blocking(call.residual(&mut short[..])),
            };
            let error = ended.expect_err(text);
            assert!(
                matches!(error, Error::Invalid(_)) && error.to_string().contains(text),
                "{error}, not {text}"
            );
        };
        refused(Some(&mut other[..]), "weight, residual and out must be of the type of send and recv");
        refused(None, "residual has 8 elements of 2 bytes, must have 16");
    });
}

#[test]
fn a_configuration_that_differs_is_named() {
    let groups = crate::groups(2);
    let create = |group: epwire::Group| {
        std::thread::spawn(move || {
            let config = CommConfig::default().heap_bytes(u64::from(group.rank()) * 4096);
            Comm::create_blocking(&group, config).unwrap_err().to_string()
        })
    };
    for error in groups.into_iter().map(create).collect::<Vec<_>>() {
        let error = error.join().unwrap();
        assert!(error.contains("heap_bytes"), "{error}");
    }
}
