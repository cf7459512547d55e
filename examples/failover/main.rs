//! Ranks serve an MoE layer while one of them (also the one that serves the run) is killed, replaced or stopped, one
//! more is added and one retired. A timeline shows how long the others took to notice, to agree, and to be exact again;
//! the program fails if that was too long.
//!
//! `cargo run --release --example failover -- --ranks 4`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

mod args;
mod figures;
#[cfg(all(feature = "cuda", feature = "cudarc"))]
#[path = "../common/gpus.rs"]
mod gpus;
mod layer;
mod limits;
mod news;
#[path = "../common/print.rs"]
mod print;
mod ranks;
#[path = "../common/serve.rs"]
mod serve;
mod server;
mod story;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Role};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RUN_ID: &str = "failover";

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.role {
        None => story::run(&args.story),
        Some(Role::Rank(rank)) => {
            worker::run(&rank).map_err(|error| format!("rank {}: {error}", rank.rank).into())
        }
        Some(Role::Server(server)) => server::run(server),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print::complain("failover", &error);
            ExitCode::FAILURE
        }
    }
}
