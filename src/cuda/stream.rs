//! The stream that a call enqueues on.

use std::ffi::c_void;
use std::marker::PhantomData;

#[cfg(feature = "cudarc")]
use std::sync::Arc;

#[cfg(feature = "cudarc")]
use ::cudarc::driver::CudaStream;

/// A CUDA stream to enqueue on. Not `Send`: the handle of the per-thread default stream means a different stream on
/// each thread.
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    pub(crate) raw: *mut c_void,
    /// Ordinal of its GPU, where it is known.
    pub(super) device: Option<u32>,
    /// Whether it is one of the GPU's primary context, the only one in which kernels and memory of this crate are.
    pub(super) is_primary: bool,
    #[cfg(feature = "cudarc")]
    pub(super) owner: Option<&'a Arc<CudaStream>>,
    lifetime: PhantomData<&'a ()>,
}

impl StreamRef<'static> {
    /// Any stream, as a `cudaStream_t` or `CUstream`; null, 1 and 2 have CUDA's meaning.
    ///
    /// # Safety
    ///
    /// It is a stream of the GPU's primary context. It is not destroyed before every handle
    /// ([`Dispatching`](super::Dispatching), [`Dispatched`](super::Dispatched), [`Combining`](super::Combining)) whose
    /// last call was enqueued on it has been consumed or dropped.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self::unowned(stream)
    }

    /// The legacy default stream, which every blocking stream of the GPU waits for.
    pub fn legacy() -> Self {
        Self::unowned(std::ptr::null_mut())
    }

    /// The calling thread's own default stream.
    pub fn per_thread() -> Self {
        /// `cudaStreamPerThread`
        const PER_THREAD: usize = 2;
        Self::unowned(std::ptr::without_provenance_mut(PER_THREAD))
    }

    fn unowned(raw: *mut c_void) -> Self {
        Self {
            raw,
            device: None,
            is_primary: true, // as its maker promised
            #[cfg(feature = "cudarc")]
            owner: None,
            lifetime: PhantomData,
        }
    }
}

#[cfg(feature = "cudarc")]
impl<'a> From<&'a Arc<CudaStream>> for StreamRef<'a> {
    fn from(stream: &'a Arc<CudaStream>) -> Self {
        Self {
            raw: stream.cu_stream().cast(),
            device: u32::try_from(stream.context().ordinal()).ok(),
            is_primary: stream.context().is_primary(),
            owner: Some(stream),
            lifetime: PhantomData,
        }
    }
}

impl StreamRef<'_> {
    pub(super) fn keeper(&self) -> Keeper {
        Keeper {
            #[cfg(feature = "cudarc")]
            _stream: self.owner.cloned(),
        }
    }
}

/// Keeps the stream of a handle's last call alive, because dropping the handle enqueues on it. Empty where somebody
/// else has promised that.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    #[cfg(feature = "cudarc")]
    _stream: Option<Arc<CudaStream>>,
}
