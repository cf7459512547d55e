//! What a client's handles ask of the task that carries its connection, and who handles what the server says unasked.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::contact::Outage;
use crate::mask::Mask;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Ask, Decision, Host, Identity, Joined, Notice, Reply, Request, Standby, View};

/// What a handle asks of the task.
#[derive(Debug)]
pub(super) enum Command {
    Call {
        op: String,
        request: Request,
        deadline: Duration,
        reply: Answer<Reply>,
    },
    /// Wait for a message of the group, unless the news counter differs from this one, see [`Attendant::news`].
    Wait {
        op: String,
        seen: u64,
        began: Instant,
        deadline: Duration,
        reply: Answer<()>,
    },
    Tell(Notice),
}

pub(super) type Answer<T> = oneshot::Sender<Result<T, BootstrapError>>;

/// Handles what the server says unasked, for the member that the connection belongs to. Called on the thread that
/// carries the connection: it must not wait.
pub(crate) trait Attendant: Send + Sync + std::fmt::Debug {
    /// The member still waits for a server to answer at this address.
    fn unanswered(&self, address: &str);
    /// The member was admitted to the run.
    fn joined(&self, joined: &Joined);
    /// Members have taken these places, each replacing any earlier member there.
    fn seated(&self, members: &[Identity]);
    /// The group asks a question. Returns the answer; if that takes time, returns nothing and sends the answer through
    /// `later`.
    fn asked(&self, ask: Ask, later: Later) -> Option<Notice>;
    /// A change has ended. `waiting`: who was on standby and still is.
    fn settled(
        &self,
        change: u64,
        outcome: Result<Decision, BootstrapError>,
        retired: Mask,
        waiting: Standby,
    );
    /// Whether the member is on standby as far as it knows.
    fn is_standby(&self) -> bool;
    /// The process of the member that served the run has ended.
    fn ended(&self, host: &Host);
    /// The member that served the run no longer does, and knows nobody who does.
    fn resigned(&self, host: &Host);
    /// There is a new connection: what was sent over the former one may not have arrived.
    fn resumed(&self);
    /// A counter that grows with each call of the others above.
    fn news(&self) -> u64;
    /// The membership as the server sees it.
    fn shown(&self, view: &View);
    /// The server at `address` serves this member, after this outage if there was one. `host`: the member that the
    /// server belongs to, if it belongs to one. `another`: it is not the one that served this member last.
    fn reached(&self, host: Option<&Host>, address: &str, another: bool, after: Option<&Outage>);
    /// The connection with the server at `address` is lost, or no other connection will be made.
    fn lost(&self, address: &str, outage: &Outage);
    /// The member has left.
    fn left(&self);
}

/// The connection, for work that an attendant does on threads of its own. Does not keep it open.
#[derive(Clone, Debug)]
pub(crate) struct Later(pub(super) mpsc::WeakSender<Command>);

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
        let ended = |_| BootstrapError::lost(op, "the rendezvous", "its thread ended");
        let (reply, answer) = oneshot::channel();
        let commands = self.0.upgrade().ok_or_else(|| ended(()))?;
        let call = Command::Call { op: op.to_owned(), request, deadline: deadline.min(LONGEST), reply };
        commands.blocking_send(call).map_err(|_| ended(()))?;
        drop(commands);
        answer.blocking_recv().map_err(|_| ended(()))?
    }

    /// Whether the member has left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Longest deadline of a call, short enough that sums with it stay within what clocks can express.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
