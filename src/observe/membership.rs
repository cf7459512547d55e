//! What a member reports about its group to the outside: events with the feature `tracing`, gauges, a counter and a
//! histogram with `metrics`, as listed in the crate's documentation; and lines of the log that `EPWIRE_LOG` asks for.

use std::fmt::{self, Display, Formatter};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::log::{Level, line};
use crate::mask::Mask;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::RankState;
use crate::rendezvous::driver::Outage;
use crate::rendezvous::wire::{Decision, Host, Standby, View};

#[cfg(feature = "metrics")]
mod name {
    pub(super) const EPOCH: &str = "epwire_epoch";
    pub(super) const ACTIVE: &str = "epwire_active_ranks";
    pub(super) const STANDBY: &str = "epwire_standby_ranks";
    pub(super) const SUSPECTS: &str = "epwire_suspect_ranks";
    pub(super) const GIVEN_UP: &str = "epwire_given_up_ranks";
    pub(super) const LEADER: &str = "epwire_leader";
    pub(super) const REACHABLE: &str = "epwire_server_reachable";
    pub(super) const CHANGES: &str = "epwire_changes_total";
    pub(super) const CHANGE_SECONDS: &str = "epwire_change_seconds";
}

/// Describes each metric to the recorder. Called whenever a group is joined, because a recorder may have been installed
/// since the last time.
fn describe() {
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
        describe_gauge!(name::EPOCH, "Epoch in effect at this member");
        describe_gauge!(name::ACTIVE, Unit::Count, "Ranks that are members in the epoch in effect");
        describe_gauge!(
            name::STANDBY,
            Unit::Count,
            "Ranks that wait to be admitted, as the server sees them"
        );
        describe_gauge!(name::SUSPECTS, Unit::Count, "Ranks that are silent, as the server sees them");
        describe_gauge!(
            name::GIVEN_UP,
            Unit::Count,
            "Members that this rank's buffers have given up in this epoch, at its last step"
        );
        describe_gauge!(
            name::LEADER,
            "Rank whose server serves the run; -1 if a separate server does or none can be reached"
        );
        describe_gauge!(name::REACHABLE, "1 while the server can be reached, else 0");
        describe_counter!(name::CHANGES, Unit::Count, "Changes of the membership, by how they ended");
        describe_histogram!(
            name::CHANGE_SECONDS,
            Unit::Seconds,
            "Time from the proposal of a change until it was in effect at this member"
        );
    }
}

impl Joining {
    /// For how long it has asked, and for how long it will.
    fn seconds(&self) -> (f64, f64) {
        (self.began.elapsed().as_secs_f64(), self.deadline.as_secs_f64())
    }
}

/// `12 s; gives up after 120 s`.
impl Display for Joining {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (waited, deadline) = self.seconds();
        write!(f, "{waited:.0} s; gives up after {deadline} s")
    }
}

/// What one member reports of its group.
#[derive(Debug)]
pub(crate) struct Sight {
    rank: u32,
    /// The states of the ranks at the last report.
    shown: Mutex<Vec<RankState>>,
    joining: Mutex<Option<Joining>>,
}

/// A member that asks to join.
#[derive(Debug, Clone, Copy)]
struct Joining {
    began: Instant,
    deadline: Duration,
    /// The ranks with which the run begins.
    initial: u32,
}

#[cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, clippy::unused_self, reason = "nobody looks")
)]
impl Sight {
    pub(crate) fn new(rank: u32) -> Self {
        describe();
        Self { rank, shown: Mutex::default(), joining: Mutex::default() }
    }

    /// This member asks to join.
    pub(crate) fn joins(&self, initial: u32, deadline: Duration) {
        *self.joining() = Some(Joining { began: Instant::now(), deadline, initial });
    }

    /// It has been admitted.
    pub(crate) fn has_joined(&self) {
        *self.joining() = None;
    }

    fn joining(&self) -> MutexGuard<'_, Option<Joining>> {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No server has answered yet.
    pub(crate) fn waits_for_server(&self, address: &str) {
        let Some(joining) = *self.joining() else { return };
        line(Level::Info, self.rank, || format!("waiting for the server at {address} ({joining})"));
        #[cfg(feature = "tracing")]
        {
            let (seconds, deadline) = joining.seconds();
            tracing::info!(rank = self.rank, address, seconds, deadline, "waiting for the rendezvous server");
        }
    }

    /// The server answers, and others have not joined yet.
    fn waits_for_others(&self, states: &[RankState]) {
        let Some(joining) = *self.joining() else { return };
        let Joining { initial: of, .. } = joining;
        let missing = RankState::Absent {}.ranks(states) & Mask::all(of);
        line(Level::Info, self.rank, || {
            format!("waiting for {} of {of} to join ({joining})", missing.named())
        });
        #[cfg(feature = "tracing")]
        {
            let (seconds, deadline) = joining.seconds();
            tracing::info!(rank = self.rank, %missing, of, seconds, deadline, "waiting for ranks to join");
        }
    }

    /// The membership that this member works with; for one on standby that of the others.
    pub(crate) fn works_with(&self, decision: &Decision) {
        #[cfg(feature = "metrics")]
        {
            self.set(name::EPOCH, f64::from(decision.epoch));
            self.set(name::ACTIVE, decision.mask.len() as f64);
        }
    }

    /// How the server sees the ranks.
    pub(crate) fn is_shown(&self, view: &View) {
        if view.epoch == 0 {
            return self.waits_for_others(&view.states);
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (rank, state) in view.states.iter().enumerate() {
            if let Some(before) = shown.get(rank).filter(|before| *before != state) {
                self.say_state(rank, *before, *state);
            }
        }
        shown.clone_from(&view.states);
        #[cfg(feature = "metrics")]
        {
            let count = |state| view.states.iter().filter(|of| **of == state).count() as f64;
            self.set(name::STANDBY, count(RankState::Standby {}) + count(RankState::Ready {}));
            self.set(name::SUSPECTS, count(RankState::Suspect {}));
        }
    }

    /// The ranks whose processes have ended.
    pub(crate) fn ended(&self) -> Mask {
        RankState::Dead {}.ranks(&self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The server sees a rank in a new state.
    fn say_state(&self, rank: usize, before: RankState, state: RankState) {
        let (level, what) = match state {
            // No warning: it was asked to leave.
            RankState::Dead {} if before == (RankState::Retired {}) => (Level::Info, "has ended"),
            RankState::Left {} => (Level::Info, "has left"),
            RankState::Suspect {} => (Level::Warn, "is silent, or cannot be reached by the server"),
            RankState::Dead {} => (Level::Warn, "has ended"),
            RankState::Evicted {} => (Level::Info, "is no longer a member, but has not ended"),
            RankState::Standby {} => (Level::Info, "has joined and prepares to be admitted"),
            RankState::Ready {} => (Level::Info, "is ready to be admitted"),
            RankState::Retired {} => (Level::Info, "has left the group as it was asked to"),
            RankState::Alive {} => (Level::Info, "is a member and can be reached"),
            RankState::Absent {} => return,
        };
        // A rank that was taken for lost hears of itself when it runs again.
        let text = match (rank == self.rank as usize, state) {
            (false, _) => format!("rank {rank} {what}"),
            (true, RankState::Suspect {}) => {
                "this rank was silent, or could not be reached by the server".to_owned()
            }
            (true, RankState::Evicted {}) => "the others continue without this rank".to_owned(),
            (true, _) => format!("this rank {what}"),
        };
        #[cfg(feature = "tracing")]
        match level {
            Level::Warn => tracing::warn!(rank = self.rank, peer = rank, "{text}"),
            _ => tracing::info!(rank = self.rank, peer = rank, "{text}"),
        }
        line(level, self.rank, || text);
    }

    /// The ranks that the buffers have given up in this epoch.
    pub(crate) fn has_given_up(&self, ranks: &Mask) {
        #[cfg(feature = "metrics")]
        self.set(name::GIVEN_UP, ranks.len() as f64);
    }

    /// The group asks about a change.
    pub(crate) fn proposed(&self, change: u64) {
        line(Level::Trace, self.rank, || format!("change {change} of the membership is proposed"));
        #[cfg(feature = "tracing")]
        tracing::debug!(rank = self.rank, change, "change proposed");
    }

    /// A change is decided. `again`: the members are the same, because these answer again; or, if this member had
    /// given up none, others.
    pub(crate) fn due(&self, change: u64, decision: &Decision, waiting: &Standby, again: Option<Mask>) {
        let Decision { mask: members, epoch, step } = decision;
        line(Level::Info, self.rank, || {
            let reason = match again {
                None => String::new(),
                Some(Mask::EMPTY) => "; a member that others had given up answers again".to_owned(),
                Some(one) if one.len() == 1 => format!("; rank {one} answers again"),
                Some(ranks) => format!("; ranks {ranks} answer again"),
            };
            format!("all agreed: from step {step} on, epoch {epoch} of {}{reason}", members.named())
        });
        #[cfg(feature = "tracing")]
        {
            let (Standby { ready, preparing }, again) = (waiting, again.map(tracing::field::display));
            tracing::info!(
                rank = self.rank, change, epoch, step, %members, %ready, %preparing, again, "change due"
            );
        }
    }

    /// A change was abandoned.
    pub(crate) fn aborted(&self, change: u64, error: &BootstrapError) {
        // That a member has ended or left is told by itself, and the next change takes account of it.
        let expected = matches!(error, BootstrapError::PeerLost { .. });
        let level = if expected { Level::Trace } else { Level::Warn };
        line(level, self.rank, || format!("change {change} of the membership failed: {error}"));
        #[cfg(feature = "tracing")]
        match expected {
            true => tracing::info!(rank = self.rank, change, %error, "change aborted"),
            false => tracing::warn!(rank = self.rank, change, %error, "change aborted"),
        }
        #[cfg(feature = "metrics")]
        self.count("aborted");
    }

    /// This member and `peer`, one of which waits to be admitted, are not connected. `last`: nobody tries again by itself.
    pub(crate) fn not_connected(&self, peer: u32, error: &BootstrapError, last: bool) {
        let (level, then) = if last { (Level::Warn, "") } else { (Level::Trace, "; it is tried again") };
        line(level, self.rank, || format!("rank {peer} is not connected: {error}{then}"));
        #[cfg(feature = "tracing")]
        match last {
            true => tracing::warn!(rank = self.rank, peer, %error, "not connected"),
            false => tracing::debug!(rank = self.rank, peer, %error, "not connected yet"),
        }
    }

    /// A change has come into effect, `took` after its proposal.
    pub(crate) fn in_effect(&self, decision: &Decision, entered: &Mask, left: &Mask, took: Duration) {
        self.works_with(decision);
        self.has_given_up(&Mask::EMPTY);
        line(Level::Trace, self.rank, || {
            let Decision { mask: members, epoch, step } = decision;
            format!(
                "epoch {epoch} is in effect from step {step} on: {}; entered: {entered}; left: {left}; after {took:?}",
                members.named()
            )
        });
        #[cfg(feature = "tracing")]
        {
            let Decision { mask: members, epoch, step } = decision;
            let seconds = took.as_secs_f64();
            tracing::info!(rank = self.rank, epoch, step, %members, %entered, %left, seconds, "change in effect");
        }
        #[cfg(feature = "metrics")]
        {
            let kind = match (entered.is_empty(), left.is_empty()) {
                (true, true) => "unchanged",
                (false, true) => "entered",
                (true, false) => "left",
                (false, false) => "replaced",
            };
            self.count(kind);
            metrics::histogram!(name::CHANGE_SECONDS, "kind" => kind, "rank" => self.rank.to_string())
                .record(took);
        }
    }

    /// No member holds these experts of a buffer, of `of` buffers, any more.
    pub(crate) fn out_of_reach(&self, buffer: usize, of: usize, experts: &dyn Display) {
        line(Level::Warn, self.rank, || format!("experts{} out of reach: {experts}", of_buffer(buffer, of)));
        #[cfg(feature = "tracing")]
        tracing::warn!(rank = self.rank, buffer, %experts, "experts out of reach");
    }

    /// A member holds these experts of a buffer again.
    pub(crate) fn in_reach_again(&self, buffer: usize, of: usize, experts: &dyn Display) {
        line(Level::Info, self.rank, || {
            format!("experts{} in reach again: {experts}", of_buffer(buffer, of))
        });
        #[cfg(feature = "tracing")]
        tracing::info!(rank = self.rank, buffer, %experts, "experts in reach again");
    }

    /// A change has taken effect after which few more are possible.
    pub(crate) fn runs_out(&self, epoch: u32, left: u32) {
        line(Level::Warn, self.rank, || format!("epoch {epoch}: {left} more changes are possible"));
        #[cfg(feature = "tracing")]
        tracing::warn!(rank = self.rank, epoch, left, "90 % of all epochs are used");
    }

    /// A server serves this member, after this outage if there was one.
    pub(crate) fn reached(&self, host: Option<&Host>, address: &str, another: bool, after: Option<&Outage>) {
        if another || after.is_some() {
            let leader = host.map_or("a server by itself".to_owned(), |host| format!("rank {}", host.rank));
            line(Level::Info, self.rank, || format!("{leader} serves the run at {address}"));
        }
        #[cfg(feature = "tracing")]
        {
            let (rank, leader) = (self.rank, host.map(|host| host.rank));
            if let Some(outage) = after {
                let seconds = outage.since.elapsed().as_secs_f64();
                tracing::info!(rank, leader, address, seconds, "reached the rendezvous server again");
            }
            if another {
                tracing::info!(rank, leader, address, "another server serves the run");
            }
        }
        #[cfg(feature = "metrics")]
        {
            self.set(name::LEADER, host.map_or(-1.0, |host| f64::from(host.rank)));
            self.set(name::REACHABLE, 1.0);
        }
    }

    /// This member has no server of its own, because it reaches the one at `address` by loopback and others do not.
    pub(crate) fn has_no_server(&self, address: &str) {
        line(Level::Warn, self.rank, || {
            format!(
                "cannot take over the run: it reaches the server at {address} by loopback, and other hosts could not \
                 reach a server here"
            )
        });
        #[cfg(feature = "tracing")]
        tracing::warn!(
            rank = self.rank,
            address,
            "cannot take over the run: it reaches the server by loopback"
        );
    }

    /// No server serves this member.
    pub(crate) fn lost(&self, address: &str, outage: &Outage) {
        let end = if outage.is_final { ", for good" } else { "" };
        line(Level::Warn, self.rank, || format!("lost the server at {address}{end}: {}", outage.detail));
        #[cfg(feature = "tracing")]
        {
            let Outage { detail, is_final, .. } = outage;
            tracing::warn!(rank = self.rank, address, detail, is_final, "lost the rendezvous server");
        }
        #[cfg(feature = "metrics")]
        self.alone();
    }

    /// The member has left.
    pub(crate) fn left(&self) {
        line(Level::Info, self.rank, || "has left the group".to_owned());
        #[cfg(feature = "tracing")]
        tracing::info!(rank = self.rank, "left the group");
        #[cfg(feature = "metrics")]
        self.alone();
    }

    #[cfg(feature = "metrics")]
    fn alone(&self) {
        self.set(name::LEADER, -1.0);
        self.set(name::REACHABLE, 0.0);
    }

    #[cfg(feature = "metrics")]
    fn set(&self, gauge: &'static str, value: f64) {
        metrics::gauge!(gauge, "rank" => self.rank.to_string()).set(value);
    }

    #[cfg(feature = "metrics")]
    fn count(&self, kind: &'static str) {
        metrics::counter!(name::CHANGES, "kind" => kind, "rank" => self.rank.to_string()).increment(1);
    }
}

/// Where the group has several buffers, which of them.
fn of_buffer(buffer: usize, of: usize) -> String {
    if of > 1 { format!(" of buffer {buffer} (the first is 0)") } else { String::new() }
}
