//! Inputs that the receiving half of an operation still reads.

use super::stream::StreamRef;
use super::view::{Guard, TensorRef};

/// The guards of an operation's inputs, from its first half until the other one is enqueued or given up. `Send`, which views
/// are not.
///
/// Each records after the first half as well what has been read so far. So leaking or dropping this does not endanger memory:
/// without it no receiving half is enqueued, and giving the operation up reads no input.
#[derive(Debug)]
pub(super) struct Held<'a> {
    guards: Vec<Guard<'a>>,
    /// The stream that guarded views were made for, which is that of the first half.
    stream: Option<usize>,
}

impl<'a> Held<'a> {
    /// Of the views of a half that has been enqueued on `stream`.
    pub(super) fn new(views: impl Iterator<Item = TensorRef<'a>>, stream: &StreamRef<'_>) -> Self {
        let mut held = Self { guards: Vec::new(), stream: None };
        for view in views {
            held.stream = held.stream.or(view.origin.map(|_| stream.raw.addr()));
            held.guards.push(view.into_guard());
        }
        #[cfg(feature = "cudarc")]
        held.guards.iter().flatten().for_each(super::guard::Guard::record);
        held
    }

    /// Why the receiving half cannot be enqueued on `stream`: guards could not tell what it reads there.
    pub(super) fn admit(&self, stream: &StreamRef<'_>) -> Result<(), String> {
        match self.stream {
            Some(first) if first != stream.raw.addr() => {
                Err("the inputs of the first half were viewed for its stream: enqueue this half there, too"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// The receiving half has been enqueued: each guard records again.
    pub(super) fn received(&mut self) {
        self.guards.clear();
    }
}

impl Drop for Held<'_> {
    /// Another record could hide the first half: on the per-thread default stream, it would be one of the dropping thread's.
    fn drop(&mut self) {
        #[cfg(feature = "cudarc")]
        self.guards.iter_mut().flatten().for_each(super::guard::Guard::give_up);
    }
}
