//! Which prerequisites of each path this machine meets, and what to do about the others; under a launcher, or with
//! `--ranks N`, also how fast each rank reaches each other one.
//!
//! `cargo run --release --example doctor -- --ranks 3`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use epwire::doctor::{self, Matrix, Report};
use epwire::env::Token;
use epwire::group::GroupOptions;
use epwire::launch::Launch;
use epwire::launch::spawn::Ranks;
use epwire::rendezvous::driver::{Server, ServerOptions};
use epwire::{Device, Group};

#[path = "../common/asked.rs"]
mod asked;
#[cfg(test)]
#[path = "../common/options.rs"]
mod options;
#[path = "../common/print.rs"]
mod print;

/// Probes each prerequisite of each path, and measures the ways between ranks. Needs no privileges and changes nothing. Exits with 1
/// where a rank does not reach another one.
#[derive(Debug, Parser)]
#[command(name = "doctor", version)]
struct Args {
    /// Processes to start on this host and to measure; not needed under torchrun, mpirun, srun or another launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
    /// Where the windows are between which it measures: host memory, or one GPU per rank (feature `cuda`)
    #[arg(long, value_enum, default_value_t = Memory::Host)]
    device: Memory,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Memory {
    Host,
    Cuda,
}

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    run(&Args::parse()).unwrap_or_else(|error| {
        print::complain("doctor", &error);
        ExitCode::FAILURE
    })
}

fn run(args: &Args) -> Result<ExitCode, Error> {
    match (Launch::from_env()?, args.ranks) {
        (Some(launch), ranks) => {
            asked::check(&launch, ranks)?;
            rank(&launch, args)
        }
        (None, Some(ranks @ 2..)) => spawn(ranks),
        (None, _) if args.device != Memory::Host => {
            Err("--device cuda says where ranks measure: it needs --ranks of at least 2, or a launcher"
                .into())
        }
        (None, _) => show(&doctor::examine(), args),
    }
}

/// One rank's part. Rank 0 examines its machine and has the matrix of all.
fn rank(launch: &Launch, args: &Args) -> Result<ExitCode, Error> {
    let group = Group::join_blocking(GroupOptions::from_launch(launch).token(Token::from_env()?))?;
    let device = match args.device {
        Memory::Host => Device::Host,
        Memory::Cuda => Device::Cuda(launch.local_rank % doctor::gpus()?),
    };
    let matrix = Matrix::measure_blocking(&group, device)?;
    let ended = match matrix {
        Some(matrix) => {
            let mut report = doctor::examine();
            report.matrix = Some(matrix);
            show(&report, args)
        }
        None => Ok(ExitCode::SUCCESS),
    };
    group.leave_blocking()?;
    ended
}

fn show(report: &Report, args: &Args) -> Result<ExitCode, Error> {
    match args.json {
        true => print::print(&report.to_json())?,
        false => print::print(&report.to_string().trim_end())?,
    }
    let complete = report.matrix.as_ref().is_none_or(Matrix::is_complete);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Executes this program once per rank and hosts their rendezvous on the loopback interface.
fn spawn(ranks: u32) -> Result<ExitCode, Error> {
    let options = ServerOptions::new("doctor", ranks).token(Some(Token::random()?));
    let server = Server::bind_blocking("127.0.0.1:0", options)?;
    let ended = Ranks::new(ranks).server(&server).spawn()?.wait(None)?;
    match ended.exit_code() {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(ended.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Args, run};

    #[test]
    fn the_readme_has_the_options() {
        crate::options::assert_in_readme(&Args::command());
    }

    #[test]
    fn a_device_is_refused_where_nothing_is_measured() {
        for line in ["doctor --device cuda", "doctor --device cuda --ranks 1"] {
            let text = run(&Args::parse_from(line.split(' '))).unwrap_err().to_string();
            assert!(
                text.contains("--device cuda") && text.contains("--ranks of at least 2"),
                "{line}: {text}"
            );
        }
    }
}
