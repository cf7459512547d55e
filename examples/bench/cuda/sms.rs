//! What a number of SMs can move: the floor of operations that are given few.

use epwire::Group;

use super::gpu::{CHUNK, Gpu};
use super::probe::{Area, rate, store_rate};
use crate::floor::Traffic;
use crate::report::Rates;
use crate::{Error, ranks};

/// Most bytes of the memory in which reading, writing and copying are measured: far more than a cache holds.
const MEMORY: u64 = 256 << 20;

impl Rates {
    /// `sms`: 0 for all. `extent`: bytes of the operation's memory. All ranks call it.
    pub fn probe(gpu: &Gpu, group: &Group, sms: u32, extent: u64) -> Result<Self, Error> {
        let sms = if sms == 0 { gpu.multiprocessors } else { sms.min(gpu.multiprocessors) };
        let each = CHUNK * u64::from(sms);
        let half = (extent.min(MEMORY) / 2).next_multiple_of(each);
        let memory = gpu.zeroed(usize::try_from(2 * half)?)?;
        let (from, to) = (gpu.address(&memory), gpu.address(&memory) + half);
        let table = gpu.zeroed(8)?;
        // SAFETY: one address; what is read, written and copied lies in the memory above, which nobody has written to when it is
        // read.
        let local = unsafe {
            gpu.upload(gpu.address(&table), &[from])?;
            [
                rate(gpu, group, 2 * half, || gpu.launch_read(from, 2 * half, sms))?,
                rate(gpu, group, half, || gpu.launch_copy(from, to, half, sms))?,
                rate(gpu, group, 2 * half, || gpu.launch_store(gpu.address(&table), 1, 2 * half, sms))?,
            ]
        };
        let mut peers_gbs = None;
        if ranks::count(group) > 1 {
            let area = Area::new(gpu, group)?;
            peers_gbs = Some(store_rate(gpu, group, &area, sms)? / 1e9);
            area.close(group)?;
        }
        let [read_gbs, copy_gbs, write_gbs] = local.map(|rate| rate / 1e9);
        Ok(Self { read_gbs, write_gbs, copy_gbs, peers_gbs })
    }

    /// Microseconds in which the SMs of a rank move its share of `traffic`, and `sent` bytes to peers: what is written is a
    /// copy of as much that is read, the rest of either is read or written alone, all as fast as in memory of its own.
    pub fn floor_us(&self, traffic: &Traffic, ranks: usize, sent: u64) -> f64 {
        let [read, written] = [traffic.read, traffic.written].map(|bytes| bytes as f64 / ranks as f64);
        let copied = read.min(written);
        let alone = if read > written {
            (read - copied) / self.read_gbs
        } else {
            (written - copied) / self.write_gbs
        };
        let to_peers = self.peers_gbs.map_or(0.0, |rate| sent as f64 / rate);
        (copied / self.copy_gbs + alone).max(to_peers) / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates =
        Rates { read_gbs: 2000.0, write_gbs: 1000.0, copy_gbs: 800.0, peers_gbs: Some(300.0) };

    #[test]
    fn the_floor_copies_what_it_can_and_moves_the_rest_alone() {
        let traffic = |read, written| Traffic { read, written, extent: 0 };
        // Of two ranks each: 8 MB copied, 4 MB read alone; the same with 4 MB written alone.
        assert_eq!(RATES.floor_us(&traffic(24_000_000, 16_000_000), 2, 0), 10.0 + 2.0);
        assert_eq!(RATES.floor_us(&traffic(16_000_000, 24_000_000), 2, 0), 10.0 + 4.0);
    }

    #[test]
    fn stores_to_peers_bound_it_where_they_are_slower() {
        let traffic = Traffic { read: 16_000_000, written: 16_000_000, extent: 0 };
        assert_eq!(RATES.floor_us(&traffic, 2, 6_000_000), 20.0);
        let alone = Rates { peers_gbs: None, ..RATES };
        assert_eq!(alone.floor_us(&traffic, 2, 6_000_000), 10.0);
    }
}
