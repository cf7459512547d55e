//! What a member's library does about the membership by itself, whether or not its program makes a call: it answers the
//! group, and ends waits for ranks that are no longer members.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::broadcast;

use super::account::Account;
use super::change::{Change, Progress, few_epochs_left};
use super::experts::{Experts, Listed};
use super::follower::Follower;
use super::meetings::Meetings;
use super::outbox::Outbox;
use super::survey::{Question, Survey};
use crate::cause::Cause;
use crate::error::Result;
use crate::mask::{MAX_WORLD, Mask};
use crate::observe::Sight;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::driver::{Attendant, Elector, Heartbeat, Later, Outage};
use crate::rendezvous::pace::{Next, Pace};
use crate::rendezvous::wire::{Ask, Decision, Host, Identity, Joined, Notice, Standby, View};

/// A member's progress through the steps of its group.
#[derive(Debug)]
pub(crate) struct Course {
    me: Weak<Self>,
    rank: u32,
    lead: u64,
    heartbeat: Heartbeat,
    sight: Arc<Sight>,
    state: Mutex<State>,
    followers: Mutex<Vec<Weak<dyn Follower>>>,
    meetings: Arc<Meetings>,
    survey: Arc<Survey>,
    progress: broadcast::Sender<Progress>,
    news: Outbox<News>,
    /// Held while a membership is put into effect, which may take as long as a GPU works.
    applying: Mutex<()>,
    /// The newest epoch that followers were told to begin. Held only for as long as it takes to tell them of ranks that will
    /// not be in the next one, so that nobody who waits for such a rank waits for a GPU first.
    told: Mutex<u32>,
    /// The elector of this member's own server, if it has one.
    pub(super) elector: OnceLock<Elector>,
}

/// How many progress reports a receiver may lag behind.
const MAX_PROGRESS: usize = 64;

/// What has changed. Put into the outbox under the state's lock, or under the lock that is held while a membership is put
/// into effect.
#[derive(Debug)]
enum News {
    /// A member on standby has learned of another membership.
    Elsewhere(Decision),
    /// With a decision after which the members are the same: those of them that this member had given up.
    Progress(Progress, Option<Mask>),
    /// The change of this decision is in effect, with the time since its proposal.
    InEffect(Decision, Duration, Change, Vec<Experts>),
}

#[derive(Debug)]
struct State {
    pace: Pace,
    /// The last known member of each rank.
    roster: BTreeMap<u32, Identity>,
    /// How many messages the group has sent.
    news: u64,
    /// The last change that a member has called off, and the number of the message that said so.
    called_off: Option<(u64, BootstrapError)>,
    /// When the program last asked for a step.
    asked: Option<Instant>,
    /// The ranks to report to the group as silent, or out of step, in the current epoch.
    suspicious: Mask,
    /// Those of them that have been reported.
    doubted: Mask,
    /// The ranks that the followers had given up at the last step, in the current epoch.
    given_up: Mask,
    account: Account,
    /// The change that took effect since the program last began a step.
    change: Option<Change>,
    left: bool,
}

impl State {
    fn seat(&mut self, members: &[Identity]) {
        self.roster.extend(members.iter().map(|member| (member.rank, member.clone())));
    }

    /// Whom the followers of `rank` need no longer wait for when these members of the current membership are removed, and
    /// why.
    fn lost(&self, rank: u32, removed: Mask) -> (Mask, Cause) {
        match removed.contains(rank) {
            true => (self.pace.current().mask.without(rank), Cause::Evicted),
            false => (removed, Cause::LeftOut),
        }
    }

    /// They concern the former epoch.
    fn forget_doubts(&mut self) {
        (self.suspicious, self.doubted, self.given_up) = Default::default();
    }
}

impl Course {
    pub(super) fn new(rank: u32, lead: u64, heartbeat: Heartbeat) -> Arc<Self> {
        let nobody = Decision { mask: Mask::EMPTY, epoch: 0, step: 0 };
        let state = State {
            pace: Pace::new(rank, nobody, lead),
            roster: BTreeMap::new(),
            news: 0,
            called_off: None,
            asked: None,
            suspicious: Mask::EMPTY,
            doubted: Mask::EMPTY,
            given_up: Mask::EMPTY,
            account: Account::default(),
            change: None,
            left: false,
        };
        let (state, followers) = (Mutex::new(state), Mutex::default());
        let progress = broadcast::Sender::new(MAX_PROGRESS);
        let sight = Arc::new(Sight::new(rank));
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            rank,
            lead,
            heartbeat,
            sight: sight.clone(),
            state,
            followers,
            meetings: Arc::new(Meetings::new(sight)),
            survey: Arc::default(),
            progress,
            news: Outbox::new(),
            applying: Mutex::default(),
            told: Mutex::default(),
            elector: OnceLock::new(),
        })
    }

    /// This member has no server of its own, because it reaches the one at `address` by loopback and others do not.
    pub(super) fn has_no_server(&self, address: &str) {
        self.sight.has_no_server(address);
    }

    /// This member asks to join, and gives up after `deadline`; the run begins with `initial` ranks.
    pub(super) fn joins(&self, initial: u32, deadline: Duration) {
        self.sight.joins(initial, deadline);
    }

    pub(super) fn follow(&self, follower: Weak<dyn Follower>) {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(follower);
    }

    /// The followers in the order of their creation.
    pub(super) fn followers(&self) -> Vec<Arc<dyn Follower>> {
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        followers.iter().filter_map(Weak::upgrade).collect()
    }

    /// What it takes to connect with another member, and how long to try.
    fn meeting(&self) -> (Arc<Meetings>, Vec<Arc<dyn Follower>>, Duration) {
        (self.meetings.clone(), self.followers(), self.heartbeat.lease)
    }

    pub(super) fn current(&self) -> Decision {
        self.state().pace.current()
    }

    /// A copy of its steps, and whether it has left.
    pub(super) fn pace(&self) -> (Pace, bool) {
        let state = self.state();
        (state.pace.clone(), state.left)
    }

    /// The last known member of each rank, by rank.
    pub(super) fn roster(&self) -> Vec<Identity> {
        self.state().roster.values().cloned().collect()
    }

    pub(super) fn waits(&self) -> bool {
        self.state().pace.is_standby()
    }

    /// What the program does next, the change to report with it if that is a step, and the number of the last message
    /// that this takes into account.
    pub(super) fn next(&self) -> (Next, Option<Change>, u64) {
        let is_behind = self.state().pace.is_behind();
        let is_overtaken = |epoch| self.followers().iter().any(|follower| follower.is_overtaken(epoch));
        let overtaken = is_behind.is_some_and(is_overtaken);
        let mut state = self.state();
        state.asked = Some(Instant::now());
        let next = state.pace.next(overtaken);
        let change = if matches!(next, Next::Begin { .. }) { state.change.take() } else { None };
        (next, change, state.news)
    }

    /// The error of a change that was called off after the message of this number, if one was.
    pub(super) fn called_off(&self, since: u64) -> Option<BootstrapError> {
        let called_off = self.state().called_off.clone();
        called_off.filter(|(news, _)| *news > since).map(|(_, error)| error)
    }

    pub(super) fn changes(&self) -> broadcast::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Reports to logs, metrics and receivers of the changes. The caller holds no lock.
    fn tell(&self) {
        self.news.empty(|news| {
            let (progress, again) = match news {
                News::Elsewhere(current) => return self.sight.works_with(&current),
                News::Progress(progress, again) => (progress, again),
                News::InEffect(decision, took, change, experts) => {
                    self.sight.in_effect(&decision, &change.entered, &change.left, took);
                    for (buffer, Experts { lost, regained, .. }) in experts.iter().enumerate() {
                        if !lost.is_empty() {
                            self.sight.out_of_reach(buffer, experts.len(), &Listed(lost));
                        }
                        if !regained.is_empty() {
                            self.sight.in_reach_again(buffer, experts.len(), &Listed(regained));
                        }
                    }
                    if let Some(left) = few_epochs_left(decision.epoch) {
                        self.sight.runs_out(decision.epoch, left);
                    }
                    (Progress::InEffect { change, experts }, None)
                }
            };
            match &progress {
                Progress::Proposed { change } => self.sight.proposed(*change),
                Progress::Due { change, epoch, members, step, waiting } => {
                    let decision = Decision { mask: *members, epoch: *epoch, step: *step };
                    self.sight.due(*change, &decision, waiting, again);
                }
                Progress::Aborted { change, error } => self.sight.aborted(*change, error),
                Progress::InEffect { .. } => {}
            }
            drop(self.progress.send(progress));
        });
    }

    /// Puts a membership into effect for all followers. May wait for their GPUs.
    pub(super) fn apply(&self, decision: &Decision) -> Result<()> {
        {
            let _applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
            if self.current().epoch >= decision.epoch {
                return Ok(()); // applied by a call whose future was dropped
            }
            *self.told() = decision.epoch; // what is being revoked for an earlier one is revoked before it begins
            // Its epoch words state its real step, whatever it promised, so that a member that has already begun this
            // step is detected.
            let step = decision.step.max(self.state().pace.begun() + 1);
            let begins = Decision { step, ..*decision };
            let begin = || self.followers().iter().try_for_each(|follower| follower.begin(&begins));
            self.meetings.between(&decision.mask, self.heartbeat.lease, begin)?;
            let mut state = self.state();
            let before = state.pace.current().mask;
            state.pace.applied(*decision);
            let (lost, why) = state.lost(self.rank, state.pace.removed());
            state.forget_doubts();
            let Decision { mask: members, epoch, .. } = *decision;
            let (entered, left) = (members.minus(&before), before.minus(&members));
            let (took, waiting) = state.account.begin(epoch);
            let change = Change { epoch, members, entered, left, waiting };
            state.change = Some(change);
            drop(state);
            self.end_waits(&lost, why); // followers that begin a membership forget whom they were told of before
            let unheld = Mask::all(MAX_WORLD).minus(&members);
            let experts = |follower: Arc<dyn Follower>| {
                Some(Experts {
                    lost: follower.experts(&left)?,
                    regained: follower.experts(&entered)?,
                    unheld: follower.experts(&unheld)?,
                })
            };
            let experts = self.followers().into_iter().filter_map(experts).collect();
            self.news.put(News::InEffect(*decision, took, change, experts));
        }
        self.tell();
        Ok(())
    }

    /// Ends waits for peers that do not belong to the membership of `epoch`, unless that is in effect already, or a later one
    /// is beginning. Does not wait while an earlier one is beginning, which itself may wait for these peers. On standby it is
    /// never in effect: this member may have joined again since it was left out, and what it follows is still in the former
    /// membership, which must be revoked before its peers can be connected again.
    pub(super) fn revoke(&self, peers: &Mask, epoch: u32, why: Cause) {
        let told = self.told();
        if *told <= epoch && (self.waits() || self.current().epoch < epoch) {
            self.end_waits(peers, why);
        }
    }

    /// `why` is the cause that is given for peers whose process has not ended.
    fn end_waits(&self, peers: &Mask, why: Cause) {
        let ended = self.sight.ended() & *peers;
        for follower in self.followers() {
            // A follower that cannot be told ends its waits by itself, at their deadline.
            drop(follower.revoke(&ended, Cause::Ended));
            drop(follower.revoke(&(*peers - ended), why));
        }
    }

    /// The peers to report to the group because they are silent, or have begun this epoch at another step: until
    /// [`Course::doubted`] is called.
    pub(super) fn doubts(&self) -> Option<(u32, Mask)> {
        let (current, former) = {
            let state = self.state();
            (state.pace.current(), state.given_up)
        };
        let epoch = current.epoch;
        let (mut given_up, mut suspicious) = (Mask::EMPTY, Mask::EMPTY);
        for follower in self.followers() {
            let Some(of) = follower.given_up().ok().filter(|of| of.epoch == epoch) else { continue };
            given_up = given_up.or(&of.peers);
            suspicious = suspicious.or(&of.silent);
            // Peers out of step have been given up as well, and are looked for once only.
            if !of.peers.minus(&of.silent).minus(&former).is_empty() {
                suspicious = suspicious.or(&follower.diverged(epoch, current.step).and(&of.peers));
            }
        }
        let mut state = self.state();
        if state.pace.current().epoch != epoch {
            return None; // another call has begun a membership meanwhile
        }
        state.suspicious = state.suspicious.or(&suspicious);
        let peers = state.suspicious.minus(&state.doubted);
        let former = std::mem::replace(&mut state.given_up, given_up);
        drop(state);
        if former != given_up {
            self.sight.has_given_up(&given_up);
        }
        (!peers.is_empty()).then_some((epoch, peers))
    }

    /// The notice that reports these peers, which is being sent.
    pub(super) fn doubted(&self, epoch: u32, peers: Mask) -> Notice {
        let mut state = self.state();
        if state.pace.current().epoch == epoch {
            state.doubted = state.doubted.or(&peers);
        }
        Notice::Doubt { epoch, peers }
    }

    /// The ranks that the followers have given up in the current epoch, and for each follower the experts that it
    /// cannot reach. Experts of `capacity`, the places that nobody has taken, are not counted.
    pub(super) fn given_up(&self, capacity: &Mask) -> (Mask, Vec<Vec<Range<u32>>>) {
        let Decision { mask: members, epoch, .. } = self.current();
        let mut all = Mask::EMPTY;
        let mut unreachable = |follower: Arc<dyn Follower>| {
            let given_up = follower.given_up().ok().filter(|of| of.epoch == epoch);
            let peers = given_up.map_or(Mask::EMPTY, |of| of.peers);
            all = all.or(&peers);
            follower.experts(&Mask::all(MAX_WORLD).minus(&members.minus(&peers)).minus(capacity))
        };
        let experts = self.followers().into_iter().filter_map(&mut unreachable).collect();
        (all, experts)
    }

    /// Makes this member break its promise.
    #[cfg(test)]
    pub(super) fn run_ahead(&self, steps: u64) {
        self.state().pace.run_ahead(steps);
    }

    fn told(&self) -> MutexGuard<'_, u32> {
        // A number is never half changed.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another member, perhaps this one, should lead the run: nobody needs to wait until the former leader counts as
    /// silent.
    fn elect(&self, former: &Host, resigned: bool) {
        if let Some(elector) = self.elector.get() {
            elector.elect(&former.address, resigned);
        }
    }
}

impl Attendant for Course {
    fn unanswered(&self, address: &str) {
        self.sight.waits_for_server(address);
    }

    fn joined(&self, joined: &Joined) {
        self.sight.has_joined();
        let mut state = self.state();
        state.roster.clear();
        state.seat(&joined.roster);
        state.pace = Pace::joined(self.rank, &joined.view, self.lead);
        state.forget_doubts();
        state.account = Account::default();
        state.change = None;
        let current = state.pace.current();
        drop(state);
        self.sight.works_with(&current);
        self.sight.has_given_up(&Mask::EMPTY);
    }

    fn seated(&self, members: &[Identity]) {
        self.state().seat(members);
    }

    fn asked(&self, ask: Ask, later: Later) -> Option<Notice> {
        match ask {
            Ask::Reach { change, peers, epoch, step } => {
                let (rank, followers, question) =
                    (self.rank, self.followers(), Question { change, peers, epoch, step });
                let (survey, patience) = (self.survey.clone(), self.heartbeat.lease / 8);
                in_background(move || {
                    if let Some(found) = survey.look(rank, &question, &followers, patience) {
                        let (missing, diverged) = (found.unreachable, Box::new(found.diverged));
                        later.tell(Notice::Reached { change, missing, diverged });
                    }
                });
                None
            }
            Ask::Meet { peers } => {
                let (meetings, followers, patience) = self.meeting();
                in_background(move || {
                    let met = |peer: &u32| meetings.meet(&followers, *peer, patience, &later).is_ok();
                    let peers = peers.iter().filter(met).collect();
                    later.tell(Notice::Met { peers });
                });
                None
            }
            Ask::Introduce { ticket, rank, blobs } => {
                let (meetings, followers, patience) = self.meeting();
                in_background(move || {
                    let result = meetings.welcome(&followers, rank, ticket, &blobs, patience, &later);
                    later.tell(Notice::Introduced { ticket, result });
                });
                None
            }
            Ask::Promise { change, lossy } => {
                let mut state = self.state();
                if state.account.propose(change) {
                    self.news.put(News::Progress(Progress::Proposed { change }, None));
                }
                state.news += 1;
                let idle = state.asked.is_none_or(|asked| asked.elapsed() > self.heartbeat.interval);
                let step = state.pace.promise(change, lossy || idle);
                drop(state);
                self.tell();
                Some(Notice::Promise { change, step })
            }
        }
    }

    fn settled(
        &self,
        change: u64,
        outcome: Result<Decision, BootstrapError>,
        retired: Mask,
        waiting: Standby,
    ) {
        let decided = outcome.as_ref().ok().copied();
        let (lost, why) = {
            let mut state = self.state();
            state.news += 1;
            let (before, newest) = (state.pace.current(), state.pace.newest());
            if let Err(error @ BootstrapError::Aborted { .. }) = &outcome {
                state.called_off = Some((state.news, error.clone()));
            }
            let removed = state.pace.settle(change, decided, retired);
            let is_new = state.pace.newest().epoch > newest.epoch;
            let is_same = is_new && state.pace.newest().mask == newest.mask;
            let again = is_same.then(|| state.given_up.or(&state.doubted).and(&newest.mask));
            let progress = state.account.settle(change, outcome, is_new, waiting);
            // For a member on standby, what the others decide is in effect at once.
            let current = state.pace.current();
            if current != before {
                state.account.begin(current.epoch);
                self.news.put(News::Elsewhere(current));
            }
            progress.into_iter().for_each(|progress| self.news.put(News::Progress(progress, again)));
            state.lost(self.rank, removed)
        };
        self.tell();
        if let (Some(decision), false) = (decided, lost.is_empty()) {
            let course = self.me.clone();
            in_background(move || {
                if let Some(course) = course.upgrade() {
                    course.revoke(&lost, decision.epoch, why);
                }
            });
        }
    }

    fn is_standby(&self) -> bool {
        self.waits()
    }

    fn ended(&self, host: &Host) {
        self.elect(host, false);
    }

    fn resigned(&self, host: &Host) {
        self.elect(host, true);
    }

    fn resumed(&self) {
        let mut state = self.state();
        state.news += 1;
        state.doubted = Mask::EMPTY;
    }

    fn news(&self) -> u64 {
        self.state().news
    }

    fn shown(&self, view: &View) {
        self.sight.is_shown(view);
    }

    fn reached(&self, host: Option<&Host>, address: &str, another: bool, after: Option<&Outage>) {
        self.sight.reached(host, address, another, after);
    }

    fn lost(&self, address: &str, outage: &Outage) {
        self.sight.lost(address, outage);
    }

    fn left(&self) {
        self.state().left = true;
        self.sight.left();
    }
}

/// Runs slow work on a thread of its own, so that the connection stays served. If no thread can be started, the server
/// gets no answer and treats this member as silent.
fn in_background(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().name("epwire-course".to_owned()).spawn(work);
}
