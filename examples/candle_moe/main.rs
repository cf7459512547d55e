//! A Mixture-of-Experts layer of candle's operations, its experts spread over ranks by epwire:
//!
//!     cargo run --release --features candle --example candle_moe -- --ranks 4
//!     cargo run --release --features candle-cuda --example candle_moe -- --ranks 2 --device cuda
//!
//! Each rank routes its own tokens, receives those of its experts, computes, and gets its tokens' sums back. Each compares
//! them with the same layer without epwire, which has all tokens and all experts: they are equal bit for bit.
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

#[path = "../common/asked.rs"]
mod asked;
#[cfg_attr(not(feature = "candle-cuda"), path = "no_cuda.rs")]
mod cuda;
mod host;
#[path = "../common/launch.rs"]
mod launch;
mod moe;
#[path = "../common/print.rs"]
mod print;

use std::process::ExitCode;

use candle_core::{Device, Tensor};
use clap::{Parser, ValueEnum};
use epwire::{Group, env::Token, group::GroupOptions, launch::Launch};
use half::bf16;

use moe::{HIDDEN, Moe, TOKENS};

/// Any error; the example prints it and exits.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
struct Args {
    /// Processes to start on this host; not needed under a launcher.
    #[arg(long)]
    ranks: Option<u32>,
    /// Where the tensors are and the layer is computed.
    #[arg(long, value_enum, default_value_t = Place::Host)]
    device: Place,
    /// On GPUs: enqueue dispatch and combine on a stream of their own, not on the one on which candle computes
    #[arg(long)]
    apart: bool,
}

/// `--device`
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    /// In memory of the host
    Host,
    /// On a GPU per rank, in a build with --features candle-cuda
    Cuda,
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.apart && self.device == Place::Host {
            return Err("--apart needs --device cuda: the host has no streams".into());
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = args.check().and_then(|()| {
        let check = |_| if args.device == Place::Cuda { cuda::check() } else { Ok(()) };
        launch::start("candle_moe", args.ranks, check, |launch| run(&args, launch))
    });
    ended.unwrap_or_else(|error| {
        print::complain("candle_moe", &error);
        ExitCode::FAILURE
    })
}

fn run(args: &Args, launch: Option<&Launch>) -> Result<ExitCode> {
    let group = match launch {
        Some(launch) => Group::join_blocking(GroupOptions::from_launch(launch).token(Token::from_env()?))?,
        None => Group::threads(1)?.remove(0),
    };
    let (ranks, rank) = (group.world() as usize, group.rank() as usize);
    let device = match args.device {
        Place::Host => Device::Cpu,
        Place::Cuda => cuda::device(launch.map_or(0, |launch| launch.local_rank))?,
    };
    let moe = Moe::new(ranks, &device)?;

    // First without epwire: this lets candle load its kernels, which it could not do while a dispatch waits on the GPU
    // for peers.
    let expected = moe.alone()?.narrow(0, rank * TOKENS, TOKENS)?;
    let x = moe.tokens_of(rank)?;
    let out = match args.device {
        Place::Host => host::spread_over(&group, &moe, &x)?,
        Place::Cuda => cuda::spread_over(&group, &moe, &x, args.apart)?,
    };

    let bits = |t: &Tensor| -> Result<Vec<u16>> {
        Ok(t.flatten_all()?.to_vec1::<bf16>()?.into_iter().map(bf16::to_bits).collect())
    };
    let different = bits(&out)?.iter().zip(bits(&expected)?).filter(|(a, b)| **a != *b).count();
    group.barrier_blocking("checked")?;
    if different > 0 {
        return Err(format!("{different} of {} values differ", TOKENS * HIDDEN).into());
    }
    if rank == 0 {
        let experts = moe.experts.len();
        print::print(&format!("candle_moe: OK ranks={ranks} tokens={TOKENS} experts={experts} different=0"))?;
    }
    group.leave_blocking()?;
    Ok(ExitCode::SUCCESS)
}
