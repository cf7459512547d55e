//! What happens to the ranks, and the timeline of it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    Result,
    args::{Device, Story},
    figures::{Back, Gone, Loss, Stop, longest, ms, table},
    layer,
    limits::Judgement,
    news::News,
    print::print,
    ranks::Ranks,
    server::Server,
    worker::heartbeat,
};

pub fn run(args: &Story) -> Result<()> {
    layer::check(args.device)?;
    if args.state.is_none() && !cfg!(feature = "succession") {
        return Err(
            "this build lacks the feature `succession`: nobody can take over from a rank, use --state FILE"
                .into(),
        );
    }
    let world = args.ranks + 1;
    let mut server = match &args.state {
        Some(path) => Some(Server::start(args.slower, world, args.ranks, unused(path)?)?),
        None => None,
    };
    let address = server.as_ref().map(|server| server.address().to_owned());
    let ranks = Ranks::start(world, args, address)?;
    let mut tale = Tale { members: (0..args.ranks).collect(), ranks };
    tale.ranks.until("the first complete step", |_, _, _| {}, |ranks| ranks.serve_exactly(&tale.members))?;
    let (losses, growth) = tale.kills(args, server.as_mut())?;
    let mut stops = vec![tale.stop(tale.other_than_the_leader())?];
    tale.settle()?;
    if let Some(leader) = tale.ranks.leader() {
        stops.push(tale.stop(leader)?);
        tale.settle()?;
    }
    tale.grow(args.ranks)?;
    tale.settle()?;
    tale.retire(args.ranks - 1, args.ranks)?;
    print(&table(&losses))?;
    judge(args, &losses, &stops, &growth)?;
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

/// Compares the figures with their limits.
fn judge(args: &Story, losses: &[Loss], stops: &[Stop], growth: &Growth) -> Result<()> {
    let (limits, half) = (args.within, args.half_within);
    let mut judgement = Judgement::default();
    for (led, whose, [kill, half_kill], [stop, half_stop]) in [
        (false, "a rank", [limits.kill, half.kill], [limits.stop, half.stop]),
        (
            true,
            "the rank that serves",
            [limits.leader, half.leader],
            [limits.stopped_leader, half.stopped_leader],
        ),
    ] {
        let killed = losses.iter().filter(|loss| loss.led == led).map(|loss| loss.gone.agreed);
        judgement.times(&format!("from the kill of {whose} until agreed"), killed, kill, half_kill)?;
        let stopped = stops.iter().filter(|stop| stop.led == led);
        let late = stopped.map(|stop| stop.agreed.saturating_sub(heartbeat(args.slower).lease));
        let what = format!("from the lease of {whose} stopped until agreed");
        judgement.times(&what, late, stop, half_stop)?;
    }
    let Growth { rank, kills, resident, gpu } = growth;
    let during = format!("in the last {kills} kills");
    judgement.growth(&format!("growth of the memory of rank {rank} {during}"), *resident, limits.memory)?;
    if let Some(gpu) = gpu {
        let what = format!("growth of what is in use on its GPU {during}");
        judgement.growth(&what, *gpu, limits.gpu_memory)?;
    }
    judgement.end()
}

/// A new run needs a file of its own.
fn unused(path: &Path) -> Result<&Path> {
    if path.exists() {
        return Err(format!("{} exists already: name another file, or remove it", path.display()).into());
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
    /// Those that serve unless they have just been killed.
    members: Vec<u32>,
}

/// A rank that is not killed in the later half of the kills, so that the growth of its memory can be measured.
struct Witness {
    rank: u32,
    before: Memory,
}

/// Bytes.
struct Memory {
    resident: u64,
    /// Free bytes of its GPU, if it has one.
    free: Option<u64>,
}

/// By how many bytes more memory of a rank, and of its GPU, is in use after this many kills.
struct Growth {
    rank: u32,
    kills: u32,
    resident: i64,
    gpu: Option<i64>,
}

impl Tale {
    fn kills(&mut self, args: &Story, mut server: Option<&mut Server>) -> Result<(Vec<Loss>, Growth)> {
        let mut random = Random(args.seed);
        let mut losses = Vec::new();
        for kill in 0..args.kills / 2 {
            losses.push(self.kill(kill, None, &mut random)?);
        }
        self.settle()?;
        if let Some(server) = &mut server {
            restart(server)?;
        }
        let rank = self.other_than_the_leader();
        let witness = Witness { rank, before: self.memory(rank, args.device)? };
        for kill in args.kills / 2..args.kills {
            losses.push(self.kill(kill, Some(rank), &mut random)?);
        }
        self.settle()?;
        Ok((losses, self.growth(&witness, args)?))
    }

    /// Kills a rank, the one that serves the run if it is the first kill, and has another process take its place.
    fn kill(&mut self, kill: u32, spared: Option<u32>, random: &mut Random) -> Result<Loss> {
        self.settle()?;
        std::thread::sleep(Duration::from_millis(100));
        let leader = self.ranks.leader();
        let others: Vec<u32> = self.members.iter().copied().filter(|rank| Some(*rank) != spared).collect();
        let victim = match leader {
            Some(leader) if kill == 0 => leader,
            _ => others[random.below(others.len() as u32) as usize],
        };
        print(&format!("rank {victim}{} is killed", self.role(victim)))?;
        let gone = self.without(victim, |ranks| {
            ranks.kill(victim);
            Ok(())
        })?;
        print(&"another process takes its place")?;
        Ok(Loss { led: leader == Some(victim), gone, back: self.with(victim)? })
    }

    /// Waits until the run can lose any one of its members, as an operator does before the next host is drained.
    fn settle(&mut self) -> Result<()> {
        self.ranks.until("a state in which one may go", |_, _, _| {}, Ranks::can_lose_one)
    }

    fn other_than_the_leader(&self) -> u32 {
        self.ranks.leader().map_or(1, |leader| (leader + 1) % self.members.len() as u32)
    }

    fn role(&self, rank: u32) -> &'static str {
        if self.ranks.leader() == Some(rank) { ", which serves the run," } else { "" }
    }

    fn stop(&mut self, rank: u32) -> Result<Stop> {
        let led = self.ranks.leader() == Some(rank);
        let role = self.role(rank);
        print(&format!("rank {rank}{role} is stopped, and after a lease the others may consider it lost"))?;
        let gone = self.without(rank, |ranks| {
            ranks.stop(rank);
            Ok(())
        })?;
        print(&format!("rank {rank} runs again"))?;
        let began = Instant::now();
        self.ranks.resume(rank);
        self.ranks.until("its return", |_, _, _| {}, |ranks| ranks.serve_exactly(&self.members))?;
        let back = ms(began.elapsed());
        print(&format!("{back:>9} ms  it has been admitted again, and all serve exactly"))?;
        Ok(Stop { led, agreed: gone.agreed })
    }

    /// A new rank joins, in the room that the run has left.
    fn grow(&mut self, rank: u32) -> Result<()> {
        print(&format!("rank {rank} is added: the group grows"))?;
        self.members.push(rank);
        self.with(rank).map(drop)
    }

    /// A member retires another one: no step may lack that one before the others continue without it.
    fn retire(&mut self, rank: u32, by: u32) -> Result<()> {
        print(&format!("rank {by} retires rank {rank}{}", self.role(rank)))?;
        let gone = self.without(rank, |ranks| ranks.retire(by, rank))?;
        if gone.detected.is_some() {
            return Err(format!("a step has missed rank {rank}, which was retired").into());
        }
        self.members.retain(|member| *member != rank);
        self.ranks.until("its end", |_, _, _| {}, |ranks| !ranks.is_there(rank))?;
        let rest = |ranks: &Ranks| ranks.serve_exactly(&self.members);
        self.ranks.until("a complete step of the rest", |_, _, _| {}, rest)?;
        Ok(print(&"its process has ended, and the rest serve exactly")?)
    }

    /// From when a rank goes until the others serve exactly without it.
    fn without(&mut self, victim: u32, go: impl FnOnce(&mut Ranks) -> Result<()>) -> Result<Gone> {
        let others: Vec<u32> = self.members.iter().copied().filter(|rank| *rank != victim).collect();
        let began = Instant::now();
        go(&mut self.ranks)?;
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
        print(&format!("{:>9} ms  agreed to continue without it", ms(agreed)))?;
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
        let exact = |ranks: &Ranks| ranks.is_ready(rank) && ranks.serve_exactly(&self.members);
        self.ranks.until("a complete step of all", watch, exact)?;
        print(&format!("{:>9} ms  it has joined and waits to be admitted", ms(ready - began)))?;
        print(&format!("{:>9} ms  all serve exactly, with it", ms(last - began)))?;
        Ok(Back { ready: ready - began, exact: last.saturating_duration_since(ready) })
    }

    /// The memory of a rank, once processes that have ended are gone from its GPU.
    fn memory(&mut self, rank: u32, device: Device) -> Result<Memory> {
        std::thread::sleep(Duration::from_secs(1));
        let free = (device == Device::Cuda).then(|| self.ranks.free_memory(rank)).transpose()?;
        Ok(Memory { resident: self.ranks.resident(rank)?, free })
    }

    fn growth(&mut self, witness: &Witness, args: &Story) -> Result<Growth> {
        let Witness { rank, before } = witness;
        let after = self.memory(*rank, args.device)?;
        Ok(Growth {
            rank: *rank,
            kills: args.kills - args.kills / 2,
            resident: after.resident as i64 - before.resident as i64,
            gpu: before.free.zip(after.free).map(|(before, after)| before as i64 - after as i64),
        })
    }
}

/// Steps need no server; changes of the membership wait until it is back.
fn restart(server: &mut Server) -> Result<()> {
    print(&"the server is killed")?;
    server.kill();
    std::thread::sleep(Duration::from_millis(500));
    print(&"another process continues with its file")?;
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
