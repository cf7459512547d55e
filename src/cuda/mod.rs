//! Operations of a buffer on a GPU: enqueued on the caller's stream; the calls never wait.
//!
//! A buffer made with [`Device::Cuda`](crate::Device::Cuda) keeps its window in GPU memory and moves rows with kernels.
//! The builders [`Dispatch`](crate::Dispatch) and [`Combine`](crate::Combine) are the same as for host buffers, with
//! views of device memory; the calls are [`EpBuffer::enqueue_dispatch`](crate::EpBuffer::enqueue_dispatch),
//! [`EpBuffer::enqueue_dispatch_send`](crate::EpBuffer::enqueue_dispatch_send) and the methods of the handles here.
//! Each kind of buffer refuses the calls of the other. A build without the crate's feature `cuda` has all of these
//! types and functions, but refuses to create the buffer.
//!
//! # Streams
//! A call checks its arguments, enqueues its work on the given stream and returns; it neither waits nor copies nor
//! allocates device memory. Work enqueued later on that stream sees its results without further synchronisation. The
//! operations of a lane run in the order of the calls: where a call uses another stream than the lane's previous call,
//! its stream waits for an event of that call. Everything is enqueued from the calling thread, so
//! [`StreamRef::per_thread`] means that thread's own stream. [`Completion`] waits on the host, or makes another stream
//! wait ([`Completion::wait_on`]).
//!
//! Kernels wait on the GPU for the kernels of peers. The guide's page [`gpus`](crate::guide::gpus) lists what the
//! program must avoid meanwhile (loading kernels, calls that synchronise, streams that share a hardware queue).
//!
//! # Memory
//! Views of `cudarc` slices (feature `cudarc`) record the kernel in the slice's events: a slice may be read, overwritten
//! or dropped right after the call, because cudarc orders that after the kernel. But a slice has one event for all its
//! readers, and each is recorded over the one before. A call here waits for that one, behind its kernel; cudarc's own
//! reads do not. So if the program then reads the slice on another stream than the call's, while the call may still read
//! it, let that stream wait for the call first ([`Completion::wait_on`], or an event), or wait for the call before the
//! slice is overwritten or dropped. Tensors of candle (feature `candle-cuda`) are kept until nobody reads them. For views
//! of raw addresses the caller promises all this ([`TensorRef::from_raw`]).
//!
//! cudarc orders nothing in a context whose streams are all default streams or wrapped ones; there a slice can be
//! viewed only for its own stream. The per-thread default stream differs on each thread although cudarc sees one:
//! allocate, use and drop its slices on a single thread, also with cudarc's own calls. In other contexts in which calls
//! were enqueued, a buffer or communicator keeps a stream of its own until it is dropped, so that slices stay in order.
//!
//! Addresses are aligned to their element; `x`, `rows`, `expert_out`, `out` and the row stride of `x` to 16 bytes,
//! `contributions` to 4. Misaligned addresses are refused.
//!
//! # Graphs
//! Calls on a stream under capture are captured if unsafe code has made the [`StreamRef`], and promised what follows:
//! `StreamRef::capturing` for a stream of cudarc, [`StreamRef::from_raw`] for any. On others they are refused
//! ([`Error::State`](crate::Error::State)). The graph fixes `n`; a row whose ids are all -1 moves nothing. A captured call
//! must not have a deadline of its own. The caller orders the replays, and keeps the memory, including that of cudarc's
//! slices, for as long as the graph may be replayed. A graph uses device memory and events of the buffer or communicator
//! whose calls were captured, and keeps neither: it must not be launched any more once that is dropped. Replays must also
//! have ended before the membership changes ([`Group::step`](crate::Group::step) that puts a change into effect,
//! `set_active`) and before an active peer is connected again or disconnected: these wait for eager calls, but know
//! nothing of replays. Handles belong to the
//! calls, not to replays: if the dispatch was captured, end its handle with a captured combine or `release_on`, in
//! the same graph or in another. For two graphs, keep the handle from the end of one capture to the other, then
//! replay the graphs in turn, on one stream or with an event of the program between them: a replay out of turn
//! moves nothing and leaves a record ([`Cause::Held`](crate::Cause::Held)).
//!
//! Dropping a handle releases it on the stream of its last call, in whatever state that stream is by then:
//!
//! | that stream | the release runs |
//! |---|---|
//! | is not under capture | there, after the handle's last call |
//! | is under capture | as part of the graph |
//! | refuses calls, because it is under capture or for another reason | at once, on the default stream of the thread that drops the handle; if it is refused there too, before the lane's next dispatch |
//! | is no longer under capture, but the handle's last call was captured | at once; it gives up what the graph has not run yet |
//! | has had its capture invalidated | before the lane's next dispatch |
//! | is the per-thread default stream | on that of the dropping thread: after the handle's last call, but not after what another thread has enqueued since; use `release_on` there |
//!
//! A captured call has no outcome: look at `contributions` and [`EpBuffer::take_errors`](crate::EpBuffer::take_errors).
//! Its [`Completion`] lets other streams wait for it within the capture, which they thereby join; and a graph of
//! another stream can wait for calls that are not captured. cudarc's event tracking cannot be captured: switch it off
//! (`CudaContext::disable_event_tracking`) for what a graph uses.
//!
//! # Prefill
//! A [`PrefillBuffer`](crate::prefill::PrefillBuffer) on a GPU has the calls
//! [`enqueue_dispatch`](crate::prefill::PrefillBuffer::enqueue_dispatch),
//! [`enqueue_dispatch_count`](crate::prefill::PrefillBuffer::enqueue_dispatch_count) and
//! [`enqueue_dispatch_send`](crate::prefill::PrefillBuffer::enqueue_dispatch_send), and its [`Routing`] those for
//! combine, for dispatching again, and for another dispatch into it;
//! [`enqueue_count`](crate::prefill::PrefillBuffer::enqueue_count) counts where tokens would go. The
//! rules above for streams, memory and graphs apply, with these differences:
//!
//! * A dispatch and a combine are one operation each: nothing has to be released, and a routing may be combined any
//!   number of times. [`PrefillCompletion`] waits on the host and has the outcome, also of bad ids
//!   ([`Cause::Routing`](crate::Cause::Routing)).
//! * The receiving half of an operation reads the inputs of the first one. Views of `cudarc` slices keep their guards
//!   until then, and both halves are on one stream; for raw addresses the caller promises it.
//! * A dispatch needs memory for its routing. It reuses that of a former routing of the lane (up to 4 are kept), or
//!   allocates it, during which CUDA may wait for the GPU. [`Routing::new`] allocates ahead, and
//!   [`Routing::enqueue_dispatch`] uses that again. Memory of captured operations is kept until the buffer is dropped: a
//!   program that captures repeatedly captures into one routing.
//! * Both halves of an operation are captured into one graph. Counts that a program waits for cannot be captured. What went
//!   wrong in replays, bad ids and rows without a place among it, is in
//!   [`PrefillBuffer::take_errors`](crate::prefill::PrefillBuffer::take_errors).
//!
//! # Routing
//! An id that is out of range or repeated within its token counts as "not routed". The first 64 of an operation are
//! recorded and the others are counted, see [`EpBuffer::take_errors`](crate::EpBuffer::take_errors) and that of prefill.

mod completion;
#[cfg(feature = "cudarc")]
mod cudarc;
mod errors;
#[cfg(feature = "cudarc")]
mod guard;
mod held;
#[cfg(feature = "candle-cuda")]
pub(crate) mod kept;
mod memory;
mod operation;
mod prefill;
mod stream;
mod suspects;
mod view;
mod waiting;

pub use completion::Completion;
pub use errors::Errors;
pub use memory::{CombineOutput, DispatchOutput, Gpu};
pub use operation::{Combining, Dispatched, Dispatching, WindowRows};
pub use prefill::{
    PrefillCombineOutput, PrefillCombining, PrefillCompletion, PrefillCounts, PrefillDispatching,
    PrefillDispatchingInto, PrefillOutput, Routing,
};
pub use stream::StreamRef;
pub(crate) use suspects::enqueue_suspects;
pub(crate) use view::{Origin, Site};
pub use view::{TensorMut, TensorRef};
