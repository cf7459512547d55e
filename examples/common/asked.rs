//! `--ranks N` under a launcher, which has started the ranks already.

use epwire::launch::{Launch, Source};

/// Refuses another number of ranks than the launcher has started, and says what to do.
pub(crate) fn check(launch: &Launch, ranks: Option<u32>) -> Result<(), String> {
    let Launch { world, source, .. } = launch;
    match ranks {
        // Usually not a rank at all, but the shell of a job.
        Some(ranks @ 2..) if *world == 1 && *source == Source::Slurm => Err(format!(
            "--ranks {ranks}, but Slurm has started 1; in a batch script or interactive shell, hide that from this \
             program, which then starts {ranks}: SLURM_PROCID= program --ranks {ranks}"
        )),
        Some(ranks) if ranks != *world => {
            Err(format!("--ranks {ranks}, but {source} has started {world}; leave --ranks out"))
        }
        _ => Ok(()),
    }
}
