//! What a rank has to know to join its group.

use std::fmt;
use std::time::Duration;

use crate::env::Token;
use crate::launch::Launch;
use crate::rendezvous::Fields;
use crate::rendezvous::driver::{Heartbeat, ServerOptions};

/// Steps of a membership are numbered by 41 bits: this leaves room for many changes, each of which may skip so many.
pub(super) const MAX_LEAD: u64 = 1 << 20;

/// How a rank joins a group; see [`Group::join`](super::Group::join).
///
/// Made by [`GroupOptions::from_launch`] or [`GroupOptions::new`], then adjusted by the setters.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) initial: u32,
    pub(super) address: String,
    pub(super) run_id: String,
    pub(super) host_server: bool,
    pub(super) bind: Option<String>,
    pub(super) token: Option<Token>,
    pub(super) member_id: Option<u128>,
    pub(super) config: Fields,
    pub(super) join_deadline: Duration,
    pub(super) deadline: Duration,
    pub(super) heartbeat: Heartbeat,
    pub(super) lead: u64,
}

/// `rank 1 of 4 of run "llama", rendezvous 10.0.0.1:29700`, and what else was chosen. The token does not appear.
impl fmt::Display for GroupOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world, initial, address, run_id, host_server, .. } = self;
        write!(f, "rank {rank} of {world} of run {run_id:?}, rendezvous {address}")?;
        if *host_server {
            write!(f, ", which this rank hosts")?;
        }
        if initial < world {
            write!(f, "; begins with ranks 0-{}", initial.saturating_sub(1))?;
        }
        Ok(())
    }
}

impl GroupOptions {
    /// Rank `rank` of `world`, with the rendezvous at `address`: `host:port`; a newcomer may give several, separated by
    /// commas ([`Group::servers`](super::Group::servers)).
    ///
    /// Defaults: run id `default`, no token, 120 s to come together, 30 s per operation, the heartbeat of
    /// [`Heartbeat::default`], and another process hosts the server.
    pub fn new(rank: u32, world: u32, address: impl Into<String>) -> Self {
        Self {
            rank,
            world,
            initial: world,
            address: address.into(),
            run_id: "default".to_owned(),
            host_server: false,
            bind: None,
            token: None,
            member_id: None,
            config: Fields::new(),
            join_deadline: Duration::from_secs(120),
            deadline: Duration::from_secs(30),
            heartbeat: Heartbeat::default(),
            lead: 0,
        }
    }

    /// The options that a launcher prescribes: its rank and world, and the rendezvous at its address under its run id,
    /// hosted by rank 0 unless the launcher hosts it. Several addresses belong to a run that is already under way: then
    /// rank 0 is a newcomer and hosts nothing either. A world of one rank needs no address: it meets itself on
    /// loopback.
    ///
    /// The launcher does not provide the token: add [`Token::from_env`].
    pub fn from_launch(launch: &Launch) -> Self {
        let addresses: Vec<String> = launch.addresses.iter().map(ToString::to_string).collect();
        let (address, hosted) = match addresses.len() {
            0 => ("127.0.0.1:0".to_owned(), false),
            count => (addresses.join(","), launch.hosted || count > 1),
        };
        let options = Self::new(launch.rank, launch.world, address).host_server(launch.rank == 0 && !hosted);
        match &launch.run_id {
            Some(run_id) => options.run_id(run_id),
            None => options,
        }
    }

    /// The run begins when the ranks below `ranks` are there. The others, up to its world, are places to grow into:
    /// whoever joins as one of them is on standby first, like a replacement, and
    /// [`Group::retire`](super::Group::retire) shrinks the group again. Buffers have memory, masks and outputs for the
    /// whole world, and an expert lives on rank `expert / experts per rank`, whether that rank is there or not. All
    /// ranks must set the same value. By default all ranks are there from the beginning.
    pub fn initial(mut self, ranks: u32) -> Self {
        self.initial = ranks;
        self
    }

    /// Names the run, so that a stray rank of another run is refused. Must be equal on all ranks.
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.run_id = run_id.into();
        self
    }

    /// Whether this member starts the run and is the first to serve it: exactly one does, rank 0, unless the launcher
    /// hosts a server itself. With feature `succession` others can take over from it; otherwise its server ends with
    /// the group, so its rank must leave last ([`Group::leave`](super::Group::leave) waits for that).
    pub fn host_server(mut self, host: bool) -> Self {
        self.host_server = host;
        self
    }

    /// Where the hosted server listens, if not at the address of the rendezvous: for instance `0.0.0.0:port` behind
    /// address translation.
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.bind = Some(address.into());
        self
    }

    /// The secret of the run; required unless all traffic is on loopback. [`Token::from_env`] reads it from the
    /// environment.
    pub fn token(mut self, token: Option<Token>) -> Self {
        self.token = token;
        self
    }

    /// Joins as the incarnation that an earlier group of this process had, after that group lost its connection.
    pub fn member_id(mut self, member: u128) -> Self {
        self.member_id = Some(member);
        self
    }

    /// A field that must be equal on all ranks; joining checks it.
    pub fn config(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.push((name.into(), value.into()));
        self
    }

    /// How long to wait until all ranks are there, including the time to connect.
    pub fn join_deadline(mut self, deadline: Duration) -> Self {
        self.join_deadline = deadline;
        self
    }

    /// How long each operation of the group may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many steps this member may begin beyond its last one while it waits for the outcome of a change. The change
    /// takes effect that many steps later, and [`Group::step`](super::Group::step) need not wait. For programs that
    /// enqueue steps ahead, or whose steps are shorter than a round trip to the server. 0 by default; not used while a
    /// member is lost. At most 2^20.
    pub fn lead(mut self, steps: u64) -> Self {
        self.lead = steps;
        self
    }

    /// The options for this member's own server.
    pub(super) fn server(&self) -> ServerOptions {
        ServerOptions {
            token: self.token.clone(),
            join_deadline: self.join_deadline,
            heartbeat: self.heartbeat,
            initial: self.initial,
            ..ServerOptions::new(self.run_id.clone(), self.world)
        }
    }

    /// Heartbeats, the lease and the handshake; set the same lease on all ranks.
    pub fn heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = heartbeat;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Source;

    fn launch(rank: u32, hosted: bool) -> Launch {
        Launch {
            rank,
            world: 4,
            local_rank: rank,
            local_world: 4,
            addresses: vec!["node0:29501".parse().unwrap()],
            hosted,
            run_id: Some("job".into()),
            source: Source::Torchrun,
        }
    }

    #[test]
    fn rank_0_hosts_the_rendezvous_unless_the_launcher_does() {
        let hosts = |rank, hosted| GroupOptions::from_launch(&launch(rank, hosted)).host_server;
        assert_eq!(
            [hosts(0, false), hosts(1, false), hosts(0, true), hosts(1, true)],
            [true, false, false, false]
        );
        let options = GroupOptions::from_launch(&launch(3, false));
        assert_eq!((options.rank, options.world), (3, 4));
        assert_eq!((options.address.as_str(), options.run_id.as_str()), ("node0:29501", "job"));
    }

    #[test]
    fn a_newcomer_with_several_addresses_hosts_nothing() {
        let addresses = ["node1:1", "[::1]:2"].map(|address| address.parse().unwrap()).into();
        let options = GroupOptions::from_launch(&Launch { addresses, ..launch(0, false) });
        assert_eq!((options.address.as_str(), options.host_server), ("node1:1,[::1]:2", false));
    }

    #[test]
    fn a_launched_rank_that_is_alone_meets_itself() {
        for hosted in [false, true] {
            let alone =
                Launch { world: 1, local_world: 1, addresses: vec![], run_id: None, ..launch(0, hosted) };
            let group = crate::Group::join_blocking(GroupOptions::from_launch(&alone)).unwrap();
            assert_eq!((group.rank(), group.world(), group.run_id()), (0, 1, "default"));
        }
    }
}
