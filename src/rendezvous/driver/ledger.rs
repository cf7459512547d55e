//! What happened, in order, and the machine that follows it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rendezvous::machine::{Action, ConnId, Event, Machine};

/// The events of a run, and its machine.
#[derive(Debug)]
pub(super) struct Ledger {
    machine: Machine,
    /// What followed from the events recorded so far.
    actions: VecDeque<Action>,
}

impl Ledger {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, actions: VecDeque::new() }
    }

    /// Records what happened.
    pub(super) fn record(&mut self, now: Duration, event: Event) {
        self.actions.extend(self.machine.handle(now, event));
    }

    /// What is to be done next. Waits for nobody who drops it.
    pub(super) async fn next(&mut self) -> Action {
        match self.actions.pop_front() {
            Some(action) => action,
            None => std::future::pending().await,
        }
    }

    /// When the machine is due for a tick, if all that was recorded has been followed.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.machine.next_deadline()
    }

    /// Clients that are expected to come.
    pub(super) fn sessions(&self) -> Vec<ConnId> {
        self.machine.sessions()
    }
}
