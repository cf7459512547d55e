//! The moments measured on all ranks, and the figures that follow from them.
//!
//! An iteration lasts from the moment the first rank calls to the moment the last one has returned, on the clock that
//! all processes of a host share. It begins when all ranks have met, and they meet again before they check, so that
//! nobody's checks take a core from an iteration of another; a rank that starts late, because it waits for a core, is
//! thereby part of the time, as it is in a server. Ranks on several hosts have no such clock: there each takes the time
//! of its own call, and the longest counts.

use epwire::comm::CommConfig;
use epwire::rendezvous::Identity;
use epwire::{Comm, Group};

use crate::cpu::Meter;
use crate::{Error, ranks};

/// Nanoseconds of the host's monotonic clock.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which lives here.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Below the table where ranks are on several hosts.
pub const OWN_TIMES: &str = "the ranks are on several hosts, which share no clock: an iteration lasts as long as the longest call of a rank, \
                             by its own clock";

/// Whether ranks are on several hosts, as far as their names and kernels tell.
pub fn across_hosts(group: &Group) -> bool {
    several(&group.roster())
}

fn several(roster: &[Identity]) -> bool {
    let host = |member: &Identity| (member.host.clone(), member.process_space.clone());
    roster.iter().any(|member| host(member) != host(&roster[0]))
}

/// Where ranks wait for each other.
#[derive(Debug)]
pub struct Meeting {
    comm: Comm,
    /// How many times ranks that outnumber the cores meet before iterations that count.
    settling: u64,
}

impl Meeting {
    /// Where ranks outnumber the cores, Linux may leave one alone on a core and the others on another for up to this long.
    const SETTLES_NS: u64 = 250_000_000;

    /// All ranks call it.
    pub fn new(group: &Group) -> Result<Self, Error> {
        let mut meeting = Self { comm: Comm::create_blocking(group, CommConfig::default())?, settling: 0 };
        meeting.settling = meeting.settling_of(group)?;
        Ok(meeting)
    }

    fn settling_of(&self, group: &Group) -> Result<u64, Error> {
        const TRIED: u64 = 100;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let begin = now();
        for _ in 0..TRIED {
            self.meet()?;
        }
        let each_ns = ((now() - begin) / TRIED).max(1);
        let own = if ranks::count(group) as usize > cores { Self::SETTLES_NS / each_ns } else { 0 };
        let told =
            group.exchange_blocking("settling", vec![own.to_le_bytes().to_vec(); group.world() as usize])?;
        let counts = taken(&told).filter_map(|blob| Some(u64::from_le_bytes(blob.try_into().ok()?)));
        Ok(counts.max().unwrap_or(0))
    }

    /// All ranks call it before iterations that count, after they have waited for something else than each other.
    pub fn settle(&self) -> Result<(), Error> {
        (0..self.settling).try_for_each(|_| self.meet())
    }

    /// Returns when all ranks have called it.
    pub fn meet(&self) -> Result<(), Error> {
        complete(&self.comm.barrier_blocking()?)
    }
}

/// A rank that is missing ends the run.
pub fn complete(outcome: &epwire::Outcome) -> Result<(), Error> {
    match &outcome.record {
        Some(record) => Err(record.to_string().into()),
        None => Ok(()),
    }
}

/// What the ranks of the group have exchanged, without places that nobody has taken.
pub fn taken(blobs: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    blobs.iter().map(Vec::as_slice).filter(|blob| !blob.is_empty())
}

/// What one rank has seen.
#[derive(Debug, Default)]
pub struct Samples {
    /// Begin and end of each iteration.
    pub moments: Vec<[u64; 2]>,
    /// Wrong rows, warm-up included.
    pub wrong: u64,
    /// What this rank has used of the cores in these iterations. It stays with the rank: see [`Meter::used`].
    pub meter: Meter,
}

/// The figures of all ranks together. Times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// The rank that was the last to return most often, and in how many of 100 iterations.
    pub slowest: (usize, f64),
    pub wrong: u64,
}

impl Samples {
    /// Both together.
    pub fn with(mut self, more: Self) -> Self {
        self.moments.extend(more.moments);
        self.wrong += more.wrong;
        self.meter = self.meter.with(&more.meter);
        self
    }

    /// The figures of all ranks, on rank 0. All ranks call it.
    pub fn figures(&self, group: &Group) -> Result<Option<Figures>, Error> {
        Ok(self.gather(group)?.map(|all| figures(&all, across_hosts(group))))
    }

    /// The samples of all ranks, on rank 0. All ranks call it.
    pub fn gather(&self, group: &Group) -> Result<Option<Vec<Samples>>, Error> {
        let numbers = [self.wrong].into_iter().chain(self.moments.iter().copied().flatten());
        let mut blobs = vec![Vec::new(); group.world() as usize];
        blobs[0] = numbers.flat_map(u64::to_le_bytes).collect();
        let blobs = group.exchange_blocking("samples", blobs)?;
        Ok((group.rank() == 0).then(|| taken(&blobs).map(Self::decode).collect()))
    }

    fn decode(blob: &[u8]) -> Self {
        let mut numbers = blob.chunks_exact(8).map(|b| b.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)));
        let wrong = numbers.next().unwrap_or(0);
        let mut moments = Vec::new();
        while let (Some(begin), Some(end)) = (numbers.next(), numbers.next()) {
            moments.push([begin, end]);
        }
        Self { moments, wrong, ..Self::default() }
    }
}

/// How long each iteration lasted, in nanoseconds, and which rank returned last, or took longest by its own clock.
pub fn spans(all: &[Samples], across_hosts: bool) -> Vec<(u64, usize)> {
    let iterations = all.iter().map(|s| s.moments.len()).min().unwrap_or(0);
    let own = |i: usize| {
        let length = |[begin, end]: [u64; 2]| end.saturating_sub(begin);
        let longest = all.iter().map(|s| length(s.moments[i])).zip(0..).max_by_key(|longest| longest.0);
        longest.unwrap_or((0, 0))
    };
    let span = |i: usize| {
        if across_hosts {
            return own(i);
        }
        let begin = all.iter().map(|s| s.moments[i][0]).min().unwrap_or(0);
        let (rank, end) =
            all.iter().map(|s| s.moments[i][1]).enumerate().max_by_key(|last| last.1).unwrap_or((0, 0));
        (end.saturating_sub(begin), rank)
    };
    (0..iterations).map(span).collect()
}

/// By nearest rank: the smallest time that so many of 100 did not exceed; 0 of none.
pub fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(0.0)
}

fn figures(all: &[Samples], across_hosts: bool) -> Figures {
    let spans = spans(all, across_hosts);
    let us: Vec<f64> = spans.iter().map(|span| span.0 as f64 / 1e3).collect();
    let times_last = |rank: usize| spans.iter().filter(|span| span.1 == rank).count();
    let slowest = (0..all.len()).max_by_key(|&rank| times_last(rank)).unwrap_or(0);
    Figures {
        p50_us: percentile(&us, 50),
        p99_us: percentile(&us, 99),
        max_us: percentile(&us, 100),
        slowest: (slowest, 100.0 * times_last(slowest) as f64 / spans.len().max(1) as f64),
        wrong: all.iter().map(|s| s.wrong).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_lasts_from_the_first_call_to_the_last_return() {
        let a = Samples {
            moments: vec![[1000, 3000], [10_000, 11_000], [20_000, 20_500]],
            wrong: 1,
            ..Default::default()
        };
        let b = Samples {
            moments: vec![[1500, 5000], [9000, 10_000], [20_100, 20_900]],
            wrong: 2,
            ..Default::default()
        };
        let figures = figures(&[a, b], false);
        assert_eq!((figures.p50_us, figures.p99_us, figures.max_us), (2.0, 4.0, 4.0));
        assert_eq!((figures.slowest.0, figures.wrong), (1, 3));
    }

    #[test]
    fn across_hosts_an_iteration_lasts_as_long_as_the_longest_call() {
        let of = |moments| Samples { moments, ..Default::default() };
        // The second host was started a day later.
        let day = 86_400_000_000_000;
        let a = of(vec![[day, day + 2000], [day + 9000, day + 10_000]]);
        let b = of(vec![[1500, 2500], [9000, 14_000]]);
        let figures = figures(&[a, b], true);
        assert_eq!((figures.p50_us, figures.max_us, figures.slowest), (2.0, 5.0, (1, 50.0)));
    }

    #[test]
    fn hosts_are_told_by_name_and_kernel() {
        let of = |host, space: &str| {
            let mut member = Identity::new(0, 1, host, 2);
            member.process_space = space.to_owned();
            member
        };
        assert!(!several(&[]) && !several(&[of("a", "k"), of("a", "k")]));
        assert!(several(&[of("a", "k"), of("b", "k")]) && several(&[of("a", "k"), of("a", "l")]));
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let times = [4.0, 1.0, 3.0, 2.0];
        assert_eq!([1, 25, 50, 51, 99, 100].map(|p| percentile(&times, p)), [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn samples_reach_the_first_rank_as_they_were() {
        let groups = Group::threads(2).unwrap();
        let of = |group: &Group| {
            let rank = u64::from(group.rank());
            Samples { moments: vec![[rank, 1 << 40], [3, u64::MAX]], wrong: rank, ..Default::default() }
                .gather(group)
                .unwrap()
        };
        let all = std::thread::scope(|scope| {
            let other = scope.spawn(|| of(&groups[1]));
            let all = of(&groups[0]).unwrap();
            assert!(other.join().unwrap().is_none());
            all
        });
        assert_eq!(all[1].moments, [[1, 1 << 40], [3, u64::MAX]]);
        assert_eq!((all[0].wrong, all[1].wrong), (0, 1));
    }
}
