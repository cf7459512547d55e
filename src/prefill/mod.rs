//! Dispatch and combine of many tokens: a [`PrefillBuffer`] takes up to 65,536 tokens of each rank in an operation, through rings of
//! fewer slots than that in the peers' windows, so that memory does not grow with the tokens.
//!
//! ```
//! use epwire::prefill::{PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput};
//! use epwire::{Dispatch, EpConfig, Group, HostBuffer, TensorMut, TensorRef};
//! use half::bf16;
//!
//! # fn main() -> epwire::Result<()> {
//! // Two ranks as threads of this process; Group::join meets other processes.
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
//!             let (mut routing, outcome) = counted.receive_blocking(PrefillOutput {
//!                 layout,
//!                 capacity,
//!                 rows: Some(TensorMut::new(&mut rows)),
//!                 row_expert: Some(&mut row_expert),
//!                 ..PrefillOutput::default()
//!             })?;
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
//! # How it goes
//! A row is copied out of its slot to its place in the output as it comes, and the slot is its source's again: that is a credit.
//! Each peer and direction progresses by itself: waiting for one peer's credit holds up neither rows to others nor receiving.
//! Places need the counts of all sources, which go ahead of the rows.
//!
//! A dispatch and a combine are an operation each. All members call the same operations on the same lane in the same order; a lane
//! has one at a time, so that two are in flight on two lanes. What lies between them is the caller's [`Routing`].
//!
//! * In one: [`PrefillBuffer::dispatch_blocking`] with a capacity. What overflows is the last in order, and is reported.
//! * Counted first: [`PrefillBuffer::dispatch_count_blocking`] waits for the counts, and the output is allocated then.
//! * In halves, where the rings hold all rows: [`PrefillBuffer::dispatch_send_blocking`],
//!   [`PrefillBuffer::combine_send_blocking`]. [`PrefillPlan::split_tokens`] says how many; more is an error before anything is sent.
//! * Again: [`PrefillBuffer::dispatch_again_blocking`] sends other rows by the same routing, as a backward pass does.
//!
//! # Numbers
//! Those of decode, bit for bit: FP8 and sums are the same code. In rank-reduced combine each rank sums its experts' rows with
//! the weights, in top-k order, rounds, and the ranks' rows are added in ascending order; ordered combine adds all rows at home in top-k
//! order. Bias comes behind all else, ahead of the rounding.
//!
//! # When a rank fails
//! As everywhere, waits are bounded and the [`Outcome`](crate::Outcome) names who is missing. A source that is lost while its rows come
//! keeps its places, and all of them are marked -1; its count is 0. [`PrefillCombineOutput::lacks`] says for each token which ranks
//! its sum lacks. A routing holds for one membership.
//!
//! So far buffers are on the host.

mod buffer;
mod combine;
mod config;
mod operation;
mod output;
mod routing;

pub use buffer::PrefillBuffer;
pub use combine::PrefillCombine;
pub use config::{PrefillConfig, PrefillPlan};
pub use output::{PrefillCombineOutput, PrefillLayout, PrefillOutput};
pub use routing::{PrefillCombining, PrefillDispatching, Received, Routing};
