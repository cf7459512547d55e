//! Why a peer is missing from an operation.

use crate::names::names;

/// Why a peer is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Cause {
    /// It was silent for a whole deadline.
    Timeout,
    /// It told this rank that it continues without it, or that it leaves.
    Dropped,
    /// An earlier operation of this epoch gave it up.
    Suspected,
    /// Its rows or answers are of another kind (payload, sideband, weights, combine mode) than this rank's.
    Format,
    /// It answered fewer rows than it was sent: it abandoned the operation, and takes part in the next one. Or a
    /// [`Routing`](crate::prefill::Routing) is used again that never had all of its rows, because it was missing from
    /// the dispatch that filled the routing. Not evidence of a failure, and no reason for a change of membership.
    Partial,
    /// GPU buffers, not a peer's fault: a routing id was out of range or repeated within its token, and counted as "not
    /// routed". [`ErrorRecord::routing`](crate::ErrorRecord::routing) says which.
    Routing,
    /// GPU buffers, not a peer's fault: the lane was not in the state that a replayed operation needs (held, or not
    /// held). That operation has done nothing.
    Held,
    /// It moved on to a newer epoch.
    Superseded,
    /// Its process has ended, as the group has learned.
    Ended,
    /// The group continues without it, though its process may still run.
    LeftOut,
    /// The group continues without this rank.
    Evicted,
    /// This program has revoked it: [`Group::revoke`](crate::Group::revoke), [`EpBuffer::revoke`](crate::EpBuffer::revoke).
    Revoked,
    /// It has begun this epoch at another step.
    Step,
    /// A peer behind a queue ([`Path::Queue`](crate::Path::Queue)): the connection to it is lost, or it has consumed
    /// nothing for so long that the queue had no room for the next message.
    Link,
    /// Prefill, not a peer's fault: more rows arrived than the output has places for, see
    /// [`ErrorRecord::overflow`](crate::ErrorRecord::overflow).
    Overflow,
}

names!(Cause, "a cause of a missing peer" {
    Timeout = "timeout",
    Dropped = "dropped",
    Suspected = "suspected",
    Format = "format",
    Partial = "partial",
    Routing = "routing",
    Held = "held",
    Superseded = "superseded",
    Ended = "ended",
    LeftOut = "left-out",
    Evicted = "evicted",
    Revoked = "revoked",
    Step = "step",
    Link = "link",
    Overflow = "overflow",
});

impl Cause {
    /// In words that follow the peer's name.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Timeout => "it was silent for a deadline",
            Self::Dropped => "it has left, or has given up this rank",
            Self::Suspected => "an earlier operation gave it up",
            Self::Format => {
                "its rows are of another kind than this rank's; give all ranks the same payload, sideband, weights and combine mode"
            }
            Self::Partial => "it gave the operation up",
            Self::Superseded => "it is in a newer epoch",
            Self::Ended => "its process has ended",
            Self::LeftOut => "the group continues without it",
            Self::Evicted => "the group continues without this rank",
            Self::Revoked => "this program has revoked it",
            Self::Step => "it began the epoch at a different step",
            Self::Link => "the connection of its queue is gone, or the queue stayed full",
            Self::Routing => "a routing id was out of range or repeated",
            Self::Held => "the lane was not in the state that the replay needs",
            Self::Overflow => "more rows arrived than the output can hold",
        }
    }
}
