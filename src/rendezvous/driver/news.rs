//! What connections report to the hub, and what the hub sends over them.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::rendezvous::machine::{Event, SessionId};
use crate::rendezvous::wire::{Frame, View};

/// News for the task, handled in this order. A client is identified by its session, and each of its connections by a
/// number.
pub(super) enum News {
    /// A connection of the client, which replaces any earlier one.
    Opened {
        session: SessionId,
        link: Link,
        outlet: Outlet,
    },
    /// A sign of life; the client has the answers to its calls up to `received`, except for some.
    Alive {
        session: SessionId,
        link: Link,
        received: u64,
        except: BTreeSet<u64>,
    },
    /// The client sends something.
    Said {
        session: SessionId,
        link: Link,
        event: Event,
    },
    Closed {
        session: SessionId,
        link: Link,
        by_peer: bool,
    },
    /// The owner of the server reports an event.
    Told(Event),
    Flush(Mark),
    /// Another server should lead; notified whether one does.
    Succeed(oneshot::Sender<bool>),
    /// The server ends, and the run with it.
    End,
}

/// Open connections of members and of clients that ask to join, and their ranks; an entry disappears once everything
/// sent over it is written.
pub(super) type Joined = BTreeMap<Link, u32>;

/// The number of a connection.
pub(super) type Link = u64;

/// Queued on each connection after everything else, and dropped there once all before it is written or cannot be
/// written: when no copy is left, everything has been sent.
pub(super) type Mark = mpsc::Sender<Infallible>;

/// What waits to be written to one connection.
#[expect(clippy::large_enum_variant, reason = "nearly all are frames")]
pub(super) enum Queued {
    Frame(Frame),
    Mark(Mark),
}

/// What the hub sends over one connection. Only the newest view counts, so views do not accumulate. The connection
/// closes when this is dropped, after what was queued is written.
pub(super) struct Outlet {
    pub(super) frames: mpsc::Sender<Queued>,
    pub(super) view: watch::Sender<Option<Arc<View>>>,
}

impl Outlet {
    /// A full queue is dealt with at the next frame that needs an answer.
    pub(super) fn say(&self, frame: Frame) {
        let _ = self.frames.try_send(Queued::Frame(frame));
    }
}
