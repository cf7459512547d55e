//! What follows the use of a slice of cudarc.

use std::sync::{Mutex, PoisonError};

use ::cudarc::driver::{CudaEvent, CudaStream, SyncOnDrop};

/// Held while an event is waited for and recorded again: another thread may be about to do the same with that event.
static RECORDING: Mutex<()> = Mutex::new(());

/// Tells cudarc where the use of a slice ends: dropping it records what has been enqueued by then.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    /// One of the two that the slice has, for reading or for writing; `None` if cudarc does not track its uses.
    event: Option<&'a CudaEvent>,
    stream: &'a CudaStream,
    /// Whoever owns the slice besides the program.
    #[cfg(feature = "candle-cuda")]
    pub(super) memory: Option<super::kept::Memory>,
}

impl<'a> Guard<'a> {
    /// Instead of what cudarc gives with an address.
    pub(super) fn new(mut given: SyncOnDrop<'a>, stream: &'a CudaStream) -> Self {
        let event = match &mut given {
            SyncOnDrop::Record(target) => target.take().map(|(event, _)| event),
            SyncOnDrop::Sync(_) => None, // of unified memory, of which there are no views
        };
        Self {
            event,
            stream,
            #[cfg(feature = "candle-cuda")]
            memory: None,
        }
    }

    /// Records what has been enqueued so far. The event then no longer stands for what it stood for, such as a read on another
    /// stream, so this stream waits for that first: behind the kernel, which need not wait for other readers.
    pub(super) fn record(&self) {
        let context = self.stream.context();
        if let Some(event) = self.event
            && context.is_managing_stream_synchronization()
        {
            let _alone = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
            context.record_err(self.stream.wait(event));
            context.record_err(event.record(self.stream));
        }
        #[cfg(feature = "candle-cuda")]
        if let Some(memory) = &self.memory {
            super::kept::keep(memory.clone(), self.stream);
        }
    }

    /// Nothing has been enqueued since the last record.
    pub(super) fn give_up(&mut self) {
        self.event = None;
        #[cfg(feature = "candle-cuda")]
        self.memory.take();
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.record();
    }
}
