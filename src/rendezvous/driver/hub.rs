//! What a server does with its connections: feeds the machine what comes, carries out what it says.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{OPEN_LIMIT, ReadError, read_frame, write_frame};
use super::heartbeat::{Awake, Heartbeat};
use super::options::ServerOptions;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::machine::{Action, Call, ConnId, Event, Machine};
use crate::rendezvous::wire::{Frame, Request, View};

/// The task around the machine, and the way to it for connections.
pub(crate) struct Hub {
    pub(crate) door: Door,
    _task: JoinSet<()>,
}

/// Lets connections in.
#[derive(Clone)]
pub(crate) struct Door {
    pub(super) events: mpsc::Sender<News>,
    /// Open connections that asked to join, and as which rank; gone once everything sent to them is out.
    pub(super) joined: Arc<watch::Sender<BTreeMap<ConnId, u32>>>,
    /// Connections that there ever were: the source of their ids.
    counted: Arc<AtomicU64>,
    slots: Arc<Semaphore>,
    most: usize, // of them
    lease: Duration,
}

impl Hub {
    /// Starts the task; it ends when this is dropped.
    pub(crate) fn start(machine: Machine, options: &ServerOptions) -> Self {
        let (events, inbox) = mpsc::channel(MAX_NEWS);
        let mut task = JoinSet::new();
        task.spawn(attend_machine(machine, inbox, Clock::of(options.heartbeat)));
        let door = Door {
            events,
            joined: Arc::default(),
            lease: options.heartbeat.lease,
            counted: Arc::default(),
            slots: Arc::new(Semaphore::new(options.max_connections)),
            most: options.max_connections,
        };
        Self { door, _task: task }
    }
}

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

/// Feeds the machine and carries out its actions.
async fn attend_machine(mut machine: Machine, mut inbox: mpsc::Receiver<News>, mut clock: Clock) {
    let mut outlets: HashMap<ConnId, Outlet> = HashMap::new();
    loop {
        let due = clock.next_look(machine.next_deadline());
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
            () = sleep_until(due) => Event::Tick,
        };
        let now = clock.now();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            if let Event::Closed { conn, .. } = event {
                outlets.remove(&conn);
            }
            for action in machine.handle(now, event) {
                let (conn, frame) = match action {
                    Action::Answer { call: Call { conn, id }, result } => {
                        (conn, Frame::Answer { id, result })
                    }
                    Action::Ask { conn, ask } => (conn, Frame::Ask { ask }),
                    Action::Settle { conn, change, outcome } => (conn, Frame::Settled { change, outcome }),
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
                let Some(outlet) = outlets.get(&conn) else { continue };
                match outlet.frames.try_send(Queued::Frame(frame)) {
                    // The connection has ended. Whether the peer closed it, and so is dead, stands in news that wait here.
                    Ok(()) | Err(TrySendError::Closed(_)) => {}
                    // Whoever does not read is cut off, which makes it suspect, not dead: this side closed.
                    Err(TrySendError::Full(_)) => {
                        outlets.remove(&conn);
                        events.push(Event::Closed { conn, by_peer: false });
                    }
                }
            }
        }
    }
}

impl Door {
    /// A name for a new connection.
    pub(super) fn next_conn(&self) -> ConnId {
        self.counted.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until all that the machine has said so far is written or can not be, at most a lease.
    pub(super) async fn flushed(&self) {
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
        let Ok(_slot) = self.slots.clone().try_acquire_owned() else {
            return refuse(stream, self.most).await;
        };
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
                let _ = timeout(LINGER, close(&mut reader, &mut writer)).await;
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
                Ok(Frame::Notice { notice }) => Event::Noticed { conn, notice },
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

/// Says that there are `most` connections already, and closes this one once the peer has read it.
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

/// Ends a connection from this side, without a bound. Closed with bytes unread, a socket throws away what it has not sent yet:
/// the peer closes first.
async fn close(reader: &mut (impl AsyncRead + Unpin), writer: &mut (impl AsyncWrite + Unpin)) {
    let _ = writer.shutdown().await;
    let _ = tokio::io::copy(reader, &mut tokio::io::sink()).await;
}

/// What reaches the task around the machine, in this order.
pub(super) enum News {
    Opened { conn: ConnId, outlet: Outlet },
    Machine(Event),
    Flush(Mark),
}

/// Goes behind what is queued for each connection and is dropped there once all before it is written, or can not be: no
/// copy is left when everything is out.
pub(super) type Mark = mpsc::Sender<Infallible>;

/// What waits to be written to one connection.
#[expect(clippy::large_enum_variant, reason = "nearly all are frames")]
pub(super) enum Queued {
    Frame(Frame),
    Mark(Mark),
}

/// What the hub has to say to one connection. Of views only the newest counts, so they do not pile up.
pub(super) struct Outlet {
    frames: mpsc::Sender<Queued>,
    view: watch::Sender<Option<Arc<View>>>,
}

/// Frames that wait to be written to one connection; a peer that lets more pile up is cut off.
const MAX_QUEUED: usize = 1024;
/// How long a connection that this side ends may take to deliver what was sent.
const LINGER: Duration = Duration::from_secs(1);
/// News that wait for the machine; connections wait when there are more.
const MAX_NEWS: usize = 1024;

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;
    use crate::mask::Mask;
    use crate::rendezvous::machine::Settings;
    use crate::rendezvous::wire::{Identity, Join, PROTOCOL_VERSION, RankState, Reply, Round, RoundKind};

    const MINUTE: Duration = Duration::from_secs(60);
    const LEASE: Duration = Duration::from_secs(5);

    /// For two ranks, and the tasks of its connections.
    fn hub() -> (Hub, JoinSet<()>) {
        let settings = Settings { run_id: String::new(), world: 2, join_deadline: MINUTE, lease: LEASE };
        (Hub::start(Machine::new(settings).unwrap(), &ServerOptions::new("", 2)), JoinSet::new())
    }

    fn connect(hub: &Hub, served: &mut JoinSet<()>) -> DuplexStream {
        let (near, far) = tokio::io::duplex(1 << 16);
        let door = hub.door.clone();
        served.spawn(async move { door.clone().attend(door.next_conn(), far, true).await });
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
        let mut members = [0, 1].map(|_| connect(&hub, &mut served));
        for (rank, member) in (0..).zip(&mut members) {
            ask(member, 1, join(rank, u128::from(rank) + 1)).await;
        }
        for member in &mut members {
            answer(member, 1).await;
        }
        for _ in 0..5 {
            tokio::time::advance(3 * LEASE).await;
            for member in &mut members {
                write_frame(member, &Frame::Ping {}).await.unwrap();
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
                write_frame(&mut members[0], &Frame::Ping {}).await.unwrap();
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
        let (mut dying, mut other) = (connect(&hub, &mut served), connect(&hub, &mut served));
        ask(&mut dying, 1, join(0, 1)).await;
        ask(&mut other, 1, join(1, 2)).await;
        answer(&mut dying, 1).await;
        answer(&mut other, 1).await;
        ask(&mut dying, 2, barrier()).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        ask(&mut other, 2, barrier()).await;
        drop(dying);
        assert_eq!(answer(&mut other, 2).await, Reply::Done {});
        let mut replacement = connect(&hub, &mut served);
        ask(&mut replacement, 1, join(0, 3)).await;
        let Reply::Joined { joined } = answer(&mut replacement, 1).await else { panic!("not let in") };
        assert_eq!(joined.view.states[0], RankState::Standby {});
    }
}
