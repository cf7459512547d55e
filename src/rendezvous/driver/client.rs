//! A connection to the rendezvous server, shared by a group and its store.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::attendant::{Answer, Attendant, Command, LONGEST, Later};
use super::background::spawn;
use super::carrier::Carrier;
use super::connection::random;
use super::contact::Contact;
use super::dial::{Credentials, Open, Silent, dial};
use super::heartbeat::Heartbeat;
use super::search::Ways;
use super::told::Told;
use crate::env::Token;
use crate::names::setters;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Host, Notice, Reply, Request, View};
use crate::waking::shielded;

/// Where the server is, and what is needed to connect with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// `host:port` of the server; several, separated by commas, if each of them may serve the run or know who does.
    pub address: String,
    /// The run that it serves.
    pub run_id: String,
    /// The secret of the run; required unless all traffic is on loopback.
    pub token: Option<Token>,
    /// How long to try until a server accepts.
    pub deadline: Duration,
    /// Heartbeats and the handshake.
    pub heartbeat: Heartbeat,
}

/// `run "llama" at 10.0.0.1:29700, with a token`. The token itself does not appear.
impl fmt::Display for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, run_id, token, .. } = self;
        write!(f, "run {run_id:?} at {address}, {} a token", if token.is_some() { "with" } else { "without" })
    }
}

setters!(ClientOptions { address: String, run_id: String, token: Option<Token>, deadline: Duration, heartbeat: Heartbeat });

impl ClientOptions {
    /// The server at `address` for the run `run_id`: no token, 30 s, the heartbeat of [`Heartbeat::default`].
    pub fn new(address: impl Into<String>, run_id: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            run_id: run_id.into(),
            token: None,
            deadline: Duration::from_secs(30),
            heartbeat: Heartbeat::default(),
        }
    }
}

/// A connection to the server. Clones share it; it closes when the last one is dropped, which never waits. While it is
/// broken, calls wait, each until its deadline, and continue over the next connection.
///
/// `Send` and `Sync`; its futures need no particular runtime.
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<View>,
    local: Option<IpAddr>,
    contact: watch::Receiver<Contact>,
    servers: watch::Receiver<Vec<String>>,
}

impl Client {
    /// Connects, retrying until the deadline, and proves knowledge of the token.
    ///
    /// Errors: [`BootstrapError::TokenRequired`]; those of the handshake: `WrongToken`, `WrongVersion`, `Garbage`, and
    /// `Invalid` if the server's run has another id. Once the deadline has passed: [`BootstrapError::Unreachable`], or
    /// `SilentPeer` if somebody accepted and said nothing.
    pub async fn connect(options: ClientOptions) -> Result<Self, BootstrapError> {
        Self::connect_as(options, None).await
    }

    /// [`Client::connect`] for a member.
    pub(crate) async fn connect_as(
        options: ClientOptions,
        attendant: Option<Arc<dyn Attendant>>,
    ) -> Result<Self, BootstrapError> {
        let (connected, outcome) = oneshot::channel();
        let (commands, inbox) = mpsc::channel(64);
        let (shown, view) = watch::channel(View::before());
        let ClientOptions { address, run_id, token, deadline, heartbeat } = options;
        let heartbeat = heartbeat.bounded();
        let session = u64::from_le_bytes(random("choose a session")?);
        let addresses: Vec<String> = address.split(',').map(|address| address.trim().to_owned()).collect();
        let (known, servers) = watch::channel(addresses.clone());
        let (reached, contact) = watch::channel(Contact::default());
        let later = Later(commands.downgrade());
        let told = Told { view: shown, servers: known, contact: reached, attendant, later };
        let server = address.clone();
        spawn("epwire-client", move || async move {
            let mut connected = connected;
            let credentials = Credentials { run_id, token, session, heartbeat };
            let silent = Silent::default();
            // If the caller dropped its future, nobody waits for the result any more.
            let stream = tokio::select! {
                stream = dial(&addresses, &credentials, deadline, &silent) => stream,
                () = connected.closed() => return,
                never = told.unanswered(&server) => match never {},
            };
            match stream {
                Err(error) => drop(connected.send(Err(error))),
                Ok(Open { stream, host }) => {
                    told.contact.send_replace(Contact { server: host, outage: None });
                    if connected.send(Ok(stream.local_addr().ok())).is_ok() {
                        let ways = Ways { addresses, servers: Vec::new(), credentials };
                        Carrier::new(stream, server, heartbeat, Some(ways), told).run(inbox).await;
                    }
                }
            }
        })?;
        let ended = |_| BootstrapError::lost("connect to the rendezvous", &address, "its thread ended");
        let local = shielded(outcome).await.map_err(ended)??;
        Ok(Self { address, commands, view, local: local.map(|local| local.ip()), contact, servers })
    }

    /// A client on a stream that needs no handshake, and the task that carries it.
    pub(crate) fn attach<S>(
        stream: S,
        session: u64,
        address: &str,
        heartbeat: Heartbeat,
        view: View,
        attendant: Option<Arc<dyn Attendant>>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (commands, inbox) = mpsc::channel(64);
        let (shown, view) = watch::channel(view);
        let (known, servers) = watch::channel(Vec::new());
        let (reached, contact) = watch::channel(Contact::default());
        let later = Later(commands.downgrade());
        let told = Told { view: shown, servers: known, contact: reached, attendant, later };
        let server = address.to_owned();
        let task =
            async move { Carrier::new(stream, server, heartbeat, None, told).open(session).run(inbox).await };
        (Self { address: address.to_owned(), commands, view, local: None, contact, servers }, task)
    }

    /// The membership as the server last reported it.
    pub fn watch(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// This side's address of the first connection, if that is a TCP connection.
    pub(crate) fn local(&self) -> Option<IpAddr> {
        self.local
    }

    /// The member whose server serves this client, if it belongs to one; none while there is no connection.
    pub(crate) fn host(&self) -> Option<Host> {
        self.contact.borrow().host().cloned()
    }

    /// The state of the connection with the server.
    pub(crate) fn contact(&self) -> Contact {
        self.contact.borrow().clone()
    }

    /// Addresses of the servers that serve the run or can take over.
    pub(crate) fn servers(&self) -> Vec<String> {
        self.servers.borrow().clone()
    }

    /// Address of the server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request and waits for the answer, a little longer than `deadline` at most.
    pub(crate) async fn call(
        &self,
        op: &str,
        request: Request,
        deadline: Duration,
    ) -> Result<Reply, BootstrapError> {
        let op_name = op.to_owned();
        let call = |reply| Command::Call { op: op_name, request, deadline: deadline.min(LONGEST), reply };
        self.command(op, call).await
    }

    /// Waits for a message of the group, unless the news counter of the [`Attendant`] differs from `seen`.
    ///
    /// Errors: [`BootstrapError::Timeout`] once the deadline, counted from `began`, has passed.
    pub(crate) async fn news(
        &self,
        op: &str,
        seen: u64,
        began: Instant,
        deadline: Duration,
    ) -> Result<(), BootstrapError> {
        let op_name = op.to_owned();
        let wait = |reply| Command::Wait { op: op_name, seen, began, deadline: deadline.min(LONGEST), reply };
        self.command(op, wait).await
    }

    /// Sends what needs no answer. It is lost if the server is lost. If the future is dropped, `notice` has not been
    /// called, or what it returned is sent.
    pub(crate) async fn tell(&self, notice: impl FnOnce() -> Notice) {
        if let Ok(place) = shielded(self.commands.reserve()).await {
            place.send(Command::Tell(notice()));
        }
    }

    async fn command<T>(
        &self,
        op: &str,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, BootstrapError> {
        let (reply, answer) = oneshot::channel();
        let ended = || BootstrapError::lost(op, &self.address, "its thread ended");
        shielded(self.commands.send(command(reply))).await.map_err(|_| ended())?;
        shielded(answer).await.map_err(|_| ended())?
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;
    use tokio::time::{sleep, timeout};

    use super::super::connection::{OPEN_LIMIT, read_frame, receive_guest, write_frame};
    use super::*;
    use crate::rendezvous::wire::{Frame, Joined};

    /// The clock stands still except during the sleep, in which only the tasks of the client run, not the client
    /// itself.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_came_counts_though_this_side_was_too_busy_to_look() {
        let answer = BootstrapError::OutOfOrder { op: "test".to_owned(), reason: "told".to_owned() };
        for _ in 0..30 {
            let (near, mut far) = tokio::io::duplex(1 << 10);
            let view = View::before();
            let (client, carrier) = Client::attach(near, 7, "the test", Heartbeat::default(), view, None);
            let mut carrier = Box::pin(carrier);
            let mut call = Box::pin(client.call("join", Request::Leave {}, Duration::from_secs(60)));
            let asked = tokio::select! {
                biased;
                _ = &mut call => None,
                () = &mut carrier => None,
                asked = asked(&mut far) => Some(asked),
            };
            let id = asked.unwrap();
            write_frame(&mut far, &Frame::Answer { id, result: Err(answer.clone()) }).await.unwrap();
            drop(far);
            sleep(2 * Heartbeat::default().lease).await;
            let told = tokio::select! {
                result = &mut call => result,
                () = &mut carrier => Err(BootstrapError::lost("join", "the test", "the client has ended")),
            };
            assert_eq!(told, Err(answer.clone()));
        }
    }

    /// The clock jumps, as it does for a process that was stopped: pings have not been sent, and their answers not been
    /// read.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_ones_own_is_no_silence_of_the_server() {
        let heartbeat = Heartbeat::default();
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let view = View::before();
        let (client, carrier) = Client::attach(near, 7, "the test", heartbeat, view, None);
        let mut carried = JoinSet::new();
        carried.spawn(carrier);
        let Frame::Open { .. } = read_frame(&mut far, OPEN_LIMIT).await.unwrap() else {
            panic!("not opened")
        };
        for _ in 0..5 {
            let Frame::Ping { .. } = read_frame(&mut far, OPEN_LIMIT).await.unwrap() else {
                panic!("no ping")
            };
            tokio::time::advance(3 * heartbeat.lease).await;
            write_frame(&mut far, &Frame::Pong {}).await.unwrap();
        }
        let call = client.call("leave", Request::Leave {}, Duration::from_secs(60));
        let served = async {
            let id = asked(&mut far).await;
            write_frame(&mut far, &Frame::Answer { id, result: Ok(Reply::Done {}) }).await.unwrap();
        };
        let both = async { tokio::join!(call, served).0 };
        assert_eq!(timeout(Duration::from_secs(120), both).await, Ok(Ok(Reply::Done {})));
    }

    /// A server that says nothing is nevertheless lost after a lease.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_falls_silent_is_lost_after_a_lease() {
        let heartbeat = Heartbeat::default();
        let (near, _far) = tokio::io::duplex(1 << 10);
        let view = View::before();
        let (client, carrier) = Client::attach(near, 7, "the test", heartbeat, view, None);
        let mut carried = JoinSet::new();
        carried.spawn(carrier);
        let began = Instant::now();
        let lost = client.call("leave", Request::Leave {}, Duration::from_secs(60)).await;
        assert!(matches!(lost, Err(BootstrapError::ServerLost { .. })), "{lost:?}");
        assert!(began.elapsed() <= heartbeat.lease + 2 * heartbeat.interval, "{:?}", began.elapsed());
    }

    /// The server takes a member for dead whose connection closes. This member gives up three before it knows that it
    /// may come back.
    #[tokio::test]
    async fn no_connection_closes_before_the_server_has_answered_a_resume() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = ClientOptions::new(listener.local_addr().unwrap().to_string(), "run");
        let served = async {
            let mut connections = vec![accept(&listener).await];
            let id = asked(&mut connections[0]).await;
            let joined = Arc::new(Joined { roster: Vec::new(), view: View::before() });
            let joined = Frame::Answer { id, result: Ok(Reply::Joined { joined }) };
            write_frame(&mut connections[0], &joined).await.unwrap();
            let mut resuming = 0;
            for _ in 0..3 {
                // It gives up a server that sends what does not belong there.
                write_frame(
                    connections.last_mut().unwrap(),
                    &Frame::Ping { received: 0, except: BTreeSet::new() },
                )
                .await
                .unwrap();
                let mut next = accept(&listener).await;
                resuming = asked(&mut next).await;
                connections.push(next);
            }
            let mut last = connections.pop().unwrap();
            for connection in &connections {
                assert!(!is_closed(connection));
            }
            let done = Frame::Answer { id: resuming, result: Ok(Reply::Done {}) };
            write_frame(&mut last, &done).await.unwrap();
            for connection in &connections {
                while !is_closed(connection) {
                    connection.readable().await.unwrap();
                }
            }
            last
        };
        let joining = async {
            let client = Client::connect(options).await.unwrap();
            client.call("test", Request::Retire { rank: 0 }, Duration::from_secs(60)).await.unwrap();
            client
        };
        drop(timeout(Duration::from_secs(60), async { tokio::join!(served, joining) }).await.unwrap());
    }

    /// The server forgets the calls of a client that is no member when its connection closes, unless it knows another.
    #[tokio::test]
    async fn no_connection_of_a_client_closes_before_the_server_has_answered_over_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let beat = Heartbeat::default().interval(Duration::from_millis(10));
        let address = listener.local_addr().unwrap().to_string();
        let options = ClientOptions::new(address, "run").heartbeat(beat);
        let served = async {
            let mut former = accept(&listener).await;
            let id = asked(&mut former).await;
            // The client gives up a server that sends what does not belong there.
            write_frame(&mut former, &Frame::Ping { received: 0, except: BTreeSet::new() }).await.unwrap();
            let mut next = accept(&listener).await;
            assert_eq!(asked(&mut next).await, id);
            for _ in 0..2 {
                let beat = read_frame(&mut next, OPEN_LIMIT).await.unwrap();
                assert!(matches!(beat, Frame::Ping { .. }), "{beat:?}");
                assert!(!is_closed(&former));
            }
            write_frame(&mut next, &Frame::Pong {}).await.unwrap();
            while !is_closed(&former) {
                former.readable().await.unwrap();
            }
            write_frame(&mut next, &Frame::Answer { id, result: Ok(Reply::Sum { sum: 1 }) }).await.unwrap();
            next
        };
        let adding = async {
            let client = Client::connect(options).await.unwrap();
            let add = Request::Add { key: "n".to_owned(), amount: 1 };
            client.call("test", add, Duration::from_secs(60)).await.unwrap();
            client
        };
        drop(timeout(Duration::from_secs(60), async { tokio::join!(served, adding) }).await.unwrap());
    }

    /// Serves the next client that connects.
    async fn accept(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        receive_guest(&mut stream, "the test", "run", None, std::future::pending()).await.unwrap();
        let Frame::Open { .. } = read_frame(&mut stream, OPEN_LIMIT).await.unwrap() else {
            panic!("not opened")
        };
        write_frame(&mut stream, &Frame::Opened { host: None }).await.unwrap();
        stream
    }

    /// Whether the other side has closed the connection; takes what was sent before.
    fn is_closed(stream: &TcpStream) -> bool {
        loop {
            match stream.try_read(&mut [0; 64]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    return false;
                }
            }
        }
    }

    /// The id of the first call received.
    async fn asked(far: &mut (impl AsyncRead + Unpin)) -> u64 {
        loop {
            if let Frame::Call { id, .. } = read_frame(far, OPEN_LIMIT).await.unwrap() {
                return id;
            }
        }
    }
}
