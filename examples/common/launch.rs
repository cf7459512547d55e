//! How an example becomes several ranks: under a launcher each process is one; with `--ranks N` this process starts them.

use std::{error::Error, process::ExitCode, time::Duration};

use epwire::{
    env::Token,
    launch::{Launch, spawn::Ranks},
    rendezvous::driver::{Server, ServerOptions},
};

use crate::asked;

/// Any error; the example prints it and exits.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Runs as a rank if a launcher has said which, else alone, or as the parent of `ranks` ranks once `check` has found nothing that is
/// wrong for all of them.
pub fn start(
    name: &'static str,
    ranks: Option<u32>,
    check: impl FnOnce(u32) -> Result<()>,
    as_rank: impl FnOnce(Option<&Launch>) -> Result<ExitCode>,
) -> Result<ExitCode> {
    match (Launch::from_env()?, ranks) {
        (Some(launch), ranks) => {
            asked::check(&launch, ranks)?;
            if launch.rank == 0 && !launch.hosted {
                eprintln!("{name}: {launch}");
            }
            let name_rank = |error| format!("rank {}: {error}", launch.rank).into();
            as_rank(Some(&launch)).map_err(name_rank)
        }
        (None, None | Some(1)) => as_rank(None),
        (None, Some(ranks)) => {
            check(ranks)?;
            as_parent(name, ranks)
        }
    }
}

/// Runs this program again as every rank. They meet at a server of this process, on loopback, where the token keeps other
/// users of the host out.
fn as_parent(run_id: &str, ranks: u32) -> Result<ExitCode> {
    let options = ServerOptions::new(run_id, ranks).token(Some(Token::random()?));
    let server = Server::bind_blocking("127.0.0.1:0", options)?;
    let running = Ranks::new(ranks).server(&server).grace(GRACE).spawn()?;
    let ended = running.wait(None)?;
    match ended.exit_code() {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(ended.to_string().into()),
    }
}

/// Once a rank has failed, the others get this long to say what they saw of it.
const GRACE: Duration = Duration::from_secs(3);
