//! Dispatch, combine and the pair over a list of shapes, each beside the time that the machine itself would need to move
//! the same bytes, with every result checked.
//!
//! `cargo run --release --example bench -- --ranks 4 --tokens 512 --iterations 20`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

mod against;
mod args;
#[path = "../common/asked.rs"]
mod asked;
mod bytes;
mod cases;
mod collective;
mod compare;
mod cpu;
#[cfg_attr(not(all(feature = "cuda", feature = "cudarc")), path = "no_cuda.rs")]
mod cuda;
mod expected;
mod floor;
mod moves;
#[path = "../common/nic.rs"]
mod nic;
mod pattern;
mod plot;
mod prefill;
#[path = "../common/print.rs"]
mod print;
mod ranks;
mod report;
mod routing;
mod samples;
mod table;
mod tokens;
mod wire;

#[cfg(test)]
#[path = "../common/options.rs"]
mod options;

use std::process::ExitCode;

use clap::Parser;
use epwire::Group;

use args::{Args, Device};
use cases::{Case, Subject};
use floor::{Floor, Mover};
use print::print;
use report::Row;
use samples::{Meeting, Samples};
use wire::{OnQueue, Reach, Sockets, Way};

/// Any error; the example prints it and exits.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = Args::parse();
    wire::tell(&args);
    let ended = match (&args.compare, &args.against) {
        (Some(files), _) => match collective::compare(files, args.tolerance) {
            Ok(None) => compare::compare(files, args.tolerance),
            ended => ended.map(|code| code.unwrap_or(ExitCode::FAILURE)),
        },
        (None, Some(other)) => against::against(other, &args),
        // Before any rank is started, so that one line says what is missing.
        (None, None) => match (args.device, args.collective.is_empty()) {
            (Device::Host, true) => ranks::start(&args, measure),
            (Device::Host, false) => {
                args.check_collectives().and_then(|()| ranks::start(&args, collective::host::measure))
            }
            (Device::Cuda, true) => cuda::check().and_then(|()| ranks::start(&args, cuda::measure)),
            (Device::Cuda, false) => args
                .check_collectives()
                .and_then(|()| cuda::check())
                .and_then(|()| ranks::start(&args, cuda::measure_collectives)),
        },
    };
    ended.unwrap_or_else(|error| {
        print::complain("bench", &error);
        ExitCode::FAILURE
    })
}

/// One rank's part, and on rank 0 the report of all.
fn measure(args: &Args, group: &Group, _local_rank: u32) -> Result<ExitCode, Error> {
    let meeting = Meeting::new(group)?;
    let mut rows = Vec::new();
    let mut way = None;
    if wire::asked() && ranks::count(group) > 1 {
        let sockets = Sockets::connect(group)?;
        way = Some((Way::measure(group, &meeting, &sockets)?, sockets));
    }
    for (shape, cases) in args.shapes(ranks::count(group))? {
        let mut subject = cases::subject(group, &meeting, args, shape)?;
        for case in cases {
            let routings = &subject.expected().routings;
            let sent = if way.is_some() { wire::sent(case, &shape, routings) } else { Vec::new() };
            let streams = || match &way {
                Some((_, sockets)) => sockets.stream(group, &meeting, &sent),
                None => Ok(Vec::new()),
            };
            let mut streamed = streams()?;
            let beside = if shape.layout.is_prefill() { in_turns } else { between_floors };
            let (samples, Floor { us, way: by }) = beside(group, &meeting, args, &mut *subject, case)?;
            streamed.extend(streams()?);
            let queue = way.as_ref().filter(|_| !streamed.is_empty()).map(|(way, _)| {
                let stream_us = samples::percentile(&streamed, 50);
                OnQueue { stream_us, way: *way }
            });
            let used = samples.meter.used(group)?;
            if let Some(figures) = samples.figures(group)? {
                let window = subject.window_bytes();
                let row = Row::new(args, ranks::count(group), &shape, case, &figures, us, window);
                let reach = Reach::new(args, (0..group.world()).map(|peer| subject.path(peer)));
                rows.push(Row { floor_by: Some(by), reach, queue, used, ..row });
            }
        }
    }
    let idle = cpu::idle(group, || meeting.meet())?;
    let mut words: Vec<_> = way.iter().map(|(way, _)| way.words(args.wire)).collect();
    words.extend(idle.map(|used| cpu::idle_words(&used)));
    words.extend(samples::across_hosts(group).then(|| samples::OWN_TIMES.to_owned()));
    match group.rank() {
        0 => show(args, &rows, &words.join("\n")),
        _ => Ok(ExitCode::SUCCESS), // the first rank has the figures of all
    }
}

/// The floor on both sides of the case, so that a busy moment of the machine raises none.
fn between_floors(
    group: &Group,
    meeting: &Meeting,
    args: &Args,
    subject: &mut dyn Subject,
    case: Case,
) -> Result<(Samples, Floor), Error> {
    let traffic = subject.traffic(case, args);
    let floor = || Floor::measure(group, meeting, &traffic, args.threads);
    let before = floor()?;
    meeting.settle()?;
    let warmup = cases::run(subject, case, args.warmup, true)?;
    let samples = cases::run(subject, case, args.iterations, false)?;
    Ok((samples.with(warmup), before.or(floor()?)))
}

/// The floor after each iteration, for operations of which one takes long.
fn in_turns(
    group: &Group,
    meeting: &Meeting,
    args: &Args,
    subject: &mut dyn Subject,
    case: Case,
) -> Result<(Samples, Floor), Error> {
    let mut mover = Mover::new(group, &subject.traffic(case, args), args.threads);
    meeting.settle()?;
    let mut samples = cases::run(subject, case, args.warmup, true)?;
    for _ in 0..args.iterations {
        samples = samples.with(cases::run(subject, case, 1, false)?);
        mover.round(meeting)?;
    }
    let median = |ns: &[u64]| ns.get(ns.len().saturating_sub(1) / 2).copied();
    Ok((samples, mover.floor(group, median)?))
}

/// `machine`: what floors on GPUs were made of, or what queues take, in words.
fn show(args: &Args, rows: &[Row], machine: &str) -> Result<ExitCode, Error> {
    if args.table {
        print(&table::markdown(args, rows, machine)?)?;
    } else if args.json {
        for row in rows {
            print(&serde_json::json!(row))?;
        }
    } else {
        print(&report::table(rows))?;
        if !machine.is_empty() {
            print(&machine)?;
        }
    }
    if let Some(file) = &args.plot {
        plot::plot(rows, file)?;
    }
    let right = rows.iter().all(|row| row.wrong == 0);
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
