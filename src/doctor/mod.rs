//! The doctor: which prerequisites of each path this machine meets, and how fast ranks reach each other.
//!
//! [`examine`] probes each prerequisite of each path separately; for each it reports what was found, and what to do
//! about it. [`Matrix::measure_blocking`], called by all ranks of a group, finds and measures the path that a buffer
//! would take between every two of them. `examples/doctor` prints both.
//!
//! Nothing here needs privileges or changes the machine. A probe that does not answer in time is reported as unknown.
//!
//! ```
//! let report = epwire::doctor::examine();
//! println!("{report}");
//! assert!(report.to_json().starts_with('{'));
//! ```

mod adapters;
mod gpu;
mod limits;
mod matrix;
mod network;
mod report;
mod sysfs;

use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::buffer::Trial;
use crate::config::Paths;

pub use matrix::{Cell, Matrix};
pub use report::{Check, Report, Section, Verdict};

/// How long one part of an examination may take: opening a GPU takes seconds, reading a file of a hung driver never
/// ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found apart from files.
#[derive(Debug, Clone)]
struct Found {
    settings: network::Settings,
    gpus: Result<Vec<gpu::Gpu>, String>,
    /// Words between two ranks of this process, by shared memory and by queues: how long one took, or why none arrived.
    shared_memory: Result<Duration, String>,
    queue: Result<Duration, String>,
    adapters: adapters::Opened,
}

/// Examines the machine as this process sees it. Takes a moment, some seconds if there are GPUs; ends within three
/// minutes.
pub fn examine() -> Report {
    let tree = sysfs::Tree::machine();
    let word = |paths: Paths| move || Trial::alone(paths).map_err(|error| error.to_string());
    let gpus = bounded(gpu::found);
    let (machine, buses) = (tree.clone(), gpu::buses(&tree, &gpus));
    let buses = if gpus.is_ok() { buses } else { Vec::new() }; // GPUs that a CUDA process does not see cannot be probed
    let opened = bounded(move || Ok(adapters::Opened::of_process(&machine, &buses)));
    let found = Found {
        settings: network::Settings::of_process(),
        gpus,
        adapters: opened.unwrap_or_default(),
        shared_memory: bounded(word(Paths { shared_memory: true, ..Paths::NONE })),
        queue: bounded(word(Paths { queue: true, ..Paths::NONE })),
    };
    report(&tree, &found)
}

/// How many GPUs this process sees.
///
/// # Errors
/// Why there is none.
pub fn gpus() -> Result<u32, String> {
    gpu::count()
}

/// The report from the files below `root` alone, without probing anything: for tests.
#[doc(hidden)]
pub fn of_files(root: &std::path::Path) -> Report {
    let not_looked = || "not probed".to_owned();
    // An interface whose files are below `root` too.
    let interface = ("eth0".to_owned(), IpAddr::from([10, 0, 0, 1]));
    let settings = network::Settings {
        interfaces: Ok(vec![interface]),
        choice: None,
        token: Ok(false),
        ports: Ok(None),
    };
    let (gpus, shared_memory, queue) = (Err(not_looked()), Err(not_looked()), Err(not_looked()));
    let adapters = adapters::Opened::default();
    report(&sysfs::Tree::below(root), &Found { settings, gpus, shared_memory, queue, adapters })
}

/// What `look` finds, if it returns in time. If it hangs in the kernel, its thread is left behind.
fn bounded<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (tell, told) = mpsc::channel();
    let started = thread::Builder::new().name("epwire doctor".to_owned()).spawn(move || {
        // Nobody listens any more if the time has expired.
        let _ = tell.send(look());
    });
    let looking = started.map_err(|error| format!("cannot start a thread for the checks: {error}"))?;
    let late = |_| Err(format!("no answer within {PATIENCE:?}"));
    told.recv_timeout(PATIENCE).map_or_else(late, |found| {
        // It has sent its result, and only has to end.
        let _ = looking.join();
        found
    })
}

/// Runs each part within its time.
fn report(tree: &sysfs::Tree, found: &Found) -> Report {
    type Look = fn(&sysfs::Tree, &Found) -> Vec<Check>;
    let parts: [(&str, Look); 4] = [
        ("thread, shm: ranks of one host", host),
        ("vmm, ipc: GPUs of one host", |tree, found| gpu::checks(tree, &found.gpus)),
        ("queue: ranks of any host, over TCP", queues),
        ("queue: by RDMA adapters, to which GPUs may post (IBGDA; not yet run on one)", adapters),
    ];
    let section = |(path, look): (&str, Look)| {
        let (tree, found) = (tree.clone(), found.clone());
        let checks = bounded(move || Ok(look(&tree, &found)));
        let checks =
            checks.unwrap_or_else(|reason| vec![Check::new("files of the kernel", Verdict::Unknown, reason)]);
        Section { path: path.to_owned(), checks }
    };
    Report { sections: parts.into_iter().map(section).collect(), matrix: None }
}

fn host(tree: &sysfs::Tree, found: &Found) -> Vec<Check> {
    let mut checks = vec![word("shared memory", &found.shared_memory)];
    checks.extend(limits::checks(tree));
    checks
}

fn queues(tree: &sysfs::Tree, found: &Found) -> Vec<Check> {
    let mut checks = vec![word("queues", &found.queue)];
    checks.extend(network::checks(tree, &found.settings));
    checks
}

fn adapters(tree: &sysfs::Tree, found: &Found) -> Vec<Check> {
    adapters::checks(tree, &gpu::buses(tree, &found.gpus), gpu::dma_buf(&found.gpus), &found.adapters)
}

fn word(name: &str, way: &Result<Duration, String>) -> Check {
    match way {
        Ok(took) => Check::ok(
            name,
            format!("two ranks of this process exchange words, {:.1} us one way", took.as_secs_f64() * 1e6),
        ),
        Err(reason) => Check::missing(name, reason),
    }
}

#[cfg(test)]
mod tests;
