//! The memory for peers behind queues, in plans.

use crate::error::{Error, Failure, Result};
use crate::{env, settings, sys};

/// What the environment says of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueMemory {
    /// The least entries of each queue; 0: as many as operations need.
    pub(crate) depth: u32,
    /// Whether peers write into a window on a GPU, so that there is no inbox.
    pub(crate) no_inbox: bool,
}

impl QueueMemory {
    pub(crate) fn read() -> Result<Self> {
        let read = || {
            let rings = settings::asked_rings()?;
            Ok(Self { depth: env::queue_depth()?, no_inbox: rings == sys::EPW_RINGS_GPU })
        };
        let failure = |text| Failure { operation: "plan".into(), rank: None, peer: None, text };
        read().map_err(|text| Error::Invalid(failure(text)))
    }

    /// The bytes of an inbox, if there is one.
    pub(crate) fn inbox(self, bytes: u64) -> u64 {
        if self.no_inbox { 0 } else { bytes }
    }
}

/// The lines of a plan about peers behind queues; none if there are no queues.
pub(crate) fn write_queues(
    f: &mut std::fmt::Formatter<'_>,
    images: u64,
    queues: u64,
    inbox: u64,
) -> std::fmt::Result {
    if [images, queues, inbox] == [0; 3] {
        return Ok(());
    }
    write!(f, "\nmemory for peers behind queues, if all others are such peers")?;
    for (what, bytes) in [
        ("images, all allocated with the first of them", images),
        ("their queues", queues),
        ("what they write", inbox),
    ] {
        if bytes > 0 {
            write!(f, "\n  {:>10.1} MiB  {what}", bytes as f64 / f64::from(1 << 20))?;
        }
    }
    Ok(())
}
