//! The C core's own tests, `tests/c/*.c`, the examples for C users, `examples/c/*.c`, and the promises of the header,
//! with the machine's C compiler (`CC`).
//!
//! Each file is a program, linked with the objects that the crate contains, so that a test may look inside.
//! `c/CMakeLists.txt` runs the same files under sanitizers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

macro_rules! c_programs {
    ($($folder:literal { $($name:ident)* })*) => {
        const LISTED: &[(&str, &[&str])] = &[$(($folder, &[$(stringify!($name)),*])),*];
        $($(#[test] fn $name() { build_and_run($folder, stringify!($name)); })*)*
    };
}

c_programs! {
    "tests/c" { adapter_choice adapter_events adapter_probe alike api attended auth await_any blobs collectives comm_failures comm_hostile comm_misuse comm_sizes comm_subset comm_traffic cuda cuda_window deadlines enqueue exchange failures farewells fault_plans fd_server float_state forks frames hostile inbox init lane_sms leases lent_rows links log mapped_registers membership memory_limit misuse mlx5_adapter mlx5_commands mlx5_lacks mlx5_library mlx5_wire nic_faults no_threads norms numerics payload_tail points polling pool prefill_awaits prefill_cases prefill_enqueue prefill_failures prefill_given_up prefill_hostile prefill_lanes prefill_many prefill_payloads prefill_received prefill_sizes prefill_traffic private_bytes queue queue_schedules reconnect remainder resets ring_links rings sha256 sm_ledger soft_nic sums terms totals traffic unreadable verbs_library verbs_probe verbs_wire verdicts waits watched_words window wire_bytes }
    "examples/c" { two_processes }
}

const RUN_LIMIT: Duration = Duration::from_secs(600);
/// The exit code of a program that could not check something on this machine, and has said why.
const SKIPPED: i32 = 77;
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

#[test]
fn every_c_program_is_listed_here() {
    for (folder, listed) in LISTED {
        let mut found: Vec<String> = fs::read_dir(root().join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .filter(|name| !name.ends_with("model")) // they explore pure functions for a minute, by ctest
            .collect();
        found.sort();
        assert_eq!(*listed, found, "{folder}");
    }
}

#[test]
fn the_header_alone_is_strict_c11() {
    let compiler = compiler("CC", &["cc"]).expect("no C compiler: set CC");
    let by_macro = |name: &str, kind: &str| {
        format!("extern const {kind} {kind}_; const {kind} {kind}_ = {name}_INIT;\n")
    };
    compile_header(&compiler, "c", "-std=c11", by_macro);
}

#[test]
fn the_header_alone_is_strict_cxx11() {
    let by_function = |_: &str, kind: &str| {
        format!("{kind} {kind}_(); {kind} {kind}_() {{ {kind} made; {kind}_init(&made); return made; }}\n")
    };
    match compiler("CXX", &["c++", "g++", "clang++"]) {
        Some(compiler) => compile_header(&compiler, "c++", "-std=c++11", by_function),
        None if env::var_os("CI").is_some() => panic!("no C++ compiler: set CXX"),
        None => say("NOT CHECKED: the header in C++, because there is no C++ compiler (set CXX)"),
    }
}

/// Only a function that `tests/c/init.c` compares with its macro is known to set the same.
#[test]
fn every_initialiser_is_compared() {
    let compared = fs::read_to_string(root().join("tests/c/init.c")).unwrap();
    for name in initialisers() {
        let function = format!("{}_init", name.to_lowercase());
        assert!(compared.contains(&function), "tests/c/init.c does not compare {function}");
    }
}

/// The macros `NAME_INIT` of the header, without their ending.
fn initialisers() -> Vec<String> {
    let header = fs::read_to_string(root().join("c/include/epwire.h")).unwrap();
    let names: Vec<String> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next()?.strip_suffix("_INIT"))
        .map(str::to_owned)
        .collect();
    assert!(names.iter().any(|name| name == "EPW_CONFIG"), "no initialisers found in the header");
    names
}

/// Compiles the header alone, and a use of every initialiser in it, which `initialise` writes for its name and type.
fn compile_header(
    compiler: &[String],
    language: &str,
    standard: &str,
    initialise: impl Fn(&str, &str) -> String,
) {
    let uses = initialisers().iter().map(|name| initialise(name, &name.to_lowercase())).collect::<String>();

    let source = tmp().join(format!("header.{language}"));
    fs::write(&source, format!("#include \"epwire.h\"\n{uses}")).unwrap();
    let mut command = command(compiler);
    command.args([standard, "-fsyntax-only", "-x", language]).args(STRICT).args(includes()).arg(&source);
    succeed(command, "header");
}

/// Builds a C program, which exits with 0 or prints the failed checks on standard error.
fn build_and_run(folder: &str, name: &str) {
    let program = tmp().join(name);
    let mut compile = command(&compiler("CC", &["cc"]).expect("no C compiler: set CC"));
    compile.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-ffp-contract=off", "-pthread"]);
    compile.args(STRICT).args(includes()).arg(root().join(format!("{folder}/{name}.c")));
    compile
        .arg(concat!(env!("OUT_DIR"), "/libepwire_core.a"))
        .args(cuda_parts())
        .arg("-lm")
        .arg("-o")
        .arg(&program);
    succeed(compile, &format!("{name}.compile"));
    succeed(Command::new(&program), name);
}

/// Writes a line past the harness, which shows what a passing test prints to nobody.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Runs a command to its end within `RUN_LIMIT`; its output appears in the test's. What it could not check is said in any
/// case.
fn succeed(mut command: Command, name: &str) {
    let path = tmp().join(format!("{name}.log"));
    let log = File::create(&path).unwrap();
    let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let begun = Instant::now();
    let status: Option<ExitStatus> = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        } else if begun.elapsed() > RUN_LIMIT {
            child.kill().and_then(|()| child.wait()).unwrap();
            break None;
        }
        sleep(Duration::from_millis(10));
    };
    let output = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
    println!("{output}");
    match status {
        Some(status) if status.code() == Some(SKIPPED) => {
            say(&format!("{name}: NOT CHECKED: {}", output.trim_end()));
        }
        Some(status) => {
            assert!(status.success(), "{name}: {status}: {command:?}");
            let lacks = |line: &&str| line.contains("ignored: ") || line.contains("NOT CHECKED");
            output.lines().filter(lacks).for_each(|line| say(&format!("{name}: {line}")));
        }
        None => panic!("{name}: still running after {RUN_LIMIT:?}: {command:?}"),
    }
}

/// The words of a compiler's command line: the variable's value, otherwise the first name that can be run.
fn compiler(variable: &str, names: &[&str]) -> Option<Vec<String>> {
    if let Ok(words) = env::var(variable) {
        return Some(words.split_whitespace().map(str::to_owned).collect());
    }
    let runs = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    names.iter().find(runs).map(|name| vec![name.to_string()])
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// What a core with CUDA needs in addition: the kernels, and the static runtime of the toolkit that built them.
fn cuda_parts() -> Vec<String> {
    let Some(libraries) = option_env!("EPWIRE_CUDA_LIBRARIES") else { return Vec::new() };
    let mut arguments = vec!["-DEPW_CUDA=1".to_owned(), format!("-I{}", root().display())];
    arguments.push(concat!(env!("OUT_DIR"), "/libepwire_kernels.a").to_owned());
    arguments.push(format!("-L{libraries}"));
    arguments.push(format!("-isystem{libraries}/../include")); // its place in every layout of a toolkit
    arguments.extend(["-lcudart_static", "-ldl", "-lpthread", "-lrt"].map(str::to_owned));
    arguments
}

fn includes() -> [String; 2] {
    ["c", "c/include"].map(|folder| format!("-I{}", root().join(folder).display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tmp() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    fs::create_dir_all(&folder).unwrap();
    folder
}
