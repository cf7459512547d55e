//! Steps: what a serving loop runs between two calls of [`Group::step`], the only places where the membership changes.

use std::sync::Weak;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use super::change::{Progress, Step};
use super::follower::Follower;
use super::member::Group;
use crate::cause::Cause;
use crate::error::Error;
use crate::mask::Mask;
use crate::names::names;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::driver::block_on;
use crate::rendezvous::pace::Next;
use crate::rendezvous::wire::{Decision, Notice, Request};
use crate::spawn_blocking::spawn_blocking;

/// What a serving loop should do after an error of [`Group::step`], from [`Group::recover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recovery {
    /// Call [`Group::step`] again.
    StepAgain,
    /// This rank has been retired, and has run its last step: call [`Group::leave`].
    Leave,
}

names!(Recovery, "a recovery: step again or leave" { StepAgain = "step again", Leave = "leave" });

/// Pause between two attempts to take a place that another process has.
const PAUSE: Duration = Duration::from_millis(100);

impl Group {
    /// Begins the next step: the one call that a serving loop makes between two steps. All members run the same steps,
    /// and call this with no operation in flight: while one is, a step with which a membership begins is refused, and
    /// one without a change is not.
    ///
    /// Returns at once while no change is due. When a member has died or fallen silent, or another one waits to be
    /// admitted, the group agrees in the background on the step with which the next membership begins. The call for
    /// that step puts it into effect for all buffers that were created with this group, on GPUs after what was enqueued
    /// before; until then operations continue under the current membership, without the lost ranks. After this member
    /// has promised the group its last step, and until the outcome of the change is known, the call waits, within the
    /// deadline of the group. Dropping the future begins no step, and the next call continues where this one stopped.
    ///
    /// On standby it waits to be admitted: its first step is the first one of its membership.
    ///
    /// # Errors
    /// [`BootstrapError::Evicted`] if the others continue without this member; [`BootstrapError::Retired`] once it has
    /// ended its last step after [`Group::retire`]; [`BootstrapError::Timeout`], [`BootstrapError::ServerLost`] and
    /// [`BootstrapError::NoQuorum`] if the outcome of a change, or for a member on standby its admission, does not
    /// arrive; on standby [`BootstrapError::Aborted`] if the change that would admit it is [called
    /// off](Group::abort_change); the errors of beginning a membership, for instance
    /// [`Error::State`](crate::Error::State) if an operation is still in flight. In all these cases the step has not
    /// begun, and the call can be repeated.
    pub async fn step(&self) -> Result<Step, Error> {
        const OP: &str = "begin a step";
        let Self { inner, deadline } = self;
        let began = Instant::now();
        if let Some((epoch, peers)) = inner.course.doubts() {
            inner.client.tell(|| inner.course.doubted(epoch, peers)).await;
        }
        loop {
            let (next, change, seen) = inner.course.next();
            match next {
                Next::Begin { step } => return Ok(Step { number: step, change }),
                Next::Apply { decision } => self.apply(decision).await?,
                Next::Wait => {
                    let waits = inner.course.waits();
                    if waits {
                        inner.client.tell(|| Notice::Ready {}).await;
                    }
                    inner.client.news(OP, seen, began, *deadline).await?;
                    if let Some(error) = inner.course.called_off(seen).filter(|_| waits) {
                        return Err(error.into());
                    }
                }
                Next::Retired { epoch } => {
                    return Err(
                        BootstrapError::Retired { op: OP.to_owned(), rank: self.rank(), epoch }.into()
                    );
                }
                Next::Evicted { epoch } => {
                    return Err(
                        BootstrapError::Evicted { op: OP.to_owned(), rank: self.rank(), epoch }.into()
                    );
                }
            }
        }
    }

    /// [`Group::step`] for a plain thread.
    pub fn step_blocking(&self) -> Result<Step, Error> {
        block_on("begin a step", self.step())
    }

    /// Handles an error of [`Group::step`] for a serving loop, and says whether to call `step` again. If the others
    /// continue without this member, it asks to be admitted again ([`Group::rejoin`]); if another process has its rank,
    /// it waits a tenth of a second. A decision that was still open may be made by then. Waits no longer than the
    /// deadline of the group.
    ///
    /// # Errors
    /// The given error, or that of the attempt to be admitted again, if calling `step` again cannot help: for instance
    /// if no server of the run can come back.
    pub async fn recover(&self, error: Error) -> Result<Recovery, Error> {
        let Error::Bootstrap(error) = error else { return Err(error) };
        let error = match *error {
            BootstrapError::Evicted { .. } => match self.rejoin().await {
                Ok(()) => return Ok(Recovery::StepAgain),
                Err(error) => error,
            },
            error => error,
        };
        match error {
            BootstrapError::Retired { .. } => return Ok(Recovery::Leave),
            BootstrapError::Fenced { .. } => {
                let pause = || {
                    std::thread::sleep(PAUSE);
                    Ok(())
                };
                spawn_blocking("recover", self.rank(), pause).await?;
            }
            BootstrapError::Timeout { .. }
            | BootstrapError::ServerLost { .. }
            | BootstrapError::NoQuorum { .. }
            | BootstrapError::Aborted { .. }
                if self.membership().outage.is_none_or(|outage| !outage.is_final) => {}
            error => return Err(error.into()),
        }
        Ok(Recovery::StepAgain)
    }

    /// [`Group::recover`] for a plain thread.
    pub fn recover_blocking(&self, error: Error) -> Result<Recovery, Error> {
        block_on("recover", self.recover(error))
    }

    /// Reports the progress of changes of the membership from now on, in order: for logs, and for programs that want to
    /// know why a change was abandoned. A report may arrive a moment after the call that caused it has returned.
    /// Following them is optional. A receiver that lags 64 reports behind loses the oldest.
    pub fn changes(&self) -> broadcast::Receiver<Progress> {
        self.inner.course.changes()
    }

    /// Reports that the process of a member has ended, for launchers and operators who know it although no kernel has
    /// told the group, for instance because its host has lost power. The member is removed, and a replacement may take
    /// its rank; windows that the former process still has mapped are nevertheless refused to the replacement
    /// ([`Error::Fenced`](crate::Error::Fenced)). `member` is the member's [id](Group::member_id), from the
    /// [roster](Group::roster), which every member keeps up to date, or from a log. If the rank has another member by
    /// now, nothing happens, and that is not an error. Any member may report. Returns once the group knows of the
    /// death, even if another member has to be elected first to serve the run; the change that removes the member
    /// follows by itself.
    ///
    /// Errors: [`BootstrapError::Invalid`] for a rank outside the world; those that all operations of a group have,
    /// within its deadline. The group may know of the death nevertheless, and reporting it again does no harm.
    pub async fn report_death(&self, rank: u32, member: u128) -> Result<(), BootstrapError> {
        const OP: &str = "report a death";
        self.check_rank(OP, rank)?;
        self.inner.client.call(OP, Request::ReportDeath { rank, member }, self.deadline).await.map(|_| ())
    }

    /// [`Group::report_death`] for a plain thread.
    pub fn report_death_blocking(&self, rank: u32, member: u128) -> Result<(), BootstrapError> {
        block_on("report a death", self.report_death(rank, member))
    }

    /// Removes a member from the group, this one or another, and returns when that is decided. All take part until the
    /// step with which the next membership begins, so no operation misses its rows; then its [`Group::step`] gives
    /// [`BootstrapError::Retired`]. It may then leave, or [rejoin](Group::rejoin). A rank that is no longer in the
    /// group is not an error. Ranks that join or leave at the same time do so with the same step.
    ///
    /// Errors: [`BootstrapError::OutOfOrder`] if nobody would be left; [`BootstrapError::Aborted`] if the change is
    /// [called off](Group::abort_change); [`BootstrapError::Timeout`] if it is not decided within the deadline of the
    /// group, for instance because a member begins no steps: it may still be decided later.
    pub async fn retire(&self, rank: u32) -> Result<(), BootstrapError> {
        const OP: &str = "retire a rank";
        self.check_rank(OP, rank)?;
        self.inner.client.call(OP, Request::Retire { rank }, self.deadline).await.map(|_| ())
    }

    /// [`Group::retire`] for a plain thread.
    pub fn retire_blocking(&self, rank: u32) -> Result<(), BootstrapError> {
        block_on("retire a rank", self.retire(rank))
    }

    /// Calls off a change of the membership that is under way. [`Group::changes`] reports its number. Any member may
    /// call this. The membership stays as it is, members continue with their steps, and what asked for the change is
    /// called off with it: calls of [`Group::retire`], and of newcomers that wait in [`Group::step`] to be admitted,
    /// end with [`BootstrapError::Aborted`], and may be repeated. What is known of deaths and suspects
    /// remains, so the group tries again a lease later.
    ///
    /// Errors: [`BootstrapError::OutOfOrder`] if there is no such change, or if it is already decided: then it takes
    /// effect.
    pub async fn abort_change(&self, change: u64) -> Result<(), BootstrapError> {
        self.inner.client.call("abort a change", Request::Abort { change }, self.deadline).await.map(|_| ())
    }

    /// [`Group::abort_change`] for a plain thread.
    pub fn abort_change_blocking(&self, change: u64) -> Result<(), BootstrapError> {
        block_on("abort a change", self.abort_change(change))
    }

    /// Ends waits for these ranks, as [`EpBuffer::revoke`](crate::EpBuffer::revoke) does, in all buffers and
    /// communicators that were created with this group: what one of them has found out
    /// ([`Outcome::suspects`](crate::Outcome::suspects)) costs the others no deadline. The group has to be told nothing:
    /// it finds out by itself who continues. This rank itself, which suspects itself if its kernels were kept off its
    /// GPU, is left out. Callable from any thread, and waits for nothing.
    ///
    /// Errors: [`Error::Invalid`](crate::Error::Invalid) for ranks that a buffer or communicator does not have.
    pub fn revoke(&self, ranks: &Mask) -> Result<(), Error> {
        let others = ranks.without(self.rank());
        let told = self
            .inner
            .course
            .followers()
            .into_iter()
            .map(|follower| follower.revoke(&others, Cause::Revoked));
        told.fold(Ok(()), Result::and) // all are told, whatever the first says
    }

    /// From now on this follower has the membership of the group.
    pub(crate) fn follow(&self, follower: Weak<dyn Follower>) {
        self.inner.course.follow(follower);
    }

    fn check_rank(&self, op: &str, rank: u32) -> Result<(), BootstrapError> {
        let world = self.world();
        if rank < world {
            return Ok(());
        }
        let (op, field, reason) = (op.to_owned(), "rank".to_owned(), format!("ranks are below {world}"));
        Err(BootstrapError::Invalid { op, field, value: rank.to_string(), reason })
    }

    async fn apply(&self, decision: Decision) -> Result<(), Error> {
        let course = self.inner.course.clone();
        spawn_blocking("begin a step", self.rank(), move || course.apply(&decision)).await
    }
}
