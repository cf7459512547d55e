//! The processes of a history: what is done to them, what they report, and which reports are errors.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use epwire::rendezvous::driver::{Server, ServerOptions};

use super::ends::Verdicts;
use super::member;
use super::news::{News, Order, Start};
use super::plan::Served;
use crate::network::Hosts;
use crate::noise;
use crate::wire::Setup;

pub(crate) struct Crew {
    setup: Setup,
    initial: u32,
    lease: Duration,
    patience: Duration,
    lead: u64,
    server: Option<Server>,
    /// The hosts of the ranks, one for each; `None`: all run on this machine.
    hosts: Option<Hosts>,
    members: Vec<Option<Member>>,
    heard: Receiver<Heard>,
    tell: Sender<Heard>,
    /// Ranks to which something was done that may cost them their place, at any time.
    touched: Vec<bool>,
    /// The step and the members with which each epoch begins, on which all its members agree.
    epochs: BTreeMap<u32, (u64, Vec<u32>)>,
    verdicts: Verdicts,
    /// Some step of some rank was incomplete.
    missed: bool,
    story: Story,
}

/// A line of a process, or its end.
struct Heard {
    rank: u32,
    pid: u32,
    line: Option<String>,
}

struct Member {
    child: Child,
    orders: ChildStdin,
    stopped: bool,
    /// It may end by itself.
    goes: bool,
    /// This process was stopped, so the others may have continued without it.
    was_stopped: bool,
    ready: bool,
    no_quorum: bool,
    listens: Option<String>,
    leader: Option<u32>,
    servers: Vec<String>,
    /// The last step, its epoch, and the missing ranks.
    ran: Option<(u64, u32, Vec<u32>)>,
    took: Option<Vec<(u64, u64)>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What has happened, for a reader who must understand why a history failed.
struct Story {
    began: Instant,
    lines: Vec<String>,
}

impl Story {
    fn tell(&mut self, line: String) {
        self.lines.push(format!("{:>8.3} s  {line}", self.began.elapsed().as_secs_f64()));
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("chaos: {}", self.lines.join("\nchaos: "));
        }
    }
}

impl Crew {
    /// Starts the processes of the initial ranks.
    pub(crate) fn start(setup: Setup, initial: u32, lease: Duration, lead: u64, served: Served) -> Self {
        Self::begin(setup, initial, lease, member::PATIENCE, lead, served, None)
    }

    /// Starts the processes of all ranks, each on a host of its own.
    pub(crate) fn on_hosts(setup: Setup, lease: Duration, patience: Duration, hosts: Hosts) -> Self {
        let initial = setup.ranks;
        Self::begin(setup, initial, lease, patience, 0, Served::ByMembers, Some(hosts))
    }

    fn begin(
        setup: Setup,
        initial: u32,
        lease: Duration,
        patience: Duration,
        lead: u64,
        served: Served,
        hosts: Option<Hosts>,
    ) -> Self {
        let world = setup.ranks;
        let server = (served == Served::Apart).then(|| {
            let heartbeat = member::heartbeat(lease);
            let options = ServerOptions::new("default", world)
                .heartbeat(heartbeat)
                .initial(initial)
                .token(crate::token());
            Server::bind_blocking("127.0.0.1:0", options).expect("a loopback port is free")
        });
        let (tell, heard) = channel();
        let story = Story { began: Instant::now(), lines: Vec::new() };
        let (members, touched) = ((0..world).map(|_| None).collect(), vec![false; world as usize]);
        let (epochs, verdicts) = (BTreeMap::new(), Verdicts::default());
        let mut crew = Self {
            setup,
            initial,
            lease,
            patience,
            lead,
            server,
            hosts,
            members,
            heard,
            tell,
            touched,
            epochs,
            verdicts,
            missed: false,
            story,
        };
        let servers = match &crew.server {
            Some(server) => server.local_addr().to_string(),
            None if crew.hosts.is_some() => format!("{}:29700", Hosts::address(0)),
            None => free_address(),
        };
        for rank in 0..initial {
            let first = rank == 0 && crew.server.is_none();
            crew.spawn(rank, servers.clone(), first, Duration::ZERO);
        }
        crew
    }

    fn spawn(&mut self, rank: u32, servers: String, first: bool, slow: Duration) {
        let slow_ms = slow.as_millis() as u64;
        let (mut child, orders) = self.process(rank, |start| Start { servers, first, slow_ms, ..start });
        let (tell, pid) = (self.tell.clone(), child.id());
        let out = child.stdout.take().expect("piped");
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok).map(Some);
            for line in lines.chain([None]) {
                // If this fails the history is over.
                let _ = tell.send(Heard { rank, pid, line });
            }
        });
        self.members[rank as usize] = Some(Member {
            child,
            orders,
            stopped: false,
            goes: false,
            was_stopped: false,
            ready: false,
            no_quorum: false,
            listens: None,
            leader: None,
            servers: Vec::new(),
            ran: None,
            took: None,
        });
    }

    /// Starts a process that knows only what `with` adds.
    fn process(&self, rank: u32, with: impl FnOnce(Start) -> Start) -> (Child, ChildStdin) {
        let mut program = Command::new(std::env::current_exe().expect("this program has a path"));
        program.env(member::VARIABLE, "").stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(hosts) = &self.hosts {
            program.env("EPWIRE_TOKEN", "known to all hosts of this test").env("EPWIRE_IFNAME", "eth0");
            hosts.place(rank, &mut program);
        }
        let mut child = program.spawn().expect("a process can be started");
        let mut orders = child.stdin.take().expect("piped");
        let start = with(Start {
            setup: Setup { rank, ..self.setup.clone() },
            initial: self.initial,
            servers: String::new(),
            first: false,
            lease_ms: self.lease.as_millis() as u64,
            patience_ms: self.patience.as_millis() as u64,
            slow_ms: 0,
            lead: self.lead,
            unrelated: false,
        });
        let line = serde_json::to_string(&start).expect("orders are plain data");
        writeln!(orders, "{line}").expect("it reads");
        (child, orders)
    }

    /// Starts a process that has nothing to do with the run and takes as much memory as a member; returns once it has
    /// the memory.
    pub(crate) fn disturb(&mut self, rank: u32) {
        let (mut child, _orders) = self.process(rank, |start| Start { unrelated: true, ..start });
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, ready) = channel();
        std::thread::spawn(move || {
            let mut said = String::new();
            let _ = out.read_line(&mut said);
            let _ = tell.send(said);
        });
        let until = Instant::now() + member::PATIENCE;
        let said = loop {
            self.listen(Instant::now() + Duration::from_millis(2));
            match ready.try_recv() {
                Ok(said) => break said,
                Err(_) => assert!(Instant::now() < until, "an unrelated process does not get its memory"),
            }
        };
        child.kill().expect("it is there");
        child.wait().expect("it is a child");
        assert!(said.contains("Ready"), "the unrelated process has ended: {said:?}");
    }

    /// The durations of all members' steps since the last call.
    pub(crate) fn times(&mut self) -> Vec<(u64, u64)> {
        for rank in self.running() {
            self.order(rank, Order::Times);
        }
        let all = |crew: &Self| crew.members.iter().flatten().all(|member| member.took.is_some());
        assert!(self.listen_until(Instant::now() + member::PATIENCE, all), "no times from {}", self.state());
        self.members.iter_mut().flatten().filter_map(|member| member.took.take()).flatten().collect()
    }

    /// The first step of a membership of so many that directly follows `epoch`.
    pub(crate) fn began_after(&self, epoch: u32, members: usize) -> Option<(u32, u64)> {
        let of = |(of, (step, all)): (&u32, &(u64, Vec<u32>))| (all.len() == members).then_some((*of, *step));
        self.epochs.range(epoch + 1..).find_map(of)
    }

    /// Starts another process for a rank without one; it finds the run at the servers that the others know.
    pub(crate) fn add(&mut self, rank: u32, slow: Duration) {
        let known = || self.members.iter().flatten().map(|it| it.servers.join(",")).find(|it| !it.is_empty());
        let served = self.server.as_ref().map(|server| server.local_addr().to_string()).or_else(known);
        self.story.tell(format!("another process for rank {rank}, busy for {slow:?}"));
        self.spawn(rank, served.expect("a member that knows where the run is served"), false, slow);
    }

    pub(crate) fn kill(&mut self, rank: u32) {
        self.story.tell(format!("rank {rank} is killed"));
        self.touched[rank as usize] = true;
        self.members[rank as usize] = None;
    }

    pub(crate) fn stop(&mut self, rank: u32) {
        self.story.tell(format!("rank {rank} is stopped"));
        self.touched[rank as usize] = true;
        let member = self.members[rank as usize].as_mut().expect("it is there");
        (member.stopped, member.was_stopped) = (true, true);
        member.signal(libc::SIGSTOP);
    }

    pub(crate) fn cont(&mut self, rank: u32) {
        self.story.tell(format!("rank {rank} continues"));
        let member = self.members[rank as usize].as_mut().expect("it is there");
        member.stopped = false;
        member.signal(libc::SIGCONT);
    }

    /// Cuts off the host of a rank.
    pub(crate) fn cut(&mut self, rank: u32) {
        self.story.tell(format!("rank {rank} is cut off"));
        self.touched[rank as usize] = true;
        self.members[rank as usize].as_mut().expect("it is there").was_stopped = true;
        self.hosts.as_ref().expect("ranks are on hosts").cut(rank);
    }

    /// Drops this many percent of the packets that come to the host of a rank.
    pub(crate) fn lose(&mut self, rank: u32, percent: u32) {
        self.story.tell(format!("rank {rank} loses {percent} % of its packets"));
        self.hosts.as_ref().expect("ranks are on hosts").lose(rank, percent);
    }

    /// Ends the faults of the network of a rank's host.
    pub(crate) fn heal(&mut self, rank: u32) {
        self.story.tell(format!("rank {rank} has its network again"));
        self.hosts.as_ref().expect("ranks are on hosts").heal(rank);
    }

    /// Tells a rank to leave between two steps, and to end.
    pub(crate) fn leave(&mut self, rank: u32) {
        self.may_go(rank);
        self.order(rank, Order::Leave);
    }

    /// It may end by itself, and the others may continue without it.
    pub(crate) fn may_go(&mut self, rank: u32) {
        self.touched[rank as usize] = true;
        self.members[rank as usize].as_mut().expect("it is there").goes = true;
    }

    pub(crate) fn order(&mut self, rank: u32, order: Order) {
        self.story.tell(format!("rank {rank} is told: {order:?}"));
        self.touched[rank as usize] |= matches!(order, Order::Rejoin);
        let line = serde_json::to_string(&order).expect("orders are plain data");
        let member = self.members[rank as usize].as_mut().expect("it is there");
        // It may just have ended by itself.
        let _ = writeln!(member.orders, "{line}");
    }

    pub(crate) fn is_there(&self, rank: u32) -> bool {
        self.members[rank as usize].is_some()
    }

    /// Whether it is running and will end by itself.
    pub(crate) fn is_going(&self, rank: u32) -> bool {
        self.members[rank as usize].as_ref().is_some_and(|member| member.goes)
    }

    /// Ranks with a process that is not stopped.
    pub(crate) fn running(&self) -> Vec<u32> {
        let runs = |rank: &u32| self.members[*rank as usize].as_ref().is_some_and(|member| !member.stopped);
        (0..self.setup.ranks).filter(runs).collect()
    }

    /// Listens to all processes until this time.
    pub(crate) fn listen(&mut self, until: Instant) {
        self.listen_until(until, |_| false);
    }

    /// Listens to all processes until the condition holds. Returns whether it does in time.
    pub(crate) fn listen_until(&mut self, until: Instant, holds: impl Fn(&Self) -> bool) -> bool {
        while !holds(self) {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(heard) => self.hear(heard),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => unreachable!("this side holds a sender"),
            }
        }
        true
    }

    fn hear(&mut self, Heard { rank, pid, line }: Heard) {
        let member = self.members[rank as usize].as_mut().filter(|member| member.child.id() == pid);
        let Some(line) = line else {
            let Some(member) = member else { return };
            let status = member.child.wait().expect("it is a child");
            assert!(member.goes && status.success(), "rank {rank} has ended by itself: {status}");
            self.story.tell(format!("rank {rank} has ended"));
            self.members[rank as usize] = None;
            return;
        };
        let news: News = match serde_json::from_str(&line) {
            Ok(news) => news,
            Err(_) if member.is_none() => return, // it was killed while it wrote this line
            Err(error) => panic!("rank {rank} said {line:?}: {error}"),
        };
        if !matches!(news, News::Ran { .. } | News::Took(_) | News::Judged(_)) {
            self.story.tell(format!("rank {rank}: {news:?}"));
        }
        match (news, member) {
            (News::Wrong(text), _) => panic!("rank {rank}: {text}"),
            (News::Began { epoch, step, members }, _) => {
                let (first, all) = self.epochs.entry(epoch).or_insert_with(|| (step, members.clone()));
                assert!(
                    (*first, &*all) == (step, &members),
                    "epoch {epoch} begins with step {step} and members {members:?} at rank {rank}, and with step {first} \
                     and {all:?} at others"
                );
            }
            (News::Evicted { noise_us }, Some(member)) => {
                self.verdicts.left(pid);
                let noise = Duration::from_micros(noise_us).max(noise::worst());
                assert!(
                    member.was_stopped || noise > self.lease / 2,
                    "rank {rank}, which was healthy, was removed (noise {noise:?})"
                );
            }
            (News::Ready { listens }, Some(member)) => (member.ready, member.listens) = (true, listens),
            (News::Known { leader, servers }, Some(member)) => {
                (member.leader, member.servers) = (leader, servers)
            }
            (News::Ran { step, epoch, missing }, Some(member)) => {
                let said = member.ran.as_ref().map(|(_, epoch, missing)| (*epoch, missing));
                if said != Some((epoch, &missing)) {
                    self.story.tell(format!(
                        "rank {rank} has run step {step} of epoch {epoch} without {missing:?}"
                    ));
                }
                self.missed |= !missing.is_empty();
                member.ran = Some((step, epoch, missing));
            }
            (News::NoQuorum(_), Some(member)) => member.no_quorum = true,
            (News::Took(took), Some(member)) => member.took = Some(took),
            (News::Judged(judged), _) => self.verdicts.hear(pid, judged),
            (News::Retired, _) => self.verdicts.left(pid),
            (News::Told(_), _) | (_, None) => {}
        }
    }

    /// The last step that was reported in the last epoch. A rank that was cut off counts steps of its own meanwhile,
    /// which are not the group's.
    pub(crate) fn furthest(&self) -> u64 {
        let now = self.epoch();
        let ran = self.members.iter().flatten().filter_map(|member| member.ran.as_ref());
        ran.filter(|(_, epoch, _)| *epoch == now).map(|(step, ..)| *step).max().unwrap_or(0)
    }

    /// Whether all running ranks have run a complete step after `floor`, with exactly each other.
    pub(crate) fn is_whole(&self, floor: u64) -> bool {
        let there = (0..self.setup.ranks).filter(|rank| self.is_there(*rank)).collect();
        self.serve(floor, &there)
    }

    /// The same for all ranks that are not stopped.
    pub(crate) fn is_whole_without_stopped(&self, floor: u64) -> bool {
        self.serve(floor, &self.running())
    }

    /// The same for all ranks but this one.
    pub(crate) fn is_whole_without(&self, rank: u32, floor: u64) -> bool {
        self.serve(floor, &(0..self.setup.ranks).filter(|other| *other != rank).collect())
    }

    /// The last epoch that any rank has begun.
    pub(crate) fn epoch(&self) -> u32 {
        self.epochs.keys().copied().max().unwrap_or(0)
    }

    /// Whether any step of any rank was incomplete.
    pub(crate) fn missed_anybody(&self) -> bool {
        self.missed
    }

    /// Whether this rank has been told that it cannot decide by itself.
    pub(crate) fn had_no_quorum(&self, rank: u32) -> bool {
        self.members[rank as usize].as_ref().is_some_and(|member| member.no_quorum)
    }

    fn serve(&self, floor: u64, ranks: &Vec<u32>) -> bool {
        let exact = |member: &Member| match &member.ran {
            Some((step, epoch, missing)) => {
                let members = self.epochs.get(epoch).map(|(_, members)| members);
                *step > floor && missing.is_empty() && members == Some(ranks)
            }
            None => false,
        };
        ranks.iter().filter_map(|rank| self.members[*rank as usize].as_ref()).all(exact)
    }

    /// The ranks that do not fulfil the condition, for error messages.
    pub(crate) fn state(&self) -> String {
        let of = |(rank, member): (usize, &Option<Member>)| match member {
            None => format!("rank {rank} is not there"),
            Some(it) => format!(
                "rank {rank} ready {} knows {:?} {:?} ran {:?}",
                it.ready, it.leader, it.servers, it.ran
            ),
        };
        self.members.iter().enumerate().map(of).collect::<Vec<_>>().join("; ")
    }

    /// The rank whose server serves the run, if all ranks agree on it.
    pub(crate) fn leader(&self) -> Option<u32> {
        let mut leaders = self.members.iter().flatten().map(|member| member.leader);
        let leader = leaders.next()??;
        leaders.all(|other| other == Some(leader)).then_some(leader)
    }

    /// Whether the run can lose this many members at once: all know the same servers, at least three, and most of those
    /// would be left.
    pub(crate) fn can_lose(&self, losses: usize) -> bool {
        let Some(known) = self.members.iter().flatten().map(|member| &member.servers).next() else {
            return false;
        };
        let runs = |address: &&String| {
            self.members.iter().flatten().any(|it| !it.stopped && it.listens.as_ref() == Some(*address))
        };
        let alive = known.iter().filter(runs).count();
        let agreed = self.members.iter().flatten().all(|member| member.servers == *known);
        agreed && self.leader().is_some() && known.len() >= 3 && (alive - losses.min(alive)) * 2 > known.len()
    }

    /// What no rank can check alone: each rank that is in one membership and not in the next had a reason to go.
    pub(crate) fn nobody_went_without_reason(&self) {
        for ((_, (_, before)), (epoch, (_, after))) in self.epochs.iter().zip(self.epochs.iter().skip(1)) {
            let gone = before.iter().find(|rank| !after.contains(rank) && !self.touched[**rank as usize]);
            assert!(gone.is_none(), "epoch {epoch} begins without rank {gone:?}, to which nothing was done");
        }
    }

    /// The running ranks have learnt the same verdicts of steps.
    pub(crate) fn all_learnt_the_same(&mut self) {
        let there = self.members.iter().flatten().map(|member| member.child.id()).collect();
        let (clean, faulted) = self.verdicts.agree(&there);
        assert!(clean > 0, "no step was clean");
        self.story.tell(format!("{clean} steps were clean, {faulted} were not"));
    }

    pub(crate) fn is_served_by_members(&self) -> bool {
        self.server.is_none()
    }

    pub(crate) fn remark(&mut self, line: String) {
        self.story.tell(line);
    }
}

impl Member {
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a plain system call on a child that has not been reaped.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

/// An address of the loopback interface at which nobody listens.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
    listener.local_addr().expect("it is bound").to_string()
}
