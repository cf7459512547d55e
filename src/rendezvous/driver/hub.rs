//! What a server does with its connections: feeds the machine what comes, carries out what it says.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::door::Door;
use super::heartbeat::{Awake, Heartbeat};
use super::ledger::Ledger;
use super::news::{Link, News, Outlet, Queued};
use super::options::ServerOptions;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::leases::Leases;
use crate::rendezvous::machine::{Action, Call, ConnId, Event, Machine};
use crate::rendezvous::wire::Frame;

/// The task around the machine, and the way to it for connections.
pub(crate) struct Hub {
    pub(crate) door: Door,
    _task: JoinSet<()>,
}

impl Hub {
    /// Starts the task; it ends when this is dropped.
    pub(crate) fn start(machine: Machine, options: &ServerOptions) -> Self {
        let (events, inbox) = mpsc::channel(MAX_NEWS);
        let mut task = JoinSet::new();
        task.spawn(Desk::new(Ledger::new(machine), options.heartbeat).attend(inbox));
        Self { door: Door::new(events, options), _task: task }
    }
}

/// News that wait for the machine; connections wait when there are more.
const MAX_NEWS: usize = 1024;

/// The machine's time: that in which this process ran.
struct Clock {
    awake: Awake,
    ran: Duration,
}

impl Clock {
    fn of(heartbeat: Heartbeat) -> Self {
        Self { awake: Awake::of(heartbeat), ran: Duration::ZERO }
    }

    fn now(&mut self) -> Duration {
        self.ran += self.awake.passed();
        self.ran
    }

    /// When to look again, if something is due at `deadline`.
    fn next_look(&self, deadline: Option<Duration>) -> Instant {
        let Awake { interval, looked } = self.awake;
        looked + deadline.map_or(interval, |deadline| deadline.saturating_sub(self.ran).min(interval))
    }
}

/// The task's state.
struct Desk {
    ledger: Ledger,
    clock: Clock,
    leases: Leases,
    clients: HashMap<ConnId, Client>,
}

/// A client that is connected.
struct Client {
    link: Link,
    outlet: Outlet,
    received: u64,
}

impl Desk {
    fn new(ledger: Ledger, heartbeat: Heartbeat) -> Self {
        let (clock, mut leases) = (Clock::of(heartbeat), Leases::new(heartbeat.lease));
        ledger.sessions().into_iter().for_each(|conn| leases.expect(clock.ran, conn));
        Self { ledger, clock, leases, clients: HashMap::new() }
    }

    async fn attend(mut self, mut inbox: mpsc::Receiver<News>) {
        loop {
            let deadlines = [self.ledger.next_deadline(), self.leases.next_deadline()];
            let due = self.clock.next_look(deadlines.into_iter().flatten().min());
            tokio::select! {
                biased;
                action = self.ledger.next() => self.carry_out(action),
                // What has come counts before time does: a sign of life that waits here was given in time.
                news = inbox.recv() => match news {
                    None => return,
                    Some(news) => self.take(news),
                },
                () = sleep_until(due) => self.tick(),
            }
        }
    }

    fn take(&mut self, news: News) {
        let now = self.clock.now();
        match news {
            News::Opened { conn, link, outlet } => {
                self.clients.insert(conn, Client { link, outlet, received: 0 });
                self.heard(now, conn);
            }
            News::Alive { conn, link, received } => {
                let Some(client) = self.clients.get_mut(&conn).filter(|client| client.link == link) else {
                    return;
                };
                if received > client.received {
                    client.received = received;
                    self.ledger.record(now, Event::Received { conn, through: received });
                }
                self.heard(now, conn);
            }
            News::Said { conn, link, event } => {
                if self.clients.get(&conn).is_some_and(|client| client.link == link) {
                    self.heard(now, conn);
                    self.ledger.record(now, event);
                }
            }
            News::Closed { conn, link, by_peer } => {
                if self.clients.get(&conn).is_none_or(|client| client.link != link) {
                    return; // one that the client has given up for another, or that this side has closed
                }
                self.clients.remove(&conn);
                if by_peer {
                    self.leases.forget(conn);
                    self.ledger.record(now, Event::Closed { conn, by_peer });
                } else {
                    self.leases.broken(conn);
                }
            }
            News::Told(event) => self.ledger.record(now, event),
            News::Flush(mark) => {
                for client in self.clients.values() {
                    // A queue that is full has its own end, at the next frame.
                    let _ = client.outlet.frames.try_send(Queued::Mark(mark.clone()));
                }
            }
            News::End => {
                let (op, address) = ("use the run".to_owned(), String::new());
                let detail = "it has ended".to_owned();
                let error = BootstrapError::ServerLost { op, address, detail };
                for client in self.clients.values() {
                    let frame = Frame::Refused { error: error.clone() };
                    let _ = client.outlet.frames.try_send(Queued::Frame(frame));
                }
            }
        }
    }

    fn heard(&mut self, now: Duration, conn: ConnId) {
        if let Some(event) = self.leases.heard(now, conn) {
            self.ledger.record(now, event);
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        for event in self.leases.expire(now) {
            self.ledger.record(now, event);
        }
        if self.ledger.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.ledger.record(now, Event::Tick);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let (conn, frame) = match action {
            Action::Answer { call: Call { conn, id }, result } => (conn, Frame::Answer { id, result }),
            Action::Ask { conn, ask } => (conn, Frame::Ask { ask }),
            Action::Settle { conn, change, outcome } => (conn, Frame::Settled { change, outcome }),
            Action::Show { conn, view } => {
                if let Some(client) = self.clients.get(&conn) {
                    client.outlet.view.send_replace(Some(view));
                }
                return;
            }
            Action::Close { conn } => {
                self.clients.remove(&conn);
                self.leases.forget(conn);
                return;
            }
        };
        // Who is not connected asks again when it comes back.
        let Some(client) = self.clients.get(&conn) else { return };
        match client.outlet.frames.try_send(Queued::Frame(frame)) {
            // The connection has ended. Whether the peer closed it, and so is dead, stands in news that wait here.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            // Whoever does not read is cut off, and has a lease to come back.
            Err(TrySendError::Full(_)) => {
                self.clients.remove(&conn);
                self.leases.broken(conn);
            }
        }
    }
}
#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::time::timeout;

    use super::super::connection::{OPEN_LIMIT, read_frame, write_frame};
    use super::*;
    use crate::mask::Mask;
    use crate::rendezvous::machine::Settings;
    use crate::rendezvous::wire::{
        Identity, Join, PROTOCOL_VERSION, RankState, Reply, Request, Round, RoundKind,
    };

    const MINUTE: Duration = Duration::from_secs(60);
    const LEASE: Duration = Duration::from_secs(5);

    /// For two ranks, and the tasks of its connections.
    fn hub() -> (Hub, JoinSet<()>) {
        let settings = Settings { run_id: String::new(), world: 2, join_deadline: MINUTE, lease: LEASE };
        (Hub::start(Machine::new(settings).unwrap(), &ServerOptions::new("", 2)), JoinSet::new())
    }

    async fn connect(hub: &Hub, served: &mut JoinSet<()>, session: u64) -> DuplexStream {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let door = hub.door.clone();
        served.spawn(async move { door.attend(far, true).await });
        write_frame(&mut near, &Frame::Open { session }).await.unwrap();
        let Ok(Frame::Opened {}) = read_frame(&mut near, OPEN_LIMIT).await else { panic!("not opened") };
        near
    }

    async fn ask(stream: &mut DuplexStream, id: u64, request: Request) {
        write_frame(stream, &Frame::Call { id, request }).await.unwrap();
    }

    /// The answer to call `id`; the membership as it is shown meanwhile is left out.
    async fn answer(stream: &mut DuplexStream, id: u64) -> Reply {
        loop {
            match read_frame(stream, OPEN_LIMIT).await.unwrap() {
                Frame::Answer { id: of, result } if of == id => return result.unwrap(),
                Frame::Changed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn join(rank: u32, member: u128) -> Request {
        Request::Join {
            join: Join {
                version: PROTOCOL_VERSION,
                run_id: String::new(),
                world: 2,
                identity: Identity { rank, member, host: "here".to_owned(), pid: 1 },
                deadline: MINUTE,
                config: Vec::new(),
            },
        }
    }

    fn barrier() -> Request {
        let round =
            Round { tag: "b".to_owned(), ranks: Mask::all(2), deadline: MINUTE, kind: RoundKind::Barrier {} };
        Request::Round { round }
    }

    /// The clock jumps for the server as it does while it is stopped: what members say meanwhile is still to be read.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_server_makes_nobody_suspect() {
        let (hub, mut served) = hub();
        let mut members = [connect(&hub, &mut served, 0).await, connect(&hub, &mut served, 1).await];
        for (rank, member) in (0..).zip(&mut members) {
            ask(member, 1, join(rank, u128::from(rank) + 1)).await;
        }
        for member in &mut members {
            answer(member, 1).await;
        }
        for _ in 0..5 {
            tokio::time::advance(3 * LEASE).await;
            for member in &mut members {
                write_frame(member, &Frame::Ping { received: 0 }).await.unwrap();
                while let Ok(frame) = timeout(Duration::from_millis(1), read_frame(member, OPEN_LIMIT)).await
                {
                    let Frame::Changed { view } = frame.unwrap() else { continue };
                    assert_eq!(view.states, [RankState::Alive {}; 2]);
                }
            }
        }
        // Yet one that says nothing while the server runs is.
        let silent = timeout(2 * LEASE, async {
            loop {
                write_frame(&mut members[0], &Frame::Ping { received: 0 }).await.unwrap();
                if let Frame::Changed { view } = read_frame(&mut members[0], OPEN_LIMIT).await.unwrap() {
                    return view.states[1];
                }
                tokio::time::sleep(LEASE / 10).await;
            }
        });
        assert_eq!(silent.await, Ok(RankState::Suspect {}));
    }

    /// Rank 0 waits in a barrier and dies. That its connection has closed waits for the hub behind the call of rank 1 that
    /// completes the barrier, whose answer to rank 0 finds nobody.
    #[tokio::test(start_paused = true)]
    async fn who_closes_just_as_an_answer_falls_due_is_dead() {
        let (hub, mut served) = hub();
        let mut dying = connect(&hub, &mut served, 0).await;
        let mut other = connect(&hub, &mut served, 1).await;
        ask(&mut dying, 1, join(0, 1)).await;
        ask(&mut other, 1, join(1, 2)).await;
        answer(&mut dying, 1).await;
        answer(&mut other, 1).await;
        ask(&mut dying, 2, barrier()).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        ask(&mut other, 2, barrier()).await;
        drop(dying);
        assert_eq!(answer(&mut other, 2).await, Reply::Done {});
        let mut replacement = connect(&hub, &mut served, 2).await;
        ask(&mut replacement, 1, join(0, 3)).await;
        let Reply::Joined { joined } = answer(&mut replacement, 1).await else { panic!("not let in") };
        assert_eq!(joined.view.states[0], RankState::Standby {});
    }
}
