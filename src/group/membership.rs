//! The state of the group's membership, for programs and their operators.

use std::fmt;

use super::member::Group;
use crate::mask::Mask;
use crate::rendezvous::display::others;
use crate::rendezvous::driver::Outage;
use crate::rendezvous::wire::Standby;
use crate::rendezvous::{Decision, RankState};

/// The state of the membership at one member, from [`Group::membership`]: what this member works with, and what it last
/// heard of the others.
///
/// This is the membership of the group. What has become of it in the operations of one buffer, in particular the peers
/// which that buffer has given up, is [`EpBuffer::membership`](crate::EpBuffer::membership), which works without a
/// group as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Membership {
    /// Whether this member takes part.
    pub role: Role,
    /// Epoch, members and first step in effect at this member; for one on standby those of the others.
    pub current: Decision,
    /// The last step that this member has begun, 0 before the first.
    pub begun: u64,
    /// The membership that takes effect next, with its first step, if it is decided.
    pub due: Option<Decision>,
    /// The state of each rank, indexed by rank, as the server last reported it.
    pub states: Vec<RankState>,
    /// Ranks that have joined and wait to be admitted, as the server last reported: those that have said that they are
    /// ready, and those that have not.
    pub standby: Standby,
    /// Places of the run that nobody has ever taken and that it can grow into: see
    /// [`GroupOptions::initial`](super::GroupOptions::initial).
    pub capacity: Mask,
    /// The rank whose server serves the run; see [`Group::leader`].
    pub leader: Option<u32>,
    /// Since when the server cannot be reached; `None` while it can.
    pub outage: Option<Outage>,
    /// The addresses where newcomers find the run; see [`Group::servers`].
    pub servers: Vec<String>,
}

/// Whether a member takes part in the steps of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// It takes part.
    Active,
    /// It waits to be admitted.
    Standby,
    /// It has begun its last step, as [`Group::retire`] asked for.
    Retired {
        /// The first epoch without it.
        epoch: u32,
    },
    /// The others continue without it.
    Evicted {
        /// The first epoch without it.
        epoch: u32,
    },
    /// It has called [`Group::leave`].
    Left,
}

/// `active`, `on standby`, `retired with epoch 3`, `evicted with epoch 3`, or `left`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => f.pad("active"),
            Self::Standby => f.pad("on standby"),
            Self::Retired { epoch } => write!(f, "retired with epoch {epoch}"),
            Self::Evicted { epoch } => write!(f, "evicted with epoch {epoch}"),
            Self::Left => f.pad("left"),
        }
    }
}

/// One line: `active; epoch 2 of ranks 0-2 from step 90, at step 117; dead: 3; room for 4-7; rank 0 leads`.
impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, current, begun, due, states, capacity, leader, outage, .. } = self;
        write!(f, "{role}; {current}, at step {begun}")?;
        if let Some(due) = due {
            write!(f, "; next: {due}")?;
        }
        others(states, f)?;
        if !capacity.is_empty() {
            write!(f, "; room for {capacity}")?;
        }
        if let Some(leader) = leader {
            write!(f, "; rank {leader} leads")?;
        }
        outage.as_ref().map_or(Ok(()), |outage| write!(f, "; {outage}"))
    }
}

impl Group {
    /// The state of the membership at this moment. Neither asks nor waits for anybody.
    pub fn membership(&self) -> Membership {
        let (course, client) = (&self.inner.course, &self.inner.client);
        let (pace, left) = course.pace();
        let role = match (pace.evicted(), pace.retired()) {
            _ if left => Role::Left,
            (Some(epoch), _) => Role::Evicted { epoch },
            (_, Some(epoch)) => Role::Retired { epoch },
            _ if pace.is_standby() => Role::Standby,
            _ => Role::Active,
        };
        let (contact, view, current) = (client.contact(), client.watch().borrow().clone(), pace.current());
        Membership {
            role,
            current,
            begun: pace.begun(),
            due: pace.due(),
            standby: Standby::among(&view.states),
            states: view.states,
            capacity: Mask::all(self.world()).minus(&view.taken.or(&current.mask)),
            leader: contact.host().map(|host| host.rank),
            outage: contact.outage,
            servers: client.servers(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_peers_is_active_until_it_leaves() {
        let [group] = <[Group; 1]>::try_from(Group::threads(1).unwrap()).unwrap();
        let begun = group.step_blocking().unwrap().number;
        let now = group.membership();
        assert_eq!(now.to_string(), format!("active; epoch 1 of rank 0 from step {begun}, at step {begun}"));
        assert_eq!((now.role, now.begun, now.due, now.leader), (Role::Active, begun, None, None));
        assert_eq!((now.current.mask, now.states), (Mask::all(1), vec![RankState::Alive {}]));
        assert_eq!(now.outage, None);
        group.leave_blocking().unwrap();
        let then = group.membership();
        assert_eq!(then.role, Role::Left);
        assert!(then.outage.is_some_and(|outage| outage.is_final));
    }
}
