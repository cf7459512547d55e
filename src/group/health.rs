//! What a server answers when asked for its health.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::change::few_epochs_left;
use super::experts::Listed;
use super::member::Group;
use super::membership::{Membership, Role};
use crate::json::quoted;
use crate::mask::Mask;
use crate::names::names;
use crate::rendezvous::RankState;
use crate::rendezvous::wire::Standby;

/// The health of a member, from [`Group::health`], for a load balancer or an operator.
///
/// `Display` gives a line of text, [`Health::to_json`] the same for programs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Health {
    /// The health in one word.
    pub status: Status,
    /// What is wrong, the worst first; empty while it is [serving](Status::Serving).
    pub reasons: Vec<Reason>,
    /// This rank.
    pub rank: u32,
    /// Number of ranks of the run.
    pub world: u32,
    /// The epoch in effect at this member.
    pub epoch: u32,
    /// Its members.
    pub members: Mask,
    /// Places that nobody has ever taken and that the run can grow into. They do not count as missing.
    pub capacity: Mask,
    /// Ranks that have joined and wait to be admitted. They are not a reason of their own: [`Reason::Missing`] names
    /// the places that they will take.
    pub standby: Standby,
    /// The last step that this member has begun.
    pub step: u64,
}

/// A member's health in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Status {
    /// All is well.
    Serving,
    /// It takes part, but something is missing: sums of tokens lack some experts, or the group could not handle a
    /// further failure.
    Degraded,
    /// It does not take part in the steps of its group: send requests elsewhere.
    Out,
}

names!(Status, "a status: serving, degraded or out" {
    Serving = "serving", Degraded = "degraded", Out = "out",
});

/// Why a member's health is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Out: it has left.
    Left,
    /// Out: the others continue without it. It may [rejoin](Group::rejoin).
    Evicted {
        /// Since this epoch.
        epoch: u32,
    },
    /// Out: it is retired.
    Retired {
        /// Since this epoch.
        epoch: u32,
    },
    /// Out: it waits to be admitted.
    Standby,
    /// Degraded: ranks that have been members and no longer are, whether lost or retired, and whose replacement is not
    /// admitted yet. Places that nobody has ever taken are [`Health::capacity`].
    Missing {
        /// The ranks.
        ranks: Mask,
    },
    /// Degraded: members that this rank's buffers have given up in this epoch, or that the server considers silent or
    /// dead. The next membership either removes them or starts again with them.
    Lost {
        /// The ranks.
        ranks: Mask,
    },
    /// Degraded: experts of a buffer whose rank is missing or given up.
    /// [`EpBuffer::reachable_experts`](crate::EpBuffer::reachable_experts) reports the same for every expert.
    Experts {
        /// The buffer's index among those of this group that still exist, in the order of their creation.
        buffer: usize,
        /// Their ids, ascending.
        experts: Vec<Range<u32>>,
    },
    /// Degraded: the server cannot be reached. Operations continue, but no change of the membership can be agreed.
    Unreachable {
        /// For how long.
        lasts: Duration,
        /// How that was noticed.
        detail: String,
        /// No more attempts are made to reach a server.
        is_final: bool,
    },
    /// Degraded, long before anything fails: 90 % of the epochs that a run can have are used, and after the last one no
    /// change is possible. Restart the run before that.
    Epochs {
        /// Changes that are left.
        left: u32,
    },
}

impl Group {
    /// How this member is. Cheap enough for every request of a load balancer: asks nobody and waits for nobody.
    ///
    /// ```
    /// use epwire::Group;
    /// use epwire::group::Status;
    ///
    /// /// For an HTTP handler: the status code, and the text.
    /// fn healthz(group: &Group) -> (u16, String) {
    ///     let health = group.health();
    ///     let code = if health.status == Status::Out { 503 } else { 200 };
    ///     (code, health.to_string())
    /// }
    ///
    /// # fn main() -> Result<(), epwire::rendezvous::BootstrapError> {
    /// let groups = Group::threads(2)?;
    /// let (code, text) = healthz(&groups[1]);
    /// assert_eq!((code, text.as_str()), (200, "serving: rank 1 of 2, epoch 1 of ranks 0-1, step 0"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn health(&self) -> Health {
        let membership = self.membership();
        let (given_up, experts) = self.inner.course.given_up(&membership.capacity);
        Health::of(self.rank(), self.world(), &membership, &given_up, experts)
    }
}

impl Health {
    /// `experts`: for each buffer the experts that it cannot reach.
    fn of(
        rank: u32,
        world: u32,
        membership: &Membership,
        given_up: &Mask,
        experts: Vec<Vec<Range<u32>>>,
    ) -> Self {
        let Membership { role, current, begun, states, standby, capacity, outage, .. } = membership;
        let (members, epoch, capacity, standby) = (current.mask, current.epoch, *capacity, *standby);
        let gone = |state: &RankState| {
            matches!(state, RankState::Suspect {} | RankState::Dead {} | RankState::Left {})
        };
        let silent: Mask = (0..).zip(states).filter(|(_, state)| gone(state)).map(|(rank, _)| rank).collect();
        let ranks = [
            Reason::Missing { ranks: Mask::all(world).minus(&members).minus(&capacity) },
            Reason::Lost { ranks: silent.or(given_up).and(&members).without(rank) },
        ];
        let experts = (0..).zip(experts).map(|(buffer, experts)| Reason::Experts { buffer, experts });
        let (out, present) = match *role {
            Role::Active => (None, ranks.into_iter().chain(experts).filter(Reason::is_given).collect()),
            // What the others lack does not concern this member.
            Role::Standby => (Some(Reason::Standby), Vec::new()),
            Role::Retired { epoch } => (Some(Reason::Retired { epoch }), Vec::new()),
            Role::Evicted { epoch } => (Some(Reason::Evicted { epoch }), Vec::new()),
            Role::Left => (Some(Reason::Left), Vec::new()),
        };
        let unreachable = outage.as_ref().filter(|_| *role != Role::Left).map(|outage| Reason::Unreachable {
            lasts: outage.since.elapsed(),
            detail: outage.detail.clone(),
            is_final: outage.is_final,
        });
        let epochs = few_epochs_left(epoch).map(|left| Reason::Epochs { left });
        let is_out = out.is_some();
        let reasons: Vec<_> = out.into_iter().chain(present).chain(unreachable).chain(epochs).collect();
        let status = match reasons.is_empty() {
            true => Status::Serving,
            false if is_out => Status::Out,
            false => Status::Degraded,
        };
        Self { status, reasons, rank, world, epoch, members, capacity, standby, step: *begun }
    }

    /// A JSON object with the fields of this one: `status` as text, `members` and `capacity` as arrays of ranks,
    /// `standby` as an object of two such arrays, `ready` and `preparing`, and `reasons` as an array of texts.
    pub fn to_json(&self) -> String {
        let Self { status, reasons, rank, world, epoch, members, capacity, standby, step } = self;
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let ranks = |mask: &Mask| list(mask.iter().map(|rank| rank.to_string()).collect());
        let (members, capacity) = (ranks(members), ranks(capacity));
        let (ready, preparing) = (ranks(&standby.ready), ranks(&standby.preparing));
        let reasons = list(reasons.iter().map(|reason| quoted(&reason.to_string())).collect());
        format!(
            r#"{{"status":"{status}","rank":{rank},"world":{world},"epoch":{epoch},"members":{members},"capacity":{capacity},"standby":{{"ready":{ready},"preparing":{preparing}}},"step":{step},"reasons":{reasons}}}"#
        )
    }
}

impl Reason {
    fn is_given(&self) -> bool {
        match self {
            Self::Missing { ranks } | Self::Lost { ranks } => !ranks.is_empty(),
            Self::Experts { experts, .. } => !experts.is_empty(),
            _ => true,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("has left"),
            Self::Evicted { epoch } => {
                write!(f, "evicted: the others have continued without it since epoch {epoch}")
            }
            Self::Retired { epoch } => write!(f, "retired with epoch {epoch}"),
            Self::Standby => f.write_str("waits to be admitted"),
            Self::Missing { ranks } => write!(f, "ranks missing: {ranks}"),
            Self::Lost { ranks } => write!(f, "ranks given up or silent: {ranks}"),
            Self::Experts { buffer, experts } => {
                write!(f, "experts of buffer {buffer} out of reach: {}", Listed(experts))?;
                Ok(())
            }
            Self::Unreachable { lasts, detail, is_final } => {
                let ever = if *is_final { " for good" } else { "" };
                let seconds = lasts.as_secs_f64();
                // Keep to one line, whatever the operating system's text contains.
                let detail = detail.replace(['\n', '\r'], " ");
                write!(f, "no server{ever} for {seconds:.1} s ({detail}): the membership cannot change")
            }
            Self::Epochs { left } => {
                write!(f, "{left} changes of the membership are left: restart the run before the last")
            }
        }
    }
}

/// `degraded: rank 1 of 8, epoch 2 of ranks 0-2, step 117, room for 4-7; ranks missing: 3`: one line.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, reasons, rank, world, epoch, members, capacity, standby, step } = self;
        let members = members.named();
        write!(f, "{status}: rank {rank} of {world}, epoch {epoch} of {members}, step {step}")?;
        if !capacity.is_empty() {
            write!(f, ", room for {capacity}")?;
        }
        for (ranks, are) in [(&standby.ready, "ready"), (&standby.preparing, "not ready yet")] {
            if !ranks.is_empty() {
                write!(f, ", newcomers {are}: {ranks}")?;
            }
        }
        reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Decision;
    use crate::rendezvous::machine::MAX_EPOCH;

    fn membership(role: Role, members: &[u32]) -> Membership {
        let current = Decision { mask: members.iter().copied().collect(), epoch: 2, step: 90 };
        let states = vec![RankState::Alive {}; 4];
        Membership {
            role,
            current,
            begun: 117,
            due: None,
            states,
            standby: Standby::default(),
            capacity: Mask::EMPTY,
            leader: None,
            outage: None,
            servers: vec![],
        }
    }

    fn health(membership: &Membership, given_up: &[u32], experts: Vec<Vec<Range<u32>>>) -> Health {
        Health::of(1, 4, membership, &given_up.iter().copied().collect(), experts)
    }

    #[test]
    fn all_is_well_where_nothing_is_missing() {
        let health = health(&membership(Role::Active, &[0, 1, 2, 3]), &[], vec![vec![], vec![]]);
        assert_eq!((health.status, health.reasons.as_slice()), (Status::Serving, &[][..]));
        assert_eq!(health.to_string(), "serving: rank 1 of 4, epoch 2 of ranks 0-3, step 117");
    }

    #[test]
    fn whatever_is_missing_is_named() {
        let mut now = membership(Role::Active, &[0, 1, 2]);
        now.states[0] = RankState::Suspect {};
        now.states[1] = RankState::Suspect {}; // as the server sees this member
        let health = health(&now, &[2], vec![vec![], vec![8..12, 15..16]]);
        assert_eq!(health.status, Status::Degraded);
        assert_eq!(
            health.to_string(),
            "degraded: rank 1 of 4, epoch 2 of ranks 0-2, step 117; ranks missing: 3; \
             ranks given up or silent: 0,2; experts of buffer 1 out of reach: 8-11,15"
        );
    }

    #[test]
    fn places_that_nobody_has_taken_are_not_missing() {
        let mut now = membership(Role::Active, &[0, 1]);
        (now.states[2], now.states[3]) = (RankState::Dead {}, RankState::Absent {});
        now.capacity = [3].into_iter().collect();
        let text = health(&now, &[], vec![]).to_string();
        assert_eq!(
            text,
            "degraded: rank 1 of 4, epoch 2 of ranks 0-1, step 117, room for 3; ranks missing: 2"
        );
        now.capacity.insert(2);
        let health = health(&now, &[], vec![]);
        assert_eq!((health.status, health.capacity.to_string().as_str()), (Status::Serving, "2-3"));
        let json: serde_json::Value = serde_json::from_str(&health.to_json()).unwrap();
        assert_eq!(json["capacity"], serde_json::json!([2, 3]));
    }

    #[test]
    fn newcomers_are_named_by_whether_they_are_ready() {
        let mut now = membership(Role::Active, &[0, 1]);
        now.capacity = [2, 3].into_iter().collect();
        now.standby.ready.insert(3);
        let told = health(&now, &[], vec![]).to_string();
        assert_eq!(
            told,
            "serving: rank 1 of 4, epoch 2 of ranks 0-1, step 117, room for 2-3, newcomers ready: 3"
        );
        now.standby = Standby { ready: Mask::EMPTY, preparing: now.capacity };
        let health = health(&now, &[], vec![]);
        assert!(health.to_string().ends_with("newcomers not ready yet: 2-3"), "{health}");
        let json: serde_json::Value = serde_json::from_str(&health.to_json()).unwrap();
        assert_eq!(json["standby"], serde_json::json!({ "ready": [], "preparing": [2, 3] }));
    }

    #[test]
    fn few_epochs_are_told_long_before_the_last() {
        let mut now = membership(Role::Active, &[0, 1, 2, 3]);
        now.current.epoch = MAX_EPOCH / 10 * 9;
        assert_eq!(health(&now, &[], vec![]).status, Status::Serving);
        now.current.epoch = MAX_EPOCH - 7;
        let health = health(&now, &[], vec![]);
        assert_eq!(
            (health.status, health.reasons.as_slice()),
            (Status::Degraded, &[Reason::Epochs { left: 7 }][..])
        );
        assert!(
            health
                .to_string()
                .ends_with("; 7 changes of the membership are left: restart the run before the last")
        );
    }

    #[test]
    fn who_takes_no_part_is_out_and_says_why_first() {
        let reasons = |role| health(&membership(role, &[0]), &[0], vec![vec![0..1]]).reasons;
        assert_eq!(reasons(Role::Standby), [Reason::Standby]);
        assert_eq!(reasons(Role::Evicted { epoch: 3 }), [Reason::Evicted { epoch: 3 }]);
        assert_eq!(reasons(Role::Retired { epoch: 3 }), [Reason::Retired { epoch: 3 }]);
        assert_eq!(reasons(Role::Left), [Reason::Left]);
        assert_eq!(health(&membership(Role::Left, &[0]), &[], vec![]).status, Status::Out);
    }

    #[test]
    fn json_is_what_a_parser_takes() {
        let group = Group::threads(1).unwrap().remove(0);
        let health = group.health();
        let detail = "said \"no\"\n\\ and hung up".to_owned();
        let outage = Reason::Unreachable { lasts: Duration::from_millis(1234), detail, is_final: false };
        let health = Health { status: Status::Degraded, reasons: vec![outage], ..health };
        let json: serde_json::Value = serde_json::from_str(&health.to_json()).unwrap();
        let reason = "no server for 1.2 s (said \"no\" \\ and hung up): the membership cannot change";
        let expected = serde_json::json!({
            "status": "degraded", "rank": 0, "world": 1, "epoch": 1, "members": [0], "capacity": [],
            "standby": { "ready": [], "preparing": [] }, "step": 0, "reasons": [reason],
        });
        assert_eq!(json, expected);
        assert_eq!(health.to_string().lines().count(), 1);
    }

    #[test]
    fn characters_that_end_a_text_are_quoted() {
        let text = "\u{1}\"\\\t\u{e9}";
        assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
    }
}
