//! An `epw_comm` as an owned value.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use super::awaited::Watched;
use super::fabric::Fabric;
use super::floor::floor;
use super::known::Known;
use super::status::{Progress, c_mask, check, check_of_group, error, initialised, nanos};
use super::streams::Streams;
use crate::error::Result;
use crate::mask::Mask;
use crate::sys;

/// An `epw_comm`. Dropping this value destroys it, and then the fabric that it uses, if nothing else does.
#[derive(Debug)]
pub(crate) struct Comm(
    NonNull<sys::epw_comm>,
    /// Dropped after the communicator.
    Option<Arc<Fabric>>,
    /// The suspects that the program knows of.
    Known,
    /// Dropped after the C object, unless the process keeps that.
    Streams,
);

// SAFETY: the C core guards a communicator's state with its lock; any thread may call.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: created by epw_comm_create, and nobody else uses it any more: this is the last owner.
        if !unsafe { sys::epw_comm_try_destroy(self.0.as_ptr()) } {
            self.3.leak(); // the process keeps it, because kernels may still run
        }
    }
}

floor!(Comm: epw_comm_export, epw_comm_connect_within, epw_comm_disconnect, epw_comm_probe, epw_comm_path, epw_comm_wire, epw_comm_trouble,
    epw_comm_set_active, epw_comm_revoke, epw_comm_membership, epw_comm_suspects, epw_comm_newest_epoch, epw_comm_diverged, epw_comm_traffic);

pub(crate) fn empty_config() -> sys::epw_comm_config {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_comm_config_init) }
}

pub(crate) fn empty_coll() -> sys::epw_coll {
    // SAFETY: it is one of the header's init functions.
    unsafe { initialised(sys::epw_coll_init) }
}

/// The sizes of a group's communicators. They hold for every rank, so errors name none.
pub(crate) fn plan(config: &sys::epw_comm_config) -> Result<sys::epw_comm_sizes> {
    // SAFETY: it is one of the header's init functions.
    let mut sizes = unsafe { initialised(sys::epw_comm_sizes_init) };
    // SAFETY: both are valid for the call.
    check_of_group(unsafe { sys::epw_comm_plan(config, &mut sizes) })?;
    Ok(sizes)
}

impl Comm {
    pub(crate) fn create(config: &sys::epw_comm_config, fabric: Option<Arc<Fabric>>) -> Result<Self> {
        let at = fabric.as_ref().map_or(ptr::null_mut(), |fabric| fabric.as_ptr());
        let config = sys::epw_comm_config { fabric: at, ..*config };
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and the fabric is held until the communicator is destroyed.
        check(unsafe { sys::epw_comm_create(&config, &mut out) })?;
        let made = NonNull::new(out).map(|at| Self(at, fabric, Known::new(config.rank), Streams::default()));
        made.ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// Tells peers that this rank makes no more calls, though the window stays. On a GPU that waits until this is dropped.
    pub(crate) fn leave(&self) {
        // SAFETY: the communicator is alive.
        unsafe { sys::epw_comm_leave(self.0.as_ptr()) }
    }

    /// What its fabric ended up using (NIC and transports), in words.
    pub(crate) fn nic(&self) -> Option<String> {
        self.1.as_ref().map(|fabric| fabric.describe())
    }

    /// The memory is zeroed, unless it has been used before.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<NonNull<u8>> {
        let mut memory = ptr::null_mut();
        // SAFETY: the communicator is alive, memory is a valid place to write to.
        check(unsafe { sys::epw_comm_alloc(self.0.as_ptr(), bytes, &mut memory) })?;
        NonNull::new(memory.cast()).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// # Safety
    /// `memory` is of `alloc`, is not freed twice, and neither its owner nor an operation uses it any more.
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: by this function's contract.
        unsafe { sys::epw_comm_free(self.0.as_ptr(), memory.as_ptr().cast()) }
    }

    /// Returns the registration's number.
    ///
    /// # Safety
    /// Memory at this address, if it is memory, stays allocated until `deregister` has succeeded, or every rank has destroyed its
    /// communicator.
    pub(crate) unsafe fn register(&self, address: u64, bytes: u64) -> Result<u64> {
        let (memory, mut registration) = (ptr::with_exposed_provenance_mut(address as usize), 0);
        // SAFETY: the call examines the address, and does not access the memory.
        check(unsafe { sys::epw_comm_register(self.0.as_ptr(), memory, bytes, &mut registration) })?;
        Ok(registration)
    }

    pub(crate) fn export_registration(&self, registration: u64, peer: u32) -> Result<Vec<u8>> {
        let mut blob = vec![0u8; sys::EPW_REGISTRATION_BLOB_MAX as usize];
        let (at, mut length) = (blob.as_mut_ptr().cast(), 0);
        // SAFETY: blob has the EPW_REGISTRATION_BLOB_MAX bytes that export may write.
        check(unsafe {
            sys::epw_comm_export_registration(self.0.as_ptr(), registration, peer, at, &mut length)
        })?;
        blob.truncate(length);
        Ok(blob)
    }

    /// Returns the peer's number of it.
    pub(crate) fn import_registration(&self, peer: u32, blob: &[u8]) -> Result<u64> {
        let (at, mut registration) = (blob.as_ptr().cast(), 0);
        // SAFETY: blob is valid for its length, and may have any contents.
        check(unsafe {
            sys::epw_comm_import_registration(self.0.as_ptr(), peer, at, blob.len(), &mut registration)
        })?;
        Ok(registration)
    }

    pub(crate) fn lend(&self, registration: u64, ranks: &Mask) -> Result<()> {
        // SAFETY: the communicator is alive, the mask is valid for the call.
        check(unsafe { sys::epw_comm_lend(self.0.as_ptr(), registration, &c_mask(ranks)) })?;
        Ok(())
    }

    pub(crate) fn unmap(&self, peer: u32, registration: u64) -> Result<()> {
        // SAFETY: the communicator is alive.
        check(unsafe { sys::epw_comm_unmap(self.0.as_ptr(), peer, registration) })?;
        Ok(())
    }

    pub(crate) fn deregister(&self, registration: u64) -> Result<()> {
        // SAFETY: the communicator is alive.
        check(unsafe { sys::epw_comm_deregister(self.0.as_ptr(), registration) })?;
        Ok(())
    }

    /// Whether any operation since the last such call was incomplete.
    pub(crate) fn take_fault(&self) -> Result<bool> {
        let mut faulted = 0;
        // SAFETY: the communicator is alive.
        check(unsafe { sys::epw_comm_take_fault(self.0.as_ptr(), &mut faulted) })?;
        Ok(faulted == 1)
    }

    /// Carries out all operations. `deadline`: none for the communicator's own.
    ///
    /// # Safety
    /// The memory that `ops` name has the sizes that their counts, offsets and pitches say, is not used otherwise during the
    /// call, and what they say they write may be written.
    pub(crate) unsafe fn run(
        &self,
        ops: &[sys::epw_coll],
        deadline: Option<Duration>,
        outcome: &mut sys::epw_outcome,
    ) -> Result<()> {
        // SAFETY: by this function's contract; without a work the call waits.
        unsafe { self.group(ops, deadline, ptr::null_mut(), ptr::null_mut(), outcome) }
    }

    /// Exchanges `bytes` bytes with each rank, on whichever device the communicator is, and waits. `deadline`: as for
    /// `run`.
    ///
    /// # Safety
    /// `memory` has so many bytes for each rank of the communicator.
    pub(crate) unsafe fn exchange(
        &self,
        memory: &mut [u8],
        bytes: u64,
        deadline: Option<Duration>,
        outcome: &mut sys::epw_outcome,
    ) -> Result<()> {
        let (at, deadline_ns) = (memory.as_mut_ptr().cast(), deadline.map_or(0, nanos));
        // SAFETY: the communicator is alive, memory has the size by this function's contract, and outcome carries its size.
        check(unsafe { sys::epw_comm_exchange(self.0.as_ptr(), at, bytes, deadline_ns, outcome) })?;
        Ok(())
    }

    /// Begins them.
    ///
    /// # Safety
    /// As for `run`, until the work has ended or been dropped.
    pub(crate) unsafe fn begin(
        &self,
        ops: &[sys::epw_coll],
        deadline: Option<Duration>,
    ) -> Result<sys::epw_work> {
        let mut work = 0;
        // SAFETY: by this function's contract.
        unsafe { self.group(ops, deadline, &mut work, ptr::null_mut(), ptr::null_mut()) }?;
        Ok(work)
    }

    /// Enqueues them on a stream of the communicator's GPU, with a work if somebody wants to know how they end.
    ///
    /// # Safety
    /// As for `run`, of memory of the GPU, until the stream has run them, in each replay if it is under capture. The stream exists.
    pub(crate) unsafe fn enqueue(
        &self,
        ops: &[sys::epw_coll],
        deadline: Option<Duration>,
        stream: *mut c_void,
        work: Option<&mut sys::epw_work>,
    ) -> Result<()> {
        let work = work.map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: by this function's contract.
        unsafe { self.group(ops, deadline, work, stream, ptr::null_mut()) }
    }

    /// # Safety
    /// As for `run`, and `work` is null or a place to write to; `outcome` too.
    unsafe fn group(
        &self,
        ops: &[sys::epw_coll],
        deadline: Option<Duration>,
        work: *mut sys::epw_work,
        stream: *mut c_void,
        outcome: *mut sys::epw_outcome,
    ) -> Result<()> {
        // SAFETY: it is one of the header's init functions.
        let mut call = unsafe { initialised(sys::epw_call_init) };
        call.deadline_ns = deadline.map_or(0, nanos);
        call.work = work;
        call.stream = stream;
        // SAFETY: by this function's contract.
        check(unsafe { sys::epw_group(self.0.as_ptr(), ops.as_ptr(), ops.len(), &call, outcome) })?;
        Ok(())
    }

    /// An operation that has ended, with an error or without, consumes its work.
    pub(crate) fn wait(
        &self,
        work: sys::epw_work,
        timeout: Duration,
        outcome: &mut sys::epw_outcome,
    ) -> Result<Progress> {
        // 0 only looks, without waiting.
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the communicator is alive, and the memory of works is valid until they have ended. One that was consumed is
        // recognised. outcome carries its size.
        check(unsafe { sys::epw_work_wait(self.0.as_ptr(), work, timeout, outcome) })
    }

    /// The C core touches none of the operation's memory afterwards.
    pub(crate) fn drop_work(&self, work: sys::epw_work) {
        // SAFETY: the communicator is alive. One that was consumed is refused, which is what is wanted.
        unsafe { sys::epw_work_drop(self.0.as_ptr(), work) };
    }
}

// SAFETY: the look is that of communicators, and this one lives as long as `self`.
unsafe impl Watched for Comm {
    fn look(&self) -> sys::epw_look {
        sys::epw_comm_look
    }

    fn owner(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }
}
