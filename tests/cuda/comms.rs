//! Communicators on GPUs: compared with those of the host, and what only they do.

use std::sync::Arc;
use std::thread;

use epwire::comm::{Blocks, Call, CommConfig};
use epwire::cuda::{StreamRef, TensorMut, TensorRef};
use epwire::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result};
use epwire::{Comm, DType, Device, Element, Error, Group, Outcome, Path, Paths, Reduction};
use half::bf16;

use crate::world::{PATIENT, Random};

/// Elements of a block: sent by packets, by rings, and an odd number.
const COUNTS: [usize; 4] = [1, 77, 4096, 150_001];

/// A rank: its communicator on a GPU, one on the host, and a stream.
struct Rank {
    gpu: Comm,
    host: Comm,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Rank {
    fn stream(&self) -> StreamRef<'_> {
        // SAFETY: tests drop their graphs before memory and communicators, and wait for replays.
        unsafe { StreamRef::capturing(&self.stream) }
    }

    fn view<'a, T: Element>(&'a self, slice: &'a CudaSlice<T>) -> TensorRef<'a> {
        TensorRef::from_slice(slice, slice.len(), &self.stream)
    }

    fn view_mut<'a, T: Element>(&'a self, slice: &'a mut CudaSlice<T>) -> TensorMut<'a> {
        TensorMut::from_slice(slice, &self.stream)
    }

    /// Values that only this rank has, by seed.
    fn values(&self, seed: u64, len: usize) -> Vec<bf16> {
        let mut random = Random(seed << 8 | u64::from(self.gpu.rank()) | 1 << 40);
        (0..len).map(|_| random.bf16()).collect()
    }

    fn rank(&self) -> usize {
        self.gpu.rank() as usize
    }

    fn ranks(&self) -> usize {
        self.gpu.ranks() as usize
    }

    /// Runs an operation on both communicators, with `send` and `recv` of this many elements, and compares the results.
    fn compare(
        &self,
        [send, recv]: [usize; 2],
        on_gpu: impl Fn(TensorRef<'_>, TensorMut<'_>) -> epwire::Result<()>,
        on_host: impl Fn(&[bf16], &mut [bf16]) -> epwire::Result<Outcome>,
    ) {
        let (send, mut recv) = (self.values(send as u64, send), self.values(recv as u64 + 1, recv));
        let (send_gpu, mut recv_gpu) =
            (self.stream.clone_htod(&send).unwrap(), self.stream.clone_htod(&recv).unwrap());
        on_gpu(self.view(&send_gpu), self.view_mut(&mut recv_gpu)).unwrap();
        complete(&on_host(&send, &mut recv).unwrap());
        assert!(self.stream.clone_dtoh(&recv_gpu).unwrap() == recv, "rank {}", self.rank());
    }
}

fn complete(outcome: &Outcome) {
    assert!(outcome.is_complete(), "{outcome:?}");
}

fn on_ranks(count: u32, body: impl Fn(&Rank) + Sync) {
    on_ranks_by(&Paths::default(), count, body);
}

fn on_ranks_by(paths: &Paths, count: u32, body: impl Fn(&Rank) + Sync) {
    let groups = Group::threads(count).unwrap();
    thread::scope(|scope| {
        let body = &body;
        for group in &groups {
            scope.spawn(move || {
                let config = CommConfig::default().device(Device::Cuda(group.rank())).paths(*paths);
                let context = CudaContext::new(group.rank() as usize).unwrap();
                let rank = Rank {
                    gpu: Comm::create_blocking(group, config).unwrap(),
                    host: Comm::create_blocking(group, CommConfig::default()).unwrap(),
                    stream: context.new_stream().unwrap(),
                    context,
                };
                body(&rank);
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}

pub(crate) fn every_collective_gives_what_the_host_gives(gpus: u32) {
    on_ranks(gpus, every_collective);
    let queues = "queue".parse().unwrap();
    on_ranks_by(&queues, gpus, |r| {
        for peer in (0..gpus).filter(|peer| *peer != r.gpu.rank()) {
            assert!(matches!(r.gpu.path(peer), Path::Queue(_)), "{:?}", r.gpu.path(peer));
        }
        every_collective(r);
    });
}

fn every_collective(r: &Rank) {
    let (gpu, host, ranks, sum) = (&r.gpu, &r.host, r.ranks(), Reduction::Sum);
    for n in COUNTS {
        let root = (n % ranks) as u32;
        let at_root = |len| if r.gpu.rank() == root { len } else { 0 };
        let in_place = if r.gpu.rank() == root { n * ranks } else { n };
        r.compare(
            [n, n],
            |send, recv| gpu.enqueue(Call::all_reduce(send, recv, sum), r.stream()),
            |send, recv| host.all_reduce_blocking(send, recv, sum),
        );
        r.compare(
            [0, n],
            |_, recv| gpu.enqueue(Call::all_reduce_in_place(recv, Reduction::Max), r.stream()),
            |_, recv| host.all_reduce_in_place_blocking(recv, Reduction::Max),
        );
        r.compare(
            [n, at_root(n)],
            |send, recv| gpu.enqueue(Call::reduce(send, recv, Reduction::Average, root), r.stream()),
            |send, recv| host.reduce_blocking(send, recv, Reduction::Average, root),
        );
        r.compare(
            [n * ranks, n],
            |send, recv| gpu.enqueue(Call::reduce_scatter(send, recv, sum), r.stream()),
            |send, recv| host.reduce_scatter_blocking(send, recv, sum),
        );
        r.compare(
            [n, n * ranks],
            |send, recv| gpu.enqueue(Call::all_gather(send, recv), r.stream()),
            |send, recv| host.all_gather_blocking(send, recv),
        );
        r.compare(
            [0, n * ranks],
            |_, recv| gpu.enqueue(Call::all_gather_in_place(recv), r.stream()),
            |_, recv| host.all_gather_in_place_blocking(recv),
        );
        r.compare(
            [n * ranks, n * ranks],
            |send, recv| gpu.enqueue(Call::all_to_all(send, recv), r.stream()),
            |send, recv| host.all_to_all_blocking(send, recv),
        );
        r.compare(
            [0, n * ranks],
            |_, recv| gpu.enqueue(Call::all_to_all_in_place(recv), r.stream()),
            |_, recv| host.all_to_all_in_place_blocking(recv),
        );
        r.compare(
            [0, n],
            |_, recv| gpu.enqueue(Call::broadcast(recv, root), r.stream()),
            |_, recv| host.broadcast_blocking(recv, root),
        );
        r.compare(
            [at_root(n), n],
            |send, recv| gpu.enqueue(Call::broadcast_from(send, recv, root), r.stream()),
            |send, recv| host.broadcast_from_blocking(send, recv, root),
        );
        r.compare(
            [n, n - at_root(n)],
            |send, recv| gpu.enqueue(Call::broadcast_from(send, recv, root), r.stream()),
            |send, recv| host.broadcast_from_blocking(send, recv, root),
        );
        r.compare(
            [n, at_root(n * ranks)],
            |send, recv| gpu.enqueue(Call::gather(send, recv, root), r.stream()),
            |send, recv| host.gather_blocking(send, recv, root),
        );
        r.compare(
            [0, in_place],
            |_, recv| gpu.enqueue(Call::gather_in_place(recv, root), r.stream()),
            |_, recv| host.gather_in_place_blocking(recv, root),
        );
        r.compare(
            [0, in_place],
            |_, recv| gpu.enqueue(Call::scatter_in_place(recv, root), r.stream()),
            |_, recv| host.scatter_in_place_blocking(recv, root),
        );
        r.compare(
            [at_root(n * ranks), n],
            |send, recv| gpu.enqueue(Call::scatter(send, recv, root), r.stream()),
            |send, recv| host.scatter_blocking(send, recv, root),
        );
    }
    assert!(!gpu.take_fault().unwrap());
}

pub(crate) fn sends_that_cross_in_a_group_do_not_wait_for_each_other(gpus: u32) {
    on_ranks(gpus, |r| {
        let (rank, ranks, n) = (r.gpu.rank(), r.gpu.ranks(), 100_003);
        let (after, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let sent = r.stream.clone_htod(&vec![rank; n]).unwrap();
        let mut received = r.stream.alloc_zeros::<u32>(n).unwrap();
        let around = (
            Call::send(r.view(&sent), after, 7),
            Call::recv(r.view_mut(&mut received), before, 7),
            Call::barrier(),
        );
        let (outcome, ()) = r.gpu.begin_on(around, r.stream()).unwrap().wait();
        complete(&outcome.unwrap());
        assert!(r.stream.clone_dtoh(&received).unwrap() == vec![before; n]);
        let mut suspects = r.stream.clone_htod(&vec![-1i32; r.ranks()]).unwrap();
        r.gpu.enqueue_suspects(r.view_mut(&mut suspects), r.stream()).unwrap();
        assert_eq!(r.stream.clone_dtoh(&suspects).unwrap(), vec![0; r.ranks()]);
    });
}

pub(crate) fn a_captured_collective_adds_up_what_is_there_at_its_replay(gpus: u32) {
    on_ranks(gpus, |r| {
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { r.context.disable_event_tracking() };
        for n in COUNTS {
            let mut send = r.stream.alloc_zeros::<f32>(n).unwrap();
            let mut recv = r.stream.alloc_zeros::<f32>(n).unwrap();
            r.stream.synchronize().unwrap();
            let graph = capture(r, || {
                let call = Call::all_reduce(r.view(&send), r.view_mut(&mut recv), Reduction::Sum);
                r.gpu.enqueue(call, r.stream()).unwrap();
                // A replay has no handle.
                let refused = r.gpu.begin_on(Call::barrier(), r.stream()).unwrap_err();
                assert!(matches!(&refused, Error::Invalid(f) if f.text.contains("capture")), "{refused}");
                // Nor could this graph's maker know how long it may be launched.
                let refused = r.gpu.enqueue(Call::barrier(), (&r.stream).into()).unwrap_err();
                assert!(
                    matches!(&refused, Error::State(f) if f.text.contains("StreamRef::capturing")),
                    "{refused}"
                );
            });
            for round in 1..4 {
                let own = (round * (r.rank() + 1)) as f32;
                r.stream.memcpy_htod(&vec![own; n], &mut send).unwrap();
                graph.launch().unwrap();
                let sum: usize = (0..r.ranks()).map(|rank| round * (rank + 1)).sum();
                assert!(r.stream.clone_dtoh(&recv).unwrap() == vec![sum as f32; n]);
            }
        }
    });
}

fn capture(rank: &Rank, enqueue: impl FnOnce()) -> epwire::cudarc::driver::CudaGraph {
    use epwire::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    rank.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    enqueue();
    rank.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("a graph")
}

pub(crate) fn a_work_on_a_gpu_is_a_future_and_may_be_dropped(gpus: u32) {
    on_ranks(gpus, |r| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..4 {
            let mut memory = r.stream.clone_htod(&[1.0f32; 1000]).unwrap();
            let call = Call::all_reduce_in_place(r.view_mut(&mut memory), Reduction::Sum);
            let (outcome, ()) = runtime.block_on(r.gpu.begin_on(call, r.stream()).unwrap());
            complete(&outcome.unwrap());
            assert!(r.stream.clone_dtoh(&memory).unwrap() == [r.ranks() as f32; 1000]);
            // Nobody asks for this work, which runs all the same; another stream follows it.
            let call = Call::all_reduce_in_place(r.view_mut(&mut memory), Reduction::Max);
            drop(r.gpu.begin_on(call, r.stream()).unwrap());
            let other = r.context.new_stream().unwrap();
            let work = r.gpu.begin_on(Call::barrier(), (&other).into()).unwrap();
            let ended = work.wait_for(PATIENT).unwrap_or_else(|_| panic!("the barrier has not ended"));
            complete(&ended.0.unwrap());
        }
        assert!(!r.gpu.take_fault().unwrap(), "nobody was missing");
    });
}

pub(crate) fn what_a_communicator_on_a_gpu_cannot_take_is_named(gpus: u32) {
    on_ranks(gpus, |r| {
        let refused = |ended: epwire::Result<()>, want: &str| {
            let error = ended.unwrap_err();
            assert!(error.to_string().contains(want), "{want}: {error}");
        };
        let (send, mut recv) =
            (r.stream.alloc_zeros::<f32>(64).unwrap(), r.stream.alloc_zeros::<bf16>(64).unwrap());
        let call = Call::all_reduce(r.view(&send), r.view_mut(&mut recv), Reduction::Sum);
        refused(r.gpu.enqueue(call, r.stream()), "send is of F32, recv of Bf16");
        let other = r.context.new_stream().unwrap();
        let call = Call::all_reduce_in_place(r.view_mut(&mut recv), Reduction::Sum);
        refused(r.gpu.enqueue(call, (&other).into()), "viewed for another stream");
        // SAFETY: refused, so that nobody reads it.
        let gaps = unsafe { TensorRef::from_raw(4096, DType::F32, 4, 8, 64) };
        refused(r.gpu.enqueue(Call::send(gaps, 0, 0), r.stream()), "gaps");
        // SAFETY: as above.
        let words = unsafe { TensorRef::from_raw(4096, DType::U16, 4, 8, 16) };
        refused(r.gpu.enqueue(Call::send(words, 0, 0), r.stream()), "U16");
        let call = Call::all_reduce_in_place(r.view_mut(&mut recv), Reduction::Sum);
        refused(r.host.enqueue(call, r.stream()), "on the host");
        refused(r.gpu.barrier_blocking().map(drop), "on a GPU");
        // The outcome covers nothing of what was enqueued.
        let (outcome, ()) = r.gpu.begin_on(Call::barrier(), r.stream()).unwrap().wait();
        complete(&outcome.unwrap());
    });
}

/// In memory of the communicator, which peers read, also by copy engines; of a rank that uses other memory; and what is
/// refused.
pub(crate) fn memory_that_peers_read_gives_the_same_sums(gpus: u32) {
    const LEN: usize = 1_000_000;
    const BYTES: usize = 2 * LEN;
    let groups = Group::threads(gpus).unwrap();
    thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                let context = CudaContext::new(group.rank() as usize).unwrap();
                let stream = context.new_stream().unwrap();
                let device = Device::Cuda(group.rank());
                let config =
                    CommConfig::default().device(device).heap_bytes(2 * BYTES as u64).copy_engines_from(1);
                let gpu = Comm::create_blocking(group, config).unwrap();
                let host = Comm::create_blocking(group, CommConfig::default()).unwrap();
                let refused = gpu.alloc::<f32>(1).unwrap_err().to_string();
                assert!(refused.contains("use Comm::alloc_gpu"), "{refused}");
                let refused = host.alloc_gpu(1).unwrap_err().to_string();
                assert!(refused.contains("use Comm::alloc"), "{refused}");
                let refused = gpu.alloc_gpu(2 * BYTES + 1).unwrap_err();
                assert!(matches!(refused, Error::Limit(_)), "{refused}");
                let (send, recv) = (gpu.alloc_gpu(BYTES).unwrap(), gpu.alloc_gpu(BYTES).unwrap());
                let other = stream.alloc_zeros::<bf16>(LEN).unwrap();
                for case in 0..3 {
                    let mut random = Random(case << 8 | u64::from(group.rank()) | 1 << 40);
                    let values: Vec<_> = (0..LEN).map(|_| random.bf16()).collect();
                    let mut want = vec![bf16::ZERO; LEN];
                    complete(&host.all_reduce_blocking(&values, &mut want, Reduction::Sum).unwrap());
                    let elsewhere = case == 2 && group.rank() == 0;
                    let from = if elsewhere { other.device_ptr(&stream).0 } else { send.address() };
                    // SAFETY: as many bytes are at both addresses, and the stream is awaited before they are freed.
                    let sums = unsafe {
                        result::memcpy_htod_sync(from, &values).unwrap();
                        let view = TensorRef::from_raw(from, DType::Bf16, 1, LEN, BYTES);
                        let out = TensorMut::from_raw(recv.address(), DType::Bf16, LEN);
                        gpu.enqueue(Call::all_reduce(view, out, Reduction::Sum), (&stream).into()).unwrap();
                        stream.synchronize().unwrap();
                        let mut sums = vec![bf16::ZERO; LEN];
                        result::memcpy_dtoh_sync(&mut sums, recv.address()).unwrap();
                        sums
                    };
                    assert!(sums == want, "case {case}, rank {}", group.rank());
                    group.barrier_blocking("case").unwrap();
                }
                let (ranks, block) = (gpu.ranks() as usize, LEN / gpu.ranks() as usize / 8 * 8);
                let values = vec![bf16::from_f32(group.rank() as f32 + 1.0); block];
                let mut want = vec![bf16::ZERO; ranks * block];
                complete(&host.all_gather_blocking(&values, &mut want).unwrap());
                // SAFETY: as above.
                let gathered = unsafe {
                    result::memcpy_htod_sync(send.address(), &values).unwrap();
                    let view = TensorRef::from_raw(send.address(), DType::Bf16, 1, block, 2 * block);
                    let out = TensorMut::from_raw(recv.address(), DType::Bf16, ranks * block);
                    gpu.enqueue(Call::all_gather(view, out), (&stream).into()).unwrap();
                    stream.synchronize().unwrap();
                    let mut gathered = vec![bf16::ZERO; ranks * block];
                    result::memcpy_dtoh_sync(&mut gathered, recv.address()).unwrap();
                    gathered
                };
                assert!(gathered == want, "gathered on rank {}", group.rank());
                let by_copies = u64::from((2..=8).contains(&ranks));
                assert_eq!(gpu.traffic().unwrap().operations_copied, by_copies, "of {ranks} ranks");
                assert_eq!(format!("{send:?}"), format!("GpuBuffer[{BYTES} bytes at {:#x}]", send.address()));
                drop(send);
                gpu.alloc_gpu(BYTES).unwrap();
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}

/// Memory of `cuMemAlloc`, freed when it is dropped.
struct Allocated(u64);

impl Allocated {
    fn of(bytes: usize) -> Self {
        // SAFETY: it is written before it is read.
        Self(unsafe { result::malloc_sync(bytes) }.unwrap())
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once, and used by nobody: it has been deregistered.
        unsafe { result::free_sync(self.0) }.unwrap();
    }
}

/// Of a communicator, of a subset on GPUs, and of one that permits queues, whose peers read no memory; and memory that is
/// refused, on all ranks or on one.
pub(crate) fn memory_that_is_registered_gives_the_same_sums(gpus: u32) {
    const LEN: usize = 1_000_000;
    const BYTES: usize = 2 * LEN;
    let groups = Group::threads(gpus).unwrap();
    let sum = |comm: &Comm, send: u64, recv: u64, stream: &Arc<CudaStream>| {
        let values = vec![bf16::from_f32(1.0 + comm.rank() as f32); LEN];
        let mut sums = vec![bf16::ZERO; LEN];
        // SAFETY: as many bytes are at both addresses, and the stream is awaited before they are freed.
        unsafe {
            result::memcpy_htod_sync(send, &values).unwrap();
            let view = TensorRef::from_raw(send, DType::Bf16, 1, LEN, BYTES);
            let out = TensorMut::from_raw(recv, DType::Bf16, LEN);
            comm.enqueue(Call::all_reduce(view, out, Reduction::Sum), stream.into()).unwrap();
            stream.synchronize().unwrap();
            result::memcpy_dtoh_sync(&mut sums, recv).unwrap();
        }
        let want = bf16::from_f32((gpus * (gpus + 1) / 2) as f32);
        assert!(sums.iter().all(|sum| *sum == want), "rank {}", comm.rank());
    };
    thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                let context = CudaContext::new(group.rank() as usize).unwrap();
                let stream = context.new_stream().unwrap();
                let config = CommConfig::default().device(Device::Cuda(group.rank())).sms(8);
                let gpu = Comm::create_blocking(group, config.clone()).unwrap();
                let queues = config.clone().paths(Paths::default().queue(true));
                let queued = Comm::create_blocking(group, queues).unwrap();
                let host = Comm::create_blocking(group, CommConfig::default()).unwrap();
                let subset = host.subset_with_blocking(&(0..gpus).collect(), config).unwrap().unwrap();
                let (send, recv) = (Allocated::of(BYTES), Allocated::of(BYTES));
                // SAFETY: freed below.
                let pooled = unsafe { result::malloc_async(stream.cu_stream(), BYTES) }.unwrap();
                // SAFETY: what is registered is deregistered before it is freed.
                let register = |comm: &Comm, at| unsafe { comm.register_blocking(group, at, BYTES) };
                let mut ignored = register(&host, send.0).unwrap();
                ignored.deregister_blocking().unwrap();
                let refused = register(&gpu, pooled).unwrap_err();
                assert!(matches!(refused, Error::Invalid(_)), "{refused}");
                let refused = register(&gpu, if group.rank() == 0 { pooled } else { send.0 });
                match refused.map_err(|error| (group.rank(), error)) {
                    Err((0, Error::Invalid(_)) | (1.., Error::Peer(_))) => {}
                    other => panic!("{other:?}"),
                }
                // SAFETY: it was never registered.
                unsafe { result::free_async(pooled, stream.cu_stream()) }.unwrap();
                for comm in [&gpu, &subset, &queued] {
                    let mut from = register(comm, send.0).unwrap();
                    sum(comm, send.0, recv.0, &stream);
                    let mut to = register(comm, recv.0).unwrap();
                    assert_eq!((from.address(), to.address(), to.bytes()), (send.0, recv.0, BYTES));
                    sum(comm, send.0, recv.0, &stream);
                    for registration in [&mut from, &mut to] {
                        registration.deregister_blocking().unwrap();
                        registration.deregister_blocking().unwrap();
                    }
                    assert!(format!("{to:?}").ends_with(", deregistered]"), "{to:?}");
                    sum(comm, send.0, recv.0, &stream);
                }
                group.barrier_blocking("end").unwrap();
            });
        }
    });
}

pub(crate) fn ranks_that_call_different_collectives_are_told(gpus: u32) {
    on_ranks(gpus, |r| {
        if gpus == 1 {
            return; // no other rank to differ from
        }
        let mut memory = r.stream.alloc_zeros::<f32>(64).unwrap();
        let reduction = if r.rank() == 0 { Reduction::Sum } else { Reduction::Max };
        let call = Call::all_reduce_in_place(r.view_mut(&mut memory), reduction);
        let (ended, ()) = r.gpu.begin_on(call, r.stream()).unwrap().wait();
        let error = ended.unwrap_err();
        assert!(matches!(&error, Error::Mismatch(f) if f.text.contains("max")), "{error}");
    });
}

/// Columns of matrices side by side, and uneven blocks.
pub(crate) fn blocks_on_a_gpu_lie_where_those_of_the_host_do(gpus: u32) {
    on_ranks(gpus, |r| {
        let (gpu, host, rank, ranks) = (&r.gpu, &r.host, r.rank(), r.ranks());
        for n in [1, 33, 5000] {
            let counts: Vec<usize> = (0..ranks).map(|of| if of == 1 { 0 } else { n + of }).collect();
            let (all, own) = (counts.iter().sum::<usize>(), counts[rank]);
            for blocks in [Blocks::new(counts.clone()), Blocks::new(counts.clone()).rows(7).pitch(all + 5)] {
                let (whole, part) = (7 * (all + 5), 7 * own);
                r.compare(
                    [part, whole],
                    |send, recv| gpu.enqueue(Call::all_gather_blocks(send, recv, blocks.clone()), r.stream()),
                    |send, recv| host.all_gather_blocks_blocking(send, recv, blocks.clone()),
                );
                r.compare(
                    [0, whole],
                    |_, recv| gpu.enqueue(Call::all_gather_blocks_in_place(recv, blocks.clone()), r.stream()),
                    |_, recv| host.all_gather_blocks_in_place_blocking(recv, blocks.clone()),
                );
                let sum = Reduction::Sum;
                r.compare(
                    [whole, part],
                    |send, recv| {
                        let call = Call::reduce_scatter_blocks(send, recv, blocks.clone(), sum);
                        gpu.enqueue(call, r.stream())
                    },
                    |send, recv| host.reduce_scatter_blocks_blocking(send, recv, blocks.clone(), sum),
                );
            }
            let (root, blocks) = ((n % ranks) as u32, Blocks::new(counts.clone()));
            let in_place = if gpu.rank() == root { all } else { own };
            r.compare(
                [0, in_place],
                |_, recv| gpu.enqueue(Call::gather_blocks_in_place(recv, blocks.clone(), root), r.stream()),
                |_, recv| host.gather_blocks_in_place_blocking(recv, blocks.clone(), root),
            );
            r.compare(
                [0, in_place],
                |_, recv| gpu.enqueue(Call::scatter_blocks_in_place(recv, blocks.clone(), root), r.stream()),
                |_, recv| host.scatter_blocks_in_place_blocking(recv, blocks.clone(), root),
            );
            let lengths = |from: usize| (0..ranks).map(|to| n + 3 * from + to).collect::<Vec<_>>();
            let to = Blocks::new(lengths(rank));
            let from = Blocks::new((0..ranks).map(|of| lengths(of)[rank]).collect::<Vec<_>>());
            let size = ranks * (n + 4 * ranks);
            r.compare(
                [size, size],
                |send, recv| {
                    gpu.enqueue(Call::all_to_all_blocks(send, to.clone(), recv, from.clone()), r.stream())
                },
                |send, recv| host.all_to_all_blocks_blocking(send, to.clone(), recv, from.clone()),
            );
        }
    });
}
