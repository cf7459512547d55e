//! Buffers of 64 to 256 MiB: 64-bit sizes, pieces larger than the caches, rings that wrap thousands of times. Ignored
//! by default because they take 1 GiB of memory: `cargo test --test collectives -- --ignored large`.

use epwire::comm::{Call, CommConfig, Reduction};

use crate::{complete, ranks};

const MIB: usize = 1 << 20;

/// Element i of a rank's data.
fn element(rank: usize, i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ rank as u64
}

fn own(rank: usize, bytes: usize) -> Vec<u64> {
    (0..bytes / 8).map(|i| element(rank, i)).collect()
}

/// Compares all elements.
fn is(name: &str, have: &[u64], want: impl Fn(usize) -> u64) {
    let differs = have.iter().enumerate().find(|(i, x)| **x != want(*i));
    assert_eq!(differs, None, "{name}: must be {:?}", differs.map(|(i, _)| want(i)));
}

#[test]
#[ignore = "takes 1 GiB of memory"]
fn large_buffers_arrive_whole() {
    let config = CommConfig::default().deadline(std::time::Duration::from_secs(10));
    ranks(2, &config, |comm| {
        let me = comm.rank() as usize;

        let mut buffer = own(me, 256 * MIB);
        complete(comm.broadcast_blocking(&mut buffer, 1));
        is("broadcast", &buffer, |i| element(1, i));

        // Into the same memory: from rank 1 to rank 0, which already has rank 1's data; so rank 1 sends something else.
        if me == 1 {
            buffer.iter_mut().for_each(|x| *x = !*x);
            complete(comm.send_blocking(&buffer, 0, 3));
        } else {
            complete(comm.recv_blocking(&mut buffer, 1, 3));
        }
        is("send", &buffer, |i| !element(1, i));
        drop(buffer);

        let mut buffer = own(me, 128 * MIB);
        complete(comm.all_reduce_in_place_blocking(&mut buffer, Reduction::Sum));
        is("all_reduce", &buffer, |i| element(0, i).wrapping_add(element(1, i)));
        drop(buffer);

        let half = 64 * MIB / 8;
        let (outcome, (_, all)) = comm.begin(Call::all_gather(own(me, 64 * MIB), vec![0; 2 * half])).wait();
        complete(outcome);
        is("all_gather", &all, |i| element(i / half, i % half));
        let (outcome, mut all) = comm.begin(Call::all_to_all_in_place(own(me, 128 * MIB))).wait();
        complete(outcome);
        is("all_to_all", &all, |i| element(i / half, me * half + i % half));
        complete(comm.reduce_scatter_in_place_blocking(&mut all, Reduction::Max));
        is("reduce_scatter", &all[me * half..][..half], |i| element(me, i).max(element(me, half + i)));
    });
}
