//! Memory that operations read on streams other than its owner's. A slice has one event for all its readers, and one of the
//! owner's own could hide that of an operation: so the memory is kept until the operation has ended.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use ::cudarc::driver::{CudaEvent, CudaStream, sys};

/// What keeps the memory, and the stream on which it is freed.
pub(crate) type Memory = (Arc<dyn Any + Send + Sync>, Arc<CudaStream>);

/// Each until its event, which is behind the operation.
static KEPT: Mutex<Vec<(CudaEvent, Memory)>> = Mutex::new(Vec::new());

/// Keeps it until the stream has run what has been enqueued so far, and lets go of what is no longer read: at the next call.
pub(super) fn keep(memory: Memory, stream: &CudaStream) {
    let Ok(end) = stream.record_event(None) else {
        return std::mem::forget(memory); // CUDA has failed, and nobody knows whether it is read
    };
    relaxed(|| {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, read): (Vec<_>, Vec<_>) = kept.drain(..).partition(|(end, (_, freed_on))| {
            // Only of this context, which is current now.
            Arc::ptr_eq(end.context(), stream.context()) && end.is_complete() && !is_captured(freed_on)
        });
        *kept = read;
        kept.push((end, memory));
        drop(kept);
        drop(ended); // frees memory: not while others wait for the lock
    });
}

/// A graph must not get the end of the memory.
fn is_captured(stream: &CudaStream) -> bool {
    stream.capture_status() != Ok(sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Queries of events do not harm captures of other threads meanwhile.
fn relaxed(work: impl FnOnce()) {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: it exchanges this thread's mode; the second call puts back what the first has found.
    unsafe {
        let exchanged = sys::cuThreadExchangeStreamCaptureMode(&mut mode);
        work();
        if exchanged == sys::CUresult::CUDA_SUCCESS {
            sys::cuThreadExchangeStreamCaptureMode(&mut mode);
        }
    }
}
