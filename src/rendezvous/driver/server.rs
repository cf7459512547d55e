//! The rendezvous server of a run: its handle, and the thread that accepts connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::background::{block_on, spawn};
#[cfg(feature = "succession")]
use super::connection::random;
use super::connection::receive_guest;
use super::door::Door;
use super::hub::Hub;
use super::news::News;
use super::options::ServerOptions;
#[cfg(feature = "succession")]
use super::peers::Peers;
#[cfg(feature = "succession")]
use super::shared::Shared;
use crate::env::Token;
use crate::mask::Mask;
use crate::rendezvous::auth::require;
use crate::rendezvous::error::BootstrapError;
#[cfg(feature = "succession")]
use crate::rendezvous::log::{AppendError, Voter};
use crate::rendezvous::machine::{Event, Machine, Settings};
#[cfg(feature = "succession")]
use crate::rendezvous::wire::Host;
use crate::rendezvous::wire::Listener;
use crate::waking::shielded;

/// A running server, on a thread of its own. Dropping it ends it, without waiting: what it has answered is still sent,
/// for a lease at most, then its connections close, which its members report as [`BootstrapError::ServerLost`] unless
/// the server of another member takes over.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    orders: mpsc::Sender<Order>,
    /// How other members know it, if it belongs to a member.
    listener: Option<Listener>,
    run_id: String,
    token: Option<Token>,
}

/// What the owner of a server asks of it.
#[derive(Debug)]
enum Order {
    Ended { rank: u32, pid: u32 },
    Drain { deadline: Duration, done: oneshot::Sender<Mask> },
    Flush { done: oneshot::Sender<()> },
    Elect { address: String, resigned: bool },
    Succeed { deadline: Duration, done: oneshot::Sender<bool> },
}

/// Begins an election at a server, which then need not wait until the leader counts as silent.
#[derive(Clone, Debug)]
pub(crate) struct Elector(mpsc::WeakSender<Order>);

impl Elector {
    /// The member that led, with its server at this address, has ended or has itself declared that it no longer leads.
    pub(crate) fn elect(&self, address: &str, resigned: bool) {
        if let Some(orders) = self.0.upgrade() {
            let _ = orders.try_send(Order::Elect { address: address.to_owned(), resigned });
        }
    }
}

/// Reports processes that have ended to a server. Does not keep the server alive.
#[derive(Clone, Debug)]
pub(crate) struct Deaths(mpsc::WeakSender<Order>);

impl Deaths {
    /// As [`Server::process_ended`], from a plain thread: false if the server cannot take it at the moment.
    pub(crate) fn report(&self, rank: u32, pid: u32) -> bool {
        let Some(orders) = self.0.upgrade() else { return true };
        !matches!(orders.try_send(Order::Ended { rank, pid }), Err(mpsc::error::TrySendError::Full(_)))
    }
}

/// How a server begins.
enum Part {
    /// With a run that no other server shares.
    Alone(Box<Machine>),
    /// With a run that others can take over, and that it leads first.
    #[cfg(feature = "succession")]
    Founds(Settings, Seat),
    /// With a run that it may take over.
    #[cfg(feature = "succession")]
    Follows(Seat),
}

/// The member that a server belongs to.
#[cfg_attr(not(feature = "succession"), expect(dead_code, reason = "nobody takes over"))]
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) rank: u32,
    pub(crate) member: u128,
    /// The address at which the others reach it, if that is not the bound address.
    pub(crate) address: Option<String>,
}

impl Server {
    /// Binds `address` (`host:port`; port 0 takes a free one) and starts to serve.
    ///
    /// Errors: [`BootstrapError::TokenRequired`] for an address other than loopback without a token,
    /// [`BootstrapError::System`] if the address cannot be bound or the state file cannot be used,
    /// [`BootstrapError::Invalid`] if its name does not resolve or that file belongs to another run, [`BootstrapError::Limit`] for a world outside 1
    /// to 1024. Works with any async runtime or none.
    pub async fn bind(address: &str, options: ServerOptions) -> Result<Self, BootstrapError> {
        let machine = Machine::new(settings(&options, true))?;
        Self::start(address, None, options, Part::Alone(Box::new(machine)), Duration::ZERO).await
    }

    /// The server of the member that begins the run; the servers of others can take over from it.
    pub(crate) async fn found(
        address: &str,
        options: ServerOptions,
        _seat: Seat,
    ) -> Result<Self, BootstrapError> {
        #[cfg(feature = "succession")]
        {
            let settings = settings(&options, false);
            Machine::new(settings.clone())?; // checks that it can be made
            let patience = options.join_deadline;
            Self::start(address, None, options, Part::Founds(settings, _seat), patience).await
        }
        #[cfg(not(feature = "succession"))]
        {
            let machine = Machine::new(settings(&options, false))?;
            let patience = options.join_deadline;
            Self::start(address, None, options, Part::Alone(Box::new(machine)), patience).await
        }
    }

    /// The server of another member, which refers to the leader and may take over from it. `ports`: the first and the
    /// last port on which it may listen, instead of the address's own.
    pub(crate) async fn follow(
        _address: &str,
        _ports: Option<(u16, u16)>,
        _options: ServerOptions,
        _seat: Seat,
    ) -> Result<Option<Self>, BootstrapError> {
        #[cfg(feature = "succession")]
        return Self::start(_address, _ports, _options, Part::Follows(_seat), Duration::ZERO).await.map(Some);
        #[cfg(not(feature = "succession"))]
        Ok(None)
    }

    /// `patience`: for how long a name that does not resolve is looked up again.
    async fn start(
        address: &str,
        ports: Option<(u16, u16)>,
        options: ServerOptions,
        part: Part,
        patience: Duration,
    ) -> Result<Self, BootstrapError> {
        let options = ServerOptions { heartbeat: options.heartbeat.bounded(), ..options };
        let mut op = format!("serve the rendezvous at {address}");
        if let Some((first, last)) = ports {
            op += &format!(" on one of ports {first} to {last}");
        }
        let (bound, listening) = oneshot::channel();
        let (orders, inbox) = mpsc::channel(16);
        let address = address.to_owned();
        let (run_id, token) = (options.run_id.clone(), options.token.clone());
        spawn("epwire-server", move || async move {
            let began = async {
                let candidates = resolve(&op, &address, patience, options.join_deadline).await?;
                let (listener, local) = listen(&op, candidates, ports, options.token.as_ref()).await?;
                let (hub, own) = part.begin(&op, local, &options).await?;
                Ok((listener, local, hub, own))
            };
            match began.await {
                Err(error) => drop(bound.send(Err(error))),
                Ok((listener, local, hub, own)) => {
                    if bound.send(Ok((local, own))).is_ok() {
                        serve(listener, hub, options, inbox).await;
                    }
                }
            }
        })?;
        let ended = |_| BootstrapError::System {
            op: "serve the rendezvous".to_owned(),
            detail: "its thread ended at once".to_owned(),
        };
        let (address, listener) = shielded(listening).await.map_err(ended)??;
        Ok(Self { address, orders, listener, run_id, token })
    }

    /// [`Server::bind`] for a plain thread.
    ///
    /// Errors: as there, and [`BootstrapError::BlockingInAsync`] on a thread of an async runtime.
    pub fn bind_blocking(address: &str, options: ServerOptions) -> Result<Self, BootstrapError> {
        block_on("serve the rendezvous", Self::bind(address, options))
    }

    /// The bound address, with the actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Reports that the process `pid` of `rank` has ended, as a launcher knows about its children: a replacement may
    /// take its rank even if nobody has seen its socket close. Nothing happens if `rank` is another process by now.
    pub async fn process_ended(&self, rank: u32, pid: u32) {
        let _ = shielded(self.orders.send(Order::Ended { rank, pid })).await;
    }

    /// Waits until no member is connected any more, at most `deadline`; returns the ranks that still are.
    pub async fn drained(&self, deadline: Duration) -> Mask {
        let (done, outcome) = oneshot::channel();
        // A server whose thread has ended has no connections.
        let _ = shielded(self.orders.send(Order::Drain { deadline, done })).await;
        shielded(outcome).await.unwrap_or_default()
    }

    /// Waits until it no longer serves although it has not been dropped: its state file could not be written, so
    /// nothing may be answered.
    pub async fn ended(&self) {
        shielded(self.orders.closed()).await;
    }

    /// What a member needs to be accepted.
    pub(crate) fn credentials(&self) -> (&str, Option<&Token>) {
        (&self.run_id, self.token.as_ref())
    }

    /// For a caller that sees processes end.
    pub(crate) fn deaths(&self) -> Deaths {
        Deaths(self.orders.downgrade())
    }

    /// How other members know it.
    pub(crate) fn listener(&self) -> Option<Listener> {
        self.listener.clone()
    }

    /// For a caller that learns that the process of the leading member has ended. Does not keep the server alive.
    pub(crate) fn elector(&self) -> Option<Elector> {
        self.listener.as_ref().map(|_| Elector(self.orders.downgrade()))
    }

    /// Lets the server of another member lead, if one can; returns whether this one no longer leads, within the
    /// deadline.
    pub(crate) async fn succeeded(&self, deadline: Duration) -> bool {
        let (done, outcome) = oneshot::channel();
        let _ = shielded(self.orders.send(Order::Succeed { deadline, done })).await;
        shielded(outcome).await.unwrap_or(true)
    }

    /// Waits until every answer given so far has been passed to the kernel or its connection is gone, at most a lease.
    /// A process that has learned of a failure and ends because of it takes this server with it: the others should
    /// learn of the failure first.
    pub(crate) async fn flushed(&self) {
        let (done, outcome) = oneshot::channel();
        // A server whose thread has ended has nothing left to write.
        let _ = shielded(self.orders.send(Order::Flush { done })).await;
        let _ = shielded(outcome).await;
    }
}

/// `arbiter`: the server does not belong to a member.
fn settings(options: &ServerOptions, arbiter: bool) -> Settings {
    Settings {
        run_id: options.run_id.clone(),
        world: options.world,
        initial: options.initial,
        join_deadline: options.join_deadline,
        lease: options.heartbeat.bounded().lease,
        arbiter,
    }
}

impl Part {
    /// The hub of a server that is bound to `local`, and how others know the server.
    async fn begin(
        self,
        _op: &str,
        _local: SocketAddr,
        options: &ServerOptions,
    ) -> Result<(Hub, Option<Listener>), BootstrapError> {
        match self {
            Self::Alone(machine) => {
                let hub = match &options.state {
                    Some(path) => Hub::kept(path, *machine, options)?,
                    None => Hub::alone(*machine, options),
                };
                Ok((hub, None))
            }
            #[cfg(feature = "succession")]
            Self::Founds(settings, seat) => seat.begin(_op, _local, options, Some(settings)).await,
            #[cfg(feature = "succession")]
            Self::Follows(seat) => seat.begin(_op, _local, options, None).await,
        }
    }
}

#[cfg(feature = "succession")]
impl Seat {
    async fn begin(
        self,
        op: &str,
        local: SocketAddr,
        options: &ServerOptions,
        founds: Option<Settings>,
    ) -> Result<(Hub, Option<Listener>), BootstrapError> {
        let Self { rank, member, address } = self;
        let address = address.unwrap_or_else(|| local.to_string());
        let own = Voter { id: u128::from_le_bytes(random(op)?), address: address.clone() };
        let listener = Listener { id: own.id, address: address.clone() };
        let peers = Peers::new(options.run_id.clone(), options.token.clone());
        let shared = match founds {
            Some(settings) => Shared::found(own, settings, peers).await,
            None => Shared::follow(own, peers).await,
        };
        let failed =
            |error: AppendError| BootstrapError::System { op: op.to_owned(), detail: error.to_string() };
        let host = Host { rank, member, address };
        Ok((Hub::shared(shared.map_err(failed)?, host, options), Some(listener)))
    }
}

/// The addresses of a name that DNS may learn of later than its host starts. Each look-up ends within `deadline`.
async fn resolve(
    op: &str,
    address: &str,
    patience: Duration,
    deadline: Duration,
) -> Result<Vec<SocketAddr>, BootstrapError> {
    const PAUSE: Duration = Duration::from_millis(500);
    let began = Instant::now();
    loop {
        // The last of several ends with the patience.
        let left = if patience.is_zero() { deadline } else { patience.saturating_sub(began.elapsed()) };
        let found = timeout(left, tokio::net::lookup_host(address)).await;
        let (detail, is_final) = match found {
            Ok(Ok(candidates)) => return Ok(candidates.collect()),
            Ok(Err(error)) => (error.to_string(), error.kind() == std::io::ErrorKind::InvalidInput),
            Err(_) => (format!("its name was not resolved within {left:?}"), true),
        };
        if is_final || began.elapsed() + PAUSE >= patience {
            let (op, field, value) = (op.to_owned(), "address".to_owned(), address.to_owned());
            return Err(BootstrapError::Invalid { op, field, value, reason: detail });
        }
        sleep(PAUSE).await;
    }
}

async fn listen(
    op: &str,
    mut candidates: Vec<SocketAddr>,
    ports: Option<(u16, u16)>,
    token: Option<&Token>,
) -> Result<(TcpListener, SocketAddr), BootstrapError> {
    let system = |error: std::io::Error| BootstrapError::system(op, &error);
    if let Some((first, last)) = ports {
        let of = |at: SocketAddr| (first..=last).map(move |port| SocketAddr::new(at.ip(), port));
        candidates = candidates.into_iter().flat_map(of).collect();
    }
    for candidate in &candidates {
        require(op, *candidate, token)?;
    }
    let listener = TcpListener::bind(&candidates[..]).await.map_err(system)?;
    let local = listener.local_addr().map_err(system)?;
    Ok((listener, local))
}

/// Serves until the handle is dropped and what was answered is sent. This task owns all others, and they end with it.
async fn serve(
    listener: TcpListener,
    mut hub: Hub,
    options: ServerOptions,
    mut orders: mpsc::Receiver<Order>,
) {
    let mut handshakes = Handshakes::new(options.max_unauthenticated);
    let options = Arc::new(options);
    let mut guests = JoinSet::new();
    let mut accepted = None;
    loop {
        // What was accepted is kept until there is a place for it, though this is cancelled meanwhile.
        let accept = async {
            if accepted.is_none() {
                accepted = Some(listener.accept().await);
            }
            (handshakes.permit().await, accepted.take())
        };
        tokio::select! {
            order = orders.recv() => match order {
                None => break,
                Some(Order::Ended { rank, pid }) => {
                    let _ = hub.door.events.send(News::Told(Event::Ended { rank, pid })).await;
                }
                Some(Order::Drain { deadline, done }) => {
                    let mut joined = hub.door.joined.subscribe();
                    guests.spawn(async move {
                        let _ = timeout(deadline, joined.wait_for(BTreeMap::is_empty)).await;
                        let _ = done.send(joined.borrow().values().copied().collect());
                    });
                }
                Some(Order::Elect { address: _address, resigned: _resigned }) => {
                    #[cfg(feature = "succession")]
                    if let Some(log) = &hub.door.log
                        && log.leadership().borrow().leader.as_ref().is_none_or(|it| it.address == _address)
                    {
                        #[cfg(feature = "tracing")]
                        tracing::info!(leader = _address, resigned = _resigned, "the leader has ended or resigned: standing for election");
                        log.elect(_resigned);
                    }
                }
                Some(Order::Succeed { deadline, done }) => {
                    let (events, (told, outcome)) = (hub.door.events.clone(), oneshot::channel());
                    guests.spawn(async move {
                        let _ = events.send(News::Succeed(told)).await;
                        let _ = done.send(matches!(timeout(deadline, outcome).await, Ok(Ok(true))));
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
                None => {}
                Some(Ok((stream, peer))) => {
                    keep_alive(&stream);
                    let (door, options) = (hub.door.clone(), options.clone());
                    let guest = handshakes.begin(permit);
                    guests.spawn(async move { welcome(stream, peer, guest, &options, door).await });
                }
                // Most likely out of descriptors: other connections have to end first.
                Some(Err(_)) => sleep(Duration::from_millis(50)).await,
            },
            Some(_) = guests.join_next() => {}
            () = hub.failed() => return,
        }
    }
    // The address is free at once for another server.
    drop(listener);
    let _ = hub.door.events.send(News::End).await;
    hub.door.flushed().await;
    // Other servers must hear nothing more once the clients see that this one is gone and elect another.
    #[cfg(feature = "succession")]
    if let Some(log) = &hub.door.log {
        log.stop().await;
    }
}

/// Connections that have not shown the token yet, oldest first. A member needs a few milliseconds for that; one that
/// takes longer is likely a stranger, and is dropped when others wait to be accepted.
struct Handshakes {
    permits: Arc<Semaphore>,
    begun: VecDeque<(Instant, oneshot::Sender<()>)>,
    /// When one had to leave: its place becomes free a little later.
    dropped: Option<Instant>,
}

/// What a connection in the handshake holds: a permit, and the signal that its place is needed.
struct Guest {
    _permit: OwnedSemaphorePermit,
    wanted: oneshot::Receiver<()>,
}

impl Handshakes {
    const UNDISTURBED: Duration = Duration::from_millis(100);
    /// Enough for a connection that has to leave to be gone.
    const LEAVING: Duration = Duration::from_millis(10);

    fn new(most: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(most)), begun: VecDeque::new(), dropped: None }
    }

    /// Waits for a place; if there is none, the oldest connection has to leave. Cancel safe.
    async fn permit(&mut self) -> OwnedSemaphorePermit {
        loop {
            self.begun.retain(|(_, leave)| !leave.is_closed());
            let next = self.dropped.map(|dropped| dropped + Self::LEAVING);
            let oldest = self.begun.front().map(|(began, _)| *began + Self::UNDISTURBED).max(next);
            let oldest = oldest.filter(|_| !self.begun.is_empty());
            tokio::select! {
                biased;
                permit = self.permits.clone().acquire_owned() => match permit {
                    Ok(permit) => return permit,
                    Err(_) => std::future::pending().await, // it is never closed
                },
                () = async { match oldest { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => {
                    self.begun.pop_front();
                    self.dropped = Some(Instant::now());
                }
            }
        }
    }

    fn begin(&mut self, permit: OwnedSemaphorePermit) -> Guest {
        let (leave, wanted) = oneshot::channel();
        self.begun.push_back((Instant::now(), leave));
        Guest { _permit: permit, wanted }
    }
}

/// Ends the connection a minute or two after its host has vanished: to some clients nothing is ever sent, and without
/// this their places would never be free again.
fn keep_alive(stream: &TcpStream) {
    let probes =
        TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    let _ = SockRef::from(stream).set_tcp_keepalive(&probes);
}

async fn welcome(
    mut stream: TcpStream,
    peer: SocketAddr,
    mut guest: Guest,
    options: &ServerOptions,
    door: Door,
) {
    let _ = stream.set_nodelay(true);
    let out_of_patience = async {
        let _ = timeout(options.heartbeat.handshake, &mut guest.wanted).await;
    };
    let (address, ServerOptions { run_id, token, .. }) = (peer.to_string(), options);
    let greeted = receive_guest(&mut stream, &address, run_id, token.as_ref(), out_of_patience).await;
    drop(guest);
    match greeted {
        Ok(()) => {
            let same_host = stream.local_addr().is_ok_and(|local| local.ip() == peer.ip());
            door.attend(stream, same_host).await;
        }
        #[cfg(feature = "tracing")]
        Err(error) => tracing::warn!(%peer, %error, "refused a connection"),
        #[cfg(not(feature = "tracing"))]
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    /// Its copy of the log is empty: it does not know what its predecessor has promised.
    #[cfg(feature = "succession")]
    #[tokio::test]
    async fn a_process_that_takes_a_rank_again_is_another_voter() {
        use super::{Seat, Server, ServerOptions};
        let mut ids = Vec::new();
        for _ in 0..3 {
            let seat = Seat { rank: 1, member: 7, address: None };
            let server =
                Server::follow("127.0.0.1:0", None, ServerOptions::new("run", 3), seat).await.unwrap();
            let id = server.and_then(|server| server.listener()).unwrap().id;
            assert!(!ids.contains(&id), "{id} again");
            ids.push(id);
        }
    }

    /// Behind a firewall: it takes the next free port, and the error names the range if none is free.
    #[cfg(feature = "succession")]
    #[tokio::test]
    async fn a_member_listens_on_one_of_the_ports_that_it_is_given() {
        use super::{Seat, Server, ServerOptions};
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let seat = || Seat { rank: 1, member: 7, address: None };
        let follow = |ports| Server::follow("127.0.0.1:0", Some(ports), ServerOptions::new("run", 3), seat());
        let refused = follow((port, port)).await.err().unwrap().to_string();
        assert!(refused.contains(&format!("ports {port} to {port}")), "{refused}");
        let last = port.saturating_add(50);
        let server = follow((port, last)).await.unwrap().unwrap();
        let taken = server.local_addr().port();
        assert!(port < taken && taken <= last, "{taken}");
    }
}
