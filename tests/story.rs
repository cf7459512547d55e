//! `EPWIRE_LOG=info` of four ranks that lose one: which ranks there are, how they reach each other, which rank is lost
//! and why, what the others agree on, and what the launcher says of their processes, in fewer than 40 lines. With the
//! feature `tracing` the core reports the same as events. A rank that waits in `Group::join` says for whom, and an epoch
//! that begins because a rank answers again says which.
//!
//! Ranks are processes of this program, so it has a main of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use epwire::env::{ADDR, LOG, LOG_FILE, RANK, Token, WORLD};
use epwire::group::GroupOptions;
use epwire::launch::{Launch, spawn::Ranks};
use epwire::rendezvous::driver::{Server, ServerOptions};
use epwire::{
    Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Group, HostBuffer, Layout, Mask, Payload,
    TensorMut, TensorRef,
};
use half::bf16;
use libtest_mimic::{Arguments, Trial};

const RANKS: u32 = 4;
const LOST: u32 = 2;
const HIDDEN: usize = 64;
/// The last step of the lost rank; the others end some steps later.
const LAST_OF_LOST: u64 = 20;

fn main() {
    match Launch::from_env().unwrap() {
        Some(launch) => match std::env::args().nth(1).as_deref() {
            Some(ONLY_JOIN) => only_join(&launch),
            Some(PAUSE) => pause(&launch),
            _ => serve(&launch),
        },
        None => {
            let trial = |name: &str, run: fn()| {
                Trial::test(name, move || {
                    run();
                    Ok(())
                })
            };
            let trials = vec![
                trial("a_run_that_loses_a_rank_tells_its_story", a_run_that_loses_a_rank_tells_its_story),
                trial("a_rank_that_waits_to_join_says_for_whom", a_rank_that_waits_to_join_says_for_whom),
                trial("an_epoch_says_who_answers_again", an_epoch_says_who_answers_again),
            ];
            libtest_mimic::run(&Arguments::from_args(), trials).exit()
        }
    }
}

/// The argument of a rank that joins, and leaves once all have joined.
const ONLY_JOIN: &str = "only-join";

fn only_join(launch: &Launch) {
    let group = Group::join_blocking(GroupOptions::from_launch(launch)).unwrap();
    group.leave_blocking().unwrap();
}

/// A rank runs steps until it kills itself, or the others have continued without it for a while.
fn serve(launch: &Launch) {
    let rank = Rank::join(launch, Duration::from_secs(2));
    let last = |step| {
        if launch.rank == LOST && step >= LAST_OF_LOST {
            // SAFETY: a plain system call; the rank ends as if its machine had failed.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    };
    rank.steps(last, |members, _| !members.contains(LOST));
}

/// The argument of a rank that runs steps until another epoch has begun. One of them pauses once, until the others have
/// agreed on that epoch.
const PAUSE: &str = "pause";

fn pause(launch: &Launch) {
    let rank = Rank::join(launch, Duration::from_secs(1));
    let (paused, file) = (std::cell::Cell::new(false), PathBuf::from(std::env::var_os(LOG_FILE).unwrap()));
    let once = |step| {
        if launch.rank == LOST && step >= LAST_OF_LOST && !paused.replace(true) {
            for rank in [0, 1] {
                says(&file, &format!("rank {rank}: all agreed: "));
            }
        }
    };
    rank.steps(once, |_, epoch| epoch > 1);
}

struct Rank {
    group: Group,
    buffer: EpBuffer,
    world: u32,
}

impl Rank {
    fn join(launch: &Launch, deadline: Duration) -> Self {
        let options = GroupOptions::from_launch(launch).token(Token::from_env().unwrap());
        let group = Group::join_blocking(options).unwrap();
        let world = launch.world;
        let config = EpConfig::new(1, HIDDEN as u32, world, world).deadline(deadline).threads(1);
        Self { buffer: EpBuffer::create_blocking(&group, config).unwrap(), group, world }
    }

    /// Runs steps until 10 of them were complete under a membership that is `new`, and leaves.
    fn steps(&self, before_combine: impl Fn(u64), new: impl Fn(Mask, u32) -> bool) {
        let mut received = self.buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0).unwrap();
        let (mut complete, until) = (0, Instant::now() + Duration::from_secs(90));
        while complete < 10 {
            assert!(Instant::now() < until, "the membership has not changed: {:?}", self.group.active());
            let step = self.group.step_blocking().unwrap();
            let x = [bf16::ONE; HIDDEN];
            let (ids, weights) = ((0..self.world as i32).collect::<Vec<_>>(), vec![1.0; self.world as usize]);
            let topk = ids.len();
            let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, topk))
                .weights(TensorRef::new(&weights, topk))
                .layout(Layout::RankMajor);
            let dispatched = self.buffer.dispatch_blocking(input, received.output()).unwrap();
            before_combine(step.number);
            let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
            let output = CombineOutput::new(TensorMut::new(&mut out));
            let outcome = dispatched.combine_blocking(Combine::in_place(), output).unwrap();
            let membership = self.buffer.membership().unwrap();
            complete += u32::from(outcome.is_complete() && new(membership.active, membership.epoch));
        }
        self.group.leave_blocking().unwrap();
    }
}

fn a_run_that_loses_a_rank_tells_its_story() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("story.log");
    let _ = std::fs::remove_file(&file);
    // SAFETY: no other thread of this process reads the environment by `getenv`; the ranks inherit it.
    unsafe {
        std::env::set_var(LOG, "info");
        std::env::set_var(LOG_FILE, &file);
    }
    let options = ServerOptions::new("story", RANKS).token(Some(Token::random().unwrap()));
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let ranks = Ranks::new(RANKS).server(&server).grace(Duration::from_secs(60));
    let ended = ranks.spawn().unwrap().wait(Some(Duration::from_secs(120))).unwrap();
    assert_eq!(ended.exit_code(), 128 + libc::SIGKILL, "{ended}");

    let story = std::fs::read_to_string(&file).unwrap();
    let count =
        |parts: &[&str]| story.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    assert!(story.lines().count() < 40, "{} lines:\n{story}", story.lines().count());
    assert_eq!(count(&["info member: started rank "]), 4, "the launcher:\n{story}");
    assert_eq!(count(&["info member: rank ", ", has ended: exit status: 0"]), 3, "the launcher:\n{story}");
    assert_eq!(
        count(&["warn member: rank 2, process ", ", has ended: signal: 9"]),
        1,
        "the launcher:\n{story}"
    );
    for rank in 0..RANKS {
        let who = format!("rank {rank}: ");
        let others = ["1-3", "0,2-3", "0-1,3", "0-2"][rank as usize];
        assert_eq!(
            count(&[&who, "buffer of 4 ranks on the host", "window"]),
            1,
            "the buffer of rank {rank}:\n{story}"
        );
        let paths = format!("members 0-3; shared memory to {others}");
        assert_eq!(count(&[&who, "epoch 1 from step 1", &paths]), 1, "the paths of rank {rank}:\n{story}");
        if rank == LOST {
            continue;
        }
        let lost = count(&[&who, "rank 2 has ended"]) + count(&[&who, "peer 2: given up: "]);
        assert!(lost >= 1, "why rank {rank} gave up its peer:\n{story}");
        assert_eq!(count(&[&who, "all agreed: ", "ranks 0-1,3"]), 1, "what rank {rank} agreed to:\n{story}");
        assert_eq!(
            count(&[&who, "epoch 2 ", "members 0-1,3; without 2"]),
            1,
            "the membership of rank {rank} after the loss:\n{story}"
        );
    }
    assert!(count(&["rank 2 has ended"]) >= 3, "the end of the lost rank:\n{story}");
    assert_eq!(count(&[" warn ", "experts out of reach: 2"]), 3, "its experts:\n{story}");
    let end = story.find("has left the group").unwrap();
    // What the launcher says of the lost rank may come late.
    let warned =
        story[end..].lines().find(|line| line.contains(" warn ") && !line.contains("member: rank 2"));
    assert_eq!(warned, None, "an orderly end:\n{story}");
}

/// Rank 1 finds no server until it has said so; then rank 0 serves, and both wait for rank 2.
fn a_rank_that_waits_to_join_says_for_whom() {
    let run = Run::new(ONLY_JOIN);
    let first = run.start(1);
    run.says(&format!("rank 1: waiting for the server at {} (", run.address));
    let second = run.start(0);
    run.says("rank 0: waiting for rank 2 of 3 to join (");
    run.says("rank 1: waiting for rank 2 of 3 to join (");
    run.says(" s; gives up after 120 s)");
    for rank in [first, second, run.start(2)] {
        rank.succeeds();
    }
    let story = run.story();
    assert!(!story.contains("rank 2: waiting"), "a rank that need not wait says so:\n{story}");
}

/// The other ranks give up rank 2, which pauses, and take it back.
fn an_epoch_says_who_answers_again() {
    let run = Run::new(PAUSE);
    let ranks: Vec<_> = (0..3).map(|rank| run.start(rank)).collect();
    ranks.into_iter().for_each(Started::succeeds);
    let story = run.story();
    for rank in [0, 1] {
        let who = format!("rank {rank}: all agreed: ");
        let agreed = story.lines().find(|line| line.contains(&who)).unwrap_or_default();
        assert!(agreed.ends_with(", epoch 2 of ranks 0-2; rank 2 answers again"), "rank {rank}:\n{story}");
    }
}

/// Three processes of this program with one log.
struct Run {
    task: &'static str,
    address: String,
    file: PathBuf,
}

impl Run {
    fn new(task: &'static str) -> Self {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{task}.log"));
        let _ = std::fs::remove_file(&file);
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Self { task, address, file }
    }

    fn start(&self, rank: u32) -> Started {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(self.task).env(RANK, rank.to_string()).env(WORLD, "3").env(ADDR, &self.address);
        Started(command.env(LOG, "info").env(LOG_FILE, &self.file).spawn().unwrap())
    }

    fn story(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    fn says(&self, text: &str) {
        says(&self.file, text);
    }
}

/// Waits until the log contains this.
fn says(file: &Path, text: &str) {
    let story = || std::fs::read_to_string(file).unwrap_or_default();
    let until = Instant::now() + Duration::from_secs(60);
    while !story().contains(text) {
        assert!(Instant::now() < until, "{text} is missing:\n{}", story());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A rank, which does not outlive a test that fails.
struct Started(Child);

impl Started {
    fn succeeds(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
