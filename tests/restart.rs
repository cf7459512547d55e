//! The example `rendezvous`: a standalone server, whose process may end at any time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod example;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use epwire::group::{Group, GroupOptions};
use epwire::rendezvous::BootstrapError;
use epwire::rendezvous::driver::Heartbeat;

const SECOND: Duration = Duration::from_secs(1);
/// On a machine that is busy with other programs.
const PATIENT: Duration = Duration::from_secs(20);

/// A folder of this test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(program: &Path, state: &Path, world: u32, bind: &str) -> Self {
        Self::launch(command(program, state, world, bind))
    }

    fn launch(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("serving at ")
            .expect("the server's first line has its address")
            .to_owned();
        Self { child, out, address }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(program: &Path, state: &Path, world: u32, bind: &str) -> Command {
    let mut command = Command::new(program);
    command.arg("--state").arg(state);
    command.args(["--world", &world.to_string(), "--bind", bind, "--run-id", "run", "--lease", "1"]);
    command
}

fn options(rank: u32, world: u32, server: &str) -> GroupOptions {
    let heartbeat = Heartbeat::default().interval(SECOND / 10).lease(SECOND).handshake(SECOND);
    let options = GroupOptions::new(rank, world, server).run_id("run").join_deadline(10 * SECOND);
    options.deadline(10 * SECOND).heartbeat(heartbeat)
}

fn join(rank: u32, world: u32, server: &str) -> Group {
    Group::join_blocking(options(rank, world, server)).unwrap()
}

fn all<T: Send>(groups: &[Group], operation: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| operation(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn members_step_on_while_the_server_is_killed_and_change_once_it_is_back() {
    let (program, folder) = (example::build("rendezvous"), Folder::new("restart"));
    let state = folder.0.join("state");
    let mut server = Server::start(&program, &state, 3, "127.0.0.1:0");
    let address = server.address.clone();
    let joining: Vec<_> = (0..3)
        .map(|rank| {
            let address = address.clone();
            std::thread::spawn(move || join(rank, 3, &address))
        })
        .collect();
    let mut groups: Vec<_> = joining.into_iter().map(|joining| joining.join().unwrap()).collect();
    groups[0].store().set_blocking("key", b"value").unwrap();
    groups[1].store().set_blocking("past", b"value").unwrap();
    assert_eq!(groups[0].store().delete_blocking("past"), Ok(true));

    server.kill();
    let steps = all(&groups, |group| {
        let began = Instant::now();
        loop {
            let number = group.step_blocking().unwrap().number;
            if number > 20 && began.elapsed() > SECOND / 5 {
                return number;
            }
            assert!(began.elapsed() < PATIENT, "step {number}");
            std::thread::sleep(SECOND / 500);
        }
    });
    assert!(steps.iter().all(|steps| *steps > 20), "{steps:?}");

    let server = Server::start(&program, &state, 3, &address);
    assert_eq!(server.address, address);
    all(&groups, |group| group.barrier_blocking("back").unwrap());
    assert_eq!(groups[1].store().get_blocking("key", PATIENT).unwrap(), b"value");
    assert_eq!(groups[1].store().delete_blocking("past"), Ok(false));
    drop(groups.pop());
    let began = Instant::now();
    all(&groups, |group| {
        while group.active().mask.to_string() != "0-1" {
            assert!(began.elapsed() < PATIENT, "{:?}", group.active());
            group.step_blocking().unwrap();
            std::thread::sleep(SECOND / 500);
        }
    });
}

#[test]
fn a_run_that_begins_with_fewer_ranks_than_its_world_grows_by_it() {
    let (program, folder) = (example::build("rendezvous"), Folder::new("initial"));
    let state = folder.0.join("state");
    let start = |bind: &str, initial: u32| {
        let mut command = command(&program, &state, 3, bind);
        command.args(["--initial", &initial.to_string()]);
        command
    };
    let mut server = Server::launch(start("127.0.0.1:0", 1));
    let address = server.address.clone();
    let first = Group::join_blocking(options(0, 3, &address).initial(1)).unwrap();
    assert_eq!(first.step_blocking().unwrap().number, 1, "the first rank waits for nobody");
    let refused = Group::join_blocking(options(1, 3, &address)).unwrap_err();
    assert!(
        matches!(&refused, BootstrapError::Mismatch { field, .. } if field == "initial ranks"),
        "{refused}"
    );

    server.kill();
    let refused = start(&address, 2).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("initial ranks"), "{said}");
    let _server = Server::launch(start(&address, 1));
    let second = Group::join_blocking(options(1, 3, &address).initial(1)).unwrap();
    assert!(second.is_standby());
    let began = Instant::now();
    all(&[first, second], |group| {
        group.step_blocking().unwrap();
        while group.active().mask.to_string() != "0-1" {
            assert!(began.elapsed() < PATIENT, "{:?}", group.active());
            group.step_blocking().unwrap();
            std::thread::sleep(SECOND / 500);
        }
    });
}

#[test]
fn it_ends_when_it_is_told_to_and_says_why_it_can_not_begin() {
    let (program, folder) = (example::build("rendezvous"), Folder::new("refused"));
    let state = folder.0.join("state");
    let refused = |state: &Path, world, bind: &str| {
        let output = command(&program, state, world, bind).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let mut server = Server::start(&program, &state, 3, "127.0.0.1:0");
    let said = refused(&folder.0.join("other"), 3, &server.address);
    assert!(said.contains("Address already in use") && said.contains(&server.address), "{said}");
    let said = refused(&state, 3, "127.0.0.1:0");
    assert!(said.contains("another server uses"), "{said}");

    // SAFETY: a plain system call on a child that has not been reaped.
    unsafe { libc::kill(server.child.id() as libc::pid_t, libc::SIGTERM) };
    assert!(server.child.wait().unwrap().success());
    let mut rest = String::new();
    server.out.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("ended"), "{rest}");

    let said = refused(&state, 4, "127.0.0.1:0");
    assert!(said.contains("world"), "{said}");
    let said = refused(&folder.0.join("no folder/state"), 3, "127.0.0.1:0");
    assert!(said.contains("No such file"), "{said}");
}
