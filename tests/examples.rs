//! Properties of all example programs: they handle a reader of their output that leaves, and a full disk. And the bench
//! measures with nothing but sizes, as a user first tries it, and the doctor reports where ranks cannot reach each other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod example;

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

/// An example with options with which it prints something and ends within a second.
fn command(name: &str) -> Command {
    let options = match name {
        "bench" => "--ranks 2 --tokens 2 --hidden 128 --warmup 1 --iterations 2 --cases pair",
        "doctor" => "--ranks 2",
        "failover" => "--ranks 3 --within kill=9000,leader=9000,stop=9000,stopped-leader=9000",
        "tensor_parallel" => "--ranks 2 --tokens 4 --hidden 8 --intermediate 8",
        _ => "--ranks 2 --hidden 64 --intermediate 8 --layers 1 LICENSE-MIT",
    };
    let mut command = Command::new(example::build(name));
    command.args(options.split_whitespace()).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

fn ended(mut command: Command) -> (Output, String) {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn the_bench_measures_every_case_by_default_and_each_beside_its_floor() {
    let mut bench = Command::new(example::build("bench"));
    bench.args("--ranks 2 --tokens 2 --hidden 128 --iterations 2 --json".split_whitespace());
    let (output, said) = ended(bench);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    let rows: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let cases: Vec<_> = rows.iter().map(|row| (text(&row["case"]), text(&row["layout"]))).collect();
    let expected = ["expert-major", "rank-major"]
        .map(|layout| ["dispatch", "combine", "pair"].map(|case| (case.to_owned(), layout.to_owned())))
        .concat();
    assert_eq!(cases, expected, "the cases of the default options");
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{row}");
        let [p50, floor] = ["p50_us", "floor_us"].map(|field| row[field].as_f64().unwrap());
        assert!(floor > 0.0 && p50 > floor, "faster than its floor: {row}");
    }
}

#[test]
fn the_bench_takes_tokens_that_are_fp8_already() {
    let mut bench = Command::new(example::build("bench"));
    let options = "--ranks 2 --tokens 5 --hidden 256 --payload fp8-given --layout expert-major,rank-major,packed,dense \
                   --iterations 2 --json";
    bench.args(options.split_whitespace());
    let (output, said) = ended(bench);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    let rows = String::from_utf8(output.stdout).unwrap();
    let right =
        rows.lines().filter(|row| row.contains("\"payload\":\"fp8-given\"") && row.ends_with("\"wrong\":0}"));
    assert_eq!(right.count(), 4 * 3, "{rows}");
}

#[test]
fn the_doctor_says_which_rank_has_no_adapter() {
    let doctor = example::build("doctor");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let start = |rank: u32| {
        let mut command = Command::new(&doctor);
        command.env("EPWIRE_ADDR", &address).env("EPWIRE_TOKEN", "known to all ranks of this test");
        command.env("EPWIRE_WORLD", "3").env("EPWIRE_RANK", rank.to_string());
        command.env("EPWIRE_NIC", "fake").env("EPWIRE_PATHS", "queue");
        command.env("EPWIRE_HCA", if rank == 1 { "=other_0" } else { "" });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..3).map(start).collect();
    let ended: Vec<Output> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let codes: Vec<_> = ended.iter().map(|output| output.status.code()).collect();
    assert_eq!(codes, [Some(1), Some(0), Some(0)], "{ended:?}");
    let said = String::from_utf8_lossy(&ended[0].stdout);
    let matrix = said.split_once("3 ranks, each with each").expect("a matrix").1;
    let why = "fabric: rank 1: options.adapters (EPWIRE_HCA), \"=other_0\", matches none of 2 mlx5 adapters; the \
        first is fake_0";
    for ranks in ["0 to rank 1", "1 to ranks 0,2", "2 to rank 1"] {
        assert!(matrix.contains(&format!("\n  rank {ranks}: {why}\n")), "{ranks} is not in {matrix}");
    }
    assert_eq!(
        (matrix.matches("queue over RDMA adapters, ").count(), matrix.matches("NONE").count()),
        (2, 4)
    );
    assert!(said.contains("queue: by RDMA adapters, to which GPUs may post"), "{said}");
}

#[test]
fn ranks_that_do_not_fit_are_reported_once_before_any_is_started() {
    let mut bench = Command::new(example::build("bench"));
    bench.args(["--ranks", "3"]);
    let (output, said) = ended(bench);
    assert_eq!((output.status.code(), said.matches("experts").count()), (Some(1), 1), "{said}");
    assert!(!said.contains("rank "), "{said}");
}

#[test]
fn a_shell_of_slurm_can_be_hidden_from_a_program_that_starts_its_ranks() {
    let doctor = example::build("doctor");
    let run = |rank: &str| {
        let mut command = Command::new(&doctor);
        command.args(["--ranks", "2"]).env("SLURM_PROCID", rank).env("SLURM_NTASKS", "1");
        command.env("SLURM_LOCALID", "0").env("SLURM_NODEID", "0").env("SLURM_TASKS_PER_NODE", "1");
        command.env("SLURM_JOB_NODELIST", "n1").env("SLURM_JOB_ID", "4711").env("SLURM_STEP_ID", "0");
        command.stdout(Stdio::piped());
        ended(command)
    };
    let (output, said) = run("0");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("SLURM_PROCID= program --ranks 2"), "{said}");
    let (output, said) = run("");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("2 ranks, each with each"), "{said}{report}");
}

#[test]
fn a_reader_that_leaves_ends_no_program_in_a_panic() {
    for name in ["bench", "doctor", "failover", "moe_layer", "tensor_parallel"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(name);
        command.stdout(writer);
        let (output, said) = ended(command);
        assert!(output.status.success() && said.is_empty(), "{name}: {}: {said}", output.status);
    }
}

#[test]
fn a_full_disk_is_an_error_that_says_so() {
    for name in ["bench", "doctor", "failover", "moe_layer", "tensor_parallel"] {
        let mut command = command(name);
        command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let (output, said) = ended(command);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains("cannot write to standard output: No space left on device"), "{name}: {said}");
        assert!(!said.contains("panicked"), "{name}: {said}");
    }
}
