//! From one command to a group of ranks: under a launcher, or as processes of this program.

use std::process::ExitCode;

use epwire::Group;
use epwire::env::Token;
use epwire::group::GroupOptions;
use epwire::launch::Launch;
use epwire::launch::spawn::Ranks;
use epwire::rendezvous::driver::{Server, ServerOptions};

use crate::Error;
use crate::args::Args;
use crate::asked;

/// What every rank does. The number is that of the process among those of its host.
type Part = fn(&Args, &Group, u32) -> Result<ExitCode, Error>;

/// Runs `part` as the rank that a launcher says this is, or on ranks of its own.
pub fn start(args: &Args, part: Part) -> Result<ExitCode, Error> {
    match (Launch::from_env()?, args.ranks) {
        (Some(mut launch), ranks) => {
            asked::check(&launch, ranks)?;
            let ranks = launch.world;
            launch.world = places(ranks, args)?;
            let options = GroupOptions::from_launch(&launch).initial(ranks).token(Token::from_env()?);
            let group = Group::join_blocking(options)?;
            let code = part(args, &group, launch.local_rank)?;
            group.leave_blocking()?;
            Ok(code)
        }
        (None, None | Some(1)) if args.absent == 0 => {
            let groups = Group::threads(1)?;
            part(args, groups.first().ok_or("a group of one has a member")?, 0)
        }
        (None, ranks) => spawn(ranks.unwrap_or(1), args),
    }
}

/// Places of the ranks, and places that nobody takes.
fn places(ranks: u32, args: &Args) -> Result<u32, Error> {
    ranks.checked_add(args.absent).ok_or_else(|| format!("--absent {}: too many", args.absent).into())
}

/// How many ranks the group has, without places that nobody has taken.
pub fn count(group: &Group) -> u32 {
    group.active().mask.len() as u32
}

/// Executes this program once per rank and hosts their rendezvous on the loopback interface.
fn spawn(ranks: u32, args: &Args) -> Result<ExitCode, Error> {
    let world = places(ranks, args)?;
    if args.collective.is_empty() {
        args.shapes(ranks)?; // what is wrong for every rank is reported once
    }
    let options = ServerOptions::new("bench", world).token(Some(Token::random()?)).initial(ranks);
    let server = Server::bind_blocking("127.0.0.1:0", options)?;
    let ended = Ranks::new(ranks).server(&server).spawn()?.wait(None)?;
    match ended.exit_code() {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(ended.to_string().into()),
    }
}

/// Threads that move data for each rank, as epwire chooses them.
pub fn threads(asked: u32, ranks: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if asked > 0 { asked as usize } else { (cores / ranks as usize).clamp(1, 8) }
}
