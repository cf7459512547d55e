//! Finding the server: a client knows addresses; one of them serves it or refers it to another.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{OPEN_LIMIT, greet, read_frame, write_frame};
use super::heartbeat::Heartbeat;
use crate::env::Token;
use crate::rendezvous::auth::require;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Frame, Host};

/// What is needed to be accepted.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) run_id: String,
    pub(super) token: Option<Token>,
    pub(super) session: u64,
    pub(super) heartbeat: Heartbeat,
}

/// A connection to the server that serves this client.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) stream: TcpStream,
    /// The member that the server belongs to, if it belongs to one.
    pub(super) host: Option<Host>,
}

/// Servers that did not answer the last time, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Silent(Arc<Mutex<BTreeSet<String>>>);

impl Silent {
    pub(super) fn contains(&self, address: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(address)
    }

    pub(super) fn add(&self, address: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned());
    }

    fn note(&self, address: &str, outcome: &Result<Try, BootstrapError>) {
        match outcome {
            Ok(Try::Open(_) | Try::Refer(_)) => {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
            }
            Ok(Try::Failed(_)) | Err(_) => self.add(address),
        }
    }
}

/// How long it may take to establish a connection: enough for one lost packet. Without a limit the kernel would retry
/// ever more rarely, for minutes, even if the network works again.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The same while a server of the run refers to a leader that cannot be reached: elections are short.
const MAX_PAUSE_OF_ELECTION: Duration = Duration::from_millis(100);
const OP: &str = "connect to the rendezvous";

/// The result of one attempt.
enum Try {
    /// This server serves the client.
    Open(Open),
    /// Another server serves it, at this address if known.
    Refer(Option<String>),
    /// No server is there at the moment.
    Failed(BootstrapError),
}

/// Tries all addresses at once until one serves this client, or until the deadline: servers start later than their
/// clients, restart, are stopped, and may be busy with strangers; another member may have become the leader.
pub(super) async fn dial(
    addresses: &[String],
    credentials: &Credentials,
    deadline: Duration,
    silent: &Silent,
) -> Result<Open, BootstrapError> {
    let mut tries = JoinSet::new();
    for address in addresses {
        let (address, credentials, silent) = (address.clone(), credentials.clone(), silent.clone());
        tries.spawn(async move { seek(&address, &credentials, deadline, &silent).await });
    }
    let mut failure = None;
    while let Some(outcome) = tries.join_next().await {
        match outcome {
            Ok(Ok(open)) => return Ok(open),
            Ok(Err(error)) => failure = Some(error),
            Err(_) => {}
        }
    }
    Err(failure.unwrap_or_else(|| nobody(&addresses.join(","), deadline, "no address is known")))
}

fn nobody(address: &str, deadline: Duration, detail: &str) -> BootstrapError {
    let (op, address, detail) = (OP.to_owned(), address.to_owned(), detail.to_owned());
    BootstrapError::Unreachable { op, address, deadline, detail }
}

/// Tries one address, and those it refers to.
async fn seek(
    address: &str,
    credentials: &Credentials,
    deadline: Duration,
    silent: &Silent,
) -> Result<Open, BootstrapError> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(20);
    loop {
        let left = || deadline.saturating_sub(began.elapsed());
        let asked = attempt(address, credentials, left(), deadline).await;
        silent.note(address, &asked);
        let mut outcome = asked?;
        let longest = if matches!(outcome, Try::Refer(_)) { MAX_PAUSE_OF_ELECTION } else { MAX_PAUSE };
        if let Try::Refer(Some(leader)) = &outcome
            && leader != address
        {
            outcome = attempt(leader, credentials, left(), deadline).await?;
        }
        let failed = match outcome {
            Try::Open(open) => return Ok(open),
            Try::Refer(_) => nobody(address, deadline, "no member leads the run"),
            Try::Failed(error) => error,
        };
        pause = pause.min(longest);
        if began.elapsed().saturating_add(pause) >= deadline {
            return Err(failed);
        }
        sleep(pause).await;
        pause *= 2;
    }
}

/// Errors: those that another attempt would not change.
async fn attempt(
    address: &str,
    credentials: &Credentials,
    left: Duration,
    deadline: Duration,
) -> Result<Try, BootstrapError> {
    let unreachable = |detail: String| Ok(Try::Failed(nobody(address, deadline, &detail)));
    let began = Instant::now();
    let addresses = async { Ok(tokio::net::lookup_host(address).await?.collect()) };
    let mut stream = match connect(addresses, credentials.token.as_ref(), left).await? {
        Ok(stream) => stream,
        Err(detail) => return unreachable(detail),
    };
    let Credentials { run_id, token, session, heartbeat } = credentials;
    let patience = heartbeat.handshake.min(left.saturating_sub(began.elapsed()));
    let greeted = greet(&mut stream, address, run_id, token.as_ref(), patience).await;
    let opened = match greeted {
        Ok(()) => timeout(patience, open(&mut stream, *session)).await,
        Err(error) => Ok(Err(error)),
    };
    match opened {
        Ok(Ok(Frame::Opened { host })) => Ok(Try::Open(Open { stream, host })),
        Ok(Ok(Frame::Refer { leader })) => Ok(Try::Refer(leader)),
        Ok(Ok(Frame::Refused { error })) => Err(error),
        Ok(Ok(_)) => unreachable("it sent a frame that does not belong there".to_owned()),
        // A server that is shutting down or starting.
        Ok(Err(BootstrapError::ServerLost { detail, .. })) => unreachable(detail),
        // A server that is waiting for others.
        Ok(Err(silent @ BootstrapError::SilentPeer { .. })) => Ok(Try::Failed(silent)),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            let (op, peer) = (OP.to_owned(), address.to_owned());
            Ok(Try::Failed(BootstrapError::SilentPeer { op, peer, deadline: patience }))
        }
    }
}

/// A connection to the first address that accepts of those that a lookup finds, or why there is none. A lookup may take
/// longer than a connection may: it asks one server after the other.
async fn connect(
    lookup: impl Future<Output = std::io::Result<Vec<SocketAddr>>>,
    token: Option<&Token>,
    left: Duration,
) -> Result<Result<TcpStream, String>, BootstrapError> {
    let began = Instant::now();
    let candidates = match timeout(left, lookup).await {
        Ok(Ok(candidates)) => candidates,
        Ok(Err(error)) => return Ok(Err(error.to_string())),
        Err(_) => return Ok(Err("its name was not resolved".to_owned())),
    };
    let (permitted, refused): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .map(|candidate| require(OP, candidate, token).map(|()| candidate))
        .partition(Result::is_ok);
    if let (true, Some(Err(error))) = (permitted.is_empty(), refused.into_iter().next()) {
        return Err(error);
    }
    let patience = left.saturating_sub(began.elapsed()).min(CONNECT);
    Ok(match timeout(patience, first_to_accept(permitted.into_iter().flatten())).await {
        Ok(Some(accepted)) => accepted.map_err(|error| error.to_string()),
        Ok(None) => Err("the name has no address".to_owned()),
        Err(_) => Err("no answer".to_owned()),
    })
}

/// A connection to one of these addresses, or the last error; `None`: there are no addresses. They are tried in this
/// order, each once the one before has failed or has not answered for a while.
pub(super) async fn first_to_accept(
    addresses: impl IntoIterator<Item = SocketAddr>,
) -> Option<std::io::Result<TcpStream>> {
    /// What RFC 8305 recommends.
    const HEAD_START: Duration = Duration::from_millis(250);
    let mut waiting = addresses.into_iter().peekable();
    let (mut tries, mut failed) = (JoinSet::new(), None);
    loop {
        if let Some(address) = waiting.next() {
            tries.spawn(TcpStream::connect(address));
        }
        let accepted = match waiting.peek() {
            Some(_) => match timeout(HEAD_START, tries.join_next()).await {
                Ok(accepted) => accepted,
                Err(_) => continue,
            },
            None => tries.join_next().await,
        };
        match accepted {
            Some(Ok(Ok(stream))) => {
                let _ = stream.set_nodelay(true);
                return Some(Ok(stream));
            }
            Some(Ok(Err(error))) => failed = Some(Err(error)),
            Some(Err(_)) => {} // the runtime ends
            None => return failed,
        }
    }
}

async fn open(stream: &mut TcpStream, session: u64) -> Result<Frame, BootstrapError> {
    let lost = |error: std::io::Error| BootstrapError::lost(OP, "", &error.to_string());
    write_frame(stream, &Frame::Open { session }).await.map_err(lost)?;
    read_frame(stream, OPEN_LIMIT).await.map_err(|error| error.explain(OP, ""))
}

/// Whether this address, as it is written, is on the loopback interface: each host has an interface of its own there.
pub(crate) fn is_loopback(address: &str) -> bool {
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    let is = |address: SocketAddr| address.ip().to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is)
}

/// Whether nobody listens there any more, according to the kernel of that host. When a process ends, its kernel closes
/// the open sockets one after the other: if connections have been closed, the listening socket may still accept a new
/// one, and that one is then reset.
pub(super) async fn is_refused(address: &str) -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    /// Long enough that a process that has begun to end has most likely ended.
    const ENDING: Duration = Duration::from_millis(100);
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    let began = Instant::now();
    loop {
        match timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(stream)) if began.elapsed() < ENDING => {
                // Until the other side ends it, or proves to be alive.
                let _ = timeout(ENDING / 10, stream.readable()).await;
            }
            Ok(Err(error)) => return refused(&error),
            Ok(Ok(_)) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener whose queue is full, so that the kernel answers no other connection.
    fn silent() -> (std::net::TcpListener, Vec<std::net::TcpStream>) {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: a socket that listens may be told another length of its queue.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let patience = Duration::from_millis(200);
        let queued = std::iter::from_fn(|| std::net::TcpStream::connect_timeout(&address, patience).ok());
        let queued = queued.take(64).collect();
        (listener, queued)
    }

    #[tokio::test]
    async fn a_name_may_take_longer_to_resolve_than_a_server_to_answer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let slow = |takes| async move {
            sleep(takes).await;
            Ok(vec![open])
        };
        let found = connect(slow(CONNECT + CONNECT / 10), None, 5 * CONNECT).await.unwrap().unwrap();
        assert_eq!(found.peer_addr().unwrap(), open);
        let late = connect(slow(CONNECT), None, CONNECT / 100).await.unwrap().unwrap_err();
        assert_eq!(late, "its name was not resolved");
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_hides_no_other_one() {
        let (silent, _queued) = silent();
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let addresses = [closed, silent.local_addr().unwrap(), open.local_addr().unwrap()];
        let accepted = timeout(CONNECT, first_to_accept(addresses)).await.unwrap().unwrap().unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), addresses[2]);
        let refused = first_to_accept([closed]).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert!(first_to_accept([]).await.is_none());
    }
}
