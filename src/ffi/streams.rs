//! Streams of cudarc, one of each context in which the owner of a C object has enqueued calls.

#[cfg(feature = "cudarc")]
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cudarc")]
use ::cudarc::driver::CudaStream;

/// A stream of each `CudaContext`, until the C object is destroyed and no kernel of it runs any more. cudarc orders the
/// uses of slices by events only while their context has a stream that it has made: once the program had dropped its last
/// one, a slice could be freed while a kernel uses it. The streams are of their own, since one of the program's may be
/// one that cudarc has only wrapped.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    #[cfg(feature = "cudarc")]
    kept: Mutex<Vec<Arc<CudaStream>>>,
}

impl Streams {
    /// Keeps them as long as the process lives.
    pub(super) fn leak(&mut self) {
        #[cfg(feature = "cudarc")]
        std::mem::forget(std::mem::take(self));
    }
}

#[cfg(feature = "cudarc")]
impl Streams {
    /// Keeps one of the context of this stream, on which a call is enqueued. Of a context without any there is none to keep:
    /// there calls only use slices of their own stream. `captures`: the stream may be under capture, during which none is made.
    pub(crate) fn keep(&self, stream: &Arc<CudaStream>, captures: bool) {
        let context = stream.context();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !context.is_in_multi_stream_mode() || kept.iter().any(|own| Arc::ptr_eq(own.context(), context)) {
            return;
        }
        // A context that nobody else has any more has no slices.
        kept.retain(|own| Arc::strong_count(own.context()) > 1);
        let own = if captures { None } else { context.new_stream().ok() };
        kept.push(own.unwrap_or_else(|| stream.clone())); // the program's is better than none
    }
}
