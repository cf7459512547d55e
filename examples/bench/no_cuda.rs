//! `--device cuda` in a build that has none.

use std::process::ExitCode;

use epwire::Group;

use crate::Error;
use crate::args::Args;

pub fn check() -> Result<(), Error> {
    Err("--device cuda needs a build for GPUs: cargo run --release --example bench --features cuda,cudarc"
        .into())
}

pub fn measure_collectives(args: &Args, group: &Group, local_rank: u32) -> Result<ExitCode, Error> {
    measure(args, group, local_rank)
}

pub fn measure(_: &Args, _: &Group, _: u32) -> Result<ExitCode, Error> {
    check().map(|()| ExitCode::FAILURE)
}
