//! Why a process does not know its place in the run.

use super::sources::Source;
use crate::env;
use crate::names::readable;

/// Why the place of this process is unknown although a launcher has set variables.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A launcher's set of variables is incomplete.
    #[error("launch: {claim} is set, but {missing} is not{}", remedy(*by, claim, missing))]
    Missing {
        /// The launcher recognised.
        by: Source,
        /// The variable by which it was recognised.
        claim: &'static str,
        /// The variable that is not set.
        missing: &'static str,
    },
    /// The value of a variable is wrong.
    #[error("launch: {variable}={value:?}: expected {expected}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What the value should be, with the limit.
        expected: String,
    },
    /// The launcher does not provide a place where ranks on several hosts can meet.
    #[error(
        "launch: {by} does not say where {world} ranks meet ({local_world} are on this host{detail}); set \
         EPWIRE_ADDR=host:port, or MASTER_ADDR and MASTER_PORT, to an address of rank 0's host on every rank"
    )]
    NoAddress {
        /// The launcher recognised.
        by: Source,
        /// Number of ranks.
        world: u32,
        /// Ranks on this host.
        local_world: u32,
        /// What else is missing, if anything.
        detail: &'static str,
    },
    /// No interface matches `EPWIRE_IFNAME`.
    #[error("launch: EPWIRE_IFNAME={choice:?} admits no address of this host; its interfaces are {found}")]
    NoInterface {
        /// The choice asked for.
        choice: String,
        /// Names of the existing interfaces.
        found: String,
    },
    /// The system did not list its interfaces.
    #[error(
        "launch: cannot list network interfaces: {0}; unset EPWIRE_IFNAME or check the container's limits"
    )]
    Interfaces(std::io::Error),
}

readable!(LaunchError { Missing, Invalid, NoAddress, NoInterface, Interfaces });

/// What to do about an incomplete set of variables.
fn remedy(by: Source, claim: &str, missing: &str) -> String {
    match by {
        Source::Epwire => {
            format!(": set EPWIRE_RANK, EPWIRE_WORLD and EPWIRE_ADDR on every rank, or unset {claim}")
        }
        Source::Lws if missing == env::LOCAL_RANK => format!(": set {missing} for each process of a pod"),
        // Others than torchrun set RANK and WORLD_SIZE too.
        Source::Torchrun | Source::Pmi if missing.contains("LOCAL") => {
            ": if the launcher does not set it, set EPWIRE_LOCAL_RANK and EPWIRE_LOCAL_WORLD for each process"
                .into()
        }
        // The shell that Slurm has started has some of a rank's variables.
        Source::Slurm => format!(
            ": start all ranks with srun; or, if a batch script or an interactive shell runs a program that starts its \
             own ranks, hide the variable from it: {claim}= program"
        ),
        launcher => format!(
            ", although {launcher} sets both; start all ranks with the same launcher, or set EPWIRE_RANK, EPWIRE_WORLD \
             and EPWIRE_ADDR, which override it"
        ),
    }
}
