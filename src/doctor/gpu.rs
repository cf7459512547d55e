//! The GPUs of this process: driver, kernels, memory that other processes can map, and which GPU reaches which.

use super::report::{Check, Verdict};
use super::sysfs::{Tree, bytes, value};
use crate::error::Error;
use crate::{ffi, sys};

/// One GPU of this process. Lists are in the order of ordinals.
#[derive(Debug, Clone)]
pub(super) struct Gpu {
    /// The name that the driver reports.
    pub(super) name: String,
    /// The bus address, as `0000:1a:00.0`.
    pub(super) bus: String,
    /// Compute capability.
    pub(super) capability: (u32, u32),
    /// Bytes.
    pub(super) memory: u64,
    /// Whether adapters can reach its memory by dma-buf.
    pub(super) dma_buf: bool,
    /// The GPUs whose memory it can access, as bits by ordinal.
    pub(super) access: u64,
    /// Those of `access` that it can also access with atomics.
    pub(super) atomics: u64,
    /// Whether it could allocate memory that others map by a VMM handle; if not, why.
    pub(super) vmm: Result<(), String>,
    /// The same for an IPC handle.
    pub(super) ipc: Result<(), String>,
}

/// How many there are, at least 1, or why there are none.
pub(super) fn count() -> Result<u32, String> {
    ffi::gpus().map(|gpus| gpus.len() as u32).map_err(text)
}

/// The GPUs of this process, or why there are none.
pub(super) fn found() -> Result<Vec<Gpu>, String> {
    let facts = ffi::gpus().map_err(text)?;
    let tried = |ordinal: usize, path| {
        u32::try_from(ordinal).map_or(Ok(()), |ordinal| ffi::try_gpu(ordinal, path).map_err(text))
    };
    let gpu = |(ordinal, facts): (usize, ffi::GpuFacts)| {
        let ffi::GpuFacts { name, bus, capability, memory, dma_buf, access, atomics } = facts;
        let (vmm, ipc) = (tried(ordinal, sys::EPW_PATH_VMM), tried(ordinal, sys::EPW_PATH_IPC));
        Gpu { name, bus, capability, memory, dma_buf, access, atomics, vmm, ipc }
    };
    Ok(facts.into_iter().enumerate().map(gpu).collect())
}

/// The error without the name of the operation.
fn text(error: Error) -> String {
    let text = error.to_string();
    text.strip_prefix("doctor: ").map_or(text.clone(), str::to_owned)
}

/// The bus addresses of GPUs, including those that only the driver knows.
pub(super) fn buses(tree: &Tree, gpus: &Result<Vec<Gpu>, String>) -> Vec<String> {
    match gpus {
        Ok(gpus) => gpus.iter().map(|gpu| gpu.bus.clone()).collect(),
        Err(_) => tree.names("/proc/driver/nvidia/gpus"),
    }
}

/// The checks for windows in GPU memory.
pub(super) fn checks(tree: &Tree, gpus: &Result<Vec<Gpu>, String>) -> Vec<Check> {
    let mut checks = vec![driver(tree)];
    match gpus {
        Err(reason) => checks.push(none(tree, reason)),
        Ok(gpus) => {
            checks.extend(gpus.iter().enumerate().flat_map(|(ordinal, gpu)| of_gpu(ordinal, gpu)));
            checks.extend(access(gpus));
        }
    }
    checks
}

fn driver(tree: &Tree) -> Check {
    const NAME: &str = "NVIDIA driver";
    match tree.text("/proc/driver/nvidia/version") {
        Ok(text) => {
            let version = text.lines().next().and_then(|line| {
                line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
            });
            Check::ok(NAME, version.map_or(text.clone(), str::to_owned))
        }
        Err(reason) => Check::missing(NAME, format!("not loaded ({reason})"))
            .remedy("ranks go by host memory; for GPUs install the driver, or start the container with its GPUs (--gpus all)"),
    }
}

/// If this process has no GPU, because the build lacks CUDA or a container hides it: what the driver's files show.
fn none(tree: &Tree, reason: &str) -> Check {
    let shown = tree.names("/proc/driver/nvidia/gpus");
    let models: Vec<String> = shown
        .iter()
        .map(|bus| {
            let text = tree.text(&format!("/proc/driver/nvidia/gpus/{bus}/information")).unwrap_or_default();
            format!("{} at {bus}", value(&text, "Model").unwrap_or("a GPU"))
        })
        .collect();
    match models.is_empty() {
        true => Check::missing("GPUs", reason),
        false => Check::missing("GPUs", format!("{reason}; the driver has {}", models.join(", "))),
    }
}

fn of_gpu(ordinal: usize, gpu: &Gpu) -> Vec<Check> {
    let label = format!("GPU {ordinal}");
    let (major, minor) = gpu.capability;
    let facts =
        format!("{}, {}, compute capability {major}.{minor}, at {}", gpu.name, bytes(gpu.memory), gpu.bus);
    if major < 9 {
        return vec![Check::missing(label, format!("{facts}: the kernels need 9.0 (Hopper) or newer"))];
    }
    let other_works = |other: &Result<(), String>| match other {
        Ok(()) => Verdict::Warning,
        Err(_) => Verdict::Missing,
    };
    let handles = |kind: &str, made: &Result<(), String>, other: &Result<(), String>, remedy: &str| {
        let label = format!("{label} {kind} handles");
        match made {
            Ok(()) => Check::ok(label, "memory was made and given back"),
            Err(reason) => Check::new(label, other_works(other), reason).remedy(remedy),
        }
    };
    vec![
        Check::ok(&label, facts),
        handles(
            "VMM",
            &gpu.vmm,
            &gpu.ipc,
            "IPC handles serve where these do not; see the driver, and whether the GPU is virtual",
        ),
        handles(
            "IPC",
            &gpu.ipc,
            &gpu.vmm,
            "VMM handles serve where these do not; containers need one IPC namespace (--ipc=host)",
        ),
    ]
}

/// A line if all ways are alike, otherwise also the ways of each GPU.
fn access(gpus: &[Gpu]) -> Vec<Check> {
    const NAME: &str = "peer access";
    let count = gpus.len();
    let ways: Vec<Ways> = (0..count).map(|from| Ways::of(gpus, from)).collect();
    let (closed, slow) = ways
        .iter()
        .fold((0, 0), |(closed, slow), ways| (closed + ways.closed.len(), slow + ways.without_atomics.len()));
    let all = count * count.saturating_sub(1);
    let summary = match (count, closed, slow) {
        (..2, ..) => Check::ok(NAME, "there is one GPU"),
        (_, 0, 0) => {
            Check::ok(NAME, format!("all {count} GPUs reach each other, with atomics on the way (NVLink)"))
        }
        (_, 0, _) => {
            Check::warning(NAME, format!("all {count} GPUs reach each other, but not all by NVLink"))
                .remedy("see nvidia-smi topo -m and nvidia-smi nvlink -s")
        }
        (_, none, _) if none == all => Check::missing(NAME, "no GPU reaches the memory of another one")
            .remedy("see nvidia-smi topo -p2p r; ranks then go by queues: EPWIRE_PATHS=queue"),
        _ => Check::warning(NAME, format!("{closed} of {all} ways are closed"))
            .remedy("see nvidia-smi topo -p2p r; permit queues beside: EPWIRE_PATHS=vmm,ipc,queue"),
    };
    let alike = [0, all].contains(&closed) && [0, all].contains(&slow);
    let each = ways.iter().enumerate().filter(|_| !alike).map(|(from, ways)| ways.check(from));
    [summary].into_iter().chain(each).collect()
}

/// The other GPUs whose memory one accesses, by ordinal.
struct Ways {
    with_atomics: Vec<String>,
    without_atomics: Vec<String>,
    closed: Vec<String>,
}

impl Ways {
    fn of(gpus: &[Gpu], from: usize) -> Self {
        let has = |bits: u64, ordinal: usize| ordinal < 64 && bits >> ordinal & 1 == 1;
        let (access, atomics) = (gpus[from].access, gpus[from].atomics);
        let those = |are: &dyn Fn(usize) -> bool| {
            (0..gpus.len()).filter(|to| *to != from && are(*to)).map(|to| to.to_string()).collect()
        };
        Self {
            with_atomics: those(&|to| has(access, to) && has(atomics, to)),
            without_atomics: those(&|to| has(access, to) && !has(atomics, to)),
            closed: those(&|to| !has(access, to)),
        }
    }

    fn check(&self, from: usize) -> Check {
        let groups = [
            ("", &self.with_atomics, " by NVLink"),
            ("", &self.without_atomics, " by another way"),
            ("not ", &self.closed, ""),
        ];
        let shown: Vec<String> = groups
            .into_iter()
            .filter(|(_, gpus, _)| !gpus.is_empty())
            .map(|(before, gpus, behind)| format!("{before}{}{behind}", gpus.join(", ")))
            .collect();
        let label = format!("GPU {from} reaches");
        match self.closed.is_empty() {
            true => Check::ok(label, shown.join("; ")),
            false => Check::new(label, Verdict::Warning, shown.join("; ")),
        }
    }
}

/// The ordinals of those whose memory adapters cannot reach by dma-buf, as text.
pub(super) fn without_dma_buf(gpus: &[Gpu]) -> String {
    let lacking = (0..).zip(gpus).filter(|(_, gpu)| !gpu.dma_buf);
    lacking.map(|(ordinal, _): (u32, _)| ordinal.to_string()).collect::<Vec<_>>().join(", ")
}
