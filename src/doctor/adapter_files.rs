//! What sysfs says of one RDMA adapter: driver, ports, addresses (GIDs), device file, and which GPU it is near to.

use std::cmp::Reverse;
use std::net::Ipv6Addr;

use super::bus::{self, GpuPlace};
use super::report::Check;
use super::sysfs::{Tree, number, state};
use crate::env;
use crate::ffi::{self, BusPlace};

pub(super) const CLASS: &str = "/sys/class/infiniband";
/// The kernel's name of the only type of GID that is used on Ethernet.
const ROCE_V2: &str = "RoCE v2";
/// The core looks at no more.
const PORTS: u32 = 2;
/// How many entries of a port's GID table are looked at.
const GIDS_MAX: usize = 1024;
/// Header bytes in front of the payload of a RoCE v2 packet.
const ROCE_HEADERS: u64 = 92;

/// How an adapter is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    /// As the queues that kernels post to use it.
    Mlx5,
    /// As the wire `verbs` does.
    Other,
    /// One in software, which has no files.
    Fake,
}

/// An adapter of this host: what is known of it without asking it.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) make: Make,
    pub(super) place: Option<BusPlace>,
    /// The ordinal of a GPU that is nearest.
    pub(super) nearest: Option<usize>,
}

impl Listed {
    /// The one of this name.
    pub(super) fn of(tree: &Tree, name: String, gpus: &[GpuPlace]) -> Self {
        let make = if is_mlx5(tree, &name) { Make::Mlx5 } else { Make::Other };
        let place = bus::place(tree, &format!("{CLASS}/{name}/device"));
        let nearest = bus::nearest(place.as_ref(), gpus);
        Self { name, make, place, nearest }
    }

    /// The fake one.
    pub(super) fn fake(gpus: &[GpuPlace]) -> Self {
        Self { name: "fake_0".to_owned(), make: Make::Fake, place: None, nearest: bus::nearest(None, gpus) }
    }
}

/// What the files of one adapter say.
pub(super) struct Files {
    /// Its checks before those of opening it, and behind them.
    pub(super) before: Vec<Check>,
    pub(super) behind: Vec<Check>,
    /// Whether the core finds a port that it can use.
    pub(super) has_usable_port: bool,
}

impl Files {
    /// Reads them; a fake adapter has none. `filter`: `EPWIRE_HCA`; `has_class`: whether `EPWIRE_TC` is set.
    pub(super) fn of(
        tree: &Tree,
        adapter: &Listed,
        gpus: &[GpuPlace],
        filter: &str,
        has_class: bool,
    ) -> Self {
        if adapter.make == Make::Fake {
            return Self { before: Vec::new(), behind: Vec::new(), has_usable_port: true };
        }
        let name = &adapter.name;
        let mut before = vec![driver(tree, name)];
        before.extend(ports(tree, name, has_class));
        before.push(device_file(tree, name));
        let near = bus::nearest_gpus(name, adapter.place.as_ref(), gpus);
        let translation = translation(tree, name).filter(|_| !gpus.is_empty());
        Self {
            before,
            behind: near.into_iter().chain(translation).collect(),
            has_usable_port: has_usable_port(tree, name, filter),
        }
    }
}

/// The name of its kernel driver: the folder that the link leads to.
fn driver_name(tree: &Tree, device: &str) -> Option<String> {
    let link = tree.link(&format!("{CLASS}/{device}/device/driver")).ok()?;
    Some(link.rsplit('/').next()?.to_owned())
}

/// Whether kernels may post to it.
fn is_mlx5(tree: &Tree, device: &str) -> bool {
    driver_name(tree, device).is_some_and(|name| name.starts_with("mlx5"))
}

/// As the core chooses: a port that the filter admits, which is active and has an address.
fn has_usable_port(tree: &Tree, device: &str, filter: &str) -> bool {
    (1..=PORTS).any(|port| {
        let fact =
            |file: &str| tree.text(&format!("{CLASS}/{device}/ports/{port}/{file}")).unwrap_or_default();
        ffi::adapter_wanted(filter, device, port)
            && state(&fact("state")) == "ACTIVE"
            && match fact("link_layer").as_str() {
                "Ethernet" => choose(&gids(tree, device, &port.to_string())).is_some(),
                _ => lid_number(&fact("lid")) != "0",
            }
    })
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
