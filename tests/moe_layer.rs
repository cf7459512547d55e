//! The example `moe_layer` as a user runs it: its exit code, its last line, and that it neither hangs nor hides a
//! failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod example;

use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
    thread::sleep,
    time::{Duration, Instant},
};

/// The length in bytes, and so in tokens, of the text in most of these tests.
const TOKENS: usize = 300;
/// A model small enough for a build without optimisation.
const SMALL: &str = "--hidden 128 --intermediate 16 --layers 2 --max-tokens 40";
/// Longer than any of these runs takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The example as its users build it.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| example::build("moe_layer"));

/// A text of `tokens` bytes that is removed with the test.
struct Text(PathBuf);

impl Text {
    fn new(name: &str, tokens: usize) -> Self {
        let path = std::env::temp_dir().join(format!("epwire-moe_layer-{name}-{}", std::process::id()));
        let text: String = (0..tokens).map(|i| char::from(b'a' + (i * i % 31 % 26) as u8)).collect();
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn start(&self, args: &str, variables: &[(&str, String)]) -> Run {
        Run::new(&self.0, args, variables)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The running program. It is killed when this is dropped, so that a failing test leaves no process.
struct Run(Option<Child>);

impl Run {
    fn new(file: &Path, args: &str, variables: &[(&str, String)]) -> Self {
        let mut command = Command::new(&*PROGRAM);
        command.args(args.split_whitespace()).arg(file).envs(variables.iter().map(|(k, v)| (k, v)));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(Some(child.unwrap()))
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// Waits until it has ended, for at most `limit`, and returns its output, which must be a few lines.
    fn end(mut self, limit: Duration) -> Ended {
        let begin = Instant::now();
        while self.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < limit, "still running after {limit:?}");
            sleep(Duration::from_millis(10));
        }
        let Output { status, stdout, stderr } = self.0.take().unwrap().wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// It has failed, no line says otherwise, and its message contains all of `what`.
    fn assert_failed(&self, what: &[&str]) {
        assert!(self.code.is_some_and(|code| code != 0) && !self.stdout.contains("OK"), "{self:?}");
        assert!(what.iter().all(|what| self.stderr.contains(what)), "{what:?} in {self:?}");
    }
}

/// The variables that a launcher of one host would set.
fn environment(rank: u32, world: u32, port: u16) -> [(&'static str, String); 3] {
    [
        ("EPWIRE_RANK", rank.to_string()),
        ("EPWIRE_WORLD", world.to_string()),
        ("EPWIRE_ADDR", format!("127.0.0.1:{port}")),
    ]
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Whether the process has mapped the windows of `world` ranks, its own among them.
fn is_connected(pid: u32, world: usize) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let inode = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    let windows: std::collections::HashSet<_> =
        maps.lines().filter(|line| line.contains("epwire-window")).map(inode).collect();
    windows.len() == world
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// The child of `parent` that is `rank`.
fn child(parent: u32, rank: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let children = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let children: String = children.map(Result::unwrap_or_default).collect();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).find(|pid| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|&b| b == 0).any(|v| v == format!("EPWIRE_RANK={rank}").as_bytes())
    })
}

fn assert_ok(args: &str, ranks: u32) {
    let text = Text::new(&args.replace(' ', ""), TOKENS);
    let ended = text.start(&format!("{SMALL} {args}"), &[]).end(LIMIT);
    let line = ended.stdout.lines().last().unwrap_or_default();
    let figures = format!("moe_layer: OK ranks={ranks} tokens={TOKENS} layers=2 max_rel_err=");
    let error = line.strip_prefix(&figures).and_then(|error| error.parse::<f64>().ok());
    assert!(error.is_some_and(|error| (0.0..=1e-2).contains(&error)), "{args}: {ended:?}");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{args}");
    assert!(ended.stdout.contains("rows received"), "{args}: no table: {ended:?}");
}

#[test]
fn every_payload_layout_and_sum_is_exact_over_four_ranks() {
    for args in [
        "--ranks 4",
        "--ranks 4 --payload f16 --split",
        "--ranks 4 --payload fp8",
        "--ranks 4 --combine ordered",
        "--ranks 4 --combine ordered --payload fp8 --split",
        "--ranks 4 --layout rank-major",
        "--ranks 4 --layout rank-major --payload f16",
        "--ranks 4 --layout rank-major --payload fp8 --split",
    ] {
        assert_ok(args, 4);
    }
}

#[test]
fn any_number_of_ranks_will_do() {
    assert_ok("", 1);
    assert_ok("--ranks 1 --layout rank-major", 1);
    assert_ok("--ranks 3 --payload fp8", 3);
    assert_ok("--ranks 8 --experts 64 --topk 8", 8);
}

/// What each rank prints about its adapters, and errors, as the environment's variables decide.
#[test]
fn adapters_are_those_that_the_environment_asks_for() {
    let text = Text::new("adapters", TOKENS);
    let run = |variables: &[(&str, &str)]| {
        let variables: Vec<(&str, String)> = variables.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        text.start(&format!("{SMALL} --ranks 2 --nic fake"), &variables).end(LIMIT)
    };
    let first = "(fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.";
    let second = "(fake_1 port 1, RoCEv2, GID 3 ending in 10.78.0.";
    for (variables, adapters) in [
        (&[][..], [first, second]), // ranks take turns
        (&[("EPWIRE_HCA", "=fake_1:1")], [second, second]),
        (
            &[
                ("EPWIRE_HCA", "^fake_1"),
                ("EPWIRE_SL", "3"),
                ("EPWIRE_TC", "106"),
                ("EPWIRE_HOP_LIMIT", "64"),
            ],
            [first; 2],
        ),
    ] {
        let ended = run(variables);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for (rank, adapter) in adapters.iter().enumerate() {
            let said = ended.stdout.lines().find(|line| line.starts_with(&format!("rank {rank} reaches")));
            assert!(
                said.is_some_and(|line| line.contains(&format!("{adapter}{rank}, MTU 4096)"))),
                "{ended:?}"
            );
        }
    }
    let both = run(&[("EPWIRE_ADAPTERS", "2")]);
    assert!(both.code == Some(0) && both.stdout.contains("10.77.0.0, MTU 4096; fake_1 port 1"), "{both:?}");
    let none = run(&[("EPWIRE_HCA", "mlx5")]);
    none.assert_failed(&["matches none of 2 mlx5 adapters", "EPWIRE_HCA"]);
    let whole = |line: &str| line.matches("moe_layer: ").count() == 1; // though both ranks write at once
    assert!(none.stderr.lines().all(whole), "{none:?}");
    run(&[("EPWIRE_HCA", "=fake_0,")]).assert_failed(&["is \"=fake_0,\", not a filter of adapters"]);
    run(&[("EPWIRE_HCA", "=fake_0"), ("EPWIRE_ADAPTERS", "2")]).assert_failed(&["no second mlx5 adapter"]);
    run(&[("EPWIRE_TC", "300")]).assert_failed(&["EPWIRE_TC: \"300\" is not a number from 0 to 255"]);
}

#[test]
#[cfg(not(all(feature = "cuda", feature = "cudarc")))]
fn a_gpu_needs_features_which_the_error_names() {
    let text = Text::new("features", TOKENS);
    for ranks in ["", "--ranks 2"] {
        let ended = text.start(&format!("{SMALL} --device cuda {ranks}"), &[]).end(LIMIT);
        ended.assert_failed(&["--features cuda,cudarc"]);
    }
}

#[test]
#[cfg(all(feature = "cuda", feature = "cudarc"))]
fn a_gpu_gives_the_same_bits_and_without_a_driver_the_error_says_so() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        for args in [
            "--ranks 2 --device cuda",
            "--ranks 2 --device cuda --payload f16 --split",
            "--ranks 2 --device cuda --combine ordered --payload fp8",
            "--ranks 2 --device cuda --layout rank-major",
            "--ranks 2 --device cuda --layout rank-major --payload fp8 --split",
            "--ranks 2 --device cuda --nic fake",
        ] {
            assert_ok(args, 2);
        }
        return;
    }
    let text = Text::new("driver", TOKENS);
    for ranks in ["", "--ranks 2"] {
        let ended = text.start(&format!("{SMALL} --device cuda {ranks}"), &[]).end(LIMIT);
        ended.assert_failed(&["--device cuda", "no NVIDIA driver"]);
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    }
}

#[test]
fn a_rank_may_have_no_tokens_at_all() {
    let text = Text::new("short", 2);
    let ended = text.start(&format!("{SMALL} --ranks 4"), &[]).end(LIMIT);
    assert!(ended.code == Some(0) && ended.stdout.contains("OK ranks=4 tokens=2 "), "{ended:?}");
}

#[test]
fn json_is_one_object_with_every_rank() {
    let text = Text::new("json", TOKENS);
    let ended = text.start(&format!("{SMALL} --ranks 2 --json"), &[]).end(LIMIT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let summary: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&summary["ok"], &summary["tokens"]), (&true.into(), &TOKENS.into()));
    assert_eq!((&summary["wrong_rows"], &summary["config"]["experts"]), (&0.into(), &16.into()));
    let sum = |field: &str| -> u64 {
        summary["per_rank"].as_array().unwrap().iter().map(|rank| rank[field].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("rank"), sum("tokens")), (1, TOKENS as u64));
    assert!(sum("rows_sent") == sum("rows_received") && sum("rows_sent") > TOKENS as u64);
}

#[test]
fn ranks_started_by_a_launcher_meet_at_rank_0() {
    let text = Text::new("launcher", TOKENS);
    let port = free_port();
    let ranks = [0, 1].map(|rank| text.start(SMALL, &environment(rank, 2, port)));
    let [first, second] = ranks.map(|rank| rank.end(LIMIT));
    assert!(first.code == Some(0) && first.stdout.contains("moe_layer: OK ranks=2 "), "{first:?}");
    assert!(first.stderr.contains("by epwire"), "it does not say which launcher it took: {first:?}");
    assert_eq!((second.code, second.stdout.as_str(), second.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn what_cannot_run_is_said_once_and_fails() {
    let text = Text::new("refused", TOKENS);
    for (args, what) in [
        ("--ranks 4 --experts 10", "--experts 10 is not a multiple of 4"),
        ("--ranks 2 --layout rank-major --combine ordered", "expert-major"),
        ("--ranks 2 --payload fp8 --hidden 200", "128"),
        ("--ranks 0", "1..=1024"),
        ("--payload fp4", "fp8"),
    ] {
        let ended = text.start(args, &[]).end(LIMIT);
        ended.assert_failed(&[what]);
        assert_eq!(
            ended.stderr.matches("moe_layer: ").count(),
            usize::from(ended.code == Some(1)),
            "{ended:?}"
        );
    }
    let missing = Path::new("/nonexistent/text");
    Run::new(missing, "--ranks 3", &[]).end(LIMIT).assert_failed(&["cannot read /nonexistent/text"]);
    let launched = text.start("--ranks 3", &environment(0, 1, 1)).end(LIMIT);
    launched.assert_failed(&["--ranks 3", "has started 1"]);
}

/// Each rank reads the text for itself: from a pipe one rank would get everything, and the others nothing.
#[test]
fn a_text_that_ranks_cannot_share_or_that_is_empty_is_refused() {
    for ranks in ["", "--ranks 2"] {
        let mut child = Command::new(&*PROGRAM)
            .args(format!("{SMALL} {ranks} /dev/stdin").split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The program may end without having read it.
        let _ = child.stdin.take().unwrap().write_all(b"the bytes of a pipe");
        Run(Some(child)).end(LIMIT).assert_failed(&["/dev/stdin is not a regular file"]);
        let empty = Text::new(&format!("empty{}", ranks.len()), 0);
        empty.start(&format!("{SMALL} {ranks}"), &[]).end(LIMIT).assert_failed(&["is empty"]);
        let text = Text::new(&format!("redirected{}", ranks.len()), TOKENS);
        let child = Command::new(&*PROGRAM)
            .args(format!("{SMALL} {ranks} /dev/stdin").split_whitespace())
            .stdin(fs::File::open(&text.0).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let ended = Run(Some(child)).end(LIMIT);
        if ranks.is_empty() {
            assert_eq!(ended.code, Some(0), "a single rank reads a redirected file: {ended:?}");
        } else {
            ended.assert_failed(&["/dev/stdin is not a regular file"]); // as ranks see it, whose standard input is empty
        }
    }
}

#[test]
fn ranks_that_were_told_different_things_refuse_to_begin() {
    let text = Text::new("different", TOKENS);
    let port = free_port();
    let ranks =
        [0u32, 1].map(|rank| text.start(&format!("{SMALL} --seed {rank}"), &environment(rank, 2, port)));
    for rank in ranks {
        rank.end(LIMIT).assert_failed(&["arguments", "seed"]);
    }
}

/// Takes minutes, unless it is ended.
const LONG: &str = "--hidden 128 --intermediate 16 --layers 20 --max-tokens 40 --deadline 1";

#[test]
fn a_killed_rank_ends_the_run_that_started_it() {
    let text = Text::new("killed", 100_000);
    let run = text.start(&format!("{LONG} --ranks 3"), &[]);
    let mut victim = None;
    wait_until("rank 1 is connected", || {
        victim = child(run.id(), 1).filter(|&pid| is_connected(pid, 3));
        victim.is_some()
    });
    kill(victim.unwrap());
    run.end(LIMIT).assert_failed(&["rank 1 failed first: signal: 9"]);
}

#[test]
fn a_killed_rank_is_named_by_those_who_waited_for_it() {
    let text = Text::new("named", 100_000);
    let port = free_port();
    let [first, second, third] = [0, 1, 2].map(|rank| text.start(LONG, &environment(rank, 3, port)));
    wait_until("all are connected", || {
        [&first, &second, &third].iter().all(|rank| is_connected(rank.id(), 3))
    });
    sleep(Duration::from_millis(300));
    kill(second.id());
    // Nobody ends these: they find out by themselves, from a wait that ends or, if they had not begun, while meeting.
    // The one that finds out first leaves, and the other may name it instead.
    let survivors = [first, third].map(|rank| rank.end(LIMIT));
    survivors.iter().for_each(|survivor| survivor.assert_failed(&[]));
    let named = |s: &Ended| s.stderr.contains("gave up on peer 1") || s.stderr.contains("rank 1 (");
    assert!(survivors.iter().any(named), "{survivors:?}");
}
