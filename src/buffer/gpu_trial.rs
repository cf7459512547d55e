//! Measures the path between two ranks on GPUs for the [doctor](crate::doctor): through a buffer's window, before there
//! is a membership.

use std::time::{Duration, Instant};

use super::ep_buffer::EpBuffer;
use super::trial::{Connected, meet};
use crate::config::{Device, EpConfig, Path};
use crate::error::Result;
use crate::group::Group;
use crate::peers::Setting;

/// A buffer that no operation uses.
#[derive(Debug)]
pub(crate) struct GpuTrial(EpBuffer);

const HIDDEN: u32 = 7168;
/// For all ranks together, so that windows stay small.
const TOKENS: u32 = 2048;
const PROBES: usize = 20;

impl GpuTrial {
    /// A trial on the GPU of this ordinal, by the paths that a buffer would take. All ranks of the group call it.
    pub(crate) fn by_chosen_paths(
        group: &Group,
        ordinal: u32,
        deadline: Duration,
    ) -> Result<(Self, Connected)> {
        let (rank, world) = (group.rank(), group.world());
        let tokens = (TOKENS / world).clamp(16, 512);
        let config = EpConfig {
            lanes: 1,
            sms: 1, // its kernels never run
            device: Device::Cuda(ordinal),
            deadline,
            ..EpConfig::new(tokens, HIDDEN, world, 1)
        };
        let made = EpBuffer::made(rank, world, config, Setting::of(group));
        let (buffer, connected) = meet(group, made, EpBuffer::export, EpBuffer::connect_blocking)?;
        Ok((Self(buffer), connected))
    }

    pub(crate) fn path(&self, peer: u32) -> Path {
        self.0.path(peer)
    }

    /// Half of the median time of a probe to the peer's library and back and, if the window is mapped, the bytes per
    /// nanosecond that this GPU copies into it.
    pub(crate) fn measure(&self, peer: u32, timeout: Duration) -> Result<(Duration, Option<f64>)> {
        let mut turns = Vec::with_capacity(PROBES);
        for _ in 0..PROBES {
            let began = Instant::now();
            self.0.probe_blocking(peer, timeout)?;
            turns.push(began.elapsed());
        }
        turns.sort_unstable();
        if let Path::Queue(_) = self.path(peer) {
            return Ok((turns[PROBES / 2] / 2, None));
        }
        let (bytes, took) = self.0.inner.ffi.time_copies(peer, timeout)?;
        Ok((turns[PROBES / 2] / 2, Some(bytes as f64 / took.as_nanos().max(1) as f64)))
    }
}
