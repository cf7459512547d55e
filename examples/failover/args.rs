//! The command line of the program, and those of the processes that it starts.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::limits::Limits;

/// Kills, replaces, stops, adds and retires ranks that serve.
#[derive(Parser)]
#[command(name = "failover", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(flatten)]
    pub story: Story,
    #[command(subcommand)]
    pub role: Option<Role>,
}

#[derive(clap::Args)]
pub struct Story {
    /// Ranks at first, each a process; the run has room for one more.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=31))]
    pub ranks: u32,
    /// Times that a rank is killed and replaced: first the one that serves the run, then any.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub kills: u32,
    /// Where the layer runs: on the host, or one GPU per rank, number rank modulo the visible ones (features `cuda` and `cudarc`).
    #[arg(long, value_enum, default_value_t = Device::Host)]
    pub device: Device,
    /// Keep the run in this file, which must not exist, by a server that belongs to no rank: it is killed and started again as well. The
    /// file is removed at the end if all went well.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Which ranks are killed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Signs of life, leases, deadlines and the patience of this program last this many times as long: for an emulated machine, whose
    /// limits are to be said by --within and --half-within.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub slower: u32,
    /// What the run must keep, any of NAME=NUMBER between commas. Milliseconds from a kill until the others have agreed: kill, and
    /// leader for the rank that serves the run; milliseconds beyond its lease until they continue without a stopped rank: stop, and
    /// stopped-leader. MiB that the memory of one process, and on GPUs that in use on its GPU, may grow during the later half of the kills:
    /// memory, gpu-memory.
    #[arg(long, value_name = "LIMITS", default_value_t = Limits::default())]
    pub within: Limits,
    /// Limits for the median of each kind of time, if there are at least three; same names as --within, memory limits are ignored.
    #[arg(long, value_name = "LIMITS", default_value_t = Limits::default())]
    pub half_within: Limits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    Host,
    Cuda,
}

/// The role of a process that the program starts.
#[derive(Subcommand)]
pub enum Role {
    #[command(hide = true)]
    Rank(Rank),
    #[command(hide = true)]
    Server(Server),
}

#[derive(Debug, Clone, clap::Args)]
pub struct Rank {
    #[arg(long)]
    pub rank: u32,
    #[arg(long)]
    pub world: u32,
    #[arg(long)]
    pub initial: u32,
    /// Addresses at which the run is served or can be, separated by commas.
    #[arg(long)]
    pub servers: String,
    /// Whether it serves the run first.
    #[arg(long)]
    pub first: bool,
    #[arg(long, value_enum)]
    pub device: Device,
    #[arg(long)]
    pub slower: u32,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    #[arg(long)]
    pub slower: u32,
    #[arg(long)]
    pub world: u32,
    #[arg(long)]
    pub initial: u32,
    #[arg(long)]
    pub address: String,
    #[arg(long)]
    pub state: PathBuf,
}

impl Rank {
    /// The arguments of its process.
    pub fn command_line(&self) -> Vec<String> {
        let Self { rank, world, initial, servers, first, device, slower } = self;
        let device = if *device == Device::Host { "host" } else { "cuda" };
        let line = format!(
            "rank --rank {rank} --world {world} --initial {initial} --device {device} --slower {slower} \
             --servers {servers}"
        );
        line.split(' ').chain(first.then_some("--first")).map(str::to_owned).collect()
    }
}
