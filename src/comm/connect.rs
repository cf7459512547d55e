//! Creating a communicator, and connecting it to its peers.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::communicator::Comm;
use super::config::CommConfig;
use super::inner::{Inner, Subset};
use crate::config::Path;
use crate::error::{Error, Failure, Result};
use crate::ffi::Floor;
use crate::group::Group;
use crate::mask::Mask;
use crate::peers::{self, End, Setting, present};
use crate::spawn_blocking::spawn_blocking;

impl Comm {
    /// Creates the communicator of every member of `group` and connects them: all members call this with equal
    /// configurations (`paths` may differ, on GPUs except for `paths.queue`), equally often and in the same order, also
    /// relative to their buffers. A field that differs is named. A member on standby creates its communicators by itself,
    /// in the same order: the [`Group::step`] that admits it begins its membership. From then on the communicator follows
    /// the group, at the same step as its buffers.
    ///
    /// Never blocks the executor. Bounded like [`EpBuffer::create`](crate::EpBuffer::create); dropping the future gives
    /// the communicator up.
    pub async fn create(group: &Group, config: CommConfig) -> Result<Self> {
        let (rank, world, setting) = (group.rank(), group.world(), Setting::of(group));
        let fields = config.fields();
        let make = move || Inner::made(rank, world, config, setting);
        Ok(Self::following(peers::meet(group, "communicator", fields, make).await?, group))
    }

    /// [`Comm::create`] for a plain thread. Not for a thread that serves an async executor.
    pub fn create_blocking(group: &Group, config: CommConfig) -> Result<Self> {
        let (rank, world, setting) = (group.rank(), group.world(), Setting::of(group));
        let fields = config.fields();
        let make = move || Inner::made(rank, world, config, setting);
        Ok(Self::following(peers::meet_blocking(group, "communicator", fields, make)?, group))
    }

    fn following(inner: Arc<Inner>, group: &Group) -> Self {
        let follower: Weak<Inner> = Arc::downgrade(&inner);
        group.follow(follower);
        Self::of(inner)
    }

    /// The bytes that `peer` needs to reach this rank's window and those of its [subsets](Comm::subset), to be passed
    /// to its [`Comm::connect`]. They contain a secret that lets processes of the same user map the windows. Waits for
    /// nobody.
    pub fn export(&self, peer: u32) -> Result<Vec<u8>> {
        self.inner.export_all(peer)
    }

    /// Maps what `peer` exported for this rank: as [`EpBuffer::connect`](crate::EpBuffer::connect), with the same errors.
    /// Never blocks the executor.
    pub async fn connect(&self, peer: u32, blob: &[u8]) -> Result<()> {
        let (inner, blob) = (self.inner.clone(), blob.to_vec());
        let connect = move || inner.connect_all_parts(peer, &blob, inner.config.deadline);
        spawn_blocking("connect", self.rank(), connect).await
    }

    /// [`Comm::connect`] on this thread. Not for a thread that serves an async executor.
    pub fn connect_blocking(&self, peer: u32, blob: &[u8]) -> Result<()> {
        self.inner.connect_all_parts(peer, blob, self.inner.config.deadline)
    }

    /// Unmaps the windows of a peer that is not active, as [`EpBuffer::disconnect`](crate::EpBuffer::disconnect) does.
    pub fn disconnect(&self, peer: u32) -> Result<()> {
        self.inner.disconnect(peer)
    }

    /// Checks that the path to `peer` carries words in both directions and that its process is alive: as
    /// [`EpBuffer::probe`](crate::EpBuffer::probe). Never blocks the executor.
    pub async fn probe(&self, peer: u32, timeout: Duration) -> Result<()> {
        let inner = self.inner.clone();
        spawn_blocking("probe", self.rank(), move || inner.ffi.probe(peer, timeout)).await
    }

    /// [`Comm::probe`] on this thread. Not for a thread that serves an async executor.
    pub fn probe_blocking(&self, peer: u32, timeout: Duration) -> Result<()> {
        self.inner.ffi.probe(peer, timeout)
    }

    /// The path by which `peer` is reached.
    pub fn path(&self, peer: u32) -> Path {
        Path::from_c(self.inner.ffi.path(peer), self.inner.ffi.wire(peer))
    }

    /// For display only: why the queues to `peer` carry nothing any more ([`Cause::Link`](crate::Cause::Link)), and a
    /// remedy, until it is connected again. `None` if they work, or if its path is not a queue. Programs must not parse
    /// it.
    pub fn trouble(&self, peer: u32) -> Option<String> {
        self.inner.ffi.trouble(peer)
    }

    /// For display only: what drains this rank's queues. `None` if the configuration permits none.
    pub fn nic(&self) -> Option<String> {
        self.inner.ffi.nic()
    }
}

impl End for Inner {
    fn exported(&self) -> Result<Vec<Vec<u8>>> {
        let blob = |peer| if peer == self.rank { Ok(Vec::new()) } else { self.export_all(peer) };
        (0..self.plan.ranks).map(blob).collect()
    }

    fn connect_present(&self, blobs: &[Vec<u8>]) -> Result<()> {
        let (began, deadline) = (Instant::now(), self.config.deadline);
        present(blobs).try_for_each(|(peer, blob)| {
            let left = peers::left(began, deadline, self.rank, peer)?;
            self.connect_all_parts(peer, blob, left)
        })
    }
}

/// The length of what precedes each part of a blob: number and mask of the subset, 0 and empty for the communicator
/// itself, and the length.
const HEADER: usize = 8 + MASK;
const MASK: usize = size_of_val(Mask::EMPTY.words());

/// What a blob has of a communicator.
#[derive(Debug, Clone, PartialEq)]
struct Part<'a> {
    number: u32,
    mask: Mask,
    bytes: &'a [u8],
}

impl Inner {
    fn disconnect(&self, peer: u32) -> Result<()> {
        self.ffi.disconnect(peer)?;
        self.subsets().iter().try_for_each(|subset| match subset.index_of(peer) {
            Some(index) => subset.inner.disconnect(index),
            None => Ok(()),
        })
    }

    /// The blobs of this communicator and of its subsets that include the peer.
    pub(super) fn export_all(&self, peer: u32) -> Result<Vec<u8>> {
        let mut blob = part(0, &Mask::EMPTY, &self.ffi.export(peer)?);
        for subset in self.subsets() {
            if let Some(index) = subset.index_of(peer) {
                blob.extend(part(subset.number, &subset.mask, &subset.inner.export_all(index)?));
            }
        }
        Ok(blob)
    }

    /// Connects with what `export_all` has exported. A subset that the peer has not created yet is [`Error::State`].
    pub(super) fn connect_all_parts(&self, peer: u32, blob: &[u8], timeout: Duration) -> Result<()> {
        let failure = |text: String| Failure { peer: Some(peer), ..Failure::new("connect", self.rank, text) };
        let parts = parts(blob).ok_or_else(|| {
            Error::Invalid(failure("the blob was not exported by a communicator".to_owned()))
        })?;
        let of = |number: u32, mask: &Mask| {
            parts.iter().find(|part| (part.number, part.mask) == (number, *mask)).map(|part| part.bytes)
        };
        let subsets = self.subsets();
        // When a rank drops one of several subsets with the same mask, the numbers of the later ones change there.
        let alike = |mask: &Mask| {
            let theirs = parts.iter().filter(|part| part.number > 0 && part.mask == *mask).count();
            theirs == subsets.iter().filter(|own| own.mask == *mask).count()
        };
        let began = Instant::now();
        self.ffi.connect(peer, of(0, &Mask::EMPTY).unwrap_or_default(), timeout)?;
        for subset in &subsets {
            let Some(index) = subset.index_of(peer) else { continue };
            let Subset { number, mask, .. } = subset;
            let Some(bytes) = of(*number, mask).filter(|_| alike(mask)) else {
                let text = format!(
                    "it has not as many subsets of ranks {mask} of this communicator as this rank, or lacks number {number}"
                );
                return Err(Error::State(failure(text)));
            };
            let left = peers::left(began, timeout, self.rank, peer)?;
            subset.inner.connect_all_parts(index, bytes, left)?;
        }
        Ok(())
    }
}

fn part(number: u32, mask: &Mask, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32; // EPW_BLOB_MAX at most
    let mask: Vec<u8> = mask.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    [&number.to_le_bytes()[..], &length.to_le_bytes()[..], &mask, bytes].concat()
}

/// `None` if the blob is invalid.
fn parts(mut blob: &[u8]) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    while !blob.is_empty() {
        let (header, rest) = blob.split_at_checked(HEADER)?;
        let (number, header) = header.split_first_chunk()?;
        let (length, mask) = header.split_first_chunk()?;
        let mut words = mask.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let mask = Mask::from_words(std::array::from_fn(|_| words.next().unwrap_or_default()));
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        parts.push(Part { number: u32::from_le_bytes(*number), mask, bytes });
        blob = rest;
    }
    (parts.first()?.number == 0).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_come_apart_as_they_were_put_together() {
        let some: Mask = [0, 3, 1000].into_iter().collect();
        let all = [(0, Mask::EMPTY, &b"own"[..]), (1, some, &b""[..]), (2, some, &b"subset"[..])];
        let blob: Vec<u8> = all.iter().flat_map(|(number, mask, bytes)| part(*number, mask, bytes)).collect();
        assert_eq!(
            parts(&blob),
            Some(all.map(|(number, mask, bytes)| Part { number, mask, bytes }).to_vec())
        );
        for wrong in [&b""[..], &blob[1..], &blob[..blob.len() - 1], b"short"] {
            assert_eq!(parts(wrong), None, "{wrong:?}");
        }
        let comm = Comm::unconnected(0, 2, CommConfig::default()).unwrap();
        let error = comm.connect_blocking(1, b"no blob").unwrap_err();
        assert!(matches!(&error, Error::Invalid(failure) if failure.peer == Some(1)), "{error}");
    }
}
