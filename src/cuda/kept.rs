//! Memory that operations read on streams other than its owner's. A slice has one event for all its readers, and one of the
//! owner's own could hide that of an operation: so the memory is kept until the operation has ended.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use ::cudarc::driver::{CudaEvent, CudaStream};

pub(crate) type Memory = Arc<dyn Any + Send + Sync>;

/// Each until its event, which is behind the operation.
static KEPT: Mutex<Vec<(CudaEvent, Memory)>> = Mutex::new(Vec::new());

/// Keeps it until the stream has run what has been enqueued so far, and lets go of what is no longer read: at the next call.
pub(super) fn keep(memory: Memory, stream: &CudaStream) {
    let Ok(end) = stream.record_event(None) else {
        return std::mem::forget(memory); // CUDA has failed, and nobody knows whether it is read
    };
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let (ended, read): (Vec<_>, Vec<_>) = kept.drain(..).partition(|(end, _)| end.is_complete());
    *kept = read;
    kept.push((end, memory));
    drop(kept);
    drop(ended); // frees memory: not while others wait for the lock
}
