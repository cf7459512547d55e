//! What happens to the ranks, and the timeline of it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    Result,
    args::{Device, Story},
    figures::{Back, Gone, Loss, longest, ms, table},
    layer,
    news::News,
    print::print,
    ranks::Ranks,
    server::Server,
};

pub fn run(args: &Story) -> Result<()> {
    layer::check(args.device)?;
    if args.state.is_none() && !cfg!(feature = "succession") {
        return Err(
            "this build lacks the feature `succession`: nobody can take over from a rank, use --state FILE"
                .into(),
        );
    }
    let mut server = match &args.state {
        Some(path) => Some(Server::start(args.ranks, unused(path)?)?),
        None => None,
    };
    let ranks =
        Ranks::start(args.ranks, args.device, server.as_ref().map(|server| server.address().to_owned()))?;
    let mut tale = Tale { all: (0..args.ranks).collect(), ranks };
    tale.ranks.until("the first complete step", |_, _, _| {}, |ranks| ranks.serve_exactly(&tale.all))?;
    // With GPUs one rank lives through all of it, so that its memory tells.
    let spared = (args.device == Device::Cuda).then_some(args.ranks - 1);
    let before = spared.map(|rank| tale.memory(rank)).transpose()?;
    let losses = tale.kills(args, spared, server.as_mut())?;
    tale.stop(tale.other_than_the_leader())?;
    tale.settle()?;
    if let Some(leader) = tale.ranks.leader() {
        tale.stop(leader)?;
        tale.settle()?;
    }
    tale.retire(args.ranks - 1 - u32::from(spared.is_some()))?;
    tale.settle()?;
    if let (Some(rank), Some(before)) = (spared, before) {
        let after = tale.memory(rank)?;
        print(&format!(
            "rank {rank} has replayed one graph all the while; its GPU had {before} bytes free at first and has {after}"
        ))?;
    }
    print(&table(&losses))?;
    let agreed = |led| longest(losses.iter().filter(|loss| loss.led == led).map(|loss| loss.gone.agreed));
    print(&format!(
        "failover: OK ranks={} kills={} agreed_ms={} led_agreed_ms={} exact_ms={}",
        args.ranks,
        args.kills,
        agreed(false),
        agreed(true),
        longest(losses.iter().map(|loss| loss.back.exact))
    ))?;
    drop((tale, server));
    args.state.as_deref().map_or(Ok(()), forget)
}

/// A run that begins needs a file of its own.
fn unused(path: &Path) -> Result<&Path> {
    if path.exists() {
        return Err(
            format!("{} is there already: name a file that is not, or remove it", path.display()).into()
        );
    }
    Ok(path)
}

/// Removes the file of a run that is over, and its lock.
fn forget(path: &Path) -> Result<()> {
    std::fs::remove_file(path)?;
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    Ok(std::fs::remove_file(lock)?)
}

struct Tale {
    ranks: Ranks,
    all: Vec<u32>,
}

impl Tale {
    fn kills(
        &mut self,
        args: &Story,
        spared: Option<u32>,
        mut server: Option<&mut Server>,
    ) -> Result<Vec<Loss>> {
        let mut random = Random(args.seed);
        let victims = args.ranks - u32::from(spared.is_some());
        let mut losses = Vec::new();
        for kill in 0..args.kills {
            self.settle()?;
            std::thread::sleep(Duration::from_millis(100));
            if let Some(server) = server.as_mut().filter(|_| kill == args.kills / 2) {
                restart(server)?;
            }
            let leader = self.ranks.leader();
            let victim = match leader {
                Some(leader) if kill == 0 => leader,
                _ => random.below(victims),
            };
            let led = leader == Some(victim);
            print(&format!("rank {victim}{} is killed", self.role(victim)))?;
            let gone = self.without(victim, Ranks::kill)?;
            print(&"another process takes its place")?;
            losses.push(Loss { led, gone, back: self.with(victim)? });
        }
        self.settle()?;
        Ok(losses)
    }

    /// Waits until the run can lose any one of its members, as an operator does before the next host is drained.
    fn settle(&mut self) -> Result<()> {
        self.ranks.until("a state in which one may go", |_, _, _| {}, Ranks::can_lose_one)
    }

    fn other_than_the_leader(&self) -> u32 {
        self.ranks.leader().map_or(1, |leader| (leader + 1) % self.all.len() as u32)
    }

    fn role(&self, rank: u32) -> &'static str {
        if self.ranks.leader() == Some(rank) { ", which serves the run," } else { "" }
    }

    fn stop(&mut self, rank: u32) -> Result<()> {
        let role = self.role(rank);
        print(&format!("rank {rank}{role} is stopped, and the others may take it for lost after a lease"))?;
        self.without(rank, Ranks::stop)?;
        print(&format!("rank {rank} runs again"))?;
        let began = Instant::now();
        self.ranks.resume(rank);
        self.ranks.until("its return", |_, _, _| {}, |ranks| ranks.serve_exactly(&self.all))?;
        Ok(print(&format!(
            "{:>9} ms  it has been admitted again, and all serve exactly",
            ms(began.elapsed())
        ))?)
    }

    fn retire(&mut self, rank: u32) -> Result<()> {
        print(&format!("rank {rank}{} retires", self.role(rank)))?;
        self.without(rank, Ranks::retire)?;
        self.ranks.until("its end", |_, _, _| {}, |ranks| !ranks.is_there(rank))?;
        print(&format!("rank {rank} is added"))?;
        self.with(rank).map(drop)
    }

    /// From when a rank goes until the others serve exactly without it.
    fn without(&mut self, victim: u32, go: fn(&mut Ranks, u32)) -> Result<Gone> {
        let others: Vec<u32> = self.all.iter().copied().filter(|rank| *rank != victim).collect();
        let began = Instant::now();
        go(&mut self.ranks, victim);
        let (mut detected, mut agreed, mut last) = (None, None, began);
        let watch = |rank: u32, news: &News, at: Instant| {
            let News::Served { members, missing, .. } = news else { return };
            if rank == victim {
                return;
            }
            if missing.contains(&victim) {
                detected.get_or_insert(at - began);
            }
            if *members == others {
                agreed.get_or_insert(at - began);
                last = last.max(at);
            }
        };
        self.ranks.until("a complete step of the others", watch, |ranks| ranks.serve_exactly(&others))?;
        let skipping = last - began;
        if let Some(detected) = detected {
            print(&format!("{:>9} ms  a step lacks it", ms(detected)))?;
        }
        let agreed = agreed.unwrap_or(skipping);
        print(&format!("{:>9} ms  agreed on going on without it", ms(agreed)))?;
        print(&format!("{:>9} ms  all others serve exactly without it", ms(skipping)))?;
        Ok(Gone { detected, agreed, skipping })
    }

    /// From the start of a process until all serve exactly with it.
    fn with(&mut self, rank: u32) -> Result<Back> {
        let began = Instant::now();
        self.ranks.add(rank)?;
        let (mut ready, mut last) = (began, began);
        let watch = |of: u32, news: &News, at: Instant| match news {
            News::Ready { .. } if of == rank => ready = at,
            News::Served { .. } => last = last.max(at),
            _ => {}
        };
        let exact = |ranks: &Ranks| ranks.is_ready(rank) && ranks.serve_exactly(&self.all);
        self.ranks.until("a complete step of all", watch, exact)?;
        print(&format!("{:>9} ms  it has joined and waits to be admitted", ms(ready - began)))?;
        print(&format!("{:>9} ms  all serve exactly, with it", ms(last - began)))?;
        Ok(Back { ready: ready - began, exact: last.saturating_duration_since(ready) })
    }

    /// The free bytes of a rank's GPU, once processes that have ended are gone from it.
    fn memory(&mut self, rank: u32) -> Result<u64> {
        std::thread::sleep(Duration::from_secs(1));
        self.ranks.free_memory(rank)
    }
}

/// Steps need no server; changes of the membership wait until it is there again.
fn restart(server: &mut Server) -> Result<()> {
    print(&"the server is killed")?;
    server.kill();
    std::thread::sleep(Duration::from_millis(500));
    print(&"another process goes on with its file")?;
    server.start_again()?;
    // Until all have come back.
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

/// splitmix64
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(end)) as u32
    }
}
