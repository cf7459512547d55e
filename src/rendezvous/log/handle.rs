//! A voter's handle of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use openraft::error::{ChangeMembershipError, ClientWriteError, ForwardToLeader, RaftError};
use openraft::{ChangeMembers, Config, SnapshotPolicy};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::clock::Clock;
use super::copy::{Copy, Progress, StateMachine};
use super::inbox::{Heard, Inbox, lock};
use super::leadership::{Leadership, voter};
use super::network::{Carrier, Network};
use super::question::{Answer, Question};
use super::storage::Storage;
use super::timing::Timing;
use super::types::{MAX_RECORD_BYTES, MAX_VOTERS, Raft, Voter};
use crate::rendezvous::codec::Blob;
use crate::rendezvous::random::Random;

/// Why a record was not appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AppendError {
    /// The record is in no copy, and never will be.
    #[error("this voter does not lead")]
    NotLeader {
        /// The leader, if known.
        leader: Option<Voter>,
    },
    /// The record may still be appended or not: this voter has ceased to lead, or no majority answers.
    #[error("whether the record is in the log is not known")]
    Unsure,
    /// The record is too long for the copies.
    #[error("a record of {bytes} bytes (limit {MAX_RECORD_BYTES})")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The log has been stopped on this voter; it may contain the record or not.
    #[error("the log has been stopped")]
    Stopped,
}

/// Why the voters could not be changed as wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VotersError {
    /// Only the leader changes them.
    #[error("this voter does not lead")]
    NotLeader {
        /// The leader, if known.
        leader: Option<Voter>,
    },
    /// New voters did not receive the log in time. The voters are unchanged.
    #[error("voters that did not catch up with the log: {voters:?}")]
    Behind {
        /// The new voters that are late.
        voters: Vec<Voter>,
    },
    /// No majority answered in time. The change may still take effect; asking for it again completes it.
    #[error("the change of voters was not completed in time")]
    Late,
    /// Such a set of voters is not possible.
    #[error("these voters are not possible: {why}")]
    Refused {
        /// The reason.
        why: String,
    },
    /// The log has been stopped on this voter.
    #[error("the log has been stopped")]
    Stopped,
}

/// One voter's copy of the log. Clones share it; when the last is dropped, its tasks end.
#[derive(Clone)]
pub(crate) struct Log {
    inner: Arc<Inner>,
}

struct Inner {
    own: Voter,
    raft: Raft,
    inbox: Inbox,
    timing: Timing,
    progress: Arc<Progress>,
    gone: Arc<Notify>,
    leadership: watch::Receiver<Leadership>,
    /// Locked while the voters are being changed.
    changing: tokio::sync::Mutex<()>,
    clock: AbortHandle,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let metrics = self.inner.raft.metrics().borrow().to_string();
        f.debug_struct("Log").field("metrics", &metrics).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.clock.abort(); // the task holds openraft, which ends when nobody holds it
    }
}

/// How long openraft may take to stop.
const STOP: Duration = Duration::from_secs(1);

impl Log {
    /// An empty copy. It does nothing by itself until it begins a log or a leader adds it to one.
    pub(crate) async fn empty(
        own: Voter,
        machine: Arc<dyn StateMachine>,
        carrier: Arc<dyn Carrier>,
        timing: Timing,
    ) -> Result<Self, AppendError> {
        let heartbeat = u64::try_from(timing.heartbeat.as_millis()).unwrap_or(u64::MAX / 4).max(2);
        let config = Config {
            cluster_name: "epwire".to_owned(),
            // How long an answer may take. The clock sends heartbeats and holds elections.
            heartbeat_interval: heartbeat,
            election_timeout_min: heartbeat,
            // For this long openraft refuses votes after it has heard a leader. The effective time is decided by the
            // inbox, which knows whether the leader lives.
            election_timeout_max: heartbeat + 1,
            enable_heartbeat: false,
            enable_elect: false,
            snapshot_policy: SnapshotPolicy::Never, // the clock takes them, also depending on bytes
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let (storage, copy) = (Storage::default(), Copy::new(machine, timing.snapshot));
        let progress = copy.progress();
        let heard = Arc::<Mutex<Heard>>::default();
        let network = Network { own: own.id, carrier: carrier.clone(), timing, heard: heard.clone() };
        let raft = Raft::new(own.id, Arc::new(config), network, storage.clone(), copy).await;
        let raft = raft.map_err(|_| AppendError::Stopped)?;
        let (says, leadership) = watch::channel(Leadership::default());
        let inbox =
            Inbox::new(own.id, raft.clone(), storage, leadership.clone(), timing.election.0, heard.clone());
        let gone = Arc::new(Notify::new());
        let clock = Clock {
            own: own.id,
            raft: raft.clone(),
            carrier,
            timing,
            heard,
            progress: progress.clone(),
            gone: gone.clone(),
            leadership: says,
            random: Random(own.id as u64 ^ (own.id >> 64) as u64),
        };
        let clock = tokio::spawn(clock.run()).abort_handle();
        let changing = tokio::sync::Mutex::default();
        let inner = Inner { own, raft, inbox, timing, progress, gone, leadership, changing, clock };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins a new log of which this is the only voter. It leads when this returns.
    pub(crate) async fn found(&self) -> Result<(), AppendError> {
        let Voter { id, address } = self.inner.own.clone();
        let first = BTreeMap::from([(id, address)]);
        self.inner.raft.initialize(first).await.map_err(|_| AppendError::Stopped)?;
        let mut leadership = self.leadership();
        let leads = timeout(self.inner.timing.patience, leadership.wait_for(|it| it.leads)).await;
        leads.map_err(|_| AppendError::Stopped)?.map_err(|_| AppendError::Stopped)?;
        Ok(())
    }

    /// Appends a record to the log. When this returns, the record has been sent on its way after all earlier ones. The
    /// returned future ends when a majority has it and it is applied here, or with the reason why not. It need not be
    /// awaited.
    pub(crate) fn append(
        &self,
        record: Vec<u8>,
    ) -> impl Future<Output = Result<(), AppendError>> + Send + 'static + use<> {
        let mut restored = self.inner.progress.restored.subscribe();
        let storage = self.inner.inbox.storage.clone();
        let truncations = storage.truncations();
        let patience = self.inner.timing.patience;
        let sent = self.send(record);
        async move {
            let answer = sent?;
            let answered = tokio::select! {
                biased;
                answered = timeout(patience, answer) => answered,
                // A snapshot may have covered this record; then nothing reports that it was applied.
                _ = restored.changed() => return Err(AppendError::Unsure),
            };
            match answered {
                Ok(Ok(Ok(_))) => Ok(()),
                // An entry that was overwritten here may be with another voter, and come back from there.
                Ok(Ok(Err(ClientWriteError::ForwardToLeader(to))))
                    if storage.truncations() == truncations =>
                {
                    Err(AppendError::NotLeader { leader: leader(to) })
                }
                Ok(Ok(Err(_))) | Err(_) => Err(AppendError::Unsure),
                Ok(Err(_)) => Err(AppendError::Stopped),
            }
        }
    }

    /// Passes a record to openraft at once. The future that does so is always ready at its first poll, unless openraft
    /// has stopped.
    fn send(&self, record: Vec<u8>) -> Result<Written, AppendError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(AppendError::TooLong { bytes: record.len() });
        }
        let writing = pin!(self.inner.raft.client_write_ff(Arc::new(Blob(record))));
        match writing.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(answer)) => Ok(answer),
            Poll::Ready(Err(_)) | Poll::Pending => Err(AppendError::Stopped),
        }
    }

    /// This voter's answer to a question of another voter.
    pub(crate) async fn answer(&self, question: Question) -> Answer {
        self.inner.inbox.answer(question).await
    }

    /// Who leads; updated from now on.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// The voters as far as this one knows; while they change, both old and new ones.
    pub(crate) fn voters(&self) -> Vec<Voter> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow();
        let ids: BTreeSet<u128> = metrics.membership_config.voter_ids().collect();
        ids.into_iter().filter_map(|id| voter(&metrics, id)).collect()
    }

    /// Whether they are changing: until the change is complete, old and new ones both have to agree. One that was
    /// interrupted stays so until the leader asks for voters again.
    pub(crate) fn is_joint(&self) -> bool {
        let metrics = self.inner.raft.metrics();
        metrics.borrow().membership_config.membership().get_joint_config().len() > 1
    }

    /// The leader's process has ended, or the leader has resigned: an election need not wait until it counts as silent.
    /// A leader heard after this call is a new one and cancels it, unless it is the one that has resigned.
    pub(crate) fn elect(&self, resigned: bool) {
        let Leadership { term, leader, .. } = self.leadership().borrow().clone();
        let mut heard = lock(&self.inner.inbox.heard);
        heard.gone = true;
        heard.resigned = leader.filter(|_| resigned).map(|leader| (term, leader.id));
        drop(heard);
        self.inner.gone.notify_one();
    }

    /// Who led before, and since when nothing has arrived from it. Only if the silence is meaningful: it votes and has
    /// not resigned, so it would send something. None once this voter has led afterwards.
    pub(crate) fn former_leader(&self) -> Option<(u128, Instant)> {
        let former = lock(&self.inner.inbox.heard).former()?;
        self.voters().iter().any(|voter| voter.id == former.0).then_some(former)
    }

    /// This voter leads: the previous leader need not send anything any more.
    pub(crate) fn lead(&self) {
        lock(&self.inner.inbox.heard).lead();
    }

    /// Makes these the voters; called on the leader. New voters first receive the log, then a joint majority changes to
    /// the new set. A leader that took over in the middle of a change completes or replaces it by asking for the voters
    /// that it wants.
    pub(crate) async fn set_voters(&self, voters: Vec<Voter>, deadline: Duration) -> Result<(), VotersError> {
        let deadline = Instant::now() + deadline;
        let wanted: BTreeMap<u128, String> =
            voters.into_iter().map(|voter| (voter.id, voter.address)).collect();
        if !(1..=MAX_VOTERS).contains(&wanted.len()) {
            return Err(VotersError::Refused { why: format!("{} voters (1 to {MAX_VOTERS})", wanted.len()) });
        }
        let _alone = timeout_at(deadline, self.inner.changing.lock()).await.map_err(|_| VotersError::Late)?;
        let known = self.known();
        let new: BTreeMap<u128, String> =
            wanted.iter().filter(|(id, _)| !known.contains(id)).map(|(id, at)| (*id, at.clone())).collect();
        if !new.is_empty() {
            self.change(ChangeMembers::AddNodes(new.clone()), deadline).await?;
        }
        if let Err(error) = self.await_new(&wanted, deadline).await {
            // Otherwise they would be sent everything forever.
            let _ = timeout(
                self.inner.timing.transfer,
                self.change_now(ChangeMembers::RemoveNodes(new.into_keys().collect())),
            )
            .await;
            return Err(error);
        }
        self.change(ChangeMembers::ReplaceAllVoters(wanted.keys().copied().collect()), deadline).await?;
        Ok(())
    }

    /// Those that no longer vote, or not yet, and are sent the log.
    pub(crate) fn learners(&self) -> BTreeSet<u128> {
        let voters: BTreeSet<u128> = self.voters().into_iter().map(|voter| voter.id).collect();
        self.known().difference(&voters).copied().collect()
    }

    /// Stops sending the log to those that do not vote; called on the leader. Former voters that are alive should have
    /// learned of the change by then: otherwise they would stand for election again and again, in ever higher terms.
    pub(crate) async fn forget_learners(&self, deadline: Duration) -> Result<(), VotersError> {
        let deadline = Instant::now() + deadline;
        let _alone = timeout_at(deadline, self.inner.changing.lock()).await.map_err(|_| VotersError::Late)?;
        match self.learners() {
            learners if learners.is_empty() => Ok(()),
            learners => self.change(ChangeMembers::RemoveNodes(learners), deadline).await,
        }
    }

    /// Voters and learners.
    fn known(&self) -> BTreeSet<u128> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.nodes().map(|(id, _)| *id).collect()
    }

    /// Waits until all of these that do not vote yet have what the log contains now.
    async fn await_new(&self, wanted: &BTreeMap<u128, String>, deadline: Instant) -> Result<(), VotersError> {
        let mut metrics = self.inner.raft.metrics();
        let upto = metrics.borrow().last_log_index;
        loop {
            let behind: Vec<Voter> = {
                let seen = metrics.borrow_and_update();
                if seen.running_state.is_err() {
                    return Err(VotersError::Stopped);
                }
                let Some(replication) = &seen.replication else {
                    return Err(VotersError::NotLeader { leader: self.leadership().borrow().leader.clone() });
                };
                let voters: BTreeSet<u128> = seen.membership_config.voter_ids().collect();
                let has = |id: &u128| replication.get(id).is_some_and(|at| at.map(|at| at.index) >= upto);
                let behind = wanted.iter().filter(|(id, _)| !voters.contains(id) && !has(id));
                behind.map(|(id, address)| Voter { id: *id, address: address.clone() }).collect()
            };
            if behind.is_empty() {
                return Ok(());
            }
            match timeout_at(deadline, metrics.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(VotersError::Stopped),
                Err(_) => return Err(VotersError::Behind { voters: behind }),
            }
        }
    }

    async fn change(
        &self,
        change: ChangeMembers<u128, String>,
        deadline: Instant,
    ) -> Result<(), VotersError> {
        timeout_at(deadline, self.change_now(change)).await.map_err(|_| VotersError::Late)?
    }

    async fn change_now(&self, change: ChangeMembers<u128, String>) -> Result<(), VotersError> {
        // Former voters are told so: see `forget_learners`.
        match self.inner.raft.change_membership(change, true).await {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(_)) => Err(VotersError::Stopped),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                Err(VotersError::NotLeader { leader: leader(to) })
            }
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => match error {
                ChangeMembershipError::InProgress(_) => Err(VotersError::Late),
                other => Err(VotersError::Refused { why: other.to_string() }),
            },
        }
    }

    /// Ends its tasks. Waiting appends are told.
    pub(crate) async fn stop(&self) {
        let _ = timeout(STOP, self.inner.raft.shutdown()).await;
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> u128 {
        self.inner.own.id
    }

    /// The sets each of which decides by a majority.
    #[cfg(test)]
    pub(super) fn configs(&self) -> Vec<BTreeSet<u128>> {
        self.inner.raft.metrics().borrow().membership_config.membership().get_joint_config().clone()
    }

    /// Number of entries kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.inner.inbox.storage.kept()
    }
}

type Written = tokio::sync::oneshot::Receiver<openraft::raft::ClientWriteResult<super::types::Types>>;

fn leader(to: ForwardToLeader<u128, String>) -> Option<Voter> {
    Some(Voter { id: to.leader_id?, address: to.leader_node? })
}
