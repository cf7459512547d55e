//! `--device cuda`: the same cases with a GPU per rank.

mod collective;
mod decode;
mod gpu;
mod gpus;
mod moved;
mod prefill;
mod probe;
mod sms;
mod subject;
mod sums;
mod timing;
mod tokens;

use std::process::ExitCode;

use epwire::Group;

pub use self::collective::measure as measure_collectives;
use self::decode::Decode;
use self::gpu::{Gpu, gather, meet};
use self::moved::Moved;
use self::prefill::Prefill;
use self::probe::Machine;
use self::subject::Subject;
use self::timing::{Halves, middle};
use crate::args::{Args, Shape};
use crate::cases::Case;
use crate::cpu::{self, Meter};
use crate::floor::{Reads, Traffic};
use crate::report::{OfSms, OnGpu, Rates, Row, Timing};
use crate::samples::{Figures, percentile};
use crate::wire::Reach;
use crate::{Error, ranks, show};

/// Iterations that are checked before a case is timed. One more is checked after it.
const CHECKED: u32 = 3;

/// Whether this process can use GPUs at all. With candle it can, because candle links the driver's library.
#[cfg(feature = "candle-cuda")]
pub fn check() -> Result<(), Error> {
    Ok(())
}

/// Whether this process can use GPUs at all.
#[cfg(not(feature = "candle-cuda"))]
pub fn check() -> Result<(), Error> {
    // SAFETY: opens a library of the system, which may run its initialisers, and closes it.
    match unsafe { epwire::cudarc::driver::sys::is_culib_present() } {
        true => Ok(()),
        false => {
            Err("no CUDA driver: libcuda.so.1 is not on this machine, or not on the library path".into())
        }
    }
}

/// One rank's part, and on rank 0 the report of all.
pub fn measure(args: &Args, group: &Group, local_rank: u32) -> Result<ExitCode, Error> {
    let gpu = Gpu::of_rank(local_rank)?;
    let gpus = gpus::describe(&gpu, group)?;
    let machine = Machine::probe(&gpu, group, args.graph)?;
    let (mut rows, mut paths) = (Vec::new(), Vec::new());
    let swept = args.sms != [0];
    for (shape, cases) in args.shapes(ranks::count(group))? {
        // One buffer after the other, because each takes all SMs.
        for args in args.sms.iter().map(|sms| Args { sms: vec![*sms], ..args.clone() }) {
            let run = Run { gpu: &gpu, group, args: &args, shape, machine: &machine, swept };
            (rows, paths) = match shape.layout.is_prefill() {
                true => run.rows(Prefill::new(&gpu, group, &args, shape)?, &cases, rows)?,
                false => run.rows(Decode::new(&gpu, group, &args, shape)?, &cases, rows)?,
            };
        }
    }
    let idle = cpu::idle(group, || meet(group))?.map(|used| cpu::idle_words(&used)).unwrap_or_default();
    let paths = paths.join(", ");
    match group.rank() {
        0 => show(args, &rows, &format!("{gpus}; rank 0 reaches them by {paths}; {machine}\n{idle}")),
        _ => Ok(ExitCode::SUCCESS), // every rank has the figures of all; the first one shows them
    }
}

/// What the cases of a shape have in common.
struct Run<'a> {
    gpu: &'a Gpu,
    group: &'a Group,
    args: &'a Args,
    shape: Shape,
    machine: &'a Machine,
    /// Whether numbers of SMs are listed: each then has its own floor.
    swept: bool,
}

impl Run<'_> {
    /// Adds those of all cases to `rows`; and by which paths peers are reached.
    fn rows(
        &self,
        mut subject: impl Subject,
        cases: &[Case],
        mut rows: Vec<Row>,
    ) -> Result<(Vec<Row>, Vec<String>), Error> {
        for &case in cases {
            rows.push(self.row(&mut subject, case)?);
        }
        Ok((rows, (0..self.group.world()).map(|peer| subject.path(peer).to_string()).collect()))
    }

    /// Checks and times a case. All ranks call it.
    fn row(&self, subject: &mut impl Subject, case: Case) -> Result<Row, Error> {
        let Self { gpu, group, args, shape, machine, swept } = *self;
        let mut wrong = 0;
        for _ in 0..CHECKED {
            wrong += subject.check(case)?;
        }
        subject.renew()?;
        let mut meter = Meter::default();
        let times = timing::time(gpu, group, subject, case, args, &mut meter)?;
        let used = meter.used(group)?;
        wrong += subject.wrong_after_timing(case)?;
        let kernels = match (args.graph, case) {
            (true, Case::Dispatch) => {
                Some(timing::kernels_of_graph(gpu, group, subject, case, args, &mut Meter::default())?)
            }
            (true, Case::Combine) => Some(times.clone()), // is timed by its kernel
            _ => None,
        };
        let halves = if args.split { Halves::time(gpu, group, subject, case, args)? } else { None };
        wrong += subject.check(case)?;

        let all = gather(group, &times)?;
        let wrong = gather(group, &[wrong as f64])?.iter().flatten().sum::<f64>() as u64;
        let slowest =
            |times: Vec<Vec<f64>>| times.iter().map(|times| middle(times)).fold(0.0, f64::max) / 1e3;
        let kernel_us = kernels.map(|times| gather(group, &times)).transpose()?.map(slowest);
        let (mut send_us, mut receive_us) = (None, None);
        if let Some(Halves { send, receive }) = halves {
            send_us = Some(slowest(gather(group, &send)?));
            receive_us = Some(slowest(gather(group, &receive)?));
        }

        let routings = &subject.expected().routings;
        let moved = Moved::of(case, &shape, routings);
        let mut floor_us = machine.wire_us(moved.busiest);
        let mut of_sms = None;
        if swept {
            let traffic = Traffic::of(case, &shape, routings, Reads::Once, None);
            let rates = Rates::probe(gpu, group, args.chosen_sms(), traffic.extent / routings.len() as u64)?;
            let (wire_us, sms_us) = (floor_us, rates.floor_us(&traffic, routings.len(), moved.sent));
            floor_us = wire_us.max(sms_us);
            of_sms = Some(OfSms { wire_us, sms_us, rates });
        }
        let floor_us = floor_us + machine.idle_us(moved.operations);
        let figures = figures(&all, wrong);
        let medians: Vec<f64> = all.iter().map(|times| middle(times)).collect();
        let gpu = OnGpu {
            timing: if args.graph { Timing::Graph } else { Timing::Eager },
            sms: args.chosen_sms(),
            of_sms,
            lanes: args.lanes,
            serial_lanes: args.serial_lanes,
            with: args.with.clone(),
            fastest_us: percentile(&medians, 0) / 1e3,
            middle_us: middle(&medians) / 1e3,
            nvlink_gbs: moved.sent as f64 / figures.p50_us / 1e3,
            kernel_us,
            send_us,
            receive_us,
            store_gbs: machine.rate.is_finite().then_some(machine.rate / 1e9),
            signal_us: machine.signal_us,
            gap_us: machine.gap_us,
        };
        let window = subject.window_bytes();
        let row = Row::new(args, ranks::count(group), &shape, case, &figures, floor_us, window);
        let reach = Reach::new(args, (0..group.world()).map(|peer| subject.path(peer)));
        Ok(Row { gpu: Some(gpu), reach, used, ..row })
    }
}

/// Of the figures of each rank the greatest: that of the slowest one.
fn figures(all: &[Vec<f64>], wrong: u64) -> Figures {
    let greatest = |percent| all.iter().map(|times| percentile(times, percent)).fold(0.0, f64::max) / 1e3;
    let count = all.iter().map(Vec::len).min().unwrap_or(0);
    let mut last = vec![0usize; all.len()];
    for i in 0..count {
        let slowest = (0..all.len()).max_by(|&a, &b| all[a][i].total_cmp(&all[b][i]));
        slowest.into_iter().for_each(|rank| last[rank] += 1);
    }
    let slowest = (0..all.len()).max_by_key(|&rank| last[rank]).unwrap_or(0);
    let share = last.get(slowest).map_or(0.0, |&times| 100.0 * times as f64 / count.max(1) as f64);
    Figures {
        p50_us: greatest(50),
        p99_us: greatest(99),
        max_us: greatest(100),
        slowest: (slowest, share),
        wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_slowest_rank() {
        assert_eq!(figures(&[vec![1e3, 2e3, 3e3, 4e3]], 0).p50_us * 1e3, middle(&[1e3, 2e3, 3e3, 4e3]));
        let all = [vec![1e3, 2e3, 9e3], vec![4e3, 3e3, 5e3]];
        let figures = figures(&all, 1);
        assert_eq!((figures.p50_us, figures.max_us, figures.wrong), (4.0, 9.0, 1));
        assert_eq!((figures.slowest.0, figures.slowest.1.round()), (1, 67.0));
    }
}
