//! Detection of the launcher from arbitrary variables, with Slurm's node lists and task counts among them, and the
//! parsers of addresses and interface choices.
#![no_main]

use std::collections::HashMap;

use arbitrary::Arbitrary;
use epwire::launch::{Address, InterfaceChoice, Launch, MAX_WORLD};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Variables by their number in `NAMES`.
    variables: Vec<(u8, Value<'a>)>,
    address: &'a str,
    interfaces: &'a str,
}

#[derive(Arbitrary, Debug)]
enum Value<'a> {
    Text(&'a str),
    Small(u8),
    Number(i64),
    Host(&'a str),
    TasksPerNode([u8; 4]),
}

fuzz_target!(|input: Input| {
    let variables: HashMap<&str, String> = input
        .variables
        .iter()
        .map(|(number, value)| (NAMES[usize::from(*number) % NAMES.len()], value.text()))
        .collect();
    if let Ok(Some(launch)) = Launch::detect(&|name| variables.get(name).cloned()) {
        let Launch { rank, world, local_rank, local_world, addresses, .. } = &launch;
        assert!(rank < world && *world <= MAX_WORLD, "{launch}");
        assert!(local_rank < local_world && local_world <= world, "{launch}");
        assert!(!addresses.is_empty() || *world == 1, "{launch}");
        for address in addresses {
            assert_eq!(address.to_string().parse().as_ref(), Ok(address));
        }
    }
    if let Ok(address) = input.address.parse::<Address>() {
        assert_eq!(address.to_string().parse().as_ref(), Ok(&address));
    }
    if let Ok(choice) = input.interfaces.parse::<InterfaceChoice>() {
        assert_eq!(choice.to_string().parse().as_ref(), Ok(&choice));
        choice.admits(input.address);
    }
});

impl Value<'_> {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.to_string(),
            Self::Small(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Host(name) => format!("{name}[01-04,7],m3"),
            Self::TasksPerNode([a, times, b, c]) => format!("{a}(x{times}),{b},{c}"),
        }
    }
}

const NAMES: [&str; 40] = [
    "EPWIRE_RANK",
    "EPWIRE_WORLD",
    "EPWIRE_LOCAL_RANK",
    "EPWIRE_LOCAL_WORLD",
    "EPWIRE_ADDR",
    "EPWIRE_HOSTED",
    "EPWIRE_RUN_ID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_JOBID",
    "PMIX_RANK",
    "PMIX_SIZE",
    "PMIX_NAMESPACE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "LWS_WORKER_INDEX",
    "LWS_GROUP_SIZE",
    "LWS_LEADER_ADDRESS",
];
