//! The stream that a call enqueues on.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

#[cfg(feature = "cudarc")]
use std::sync::Arc;

#[cfg(feature = "cudarc")]
use ::cudarc::driver::CudaStream;

use crate::ffi::{Captures, Streams};

/// `cudaStreamPerThread`; the addresses below are those of the legacy default stream.
const PER_THREAD: usize = 2;

const CAPTURED: &CStr =
    c"the stream is under capture, and its graph could be launched when memory or the buffer are gone: \
    use StreamRef::capturing or StreamRef::from_raw, which say what graphs need";

/// A CUDA stream to enqueue on. Not `Send`: the handle of the per-thread default stream means a different stream on
/// each thread.
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    pub(super) raw: *mut c_void,
    /// Ordinal of its GPU, where it is known.
    pub(super) device: Option<u32>,
    /// Whether it is one of the GPU's primary context, the only one in which kernels and memory of this crate are.
    pub(super) is_primary: bool,
    /// Whether calls may be captured: its maker has promised what graphs need.
    may_capture: bool,
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
    /// last call was enqueued on it has been consumed or dropped. If it is under capture, the graph is used as
    /// [graphs](super#graphs) says.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self { may_capture: true, ..Self::unowned(stream) }
    }

    /// The legacy default stream, which every blocking stream of the GPU waits for.
    pub fn legacy() -> Self {
        Self::unowned(std::ptr::null_mut())
    }

    /// The calling thread's own default stream, which must not be under capture: that is one for [`StreamRef::from_raw`].
    pub fn per_thread() -> Self {
        Self::unowned(std::ptr::without_provenance_mut(PER_THREAD))
    }

    fn unowned(raw: *mut c_void) -> Self {
        Self {
            raw,
            device: None,
            is_primary: true, // as its maker promised
            may_capture: false,
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
            may_capture: false,
            owner: Some(stream),
            lifetime: PhantomData,
        }
    }
}

#[cfg(feature = "cudarc")]
impl<'a> StreamRef<'a> {
    /// A stream that may be under capture; calls on one that was made by `from` are refused then.
    ///
    /// # Safety
    ///
    /// A graph into which calls on it are captured is used as [graphs](super#graphs) says: it is not launched any more once the
    /// memory of a view, a slice included, or the buffer or communicator is gone, and its replays have ended before that, and
    /// before the membership changes or a peer is connected or disconnected.
    pub unsafe fn capturing(stream: &'a Arc<CudaStream>) -> Self {
        Self { may_capture: true, ..Self::from(stream) }
    }
}

impl StreamRef<'_> {
    pub(super) fn keeper(&self) -> Keeper {
        Keeper {
            at: self.raw.addr(),
            may_capture: self.may_capture,
            #[cfg(feature = "cudarc")]
            stream: self.owner.cloned(),
        }
    }

    /// Keeps what orders the program's use of slices behind calls on this stream.
    pub(super) fn keep_in(&self, streams: &Streams) {
        #[cfg(feature = "cudarc")]
        if let Some(owner) = self.owner {
            streams.keep(owner, self.may_capture);
        }
        #[cfg(not(feature = "cudarc"))]
        let _ = streams;
    }

    /// What a call on this stream gets if that is under capture. The C core looks, in the context of the call's GPU: which stream
    /// the per-thread one is depends on the context.
    pub(super) fn captures(&self) -> Captures {
        Captures::new((!self.may_capture).then_some(CAPTURED))
    }
}

/// Keeps the stream of a handle's last call alive, because dropping the handle enqueues on it. Keeps nothing where somebody
/// else has promised that.
#[derive(Debug)]
pub(super) struct Keeper {
    /// The stream's address.
    at: usize,
    pub(super) may_capture: bool,
    #[cfg(feature = "cudarc")]
    stream: Option<Arc<CudaStream>>,
}

impl Keeper {
    /// The stream, on which a call has been accepted.
    pub(super) fn stream(&self) -> StreamRef<'_> {
        StreamRef {
            may_capture: self.may_capture,
            #[cfg(feature = "cudarc")]
            owner: self.stream.as_ref(),
            ..StreamRef::unowned(std::ptr::without_provenance_mut(self.at))
        }
    }
}
