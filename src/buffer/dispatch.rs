//! The calls that begin a dispatch on the host.

use super::buffers::DispatchBuffers;
use super::dispatched::{Dispatched, Dispatching};
use super::ep_buffer::EpBuffer;
use super::input::Dispatch;
use super::operation::OpenHandle;
use super::output::DispatchOutput;
use crate::config::{Layout, Payload};
use crate::error::Result;
use crate::observe::Observed;
use crate::outcome::{Outcome, Reader};
use crate::{ffi, sys};

impl EpBuffer {
    /// Memory for the outputs of a dispatch with this payload and layout.
    pub fn dispatch_buffers(
        &self,
        payload: Payload,
        layout: Layout,
        sideband_bytes: u32,
    ) -> Result<DispatchBuffers> {
        DispatchBuffers::new(&self.inner.config, self.ranks(), payload, layout, sideband_bytes)
    }

    /// Sends this rank's tokens and receives those of the others. Never blocks the executor. An expert id that is out
    /// of range or repeated is an error that names row and column, and nothing is sent. Dropping the future gives the
    /// operation up.
    pub async fn dispatch(&self, input: Dispatch<'_>, mut output: DispatchOutput<'_>) -> Result<Dispatched> {
        let (open, outcome) = self.run("dispatch", &input, Some(&mut output)).await?;
        Ok(Dispatched { open, request: input.request(), outcome })
    }

    /// [`EpBuffer::dispatch`] on this thread. Bounded by the deadline. Not for a thread that serves an async executor.
    pub fn dispatch_blocking(
        &self,
        input: Dispatch<'_>,
        mut output: DispatchOutput<'_>,
    ) -> Result<Dispatched> {
        let (open, outcome) = self.run_blocking("dispatch", &input, Some(&mut output))?;
        Ok(Dispatched { open, request: input.request(), outcome })
    }

    /// The sending half of a dispatch. Never blocks the executor; waits only if a peer has not yet read an earlier
    /// operation.
    pub async fn dispatch_send(&self, input: Dispatch<'_>) -> Result<Dispatching> {
        let (open, _) = self.run("dispatch_send", &input, None).await?;
        Ok(Dispatching { open, request: input.request() })
    }

    /// [`EpBuffer::dispatch_send`] on this thread. Bounded by the deadline.
    pub fn dispatch_send_blocking(&self, input: Dispatch<'_>) -> Result<Dispatching> {
        let (open, _) = self.run_blocking("dispatch_send", &input, None)?;
        Ok(Dispatching { open, request: input.request() })
    }

    async fn run(
        &self,
        name: &'static str,
        input: &Dispatch<'_>,
        output: Option<&mut DispatchOutput<'_>>,
    ) -> Result<(OpenHandle, Outcome)> {
        let observed = Observed::begin(name, self.rank());
        let ended = async {
            self.inner.start_waits(name)?;
            let reader = reader(output.as_deref());
            let (open, progress, outcome) = self.start(input, output, true)?;
            // SAFETY: `input` and `output` are borrowed by this future, to its end.
            let outcome = unsafe { open.finish(progress, outcome, reader) }.await?;
            Ok((open, outcome))
        };
        observed.end(ended.await, |(_, outcome)| outcome)
    }

    fn run_blocking(
        &self,
        name: &'static str,
        input: &Dispatch<'_>,
        output: Option<&mut DispatchOutput<'_>>,
    ) -> Result<(OpenHandle, Outcome)> {
        let observed = Observed::begin(name, self.rank());
        let reader = reader(output.as_deref());
        let ended = self.start(input, output, false);
        let ended = ended.and_then(|(open, _, outcome)| Ok((open, self.inner.ended(&outcome, reader)?)));
        observed.end(ended, |(_, outcome)| outcome)
    }

    fn start(
        &self,
        input: &Dispatch<'_>,
        output: Option<&mut DispatchOutput<'_>>,
        nonblocking: bool,
    ) -> Result<(OpenHandle, ffi::Progress, sys::epw_outcome)> {
        let inner = &self.inner;
        inner.host("dispatch")?;
        let mut c_input = input.to_c(inner.rank, &inner.config, &())?;
        c_input.nonblocking = nonblocking.into();
        let output = match output {
            Some(output) => {
                Some(output.as_c(inner.rank, &inner.config, &inner.plan, &input.request(), &())?)
            }
            None => None,
        };
        let mut outcome = ffi::empty_outcome();
        // SAFETY: sizes were checked; callers keep input and output borrowed while the operation is polled.
        let (handle, progress) =
            unsafe { inner.ffi.dispatch(&c_input, output.as_ref(), Some(&mut outcome)) }?;
        let deadline = input.deadline_or(inner.config.deadline);
        Ok((OpenHandle::new(inner.clone(), handle, deadline), progress, outcome))
    }
}

/// Without an output it is a sending half.
fn reader(output: Option<&DispatchOutput<'_>>) -> Reader {
    if output.is_some() { Reader::Program } else { Reader::Observer }
}
