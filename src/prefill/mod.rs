//! Dispatch and combine of many tokens: a [`PrefillBuffer`] moves up to 65,536 tokens of each rank in one operation,
//! through rings in the peers' windows that have fewer slots than that, so that the window does not grow with the
//! tokens.
//!
//! ```
//! use epwire::prefill::{PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput};
//! use epwire::{Dispatch, EpConfig, Group, HostBuffer, TensorMut, TensorRef};
//! use half::bf16;
//!
//! # fn main() -> epwire::Result<()> {
//! // Two ranks as threads of this process; across processes use `Group::join`.
//! let config = PrefillConfig::new(EpConfig::new(1024, 128, 8, 2)); // max_tokens, hidden, experts, topk
//! let ranks: Vec<_> = Group::threads(2)?
//!     .into_iter()
//!     .map(|group| {
//!         let config = config.clone();
//!         std::thread::spawn(move || {
//!             let buffer = PrefillBuffer::create_blocking(&group, config)?;
//!             let x = vec![bf16::from_f32(1.5); 1000 * 128]; // [tokens, hidden]
//!             let ids: Vec<i32> = (0..1000).flat_map(|t| [t % 8, (t + 3) % 8]).collect(); // [tokens, topk]
//!             let weights = vec![0.5f32; 2000];
//!             let input = Dispatch::new(TensorRef::new(&x, 128), TensorRef::new(&ids, 2))
//!                 .weights(TensorRef::new(&weights, 2));
//!
//!             // How many rows come, ahead of the memory for them.
//!             let counted = buffer.dispatch_count_blocking(input)?;
//!             let layout = PrefillLayout::Packed { alignment: 128 };
//!             let capacity = counted.received(layout)?.capacity;
//!             let mut rows = HostBuffer::<bf16>::zeroed(capacity * 128);
//!             let mut row_expert = vec![0; capacity]; // -1 in the padding
//!             let output =
//!                 PrefillOutput::new(layout, capacity).rows(TensorMut::new(&mut rows)).row_expert(&mut row_expert);
//!             let (mut routing, outcome) = counted.receive_blocking(output)?;
//!             assert!(outcome.is_complete());
//!
//!             // Experts would run here; these return their input.
//!             let mut out = HostBuffer::<bf16>::zeroed(1000 * 128);
//!             let outcome = buffer.combine_blocking(
//!                 &mut routing,
//!                 PrefillCombine::new(TensorRef::new(&rows, 128)),
//!                 PrefillCombineOutput::new(TensorMut::new(&mut out)),
//!             )?;
//!             assert!(outcome.is_complete());
//!             assert_eq!(&out[..], &x[..]);
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
//! # How it works
//! Each row is copied from its slot to its place in the output as it arrives; the slot is then returned to its source
//! as a credit. Each peer and direction makes progress by itself: waiting for one peer's credit delays neither rows to
//! other peers nor receiving. Where a row goes depends on the counts of all sources, which are sent before the rows.
//!
//! A dispatch and a combine are one operation each. All members call the same operations on the same lane in the same
//! order; a lane runs one operation at a time, so two in flight need two lanes. A dispatch returns a [`Routing`], which
//! the caller passes to its combines.
//!
//! * In one call: [`PrefillBuffer::dispatch`] with a given capacity. If rows overflow, the last in order are left out,
//!   and that is reported.
//! * Counted first: [`PrefillBuffer::dispatch_count`] waits for the counts, then the output is allocated.
//! * In halves, if the rings hold all rows: [`PrefillBuffer::dispatch_send`], [`PrefillBuffer::combine_send`].
//!   [`PrefillPlan::split_tokens`] is the limit; more is an error before anything is sent.
//! * Into a [`Routing`] that is there already: [`PrefillBuffer::dispatch_into`] and its halves allocate nothing that it
//!   has.
//! * Again: [`PrefillBuffer::dispatch_again`] sends other rows with the same routing, as a backward pass does.
//!
//! Each is a future and has a `_blocking` form.
//!
//! On the host, spans and metrics of these operations have the names of decode: `dispatch` (also for
//! [`dispatch_again`](PrefillBuffer::dispatch_again)), `dispatch_send` (also for
//! [`dispatch_count`](PrefillBuffer::dispatch_count)), `dispatch_receive`, `combine`, `combine_send` and
//! `combine_receive`. Their labels are `operation` and `rank` only, so they do not tell prefill from decode; the
//! metrics of [traffic](PrefillBuffer::traffic) do.
//!
//! # Numbers
//! The results equal those of decode bit for bit: FP8 conversion and sums are the same code. In rank-reduced combine
//! each rank sums its experts' rows with the weights, in top-k order, and rounds; then the ranks' rows are added in
//! ascending order of ranks. Ordered combine adds all rows at the token's own rank in top-k order. Bias is added last,
//! before the rounding.
//!
//! # When a rank fails
//! As everywhere, waits are bounded and the [`Outcome`](crate::Outcome) names the missing ranks. A source that is lost
//! while its rows arrive keeps its places, all of which are marked -1; its count is 0.
//! [`PrefillCombineOutput::lacks`] says for each token which ranks its sum lacks. A routing is valid for one
//! membership.
//!
//! # On GPUs
//! A buffer made with [`Device::Cuda`](crate::Device::Cuda) keeps its rings in GPU memory, and kernels move the rows. Its
//! operations are enqueued on a stream, and read and write GPU memory: see [`cuda`](crate::cuda#prefill). Peers
//! that cannot be mapped are reached by queues, as in decode.

mod buffer;
mod combine;
mod combining;
mod config;
mod count;
mod dispatch;
mod operation;
mod output;
mod routing;

pub(crate) use buffer::Inner;
pub use buffer::PrefillBuffer;
pub use combine::PrefillCombine;
pub use combining::PrefillCombining;
pub use config::{PrefillConfig, PrefillPlan};
pub(crate) use count::shape_of_ids;
pub use dispatch::{PrefillDispatching, PrefillDispatchingInto};
pub(crate) use output::Shape;
pub use output::{
    GenericPrefillCombineOutput, GenericPrefillOutput, PrefillCombineOutput, PrefillLayout, PrefillOutput,
};
pub use routing::{Received, Routing};
