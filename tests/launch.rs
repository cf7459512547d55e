//! Launching real processes: what the children see, how their end is reported, and that no process is left.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use epwire::{
    env::Token,
    group::{Group, GroupOptions},
    launch::{
        Address, Launch, Source,
        spawn::{Ended, Ranks, SpawnError},
    },
    rendezvous::driver::{Heartbeat, Server, ServerOptions},
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn meeting() -> Address {
    "127.0.0.1:29700".parse().unwrap()
}

/// Ranks that run a shell script; $1 is a scratch directory.
fn shell(count: u32, script: &str, scratch: &Path) -> Ranks {
    let args = ["-c", script, "sh", scratch.to_str().unwrap()];
    Ranks::new(count).address(meeting()).program("/bin/sh").args(args).grace(Duration::from_millis(200))
}

/// A fresh directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("epwire-launch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn exists(pid: u32) -> bool {
    // A zombie still has its directory, although it has ended.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn this_program_runs_again_as_every_rank() {
    if let Some(launch) = Launch::from_env().unwrap() {
        // In a child: this very test, executed again.
        let token = Token::from_env().unwrap().unwrap();
        let line = format!("{launch} token {}", String::from_utf8_lossy(token.as_bytes()));
        let parent =
            std::env::temp_dir().join(format!("epwire-launch-again-{}", std::os::unix::process::parent_id()));
        std::fs::write(parent.join(launch.rank.to_string()), line).unwrap();
        assert_eq!(launch.source, Source::Epwire);
        return;
    }
    let scratch = Scratch::new("again");
    let test = ["--exact", "this_program_runs_again_as_every_rank", "--quiet"];
    let token = Token::new("hush", "test").unwrap();
    let ranks = Ranks::new(3).address(meeting()).run_id("r1").token(token).args(test);
    assert_eq!(ranks.spawn().unwrap().wait(LIMIT).unwrap(), Ended::Success);
    for rank in 0..3 {
        assert_eq!(
            scratch.read(&rank.to_string()),
            format!(
                "rank {rank} of 3 (local {rank} of 3), by epwire, meeting at 127.0.0.1:29700, run r1 token hush"
            )
        );
    }
}

#[test]
fn a_host_may_start_its_share_of_a_larger_world() {
    let scratch = Scratch::new("share");
    let script = r#"echo "$EPWIRE_RANK $EPWIRE_WORLD $EPWIRE_LOCAL_RANK $EPWIRE_LOCAL_WORLD" > "$1/$EPWIRE_LOCAL_RANK""#;
    let ended = shell(2, script, &scratch.0).within(6, 8).spawn().unwrap().wait(LIMIT).unwrap();
    assert_eq!((ended, ended.exit_code()), (Ended::Success, 0));
    assert_eq!((scratch.read("0"), scratch.read("1")), ("6 8 0 2\n".into(), "7 8 1 2\n".into()));
}

#[test]
fn the_first_failure_is_reported_and_ends_the_others() {
    let scratch = Scratch::new("failure");
    let script = r#"[ "$EPWIRE_RANK" = 2 ] && exit 7; exec sleep 60"#;
    let begin = Instant::now();
    let ended = shell(4, script, &scratch.0).spawn().unwrap().wait(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Failed { rank: 2, .. }), "{ended}");
    assert_eq!(ended.exit_code(), 7);
    assert!(begin.elapsed() < Duration::from_secs(30), "the others were ended after {:?}", begin.elapsed());
}

#[test]
fn a_killed_rank_comes_before_those_that_exit_for_it() {
    let scratch = Scratch::new("killed");
    // Rank 0 exits as soon as rank 1 has died. By then the parent polls slowly, and usually sees both ends at once.
    let script = r#"echo $$ > "$1/$EPWIRE_RANK.new"; mv "$1/$EPWIRE_RANK.new" "$1/$EPWIRE_RANK"
        while [ ! -e "$1/0" ] || [ ! -e "$1/1" ]; do sleep 0.01; done
        [ "$EPWIRE_RANK" = 1 ] && sleep 0.3 && kill -KILL $$
        read other < "$1/1"
        while grep -qv ') Z' "/proc/$other/stat" 2> "$1/grep"; do :; done
        exit 3"#;
    let ended = shell(2, script, &scratch.0).spawn().unwrap().wait(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Failed { rank: 1, .. }), "{ended}");
}

#[test]
fn others_get_a_grace_period_to_end_by_themselves() {
    let scratch = Scratch::new("grace");
    let script = r#"[ "$EPWIRE_RANK" = 0 ] && exit 3; sleep 0.3; echo done > "$1/$EPWIRE_RANK""#;
    let ranks = shell(2, script, &scratch.0).grace(Duration::from_secs(20));
    assert_eq!(ranks.spawn().unwrap().wait(LIMIT).unwrap().exit_code(), 3);
    assert_eq!(scratch.read("1"), "done\n");
}

#[test]
fn a_grace_period_may_be_without_end() {
    let scratch = Scratch::new("endless");
    let script = r#"[ "$EPWIRE_RANK" = 0 ] && exit 3; sleep 0.1; echo done > "$1/$EPWIRE_RANK""#;
    let ranks = shell(2, script, &scratch.0).grace(Duration::MAX);
    assert_eq!(ranks.spawn().unwrap().wait(LIMIT).unwrap().exit_code(), 3);
    assert_eq!(scratch.read("1"), "done\n");
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let scratch = Scratch::new("stubborn");
    let script = r#"trap "echo asked > '$1/asked'" TERM; touch "$1/$EPWIRE_RANK"
        while [ ! -e "$1/1" ]; do sleep 0.01; done
        [ "$EPWIRE_RANK" = 0 ] && kill -KILL $$
        while :; do sleep 0.01; done"#;
    let ended =
        shell(2, script, &scratch.0).grace(Duration::from_secs(1)).spawn().unwrap().wait(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Failed { rank: 0, .. }), "{ended}");
    assert_eq!(ended.exit_code(), 128 + 9, "rank 0 was killed by a signal");
    assert_eq!(scratch.read("asked"), "asked\n", "SIGTERM comes before SIGKILL");
}

#[test]
fn a_rank_that_fails_is_started_again_while_the_others_go_on() {
    let scratch = Scratch::new("restarts");
    // Rank 1 fails twice; rank 0 ends once rank 1 has been started for the third time.
    let script = r#"echo "$EPWIRE_LOCAL_RANK" >> "$1/$EPWIRE_RANK"
        [ "$EPWIRE_RANK" = 1 ] && [ "$(wc -l < "$1/1")" -lt 3 ] && exit 3
        while [ "$(wc -l 2> "$1/wc" < "$1/1")" != 3 ]; do sleep 0.01; done"#;
    let ended = shell(2, script, &scratch.0).restarts(2).spawn().unwrap().wait(LIMIT).unwrap();
    assert_eq!(ended, Ended::Success);
    assert_eq!((scratch.read("0"), scratch.read("1")), ("0\n".into(), "1\n1\n1\n".into()));
}

#[test]
fn a_restart_counts_no_longer_than_the_program_says() {
    let scratch = Scratch::new("restarts-within");
    // Rank 0 fails four times, a while after its start.
    let script = r#"echo >> "$1/0"; sleep 0.1; [ "$(wc -l < "$1/0")" = 5 ] || exit 3"#;
    let ranks = shell(1, script, &scratch.0).restarts(1).restarts_within(Duration::from_millis(50));
    assert_eq!(ranks.spawn().unwrap().wait(LIMIT).unwrap(), Ended::Success);
    assert_eq!(scratch.read("0").len(), 5);
}

#[test]
fn a_rank_that_fails_again_and_again_waits_before_it_is_started_and_no_longer_than_a_stopper_says() {
    let scratch = Scratch::new("back-off");
    let began = std::time::Instant::now();
    let running = shell(1, r#"echo >> "$1/0"; exit 3"#, &scratch.0).restarts(9).spawn().unwrap();
    let stopper = running.stopper();
    let waiting = std::thread::spawn(move || running.wait(LIMIT).unwrap());
    // Restarts after 0, 0.1, 0.2, 0.4 and 0.8 s; the next one would be 1.6 s later.
    wait_until("the sixth start", || scratch.0.join("0").exists() && scratch.read("0").len() == 6);
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    stopper.stop();
    assert_eq!(waiting.join().unwrap().exit_code(), 3);
    assert_eq!(scratch.read("0").len(), 6);
}

#[test]
fn a_launcher_tells_in_the_log_which_process_runs_which_rank_and_how_it_ended() {
    if let Some(of) = std::env::var_os("LOG_OF").map(PathBuf::from) {
        // The launcher, whose log is asked for: this test in a process of its own.
        let script = r#"echo >> "$1/$EPWIRE_RANK"
            [ "$EPWIRE_RANK" = 1 ] && [ "$(wc -l < "$1/1")" -lt 3 ] && kill -KILL $$
            [ "$EPWIRE_RANK" = 1 ] && while [ ! -e "$1/seen" ]; do sleep 0.01; done
            [ "$EPWIRE_RANK" = 1 ] && exit 7; exec sleep 60"#;
        let running = shell(2, script, &of).restarts(2).spawn().unwrap();
        let (stopper, first) = (running.stopper(), running.ids()[1]);
        let waiting = std::thread::spawn(move || running.wait(LIMIT).unwrap());
        // The process writes before the launcher knows its id.
        wait_until("the third start", || {
            std::fs::read_to_string(of.join("1")).is_ok_and(|starts| starts.len() == 3)
                && stopper.id(1).is_some()
        });
        let third = stopper.id(1).unwrap();
        assert!(third != first && exists(third) && stopper.id(2).is_none());
        std::fs::write(of.join("third"), third.to_string()).unwrap();
        std::fs::write(of.join("seen"), "").unwrap();
        assert_eq!(waiting.join().unwrap().exit_code(), 7);
        assert_eq!((stopper.id(0), stopper.id(1)), (None, None));
        return;
    }
    let scratch = Scratch::new("log");
    let test = ["--exact", "a_launcher_tells_in_the_log_which_process_runs_which_rank_and_how_it_ended"];
    let mut launcher = std::process::Command::new(std::env::current_exe().unwrap());
    launcher.args(test).env("LOG_OF", &scratch.0);
    launcher.env("EPWIRE_LOG", "info").env("EPWIRE_LOG_FILE", scratch.0.join("lines"));
    let said = launcher.output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let (lines, third) = (scratch.read("lines"), scratch.read("third"));
    let mut rest = &*lines;
    for line in [
        "epwire info member: started rank 0 as process ",
        "epwire info member: started rank 1 as process ",
        "epwire warn member: rank 1, process ",
        ", has ended: signal: 9 (SIGKILL)",
        ", restart 1 of 2",
        ", has ended: signal: 9 (SIGKILL)",
        &format!("started rank 1 as process {third}, restart 2 of 2"),
        &format!("rank 1, process {third}, has ended: exit status: 7"),
        "rank 1 is not started again: SIGTERM to rank 0 in 200ms",
        "SIGTERM to rank 0",
        "epwire info member: rank 0, process ",
        ", has ended: signal: 15 (SIGTERM)",
    ] {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is not in {rest}\nof {lines}"));
        rest = &rest[at + line.len()..];
    }
}

#[test]
fn a_failure_after_the_last_restart_ends_the_others() {
    let scratch = Scratch::new("last-restart");
    let script = r#"echo >> "$1/$EPWIRE_RANK"; [ "$EPWIRE_RANK" = 1 ] && exit 7; exec sleep 60"#;
    let ended = shell(2, script, &scratch.0).restarts(2).spawn().unwrap().wait(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Failed { rank: 1, .. }), "{ended}");
    assert_eq!((scratch.read("0").len(), scratch.read("1").len()), (1, 3));
}

#[test]
fn a_stopper_tells_ranks_to_end_and_starts_none_again() {
    let scratch = Scratch::new("stopper");
    let script = r#"trap 'echo told >> "$1/$EPWIRE_RANK"; exit "$EPWIRE_RANK"' TERM
        echo > "$1/up$EPWIRE_RANK"; while :; do sleep 0.01; done"#;
    let running = shell(2, script, &scratch.0).grace(Duration::from_secs(20)).restarts(9).spawn().unwrap();
    let stopper = running.stopper();
    let waiting = std::thread::spawn(move || running.wait(LIMIT).unwrap());
    wait_until("both are up", || scratch.0.join("up0").exists() && scratch.0.join("up1").exists());
    stopper.stop();
    let ended = waiting.join().unwrap();
    assert!(matches!(ended, Ended::Failed { rank: 1, .. }), "{ended}");
    assert_eq!((scratch.read("0"), scratch.read("1")), ("told\n".into(), "told\n".into()));
    stopper.stop(); // no rank is running any more
}

#[test]
fn a_wrong_variable_is_refused_before_any_rank_starts() {
    if let Some(of) = std::env::var_os("REFUSED_OF").map(PathBuf::from) {
        // The launcher, with the wrong variable: this test in a process of its own.
        let error = shell(2, r#"touch "$1/started""#, &of).spawn().unwrap_err();
        std::fs::write(of.join("error"), error.to_string()).unwrap();
        return;
    }
    let scratch = Scratch::new("refused");
    for (name, value, part) in [
        ("EPWIRE_LOG", "loud", "give off, warn, info or trace"),
        ("EPWIRE_LOG_FILE", "/no folder/log", "No such file"),
        ("EPWIRE_ISA", "mmx", "this processor can run"),
        ("EPWIRE_PULL_FROM", "64k", "a number of bytes from 1"),
        ("EPWIRE_PATHS", "shm,tcp", "\"tcp\" is not a path"),
        ("EPWIRE_NIC", "hard", "give soft, strict, fake or mlx5"),
        ("EPWIRE_WIRES", "udp", "give some of local, tcp, verbs"),
        ("EPWIRE_RING_BYTES", "5000", "a power of two from 4096"),
        ("EPWIRE_QUEUE_DEPTH", "3", "a power of two from 16"),
        ("EPWIRE_DOORBELL_BATCH", "0", "not a number from 1"),
        ("EPWIRE_DOORBELLS", "chime", "give auto, gpu or host"),
        ("EPWIRE_RINGS", "cpu", "give host, gpu or auto"),
        ("EPWIRE_ORDER", "kept", "give auto or none"),
        ("EPWIRE_HCA", "mlx5_0:x", "not a filter of adapters"),
        ("EPWIRE_ADAPTERS", "3", "not a number from 1 to 2"),
        ("EPWIRE_SL", "16", "not a number from 0 to 15"),
        ("EPWIRE_TC", "-1", "not a number from 0 to 255"),
        ("EPWIRE_HOP_LIMIT", "0", "not a number from 1 to 255"),
        ("EPWIRE_PORTS", "9-8", "not a range of ports"),
        ("EPWIRE_IFNAME", "^", "not a list of interface names"),
        ("EPWIRE_TOKEN_FILE", "/no file", "No such file"),
    ] {
        let test = ["--exact", "a_wrong_variable_is_refused_before_any_rank_starts", "--quiet"];
        let mut launcher = std::process::Command::new(std::env::current_exe().unwrap());
        launcher.args(test).env("REFUSED_OF", &scratch.0).env("EPWIRE_LOG", "off").env(name, value);
        assert!(launcher.output().unwrap().status.success(), "{name}");
        let error = scratch.read("error");
        assert!(error.starts_with("spawn: ") && error.contains(name) && error.contains(part), "{error}");
        std::fs::remove_file(scratch.0.join("error")).unwrap();
    }
    assert!(!scratch.0.join("started").exists());
}

#[test]
fn a_limit_ends_all_ranks() {
    let scratch = Scratch::new("limit");
    let running = shell(2, "exec sleep 60", &scratch.0).spawn().unwrap();
    let ids = running.ids().to_vec();
    let error = running.wait(Some(Duration::from_millis(100))).unwrap_err();
    assert!(matches!(error, SpawnError::TimedOut { .. }), "{error}");
    assert!(!ids.iter().any(|&id| exists(id)));
}

#[test]
fn dropping_ends_all_ranks() {
    let scratch = Scratch::new("drop");
    let running = shell(3, "exec sleep 60", &scratch.0).spawn().unwrap();
    let ids = running.ids().to_vec();
    assert!(ids.len() == 3 && ids.iter().all(|&id| exists(id)));
    drop(running);
    assert!(!ids.iter().any(|&id| exists(id)));
}

#[test]
fn ranks_die_with_their_parent() {
    if let Some(of) = std::env::var_os("ORPHANS_OF").map(PathBuf::from) {
        // The parent that will be killed: this test in a process of its own.
        let running = shell(2, "exec sleep 60", &of).spawn().unwrap();
        let ids: Vec<String> = running.ids().iter().map(u32::to_string).collect();
        std::fs::write(of.join("partial"), ids.join(" ")).unwrap();
        std::fs::rename(of.join("partial"), of.join("ids")).unwrap();
        let _ = running.wait(LIMIT);
        return;
    }
    let scratch = Scratch::new("orphans");
    let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ranks_die_with_their_parent"])
        .env("ORPHANS_OF", &scratch.0)
        .spawn()
        .unwrap();
    wait_until("the parent starts its ranks", || scratch.0.join("ids").exists());
    let ids: Vec<u32> = scratch.read("ids").split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() == 2 && ids.iter().all(|&id| exists(id)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the ranks are gone", || !ids.iter().any(|&id| exists(id)));
}

/// Rank 1 joins, lets another process inherit its connection, and ends: the kernel does not close the connection, and
/// rank 0, to which the kernel would tell the end, is stopped. But the launcher has seen it.
#[test]
fn the_server_learns_of_a_rank_that_has_ended() {
    const NAME: &str = "the_server_learns_of_a_rank_that_has_ended";
    if let Some(launch) = Launch::from_env().unwrap() {
        let _group = Group::join_blocking(GroupOptions::from_launch(&launch)).unwrap();
        if launch.rank == 0 {
            // SAFETY: a plain system call; to this thread, which so goes no further.
            unsafe { libc::raise(libc::SIGSTOP) };
            std::process::exit(0);
        }
        let folder =
            std::env::temp_dir().join(format!("epwire-launch-ended-{}", std::os::unix::process::parent_id()));
        wait_until("rank 0 is stopped", || folder.join("stopped").exists());
        // SAFETY: the child closes what it shares with the test's output, sleeps and exits, all of it async-signal-safe.
        let heir = unsafe {
            let heir = libc::fork();
            if heir == 0 {
                libc::close(1);
                libc::close(2);
                libc::sleep(50); // longer than anybody waits, and shorter than a lease
                libc::_exit(0)
            }
            heir
        };
        std::fs::write(folder.join("heir"), heir.to_string()).unwrap();
        std::process::exit(0);
    }
    let scratch = Scratch::new("ended");
    // Silence alone would not be noticed so soon.
    let heartbeat = Heartbeat::default().lease(Duration::from_secs(60));
    let options = ServerOptions::new(NAME, 2).heartbeat(heartbeat);
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let args = ["--exact", NAME, "--nocapture"];
    let running = Ranks::new(2).server(&server).args(args).spawn().unwrap();
    let ids = running.ids().to_vec();
    let state = |id: u32| std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    wait_until("rank 0 stops", || state(ids[0]).contains(") T "));
    std::fs::write(scratch.0.join("stopped"), "").unwrap();
    wait_until("rank 1 ends", || !exists(ids[1]));
    let heir: i32 = scratch.read("heir").parse().unwrap();
    wait_until("another process may take its place", || {
        let options = GroupOptions::new(1, 2, server.local_addr().to_string()).run_id(NAME);
        let options = options.join_deadline(Duration::from_secs(5)).heartbeat(heartbeat);
        Group::join_blocking(options).inspect_err(|error| eprintln!("{error}")).is_ok()
    });
    // SAFETY: plain system calls. The process that has inherited the connection still has it.
    unsafe {
        assert_eq!(libc::kill(heir, libc::SIGKILL), 0, "it has ended");
        libc::kill(ids[0] as i32, libc::SIGCONT);
    }
    assert_eq!(running.wait(LIMIT).unwrap(), Ended::Success);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let text = |ranks: Ranks| ranks.spawn().unwrap_err().to_string();
    assert!(text(Ranks::new(0)).contains("1 to 1024"));
    assert!(text(Ranks::new(1025).address(meeting())).contains("1 to 1024"));
    assert!(text(Ranks::new(2)).contains("address"));
    assert!(text(Ranks::new(2).within(u32::MAX, 4).address(meeting())).contains("do not fit"));
    let binary = Token::new(vec![0xff], "test").unwrap();
    assert!(text(Ranks::new(1).token(binary)).contains("UTF-8"));
    let missing = text(Ranks::new(2).address(meeting()).program("/nonexistent/program"));
    assert!(missing.contains("rank 0") && missing.contains("/nonexistent/program"), "{missing}");
}
