//! Steps: what a serving loop runs between two calls of [`Group::step`], and where the membership changes.

use std::sync::Weak;

use super::change::{Change, Step};
use super::course::Follower;
use super::member::Group;
use crate::aside::aside;
use crate::error::Result;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::driver::block_on;
use crate::rendezvous::pace::Next;
use crate::rendezvous::wire::{Decision, Notice};

impl Group {
    /// Begins the next step: the one call that a serving loop makes between two steps. All members run the same steps,
    /// and call this with no operation in flight.
    ///
    /// Answers at once while nothing is due. When a member has died or fallen silent, or another one waits to be admitted,
    /// the group agrees in the background on the step with which the next membership begins. That call
    /// puts it into effect for all buffers that were created with this group, on GPUs after what was enqueued before; until
    /// then operations go on under the present one, without the ranks that are lost. Between a member's promise to go no
    /// further and the outcome this waits, within the deadline of the group.
    ///
    /// On standby it waits to be admitted: its first step is the first one of its membership.
    ///
    /// # Errors
    /// [`BootstrapError::Evicted`] if the others go on without this member; [`BootstrapError::Timeout`] and
    /// [`BootstrapError::ServerLost`] if the outcome of a change, or on standby admission, does not come; what beginning a membership
    /// gives, [`Error::State`](crate::Error::State) where an operation is still in flight. The step has not begun then: the call can be made
    /// again.
    pub async fn step(&self) -> Result<Step> {
        const OP: &str = "begin a step";
        let Self { inner, deadline } = self;
        if let Some(doubts) = inner.course.doubts() {
            inner.client.tell(doubts).await;
        }
        let mut change = None;
        loop {
            let (next, seen) = inner.course.next();
            match next {
                Next::Begin { step } => return Ok(Step { number: step, change }),
                Next::Apply { decision } => change = Some(self.apply(decision).await?),
                Next::Wait => {
                    if inner.course.is_standby() {
                        inner.client.tell(Notice::Ready {}).await;
                    }
                    inner.client.news(OP, seen, *deadline).await?;
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
    pub fn step_blocking(&self) -> Result<Step> {
        block_on("begin a step", self.step())
    }

    /// The membership of this follower is the group's from now on.
    pub(crate) fn follow(&self, follower: Weak<dyn Follower>) {
        self.inner.course.follow(follower);
    }

    async fn apply(&self, decision: Decision) -> Result<Change> {
        let before = self.active().mask;
        let followers = self.inner.course.followers();
        let begin = move || followers.iter().try_for_each(|follower| follower.begin(&decision));
        aside("begin a step", self.rank(), begin).await?;
        self.inner.course.applied(decision);
        #[cfg(feature = "tracing")]
        tracing::info!(rank = self.rank(), epoch = decision.epoch, step = decision.step, mask = %decision.mask, "membership changed");
        let Decision { mask: members, epoch, .. } = decision;
        Ok(Change { epoch, members, entered: members.minus(&before), left: before.minus(&members) })
    }
}
