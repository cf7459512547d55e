//! A silent rank is skipped, and then replaced, while the others continue.

use std::time::Duration;

use epwire::cuda::{Completion, Dispatched};
use epwire::cudarc::driver::sys::CUgraphInstantiate_flags;
use epwire::cudarc::driver::{CudaGraph, CudaSlice};
use epwire::{Cause, Checkpoint, Device, EpBuffer, Error, Mask};

use crate::world::{Gpu, PATIENT, Step, Tokens, config};

/// The kinds of steps of a rank: tokens to experts of all ranks, and to experts of all ranks but the last.
pub(crate) const EVERYWHERE: usize = 0;
const NOT_TO_THE_LAST: usize = 1;

/// A rank; with a single GPU there are two. One thread enqueues the work of all ranks.
pub(crate) struct Rank {
    buffer: EpBuffer,
    gpu: Gpu,
    steps: [(Tokens, Step); 2],
}

impl Rank {
    pub(crate) fn new(rank: u32, ranks: u32, gpus: u32) -> Self {
        let config = config(ranks)
            .device(Device::Cuda(rank % gpus))
            .lanes(1)
            .sms(16)
            .deadline(Duration::from_millis(500));
        let buffer = EpBuffer::unconnected(rank, ranks, config).unwrap();
        let gpu = Gpu::of(&buffer);
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let steps = [ranks, ranks - 1].map(|with_experts| {
            let tokens = Tokens::identity(rank, with_experts);
            let step = Step::new(&gpu, &buffer, &tokens);
            (tokens, step)
        });
        gpu.stream.synchronize().unwrap();
        Self { buffer, gpu, steps }
    }

    fn connect(&self, other: &Self) {
        let blob = other.buffer.export(self.buffer.rank()).unwrap();
        self.buffer.connect_blocking(other.buffer.rank(), &blob).unwrap();
    }

    pub(crate) fn enqueue(&mut self, which: usize) -> Completion {
        self.steps[which].1.enqueue(&self.gpu, &self.buffer, None)
    }

    /// A dispatch without a combine, whose handle is held.
    pub(crate) fn hold(&mut self) -> Dispatched {
        let step = &mut self.steps[EVERYWHERE].1;
        let input = step.sent.dispatch(&self.gpu);
        self.buffer.enqueue_dispatch(input, step.received.output(&self.gpu), self.gpu.stream()).unwrap()
    }

    /// What kernels behind the enqueued work see.
    fn suspects(&self) -> CudaSlice<i32> {
        let mut suspects = self.gpu.zeros(self.buffer.ranks() as usize);
        self.buffer.enqueue_suspects(self.gpu.view_mut(&mut suspects), self.gpu.stream()).unwrap();
        let mut few = self.gpu.zeros::<i32>(1);
        let error = self.buffer.enqueue_suspects(self.gpu.view_mut(&mut few), self.gpu.stream()).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(f) if f.text.starts_with("suspects has 1 of I32")),
            "{error}"
        );
        suspects
    }

    pub(crate) fn checkpoint(&self, step: u64) -> Result<Checkpoint, Error> {
        self.buffer.enqueue_checkpoint(step, self.gpu.stream())
    }

    pub(crate) fn host_checkpoint(&self, step: u64) -> Result<Checkpoint, Error> {
        self.buffer.checkpoint(step)
    }

    pub(crate) fn while_capturing<T>(&self, call: impl FnOnce(&Self) -> T) -> T {
        self.gpu.begin_capture();
        let result = call(self);
        // Nothing was captured.
        drop(self.gpu.stream.end_capture(CUgraphInstantiate_flags(0)));
        result
    }

    pub(crate) fn synchronize(&self) {
        self.gpu.stream.synchronize().unwrap();
    }

    pub(crate) fn capture(&mut self) -> CudaGraph {
        self.gpu.begin_capture();
        self.enqueue(EVERYWHERE);
        self.gpu.end_capture()
    }

    /// Waits for the stream; the result must be the input.
    fn assert_back(&mut self, which: usize) {
        let (tokens, step) = &mut self.steps[which];
        assert!(self.gpu.get(&step.out) == tokens.x, "rank {}", self.buffer.rank());
        self.gpu.stream.memset_zeros(&mut step.out).unwrap();
    }
}

/// A step of all of `ranks`.
fn assert_exact(ranks: &mut [Rank], which: usize) {
    let enqueued: Vec<_> = ranks.iter_mut().map(|rank| rank.enqueue(which)).collect();
    for (rank, completion) in ranks.iter_mut().zip(enqueued) {
        completion.wait_blocking(PATIENT).unwrap();
        assert!(completion.outcome().unwrap().unwrap().is_complete());
        rank.assert_back(which);
    }
}

pub(crate) fn connect_all(ranks: &[Rank]) {
    for (a, b) in ranks.iter().flat_map(|a| ranks.iter().map(move |b| (a, b))) {
        if a.buffer.rank() != b.buffer.rank() {
            a.connect(b);
        }
    }
}

pub(crate) fn set_active(ranks: &[Rank], active: &Mask, epoch: u32) {
    ranks.iter().for_each(|rank| rank.buffer.set_active(active, epoch, 0).unwrap());
}

pub(crate) fn a_silent_rank_is_skipped_and_replaced(gpus: u32) {
    let count = gpus.max(2);
    let (last, lost) = (count as usize - 1, count - 1);
    let (all, survivors) = (Mask::all(count), Mask::all(count).without(lost));
    let mut ranks: Vec<_> = (0..count).map(|rank| Rank::new(rank, count, gpus)).collect();
    connect_all(&ranks);
    set_active(&ranks, &all, 1);
    assert_exact(&mut ranks, EVERYWHERE);
    let graphs: Vec<_> = ranks.iter_mut().map(Rank::capture).collect();

    // The last rank is silent: the others continue without its rows, and report that.
    let silent = ranks.pop().unwrap();
    let enqueued: Vec<_> = ranks.iter_mut().map(|rank| rank.enqueue(EVERYWHERE)).collect();
    let told: Vec<_> = ranks.iter().map(Rank::suspects).collect();
    for ((rank, completion), told) in ranks.iter().zip(enqueued).zip(told) {
        completion.wait_blocking(PATIENT).unwrap();
        let expected: Vec<_> = (0..count).map(|rank| i32::from(rank == lost)).collect();
        assert_eq!(rank.gpu.get(&told), expected, "as of the end of the step");
        let outcome = completion.outcome().unwrap().unwrap();
        assert_eq!(outcome.missing.iter().collect::<Vec<_>>(), [lost]);
        let records = rank.buffer.take_errors().unwrap().records;
        assert!(records.iter().any(|record| record.cause == Cause::Timeout), "{records:?}");
        assert!(records.iter().all(|record| record.peer == lost), "{records:?}");
        let now = rank.buffer.membership().unwrap();
        assert_eq!(now.silent, now.suspects);
        assert_eq!(now.suspects.iter().collect::<Vec<_>>(), [lost]);
    }
    set_active(&ranks, &survivors, 2);
    let told = ranks[0].suspects();
    assert_eq!(ranks[0].gpu.get(&told)[last], -1, "no member any more");
    assert_exact(&mut ranks, NOT_TO_THE_LAST);

    // Another rank takes its place. Graphs that were captured before are replayed with it, and it captures one by
    // itself.
    drop(silent);
    let mut newcomer = Rank::new(lost, count, gpus);
    // Before it is connected it captures its step, alone.
    set_active(std::slice::from_ref(&newcomer), &[lost].into_iter().collect(), 1);
    let captured = newcomer.capture();
    for rank in &ranks {
        rank.buffer.disconnect(lost).unwrap();
        rank.connect(&newcomer);
        newcomer.connect(rank);
    }
    ranks.push(newcomer);
    set_active(&ranks, &all, 3);
    assert_exact(&mut ranks, EVERYWHERE);
    graphs[..last].iter().for_each(|graph| graph.launch().unwrap());
    captured.launch().unwrap();
    ranks.iter_mut().for_each(|rank| rank.assert_back(EVERYWHERE));
    assert_exact(&mut ranks, EVERYWHERE);
}
