//! Two layers of a tensor-parallel model over several processes, checked against the whole one.
//!
//! `cargo run --release --example tensor_parallel -- --ranks 4`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

#[path = "../common/asked.rs"]
mod asked;
#[cfg_attr(not(all(feature = "cuda", feature = "cudarc")), path = "no_cuda.rs")]
mod cuda;
#[path = "../common/launch.rs"]
mod launch;
mod mlp;
#[path = "../common/print.rs"]
mod print;

#[cfg(test)]
#[path = "../common/options.rs"]
mod options;

use std::{error::Error, process::ExitCode};

use clap::{Parser, ValueEnum};
use epwire::{
    Comm, CommConfig, Group, Reduction, comm::CommBuffer, env::Token, group::GroupOptions, launch::Launch,
};

use mlp::{Mlp, Shape, max_rel_err, worse};
use print::print;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Runs a two-layer MLP whose weights are split over several processes, in two ways, and checks both against the whole one.
#[derive(Debug, Clone, Parser)]
#[command(name = "tensor_parallel", version)]
pub struct Args {
    /// Processes to start on this host; not needed under torchrun, mpirun, srun or another launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: Option<u32>,
    /// Where the layers are computed and their outputs summed
    #[arg(long, value_enum, default_value_t = Device::Host)]
    pub device: Device,
    /// Rows of the input, a multiple of the ranks
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub tokens: usize,
    /// Columns of the input
    #[arg(long, value_name = "H", default_value_t = 256)]
    pub hidden: usize,
    /// Channels between the two layers, a multiple of the ranks
    #[arg(long, value_name = "I", default_value_t = 512)]
    pub intermediate: usize,
}

/// `--device`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// In memory of the host
    Host,
    /// A GPU per rank, in a build with --features cuda,cudarc
    Cuda,
}

/// A rank's part of the outputs, computed in both ways.
#[derive(Debug, Default)]
pub struct Outputs {
    /// All rows.
    reduced: Vec<f32>,
    /// Its own.
    scattered: Vec<f32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let check = |ranks: u32| args.shape(ranks as usize).and_then(|_| args.check_device());
    launch::start("tensor_parallel", args.ranks, check, |launch| as_rank(&args, launch)).unwrap_or_else(
        |error| {
            print::complain("tensor_parallel", &error);
            ExitCode::FAILURE
        },
    )
}

impl Args {
    fn check_device(&self) -> Result<()> {
        if self.device == Device::Cuda { cuda::check() } else { Ok(()) }
    }

    fn shape(&self, ranks: usize) -> Result<Shape> {
        let Self { tokens, hidden, intermediate, .. } = *self;
        for (name, value) in [("--tokens", tokens), ("--intermediate", intermediate)] {
            if value == 0 || value % ranks != 0 {
                return Err(format!("{name} {value} is not a multiple of {ranks} ranks").into());
            }
        }
        if hidden == 0 {
            return Err("--hidden must be at least 1".into());
        }
        Ok(Shape { tokens, hidden, intermediate })
    }
}

fn as_rank(args: &Args, launch: Option<&Launch>) -> Result<ExitCode> {
    let (rank, ranks) = launch.map_or((0, 1), |launch| (launch.rank as usize, launch.world as usize));
    let shape = args.shape(ranks)?;
    args.check_device()?;
    // Before the ranks meet: from then on they wait for each other.
    let (whole, x) = (Mlp::random(shape), mlp::input(shape));
    let expected = whole.forward(&x);
    let part = whole.part(rank, ranks);

    let group = match launch {
        Some(launch) => Group::join_blocking(GroupOptions::from_launch(launch).token(Token::from_env()?))?,
        None => Group::threads(1)?.pop().ok_or("a world of one rank has no group")?,
    };
    let rows = shape.tokens / ranks * shape.hidden;
    let own = rank * rows..(rank + 1) * rows;
    let Outputs { reduced, scattered } = match args.device {
        Device::Host => on_host(&group, &part, &x, &x[own.clone()])?,
        Device::Cuda => {
            let local_rank = launch.map_or(0, |launch| launch.local_rank);
            cuda::both_ways(&group, local_rank, &part, &x, &x[own.clone()])?
        }
    };

    let error = worse(max_rel_err(&reduced, &expected), max_rel_err(&scattered, &expected[own.clone()]));
    // Both add the same parts in the order of the ranks.
    let same = scattered[..] == reduced[own];
    let mut worst = [error, if same { 0.0 } else { 1.0 }];
    let comm = Comm::create_blocking(&group, CommConfig::default())?;
    mlp::complete(comm.all_reduce_in_place_blocking(&mut worst, Reduction::Max)?)?;
    group.barrier_blocking("end")?;
    drop(comm);
    group.leave_blocking()?;

    let [error, differ] = worst;
    let ok = error < TOLERANCE && differ == 0.0;
    if rank == 0 {
        let Shape { tokens, hidden, intermediate } = shape;
        let verdict = if ok { "OK" } else { "FAILED" };
        print(&format!(
            "tensor_parallel: {verdict} ranks={ranks} tokens={tokens} hidden={hidden} intermediate={intermediate} \
             max_rel_err={error:.1e}"
        ))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn on_host(group: &Group, part: &Mlp, x: &[f32], own: &[f32]) -> Result<Outputs> {
    // Activations live in the window, where the other ranks read them in place.
    let heap_bytes = 4 * size_of_val(x) as u64 + 4096;
    let comm = Comm::create_blocking(group, CommConfig::default().heap_bytes(heap_bytes))?;
    let reduced = with_all_reduce(&comm, part, x)?.to_vec();
    let scattered = with_gather_and_scatter(&comm, part, own)?.to_vec();
    group.barrier_blocking("host")?; // no rank destroys its window while another reads it
    Ok(Outputs { reduced, scattered })
}

/// Every rank has all rows: the first layer by columns, the second by rows, and their outputs are summed.
fn with_all_reduce(comm: &Comm, part: &Mlp, x: &[f32]) -> Result<CommBuffer<f32>> {
    let mut y = comm.alloc(x.len())?;
    y.copy_from_slice(&part.forward(x));
    mlp::complete(comm.all_reduce_in_place_blocking(&mut y, Reduction::Sum)?)?;
    Ok(y)
}

/// Every rank has some rows: they are gathered before the first layer, and the outputs of the second are summed and
/// scattered. This moves as many bytes as an all-reduce, and the work between two such blocks, norms and residuals, is
/// done only once.
fn with_gather_and_scatter(comm: &Comm, part: &Mlp, own: &[f32]) -> Result<CommBuffer<f32>> {
    let mut x = comm.alloc(own.len() * comm.ranks() as usize)?;
    mlp::complete(comm.all_gather_blocking(own, &mut x)?)?;
    let y = part.forward(&x);
    x.copy_from_slice(&y);
    let mut y = comm.alloc(own.len())?;
    mlp::complete(comm.reduce_scatter_blocking(&x, &mut y, Reduction::Sum)?)?;
    Ok(y)
}

/// Sums of a few thousand products in `f32`, in another order.
const TOLERANCE: f32 = 1e-4;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_readme_has_the_table_of_options() {
        options::assert_in_readme(&Args::command());
    }

    #[test]
    fn shapes_that_do_not_split_are_refused() {
        let args = |tokens, intermediate| Args {
            ranks: None,
            device: Device::Host,
            tokens,
            hidden: 8,
            intermediate,
        };
        assert!(args(6, 9).shape(3).is_ok());
        assert!(args(7, 9).shape(3).unwrap_err().to_string().starts_with("--tokens 7"));
        assert!(args(6, 8).shape(3).unwrap_err().to_string().starts_with("--intermediate 8"));
    }
}
