//! A rank's use of the machine's cores: by its process, and of that by the threads that drain its queues.

use std::fs;
use std::time::Duration;

use epwire::Group;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::samples::{now, taken};

/// Names of the C core's threads that drain queues: the software NIC's, and those that attend adapters.
const OF_QUEUES: [&str; 3] = ["epw-nic", "epw-attend", "epw-watch"];

/// How long ranks stay idle for [`Used::idle`].
const IDLE: Duration = Duration::from_millis(500);

/// Clocks of a process and of its threads, which take less than a microsecond to read.
#[derive(Debug, Clone)]
pub struct Clocks {
    queues: Vec<libc::clockid_t>,
}

/// Nanoseconds so far: of time, of all threads of this process, and of those that drain queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    at: u64,
    process: u64,
    queues: u64,
}

impl Clocks {
    /// The clocks of the threads that drain queues now; they live as long as the buffers.
    pub fn find() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let of_queues = tasks.filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let thread: libc::pid_t = task.file_name().to_str()?.parse().ok()?;
            OF_QUEUES.contains(&name.trim()).then_some(of_thread(thread))
        });
        Self { queues: of_queues.collect() }
    }

    pub fn now(&self) -> Moment {
        let queues = self.queues.iter().map(|clock| read(*clock)).sum();
        Moment { at: now(), process: read(libc::CLOCK_PROCESS_CPUTIME_ID), queues }
    }
}

/// As the kernel numbers them: what pthread_getcpuclockid gives.
fn of_thread(thread: libc::pid_t) -> libc::clockid_t {
    const OF_ONE_THREAD: libc::clockid_t = 4;
    const AS_SCHEDULED: libc::clockid_t = 2;
    !thread << 3 | OF_ONE_THREAD | AS_SCHEDULED
}

/// 0 of a thread that has ended.
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which lives here.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Of one core, where 1 is all of it: the mean of all ranks, over the time between moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// The rank's process.
    pub cpu: f64,
    /// Of that, the threads that drain its queues; 0 if there are none.
    pub queue_cpu: f64,
}

/// What this rank has used of a core so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    wall: u64,
    process: u64,
    queues: u64,
}

impl Meter {
    /// Adds what has been used between two moments.
    pub fn add(&mut self, begin: Moment, end: Moment) {
        self.wall += end.at.saturating_sub(begin.at);
        self.process += end.process.saturating_sub(begin.process);
        self.queues += end.queues.saturating_sub(begin.queues);
    }

    /// Both together.
    pub fn with(self, more: &Self) -> Self {
        Self {
            wall: self.wall + more.wall,
            process: self.process + more.process,
            queues: self.queues + more.queues,
        }
    }

    /// The mean of all ranks, on rank 0; elsewhere nothing. All ranks call it.
    pub fn used(&self, group: &Group) -> Result<Option<Used>, Error> {
        let of_rank = [self.process, self.queues].map(|ns| ns as f64 / self.wall.max(1) as f64);
        let mut blobs = vec![Vec::new(); group.world() as usize];
        blobs[0] = of_rank.iter().flat_map(|share| share.to_le_bytes()).collect();
        let told = group.exchange_blocking("cores", blobs)?;
        if group.rank() != 0 {
            return Ok(None);
        }
        let number =
            |blob: &[u8], at: usize| Some(f64::from_le_bytes(blob.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let mean = |at| {
            let shares: Vec<f64> = taken(&told).filter_map(|blob| number(blob, at)).collect();
            shares.iter().sum::<f64>() / shares.len().max(1) as f64
        };
        Ok(Some(Used { cpu: mean(0), queue_cpu: mean(1) }))
    }
}

/// What connected but idle ranks use, on rank 0. All ranks call it, and meet before and after.
pub fn idle(group: &Group, meet: impl Fn() -> Result<(), Error>) -> Result<Option<Used>, Error> {
    let (clocks, mut meter) = (Clocks::find(), Meter::default());
    meet()?;
    let begin = clocks.now();
    std::thread::sleep(IDLE);
    meter.add(begin, clocks.now());
    meet()?;
    meter.used(group)
}

/// Of one core, in words.
pub fn words(used: &Used) -> String {
    format!("{:.2} ({:.2})", used.cpu, used.queue_cpu)
}

/// The line below the table.
pub fn idle_words(used: &Used) -> String {
    let [process, queues] = [used.cpu, used.queue_cpu].map(|share| 100.0 * share);
    format!("idle, a rank uses {process:.2} % of a core, its queues' threads {queues:.2} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of this process may run meanwhile, so that there is no upper bound.
    #[test]
    fn a_process_and_its_threads_have_clocks() {
        // SAFETY: it has no requirements.
        let own = of_thread(unsafe { libc::gettid() });
        let (clocks, mut meter) = (Clocks { queues: vec![own] }, Meter::default());
        let begin = clocks.now();
        while read(own) - begin.queues < 5_000_000 {}
        meter.add(begin, clocks.now());
        // The clocks are read one after the other, and need not run alike to the microsecond.
        const APART: u64 = 1_000_000;
        assert!(meter.queues >= 5_000_000 && meter.process + APART >= meter.queues, "{meter:?}");
        assert!(meter.wall + APART >= 5_000_000, "{meter:?}");
    }

    #[test]
    fn threads_that_drain_queues_are_found_by_name() {
        let before = Clocks::find().queues.len();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("epw-nic".to_owned());
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread.spawn(move || tell.send(()).map(|()| gone.recv().is_ok())).unwrap();
        told.recv().unwrap();
        assert!(Clocks::find().queues.len() > before.saturating_sub(1), "{before}");
        go.send(()).unwrap();
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn the_first_rank_has_the_mean() {
        let groups = Group::threads(2).unwrap();
        let meter = |process| Meter { wall: 1000, process, queues: process / 2 };
        let used = std::thread::scope(|scope| {
            let other = scope.spawn(|| meter(1500).used(&groups[1]).unwrap());
            let used = meter(500).used(&groups[0]).unwrap();
            assert_eq!(other.join().unwrap(), None);
            used
        });
        assert_eq!(used, Some(Used { cpu: 1.0, queue_cpu: 0.5 }));
        assert_eq!(words(&used.unwrap()), "1.00 (0.50)");
        assert!(idle_words(&used.unwrap()).ends_with("uses 100.00 % of a core, its queues' threads 50.00 %"));
    }
}
