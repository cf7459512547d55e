//! What the README says is so: its C program runs, its tables are those of the code. Its Rust blocks are doctests of
//! the crate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

use epwire::{EpConfig, Plan};

const README: &str = include_str!("../README.md");

#[test]
fn the_c_program_compiles_without_warnings_and_runs() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("readme.c"), folder.join("readme"));
    fs::write(&source, block("c")).unwrap();

    let compiler = std::env::var("CC").unwrap_or("cc".into());
    let mut words = compiler.split_whitespace();
    let mut compile = Command::new(words.next().expect("CC is blank"));
    compile.args(words).args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
    compile.arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c/include")).arg(&source);
    compile.arg(concat!(env!("OUT_DIR"), "/libepwire_core.a")).arg("-o").arg(&program);
    succeed(compile);
    let said = succeed(Command::new(&program));
    assert!(README.contains(&format!("prints `{}`", said.trim())), "the program says {said:?}");
}

#[test]
fn the_quick_start_is_the_example_of_the_crate() {
    let library = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")).unwrap();
    let comment: String =
        library.lines().map_while(|l| l.strip_prefix("//!")).map(|l| format!("{l}\n")).collect();
    let example = comment.split("```").nth(1).expect("an example in the crate's documentation");
    // The README cannot hide the lines that the documentation hides behind a hash.
    let lines = |code: &str| -> Vec<String> {
        let bare = |line: &str| line.trim().trim_start_matches("# ").to_owned();
        code.lines().map(bare).filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(lines(block("rust")), lines(example));
}

#[test]
fn the_admission_of_a_replacement_is_what_chaos_runs() {
    let shown = concat!("\n```rust,no_run\n", include_str!("chaos/admit.rs"), "```\n");
    assert!(README.contains(shown), "put tests/chaos/admit.rs into the README");
}

#[test]
fn the_table_of_variables_is_that_of_the_code() {
    let table = epwire::env::markdown_table();
    assert!(README.contains(&table), "put this into the README:\n{table}");
}

#[test]
fn the_table_of_memory_is_what_plan_says() {
    let header = "| ranks | `max_tokens` | option | window | dispatch slots | combine slots | of the option |\n\
                  |---|---|---|---|---|---|---|\n";
    let plain = |max_tokens| EpConfig::new(max_tokens, 7168, 256, 8);
    let rows = [
        (8, "", plain(128)),
        (8, "`lanes: 1`", EpConfig { lanes: 1, ..plain(128) }),
        (8, "`ordered`", EpConfig { ordered: true, ..plain(128) }),
        (8, "`zero_copy`", EpConfig { zero_copy: true, ..plain(128) }),
        (8, "", plain(512)),
        (64, "", plain(128)),
    ];
    let table: String = rows
        .map(|(ranks, option, config)| {
            let plan = Plan::new(&config, ranks).unwrap();
            assert!(plan.private_bytes < 3 << 20, "the README says that it is less than 3 MiB");
            let optional = plan.ordered_bytes + plan.zero_copy_bytes;
            let mebibytes = [plan.window_bytes, plan.dispatch_bytes, plan.combine_bytes, optional]
                .map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
                .join(" | ");
            format!("| {ranks} | {} | {option} | {mebibytes} |\n", config.max_tokens)
        })
        .concat();
    assert!(README.contains(&format!("{header}{table}")), "put this into the README:\n{header}{table}");
}

/// The one block of this language.
fn block(language: &str) -> &'static str {
    let opening = format!("\n```{language}\n");
    let mut blocks = README.split(&opening).skip(1);
    let (code, _) = blocks.next().expect("no such block").split_once("\n```").expect("an open block");
    assert!(blocks.next().is_none(), "more than one block of {language}");
    code
}

/// What the command prints, if it ends well.
fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}
