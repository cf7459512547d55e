//! What a voter does on its own as time passes: it sends heartbeats, stands for election, and takes snapshots.
//!
//! openraft's own timers are off. They draw a voter's election timeout once and for all, so that two candidates can
//! disturb each other forever, and they cannot be told that a leader's process has ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::ServerState;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::copy::Progress;
use super::inbox::{Heard, lock};
use super::leadership::Leadership;
use super::network::Carrier;
use super::timing::Timing;
use super::types::{Metrics, Raft};
use crate::rendezvous::random::Random;

/// Most terms that are skipped at once.
const MOST_TERMS: u64 = 64;

pub(crate) struct Clock {
    pub(crate) own: u128,
    pub(crate) raft: Raft,
    pub(crate) carrier: Arc<dyn Carrier>,
    pub(crate) timing: Timing,
    pub(crate) heard: Arc<Mutex<Heard>>,
    pub(crate) progress: Arc<Progress>,
    /// Wakes the clock because the leader's process has ended.
    pub(crate) gone: Arc<Notify>,
    pub(crate) leadership: watch::Sender<Leadership>,
    /// Gives different numbers on each voter.
    pub(crate) random: Random,
}

/// When it last sent a heartbeat and stood for election, and its current election timeout.
struct Pace {
    beat: Instant,
    stood: Instant,
    patience: Duration,
    /// The timeout is the short one used after the leader's process has ended.
    hurried: bool,
}

impl Clock {
    /// Runs until openraft has stopped.
    pub(crate) async fn run(mut self) {
        let mut metrics = self.raft.metrics();
        let (gone, progress) = (self.gone.clone(), self.progress.clone());
        let now = Instant::now();
        let mut pace = Pace { beat: now, stood: now, patience: self.patience(), hurried: false };
        let mut members_at = None;
        loop {
            let seen = metrics.borrow_and_update().clone();
            if seen.state == ServerState::Shutdown {
                break;
            }
            self.publish(&seen);
            let changed = seen.membership_config.log_id();
            if *changed != members_at {
                members_at = *changed;
                self.carrier.keep(&seen.membership_config.nodes().map(|(id, _)| *id).collect());
            }
            let next = match seen.state {
                ServerState::Leader => self.beat(&mut pace, &seen).await,
                _ => self.stand(&mut pace, &seen).await,
            };
            tokio::select! {
                biased;
                () = gone.notified() => self.hurry(&mut pace),
                () = progress.due.notified() => drop(self.raft.trigger().snapshot().await),
                () = tokio::time::sleep_until(next) => {}
                changed = metrics.changed() => if changed.is_err() { break },
            }
        }
        let term = self.leadership.borrow().term;
        self.leadership.send_replace(Leadership { term, leader: None, leads: false });
    }

    /// Sends a leader's heartbeats, unless the leader has given up its vote because another should lead. Returns when
    /// the next one is due.
    async fn beat(&self, pace: &mut Pace, seen: &Metrics) -> Instant {
        let now = Instant::now();
        pace.stood = now;
        if pace.beat <= now {
            pace.beat = now + self.timing.heartbeat;
            if self.votes(seen) {
                let _ = self.raft.trigger().heartbeat().await;
            }
        }
        pace.beat
    }

    /// Stands for election if no leader has been heard and no vote given within the timeout. Returns when to check
    /// next.
    async fn stand(&mut self, pace: &mut Pace, seen: &Metrics) -> Instant {
        let now = Instant::now();
        if pace.hurried && !lock(&self.heard).gone {
            // A new leader has been heard, for which the normal timeout applies.
            (pace.patience, pace.hurried) = (self.patience(), false);
        }
        let heard = lock(&self.heard).quiet_since().map_or(pace.stood, |since| since.max(pace.stood));
        if now < heard + pace.patience {
            return heard + pace.patience;
        }
        (pace.stood, pace.patience) = (now, self.patience());
        if self.votes(seen) {
            // openraft ignores the term of a candidate whose log is too short. Another candidate whose log is long
            // enough would then stand in a term in which the first has already voted for itself, and so on in every
            // term.
            let ahead = lock(&self.heard).stood.saturating_sub(seen.current_term);
            for _ in 0..=ahead.min(MOST_TERMS) {
                let _ = self.raft.trigger().elect().await;
            }
        }
        now + pace.patience
    }

    fn votes(&self, seen: &Metrics) -> bool {
        seen.membership_config.voter_ids().any(|voter| voter == self.own)
    }

    /// The leader's process has ended. All voters that notice want to be elected, so each draws a new random delay, in
    /// order not to get in each other's way.
    fn hurry(&mut self, pace: &mut Pace) {
        if lock(&self.heard).gone {
            (pace.stood, pace.patience, pace.hurried) = (Instant::now(), self.patience(), true);
        }
    }

    fn publish(&self, metrics: &Metrics) {
        let leadership = Leadership::of(metrics, self.timing.election.1);
        self.leadership.send_if_modified(|known| {
            let differs = *known != leadership;
            *known = leadership;
            differs
        });
    }

    /// A new random election timeout.
    fn patience(&mut self) -> Duration {
        let (least, most) = match lock(&self.heard).gone {
            true => (Duration::ZERO, 2 * self.timing.heartbeat),
            false => self.timing.election,
        };
        let range = most.saturating_sub(least).as_nanos();
        least + Duration::from_nanos(self.random.below(u64::try_from(range).unwrap_or(u64::MAX)))
    }
}
