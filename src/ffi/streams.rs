//! The streams of cudarc on which the owner of a C object has enqueued calls.

#[cfg(feature = "cudarc")]
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cudarc")]
use ::cudarc::driver::CudaStream;

/// One stream of each `CudaContext`, until the C object is destroyed. cudarc orders the uses of slices by events only while
/// their context has a stream that it has made: once the program had dropped its last one, a slice could be freed while a kernel
/// uses it.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    #[cfg(feature = "cudarc")]
    kept: Mutex<Vec<Arc<CudaStream>>>,
}

#[cfg(feature = "cudarc")]
impl Streams {
    /// `stream`: no default stream, since cudarc does not count those.
    pub(crate) fn keep(&self, stream: &Arc<CudaStream>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|other| Arc::ptr_eq(other.context(), stream.context())) {
            // A context that nobody else has any more has no slices.
            kept.retain(|other| Arc::strong_count(other) > 1 || Arc::strong_count(other.context()) > 1);
            kept.push(stream.clone());
        }
    }
}
