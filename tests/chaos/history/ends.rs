//! The ends of steps: what each member learns of them, and that no two of those that go on together learn different things.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use epwire::{Checkpoint, EpBuffer, Error, Verdict};

use super::news::News;
use crate::step::Stop;

/// What a member said of a step: epoch, step, and whether it was clean.
pub(crate) type Judged = (u32, u64, bool);

/// Steps of a member that it has ended, until it knows the verdict.
#[derive(Default)]
pub(crate) struct Ends {
    /// And whether it may have completed them itself.
    pending: VecDeque<(Checkpoint, bool)>,
    found: Vec<Judged>,
    said: Option<Instant>,
}

impl Ends {
    pub(crate) fn end(&mut self, buffer: &EpBuffer, step: u64, whole: bool) -> Result<(), Stop> {
        self.pending.push_back((buffer.checkpoint(step)?, whole));
        Ok(())
    }

    /// Asks for those that are pending, oldest first. What is to be said, now and then.
    pub(crate) fn judge(&mut self, epoch: u32) -> Result<Option<News>, Stop> {
        while let Some((end, whole)) = self.pending.front() {
            let (of, step) = (end.epoch(), end.step());
            match end.verdict() {
                Ok(Verdict::Pending) => break,
                Ok(Verdict::Clean) if !whole => {
                    return Err(Stop::Wrong(format!("step {step}, which it has not completed, is clean")));
                }
                Ok(verdict) => self.found.push((of, step, verdict == Verdict::Clean)),
                // Epochs may follow so fast that some are gone before all have begun them.
                Err(Error::Limit(_)) if of + 1 < epoch => {}
                Err(error) => return Err(error.into()),
            }
            self.pending.pop_front();
        }
        if self.found.is_empty() || self.said.is_some_and(|said| said.elapsed() < Duration::from_millis(20)) {
            return Ok(None);
        }
        self.said = Some(Instant::now());
        Ok(Some(News::Judged(std::mem::take(&mut self.found))))
    }

    /// It was left out: what it did before is nothing to those that it comes back to.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// What all members said.
#[derive(Default)]
pub(crate) struct Verdicts {
    clean: BTreeSet<(u32, u64)>,
    /// And by which processes.
    faulted: BTreeMap<(u32, u64), Vec<u32>>,
    /// Processes that were left out of some membership.
    left: BTreeSet<u32>,
}

impl Verdicts {
    pub(crate) fn hear(&mut self, pid: u32, judged: Vec<Judged>) {
        for (epoch, step, clean) in judged {
            if clean {
                self.clean.insert((epoch, step));
            } else {
                self.faulted.entry((epoch, step)).or_default().push(pid);
            }
        }
    }

    pub(crate) fn left(&mut self, pid: u32) {
        self.left.insert(pid);
    }

    /// Who has completed a step alone may be lost with that; of those that are there all say the same. How many were clean, and how
    /// many were not.
    pub(crate) fn agree(&self, there: &BTreeSet<u32>) -> (usize, usize) {
        for (step, by) in &self.faulted {
            let stays = |pid: &&u32| there.contains(pid) && !self.left.contains(pid);
            let against = by.iter().find(stays).filter(|_| self.clean.contains(step));
            assert!(
                against.is_none(),
                "(epoch, step) {step:?} is clean, but faulted for process {against:?}"
            );
        }
        (self.clean.len(), self.faulted.len())
    }
}
