//! A Mixture-of-Experts model over several processes, every layer of it checked against a reference.
//!
//! `cargo run --release --example moe_layer -- --ranks 4 README.md`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

mod args;
#[path = "../common/asked.rs"]
mod asked;
#[cfg(all(feature = "cuda", feature = "cudarc"))]
mod cuda;
mod exchange;
mod experts;
#[cfg(all(feature = "cuda", feature = "cudarc"))]
#[path = "../common/gpus.rs"]
mod gpus;
#[cfg(all(feature = "cuda", feature = "cudarc"))]
mod kernels;
#[path = "../common/launch.rs"]
mod launch;
mod matrix;
mod model;
#[path = "../common/nic.rs"]
mod nic;
#[path = "../common/print.rs"]
mod print;
mod random;
mod reference;
mod report;
mod run;
mod silu;

#[cfg(test)]
#[path = "../common/options.rs"]
mod options;

use std::{fs, io::IsTerminal, process::ExitCode};

use clap::Parser;
use epwire::{Group, env::Token, group::GroupOptions, launch::Launch};

use args::Args;
use model::Model;
use print::print;
use report::{RankReport, Summary};
use run::{Cut, Result};

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(nic) = args.nic {
        args::tell(nic);
    }
    // What is wrong for every rank is reported once, by their parent.
    let check = |ranks: u32| {
        args.shape(ranks as usize)?;
        text(&args)?;
        exchange::check(args.device)
    };
    launch::start("moe_layer", args.ranks, check, |launch| as_rank(&args, launch)).unwrap_or_else(|error| {
        print::complain("moe_layer", &error);
        ExitCode::FAILURE
    })
}

/// Meets the other ranks, runs this rank's part, and on rank 0 reports on all.
fn as_rank(args: &Args, launch: Option<&Launch>) -> Result<ExitCode> {
    let (rank, ranks) = launch.map_or((0, 1), |launch| (launch.rank as usize, launch.world as usize));
    let shape = args.shape(ranks)?;
    let text = text(args)?;
    exchange::check(args.device)?;
    // Before the ranks meet: from then on they wait for each other.
    let model = Model::new(shape, args.seed);
    let group = join(args, launch, text.len())?;
    let local_rank = launch.map_or(0, |launch| launch.local_rank);
    let mut exchange = exchange::connect(&group, args, &model, local_rank)?;

    let cut = Cut { rank, ranks, max_tokens: args.max_tokens };
    let visible = rank == 0 && std::io::stderr().is_terminal();
    let bar = report::progress(cut.steps(text.len()) * shape.layers, visible);
    let report = run::run(&model, &text, cut, args.dtype(), args.summation(ranks), exchange.as_mut(), &bar)?;
    bar.finish_and_clear();

    let reports = gather(&group, &report)?;
    // Everything that writes to peers must end before the membership does.
    drop(exchange);
    group.leave_blocking()?;
    if rank > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    // With the defaults filled in.
    let args = Args { ranks: Some(ranks as u32), experts: Some(shape.experts), ..args.clone() };
    show(&Summary::new(&args, reports))
}

/// The tokens. Each rank reads them for itself, which only a file can be: a pipe gives its bytes to the first reader alone.
fn text(args: &Args) -> Result<Vec<u8>> {
    let file = args.file.display();
    let unreadable = |error| format!("cannot read {file}: {error}");
    if !fs::metadata(&args.file).map_err(unreadable)?.is_file() {
        return Err(
            format!("{file} is not a regular file: each rank reads its bytes, so save them in one").into()
        );
    }
    let text = fs::read(&args.file).map_err(unreadable)?;
    if text.is_empty() {
        return Err(format!("{file} is empty: its bytes are the tokens, so at least one is needed").into());
    }
    Ok(text)
}

fn join(args: &Args, launch: Option<&Launch>, tokens: usize) -> Result<Group> {
    let Some(launch) = launch else {
        return Group::threads(1)?.pop().ok_or_else(|| "a world of one rank has no group".into());
    };
    let options = GroupOptions::from_launch(launch)
        .token(Token::from_env()?)
        // Ranks that disagree on these would take different steps and wait for each other in vain.
        .config("arguments", serde_json::json!(args).to_string())
        .config("bytes of the text", tokens.to_string());
    Ok(Group::join_blocking(options)?)
}

/// The reports of all ranks, on rank 0; nothing elsewhere.
fn gather(group: &Group, report: &RankReport) -> Result<Vec<RankReport>> {
    let mut blobs = vec![Vec::new(); group.world() as usize];
    blobs[0] = serde_json::to_vec(report)?;
    let blobs = group.exchange_blocking("reports", blobs)?;
    if group.rank() > 0 {
        return Ok(Vec::new());
    }
    blobs.iter().map(|blob| Ok(serde_json::from_slice(blob)?)).collect()
}

fn show(summary: &Summary<'_>) -> Result<ExitCode> {
    if summary.config.json {
        print(&serde_json::json!(summary))?;
    } else {
        print(&summary.table())?;
        print(&summary.paths())?;
        print(&summary.last_line())?;
    }
    Ok(if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
