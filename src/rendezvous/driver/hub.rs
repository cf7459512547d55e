//! What a server does with its connections: it feeds the machine what arrives, and carries out what the machine says.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::dial::{is_loopback, is_refused};
use super::door::Door;
#[cfg(feature = "succession")]
use super::former::Former;
use super::heartbeat::{Awake, Heartbeat};
use super::ledger::Ledger;
use super::news::{Joined, Link, News, Outlet, Queued};
use super::options::ServerOptions;
use super::service::Service;
#[cfg(feature = "succession")]
use super::shared::Shared;
use super::turn::Turn;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::leases::Leases;
use crate::rendezvous::machine::{Action, Call, Event, Machine, SessionId};
use crate::rendezvous::wire::{Frame, Host, Request};

/// The task around the machine, and how connections reach it.
pub(crate) struct Hub {
    pub(crate) door: Door,
    task: JoinSet<()>,
}

impl Hub {
    /// Returns when nothing can be recorded any more.
    pub(crate) async fn failed(&mut self) {
        self.task.join_next().await;
    }

    /// Starts the task for a server that stands alone; it ends when this is dropped.
    pub(crate) fn alone(machine: Machine, options: &ServerOptions) -> Self {
        let (says, service) = watch::channel(Service::Serves { host: None });
        Self::start(Desk::new(Ledger::alone(machine), None, says, options.heartbeat), service, options)
    }

    /// Starts the task for a server that stands alone but keeps its state in the file at `path`, from which another
    /// process can continue.
    pub(crate) fn kept(path: &Path, fresh: Machine, options: &ServerOptions) -> Result<Self, BootstrapError> {
        let (says, service) = watch::channel(Service::Serves { host: None });
        let desk = Desk::new(Ledger::kept(path, fresh)?, None, says, options.heartbeat);
        Ok(Self::start(desk, service, options))
    }

    /// Starts the task for a server that shares the ledger with those of other members.
    #[cfg(feature = "succession")]
    pub(crate) fn shared(shared: Shared, host: Host, options: &ServerOptions) -> Self {
        let (says, service) = watch::channel(Service::Refers { leader: None });
        let log = shared.log();
        let desk = Desk::new(Ledger::Shared(Box::new(shared)), Some(host), says, options.heartbeat);
        let mut hub = Self::start(desk, service, options);
        hub.door.log = Some(log);
        hub
    }

    fn start(desk: Desk, service: watch::Receiver<Service>, options: &ServerOptions) -> Self {
        let (events, inbox) = mpsc::channel(MAX_NEWS);
        let mut task = JoinSet::new();
        let door = Door::new(events, desk.joined.clone(), service, options);
        task.spawn(desk.attend(inbox));
        Self { door, task }
    }
}

/// Time within which most clients have found another server.
const RETURN: Duration = Duration::from_millis(300);
/// News that may wait for the machine; if there are more, connections wait.
const MAX_NEWS: usize = 1024;

/// The machine's time: time in which this process ran.
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

    /// When to look again if something is due at `deadline`.
    fn next_look(&self, deadline: Option<Duration>) -> Instant {
        let Awake { interval, looked } = self.awake;
        looked + deadline.map_or(interval, |deadline| deadline.saturating_sub(self.ran).min(interval))
    }
}

/// The state of the task.
struct Desk {
    ledger: Ledger,
    /// The member that the server belongs to, if it belongs to one.
    host: Option<Host>,
    service: watch::Sender<Service>,
    clock: Clock,
    leases: Leases,
    #[cfg(feature = "succession")]
    former: Former,
    clients: HashMap<SessionId, Client>,
    /// The servers that vote, if the ledger is shared: those that can take over, and this one.
    servers: Vec<Host>,
    /// The ids of the clients' servers, for clients that have one.
    listeners: HashMap<SessionId, u128>,
    joined: Arc<watch::Sender<Joined>>,
    /// Members that have left, and must not end before their servers have stopped voting.
    leaving: Vec<(Duration, u128, Client)>,
    /// When to check whether absent members have ended.
    verify: Option<Duration>,
    /// Searches for members without a connection: if its server does not listen any more, the member has ended.
    searches: JoinSet<Option<SessionId>>,
    /// The server ends: connected clients must see that, and not that another one leads.
    ended: bool,
    /// Notified once this server no longer leads.
    successions: Vec<oneshot::Sender<bool>>,
}

/// A connected client.
struct Client {
    link: Link,
    outlet: Outlet,
    /// The calls whose answers it has, as it said last: up to the first number, except for some.
    received: (u64, BTreeSet<u64>),
}

impl Desk {
    fn new(
        ledger: Ledger,
        host: Option<Host>,
        service: watch::Sender<Service>,
        heartbeat: Heartbeat,
    ) -> Self {
        let mut desk = Self {
            ledger,
            host,
            service,
            clock: Clock::of(heartbeat),
            leases: Leases::new(heartbeat.lease),
            #[cfg(feature = "succession")]
            former: Former::default(),
            clients: HashMap::new(),
            servers: Vec::new(),
            listeners: HashMap::new(),
            joined: Arc::default(),
            leaving: Vec::new(),
            verify: None,
            searches: JoinSet::new(),
            ended: false,
            successions: Vec::new(),
        };
        desk.expect_all(None);
        desk
    }

    /// Grants all clients of the run a lease, and the one whose server led before the rest of its lease. Clients that
    /// have ended meanwhile will not come, but nobody has seen their connections close: `verify` says when to look for
    /// them.
    fn expect_all(&mut self, former: Option<(SessionId, Duration)>) {
        self.clock.ran = self.clock.ran.max(self.ledger.last());
        self.verify = Some(self.clock.ran + RETURN);
        self.leases.expect(self.clock.ran, self.ledger.sessions(), former, RETURN);
    }

    fn serves(&self) -> bool {
        matches!(*self.service.borrow(), Service::Serves { .. })
    }

    async fn attend(mut self, mut inbox: mpsc::Receiver<News>) {
        loop {
            let verify = self.verify.filter(|_| self.serves());
            let deadlines =
                [self.ledger.next_deadline(), self.leases.next_deadline(), self.release(), verify];
            let due = self.clock.next_look(deadlines.into_iter().flatten().min());
            tokio::select! {
                biased;
                turn = self.ledger.next(), if !self.ended => match turn {
                    Turn::Fail(_error) => {
                        #[cfg(feature = "tracing")]
                        tracing::error!(error = %_error, "the rendezvous server ends");
                        return;
                    }
                    turn => self.turn(turn),
                },
                // Handle what has arrived before timers: a sign of life that is already here was given in time.
                news = inbox.recv() => match news {
                    None => return,
                    Some(news) => self.take(news),
                },
                Some(searched) = self.searches.join_next() => {
                    if let Ok(Some(session)) = searched {
                        self.gone(session);
                    }
                }
                () = sleep_until(due) => self.tick(),
            }
        }
    }

    /// Checks which of the absent members that have servers have ended.
    fn search(&mut self, absent: &BTreeSet<SessionId>) {
        for (session, address) in self.ledger.addresses() {
            if absent.contains(&session) && self.can_reach(&address) {
                self.searches.spawn(async move { is_refused(&address).await.then_some(session) });
            }
        }
    }

    /// Whether that address leads to the server that has announced it. A loopback address does so only if all members
    /// are on this host: then they reach this server by loopback too.
    fn can_reach(&self, address: &str) -> bool {
        !is_loopback(address) || self.host.as_ref().is_some_and(|own| is_loopback(&own.address))
    }

    /// The process of this client has ended, unless it has come back.
    fn gone(&mut self, session: SessionId) {
        if !self.clients.contains_key(&session) {
            let now = self.clock.now();
            self.leases.forget(session);
            self.ledger.record(now, Event::Closed { session, by_peer: true });
        }
    }

    fn turn(&mut self, turn: Turn) {
        match turn {
            Turn::Do(action) => self.carry_out(action),
            Turn::Fail(_) => {} // the task ends
            #[cfg(feature = "succession")]
            Turn::Lead { former } => {
                #[cfg(feature = "tracing")]
                if let Some(Host { rank, address, .. }) = &self.host {
                    tracing::info!(rank, address, "this member's server leads the run");
                }
                self.service.send_replace(Service::Serves { host: self.host.clone() });
                self.former.look(self.clock.now(), former);
                let silent = std::mem::take(&mut self.former).silent();
                self.expect_all(silent);
            }
            #[cfg(feature = "succession")]
            Turn::Follow { leader } => {
                #[cfg(feature = "tracing")]
                if let Some(Host { rank, .. }) = &self.host {
                    let led = self.serves();
                    tracing::info!(rank, leader, led, "this member's server does not lead the run");
                }
                self.leases.clear();
                for (_, client) in self.clients.drain() {
                    client.outlet.say(Frame::Refer { leader: leader.clone() });
                }
                self.leaving.clear();
                self.service.send_replace(Service::Refers { leader });
                for told in self.successions.drain(..) {
                    let _ = told.send(true);
                }
            }
            #[cfg(feature = "succession")]
            Turn::Servers { hosts } => {
                for client in self.clients.values() {
                    client.outlet.say(Frame::Servers { hosts: hosts.clone() });
                }
                self.servers = hosts;
            }
        }
    }

    /// Releases members that have left and whose servers no longer vote, or that have waited for a lease. Returns when
    /// the next one is due.
    fn release(&mut self) -> Option<Duration> {
        let (now, ledger) = (self.clock.ran, &self.ledger);
        self.leaving.retain(|(until, listener, _)| *until > now && ledger.votes(*listener));
        self.leaving.iter().map(|(until, ..)| *until).min()
    }

    fn take(&mut self, news: News) {
        let now = self.clock.now();
        match news {
            News::Opened { session, link, outlet } => {
                if let Service::Refers { leader } = &*self.service.borrow() {
                    return outlet.say(Frame::Refer { leader: leader.clone() });
                }
                if !self.servers.is_empty() {
                    outlet.say(Frame::Servers { hosts: self.servers.clone() });
                }
                self.clients.insert(session, Client { link, outlet, received: Default::default() });
                self.heard(now, session);
            }
            News::Alive { session, link, received, except } => {
                let Some(client) = self.clients.get_mut(&session).filter(|client| client.link == link) else {
                    return;
                };
                let has = (received, except);
                if has != client.received {
                    let (through, except) = has.clone();
                    client.received = has;
                    self.ledger.record(now, Event::Received { session, through, except });
                }
                self.heard(now, session);
            }
            News::Said { session, link, event } => {
                if self.clients.get(&session).is_some_and(|client| client.link == link) {
                    self.heard(now, session);
                    if let Event::Request { request, .. } = &event {
                        self.asked((session, link), request);
                    }
                    self.ledger.record(now, event);
                }
            }
            News::Closed { session, link, by_peer } => {
                self.joined.send_if_modified(|joined| joined.remove(&link).is_some());
                if self.clients.get(&session).is_none_or(|client| client.link != link) {
                    return; // a connection that the client has replaced by another, or that this side has closed
                }
                self.clients.remove(&session);
                if by_peer {
                    self.listeners.remove(&session);
                    self.leases.forget(session);
                    self.ledger.record(now, Event::Closed { session, by_peer });
                } else {
                    self.leases.broken(now, session);
                }
            }
            News::Told(event) => self.ledger.record(now, event),
            News::Succeed(told) => {
                if self.serves() && self.ledger.leave() {
                    self.successions.push(told);
                } else {
                    let _ = told.send(!self.serves());
                }
            }
            News::Flush(mark) => {
                for client in self.clients.values() {
                    // A full queue is dealt with at the next frame.
                    let _ = client.outlet.frames.try_send(Queued::Mark(mark.clone()));
                }
            }
            News::End => {
                self.ended = true;
                // If another server or process continues the run, closing the connections is enough.
                if self.servers.len() > 1 || self.ledger.is_kept() {
                    return;
                }
                let (op, address) = ("use the run".to_owned(), String::new());
                let detail = "it has ended".to_owned();
                let error = BootstrapError::ServerLost { op, address, detail };
                for client in self.clients.values() {
                    client.outlet.say(Frame::Refused { error: error.clone() });
                }
            }
        }
    }

    /// Notes that a member, or a client that asks to join, uses this connection.
    fn asked(&mut self, (session, link): (SessionId, Link), request: &Request) {
        let (rank, listener) = match request {
            Request::Join { join } => {
                (Some(join.identity.rank), join.listener.as_ref().map(|listener| listener.id))
            }
            Request::Resume { .. } => (self.ledger.rank(session), self.ledger.listener(session)),
            _ => return,
        };
        self.listeners.extend(listener.map(|id| (session, id)));
        if let Some(rank) = rank {
            self.joined.send_if_modified(|joined| joined.insert(link, rank).is_none());
        }
    }

    fn heard(&mut self, now: Duration, session: SessionId) {
        if let Some(event) = self.leases.heard(now, session) {
            self.ledger.record(now, event);
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        #[cfg(feature = "succession")]
        self.former.look(now, self.ledger.former_leader());
        if !self.serves() {
            return;
        }
        let mut absent = BTreeSet::new();
        if self.verify.take_if(|verify| *verify <= now).is_some() {
            absent.extend(self.ledger.sessions());
            absent.retain(|session| !self.clients.contains_key(session));
        }
        for event in self.leases.expire(now) {
            if let Event::Closed { session, .. } = event {
                absent.insert(session);
                if self.ledger.rank(session).is_none() {
                    self.leases.forget(session); // the machine knows when its session ends
                }
            }
            self.ledger.record(now, event);
        }
        if !absent.is_empty() {
            self.search(&absent);
        }
        if self.ledger.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.ledger.record(now, Event::Tick);
        }
    }

    /// Sends the newest view, if it is still held back, before the next frame that is sent.
    fn show_before(&self, session: SessionId) {
        let Some(client) = self.clients.get(&session) else { return };
        if let Some(view) = client.outlet.view.send_replace(None) {
            client.outlet.say(Frame::Changed { view });
        }
    }

    fn carry_out(&mut self, action: Action) {
        let (session, frame) = match action {
            Action::Answer { call: Call { session, id }, result } => (session, Frame::Answer { id, result }),
            Action::Ask { session, ask } => (session, Frame::Ask { ask }),
            Action::Settle { session, change, outcome, retired, waiting } => {
                if outcome.is_ok() {
                    self.show_before(session);
                }
                (session, Frame::Settled { change, outcome, retired, waiting })
            }
            Action::Seat { session, members } => (session, Frame::Seated { members }),
            Action::Show { session, view } => {
                if let Some(client) = self.clients.get(&session) {
                    client.outlet.view.send_replace(Some(view));
                }
                return;
            }
            Action::Close { session } => {
                let (client, listener) = (self.clients.remove(&session), self.listeners.remove(&session));
                self.leases.forget(session);
                if let (Some(client), Some(listener)) = (client, listener) {
                    let until = self.clock.ran.saturating_add(self.leases.lease());
                    self.leaving.push((until, listener, client));
                }
                return;
            }
        };
        // A client that is not connected asks again when it comes back.
        let Some(client) = self.clients.get(&session) else { return };
        match client.outlet.frames.try_send(Queued::Frame(frame)) {
            // The connection has ended. Whether the peer closed it, and so is dead, is in news still waiting here.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            // A client that does not read is disconnected, and has a lease to come back.
            Err(TrySendError::Full(_)) => {
                self.clients.remove(&session);
                self.leases.broken(self.clock.now(), session);
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
        Ask, Identity, Join, Notice, PROTOCOL_VERSION, RankState, Reply, Request, Round, RoundKind,
    };

    const MINUTE: Duration = Duration::from_secs(60);
    const LEASE: Duration = Duration::from_secs(5);

    /// For two ranks.
    fn machine() -> Machine {
        let settings = Settings {
            run_id: String::new(),
            world: 2,
            initial: 2,
            join_deadline: MINUTE,
            lease: LEASE,
            arbiter: false,
        };
        Machine::new(settings).unwrap()
    }

    /// A hub, and the tasks of its connections.
    fn hub() -> (Hub, JoinSet<()>) {
        (Hub::alone(machine(), &ServerOptions::new("", 2)), JoinSet::new())
    }

    async fn connect(hub: &Hub, served: &mut JoinSet<()>, session: u64) -> DuplexStream {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let door = hub.door.clone();
        served.spawn(async move { door.attend(far, true).await });
        write_frame(&mut near, &Frame::Open { session }).await.unwrap();
        let Ok(Frame::Opened { host: None }) = read_frame(&mut near, OPEN_LIMIT).await else {
            panic!("not opened")
        };
        near
    }

    /// One that comes back may still know servers that have stopped voting meanwhile.
    #[test]
    fn who_connects_is_told_the_servers_even_if_only_one_is_left() {
        let (says, _service) = watch::channel(Service::Serves { host: None });
        let mut desk = Desk::new(Ledger::alone(machine()), None, says, Heartbeat::default());
        desk.servers = vec![Host { rank: 0, member: 1, address: "a".to_owned() }];
        let ((frames, mut queue), view) = (mpsc::channel(8), watch::channel(None).0);
        desk.take(News::Opened { session: 3, link: 0, outlet: Outlet { frames, view } });
        let Ok(Queued::Frame(Frame::Servers { hosts })) = queue.try_recv() else { panic!("not told") };
        assert_eq!(hosts, desk.servers);
    }

    /// What listens there on this host says nothing about a member of another one.
    #[test]
    fn a_loopback_address_leads_to_a_member_only_on_the_host_of_all() {
        let can_reach = |own: &str, address: &str| {
            let (says, _service) = watch::channel(Service::Serves { host: None });
            let host = Host { rank: 0, member: 1, address: own.to_owned() };
            Desk::new(Ledger::alone(machine()), Some(host), says, Heartbeat::default()).can_reach(address)
        };
        assert!(can_reach("127.0.0.1:1", "127.0.0.1:2") && can_reach("localhost:1", "127.0.1.1:2"));
        assert!(can_reach("10.0.0.1:1", "10.0.0.2:2") && can_reach("node0:1", "node1:2"));
        for loopback in ["127.0.0.1:2", "127.0.1.1:2", "[::1]:2", "[::ffff:127.0.0.1]:2"] {
            assert!(!can_reach("10.0.0.1:1", loopback) && !can_reach("node0:1", loopback), "{loopback}");
        }
    }

    async fn ask(stream: &mut DuplexStream, id: u64, request: Request) {
        write_frame(stream, &Frame::Call { id, request }).await.unwrap();
    }

    /// The answer to call `id`; views of the membership in between are skipped.
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
                initial: 2,
                identity: Identity {
                    rank,
                    member,
                    host: "here".to_owned(),
                    pid: 1,
                    process_space: String::new(),
                },
                deadline: MINUTE,
                config: Vec::new(),
                listener: None,
            },
        }
    }

    fn barrier() -> Request {
        let round =
            Round { tag: "b".to_owned(), ranks: Mask::all(2), deadline: MINUTE, kind: RoundKind::Barrier {} };
        Request::Round { round }
    }

    /// The clock jumps, as it does for a server that was stopped: what members said meanwhile has not been read yet.
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
                write_frame(member, &Frame::Ping { received: 0, except: BTreeSet::new() }).await.unwrap();
                while let Ok(frame) = timeout(Duration::from_millis(1), read_frame(member, OPEN_LIMIT)).await
                {
                    let Frame::Changed { view } = frame.unwrap() else { continue };
                    assert_eq!(view.states, [RankState::Alive {}; 2]);
                }
            }
        }
        // A member that is silent while the server runs is suspect nevertheless.
        let silent = timeout(2 * LEASE, async {
            loop {
                write_frame(&mut members[0], &Frame::Ping { received: 0, except: BTreeSet::new() })
                    .await
                    .unwrap();
                if let Frame::Changed { view } = read_frame(&mut members[0], OPEN_LIMIT).await.unwrap() {
                    return view.states[1];
                }
                tokio::time::sleep(LEASE / 10).await;
            }
        });
        assert_eq!(silent.await, Ok(RankState::Suspect {}));
    }

    /// A view may be held back as long as there is something else to say, but not if that is a decision.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_sees_the_membership_that_admits_it_before_it_hears_of_it() {
        let (hub, mut served) = hub();
        let mut stays = connect(&hub, &mut served, 0).await;
        let mut goes = connect(&hub, &mut served, 1).await;
        ask(&mut stays, 1, join(0, 1)).await;
        ask(&mut goes, 1, join(1, 2)).await;
        answer(&mut stays, 1).await;
        answer(&mut goes, 1).await;
        drop(goes);
        let mut newcomer = connect(&hub, &mut served, 2).await;
        ask(&mut newcomer, 1, join(1, 3)).await;
        write_frame(&mut newcomer, &Frame::Notice { notice: Notice::Ready {} }).await.unwrap();
        let serve = async {
            loop {
                let notice = match read_frame(&mut stays, OPEN_LIMIT).await.unwrap() {
                    Frame::Ask { ask: Ask::Promise { change, .. } } => Notice::Promise { change, step: 1 },
                    Frame::Ask { ask: Ask::Introduce { ticket, .. } } => {
                        Notice::Introduced { ticket, result: Ok(Vec::new()) }
                    }
                    _ => continue,
                };
                write_frame(&mut stays, &Frame::Notice { notice }).await.unwrap();
            }
        };
        let admitted = async {
            let mut seen = None;
            loop {
                match read_frame(&mut newcomer, OPEN_LIMIT).await.unwrap() {
                    Frame::Ask { ask: Ask::Meet { peers } } => {
                        let notice = Notice::Met { peers };
                        write_frame(&mut newcomer, &Frame::Notice { notice }).await.unwrap();
                    }
                    Frame::Changed { view } => seen = Some(view.states[1]),
                    Frame::Settled { outcome: Ok(decision), .. }
                        if decision.mask.contains(1) && decision.epoch > 1 =>
                    {
                        return seen;
                    }
                    _ => {}
                }
            }
        };
        let seen = tokio::select! {
            seen = timeout(MINUTE, admitted) => seen,
            () = serve => unreachable!("it continues"),
        };
        assert_eq!(seen, Ok(Some(RankState::Alive {})));
    }

    /// Rank 0 waits in a barrier and dies. The news that its connection has closed is queued after the call of rank 1
    /// that completes the barrier, so the answer to rank 0 reaches nobody.
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
