//! Views of candle's tensors, for what goes into dispatch and combine. The version is candle-core 0.11, which is also
//! [`epwire::candle_core`](crate::candle_core).
//!
//! A tensor is [held](hold) for as long as a call reads it. On the host, what comes out is in memory of the caller, from which candle
//! copies:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use epwire::candle::hold;
//! use epwire::{DispatchBuffers, EpConfig, Layout, Payload};
//! use half::bf16;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let x = Tensor::zeros((4, 128), DType::BF16, &Device::Cpu)?;
//! let held = hold(&x);
//! assert_eq!((held.view()?.rows(), held.view()?.cols()), (4, 128)); // for Dispatch::new
//!
//! let received = DispatchBuffers::new(&EpConfig::new(4, 128, 8, 2), 2, Payload::SameAsInput, Layout::ExpertMajor, 0)?;
//! let rows = Tensor::from_slice(received.rows_as::<bf16>(), (4, 8, 128), &Device::Cpu)?; // local experts, rows, hidden
//! # assert_eq!(rows.dims(), [4, 8, 128]);
//! # Ok(())
//! # }
//! ```
//!
//! The example `candle_moe` is a whole layer.
//!
//! # On GPUs
//! With feature `candle-cuda` a held tensor also has `view_on`, a view for the `enqueue` calls of buffers on its GPU. What comes out
//! goes into an `Output`, which is memory of candle's device and becomes a tensor without a copy (`into_tensor`). The types of
//! cudarc are those of candle: `epwire::cudarc` is `candle_core::cuda_backend::cudarc`.
//!
//! A view is made for the stream that the call enqueues on. That is best the one on which candle computes,
//! `CudaDevice::cuda_stream`: everything then runs in the order of the calls, and nothing waits on the host. If it is
//! another stream of that device's context, events that cudarc records put the two in order: the operation runs after what candle had
//! enqueued when the view was made, and what candle enqueues after the call waits for the operation where it needs the output's
//! memory. A tensor that is read may be read by candle at the same time, and dropped: its memory is kept until the operation has
//! ended. A stream of another context is refused, even of one of the same GPU.
//!
//! `Device::new_cuda_with_stream` gives candle a stream of its own. That of `Device::new_cuda` is the per-thread default stream,
//! another one on each thread: with it create tensors, enqueue, and drop handles on one thread. candle loads its kernels when it
//! first launches them, so compute once what the layer computes before the first dispatch (guide, page [`gpus`](crate::guide::gpus)).

#[cfg(feature = "candle-cuda")]
mod gpu;
mod held;

#[cfg(feature = "candle-cuda")]
pub use gpu::Output;
pub use held::{Held, hold};
