//! RDMA adapters, as sysfs describes them: ports, addresses (GIDs), device files, and which GPU they are near to. What
//! only an open adapter can tell is asked of the core.

use std::cmp::Reverse;
use std::net::Ipv6Addr;

use super::limits::locked_memory;
use super::report::{Check, Verdict};
use super::sysfs::{Tree, number, state};
use crate::env;
use crate::ffi::{self, BusPlace, Finding};

const CLASS: &str = "/sys/class/infiniband";
/// The kernel's name of the only type of GID that is used on Ethernet.
const ROCE_V2: &str = "RoCE v2";
/// How many entries of a port's GID table, and functions of the PCI bus, are looked at.
const GIDS_MAX: usize = 1024;
/// Header bytes in front of the payload of a RoCE v2 packet.
const ROCE_HEADERS: u64 = 92;

/// What a process knows of adapters apart from files.
#[derive(Debug, Clone, Default)]
pub(super) struct Opened {
    /// Adapters and what each reported when it was opened.
    pub(super) findings: Vec<(String, Vec<Finding>)>,
    /// `EPWIRE_HCA`
    pub(super) filter: Option<String>,
    /// Whether `EPWIRE_TC` is set.
    pub(super) traffic_class: bool,
}

impl Opened {
    /// Opens the adapters of this machine: mlx5 ones as queues that kernels post to use them, others as the wire `verbs`
    /// does. With `EPWIRE_NIC=fake` also a fake one.
    pub(super) fn of_process(tree: &Tree, gpus: &[String]) -> Self {
        let probe = |name: String| {
            let gpu = nearest_gpu(tree, &name, gpus);
            let findings = match is_mlx5(tree, &name) {
                true => ffi::probe_adapter(&name, gpu),
                false => ffi::probe_verbs_adapter(&name, gpu),
            };
            (name, findings)
        };
        let mut findings: Vec<(String, Vec<Finding>)> = tree.names(CLASS).into_iter().map(probe).collect();
        if env::value(env::NIC).as_deref() == Some("fake") {
            let gpu = (!gpus.is_empty()).then_some(0);
            findings.push(("fake_0".to_owned(), ffi::probe_fake_adapter(0, gpu)));
        }
        let filter = env::value(env::HCA);
        Self { findings, filter, traffic_class: env::value(env::TRAFFIC_CLASS).is_some() }
    }

    fn of(&self, device: &str) -> Vec<Check> {
        let of_device = self.findings.iter().filter(|(name, _)| name == device);
        let findings: Vec<&Finding> = of_device.flat_map(|(_, findings)| findings).collect();
        let check = |finding: &&Finding| {
            let verdict = match finding.verdict {
                0 => Verdict::Ok,
                1 => Verdict::Unknown,
                2 => Verdict::Warning,
                _ => Verdict::Missing,
            };
            Check::new(format!("{device} {}", finding.name), verdict, &finding.text).remedy(&finding.remedy)
        };
        findings.iter().map(check).collect()
    }
}

/// The checks for queues that an adapter drains. `gpus`: bus addresses, as `0000:1a:00.0`; `dma_buf`: the result of
/// that check.
pub(super) fn checks(tree: &Tree, gpus: &[String], dma_buf: Option<Check>, opened: &Opened) -> Vec<Check> {
    let devices = tree.names(CLASS);
    let has_dma_buf = dma_buf.as_ref().is_some_and(|check| check.verdict == Verdict::Ok);
    let mut checks = vec![locked_memory(tree), peermem(tree, has_dma_buf)];
    checks.extend(dma_buf);
    checks.push(override_of_mappings(tree));
    if devices.is_empty() {
        checks.insert(
            0,
            Check::missing(
                "adapters",
                format!("none in {CLASS}: queues are drained by a software NIC, over TCP"),
            )
            .remedy(
                "if the machine has one: load its driver (mlx5_ib), in a container --device=/dev/infiniband",
            ),
        );
    } else {
        checks.insert(0, Check::ok("adapters", devices.join(", ")));
    }
    for device in &devices {
        checks.push(driver(tree, device));
        checks.extend(ports(tree, device, opened.traffic_class));
        checks.push(device_file(tree, device));
        checks.extend(opened.of(device));
        checks.extend(nearest(tree, device, gpus));
        checks.extend(translation(tree, device).filter(|_| !gpus.is_empty()));
    }
    let others = opened.findings.iter().filter(|(name, _)| !devices.contains(name));
    checks.extend(others.flat_map(|(name, _)| opened.of(name)));
    checks.extend((0..).zip(gpus).filter_map(|(turn, gpu)| chosen(tree, &devices, gpu, turn, opened)));
    checks
}

/// The name of its kernel driver: the folder that the link leads to.
fn driver_name(tree: &Tree, device: &str) -> Option<String> {
    let link = tree.link(&format!("{CLASS}/{device}/device/driver")).ok()?;
    Some(link.rsplit('/').next()?.to_owned())
}

fn is_mlx5(tree: &Tree, device: &str) -> bool {
    driver_name(tree, device).is_some_and(|name| name.starts_with("mlx5"))
}

fn driver(tree: &Tree, device: &str) -> Check {
    let label = format!("{device} driver");
    let firmware = tree.text(&format!("{CLASS}/{device}/fw_ver"));
    let firmware = firmware.map_or(String::new(), |version| format!(", firmware {version}"));
    let name = driver_name(tree, device);
    if let Some(name) = name.as_ref().filter(|_| is_mlx5(tree, device)) {
        return Check::ok(label, format!("{name}{firmware}"));
    }
    let what = name.map_or("in software".to_owned(), |name| format!("{name}{firmware}, no mlx5 adapter"));
    Check::warning(label, format!("{what}: GPUs cannot post to it by themselves"))
        .remedy(format!("{}=verbs: a software NIC then passes their entries to the adapter", env::WIRES))
}

fn ports(tree: &Tree, device: &str, has_class: bool) -> Vec<Check> {
    let folder = format!("{CLASS}/{device}/ports");
    let names = tree.names(&folder);
    if names.is_empty() {
        return vec![Check::unknown(format!("{device} ports"), format!("{folder} shows none"))];
    }
    names.iter().flat_map(|port| of_port(tree, device, port, has_class)).collect()
}

fn of_port(tree: &Tree, device: &str, port: &str, has_class: bool) -> Vec<Check> {
    let label = format!("{device} port {port}");
    let fact = |file: &str| tree.text(&format!("{CLASS}/{device}/ports/{port}/{file}"));
    let (activity, layer) = match (fact("state"), fact("link_layer")) {
        (Ok(activity), Ok(layer)) => (activity, layer),
        (Err(reason), _) | (_, Err(reason)) => return vec![Check::unknown(label, reason)],
    };
    let activity = state(&activity);
    let mut facts = vec![activity.to_owned(), layer.clone()];
    facts.extend(fact("rate"));
    if activity != "ACTIVE" {
        let physical = fact("phys_state").unwrap_or_default();
        facts.push(format!("physically {}", state(&physical)));
        let remedy = "see its cable and switch, and ip link";
        return vec![Check::warning(label, facts.join(", ")).remedy(remedy)];
    }
    let gids = gids(tree, device, port);
    let ethernet = layer == "Ethernet";
    let mut remedy = "";
    if ethernet {
        let interface = gids.iter().find_map(|gid| gid.interface.as_deref());
        match interface.and_then(|name| Some((name, mtu(tree, name)?))) {
            Some((name, mtu)) => {
                let path = path_mtu(mtu);
                facts.push(format!("MTU {mtu} of {name}, {path} on paths"));
                if path < 4096 {
                    remedy =
                        "for 4096 on paths set an MTU of 4200 or more (9000) on the interface and the switch";
                }
            }
            None => facts.push("MTU not known: no interface of its GIDs is seen here".to_owned()),
        }
    } else {
        facts.extend(fact("lid").map(|lid| format!("LID {}", lid_number(&lid))));
    }
    let check = match remedy {
        "" => Check::ok(label, facts.join(", ")),
        remedy => Check::warning(label, facts.join(", ")).remedy(remedy),
    };
    let class = traffic_class(tree, device, port).filter(|_| ethernet && !has_class);
    [Some(check), Some(address(device, port, ethernet, &gids)), class].into_iter().flatten().collect()
}

/// The traffic class that an administrator has set in the kernel: the reasons for it hold for these queues as well.
fn traffic_class(tree: &Tree, device: &str, port: &str) -> Option<Check> {
    let file = format!("{CLASS}/{device}/tc/{port}/traffic_class");
    let text = tree.text(&file).ok()?;
    let class = number(&text).filter(|class| *class > 0 && *class < 256)?;
    let label = format!("{device} port {port} traffic class");
    let reason =
        format!("{class} in {file}, which does not apply to queue pairs made by DevX: they send with 0");
    Some(Check::warning(label, reason).remedy(format!("{}={class}", env::TRAFFIC_CLASS)))
}

fn lid_number(text: &str) -> String {
    let parsed = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    parsed.map_or(text.to_owned(), |lid| lid.to_string())
}

fn mtu(tree: &Tree, interface: &str) -> Option<u64> {
    number(&tree.text(&format!("/sys/class/net/{interface}/mtu")).ok()?)
}

/// The RDMA MTU that fits an Ethernet MTU.
fn path_mtu(mtu: u64) -> u64 {
    let room = mtu.saturating_sub(ROCE_HEADERS);
    [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= room).unwrap_or(256)
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gid {
    /// Its index in the port's table, which differs from host to host.
    pub(super) index: u64,
    /// The address.
    pub(super) address: Ipv6Addr,
    /// As the kernel writes it: `RoCE v2`, `IB/RoCE v1`.
    pub(super) kind: String,
    /// The Ethernet interface that it belongs to.
    pub(super) interface: Option<String>,
}

/// The GIDs of a port that are set.
pub(super) fn gids(tree: &Tree, device: &str, port: &str) -> Vec<Gid> {
    let folder = format!("{CLASS}/{device}/ports/{port}");
    let indices = tree.names(&format!("{folder}/gids")).into_iter().take(GIDS_MAX);
    let gid = |index: String| {
        // For an entry that is not set the kernel returns zeros, or an error.
        let address: Ipv6Addr = tree.text(&format!("{folder}/gids/{index}")).ok()?.parse().ok()?;
        let attribute = |name: &str| tree.text(&format!("{folder}/gid_attrs/{name}/{index}")).ok();
        let kind = attribute("types").unwrap_or_else(|| "of unknown type".to_owned());
        let gid = Gid { index: index.parse().ok()?, address, kind, interface: attribute("ndevs") };
        (!address.is_unspecified()).then_some(gid)
    };
    indices.filter_map(gid).collect()
}

/// The GID of an Ethernet port that the core uses.
fn choose(gids: &[Gid]) -> Option<&Gid> {
    let worth = |gid: &&Gid| ffi::gid_worth(&gid.address.octets(), gid.kind == ROCE_V2);
    let usable = gids.iter().filter(|gid| worth(gid) > 0);
    usable.max_by_key(|gid| (worth(gid), Reverse(gid.index)))
}

fn address(device: &str, port: &str, ethernet: bool, gids: &[Gid]) -> Check {
    let label = format!("{device} port {port} GID");
    let words = |gid: &Gid| {
        let Gid { index, address, kind, interface } = gid;
        let on = interface.as_ref().map_or(String::new(), |name| format!(" on {name}"));
        match address.to_ipv4_mapped() {
            Some(v4) => format!("index {index}, {kind}, {v4}{on}"),
            None => format!("index {index}, {kind}, {address}{on}"),
        }
    };
    let local = gids.iter().find(|gid| gid.kind == ROCE_V2);
    match (ethernet, choose(gids), gids.first()) {
        (true, Some(gid), _) | (false, _, Some(gid)) => {
            Check::ok(label, format!("{}; {} in all", words(gid), gids.len()))
        }
        (true, None, Some(_)) => match local {
            Some(gid) => Check::missing(
                label,
                format!("{}: a link-local address alone, which others cannot reach", words(gid)),
            )
            .remedy("give the interface an IPv4 address, or an IPv6 one that is routed: ip address add"),
            None => Check::missing(label, format!("none of {} is RoCE v2", gids.len()))
                .remedy("give the interface an IP address, and let the adapter do RoCE v2"),
        },
        (_, _, None) => Check::missing(label, "no GID is set")
            .remedy("give the interface an IP address; in a container use the host's network"),
    }
}

fn device_file(tree: &Tree, device: &str) -> Check {
    let label = format!("{device} device file");
    const VERBS: &str = "/sys/class/infiniband_verbs";
    let of_device = |name: &String| tree.text(&format!("{VERBS}/{name}/ibdev")).is_ok_and(|of| of == device);
    let Some(name) = tree.names(VERBS).into_iter().find(of_device) else {
        return Check::missing(label, format!("none in {VERBS}")).remedy("modprobe ib_uverbs");
    };
    let path = format!("/dev/infiniband/{name}");
    match tree.may_use(&path) {
        Ok(()) => Check::ok(label, path),
        Err(reason) => Check::missing(label, reason)
            .remedy("in a container --device=/dev/infiniband; else see its permissions (group rdma)"),
    }
}

/// Checks for either of the two ways by which an adapter reaches GPU memory.
fn peermem(tree: &Tree, has_dma_buf: bool) -> Check {
    const NAME: &str = "nvidia_peermem";
    const WAYS: [&str; 3] = [
        "/sys/module/nvidia_peermem",
        "/sys/kernel/mm/memory_peers/nvidia-peermem",
        "/sys/kernel/mm/memory_peers/nv_mem",
    ];
    match WAYS.into_iter().find(|path| tree.has(path)) {
        Some(path) if path.ends_with("nv_mem") => {
            Check::warning(NAME, "the old module nv_peer_mem is loaded")
                .remedy("unload it and load nvidia_peermem")
        }
        Some(_) => Check::ok(NAME, "loaded"),
        None if has_dma_buf => Check::ok(NAME, "not loaded: adapters reach GPU memory by dma-buf"),
        None => Check::warning(NAME, "not loaded: adapters reach GPU memory by dma-buf alone")
            .remedy("modprobe nvidia_peermem, or install the open GPU kernel modules"),
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

fn place(tree: &Tree, link: &str) -> Option<BusPlace> {
    let path = tree.real(link)?;
    let node = tree.text(&format!("{path}/numa_node")).ok().and_then(|node| node.parse().ok());
    Some(BusPlace::new(&path, node.unwrap_or(-1)))
}

fn place_of_adapter(tree: &Tree, device: &str) -> Option<BusPlace> {
    place(tree, &format!("{CLASS}/{device}/device"))
}

fn place_of_gpu(tree: &Tree, gpu: &str) -> Option<BusPlace> {
    place(tree, &format!("/sys/bus/pci/devices/{}", gpu.to_lowercase()))
}

/// For each GPU with a known place: its distance from the adapter, as a number and in words, and its ordinal.
fn distances(tree: &Tree, device: &str, gpus: &[String]) -> Vec<(u32, String, usize)> {
    let Some(own) = place_of_adapter(tree, device) else { return Vec::new() };
    let far = |(ordinal, gpu): (usize, &String)| {
        let (distance, words) = own.distance(&place_of_gpu(tree, gpu)?);
        Some((distance, words, ordinal))
    };
    let mut all: Vec<(u32, String, usize)> = gpus.iter().enumerate().filter_map(far).collect();
    all.sort();
    all
}

/// The ordinal of a GPU that is nearest.
fn nearest_gpu(tree: &Tree, device: &str, gpus: &[String]) -> Option<u32> {
    let first = distances(tree, device, gpus).first().map_or(0, |(_, _, ordinal)| *ordinal);
    (!gpus.is_empty()).then_some(first as u32)
}

/// The GPUs that are nearest to the adapter.
fn nearest(tree: &Tree, device: &str, gpus: &[String]) -> Option<Check> {
    /// Greater distances cross the root complex.
    const ROOT_PORT: u32 = 1;
    const ROOT_COMPLEX: u32 = 2;
    let all = distances(tree, device, gpus);
    let (least, words, _) = all.first()?;
    let near = all.iter().take_while(|(distance, ..)| distance == least);
    let near: Vec<&str> = near.map(|(_, _, ordinal)| gpus[*ordinal].as_str()).collect();
    let (label, reason) = (format!("{device} nearest GPU"), format!("{}, {words}", near.join(", ")));
    Some(match *least {
        ..=ROOT_PORT => Check::ok(label, reason),
        ROOT_COMPLEX => Check::warning(label, reason)
            .remedy("see that ACS and the IOMMU let devices reach each other, and which slots they are in"),
        _ => Check::warning(label, reason).remedy("use an adapter of the GPU's own switch, if there is one"),
    })
}

/// Whether the IOMMU translates the adapter's accesses to GPU memory.
fn translation(tree: &Tree, device: &str) -> Option<Check> {
    let kind = tree.text(&format!("{CLASS}/{device}/device/iommu_group/type")).ok()?;
    let label = format!("{device} IOMMU");
    Some(match kind.as_str() {
        "identity" => Check::ok(label, "leaves addresses as they are"),
        _ => Check::warning(
            label,
            format!(
                "translates ({kind}): traffic to a GPU goes through the root complex, if it arrives at all"
            ),
        )
        .remedy("iommu=pt on the kernel's command line, where virtual machines do not need it"),
    })
}

/// Which adapter a rank on this GPU tries first, by the library's own rule.
fn chosen(tree: &Tree, devices: &[String], gpu: &str, turn: u32, opened: &Opened) -> Option<Check> {
    let filter = opened.filter.as_deref().unwrap_or_default();
    let own = place_of_gpu(tree, gpu)?;
    let wanted = |device: &&String| (1..=2).any(|port| ffi::adapter_wanted(filter, device, port));
    let mlx5 = |device: &&String| driver_name(tree, device).is_some_and(|name| name.starts_with("mlx5"));
    let active = |device: &&String| {
        let folder = format!("{CLASS}/{device}/ports");
        let state = |port: &String| tree.text(&format!("{folder}/{port}/state"));
        tree.names(&folder).iter().any(|port| state(port).is_ok_and(|text| text.ends_with("ACTIVE")))
    };
    let usable: Vec<&String> = devices.iter().filter(wanted).filter(mlx5).filter(active).collect();
    let label = format!("{gpu} adapter");
    if usable.is_empty() {
        let none =
            (!devices.is_empty()).then(|| Check::missing(label, "no mlx5 adapter with an active port"))?;
        return Some(match filter {
            "" => none,
            _ => none.remedy(format!("{}={filter} must match one", env::HCA)),
        });
    }
    let unknown = || BusPlace::new("", -1);
    let places: Vec<BusPlace> =
        usable.iter().map(|device| place_of_adapter(tree, device).unwrap_or_else(unknown)).collect();
    let first = *ffi::adapters_order(&places, &own, turn).first()?;
    let (_, words) = own.distance(&places[first]);
    Some(Check::ok(label, format!("{}, {words}", usable[first])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u64, kind: &str, address: &str) -> Gid {
        Gid { index, kind: kind.into(), address: address.parse().unwrap(), interface: None }
    }

    #[test]
    fn the_gid_is_chosen_by_what_it_is_and_not_by_its_place() {
        let v1 = gid(0, "IB/RoCE v1", "::ffff:10.0.0.1");
        let local = gid(1, "RoCE v2", "fe80::1");
        let v6 = gid(2, "RoCE v2", "fd00::1");
        let v4 = gid(9, "RoCE v2", "::ffff:10.0.0.1");
        let all = [v1, local, v6.clone(), v4.clone()];
        for (count, chosen) in [(4, Some(&v4)), (3, Some(&v6)), (2, None)] {
            assert_eq!(choose(&all[..count]), chosen);
        }
    }

    #[test]
    fn mtus_leave_room_for_headers() {
        for (mtu, path) in [(9000, 4096), (4188, 4096), (4187, 2048), (1500, 1024), (576, 256), (0, 256)] {
            assert_eq!(path_mtu(mtu), path, "{mtu}");
        }
    }
}
