//! The doctor's readers of /proc and /sys: whatever the files contain, and wherever links lead, there is a report of
//! whole lines.
#![no_main]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// The contents of the files in `FILES`, by their numbers.
    files: Vec<(u8, &'a [u8])>,
    /// Names in some of the folders in `FOLDERS`, with their contents.
    entries: Vec<(u8, &'a str, &'a [u8])>,
    /// The targets of the links in `LINKS`.
    links: Vec<(u8, &'a str)>,
}

fuzz_target!(|input: Input| {
    let root = std::env::temp_dir().join(format!("epwire-fuzz-sysfs-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    for (number, target) in &input.links {
        let _ = symlink(target.replace('\0', ""), place(&root, LINKS[usize::from(*number) % LINKS.len()]));
    }
    for (number, text) in &input.files {
        let _ = fs::write(place(&root, FILES[usize::from(*number) % FILES.len()]), text);
    }
    for (number, name, text) in &input.entries {
        let folder = FOLDERS[usize::from(*number) % FOLDERS.len()];
        let _ = fs::write(place(&root, &format!("{folder}/{}", name.replace(['/', '\0'], ""))), text);
    }
    let report = epwire::doctor::of_files(&root);
    for check in report.sections.iter().flat_map(|section| &section.checks) {
        assert!(!check.name.is_empty() && !check.reason.is_empty(), "{check:?}");
        assert!(
            ![&check.name, &check.reason, &check.remedy].iter().any(|text| text.contains('\n')),
            "{check:?}"
        );
    }
    assert!(!report.to_json().contains('\n') && report.to_string().lines().count() > report.sections.len());
    let _ = fs::remove_dir_all(&root);
});

/// The path, with its folders created unless a link is in the way: nothing is written outside the root.
fn place(root: &Path, path: &str) -> PathBuf {
    let (mut place, mut parts) =
        (root.to_owned(), path.split('/').filter(|part| !part.is_empty()).peekable());
    while let Some(part) = parts.next() {
        let next = place.join(part);
        if next.is_symlink() {
            return root.join("in the way of a link");
        }
        if parts.peek().is_some() {
            let _ = fs::create_dir_all(&next);
        }
        place = next;
    }
    place
}

const FILES: [&str; 34] = [
    "proc/meminfo",
    "proc/self/limits",
    "proc/self/mounts",
    "proc/self/mountinfo",
    "proc/self/cgroup",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/gpus/0000:1a:00.0/information",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/pids.max",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/memory.current",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "sys/fs/cgroup/memory/memory.usage_in_bytes",
    "sys/class/net/eth0/mtu",
    "sys/class/net/eth0/operstate",
    "sys/class/net/eth0/speed",
    "sys/class/infiniband/a0/tc/1/traffic_class",
    "sys/class/infiniband/a0/device/numa_node",
    "sys/class/infiniband/a0/device/iommu_group/type",
    "sys/bus/pci/devices/0000:1a:00.0/numa_node",
    "sys/class/infiniband/a0/fw_ver",
    "sys/class/infiniband/a0/ports/1/state",
    "sys/class/infiniband/a0/ports/1/link_layer",
    "sys/class/infiniband/a0/ports/1/phys_state",
    "sys/class/infiniband/a0/ports/1/rate",
    "sys/class/infiniband/a0/ports/1/lid",
    "sys/class/infiniband/a0/ports/1/gids/0",
    "sys/class/infiniband/a0/ports/1/gids/1",
    "sys/class/infiniband/a0/ports/1/gid_attrs/types/0",
    "sys/class/infiniband/a0/ports/1/gid_attrs/types/1",
    "sys/class/infiniband/a0/ports/1/gid_attrs/ndevs/0",
    "sys/class/infiniband_verbs/uverbs0/ibdev",
    "sys/bus/pci/devices/0000:1a:00.0/vendor",
];
const FOLDERS: [&str; 5] = [
    "sys/class/infiniband",
    "sys/class/infiniband/a0/ports",
    "sys/class/infiniband/a0/ports/1/gids",
    "sys/class/infiniband_verbs",
    "proc/driver/nvidia/gpus",
];
const LINKS: [&str; 6] = [
    "proc/self/ns/net",
    "sys/class/infiniband/a0/device",
    "sys/class/infiniband/a0/device/driver",
    "sys/class/infiniband/b1",
    "sys/bus/pci/devices/0000:1b:00.0",
    "sys/class/net/eth0",
];
