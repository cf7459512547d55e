//! A rank: serves steps of an MoE layer until it is retired or its standard input ends, and reports changes on its
//! standard output. A line of input is an order of its parent.

use std::{
    io::Write,
    sync::mpsc::{Receiver, TryRecvError, channel},
    time::Duration,
};

use epwire::{
    Error, Group, env::Token, group::GroupOptions, rendezvous::BootstrapError, rendezvous::driver::Heartbeat,
};

use crate::{
    Result,
    args::Rank,
    layer,
    news::{News, Order},
};

/// Signs of life and leases short enough to watch, this many times as long.
pub fn heartbeat(slower: u32) -> Heartbeat {
    let [interval, lease, handshake] = [100, 1000, 5000].map(|ms| Duration::from_millis(ms) * slower);
    Heartbeat::default().interval(interval).lease(lease).handshake(handshake)
}

/// The whole life of a rank: the same for the first ranks and for those that come later.
pub fn run(args: &Rank) -> Result<()> {
    let orders = input();
    let options = GroupOptions::new(args.rank, args.world, &args.servers)
        .initial(args.initial)
        .host_server(args.first)
        .run_id(crate::RUN_ID)
        .token(Token::from_env()?)
        .heartbeat(heartbeat(args.slower));
    let group = Group::join_blocking(options)?;
    let mut layer = layer::connect(&group, args.device, args.slower)?;
    say(&News::Ready { listens: group.server().map(|server| server.local_addr().to_string()) })?;
    let (mut served, mut known) = (None, None);
    loop {
        match orders.try_recv() {
            Ok(Order::Memory) => say(&News::Memory { free: layer.free_memory()?.unwrap_or_default() })?,
            Ok(Order::Retire { rank }) => retire(&group, rank),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        say_new(&mut known, News::Known { leader: group.leader(), servers: group.servers() })?;
        let step = match group.step_blocking() {
            Ok(step) => step,
            Err(Error::Bootstrap(error)) if matches!(*error, BootstrapError::Evicted { .. }) => {
                say(&News::Evicted)?;
                group.rejoin_blocking()?;
                continue;
            }
            // A member has retired this rank, which has run its last step.
            Err(Error::Bootstrap(error)) if matches!(*error, BootstrapError::Retired { .. }) => break,
            Err(error) => return Err(error.into()),
        };
        let missing = layer.run(&step)?.iter().collect();
        let membership = layer.buffer().membership()?;
        let (epoch, members) = (membership.epoch, membership.active.iter().collect());
        say_new(&mut served, News::Served { epoch, members, missing })?;
    }
    Ok(group.leave_blocking()?)
}

/// Runs while steps continue: all members take part in them until it is decided.
fn retire(group: &Group, rank: u32) {
    let group = group.clone();
    std::thread::spawn(move || {
        let error = group.retire_blocking(rank).err().map(|error| error.to_string());
        say(&News::Retired { rank, error }).map_err(|error| error.to_string())
    });
}

fn say(news: &News) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(news)?)?;
    Ok(out.flush()?)
}

/// Reports what differs from the last report.
fn say_new(said: &mut Option<News>, news: News) -> Result<()> {
    if said.as_ref() != Some(&news) {
        say(&news)?;
        *said = Some(news);
    }
    Ok(())
}

/// The orders of the parent; disconnected when it closes this rank's input, or has died.
fn input() -> Receiver<Order> {
    let (tell, orders) = channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines().map_while(std::io::Result::ok);
        let read = lines.map_while(|line| serde_json::from_str(&line).ok());
        read.map_while(|order| tell.send(order).ok()).for_each(drop);
    });
    orders
}
