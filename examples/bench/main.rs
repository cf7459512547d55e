//! Dispatch, combine and the pair over a list of shapes, each beside the time that the machine itself would need to move
//! the same bytes, with every result checked.
//!
//! `cargo run --release --example bench -- --ranks 4 --tokens 512`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

mod args;
mod cases;
mod compare;
#[cfg_attr(not(all(feature = "cuda", feature = "cudarc")), path = "no_cuda.rs")]
mod cuda;
mod expected;
mod floor;
mod pattern;
mod plot;
mod ranks;
mod report;
mod routing;
mod samples;
mod table;

#[cfg(test)]
#[path = "../common/options.rs"]
mod options;

use std::process::ExitCode;

use clap::Parser;
use epwire::Group;

use args::{Args, Device};
use cases::Subject;
use report::Row;

/// Any error; the example prints it and exits.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match &args.compare {
        Some(files) => compare::compare(files, args.tolerance),
        // Before any rank is started, so that one line says what is missing.
        None if args.device == Device::Cuda => {
            cuda::check().and_then(|()| ranks::start(&args, cuda::measure))
        }
        None => ranks::start(&args, measure),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("bench: {error}");
        ExitCode::FAILURE
    })
}

/// One rank's part, and on rank 0 the report of all.
fn measure(args: &Args, group: &Group, _local_rank: u32) -> Result<ExitCode, Error> {
    let mut measured = Vec::new();
    let mut rate: f64 = 0.0;
    for (shape, cases) in args.shapes(group.world())? {
        let mut subject = Subject::new(group, args, shape)?;
        // The best of the whole run, so that a busy moment lowers no floor.
        rate = rate.max(floor::copy_rate(group, &subject.buffer, args.threads)?);
        for case in cases {
            let samples = subject.run(case, args.warmup, args.iterations)?;
            if let Some(figures) = samples.figures(group)? {
                let window = subject.buffer.plan().window_bytes;
                measured.push((shape, case, figures, subject.traffic(case, args), window));
            }
        }
    }
    if group.rank() != 0 {
        return Ok(ExitCode::SUCCESS); // the first rank has the figures of all
    }
    let rows = measured.iter().map(|(shape, case, figures, traffic, window)| {
        let floor_us = traffic.floor_us(rate);
        let row = Row::new(args.device, group.world(), shape, *case, figures, floor_us, *window);
        Row { routing: args.routing, ..row }
    });
    let machine = format!("memcpy by all ranks at once: {:.1} GB/s copied", rate / 1e9);
    show(args, &rows.collect::<Vec<_>>(), &machine)
}

/// `machine`: what the floors were made of.
fn show(args: &Args, rows: &[Row], machine: &str) -> Result<ExitCode, Error> {
    if args.table {
        println!("{}", table::markdown(args, rows, machine)?);
    } else if args.json {
        rows.iter().for_each(|row| println!("{}", serde_json::json!(row)));
    } else {
        println!("{}\n{machine}", report::table(rows));
    }
    if let Some(file) = &args.plot {
        plot::plot(rows, file)?;
    }
    let right = rows.iter().all(|row| row.wrong == 0);
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
