//! Chaos: ranks as processes that are killed or stopped in every phase of a step and of the bootstrap, and in histories
//! of such faults one after the other and several at a time, while every row and every sum of the others is checked.
//!
//! Ranks are this very program, started again with a variable set; the test passes on their blobs and tells them what
//! to do. Each scenario runs a number of cases, one at a time, in a process of its own, and measures the noise of the
//! machine meanwhile. Cases mostly wait, so two scenarios run at a time. `EPWIRE_SEED` sets the seed of each scenario's
//! first case and `EPWIRE_CASES` the number of cases; a failure prints both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod awaiting;
mod bootstrap;
mod case;
mod clock;
mod cluster;
mod collective;
mod collectives;
mod deaths;
mod history;
mod network;
mod noise;
mod prefill;
mod prefills;
mod step;
mod stops;
mod tensor;
mod traffic;
mod trap;
mod verdict;
mod wire;
mod worker;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;

use epwire::env::Token;
use libtest_mimic::{Arguments, Failed, Trial};

/// A scenario: runs one case from its seed, and panics if it fails.
type Scenario = fn(u64);

/// 344 cases in all.
const SCENARIOS: &[(&str, u64, Scenario)] = &[
    ("histories_of_a_run_that_its_members_serve", 20, history::of_a_run_that_its_members_serve),
    ("histories_of_a_run_with_a_server_by_itself", 20, history::of_a_run_with_a_server_by_itself),
    (
        "a_newcomer_costs_no_more_than_twice_what_an_unrelated_process_does",
        1,
        history::pace::a_newcomer_costs_no_more_than_twice_what_an_unrelated_process_does,
    ),
    (
        "a_server_by_itself_goes_on_without_most_ranks",
        3,
        history::arbiter::a_server_by_itself_goes_on_without_most_ranks,
    ),
    ("killed_before_send", 14, deaths::killed_before_send),
    ("killed_between_dispatch_send_and_receive", 14, deaths::killed_between_dispatch_send_and_receive),
    ("killed_between_dispatch_and_combine", 14, deaths::killed_between_dispatch_and_combine),
    ("killed_between_combine_send_and_receive", 14, deaths::killed_between_combine_send_and_receive),
    ("killed_while_writing_rows", 14, deaths::killed_while_writing_rows),
    ("killed_while_writing_answers", 14, deaths::killed_while_writing_answers),
    ("killed_at_an_exact_byte", 20, deaths::killed_at_an_exact_byte),
    (
        "a_release_beside_a_dead_rank_holds_nobody_up",
        12,
        deaths::a_release_beside_a_dead_rank_holds_nobody_up,
    ),
    ("a_short_stop_is_forgiven", 16, stops::a_short_stop_is_forgiven),
    ("a_stop_of_about_a_deadline_confuses_nobody", 8, stops::a_stop_of_about_a_deadline_confuses_nobody),
    (
        "an_evicted_rank_changes_nothing_and_comes_back",
        24,
        stops::an_evicted_rank_changes_nothing_and_comes_back,
    ),
    (
        "a_replacement_waits_for_the_old_process_to_end",
        12,
        stops::a_replacement_waits_for_the_old_process_to_end,
    ),
    ("killed_in_a_collective", 30, collectives::killed_in_a_collective),
    ("one_of_two_is_killed_in_a_collective", 14, collectives::one_of_two_is_killed_in_a_collective),
    ("stopped_in_a_collective", 14, collectives::stopped_in_a_collective),
    ("killed_in_prefill", prefills::CASES, prefills::killed_in_prefill),
    ("stopped_in_prefill", prefills::CASES, prefills::stopped_in_prefill),
    ("killed_while_joining", 6, bootstrap::killed_while_joining),
    ("killed_while_connecting_through_the_group", 6, bootstrap::killed_while_connecting_through_the_group),
    ("stopped_while_joining", 4, bootstrap::stopped_while_joining),
    ("gone_between_export_and_connect", 4, bootstrap::gone_between_export_and_connect),
    ("killed_between_connect_and_first_step", 4, bootstrap::killed_between_connect_and_first_step),
    ("a_connect_to_stopped_ranks", 4, awaiting::a_connect_to_stopped_ranks),
    ("a_connect_that_is_given_up", 2, awaiting::a_connect_that_is_given_up),
    ("stopped_while_creating", 4, awaiting::stopped_while_creating),
    ("a_dead_rank_is_replaced_through_the_group", 4, awaiting::a_dead_rank_is_replaced_through_the_group),
    (
        "a_dead_rank_of_a_communicator_is_replaced_through_the_group",
        4,
        awaiting::a_dead_rank_of_a_communicator_is_replaced_through_the_group,
    ),
];

/// Scenarios with a network between the ranks, for machines that can create one.
const ON_HOSTS: &[(&str, u64, Scenario)] = &[
    ("a_cut_of_2_s_costs_time_only", 1, history::hosts::a_cut_of_2_s_costs_time_only),
    ("a_cut_of_30_s_costs_one_its_place", 1, history::hosts::a_cut_of_30_s_costs_one_its_place),
    ("lost_packets_cost_time_only", 1, history::hosts::lost_packets_cost_time_only),
];

/// Scenarios that need shared memory, or the lease of a mapped window.
const MAPPED: &[&str] = &[
    "killed_while_writing_rows",
    "killed_while_writing_answers",
    "killed_at_an_exact_byte",
    "a_replacement_waits_for_the_old_process_to_end",
];

/// Whether the environment makes ranks reach each other only by queues.
pub(crate) fn is_by_queue() -> bool {
    std::env::var("EPWIRE_PATHS").is_ok_and(|paths| paths == "queue")
}

/// The secret of all runs, if the environment has one: the TCP wire needs it.
pub(crate) fn token() -> Option<Token> {
    Token::from_env().expect("a token that can be used")
}

/// Names the scenario that a process runs for the test.
const SCENARIO: &str = "EPWIRE_CHAOS_SCENARIO";
const AT_A_TIME: usize = 2;

fn main() {
    if std::env::var_os(worker::VARIABLE).is_some() {
        return worker::main();
    }
    if std::env::var_os(history::member::VARIABLE).is_some() {
        return history::member::main();
    }
    if let Ok(wanted) = std::env::var(SCENARIO) {
        let &(name, default, scenario) =
            SCENARIOS.iter().chain(ON_HOSTS).find(|(name, ..)| *name == wanted).expect(SCENARIO);
        return run(name, default, scenario);
    }
    let trial = |&(name, ..): &(&'static str, u64, Scenario)| Trial::test(name, || run_apart(name));
    let lacking = network::lacking();
    let on_hosts = ON_HOSTS.iter().map(|scenario| match &lacking {
        Some(reason) => trial(scenario).with_kind(reason).with_ignored_flag(true),
        None => trial(scenario),
    });
    let on_one = SCENARIOS.iter().map(|scenario| match is_by_queue() && MAPPED.contains(&scenario.0) {
        true => trial(scenario).with_kind("nothing is mapped over queues").with_ignored_flag(true),
        false => trial(scenario),
    });
    // First what waits longest, for the others to run beside it.
    let trials = on_hosts.chain(on_one).collect();
    let arguments = Arguments { test_threads: Some(AT_A_TIME), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}

fn run_apart(name: &str) -> Result<(), Failed> {
    let _seat = take_seat();
    let status = Command::new(std::env::current_exe()?).env(SCENARIO, name).status()?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}").into()) }
}

/// Test runners that give each test a process run several at a time: all of them share [`AT_A_TIME`] seats, which are
/// locks on files that exist anyway.
fn take_seat() -> File {
    let program = std::env::current_exe().unwrap();
    let seats = [program.as_path(), program.parent().unwrap()].map(|path| File::open(path).unwrap());
    let [first, second]: [File; AT_A_TIME] = seats;
    // SAFETY: plain system calls on open descriptors; closing one releases its lock.
    if unsafe { libc::flock(first.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return first;
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::flock(second.as_raw_fd(), libc::LOCK_EX) }, 0);
    second
}

fn run(name: &str, default: u64, scenario: Scenario) {
    noise::watch();
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is {text:?}, must be a number")))
    };
    let first = number("EPWIRE_SEED").unwrap_or(1);
    let cases = number("EPWIRE_CASES").unwrap_or(default);
    eprintln!("chaos: {name}: seeds {first} to {}", first + cases.max(1) - 1);
    for seed in first..first + cases {
        noise::forget();
        noise::choose_deadline();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            let deadline = noise::deadline();
            eprintln!(
                "chaos: {name}: seed {seed} failed with a deadline of {deadline:?}; \
                 EPWIRE_SEED={seed} EPWIRE_CASES=1 runs it alone"
            );
            resume_unwind(panic);
        }
        assert!(!any_children(), "seed {seed} left a process behind");
    }
}

/// Whether this process has a child, alive or not reaped.
fn any_children() -> bool {
    // SAFETY: a plain system call that asks for no status and waits for nobody.
    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) != -1 }
}
