//! The ends of steps, and whether what was computed in them may be used.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use super::ep_buffer::{EpBuffer, Inner};
use crate::error::Result;
use crate::sys;

/// Whether all members have completed what ended in a step, see [`Checkpoint::verdict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not known yet. Some member has not ended the step; or one that was lost leaves it open until the next membership has begun
    /// everywhere.
    Pending,
    /// All have: what was computed may be used.
    Clean,
    /// Some have not: an outcome was degraded somewhere, or an operation was given up.
    Faulted,
}

/// The end of a step for one buffer: what a server asks before it uses what was computed in the step. A complete outcome here
/// does not say that the others have all their rows.
///
/// Cheap to clone; `Send` and `Sync`. Keeps its buffer alive.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
    epoch: u32,
    step: u64,
    found: Arc<OnceLock<Verdict>>,
}

impl EpBuffer {
    /// Ends a step: tells all members whether everything that has ended on this buffer since the checkpoint before was complete.
    /// An operation counts for the step in which its combine ends. `step` is the [number](crate::group::Step::number) that
    /// [`Group::step`](crate::Group::step) gave. All members end the same steps; those that they leave out share the verdict of
    /// the next. Waits for nobody.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the step is not after that of the checkpoint before, or before the
    /// membership; [`Error::State`](crate::Error::State) before the first membership, and on a GPU, where it is
    /// [`EpBuffer::enqueue_checkpoint`].
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        self.inner.host("checkpoint")?;
        // SAFETY: on the host there is no stream.
        unsafe { self.inner.checkpoint(step, std::ptr::null_mut()) }
    }

    /// Counts the step that the next checkpoint ends as [faulted](Verdict::Faulted): for what a program does beside this buffer, such as
    /// collectives ([`Comm::take_fault`](crate::Comm::take_fault)). Any thread, also while operations run.
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
    /// The step that it has ended.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The membership that it belongs to.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The verdict: the same for all members that go on together, though not at the same moment, and never another one once it is
    /// not [`Verdict::Pending`]. It comes when the last of them has ended the step; where one was lost before, when those that
    /// are left have begun the next membership, and they judge by what they have completed themselves.
    ///
    /// Waits for nobody: ask again, in the next step say. On a GPU it copies the peers' words, which takes some ten microseconds, or
    /// as long as copies of the program keep the copy engine busy; what takes longer than 200 is looked at when you ask again.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) if it is not known any more, and nobody has asked for it before: 16 steps or
    /// 3 memberships later, not counting steps that began after some member was given up; or because this rank does not belong
    /// to the membership that judges the step.
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
