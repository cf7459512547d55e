//! The README and the guide are correct: their C programs run, their tables agree with the code, and CI runs their
//! commands. Their Rust blocks are doctests of the crate. And the README can be read in ten minutes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use epwire::prefill::{PrefillConfig, PrefillPlan};
use epwire::{EpBuffer, EpConfig, Mask, Plan};

const README: &str = include_str!("../README.md");
/// The guide's page of this name.
macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../src/guide/", $name, ".md"))
    };
}
/// Everything that users read.
const MANUAL: &[&str] = &[
    README,
    page!("benchmarking"),
    page!("c"),
    page!("collectives"),
    page!("coming_from"),
    page!("failures"),
    page!("gpus"),
    page!("launching"),
    page!("paths"),
    page!("prefill"),
    page!("programs"),
    page!("security"),
    page!("serving"),
    page!("steps"),
    page!("testing"),
    page!("threads"),
];

#[test]
fn the_readme_takes_ten_minutes() {
    let words = README.split_whitespace().count();
    assert!(words <= 2500, "{words} words");
}

#[test]
fn every_page_of_the_guide_is_looked_at_and_linked_in_the_readme() {
    let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let pages: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    assert_eq!(pages.len() + 1, MANUAL.len(), "{pages:?}");
    for name in pages {
        let link = format!("]: src/guide/{name}\n");
        assert!(README.contains(&link), "no link to {name}");
    }
    for link in README.lines().filter_map(|line| Some(line.strip_prefix('[')?.split_once("]: ")?.1)) {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(link).exists(), "{link} is not there");
    }
}

#[test]
fn the_c_programs_compile_without_warnings_and_run() {
    let said = run_c("readme", block(README, "c"));
    assert!(README.contains(&format!("prints `{}`", said.trim())), "the program says {said:?}");
    for (at, code) in blocks(page!("c"), "c").into_iter().enumerate() {
        assert_eq!(run_c(&format!("guide_{at}"), code), "");
    }
}

/// What the program prints, if it compiles without warnings and ends well.
fn run_c(name: &str, code: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, code).unwrap();

    let compiler = std::env::var("CC").unwrap_or("cc".into());
    let mut words = compiler.split_whitespace();
    let mut compile = Command::new(words.next().expect("CC is not blank"));
    compile.args(words).args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
    compile.arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c/include")).arg(&source);
    compile.arg(concat!(env!("OUT_DIR"), "/libepwire_core.a")).arg("-o").arg(&program);
    succeed(compile);
    succeed(Command::new(&program))
}

#[test]
fn the_quick_start_is_the_example_of_the_crate() {
    let library = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")).unwrap();
    let comment: String =
        library.lines().map_while(|l| l.strip_prefix("//!")).map(|l| format!("{l}\n")).collect();
    let example = comment.split("```").nth(1).expect("an example in the crate's documentation");
    // Markdown has no lines hidden by a hash, as the documentation has.
    let lines = |code: &str| -> Vec<String> {
        let bare = |line: &str| line.trim().trim_start_matches("# ").to_owned();
        code.lines().map(bare).filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(lines(block(README, "rust")), lines(example));
}

#[test]
fn the_serving_loop_is_what_the_tests_of_steps_run_and_short() {
    let code = include_str!("steps/serve.rs");
    assert!(
        page!("failures").contains(&format!("\n```rust,no_run\n{code}```\n")),
        "put tests/steps/serve.rs into the guide's page on failures"
    );
    let begins = code.find("\n/// ").expect("a documented function");
    let lines = code[begins..].trim().lines().count();
    assert!(lines <= 40, "{lines} lines for membership");
}

#[test]
fn the_table_of_variables_is_that_of_the_code() {
    let table = epwire::env::markdown_table();
    assert!(page!("launching").contains(&table), "put this into the guide's page on launching:\n{table}");
}

/// The texts of the events in this source, each the last argument of `tracing::LEVEL!`.
fn events(source: &str) -> BTreeSet<String> {
    let calls = source.split("tracing::").skip(1).filter_map(|call| call.split_once("!("));
    let levels = ["error", "warn", "info", "debug"];
    let called = calls.filter(|(level, _)| levels.contains(level));
    let texts = called.map(|(_, arguments)| arguments.split('"').nth(1).expect("a text").to_owned());
    texts.filter(|text| !text.starts_with('{')).collect()
}

/// The sources in this folder and those below it.
fn read_all(folder: &Path, sources: &mut Vec<String>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            read_all(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn the_table_of_events_is_what_members_and_servers_send() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = vec![include_str!("../src/observe/membership.rs").to_owned()];
    read_all(&root.join("src/rendezvous"), &mut sources);
    assert!(sources.len() > 20, "found only {} sources", sources.len());
    let sent: BTreeSet<String> = sources.iter().flat_map(|source| events(source)).collect();
    let membership = include_str!("../src/lib.rs")
        .split_once("## Events and metrics of the membership")
        .expect("a section")
        .1;
    let table = membership.split_once("| message | level |").expect("a table").1;
    let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("//! | `"));
    let listed: BTreeSet<String> = rows
        .filter_map(|row| Some(row.split_once('`')?.0.to_owned()))
        .filter(|text| !text.starts_with("rank 2")) // the words of `EPWIRE_LOG`
        .collect();
    assert_eq!(listed, sent);
}

#[test]
fn the_table_of_memory_is_what_plan_says() {
    let header = "| ranks | `max_tokens` | option | window | dispatch slots | combine slots | of the option |\n\
                  |---|---|---|---|---|---|---|\n";
    let plain = |max_tokens| EpConfig::new(max_tokens, 7168, 256, 8);
    let rows = [
        (8, "", plain(128)),
        (8, "`.lanes(1)`", plain(128).lanes(1)),
        (8, "`.ordered(true)`", plain(128).ordered(true)),
        (8, "`.zero_copy(true)`", plain(128).zero_copy(true)),
        (8, "", plain(512)),
        (64, "", plain(128)),
    ];
    let table: String = rows
        .map(|(ranks, option, config)| {
            let plan = Plan::new(&config, ranks).unwrap();
            assert!(plan.private_bytes < 3 << 20, "the guide says less than 3 MiB");
            let optional = plan.ordered_bytes + plan.zero_copy_bytes;
            let mebibytes = [plan.window_bytes, plan.dispatch_bytes, plan.combine_bytes, optional]
                .map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
                .join(" | ");
            format!("| {ranks} | {} | {option} | {mebibytes} |\n", config.max_tokens)
        })
        .concat();
    assert!(
        page!("steps").contains(&format!("{header}{table}")),
        "put this into the guide's page on steps:\n{header}{table}"
    );
}

#[test]
fn the_table_of_memory_for_prefill_is_what_plan_says() {
    let header = "| ranks | `max_tokens` | slots of a ring | window | a routing | and for each 1,000 rows that arrive |\n\
                  |---|---|---|---|---|---|\n";
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let rows = [(4, 4096), (8, 8192), (8, 65536), (64, 8192)];
    let table: String = rows
        .map(|(ranks, tokens)| {
            let config = PrefillConfig::new(EpConfig::new(tokens, 7168, 256, 8));
            let plan = PrefillPlan::new(&config, ranks).unwrap();
            let sizes = [plan.window_bytes, plan.routing_bytes, 1000 * plan.routing_row_bytes].map(mebibytes);
            format!("| {ranks} | {tokens} | {} | {} |\n", plan.ring_tokens, sizes.join(" | "))
        })
        .concat();
    assert!(
        page!("prefill").contains(&format!("{header}{table}")),
        "put this into the guide's page on prefill:\n{header}{table}"
    );
}

/// A row of the table of limits: what it names, its text, the greatest accepted number, and a function that tries a
/// number.
type Limit<'a> = (&'a str, &'a str, u32, &'a dyn Fn(u32) -> bool);

/// Each limit is accepted at the number that the table names, and one more is refused.
#[test]
fn the_table_of_limits_is_what_the_library_takes() {
    let small = || EpConfig::new(1, 8, 1024, 1);
    let planned = |config: EpConfig| Plan::new(&config, 1).is_ok();
    let alone = EpBuffer::unconnected(0, 1, EpConfig::new(1, 8, 8, 1)).unwrap();
    let begins = |epoch| alone.set_active(&Mask::all(1), epoch, 0).is_ok();
    let taken: [Limit<'_>; 6] = [
        ("ranks", "1 to 1,024", 1024, &|ranks| Plan::new(&EpConfig::new(1, 8, ranks, 1), ranks).is_ok()),
        ("`max_tokens`", "1 to 65,536", 65536, &|n| planned(small().max_tokens(n))),
        ("`hidden`", "up to 16,777,216", 1 << 24, &|n| planned(small().hidden(n.next_multiple_of(8)))),
        ("`experts`", "up to 1,048,576", 1 << 20, &|experts| planned(small().experts(experts))),
        ("`topk`", "1 to 32", 32, &|topk| planned(small().topk(topk))),
        ("window, epochs", "1 to 8,388,607", 8_388_607, &begins),
    ];
    for (what, bound, number, takes) in taken {
        let row = page!("steps").lines().find(|line| line.starts_with(&format!("| {what} | ")));
        assert!(row.is_some_and(|row| row.contains(bound)), "the row of {what} lacks {bound:?}: {row:?}");
        assert!(takes(number), "{what}: {number} is refused, although within the limit");
        assert!(!takes(number + 1), "{what}: {} is accepted, although beyond the limit", number + 1);
    }
}

/// Commands that CI does not run literally, and the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "bench --device cuda --ranks 1 --tokens 128 --experts 256 --payload fp8 --layout rank-major,expert-major --cases pair --sms 16,24,64,all --graph",
        "the figures beside it are of a machine with an H200",
    ),
    (
        "bench --device cuda --ranks 2 --layout packed,dense --tokens 4096 --experts 256 --sms 8,16,24,32,64,all --ring 2048",
        "needs two GPUs",
    ),
    (
        "cargo run --release --features cuda,cudarc --example bench -- --ranks 2 --device cuda --layout packed,dense --tokens 4096 --experts 256 \
    --payload fp8,fp8-given --sms 8,16,24,32,64,all",
        "as above",
    ),
    (
        "bench --device cuda --ranks 2 --experts 256 --payload fp8 --tokens 128 --cases pair --graph --sms 8,16,24,32,64,all",
        "as above",
    ),
    (
        "bench --device cuda --ranks 2 --experts 256 --layout rank-major --tokens 4096 --sms 8,16,24,32,64,all",
        "as above",
    ),
    ("cargo add half", "changes the reader's own program"),
    ("cargo add tokio --features rt-multi-thread,time,macros,signal", "changes the reader's own program"),
    ("cargo add --path ../epwire epwire", "as above"),
    ("cargo test --lib histories", "runs with everything else in `cargo test`"),
    (
        ".ci/beside_mpi --collectives",
        "takes many minutes; step beside_mpi takes two sizes of it, with a limit",
    ),
    (".ci/beside_mpi --collectives --turns 11", "as above"),
    // Programs that CI's machine does not have, or that need several hosts.
    ("export EPWIRE_TOKEN=$(openssl rand -hex 16)", "goes with the line below it"),
    (
        "for i in $(seq 0 7); do EPWIRE_LOCAL_RANK=$i program & done; wait",
        "needs Kubernetes; the unit tests of src/launch have its variables",
    ),
    ("export EPWIRE_LOCAL_WORLD=8", "goes with the line below it"),
    ("srun -N 1 -n 4 program", "needs Slurm; the unit tests of src/launch have its variables"),
    ("torchrun --no-python --nproc-per-node 4 program", "needs PyTorch; as above"),
    ("mpirun -n 4 program", "step example_mpirun, with what Open MPI wants of root on few cores"),
    ("EPWIRE_ADDR=127.0.0.1:29700 mpiexec -n 4 program", "needs MPICH; as Slurm"),
    (
        "torchrun --no-python --nnodes 2 --nproc-per-node 2 --node-rank R --master-addr 10.0.0.1 --master-port 29600 program",
        "needs two machines; tests/chaos runs ranks in network namespaces",
    ),
    (
        "mpirun -n 4 --host 10.0.0.1:2,10.0.0.2:2 -x EPWIRE_TOKEN_FILE -x EPWIRE_IFNAME -x EPWIRE_PORTS -x EPWIRE_ADDR=10.0.0.1:29700 program",
        "needs two machines; as above",
    ),
    (
        "mpiexec -n 4 -ppn 2 -hosts 10.0.0.1,10.0.0.2 -genv EPWIRE_ADDR 10.0.0.1:29700 program",
        "needs MPICH and two machines; as above",
    ),
    ("srun -N 2 --ntasks-per-node 2 program", "needs Slurm and two machines; as above"),
    (
        "cargo nextest archive --features cuda,cudarc --test cuda --archive-file tests.tar.zst",
        "needs cargo-nextest",
    ),
    (
        "cargo-nextest nextest run --archive-file tests.tar.zst --workspace-remap .",
        "needs cargo-nextest and a GPU",
    ),
    (
        "(for t in same \"same --processes\" stress \"stress --processes\" \"stress --ranks 2\" \"stress --ranks 1\" mix \"mix --ranks 1\" failure \
         \"failure --large\" \"failure --ranks 2\" overlap paths moves trouble direct limits wide wide_comms wire comms comm_shapes comm_losses comm_failure subsets replaced_comm registered copies prefill \
         prefill_paths prefill_counts prefill_scales prefill_stress prefill_tokens prefill_failure prefill_errors prefill_overlap; do build/test_$t || [ $? = 77 ] || exit 1 done)",
        "needs GPUs; step cuda_kernels builds all of these programs",
    ),
    (
        "(export EPW_TEST_PATH=queue EPW_TEST_WIRE=local; for t in mix comms; do build/test_$t || [ $? = 77 ] || exit 1; done)",
        "needs GPUs; step emulated_gpu runs a part of them",
    ),
    (
        "(export EPW_TEST_PATH=queue EPW_TEST_NIC=fakes; for rings in host gpu; do for doorbells in gpu host; do for t in same \
         \"stress --iterations 2000\" failure \"prefill --cases 4\"; do EPW_TEST_RINGS=$rings EPW_TEST_DOORBELLS=$doorbells build/test_$t || [ $? = 77 ] || exit 1 \
         done done; done)",
        "needs GPUs; step emulated_gpu runs some of it",
    ),
    (
        "for t in memcheck racecheck synccheck; do compute-sanitizer --error-exitcode 1 --tool $t build/test_stress \
         --small --ranks 2 || break; done",
        "needs a GPU",
    ),
    (
        "compute-sanitizer --error-exitcode 1 --tool initcheck build/test_stress --small --ranks 2 --ipc",
        "needs a GPU",
    ),
    (
        "for t in memcheck synccheck; do for n in 1 2; do compute-sanitizer --error-exitcode 1 --tool $t build/test_comms \
         --small --ranks $n --cases 2 --deadline-ms 15000 --seconds 540 || break 2; done; done",
        "needs a GPU",
    ),
    (
        "compute-sanitizer --error-exitcode 1 --tool memcheck build/test_prefill_stress --ranks 2 --operations 72 --tokens 32",
        "needs a GPU",
    ),
    (
        "compute-sanitizer --error-exitcode 1 --tool synccheck --num-cuda-barriers 16384 build/test_prefill_stress --ranks 2 \
         --operations 12 --tokens 32",
        "needs a GPU",
    ),
    (
        "compute-sanitizer --error-exitcode 1 --tool initcheck build/test_prefill_stress --ranks 2 --operations 72 --tokens 32 --ipc",
        "needs a GPU",
    ),
    (
        "cargo run --release --features candle-cuda --example candle_moe -- --ranks 2 --device cuda",
        "needs GPUs, and minutes for candle's kernels; step candle has clippy look at it",
    ),
    // Commands that CI runs in another form.
    (
        "cargo run --release --example bench -- --against PROGRAM --ranks 4 --lanes 2 --tokens 1,128 --iterations 20",
        "needs an older build and minutes; step example_bench compares a build with itself",
    ),
    (".ci/run", "is CI"),
    (".ci/run rust_lints rust_tests", "is part of CI"),
    (".ci/run chaos_loaded", "is part of CI"),
    (".ci/run histories", "is part of CI"),
    ("EPWIRE_CASES=10000 .ci/run histories", "takes minutes; CI plays 500 of each"),
    (
        "EPWIRE_CASES=10 EPWIRE_SEED=500 .ci/run chaos_loaded",
        "takes minutes; CI has it run a case of each scenario",
    ),
    ("EPWIRE_CASES=200 cargo test --test chaos histories", "takes minutes; `cargo test` runs 40 of them"),
    (".ci/run chaos_collectives", "is part of CI"),
    (".ci/run queues", "is part of CI"),
    (".ci/run emulated_gpu", "is part of CI"),
    (
        "EPWIRE_PATHS=queue cargo test --test chaos",
        "takes minutes; CI has step queues run a case of each scenario",
    ),
    ("EPW_TEST_PATH=queue ctest --test-dir build", "step queues runs those tests that heed it"),
    (".ci/run witnesses", "is part of CI"),
    (".ci/run device_witnesses", "is part of CI"),
    (".ci/run roce", "takes minutes, in a virtual machine"),
    (".ci/run fuzz", "is part of CI"),
    (".ci/beside_mpi --dispatch", "takes a minute; step beside_mpi takes one turn of it, with a limit"),
    (".ci/run faults_of_rules", "is part of CI"),
    (".ci/run faults", "takes many minutes; the tests themselves are part of CI"),
    ("FUZZ_SECONDS=3600 .ci/run fuzz", "takes hours; CI has it run for 10 seconds a target"),
    ("cargo run --release --example serve", "serves until it is told to end; tests/serve.rs runs it"),
    ("cargo test --test c", "is part of `cargo test`"),
    ("cargo test --examples readme", "is part of `cargo test`"),
    (
        "EPWIRE_BINDINGS=write cargo check --features bindgen",
        "writes; step rust_lints checks what it has written",
    ),
    ("cargo doc --open", "opens a browser; step rust_docs builds the pages"),
    ("cmake -S c -B build -DEPW_CUDA=ON && cmake --build build", "step cuda_kernels, warnings being errors"),
    ("bench --device cuda --ranks 2 --table", "as the next"),
    ("bench --device cuda --ranks 4 --table", "needs GPUs; the same with 8 ranks is refused politely in CI"),
    (
        "bench --device cuda --ranks 2 --layout rank-major --tokens 4096 --experts 256 --payload fp8,bf16 --sms 16,24,64,all \
         --graph --iterations 20",
        "needs GPUs; others are refused politely in CI",
    ),
];

#[test]
fn ci_runs_every_command() {
    let script = include_str!("../.ci/run");
    let run: Vec<String> = simple_commands(&of_steps(script));
    let commands: Vec<String> = MANUAL.iter().flat_map(|page| commands(page)).collect();
    assert!(commands.len() > 20, "found only {commands:?}");
    for command in &commands {
        let elsewhere = ELSEWHERE.iter().any(|(listed, _)| words(listed) == *command);
        assert!(
            elsewhere != run.contains(command),
            "either a step of .ci/run runs this very command or ELSEWHERE says why not: {command}"
        );
    }
    let steps = steps(script);
    for (listed, why) in ELSEWHERE {
        assert!(commands.contains(&words(listed)), "no longer in the README or the guide: {listed}");
        let named = why.split("step ").skip(1).map(|rest| rest.split([' ', ',', ';']).next().unwrap());
        let part = listed.split_once(".ci/run ").filter(|_| *why == "is part of CI");
        for step in named.chain(part.iter().flat_map(|(_, steps)| steps.split(' '))) {
            assert!(steps.contains(&step), "{step} is no step of .ci/run: {listed}");
        }
    }
}

#[test]
fn a_command_that_ci_does_not_run_would_be_found() {
    let text = "```sh\nmake \\\n    it   # so\n(for i in 1 2; do\n  run $i\ndone)\n```\n- `cargo\n  run`, `cargo` and `x`\n";
    assert_eq!(commands(text), ["make it", "(for i in 1 2; do run $i done)", "cargo run"]);
    let script = "steps=(\n    step # does it\n)\n\nstep() {\n    make it\n    without_gpu cargo run\n    make it --all\n    $(x=1 other)\n    tests/none/run\n}\n\
                  other() { cargo test; }\n# step or none\nnone() {\n    cargo doc\n}\n";
    assert_eq!(steps(script), ["step"]);
    let run = simple_commands(&of_steps(script));
    for (command, runs) in [
        ("make it", true),
        ("cargo run", true),
        ("cargo test", true),
        ("make", false),
        ("run", false),
        ("cargo doc", false),
    ] {
        assert_eq!(run.contains(&command.to_owned()), runs, "{command} in {run:?}");
    }
}

/// The words, separated by one space, without backslashes at ends of lines and without comments.
fn words(command: &str) -> String {
    let without_comment = command.split("  #").next().unwrap();
    without_comment.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ")
}

/// The lines, each joined with those that continue it after a backslash or, in `groups`, in parentheses.
fn whole_lines(text: &str, groups: bool) -> Vec<String> {
    let mut whole = vec![String::new()];
    for line in text.lines() {
        let last = whole.last_mut().unwrap();
        *last = format!("{last} {}", words(line)).trim().to_owned();
        let open = groups && last.matches('(').count() > last.matches(')').count();
        if !open && !line.ends_with('\\') {
            whole.push(String::new());
        }
    }
    whole
}

/// What a reader may type: the lines of shell blocks, and everything else in backquotes that begins like a command.
fn commands(markdown: &str) -> Vec<String> {
    const FIRST: [&str; 9] =
        [".ci/", "bench", "cargo", "cmake", "compute-sanitizer", "ctest", "for", "mpi", "srun"];
    let mut found = Vec::new();
    let mut prose = String::new();
    for (i, part) in markdown.split("```").enumerate() {
        match part.split_once('\n') {
            Some(("sh", block)) if i % 2 == 1 => {
                found.extend(whole_lines(block, true).into_iter().filter(|line| !line.is_empty()));
            }
            _ if i % 2 == 0 => prose += part,
            _ => {}
        }
    }
    let spans = prose.split('`').skip(1).step_by(2).map(words);
    found.extend(spans.filter(|span| {
        let mut words = span.split(' ').skip_while(|word| word.contains('='));
        let first = words.next().unwrap_or_default();
        let known = FIRST.iter().any(|known| first.starts_with(known)) || first == "torchrun";
        known && (words.next().is_some() || first == ".ci/run") && !span.ends_with(' ')
    }));
    found
}

/// The steps that the script runs by itself.
fn steps(script: &str) -> Vec<&str> {
    let list = script.split_once("steps=(\n").expect("steps").1;
    let lines = list.split("\n)\n").next().unwrap().lines();
    lines.map(|line| line.split_whitespace().next().expect("a step")).collect()
}

/// The functions of the script that are its steps, and those that they call.
fn of_steps(script: &str) -> String {
    let mut functions: BTreeMap<&str, &str> = BTreeMap::new();
    for (at, _) in script.match_indices("() {") {
        let (before, body) = (&script[..at], &script[at + "() {".len()..]);
        let name = before.rsplit('\n').next().unwrap();
        let end = if body.starts_with('\n') { "\n}" } else { "}\n" };
        functions.insert(name, body.split(end).next().unwrap());
    }
    let (mut called, mut text) = (steps(script), String::new());
    while let Some(name) = called.pop() {
        // What has been looked at is no longer there.
        let Some(body) = functions.remove(name) else { continue };
        text += &format!("{body}\n");
        let code = body.lines().map(|line| line.split("# ").next().unwrap());
        called.extend(code.flat_map(|line| line.split([' ', ';', '|', '&', '(', ')'])));
    }
    text
}

/// Every command of a script, without the words that decide what its failure means.
fn simple_commands(script: &str) -> Vec<String> {
    let bare = |command: &str| {
        let command = command.trim();
        words(command.trim_start_matches("without_gpu ").trim_start_matches("until_told "))
    };
    let mut found = Vec::new();
    for line in whole_lines(script, false) {
        found.push(bare(&line));
        found.extend(line.split(['{', '}', ';']).map(bare));
    }
    found
}

/// The blocks of this language on the page, at least one.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("\n```{language}\n");
    let behind = page.split(&opening).skip(1);
    let blocks: Vec<_> = behind.map(|rest| rest.split_once("\n```").expect("a closed block").0).collect();
    assert!(!blocks.is_empty(), "no block of {language}");
    blocks
}

/// The only block of this language on the page.
fn block<'a>(page: &'a str, language: &str) -> &'a str {
    let [code] = blocks(page, language)[..] else { panic!("more than one block of {language}") };
    code
}

/// What the command prints, if it ends well.
fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}
