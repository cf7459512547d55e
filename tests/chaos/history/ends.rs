//! The ends of steps: the verdicts that each member learns, and that no two members that continue together learn
//! different ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use epwire::{Checkpoint, EpBuffer, Error, Verdict};

use super::news::News;
use crate::step::Stop;

/// A member's verdict of a step: epoch, step, and whether it was clean.
pub(crate) type Judged = (u32, u64, bool);

/// The steps that a member has ended, until it knows the verdict.
#[derive(Default)]
pub(crate) struct Ends {
    /// The flag says whether it may have completed the step itself.
    pending: VecDeque<(Checkpoint, bool)>,
    found: Vec<Judged>,
    said: Option<Instant>,
}

impl Ends {
    pub(crate) fn end(&mut self, buffer: &EpBuffer, step: u64, whole: bool) -> Result<(), Stop> {
        self.pending.push_back((buffer.checkpoint(step)?, whole));
        Ok(())
    }

    /// Asks for the verdicts of pending steps, oldest first. Sometimes returns something to report.
    pub(crate) fn judge(&mut self, epoch: u32) -> Result<Option<News>, Stop> {
        while let Some((end, whole)) = self.pending.front() {
            let (of, step) = (end.epoch(), end.step());
            match end.verdict() {
                Ok(Verdict::Pending) => break,
                Ok(Verdict::Clean) if !whole => {
                    return Err(Stop::Wrong(format!("step {step}, which it has not completed, is clean")));
                }
                Ok(verdict) => self.found.push((of, step, verdict == Verdict::Clean)),
                // Epochs may follow so quickly that some are forgotten before all ranks have begun them.
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

    /// It was left out: its former steps mean nothing to the members to which it returns.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The verdicts of all members.
#[derive(Default)]
pub(crate) struct Verdicts {
    clean: BTreeSet<(u32, u64)>,
    /// Steps that processes judged as faulted.
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

    /// If a single rank has completed a step, the knowledge of that may be lost with it; all running ranks must agree.
    /// Returns how many steps were clean, and how many were not.
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
