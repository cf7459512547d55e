//! Ranks as processes of this program: starting and ending them, and hearing what they say.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use epwire::rendezvous::driver::Server;

use crate::{Result, news::News};

/// The processes of a run, one to a rank at most.
pub struct Ranks {
    world: u32,
    address: String,
    running: Vec<Option<Running>>,
    heard: Receiver<(u32, u32, Option<News>)>,
    tell: Sender<(u32, u32, Option<News>)>,
}

struct Running {
    child: Child,
    /// What it said last of its steps.
    served: Option<News>,
    ready: bool,
    retires: bool,
    may_be_evicted: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ranks {
    pub fn start(world: u32, server: &Server) -> Result<Self> {
        let (tell, heard) = channel();
        let address = server.local_addr().to_string();
        let running = (0..world).map(|_| None).collect();
        let mut ranks = Self { world, address, running, heard, tell };
        (0..world).try_for_each(|rank| ranks.add(rank))?;
        Ok(ranks)
    }

    /// Another process for a rank that has none.
    pub fn add(&mut self, rank: u32) -> Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .env("EPWIRE_RANK", rank.to_string())
            .env("EPWIRE_WORLD", self.world.to_string())
            .env("EPWIRE_ADDR", &self.address)
            .env("EPWIRE_HOSTED", "1")
            .env("EPWIRE_RUN_ID", crate::RUN_ID)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (tell, pid) = (self.tell.clone(), child.id());
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                    if let Ok(news) = serde_json::from_str(&line) {
                        let _ = tell.send((rank, pid, Some(news)));
                    }
                }
                let _ = tell.send((rank, pid, None));
            });
        }
        self.running[rank as usize] =
            Some(Running { child, served: None, ready: false, retires: false, may_be_evicted: false });
        Ok(())
    }

    /// Kills the process of a rank, as a crash does.
    pub fn kill(&mut self, rank: u32) {
        self.running[rank as usize] = None;
    }

    /// Has a rank leave between two steps.
    pub fn retire(&mut self, rank: u32) {
        if let Some(running) = &mut self.running[rank as usize] {
            running.retires = true;
            running.child.stdin = None;
        }
    }

    /// Stops all threads of a rank; the others may go on without it.
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

    /// Waits until `holds` of all of them. What comes to pass is shown to `watch` first.
    pub fn until(
        &mut self,
        what: &str,
        mut watch: impl FnMut(u32, &News),
        holds: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(20);
        let began = Instant::now();
        while !holds(self) {
            match self.heard.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok((rank, pid, news)) => self.hear(rank, pid, news, &mut watch)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(format!("{what} did not come within {PATIENCE:?}").into());
                }
            }
        }
        Ok(())
    }

    fn hear(
        &mut self,
        rank: u32,
        pid: u32,
        news: Option<News>,
        watch: &mut impl FnMut(u32, &News),
    ) -> Result<()> {
        let Some(running) = self.running[rank as usize].as_mut().filter(|running| running.child.id() == pid)
        else {
            return Ok(()); // of a former process
        };
        match news {
            Some(News::Evicted) if running.may_be_evicted => watch(rank, &News::Evicted),
            Some(News::Evicted) => return Err(format!("rank {rank}, which was well, was removed").into()),
            Some(news) => {
                watch(rank, &news);
                match news {
                    News::Ready => running.ready = true,
                    news => running.served = Some(news),
                }
            }
            None if running.retires => self.running[rank as usize] = None,
            None => return Err(format!("rank {rank} has ended by itself").into()),
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
}
