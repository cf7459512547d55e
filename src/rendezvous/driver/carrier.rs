//! The task behind a [`Client`](super::Client): carries its calls and signs of life, by one connection after another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::attendant::{Answer, Attendant, Command, Later};
use super::connection::{OPEN_LIMIT, ReadError, read_frame, too_long, write_frame};
use super::contact::{Contact, Outage};
use super::dial::{Credentials, Open, dial, is_refused};
use super::heartbeat::{Awake, Heartbeat};
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{
    Frame, HEADER_BYTES, Host, MAX_BODY_BYTES, Notice, Reply, Request, View, encode,
};
use crate::waking::contain;

/// Calls that one client may have waiting.
const MAX_PENDING: usize = 512;
/// How much longer than the server a client waits, so that the server's account of a timeout comes first.
const GRACE: Duration = Duration::from_millis(500);

/// Who hears of what the server says by itself.
pub(super) struct Told {
    pub(super) view: watch::Sender<View>,
    pub(super) servers: watch::Sender<Vec<String>>,
    pub(super) contact: watch::Sender<Contact>,
    pub(super) attendant: Option<Arc<dyn Attendant>>,
    pub(super) later: Later,
}

/// Where other connections come from, once the first is lost.
pub(super) struct Ways {
    pub(super) addresses: Vec<String>,
    /// Those that can take over.
    pub(super) servers: Vec<String>,
    pub(super) credentials: Credentials,
}

/// The task's state.
pub(super) struct Carrier {
    /// Of the server, for errors.
    address: String,
    heartbeat: Heartbeat,
    /// None: there is no other connection to be had.
    ways: Option<Ways>,
    told: Told,
    pending: BTreeMap<u64, Pending>,
    waiting: Vec<Waiting>,
    last_id: u64,
    /// It has joined a run: a new connection goes on with the session.
    member: bool,
    /// The member that serves the run, or served it last.
    host: Option<Host>,
    /// Whom it was told to serve it last.
    served: Option<u128>,
    /// The answer to a leave, which is told once the server has closed the connection: until then it may still need this process.
    left: Option<(Answer<Reply>, Instant)>,
    link: Link,
    silence: Silence,
}

struct Pending {
    op: String,
    /// To be asked again by another connection.
    request: Request,
    began: Instant,
    deadline: Duration,
    reply: Answer<Reply>,
}

struct Waiting {
    op: String,
    began: Instant,
    deadline: Duration,
    reply: Answer<()>,
}

enum Link {
    Up {
        connection: Connection,
        /// The server has not said yet that it goes on with the member.
        resuming: Option<Resuming>,
    },
    Down {
        detail: String,
        found: mpsc::Receiver<Found>,
        _search: JoinSet<()>,
        former: Option<Connection>,
        /// The member that served the run, whose process has ended: whoever serves it next is to know.
        ended: Option<Host>,
    },
}

/// The call by which a member goes on with its session, and what there is until it is answered.
struct Resuming {
    id: u64,
    /// The former connection, which the server is not to see closed before: it would take the member for dead.
    former: Option<Connection>,
    ended: Option<Host>,
}

/// What a search for the server finds.
enum Found {
    /// The process of the former one has ended.
    Ended,
    Open(Open),
}

/// A connection and the tasks that read and write it, which end with this.
struct Connection {
    arrivals: mpsc::Receiver<Result<Frame, ReadError>>,
    outgoing: mpsc::Sender<Frame>,
    _tasks: JoinSet<()>,
}

/// What the task wakes for.
enum Turn {
    Arrival(Option<Result<Frame, ReadError>>),
    Found(Found),
    Command(Option<Command>),
    Beat,
    Due,
}

/// Why the task ends.
enum End {
    /// There is no handle any more.
    Dropped,
    /// The member has left, or the server does not go on with it: what is still asked gets this.
    Over(String),
}

impl Connection {
    fn new<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (arrive, arrivals) = mpsc::channel::<Result<Frame, ReadError>>(64);
        // Room for every pending call and some signs of life: a full queue means that the server does not read.
        let (outgoing, mut queue) = mpsc::channel::<Frame>(MAX_PENDING + 64);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let frame = read_frame(&mut reader, OPEN_LIMIT).await;
                let last = frame.is_err();
                if arrive.send(frame).await.is_err() || last {
                    return;
                }
            }
        });
        tasks.spawn(async move {
            while let Some(frame) = queue.recv().await {
                if write_frame(&mut writer, &frame).await.is_err() {
                    // The reader learns why, after what has still come.
                    std::future::pending::<()>().await;
                }
            }
        });
        Self { arrivals, outgoing, _tasks: tasks }
    }
}

impl Carrier {
    /// On a connection that the server has opened for this client.
    pub(super) fn new<S>(
        stream: S,
        host: Option<Host>,
        address: String,
        heartbeat: Heartbeat,
        ways: Option<Ways>,
        told: Told,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let link = Link::Up { connection: Connection::new(stream), resuming: None };
        let served = host.as_ref().map(|host| host.member);
        let mut carrier = Self {
            address,
            heartbeat,
            ways,
            told,
            pending: BTreeMap::new(),
            waiting: Vec::new(),
            last_id: 0,
            member: false,
            host,
            served,
            left: None,
            link,
            silence: Silence::of(heartbeat),
        };
        carrier.reached();
        carrier
    }

    /// Says who it is, where no handshake has.
    pub(super) fn open(self, session: u64) -> Self {
        self.send(Frame::Open { session });
        self
    }

    /// Until the last handle is gone.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut beat = interval(self.silence.awake.interval);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            let turn = self.turn(&mut commands, &mut beat).await;
            let ended = match turn {
                Turn::Arrival(arrival) => {
                    self.silence.broken();
                    match arrival {
                        Some(Ok(frame)) => self.arrived(frame),
                        Some(Err(error)) => {
                            let closed = matches!(error, ReadError::ClosedByPeer | ReadError::Reset);
                            self.lost_by(explained(error, &self.address), closed)
                        }
                        None => self.lost("it closed the connection".to_owned()),
                    }
                }
                Turn::Found(Found::Ended) => {
                    self.host_ended();
                    None
                }
                Turn::Found(Found::Open(open)) => {
                    self.resume(open);
                    None
                }
                Turn::Command(None) => Some(End::Dropped),
                Turn::Command(Some(command)) => self.command(command),
                Turn::Beat => self.beat(),
                Turn::Due => self.expire(),
            };
            if let Some(end) = ended {
                break end;
            }
        };
        let End::Over(detail) = end else { return };
        self.unreachable(&detail, true);
        self.refuse_all(&detail);
        // The socket stays open while anyone may still use this rank's memory: that it closes is what tells the server
        // that this incarnation is gone.
        while let Some(command) = commands.recv().await {
            match command {
                Command::Call { op, reply, .. } => drop(reply.send(Err(self.error(&op, &detail)))),
                Command::Wait { op, reply, .. } => drop(reply.send(Err(self.error(&op, &detail)))),
                Command::Tell(_) => {}
            }
        }
    }

    async fn turn(&mut self, commands: &mut mpsc::Receiver<Command>, beat: &mut Interval) -> Turn {
        let answers = self.pending.values().map(|call| call.began + call.deadline + GRACE);
        let due = answers.chain(self.waiting.iter().map(|wait| wait.began + wait.deadline));
        let due = due.chain(self.left.iter().map(|(_, until)| *until)).min();
        let link = &mut self.link;
        let arrival = async {
            match link {
                Link::Up { connection, .. } => Turn::Arrival(connection.arrivals.recv().await),
                Link::Down { found, .. } => match found.recv().await {
                    Some(found) => Turn::Found(found),
                    None => std::future::pending().await, // it searches for ever
                },
            }
        };
        tokio::select! {
            // What has come counts before time does: an answer or a sign of life that waits here was given in time.
            biased;
            turn = arrival => turn,
            command = commands.recv() => Turn::Command(command),
            _ = beat.tick() => Turn::Beat,
            () = async { match due { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => Turn::Due,
        }
    }

    fn arrived(&mut self, frame: Frame) -> Option<End> {
        match frame {
            Frame::Answer { id, result } => return self.answered(id, result),
            Frame::Changed { view } => self.show(View::clone(&view)),
            Frame::Ask { ask } => {
                let Told { attendant, later, .. } = &self.told;
                let answer = attendant.as_ref().and_then(|attendant| attendant.asked(ask, later.clone()));
                self.wake();
                if let Some(notice) = answer {
                    return self.tell(notice);
                }
            }
            Frame::Settled { change, outcome, retired } => {
                if let Some(attendant) = &self.told.attendant {
                    attendant.settled(change, outcome, retired);
                }
                self.wake();
            }
            Frame::Opened { .. } | Frame::Pong {} => {}
            Frame::Servers { addresses } => {
                if let Some(ways) = &mut self.ways {
                    self.told.servers.send_replace(addresses.clone());
                    ways.servers = addresses;
                }
            }
            Frame::Refer { leader } => {
                if let (Some(ways), Some(leader)) = (&mut self.ways, leader) {
                    ways.prefer(leader);
                }
                return self.lost("another member leads the run".to_owned());
            }
            Frame::Refused { error } => {
                return Some(End::Over(match error {
                    BootstrapError::ServerLost { detail, .. } => detail,
                    other => other.to_string(),
                }));
            }
            _ => return self.lost("it sent a frame that has no place there".to_owned()),
        }
        None
    }

    fn answered(&mut self, id: u64, result: Result<Reply, BootstrapError>) -> Option<End> {
        if let Link::Up { resuming, .. } = &mut self.link
            && resuming.as_ref().is_some_and(|resuming| resuming.id == id)
        {
            // Drops the former connection.
            *resuming = None;
            if let Err(error) = result {
                return Some(End::Over(format!("it does not go on with this member: {error}")));
            }
            self.reached();
            if let Some(attendant) = &self.told.attendant {
                attendant.resumed();
            }
            self.wake();
            return None;
        }
        if let Ok(Reply::Joined { joined }) = &result {
            self.member = true;
            self.show(joined.view.clone());
            if let Some(attendant) = &self.told.attendant {
                attendant.joined(&joined.view);
            }
        }
        let call = self.pending.remove(&id)?;
        if matches!(call.request, Request::Leave {}) && result.is_ok() {
            self.left = Some((call.reply, Instant::now() + self.heartbeat.lease));
        } else {
            let _ = call.reply.send(result);
        }
        None
    }

    /// Wakes the tasks of whoever follows the membership.
    fn show(&self, shown: View) {
        if let Some(attendant) = &self.told.attendant {
            attendant.shown(&shown);
        }
        contain(|| drop(self.told.view.send_replace(shown)));
    }

    fn wake(&mut self) {
        self.waiting.drain(..).for_each(|wait| drop(wait.reply.send(Ok(()))));
    }

    fn command(&mut self, command: Command) -> Option<End> {
        match command {
            Command::Tell(notice) => self.tell(notice),
            Command::Wait { op, seen, deadline, reply } => {
                match &self.told.attendant {
                    Some(attendant) if attendant.news() == seen => {
                        self.waiting.push(Waiting { op, began: Instant::now(), deadline, reply });
                    }
                    _ => drop(reply.send(Ok(()))),
                }
                None
            }
            Command::Call { op, request, deadline, reply } => {
                self.last_id += 1;
                let frame = Frame::Call { id: self.last_id, request: request.clone() };
                let checked =
                    BootstrapError::check(&op, "calls waiting", self.pending.len() + 1, MAX_PENDING)
                        .and_then(|()| fits(&op, &frame));
                if let Err(error) = checked {
                    let _ = reply.send(Err(error));
                    return None;
                }
                let call = Pending { op, request, began: Instant::now(), deadline, reply };
                self.pending.insert(self.last_id, call);
                self.sent(frame)
            }
        }
    }

    /// Lost where there is no connection: the server asks again when there is.
    fn tell(&mut self, notice: Notice) -> Option<End> {
        self.sent(Frame::Notice { notice })
    }

    fn sent(&mut self, frame: Frame) -> Option<End> {
        if self.send(frame) { None } else { self.lost("it does not take what is sent".to_owned()) }
    }

    /// Whether it is on its way, or will be.
    fn send(&self, frame: Frame) -> bool {
        match &self.link {
            Link::Up { connection, .. } => connection.outgoing.try_send(frame).is_ok(),
            Link::Down { .. } => true,
        }
    }

    fn beat(&mut self) -> Option<End> {
        if matches!(self.link, Link::Down { .. }) {
            return None;
        }
        if self.silence.lasts() {
            return self.lost(format!("silent for {:?}", self.heartbeat.lease));
        }
        let received = self.received();
        self.sent(Frame::Ping { received })
    }

    /// The last call up to which all have been answered.
    fn received(&self) -> u64 {
        self.pending.first_key_value().map_or(self.last_id, |(id, _)| id - 1)
    }

    /// The connection is lost: there may be another.
    fn lost(&mut self, detail: String) -> Option<End> {
        self.lost_by(detail, false)
    }

    /// `closed`: the kernel of the other side has closed it.
    fn lost_by(&mut self, detail: String, closed: bool) -> Option<End> {
        if let Some((reply, _)) = self.left.take() {
            return Some(self.leave(reply));
        }
        self.unreachable(&detail, self.ways.is_none());
        let Some(ways) = &self.ways else { return Some(End::Over(detail)) };
        let (find, found) = mpsc::channel(2);
        let (addresses, credentials) = (ways.all(), ways.credentials.clone());
        let host = self.host.as_ref().filter(|_| closed).map(|host| host.address.clone());
        let mut search = JoinSet::new();
        search.spawn(async move {
            // A server listens for as long as its member lives. That it has closed the connection alone says little.
            if let Some(address) = host
                && is_refused(&address).await
            {
                let _ = find.send(Found::Ended).await;
            }
            loop {
                // What no other try would change here may change with the server.
                match dial(&addresses, &credentials, ROUND).await {
                    Ok(open) => return drop(find.send(Found::Open(open)).await),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        let (former, ended) = match std::mem::replace(&mut self.link, Link::nowhere()) {
            Link::Up { resuming: Some(resuming), .. } => (resuming.former, resuming.ended),
            Link::Up { connection, .. } => (Some(connection), None),
            Link::Down { former, ended, .. } => (former, ended),
        };
        self.link = Link::Down { detail, found, _search: search, former, ended };
        None
    }

    /// The server goes on with this client.
    fn reached(&mut self) {
        let former = self.told.contact.send_replace(Contact { host: self.host.clone(), outage: None });
        let served = self.host.as_ref().map(|host| host.member);
        let another = std::mem::replace(&mut self.served, served) != served;
        if let Some(attendant) = &self.told.attendant {
            attendant.reached(self.host.as_ref(), self.server(), another, former.outage.as_ref());
        }
    }

    /// There is no connection. `is_final`: nor will there be.
    fn unreachable(&self, detail: &str, is_final: bool) {
        let former = self.told.contact.borrow().outage.clone();
        if former.as_ref().is_some_and(|outage| outage.is_final) {
            return;
        }
        let since = former.map_or_else(|| Instant::now().into_std(), |outage| outage.since);
        let outage = Outage::new(since, detail, is_final);
        self.told.contact.send_replace(Contact { host: None, outage: Some(outage.clone()) });
        match &self.told.attendant {
            Some(attendant) => attendant.lost(self.server(), &outage),
            #[cfg(feature = "tracing")]
            None => tracing::warn!(address = self.server(), detail, is_final, "lost the rendezvous server"),
            #[cfg(not(feature = "tracing"))]
            None => {}
        }
    }

    /// The address of the server, as far as it is known.
    fn server(&self) -> &str {
        self.host.as_ref().map_or(&self.address, |host| &host.address)
    }

    fn host_ended(&mut self) {
        let Some(host) = self.host.take() else { return };
        if let Some(attendant) = &self.told.attendant {
            attendant.ended(&host);
        }
        if let Link::Down { ended, .. } = &mut self.link {
            *ended = Some(host);
        }
    }

    /// Goes on by a new connection: what has not been answered is asked again, in the same order.
    fn resume(&mut self, Open { stream, host }: Open) {
        let (former, ended) = match std::mem::replace(&mut self.link, Link::nowhere()) {
            Link::Down { former, ended, .. } => (former, ended),
            Link::Up { .. } => (None, None),
        };
        let connection = Connection::new(stream);
        let say = |frame| drop(connection.outgoing.try_send(frame));
        say(Frame::Ping { received: self.received() });
        (self.host, self.silence) = (host, Silence::of(self.heartbeat));
        let mut resuming = None;
        if self.member {
            self.last_id += 1;
            let standby = self.told.attendant.as_ref().is_some_and(|attendant| attendant.is_standby());
            say(Frame::Call { id: self.last_id, request: Request::Resume { standby } });
            if let Some(Host { rank, member, .. }) = &ended {
                say(Frame::Notice { notice: Notice::Ended { rank: *rank, member: *member } });
            }
            resuming = Some(Resuming { id: self.last_id, former, ended });
        } else {
            self.reached();
        }
        for (id, call) in &self.pending {
            say(Frame::Call { id: *id, request: call.request.clone() });
        }
        self.link = Link::Up { connection, resuming };
    }

    /// The server needs this member no more.
    fn leave(&mut self, reply: Answer<Reply>) -> End {
        const DETAIL: &str = "this member has left";
        self.link = Link::nowhere();
        let outage = Some(Outage::new(Instant::now().into_std(), DETAIL, true));
        self.told.contact.send_replace(Contact { host: None, outage });
        if let Some(attendant) = &self.told.attendant {
            attendant.left();
        }
        let _ = reply.send(Ok(Reply::Done {}));
        End::Over(DETAIL.to_owned())
    }

    /// Ends what has waited for too long.
    fn expire(&mut self) -> Option<End> {
        if let Some((reply, _)) = self.left.take_if(|(_, until)| *until <= Instant::now()) {
            return Some(self.leave(reply));
        }
        let late = |call: &Pending| call.began.elapsed() >= call.deadline + GRACE;
        let ids: Vec<u64> = self.pending.iter().filter(|(_, call)| late(call)).map(|(id, _)| *id).collect();
        let late: Vec<Pending> = ids.iter().filter_map(|id| self.pending.remove(id)).collect();
        for Pending { op, began, deadline, reply, .. } in late {
            let _ = reply.send(Err(self.overdue(op, began, deadline)));
        }
        let late = self.waiting.extract_if(.., |wait| wait.began.elapsed() >= wait.deadline);
        for Waiting { op, began, deadline, reply } in late.collect::<Vec<_>>() {
            let _ = reply.send(Err(self.overdue(op, began, deadline)));
        }
        None
    }

    fn overdue(&self, op: String, began: Instant, deadline: Duration) -> BootstrapError {
        match &self.link {
            Link::Down { detail, .. } => self.error(&op, detail),
            Link::Up { .. } => {
                let (elapsed, missing) = (began.elapsed(), Box::default());
                BootstrapError::Timeout { op, elapsed, deadline, missing }
            }
        }
    }

    fn refuse_all(&mut self, detail: &str) {
        let (address, pending) = (&self.address, std::mem::take(&mut self.pending));
        for call in pending.into_values() {
            let _ = call.reply.send(Err(BootstrapError::lost(&call.op, address, detail)));
        }
        for wait in self.waiting.drain(..) {
            let _ = wait.reply.send(Err(BootstrapError::lost(&wait.op, address, detail)));
        }
    }

    fn error(&self, op: &str, detail: &str) -> BootstrapError {
        BootstrapError::lost(op, &self.address, detail)
    }
}

/// How long one search for the server goes on before it begins again.
const ROUND: Duration = Duration::from_secs(60);

impl Link {
    /// While another takes its place, or after the last.
    fn nowhere() -> Self {
        let (_, found) = mpsc::channel(1);
        Self::Down { detail: String::new(), found, _search: JoinSet::new(), former: None, ended: None }
    }
}

impl Ways {
    /// Whom to try first from now on.
    fn prefer(&mut self, address: String) {
        self.addresses.retain(|known| *known != address);
        self.addresses.insert(0, address);
    }

    /// Where the server may be.
    fn all(&self) -> Vec<String> {
        let others = self.servers.iter().filter(|address| !self.addresses.contains(address));
        self.addresses.iter().chain(others).cloned().collect()
    }
}

fn explained(error: ReadError, address: &str) -> String {
    match error.explain("", address) {
        BootstrapError::ServerLost { detail, .. } => detail,
        other => other.to_string(),
    }
}

/// How long the server has been silent while this process ran.
struct Silence {
    awake: Awake,
    lease: Duration,
    heard_nothing: Duration,
}

impl Silence {
    fn of(heartbeat: Heartbeat) -> Self {
        Self { awake: Awake::of(heartbeat), lease: heartbeat.lease, heard_nothing: Duration::ZERO }
    }

    fn broken(&mut self) {
        self.awake.passed();
        self.heard_nothing = Duration::ZERO;
    }

    /// At each beat: whether the silence has lasted for a lease.
    fn lasts(&mut self) -> bool {
        self.heard_nothing += self.awake.passed();
        self.heard_nothing >= self.lease
    }
}

/// Whether a request fits a frame; small ones are seen to fit without encoding them twice.
fn fits(op: &str, frame: &Frame) -> Result<(), BootstrapError> {
    match frame {
        Frame::Call {
            request:
                Request::Round { .. }
                | Request::Join { .. }
                | Request::Introduce { .. }
                | Request::Set { .. }
                | Request::Get { .. },
            ..
        } => {
            encode(frame).map(|_| ()).map_err(|_| too_long(op, MAX_BODY_BYTES + HEADER_BYTES, MAX_BODY_BYTES))
        }
        _ => Ok(()),
    }
}
