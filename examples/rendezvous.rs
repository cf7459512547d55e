//! The server of a run as a program of its own, which may end and be started again: it keeps the run in a file, and
//! members reconnect to it.
//!
//! `cargo run --release --example rendezvous -- --state run.state --world 4`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use epwire::{
    env::Token,
    rendezvous::driver::{Heartbeat, ServerOptions},
};

#[path = "common/print.rs"]
mod print;
#[path = "common/serve.rs"]
mod serve;

/// Serves a run until SIGTERM or SIGINT. Started again with the same file it continues where it ended, however it
/// ended, and members reconnect. The token of the run, needed off the loopback interface, is EPWIRE_TOKEN or what
/// EPWIRE_TOKEN_FILE holds.
#[derive(Parser)]
#[command(name = "rendezvous", version)]
struct Args {
    /// File that keeps the run; made if there is none. One server at a time uses it.
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// Ranks of the run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    world: u32,
    /// The run begins with the ranks below this number; the others are room to grow. All of them unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    initial: Option<u32>,
    /// Where to listen, port 0: at a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:29700")]
    bind: String,
    /// Name of the run, the same on all ranks.
    #[arg(long, value_name = "ID", default_value = "default")]
    run_id: String,
    /// Seconds of silence after which a member may be considered lost, the same on all ranks.
    #[arg(long, value_name = "S", default_value_t = Heartbeat::default().lease.as_secs_f64(), value_parser = seconds)]
    lease: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86400.0).contains(seconds));
    seconds.ok_or_else(|| "a number from 0.01 to 86400 is expected".to_owned())
}

fn main() -> ExitCode {
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print::complain("rendezvous", &error);
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let heartbeat = Heartbeat::default().lease(Duration::from_secs_f64(args.lease));
    let options = ServerOptions::new(args.run_id, args.world)
        .token(Token::from_env()?)
        .state(Some(args.state))
        .heartbeat(heartbeat)
        .initial(args.initial.unwrap_or(args.world));
    serve::serve(&args.bind, options)
}
