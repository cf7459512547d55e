//! The example programs across three hosts, which are network namespaces of this machine: only the environment says
//! where the ranks meet, and their path is queues over TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod example;
#[path = "chaos/network.rs"]
#[expect(dead_code, reason = "tests/chaos also cuts the network")]
mod network;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

use network::Hosts;

const RANKS: u32 = 3;
/// Longer than any of these runs takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// In seconds.
const DAY: u32 = 86_400;

/// Killed when dropped, so that a failing test leaves nothing behind.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the example with these options on every host, and returns what rank 0 prints.
fn run(name: &str, options: &str) -> String {
    run_on(&Hosts::new(RANKS), name, options)
}

/// Each host has been up for another time, if this kernel can have it so.
fn on_a_clock_of_its_own(rank: u32, program: &Path) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--fork", "--kill-child", "--time", "--monotonic", &(rank * DAY).to_string()]);
    let probe = Command::new("unshare").args(["--time", "true"]).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("not checked: hosts whose clocks differ, for which unshare --time is needed");
        return Command::new(program);
    }
    unshare.arg(program);
    unshare
}

fn run_on(hosts: &Hosts, name: &str, options: &str) -> String {
    let program = example::build(name);
    let start = |rank: u32| {
        let mut command = on_a_clock_of_its_own(rank, &program);
        command.args(options.split_whitespace()).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env("EPWIRE_RANK", rank.to_string()).env("EPWIRE_WORLD", RANKS.to_string());
        command.env("EPWIRE_ADDR", format!("{}:29700", Hosts::address(0))).env("EPWIRE_IFNAME", "eth0");
        command.env("EPWIRE_TOKEN", "known to all hosts of this test").env("EPWIRE_PORTS", "29800-29810");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        hosts.place(rank, &mut command);
        Rank(command.spawn().unwrap())
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let began = Instant::now();
    while ranks.iter_mut().any(|rank| rank.0.try_wait().unwrap().is_none()) {
        assert!(began.elapsed() < LIMIT, "{name} takes longer than {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = |rank: &mut Rank| {
        let (out, err) = (rank.0.stdout.take().unwrap(), rank.0.stderr.take().unwrap());
        [std::io::read_to_string(out).unwrap(), std::io::read_to_string(err).unwrap()]
    };
    let printed: Vec<[String; 2]> = ranks.iter_mut().map(said).collect();
    let failed = ranks.iter_mut().any(|rank| !rank.0.try_wait().unwrap().unwrap().success());
    assert!(!failed, "{name}: {printed:?}");
    printed[0][0].clone()
}

fn moe_layer_reaches_other_hosts_by_tcp() -> Result<(), Failed> {
    let said = run("moe_layer", "--hidden 128 --intermediate 16 --layers 2 --max-tokens 40 LICENSE-MIT");
    for reached in ["rank 0 reaches 1-2", "rank 2 reaches 0-1"] {
        let line = format!("{reached} by queue over TCP (a software NIC)");
        assert!(said.lines().any(|found| found == line), "{line:?} is not in {said}");
    }
    assert!(said.lines().any(|line| line.starts_with("moe_layer: OK ranks=3 ")), "{said}");
    Ok(())
}

fn the_bench_measures_across_hosts() -> Result<(), Failed> {
    let said =
        run("bench", "--tokens 8 --hidden 512 --experts 12 --warmup 1 --iterations 5 --cases pair --json");
    let row: serde_json::Value = serde_json::from_str(said.lines().next().unwrap())?;
    assert_eq!(
        (&row["wrong"], &row["path"], &row["nic"]),
        (&0.into(), &"queue over TCP".into(), &"soft".into())
    );
    within_the_run(&row, &["p50_us", "max_us", "floor_us"]);
    Ok(())
}

/// Each is a time that is not longer than the run may last.
fn within_the_run(row: &serde_json::Value, times: &[&str]) {
    for time in times {
        let us = row[time].as_f64().unwrap_or_default();
        assert!(us > 0.0 && us < LIMIT.as_secs_f64() * 1e6, "{time}: {row}");
    }
}

fn the_bench_has_plain_sockets_between_hosts() -> Result<(), Failed> {
    let options =
        "--tokens 8 --hidden 512 --experts 12 --iterations 2 --cases pair --layout rank-major --paths queue";
    let said = run("bench", &format!("{options} --json"));
    let row: serde_json::Value = serde_json::from_str(said.lines().next().unwrap())?;
    within_the_run(&row, &["stream_us", "put_us", "half_ping_us"]);
    Ok(())
}

fn the_bench_says_that_hosts_share_no_clock() -> Result<(), Failed> {
    let said = run("bench", "--collective all_gather --bytes 24K --iterations 2");
    assert!(said.contains("all_gather") && said.contains("by its own clock"), "{said}");
    Ok(())
}

fn the_doctor_draws_the_matrix_of_hosts() -> Result<(), Failed> {
    let report: serde_json::Value = serde_json::from_str(&run("doctor", "--json"))?;
    let cells = report["matrix"]["cells"].as_array().ok_or("no cells")?;
    assert_eq!(cells.len() as u32, RANKS * (RANKS - 1), "{report}");
    for cell in cells {
        assert_eq!([&cell["path"], &cell["reason"]], ["queue over TCP", ""], "{cell}");
        assert!(cell["one_way_us"].as_f64() > Some(0.0) && cell["gb_per_s"].as_f64() > Some(0.0), "{cell}");
    }
    Ok(())
}

/// What the last host sends is delayed; what it receives is not.
fn the_doctor_marks_a_slow_way() -> Result<(), Failed> {
    let (hosts, slow) = (Hosts::new(RANKS), RANKS - 1);
    let mut limit = Command::new("tc");
    limit.args("qdisc add dev eth0 root tbf rate 400mbit burst 64kb latency 100ms".split_whitespace());
    hosts.place(slow, &mut limit);
    assert!(limit.status()?.success(), "{limit:?}");
    let report: serde_json::Value = serde_json::from_str(&run_on(&hosts, "doctor", "--json"))?;
    let cells = report["matrix"]["cells"].as_array().ok_or("no cells")?;
    let marked = cells.iter().filter(|cell| cell["from"] == slow && cell["slow"] == true);
    assert_eq!(marked.count() as u32, RANKS - 1, "{report}");
    // Others may be slow too if the machine has other work, but not all.
    assert!(cells.iter().any(|cell| cell["slow"] == false), "{report}");
    Ok(())
}

fn main() {
    let lacking = network::lacking();
    let trial = |name: &'static str, test: fn() -> Result<(), Failed>| match &lacking {
        Some(reason) => Trial::test(name, test).with_kind(reason).with_ignored_flag(true),
        None => Trial::test(name, test),
    };
    let trials = vec![
        trial("moe_layer_reaches_other_hosts_by_tcp", moe_layer_reaches_other_hosts_by_tcp),
        trial("the_bench_measures_across_hosts", the_bench_measures_across_hosts),
        trial("the_bench_has_plain_sockets_between_hosts", the_bench_has_plain_sockets_between_hosts),
        trial("the_bench_says_that_hosts_share_no_clock", the_bench_says_that_hosts_share_no_clock),
        trial("the_doctor_draws_the_matrix_of_hosts", the_doctor_draws_the_matrix_of_hosts),
        trial("the_doctor_marks_a_slow_way", the_doctor_marks_a_slow_way),
    ];
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}
