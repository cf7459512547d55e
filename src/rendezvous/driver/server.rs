//! The rendezvous server of a run: accepts connections, feeds the machine, carries out what it says, keeps the store.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Heartbeat;
use super::background::spawn;
use super::connection::{OPEN_LIMIT, ReadError, read_frame, receive_guest, write_frame};
use crate::env::Token;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::Mask;
use crate::rendezvous::auth::require;
use crate::rendezvous::machine::{Action, Call, ConnId, Event, Machine, Settings};
use crate::rendezvous::wire::{Frame, Reply, Request, View};
use crate::store::memory::Table;

/// What a server serves, and within which bounds.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name of the run; members must give the same.
    pub run_id: String,
    /// Number of ranks, 1 to 1024.
    pub world: u32,
    /// The secret of the run; needed to bind any address but loopback ones.
    pub token: Option<Token>,
    /// Longest time from the first join until all ranks are there.
    pub join_deadline: Duration,
    /// Signs of life and the handshake.
    pub heartbeat: Heartbeat,
    /// Connections that may be in the handshake at a time; more wait to be accepted.
    pub max_unauthenticated: usize,
    /// Connections past the handshake: members and clients of the store.
    pub max_connections: usize,
}

impl ServerOptions {
    /// A run of `world` ranks: no token, 120 s to come together, 64 handshakes at a time, four connections a rank.
    pub fn new(run_id: impl Into<String>, world: u32) -> Self {
        Self {
            run_id: run_id.into(),
            world,
            token: None,
            join_deadline: Duration::from_secs(120),
            heartbeat: Heartbeat::default(),
            max_unauthenticated: 64,
            max_connections: 64 + 4 * world as usize,
        }
    }
}

/// A running server, on a thread of its own. Dropping it ends it, without waiting: what it has answered still goes out,
/// for a lease at most, then its connections close, which its members report as [`BootstrapError::ServerLost`].
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    orders: mpsc::Sender<Order>,
}

/// What the owner of a server asks of it.
#[derive(Debug)]
enum Order {
    Ended { rank: u32, pid: u32 },
    Drain { deadline: Duration, done: oneshot::Sender<Mask> },
    Flush { done: oneshot::Sender<()> },
}

impl Server {
    /// Binds `address` (`host:port`; port 0 takes a free one) and starts to serve.
    ///
    /// Errors: [`BootstrapError::TokenRequired`] off loopback without a token, [`BootstrapError::System`] if the
    /// address can not be bound, [`BootstrapError::Limit`] for a world outside 1 to 1024. Works under any async
    /// runtime or none.
    pub async fn bind(address: &str, options: ServerOptions) -> Result<Self, BootstrapError> {
        let op = format!("serve the rendezvous at {address}");
        let machine = Machine::new(Settings {
            run_id: options.run_id.clone(),
            world: options.world,
            join_deadline: options.join_deadline,
            lease: options.heartbeat.lease,
        })?;
        let (bound, listening) = oneshot::channel();
        let (orders, inbox) = mpsc::channel(16);
        let address = address.to_owned();
        spawn("epwire-server", move || async move {
            match listen(&op, &address, options.token.as_ref()).await {
                Err(error) => drop(bound.send(Err(error))),
                Ok((listener, local)) => {
                    if bound.send(Ok(local)).is_ok() {
                        serve(listener, machine, options, inbox).await;
                    }
                }
            }
        })?;
        let ended = |_| BootstrapError::System {
            op: "serve the rendezvous".to_owned(),
            detail: "its thread ended at once".to_owned(),
        };
        Ok(Self { address: listening.await.map_err(ended)??, orders })
    }

    /// [`Server::bind`] for a plain thread.
    ///
    /// Errors: as there, and [`BootstrapError::BlockingInAsync`] on a thread of an async runtime.
    pub fn bind_blocking(address: &str, options: ServerOptions) -> Result<Self, BootstrapError> {
        super::block_on("serve the rendezvous", Self::bind(address, options))
    }

    /// The address bound, with the port that was taken.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Says that the process `pid` of `rank` has ended, as a launcher knows of its children: its rank may be taken by a
    /// replacement even if its socket was not seen to close. Nothing happens if `rank` is another process by now.
    pub async fn process_ended(&self, rank: u32, pid: u32) {
        let _ = self.orders.send(Order::Ended { rank, pid }).await;
    }

    /// Waits until no member is connected any more, at most `deadline`; gives the ranks that still are.
    pub async fn drained(&self, deadline: Duration) -> Mask {
        let (done, outcome) = oneshot::channel();
        // A server whose thread is gone has no connections.
        let _ = self.orders.send(Order::Drain { deadline, done }).await;
        outcome.await.unwrap_or_default()
    }

    /// Waits until every answer given so far is with the kernel or its connection is gone, at most a lease. A process
    /// that has learnt of a failure and ends because of it takes this server along: the others are to learn it first.
    pub(crate) async fn flushed(&self) {
        let (done, outcome) = oneshot::channel();
        // A server whose thread is gone has nothing left to write.
        let _ = self.orders.send(Order::Flush { done }).await;
        let _ = outcome.await;
    }
}

async fn listen(
    op: &str,
    address: &str,
    token: Option<&Token>,
) -> Result<(TcpListener, SocketAddr), BootstrapError> {
    let system = |error: std::io::Error| BootstrapError::system(op, &error);
    let candidates: Vec<SocketAddr> = tokio::net::lookup_host(address).await.map_err(system)?.collect();
    for candidate in &candidates {
        require(op, *candidate, token)?;
    }
    let listener = TcpListener::bind(&candidates[..]).await.map_err(system)?;
    let local = listener.local_addr().map_err(system)?;
    Ok((listener, local))
}

/// Serves until the handle is gone and what was answered is out. All tasks are this one's and end with it.
async fn serve(
    listener: TcpListener,
    machine: Machine,
    options: ServerOptions,
    mut orders: mpsc::Receiver<Order>,
) {
    let hub = Hub::start(machine, &options);
    let handshakes = Arc::new(Semaphore::new(options.max_unauthenticated));
    let options = Arc::new(options);
    let mut guests = JoinSet::new();
    loop {
        let accept = async {
            let permit = handshakes.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            order = orders.recv() => match order {
                None => break,
                Some(Order::Ended { rank, pid }) => {
                    let _ = hub.door.events.send(News::Machine(Event::Ended { rank, pid })).await;
                }
                Some(Order::Drain { deadline, done }) => {
                    let mut joined = hub.door.joined.subscribe();
                    guests.spawn(async move {
                        let _ = timeout(deadline, joined.wait_for(BTreeMap::is_empty)).await;
                        let _ = done.send(joined.borrow().values().copied().collect());
                    });
                }
                Some(Order::Flush { done }) => {
                    let door = hub.door.clone();
                    guests.spawn(async move {
                        door.flushed().await;
                        let _ = done.send(());
                    });
                }
            },
            (permit, accepted) = accept => match accepted {
                Ok((stream, peer)) => {
                    let (door, options) = (hub.door.clone(), options.clone());
                    guests.spawn(async move { welcome(stream, peer, permit, &options, door).await });
                }
                // Out of descriptors, most likely: others have to end first.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
            Some(_) = guests.join_next() => {}
        }
    }
    // The address is free for another server at once.
    drop(listener);
    hub.door.flushed().await;
}

async fn welcome<P>(mut stream: TcpStream, peer: SocketAddr, permit: P, options: &ServerOptions, door: Door) {
    let _ = stream.set_nodelay(true);
    let greeted =
        receive_guest(&mut stream, &peer.to_string(), options.token.as_ref(), options.heartbeat.handshake)
            .await;
    drop(permit);
    match greeted {
        Ok(()) => {
            let conn = door.next_conn();
            let same_host = stream.local_addr().is_ok_and(|local| local.ip() == peer.ip());
            door.attend(conn, stream, same_host).await;
        }
        #[cfg(feature = "tracing")]
        Err(error) => tracing::warn!(%peer, %error, "refused a connection"),
        #[cfg(not(feature = "tracing"))]
        Err(_) => {}
    }
}

/// Requests to the store that one connection may have waiting.
const MAX_STORE_WAITS: usize = 64;
/// Frames that wait to be written to one connection; a peer that lets more pile up is cut off.
const MAX_QUEUED: usize = 1024;
/// How long a connection that this side ends may take to deliver what was sent.
const LINGER: Duration = Duration::from_secs(1);
/// News that wait for the machine; connections wait when there are more.
const MAX_NEWS: usize = 1024;

enum News {
    Opened { conn: ConnId, outlet: Outlet },
    Machine(Event),
    Flush(Mark),
}

/// Goes behind what is queued for each connection and is dropped there once all before it is written, or can not be: no
/// copy is left when everything is out.
type Mark = mpsc::Sender<Infallible>;

/// What waits to be written to one connection.
#[expect(clippy::large_enum_variant, reason = "nearly all are frames")]
enum Queued {
    Frame(Frame),
    Mark(Mark),
}

/// What the hub has to say to one connection. Of views only the newest counts, so they do not pile up.
struct Outlet {
    frames: mpsc::Sender<Queued>,
    view: watch::Sender<Option<Arc<View>>>,
}

/// The task around the machine and the store, and the way to it for connections.
pub(crate) struct Hub {
    pub(crate) door: Door,
    _task: JoinSet<()>,
}

/// Lets connections in.
#[derive(Clone)]
pub(crate) struct Door {
    events: mpsc::Sender<News>,
    table: Arc<Table>,
    /// Open connections that asked to join, and as which rank; gone once everything sent to them is out.
    joined: Arc<watch::Sender<BTreeMap<ConnId, u32>>>,
    /// Connections that there ever were: the source of their ids.
    counted: Arc<AtomicU64>,
    slots: Arc<Semaphore>,
    lease: Duration,
}

impl Hub {
    /// Starts the task; it ends when this is dropped.
    pub(crate) fn start(machine: Machine, options: &ServerOptions) -> Self {
        let (events, inbox) = mpsc::channel(MAX_NEWS);
        let mut task = JoinSet::new();
        task.spawn(attend_machine(machine, inbox));
        let door = Door {
            events,
            table: Arc::new(Table::default()),
            joined: Arc::default(),
            lease: options.heartbeat.lease,
            counted: Arc::default(),
            slots: Arc::new(Semaphore::new(options.max_connections)),
        };
        Self { door, _task: task }
    }
}

/// Feeds the machine and carries out its actions.
async fn attend_machine(mut machine: Machine, mut inbox: mpsc::Receiver<News>) {
    let origin = Instant::now();
    let mut outlets: HashMap<ConnId, Outlet> = HashMap::new();
    loop {
        let due = machine.next_deadline().map(|deadline| origin + deadline);
        let event = tokio::select! {
            // What has come counts before time does: a sign of life that waits here was given in time.
            biased;
            news = inbox.recv() => match news {
                None => return,
                Some(News::Opened { conn, outlet }) => {
                    outlets.insert(conn, outlet);
                    continue;
                }
                Some(News::Flush(mark)) => {
                    for outlet in outlets.values() {
                        // A queue that is full has its own end, at the next frame.
                        let _ = outlet.frames.try_send(Queued::Mark(mark.clone()));
                    }
                    continue;
                }
                Some(News::Machine(event)) => event,
            },
            () = async { match due { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => {
                Event::Tick
            }
        };
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            if let Event::Closed { conn, .. } = event {
                outlets.remove(&conn);
            }
            for action in machine.handle(origin.elapsed(), event) {
                let (conn, frame) = match action {
                    Action::Answer { call: Call { conn, id }, result } => {
                        (conn, Frame::Answer { id, result })
                    }
                    Action::Show { conn, view } => {
                        if let Some(outlet) = outlets.get(&conn) {
                            outlet.view.send_replace(Some(view));
                        }
                        continue;
                    }
                    Action::Close { conn } => {
                        outlets.remove(&conn);
                        continue;
                    }
                };
                // Whoever does not read is cut off, which makes it suspect, not dead: this side closed.
                if outlets
                    .get(&conn)
                    .is_some_and(|outlet| outlet.frames.try_send(Queued::Frame(frame)).is_err())
                {
                    outlets.remove(&conn);
                    events.push(Event::Closed { conn, by_peer: false });
                }
            }
        }
    }
}

impl Door {
    /// A name for a new connection.
    fn next_conn(&self) -> ConnId {
        self.counted.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until all that the machine has said so far is written or can not be, at most a lease.
    async fn flushed(&self) {
        let (mark, mut marks) = mpsc::channel(1);
        let gone = async {
            let _ = self.events.send(News::Flush(mark)).await;
            marks.recv().await
        };
        let _ = timeout(self.lease, gone).await;
    }

    /// Serves one connection, past the handshake, until it closes.
    pub(crate) async fn attend<S>(self, conn: ConnId, stream: S, same_host: bool)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let Ok(_slot) = self.slots.clone().try_acquire_owned() else { return };
        let (frames, mut queue) = mpsc::channel(MAX_QUEUED);
        // The hub holds the only lasting sender: when it drops it, the writer ends after the last frame.
        let replies = frames.downgrade();
        let (view, mut views) = watch::channel(None);
        let outlet = Outlet { frames, view };
        if self.events.send(News::Opened { conn, outlet }).await.is_err() {
            return;
        }
        let (mut reader, mut writer) = tokio::io::split(stream);
        let write = async {
            loop {
                let frame = tokio::select! {
                    biased;
                    frame = queue.recv() => match frame {
                        Some(Queued::Frame(frame)) => frame,
                        Some(Queued::Mark(mark)) => {
                            drop(mark);
                            continue;
                        }
                        None => return,
                    },
                    Ok(()) = views.changed() => match views.borrow_and_update().clone() {
                        Some(view) => Frame::Changed { view },
                        None => continue,
                    },
                };
                if write_frame(&mut writer, &frame).await.is_err() {
                    // The reader learns why.
                    std::future::pending::<()>().await;
                }
            }
        };
        let by_peer = tokio::select! {
            by_peer = self.listen(conn, &mut reader, replies, same_host) => by_peer,
            () = write => {
                // Closed with bytes unread, a socket throws away what it has not sent yet: let the peer close first.
                let end = async {
                    let _ = writer.shutdown().await;
                    tokio::io::copy(&mut reader, &mut tokio::io::sink()).await
                };
                let _ = timeout(LINGER, end).await;
                false
            }
        };
        let _ = self.events.send(News::Machine(Event::Closed { conn, by_peer })).await;
        self.joined.send_if_modified(|joined| joined.remove(&conn).is_some());
    }

    /// Takes frames in until none come any more; whether the peer's process can be taken for ended.
    async fn listen<R>(
        &self,
        conn: ConnId,
        reader: &mut R,
        replies: mpsc::WeakSender<Queued>,
        same_host: bool,
    ) -> bool
    where
        R: AsyncRead + Unpin,
    {
        let waits = Arc::new(Semaphore::new(MAX_STORE_WAITS));
        let mut store_calls = JoinSet::new();
        let mut last_heard;
        loop {
            last_heard = Instant::now();
            let news = match read_frame(reader, OPEN_LIMIT).await {
                Ok(Frame::Ping {}) => {
                    if let Some(replies) = replies.upgrade() {
                        let _ = replies.try_send(Queued::Frame(Frame::Pong {}));
                    }
                    Event::Heard { conn }
                }
                Ok(Frame::Call { id, request: Request::Store { request } }) => {
                    while store_calls.try_join_next().is_some() {}
                    let Some(replies) = replies.upgrade() else { return false };
                    match waits.clone().try_acquire_owned() {
                        Ok(permit) => {
                            let (table, replies) = (self.table.clone(), replies.downgrade());
                            store_calls.spawn(async move {
                                let result = table.handle(request).await.map(|reply| Reply::Store { reply });
                                if let Some(replies) = replies.upgrade() {
                                    let _ = replies.send(Queued::Frame(Frame::Answer { id, result })).await;
                                }
                                drop(permit);
                            });
                        }
                        Err(_) => {
                            let result = BootstrapError::check(
                                "store",
                                "requests waiting on one connection",
                                MAX_STORE_WAITS + 1,
                                MAX_STORE_WAITS,
                            );
                            let _ = replies.try_send(Queued::Frame(Frame::Answer {
                                id,
                                result: result.map(|()| Reply::Done {}),
                            }));
                        }
                    }
                    Event::Heard { conn }
                }
                Ok(Frame::Call { id, request }) => {
                    if let Request::Join { join } = &request {
                        let rank = join.identity.rank;
                        self.joined.send_if_modified(|joined| joined.insert(conn, rank).is_none());
                    }
                    Event::Request { call: Call { conn, id }, request: Box::new(request) }
                }
                Ok(_) | Err(ReadError::Wire(_) | ReadError::Broken(_)) => return false,
                Err(ReadError::ClosedByPeer) => return true,
                // After a partition the other kernel resets a connection that it gave up while the process lives on.
                // On this host there are no partitions, and one just heard is on this side of any.
                Err(ReadError::Reset) => return same_host || last_heard.elapsed() < self.lease,
            };
            if self.events.send(News::Machine(news)).await.is_err() {
                return false;
            }
        }
    }
}
