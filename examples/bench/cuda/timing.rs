//! How long operations take on one rank. Ranks keep step by the operations themselves, which wait for each other.

use std::time::Duration;

use epwire::Group;
use epwire::cudarc::driver::{CudaEvent, CudaGraph, CudaSlice};

use super::gpu::{Gpu, between, meet};
use super::subject::Subject;
use crate::Error;
use crate::args::Args;
use crate::cases::Case;
use crate::cpu::{Clocks, Meter};
use crate::samples::percentile;

/// Operations of a graph.
pub const OPERATIONS: usize = 50;

/// How long a split operation lets its data arrive: far longer than any takes.
const ARRIVAL: Duration = Duration::from_micros(100);

/// Nanoseconds of an operation, in each of `args.iterations` replays or eager calls. `meter`: what this rank's process uses of the
/// cores, from the first launch until all has run. All ranks call it.
pub fn time(
    gpu: &Gpu,
    group: &Group,
    subject: &impl Subject,
    case: Case,
    args: &Args,
    meter: &mut Meter,
) -> Result<Vec<f64>, Error> {
    match (args.graph, case) {
        (true, Case::Combine) => kernels_of_graph(gpu, group, subject, case, args, meter),
        (true, Case::Dispatch | Case::Pair) => whole_graph(gpu, group, subject, case, args, meter),
        (false, _) => eager(gpu, group, subject, case, args, meter),
    }
}

/// Enqueues an operation, with `edge` called where its time begins and ends.
fn operation(
    subject: &impl Subject,
    case: Case,
    mut edge: impl FnMut(usize) -> Result<(), Error>,
) -> Result<(), Error> {
    if case != Case::Combine {
        edge(0)?;
    }
    let dispatched = subject.dispatch()?;
    match case {
        Case::Dispatch => subject.release(dispatched)?,
        Case::Combine => {
            edge(0)?;
            subject.combine(dispatched, case)?;
        }
        Case::Pair => subject.combine(dispatched, case)?,
    }
    edge(1)
}

/// Each operation between two events.
fn eager(
    gpu: &Gpu,
    group: &Group,
    subject: &impl Subject,
    case: Case,
    args: &Args,
    meter: &mut Meter,
) -> Result<Vec<f64>, Error> {
    let clocks = Clocks::find();
    let count = (args.warmup + args.iterations) as usize;
    let events = pairs(gpu, count)?;
    meet(group)?;
    let used = clocks.now();
    for pair in &events {
        operation(subject, case, |edge| Ok(pair[edge].record(&gpu.stream)?))?;
    }
    subject.finish()?;
    meter.add(used, clocks.now());
    events[args.warmup as usize..].iter().map(|[begin, end]| between(begin, end)).collect()
}

/// A graph of operations, as a whole.
fn whole_graph(
    gpu: &Gpu,
    group: &Group,
    subject: &impl Subject,
    case: Case,
    args: &Args,
    meter: &mut Meter,
) -> Result<Vec<f64>, Error> {
    let graph = gpu.capture(|| (0..OPERATIONS).try_for_each(|_| operation(subject, case, |_| Ok(()))))?;
    let replays = replay(gpu, group, subject, &graph, args, meter, between)?;
    Ok(replays.iter().map(|time| time / OPERATIONS as f64).collect())
}

/// Nanoseconds of the kernel of `case` alone, in a graph of dispatches, each given up or combined. All ranks call it.
pub fn kernels_of_graph(
    gpu: &Gpu,
    group: &Group,
    subject: &impl Subject,
    case: Case,
    args: &Args,
    meter: &mut Meter,
) -> Result<Vec<f64>, Error> {
    let stamps = Stamps::new(gpu)?;
    let alone = |i: usize| {
        let edge = |edge| stamps.enqueue(gpu, i, edge);
        match case {
            Case::Dispatch => {
                edge(0)?;
                let dispatched = subject.dispatch()?;
                edge(1)?;
                subject.release(dispatched)
            }
            Case::Combine | Case::Pair => operation(subject, case, edge),
        }
    };
    let graph = gpu.capture(|| (0..OPERATIONS).try_for_each(alone))?;
    replay(gpu, group, subject, &graph, args, meter, |_, _| {
        let times = stamps.between(gpu)?;
        Ok(times.iter().sum::<f64>() / OPERATIONS as f64)
    })
}

/// What `time` makes of every replay but the first ones. Each follows one that does not count, enqueued together with it: by then
/// the ranks are in step, and the launch waits for nobody.
fn replay(
    gpu: &Gpu,
    group: &Group,
    subject: &impl Subject,
    graph: &CudaGraph,
    args: &Args,
    meter: &mut Meter,
    time: impl Fn(&CudaEvent, &CudaEvent) -> Result<f64, Error>,
) -> Result<Vec<f64>, Error> {
    let (mut times, clocks) = (Vec::new(), Clocks::find());
    let [begin, end] = [gpu.event()?, gpu.event()?];
    for i in 0..args.warmup + args.iterations {
        meet(group)?;
        let used = clocks.now();
        graph.launch()?;
        begin.record(&gpu.stream)?;
        graph.launch()?;
        end.record(&gpu.stream)?;
        subject.finish()?;
        if i >= args.warmup {
            meter.add(used, clocks.now());
            times.push(time(&begin, &end)?);
        }
    }
    Ok(times)
}

/// The halves of a dispatch or combine, in nanoseconds: the median of each replay. The receiving one begins when all has arrived,
/// the sending one when all may be written.
#[derive(Debug, Default)]
pub struct Halves {
    pub send: Vec<f64>,
    pub receive: Vec<f64>,
}

impl Halves {
    /// All ranks call it. Nothing for the pair.
    pub fn time(
        gpu: &Gpu,
        group: &Group,
        subject: &impl Subject,
        case: Case,
        args: &Args,
    ) -> Result<Option<Self>, Error> {
        if case == Case::Pair {
            return Ok(None);
        }
        let (sends, receives) = (Stamps::new(gpu)?, Stamps::new(gpu)?);
        let graph = gpu.capture(|| {
            (0..OPERATIONS).try_for_each(|i| {
                let mark = |stamps: &Stamps, edge| stamps.enqueue(gpu, i, edge);
                halves(gpu, subject, case, |edge| mark(&sends, edge), |edge| mark(&receives, edge))
            })
        })?;
        let mut halves = Self::default();
        for i in 0..args.warmup + args.iterations {
            meet(group)?;
            graph.launch()?;
            subject.finish()?;
            if i >= args.warmup {
                halves.send.push(middle(&sends.between(gpu)?));
                halves.receive.push(middle(&receives.between(gpu)?));
            }
        }
        Ok(Some(halves))
    }
}

/// One operation in halves; `send` and `receive` are called where the time of each begins and ends.
fn halves(
    gpu: &Gpu,
    subject: &impl Subject,
    case: Case,
    send: impl Fn(usize) -> Result<(), Error>,
    receive: impl Fn(usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let between = || {
        send(1)?;
        gpu.launch_pause(ARRIVAL)?;
        receive(0)
    };
    let begin = || {
        gpu.launch_pause(ARRIVAL)?;
        send(0)
    };
    match case {
        Case::Dispatch | Case::Pair => {
            begin()?;
            let dispatched = subject.dispatch_halves(&between)?;
            receive(1)?;
            subject.release(dispatched)
        }
        Case::Combine => {
            let dispatched = subject.dispatch()?;
            begin()?;
            subject.combine_halves(dispatched, &between)?;
            receive(1)
        }
    }
}

/// When operations of a graph began and ended, by the GPU's clock. Unlike events they leave its kernels as close as they are.
struct Stamps {
    times: CudaSlice<u8>,
    /// What two stamps with nothing between them are apart.
    nothing: f64,
}

impl Stamps {
    fn new(gpu: &Gpu) -> Result<Self, Error> {
        let mut stamps = Self { times: gpu.zeroed(OPERATIONS * 2 * size_of::<u64>())?, nothing: 0.0 };
        let graph = gpu.capture(|| {
            (0..OPERATIONS).try_for_each(|i| [0, 1].iter().try_for_each(|&edge| stamps.enqueue(gpu, i, edge)))
        })?;
        for _ in 0..2 {
            graph.launch()?;
            gpu.finish()?;
        }
        stamps.nothing = middle(&stamps.between(gpu)?);
        Ok(stamps)
    }

    /// Enqueues the stamp of one edge of operation `i`.
    fn enqueue(&self, gpu: &Gpu, i: usize, edge: usize) -> Result<(), Error> {
        let word = (2 * i + edge) * size_of::<u64>();
        // SAFETY: a word of `times`, which outlives the graphs that the stamps are in.
        unsafe { gpu.launch_stamp(gpu.address(&self.times) + word as u64) }
    }

    /// Nanoseconds of each operation, without what stamps take themselves.
    fn between(&self, gpu: &Gpu) -> Result<Vec<f64>, Error> {
        let mut words = [[0u64; 2]; OPERATIONS];
        // SAFETY: `times` is as long.
        unsafe { gpu.download(&mut words, gpu.address(&self.times)) }?;
        Ok(words
            .iter()
            .map(|[begin, end]| (end.saturating_sub(*begin) as f64 - self.nothing).max(0.0))
            .collect())
    }
}

fn pairs(gpu: &Gpu, count: usize) -> Result<Vec<[CudaEvent; 2]>, Error> {
    (0..count).map(|_| Ok([gpu.event()?, gpu.event()?])).collect()
}

/// The median; 0 of none.
pub fn middle(times: &[f64]) -> f64 {
    percentile(times, 50)
}
