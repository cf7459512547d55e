//! A Mixture-of-Experts model over several processes, every layer of it checked against a reference.
//!
//! `cargo run --release --example moe_layer -- --ranks 4 README.md`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

mod alone;
mod args;
mod experts;
mod matrix;
mod model;
mod random;
mod reference;
mod report;
mod run;

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;
use epwire::launch::{Launch, Source};

use args::{Args, Payload};
use model::Model;
use report::Summary;
use run::{Cut, Error};

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("moe_layer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// As a rank if a launcher has said which, else as the parent of ranks.
fn start(args: &Args) -> Result<ExitCode, Error> {
    let launch = Launch::from_env()?;
    if let (Some(launch), Some(ranks)) = (&launch, args.ranks)
        && launch.source != Source::Epwire
        && launch.world != ranks
    {
        let Launch { world, source, .. } = launch;
        return Err(format!("--ranks {ranks}, but {source} has started {world}; leave --ranks out").into());
    }
    if let Some(launch) = launch.as_ref().filter(|l| l.rank == 0 && l.source != Source::Epwire) {
        eprintln!("moe_layer: {launch}");
    }
    let (rank, ranks) = match &launch {
        Some(launch) => (launch.rank as usize, launch.world as usize),
        None => (0, args.ranks.unwrap_or(1) as usize),
    };
    if ranks != 1 || args.payload == Payload::Fp8 {
        return Err("more than one rank and FP8 need epwire's buffer".into());
    }
    as_rank(args, rank, ranks)
}

/// One rank's part, and on rank 0 the report of all.
fn as_rank(args: &Args, rank: usize, ranks: usize) -> Result<ExitCode, Error> {
    let shape = args.shape(ranks)?;
    let text = std::fs::read(&args.file).map_err(|e| format!("can not read {}: {e}", args.file.display()))?;
    let model = Model::new(shape, args.seed);
    let cut = Cut { rank, ranks, max_tokens: args.max_tokens };
    let mut exchange = alone::Alone { layout: args.layout, hidden: shape.hidden, dtype: args.dtype() };
    let visible = rank == 0 && std::io::stderr().is_terminal();
    let bar = report::progress(cut.steps(text.len()) * shape.layers, visible);
    let report = run::run(&model, &text, cut, args.dtype(), args.summation(ranks), &mut exchange, &bar)?;
    bar.finish_and_clear();
    // With what was chosen by default filled in.
    let args = Args { ranks: Some(ranks as u32), experts: Some(shape.experts), ..args.clone() };
    Ok(show(&Summary::new(&args, vec![report])))
}

fn show(summary: &Summary<'_>) -> ExitCode {
    if summary.config.json {
        println!("{}", serde_json::json!(summary));
    } else {
        println!("{}\n{}", summary.table(), summary.last_line());
    }
    if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
