//! The states of one MoE step as types: `Dispatching` -> `Dispatched` -> `Combining` -> done. Each consumes the one
//! before, so a step cannot be combined twice, combined before it was received, or combined on another buffer.

use std::fmt;

use super::input::{Combine, Request};
use super::operation::{Event, OpenHandle};
use super::output::{CombineOutput, DispatchOutput};
use crate::config::Layout;
use crate::error::{Error, Result};
use crate::ffi::{Progress, Rows};
use crate::outcome::{Outcome, Reader};
use crate::sys;
use crate::tensor::Element;

/// A call that was refused before it did anything, with the handle that it would have consumed.
///
/// Converts into [`Error`] with `?`, which drops (and so releases) the handle.
pub struct Refused<H> {
    /// Why.
    pub error: Error,
    /// The handle, in the state before the call.
    pub handle: H,
}

impl<H> Refused<H> {
    pub(crate) fn new(handle: H) -> impl FnOnce(Error) -> Box<Self> {
        move |error| Box::new(Self { error, handle })
    }
}

impl<H> fmt::Debug for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<H> fmt::Display for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<H> std::error::Error for Refused<H> {
    // Its text is that of `error`, so its source is the same, too.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<H> From<Box<Refused<H>>> for Error {
    fn from(refused: Box<Refused<H>>) -> Self {
        refused.error
    }
}

/// Result of a call that consumes a handle and gives it back if it is refused.
pub type Consuming<T, H> = std::result::Result<T, Box<Refused<H>>>;

/// A dispatch that has sent; its rows are received when the caller asks. Dropping it releases its lane.
///
/// Receive, or begin to await [`Dispatching::event`], within one deadline of sending; otherwise peers that wait for
/// this rank give it up, see [`EpConfig::deadline`](crate::EpConfig::deadline).
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Dispatching {
    pub(super) open: OpenHandle,
    pub(super) request: Request,
}

impl Dispatching {
    /// An event that is ready when receiving would not wait.
    pub fn event(&self) -> Event {
        Event::new(&self.open)
    }

    /// Receives without blocking the executor: it waits by being polled again.
    pub async fn receive(self, mut output: DispatchOutput<'_>) -> Consuming<Dispatched, Self> {
        let start = |nonblocking, outcome: &mut _| self.start(&mut output, nonblocking, outcome);
        // SAFETY: `output` lives in this future, to its end.
        let ended = unsafe { self.open.run_async("dispatch_receive", start) }.await;
        self.end(ended)
    }

    /// Receives on this thread. Bounded by the deadline. Not for a thread that serves an async executor.
    pub fn receive_blocking(self, mut output: DispatchOutput<'_>) -> Consuming<Dispatched, Self> {
        let ended = self.open.run("dispatch_receive", Reader::Program, |nonblocking, outcome| {
            self.start(&mut output, nonblocking, outcome)
        });
        self.end(ended)
    }

    fn end(self, ended: Result<Outcome>) -> Consuming<Dispatched, Self> {
        match ended {
            Ok(outcome) => Ok(Dispatched { open: self.open, request: self.request, outcome }),
            Err(error) => Err(Refused::new(self)(error)),
        }
    }

    fn start(
        &self,
        output: &mut DispatchOutput<'_>,
        nonblocking: bool,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        let inner = &self.open.inner;
        let mut output = output.as_c(inner.rank, &inner.config, &inner.plan, &self.request, &())?;
        output.nonblocking = nonblocking.into();
        // SAFETY: sizes were checked; the caller keeps `output` borrowed while the operation is polled.
        unsafe { inner.ffi.dispatch_receive(self.open.handle, &output, Some(outcome)) }
    }
}

/// A received dispatch: the rows for the experts, and the right to combine. Keeps its buffer alive; dropping it
/// releases its lane. `Send` and `Sync`: it may move between threads and tasks.
///
/// Combine within one deadline of the dispatch's end; otherwise peers that wait for this rank's answers give it up, see
/// [`EpConfig::deadline`](crate::EpConfig::deadline).
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Dispatched {
    pub(super) open: OpenHandle,
    pub(super) request: Request,
    pub(super) outcome: Outcome,
}

impl Dispatched {
    /// How the dispatch ended.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The received rows in place in the window (rank-major only).
    pub fn rows(&self) -> Result<RowsView<'_>> {
        let rows = self.open.inner.ffi.dispatched_rows(self.open.handle)?;
        let (inner, payload) = (&self.open.inner, self.request.payload);
        let (payload_bytes, scale_bytes) = (inner.payload_bytes(payload), inner.scale_bytes(payload));
        Ok(RowsView { rows, payload_bytes, scale_bytes, of: self })
    }

    /// The area into which experts may write their outputs, so that combine copies nothing before sending: rank-major,
    /// the received rows themselves, once all experts have read them; expert-major `[E, M, hidden]`, if the plan has
    /// `zero_copy`. Then combine with [`Combine::in_place`].
    #[doc(alias = "next_combine_buffer")]
    pub fn combine_rows_mut(&mut self) -> Result<CombineRows<'_>> {
        let rows = self.open.inner.ffi.next_combine_buffer(self.open.handle)?;
        Ok(CombineRows { rows, of: self })
    }

    /// Answers every received row, receives the answers to this rank's own rows, and sums them into `output`. Never
    /// blocks the executor.
    pub async fn combine(
        self,
        input: Combine<'_>,
        mut output: CombineOutput<'_>,
    ) -> Consuming<Outcome, Self> {
        let start =
            |nonblocking, outcome: &mut _| self.start(&input, Some(&mut output), nonblocking, outcome);
        // SAFETY: `output` lives in this future, to its end.
        let ended = unsafe { self.open.run_async("combine", start) }.await;
        self.end(ended)
    }

    /// The same on this thread. Bounded by the deadline. Not for a thread that serves an async executor.
    pub fn combine_blocking(
        self,
        input: Combine<'_>,
        mut output: CombineOutput<'_>,
    ) -> Consuming<Outcome, Self> {
        let ended = self.open.run("combine", Reader::Program, |nonblocking, outcome| {
            self.start(&input, Some(&mut output), nonblocking, outcome)
        });
        self.end(ended)
    }

    /// The sending half of a combine: the answers are received when the caller asks. Never waits.
    pub fn combine_send(mut self, input: Combine<'_>) -> Consuming<Combining, Self> {
        let ended = self.open.run("combine_send", Reader::Observer, |nonblocking, outcome| {
            self.start(&input, None, nonblocking, outcome)
        });
        match ended {
            Ok(_) => {
                self.open.set_deadline(input.deadline_or(self.open.inner.config.deadline));
                Ok(Combining { open: self.open, request: self.request })
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }

    fn end(mut self, ended: Result<Outcome>) -> Consuming<Outcome, Self> {
        match ended {
            Ok(outcome) => {
                self.open.mark_consumed();
                Ok(outcome)
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }

    fn start(
        &self,
        input: &Combine<'_>,
        output: Option<&mut CombineOutput<'_>>,
        nonblocking: bool,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        let inner = &self.open.inner;
        let mut input = input.to_c(inner.rank, &inner.config, &inner.plan, &self.request, &())?;
        input.nonblocking = nonblocking.into();
        let output = match output {
            Some(output) => Some(output.as_c(inner.rank, &inner.config, &inner.plan, &self.request, &())?),
            None => None,
        };
        // SAFETY: sizes were checked; the caller keeps `output` borrowed while the operation is polled.
        unsafe { inner.ffi.combine(self.open.handle, &input, output.as_ref(), Some(outcome)) }
    }

    fn source_count(&self, rows: &Rows, source: u32) -> usize {
        if source >= self.open.inner.plan.ranks {
            return 0;
        }
        // SAFETY: [ranks] counts that live as long as the handle, and are not written once the dispatch has been received.
        unsafe { rows.source_counts.add(source as usize).read() as usize }
    }

    /// The offset of row `row` of `source`, if it was received.
    fn row_at(&self, rows: &Rows, source: u32, row: usize) -> Option<usize> {
        let first = source as usize * self.open.inner.config.max_tokens as usize;
        (row < self.source_count(rows, source)).then(|| (first + row) * rows.stride)
    }
}

/// Received rows, in place in the window.
#[derive(Debug)]
pub struct RowsView<'a> {
    rows: Rows,
    /// Of one row, as `scale_bytes`.
    payload_bytes: usize,
    scale_bytes: usize,
    of: &'a Dispatched,
}

impl<'a> RowsView<'a> {
    /// Rows received from `source`.
    pub fn count(&self, source: u32) -> usize {
        self.of.source_count(&self.rows, source)
    }

    /// The payload of row `row` of `source`, if there is one; `None` also if `T` does not divide it.
    pub fn row<T: Element>(&self, source: u32, row: usize) -> Option<&'a [T]> {
        let bytes = self.payload_bytes;
        let at = self.of.row_at(&self.rows, source, row)?;
        // SAFETY: a received slot is this rank's until it combines, which needs the Dispatched that 'a borrows; nobody
        // writes it meanwhile. Slots are aligned to 64 bytes, and T is plain data (Element).
        (bytes.is_multiple_of(size_of::<T>())).then(|| unsafe {
            std::slice::from_raw_parts(self.rows.first.add(at).cast().as_ptr(), bytes / size_of::<T>())
        })
    }

    /// The scales of that row as bytes, in the order in which they are sent; `None` if the payload has none.
    pub fn scales(&self, source: u32, row: usize) -> Option<&'a [u8]> {
        let bytes = self.scale_bytes;
        let at = self.of.row_at(&self.rows, source, row)?;
        // SAFETY: as for `row`; the scales follow the payload in the same slot.
        self.rows.scales.map(|scales| unsafe { std::slice::from_raw_parts(scales.add(at).as_ptr(), bytes) })
    }
}

/// Rows to write expert outputs into, in place in the window.
#[derive(Debug)]
pub struct CombineRows<'a> {
    rows: Rows,
    of: &'a mut Dispatched,
}

impl CombineRows<'_> {
    /// Rank-major: `[hidden]` of the combine type over row `row` of `source`.
    pub fn rank_major<T: Element>(&mut self, source: u32, row: usize) -> Option<&mut [T]> {
        let at = (self.of.request.layout == Layout::RankMajor)
            .then(|| self.of.row_at(&self.rows, source, row))??;
        self.slice(at)
    }

    /// Expert-major: `[hidden]` of the combine type, row `row` of local expert `expert`.
    pub fn expert_major<T: Element>(&mut self, expert: u32, row: usize) -> Option<&mut [T]> {
        let plan = &self.of.open.inner.plan;
        let inside =
            expert < plan.local_experts && row < plan.rows && self.of.request.layout == Layout::ExpertMajor;
        let at = inside.then(|| (expert as usize * plan.rows + row) * self.rows.stride)?;
        self.slice(at)
    }

    fn slice<T: Element>(&mut self, at: usize) -> Option<&mut [T]> {
        let config = &self.of.open.inner.config;
        // SAFETY: the row is this rank's until it combines, which needs the Dispatched borrowed exclusively here; it has
        // hidden 16-bit values, aligned to 16 bytes.
        (T::DTYPE == config.combine_dtype.dtype()).then(|| unsafe {
            std::slice::from_raw_parts_mut(self.rows.first.add(at).cast().as_ptr(), config.hidden as usize)
        })
    }
}

/// A combine that has sent; the answers are received when the caller asks. Dropping it releases its lane.
///
/// Receive, or begin to await [`Combining::event`], within one deadline of sending, as for [`Dispatching`].
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Combining {
    open: OpenHandle,
    request: Request,
}

impl Combining {
    /// An event that is ready when receiving would not wait.
    pub fn event(&self) -> Event {
        Event::new(&self.open)
    }

    /// Receives and sums the answers. Never blocks the executor.
    pub async fn receive(self, mut output: CombineOutput<'_>) -> Consuming<Outcome, Self> {
        let start = |nonblocking, outcome: &mut _| self.start(&mut output, nonblocking, outcome);
        // SAFETY: `output` lives in this future, to its end.
        let ended = unsafe { self.open.run_async("combine_receive", start) }.await;
        self.end(ended)
    }

    /// The same on this thread. Bounded by the deadline. Not for a thread that serves an async executor.
    pub fn receive_blocking(self, mut output: CombineOutput<'_>) -> Consuming<Outcome, Self> {
        let ended = self.open.run("combine_receive", Reader::Program, |nonblocking, outcome| {
            self.start(&mut output, nonblocking, outcome)
        });
        self.end(ended)
    }

    fn end(mut self, ended: Result<Outcome>) -> Consuming<Outcome, Self> {
        match ended {
            Ok(outcome) => {
                self.open.mark_consumed();
                Ok(outcome)
            }
            Err(error) => Err(Refused::new(self)(error)),
        }
    }

    fn start(
        &self,
        output: &mut CombineOutput<'_>,
        nonblocking: bool,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        let inner = &self.open.inner;
        let mut output = output.as_c(inner.rank, &inner.config, &inner.plan, &self.request, &())?;
        output.nonblocking = nonblocking.into();
        // SAFETY: sizes were checked; the caller keeps `output` borrowed while the operation is polled.
        unsafe { inner.ffi.combine_receive(self.open.handle, &output, Some(outcome)) }
    }
}
