//! The times of the GPUs themselves: to store to all peers at once, to signal one, to launch a kernel.

use std::ffi::c_char;
use std::time::Duration;

use epwire::Group;
use epwire::cudarc::driver::{result, sys};

use super::gpu::{Gpu, between, gather, meet};
use crate::samples::percentile;
use crate::{Error, ranks};

/// The parts of a floor, the same on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Bytes a second that each GPU sends while all store to all others; infinite where there are none.
    pub rate: f64,
    /// A word to a peer, one way, in microseconds; 0 without peers.
    pub signal_us: f64,
    /// From kernel to kernel, with the timing of the run, in microseconds.
    pub gap_us: f64,
}

/// Bytes that a rank stores to each peer in a launch: beyond what a cache holds.
const STORE_BYTES: u64 = 32 << 20;
/// Launches that are timed together.
const MOVES: u32 = 8;
const ROUNDS: u32 = 5;
/// Numbers that go out and come back.
const PINGS: u32 = 2000;
/// Longest wait for one of them.
const PING_LIMIT: Duration = Duration::from_secs(5);
const LAUNCHES: u32 = 50;

impl Machine {
    /// All ranks call it.
    pub fn probe(gpu: &Gpu, group: &Group, graph: bool) -> Result<Self, Error> {
        let gap = gap_ns(gpu, graph)?;
        let (mut rate, mut signal) = (f64::INFINITY, 0.0);
        if ranks::count(group) > 1 {
            let area = Area::new(gpu, group)?;
            rate = store_rate(gpu, group, &area, gpu.multiprocessors)?;
            signal = signal_ns(gpu, group, &area)?;
            area.close(group)?;
        }
        let all = gather(group, &[gap, rate, signal])?;
        let of = |i: usize| all.iter().filter_map(move |numbers| numbers.get(i)).copied();
        Ok(Self {
            rate: of(1).fold(f64::INFINITY, f64::min),
            signal_us: of(2).fold(0.0, f64::max) / 1e3,
            gap_us: of(0).fold(0.0, f64::max) / 1e3,
        })
    }

    /// Microseconds for this many bytes that the busiest rank sends or receives.
    pub fn wire_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.rate * 1e6
    }

    /// Microseconds of this many operations that move nothing.
    pub fn idle_us(&self, operations: u32) -> f64 {
        f64::from(operations) * (self.signal_us + self.gap_us)
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rate, signal_us, gap_us } = self;
        if rate.is_finite() {
            write!(f, "stores of every GPU to all peers at once: {:.1} GB/s sent; ", rate / 1e9)?;
            write!(f, "a signal one way: {signal_us:.2} us; ")?;
        }
        write!(f, "from kernel to kernel: {gap_us:.2} us")
    }
}

/// The median of some rounds of launches back to back.
fn gap_ns(gpu: &Gpu, graph: bool) -> Result<f64, Error> {
    let enqueue = || (0..LAUNCHES).try_for_each(|_| gpu.launch_empty());
    let captured = if graph { Some(gpu.capture(enqueue)?) } else { None };
    let mut times = Vec::new();
    for _ in 0..2 * ROUNDS + 1 {
        let run = || match &captured {
            Some(graph) => Ok(graph.launch()?),
            None => enqueue(),
        };
        run()?; // so that the GPU is busy when the first event is enqueued
        let begin = gpu.mark()?;
        run()?;
        let end = gpu.mark()?;
        gpu.wait(&end)?;
        times.push(between(&begin, &end)? / f64::from(LAUNCHES));
    }
    Ok(percentile(&times, 50))
}

/// Bytes a second that each GPU sends while all store to all others with so many SMs.
pub fn store_rate(gpu: &Gpu, group: &Group, area: &Area, sms: u32) -> Result<f64, Error> {
    let peers: Vec<u64> =
        area.peers(group).map(|peer| peer + Area::WORDS + u64::from(group.rank()) * STORE_BYTES).collect();
    let count = u32::try_from(peers.len())?;
    let table = gpu.zeroed(8 * peers.len())?;
    // SAFETY: as many bytes as the addresses take.
    unsafe { gpu.upload(gpu.address(&table), &peers) }?;
    rate(gpu, group, u64::from(count) * STORE_BYTES, || {
        // SAFETY: every address is that of this rank's part, STORE_BYTES long, of a peer's area, which is mapped.
        unsafe { gpu.launch_store(gpu.address(&table), count, STORE_BYTES, sms) }
    })
}

/// Bytes a second of the slowest GPU while all run launches that move `bytes` each: the best of some rounds, so that a
/// busy moment lowers no floor. All ranks call it.
pub fn rate(
    gpu: &Gpu,
    group: &Group,
    bytes: u64,
    launch: impl Fn() -> Result<(), Error>,
) -> Result<f64, Error> {
    let run = || (0..MOVES).try_for_each(|_| launch());
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        meet(group)?;
        run()?;
        let begin = gpu.mark()?;
        run()?;
        let end = gpu.mark()?;
        // The others move for as long as they are timed.
        run()?;
        gpu.wait(&end)?;
        let moved = f64::from(MOVES) * bytes as f64;
        let rates = gather(group, &[moved / between(&begin, &end)? * 1e9])?;
        best = best.max(rates.iter().flatten().copied().fold(f64::INFINITY, f64::min));
    }
    gpu.finish()?;
    Ok(best)
}

/// Half of what a number takes from the first rank to the second and back. 0 on the others.
fn signal_ns(gpu: &Gpu, group: &Group, area: &Area) -> Result<f64, Error> {
    meet(group)?; // the words are zero
    let rank = group.rank();
    let mut seen = [0u64, 1];
    if rank < 2 {
        let peer = area.at.get(1 - rank as usize).and_then(|mapped| mapped.as_ref());
        let peer = peer.ok_or("the peer's area is not mapped")?.0;
        let result = gpu.zeroed(16)?;
        let address = gpu.address(&result);
        // SAFETY: the first words of both areas, and memory of 16 bytes.
        unsafe { gpu.launch_ping([area.own, peer, address], rank == 0, PINGS, PING_LIMIT) }?;
        // SAFETY: as above; any bits are numbers.
        unsafe { gpu.download(&mut seen, address) }?;
    }
    if seen[1] != 1 {
        return Err(format!("rank {rank}: a signal has not come within {PING_LIMIT:?}").into());
    }
    Ok(if rank == 0 { seen[0] as f64 / f64::from(PINGS - 1) / 2.0 } else { 0.0 })
}

/// Memory of this rank into which every other stores, and the others' as mapped here.
pub struct Area {
    own: u64,
    /// By rank; none for this one.
    at: Vec<Option<Mapped>>,
}

impl Area {
    /// Bytes before the parts of the ranks.
    const WORDS: u64 = 128;

    /// All ranks call it.
    pub fn new(gpu: &Gpu, group: &Group) -> Result<Self, Error> {
        let bytes = Self::WORDS + u64::from(group.world()) * STORE_BYTES;
        // SAFETY: freed when the area is dropped. cudarc's own memory comes from a pool that no handle can be made of.
        let own = unsafe { result::malloc_sync(usize::try_from(bytes)?) }?;
        let mut area = Self { own, at: Vec::new() };
        // SAFETY: the words lie in the memory allocated above.
        unsafe { gpu.upload(own, &[0u8; Self::WORDS as usize]) }?;
        gpu.finish()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE] };
        // SAFETY: writes the handle, which lives here.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, own) }.result()?;
        let blob: Vec<u8> = handle.reserved.iter().map(|byte| byte.cast_unsigned()).collect();
        let blobs = group.exchange_blocking("probe", vec![blob; group.world() as usize])?;
        for (rank, blob) in (0u32..).zip(blobs) {
            let reached = rank != group.rank() && !blob.is_empty();
            area.at.push(if reached { Some(Mapped::open(rank, &blob)?) } else { None });
        }
        Ok(area)
    }

    /// No rank frees memory that another still has mapped. All ranks call it.
    pub fn close(mut self, group: &Group) -> Result<(), Error> {
        self.at.clear();
        meet(group)
    }

    /// The areas of the others, the next rank's first, so that not all store to the same one at a time.
    fn peers(&self, group: &Group) -> impl Iterator<Item = u64> {
        let (rank, world) = (group.rank() as usize, group.world() as usize);
        (1..world).filter_map(move |i| Some(self.at.get((rank + i) % world)?.as_ref()?.0))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; after `close` it is mapped nowhere, and without it the process ends. A context that is lost has nothing to free.
        let _ = unsafe { result::free_sync(self.own) };
    }
}

/// Bytes of a handle.
const HANDLE: usize = size_of::<sys::CUipcMemHandle>();

/// A peer's area.
struct Mapped(u64);

impl Mapped {
    fn open(rank: u32, blob: &[u8]) -> Result<Self, Error> {
        let bytes: [u8; HANDLE] =
            blob.try_into().map_err(|_| format!("rank {rank} has sent no handle of its memory"))?;
        let handle = sys::CUipcMemHandle { reserved: bytes.map(|byte| byte as c_char) };
        let lazily = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: writes an address, which lives here; a handle that is none is refused by the driver.
        let mapped = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, lazily) }.result();
        mapped
            .map_err(|error| format!("cannot map the memory of rank {rank} to measure the floor: {error}"))?;
        Ok(Self(address))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, and no kernel that stores there is left. An error leaves it to the end of the process.
        let _ = unsafe { sys::cuIpcCloseMemHandle(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_bytes_signals_and_launches() {
        let machine = Machine { rate: 350e9, signal_us: 1.25, gap_us: 2.0 };
        assert_eq!((machine.wire_us(3_500_000), machine.idle_us(2)), (10.0, 2.0 * 3.25));
        let alone = Machine { rate: f64::INFINITY, signal_us: 0.0, gap_us: 2.0 };
        assert_eq!(
            (alone.wire_us(0) + alone.idle_us(1), alone.to_string().as_str()),
            (2.0, "from kernel to kernel: 2.00 us")
        );
    }

    #[test]
    fn the_source_has_the_kernels_that_are_looked_up() {
        let source = include_str!("probe.ptx");
        for name in ["empty", "pause", "stamp", "store", "read", "copy", "ping"] {
            assert!(source.contains(&format!(".visible .entry {name}(")), "{name}");
        }
    }
}
