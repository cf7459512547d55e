//! How connections reach the hub: what arrives over them, what is sent, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use super::calls::MAX_PENDING;
#[cfg(feature = "succession")]
use super::connection::PEER_LIMIT;
use super::connection::{OPEN_LIMIT, ReadError, read_frame, write_frame};
use super::news::{Joined, Link, News, Outlet, Queued};
use super::options::ServerOptions;
#[cfg(feature = "succession")]
use super::peers::decode;
use super::service::Service;
#[cfg(feature = "succession")]
use crate::rendezvous::codec::{Blob, Wire};
use crate::rendezvous::error::BootstrapError;
#[cfg(feature = "succession")]
use crate::rendezvous::log::Log;
use crate::rendezvous::machine::{Call, Event, SessionId};
use crate::rendezvous::wire::Frame;

/// Accepts connections.
#[derive(Clone)]
pub(crate) struct Door {
    pub(super) events: mpsc::Sender<News>,
    /// Updated by the hub.
    pub(super) joined: Arc<watch::Sender<Joined>>,
    /// Number of connections so far, from which they get their numbers.
    counted: Arc<AtomicU64>,
    slots: Arc<Semaphore>,
    most: usize, // most connections
    lease: Duration,
    handshake: Duration,
    service: watch::Receiver<Service>,
    /// What the servers of other members ask about.
    #[cfg(feature = "succession")]
    pub(super) log: Option<Log>,
}

impl Door {
    pub(super) fn new(
        events: mpsc::Sender<News>,
        joined: Arc<watch::Sender<Joined>>,
        service: watch::Receiver<Service>,
        options: &ServerOptions,
    ) -> Self {
        Self {
            events,
            joined,
            lease: options.heartbeat.lease,
            handshake: options.heartbeat.handshake,
            counted: Arc::default(),
            slots: Arc::new(Semaphore::new(options.max_connections)),
            most: options.max_connections,
            service,
            #[cfg(feature = "succession")]
            log: None,
        }
    }

    /// Waits until all that the machine has said so far is written, or cannot be written any more; at most a lease.
    pub(super) async fn flushed(&self) {
        let (mark, mut marks) = mpsc::channel(1);
        let gone = async {
            let _ = self.events.send(News::Flush(mark)).await;
            marks.recv().await
        };
        let _ = timeout(self.lease, gone).await;
    }

    /// Serves one connection after the handshake until it closes.
    pub(crate) async fn attend<S>(self, mut stream: S, same_host: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(_slot) = self.slots.clone().try_acquire_owned() else {
            return refuse(stream, self.most).await;
        };
        let guest = timeout(self.handshake, self.open(&mut stream)).await;
        let (session, first) = match guest {
            Ok(Some(Guest::Client { session, first })) => (session, first),
            #[cfg(feature = "succession")]
            Ok(Some(Guest::Peer(log))) => return answer(stream, log).await,
            Ok(None) | Err(_) => return,
        };
        let link = self.counted.fetch_add(1, Ordering::Relaxed);
        let (frames, mut queue) = mpsc::channel(MAX_QUEUED);
        // The hub holds the only lasting sender: when it drops it, the writer ends after the last frame.
        let replies = frames.downgrade();
        let (view, mut views) = watch::channel(None);
        let outlet = Outlet { frames, view };
        if self.events.send(News::Opened { session, link, outlet }).await.is_err() {
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
                    // The reader finds out why.
                    std::future::pending::<()>().await;
                }
            }
        };
        let by_peer = tokio::select! {
            by_peer = self.listen((session, link), first, &mut reader, replies, same_host) => by_peer,
            () = write => {
                let _ = timeout(LINGER, close(&mut reader, &mut writer)).await;
                false
            }
        };
        let _ = self.events.send(News::Closed { session, link, by_peer }).await;
    }

    /// Finds out who the client is; returns its session and the first frame that it sends after the answer. A client
    /// that has tried several addresses sends nothing over the connections that it does not use, and their closing
    /// means nothing.
    async fn open<S>(&self, stream: &mut S) -> Option<Guest>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let session = match read_frame(stream, OPEN_LIMIT).await {
            Ok(Frame::Open { session }) => session,
            #[cfg(feature = "succession")]
            Ok(Frame::Peer {}) => return self.log.clone().map(Guest::Peer),
            _ => return None,
        };
        let service = self.known_service().await;
        match service {
            Service::Serves { host } => write_frame(stream, &Frame::Opened { host }).await.ok()?,
            Service::Refers { leader } => {
                write_frame(stream, &Frame::Refer { leader }).await.ok()?;
                return None;
            }
        }
        let first = read_frame(stream, OPEN_LIMIT).await.ok()?;
        Some(Guest::Client { session, first })
    }

    /// Who serves the run. While nobody does, a guest waits a while instead of reconnecting again and again.
    async fn known_service(&self) -> Service {
        let mut service = self.service.clone();
        let known = service.wait_for(|service| *service != Service::Refers { leader: None });
        let _ = timeout(self.handshake / 2, known).await;
        self.service.borrow().clone()
    }

    /// Receives frames until the connection ends; returns whether the peer's process can be considered ended.
    async fn listen<R>(
        &self,
        (session, link): (SessionId, Link),
        first: Frame,
        reader: &mut R,
        replies: mpsc::WeakSender<Queued>,
        same_host: bool,
    ) -> bool
    where
        R: AsyncRead + Unpin,
    {
        let mut frame = Ok(first);
        let mut last_heard = Instant::now();
        loop {
            let news = match frame {
                Ok(Frame::Ping { received, except }) if except.len() <= MAX_PENDING => {
                    if let Some(replies) = replies.upgrade() {
                        let _ = replies.try_send(Queued::Frame(Frame::Pong {}));
                    }
                    News::Alive { session, link, received, except }
                }
                Ok(Frame::Notice { notice }) => {
                    News::Said { session, link, event: Event::Noticed { session, notice } }
                }
                Ok(Frame::Call { id, request }) => {
                    let request = Box::new(request);
                    News::Said {
                        session,
                        link,
                        event: Event::Request { call: Call { session, id }, request },
                    }
                }
                Ok(_) | Err(ReadError::Wire(_) | ReadError::Broken(_)) => return false,
                Err(ReadError::ClosedByPeer) => return true,
                // After a partition the other kernel resets a connection that it gave up, although the process lives
                // on. That is excluded on the same host, which has no partitions, and if the peer was heard a moment
                // ago, because no partition came between.
                Err(ReadError::Reset) => return same_host || last_heard.elapsed() < self.lease,
            };
            if self.events.send(news).await.is_err() {
                return false;
            }
            last_heard = Instant::now();
            frame = read_frame(reader, OPEN_LIMIT).await;
        }
    }
}

/// What kind of peer has connected.
#[cfg_attr(feature = "succession", expect(clippy::large_enum_variant, reason = "nearly all are clients"))]
enum Guest {
    Client {
        session: SessionId,
        first: Frame,
    },
    #[cfg(feature = "succession")]
    Peer(Log),
}

/// Answers the questions of another member's server until it closes the connection.
#[cfg(feature = "succession")]
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, log: Log) {
    while let Ok(Frame::Question { body }) = read_frame(&mut stream, PEER_LIMIT).await {
        let Ok(question) = decode(&body) else { return };
        drop(body);
        let mut bytes = Vec::new();
        log.answer(question).await.put(&mut bytes);
        if write_frame(&mut stream, &Frame::Replied { body: Blob(bytes) }).await.is_err() {
            return;
        }
    }
}

/// Reports that there are `most` connections already, and closes this one once the peer has read it.
async fn refuse<S: AsyncRead + AsyncWrite>(stream: S, most: usize) {
    let (op, field) = ("accept a member".to_owned(), "connections past the handshake".to_owned());
    let (value, limit) = (most as u64 + 1, most as u64);
    let frame = Frame::Refused { error: BootstrapError::Limit { op, field, value, limit } };
    let (mut reader, mut writer) = tokio::io::split(stream);
    let told = async {
        let _ = write_frame(&mut writer, &frame).await;
        close(&mut reader, &mut writer).await;
    };
    let _ = timeout(LINGER, told).await;
}

/// Ends a connection from this side, without a time limit. A socket that is closed with unread bytes discards what it
/// has not sent yet, so the peer must close first.
async fn close(reader: &mut (impl AsyncRead + Unpin), writer: &mut (impl AsyncWrite + Unpin)) {
    let _ = writer.shutdown().await;
    let _ = tokio::io::copy(reader, &mut tokio::io::sink()).await;
}

/// Frames that wait to be written to one connection; a peer that lets more accumulate is disconnected.
const MAX_QUEUED: usize = 1024;
/// How long a connection that this side ends may take to deliver what was sent.
const LINGER: Duration = Duration::from_secs(1);
