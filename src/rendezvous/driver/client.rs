//! A connection to the rendezvous server, shared by a group and its store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::background::spawn;
use super::connection::{OPEN_LIMIT, ReadError, greet, read_frame, too_long, write_frame};
use super::heartbeat::{Awake, Heartbeat};
use crate::env::Token;
use crate::mask::Mask;
use crate::rendezvous::auth::require;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{
    Ask, Decision, Frame, HEADER_BYTES, MAX_BODY_BYTES, Notice, Reply, Request, View, encode,
};
use crate::waking::{contain, shielded};

/// Where the server is, and what it takes to talk to it.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `host:port` of the server.
    pub address: String,
    /// The run that it serves.
    pub run_id: String,
    /// The secret of the run; needed off loopback.
    pub token: Option<Token>,
    /// How long to try until somebody accepts.
    pub deadline: Duration,
    /// Signs of life and the handshake.
    pub heartbeat: Heartbeat,
}

/// A connection to the server. Clones share it; it closes when the last one is gone, which never waits.
///
/// `Send` and `Sync`; its futures need no particular runtime.
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<View>,
}

/// What a handle asks of the thread.
#[derive(Debug)]
enum Command {
    Call {
        op: String,
        request: Request,
        deadline: Duration,
        reply: Answer<Reply>,
    },
    /// Wait until there are other news than these, see [`Attendant::news`].
    Wait {
        op: String,
        seen: u64,
        deadline: Duration,
        reply: Answer<()>,
    },
    Tell(Notice),
}

type Answer<T> = oneshot::Sender<Result<T, BootstrapError>>;

/// Who attends to what the server says by itself, for the member that the connection belongs to. Called on the thread that
/// carries the connection: it must not wait.
pub(crate) trait Attendant: Send + Sync + std::fmt::Debug {
    /// The member was let in.
    fn joined(&self, view: &View);
    /// The group asks. The answer, unless that takes time: then it goes to `later`.
    fn asked(&self, ask: Ask, later: Later) -> Option<Notice>;
    /// A change has ended.
    fn settled(&self, change: u64, outcome: Result<Decision, BootstrapError>);
    /// Goes up with each call of the others.
    fn news(&self) -> u64;
}

/// The connection, for work that an attendant does on threads of its own. Does not keep it open.
#[derive(Clone, Debug)]
pub(crate) struct Later(mpsc::WeakSender<Command>);

impl Later {
    pub(crate) fn tell(&self, notice: Notice) {
        if let Some(commands) = self.0.upgrade() {
            let _ = commands.blocking_send(Command::Tell(notice));
        }
    }

    /// As [`Client::call`], on a plain thread.
    pub(crate) fn call(
        &self,
        op: &str,
        request: Request,
        deadline: Duration,
    ) -> Result<Reply, BootstrapError> {
        let ended = |_| lost(op, "the rendezvous", "its thread ended");
        let (reply, answer) = oneshot::channel();
        let commands = self.0.upgrade().ok_or_else(|| ended(()))?;
        let call = Command::Call { op: op.to_owned(), request, deadline: deadline.min(LONGEST), reply };
        commands.blocking_send(call).map_err(|_| ended(()))?;
        drop(commands);
        answer.blocking_recv().map_err(|_| ended(()))?
    }

    /// Whether the member has gone.
    pub(crate) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Longest deadline of a call: what adds to it stays within what clocks can express.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Calls that one client may have waiting.
const MAX_PENDING: usize = 512;
/// Longest pause between two tries to connect.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// How much longer than the server a client waits, so that the server's account of a timeout comes first.
const GRACE: Duration = Duration::from_millis(500);

impl Client {
    /// Connects, trying until the deadline, and shows the token.
    ///
    /// Errors: [`BootstrapError::TokenRequired`], and what the handshake gives: `WrongToken`, `WrongVersion`, `Garbage`; once
    /// the deadline has passed [`BootstrapError::Unreachable`], or `SilentPeer` where somebody accepted and said nothing.
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
        let (shown, view) = watch::channel(View { epoch: 0, mask: Mask::EMPTY, step: 0, states: Vec::new() });
        let address = options.address.clone();
        let later = Later(commands.downgrade());
        spawn("epwire-client", move || async move {
            let mut connected = connected;
            // Nobody waits for the outcome any more when the caller dropped its future.
            let stream = tokio::select! {
                stream = dial(&options) => stream,
                () = connected.closed() => return,
            };
            match stream {
                Err(error) => drop(connected.send(Err(error))),
                Ok(stream) => {
                    if connected.send(Ok(())).is_ok() {
                        let told = Told { view: shown, attendant, later };
                        run(stream, options.address, options.heartbeat, inbox, told).await;
                    }
                }
            }
        })?;
        let ended = |_| lost("connect to the rendezvous", &address, "its thread ended");
        shielded(outcome).await.map_err(ended)??;
        Ok(Self { address, commands, view })
    }

    /// A client on a stream that needs no handshake, and the task that carries it.
    pub(crate) fn attach<S>(
        stream: S,
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
        let told = Told { view: shown, attendant, later: Later(commands.downgrade()) };
        let task = run(stream, address.to_owned(), heartbeat, inbox, told);
        (Self { address: address.to_owned(), commands, view }, task)
    }

    /// The membership as the server last showed it.
    pub fn watch(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// Address of the server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks and waits for the answer, at most a little longer than `deadline`.
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

    /// Waits until the [`Attendant`] knows of other news than those it has counted as `seen`.
    ///
    /// Errors: [`BootstrapError::Timeout`] once the deadline has passed.
    pub(crate) async fn news(&self, op: &str, seen: u64, deadline: Duration) -> Result<(), BootstrapError> {
        let op_name = op.to_owned();
        let wait = |reply| Command::Wait { op: op_name, seen, deadline: deadline.min(LONGEST), reply };
        self.command(op, wait).await
    }

    /// Says what needs no answer. Lost if the server is.
    pub(crate) async fn tell(&self, notice: Notice) {
        let _ = shielded(self.commands.send(Command::Tell(notice))).await;
    }

    async fn command<T>(
        &self,
        op: &str,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, BootstrapError> {
        let (reply, answer) = oneshot::channel();
        let ended = || lost(op, &self.address, "its thread ended");
        shielded(self.commands.send(command(reply))).await.map_err(|_| ended())?;
        shielded(answer).await.map_err(|_| ended())?
    }
}

fn lost(op: &str, address: &str, detail: &str) -> BootstrapError {
    BootstrapError::ServerLost { op: op.to_owned(), address: address.to_owned(), detail: detail.to_owned() }
}

/// Tries to connect until the deadline: servers start later than their clients, restart, and may be busy with strangers.
async fn dial(options: &ClientOptions) -> Result<TcpStream, BootstrapError> {
    const OP: &str = "connect to the rendezvous";
    let (address, deadline) = (&options.address, options.deadline);
    let began = Instant::now();
    let mut pause = Duration::from_millis(20);
    loop {
        let left = deadline.saturating_sub(began.elapsed());
        let attempt = async {
            let mut detail = "the name has no address".to_owned();
            let candidates = match tokio::net::lookup_host(address).await {
                Ok(candidates) => candidates.collect(),
                Err(error) => {
                    detail = error.to_string();
                    Vec::new()
                }
            };
            for candidate in candidates {
                require(OP, candidate, options.token.as_ref())?;
                match TcpStream::connect(candidate).await {
                    Ok(stream) => return Ok(Ok(stream)),
                    Err(error) => detail = error.to_string(),
                }
            }
            Ok(Err(detail))
        };
        let unreachable = |detail| {
            let (op, address) = (OP.to_owned(), address.clone());
            BootstrapError::Unreachable { op, address, deadline, detail }
        };
        let failed = match timeout(left, attempt).await {
            Ok(Ok(Ok(mut stream))) => {
                let _ = stream.set_nodelay(true);
                let heartbeat = &options.heartbeat;
                let handshake = heartbeat.handshake.min(deadline.saturating_sub(began.elapsed()));
                match greet(&mut stream, address, &options.run_id, options.token.as_ref(), handshake).await {
                    Ok(()) => return Ok(stream),
                    // A server that is going down, or coming up.
                    Err(BootstrapError::ServerLost { detail, .. }) => unreachable(detail),
                    // One that has others to wait for.
                    Err(silent @ BootstrapError::SilentPeer { .. }) => silent,
                    Err(error) => return Err(error),
                }
            }
            Ok(Ok(Err(detail))) => unreachable(detail),
            Ok(Err(error)) => return Err(error),
            Err(_) => unreachable("no answer".to_owned()),
        };
        if began.elapsed() + pause >= deadline {
            return Err(failed);
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

struct Pending {
    op: String,
    leaves: bool,
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

/// Who hears of what the server says by itself.
struct Told {
    view: watch::Sender<View>,
    attendant: Option<Arc<dyn Attendant>>,
    later: Later,
}

/// Carries calls and signs of life until the last handle is gone.
async fn run<S>(
    stream: S,
    address: String,
    heartbeat: Heartbeat,
    mut commands: mpsc::Receiver<Command>,
    Told { view, attendant, later }: Told,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (arrive, mut arrivals) = mpsc::channel::<Result<Frame, ReadError>>(64);
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

    // Wakes the tasks of whoever follows the membership.
    let show = |shown| contain(|| drop(view.send_replace(shown)));
    let mut pending: HashMap<u64, Pending> = HashMap::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut next_id = 0;
    let mut silence = Silence::of(heartbeat);
    let mut beat = interval(silence.awake.interval);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let failure = loop {
        let answers = pending.values().map(|call| call.began + call.deadline + GRACE);
        let due = answers.chain(waiting.iter().map(|wait| wait.began + wait.deadline)).min();
        tokio::select! {
            // What has come counts before time does: an answer or a sign of life that waits here was given in time.
            biased;
            arrival = arrivals.recv() => {
                silence.broken();
                match arrival {
                    Some(Ok(Frame::Answer { id, result })) => {
                        if let Ok(Reply::Joined { joined }) = &result {
                            show(joined.view.clone());
                            if let Some(attendant) = &attendant {
                                attendant.joined(&joined.view);
                            }
                        }
                        if let Some(call) = pending.remove(&id) {
                            let left = call.leaves && result.is_ok();
                            let _ = call.reply.send(result);
                            if left {
                                tasks.shutdown().await;
                                break lost("", &address, "this member has left");
                            }
                        }
                    }
                    Some(Ok(Frame::Changed { view: shown })) => {
                        show(View::clone(&shown));
                    }
                    Some(Ok(Frame::Ask { ask })) => {
                        let answer = attendant.as_ref().and_then(|attendant| attendant.asked(ask, later.clone()));
                        if let Some(notice) = answer
                            && outgoing.try_send(Frame::Notice { notice }).is_err()
                        {
                            break lost("", &address, "it does not take what is sent");
                        }
                        waiting.drain(..).for_each(|wait| drop(wait.reply.send(Ok(()))));
                    }
                    Some(Ok(Frame::Settled { change, outcome })) => {
                        if let Some(attendant) = &attendant {
                            attendant.settled(change, outcome);
                        }
                        waiting.drain(..).for_each(|wait| drop(wait.reply.send(Ok(()))));
                    }
                    Some(Ok(Frame::Pong {})) => {}
                    Some(Ok(Frame::Refused { error })) => break error,
                    Some(Ok(_)) => break lost("", &address, "it sent a frame that has no place there"),
                    Some(Err(error)) => break error.explain("", &address),
                    None => break lost("", &address, "it closed the connection"),
                }
            }
            command = commands.recv() => {
                let (op, request, deadline, reply) = match command {
                    None => return,
                    Some(Command::Call { op, request, deadline, reply }) => (op, request, deadline, reply),
                    Some(Command::Wait { op, seen, deadline, reply }) => {
                        match &attendant {
                            Some(attendant) if attendant.news() == seen => {
                                waiting.push(Waiting { op, began: Instant::now(), deadline, reply });
                            }
                            _ => drop(reply.send(Ok(()))),
                        }
                        continue;
                    }
                    Some(Command::Tell(notice)) => {
                        if outgoing.try_send(Frame::Notice { notice }).is_err() {
                            break lost("", &address, "it does not take what is sent");
                        }
                        continue;
                    }
                };
                next_id += 1;
                let frame = Frame::Call { id: next_id, request };
                if let Err(error) = BootstrapError::check(&op, "calls waiting", pending.len() + 1, MAX_PENDING)
                    .and_then(|()| fits(&op, &frame))
                {
                    let _ = reply.send(Err(error));
                    continue;
                }
                let leaves = matches!(frame, Frame::Call { request: Request::Leave {}, .. });
                pending.insert(next_id, Pending { op, leaves, began: Instant::now(), deadline, reply });
                if outgoing.try_send(frame).is_err() {
                    break lost("", &address, "it does not take what is sent");
                }
            }
            _ = beat.tick() => {
                if silence.lasts() {
                    break lost("", &address, &format!("silent for {:?}", heartbeat.lease));
                }
                if outgoing.try_send(Frame::Ping {}).is_err() {
                    break lost("", &address, "it does not take what is sent");
                }
            }
            () = async { match due { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => {
                let late = |call: &mut Pending| call.began.elapsed() >= call.deadline + GRACE;
                let ids: Vec<u64> = pending.iter_mut().filter_map(|(id, call)| late(call).then_some(*id)).collect();
                for id in ids {
                    if let Some(Pending { op, began, deadline, reply, .. }) = pending.remove(&id) {
                        let (elapsed, missing) = (began.elapsed(), Box::default());
                        let _ = reply.send(Err(BootstrapError::Timeout { op, elapsed, deadline, missing }));
                    }
                }
                for wait in waiting.extract_if(.., |wait| wait.began.elapsed() >= wait.deadline) {
                    let Waiting { op, began, deadline, reply } = wait;
                    let (elapsed, missing) = (began.elapsed(), Box::default());
                    let _ = reply.send(Err(BootstrapError::Timeout { op, elapsed, deadline, missing }));
                }
            }
        }
    };
    let detail = match failure {
        BootstrapError::ServerLost { detail, .. } => detail,
        other => other.to_string(),
    };
    #[cfg(feature = "tracing")]
    tracing::warn!(%address, %detail, "lost the rendezvous server");
    for call in pending.into_values() {
        let _ = call.reply.send(Err(lost(&call.op, &address, &detail)));
    }
    for wait in waiting {
        let _ = wait.reply.send(Err(lost(&wait.op, &address, &detail)));
    }
    // The socket stays open while anyone may still use this rank's memory: that it closes is what tells the server
    // that this incarnation is gone.
    while let Some(command) = commands.recv().await {
        match command {
            Command::Call { op, reply, .. } => drop(reply.send(Err(lost(&op, &address, &detail)))),
            Command::Wait { op, reply, .. } => drop(reply.send(Err(lost(&op, &address, &detail)))),
            Command::Tell(_) => {}
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock stands still but for the sleep, in which only the tasks of the client run, not the client itself.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_came_counts_though_this_side_was_too_busy_to_look() {
        let answer = BootstrapError::OutOfOrder { op: "test".to_owned(), reason: "told".to_owned() };
        for _ in 0..30 {
            let (near, mut far) = tokio::io::duplex(1 << 10);
            let view = View { epoch: 0, mask: Mask::EMPTY, step: 0, states: Vec::new() };
            let (client, carrier) = Client::attach(near, "the test", Heartbeat::default(), view, None);
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
                () = &mut carrier => Err(lost("join", "the test", "the client has ended")),
            };
            assert_eq!(told, Err(answer.clone()));
        }
    }

    /// The clock jumps for this process as it does while it is stopped: pings go unsent, and answers to them unread.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_ones_own_is_no_silence_of_the_server() {
        let heartbeat = Heartbeat::default();
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let view = View { epoch: 0, mask: Mask::EMPTY, step: 0, states: Vec::new() };
        let (client, carrier) = Client::attach(near, "the test", heartbeat, view, None);
        let mut carried = JoinSet::new();
        carried.spawn(carrier);
        for _ in 0..5 {
            let Frame::Ping {} = read_frame(&mut far, OPEN_LIMIT).await.unwrap() else { panic!("no ping") };
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

    /// Yet a server that says nothing is lost after a lease.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_falls_silent_is_lost_after_a_lease() {
        let heartbeat = Heartbeat::default();
        let (near, _far) = tokio::io::duplex(1 << 10);
        let view = View { epoch: 0, mask: Mask::EMPTY, step: 0, states: Vec::new() };
        let (client, carrier) = Client::attach(near, "the test", heartbeat, view, None);
        let mut carried = JoinSet::new();
        carried.spawn(carrier);
        let began = Instant::now();
        let lost = client.call("leave", Request::Leave {}, Duration::from_secs(60)).await;
        assert!(matches!(lost, Err(BootstrapError::ServerLost { .. })), "{lost:?}");
        assert!(began.elapsed() <= heartbeat.lease + 2 * heartbeat.interval, "{:?}", began.elapsed());
    }

    /// The id of the first call that comes.
    async fn asked(far: &mut (impl AsyncRead + Unpin)) -> u64 {
        loop {
            if let Frame::Call { id, .. } = read_frame(far, OPEN_LIMIT).await.unwrap() {
                return id;
            }
        }
    }
}
