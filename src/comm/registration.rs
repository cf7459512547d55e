//! Memory that the program has allocated, on its GPU, and that peers read without an intermediate copy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::communicator::Comm;
use super::inner::Inner;
use crate::error::{Error, Failure, Result};
use crate::ffi::{self, Floor};
use crate::group::Group;
use crate::mask::Mask;
use crate::rendezvous::driver::block_on;
use crate::spawn_blocking::spawn_blocking;

const OP: &str = "register";

impl Comm {
    /// Registers memory that the program has allocated on this communicator's GPU, for example by `cudaMalloc`, at a
    /// device address that is a multiple of 16. Large operations on it are then as fast as on memory of
    /// [`Comm::alloc_gpu`], see [Memory](super#memory); calls take views of it like those of any GPU memory. All
    /// members call this, equally often and in the same order, with memory of any size. Peers map the whole allocation
    /// in which it lies. `group` is the one with which the communicator was created or, for a subset, that of its
    /// parent.
    ///
    /// No operation of the communicator may be in flight. This waits for enqueued calls, within the
    /// [deadline](super::CommConfig::deadline); the caller must wait for replays of graphs. Graphs that are to use this
    /// must be captured afterwards. A rank that is admitted later has not mapped the memory, and operations use rings
    /// until all members have [deregistered](Registration::deregister) it and registered it again.
    ///
    /// In a communicator that permits queues, or has more than 8 ranks, peers read no memory directly, and on the host they
    /// read any memory without registration. There this gains nothing, but a program need not treat it as a special case:
    /// the call succeeds, peers map nothing, and operations go as they would without it. On the host any address but 0 is
    /// taken.
    ///
    /// Never blocks the executor.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes, or address 0. On a GPU also for memory that peers cannot map: of a pool
    /// (`cudaMallocAsync`, from which cudarc and candle allocate), of the host, managed, or of another GPU; or that is
    /// registered already; and [`Error::Limit`] for more than 32 registrations, or 32 GiB together with the heap.
    /// [`Error::State`] without a membership. [`Error::Peer`] if another member could not register or map memory, or is
    /// gone; those of [`Comm::connect`]. All members get an error then, and deregister what they have registered.
    ///
    /// # Safety
    /// The memory stays allocated until [`Registration::deregister`] has returned `Ok` or, without that, until the
    /// communicators of all ranks have been dropped: CUDA does not define what happens if memory is freed that another
    /// process has mapped. The same holds if the future is dropped before it is ready, and after an error, except
    /// [`Error::Invalid`], [`Error::Limit`] and [`Error::State`] without a [peer](Failure::peer), by which this rank's
    /// own memory was refused.
    pub async unsafe fn register(&self, group: &Group, address: u64, bytes: usize) -> Result<Registration> {
        let round = Round::of(&self.inner, group)?;
        let (inner, members) = (self.inner.clone(), round.members);
        // SAFETY: by this function's contract.
        let made = move || unsafe { Registration::made(&inner, &members, address, bytes) };
        let made = spawn_blocking(OP, self.rank(), made).await;
        // Each rank takes all of these turns, whatever their results, because the others wait for each.
        let (made, blobs) = match made {
            Ok((made, blobs)) => (Ok(made), blobs),
            Err(error) => (Err(error), Vec::new()),
        };
        let ended = round.join(made.as_ref().ok(), blobs).await;
        let mut registration = made?;
        match ended {
            Ok(mapped) => {
                registration.mapped = mapped;
                Ok(registration)
            }
            Err((error, mapped)) => {
                registration.mapped = mapped;
                // The first error is the one that matters.
                let _ = registration.deregister().await;
                Err(error)
            }
        }
    }

    /// [`Comm::register`] for a plain thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    /// As for [`Comm::register`]; and [`BootstrapError::BlockingInAsync`](crate::BootstrapError::BlockingInAsync), as
    /// [`Error::Bootstrap`], on any thread of tokio, those of its `spawn_blocking` among them.
    ///
    /// # Safety
    /// As for [`Comm::register`].
    pub unsafe fn register_blocking(
        &self,
        group: &Group,
        address: u64,
        bytes: usize,
    ) -> Result<Registration> {
        // SAFETY: by this function's contract.
        block_on(OP, unsafe { self.register(group, address, bytes) })
    }
}

/// Memory that [`Comm::register`] has registered, on this rank and its peers.
///
/// Dropping this handle changes nothing: the memory stays registered until the communicator is dropped, and must stay
/// allocated until the communicators of all ranks are dropped. It keeps the communicator's window alive, but not the
/// membership. On a GPU peers that call an operation wait a deadline for a rank that has dropped its communicator and not
/// this.
#[must_use = "dropping it leaves the memory registered"]
pub struct Registration {
    of: Owner,
    /// This rank's.
    own: u64,
    /// Whether it has been deregistered. Locked while that is done, by a thread that ends it though the future is
    /// dropped.
    ended: Arc<Mutex<bool>>,
    /// Those of peers, with their numbers.
    mapped: Vec<(u32, u64)>,
    address: u64,
    bytes: usize,
}

/// What of its communicator a registration keeps.
#[derive(Clone)]
struct Owner {
    ffi: Arc<ffi::Comm>,
    rank: u32,
    deadline: Duration,
}

impl Registration {
    /// The memory's address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Unmaps what the peers registered in the same call of [`Comm::register`], and ends this rank's registration once
    /// they have unmapped its memory. All ranks that hold a registration from that call must do this, in any order.
    /// Before the first of them does, all operations on the memory must have ended, replays included, and no rank may
    /// use it in an operation afterwards. Once this has returned `Ok` the memory may be freed.
    ///
    /// Never blocks the executor. Waits at most a [deadline](super::CommConfig::deadline) for the peers. May be called
    /// again after an error, and if the future is dropped.
    ///
    /// # Errors
    /// [`Error::State`] if a peer still has the memory mapped, which is named: it has not called this, and is alive.
    /// [`Error::Timeout`] if what was enqueued before has not run.
    pub async fn deregister(&mut self) -> Result<()> {
        let (of, own, mapped) = (self.of.clone(), self.own, self.mapped.clone());
        let ended = self.ended.clone();
        let release = move || once(&ended, || of.release(own, &mapped));
        spawn_blocking("deregister", self.of.rank, release).await
    }

    /// [`Registration::deregister`] for a plain thread. Not for a thread that serves an async executor.
    ///
    /// # Errors
    /// As for [`Registration::deregister`].
    pub fn deregister_blocking(&mut self) -> Result<()> {
        once(&self.ended, || self.of.release(self.own, &self.mapped))
    }

    /// Registers the memory, and exports it to the other members: by rank, empty for those that are none.
    ///
    /// # Safety
    /// As for [`Comm::register`].
    unsafe fn made(
        inner: &Arc<Inner>,
        members: &Mask,
        address: u64,
        bytes: usize,
    ) -> Result<(Self, Vec<Vec<u8>>)> {
        // SAFETY: by this function's contract.
        let own = unsafe { inner.ffi.register(address, bytes as u64) }?;
        let blob = |peer| match members.contains(peer) && peer != inner.rank {
            true => inner.ffi.export_registration(own, peer),
            false => Ok(Vec::new()),
        };
        let blobs = (0..inner.plan.ranks).map(blob).collect::<Result<_>>();
        if blobs.is_err() {
            inner.ffi.deregister(own)?; // nobody can have mapped it
        }
        let of = Owner { ffi: inner.ffi.clone(), rank: inner.rank, deadline: inner.config.deadline };
        let (ended, mapped) = (Arc::default(), Vec::new());
        Ok((Self { of, own, ended, mapped, address, bytes }, blobs?))
    }
}

/// Does this unless it has been done.
fn once(done: &Mutex<bool>, this: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        this()?;
        *done = true;
    }
    Ok(())
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ended = self.ended.try_lock().is_ok_and(|ended| *ended);
        let now = if ended { ", deregistered" } else { "" };
        write!(f, "Registration[{} bytes at {:#x}{now}]", self.bytes, self.address)
    }
}

/// What the members of a communicator exchange by a group when they register memory.
struct Round<'a> {
    inner: &'a Arc<Inner>,
    group: &'a Group,
    /// In the communicator's numbering.
    members: Mask,
    /// The ranks of the communicator, in the group's numbering.
    places: Vec<u32>,
}

/// Registrations of peers that were mapped, and their numbers.
type Mapped = Vec<(u32, u64)>;

impl<'a> Round<'a> {
    fn of(inner: &'a Arc<Inner>, group: &'a Group) -> Result<Self> {
        let members = Mask::from_words(inner.ffi.membership()?.active.bits);
        let places = inner.places();
        let fits = places.iter().all(|place| *place < group.world());
        if !fits || places.get(inner.rank as usize) != Some(&group.rank()) {
            let text = format!(
                "group: has {} ranks, this one as {}, which is not the communicator's: give the group that it was created with",
                group.world(),
                group.rank()
            );
            return Err(Error::Invalid(Failure::new(OP, inner.rank, text)));
        }
        if !members.contains(inner.rank) {
            return Err(Error::State(Failure::new(OP, inner.rank, "no membership yet")));
        }
        Ok(Self { inner, group, members, places })
    }

    /// Maps what the other members have registered, and lends them what this rank has, if all have succeeded. Returns
    /// what was mapped, also with an error.
    async fn join(&self, own: Option<&Registration>, blobs: Vec<Vec<u8>>) -> Result<Mapped, (Error, Mapped)> {
        let received = self.swap(|peer| blobs.get(peer as usize).cloned().unwrap_or_default()).await;
        let received = received.map_err(|error| (error, Vec::new()))?;
        let (inner, members, registered) = (self.inner.clone(), self.members, own.is_some());
        let map = move || {
            let mut mapped = Vec::new();
            let ended = if registered { inner.map_all(&members, &received, &mut mapped) } else { Ok(()) };
            Ok((ended, mapped))
        };
        let (ended, mapped) = match spawn_blocking(OP, self.inner.rank, map).await {
            Ok(mapped) => mapped,
            Err(error) => (Err(error), Vec::new()),
        };
        let all = self.agree(ended.is_ok() && own.is_some()).await;
        let lent = match (ended.and(all), own) {
            (Ok(()), Some(own)) => self.lend(own.own).await,
            (all, _) => all,
        };
        // No rank uses what another one could not lend.
        let all = self.agree(lent.is_ok()).await;
        lent.and(all).map(|()| mapped.clone()).map_err(|error| (error, mapped))
    }

    /// Tells the others whether this rank has succeeded so far, and finds out whether they have.
    async fn agree(&self, well: bool) -> Result<()> {
        let said = self.swap(|_| vec![u8::from(well)]).await?;
        let others = self.members.iter().filter(|peer| *peer != self.inner.rank);
        for peer in others {
            if said[peer as usize] != [1] {
                let text = "it could not register or map memory, and reports why";
                let failure = Failure::new(OP, self.inner.rank, text);
                return Err(Error::Peer(Failure { peer: Some(peer), ..failure }));
            }
        }
        Ok(())
    }

    async fn lend(&self, own: u64) -> Result<()> {
        let (inner, members) = (self.inner.clone(), self.members);
        spawn_blocking(OP, self.inner.rank, move || inner.ffi.lend(own, &members)).await
    }

    /// Gives each member what `blob` has for it, and gets theirs, by rank.
    async fn swap(&self, blob: impl Fn(u32) -> Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let mut blobs = vec![Vec::new(); self.group.world() as usize];
        let ranks: Mask = self.members.iter().map(|member| self.places[member as usize]).collect();
        for member in self.members.iter() {
            blobs[self.places[member as usize] as usize] = blob(member);
        }
        let received = self.group.exchange_among(ranks, OP, blobs).await?;
        Ok(self.places.iter().map(|place| received[*place as usize].clone()).collect())
    }
}

impl Inner {
    /// Maps what the other members have exported, until one of them fails.
    fn map_all(&self, members: &Mask, blobs: &[Vec<u8>], mapped: &mut Mapped) -> Result<()> {
        for peer in members.iter().filter(|peer| *peer != self.rank) {
            let blob = &blobs[peer as usize];
            // It could not register its memory, and says so in its next turn.
            if !blob.is_empty() {
                mapped.push((peer, self.ffi.import_registration(peer, blob)?));
            }
        }
        Ok(())
    }
}

impl Owner {
    fn release(&self, own: u64, mapped: &[(u32, u64)]) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(1);
        for (peer, registration) in mapped {
            self.ffi.unmap(*peer, *registration)?;
        }
        let began = Instant::now();
        loop {
            match self.ffi.deregister(own) {
                Err(Error::State(_)) if began.elapsed() < self.deadline => std::thread::sleep(PAUSE),
                ended => return ended,
            }
        }
    }
}
