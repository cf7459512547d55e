//! RDMA adapters: what their files say, and what the core finds when it opens them.

use std::sync::Arc;
use std::time::Duration;

use super::adapter_files::{CLASS, Files, Listed, Make};
use super::bounded::{Looking, begin};
use super::bus::GpuPlace;
use super::gpu::{self, Gpu};
use super::limits::locked_memory;
use super::report::{Check, Verdict};
use super::sysfs::Tree;
use crate::env;
use crate::ffi::{self, BusPlace, Finding};

/// Opens the adapter of this name, for the GPU of this ordinal if there is one, and says what it finds.
pub(super) type Open = Arc<dyn Fn(&str, Make, Option<u32>) -> Vec<Finding> + Send + Sync>;

/// What a process knows of adapters apart from files.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) open: Open,
    /// Whether it has a fake one (`EPWIRE_NIC=fake`).
    pub(super) fake: bool,
    /// `EPWIRE_HCA`
    pub(super) filter: Option<String>,
    /// Whether `EPWIRE_TC` is set.
    pub(super) traffic_class: bool,
}

impl Process {
    /// This process, which opens the adapters of this machine.
    pub(super) fn this() -> Self {
        let open = |name: &str, make, gpu| match make {
            Make::Mlx5 => ffi::probe_adapter(name, gpu),
            Make::Other => ffi::probe_verbs_adapter(name, gpu),
            Make::Fake => ffi::probe_fake_adapter(0, gpu),
        };
        Self {
            open: Arc::new(open),
            fake: env::value(env::NIC).as_deref() == Some("fake"),
            filter: env::value(env::HCA),
            traffic_class: env::value(env::TRAFFIC_CLASS).is_some(),
        }
    }

    /// One without settings that opens none.
    pub(super) fn that_opens_none() -> Self {
        Self { open: Arc::new(|_, _, _| Vec::new()), fake: false, filter: None, traffic_class: false }
    }
}

/// The checks for queues that an adapter drains. Takes `patience` three times at most: for what all adapters share, for
/// the files of each, and for opening each. An adapter that hangs costs only its own checks.
///
/// # Errors
///
/// Why even what all adapters share is not known.
pub(super) fn checks(
    tree: &Tree,
    gpus: &Result<Vec<Gpu>, String>,
    process: &Process,
    patience: Duration,
) -> Result<Vec<Check>, String> {
    let shared = {
        let (tree, gpus, process) = (tree.clone(), gpus.clone(), process.clone());
        begin(patience, move || Shared::of(&tree, &gpus, &process))
    };
    let shared = Arc::new(shared.end()?);
    let adapters = look(tree, &shared, process, patience);
    let of_each = adapters.iter().flat_map(Adapter::checks);
    let chosen = shared.gpus.iter().filter_map(|gpu| chosen(&adapters, gpu, process));
    Ok(shared.checks.iter().cloned().chain(of_each).chain(chosen).collect())
}

/// Reads the files of all adapters at once, then opens all of them at once.
fn look<'s>(tree: &Tree, shared: &'s Arc<Shared>, process: &Process, patience: Duration) -> Vec<Adapter<'s>> {
    let read = |at: usize| {
        let (tree, shared, process) = (tree.clone(), shared.clone(), process.clone());
        begin(patience, move || {
            let filter = process.filter.as_deref().unwrap_or_default();
            Files::of(&tree, &shared.adapters[at], &shared.gpus, filter, process.traffic_class)
        })
    };
    let reading: Vec<Looking<Files>> = (0..shared.adapters.len()).map(read).collect();
    let files: Vec<Result<Files, String>> = reading.into_iter().map(Looking::end).collect();
    let open = |(listed, files): (&Listed, &Result<Files, String>)| {
        let gpu = listed.nearest.filter(|_| shared.may_try_gpus).map(|gpu| gpu as u32);
        let (open, name, make, answers) =
            (process.open.clone(), listed.name.clone(), listed.make, files.is_ok());
        begin(patience, move || if answers { open(&name, make, gpu) } else { Vec::new() })
    };
    let opening: Vec<Looking<Vec<Finding>>> = shared.adapters.iter().zip(&files).map(open).collect();
    let all = shared.adapters.iter().zip(files).zip(opening);
    all.map(|((listed, files), opening)| Adapter { listed, files, findings: opening.end() }).collect()
}

/// What all adapters share, and what is known of each without asking it.
struct Shared {
    adapters: Vec<Listed>,
    gpus: Vec<GpuPlace>,
    /// Not those that a CUDA process does not see.
    may_try_gpus: bool,
    checks: Vec<Check>,
}

impl Shared {
    fn of(tree: &Tree, gpus: &Result<Vec<Gpu>, String>, process: &Process) -> Self {
        let devices = tree.names(CLASS);
        let mut checks = vec![found(&devices), locked_memory(tree)];
        checks.extend(ways_to_gpus(tree, gpus.as_deref().ok()));
        checks.push(override_of_mappings(tree));
        let may_try_gpus = gpus.is_ok();
        let gpus: Vec<GpuPlace> =
            gpu::buses(tree, gpus).into_iter().map(|bus| GpuPlace::of(tree, bus)).collect();
        let fake = process.fake.then(|| Listed::fake(&gpus));
        let real = devices.into_iter().map(|name| Listed::of(tree, name, &gpus));
        let adapters = real.chain(fake).collect();
        Self { adapters, gpus, may_try_gpus, checks }
    }
}

/// What has come of reading an adapter's files, and of opening it.
struct Adapter<'s> {
    listed: &'s Listed,
    files: Result<Files, String>,
    /// Empty if its files did not answer: then it has not been opened.
    findings: Result<Vec<Finding>, String>,
}

impl Adapter<'_> {
    /// Whether the core can use it; none if it does not answer.
    fn is_usable(&self) -> Option<bool> {
        const OPENING: [&str; 3] = ["libmlx5", "DevX", "capabilities"];
        let refuses = |finding: &Finding| {
            verdict_of(finding) == Verdict::Missing && OPENING.contains(&finding.name.as_str())
        };
        match self.files.as_ref().ok()?.has_usable_port {
            true => Some(!self.findings.as_ref().ok()?.iter().any(refuses)),
            false => Some(false),
        }
    }

    fn checks(&self) -> Vec<Check> {
        let files = match &self.files {
            Ok(files) => files,
            Err(reason) => return vec![self.hung("files", reason)],
        };
        let mut checks = files.before.clone();
        match &self.findings {
            Ok(findings) => checks.extend(findings.iter().map(|finding| self.check(finding))),
            Err(reason) => checks.push(self.hung("opening", reason)),
        }
        checks.extend(files.behind.iter().cloned());
        checks
    }

    fn check(&self, finding: &Finding) -> Check {
        let name = format!("{} {}", self.listed.name, finding.name);
        Check::new(name, verdict_of(finding), &finding.text).remedy(&finding.remedy)
    }

    fn hung(&self, what: &str, reason: &str) -> Check {
        let name = &self.listed.name;
        Check::unknown(format!("{name} {what}"), reason)
            .remedy(format!("see dmesg; where ranks do without it, {}=^={name} leaves it out", env::HCA))
    }
}

fn verdict_of(finding: &Finding) -> Verdict {
    match finding.verdict {
        0 => Verdict::Ok,
        1 => Verdict::Unknown,
        2 => Verdict::Warning,
        _ => Verdict::Missing,
    }
}

/// Which adapter a rank on this GPU gets: the first that can be used, in the order in which the core tries them.
fn chosen(adapters: &[Adapter], gpu: &GpuPlace, process: &Process) -> Option<Check> {
    let filter = process.filter.as_deref().unwrap_or_default();
    let own = gpu.place.as_ref()?;
    if adapters.iter().all(|adapter| adapter.listed.make == Make::Fake) {
        return None;
    }
    let mlx5: Vec<&Adapter> = adapters.iter().filter(|adapter| adapter.listed.make == Make::Mlx5).collect();
    let nowhere = BusPlace::new("", -1);
    let listed: Vec<(&str, &BusPlace)> = mlx5
        .iter()
        .map(|adapter| (adapter.listed.name.as_str(), adapter.listed.place.as_ref().unwrap_or(&nowhere)))
        .collect();
    let order = ffi::adapters_order(&listed, filter, own, gpu.turn);
    let first = order.into_iter().find(|at| mlx5[*at].is_usable() != Some(false));
    let label = format!("{} adapter", gpu.bus);
    let Some(at) = first else {
        let none = Check::missing(label, "no mlx5 adapter that can be used");
        return Some(match filter {
            "" => none,
            _ => none.remedy(format!("{}={filter} must match one", env::HCA)),
        });
    };
    let (name, place) = listed[at];
    let (_, words) = own.distance(place);
    Some(match mlx5[at].is_usable() {
        Some(_) => Check::ok(label, format!("{name}, {words}")),
        None => Check::unknown(label, format!("{name}, {words}, is tried first, and does not answer")),
    })
}

fn found(devices: &[String]) -> Check {
    const NAME: &str = "adapters";
    match devices.is_empty() {
        false => Check::ok(NAME, devices.join(", ")),
        true => Check::missing(
            NAME,
            format!("none in {CLASS}: queues are drained by a software NIC, over TCP"),
        )
        .remedy("if the machine has one: load its driver (mlx5_ib), in a container --device=/dev/infiniband"),
    }
}

/// The two ways by which an adapter reaches the memory of these GPUs, of which one is enough.
fn ways_to_gpus(tree: &Tree, gpus: Option<&[Gpu]>) -> Vec<Check> {
    const MODULES: [&str; 3] = [
        "/sys/module/nvidia_peermem",
        "/sys/kernel/mm/memory_peers/nvidia-peermem",
        "/sys/kernel/mm/memory_peers/nv_mem",
    ];
    let module = MODULES.into_iter().find(|path| tree.has(path));
    let lacking = gpus.map(gpu::without_dma_buf);
    let by_descriptor = lacking.as_deref().map(|lacking| dma_buf(lacking, module.is_some()));
    [peermem(module, lacking.as_deref())].into_iter().chain(by_descriptor).collect()
}

/// `lacking`: the GPUs without dma-buf; `None`: there is no GPU.
fn peermem(module: Option<&str>, lacking: Option<&str>) -> Check {
    const NAME: &str = "nvidia_peermem";
    match (module, lacking) {
        (Some(path), _) if path.ends_with("nv_mem") => {
            Check::warning(NAME, "the old module nv_peer_mem is loaded")
                .remedy("unload it and load nvidia_peermem")
        }
        (Some(_), _) => Check::ok(NAME, "loaded"),
        (None, None) => Check::unknown(NAME, "not loaded; no GPU of this process shows whether it is needed"),
        (None, Some("")) => Check::ok(NAME, "not loaded: adapters reach GPU memory by dma-buf"),
        (None, Some(gpus)) => Check::warning(
            NAME,
            format!("not loaded: adapters reach the memory of GPUs {gpus} by neither it nor dma-buf"),
        )
        .remedy("modprobe nvidia_peermem, or install the open GPU kernel modules"),
    }
}

fn dma_buf(lacking: &str, has_module: bool) -> Check {
    const NAME: &str = "dma-buf";
    match (lacking, has_module) {
        ("", _) => Check::ok(NAME, "the driver gives it for all GPUs"),
        (gpus, true) => Check::ok(NAME, format!("the driver gives none for GPUs {gpus}, nor is it needed")),
        (gpus, false) => Check::warning(NAME, format!("the driver gives none for GPUs {gpus}"))
            .remedy("install the open GPU kernel modules, or load nvidia_peermem"),
    }
}

/// Whether GPUs may map doorbells of adapters.
fn override_of_mappings(tree: &Tree) -> Check {
    const NAME: &str = "PeerMappingOverride";
    const FILE: &str = "/proc/driver/nvidia/params";
    match tree.text(FILE) {
        Err(reason) => Check::unknown(NAME, reason),
        Ok(text) if text.contains("PeerMappingOverride=1") => Check::ok(NAME, "set"),
        Ok(_) => Check::warning(NAME, format!("not in {FILE}: GPUs cannot ring adapters, threads of the host do it"))
            .remedy(
                "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d, update-initramfs, reboot",
            ),
    }
}
