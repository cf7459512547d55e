//! Ranks as processes of this program: starting and ending them, and hearing what they say.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use crate::{
    Result, args,
    args::{Device, Story},
    news::{News, Order},
};

/// The processes of a run, at most one for each rank.
pub struct Ranks {
    initial: u32,
    device: Device,
    slower: u32,
    /// Where a server by itself serves them, if one does.
    server: Option<String>,
    /// As many as the run has room for.
    running: Vec<Option<Running>>,
    /// The members of each epoch, as reported by the ranks.
    epochs: BTreeMap<u32, Vec<u32>>,
    heard: Receiver<Heard>,
    tell: Sender<Heard>,
}

/// What a process has said, or that it has ended.
struct Heard {
    rank: u32,
    pid: u32,
    at: Instant,
    news: Option<News>,
}

struct Running {
    child: Child,
    ready: bool,
    /// The address of its own server.
    listens: Option<String>,
    /// Its last report of a step.
    served: Option<News>,
    /// Its last report of servers.
    leader: Option<u32>,
    servers: Vec<String>,
    memory: Option<u64>,
    /// Whether it is expected to end by itself.
    retires: bool,
    may_be_evicted: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ranks {
    /// The first ranks of a run that has room for `world`. If no separate server serves them, rank 0 does at first.
    pub fn start(world: u32, story: &Story, server: Option<String>) -> Result<Self> {
        let Story { ranks: initial, device, slower, .. } = *story;
        let (tell, heard) = channel();
        let running = (0..world).map(|_| None).collect();
        let epochs = BTreeMap::new();
        let mut ranks = Self { initial, device, slower, server, running, epochs, heard, tell };
        let servers = match &ranks.server {
            Some(address) => address.clone(),
            None => free_address()?,
        };
        let first = |rank| rank == 0 && ranks.server.is_none();
        let roles: Vec<_> = (0..initial).map(|rank| (rank, first(rank))).collect();
        roles.into_iter().try_for_each(|(rank, first)| ranks.spawn(rank, servers.clone(), first))?;
        Ok(ranks)
    }

    /// Starts another process for a rank that has none; it finds the run at the addresses that the others know.
    pub fn add(&mut self, rank: u32) -> Result<()> {
        let known = || self.running.iter().flatten().map(|running| running.servers.join(",")).next();
        let servers = self.server.clone().or_else(known).ok_or("there is no rank left to join")?;
        self.spawn(rank, servers, false)
    }

    fn spawn(&mut self, rank: u32, servers: String, first: bool) -> Result<()> {
        let Self { initial, device, slower, .. } = *self;
        let world = self.running.len() as u32;
        let role = args::Rank { rank, world, initial, servers, first, device, slower };
        let mut child = Command::new(std::env::current_exe()?)
            .args(role.command_line())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (tell, pid) = (self.tell.clone(), child.id());
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let told = |news| tell.send(Heard { rank, pid, at: Instant::now(), news });
                for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                    if let Ok(news) = serde_json::from_str(&line) {
                        let _ = told(Some(news));
                    }
                }
                let _ = told(None);
            });
        }
        self.running[rank as usize] = Some(Running {
            child,
            ready: false,
            listens: None,
            served: None,
            leader: None,
            servers: Vec::new(),
            memory: None,
            retires: false,
            may_be_evicted: false,
        });
        Ok(())
    }

    /// Kills the process of a rank, as a crash does.
    pub fn kill(&mut self, rank: u32) {
        self.running[rank as usize] = None;
    }

    /// Has one rank retire another one.
    pub fn retire(&mut self, by: u32, rank: u32) -> Result<()> {
        if let Some(running) = &mut self.running[rank as usize] {
            running.retires = true;
        }
        self.order(by, Order::Retire { rank })
    }

    fn order(&mut self, rank: u32, order: Order) -> Result<()> {
        let running = self.running[rank as usize].as_mut();
        let input = running.and_then(|running| running.child.stdin.as_mut());
        let input = input.ok_or_else(|| format!("rank {rank} is not there"))?;
        Ok(writeln!(input, "{}", serde_json::to_string(&order)?)?)
    }

    /// Stops all threads of a rank; the others may continue without it.
    pub fn stop(&mut self, rank: u32) {
        self.signal(rank, libc::SIGSTOP);
    }

    /// Lets it run again.
    pub fn resume(&mut self, rank: u32) {
        self.signal(rank, libc::SIGCONT);
    }

    fn signal(&mut self, rank: u32, signal: libc::c_int) {
        if let Some(running) = &mut self.running[rank as usize] {
            running.may_be_evicted = true;
            // SAFETY: a plain system call on a child that has not been reaped.
            unsafe { libc::kill(running.child.id() as libc::pid_t, signal) };
        }
    }

    /// The free bytes of a rank's GPU.
    pub fn free_memory(&mut self, rank: u32) -> Result<u64> {
        if let Some(running) = &mut self.running[rank as usize] {
            running.memory = None;
        }
        self.order(rank, Order::Memory)?;
        let memory = |ranks: &Self| ranks.running[rank as usize].as_ref().and_then(|running| running.memory);
        self.until("the memory of a GPU", |_, _, _| {}, |ranks| memory(ranks).is_some())?;
        Ok(memory(self).unwrap_or_default())
    }

    /// The bytes of a rank's memory that are in use.
    pub fn resident(&self, rank: u32) -> Result<u64> {
        let running = self.running[rank as usize].as_ref();
        let running = running.ok_or_else(|| format!("rank {rank} is not there"))?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
        let kib: u64 = line.ok_or("the memory of a process cannot be read")?.trim().parse()?;
        Ok(kib * 1024)
    }

    /// Waits until `holds` is true for all of them. Each report is first passed to `watch`, with its time.
    pub fn until(
        &mut self,
        what: &str,
        mut watch: impl FnMut(u32, &News, Instant),
        holds: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let patience = Duration::from_secs(20) * self.slower;
        let began = Instant::now();
        while !holds(self) {
            match self.heard.recv_timeout(patience.saturating_sub(began.elapsed())) {
                Ok(heard) => self.hear(heard, &mut watch)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(format!("{what} did not come within {patience:?}: {}", self.state()).into());
                }
            }
        }
        Ok(())
    }

    /// The last reports of all, for error messages.
    fn state(&self) -> String {
        let of = |(rank, running): (usize, &Option<Running>)| match running {
            None => format!("rank {rank} is not there"),
            Some(it) => format!(
                "rank {rank} listens at {}, knows leader {:?} and servers {:?}, last step {:?}",
                it.listens.as_deref().unwrap_or("none"),
                it.leader,
                it.servers,
                it.served
            ),
        };
        self.running.iter().enumerate().map(of).collect::<Vec<_>>().join("; ")
    }

    fn hear(&mut self, heard: Heard, watch: &mut impl FnMut(u32, &News, Instant)) -> Result<()> {
        let Heard { rank, pid, at, news } = heard;
        let Some(running) = self.running[rank as usize].as_mut().filter(|running| running.child.id() == pid)
        else {
            return Ok(()); // of a former process
        };
        let Some(news) = news else {
            if !running.retires {
                return Err(format!("rank {rank} has ended by itself").into());
            }
            self.running[rank as usize] = None;
            return Ok(());
        };
        watch(rank, &news, at);
        match news {
            News::Evicted if running.may_be_evicted => {}
            News::Evicted => return Err(format!("rank {rank}, which was healthy, was removed").into()),
            News::Ready { listens } => (running.ready, running.listens) = (true, listens),
            News::Known { leader, servers } => (running.leader, running.servers) = (leader, servers),
            News::Memory { free } => running.memory = Some(free),
            News::Retired { rank: of, error: Some(error) } => {
                return Err(format!("rank {rank} could not retire rank {of}: {error}").into());
            }
            News::Retired { error: None, .. } => {}
            News::Served { epoch, ref members, .. } => {
                let known = self.epochs.entry(epoch).or_insert_with(|| members.clone());
                if known != members {
                    return Err(format!(
                        "epoch {epoch} is of {members:?} for rank {rank} and was of {known:?}"
                    )
                    .into());
                }
                running.served = Some(news);
            }
        }
        Ok(())
    }

    pub fn is_there(&self, rank: u32) -> bool {
        self.running[rank as usize].is_some()
    }

    pub fn is_ready(&self, rank: u32) -> bool {
        self.running[rank as usize].as_ref().is_some_and(|running| running.ready)
    }

    /// Whether each rank that runs serves with exactly these members, all of them complete.
    pub fn serve_exactly(&self, wanted: &[u32]) -> bool {
        let exact = |running: &Running| match &running.served {
            Some(News::Served { members, missing, .. }) => members == wanted && missing.is_empty(),
            _ => false,
        };
        wanted.iter().all(|rank| self.running[*rank as usize].as_ref().is_some_and(exact))
    }

    /// The rank whose server serves the run, if all running ranks report the same one.
    pub fn leader(&self) -> Option<u32> {
        let mut leaders = self.running.iter().flatten().map(|running| running.leader);
        let leader = leaders.next()??;
        leaders.all(|other| other == Some(leader)).then_some(leader)
    }

    /// Whether any one of them may end now: all know the same servers, at least three, and most of these would be left.
    pub fn can_lose_one(&self) -> bool {
        if self.server.is_some() {
            return true;
        }
        let Some(known) = self.running.iter().flatten().map(|running| &running.servers).next() else {
            return false;
        };
        let runs =
            |address: &&String| self.running.iter().flatten().any(|it| it.listens.as_ref() == Some(*address));
        let alive = known.iter().filter(runs).count();
        let agreed = self.running.iter().flatten().all(|running| running.servers == *known);
        agreed && self.leader().is_some() && known.len() >= 3 && (alive - 1) * 2 > known.len()
    }
}

/// An address of the loopback interface at which nobody listens.
fn free_address() -> Result<String> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
