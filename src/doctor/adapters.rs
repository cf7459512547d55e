//! RDMA adapters, as sysfs tells of them: ports, addresses (GIDs), device files, and which GPU they are near to. What only an open
//! adapter tells comes behind these, see [`control`].

use std::net::Ipv6Addr;

use super::limits::locked_memory;
use super::report::{Check, Verdict};
use super::sysfs::{Tree, number, state};

const CLASS: &str = "/sys/class/infiniband";
/// Entries of a port's table of GIDs that are looked at, and functions of the bus.
const GIDS_MAX: usize = 1024;
/// Bytes in front of the payload of a packet of RoCE v2.
const ROCE_HEADERS: u64 = 92;

/// Of queues that an adapter drains. `gpus`: bus addresses, as `0000:1a:00.0`; `dma_buf`: what that is found to be.
pub(super) fn checks(tree: &Tree, gpus: &[String], dma_buf: Option<Check>) -> Vec<Check> {
    let devices = tree.names(CLASS);
    let has_dma_buf = dma_buf.as_ref().is_some_and(|check| check.verdict == Verdict::Ok);
    let mut checks = vec![locked_memory(tree), peermem(tree, has_dma_buf)];
    checks.extend(dma_buf);
    checks.push(override_of_mappings(tree));
    if devices.is_empty() {
        checks.insert(
            0,
            Check::missing("adapters", format!("none in {CLASS}: queues are drained by a NIC in software, over TCP"))
                .remedy("where the machine has one: load its driver (mlx5_ib), in a container --device=/dev/infiniband"),
        );
        return checks;
    }
    checks.insert(0, Check::ok("adapters", devices.join(", ")));
    for device in &devices {
        checks.push(driver(tree, device));
        checks.extend(ports(tree, device));
        checks.push(device_file(tree, device));
        checks.push(control(device));
        checks.extend(nearest(tree, device, gpus));
    }
    checks
}

/// Its kernel driver, by the name of the folder that the link leads to.
fn driver_name(tree: &Tree, device: &str) -> Option<String> {
    let link = tree.link(&format!("{CLASS}/{device}/device/driver")).ok()?;
    Some(link.rsplit('/').next()?.to_owned())
}

fn driver(tree: &Tree, device: &str) -> Check {
    let label = format!("{device} driver");
    let firmware = tree.text(&format!("{CLASS}/{device}/fw_ver"));
    let firmware = firmware.map_or(String::new(), |version| format!(", firmware {version}"));
    match driver_name(tree, device) {
        Some(name) if name.starts_with("mlx5") => Check::ok(label, format!("{name}{firmware}")),
        Some(name) => Check::warning(
            label,
            format!("{name}{firmware}: no mlx5 adapter, GPUs cannot post to it by themselves"),
        ),
        None => Check::warning(label, "in software: GPUs cannot post to it by themselves"),
    }
}

fn ports(tree: &Tree, device: &str) -> Vec<Check> {
    let folder = format!("{CLASS}/{device}/ports");
    let names = tree.names(&folder);
    if names.is_empty() {
        return vec![Check::unknown(format!("{device} ports"), format!("{folder} shows none"))];
    }
    names.iter().flat_map(|port| of_port(tree, device, port)).collect()
}

fn of_port(tree: &Tree, device: &str, port: &str) -> Vec<Check> {
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
    vec![check, address(device, port, ethernet, &gids)]
}

fn lid_number(text: &str) -> String {
    let parsed = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    parsed.map_or(text.to_owned(), |lid| lid.to_string())
}

fn mtu(tree: &Tree, interface: &str) -> Option<u64> {
    number(&tree.text(&format!("/sys/class/net/{interface}/mtu")).ok()?)
}

/// The MTU of RDMA that fits an Ethernet MTU.
fn path_mtu(mtu: u64) -> u64 {
    let room = mtu.saturating_sub(ROCE_HEADERS);
    [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= room).unwrap_or(256)
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gid {
    /// Its place in the port's table, which differs from host to host.
    pub(super) index: u64,
    /// The address.
    pub(super) address: Ipv6Addr,
    /// As the kernel writes it: `RoCE v2`, `IB/RoCE v1`.
    pub(super) kind: String,
    /// The Ethernet interface that it belongs to.
    pub(super) interface: Option<String>,
}

/// Those of a port that are set.
pub(super) fn gids(tree: &Tree, device: &str, port: &str) -> Vec<Gid> {
    let folder = format!("{CLASS}/{device}/ports/{port}");
    let indices = tree.names(&format!("{folder}/gids")).into_iter().take(GIDS_MAX);
    let gid = |index: String| {
        // Of an entry that is not set the kernel gives zeros, or an error.
        let address: Ipv6Addr = tree.text(&format!("{folder}/gids/{index}")).ok()?.parse().ok()?;
        let attribute = |name: &str| tree.text(&format!("{folder}/gid_attrs/{name}/{index}")).ok();
        let kind = attribute("types").unwrap_or_else(|| "of unknown type".to_owned());
        let gid = Gid { index: index.parse().ok()?, address, kind, interface: attribute("ndevs") };
        (!address.is_unspecified()).then_some(gid)
    };
    indices.filter_map(gid).collect()
}

/// Of Ethernet the one to use: RoCE v2, of an IPv4 address before others, never link-local if there is another one.
fn choose(gids: &[Gid]) -> Option<&Gid> {
    let worse = |gid: &&Gid| {
        let v4 = gid.address.to_ipv4_mapped().is_some();
        (gid.address.is_unicast_link_local(), !v4, gid.index)
    };
    gids.iter().filter(|gid| gid.kind == "RoCE v2").min_by_key(worse)
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
    match (ethernet, choose(gids), gids.first()) {
        (true, Some(gid), _) if gid.address.is_unicast_link_local() => {
            Check::warning(label, format!("{}: a link-local address alone, not routed", words(gid)))
                .remedy("give the interface an IP address: ip address add")
        }
        (true, Some(gid), _) | (false, _, Some(gid)) => {
            Check::ok(label, format!("{}; {} in all", words(gid), gids.len()))
        }
        (true, None, Some(_)) => Check::missing(label, format!("none of {} is RoCE v2", gids.len()))
            .remedy("give the interface an IP address, and let the adapter do RoCE v2"),
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

/// The place of what an open adapter tells: DevX, its capabilities, umem by each way, the mapping of its doorbells.
fn control(device: &str) -> Check {
    Check::unknown(format!("{device} DevX, umem, doorbells"), "this version does not open adapters")
}

/// Either of the ways by which an adapter reaches GPU memory.
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
        Ok(_) => Check::warning(NAME, format!("not in {FILE}: GPUs cannot ring adapters, host threads have to"))
            .remedy(
                "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d, update-initramfs, reboot",
            ),
    }
}

/// How far two functions of the bus are from each other, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Switch,
    RootPort,
    RootComplex,
    Far,
}

/// By the parts of their paths below `/sys/devices` that are the same.
fn distance(a: &str, b: &str) -> Distance {
    let parts = |path: &str| -> Vec<String> {
        path.split('/').skip_while(|part| !part.starts_with("pci")).map(str::to_owned).collect()
    };
    let (a, b) = (parts(a), parts(b));
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    match same {
        0 => Distance::Far,
        1 => Distance::RootComplex,
        2 => Distance::RootPort,
        _ => Distance::Switch,
    }
}

/// The GPUs that are nearest to the adapter.
fn nearest(tree: &Tree, device: &str, gpus: &[String]) -> Option<Check> {
    let own = tree.real(&format!("{CLASS}/{device}/device"))?;
    let far = |gpu: &String| {
        let path = tree.real(&format!("/sys/bus/pci/devices/{}", gpu.to_lowercase()))?;
        Some((distance(&own, &path), gpu.clone()))
    };
    let mut all: Vec<(Distance, String)> = gpus.iter().filter_map(far).collect();
    all.sort();
    let (least, _) = *all.first()?;
    let near: Vec<&str> = all.iter().take_while(|(d, _)| *d == least).map(|(_, gpu)| gpu.as_str()).collect();
    let label = format!("{device} nearest GPU");
    let near = near.join(", ");
    Some(match least {
        Distance::Switch => Check::ok(label, format!("{near}, behind the same switch")),
        Distance::RootPort => Check::ok(label, format!("{near}, behind the same root port")),
        Distance::RootComplex => Check::warning(label, format!("{near}, across the root complex"))
            .remedy("see that ACS and the IOMMU let devices reach each other, and which slots they are in"),
        Distance::Far => Check::warning(label, format!("{near}, on another root complex or socket"))
            .remedy("use an adapter of the GPU's own socket, if there is one"),
    })
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
        let all = [v1.clone(), local.clone(), v6.clone(), v4.clone()];
        for (count, chosen) in [(4, Some(&v4)), (3, Some(&v6)), (2, Some(&local)), (1, None)] {
            assert_eq!(choose(&all[..count]), chosen);
        }
    }

    #[test]
    fn mtus_leave_room_for_headers() {
        for (mtu, path) in [(9000, 4096), (4188, 4096), (4187, 2048), (1500, 1024), (576, 256), (0, 256)] {
            assert_eq!(path_mtu(mtu), path, "{mtu}");
        }
    }

    #[test]
    fn distances_are_those_of_the_bus() {
        let gpu = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";
        for (other, expected) in [
            ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", Distance::Switch),
            ("/sys/devices/pci0000:00/0000:00:01.0/0000:05:00.0", Distance::RootPort),
            ("/sys/devices/pci0000:00/0000:00:02.0/0000:06:00.0", Distance::RootComplex),
            ("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", Distance::Far),
            ("/sys/devices/virtual/net", Distance::Far),
        ] {
            assert_eq!(distance(gpu, other), expected, "{other}");
        }
    }
}
