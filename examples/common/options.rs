//! The guide's table of a program's options is rendered from the program: a test of each example compares them.

use clap::{Arg, Command};

/// Fails with the table that the guide must have.
pub fn assert_in_readme(command: &Command) {
    let table = table(command);
    let pages =
        [include_str!("../../src/guide/programs.md"), include_str!("../../src/guide/benchmarking.md")];
    assert!(pages.iter().any(|page| page.contains(&table)), "put this into the guide:\n{table}");
}

fn table(command: &Command) -> String {
    let options = command.get_arguments().filter(|arg| arg.get_long().is_some());
    let rows = options.map(|arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        // The help names a default that is computed.
        let (help, told) = match help.split_once(" [default: ") {
            Some((help, told)) => (help.to_owned(), told.trim_end_matches(']').to_owned()),
            None => (help, String::new()),
        };
        let default = if told.is_empty() { default(arg) } else { told };
        format!("| `{}` | {default} | {help}{} |\n", name(arg), choices(arg))
    });
    format!("| option | default | meaning |\n|---|---|---|\n{}", rows.collect::<String>())
}

fn takes_values(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn name(arg: &Arg) -> String {
    let mut name = format!("--{}", arg.get_long().unwrap_or_default());
    if takes_values(arg) && arg.get_possible_values().is_empty() {
        for value in arg.get_value_names().unwrap_or_default() {
            name = format!("{name} {value}");
        }
    }
    name
}

fn default(arg: &Arg) -> String {
    if !takes_values(arg) || arg.is_hide_default_value_set() {
        return String::new();
    }
    arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",")
}

fn choices(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    if !takes_values(arg) || values.is_empty() {
        return String::new();
    }
    let names: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    format!(": {}", names.join(", "))
}
