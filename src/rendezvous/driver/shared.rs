//! A ledger that the servers of several members share: the machine, driven by the replicated log, and the choice of
//! voters.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::peers::Peers;
use super::turn::Turn;
use super::voters::{LeftOut, choose};
use crate::rendezvous::codec::{Reader, Wire, WireError, wire};
use crate::rendezvous::log::{AppendError, Leadership, Log, StateMachine, Timing, Voter, VotersError};
use crate::rendezvous::machine::{Action, Event, Machine, SessionId, Settings};
use crate::rendezvous::record::Record;
use crate::rendezvous::wire::{Host, Identity, Listener};

/// One server's copy of the ledger, and its part in the log.
pub(super) struct Shared {
    own: Voter,
    log: Log,
    copy: Arc<Copy>,
    /// What follows from records, on every server; only the leader carries it out.
    actions: mpsc::UnboundedReceiver<Action>,
    leadership: watch::Receiver<Leadership>,
    leads: bool,
    leader: Option<String>,
    /// Whether it wants another server to lead.
    leaving: bool,
    /// It is no longer a voter, and no longer leads whatever the log reports, which takes a moment to notice.
    resigned: bool,
    /// The voters that clients have been told, and since when they have been the voters.
    voters: BTreeSet<u128>,
    voting_since: Instant,
    changing: JoinSet<Result<(), VotersError>>,
    left_out: LeftOut,
    /// When to check whether others should vote.
    look_at: Instant,
    /// The last deadline for which the machine was told the time, so that it is told only once.
    ticked: Option<Duration>,
}

/// An entry of the log.
enum Entry {
    /// The first entry: what the run is.
    Begin {
        settings: Settings,
    },
    Happened {
        record: Record,
    },
}
wire!(enum Entry { 1 => Begin { settings }, 2 => Happened { record } });

/// How long a change of voters may take.
const CHANGE: Duration = Duration::from_secs(2);
/// Pause after a failed change of voters.
const REST: Duration = Duration::from_millis(200);
/// How long former voters are still sent the log, so that they learn that they no longer vote.
const FAREWELL: Duration = Duration::from_millis(200);
/// How often to check whether others should vote.
const LOOK: Duration = Duration::from_millis(50);

impl Shared {
    /// Begins a log for a run, and leads it.
    pub(super) async fn found(own: Voter, settings: Settings, peers: Peers) -> Result<Self, AppendError> {
        let shared = Self::follow(own, peers).await?;
        shared.log.found().await?;
        shared.log.append(encoded(&Entry::Begin { settings })).await?;
        Ok(shared)
    }

    /// Waits for the leader to share the log.
    pub(super) async fn follow(own: Voter, peers: Peers) -> Result<Self, AppendError> {
        let (copy, actions) = Copy::new();
        let log = Log::empty(own.clone(), copy.clone(), Arc::new(peers), Timing::default()).await?;
        let mut leadership = log.leadership();
        leadership.mark_changed();
        Ok(Self {
            own,
            log,
            copy,
            actions,
            leadership,
            leads: false,
            leader: None,
            leaving: false,
            resigned: false,
            voters: BTreeSet::new(),
            voting_since: Instant::now(),
            changing: JoinSet::new(),
            left_out: LeftOut::default(),
            look_at: Instant::now(),
            ticked: None,
        })
    }

    pub(super) fn log(&self) -> Log {
        self.log.clone()
    }

    pub(super) fn record(&mut self, now: Duration, event: Event) {
        if !self.leads {
            return; // the leader is told instead
        }
        if matches!(event, Event::Tick) {
            self.ticked = self.copy.state().machine.as_ref().and_then(Machine::next_deadline);
        }
        let entry = Entry::Happened { record: Record { at: now, event } };
        // Sent without waiting. If it does not arrive, this server no longer leads, and clients tell the next leader.
        drop(self.log.append(encoded(&entry)));
    }

    pub(super) async fn next(&mut self) -> Turn {
        loop {
            if let Some(turn) = self.resign() {
                return turn;
            }
            tokio::select! {
                biased;
                Ok(()) = self.leadership.changed() => {
                    if let Some(turn) = self.led() {
                        return turn;
                    }
                }
                Some(action) = self.actions.recv() => {
                    if self.leads {
                        if let Action::Close { .. } = action {
                            self.look_at = Instant::now(); // the server of the closed session may have been a voter
                        }
                        return Turn::Do(action);
                    }
                }
                Some(changed) = self.changing.join_next() => {
                    if let Ok(Err(VotersError::Behind { voters })) = &changed {
                        self.leave_out(voters);
                    }
                    let rest = if matches!(changed, Ok(Ok(()))) { Duration::ZERO } else { REST };
                    self.look_at = Instant::now() + rest;
                }
                () = sleep_until(self.look_at), if self.leads && self.changing.is_empty() => {
                    self.look_at = Instant::now() + LOOK;
                    self.tend();
                    if let Some(turn) = self.voters_changed() {
                        return turn;
                    }
                }
            }
        }
    }

    /// There is another leader, perhaps this server.
    fn led(&mut self) -> Option<Turn> {
        let Leadership { leads, leader, .. } = self.leadership.borrow_and_update().clone();
        let leads = leads && !self.resigned;
        // A server that has resigned may believe for a moment that it still leads.
        let leader = leader.filter(|leader| leader.id != self.own.id || leads).map(|leader| leader.address);
        if leads && !self.leads {
            let former = self.former_leader();
            self.log.lead();
            // What followed from the records of others: their clients repeat what was not answered.
            while self.actions.try_recv().is_ok() {}
            (self.leads, self.ticked, self.look_at) = (true, None, Instant::now());
            self.left_out = LeftOut::default();
            return Some(Turn::Lead { former });
        }
        if !leads && (self.leads || leader != self.leader) {
            return Some(self.follow_from_now_on(leader));
        }
        None
    }

    /// Stops leading once the voters have changed, as this server wanted, and the clients know them: nobody has to wait
    /// until it counts as silent.
    fn resign(&mut self) -> Option<Turn> {
        if !self.leaving || !self.leads || !self.changing.is_empty() {
            return None;
        }
        if self.log.voters().iter().any(|voter| voter.id == self.own.id) {
            return None;
        }
        self.voters_changed().or_else(|| {
            self.resigned = true;
            Some(self.follow_from_now_on(None))
        })
    }

    fn follow_from_now_on(&mut self, leader: Option<String>) -> Turn {
        (self.leads, self.leader) = (false, leader.clone());
        self.voters.clear();
        Turn::Follow { leader }
    }

    fn voters_changed(&mut self) -> Option<Turn> {
        let voters = self.log.voters();
        let ids: BTreeSet<u128> = voters.iter().map(|voter| voter.id).collect();
        if !self.leads || ids == self.voters || self.log.is_joint() {
            return None;
        }
        (self.voters, self.voting_since) = (ids, Instant::now());
        self.left_out.forget(&self.voters);
        let state = self.copy.state();
        let servers = state.machine.iter().flat_map(Machine::servers);
        let voting = servers.filter(|server| self.voters.contains(&server.listener.id));
        let hosts = voting.map(|server| Host {
            rank: server.identity.rank,
            member: server.identity.member,
            address: server.listener.address.clone(),
        });
        Some(Turn::Servers { hosts: hosts.collect() })
    }

    /// Changes the voters if others should vote.
    fn tend(&mut self) {
        let voters = self.log.voters();
        let own = (!self.leaving).then_some(&self.own);
        let all = self.available();
        let mut prompt = all.clone();
        prompt.retain(|(_, listener)| !self.left_out.contains(listener.id));
        let mut wanted = choose(&voters, own, &prompt);
        if wanted.is_empty() && self.leaving {
            wanted = choose(&voters, own, &all); // a successor that was late is better than none
        }
        let is_set = wanted.iter().all(|voter| voters.contains(voter)) && wanted.len() == voters.len();
        if wanted.is_empty() || (is_set && !self.log.is_joint()) {
            if self.voting_since.elapsed() >= FAREWELL && !self.log.learners().is_empty() {
                let log = self.log.clone();
                self.changing.spawn(async move { log.forget_learners(CHANGE).await });
            }
            return;
        }
        let log = self.log.clone();
        self.changing.spawn(async move { log.set_voters(wanted, CHANGE).await });
    }

    /// These did not get the log in time to become voters.
    fn leave_out(&mut self, voters: &[Voter]) {
        for Voter { id, address: _address } in voters {
            let _seconds = self.left_out.add(*id).as_secs();
            #[cfg(feature = "tracing")]
            tracing::warn!(
                address = _address,
                seconds = _seconds,
                "a server did not get the log in time: others vote instead"
            );
        }
    }

    /// Asks for another server to lead. Returns whether there is one that could.
    pub(super) fn leave(&mut self) -> bool {
        (self.leaving, self.look_at) = (true, Instant::now());
        self.available().iter().any(|(_, listener)| listener.id != self.own.id)
    }

    /// Members whose servers can take part.
    fn available(&self) -> Vec<(Identity, Listener)> {
        let state = self.copy.state();
        let servers = state.machine.iter().flat_map(Machine::servers).filter(|server| server.available);
        servers.map(|server| (server.identity.clone(), server.listener.clone())).collect()
    }

    /// Whether this server votes.
    pub(super) fn votes(&self, id: u128) -> bool {
        self.leads && id != self.own.id && self.log.voters().iter().any(|voter| voter.id == id)
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadline = self.copy.state().machine.as_ref().and_then(Machine::next_deadline)?;
        (self.leads && self.ticked != Some(deadline)).then_some(deadline)
    }

    pub(super) fn addresses(&self) -> Vec<(SessionId, String)> {
        let state = self.copy.state();
        let servers = state.machine.iter().flat_map(Machine::servers);
        servers.filter_map(|server| Some((server.session?, server.listener.address.clone()))).collect()
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        self.copy.state().machine.as_ref().map(Machine::sessions).unwrap_or_default()
    }

    pub(super) fn listener(&self, session: SessionId) -> Option<u128> {
        let state = self.copy.state();
        let server = state.machine.as_ref()?.servers().find(|server| server.session == Some(session));
        server.map(|server| server.listener.id)
    }

    /// The member whose server leads or led last, and since when that has been silent. See [`Log::former_leader`].
    pub(super) fn former_leader(&self) -> Option<(SessionId, Instant)> {
        let (id, since) = self.log.former_leader()?;
        let state = self.copy.state();
        let server = state.machine.as_ref()?.servers().find(|server| server.listener.id == id)?;
        Some((server.session?, since))
    }

    pub(super) fn rank(&self, session: SessionId) -> Option<u32> {
        self.copy.state().machine.as_ref()?.rank(session)
    }

    pub(super) fn last(&self) -> Duration {
        self.copy.state().last
    }
}

fn encoded(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    entry.put(&mut bytes);
    bytes
}

/// The machine, which is the same on each server.
pub(super) struct Copy {
    state: Mutex<State>,
    actions: mpsc::UnboundedSender<Action>,
}

#[derive(Default)]
struct State {
    /// None before the first entry.
    machine: Option<Machine>,
    /// The time of the last record. Another leader has another clock, but time never runs backwards.
    last: Duration,
}

impl Copy {
    fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Action>) {
        let (actions, done) = mpsc::unbounded_channel();
        (Arc::new(Self { state: Mutex::default(), actions }), done)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateMachine for Copy {
    fn apply(&self, record: &[u8]) {
        let mut from = Reader::new(record);
        let mut state = self.state();
        match Entry::get(&mut from) {
            Ok(Entry::Begin { settings }) => state.machine = Machine::new(settings).ok(),
            Ok(Entry::Happened { record }) => {
                state.last = state.last.max(record.at);
                let now = state.last;
                let actions = state.machine.as_mut().map(|machine| machine.handle(now, record.event));
                drop(state);
                for action in actions.unwrap_or_default() {
                    let _ = self.actions.send(action);
                }
            }
            // All copies skip it in the same way.
            Err(_) => {}
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        let state = self.state();
        let mut bytes = Vec::new();
        state.last.put(&mut bytes);
        if let Some(machine) = &state.machine {
            bytes.extend(machine.snapshot());
        }
        bytes
    }

    fn restore(&self, snapshot: &[u8]) -> Result<(), WireError> {
        let mut from = Reader::new(snapshot);
        let last = Duration::get(&mut from)?;
        let rest = &snapshot[snapshot.len() - from.remaining()..];
        let machine = if rest.is_empty() { None } else { Some(Machine::restore(rest)?) };
        *self.state() = State { machine, last };
        Ok(())
    }
}
