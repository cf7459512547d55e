//! A rank's membership: joining, collective rounds, leaving.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::course::Course;
use super::options::{GroupOptions, MAX_LEAD};
use crate::env::{self, PortsError};
use crate::rendezvous::auth;
use crate::rendezvous::driver::{
    Attendant, Client, ClientOptions, Seat, Server, block_on, is_loopback, local, process_space, random,
};
use crate::rendezvous::machine::{Action, Call, Event, Machine, Settings};
use crate::rendezvous::wire::{Join, PROTOCOL_VERSION, Reply, Request, Round, RoundKind};
use crate::rendezvous::{Blob, BootstrapError, Decision, Fields, Identity, Mask, View};
use crate::store::Store;

/// A rank's membership in a run.
///
/// `Clone` shares it; `Send` and `Sync`. The membership ends when the last clone is gone or with [`Group::leave`]: the
/// rank then counts as dead, so whatever may still write to peers has to hold a clone. Dropping never waits.
///
/// Each operation is a future that needs no particular runtime, ends within the deadline of the group
/// ([`Group::with_deadline`] gives another), and has a `_blocking` form for plain threads, which gives
/// [`BootstrapError::BlockingInAsync`] on a thread of an async runtime. Dropping a future gives up waiting, not the
/// operation. An error reaches the rank that hosts the server last, at most a lease later, so that a program may end with
/// it and the other ranks still learn theirs. Errors common to all: [`BootstrapError::ServerLost`], or
/// [`BootstrapError::NoQuorum`] where the members serve the run themselves and too many of those that do are gone;
/// [`BootstrapError::Timeout`], [`BootstrapError::Limit`].
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) inner: Arc<Inner>,
    pub(super) deadline: Duration,
}

#[derive(Debug)]
pub(super) struct Inner {
    join: Join,
    wire_key: Option<[u8; 32]>,
    /// Dropped before the client: if the server saw its own member leave, it would begin a change, and end before it has
    /// decided it.
    server: Option<Server>,
    pub(super) client: Client,
    pub(super) course: Arc<Course>,
}

impl Group {
    /// Joins the run and waits for all other ranks, or, as the replacement of a dead one, is put on standby.
    ///
    /// Errors, each within the join deadline: [`BootstrapError::MissingRanks`], [`BootstrapError::ConfigMismatch`],
    /// [`BootstrapError::DuplicateRank`], [`BootstrapError::Mismatch`] of world or rank,
    /// [`BootstrapError::Invalid`] for another run id than that of the server, and on the rank that hosts it if its name
    /// does not resolve by then, [`BootstrapError::Fenced`], [`BootstrapError::Limit`] for a
    /// [lead](GroupOptions::lead) that is too large, and those of connecting: `Unreachable`, `TokenRequired`,
    /// `WrongToken`, `WrongVersion`, `Garbage`; `SilentPeer` once the deadline has passed.
    pub async fn join(options: GroupOptions) -> Result<Self, BootstrapError> {
        let began = Instant::now();
        BootstrapError::check("join", "lead", options.lead as usize, MAX_LEAD as usize)?;
        let member = match options.member_id {
            Some(member) => member,
            None => u128::from_le_bytes(random("choose a member id")?),
        };
        let course = Course::new(options.rank, options.lead, options.heartbeat.bounded());
        course.joins(options.initial, options.join_deadline);
        let seat = |address| Seat { rank: options.rank, member, address };
        let mut address = options.address.clone();
        let mut server = None;
        if options.host_server {
            let bind = options.bind.as_deref().unwrap_or(&options.address);
            let advertised = options.bind.as_ref().map(|_| options.address.clone());
            let founded = Server::found(bind, options.server(), seat(advertised)).await;
            let hosted = founded.map_err(hosted_already)?;
            if options.bind.is_none() {
                address = hosted.local_addr().to_string();
            }
            server = Some(hosted);
        }
        let client_options = ClientOptions {
            address,
            run_id: options.run_id.clone(),
            token: options.token.clone(),
            deadline: options.join_deadline,
            heartbeat: options.heartbeat,
        };
        let client = Client::connect_as(client_options, Some(course.clone())).await?;
        // If the server is that of a member, other members can take over from it.
        if let (None, Some(local), Some(host)) = (&server, client.local(), client.host()) {
            // All others find a server at a loopback address only if they are on this host too.
            if cfg!(feature = "succession")
                && local.to_canonical().is_loopback()
                && !is_loopback(&host.address)
            {
                course.has_no_server(&host.address);
            } else {
                let bind = SocketAddr::new(local, 0).to_string();
                let ports = env::ports().map_err(|PortsError(value)| BootstrapError::Invalid {
                    op: "join".to_owned(),
                    field: env::PORTS.to_owned(),
                    value,
                    reason: PortsError::REASON.to_owned(),
                })?;
                server = Server::follow(&bind, ports, options.server(), seat(None)).await?;
            }
        }
        if let Some(elector) = server.as_ref().and_then(Server::elector) {
            let _ = course.elector.set(elector);
        }
        let wire_key = options.token.as_ref().map(|token| auth::wire_key(token, &options.run_id));
        let join = Join {
            version: PROTOCOL_VERSION,
            run_id: options.run_id,
            world: options.world,
            initial: options.initial,
            identity: Identity {
                rank: options.rank,
                member,
                host: host(),
                pid: std::process::id(),
                process_space: process_space().to_owned(),
            },
            deadline: options.join_deadline.saturating_sub(began.elapsed()),
            config: options.config,
            listener: server.as_ref().and_then(Server::listener),
        };
        heard_by_all(server.as_ref(), ask_to_join(&client, join.clone()).await).await?;
        let inner = Arc::new(Inner { join, wire_key, client, server, course });
        Ok(Self { inner, deadline: options.deadline })
    }

    /// [`Group::join`] for a plain thread.
    pub fn join_blocking(options: GroupOptions) -> Result<Self, BootstrapError> {
        block_on("join", Self::join(options))
    }

    /// A run whose ranks are threads of this process: the group of each rank, by rank. The same machine decides, over
    /// pipes in memory.
    ///
    /// Errors: [`BootstrapError::Limit`] for a world outside 1 to 1024, [`BootstrapError::System`] if no thread can be
    /// started. Does not wait.
    pub fn threads(world: u32) -> Result<Vec<Self>, BootstrapError> {
        let heartbeat = crate::rendezvous::driver::Heartbeat::default();
        let run_id = "threads".to_owned();
        let mut machine = Machine::new(Settings {
            run_id: run_id.clone(),
            world,
            initial: world,
            join_deadline: Duration::MAX,
            lease: heartbeat.lease,
            arbiter: false,
        })?;
        // All join before any of them has to wait, each over the connection with its rank's number.
        let mut joins = Vec::new();
        let mut joined = None;
        for rank in 0..world {
            let member = u128::from_le_bytes(random("choose a member id")?);
            let join = Join {
                version: PROTOCOL_VERSION,
                run_id: run_id.clone(),
                world,
                initial: world,
                identity: Identity {
                    rank,
                    member,
                    host: host(),
                    pid: std::process::id(),
                    process_space: process_space().to_owned(),
                },
                deadline: Duration::from_secs(1),
                config: Fields::new(),
                listener: None,
            };
            joins.push(join.clone());
            let call = Call { session: u64::from(rank), id: 0 };
            for action in machine
                .handle(Duration::ZERO, Event::Request { call, request: Box::new(Request::Join { join }) })
            {
                if let Action::Answer { result, .. } = action {
                    joined = Some(result?);
                }
            }
        }
        let Some(Reply::Joined { joined }) = joined else {
            return Err(BootstrapError::unexpected_answer("join"));
        };
        let course = |join: &Join| {
            let course = Course::new(join.identity.rank, 0, heartbeat);
            course.joined(&joined);
            course.shown(&joined.view);
            course
        };
        let courses: Vec<Arc<Course>> = joins.iter().map(course).collect();
        let attendants = courses.iter().map(|course| course.clone() as Arc<dyn Attendant>);
        let clients = local(machine, attendants)?;
        let group = |((join, client), course)| {
            let inner = Arc::new(Inner { join, wire_key: None, client, server: None, course });
            Self { inner, deadline: Duration::from_secs(30) }
        };
        Ok(joins.into_iter().zip(clients).zip(courses).map(group).collect())
    }

    /// The same membership with another deadline for its operations.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { inner: self.inner.clone(), deadline }
    }

    /// This rank, in `0..world`.
    pub fn rank(&self) -> u32 {
        self.inner.join.identity.rank
    }

    /// Number of ranks of the run, including dead ones and places to grow into.
    pub fn world(&self) -> u32 {
        self.inner.join.world
    }

    /// Name of the run.
    pub fn run_id(&self) -> &str {
        &self.inner.join.run_id
    }

    /// 128 random bits that tell this incarnation of the rank from others.
    pub fn member_id(&self) -> u128 {
        self.inner.join.identity.member
    }

    /// The membership in effect for this member; for one on standby that of the others.
    pub fn active(&self) -> Decision {
        self.inner.course.current()
    }

    /// Whether this member waits to be admitted.
    pub fn is_standby(&self) -> bool {
        self.inner.course.waits()
    }

    /// The last known member of each rank, by rank: who was there when this one joined, updated whenever another
    /// process takes a place, such as a replacement. A member that has ended stays listed until its place is taken;
    /// [`Group::membership`] reports the state of each rank.
    pub fn roster(&self) -> Arc<[Identity]> {
        self.inner.course.roster().into()
    }

    /// The key that authenticates the connections of this run's queues; none without a token.
    pub(crate) fn wire_key(&self) -> Option<[u8; 32]> {
        self.inner.wire_key
    }

    /// The members on other hosts than this one, as far as it knows.
    pub(crate) fn elsewhere(&self) -> Mask {
        let host = &self.inner.join.identity.host;
        self.roster().iter().filter(|member| member.host != *host).map(|member| member.rank).collect()
    }

    /// The membership as the server last reported it. For information only: [`Group::step`] alone changes the ranks
    /// that this member works with.
    pub fn watch(&self) -> watch::Receiver<View> {
        self.inner.client.watch()
    }

    /// The store of the run, on the group's connection.
    pub fn store(&self) -> Store {
        Store::new(self.inner.client.clone())
    }

    /// Addresses for newcomers, `host:port` each: of the member or server that serves the run, and of those that can
    /// take over from it. Joined by commas they can be passed to [`GroupOptions::new`](super::GroupOptions::new).
    pub fn servers(&self) -> Vec<String> {
        self.inner.client.servers()
    }

    /// The rank whose server serves the run, as far as this member knows. None while it is looking for one, and if a
    /// separate server serves. For logs and operators: the members elect another one by themselves.
    pub fn leader(&self) -> Option<u32> {
        self.inner.client.host().map(|host| host.rank)
    }

    /// The server that this rank hosts, if it hosts one.
    pub fn server(&self) -> Option<&Server> {
        self.inner.server.as_ref()
    }

    /// Gives `blobs[r]` to each rank r of the current members, [`Group::active`], and gets what they gave this rank,
    /// indexed by rank. Blobs for other ranks are not sent, and theirs come back empty.
    ///
    /// Errors: [`BootstrapError::Limit`] for a blob past 64 KiB or 4 MiB together, [`BootstrapError::PeerLost`] when a
    /// participant dies. If one fails it fails for all, with the same error.
    pub async fn exchange(&self, tag: &str, blobs: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.exchange_among(self.active().mask, tag, blobs).await
    }

    /// [`Group::exchange`] among `ranks`, this one included: members, or living ranks on standby.
    pub async fn exchange_among(
        &self,
        ranks: Mask,
        tag: &str,
        mut blobs: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        for (rank, blob) in (0u32..).zip(&mut blobs) {
            if !ranks.contains(rank) {
                blob.clear();
            }
        }
        let blobs = blobs.into_iter().map(Blob).collect();
        match self.round("exchange", ranks, tag, RoundKind::Exchange { blobs }).await? {
            Reply::Blobs { blobs } => Ok(blobs.into_iter().map(|blob| blob.0).collect()),
            _ => Err(BootstrapError::unexpected_answer("exchange")),
        }
    }

    /// Returns when all current members have called it with this tag.
    ///
    /// Errors: as [`Group::exchange`].
    pub async fn barrier(&self, tag: &str) -> Result<(), BootstrapError> {
        self.barrier_among(self.active().mask, tag).await
    }

    /// [`Group::barrier`] among `ranks`, this one included.
    pub async fn barrier_among(&self, ranks: Mask, tag: &str) -> Result<(), BootstrapError> {
        self.round("barrier", ranks, tag, RoundKind::Barrier {}).await.map(|_| ())
    }

    /// Makes sure that all current members have the same fields.
    ///
    /// Errors: [`BootstrapError::ConfigMismatch`] on every rank, with the first field that differs, two of its values
    /// and the ranks that have them; else as [`Group::exchange`].
    pub async fn agree(&self, tag: &str, fields: Fields) -> Result<(), BootstrapError> {
        self.round("agree", self.active().mask, tag, RoundKind::Agree { fields }).await.map(|_| ())
    }

    /// Asks to be admitted again after [`BootstrapError::Evicted`]: puts this member on standby. Operations on its
    /// buffers must have ended.
    ///
    /// Errors: [`BootstrapError::Fenced`] if another process has taken the rank meanwhile.
    pub async fn rejoin(&self) -> Result<(), BootstrapError> {
        let join = Join { deadline: self.deadline, ..self.inner.join.clone() };
        ask_to_join(&self.inner.client, join).await
    }

    /// Ends the membership: the others see this rank as dead, and every later call fails. The rank whose server leads
    /// the run hands the lead to another server; if none can take over, it waits, within the deadline, until all others
    /// have left.
    ///
    /// An operation that has ended here may still be under way at others, for which this rank is missing once it has
    /// left: where all end together, call [`Group::barrier`] first.
    pub async fn leave(&self) -> Result<(), BootstrapError> {
        const OP: &str = "leave";
        let began = Instant::now();
        let rest = || self.deadline.saturating_sub(began.elapsed());
        self.inner.client.call(OP, Request::Leave {}, self.deadline).await?;
        let Some(server) = &self.inner.server else { return Ok(()) };
        // If all leave, there is nothing to hand over.
        if server.drained(rest().min(TOGETHER)).await.is_empty() || server.succeeded(rest()).await {
            return Ok(());
        }
        let missing = server.drained(rest()).await;
        if missing.is_empty() {
            return Ok(());
        }
        let op = "wait for the others to leave".to_owned();
        let (elapsed, deadline) = (began.elapsed(), self.deadline);
        Err(BootstrapError::Timeout { op, elapsed, deadline, missing: Box::new(missing) })
    }

    /// [`Group::exchange`] for a plain thread.
    pub fn exchange_blocking(&self, tag: &str, blobs: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, BootstrapError> {
        block_on("exchange", self.exchange(tag, blobs))
    }

    /// [`Group::exchange_among`] for a plain thread.
    pub fn exchange_among_blocking(
        &self,
        ranks: Mask,
        tag: &str,
        blobs: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        block_on("exchange", self.exchange_among(ranks, tag, blobs))
    }

    /// [`Group::barrier`] for a plain thread.
    pub fn barrier_blocking(&self, tag: &str) -> Result<(), BootstrapError> {
        block_on("barrier", self.barrier(tag))
    }

    /// [`Group::barrier_among`] for a plain thread.
    pub fn barrier_among_blocking(&self, ranks: Mask, tag: &str) -> Result<(), BootstrapError> {
        block_on("barrier", self.barrier_among(ranks, tag))
    }

    /// [`Group::agree`] for a plain thread.
    pub fn agree_blocking(&self, tag: &str, fields: Fields) -> Result<(), BootstrapError> {
        block_on("agree", self.agree(tag, fields))
    }

    /// [`Group::rejoin`] for a plain thread.
    pub fn rejoin_blocking(&self) -> Result<(), BootstrapError> {
        block_on("rejoin", self.rejoin())
    }

    /// [`Group::leave`] for a plain thread.
    pub fn leave_blocking(&self) -> Result<(), BootstrapError> {
        block_on("leave", self.leave())
    }

    async fn round(
        &self,
        what: &str,
        ranks: Mask,
        tag: &str,
        kind: RoundKind,
    ) -> Result<Reply, BootstrapError> {
        let round = Round { tag: tag.to_owned(), ranks, deadline: self.deadline, kind };
        self.call(&format!("{what} \"{tag}\""), Request::Round { round }).await
    }

    async fn call(&self, op: &str, request: Request) -> Result<Reply, BootstrapError> {
        let result = self.inner.client.call(op, request, self.deadline).await;
        heard_by_all(self.inner.server.as_ref(), result).await
    }
}

/// An address that cannot be bound is most often that of a run which this rank 0 should join as a replacement.
fn hosted_already(error: BootstrapError) -> BootstrapError {
    match error {
        BootstrapError::System { op, detail } => BootstrapError::System {
            op,
            detail: format!(
                "{detail}; if this rank is a replacement in a run that is under way, set {}=1, or \
                 GroupOptions::host_server(false)",
                env::HOSTED
            ),
        },
        error => error,
    }
}

/// Returns the result; an error only once the others have been told theirs. A program usually ends when it learns of a
/// failure, and on the rank that hosts the server that ends the server as well: the others would then learn nothing but
/// the loss of the server.
async fn heard_by_all<T>(
    server: Option<&Server>,
    result: Result<T, BootstrapError>,
) -> Result<T, BootstrapError> {
    if let (Some(server), Err(_)) = (server, &result) {
        server.flushed().await;
    }
    result
}

async fn ask_to_join(client: &Client, join: Join) -> Result<(), BootstrapError> {
    let deadline = join.deadline;
    match client.call("join", Request::Join { join }, deadline).await? {
        Reply::Joined { .. } => Ok(()),
        _ => Err(BootstrapError::unexpected_answer("join")),
    }
}

/// How long the rank whose server leads waits for the others to leave as well.
const TOGETHER: Duration = Duration::from_millis(500);

/// Name of this host, for people who read error messages.
fn host() -> String {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map_or_else(|| "unknown host".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_futures_move_between_threads() {
        fn shared<T: Send + Sync>(_: &T) {}
        fn sent<T: Send>(_: &T) {}
        let groups = Group::threads(1).unwrap();
        shared(&groups[0]);
        shared(&groups[0].store());
        sent(&groups[0].barrier("x"));
        sent(&groups[0].step());
        sent(&Group::join(GroupOptions::new(0, 1, "127.0.0.1:1")));
    }

    #[test]
    fn a_lead_past_its_limit_is_refused() {
        let refused = Group::join_blocking(GroupOptions::new(0, 1, "127.0.0.1:1").lead(u64::MAX));
        assert_eq!(
            refused.unwrap_err().to_string(),
            "join: lead is 18446744073709551615, the limit is 1048576"
        );
    }

    #[test]
    fn a_deadline_past_all_clocks_is_no_harm() {
        let groups = Group::threads(1).unwrap();
        groups[0].with_deadline(Duration::MAX).barrier_blocking("x").unwrap();
    }
}
