//! Where am I: rank, world and meeting point of this process, from whichever launcher started it.
//!
//! [`Launch::from_env`] knows torchrun, Open MPI, Hydra (MPICH, Intel MPI), Slurm, other PMI launchers, Kubernetes
//! LeaderWorkerSets and epwire's own variables, `EPWIRE_RANK` and others, and reports which of them it used. Without a launcher, [`spawn`] starts
//! the ranks of one host by executing the program again. `EPWIRE_ADDR`, `EPWIRE_HOSTED`, `EPWIRE_RUN_ID`,
//! `EPWIRE_LOCAL_RANK` and `EPWIRE_LOCAL_WORLD` override single values of every launcher.
//!
//! | launcher | rank and world | ranks meet at, unless `EPWIRE_ADDR` is set |
//! |---|---|---|
//! | epwire | `EPWIRE_RANK`, `EPWIRE_WORLD` | `EPWIRE_ADDR` |
//! | torchrun, others with `env://` | `RANK`, `WORLD_SIZE`, and from others than torchrun `EPWIRE_LOCAL_RANK`, `EPWIRE_LOCAL_WORLD` | `MASTER_ADDR`, one port above `MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | the same; without it loopback, if all ranks are on one host |
//! | Hydra | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` | as Open MPI; MPICH gives no job name, so `MASTER_ADDR` and `MASTER_PORT` are needed |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | the first host of `SLURM_STEP_NODELIST` |
//! | PMI, PMIx | `PMI_RANK` or `PMIX_RANK`, `PMI_SIZE` | as Open MPI |
//! | Kubernetes LWS | `LWS_WORKER_INDEX`, `LWS_GROUP_SIZE` | `LWS_LEADER_ADDRESS`, port [`DEFAULT_PORT`] |
//!
//! A port that is not given is derived from the run's name, in [`DERIVED_PORTS`]. An empty variable counts as unset.

mod address;
mod error;
mod interface;
mod slurm;
mod sources;
pub mod spawn;
mod supervise;

use std::fmt;
use std::net::Ipv4Addr;

pub use address::{Address, AddressError, DEFAULT_PORT, DERIVED_PORTS, derived_port};
pub use error::LaunchError;
pub use interface::{InterfaceChoice, advertised_address};
pub use sources::Source;

use crate::env;
pub use crate::mask::MAX_WORLD;
use crate::names::setters;
use sources::{FirstOf, Local, Meeting, Row, RunId, SOURCES};

/// The place of this process in its run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Launch {
    /// The rank of this process, 0 to `world - 1`.
    pub rank: u32,
    /// Number of ranks, 1 to [`MAX_WORLD`].
    pub world: u32,
    /// The rank of this process among those of its host, 0 to `local_world - 1`.
    pub local_rank: u32,
    /// Number of ranks on this host, 1 to `world`.
    pub local_world: u32,
    /// Where the ranks meet. One address: rank 0 listens there, unless `hosted`. Several addresses belong to a run that
    /// is already under way; each of them leads a newcomer to it. None only if `world` is 1.
    pub addresses: Vec<Address>,
    /// Whether the process that started the ranks hosts the rendezvous, as the parent of [`spawn`] does, rather than
    /// rank 0.
    pub hosted: bool,
    /// Name of the run, the same on all ranks, if the launcher gives one.
    pub run_id: Option<String>,
    /// The launcher whose variables were used.
    pub source: Source,
}

setters!(Launch {
    local_rank: u32,
    local_world: u32,
    hosted: bool,
    run_id: Option<String>,
    source: Source,
});

impl Launch {
    /// For a program that learns its place in some other way: rank `rank` of `world` ranks of one host, which meet at one of
    /// `addresses`, at a server of rank 0; the run has no name. The setters change the rest.
    ///
    /// ```
    /// use epwire::launch::Launch;
    ///
    /// let launch = Launch::new(5, 8, vec!["10.0.0.1:29400".parse()?]).local_rank(1).local_world(4);
    /// assert_eq!(launch.to_string(), "rank 5 of 8 (local 1 of 4), by epwire, meeting at 10.0.0.1:29400");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(rank: u32, world: u32, addresses: Vec<Address>) -> Self {
        let source = Source::Epwire;
        let (local_rank, local_world) = (rank, world);
        Self { rank, world, local_rank, local_world, addresses, hosted: false, run_id: None, source }
    }

    /// Reads the environment of this process, and warns once of unknown `EPWIRE_*` variables. `None` if no launcher is
    /// recognised: then this process is alone, or starts the ranks itself with [`spawn`].
    ///
    /// # Errors
    ///
    /// See [`LaunchError`]; every error names the variable, its value and what the value should be.
    pub fn from_env() -> Result<Option<Self>, LaunchError> {
        env::warn_unknown();
        Self::detect(&env::value)
    }

    /// Like [`Launch::from_env`], with any set of variables.
    ///
    /// # Errors
    ///
    /// See [`LaunchError`].
    pub fn detect(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let get = |name: &str| lookup(name).filter(|value| !value.is_empty());
        for row in &SOURCES {
            if let Some(&claim) = row.claims.iter().find(|name| get(name).is_some()) {
                return Reader { get: &get, row, claim }.launch().map(Some);
            }
        }
        Ok(None)
    }
}

impl fmt::Display for Launch {
    /// `rank 2 of 8 (local 2 of 4), by Slurm, meeting at n01:20311, run 4711.0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world, local_rank, local_world, .. } = self;
        write!(f, "rank {rank} of {world} (local {local_rank} of {local_world}), by {}", self.source)?;
        for (at, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if at == 0 { ", meeting at " } else { "," })?;
        }
        if let Some(run_id) = &self.run_id {
            write!(f, ", run {run_id}")?;
        }
        Ok(())
    }
}

/// Reads one row of the table.
struct Reader<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    row: &'a Row,
    claim: &'static str,
}

impl Reader<'_> {
    fn launch(&self) -> Result<Launch, LaunchError> {
        let row = self.row;
        let (rank, world, local_rank, local_world) = match row.local {
            Local::Pods => self.pods()?,
            _ => self.ranks()?,
        };
        let run_id = self.run_id()?;
        let addresses = self.addresses(world, local_world, run_id.as_deref())?;
        let hosted = match self.find(&[env::HOSTED]) {
            Some(value) => value.number(0, 1, "1 where the launcher hosts the rendezvous, else 0")? == 1,
            None => false,
        };
        Ok(Launch { rank, world, local_rank, local_world, addresses, hosted, run_id, source: row.source })
    }

    /// Rank, world, local rank, local world.
    fn ranks(&self) -> Result<(u32, u32, u32, u32), LaunchError> {
        let world = self.require(self.row.world)?.number(1, MAX_WORLD, "a world of 1 to 1024 ranks")?;
        let rank = self.require(self.row.rank)?.below(world, "world")?;

        let own = (self.find(&[env::LOCAL_RANK]), self.find(&[env::LOCAL_WORLD]));
        if let (Local::OneHost, (None, None)) = (&self.row.local, &own) {
            return Ok((rank, world, rank, world));
        }
        let local_world = match (own.1, &self.row.local) {
            (Some(own), _) => own.number(1, world, "a local world of 1 to the world")?,
            (None, Local::TasksPerNode { node }) => self.tasks_per_node(node, world)?,
            (None, _) => {
                self.require(self.row.local_world)?.number(1, world, "a local world of 1 to the world")?
            }
        };
        let local_rank = own.0.map_or_else(|| self.require(self.row.local_rank), Ok)?;
        Ok((rank, world, local_rank.below(local_world, "local world")?, local_world))
    }

    /// The same if the launcher counts pods of several ranks.
    fn pods(&self) -> Result<(u32, u32, u32, u32), LaunchError> {
        let pods = self.require(self.row.world)?.number(1, MAX_WORLD, "1 to 1024 pods")?;
        let pod = self.require(self.row.rank)?.below(pods, "group size")?;
        let local_world = match self.find(self.row.local_world) {
            Some(value) => value.number(1, MAX_WORLD / pods, "at most 1024 ranks in all pods together")?,
            None => 1,
        };
        let local_rank = match self.find(self.row.local_rank) {
            Some(value) => value.below(local_world, "local world")?,
            None if local_world == 1 => 0,
            None => return Err(self.missing(self.row.local_rank)),
        };
        Ok((pod * local_world + local_rank, pods * local_world, local_rank, local_world))
    }

    fn tasks_per_node(&self, node: FirstOf, world: u32) -> Result<u32, LaunchError> {
        let node =
            self.find(node).map(|v| v.number(0, MAX_WORLD - 1, "a node number below 1024")).transpose()?;
        let value = self.require(self.row.local_world)?;
        slurm::tasks_on_node(&value.text, node).filter(|tasks| (1..=world).contains(tasks)).ok_or_else(|| {
            value.invalid("tasks per node such as 4(x2),1, that cover this node (SLURM_NODEID)")
        })
    }

    fn run_id(&self) -> Result<Option<String>, LaunchError> {
        if let Some(own) = self.find(&[env::RUN_ID]) {
            return Ok(Some(own.text));
        }
        match self.row.run_id {
            RunId::FirstOf(names) => Ok(self.find(names).map(|value| value.text)),
            RunId::JobStep(job, step) => {
                Ok(Some(format!("{}.{}", self.require(job)?.text, self.require(step)?.text)))
            }
        }
    }

    fn addresses(
        &self,
        world: u32,
        local_world: u32,
        run_id: Option<&str>,
    ) -> Result<Vec<Address>, LaunchError> {
        if let Some(own) = self.find(&[env::ADDR]) {
            return address::addresses(&own.text).map_err(|expected| own.invalid(&expected));
        }
        if world == 1 {
            return Ok(Vec::new());
        }
        Ok(vec![self.meeting(world, local_world, run_id)?])
    }

    /// The address that follows from the launcher's variables.
    fn meeting(&self, world: u32, local_world: u32, run_id: Option<&str>) -> Result<Address, LaunchError> {
        match self.row.address {
            Meeting::Given => Err(self.missing(&[env::ADDR])),
            Meeting::Master => self.master(None),
            Meeting::FirstHost(lists) => {
                let list = self.require(lists)?;
                slurm::first_host(&list.text)
                    .and_then(|host| Address::new(&host, derived_port(run_id.unwrap_or_default())))
                    .ok_or_else(|| list.invalid("a node list such as n[01-04,7],m3"))
            }
            Meeting::MasterOrLoopback if self.find(MASTER_ADDR).is_some() => self.master(run_id),
            Meeting::MasterOrLoopback => {
                let unreachable =
                    |detail| LaunchError::NoAddress { by: self.row.source, world, local_world, detail };
                if local_world != world {
                    return Err(unreachable(""));
                }
                let run_id =
                    run_id.ok_or_else(|| unreachable(", but the run has no name to derive a port from"))?;
                Ok(Address::of((Ipv4Addr::LOCALHOST, derived_port(run_id)).into()))
            }
            Meeting::Leader(names) => {
                let host = self.require(names)?;
                Address::new(&host.text, DEFAULT_PORT).ok_or_else(|| host.invalid("a host name"))
            }
        }
    }

    /// `MASTER_ADDR`, one port above `MASTER_PORT`; without `MASTER_PORT` a port derived from `run_id`, if there is
    /// one.
    fn master(&self, run_id: Option<&str>) -> Result<Address, LaunchError> {
        let host = self.require(MASTER_ADDR)?;
        let port = match (self.find(MASTER_PORT), run_id) {
            (None, Some(run_id)) => derived_port(run_id),
            (None, None) => return Err(self.missing(MASTER_PORT)),
            (Some(port), _) => {
                let expected = "a port of 1 to 65534 (epwire listens one port above it)";
                port.number(1, 65_534, expected)? as u16 + 1
            }
        };
        Address::new(&host.text, port).ok_or_else(|| host.invalid("a host name or IP address"))
    }

    fn find(&self, names: FirstOf) -> Option<Value> {
        names.iter().find_map(|&name| (self.get)(name).map(|text| Value { name, text }))
    }

    fn require(&self, names: FirstOf) -> Result<Value, LaunchError> {
        self.find(names).ok_or_else(|| self.missing(names))
    }

    fn missing(&self, names: FirstOf) -> LaunchError {
        let missing = names.first().copied().unwrap_or_default();
        LaunchError::Missing { by: self.row.source, claim: self.claim, missing }
    }
}

const MASTER_ADDR: FirstOf = &["MASTER_ADDR"];
const MASTER_PORT: FirstOf = &["MASTER_PORT"];

/// A variable that is set.
struct Value {
    name: &'static str,
    text: String,
}

impl Value {
    fn number(&self, low: u32, high: u32, expected: &str) -> Result<u32, LaunchError> {
        let number = self.text.trim().parse().ok().filter(|n| (low..=high).contains(n));
        number.ok_or_else(|| self.invalid(&format!("{expected} (a number from {low} to {high})")))
    }

    fn below(&self, limit: u32, what: &str) -> Result<u32, LaunchError> {
        self.number(0, limit - 1, &format!("a rank below the {what} of {limit}"))
    }

    fn invalid(&self, expected: &str) -> LaunchError {
        LaunchError::Invalid { variable: self.name, value: self.text.clone(), expected: expected.to_owned() }
    }
}

#[cfg(test)]
mod tests;
