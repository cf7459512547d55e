//! The record of what happened, in order, and the machine that follows it: for a server that stands alone, or for one
//! that shares it with others and can take over from them.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "succession")]
use tokio::time::Instant;

#[cfg(feature = "succession")]
use super::shared::Shared;
use super::turn::Turn;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::journal::file::StateFile;
use crate::rendezvous::machine::{Action, Event, Machine, SessionId};
use crate::rendezvous::record::Record;

/// The events of a run, and its machine.
pub(super) enum Ledger {
    /// Only this server has it.
    Alone { machine: Box<Machine>, actions: VecDeque<Action> },
    /// It is in a file, from which the next process continues.
    Kept(Box<Kept>),
    /// Several servers, one of which leads, have a copy of it.
    #[cfg(feature = "succession")]
    Shared(Box<Shared>),
}

impl Ledger {
    /// The run recorded in the file at `path`, or a new run recorded there from now on.
    pub(super) fn kept(path: &Path, fresh: Machine) -> Result<Self, BootstrapError> {
        let settings = fresh.settings().clone();
        let (file, machine, last) = StateFile::open(path, || Ok(fresh))?;
        let found = machine.settings();
        for (field, found, wanted) in [
            ("run id", found.run_id.clone(), settings.run_id),
            ("world", found.world.to_string(), settings.world.to_string()),
            ("initial ranks", found.initial.to_string(), settings.initial.to_string()),
        ] {
            if found != wanted {
                let op = format!("continue with the run in {}", path.display());
                let (field, reason) = (field.to_owned(), format!("the file has {found}"));
                return Err(BootstrapError::Invalid { op, field, value: wanted, reason });
            }
        }
        let (records, actions) = (Vec::new(), VecDeque::new());
        Ok(Self::Kept(Box::new(Kept { machine, file, last, records, actions })))
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    pub(super) fn alone(machine: Machine) -> Self {
        Self::Alone { machine: Box::new(machine), actions: VecDeque::new() }
    }

    /// Records what happened; called on the server that leads.
    pub(super) fn record(&mut self, now: Duration, event: Event) {
        match self {
            Self::Alone { machine, actions } => actions.extend(machine.handle(now, event)),
            Self::Kept(kept) => kept.records.push(Record { at: now, event }),
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.record(now, event),
        }
    }

    /// What to do next. Cancelling it loses nothing.
    pub(super) async fn next(&mut self) -> Turn {
        match self {
            Self::Alone { actions, .. } => match actions.pop_front() {
                Some(action) => Turn::Do(action),
                None => std::future::pending().await,
            },
            Self::Kept(kept) => match kept.next() {
                Some(turn) => turn,
                None => std::future::pending().await,
            },
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.next().await,
        }
    }

    /// When the machine is due for a tick; called on the server that leads.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match self {
            Self::Alone { machine, .. } => machine.next_deadline(),
            Self::Kept(kept) => kept.machine.next_deadline(),
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.next_deadline(),
        }
    }

    /// Clients that are expected to connect.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        match self {
            Self::Alone { machine, .. } => machine.sessions(),
            Self::Kept(kept) => kept.machine.sessions(),
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.sessions(),
        }
    }

    /// The member whose server leads, or led before this one, and since when that has been silent, if that is
    /// meaningful.
    #[cfg(feature = "succession")]
    pub(super) fn former_leader(&self) -> Option<(SessionId, Instant)> {
        match self {
            Self::Alone { .. } | Self::Kept(_) => None,
            Self::Shared(shared) => shared.former_leader(),
        }
    }

    /// The rank of the member with this session.
    pub(super) fn rank(&self, session: SessionId) -> Option<u32> {
        match self {
            Self::Alone { machine, .. } => machine.rank(session),
            Self::Kept(kept) => kept.machine.rank(session),
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.rank(session),
        }
    }

    /// The server of the member with this session, if it has one.
    pub(super) fn listener(&self, _session: SessionId) -> Option<u128> {
        match self {
            Self::Alone { .. } | Self::Kept(_) => None,
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.listener(_session),
        }
    }

    /// Members that have servers of their own, and the addresses.
    pub(super) fn addresses(&self) -> Vec<(SessionId, String)> {
        match self {
            Self::Alone { .. } | Self::Kept(_) => Vec::new(),
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.addresses(),
        }
    }

    /// Asks for another server to lead. Returns whether there is one that could.
    pub(super) fn leave(&mut self) -> bool {
        match self {
            Self::Alone { .. } | Self::Kept(_) => false,
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.leave(),
        }
    }

    /// Whether this other server votes, so that it is needed to record anything.
    pub(super) fn votes(&self, _listener: u128) -> bool {
        match self {
            Self::Alone { .. } | Self::Kept(_) => false,
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.votes(_listener),
        }
    }

    /// The time of the last record.
    pub(super) fn last(&self) -> Duration {
        match self {
            Self::Alone { .. } => Duration::ZERO,
            Self::Kept(kept) => kept.last,
            #[cfg(feature = "succession")]
            Self::Shared(shared) => shared.last(),
        }
    }
}

/// A ledger in a file.
pub(super) struct Kept {
    machine: Machine,
    file: StateFile,
    /// The time of the last record.
    last: Duration,
    /// Records on their way to the file: nothing that follows from them happens before they are on disk.
    records: Vec<Record>,
    actions: VecDeque<Action>,
}

impl Kept {
    fn next(&mut self) -> Option<Turn> {
        while self.actions.is_empty() && !self.records.is_empty() {
            // Everything that has arrived meanwhile, in one write.
            let records = std::mem::take(&mut self.records);
            if let Err(error) = self.file.append(&records) {
                return Some(Turn::Fail(error));
            }
            for Record { at, event } in records {
                self.last = at;
                self.actions.extend(self.machine.handle(at, event));
            }
            // A failure here changes nothing, and is retried later.
            let _ = self.file.compact(&self.machine, self.last);
        }
        self.actions.pop_front().map(Turn::Do)
    }
}
