//! Every launcher's variables as the launcher sets them, and the errors for incomplete sets.

use super::*;

fn detect(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
    let lookup = |name: &str| variables.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    Launch::detect(&lookup)
}

fn at(host: &str, port: u16) -> Address {
    Address::new(host, port).unwrap()
}

fn launch(variables: &[(&str, &str)]) -> Launch {
    detect(variables).unwrap().unwrap()
}

fn error(variables: &[(&str, &str)]) -> String {
    detect(variables).unwrap_err().to_string()
}

fn with<'a>(base: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [base, more].concat()
}

const OWN: &[(&str, &str)] =
    &[("EPWIRE_RANK", "3"), ("EPWIRE_WORLD", "4"), ("EPWIRE_ADDR", "10.0.0.1:2900"), ("EPWIRE_RUN_ID", "r")];

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node0"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "job-a"),
];

const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "8"),
    ("SLURM_NTASKS", "9"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2),1"),
    ("SLURM_STEP_NODELIST", "n[01-02],m3"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
];

const OPEN_MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "1966342145"),
    ("PMIX_RANK", "1"),
];

const HYDRA: &[(&str, &str)] = &[
    ("PMI_RANK", "2"),
    ("PMI_SIZE", "3"),
    ("MPI_LOCALRANKID", "0"),
    ("MPI_LOCALNRANKS", "1"),
    ("MASTER_ADDR", "node0"),
    ("MASTER_PORT", "29500"),
];

const LWS: &[(&str, &str)] =
    &[("LWS_WORKER_INDEX", "1"), ("LWS_GROUP_SIZE", "2"), ("LWS_LEADER_ADDRESS", "g-0.g.default")];

#[test]
fn no_variable_is_no_launch() {
    assert_eq!(detect(&[]).unwrap(), None);
    assert_eq!(detect(&[("RANK", ""), ("EPWIRE_LOCAL_WORLD", "2"), ("MASTER_ADDR", "a")]).unwrap(), None);
}

#[test]
fn own_variables_mean_one_host_unless_they_say_otherwise() {
    let found = launch(OWN);
    assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (3, 4, 3, 4));
    assert_eq!(found.to_string(), "rank 3 of 4 (local 3 of 4), by epwire, meeting at 10.0.0.1:2900, run r");
    let found = launch(&with(OWN, &[("EPWIRE_LOCAL_RANK", "1"), ("EPWIRE_LOCAL_WORLD", "2")]));
    assert_eq!((found.local_rank, found.local_world), (1, 2));
}

#[test]
fn torchrun_meets_one_port_above_its_own_store() {
    assert_eq!(
        launch(TORCHRUN),
        Launch {
            rank: 5,
            world: 8,
            local_rank: 1,
            local_world: 4,
            addresses: vec![at("node0", 29501)],
            hosted: false,
            run_id: Some("job-a".into()),
            source: Source::Torchrun,
        }
    );
}

#[test]
fn other_env_launchers_need_epwires_local_rank() {
    let text = error(&with(&TORCHRUN[..2], &TORCHRUN[4..6]));
    assert!(text.contains("EPWIRE_LOCAL_RANK and EPWIRE_LOCAL_WORLD"), "{text}");
    let own = [("EPWIRE_LOCAL_RANK", "1"), ("EPWIRE_LOCAL_WORLD", "4")];
    let found = launch(&[&TORCHRUN[..2], &TORCHRUN[4..6], &own].concat());
    assert_eq!((found.local_rank, found.local_world, found.run_id), (1, 4, None));
}

#[test]
fn a_slurm_shell_is_no_rank_if_an_empty_variable_hides_it() {
    let batch = with(&SLURM[..6], &SLURM[6..7]); // without a step
    let text = error(&batch);
    assert!(text.contains("SLURM_STEP_ID") && text.contains("SLURM_PROCID= program"), "{text}");
    assert_eq!(detect(&with(&batch, &[("SLURM_PROCID", "")])).unwrap(), None);
}

#[test]
fn slurm_meets_on_the_first_host_at_a_port_of_the_step() {
    let found = launch(SLURM);
    assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (8, 9, 0, 1));
    assert_eq!(found.addresses, [at("n01", derived_port("4711.2"))]);
    assert_eq!((found.run_id.as_deref(), found.source), (Some("4711.2"), Source::Slurm));
}

#[test]
fn a_slurm_step_smaller_than_its_job_counts_the_step() {
    assert_eq!(launch(&with(SLURM, &[("SLURM_NTASKS", "64"), ("SLURM_STEP_NUM_TASKS", "9")])).world, 9);
}

#[test]
fn open_mpi_on_one_host_meets_on_loopback() {
    let found = launch(OPEN_MPI);
    assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (1, 2, 1, 2));
    assert_eq!(found.addresses, [at("127.0.0.1", derived_port("1966342145"))]);
    assert_eq!(found.source, Source::OpenMpi);
}

#[test]
fn open_mpi_on_several_hosts_needs_an_address() {
    let two_hosts =
        with(OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")]);
    let text = error(&two_hosts);
    assert!(
        text.contains("Open MPI") && text.contains("EPWIRE_ADDR") && text.contains("MASTER_ADDR"),
        "{text}"
    );
    assert_eq!(launch(&with(&two_hosts, &[("EPWIRE_ADDR", "h:7")])).addresses, [at("h", 7)]);
    let master = launch(&with(&two_hosts, &[("MASTER_ADDR", "h"), ("MASTER_PORT", "7")]));
    assert_eq!(master.addresses, [at("h", 8)]);
    let master = launch(&with(&two_hosts, &[("MASTER_ADDR", "h")]));
    assert_eq!(master.addresses, [at("h", derived_port("1966342145"))]);
}

#[test]
fn hydra_and_plain_pmi_are_read() {
    let found = launch(HYDRA);
    assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (2, 3, 0, 1));
    assert_eq!((found.addresses, found.source), (vec![at("node0", 29501)], Source::Hydra));

    let pmix = [("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "ns"), ("PMI_SIZE", "2")];
    assert!(error(&pmix).contains("PMI_LOCAL_SIZE"));
    let found = launch(&with(&pmix, &[("EPWIRE_LOCAL_RANK", "1"), ("EPWIRE_LOCAL_WORLD", "2")]));
    assert_eq!((found.addresses, found.source), (vec![at("127.0.0.1", derived_port("ns"))], Source::Pmi));
}

#[test]
fn a_run_without_a_name_derives_no_port() {
    let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    let text = error(&mpich);
    assert!(text.contains("no name to derive a port from") && text.contains("EPWIRE_ADDR"), "{text}");
    let found = launch(&with(&mpich, &[("EPWIRE_ADDR", "127.0.0.1:29700")]));
    assert_eq!((found.addresses, found.source), (vec![at("127.0.0.1", 29700)], Source::Hydra));
}

#[test]
fn lws_counts_pods() {
    let found = launch(LWS);
    assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (1, 2, 0, 1));
    assert_eq!(found.addresses, [at("g-0.g.default", DEFAULT_PORT)]);

    let eight = with(LWS, &[("EPWIRE_LOCAL_WORLD", "8")]);
    let text = error(&eight);
    assert!(text.ends_with("set EPWIRE_LOCAL_RANK for each process of a pod"), "{text}");
    let found = launch(&with(&eight, &[("EPWIRE_LOCAL_RANK", "3")]));
    assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (11, 16, 3, 8));
    assert!(error(&with(LWS, &[("EPWIRE_LOCAL_WORLD", "513")])).contains("at most 1024 ranks"));
}

#[test]
fn inner_launchers_win_over_outer_ones() {
    let all = [LWS, HYDRA, SLURM, OPEN_MPI, TORCHRUN, OWN];
    let mut variables = Vec::new();
    for (set, source) in all.into_iter().zip([
        Source::Lws,
        Source::Hydra,
        Source::Hydra,
        Source::OpenMpi,
        Source::Torchrun,
        Source::Epwire,
    ]) {
        variables.extend_from_slice(set);
        assert_eq!(launch(&variables).source, source);
    }
    // srun with a PMI plugin sets both; Slurm's variables name the host to meet at.
    assert_eq!(launch(&with(SLURM, &[("PMI_RANK", "8"), ("PMI_SIZE", "9")])).source, Source::Slurm);
}

#[test]
fn own_address_and_run_override_every_launcher() {
    for set in [TORCHRUN, SLURM, OPEN_MPI, HYDRA, LWS] {
        let found = launch(&with(set, &[("EPWIRE_ADDR", "[::1]:9"), ("EPWIRE_RUN_ID", "mine")]));
        assert_eq!((found.addresses, found.run_id.as_deref()), (vec![at("::1", 9)], Some("mine")));
    }
}

#[test]
fn a_newcomer_is_given_the_addresses_of_all_who_serve_the_run() {
    let found = launch(&with(OWN, &[("EPWIRE_ADDR", "10.0.0.1:2900, [::1]:9,node2:31")]));
    assert_eq!(found.addresses, [at("10.0.0.1", 2900), at("::1", 9), at("node2", 31)]);
    assert!(found.to_string().contains("meeting at 10.0.0.1:2900,[::1]:9,node2:31, run r"), "{found}");
}

#[test]
fn each_missing_variable_is_named() {
    // Every variable of these sets is needed, except those with a substitute.
    let optional = ["EPWIRE_RUN_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "PMIX_RANK", "SLURM_NODEID"];
    for set in [OWN, TORCHRUN, SLURM, &OPEN_MPI[..4], HYDRA, LWS] {
        for (i, (name, _)) in set.iter().enumerate() {
            let rest = [&set[..i], &set[i + 1..]].concat();
            if optional.contains(name)
                || !SOURCES.iter().any(|r| r.claims.iter().any(|c| rest.iter().any(|v| v.0 == *c)))
            {
                continue;
            }
            let text = error(&rest);
            let stand_in = match *name {
                "SLURM_NTASKS" => "SLURM_STEP_NUM_TASKS",
                "MPI_LOCALRANKID" => "PMI_LOCAL_SIZE",
                // Without MASTER_ADDR the run would meet on loopback, which is impossible for several hosts.
                "MASTER_ADDR" if set == HYDRA => "EPWIRE_ADDR",
                name => name,
            };
            assert!(text.contains(stand_in), "without {name}: {text}");
        }
    }
}

/// As batch scripts do that serve programs of torchrun too.
#[test]
fn a_world_size_alone_does_not_hide_the_launcher() {
    let exported = [("MASTER_ADDR", "n01"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "8")];
    for set in [SLURM, OPEN_MPI] {
        assert_eq!(launch(&with(set, &exported)).source, launch(set).source);
    }
    assert!(error(&exported).contains("RANK"));
}

#[test]
fn bad_values_are_named_with_their_limit() {
    for (set, variable, value, limit) in [
        (OWN, "EPWIRE_RANK", "4", "world of 4"),
        (OWN, "EPWIRE_RANK", "two", "0 to 3"),
        (OWN, "EPWIRE_RANK", "-1", "0 to 3"),
        (OWN, "EPWIRE_WORLD", "1025", "1024"),
        (OWN, "EPWIRE_WORLD", "0", "1 to 1024"),
        (OWN, "EPWIRE_ADDR", "host", "host:port"),
        (OWN, "EPWIRE_ADDR", "a:1,b", "not \"b\""),
        (OWN, "EPWIRE_HOSTED", "yes", "1 where"),
        (TORCHRUN, "LOCAL_RANK", "4", "local world of 4"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "9", "1 to 8"),
        (TORCHRUN, "MASTER_PORT", "65535", "65534"),
        (TORCHRUN, "MASTER_ADDR", "a b", "host name"),
        (SLURM, "SLURM_STEP_TASKS_PER_NODE", "4(x2", "4(x2),1"),
        (SLURM, "SLURM_STEP_TASKS_PER_NODE", "9", "cover this node"),
        (SLURM, "SLURM_STEP_NODELIST", "n[01", "node list"),
        (SLURM, "SLURM_NODEID", "x", "1023"),
        (LWS, "LWS_WORKER_INDEX", "2", "group size of 2"),
        (LWS, "LWS_LEADER_ADDRESS", "a:b", "host name"),
    ] {
        let text = error(&with(set, &[(variable, value)]));
        assert!(
            text.contains(&format!("{variable}={value:?}")) && text.contains(limit),
            "{variable}={value}: {text}"
        );
    }
}

#[test]
fn one_rank_needs_no_address() {
    let found = launch(&[("EPWIRE_RANK", "0"), ("EPWIRE_WORLD", "1")]);
    assert_eq!((found.world, found.addresses), (1, vec![]));
}

#[test]
fn any_launcher_may_host_the_rendezvous() {
    for set in [OWN, TORCHRUN, SLURM] {
        assert!(!launch(set).hosted);
        assert!(!launch(&with(set, &[("EPWIRE_HOSTED", "0")])).hosted);
        assert!(launch(&with(set, &[("EPWIRE_HOSTED", "1")])).hosted);
    }
}

#[test]
fn own_names_in_the_table_are_documented() {
    for row in &SOURCES {
        for name in [row.claims, row.rank, row.world, row.local_rank, row.local_world].into_iter().flatten() {
            let known = env::VARIABLES.iter().any(|v| v.name == *name);
            assert!(known || !name.starts_with("EPWIRE_"), "{name} is not in env::VARIABLES");
        }
    }
}
