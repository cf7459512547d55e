//! Collectives, sends and receives among the ranks of a group: a [`Comm`].
//!
//! ```
//! use epwire::comm::{CommConfig, Reduction};
//! use epwire::{Comm, Group};
//!
//! # fn main() -> epwire::Result<()> {
//! // Two ranks as threads of this process; Group::join meets other processes.
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
//! and receives are matched by peer and tag, in the order of the calls. Operations of different communicators have no
//! order among them, nor with those of an [`EpBuffer`](crate::EpBuffer); but a thread that waits in one of them makes
//! no progress on the others. If ranks wait for operations in different orders, await all `Work` handles concurrently, by `join!` or
//! as tasks of an executor: each poll then advances its own communicator.
//!
//! # Two forms
//! * `*_blocking` borrows slices and returns an [`Outcome`](crate::Outcome). Not for a thread that serves an async
//!   executor.
//! * The others begin the operation at once and return a [`Work`], a handle and future that owns the buffers
//!   ([`Input`], [`Output`]: `Vec`, arrays, [`CommBuffer`] and more) and gives them back with the outcome, whatever
//!   that is. So a refused call loses nothing, and memory stays safe if a future is dropped or forgotten. Awaiting it
//!   never blocks the executor; the work of moving and adding is done in `poll`. The process's progress thread wakes
//!   the task, so its waker must not block.
//! * Several calls at once, as `ncclGroupStart` and `ncclGroupEnd`: a tuple or `Vec` of [`Call`]s, to [`Comm::begin`]
//!   or [`Comm::run_blocking`].
//!
//! # Names
//! | NCCL | MPI | here |
//! |---|---|---|
//! | `ncclCommInitRank` | `MPI_Init` | [`Comm::create`], of a [`Group`](crate::Group) |
//! | `ncclCommSplit` | `MPI_Comm_split`, `MPI_Comm_create` | [`Comm::subset`] |
//! | `ncclCommUserRank`, `ncclCommCount` | `MPI_Comm_rank`, `MPI_Comm_size` | [`Comm::rank`], [`Comm::ranks`] |
//! | `ncclMemAlloc` | `MPI_Alloc_mem`, `MPI_Win_allocate` | [`Comm::alloc`] |
//! | `ncclCommRegister`, `ncclCommDeregister` | `MPI_Win_create` | [`Comm::register`], [`Registration::deregister`]; not needed on the host, see [Memory](#memory) |
//! | `ncclBroadcast`, `ncclBcast` | `MPI_Bcast` | [`Comm::broadcast`] |
//! | `ncclAllReduce` | `MPI_Allreduce`; in place `MPI_IN_PLACE` | [`Comm::all_reduce`], [`Comm::all_reduce_in_place`] |
//! | `ncclReduce` | `MPI_Reduce` | [`Comm::reduce`], [`Comm::reduce_in_place`] |
//! | `ncclReduceScatter` | `MPI_Reduce_scatter_block`, `MPI_Reduce_scatter` | [`Comm::reduce_scatter`], [`Comm::reduce_scatter_blocks`], each also in place |
//! | `ncclAllGather` | `MPI_Allgather`, `MPI_Allgatherv` | [`Comm::all_gather`], [`Comm::all_gather_blocks`], each also in place |
//! | `ncclAlltoAll` | `MPI_Alltoall`, `MPI_Alltoallv` | [`Comm::all_to_all`], [`Comm::all_to_all_blocks`], each also in place |
//! | `ncclGather` | `MPI_Gather`, `MPI_Gatherv` | [`Comm::gather`], [`Comm::gather_blocks`], each also in place |
//! | `ncclScatter` | `MPI_Scatter`, `MPI_Scatterv` | [`Comm::scatter`], [`Comm::scatter_blocks`], each also in place |
//! | | `MPI_Barrier`, `MPI_Ibarrier` | [`Comm::barrier_blocking`], [`Comm::barrier`] |
//! | `ncclSend`, `ncclRecv` | `MPI_Send`, `MPI_Recv`; `MPI_Isend`, `MPI_Irecv` | [`Comm::send`], [`Comm::recv`] |
//! | `ncclGroupStart`, `ncclGroupEnd` | `MPI_Sendrecv`, `MPI_Waitall` | [`Calls`] |
//! | | `MPI_Wait`, `MPI_Test`, `MPI_Request_free` | [`Work::wait`], [`Work::try_wait`], dropping the [`Work`] |
//! | `NCCL_CTA_POLICY_ZERO` | | [`CommConfig::copy_engines_from`] |
//! | `ncclSum`, `ncclProd`, `ncclMin`, `ncclMax`, `ncclAvg` | `MPI_SUM`, `MPI_PROD`, `MPI_MIN`, `MPI_MAX` | [`Reduction`] |
//!
//! For tensor-parallel layers [`AllReduceNorm`] is an all-reduce followed by the residual addition, RMSNorm and
//! quantisation, in one call and on a GPU in one kernel; also in place.
//!
//! # When a member fails
//! Every wait is bounded. A member that is silent for a [deadline](CommConfig::deadline) is given up until the next
//! membership, and the [`Outcome`](crate::Outcome) names it as missing. The parts of the output that a missing rank was
//! to give are then unspecified; a reduction that lacks any member has no result at all. Out of place the input
//! survives, in place it does not. Complete here does not mean complete everywhere: see [`Comm::take_fault`].
//!
//! If ranks call different operations, all of them get [`Error::Mismatch`](crate::Error::Mismatch), which names both
//! calls; the communicator can be used again from its next membership on. A message of another type than its receive is
//! such a case too.
//!
//! A communicator that was [created](Comm::create) with a group follows it: [`Group::step`](crate::Group::step) begins
//! the next membership for all buffers and communicators at the same step. No operation may be in flight then: await
//! works before, or drop them.
//!
//! # Memory
//! Small pieces travel through rings of slots in the peers' windows, and so does everything behind queues. How peers of
//! the same host read large pieces depends on where they lie, how large they are, and on the machine:
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
//! depends on the machine, so a process measures it once and takes the faster one, for each size. There is one
//! exception. A ring holds 256 KiB, and must be filled again for more: where ranks outnumber the cores, both ends then
//! wait for a core each time, so larger pieces are read by `process_vm_readv` in any case. Where the cores of ranks are
//! also busy with other programs, `EPWIRE_PULL_FROM=262145` does the same. A sandbox, Yama's `ptrace_scope` or another
//! user's process may forbid the call; then `EPWIRE_LOG=path=info` says so for each peer, and all goes through the
//! rings. Results are the same.
//!
//! Registration speeds up nothing on the host, where [`Comm::register`] succeeds and peers map nothing: messages carry
//! the addresses of their bytes, so that peers read any memory without an agreement in advance, and private memory of a
//! process cannot be mapped by others later on. Tensors that are worth it are allocated by [`Comm::alloc`].
//! [`CommConfig::plan`] says what a window takes.
//!
//! On GPUs large operations on memory from [`Comm::alloc_gpu`], or memory that [`Comm::register`] has registered, have
//! no rings either: each rank reads what it needs from its peers' memory. They take this way if on every rank the
//! buffers that peers read lie in memory of either kind and begin at multiples of 16 bytes: what is sent, and for an
//! all-reduce also what is received. The blocks of a reduce-scatter, an all-gather or an all-to-all must be multiples of
//! 16 bytes, and an all-to-all must not be in place. In any other case, for a broadcast, and in a communicator that
//! permits queues or has more than 8 ranks, all ranks use rings, with the same result.
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
//! or all-to-all of equal blocks whose receiving buffer has at least so many bytes. A kernel of one block tells and
//! awaits the calls; copies follow, several at a time; a kernel that has nothing to move tells the peers that they are
//! done. This needs what is said above of memory that peers read and, because the host makes the copies, the senders'
//! buffers at the same offset on all ranks: allocate them in the same order, or register memory of the same sizes in
//! the same order. An all-gather may be in place.
//!
//! If a buffer is elsewhere on some rank, or a rank is missing, the last kernel moves the bytes itself: the result is
//! the same and comes later. [`Traffic::operations_copied`](crate::Traffic::operations_copied) tells how often copies
//! did. The copies of an operation must take less than the [deadline](CommConfig::deadline).
//!
//! In a graph they read memory of [`Comm::alloc_gpu`] only, at addresses that the graph keeps. So the window of a member
//! stays mapped, and its memory allocated, until the communicator is dropped, if such a graph was captured with that
//! member, even if the member has ended. Replays with another member in its place have the right result, by kernels;
//! capture again to have it by copies.

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
