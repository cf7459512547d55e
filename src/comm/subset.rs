//! Making communicators of some of the ranks of another one.

use std::sync::Arc;

use super::communicator::Comm;
use super::config::CommConfig;
use super::inner::{Inner, index_of, renumbered};
use super::work::Work;
use crate::config::Device;
use crate::error::{Error, Failure, Result};
use crate::ffi::Floor;
use crate::group::Follower;
use crate::mask::Mask;
use crate::outcome::Outcome;
use crate::peers;
use crate::rendezvous::Decision;
use crate::rendezvous::driver::block_on;
use crate::spawn_blocking::spawn_blocking;
use crate::sys;

const OP: &str = "subset";

impl Comm {
    /// A communicator of the ranks of `mask`, renumbered from 0 in ascending order, with this one's configuration. All
    /// members of this communicator call it, in the same order relative to its collectives. Each passes a mask that
    /// includes it, or one that does not: then the result is `None`. All ranks in a mask pass that same mask; different
    /// masks must not overlap (`MPI_Comm_split`, `ncclCommSplit`).
    ///
    /// Needs no rendezvous: ranks exchange what they need by collectives of this communicator. The subset has a window
    /// of its own, which its ranks map from each other, and queues with connections of its own to those behind queues.
    /// The subset follows the membership of this one, whose members are its members if they are in the mask, and keeps
    /// this communicator alive. A member on standby makes the subsets that still exist, those of the same mask in the
    /// same order, which needs no other rank.
    ///
    /// These collectives have the deadline of this communicator, including that of [`Comm::with_deadline`]. The subset's
    /// own operations have the [configuration's](CommConfig::deadline).
    ///
    /// On a GPU the collectives run on a stream of the communicator's own, after all earlier calls on any stream, and
    /// have ended when this returns. They touch no stream of the program, so streams may be under capture meanwhile.
    /// Replays of graphs that contain operations of the communicator are not ordered: wait for them before. The subset
    /// takes SMs of its own, [`CommConfig::sms`] of them.
    ///
    /// Never blocks the executor.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a mask with ranks that do not exist; [`Error::Mismatch`] if masks overlap;
    /// [`Error::Peer`] if a member is missing, or could not create or connect its part; those of [`Comm::connect`];
    /// [`Error::Timeout`] if this rank's GPU is not done with what was enqueued before within 8 deadlines. All ranks of
    /// the mask get an error then.
    pub async fn subset(&self, mask: &Mask) -> Result<Option<Self>> {
        self.subset_with(mask, self.config().clone()).await
    }

    /// [`Comm::subset`] with a configuration of its own, equal on all ranks of the mask. A communicator on the host can
    /// make one on GPUs in this way, and one on GPUs can make one on the host.
    pub async fn subset_with(&self, mask: &Mask, config: CommConfig) -> Result<Option<Self>> {
        let (rank, ranks) = (self.rank(), self.ranks());
        if !mask.fits(ranks) {
            let text = format!("mask contains ranks outside the communicator's {ranks}");
            return Err(Error::Invalid(Failure::new(OP, rank, text)));
        }
        let now = self.membership()?;
        let (index, places) = (index_of(mask, rank), mask.iter().collect::<Vec<_>>());
        let made = match index {
            None => Ok(None),
            Some(index) => {
                let size = mask.len() as u32;
                let setting = self.inner.setting.of_subset(|ranks| renumbered(mask, ranks));
                let make = move || Inner::made(index, size, config, setting);
                let made = spawn_blocking(OP, rank, make).await;
                made.map(|inner| Some(inner.below(&self.inner)))
                    .map_err(|error| error.renumbered(OP, &places))
            }
        };
        if now.epoch == 0 {
            // On standby: members connect it when they connect this communicator.
            let inner = made?;
            return Ok(inner.map(|inner| {
                self.inner.adopt(*mask, &inner);
                Self::of(inner)
            }));
        }
        // Each rank takes all of these turns, whatever their results, because the others wait for each.
        let mut turns = Turns { comm: self, out: false };
        let first = turns.agree(mask, &now.active, made.is_ok()).await;
        let joined = match &made {
            Ok(Some(inner)) if first.is_ok() => turns.join(mask, inner).await,
            _ => turns.swap(&vec![Vec::new(); ranks as usize]).await.map(drop),
        };
        let well = made.is_ok() && first.is_ok() && joined.is_ok();
        let last = turns.agree(mask, &now.active, well).await;
        let made = made?;
        if let Err(error) = first.and(joined).and(last) {
            // It may wait for the GPU.
            let destroy = move || {
                drop(made);
                Ok(())
            };
            spawn_blocking(OP, rank, destroy).await?;
            return Err(error);
        }
        let Some(inner) = made else { return Ok(None) };
        self.inner.adopt(*mask, &inner);
        let decision = Decision { mask: renumbered(mask, &now.active), epoch: now.epoch, step: now.step };
        let begun = inner.clone();
        let begun = spawn_blocking(OP, rank, move || Follower::begin(&*begun, &decision)).await;
        begun.map_err(|error| error.renumbered(OP, &places))?;
        Ok(Some(Self::of(inner)))
    }

    /// [`Comm::subset`] for a plain thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    /// As for [`Comm::subset`]; and [`BootstrapError::BlockingInAsync`](crate::BootstrapError::BlockingInAsync), as
    /// [`Error::Bootstrap`], on any thread of tokio, those of its `spawn_blocking` among them.
    pub fn subset_blocking(&self, mask: &Mask) -> Result<Option<Self>> {
        block_on(OP, self.subset(mask))
    }

    /// [`Comm::subset_with`] for a plain thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    /// As for [`Comm::subset_blocking`].
    pub fn subset_with_blocking(&self, mask: &Mask, config: CommConfig) -> Result<Option<Self>> {
        block_on(OP, self.subset_with(mask, config))
    }
}

/// What the ranks tell each other.
struct Turns<'a> {
    comm: &'a Comm,
    /// An exchange on a GPU has failed here, so a later one might meet another one of the others: they find this rank
    /// missing.
    out: bool,
}

impl Turns<'_> {
    /// Exchanges the blobs for this rank's part with the others of the mask, and connects to them.
    async fn join(&mut self, mask: &Mask, inner: &Arc<Inner>) -> Result<()> {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let mut blobs = vec![Vec::new(); ranks as usize];
        let mut exported = Ok(());
        for (index, peer) in (0..).zip(mask.iter()).filter(|(_, peer)| *peer != rank) {
            match inner.ffi.export(index) {
                Ok(blob) => blobs[peer as usize] = blob,
                Err(error) => exported = Err(error.renumbered(OP, &mask.iter().collect::<Vec<_>>())),
            }
        }
        // In any case, because the others wait for it.
        let received = self.swap(&blobs).await?;
        exported?;
        let of: Vec<Vec<u8>> = mask.iter().map(|peer| received[peer as usize].clone()).collect();
        let inner = inner.clone();
        let connect = move || {
            let present = peers::present(&of);
            peers::connect_all(&*inner.ffi, inner.rank, inner.config.deadline, present)
        };
        let places: Vec<u32> = mask.iter().collect();
        spawn_blocking(OP, rank, connect).await.map_err(|error| error.renumbered(OP, &places))
    }

    /// Whether everything is in order everywhere: the ranks of this mask have the same one, and have got this far.
    async fn agree(&mut self, mask: &Mask, active: &Mask, well: bool) -> Result<()> {
        const WORDS: usize = Mask::EMPTY.words().len();
        let rank = self.comm.rank();
        let own: Vec<u64> = mask.words().iter().copied().chain([u64::from(well)]).collect();
        let all = self.tell(own).await?;
        for peer in active.iter() {
            let said = &all[peer as usize * (WORDS + 1)..][..WORDS + 1];
            let other = Mask::from_words(std::array::from_fn(|word| said[word]));
            let failure = |text: String| Failure { peer: Some(peer), ..Failure::new(OP, rank, text) };
            // A mask that lacks its own rank does not matter.
            let overlaps = other.contains(peer) && !mask.and(&other).is_empty() || mask.contains(peer);
            if mask.contains(rank) && overlaps && other != *mask {
                let text = format!(
                    "its mask is {other:?}, this rank's {mask:?}: all ranks of a subset must give the same mask"
                );
                return Err(Error::Mismatch(failure(text)));
            }
            if mask.contains(rank) && mask.contains(peer) && said[WORDS] == 0 && peer != rank {
                return Err(Error::Peer(failure(
                    "it could not make or connect its part, and reports why".into(),
                )));
            }
        }
        Ok(())
    }

    /// Tells all ranks the same words, and returns what they have told.
    async fn tell(&mut self, own: Vec<u64>) -> Result<Vec<u64>> {
        let ranks = self.comm.ranks() as usize;
        if self.comm.config().device == Device::Host {
            let all = vec![0u64; own.len() * ranks];
            let ((_, all), _) = self.comm.complete(self.comm.all_gather(own, all)).await?;
            return Ok(all);
        }
        let bytes: Vec<[u8; 8]> = own.iter().map(|word| word.to_ne_bytes()).collect();
        let all = self.exchange(bytes.as_flattened().repeat(ranks)).await?;
        let (words, _) = all.as_chunks::<8>();
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// Sends `blobs[r]` to rank r, and returns what the ranks have sent.
    async fn swap(&mut self, blobs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        const BLOCK: usize = 4 + sys::EPW_BLOB_MAX as usize;
        let mut buffer = vec![0u8; BLOCK * blobs.len()];
        for (block, blob) in buffer.chunks_exact_mut(BLOCK).zip(blobs) {
            block[..4].copy_from_slice(&(blob.len() as u32).to_le_bytes());
            block[4..][..blob.len()].copy_from_slice(blob);
        }
        let buffer = if self.comm.config().device == Device::Host {
            self.comm.complete(self.comm.all_to_all_in_place(buffer)).await?.0
        } else {
            self.exchange(buffer).await?
        };
        let blob = |block: &[u8]| {
            let length = u32::from_le_bytes([block[0], block[1], block[2], block[3]]) as usize;
            block[4..].get(..length).unwrap_or_default().to_vec()
        };
        Ok(buffer.chunks_exact(BLOCK).map(blob).collect())
    }

    /// Sends each rank its block of `memory`, and returns what they have sent: on a GPU, whose collectives take its
    /// memory only.
    async fn exchange(&mut self, memory: Vec<u8>) -> Result<Vec<u8>> {
        if self.out {
            let text = "an exchange has failed before";
            return Err(Error::State(Failure::new(OP, self.comm.rank(), text)));
        }
        let (inner, deadline) = (self.comm.inner.clone(), self.comm.deadline());
        let exchange = move || inner.exchange(memory, deadline);
        let exchanged = spawn_blocking(OP, self.comm.rank(), exchange).await;
        self.out = exchanged.is_err();
        let (outcome, memory) = exchanged?;
        self.comm.require_complete(&outcome)?;
        Ok(memory)
    }
}

impl Comm {
    /// Its buffers, if nobody was missing.
    async fn complete<B>(&self, work: Work<B>) -> Result<(B, Outcome)> {
        let (outcome, buffers) = work.await;
        let outcome = outcome?;
        self.require_complete(&outcome)?;
        Ok((buffers, outcome))
    }

    fn require_complete(&self, outcome: &Outcome) -> Result<()> {
        let Some(peer) = outcome.missing.iter().next() else { return Ok(()) };
        let text = match &outcome.record {
            Some(record) => format!("it is missing: {record}"),
            None => "it is missing".to_owned(),
        };
        let failure = Failure::new(OP, self.rank(), text);
        Err(Error::Peer(Failure { peer: Some(peer), ..failure }))
    }
}
