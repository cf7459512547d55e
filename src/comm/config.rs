//! The configuration of a communicator, and the sizes that follow from it.

use std::fmt;
use std::time::Duration;

use crate::config::{Device, Paths, QueueMemory, write_queues};
use crate::error::Result;
use crate::names::setters;
use crate::{ffi, sys};

/// The configuration of a communicator. All fields but `paths` and the ordinal in `device` are equal on all ranks. On
/// GPUs `paths.queue` is equal too.
///
/// ```
/// use epwire::comm::CommConfig;
///
/// let config = CommConfig::default().heap_bytes(64 << 20);
/// let plan = config.plan(8)?; // of 8 ranks
/// assert!(plan.window_bytes > 64 << 20 && plan.window_bytes < 96 << 20);
/// println!("{plan}");
/// # Ok::<(), epwire::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[non_exhaustive]
pub struct CommConfig {
    /// Whose memory is sent and received, and what moves the bytes. The host by default; with a GPU the calls are those
    /// of [`Comm::enqueue`](super::Comm::enqueue).
    pub device: Device,
    /// On a GPU: the most thread blocks of a kernel, 1 to 64, the same on all ranks; 0, the default: 32, or 8 where
    /// queues are permitted. This communicator reserves that many SMs until it is dropped, as with
    /// [`EpConfig::sms`](crate::EpConfig::sms): create it before a buffer that takes all free SMs.
    pub sms: u32,
    /// Slots of the ring from one rank to another (on a GPU: for each thread block), a power of two from 2 to 256. 0, the
    /// default: 8.
    pub slots: u32,
    /// Bytes that a slot holds, a multiple of 64 from 64 to 16,777,216. 0, the default: so many that the rings of all
    /// ranks take 16 MiB together (on a GPU 64 MiB), but at least 1 KiB and at most 32 KiB. If this or `slots` is set on
    /// GPUs, operations of medium size go through rings, and the window takes 56 MiB less.
    pub slot_bytes: u32,
    /// Bytes for [`Comm::alloc`](super::Comm::alloc) or, on a GPU, [`Comm::alloc_gpu`](super::Comm::alloc_gpu), up to
    /// 16 TiB, the same on all ranks. 0 by default.
    pub heap_bytes: u64,
    /// On a GPU: if the receiving buffer has at least so many bytes, copy engines instead of SMs move an all-gather or
    /// all-to-all of memory that peers read; see [copy engines](super#copy-engines). The same on all ranks;
    /// [`COPY_ENGINES_FROM`](Self::COPY_ENGINES_FROM) is a good choice. 0, the default: kernels move everything.
    pub copy_engines_from: u64,
    /// How peers may be reached. On GPUs `paths.queue` is the same on all ranks: where it is set, all operations, those
    /// with mapped peers too, take the slower way through rings. By default it is set if members are on several hosts;
    /// for a [subset](super::Comm::subset_with) on GPUs, if the members of the subset are.
    pub paths: Paths,
    /// A peer that shows no sign of life for this long is given up: 1 ms to 1 day. 10 s by default.
    pub deadline: Duration,
}

impl Default for CommConfig {
    fn default() -> Self {
        let deadline = Duration::from_secs(10);
        Self {
            device: Device::Host,
            sms: 0,
            slots: 0,
            slot_bytes: 0,
            heap_bytes: 0,
            copy_engines_from: 0,
            paths: Paths::default(),
            deadline,
        }
    }
}

setters!(CommConfig {
    device: Device,
    sms: u32,
    slots: u32,
    slot_bytes: u32,
    heap_bytes: u64,
    copy_engines_from: u64,
    paths: Paths,
    deadline: Duration
});

/// One line: `on host, paths thread,shm,vmm,ipc, deadline 10s`, and the sizes that are given.
impl fmt::Display for CommConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, sms, slots, slot_bytes, heap_bytes, copy_engines_from, paths, deadline } = self;
        write!(f, "on {device}, paths {paths}, deadline {deadline:?}")?;
        for (count, what) in [(*sms, "SMs"), (*slots, "slots to a ring"), (*slot_bytes, "bytes to a slot")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if *heap_bytes > 0 {
            write!(f, ", a heap of {heap_bytes} bytes")?;
        }
        match copy_engines_from {
            0 => Ok(()),
            bytes => write!(f, ", copy engines from {bytes} bytes on"),
        }
    }
}

impl CommConfig {
    /// For [`copy_engines_from`](Self::copy_engines_from): smaller operations are faster by kernels.
    pub const COPY_ENGINES_FROM: u64 = sys::EPW_COPY_ENGINES_FROM as u64;

    /// Checks the configuration for `ranks` ranks and computes the sizes. Errors name the field and the limit. Queues
    /// have at least the depth that `EPWIRE_QUEUE_DEPTH` asks for; a value of it or of `EPWIRE_RINGS` that nobody accepts
    /// is an error too.
    pub fn plan(&self, ranks: u32) -> Result<CommPlan> {
        self.plan_with(ranks, QueueMemory::read()?)
    }

    fn plan_with(&self, ranks: u32, queues: QueueMemory) -> Result<CommPlan> {
        let config = sys::epw_comm_config { queue_depth: queues.depth, ..self.to_c(0, ranks) };
        let sizes = ffi::comm_plan(&config)?;
        Ok(CommPlan {
            ranks,
            slots: sizes.slots,
            slot_bytes: sizes.slot_bytes,
            sms: sizes.sms,
            control_bytes: sizes.control_bytes,
            ring_bytes: sizes.ring_bytes,
            heap_bytes: sizes.heap_bytes,
            window_bytes: sizes.window_bytes,
            image_bytes: sizes.image_bytes,
            queue_bytes: sizes.queue_bytes,
            inbox_bytes: queues.inbox(sizes.inbox_bytes),
        })
    }

    pub(super) fn to_c(&self, rank: u32, ranks: u32) -> sys::epw_comm_config {
        sys::epw_comm_config {
            rank,
            ranks,
            device: self.device.to_c(),
            sms: self.sms,
            slots: self.slots,
            slot_bytes: self.slot_bytes,
            paths: self.paths.to_c(),
            heap_bytes: self.heap_bytes,
            copy_engines_from: self.copy_engines_from,
            deadline_ns: self.deadline.as_nanos().try_into().unwrap_or(u64::MAX),
            ..ffi::empty_comm_config()
        }
    }

    /// The fields that must be equal on all ranks, by name: the ranks compare them before they connect.
    pub(super) fn fields(&self) -> Vec<(String, String)> {
        let Self { device, sms, slots, slot_bytes, heap_bytes, copy_engines_from, deadline, paths } = self;
        // On GPUs all ranks move bytes in the same way, which depends on this.
        let queues = paths.queue && *device != Device::Host;
        [
            ("device", device.kind().to_owned()),
            ("paths.queue", queues.to_string()),
            ("sms", sms.to_string()),
            ("slots", slots.to_string()),
            ("slot_bytes", slot_bytes.to_string()),
            ("heap_bytes", heap_bytes.to_string()),
            ("copy_engines_from", copy_engines_from.to_string()),
            ("deadline", format!("{deadline:?}")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// Sizes that follow from a [`CommConfig`], computed without allocating anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CommPlan {
    /// Ranks.
    pub ranks: u32,
    /// Slots of a ring.
    pub slots: u32,
    /// Bytes that a slot carries.
    pub slot_bytes: u32,
    /// On a GPU: the most thread blocks of a kernel, each of which takes an SM. 0 on the host.
    pub sms: u32,
    /// Signal words, greetings and reports of mismatches; on a GPU also the places of small and medium messages.
    pub control_bytes: u64,
    /// Rings from all ranks: on the host two from each, for collectives and for sends and receives; on a GPU three for
    /// each thread block.
    pub ring_bytes: u64,
    /// The memory for [`Comm::alloc`](super::Comm::alloc).
    pub heap_bytes: u64,
    /// The whole window of a rank.
    pub window_bytes: u64,
    /// Host memory for what is written for peers behind queues, if all other ranks are such peers and
    /// [`Paths::queue`](field@crate::Paths::queue) permits them; allocated with the first such peer. On a GPU it is
    /// pinned, or the GPU's memory as `EPWIRE_RINGS` says; so are the queues.
    pub image_bytes: u64,
    /// The queues themselves, allocated for each such peer.
    pub queue_bytes: u64,
    /// Pinned memory for what such peers write if the window is on a GPU, as in [`Plan`](crate::Plan): allocated for
    /// each.
    pub inbox_bytes: u64,
}

/// The window of a rank, and what peers behind queues take, by lines, in MiB.
impl fmt::Display for CommPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Self { ranks, slots, slot_bytes, .. } = self;
        write!(f, "window {:.1} MiB of {ranks} ranks", mib(self.window_bytes))?;
        write!(f, "\n  {:>10.1} MiB  signal words", mib(self.control_bytes))?;
        write!(f, "\n  {:>10.1} MiB  rings of {slots} slots of {slot_bytes} bytes", mib(self.ring_bytes))?;
        if self.heap_bytes > 0 {
            write!(f, "\n  {:>10.1} MiB  heap", mib(self.heap_bytes))?;
        }
        write_queues(f, self.image_bytes, self.queue_bytes, self.inbox_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_an_error_that_names_its_field() {
        let good = CommConfig::default;
        let cases: [(&str, u32, CommConfig); 9] = [
            ("config.ranks", 0, good()),
            ("config.ranks", 1025, good()),
            ("config.slots", 4, CommConfig { slots: 3, ..good() }),
            ("config.slots", 4, CommConfig { slots: 512, ..good() }),
            ("config.slot_bytes", 4, CommConfig { slot_bytes: 100, ..good() }),
            ("config.slot_bytes", 4, CommConfig { slot_bytes: (1 << 24) + 64, ..good() }),
            ("config.heap_bytes", 4, CommConfig { heap_bytes: (1 << 44) + 1, ..good() }),
            ("config.deadline", 4, CommConfig { deadline: Duration::from_micros(1), ..good() }),
            ("config.deadline", 4, CommConfig { deadline: Duration::MAX, ..good() }),
        ];
        for (field, ranks, config) in cases {
            let error = config.plan(ranks).unwrap_err();
            let failure = error.failure().unwrap();
            assert!(failure.text.starts_with(field), "{field}: {error}");
            assert_eq!(failure.rank, None, "a plan is that of every rank: {error}");
        }
    }

    #[test]
    fn a_configuration_prints_in_a_line_and_says_what_all_ranks_share() {
        let from = CommConfig::COPY_ENGINES_FROM;
        let config = CommConfig::default().heap_bytes(4096).copy_engines_from(from);
        assert_eq!(
            config.to_string(),
            "on host, paths thread,shm,vmm,ipc, deadline 10s, a heap of 4096 bytes, copy engines from 33554432 bytes on"
        );
        assert!(config.fields().contains(&("copy_engines_from".to_owned(), from.to_string())));
        assert_eq!(config.to_c(0, 2).copy_engines_from, from);
    }

    #[test]
    fn a_plan_prints_its_parts() {
        let plan = CommConfig { heap_bytes: 1 << 20, ..CommConfig::default() }.plan(4).unwrap();
        let text = plan.to_string();
        assert!(text.starts_with("window ") && text.contains("rings of 8 slots of 32768 bytes"), "{text}");
        assert!(text.ends_with("1.0 MiB  heap"), "{text}");
        assert!(plan.window_bytes >= plan.control_bytes + plan.ring_bytes + plan.heap_bytes);
        let queues = CommConfig { paths: Paths { queue: true, ..Paths::default() }, ..CommConfig::default() };
        let text = queues.plan(4).unwrap().to_string();
        assert!(text.contains("for peers behind queues, if all others are such peers\n"), "{text}");
        assert!(text.ends_with("MiB  their queues"), "the host has no inbox: {text}");
    }

    #[test]
    fn a_plan_has_as_many_thread_blocks_as_a_gpu_gets() {
        let sms = |config: CommConfig| config.plan(2).map(|plan| plan.sms);
        assert_eq!(sms(CommConfig::default()).unwrap(), 0);
        let on_gpu = || CommConfig::default().device(Device::Cuda(0));
        if !cfg!(feature = "cuda") || option_env!("DOCS_RS").is_some() {
            assert!(matches!(sms(on_gpu()), Err(crate::Error::NoPath(_))));
            return;
        }
        let queues = Paths { queue: true, ..Paths::default() };
        let found = [on_gpu(), on_gpu().paths(queues), on_gpu().sms(7)].map(|config| sms(config).unwrap());
        assert_eq!(found, [32, 8, 7]);
    }

    #[test]
    fn a_plan_counts_queues_as_deep_as_is_asked() {
        let config = CommConfig { paths: Paths { queue: true, ..Paths::NONE }, ..CommConfig::default() };
        let plan = |depth| config.plan_with(3, QueueMemory { depth, ..QueueMemory::default() });
        let (needed, deep) = (plan(0).unwrap(), plan(32768).unwrap());
        assert_eq!(plan(16).unwrap(), needed, "operations need more than that");
        assert_eq!(deep.image_bytes, needed.image_bytes);
        // To each of two peers one for collectives, one for sends and receives.
        assert!(deep.queue_bytes >= 4 * 64 * 32768 && deep.queue_bytes > needed.queue_bytes);
        let refused = plan(24).unwrap_err().to_string();
        assert_eq!(refused, "plan: config.queue_depth is 24, must be a power of two in [16, 32768], or 0");
    }
}
