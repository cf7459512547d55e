//! The task behind a [`Client`](super::Client): carries its calls and signs of life, over one connection after another.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::attendant::{Answer, Command};
use super::calls::Calls;
use super::connection::ReadError;
use super::dial::Open;
use super::heartbeat::{Heartbeat, Silence};
use super::neighbours::Neighbours;
use super::search::{Found, Search, Ways};
use super::stream::FrameStream;
use super::told::Told;
use crate::mask::Mask;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Frame, Host, Notice, Reply, Request, View};

/// The state of the task.
pub(super) struct Carrier {
    /// The server's address, for errors.
    address: String,
    heartbeat: Heartbeat,
    /// None: no other connection can be made.
    ways: Option<Ways>,
    told: Told,
    neighbours: Neighbours,
    calls: Calls,
    /// It has joined a run: a new connection resumes the session.
    member: bool,
    /// The answer to a leave, delivered once the server has closed the connection: until then the server may still need
    /// this process.
    left: Option<(Answer<Reply>, Instant)>,
    link: Link,
    silence: Silence,
}

enum Link {
    Up {
        connection: FrameStream,
        /// The former connections. They must not be closed before the server knows this one: it would take the member
        /// for dead, and forget the calls and answers of any other client.
        former: Vec<FrameStream>,
        /// A resume that the server has not answered yet.
        resuming: Option<Resuming>,
    },
    Down {
        detail: String,
        search: Search,
        former: Vec<FrameStream>,
        /// The member that served the run and whose process has ended, to be reported to the next server.
        ended: Option<Host>,
    },
}

/// A resume call, and what is kept until it is answered.
struct Resuming {
    id: u64,
    /// The member that the server belongs to, if it belongs to one.
    host: Option<Host>,
    ended: Option<Host>,
}

/// What wakes the task.
enum Turn {
    Arrival(Option<Result<Frame, ReadError>>),
    Found(Found),
    Command(Option<Command>),
    Beat,
    Due,
}

/// Why the task ends.
enum End {
    /// The last handle was dropped.
    Dropped,
    /// The server has ended, and no other can take over.
    Ended(String),
    /// The member has left, or the server refuses to resume it: unanswered calls get this text.
    Over(String),
}

impl Carrier {
    /// On a connection that the server has accepted for this client.
    pub(super) fn new<S>(
        stream: S,
        address: String,
        heartbeat: Heartbeat,
        ways: Option<Ways>,
        told: Told,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let carrier = Self {
            address,
            heartbeat,
            ways,
            told,
            neighbours: Neighbours::new(heartbeat),
            calls: Calls::default(),
            member: false,
            left: None,
            link: Link::Up { connection: FrameStream::new(stream), former: Vec::new(), resuming: None },
            silence: Silence::of(heartbeat),
        };
        carrier.reached(carrier.host());
        carrier
    }

    /// Sends the session, if no handshake has done so.
    pub(super) fn open(self, session: u64) -> Self {
        self.send(Frame::Open { session });
        self
    }

    /// Runs until the last handle is dropped.
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
                Turn::Found(Found::Ended(host)) => {
                    self.host_ended(host);
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
        let (detail, missing) = match end {
            End::Dropped => return,
            End::Ended(detail) => (detail, self.host().map(|host| host.rank)),
            End::Over(detail) => (detail, None),
        };
        let address = self.address.clone();
        let lost = |op: &str| match missing {
            Some(rank) => no_quorum(op, [rank].into_iter().collect()),
            None => BootstrapError::lost(op, &address, &detail),
        };
        self.unreachable(&detail, true);
        self.calls.refuse_all(lost);
        // The socket stays open while anyone may still use this rank's memory: its closing tells the server that this
        // incarnation is gone.
        while let Some(command) = commands.recv().await {
            match command {
                Command::Call { op, reply, .. } => drop(reply.send(Err(lost(&op)))),
                Command::Wait { op, reply, .. } => drop(reply.send(Err(lost(&op)))),
                Command::Tell(_) => {}
            }
        }
    }

    async fn turn(&mut self, commands: &mut mpsc::Receiver<Command>, beat: &mut Interval) -> Turn {
        let due = self.calls.due().into_iter().chain(self.left.iter().map(|(_, until)| *until)).min();
        let link = &mut self.link;
        let arrival = async {
            match link {
                Link::Up { connection, .. } => Turn::Arrival(connection.next().await),
                Link::Down { search, .. } => Turn::Found(search.next().await),
            }
        };
        tokio::select! {
            // Handle what has arrived before timers: an answer or a sign of life that is already here was given in
            // time.
            biased;
            turn = arrival => turn,
            command = commands.recv() => Turn::Command(command),
            _ = beat.tick() => Turn::Beat,
            () = async { match due { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => Turn::Due,
        }
    }

    fn arrived(&mut self, frame: Frame) -> Option<End> {
        let resuming = matches!(&self.link, Link::Up { resuming: Some(_), .. });
        match frame {
            Frame::Answer { id, result } => return self.answered(id, result),
            // This may have been sent over the former connection and got lost. Once the server has answered the resume,
            // it repeats this first and then asks again.
            Frame::Ask { .. } | Frame::Settled { .. } if resuming => {}
            Frame::Changed { view } => self.told.show(View::clone(&view)),
            Frame::Ask { ask } => {
                let Told { attendant, later, .. } = &self.told;
                let answer = attendant.as_ref().and_then(|attendant| attendant.asked(ask, later.clone()));
                self.calls.wake();
                if let Some(notice) = answer {
                    return self.tell(notice);
                }
            }
            Frame::Settled { change, outcome, retired, waiting } => {
                if let Some(attendant) = &self.told.attendant {
                    attendant.settled(change, outcome, retired, *waiting);
                }
                self.calls.wake();
            }
            Frame::Seated { members } => {
                if let Some(attendant) = &self.told.attendant {
                    attendant.seated(&members);
                    self.neighbours.seated(&members, &self.told.later);
                }
            }
            Frame::Pong {} => {
                if let Link::Up { former, resuming: None, .. } = &mut self.link {
                    former.clear();
                }
            }
            Frame::Opened { .. } => {}
            Frame::Servers { hosts } => {
                if let Some(ways) = &mut self.ways {
                    let addresses = hosts.iter().map(|host| host.address.clone()).collect();
                    self.told.servers.send_replace(addresses);
                    ways.servers = hosts;
                }
            }
            Frame::Refer { leader } => return self.referred(leader),
            Frame::Refused { error } => {
                return Some(match error {
                    BootstrapError::ServerLost { detail, .. } => End::Ended(detail),
                    other => End::Over(other.to_string()),
                });
            }
            _ => return self.lost("it sent a frame that does not belong there".to_owned()),
        }
        None
    }

    /// The server no longer leads the run.
    fn referred(&mut self, leader: Option<String>) -> Option<End> {
        if let Some(leader) = leader {
            if let Some(ways) = &mut self.ways {
                ways.prefer(leader);
            }
        } else if let (Some(attendant), Some(host)) = (&self.told.attendant, self.host()) {
            attendant.resigned(&host);
        }
        self.lost("another member leads the run".to_owned())
    }

    fn answered(&mut self, id: u64, result: Result<Reply, BootstrapError>) -> Option<End> {
        if let Link::Up { former, resuming, .. } = &mut self.link
            && let Some(Resuming { host, .. }) = resuming.take_if(|resuming| resuming.id == id)
        {
            former.clear();
            if let Err(error) = result {
                // A member that has asked to leave, and whose answer was lost with the server, has left.
                let asked = self.left.take().map(|(reply, _)| reply).or_else(|| self.calls.take_leave());
                return Some(match asked {
                    Some(reply) => self.leave(reply),
                    None => End::Over(format!("it does not continue with this member: {error}")),
                });
            }
            self.reached(host);
            if let Some(attendant) = &self.told.attendant {
                attendant.resumed();
            }
            self.calls.wake();
            return None;
        }
        if let Ok(Reply::Joined { joined }) = &result {
            self.member = true;
            self.told.show(joined.view.clone());
            if let Some(attendant) = &self.told.attendant {
                attendant.joined(joined);
                self.neighbours.seated(&joined.roster, &self.told.later);
            }
        }
        let call = self.calls.take(id)?;
        if matches!(call.request, Request::Leave {}) && result.is_ok() {
            self.left = Some((call.reply, Instant::now() + self.heartbeat.lease));
        } else {
            let _ = call.reply.send(result);
        }
        None
    }

    fn command(&mut self, command: Command) -> Option<End> {
        match command {
            Command::Tell(notice) => return self.tell(notice),
            Command::Wait { op, seen, began, deadline, reply } => match &self.told.attendant {
                Some(attendant) if attendant.news() == seen => self.calls.wait(op, began, deadline, reply),
                _ => drop(reply.send(Ok(()))),
            },
            Command::Call { op, request, deadline, reply } => {
                if let Some(frame) = self.calls.ask(op, request, deadline, reply) {
                    return self.sent(frame);
                }
            }
        }
        None
    }

    /// Lost if there is no connection: the server asks again once there is one.
    fn tell(&mut self, notice: Notice) -> Option<End> {
        self.sent(Frame::Notice { notice })
    }

    fn sent(&mut self, frame: Frame) -> Option<End> {
        if self.send(frame) { None } else { self.lost("it does not accept what is sent".to_owned()) }
    }

    /// Whether it has been sent or will be.
    fn send(&self, frame: Frame) -> bool {
        match &self.link {
            Link::Up { connection, .. } => connection.send(frame),
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
        self.sent(self.calls.ping())
    }

    /// The connection is lost: another may follow.
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
        let search = Search::begin(ways, self.host().filter(|_| closed));
        let (former, ended) = match std::mem::replace(&mut self.link, Link::nowhere()) {
            Link::Up { connection, mut former, resuming } => {
                // The server may have read what was sent over it.
                if former.is_empty() || !closed {
                    former.push(connection);
                }
                (former, resuming.and_then(|resuming| resuming.ended))
            }
            Link::Down { former, ended, .. } => (former, ended),
        };
        self.link = Link::Down { detail, search, former, ended };
        None
    }

    /// The server serves this client.
    fn reached(&self, host: Option<Host>) {
        let address = host.as_ref().map_or_else(|| self.address.clone(), |host| host.address.clone());
        self.told.reached(host, &address);
    }

    /// There is no connection. `is_final`: and there will be none.
    fn unreachable(&self, detail: &str, is_final: bool) {
        let host = self.host();
        self.told.unreachable(host.as_ref().map_or(&self.address, |host| &host.address), detail, is_final);
    }

    /// The member that the server of this connection, or of the last one, belongs to, if it belongs to one.
    fn host(&self) -> Option<Host> {
        match &self.link {
            Link::Up { resuming: Some(resuming), .. } => resuming.host.clone(),
            Link::Up { .. } | Link::Down { .. } => self.told.contact.borrow().server.clone(),
        }
    }

    fn host_ended(&mut self, host: Host) {
        if let Some(attendant) = &self.told.attendant {
            attendant.ended(&host);
        }
        if let Link::Down { ended, .. } = &mut self.link {
            *ended = Some(host);
        }
    }

    /// Resumes over a new connection: unanswered calls are sent again, in the same order.
    fn resume(&mut self, Open { stream, host }: Open) {
        let (former, ended) = match std::mem::replace(&mut self.link, Link::nowhere()) {
            Link::Down { former, ended, .. } => (former, ended),
            Link::Up { .. } => (Vec::new(), None),
        };
        let connection = FrameStream::new(stream);
        let say = |frame| _ = connection.send(frame);
        say(self.calls.ping());
        self.silence = Silence::of(self.heartbeat);
        let mut resuming = None;
        if self.member {
            let id = self.calls.next_id();
            let standby = self.told.attendant.as_ref().is_some_and(|attendant| attendant.is_standby());
            say(Frame::Call { id, request: Request::Resume { standby } });
            if let Some(Host { rank, member, .. }) = &ended {
                say(Frame::Notice { notice: Notice::Ended { rank: *rank, member: *member } });
            }
            resuming = Some(Resuming { id, host, ended });
        } else {
            self.reached(host);
        }
        self.calls.unanswered().for_each(say);
        self.link = Link::Up { connection, former, resuming };
    }

    /// The server no longer needs this member.
    fn leave(&mut self, reply: Answer<Reply>) -> End {
        const DETAIL: &str = "this member has left";
        self.link = Link::nowhere();
        self.told.left(DETAIL);
        let _ = reply.send(Ok(Reply::Done {}));
        End::Over(DETAIL.to_owned())
    }

    /// Ends what has timed out.
    fn expire(&mut self) -> Option<End> {
        if let Some((reply, _)) = self.left.take_if(|(_, until)| *until <= Instant::now()) {
            return Some(self.leave(reply));
        }
        let (address, ways, host) = (&self.address, self.ways.as_ref(), self.host());
        let outage = match &self.link {
            Link::Down { detail, search, .. } => {
                let missing = ways.and_then(|ways| ways.missing(search, host.as_ref()));
                Some(move |op: &str| match missing {
                    Some(missing) => no_quorum(op, missing),
                    None => BootstrapError::lost(op, address, detail),
                })
            }
            Link::Up { .. } => None,
        };
        self.calls.expire(outage);
        None
    }
}

impl Link {
    /// The state between two connections, or after the last.
    fn nowhere() -> Self {
        Self::Down { detail: String::new(), search: Search::none(), former: Vec::new(), ended: None }
    }
}

/// The error when `missing`, half or more of the members that serve the run, cannot be reached.
fn no_quorum(op: &str, missing: Mask) -> BootstrapError {
    let reason = "they hold half or more of the servers that keep the run's log; operations continue under the last membership, and it can change once enough of them answer again";
    BootstrapError::NoQuorum { op: op.to_owned(), missing: Box::new(missing), reason: reason.to_owned() }
}

fn explained(error: ReadError, address: &str) -> String {
    match error.explain("", address) {
        BootstrapError::ServerLost { detail, .. } => detail,
        other => other.to_string(),
    }
}
