//! Where a buffer or communicator is used, which decides which paths lead to its peers.

use std::sync::Arc;

use super::fabric::{self, WireKey};
use crate::config::{Device, Paths};
use crate::env;
use crate::error::{Error, Failure, Result};
use crate::ffi::Fabric;
use crate::group::Group;
use crate::mask::Mask;

/// What a group knows about where its buffers are used.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    key: WireKey,
    several_hosts: bool,
    /// The ranks on other hosts than this one, as far as they are known.
    elsewhere: Mask,
}

/// Leaves out the key.
impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("several_hosts", &self.several_hosts).finish_non_exhaustive()
    }
}

impl Setting {
    pub(crate) fn of(group: &Group) -> Self {
        let elsewhere = group.elsewhere();
        Self { key: group.wire_key(), several_hosts: !elsewhere.is_empty(), elsewhere }
    }

    /// That of a subset, whose ranks on other hosts are these.
    pub(crate) fn of_subset(self, renumbered: impl FnOnce(&Mask) -> Mask) -> Self {
        Self { elsewhere: renumbered(&self.elsewhere), ..self }
    }

    /// The setting of a program without a group.
    pub(crate) fn alone(rank: u32) -> Result<Self> {
        Ok(Self { key: fabric::key_without_group(rank)?, several_hosts: false, elsewhere: Mask::EMPTY })
    }

    /// The fabric for its queues, if these paths permit any.
    pub(crate) fn fabric(&self, rank: u32, paths: Paths, device: Device) -> Result<Option<Arc<Fabric>>> {
        paths.queue.then(|| fabric::of(rank, self.key, device)).transpose()
    }

    /// [`Setting::paths`] of a communicator. On a GPU, where queues change how it reaches all peers, a subset of ranks
    /// of one host does without.
    pub(crate) fn comm_paths(&self, rank: u32, permitted: Paths, device: Device) -> Result<Paths> {
        let several_hosts = match device {
            Device::Host => self.several_hosts,
            Device::Cuda(_) => !self.elsewhere.is_empty(),
        };
        Self { several_hosts, ..*self }.paths(rank, permitted)
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
