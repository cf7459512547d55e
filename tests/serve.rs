//! The example `serve`: every answer is right, or says that it lacks an expert, while ranks are killed, stopped and
//! replaced; and it ends in an orderly way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod example;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For everything that the server does by itself, on a busy machine too.
const PATIENT: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    address: String,
    log: PathBuf,
    client: Option<BufReader<TcpStream>>,
    asked: u32,
}

impl Server {
    /// `name` is that of its log.
    fn start(name: &str) -> Self {
        let name = format!("serve-{name}-{}.log", std::process::id());
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&log);
        let mut command = Command::new(example::build("serve"));
        command.args(["--listen", "127.0.0.1:0"]).env("EPWIRE_LOG", "info").env("EPWIRE_LOG_FILE", &log);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let address = said
            .trim()
            .strip_prefix("serving at ")
            .expect("the server's first line has its address")
            .to_owned();
        Self { child, address, log, client: None, asked: 0 }
    }

    /// The answer to a line; `None` if the connection was lost, or there was none.
    fn try_ask(&mut self, line: &str) -> Option<String> {
        if self.client.is_none() {
            let stream = TcpStream::connect(&self.address).ok()?;
            stream.set_read_timeout(Some(PATIENT)).unwrap();
            self.client = Some(BufReader::new(stream));
        }
        let mut answer = String::new();
        let client = self.client.as_mut()?;
        let sent = client.get_mut().write_all(format!("{line}\n").as_bytes());
        if sent.and_then(|()| client.read_line(&mut answer)).is_ok_and(|bytes| bytes > 0) {
            return Some(answer.trim().to_owned());
        }
        self.client = None;
        None
    }

    /// Asks once, and says whether the answer was whole. It is right, or lacks an expert, or does not come because the
    /// server ends, or because rank 0 is gone, which takes requests.
    fn ask(&mut self) -> bool {
        let value = self.asked % 51;
        self.asked += 1;
        let expected = value * (value % 3 + 1 + (value + 1) % 3 + 1);
        match self.try_ask(&value.to_string()).as_deref() {
            Some("lacks an expert" | "ends") => false,
            Some(answer) => {
                assert_eq!(answer, expected.to_string(), "the answer to {value}");
                true
            }
            None => {
                std::thread::sleep(Duration::from_millis(20));
                false
            }
        }
    }

    /// Asks until all ranks serve in a later epoch than this, then asks a few times more. Returns their epoch.
    fn until_all_serve(&mut self, after: u32) -> u32 {
        let began = Instant::now();
        loop {
            let health = self.try_ask("health").unwrap_or_default();
            let epoch =
                health.strip_prefix("serving: rank 0 of 3, epoch ").and_then(|text| text.split(' ').next());
            if let Some(epoch) = epoch.map(|text| text.parse().unwrap()).filter(|epoch| *epoch > after) {
                self.until_whole();
                return epoch;
            }
            self.ask();
            assert!(began.elapsed() < PATIENT, "not all ranks serve:\n{}", self.log());
        }
    }

    /// Asks until each number has been answered.
    fn until_whole(&mut self) {
        let (began, mut whole) = (Instant::now(), 0);
        while whole < 51 {
            whole += u32::from(self.ask());
            assert!(began.elapsed() < PATIENT, "only {whole} complete answers:\n{}", self.log());
        }
    }

    /// Asks until the log has a line with these parts.
    fn until_told(&mut self, parts: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| parts.iter().all(|part| line.contains(part))) {
                return line.to_owned();
            }
            assert!(began.elapsed() < PATIENT, "no line has {parts:?}:\n{log}");
            self.ask();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal to the process that runs the rank now.
    fn signal(&mut self, rank: u32, signal: libc::c_int) {
        let started = format!("started rank {rank} as process ");
        let log = self.log();
        let last = log.lines().filter_map(|line| line.split_once(&started)).next_back().unwrap().1;
        let process: libc::pid_t = last.split(',').next().unwrap().parse().unwrap();
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0, "process {process}");
    }

    /// Sends SIGTERM to the launcher, and asks on until it has ended.
    fn end(&mut self) {
        // SAFETY: a plain system call on a child that has not been reaped.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            self.ask();
            assert!(began.elapsed() < PATIENT, "the server does not end:\n{}", self.log());
        }
    }

    /// The process that ran this rank last has left by itself.
    fn assert_left(&self, ranks: &[u32]) {
        let log = self.log();
        for rank in ranks {
            let ended = format!("rank {rank}, process ");
            let last = log.lines().rfind(|line| line.contains(&ended));
            assert!(last.is_some_and(|line| line.ends_with("exit status: 0")), "rank {rank}:\n{log}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // its ranks end with it
        let _ = self.child.wait();
    }
}

#[test]
fn every_answer_is_right_or_says_what_it_lacks_while_ranks_are_lost_and_replaced() {
    let mut server = Server::start("all");
    let epoch = server.until_all_serve(0);
    assert_eq!(server.try_ask("51").as_deref(), Some("expected a number from 0 to 50, or health"));

    server.signal(1, libc::SIGKILL);
    server.until_told(&["started rank 1 as process ", ", restart 1 of 10"]);
    let epoch = server.until_all_serve(epoch);

    // Within a lease the others continue without it, and when it wakes up it comes back.
    server.signal(2, libc::SIGSTOP);
    server.until_told(&["rank 0: ", "without 2"]);
    server.until_whole(); // its experts have other places
    server.signal(2, libc::SIGCONT);
    let epoch = server.until_all_serve(epoch);

    // Rank 0 takes the requests.
    server.signal(0, libc::SIGKILL);
    server.until_told(&["started rank 0 as process ", ", restart 2 of 10"]);
    server.until_all_serve(epoch);

    server.end();
    server.assert_left(&[0, 1, 2]);
}

#[test]
fn a_line_without_an_end_is_answered_and_the_connection_closed() {
    let mut server = Server::start("endless");
    let mut client = BufReader::new(TcpStream::connect(&server.address).unwrap());
    client.get_mut().set_read_timeout(Some(PATIENT)).unwrap();
    client.get_mut().write_all(&[b'7'; (64 << 10) + 1]).unwrap();
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert_eq!(said, "expected at most 65536 bytes in a line\n");
    server.until_all_serve(0); // others are answered as before
    server.end();
}

#[test]
fn a_launcher_has_to_start_three_ranks() {
    let mut command = Command::new(example::build("serve"));
    command.env("EPWIRE_RANK", "0").env("EPWIRE_WORLD", "2").env("EPWIRE_ADDR", "127.0.0.1:1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{}: {said}", output.status);
    assert!(said.contains("serve has 3 ranks, but epwire has started 2"), "{said}");
}

#[test]
fn it_ends_while_rank_0_is_lost() {
    let mut server = Server::start("lost");
    server.until_all_serve(0);
    server.signal(0, libc::SIGKILL);
    server.end();
    server.assert_left(&[1, 2]);
}

#[test]
fn it_ends_while_a_rank_is_stopped() {
    let mut server = Server::start("stopped");
    server.until_all_serve(0);
    server.signal(2, libc::SIGSTOP);
    server.end();
    server.assert_left(&[0, 1]);
}
