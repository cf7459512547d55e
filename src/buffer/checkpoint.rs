//! The ends of steps, and whether the results of a step may be used.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, OnceLock};

use super::ep_buffer::{EpBuffer, Inner};
use crate::error::Result;
use crate::names::names;
use crate::sys;

/// Whether all members have completed the operations that ended in a step, see [`Checkpoint::verdict`]. There will be no
/// other variants: a server that handles each of these needs no arm for `_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not known yet. Some member has not ended the step; or a lost member leaves it open until the next membership has
    /// begun everywhere.
    Pending,
    /// All have completed them: the results may be used.
    Clean,
    /// Some have not: an outcome was degraded somewhere, or an operation was given up.
    Faulted,
}

names!(Verdict, "a verdict: pending, clean or faulted" {
    Pending = "pending", Clean = "clean", Faulted = "faulted",
});

/// The end of a step for one buffer: what a server asks before it uses the results of the step. A complete outcome on
/// this rank does not say that the others have all their rows.
///
/// Cheap to clone; `Send` and `Sync`. Keeps its buffer alive.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
    epoch: u32,
    step: u64,
    found: Arc<OnceLock<Verdict>>,
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint of step {} in epoch {}", self.step, self.epoch)
    }
}

impl EpBuffer {
    /// Ends a step: tells all members whether everything that has ended on this buffer since the previous checkpoint
    /// was complete. An operation counts for the step in which its combine ends. `step` is the
    /// [number](crate::group::Step::number) that [`Group::step`](crate::Group::step) returned. All members end the same
    /// steps; steps without a checkpoint share the verdict of the next one. Waits for nobody.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the step is not after that of the previous checkpoint, or is before
    /// the membership; [`Error::State`](crate::Error::State) before the first membership, and on a GPU, where it is
    /// [`EpBuffer::enqueue_checkpoint`].
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        self.inner.host("checkpoint")?;
        // SAFETY: on the host there is no stream.
        unsafe { self.inner.checkpoint(step, std::ptr::null_mut()) }
    }

    /// Makes the step that the next checkpoint ends count as [faulted](Verdict::Faulted): for operations outside this
    /// buffer, such as collectives ([`Comm::take_fault`](crate::Comm::take_fault)). Callable from any thread, also
    /// while operations run.
    pub fn fault(&self) -> Result<()> {
        self.inner.ffi.checkpoint_fault()
    }
}

impl Inner {
    /// # Safety
    /// `stream` is one of the buffer's GPU, if it has one.
    pub(crate) unsafe fn checkpoint(self: &Arc<Self>, step: u64, stream: *mut c_void) -> Result<Checkpoint> {
        // SAFETY: by this function's contract.
        let epoch = unsafe { self.ffi.checkpoint(step, stream) }?;
        Ok(Checkpoint { inner: self.clone(), epoch, step, found: Arc::default() })
    }
}

impl Checkpoint {
    /// The step that it ends.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The epoch of its membership.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The verdict: the same for all members that continue together, though not at the same moment, and final once it
    /// is not [`Verdict::Pending`]. It is known when the last member has ended the step. If a member was lost before
    /// that, it is known when the others have begun the next membership; they judge by what they have completed
    /// themselves.
    ///
    /// Waits for nobody: ask again, for example in the next step. On a GPU it copies the peers' words, which takes
    /// about ten microseconds, or as long as copies of the program keep the copy engine busy; a copy that takes longer
    /// than 200 is read when you ask again.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) if the verdict is no longer known and nobody has asked for it before: 16
    /// steps or 3 memberships later, not counting steps that began after some member was given up; or if this rank is
    /// not a member of the membership that judges the step.
    pub fn verdict(&self) -> Result<Verdict> {
        if let Some(found) = self.found.get() {
            return Ok(*found);
        }
        let found = match self.inner.ffi.verdict(self.epoch, self.step)? {
            sys::EPW_VERDICT_CLEAN => Verdict::Clean,
            sys::EPW_VERDICT_FAULTED => Verdict::Faulted,
            _ => return Ok(Verdict::Pending),
        };
        Ok(*self.found.get_or_init(|| found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpConfig, Error, Mask};

    #[test]
    fn a_group_of_one_learns_its_verdicts_at_once() {
        fn send_sync<T: Send + Sync>(_: &T) {}
        let buffer = EpBuffer::unconnected(0, 1, EpConfig::new(4, 64, 4, 2)).unwrap();
        assert!(matches!(buffer.checkpoint(1), Err(Error::State(_))));
        buffer.set_active(&Mask::all(1), 1, 7).unwrap();
        assert!(matches!(buffer.checkpoint(6), Err(Error::Invalid(_))));
        let first = buffer.checkpoint(7).unwrap();
        send_sync(&first);
        assert_eq!((first.step(), first.epoch(), first.verdict().unwrap()), (7, 1, Verdict::Clean));
        let forgotten = buffer.checkpoint(8).unwrap();
        let last = buffer.checkpoint(24).unwrap();
        assert_eq!(first.verdict().unwrap(), Verdict::Clean, "what was found is kept");
        let error = forgotten.verdict().unwrap_err();
        assert!(matches!(&error, Error::Limit(f) if f.text.contains("before 16 steps")), "{error}");
        assert_eq!(last.verdict().unwrap(), Verdict::Clean);
    }
}
