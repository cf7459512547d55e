//! A rank: does what the test tells it, one command at a time, until its standard input ends.

use std::collections::HashMap;
use std::io::{BufRead, Lines, StdinLock, Write};
use std::time::{Duration, Instant};

use epwire::group::GroupOptions;
use epwire::prefill::PrefillBuffer;
use epwire::{Comm, EpBuffer, EpConfig, Error, Group, Mask};

use crate::clock;
use crate::collective::{self, Collectives};
use crate::noise::{self, Begun, deadline};
use crate::prefill::{Prefill, prefill_config};
use crate::step::{Bench, Stop};
use crate::traffic::{LOCAL_EXPERTS, SIDEBAND, TOPK};
use crate::trap;
use crate::wire::{Command, End, Ran, Reply, Run, Setup};

/// Set for worker processes to the deadline in milliseconds.
pub(crate) const VARIABLE: &str = "EPWIRE_CHAOS_WORKER";

pub(crate) fn main() {
    // SAFETY: plain system calls. The kernel kills this process when the test dies, even while it is stopped.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    noise::watch();
    let deadline = std::env::var(VARIABLE).ok().and_then(|ms| ms.parse().ok());
    noise::set_deadline(deadline.expect("the test says the deadline"));
    let mut worker = Worker {
        commands: std::io::stdin().lock().lines(),
        group: None,
        bench: None,
        collectives: None,
        prefill: None,
    };
    while let Some(command) = worker.next() {
        noise::forget();
        let began = Begun::now();
        let elapsed_us = || began.end().as_micros() as u64;
        let reply = match worker.obey(command) {
            Ok(Some(reply)) => reply,
            Ok(None) => Reply::Done { elapsed_us: elapsed_us(), noise_us: noise::worst_us() },
            Err(Stop::Wrong(text)) => Reply::Wrong(text),
            Err(Stop::Error(error)) => Reply::Refused {
                kind: kind(&error),
                text: error.to_string(),
                elapsed_us: elapsed_us(),
                noise_us: noise::worst_us(),
            },
        };
        say(&reply);
    }
}

/// Name of the error's variant.
fn kind(error: &Error) -> String {
    let text = match error {
        Error::Bootstrap(inner) => format!("{inner:?}"),
        other => format!("{other:?}"),
    };
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

fn say(reply: &Reply) {
    let line = serde_json::to_string(reply).expect("replies are plain data");
    let mut out = std::io::stdout().lock();
    // If this fails the test is gone, and standard input ends next.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Whether a thread of this process is connecting.
fn connecting() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("a mounted /proc");
    let names =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.into_iter().any(|name| name.trim() == "epwire-blocking")
}

pub(crate) fn config(setup: &Setup) -> EpConfig {
    let mut config = EpConfig::new(setup.max_tokens, setup.hidden, setup.ranks * LOCAL_EXPERTS, TOPK as u32);
    config.lanes = setup.lanes;
    config.sideband_bytes = SIDEBAND as u32;
    config.threads = setup.threads;
    config.deadline = Duration::from_millis(setup.deadline_ms);
    config
}

/// A worker has one of `bench`, `collectives` and `prefill`, or none.
struct Worker {
    commands: Lines<StdinLock<'static>>,
    group: Option<Group>,
    bench: Option<Bench>,
    collectives: Option<Collectives>,
    prefill: Option<Prefill>,
}

impl Worker {
    fn next(&mut self) -> Option<Command> {
        let line = self.commands.next()?.ok()?;
        Some(serde_json::from_str(&line).expect("the test speaks this language"))
    }

    fn buffer(&self) -> &EpBuffer {
        &self.bench.as_ref().expect("the test creates the buffer first").buffer
    }

    fn group(&self) -> &Group {
        self.group.as_ref().expect("the test joins first")
    }

    fn obey(&mut self, command: Command) -> Result<Option<Reply>, Stop> {
        match command {
            Command::Create(setup) if setup.end == End::Comm => {
                let comm = Comm::unconnected(setup.rank, setup.ranks, collective::config(&setup))?;
                self.collectives = Some(Collectives::new(setup, comm));
            }
            Command::Create(setup) if setup.end == End::Prefill => {
                let config = prefill_config(&setup);
                let buffer = PrefillBuffer::unconnected(setup.rank, setup.ranks, config)?;
                self.prefill = Some(Prefill::new(setup, buffer));
            }
            Command::Create(setup) => {
                let buffer = EpBuffer::unconnected(setup.rank, setup.ranks, config(&setup))?;
                self.bench = Some(Bench::new(setup, buffer)?);
            }
            Command::Export => return Ok(Some(Reply::Blobs(self.export()?))),
            Command::Connect(blobs) => {
                for (peer, blob) in blobs {
                    let before = trap::windows();
                    self.connect(peer, &blob)?;
                    let mut now = trap::windows();
                    now.retain(|inode, _| !before.contains_key(inode));
                    // `None` is new if the same window is mapped again.
                    self.windows().extend(now.into_values().map(|address| (peer, address)));
                }
            }
            Command::ConnectAwaiting(blobs) => {
                clock::beside(self.buffer().connect_all(&blobs))??;
            }
            Command::GiveUpConnect { peer, blob } => self.give_up_connect(peer, &blob)?,
            Command::SetActive { ranks, epoch } => {
                let mask: Mask = ranks.into_iter().collect();
                match (&self.collectives, &self.prefill) {
                    (Some(collectives), _) => collectives.comm.set_active(&mask, epoch, 0)?,
                    (_, Some(prefill)) => prefill.buffer.set_active(&mask, epoch, 0)?,
                    _ => self.buffer().set_active(&mask, epoch, 0)?,
                }
            }
            Command::Run(run) => return self.run(&run).map(Some),
            Command::Join { rank, ranks, address, join_deadline_ms, deadline_ms } => {
                let options = GroupOptions::new(rank, ranks, address)
                    .token(crate::token())
                    .join_deadline(Duration::from_millis(join_deadline_ms))
                    .deadline(Duration::from_millis(deadline_ms));
                self.group = Some(Group::join_blocking(options).map_err(Error::from)?);
            }
            Command::CreateInGroup(setup) if setup.end == End::Comm => {
                let comm = Comm::create_blocking(self.group(), collective::config(&setup))?;
                self.collectives = Some(Collectives::new(setup, comm));
            }
            Command::CreateInGroup(setup) => {
                let buffer = EpBuffer::create_blocking(self.group(), config(&setup))?;
                self.bench = Some(Bench::new(setup, buffer)?);
            }
            Command::CreateAwaiting(setup) if setup.end == End::Comm => {
                let (group, config) = (self.group().clone(), collective::config(&setup));
                let everyone = Mask::all(setup.ranks);
                let (comm, subset) = clock::beside(async move {
                    let comm = Comm::create(&group, config).await?;
                    let subset = comm.subset(&everyone).await?;
                    Ok::<_, Error>((comm, subset))
                })??;
                self.collectives = Some(Collectives::new(setup, comm));
                self.collectives.as_mut().expect("just made").subset = subset;
            }
            Command::CreateAwaiting(setup) => {
                let buffer = clock::beside(EpBuffer::create(self.group(), config(&setup)))??;
                self.bench = Some(Bench::new(setup, buffer)?);
            }
            Command::Change => {
                let group = self.group().clone();
                let change = clock::beside(async move {
                    loop {
                        match group.step().await?.change {
                            Some(change) => return Ok::<_, Error>(change),
                            None => tokio::time::sleep(Duration::from_millis(1)).await,
                        }
                    }
                })??;
                return Ok(Some(Reply::Changed {
                    ranks: change.members.iter().collect(),
                    epoch: change.epoch,
                }));
            }
            Command::Go => return Err(Stop::Wrong("told to continue without a hold".to_owned())),
        }
        Ok(None)
    }

    fn export(&self) -> Result<Vec<Vec<u8>>, Error> {
        fn blobs<F>(rank: u32, ranks: u32, blob: F) -> Result<Vec<Vec<u8>>, Error>
        where
            F: Fn(u32) -> Result<Vec<u8>, Error>,
        {
            (0..ranks).map(|peer| if peer == rank { Ok(Vec::new()) } else { blob(peer) }).collect()
        }
        match (&self.collectives, &self.prefill) {
            (Some(Collectives { comm, .. }), _) => blobs(comm.rank(), comm.ranks(), |peer| comm.export(peer)),
            (_, Some(Prefill { buffer, .. })) => {
                blobs(buffer.rank(), buffer.ranks(), |peer| buffer.export(peer))
            }
            _ => {
                let buffer = self.buffer();
                blobs(buffer.rank(), buffer.ranks(), |peer| buffer.export(peer))
            }
        }
    }

    fn connect(&self, peer: u32, blob: &[u8]) -> Result<(), Error> {
        match (&self.collectives, &self.prefill) {
            (Some(collectives), _) => collectives.comm.connect_blocking(peer, blob),
            (_, Some(prefill)) => prefill.buffer.connect_blocking(peer, blob),
            _ => self.buffer().connect_blocking(peer, blob),
        }
    }

    /// The addresses of the peers' windows in this process.
    fn windows(&mut self) -> &mut HashMap<u32, usize> {
        let Self { collectives, prefill, bench, .. } = self;
        match (collectives, prefill) {
            (Some(collectives), _) => &mut collectives.windows,
            (_, Some(prefill)) => &mut prefill.windows,
            _ => &mut bench.as_mut().expect("the test creates the buffer first").windows,
        }
    }

    fn give_up_connect(&self, peer: u32, blob: &[u8]) -> Result<(), Stop> {
        let began = Instant::now();
        let connect = self.buffer().connect(peer, blob);
        let soon = async { tokio::time::timeout(deadline() / 10, connect).await };
        if let Ok(ended) = clock::beside(soon)? {
            return Err(Stop::Wrong(format!("connecting to a stopped rank ended: {ended:?}")));
        }
        let again = self.buffer().connect_blocking(peer, blob);
        if !matches!(again, Err(Error::State(_))) {
            return Err(Stop::Wrong(format!("a second connect beside the first: {again:?}")));
        }
        while connecting() {
            if began.elapsed() > deadline() + deadline() / 4 + noise::worst() {
                return Err(Stop::Wrong(format!("it still connects after {:?}", began.elapsed())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Reply, Stop> {
        let mut ops = Vec::new();
        let Self { commands, bench, collectives, prefill, .. } = self;
        for step in run.first..run.first + run.steps {
            let mut at = |point| {
                if run.hold == Some((step, point)) {
                    say(&Reply::Held);
                    // The next line is Go, or the end.
                    let _ = commands.next();
                }
            };
            match (&mut *collectives, &mut *prefill) {
                (Some(collectives), _) => collectives.step(run, step, &mut at, &mut ops)?,
                (_, Some(prefill)) => prefill.step(run, step, &mut at, &mut ops)?,
                _ => {
                    let bench = bench.as_mut().expect("the test creates the buffer first");
                    bench.step(run, step, &mut at, &mut ops)?;
                }
            }
        }
        Ok(Reply::Ran(Ran { ops, noise_us: noise::worst_us() }))
    }
}
