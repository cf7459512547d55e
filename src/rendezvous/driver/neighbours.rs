//! Members whose processes run on the same kernel as this one. The kernel reports when they have ended, even if a child
//! that they left behind, or a machine in between, holds their connections open.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::attendant::{Command, Later};
use super::heartbeat::Heartbeat;
use crate::rendezvous::wire::{Identity, Notice};

/// The kernel and the namespace in which a process id of this process is valid: two processes with equal values can
/// name each other. Empty if unknown.
pub(crate) fn process_space() -> &'static str {
    static SPACE: OnceLock<String> = OnceLock::new();
    SPACE.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        match (boot, namespace) {
            (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
            _ => String::new(),
        }
    })
}

/// The watched processes, by the rank of their member. Watching ends with the runtime on which this was made, or when
/// it is dropped.
#[derive(Debug)]
pub(super) struct Neighbours {
    heartbeat: Heartbeat,
    watched: BTreeMap<u32, Watched>,
}

#[derive(Debug)]
struct Watched {
    member: u128,
    /// Notified when the server lists the member again.
    listed: Arc<Notify>,
    task: AbortHandle,
}

impl Neighbours {
    pub(super) fn new(heartbeat: Heartbeat) -> Self {
        Self { heartbeat, watched: BTreeMap::new() }
    }

    /// These members have taken their places: those with the same kernel are watched from now on, and earlier members
    /// of their places no longer. The server does not know of the death of a member that it lists.
    pub(super) fn seated(&mut self, members: &[Identity], later: &Later) {
        for member in members {
            if let Some(watched) = self.watched.get(&member.rank).filter(|it| it.member == member.member) {
                watched.listed.notify_waiters();
                continue;
            }
            self.forget(member.rank);
            if is_beside(member) {
                let listed = Arc::<Notify>::default();
                let watch = watch(member.clone(), later.clone(), self.heartbeat, listed.clone());
                let task = tokio::spawn(watch).abort_handle();
                self.watched.insert(member.rank, Watched { member: member.member, listed, task });
            }
        }
    }

    fn forget(&mut self, rank: u32) {
        if let Some(watched) = self.watched.remove(&rank) {
            watched.task.abort();
        }
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.watched.values().for_each(|watched| watched.task.abort());
    }
}

fn is_beside(member: &Identity) -> bool {
    let space = process_space();
    !space.is_empty() && member.process_space == space && member.pid != std::process::id()
}

/// Waits until the process of a member has ended, and reports it to the group. Repeats that for two leases, because a
/// report is lost while the server is being replaced, and again whenever the server still lists the member.
async fn watch(member: Identity, later: Later, heartbeat: Heartbeat, listed: Arc<Notify>) {
    let Ok(()) = end(member.pid).await else { return };
    let Identity { rank, member, .. } = member;
    let again = heartbeat.interval.max(heartbeat.lease / 10);
    let times = 1 + (2 * heartbeat.lease).as_micros() / again.as_micros().max(1);
    loop {
        let listed = listed.notified(); // also if that happens during the reports
        for _ in 0..times {
            let Some(commands) = later.0.upgrade() else { return };
            if commands.send(Command::Tell(Notice::Ended { rank, member })).await.is_err() {
                return;
            }
            drop(commands);
            sleep(again).await;
        }
        listed.await;
    }
}

/// Waits until no process has this id any more. Errors if the kernel cannot report that.
async fn end(pid: u32) -> io::Result<()> {
    // SAFETY: a plain system call without pointers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) };
    }
    // SAFETY: the call above has just created it, and nobody else owns it.
    let process = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
    #[allow(deprecated, reason = "what replaces it is newer than the oldest tokio that will do")]
    let process = AsyncFd::with_interest(process, Interest::READABLE)?;
    process.readable().await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command as Program, Stdio};
    use std::time::{Duration, Instant};

    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::group::{Group, GroupOptions};
    use crate::rendezvous::RankState;
    use crate::rendezvous::driver::{Client, ClientOptions, Server, ServerOptions, block_on};
    use crate::rendezvous::wire::{Fields, Join, PROTOCOL_VERSION, Request};

    const SECOND: Duration = Duration::from_secs(1);

    /// The member of rank 1, whose process is `child`.
    fn identity(child: &Child, space: &str) -> Identity {
        Identity {
            rank: 1,
            member: 77,
            host: "here".to_owned(),
            pid: child.id(),
            process_space: space.to_owned(),
        }
    }

    fn process() -> Child {
        Program::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    /// Joins as the member of rank 1, whose process is `child`, over a connection that this process holds.
    fn join_as(child: &Child, space: &str, address: &str) -> Client {
        let run_id = "run".to_owned();
        let heartbeat = Heartbeat::default();
        let options = ClientOptions {
            address: address.to_owned(),
            run_id: run_id.clone(),
            token: None,
            deadline: 10 * SECOND,
            heartbeat,
        };
        let client = block_on("connect", Client::connect(options)).unwrap();
        let identity = identity(child, space);
        let join = Join {
            version: PROTOCOL_VERSION,
            run_id,
            world: 2,
            initial: 2,
            identity,
            deadline: 20 * SECOND,
            config: Fields::new(),
            listener: None,
        };
        block_on("join", client.call("join", Request::Join { join }, 20 * SECOND)).unwrap();
        client
    }

    fn is_dead_within(group: &Group, limit: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < limit {
            if group.watch().borrow().states[1] == (RankState::Dead {}) {
                return true;
            }
            std::thread::sleep(SECOND / 100);
        }
        false
    }

    /// Its connection stays open and keeps beating, like one that a child has inherited.
    fn dies_beside(space: &str, limit: Duration) -> bool {
        let server = Server::bind_blocking("127.0.0.1:0", ServerOptions::new("run", 2)).unwrap();
        let address = server.local_addr().to_string();
        let mut child = process();
        let (group, client) = std::thread::scope(|scope| {
            let group = scope.spawn(|| {
                Group::join_blocking(GroupOptions::new(0, 2, address.as_str()).run_id("run")).unwrap()
            });
            let client = join_as(&child, space, &address);
            (group.join().unwrap(), client)
        });
        assert!(!is_dead_within(&group, SECOND / 2));
        child.kill().unwrap();
        child.wait().unwrap();
        let is_dead = is_dead_within(&group, limit);
        drop(client);
        is_dead
    }

    #[test]
    fn a_process_that_ends_is_told_of_though_its_connection_stays() {
        assert!(dies_beside(process_space(), 20 * SECOND));
    }

    /// The server lists its members to a client that comes back. This one was away for longer than reports are repeated.
    #[tokio::test]
    async fn a_death_is_told_again_to_a_server_that_does_not_know_of_it() {
        let mut child = process();
        let member = identity(&child, process_space());
        let (commands, mut told) = mpsc::channel(64);
        let later = Later(commands.downgrade());
        let heartbeat = Heartbeat::default().interval(SECOND / 100).lease(SECOND / 100);
        let mut neighbours = Neighbours::new(heartbeat);
        neighbours.seated(std::slice::from_ref(&member), &later);
        neighbours.seated(std::slice::from_ref(&member), &later);
        assert!(timeout(SECOND / 2, told.recv()).await.is_err(), "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 0..2 {
            let first = timeout(20 * SECOND, told.recv()).await.unwrap();
            assert!(matches!(first, Some(Command::Tell(Notice::Ended { rank: 1, member: 77 }))), "{first:?}");
            while timeout(SECOND / 2, told.recv()).await.is_ok() {}
            neighbours.seated(std::slice::from_ref(&member), &later);
        }
    }

    /// A process id of another kernel means nothing here.
    #[test]
    fn a_process_of_another_kernel_is_not_watched() {
        assert!(!dies_beside("elsewhere", SECOND));
    }
}
