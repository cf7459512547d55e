//! The doctor: which prerequisites of each path this machine meets, and how fast ranks reach each other.
//!
//! [`examine`] probes each prerequisite of each path separately; for each it reports what was found, and what to do
//! about it. [`Matrix::measure_blocking`], called by all ranks of a group, finds and measures the path that a buffer
//! would take between every two of them. `examples/doctor` prints both.
//!
//! Nothing here needs privileges or changes the machine. What does not answer in time is reported with that reason.
//!
//! ```
//! let report = epwire::doctor::examine();
//! println!("{report}");
//! assert!(report.to_json().starts_with('{'));
//! ```

mod adapter_files;
mod adapters;
mod bounded;
mod bus;
mod gpu;
mod limits;
mod matrix;
mod network;
mod report;
mod sysfs;

use std::net::IpAddr;
use std::time::Duration;

use self::bounded::{Looking, begin};
use crate::buffer::Trial;
use crate::config::Paths;

pub use matrix::{Cell, Matrix};
pub use report::{Check, Report, Section, Verdict};

/// How long one look may take: opening a GPU takes seconds, reading a file of a hung driver never ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found apart from files.
#[derive(Clone)]
struct Found {
    settings: network::Settings,
    gpus: Result<Vec<gpu::Gpu>, String>,
    /// Words between two ranks of this process, by shared memory and by queues: how long one took, or why none arrived.
    shared_memory: Result<Duration, String>,
    queue: Result<Duration, String>,
    adapters: adapters::Process,
}

/// Examines the machine as this process sees it. Takes a moment, some seconds if there are GPUs.
///
/// What does not answer within 30 seconds is reported with that reason, and an adapter that hangs costs no other one its
/// checks. At most six such limits follow each other: all of it ends within three minutes, whatever hangs.
pub fn examine() -> Report {
    let settings = begin(PATIENCE, network::Settings::of_process);
    let gpus = begin(PATIENCE, gpu::found);
    let settings = settings.end().unwrap_or_else(network::Settings::unknown);
    let gpus = gpus.end().and_then(|gpus| gpus);
    // One after the other: these are timed.
    let word = |paths: Paths| {
        let way = begin(PATIENCE, move || Trial::alone(paths).map_err(|error| error.to_string()));
        way.end().and_then(|way| way)
    };
    let shared_memory = word(Paths { shared_memory: true, ..Paths::NONE });
    let queue = word(Paths { queue: true, ..Paths::NONE });
    let adapters = adapters::Process::this();
    report(&sysfs::Tree::machine(), &Found { settings, gpus, shared_memory, queue, adapters }, PATIENCE)
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
    let settings =
        network::Settings { interfaces: Ok(vec![interface]), choice: None, token: Ok(None), ports: Ok(None) };
    let (gpus, shared_memory, queue) = (Err(not_looked()), Err(not_looked()), Err(not_looked()));
    let adapters = adapters::Process::that_opens_none();
    report(&sysfs::Tree::below(root), &Found { settings, gpus, shared_memory, queue, adapters }, PATIENCE)
}

/// Takes `patience` three times at most, see [`adapters::checks`]; the other parts are examined meanwhile.
fn report(tree: &sysfs::Tree, found: &Found, patience: Duration) -> Report {
    type Look = fn(&sysfs::Tree, &Found) -> Vec<Check>;
    let parts: [(&str, Look); 3] = [
        ("thread, shm: ranks of one host", host),
        ("vmm, ipc: GPUs of one host", |tree, found| gpu::checks(tree, &found.gpus)),
        ("queue: ranks of any host, over TCP", queues),
    ];
    let parts = parts.map(|(path, look)| {
        let (tree, found) = (tree.clone(), found.clone());
        (path, begin(patience, move || look(&tree, &found)))
    });
    let adapters = adapters::checks(tree, &found.gpus, &found.adapters, patience).unwrap_or_else(unread);
    let section = |path: &str, checks| Section { path: path.to_owned(), checks };
    let end = |(path, looking): (&str, Looking<_>)| section(path, looking.end().unwrap_or_else(unread));
    let last =
        section("queue: by RDMA adapters, to which GPUs may post (IBGDA; not yet run on one)", adapters);
    let sections = parts.into_iter().map(end).chain([last]);
    Report { sections: sections.collect(), matrix: None }
}

/// The only check of a part that did not answer, for this reason.
fn unread(reason: String) -> Vec<Check> {
    vec![Check::unknown("files of the kernel", reason)]
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
