//! The launchers that are recognised, as a table: the names of their variables for rank, world, local rank and local
//! world, where the ranks meet, and how the run is named. The first row with a claim in the environment wins.

use crate::names::names;

/// The launcher whose variables tell this process its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Source {
    /// `EPWIRE_RANK` and related variables, which epwire's own launcher sets ([`super::spawn`]), or somebody by hand.
    Epwire,
    /// torchrun, or another launcher that sets PyTorch's `env://` variables: `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
    /// `MASTER_PORT`. If it sets no `LOCAL_RANK` and `LOCAL_WORLD_SIZE`, as torchrun does, `EPWIRE_LOCAL_RANK` and
    /// `EPWIRE_LOCAL_WORLD` are needed.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH and Intel MPI.
    Hydra,
    /// `srun`.
    Slurm,
    /// Some other launcher with PMI or PMIx.
    Pmi,
    /// A LeaderWorkerSet of Kubernetes.
    Lws,
}

names!(Source, "a launcher" {
    Epwire = "epwire",
    Torchrun = "torchrun",
    OpenMpi = "Open MPI",
    Hydra = "Hydra",
    Slurm = "Slurm",
    Pmi = "PMI",
    Lws = "Kubernetes LWS",
});

/// Names of variables; the first that is set counts.
pub(super) type FirstOf = &'static [&'static str];

/// One launcher.
pub(super) struct Row {
    pub(super) source: Source,
    /// The launcher is in use if any of these is set.
    pub(super) claims: FirstOf,
    pub(super) rank: FirstOf,
    pub(super) world: FirstOf,
    pub(super) local_rank: FirstOf,
    pub(super) local_world: FirstOf,
    pub(super) local: Local,
    pub(super) address: Meeting,
    pub(super) run_id: RunId,
}

/// How the rank among those of this host is determined.
pub(super) enum Local {
    /// Both variables are required.
    Given,
    /// Rank and world, if neither variable is set: one host.
    OneHost,
    /// `local_world` is in Slurm's form `4(x2),1`; the named variable says which node this is.
    TasksPerNode { node: FirstOf },
    /// `rank` and `world` count pods, each of `EPWIRE_LOCAL_WORLD` ranks (default 1).
    Pods,
}

/// Where the ranks meet, unless `EPWIRE_ADDR` is set.
pub(super) enum Meeting {
    /// `EPWIRE_ADDR` is required.
    Given,
    /// At `MASTER_ADDR`, one port above `MASTER_PORT`: PyTorch's own store listens on `MASTER_PORT`.
    Master,
    /// On the first host of a node list, at a port derived from the run's name.
    FirstHost(FirstOf),
    /// As `Master` if `MASTER_ADDR` is set; otherwise, if all ranks are on one host, on loopback at a port derived from
    /// the run's name.
    MasterOrLoopback,
    /// On the host of this name, at [`super::DEFAULT_PORT`].
    Leader(FirstOf),
}

/// The run's name, unless `EPWIRE_RUN_ID` gives it.
pub(super) enum RunId {
    /// The variable; without it, the run has no name.
    FirstOf(FirstOf),
    /// Both are required, and joined by a dot: "4711.0".
    JobStep(FirstOf, FirstOf),
}

const TORCHRUN: Row = Row {
    source: Source::Torchrun,
    claims: &["RANK"],
    rank: &["RANK"],
    world: &["WORLD_SIZE"],
    local_rank: &["LOCAL_RANK"],
    local_world: &["LOCAL_WORLD_SIZE"],
    local: Local::Given,
    address: Meeting::Master,
    run_id: RunId::FirstOf(&["TORCHELASTIC_RUN_ID"]),
};

/// Inner launchers come before those that may have started them: `torchrun` and `mpirun` run inside Slurm jobs, whose
/// variables their processes inherit, and these variables describe `mpirun` itself, not the rank. `srun` with a PMI
/// plugin sets both Slurm's and PMI's variables; only Slurm's name the host to meet at. Hydra is distinguished from
/// those plugins by MPI_LOCALRANKID.
pub(super) const SOURCES: [Row; 8] = [
    Row {
        source: Source::Epwire,
        claims: &["EPWIRE_RANK", "EPWIRE_WORLD"],
        rank: &["EPWIRE_RANK"],
        world: &["EPWIRE_WORLD"],
        local_rank: &["EPWIRE_LOCAL_RANK"],
        local_world: &["EPWIRE_LOCAL_WORLD"],
        local: Local::OneHost,
        address: Meeting::Given,
        run_id: RunId::FirstOf(&["EPWIRE_RUN_ID"]),
    },
    TORCHRUN,
    Row {
        source: Source::OpenMpi,
        claims: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        rank: &["OMPI_COMM_WORLD_RANK"],
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        local: Local::Given,
        address: Meeting::MasterOrLoopback,
        run_id: RunId::FirstOf(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
    },
    Row {
        source: Source::Hydra,
        claims: &["MPI_LOCALRANKID"],
        rank: &["PMI_RANK"],
        world: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_world: &["MPI_LOCALNRANKS"],
        local: Local::Given,
        address: Meeting::MasterOrLoopback,
        run_id: RunId::FirstOf(&["PMI_JOBID", "PMIX_NAMESPACE"]),
    },
    Row {
        source: Source::Slurm,
        claims: &["SLURM_PROCID"],
        rank: &["SLURM_PROCID"],
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_world: &["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"],
        local: Local::TasksPerNode { node: &["SLURM_NODEID"] },
        address: Meeting::FirstHost(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"]),
        run_id: RunId::JobStep(&["SLURM_JOB_ID", "SLURM_JOBID"], &["SLURM_STEP_ID", "SLURM_STEPID"]),
    },
    Row {
        source: Source::Pmi,
        claims: &["PMI_RANK", "PMI_SIZE", "PMIX_RANK"],
        rank: &["PMI_RANK", "PMIX_RANK"],
        world: &["PMI_SIZE", "PMIX_SIZE"],
        local_rank: &["PMI_LOCAL_RANK", "PMIX_LOCAL_RANK"],
        local_world: &["PMI_LOCAL_SIZE", "PMIX_LOCAL_SIZE"],
        local: Local::Given,
        address: Meeting::MasterOrLoopback,
        run_id: RunId::FirstOf(&["PMI_JOBID", "PMIX_NAMESPACE"]),
    },
    Row {
        source: Source::Lws,
        claims: &["LWS_WORKER_INDEX"],
        rank: &["LWS_WORKER_INDEX"],
        world: &["LWS_GROUP_SIZE"],
        local_rank: &["EPWIRE_LOCAL_RANK"],
        local_world: &["EPWIRE_LOCAL_WORLD"],
        local: Local::Pods,
        address: Meeting::Leader(&["LWS_LEADER_ADDRESS"]),
        run_id: RunId::FirstOf(&["LWS_LEADER_ADDRESS"]),
    },
    // Last: batch scripts of other launchers often export it.
    Row { claims: &["WORLD_SIZE"], ..TORCHRUN },
];
