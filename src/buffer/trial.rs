//! How fast the way between two ranks is, below all operations: for `examples/bench`, which puts it beside plain sockets.

use std::time::Duration;

use super::ep_buffer::Setting;
use super::fabric;
use crate::error::{Error, Failure, Result};
use crate::ffi;
use crate::group::Group;

/// Ranges and words between ranks, by queues alone. No part of the interface.
#[derive(Debug)]
pub struct Trial(ffi::Trial);

impl Trial {
    const DEADLINE: Duration = Duration::from_secs(30);

    /// For puts of up to `count` ranges of `bytes` bytes, a multiple of 8. All ranks of the group call it.
    pub fn connect_blocking(group: &Group, bytes: u64, count: u32) -> Result<Self> {
        let (rank, world) = (group.rank(), group.world());
        let invalid = |text| Error::Invalid(Failure::new("trial", rank, text));
        let fabric = fabric::of(rank, Setting::of(group).key())?;
        let trial = ffi::Trial::open(rank, world, (bytes, count), Self::DEADLINE, fabric)?;
        let others: Vec<u32> = group.active().mask.iter().filter(|peer| *peer != rank).collect();
        let mut blobs = vec![Vec::new(); world as usize];
        for &peer in &others {
            blobs[peer as usize] = trial.export(peer)?;
        }
        let blobs = group.exchange_blocking("trial", blobs).map_err(|error| invalid(error.to_string()))?;
        for &peer in &others {
            trial.connect(peer, &blobs[peer as usize])?;
        }
        Ok(Self(trial))
    }

    /// Puts `count` ranges of `bytes` bytes that begin with the number, and the number as a word behind them. Numbers of
    /// puts to a peer are not 0 and differ from the one before.
    pub fn put(&self, peer: u32, bytes: u64, count: u32, number: u64) -> Result<()> {
        self.0.put(peer, bytes, count, number)
    }

    /// Waits for the peer's put of this number, and sees that its ranges are there.
    pub fn wait(&self, peer: u32, bytes: u64, count: u32, number: u64) -> Result<()> {
        self.0.wait(peer, bytes, count, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_there_when_their_word_is() {
        let groups = Group::threads(2).unwrap();
        let play = |group: &Group, first: bool| {
            let trial = Trial::connect_blocking(group, 4096, 3).unwrap();
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
