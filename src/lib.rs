//! Expert-parallel (EP) communication for Mixture-of-Experts inference: `dispatch` sends each token to the ranks that
//! own its top-k experts, `combine` returns the experts' outputs to the token's rank and sums them with the routing
//! weights.
//!
//! A C core moves the bytes. This crate wraps it in owned types and adds what a server needs: it detects how the process
//! was launched, brings the ranks together, and lets them agree on the remaining members after a failure. No async
//! runtime is needed: the futures run on any executor, and there are `_blocking` forms for plain threads
//! ([`guide::threads`]).
//!
//! ```
//! use epwire::{Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Group, Layout, Payload};
//! use epwire::{TensorMut, TensorRef};
//! use half::bf16;
//!
//! # fn main() -> epwire::Result<()> {
//! // Two ranks as threads of this process; across processes use `Group::join`.
//! let config = EpConfig::new(4, 128, 8, 2); // max_tokens, hidden, experts, topk
//! let ranks: Vec<_> = Group::threads(2)?
//!     .into_iter()
//!     .map(|group| {
//!         let config = config.clone();
//!         std::thread::spawn(move || {
//!             let buffer = EpBuffer::create_blocking(&group, config)?;
//!             let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0)?;
//!
//!             let x = vec![bf16::from_f32(1.5); 4 * 128]; // [tokens, hidden]
//!             let topk_idx = [0i32, 5, 1, 6, 2, 7, 3, 4]; // [tokens, topk]
//!             let topk_weights = [0.5f32; 8];
//!             let input = Dispatch::new(TensorRef::new(&x, 128), TensorRef::new(&topk_idx, 2))
//!                 .weights(TensorRef::new(&topk_weights, 2));
//!             let dispatched = buffer.dispatch_blocking(input, received.output())?;
//!
//!             // A real expert would run on its rows here; this one returns them unchanged.
//!             let rows = received.rows_as::<bf16>();
//!             let mut expert_out = vec![bf16::ZERO; rows.len()];
//!             for expert in 0..received.counts.len() {
//!                 let at = received.places(expert, 128); // [counts[expert], 128]
//!                 expert_out[at.clone()].copy_from_slice(&rows[at]);
//!             }
//!             // A Vec would do as well; outputs are written faster where they are aligned to 64 bytes.
//!             let mut out = epwire::HostBuffer::<bf16>::zeroed(4 * 128);
//!             let outcome = dispatched.combine_blocking(
//!                 Combine::new(TensorRef::new(&expert_out, 128)),
//!                 CombineOutput::new(TensorMut::new(&mut out)),
//!             )?;
//!             assert!(outcome.is_complete());
//!             assert_eq!(&out[..], &x[..]);
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
//! # Map
//! In the order in which a program uses them:
//!
//! - [`launch`]: which rank this process is, from the variables of its launcher.
//! - [`Group`]: the ranks of a run, which meet and agree on the members. Below it are [`rendezvous`] and [`store`].
//! - [`EpBuffer`]: dispatch and combine for decode. [`Dispatched`] is a dispatch that has still to be combined, and
//!   [`Outcome`] says how an operation ended.
//! - [`prefill`]: dispatch and combine for the many tokens of prompts.
//! - [`comm`]: collectives, sends and receives among the same ranks.
//! - [`doctor`]: which prerequisites of each path the machine meets, and how fast ranks reach each other.
//! - [`guide`]: pages about more than one item; [`guide::serving`] is about a whole server.
//!
//! # When a rank fails
//! Every wait is bounded. An operation whose peer dies or falls silent ends with what has arrived, and its [`Outcome`]
//! names the missing ranks: no dispatch, combine or collective hangs or returns an error because of it. The group
//! agrees on which members continue, and from which step, and [`Group::step`] puts that into effect; a replacement may
//! join ([`group`]).
//!
//! A rank stays alive to its peers by taking part. While peers wait for it, it must call its next operation, or the other
//! half of the one it has begun, within one [deadline](EpConfig::deadline) of its last call; awaiting an [`Event`]
//! counts as well. A rank that computes for longer is given up, so set the deadline above the longest time between two
//! calls.
//!
//! # Features
//! - `succession`, the only default one: with at least three members, the run survives the loss of the one that hosts
//!   the rendezvous server, see [`group`]. A program whose ranks meet at
//!   [`Ranks::server`](launch::spawn::Ranks::server) can turn it off.
//! - `cuda`: buffers and communicators on GPUs, see [`mod@cuda`]. Needs a CUDA toolkit to build, 12.0 or newer, and a
//!   driver only to use a GPU.
//! - `cudarc`: views of cudarc's slices and streams, and that crate as `epwire::cudarc`. Needs no toolkit, and leaves it
//!   to the program how cudarc links CUDA.
//! - `tracing`: spans and events. `metrics`: counters, gauges and histograms.
//! - `candle`: views of candle's tensors in host memory. Needs Rust 1.94, as candle-core does.
//! - `candle-cuda`: views of candle's tensors on GPUs too. Turns on `candle`, `cuda`, `cudarc` and candle's own `cuda`,
//!   which links CUDA's libraries.
//! - `serde`: configurations, plans, [`Launch`](launch::Launch) and [`Outcome`] can be serialised and deserialised.
//! - `bindgen`: checks the C bindings against the header.
//!
//! RDMA adapters need no feature: libibverbs and libmlx5 are opened at run time.
//!
//! # Spans and metrics
//! An *operation* is one call; each half of a split call is also one. The blocking forms have the same names as the
//! others.
//!
//! | of | names of operations |
//! |---|---|
//! | [`EpBuffer`] | `dispatch`, `dispatch_send`, `dispatch_receive`, `combine`, `combine_send`, `combine_receive` |
//! | [`PrefillBuffer`](prefill::PrefillBuffer) | the same; a dispatch that only counts first is a `dispatch_send`, a repeated one a `dispatch` |
//! | [`Comm`] | those of its calls, such as `all_reduce`; `group` for several calls at once |
//!
//! So operations of decode and of prefill have the same names, and the metrics of operations do not tell them apart; the
//! metrics of traffic below do, by their label `kind`.
//!
//! Operations of GPU buffers have not ended when their call returns, so neither spans nor the metrics of operations
//! contain them: see [`cuda::Completion`].
//!
//! `tracing` gives each operation a span `epwire` at level `DEBUG`, which is closed when the operation ends or its
//! future is dropped. Its fields are `operation`, `rank` and, if the operation is degraded, `missing` (the ranks).
//! Events in the span:
//!
//! | message | level | fields | meaning |
//! |---|---|---|---|
//! | `degraded` | `WARN` | `record`: the first wait given up | the operation ended without some peer's part. Level `DEBUG` if every such peer was reported before ([`Outcome::news`]), and in sending halves, because the receiving half reports it |
//! | `refused` | `WARN` | `error` | the operation ended with an error |
//! | `abandoned` | `DEBUG` | | the operation's future was dropped before it had ended |
//!
//! `metrics` go, through version 0.24 of the crate `metrics`, to the recorder that the program installs. A recorder for
//! another version of that crate gets nothing, without an error. For Prometheus, run `cargo add
//! metrics-exporter-prometheus@0.18`, and at the start of the program call
//!
//! ```ignore
//! metrics_exporter_prometheus::PrometheusBuilder::new().install()?; // serves http://HOST:9000/metrics
//! ```
//!
//! The metrics are described to the recorder, with units, whenever a buffer is created, so install it before. Each of these
//! has the labels `operation` and `rank`:
//!
//! | metric | kind | unit | meaning |
//! |---|---|---|---|
//! | `epwire_operations_total` | counter | operations | operations that ended with an [`Outcome`], complete or degraded |
//! | `epwire_operation_seconds` | histogram | seconds | time from call to end of operations that ended with an [`Outcome`] |
//! | `epwire_degraded_total` | counter | operations | operations that ended without the part of some peer |
//! | `epwire_errors_total` | counter | operations | operations that ended with an [`Error`] |
//! | `epwire_abandoned_total` | counter | operations | operations whose futures were dropped before they had ended |
//!
//! The next metrics count what has been moved ([`Traffic`]). They have the labels `rank` and `kind`: `buffer` for an
//! [`EpBuffer`], `prefill` for a [`PrefillBuffer`](prefill::PrefillBuffer), `comm` for a [`Comm`].
//!
//! | metric | kind | unit | meaning |
//! |---|---|---|---|
//! | `epwire_rows_sent_total` | counter | rows | rows that dispatch sent: one for each token and rank that the token goes to |
//! | `epwire_rows_received_total` | counter | rows | rows that dispatch received |
//! | `epwire_rows_answered_total` | counter | rows | rows that combine answered |
//! | `epwire_bytes_sent_total` | counter | bytes | bytes of rows with their scales, of answers, and of the messages of collectives, sends and receives; by the label `path`: `self`, `thread`, `shm`, `vmm`, `ipc` or `queue` |
//! | `epwire_bytes_received_total` | counter | bytes | the same, for bytes received |
//! | `epwire_waited_nanoseconds_total` | counter | nanoseconds | time waited for the rank in the label `peer` |
//!
//! Not all of these metrics exist on GPUs:
//!
//! | | rows | bytes | waits |
//! |---|---|---|---|
//! | [`EpBuffer`], [`PrefillBuffer`](prefill::PrefillBuffer) on the host | yes | yes | yes |
//! | [`Comm`] on the host | | yes | yes |
//! | [`EpBuffer`] on a GPU | yes | yes | no: request `wait_ns` of its outputs |
//! | [`PrefillBuffer`](prefill::PrefillBuffer) on a GPU | yes | yes | yes |
//! | [`Comm`] on a GPU | | for calls that are not captured, counted when they are enqueued | no |
//!
//! The kernels of an [`EpBuffer`] or a [`PrefillBuffer`](prefill::PrefillBuffer) count from the first call of
//! `traffic()` on; call it before graphs are captured. For metrics, their counts are copied from the GPU when an
//! outcome is read, at most every 100 ms. The async `wait` of a
//! [`PrefillCompletion`](crate::cuda::PrefillCompletion::wait) may not block and copies nothing: call `outcome` now and
//! then.
//!
//! ## Events of the core
//! With `tracing` the C core's log arrives as events too. They have the target `epwire::core`, the fields `rank`, `peer`
//! and `subsystem`, and a text. `WARN` is for peers that are given up and paths that are refused, `INFO` for sizes,
//! paths in use and memberships, `TRACE` for why each path was chosen. The subscriber's level at the creation of a
//! buffer, a communicator or a group decides which events are sent. The subscriber runs within calls and threads of the
//! library that hold its locks, and peers may be waiting: for these events it must return soon, and must not call the
//! library. `EPWIRE_LOG` prints the same lines itself, with
//! or without these features, see [`mod@env`]: beside a subscriber that prints them too, each appears twice.
//!
//! ## Events and metrics of the membership
//! A member of a [`Group`] reports its state whenever that changes; [`Group::membership`] and [`Group::health`] return
//! the same when called. The events of `tracing` have this member's rank in the field `rank`:
//!
//! | message | level | other fields | meaning |
//! |---|---|---|---|
//! | `waiting for the rendezvous server` | `INFO` | `address`, `seconds`, `deadline` | [`Group::join`] has found no server for `seconds`; it gives up after `deadline` seconds |
//! | `waiting for ranks to join` | `INFO` | `missing`, `of`, `seconds`, `deadline` | the run begins when all `of` ranks have joined; both messages appear after 2 s, then every 10 s |
//! | `rank 2 has ended`, and the like | `INFO`; `WARN` for a rank that is silent or has ended | `peer`: that rank | the server sees a rank in another state, with the words of `EPWIRE_LOG` |
//! | `change proposed` | `DEBUG` | `change` | the group asks how far this member has come |
//! | `change due` | `INFO` | `change`, `epoch`, `step`, `members`, `ready`, `preparing`, `again` | the change is decided; the newcomers in `ready` and `preparing` still wait; `again`, if the members are the same: those that this member had given up and that answer again |
//! | `change in effect` | `INFO` | `epoch`, `step`, `members`, `entered`, `left`, `seconds` | [`Group::step`] has put the change into effect |
//! | `90 % of all epochs are used` | `WARN` | `epoch`, `left` | sent with each change from then on; `left`: how many epochs remain. Start the run again before the last |
//! | `change aborted` | `WARN` | `change`, `error` | the membership stays as it is; level `INFO` if the reason is that another member has ended or left |
//! | `not connected` | `WARN` | `peer`, `error` | this member and `peer`, one of which waits to be admitted, have not connected for a lease: it goes on waiting |
//! | `not connected yet` | `DEBUG` | `peer`, `error` | they try again; sent when the error is another one than before |
//! | `experts out of reach` | `WARN` | `buffer`, `experts` | since that change no member holds these experts; buffers count from 0 in the order of their creation |
//! | `experts in reach again` | `INFO` | `buffer`, `experts` | a member holds these experts again |
//! | `lost the rendezvous server` | `WARN` | `address`, `detail`, `is_final` | the connection is gone; with `is_final` it will not come back |
//! | `reached the rendezvous server again` | `INFO` | `leader`, `address`, `seconds` | the connection is back after `seconds` |
//! | `another server serves the run` | `INFO` | `leader`, `address` | this server has replaced the former one |
//! | `the leader has ended or resigned: standing for election` | `INFO` | `leader`, `resigned` | from this member's own server, without `rank`; `leader`: the address of the former one; `resigned`: whether it has given up the lead itself |
//! | `this member's server leads the run` | `INFO` | `address` | the server was elected |
//! | `this member's server does not lead the run` | `INFO` | `leader`, `led` | `leader`: the server that leads, if it is known; `led`: whether this server led before |
//! | `a server did not get the log in time: others vote instead` | `WARN` | `address`, `seconds` | from the server that leads, without `rank`: the server at `address` cannot be reached, or is too slow; it is tried again after `seconds` |
//! | `cannot take over the run: it reaches the server by loopback` | `WARN` | `address` | other hosts could not reach a server of this member; see the guide's page [`launching`](guide::launching) |
//! | `refused a connection` | `WARN` | `peer`: its address, `error` | from a server, without `rank`: the other side is no rank of epwire, has another token, or said nothing |
//! | `the rendezvous server ends` | `ERROR` | `error` | from a server, without `rank`: it cannot continue |
//! | `left the group` | `INFO` | | this member has called [`Group::leave`] |
//!
//! [`launch::spawn`] reports the processes that it starts, how each ended, restarts, and the signals that it sends. Its
//! events have the same texts as its lines with `EPWIRE_LOG`: failures at level `WARN`, the others at `INFO`.
//!
//! The `metrics` of members have the label `rank`, and are described whenever a group is joined:
//!
//! | metric | kind | unit | meaning |
//! |---|---|---|---|
//! | `epwire_epoch` | gauge | | epoch in effect at this member; on standby that of the others |
//! | `epwire_active_ranks` | gauge | ranks | members in the epoch in effect |
//! | `epwire_standby_ranks` | gauge | ranks | ranks that wait to be admitted, as the server has last reported |
//! | `epwire_suspect_ranks` | gauge | ranks | members that are silent, as the server has last reported |
//! | `epwire_given_up_ranks` | gauge | ranks | members that this rank's buffers have given up in this epoch, as of the last [`Group::step`] |
//! | `epwire_leader` | gauge | rank | rank whose server serves the run; -1 if a separate server does or none can be reached |
//! | `epwire_server_reachable` | gauge | | 1 if the server can be reached, else 0; without the server no change can be agreed |
//! | `epwire_changes_total` | counter | changes | changes of the membership by the label `kind`: ranks `entered`, `left`, or both (`replaced`); all stay and nobody is given up any more (`unchanged`); or the change was `aborted` |
//! | `epwire_change_seconds` | histogram | seconds | time of a change that was not aborted, from its proposal until it is in effect at this member; with the label `kind` |

#![cfg_attr(docsrs, feature(doc_cfg))] // labels what needs a feature

mod buffer;
#[cfg(feature = "candle")]
pub mod candle;
mod cause;
pub mod comm;
mod config;
pub mod cuda;
pub mod doctor;
pub mod env;
mod error;
mod ffi;
pub mod group;
pub mod guide;
mod json;
pub mod launch;
mod log;
mod mask;
mod names;
mod numerics;
mod observe;
mod outcome;
mod peers;
pub mod prefill;
pub mod rendezvous;
mod settings;
mod spawn_blocking;
pub mod store;
mod sys;
mod tensor;
mod traffic;
mod waking;

/// For this crate's own tests and fuzz targets: not part of its interface, may change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::buffer::Trial;

    pub mod auth {
        pub use crate::rendezvous::auth::*;
    }
    pub mod machine {
        pub use crate::rendezvous::machine::*;
    }
    pub mod record {
        pub use crate::rendezvous::record::*;
    }
    pub mod wire {
        pub use crate::rendezvous::wire::*;
    }
}

pub use buffer::{
    Checkpoint, Combine, CombineOutput, CombineRows, Combining, Consuming, Dispatch, DispatchBuffers,
    DispatchOutput, Dispatched, Dispatching, EpBuffer, Event, GenericCombineOutput, GenericDispatchOutput,
    Host, Memory, Refused, RowsView, ScaleOrder, Verdict,
};
pub use cause::Cause;
pub use comm::{Comm, CommConfig, Reduction};
pub use config::{
    CombineMode, Device, EpConfig, Float16, Fp8Scale, Layout, Path, Paths, Payload, Plan, RowShape, Wire,
};
pub use error::{Error, Failure, Result};
pub use group::Group;
pub use mask::{Iter as MaskIter, Mask};
pub use names::ParseNameError;
pub use numerics::{dequantize_fp8, quantize_fp8};
pub use outcome::{ErrorRecord, Outcome, Phase};
pub use peers::Membership;
pub use rendezvous::BootstrapError;
pub use tensor::{DType, Element, HostBuffer, TensorMut, TensorRef, View};
pub use traffic::{PeerTraffic, Traffic};

#[cfg(feature = "candle")]
pub use candle_core;
#[cfg(feature = "cudarc")]
pub use cudarc;

/// The README's Rust blocks are tests, as those of the guide's pages are.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
