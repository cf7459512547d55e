//! Collectives, sends and receives among the ranks of a group: a [`Comm`].
//!
//! ```
//! use epwire::comm::{CommConfig, Reduction};
//! use epwire::{Comm, Group};
//!
//! # fn main() -> epwire::Result<()> {
//! // Two ranks as threads of this process; across processes use `Group::join`.
//! let ranks: Vec<_> = Group::threads(2)?
//!     .into_iter()
//!     .map(|group| {
//!         std::thread::spawn(move || {
//!             let comm = Comm::create_blocking(&group, CommConfig::default())?;
//!             // Borrowed, on this thread:
//!             let (own, mut sum) = ([comm.rank() as f32 + 1.0; 4], [0.0; 4]);
//!             let outcome = comm.all_reduce_blocking(&own, &mut sum, Reduction::Sum)?;
//!             assert!(outcome.is_complete() && sum == [3.0; 4]);
//!             // Owned, begun now and awaited later, as a future or like this:
//!             let work = comm.all_gather(vec![comm.rank()], vec![9; 2]);
//!             let (outcome, (_, all)) = work.wait();
//!             assert!(outcome?.is_complete() && all == [0, 1]);
//!             // Nobody leaves before all have what they need of it.
//!             group.barrier_blocking("end")?;
//!             Ok::<_, epwire::Error>(())
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     rank.join().unwrap()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! All members call the same collectives in the same order, with the same types, reductions, roots and counts. Sends
//! and receives are matched by peer and tag, in the order of the calls.
//!
//! Operations of different communicators have no order among them, and none relative to those of an
//! [`EpBuffer`](crate::EpBuffer). But a thread that waits for one communicator makes no progress on the others. If ranks
//! may wait for them in different orders, await all `Work` handles concurrently, by `join!` or as tasks of an executor:
//! each poll then advances its own communicator.
//!
//! # Two forms
//! * **Blocking.** `*_blocking` borrows slices and returns an [`Outcome`](crate::Outcome). Not for a thread that serves
//!   an async executor.
//! * **Async.** The others begin the operation at once and return a [`Work`], which is a handle and a future. It owns
//!   the buffers ([`Input`], [`Output`]: `Vec`, arrays, [`CommBuffer`] and more) and gives them back with the outcome,
//!   also after an error. So a refused call loses nothing, and memory stays safe if a future is dropped or forgotten.
//!   Awaiting it never blocks the executor: bytes are moved and added in `poll`. The process's progress thread calls the
//!   task's waker, so the waker must not block.
//!
//! In both forms several calls can be made at once, as between `ncclGroupStart` and `ncclGroupEnd`: pass a tuple or
//! `Vec` of [`Call`]s to [`Comm::begin`] or [`Comm::run_blocking`].
//!
//! # Names
//! | NCCL | MPI | epwire |
//! |---|---|---|
//! | `ncclCommInitRank` | `MPI_Init` | [`Comm::create`], of a [`Group`](crate::Group) |
//! | `ncclCommFinalize`, `ncclCommDestroy` | `MPI_Comm_free` | drop the [`Comm`] and its clones, once their works have ended |
//! | `ncclCommAbort` | `MPI_Comm_revoke` (ULFM) | every wait is bounded; to end waits for some ranks at once: [`Comm::revoke`], [`Group::revoke`](crate::Group::revoke) |
//! | `ncclCommGetAsyncError` | | the [`Outcome`](crate::Outcome) of each operation; [`Comm::take_fault`], [`Comm::membership`] |
//! | `ncclCommShrink` | `MPI_Comm_shrink` (ULFM) | [`Group::step`](crate::Group::step): the same communicator continues without the lost ranks |
//! | `ncclCommSplit` | `MPI_Comm_split`, `MPI_Comm_create` | [`Comm::subset`] |
//! | | `MPI_Comm_dup` | [`Comm::subset`] of all ranks |
//! | `ncclCommUserRank`, `ncclCommCount` | `MPI_Comm_rank`, `MPI_Comm_size` | [`Comm::rank`], [`Comm::ranks`] |
//! | `ncclMemAlloc` | `MPI_Alloc_mem`, `MPI_Win_allocate` | [`Comm::alloc`], on a GPU [`Comm::alloc_gpu`] |
//! | `ncclMemFree` | `MPI_Free_mem`, `MPI_Win_free` | drop the [`CommBuffer`] or [`GpuBuffer`] |
//! | `ncclCommRegister`, `ncclCommDeregister` | `MPI_Win_create` | [`Comm::register`], [`Registration::deregister`]; not needed on the host, see [Memory](#memory) |
//! | `ncclBroadcast`, `ncclBcast` | `MPI_Bcast` | [`Comm::broadcast_from`], in place [`Comm::broadcast`] |
//! | `ncclAllReduce` | `MPI_Allreduce`; in place `MPI_IN_PLACE` | [`Comm::all_reduce`], [`Comm::all_reduce_in_place`] |
//! | `ncclReduce` | `MPI_Reduce` | [`Comm::reduce`], [`Comm::reduce_in_place`] |
//! | `ncclReduceScatter` | `MPI_Reduce_scatter_block`, `MPI_Reduce_scatter` | [`Comm::reduce_scatter`], [`Comm::reduce_scatter_blocks`], each also in place |
//! | `ncclAllGather` | `MPI_Allgather`, `MPI_Allgatherv` | [`Comm::all_gather`], [`Comm::all_gather_blocks`], each also in place |
//! | `ncclAlltoAll` | `MPI_Alltoall`, `MPI_Alltoallv` | [`Comm::all_to_all`], [`Comm::all_to_all_blocks`], each also in place |
//! | `ncclGather` | `MPI_Gather`, `MPI_Gatherv` | [`Comm::gather`], [`Comm::gather_blocks`], each also in place |
//! | `ncclScatter` | `MPI_Scatter`, `MPI_Scatterv` | [`Comm::scatter`], [`Comm::scatter_blocks`], each also in place |
//! | | `MPI_Barrier`, `MPI_Ibarrier` | [`Comm::barrier_blocking`], [`Comm::barrier`] |
//! | `ncclSend`, `ncclRecv` | `MPI_Send`, `MPI_Recv`; `MPI_Isend`, `MPI_Irecv` | [`Comm::send`], [`Comm::recv`] |
//! | `ncclGroupStart`, `ncclGroupEnd` | `MPI_Sendrecv` | [`Calls`] |
//! | | `MPI_Wait`, `MPI_Test`, `MPI_Request_free` | [`Work::wait`], [`Work::try_wait`], dropping the [`Work`] |
//! | | `MPI_Waitall`, `MPI_Waitany` | a group of [`Calls`] has one [`Work`]; otherwise `join!` and `select!` over the works |
//! | `NCCL_CTA_POLICY_ZERO` | | [`CommConfig::copy_engines_from`] |
//! | `ncclSum`, `ncclProd`, `ncclMin`, `ncclMax`, `ncclAvg` | `MPI_SUM`, `MPI_PROD`, `MPI_MIN`, `MPI_MAX` | [`Reduction`] |
//!
//! | NCCL | MPI | type of elements |
//! |---|---|---|
//! | `ncclInt8`, `ncclChar` | `MPI_INT8_T` | `i8` |
//! | `ncclUint8` | `MPI_UINT8_T`, `MPI_BYTE` | `u8` |
//! | `ncclInt32`, `ncclInt` | `MPI_INT32_T`, `MPI_INT` | `i32` |
//! | `ncclUint32` | `MPI_UINT32_T` | `u32` |
//! | `ncclInt64` | `MPI_INT64_T` | `i64` |
//! | `ncclUint64` | `MPI_UINT64_T` | `u64` |
//! | `ncclFloat16`, `ncclHalf` | | [`half::f16`] |
//! | `ncclBfloat16` | | [`half::bf16`] |
//! | `ncclFloat32`, `ncclFloat` | `MPI_FLOAT` | `f32` |
//! | `ncclFloat64`, `ncclDouble` | `MPI_DOUBLE` | `f64` |
//!
//! On a GPU the type is that of the view, a [`DType`](crate::DType).
//!
//! Not provided:
//! * receives from any source or with any tag, probing, and `MPI_Get_count`: a receive does not say how much has come;
//! * `ncclRedOpCreatePreMulSum`, `MPI_Op_create`, and reductions by logic, bits or location;
//! * `MPI_Scan` and `MPI_Exscan`, `MPI_Alltoallw`, collectives of neighbours, one-sided access;
//! * groups of calls over several communicators;
//! * `ncclFloat8e4m3` and `ncclFloat8e5m2`: move such values as `u8`.
//!
//! For tensor-parallel layers [`AllReduceNorm`] is an all-reduce followed by the residual addition, RMSNorm and
//! quantisation, in one call, also in place, and on a GPU for few rows in one kernel.
//!
//! # When a member fails
//! Every wait is bounded. A member that is silent for a [deadline](CommConfig::deadline) is given up until the next
//! membership, and the [`Outcome`](crate::Outcome) names it as missing. The parts of the output that a missing rank was
//! to give are then unspecified; a reduction that lacks any member has no result at all. Out of place the input
//! survives, in place it does not. Complete here does not mean complete everywhere: see [`Comm::take_fault`].
//!
//! If ranks call different operations, or disagree about the size of an uneven block, all of them get
//! [`Error::Mismatch`](crate::Error::Mismatch), which names both calls; the communicator can be used again from its next
//! membership on. A rank for which the operation is complete all the same, because it needs nothing from those that
//! differ, gets the error from its next call (on a GPU from its next collective). The same happens if a message has
//! another type than its receive.
//!
//! A communicator that was [created](Comm::create) with a group follows it: [`Group::step`](crate::Group::step) begins
//! the next membership for all buffers and communicators at the same step. No operation may be in flight then: await all
//! works before, or drop them.
//!
//! # Memory
//! On the host, small pieces travel through rings of slots in the peers' windows, and so does everything that goes by
//! queues. How peers of the same host read large pieces depends on where they lie, how large they are, and on the
//! machine:
//!
//! | the input is in | its peers | all-reduce | all-gather | all-to-all |
//! |---|---|---|---|---|
//! | memory from [`Comm::alloc`], pieces from 16 KiB on | have it mapped: no system call, and reductions add straight from it | 6.3 ms | 4.3 ms | 3.4 ms |
//! | any other memory | get it through the rings: one more copy, of bytes that are still in a cache | 8.4 ms | 5.5 ms | 5.2 ms |
//! | any other memory | read it by `process_vm_readv`, which copies in the kernel | 13.6 ms | 7.3 ms | 6.9 ms |
//!
//! The times are those of 64 MiB of `f32` between 2 processes on the 2 cores of a virtual machine that nothing else used
//! (AMD EPYC, 2026-11-29; medians of 5 runs of `bench --ranks 2 --collective all_reduce,all_gather,all_to_all --bytes 64M
//! --iterations 7`, with `--heap` and with `EPWIRE_PULL_FROM` as `never` and 16384). Which of the last two is faster
//! depends on the machine, so a process measures it once and takes the faster one, for each size. It does not know how
//! busy the cores will be: a ring holds 256 KiB, and has to be filled several times for a larger piece, for which both
//! ends may have to wait for a core each time. If the cores are busy with other programs, set `EPWIRE_PULL_FROM=262145`,
//! so that such pieces are read by `process_vm_readv`. A sandbox, Yama's `ptrace_scope` or another user's process may
//! forbid the call; then `EPWIRE_LOG=path=info` says so for each peer, and all goes through the rings. Results are the
//! same.
//!
//! Registration speeds up nothing on the host, where [`Comm::register`] succeeds and peers map nothing. Messages carry
//! the addresses of their bytes, so peers can read any memory without an agreement in advance; and private memory of a
//! process cannot be mapped by others later on. Allocate large tensors that are sent often by [`Comm::alloc`].
//! [`CommConfig::plan`] says how much memory a window takes.
//!
//! On GPUs large operations need no rings if their buffers are memory from [`Comm::alloc_gpu`] or memory that
//! [`Comm::register`] has registered: each rank reads what it needs from its peers' memory. The conditions are:
//! * On every rank the buffers that peers read are memory of either kind and begin at multiples of 16 bytes. These are
//!   the buffers that are sent, and in an all-reduce also those that receive.
//! * The blocks of a reduce-scatter, an all-gather or an all-to-all are multiples of 16 bytes.
//! * An all-to-all is not in place, and the operation is not a broadcast.
//! * The communicator permits no queues, and has at most 8 ranks.
//! * The memory lies in the first 32 GiB of the heap or of what is registered behind it.
//!
//! Otherwise all ranks use rings, with the same result, as sends and receives always do. Peers only read such memory;
//! nobody but its owner writes to it.
//!
//! Peers can map memory of `cudaMalloc`, and of `cuMemCreate` with a file descriptor as handle type. They cannot map
//! memory of a pool (`cudaMallocAsync`), from which cudarc and candle allocate, nor managed memory.
//!
//! ```no_run
//! # async fn tensor(comm: &epwire::Comm, group: &epwire::Group, address: u64, bytes: usize) -> epwire::Result<()> {
//! // SAFETY: the memory, from cudaMalloc, is freed after it has been deregistered.
//! let mut registration = unsafe { comm.register(group, address, bytes) }.await?;
//! // ... operations on views of it; then, once they have ended:
//! registration.deregister().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Copy engines
//! On GPUs, with [`CommConfig::copy_engines_from`], copy engines instead of SMs read the peers' memory in an all-gather
//! or all-to-all of equal blocks whose receiving buffer has at least so many bytes. A kernel of one thread block
//! exchanges the calls with the peers, the copies follow, several at a time, and a last kernel tells the peers that
//! they are done. The conditions above apply. In addition, because the host enqueues the copies, the senders' buffers
//! must lie at the same offset on all ranks: allocate them in the same order, or register memory of the same sizes in
//! the same order. An all-gather may be in place.
//!
//! If a buffer is elsewhere on some rank, or a rank is missing, the last kernel moves the bytes itself: the result is
//! the same and comes later. [`Traffic::operations_copied`](crate::Traffic::operations_copied) counts the operations that
//! copy engines have moved. The copies of an operation must take less than the [deadline](CommConfig::deadline).
//!
//! Kernels also move what one process has registered on several GPUs: CUDA copies such memory in the order in which the
//! copies were enqueued, whatever their streams are, so copies that wait for peers would hold each other up.
//!
//! In a graph, copies read only memory of [`Comm::alloc_gpu`], at addresses that the graph keeps. So if such a graph
//! was captured with a member, that member's window stays mapped, and its memory allocated, until the communicator is
//! dropped, even if the member has ended. Replays with another member in its place give the right result, moved by
//! kernels; capture the graph again to use copy engines.

mod blocks;
mod call;
mod communicator;
mod config;
mod connect;
mod enqueue;
mod inner;
mod membership;
mod memory;
mod norm;
mod number;
mod operations;
mod registration;
mod subset;
mod work;

pub use blocks::Blocks;
pub use call::{Call, Calls};
pub use communicator::Comm;
pub use config::{CommConfig, CommPlan};
pub use memory::{CommBuffer, GpuBuffer, Input, Output, Source, Target};
pub use norm::{AllReduceNorm, MaybeSource, MaybeTarget, NormBuffers};
pub use number::{Number, Reduction};
pub use registration::Registration;
pub use work::Work;
