//! Communicators of some of the ranks of one on GPUs.

use std::thread::sleep;
use std::time::Duration;

use epwire::comm::{Call, CommConfig};
use epwire::cuda::TensorMut;
use epwire::cudarc::driver::CudaContext;
use epwire::{Comm, Device, Error, Mask, Paths, Reduction};

use crate::world::on_ranks;

/// Enough for the communicators that a rank has at the same time.
const SMS: u32 = 4;

fn config(device: Device, paths: Paths) -> CommConfig {
    CommConfig::default().device(device).paths(paths).sms(SMS)
}

fn comms(gpus: u32, paths: Paths, body: impl Fn(&Comm) + Sync) {
    let make = |group: &_, device| Comm::create_blocking(group, config(device, paths)).unwrap();
    on_ranks(gpus, true, make, body);
}

fn device_of(comm: &Comm) -> u32 {
    match comm.config().device {
        Device::Cuda(ordinal) => ordinal,
        _ => panic!("{:?}", comm.config()),
    }
}

/// The sum of what the ranks of a communicator give, on its GPU or on the host.
fn sum(comm: &Comm, own: f32) -> f32 {
    if comm.config().device == Device::Host {
        let mut sum = [own];
        assert!(comm.all_reduce_in_place_blocking(&mut sum, Reduction::Sum).unwrap().is_complete());
        return sum[0];
    }
    let stream = CudaContext::new(device_of(comm) as usize).unwrap().new_stream().unwrap();
    let mut memory = stream.clone_htod(&[own]).unwrap();
    let call = Call::all_reduce_in_place(TensorMut::from_slice(&mut memory, &stream), Reduction::Sum);
    comm.enqueue(call, (&stream).into()).unwrap();
    stream.clone_dtoh(&memory).unwrap()[0]
}

fn sum_of(mask: &Mask) -> f32 {
    mask.iter().map(|rank| 1.0 + rank as f32).sum()
}

fn check(subset: Option<&Comm>, mask: &Mask, me: u32) {
    assert_eq!(subset.is_some(), mask.contains(me));
    let Some(subset) = subset else { return };
    assert_eq!(subset.rank(), mask.iter().take_while(|rank| *rank < me).count() as u32);
    assert_eq!(sum(subset, 1.0 + me as f32), sum_of(mask));
}

pub(crate) fn a_communicator_on_a_gpu_has_subsets_on_it_and_on_the_host(gpus: u32) {
    for paths in [Paths::default(), "queue".parse().unwrap()] {
        comms(gpus, paths, |comm| {
            let me = comm.rank();
            let all: Mask = (0..gpus).collect();
            // Two at the same time.
            let half: Mask = all.iter().filter(|rank| rank % 2 == me % 2).collect();
            let own = comm.subset_blocking(&half).unwrap();
            check(own.as_ref(), &half, me);
            // All but the last one, which is in none.
            let most: Mask = if me + 1 == gpus { Mask::EMPTY } else { (0..gpus - 1).collect() };
            check(comm.subset_blocking(&most).unwrap().as_ref(), &most, me);
            // A subset of a subset, and one on the host, whose subset is on a GPU again.
            let own = own.unwrap();
            check(
                own.subset_blocking(&(0..1).collect()).unwrap().as_ref(),
                &half.iter().take(1).collect(),
                me,
            );
            let host = comm.subset_with_blocking(&all, CommConfig::default()).unwrap();
            check(host.as_ref(), &all, me);
            let again = config(Device::Cuda(device_of(comm)), paths);
            check(host.unwrap().subset_with_blocking(&all, again).unwrap().as_ref(), &all, me);
            check(Some(comm), &all, me);
        });
    }
}

pub(crate) fn a_subset_on_a_gpu_comes_between_the_calls_around_it(gpus: u32) {
    comms(gpus, Paths::default(), |comm| {
        let (me, all) = (comm.rank(), (0..gpus).collect());
        let context = CudaContext::new(me as usize).unwrap();
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        let mut memory = streams[0].clone_htod(&vec![1.0 + me as f32; 100_000]).unwrap();
        let mut ended = Vec::new();
        for stream in &streams {
            let view = TensorMut::from_slice(&mut memory, stream);
            let call = Call::all_reduce_in_place(view, Reduction::Sum);
            ended.push(comm.begin_on(call, stream.into()).unwrap());
            check(comm.subset_blocking(&all).unwrap().as_ref(), &all, me);
        }
        for work in ended {
            // A subset comes after what was enqueued before it.
            let (outcome, ()) = work.try_wait().expect("it has ended");
            assert!(outcome.unwrap().is_complete());
        }
        let sums = streams[1].clone_dtoh(&memory).unwrap();
        assert!(sums.iter().all(|sum| *sum == gpus as f32 * sum_of(&all)), "{}", sums[0]);
    });
}

pub(crate) fn masks_on_a_gpu_that_overlap_are_named(gpus: u32) {
    comms(gpus, Paths::default(), |comm| {
        let (me, last) = (comm.rank(), gpus - 1);
        let all: Mask = (0..gpus).collect();
        if gpus > 1 {
            let mask = if me == last { (last..gpus).collect() } else { all };
            let error = comm.subset_blocking(&mask).unwrap_err();
            let peer = Some(if me == last { 0 } else { last });
            assert!(matches!(&error, Error::Mismatch(f) if f.peer == peer), "{error}");
        }
        check(comm.subset_blocking(&all).unwrap().as_ref(), &all, me);
    });
}

pub(crate) fn a_subset_on_a_gpu_names_who_cannot_make_it(gpus: u32) {
    comms(gpus, Paths::default(), |comm| {
        let (me, last) = (comm.rank(), gpus - 1);
        let all: Mask = (0..gpus).collect();
        let own = comm.config().clone();
        let error = comm.subset_with_blocking(&all, if me == last { own.slots(3) } else { own }).unwrap_err();
        match &error {
            Error::Limit(_) => assert_eq!(me, last, "{error}"),
            Error::Peer(f) => assert!(me != last && f.peer == Some(last), "{error}"),
            _ => panic!("{error}"),
        }
        check(comm.subset_blocking(&all).unwrap().as_ref(), &all, me);
    });
}

pub(crate) fn a_subset_on_a_gpu_names_who_does_not_come(gpus: u32) {
    let make = |group: &_, device| {
        let config = config(device, Paths::default()).deadline(Duration::from_secs(3));
        Comm::create_blocking(group, config).unwrap()
    };
    on_ranks(gpus, true, make, |comm| {
        let (me, last) = (comm.rank(), gpus - 1);
        if me != last {
            let error = comm.subset_blocking(&(0..gpus).collect()).unwrap_err();
            assert!(matches!(&error, Error::Peer(f) if f.peer == Some(last)), "{error}");
            // It goes on without the other.
            let rest: Mask = (0..last).collect();
            comm.set_active(&rest, 9, 0).unwrap();
            check(comm.subset_blocking(&rest).unwrap().as_ref(), &rest, me);
        }
    });
}

pub(crate) fn a_subset_on_a_gpu_is_waited_for_as_long_as_the_deadline_says(gpus: u32) {
    let make = |group: &_, device| {
        let config = config(device, Paths::default()).deadline(Duration::from_secs(2));
        Comm::create_blocking(group, config).unwrap()
    };
    on_ranks(gpus, true, make, |comm| {
        let (me, all) = (comm.rank(), (0..gpus).collect());
        if me + 1 == gpus {
            sleep(Duration::from_secs(4));
        }
        let patient = comm.with_deadline(Duration::from_secs(30));
        let own = config(comm.config().device, Paths::default());
        check(patient.subset_with_blocking(&all, own).unwrap().as_ref(), &all, me);
    });
}
