//! `EPWIRE_LOG=info` of four ranks that lose one: which ranks there are, how they reach each other, which rank is lost
//! and why, what the others agree on, and what the launcher says of their processes, in fewer than 40 lines. With the
//! feature `tracing` the core reports the same as events. A rank that waits in `Group::join` says for whom.
//!
//! Ranks are processes of this program, so it has a main of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use epwire::env::{ADDR, LOG, LOG_FILE, RANK, Token, WORLD};
use epwire::group::GroupOptions;
use epwire::launch::{Launch, spawn::Ranks};
use epwire::rendezvous::driver::{Server, ServerOptions};
use epwire::{
    Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Group, HostBuffer, Layout, Payload, TensorMut,
    TensorRef,
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
        Some(launch) if std::env::args().any(|arg| arg == ONLY_JOIN) => only_join(&launch),
        Some(launch) => serve(&launch),
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
    let options = GroupOptions::from_launch(launch).token(Token::from_env().unwrap());
    let group = Group::join_blocking(options).unwrap();
    let config = EpConfig::new(1, HIDDEN as u32, RANKS, RANKS).deadline(Duration::from_secs(2)).threads(1);
    let buffer = EpBuffer::create_blocking(&group, config).unwrap();
    let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0).unwrap();
    let mut without = 0;
    while without < 10 {
        let step = group.step_blocking().unwrap();
        let x = [bf16::ONE; HIDDEN];
        let ids: Vec<i32> = (0..RANKS as i32).collect();
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, RANKS as usize))
            .weights(TensorRef::new(&[1.0; RANKS as usize], RANKS as usize))
            .layout(Layout::RankMajor);
        let dispatched = buffer.dispatch_blocking(input, received.output()).unwrap();
        if launch.rank == LOST && step.number >= LAST_OF_LOST {
            // SAFETY: a plain system call; the rank ends as if its machine had failed.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
        let output = CombineOutput::new(TensorMut::new(&mut out));
        let outcome = dispatched.combine_blocking(Combine::in_place(), output).unwrap();
        let members = buffer.membership().unwrap().active;
        without += u32::from(outcome.is_complete() && !members.contains(LOST));
    }
    group.leave_blocking().unwrap();
}

fn a_run_that_loses_a_rank_tells_its_story() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("story.log");
    let _ = std::fs::remove_file(&file);
    // SAFETY: no other thread of this process reads the environment by `getenv`; the ranks inherit it.
    unsafe {
        std::env::set_var(LOG, "info");
        std::env::set_var(LOG_FILE, &file);
    }
    let token = Token::random().unwrap();
    let options = ServerOptions::new("story", RANKS).token(Some(token.clone()));
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let ranks = Ranks::new(RANKS).server(&server).run_id("story").token(token).grace(Duration::from_secs(60));
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
    assert_eq!(count(&[" warn ", "experts of buffer 0 out of reach: 2"]), 3, "its experts:\n{story}");
    let end = story.find("has left the group").unwrap();
    // What the launcher says of the lost rank may come late.
    let warned =
        story[end..].lines().find(|line| line.contains(" warn ") && !line.contains("member: rank 2"));
    assert_eq!(warned, None, "an orderly end:\n{story}");
}

/// Rank 1 finds no server until it has said so; then rank 0 serves, and both wait for rank 2.
fn a_rank_that_waits_to_join_says_for_whom() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("joining.log");
    let _ = std::fs::remove_file(&file);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(ONLY_JOIN).env(RANK, rank.to_string()).env(WORLD, "3").env(ADDR, &address);
        Started(command.env(LOG, "info").env(LOG_FILE, &file).spawn().unwrap())
    };
    let story = || std::fs::read_to_string(&file).unwrap_or_default();
    let told = |text: &str| {
        let until = Instant::now() + Duration::from_secs(60);
        while !story().contains(text) {
            assert!(Instant::now() < until, "{text} is missing:\n{}", story());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let first = start(1);
    told(&format!("rank 1: waiting for the server at {address} ("));
    let second = start(0);
    told("rank 0: waiting for rank 2 of 3 to join (");
    told("rank 1: waiting for rank 2 of 3 to join (");
    assert!(story().contains(" s; gives up after 120 s)"), "{}", story());
    for rank in [first, second, start(2)] {
        rank.succeeds();
    }
    let lines = |rank: u32| story().lines().filter(|line| line.contains(&format!("rank {rank}: "))).count();
    assert!(lines(2) <= 2, "a rank that need not wait says nothing of it:\n{}", story());
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
