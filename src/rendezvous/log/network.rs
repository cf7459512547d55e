//! Questions to other voters, for openraft.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, RaftNetwork, RaftNetworkFactory};
use tokio::task::JoinSet;

use super::inbox::{Heard, lock};
use super::question::{Answer, Append, Body, Install, Question};
use super::timing::Timing;
use super::types::{Ballot, LogId, MAX_SNAPSHOT_BYTES, Snapshot, Types, Voter};
use crate::rendezvous::codec::Blob;

/// Most bytes of one part of a snapshot.
const PART_BYTES: usize = 1 << 20;
/// How often in a row a part of a snapshot may fail to arrive.
const PART_TRIES: u32 = 3;

/// A pending answer, or why there is none.
pub(crate) type Asked = Pin<Box<dyn Future<Output = Result<Answer, String>> + Send>>;

/// Carries questions to other voters.
pub(crate) trait Carrier: Send + Sync + 'static {
    /// Gives up at the deadline. The answer need not be trustworthy: it is checked.
    fn ask(&self, to: &Voter, question: Question, deadline: Duration) -> Asked;
    /// From now on only these are asked: the voters, and those that do not vote yet or no longer.
    fn keep(&self, known: &BTreeSet<u128>);
}

/// Makes a link for each voter to be asked.
pub(crate) struct Network {
    pub(crate) own: u128,
    pub(crate) carrier: Arc<dyn Carrier>,
    pub(crate) timing: Timing,
    pub(crate) heard: Arc<Mutex<Heard>>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, id: u128, address: &String) -> Link {
        let to = Voter { id, address: address.clone() };
        let (carrier, heard) = (self.carrier.clone(), self.heard.clone());
        Link { own: self.own, to, carrier, timing: self.timing, heard, pending: None }
    }
}

/// The link to one other voter.
pub(crate) struct Link {
    own: u128,
    to: Voter,
    carrier: Arc<dyn Carrier>,
    timing: Timing,
    heard: Arc<Mutex<Heard>>,
    pending: Option<Pending>,
}

/// Entries on their way. openraft gives up an append after a heartbeat, which may be too short for a long record on a
/// slow network, and then asks for the same again: that call continues the wait instead of sending the entries once
/// more.
struct Pending {
    ballot: Ballot,
    prev: Option<LogId>,
    last: Option<LogId>,
    answer: JoinSet<Result<Answer, String>>,
}

type Failed = RPCError<u128, String, RaftError<u128>>;

fn unreachable(why: impl ToString) -> Unreachable {
    Unreachable::new(&AnyError::error(why))
}

impl Link {
    fn ask(&self, body: Body, deadline: Duration) -> Asked {
        let question = Question { to: self.to.id, body };
        let asked = self.carrier.ask(&self.to, question, deadline);
        let (to, heard) = (self.to.id, self.heard.clone());
        Box::pin(async move {
            let answer = tokio::time::timeout(deadline, asked).await;
            let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()))?;
            lock(&heard).sign_of(to);
            Ok(answer)
        })
    }

    /// A ballot later than one's own that another voter reports. A voter is never told that it was elected itself.
    fn outvoted(&self, ballot: Ballot, own: &Ballot) -> Result<Ballot, Unreachable> {
        match ballot.leader_id.voted_for {
            Some(candidate) if candidate != self.own && ballot.leader_id.term > own.leader_id.term => {
                Ok(ballot)
            }
            _ => Err(unreachable("outvoted by a ballot that is not later")),
        }
    }

    /// The answer to these entries, and the last of the entries that it is about.
    async fn appended(&mut self, append: Append) -> Result<(Answer, Option<LogId>), Failed> {
        let (ballot, prev, last) = (append.ballot, append.prev, append.last());
        let continues = |it: &Pending| it.ballot == ballot && it.prev == prev && it.last <= last;
        let mut pending = match self.pending.take_if(|it| continues(it)) {
            Some(pending) => pending,
            None => {
                let mut answer = JoinSet::new();
                answer.spawn(self.ask(Body::Append { append }, self.timing.transfer));
                Pending { ballot, prev, last, answer }
            }
        };
        // Kept during the wait, because openraft may drop this future there.
        let answered = self.pending.insert(pending).answer.join_next().await;
        pending = match self.pending.take() {
            Some(pending) => pending,
            None => return Err(unreachable("no question").into()),
        };
        match answered {
            Some(Ok(Ok(answer))) => Ok((answer, pending.last)),
            Some(Ok(Err(why))) => Err(unreachable(why).into()),
            Some(Err(_)) | None => Err(unreachable("the question was dropped").into()),
        }
    }

    async fn install(
        &self,
        ballot: Ballot,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<u128>, Unreachable> {
        let Some(last) = snapshot.meta.last_log_id else {
            return Err(unreachable("a snapshot without an entry"));
        };
        let data = &snapshot.snapshot.0;
        if data.len() > MAX_SNAPSHOT_BYTES {
            let why = format!("a snapshot of {} bytes (limit {MAX_SNAPSHOT_BYTES})", data.len());
            return Err(unreachable(why));
        }
        let (mut offset, mut failures) = (0, 0);
        loop {
            let part = &data[offset..data.len().min(offset + PART_BYTES)];
            let install = Install {
                ballot,
                last,
                members_at: *snapshot.meta.last_membership.log_id(),
                members: snapshot.meta.last_membership.membership().clone(),
                total: data.len() as u64,
                offset: offset as u64,
                data: Blob(part.to_vec()),
            };
            let ends = offset + part.len();
            let why = match self.ask(Body::Install { install }, self.timing.transfer).await {
                Ok(Answer::Installed { bytes }) if bytes == ends as u64 => {
                    if ends == data.len() {
                        return Ok(SnapshotResponse { vote: ballot });
                    }
                    (offset, failures) = (ends, 0);
                    continue;
                }
                Ok(Answer::Installed { bytes }) => {
                    // The part arrived twice, or a part of another leader arrived in between.
                    offset = usize::try_from(bytes).ok().filter(|at| *at < data.len()).unwrap_or(0);
                    "parts in another order".to_owned()
                }
                Ok(Answer::Outvoted { ballot: by }) => {
                    return Ok(SnapshotResponse { vote: self.outvoted(by, &ballot)? });
                }
                Ok(Answer::Refused { why }) => return Err(unreachable(why)),
                Ok(_) => return Err(unreachable("an answer to another question")),
                Err(why) => why,
            };
            failures += 1;
            if failures == PART_TRIES {
                return Err(unreachable(why));
            }
        }
    }
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u128>, Failed> {
        let AppendEntriesRequest { vote: ballot, prev_log_id: prev, entries, leader_commit: committed } =
            request;
        let append = Append { ballot, prev, entries, committed };
        let last = append.last();
        let (answer, upto) = if append.entries.is_empty() {
            let asked = self.ask(Body::Append { append }, option.hard_ttl());
            (asked.await.map_err(unreachable)?, last)
        } else {
            self.appended(append).await?
        };
        match answer {
            Answer::Appended {} if upto == last => Ok(AppendEntriesResponse::Success),
            Answer::Appended {} => Ok(AppendEntriesResponse::PartialSuccess(upto)),
            Answer::Conflict {} if prev.is_some() => Ok(AppendEntriesResponse::Conflict),
            Answer::Outvoted { ballot: by } => {
                Ok(AppendEntriesResponse::HigherVote(self.outvoted(by, &ballot)?))
            }
            Answer::Refused { why } => Err(unreachable(why).into()),
            _ => Err(unreachable("an answer to another question").into()),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u128>,
        option: RPCOption,
    ) -> Result<VoteResponse<u128>, Failed> {
        let VoteRequest { vote: own, last_log_id: last } = request;
        match self.ask(Body::Vote { ballot: own, last }, option.hard_ttl()).await.map_err(unreachable)? {
            Answer::Voted { ballot, granted, last } => {
                // A vote for this candidate in another ballot refers to an election in which it never stood.
                let is_ours = granted || ballot.leader_id.voted_for == Some(self.own);
                if is_ours && ballot != own {
                    return Err(unreachable("a vote in another ballot").into());
                }
                Ok(VoteResponse { vote: ballot, vote_granted: granted, last_log_id: last })
            }
            Answer::Refused { why } => Err(unreachable(why).into()),
            _ => Err(unreachable("an answer to another question").into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        ballot: Ballot,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u128>, StreamingError<Types, Fatal<u128>>> {
        tokio::select! {
            installed = self.install(ballot, snapshot) => Ok(installed?),
            closed = cancel => Err(closed.into()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(self.timing.heartbeat))
    }
}
