//! The states of one MoE step on a GPU as types: `Dispatching` -> `Dispatched` -> `Combining` -> [`Completion`]. Each consumes the
//! one before, as on the host; here a state says what has been enqueued, not what has happened.

use std::sync::Arc;

use super::completion::Completion;
use super::memory::{CombineOutput, DispatchOutput};
use super::stream::{Keeper, StreamRef};
use super::view::{Site, TensorRef};
use crate::buffer::{
    Checkpoint, Combine, Consuming, Dispatch, EpBuffer, Inner, OpenHandle, Refused, Request,
};
use crate::config::Device;
use crate::error::{Error, Failure, Result};
use crate::ffi::Rows;

impl EpBuffer {
    /// Enqueues a whole dispatch: sends this rank's tokens, receives those of the others. Never waits.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Limit`] name the argument, [`Error::State`] says that no lane is free or that the buffer
    /// is on the host. Nothing has been enqueued then.
    pub fn enqueue_dispatch(
        &self,
        input: Dispatch<'_, TensorRef<'_>>,
        mut output: DispatchOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Result<Dispatched> {
        self.enqueue(&input, Some(&mut output), stream).map(Dispatched)
    }

    /// Enqueues the sending half of a dispatch. No SM is held between it and the receiving half.
    ///
    /// # Errors
    /// As [`EpBuffer::enqueue_dispatch`].
    pub fn enqueue_dispatch_send(
        &self,
        input: Dispatch<'_, TensorRef<'_>>,
        stream: StreamRef<'_>,
    ) -> Result<Dispatching> {
        self.enqueue(&input, None, stream).map(Dispatching)
    }

    /// Like [`EpBuffer::checkpoint`], enqueued on `stream`: a small kernel that runs after everything enqueued so far
    /// for this buffer and before whatever later calls enqueue. The order of graph replays before and after it is up to
    /// you: launch them on this stream.
    ///
    /// # Errors
    ///
    /// As [`EpBuffer::checkpoint`]; [`Error::State`] also if `stream` is under capture, where all replays would
    /// announce the same step.
    pub fn enqueue_checkpoint(&self, step: u64, stream: StreamRef<'_>) -> Result<Checkpoint> {
        let inner = &self.inner;
        let site = inner.site("checkpoint", &stream)?;
        // SAFETY: it is a stream of the buffer's GPU: its maker promised that, or it was checked.
        unsafe { inner.checkpoint(step, site.stream()) }
    }

    fn enqueue(
        &self,
        input: &Dispatch<'_, TensorRef<'_>>,
        output: Option<&mut DispatchOutput<'_>>,
        stream: StreamRef<'_>,
    ) -> Result<Handle> {
        let (inner, request) = (&self.inner, input.request());
        let (rank, config) = (inner.rank, &inner.config);
        let site = inner.site("dispatch", &stream)?;
        let mut c_input = input.to_c(rank, config, &site)?;
        c_input.stream = site.stream();
        let output = output.map(|output| output.as_c(rank, config, &inner.plan, &request, &site));
        let output = output.transpose()?;
        // SAFETY: sizes were checked. The memory stays valid until the work has run, and the stream as long as the
        // handle needs it: whoever made the views and the stream has promised that, or their guards and
        // `Handle::stream` ensure it.
        let (handle, _) = unsafe { inner.ffi.dispatch(&c_input, output.as_ref(), None) }?;
        let open = OpenHandle::new(inner.clone(), handle, input.deadline_or(inner.config.deadline));
        Ok(Handle { open, stream: stream.keeper(), request })
    }
}

impl Inner {
    /// Where a call on `stream` is enqueued.
    pub(super) fn site(&self, operation: &str, stream: &StreamRef<'_>) -> Result<Site> {
        match self.config.device {
            Device::Cuda(ordinal) => Site::of(&*self.ffi, operation, (self.rank, ordinal), stream),
            Device::Host => {
                let text = "the buffer is on the host: use the method without the `enqueue_` prefix, or create it with Device::Cuda";
                Err(Error::State(Failure::new(operation, self.rank, text)))
            }
        }
    }
}

/// A live handle and the stream of its last call, on which dropping it enqueues the release.
#[derive(Debug)]
struct Handle {
    /// Declared before `stream`, which its drop needs.
    open: OpenHandle,
    stream: Keeper,
    /// What the dispatch asked for; it determines the size of every output.
    request: Request,
}

impl Handle {
    fn inner(&self) -> &Arc<Inner> {
        &self.open.inner
    }

    fn completion(&self) -> Completion {
        Completion::new(self.inner().clone(), self.open.handle)
    }

    fn site(&self, operation: &str, stream: &StreamRef<'_>) -> Result<Site> {
        self.inner().site(operation, stream)
    }

    /// To be called once the C core has accepted a call on `stream`, which becomes the last one.
    fn enqueued_on(mut self, stream: &StreamRef<'_>) -> Self {
        self.stream = stream.keeper();
        self
    }

    /// To be called once the C core has accepted the call that consumes the handle.
    fn consumed(mut self) -> Completion {
        self.open.mark_consumed();
        self.completion()
    }

    fn release_on(&self, stream: &StreamRef<'_>) -> Result<()> {
        let site = self.site("release", stream)?;
        // SAFETY: it is a stream of the buffer's GPU: its maker promised that, or it was checked.
        unsafe { self.inner().ffi.release_on(self.open.handle, site.stream()) }
    }
}

impl Drop for Handle {
    /// A graph that safe code captures must not get the release, see [`StreamRef::capturing`]: where it would, the release runs
    /// on this thread's own stream. If it cannot, the lane's next dispatch does it first.
    fn drop(&mut self) {
        if self.open.is_consumed() || self.stream.may_capture {
            return;
        }
        let stream = self.stream.stream();
        let released = self.release_on(&stream).or_else(|_| self.release_on(&StreamRef::per_thread()));
        if released.is_err() {
            let _captures = stream.captures();
            self.inner().ffi.release(self.open.handle);
        }
        self.open.mark_consumed();
    }
}

/// The state after `state` if the C core has accepted the call; otherwise `state` is returned with the error.
fn consume<S, T>(state: S, taken: Result<()>, next: impl FnOnce(S) -> T) -> Consuming<T, S> {
    match taken {
        Ok(()) => Ok(next(state)),
        Err(error) => Err(Refused::new(state)(error)),
    }
}

/// A dispatch whose sending half is enqueued. Dropping it releases its lane, on the stream of its last call; inside a
/// capture use [`Dispatching::release_on`]. `Send` and `Sync`.
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Dispatching(Handle);

impl Dispatching {
    /// Enqueues the receiving half, with the deadline of the sending half.
    pub fn enqueue_receive(
        self,
        mut output: DispatchOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Consuming<Dispatched, Self> {
        let taken = self.receive(&mut output, &stream);
        consume(self, taken, |sent| Dispatched(sent.0.enqueued_on(&stream)))
    }

    fn receive(&self, output: &mut DispatchOutput<'_>, stream: &StreamRef<'_>) -> Result<()> {
        let (inner, request) = (self.0.inner(), &self.0.request);
        let site = self.0.site("dispatch_receive", stream)?;
        let mut output = output.as_c(inner.rank, &inner.config, &inner.plan, request, &site)?;
        output.stream = site.stream();
        // SAFETY: as in `EpBuffer::enqueue`.
        unsafe { inner.ffi.dispatch_receive(self.0.open.handle, &output, None) }.map(drop)
    }

    /// The completion of the sending half, to wait for on the host.
    pub fn completion(&self) -> Completion {
        self.0.completion()
    }

    /// Gives the operation up on `stream`: peers that sent rows are answered with none.
    pub fn release_on(self, stream: StreamRef<'_>) -> Consuming<Completion, Self> {
        let taken = self.0.release_on(&stream);
        consume(self, taken, |state| state.0.consumed())
    }
}

/// A dispatch whose rows are received once the stream has run it, and the right to combine. Dropping it releases its
/// lane, on the stream of its last call; inside a capture use [`Dispatched::release_on`]. `Send` and `Sync`.
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Dispatched(Handle);

impl Dispatched {
    /// The completion of the dispatch, to wait for on the host.
    pub fn completion(&self) -> Completion {
        self.0.completion()
    }

    /// Where the received rows lie in the window (rank-major only), for kernels that read them in place and are
    /// enqueued after the dispatch and before the combine.
    pub fn rows(&self) -> Result<WindowRows> {
        self.0.inner().ffi.dispatched_rows(self.0.open.handle).map(WindowRows::new)
    }

    /// The area into which kernels may write expert outputs so that combine copies nothing before sending: rank-major the
    /// received rows themselves, once all experts have read them; expert-major `[E, M, hidden]`, where the plan has
    /// `zero_copy`. Then combine with [`Combine::in_place`].
    #[doc(alias = "next_combine_buffer")]
    pub fn combine_rows(&self) -> Result<WindowRows> {
        self.0.inner().ffi.next_combine_buffer(self.0.open.handle).map(WindowRows::new)
    }

    /// Enqueues a whole combine: answers every received row, receives the answers to this rank's own, sums them into
    /// `output`.
    pub fn enqueue_combine(
        self,
        input: Combine<'_, TensorRef<'_>>,
        mut output: CombineOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Consuming<Completion, Self> {
        let taken = self.combine(&input, Some(&mut output), &stream);
        consume(self, taken, |received| received.0.consumed())
    }

    /// Enqueues the sending half of a combine. The receiving half reads the combine's own weights as well, so they are
    /// accepted only as a raw view, whose maker has promised to keep them that long.
    pub fn enqueue_combine_send(
        self,
        input: Combine<'_, TensorRef<'_>>,
        stream: StreamRef<'_>,
    ) -> Consuming<Combining, Self> {
        let taken = self.combine(&input, None, &stream);
        consume(self, taken, |received| Combining(received.0.enqueued_on(&stream)))
    }

    fn combine(
        &self,
        input: &Combine<'_, TensorRef<'_>>,
        output: Option<&mut CombineOutput<'_>>,
        stream: &StreamRef<'_>,
    ) -> Result<()> {
        let (inner, request) = (self.0.inner(), &self.0.request);
        let (rank, config, plan) = (inner.rank, &inner.config, &inner.plan);
        let site = self.0.site("combine", stream)?;
        let mut c_input = input.to_c(rank, config, plan, request, &site)?;
        c_input.stream = site.stream();
        if output.is_none() && input.own_weights().is_some_and(|weights| weights.origin.is_some()) {
            let text = "topk_weights of a split combine are read by its receiving half, and their guard ends now: give them at dispatch, or use enqueue_combine";
            return Err(Error::Invalid(Failure::new("combine", rank, text)));
        }
        let output = output.map(|output| output.as_c(rank, config, plan, request, &site)).transpose()?;
        // SAFETY: as in `EpBuffer::enqueue`; guarded weights get here only if the same call enqueues the receiving
        // half.
        unsafe { inner.ffi.combine(self.0.open.handle, &c_input, output.as_ref(), None) }?;
        Ok(())
    }

    /// Gives the operation up on `stream`: peers that sent rows are answered with none.
    pub fn release_on(self, stream: StreamRef<'_>) -> Consuming<Completion, Self> {
        let taken = self.0.release_on(&stream);
        consume(self, taken, |state| state.0.consumed())
    }
}

/// A combine whose sending half is enqueued. Dropping it releases its lane, on the stream of its last call; inside a capture
/// use [`Combining::release_on`]. `Send` and `Sync`.
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Combining(Handle);

impl Combining {
    /// Enqueues the receiving half, which sums the answers into `output`, with the deadline of the sending half.
    pub fn enqueue_receive(
        self,
        mut output: CombineOutput<'_>,
        stream: StreamRef<'_>,
    ) -> Consuming<Completion, Self> {
        let taken = self.receive(&mut output, &stream);
        consume(self, taken, |sent| sent.0.consumed())
    }

    fn receive(&self, output: &mut CombineOutput<'_>, stream: &StreamRef<'_>) -> Result<()> {
        let (inner, request) = (self.0.inner(), &self.0.request);
        let site = self.0.site("combine_receive", stream)?;
        let mut output = output.as_c(inner.rank, &inner.config, &inner.plan, request, &site)?;
        output.stream = site.stream();
        // SAFETY: as in `EpBuffer::enqueue`.
        unsafe { inner.ffi.combine_receive(self.0.open.handle, &output, None) }.map(drop)
    }

    /// The completion of the sending half, to wait for on the host.
    pub fn completion(&self) -> Completion {
        self.0.completion()
    }

    /// Gives the operation up on `stream`: answers already sent stay sent, nothing is received.
    pub fn release_on(self, stream: StreamRef<'_>) -> Consuming<Completion, Self> {
        let taken = self.0.release_on(&stream);
        consume(self, taken, |state| state.0.consumed())
    }
}

/// Rows in the window, as device addresses (`CUdeviceptr`) for kernels; the rows of source `s` begin at row `s *
/// max_tokens`. Valid for work enqueued while the handle is live: combine and release give the rows back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WindowRows {
    /// The first row's payload.
    pub rows: u64,
    /// Bytes from one row to the next, also for scales.
    pub stride: usize,
    /// The first row's scales, row-major, if the payload has scales.
    pub scales: Option<u64>,
    /// U32 `[ranks]`: number of rows from each source.
    pub source_counts: u64,
}

impl WindowRows {
    fn new(rows: Rows) -> Self {
        Self {
            rows: rows.first.as_ptr().expose_provenance() as u64,
            stride: rows.stride,
            scales: rows.scales.map(|scales| scales.as_ptr().expose_provenance() as u64),
            source_counts: rows.source_counts.as_ptr().expose_provenance() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::TensorMut;
    use crate::{DType, EpConfig, Mask};

    /// Views of addresses that are never used: the calls here fail before.
    fn matrix(dtype: DType, rows: usize, cols: usize) -> TensorRef<'static> {
        // SAFETY: every call that takes it is refused: nothing is enqueued that could read it.
        unsafe { TensorRef::from_raw(4096, dtype, rows, cols, cols * dtype.bytes()) }
    }

    fn memory(dtype: DType, len: usize) -> TensorMut<'static> {
        // SAFETY: as above, written.
        unsafe { TensorMut::from_raw(4096, dtype, len) }
    }

    fn input() -> Dispatch<'static, TensorRef<'static>> {
        Dispatch::new(matrix(DType::Bf16, 2, 64), matrix(DType::I32, 2, 2))
    }

    #[test]
    fn handles_and_completions_may_move_between_threads() {
        fn send_sync<T: Send + Sync>() {}
        send_sync::<Dispatching>();
        send_sync::<Dispatched>();
        send_sync::<Combining>();
        send_sync::<Completion>();
    }

    #[test]
    fn a_host_buffer_refuses_to_enqueue() {
        let buffer = EpBuffer::unconnected(0, 1, EpConfig::new(4, 64, 4, 2)).unwrap();
        buffer.set_active(&Mask::all(1), 1, 0).unwrap();
        let whole = buffer.enqueue_dispatch(input(), DispatchOutput::default(), StreamRef::legacy());
        let half = buffer.enqueue_dispatch_send(input(), StreamRef::per_thread());
        for error in [whole.unwrap_err(), half.unwrap_err()] {
            assert!(matches!(&error, Error::State(f) if f.text.contains("Device::Cuda")), "{error}");
        }
        assert_eq!(buffer.take_errors().unwrap(), crate::cuda::Errors::default());
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_build_without_the_feature_names_it() {
        let config = EpConfig { device: Device::Cuda(0), ..EpConfig::new(4, 64, 4, 2) };
        let error = EpBuffer::unconnected(0, 1, config).unwrap_err();
        assert!(matches!(&error, Error::NoPath(f) if f.text.contains("feature")), "{error}");
    }

    #[test]
    fn an_output_of_another_type_or_size_is_named() {
        let config = EpConfig::new(4, 64, 4, 2);
        let plan = crate::Plan::new(&config, 2).unwrap(); // M = 8, E = 2
        let site = Site::new("dispatch", 0, 0, &StreamRef::legacy()).unwrap();
        let none = || DispatchOutput::default();
        let cases = [
            ("output.rows has 2047 bytes", none().rows(memory(DType::U8, 2047))),
            ("output.counts has 2 of F32", none().counts(memory(DType::F32, 2))),
            ("output.ranges has 7 of U32", none().ranges(memory(DType::U32, 7))),
            ("output.wait_ns has 1 of U64", none().wait_ns(memory(DType::U64, 1))),
            ("output.expert_totals has 2 of U32", none().expert_totals(memory(DType::U32, 2))),
        ];
        for (text, mut output) in cases {
            let error = output.as_c(0, &config, &plan, &input().request(), &site).unwrap_err();
            assert!(matches!(&error, Error::Invalid(f) if f.text.starts_with(text)), "{text}: {error}");
        }
        let mut fits = none().rows(memory(DType::Bf16, 2 * 8 * 64)).counts(memory(DType::I32, 2));
        let c = fits.as_c(0, &config, &plan, &input().request(), &site).unwrap();
        assert_eq!((c.rows.addr(), c.counts.addr(), c.ranges.is_null()), (4096, 4096, true));
        let mut output = CombineOutput::new(memory(DType::F32, 128));
        let error = output.as_c(0, &config, &plan, &input().request(), &site).unwrap_err();
        assert!(error.to_string().contains("output.out has 128 of F32, must have 128 of Bf16"), "{error}");
    }

    #[test]
    fn sideband_has_its_own_width() {
        let config = EpConfig { sideband_bytes: 8, ..EpConfig::new(4, 64, 4, 2) };
        let site = Site::new("dispatch", 0, 0, &StreamRef::legacy()).unwrap();
        let c = input().sideband(matrix(DType::U8, 2, 8)).to_c(0, &config, &site).unwrap();
        assert_eq!((c.sideband_bytes, c.sideband.addr(), c.tokens), (8, 4096, 2));
        for (wrong, text) in [
            (matrix(DType::U8, 3, 8), "sideband has 24 bytes for 2 tokens of 8 each"),
            (matrix(DType::I32, 2, 8), "sideband is of I32"),
        ] {
            let error = input().sideband(wrong).to_c(0, &config, &site).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
