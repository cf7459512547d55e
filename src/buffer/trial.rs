//! Measures the path between two ranks, below all operations: for `examples/bench`, which compares it with plain
//! sockets, and for the [doctor](crate::doctor).

use std::time::{Duration, Instant};

use crate::config::{Device, Path, Paths};
use crate::error::{Error, Failure, Result};
use crate::ffi;
use crate::group::Group;
use crate::peers::Setting;
use crate::rendezvous::BootstrapError;

/// Ranges and words between ranks whose windows are host memory. Not part of the interface.
#[derive(Debug)]
pub struct Trial(ffi::Trial);

/// The other ranks, each with the reason if it is not reached.
pub(super) type Connected = Vec<(u32, Result<()>)>;

/// Connects a trial with those of the other ranks. A rank that has none takes part all the same, so that no other one
/// waits for it; its own error is returned.
pub(super) fn meet<T>(
    group: &Group,
    made: Result<T>,
    export: impl Fn(&T, u32) -> Result<Vec<u8>>,
    connect: impl Fn(&T, u32, &[u8]) -> Result<()>,
) -> Result<(T, Connected)> {
    let (rank, world) = (group.rank(), group.world());
    let others: Vec<u32> = group.active().mask.iter().filter(|peer| *peer != rank).collect();
    let ready = made.and_then(|trial| {
        let mut blobs = vec![Vec::new(); world as usize];
        for &peer in &others {
            blobs[peer as usize] = export(&trial, peer)?;
        }
        Ok((trial, blobs))
    });
    let (trial, blobs) = match ready {
        Ok((trial, blobs)) => (Ok(trial), blobs),
        Err(error) => (Err(error), vec![Vec::new(); world as usize]),
    };
    let lost = |error: BootstrapError| Error::Invalid(Failure::new("trial", rank, error.to_string()));
    let blobs = group.exchange_blocking("trial", blobs).map_err(lost)?;
    let trial = trial?;
    let connected =
        others.into_iter().map(|peer| (peer, connect(&trial, peer, &blobs[peer as usize]))).collect();
    Ok((trial, connected))
}

impl Trial {
    const DEADLINE: Duration = Duration::from_secs(30);

    /// A trial for puts of up to `count` ranges of `bytes` bytes, a multiple of 8, only by queues. All ranks of the
    /// group call it.
    pub fn connect_blocking(group: &Group, bytes: u64, count: u32) -> Result<Self> {
        let queues = Paths { queue: true, ..Paths::NONE };
        let (trial, connected) = Self::open(group, Ok(queues), bytes, count, Self::DEADLINE)?;
        connected.into_iter().try_for_each(|(_, connected)| connected)?;
        Ok(trial)
    }

    /// A trial by the paths that a buffer would take. All ranks of the group call it.
    pub(crate) fn by_chosen_paths(
        group: &Group,
        (bytes, count): (u64, u32),
        deadline: Duration,
    ) -> Result<(Self, Connected)> {
        let paths = Setting::of(group).paths(group.rank(), Paths::default());
        Self::open(group, paths, bytes, count, deadline)
    }

    /// Two ranks of this process exchange words by these paths. Returns half of the fastest round trip.
    pub(crate) fn alone(paths: Paths) -> Result<Duration> {
        const TURNS: u64 = 100;
        const DEADLINE: Duration = Duration::from_secs(5);
        let rank = |rank| {
            let fabric = Setting::alone(rank)?.fabric(rank, paths, Device::Host)?;
            ffi::Trial::open((rank, 2), (8, 1), DEADLINE, paths.to_c(), fabric)
        };
        let (first, second) = (rank(0)?, rank(1)?);
        let (to_first, to_second) = (second.export(0)?, first.export(1)?);
        first.connect(1, &to_first)?;
        second.connect(0, &to_second)?;
        let mut best = Duration::MAX;
        for number in 1..=TURNS {
            let began = Instant::now();
            first.put(1, 8, 1, number)?;
            second.wait(0, 8, 1, number)?;
            second.put(0, 8, 1, number)?;
            first.wait(1, 8, 1, number)?;
            best = best.min(began.elapsed() / 2);
        }
        Ok(best)
    }

    fn open(
        group: &Group,
        paths: Result<Paths>,
        bytes: u64,
        count: u32,
        deadline: Duration,
    ) -> Result<(Self, Connected)> {
        let make = |paths: Paths| {
            let (rank, world) = (group.rank(), group.world());
            let fabric = Setting::of(group).fabric(rank, paths, Device::Host)?;
            ffi::Trial::open((rank, world), (bytes, count), deadline, paths.to_c(), fabric)
        };
        let (trial, connected) = meet(group, paths.and_then(make), ffi::Trial::export, ffi::Trial::connect)?;
        Ok((Self(trial), connected))
    }

    /// The path by which the peer is reached.
    pub(crate) fn path(&self, peer: u32) -> Path {
        Path::from_c(self.0.path(peer), self.0.wire(peer))
    }

    /// Puts `count` ranges of `bytes` bytes that begin with the number, followed by the number as a word. The number of
    /// a put to a peer is not 0 and differs from the previous one.
    pub fn put(&self, peer: u32, bytes: u64, count: u32, number: u64) -> Result<()> {
        self.0.put(peer, bytes, count, number)
    }

    /// Waits for the peer's put with this number, and checks that its ranges have arrived.
    pub fn wait(&self, peer: u32, bytes: u64, count: u32, number: u64) -> Result<()> {
        self.0.wait(peer, bytes, count, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Wire;

    #[test]
    fn ranges_are_there_when_their_word_is() {
        let groups = Group::threads(2).unwrap();
        for (paths, path) in [
            (Paths { queue: true, ..Paths::NONE }, Path::Queue(Wire::Local)),
            (Paths { thread: true, ..Paths::NONE }, Path::Thread),
            (Paths { shared_memory: true, ..Paths::NONE }, Path::SharedMemory),
        ] {
            ranges_by(&groups, paths, path);
        }
    }

    fn ranges_by(groups: &[Group], paths: Paths, path: Path) {
        let play = |group: &Group, first: bool| {
            let (trial, connected) = Trial::open(group, Ok(paths), 4096, 3, Trial::DEADLINE).unwrap();
            connected.into_iter().for_each(|(_, connected)| connected.unwrap());
            assert_eq!(trial.path(1 - group.rank()), path);
            let peer = 1 - group.rank();
            for (number, (bytes, count)) in (1..).zip([(8, 1), (4096, 3), (4088, 2), (8, 3)]) {
                if first {
                    trial.put(peer, bytes, count, number).unwrap();
                }
                trial.wait(peer, bytes, count, number).unwrap();
                if !first {
                    trial.put(peer, bytes, count, number).unwrap();
                }
            }
            assert!(matches!(trial.put(peer, 4104, 1, 9), Err(Error::Limit(_))));
            assert!(matches!(trial.put(group.rank(), 8, 1, 9), Err(Error::State(_))));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play(&groups[1], false));
            play(&groups[0], true);
        });
    }
}
