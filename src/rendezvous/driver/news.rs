//! What connections tell the hub, and what it has to say to them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::rendezvous::machine::{Event, SessionId};
use crate::rendezvous::wire::{Frame, View};

/// What reaches the task, in this order. A client is known by its session, one of its connections by a number.
pub(super) enum News {
    /// A connection of the client, in place of any before.
    Opened {
        session: SessionId,
        link: Link,
        outlet: Outlet,
    },
    /// A sign of life; the client has the answers of its calls up to `received`.
    Alive {
        session: SessionId,
        link: Link,
        received: u64,
    },
    /// It says something.
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
    /// The owner of the server knows something.
    Told(Event),
    Flush(Mark),
    /// Another server is to lead; told whether one does.
    Succeed(oneshot::Sender<bool>),
    /// The server ends, and with it the run.
    End,
}

/// Open connections of members and of those that ask to join, and their ranks; gone once everything sent to them is out.
pub(super) type Joined = BTreeMap<Link, u32>;

/// A connection, counted.
pub(super) type Link = u64;

/// Goes behind what is queued for each connection and is dropped there once all before it is written, or cannot be: no
/// copy is left when everything is out.
pub(super) type Mark = mpsc::Sender<Infallible>;

/// What waits to be written to one connection.
#[expect(clippy::large_enum_variant, reason = "nearly all are frames")]
pub(super) enum Queued {
    Frame(Frame),
    Mark(Mark),
}

/// What the hub has to say to one connection. Of views only the newest counts, so they do not pile up. It closes when this is
/// dropped, once what was queued is out.
pub(super) struct Outlet {
    pub(super) frames: mpsc::Sender<Queued>,
    pub(super) view: watch::Sender<Option<Arc<View>>>,
}

impl Outlet {
    /// A queue that is full has its own end, at the next frame that needs an answer.
    pub(super) fn say(&self, frame: Frame) {
        let _ = self.frames.try_send(Queued::Frame(frame));
    }
}
