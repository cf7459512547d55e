//! Where a buffer or communicator is used, which decides which paths lead to its peers.

use std::sync::Arc;

use super::fabric::{self, WireKey};
use crate::config::{Device, Paths};
use crate::env;
use crate::error::{Error, Failure, Result};
use crate::ffi::Fabric;
use crate::group::Group;

/// What a group knows about where its buffers are used.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    key: WireKey,
    several_hosts: bool,
}

/// Leaves out the key.
impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("several_hosts", &self.several_hosts).finish_non_exhaustive()
    }
}

impl Setting {
    pub(crate) fn of(group: &Group) -> Self {
        Self { key: group.wire_key(), several_hosts: group.spans_hosts() }
    }

    /// The setting of a program without a group.
    pub(crate) fn alone(rank: u32) -> Result<Self> {
        Ok(Self { key: fabric::key_without_group(rank)?, several_hosts: false })
    }

    /// The fabric for its queues, if these paths permit any.
    pub(crate) fn fabric(&self, rank: u32, paths: Paths, device: Device) -> Result<Option<Arc<Fabric>>> {
        paths.queue.then(|| fabric::of(rank, self.key, device)).transpose()
    }

    /// The paths by which peers may be reached, if the program permits these.
    pub(crate) fn paths(&self, rank: u32, mut permitted: Paths) -> Result<Paths> {
        permitted.queue |= self.several_hosts && permitted == Paths::default();
        let Some(names) = env::value(env::PATHS) else { return Ok(permitted) };
        let wrong = |text: crate::names::ParseNameError| {
            Error::Invalid(Failure::new("create", rank, format!("{}: {text}", env::PATHS)))
        };
        names.parse().map_err(wrong)
    }
}
