//! What this process may use of its host: memory, descriptors, threads, locked memory.

use std::path::Path;

use super::report::Check;
use super::sysfs::{Tree, bytes, number};
use crate::ffi;

/// Descriptors below which a large group may fail to connect.
const FILES_WANTED: u64 = 1024;
const THREADS_WANTED: u64 = 1024;
/// The size of a window for 8 ranks, 128 tokens and hidden 7168; programs need more than that.
const WINDOW: u64 = 57 << 20;
const MEMORY_WANTED: u64 = 1 << 30;
/// At most so many cgroups are looked at, from a process's own upwards.
const CGROUPS_MAX: usize = 64;

/// The checks for ranks on one host.
pub(super) fn checks(tree: &Tree) -> Vec<Check> {
    vec![memory(tree), files(tree), threads(tree), namespace(tree), shm(tree)]
}

fn memory(tree: &Tree) -> Check {
    const NAME: &str = "host memory";
    let Some(found) = ffi::memory_limit(tree.root()) else {
        return Check::unknown(NAME, "/proc/meminfo and the cgroups of this process cannot be read");
    };
    let left = bytes(found.left);
    let whose = match &found.cgroup {
        Some((name, limit, _)) => format!("of the {} of cgroup {name}", bytes(*limit)),
        None => "of the machine's".to_owned(),
    };
    let reason =
        format!("{left} left {whose}; 8 ranks, 128 tokens and hidden 7168 take {} each", bytes(WINDOW));
    let remedy = match &found.cgroup {
        Some((name, _, file)) => {
            format!("raise the limit of cgroup {name} ({file}), in a container its memory limit")
        }
        None => "end what takes the memory, or make windows smaller: Plan tells their size".to_owned(),
    };
    match found.left {
        ..WINDOW => Check::missing(NAME, reason).remedy(remedy),
        WINDOW..MEMORY_WANTED => Check::warning(NAME, reason).remedy(remedy),
        _ => Check::ok(NAME, reason),
    }
}

/// A line of `/proc/self/limits`: the soft limit, none if it is unlimited.
fn limit(tree: &Tree, name: &str) -> Result<Option<u64>, String> {
    const FILE: &str = "/proc/self/limits";
    let text = tree.text(FILE)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft {
        Some("unlimited") => Ok(None),
        Some(soft) => soft.parse().map(Some).map_err(|_| format!("{FILE}: {name} is {soft:?}, no number")),
        None => Err(format!("{FILE} has no line of {name}")),
    }
}

fn files(tree: &Tree) -> Check {
    const NAME: &str = "open files";
    match limit(tree, "Max open files") {
        Err(reason) => Check::unknown(NAME, reason),
        Ok(Some(files)) if files < FILES_WANTED => {
            Check::warning(NAME, format!("{files} at most; a rank holds some for each peer"))
                .remedy(format!("ulimit -n {}, in a container --ulimit nofile", 4 * FILES_WANTED))
        }
        Ok(files) => Check::ok(NAME, files.map_or("no limit".to_owned(), |files| format!("{files} at most"))),
    }
}

/// The limit of one user is in `/proc/self/limits`, that of a container in a cgroup: the smaller one holds.
fn threads(tree: &Tree) -> Check {
    const NAME: &str = "threads";
    let own = limit(tree, "Max processes");
    let most = own.as_ref().ok().copied().flatten();
    if let Some((count, file)) = pids(tree).filter(|(count, _)| most.is_none_or(|most| *count < most)) {
        let reason = format!("{count} at most, of all processes that {file} counts");
        return match count {
            ..THREADS_WANTED => Check::warning(NAME, reason)
                .remedy(format!("allow {} there, in a container --pids-limit", 4 * THREADS_WANTED)),
            _ => Check::ok(NAME, reason),
        };
    }
    match own {
        Err(reason) => Check::unknown(NAME, reason),
        Ok(Some(count)) if count < THREADS_WANTED => {
            Check::warning(NAME, format!("{count} of this user at most, of all its programs together"))
                .remedy(format!("ulimit -u {}", 4 * THREADS_WANTED))
        }
        Ok(count) => Check::ok(NAME, count.map_or("no limit".to_owned(), |count| format!("{count} at most"))),
    }
}

/// The least number of threads that this process's cgroup and those above it allow, and the file that says so. In a
/// container that shows its own cgroup at the top, it is that of the top.
fn pids(tree: &Tree) -> Option<(u64, String)> {
    let cgroups = tree.text("/proc/self/cgroup").ok()?;
    let of_line = |line| {
        let (controllers, path) = str::split_once(line, ':')?.1.split_once(':')?;
        let mount = match controllers {
            "" => "/sys/fs/cgroup",
            all if all.split(',').any(|name| name == "pids") => "/sys/fs/cgroup/pids",
            _ => return None,
        };
        let hidden = path.split('/').any(|part| part == "..");
        let above = Path::new(path).ancestors().filter(|_| !hidden).take(CGROUPS_MAX);
        let file = |path: &Path| format!("{mount}{}/pids.max", path.to_string_lossy().trim_end_matches('/'));
        Some(above.map(file).collect::<Vec<_>>())
    };
    let files = cgroups.lines().filter_map(of_line).flatten();
    let limits = files.filter_map(|file| Some((tree.text(&file).ok()?.parse().ok()?, file)));
    limits.min_by_key(|(count, _)| *count)
}

/// Ranks on one host can map each other's windows only if they share this namespace.
fn namespace(tree: &Tree) -> Check {
    const NAME: &str = "network namespace";
    match tree.link("/proc/self/ns/net") {
        Ok(link) => {
            let id = number(&link).map_or(link, |id| id.to_string());
            Check::ok(
                NAME,
                format!(
                    "{id}: ranks of this host with the same one, and of the same user, map each other's windows"
                ),
            )
        }
        Err(reason) => Check::unknown(NAME, reason),
    }
}

/// Reported because it is what people look for first.
fn shm(tree: &Tree) -> Check {
    const NAME: &str = "/dev/shm";
    let none = "epwire needs none of it: windows are memory files";
    let mounts = tree.text("/proc/self/mounts").unwrap_or_default();
    let options = mounts.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        (words.next() == Some("/dev/shm")).then(|| words.nth(1)).flatten()
    });
    match options {
        Some(options) => {
            let size = options.split(',').find_map(|option| size(option.strip_prefix("size=")?));
            Check::ok(NAME, format!("{}; {none}", size.map_or("no limit of its own".to_owned(), bytes)))
        }
        None => Check::ok(NAME, format!("not mounted; {none}")),
    }
}

/// A mount's size: a number of bytes, possibly with a unit.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The limit that memory pinned for adapters counts against.
pub(super) fn locked_memory(tree: &Tree) -> Check {
    const NAME: &str = "locked memory";
    if may_lock_all(tree) {
        return Check::ok(NAME, "CAP_IPC_LOCK: no limit applies");
    }
    let most = match limit(tree, "Max locked memory") {
        Err(reason) => return Check::unknown(NAME, reason),
        Ok(None) => return Check::ok(NAME, "no limit"),
        Ok(Some(most)) => most,
    };
    let reason = format!("{} at most: adapters pin what they reach, a window and its queues", bytes(most));
    let remedy = "ulimit -l unlimited, in a container --ulimit memlock=-1, under Slurm PropagateResourceLimitsExcept=MEMLOCK";
    match most {
        ..WINDOW => Check::missing(NAME, reason).remedy(remedy),
        WINDOW..MEMORY_WANTED => Check::warning(NAME, reason).remedy(remedy),
        _ => Check::ok(NAME, reason),
    }
}

/// Whether this process has CAP_IPC_LOCK in the user namespace of the machine itself, where users have their own numbers:
/// only that one exempts from the limit when an adapter pins memory.
fn may_lock_all(tree: &Tree) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
    let status = tree.text("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    let users = tree.text("/proc/self/uid_map").unwrap_or_default();
    set >> CAP_IPC_LOCK & 1 == 1 && users.split_whitespace().eq(ALL_USERS)
}
