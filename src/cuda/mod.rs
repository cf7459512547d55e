//! Operations of a buffer on a GPU: enqueued on the caller's stream, never waited for.
//!
//! A buffer made with [`Device::Cuda`](crate::Device::Cuda) keeps its window in GPU memory and moves rows by kernels. The
//! builders [`Dispatch`](crate::Dispatch) and [`Combine`](crate::Combine) are those of host buffers, over views of device memory;
//! the calls are [`EpBuffer::enqueue_dispatch`](crate::EpBuffer::enqueue_dispatch),
//! [`EpBuffer::enqueue_dispatch_send`](crate::EpBuffer::enqueue_dispatch_send) and the methods of the handles here. Each kind of
//! buffer refuses the calls of the other. A build without the crate's feature `cuda` has all of this and refuses to create
//! the buffer.
//!
//! # Streams
//! A call checks its arguments, enqueues on its stream and returns; it neither waits nor copies nor allocates device
//! memory. What comes later on that stream sees its results: nothing else is needed to wait for it there. Operations of a
//! lane run in the order of the calls; where the stream differs from that of the lane's call before, an event is waited for.
//! Everything is enqueued from the calling thread, so [`StreamRef::per_thread`] means that thread's own. [`Completion`] waits on
//! the host, or lets another stream wait ([`Completion::wait_on`]).
//!
//! Kernels wait on the GPU for those of peers. What the program must leave alone meanwhile (loading kernels, calls that
//! synchronise, streams that share a hardware queue) is in the guide, [`gpus`](crate::guide::gpus).
//!
//! # Memory
//! Views of `cudarc` slices (feature `cudarc`) keep cudarc's guards until after the enqueue: a slice may be read, overwritten or
//! dropped right after the call, cudarc puts that behind the kernel. For views of raw addresses the caller promises that
//! ([`TensorRef::from_raw`]). Addresses are aligned to their element; `x`, `rows`, `expert_out` and `out` to 16 bytes, a
//! row stride of `x` too, `contributions` to 4. Misaligned ones are refused.
//!
//! # Graphs
//! Calls on a stream under capture are captured. `n` is frozen then: rows of -1 ids move nothing. A deadline of the call is
//! refused; the caller orders replays, and keeps the memory, also that of cudarc's slices, for as long as the graph may be
//! replayed. Handles belong to the calls, not to replays: end one whose dispatch was captured by a captured combine or
//! `release_on`, in the same graph or another. For two graphs, keep the handle from the end of one capture to the other, then
//! replay them in turns, on one stream or with an event of the program between: a replay out of turn moves nothing and leaves
//! a record ([`Cause::Held`](crate::Cause::Held)).
//! Dropping a handle releases it on the stream of its last call, whatever that stream is doing by then: still under capture,
//! the release becomes part of the graph; no longer, it runs at once and gives up what the graph has not run yet; its capture
//! invalidated, the lane's next dispatch releases first. The per-thread default stream is then that of the thread that drops,
//! behind the handle's last call but not behind what another thread has enqueued since: use `release_on` there. A captured call
//! has no [`Completion`] outcome: look at `contributions` and [`EpBuffer::take_errors`](crate::EpBuffer::take_errors).
//! cudarc's event tracking cannot be captured: switch it off (`CudaContext::disable_event_tracking`) for what a graph uses.
//!
//! # Routing
//! An id that is out of range or repeated within its token counts as "not routed" and is recorded, up to 64 of an operation
//! (the others are counted), see [`EpBuffer::take_errors`](crate::EpBuffer::take_errors).

mod completion;
#[cfg(feature = "cudarc")]
mod cudarc;
mod memory;
mod operation;
mod stream;
mod view;

pub use completion::{Completion, Errors};
pub use memory::{CombineOutput, DispatchOutput, Gpu};
pub use operation::{Combining, Dispatched, Dispatching, WindowRows};
pub use stream::StreamRef;
pub(crate) use view::{Origin, Site};
pub use view::{TensorMut, TensorRef};
