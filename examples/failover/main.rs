//! Ranks that serve an MoE layer while one of them is killed, replaced, stopped, retired and added again; a timeline tells how long the
//! others took to notice, to agree, and to be exact again.
//!
//! `cargo run --release --example failover -- --ranks 4`
#![allow(unreachable_pub, reason = "pub says what a module offers to the others; an example has no outside")]

mod news;
#[path = "../common/print.rs"]
mod print;
mod ranks;
mod worker;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use epwire::{
    launch::Launch,
    rendezvous::driver::{Server, ServerOptions},
};

use news::News;
use print::print;
use ranks::Ranks;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RUN_ID: &str = "failover";

/// Kills, replaces, stops, retires and adds ranks that serve.
#[derive(Parser)]
#[command(name = "failover", version)]
struct Args {
    /// Ranks, each a process.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=64))]
    ranks: u32,
    /// Times that a rank is killed and replaced.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
}

fn main() -> ExitCode {
    let done = match Launch::from_env() {
        Ok(Some(launch)) => worker::run(&launch),
        Ok(None) => story(&Args::parse()),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failover: {error}");
            ExitCode::FAILURE
        }
    }
}

fn story(args: &Args) -> Result<()> {
    let options = ServerOptions { heartbeat: worker::heartbeat(), ..ServerOptions::new(RUN_ID, args.ranks) };
    let server = Server::bind_blocking("127.0.0.1:0", options)?;
    let mut ranks = Ranks::start(args.ranks, &server)?;
    let all: Vec<u32> = (0..args.ranks).collect();
    ranks.until("the first complete step", |_, _| {}, |ranks| ranks.serve_exactly(&all))?;
    let (mut agreed, mut exact) = (Vec::new(), Vec::new());
    for kill in 0..args.kills {
        // Not twice the same, and rank 0 as well.
        let victim = kill.wrapping_mul(7) % args.ranks;
        std::thread::sleep(Duration::from_millis(100));
        print(&format!("rank {victim} is killed"))?;
        agreed.push(without(&mut ranks, &all, victim, Ranks::kill)?);
        print(&"another process takes its place")?;
        exact.push(with(&mut ranks, &all, victim)?);
    }
    print(&"rank 1 is stopped, and the others may take it for lost after a lease")?;
    without(&mut ranks, &all, 1, Ranks::stop)?;
    print(&"rank 1 runs again")?;
    let began = Instant::now();
    ranks.resume(1);
    ranks.until("its return", |_, _| {}, |ranks| ranks.serve_exactly(&all))?;
    print(&format!("{:>9} ms  it has been admitted again, and all serve exactly", ms(began.elapsed())))?;
    let last = args.ranks - 1;
    print(&format!("rank {last} retires"))?;
    without(&mut ranks, &all, last, Ranks::retire)?;
    ranks.until("its end", |_, _| {}, |ranks| !ranks.is_there(last))?;
    print(&format!("rank {last} is added"))?;
    with(&mut ranks, &all, last)?;
    let (agreed, exact) = (longest(&agreed), longest(&exact));
    print(&format!(
        "failover: OK ranks={} kills={} agreed_ms={agreed} exact_ms={exact}",
        args.ranks, args.kills
    ))?;
    Ok(())
}

/// From when a rank goes until the others serve exactly without it: the time until they have agreed on that.
fn without(ranks: &mut Ranks, all: &[u32], victim: u32, go: fn(&mut Ranks, u32)) -> Result<Duration> {
    let others: Vec<u32> = all.iter().copied().filter(|rank| *rank != victim).collect();
    let began = Instant::now();
    go(ranks, victim);
    let (mut detected, mut agreed) = (None, None);
    let watch = |rank: u32, news: &News| {
        let News::Served { members, missing, .. } = news else { return };
        if rank != victim && missing.contains(&victim) {
            detected.get_or_insert_with(|| began.elapsed());
        }
        if rank != victim && *members == others {
            agreed.get_or_insert_with(|| began.elapsed());
        }
    };
    ranks.until("a complete step of the others", watch, |ranks| ranks.serve_exactly(&others))?;
    if let Some(detected) = detected {
        print(&format!("{:>9} ms  a step lacks it", ms(detected)))?;
    }
    let agreed = agreed.unwrap_or_else(|| began.elapsed());
    print(&format!("{:>9} ms  agreed on going on without it", ms(agreed)))?;
    print(&format!("{:>9} ms  all others serve exactly without it", ms(began.elapsed())))?;
    Ok(agreed)
}

/// From the start of a process until all serve exactly with it.
fn with(ranks: &mut Ranks, all: &[u32], rank: u32) -> Result<Duration> {
    let began = Instant::now();
    ranks.add(rank)?;
    ranks.until("its buffer", |_, _| {}, |ranks| ranks.is_ready(rank))?;
    let ready = began.elapsed();
    ranks.until("a complete step of all", |_, _| {}, |ranks| ranks.serve_exactly(all))?;
    print(&format!("{:>9} ms  it has joined and waits to be admitted", ms(ready)))?;
    print(&format!("{:>9} ms  all serve exactly, with it", ms(began.elapsed())))?;
    Ok(began.elapsed() - ready)
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn longest(times: &[Duration]) -> String {
    ms(times.iter().max().copied().unwrap_or_default())
}
