//! What a buffer and a communicator have in common: their use of the layer of peers. The C core has the same functions
//! for both, under two names; here each is one method.

use std::ffi::c_void;
use std::fmt::Debug;
use std::time::Duration;

use super::known::Known;
use super::streams::Streams;
use crate::cause::Cause;
use crate::error::Result;
use crate::mask::Mask;
use crate::sys;
use crate::traffic::Traffic;

/// One rank's view of its peers: their windows, and the membership.
pub(crate) trait Floor: Send + Sync + Debug {
    fn export(&self, peer: u32) -> Result<Vec<u8>>;
    /// Bounded by `deadline` instead of the configuration's.
    fn connect(&self, peer: u32, blob: &[u8], deadline: Duration) -> Result<()>;
    fn disconnect(&self, peer: u32) -> Result<()>;
    fn probe(&self, peer: u32, timeout: Duration) -> Result<()>;
    /// `EPW_PATH_*`
    fn path(&self, peer: u32) -> u32;
    /// `EPW_WIRE_*`
    fn wire(&self, peer: u32) -> u32;
    fn trouble(&self, peer: u32) -> Option<String>;
    fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()>;
    /// As [`Floor::revoke`], for the C object alone.
    fn give_up(&self, peers: &Mask) -> Result<()>;
    fn revoke(&self, peers: &Mask, why: Cause) -> Result<()> {
        // Whoever ends a wait because of this looks there for the cause. Masks with this rank are refused.
        if !peers.contains(self.known().rank()) {
            self.known().revoke(self.membership()?.epoch, peers, why);
        }
        self.give_up(peers)
    }
    fn known(&self) -> &Known;
    fn streams(&self) -> &Streams;
    fn membership(&self) -> Result<sys::epw_membership>;
    /// On a GPU: enqueues what it says of each rank.
    ///
    /// # Safety
    ///
    /// `stream` is one of its GPU, and `suspects` has a place for each rank, which lives until this work has run.
    unsafe fn suspects(&self, suspects: *mut i32, stream: *mut c_void) -> Result<()>;
    fn newest_epoch(&self) -> Result<u32>;
    /// The peers that have begun the epoch at another step.
    fn diverged(&self, epoch: u32, step: u64) -> Result<Mask>;
    /// `ranks` is the number of ranks that it was made for.
    fn traffic(&self, ranks: u32) -> Result<Traffic>;
}

/// Implements [`Floor`] for an owner of a C object, its field 0, with the functions named for that object;
/// field 2 is what the program knows, field 3 the streams that are kept.
macro_rules! floor {
    ($owner:ty: $export:ident, $connect:ident, $disconnect:ident, $probe:ident, $path:ident, $wire:ident, $trouble:ident, $set_active:ident,
     $revoke:ident, $membership:ident, $suspects:ident, $newest_epoch:ident, $diverged:ident, $traffic:ident) => {
        impl $crate::ffi::floor::Floor for $owner {
            fn known(&self) -> &$crate::ffi::known::Known {
                &self.2
            }

            fn streams(&self) -> &$crate::ffi::streams::Streams {
                &self.3
            }

            fn export(&self, peer: u32) -> Result<Vec<u8>> {
                let mut blob = vec![0; sys::EPW_BLOB_MAX as usize];
                let mut length = 0;
                // SAFETY: blob has the EPW_BLOB_MAX bytes that export may write.
                check(unsafe { sys::$export(self.0.as_ptr(), peer, blob.as_mut_ptr().cast(), &mut length) })?;
                blob.truncate(length);
                Ok(blob)
            }

            fn connect(&self, peer: u32, blob: &[u8], deadline: Duration) -> Result<()> {
                let (bytes, length, deadline_ns) = (blob.as_ptr().cast(), blob.len(), nanos(deadline));
                // SAFETY: blob is valid for its length; its bytes are checked by the C core.
                check(unsafe { sys::$connect(self.0.as_ptr(), peer, bytes, length, deadline_ns) })?;
                Ok(())
            }

            fn disconnect(&self, peer: u32) -> Result<()> {
                // SAFETY: the C object is alive.
                check(unsafe { sys::$disconnect(self.0.as_ptr(), peer) })?;
                Ok(())
            }

            fn probe(&self, peer: u32, timeout: Duration) -> Result<()> {
                // SAFETY: the C object is alive.
                check(unsafe { sys::$probe(self.0.as_ptr(), peer, nanos(timeout)) })?;
                Ok(())
            }

            fn path(&self, peer: u32) -> u32 {
                // SAFETY: the C object is alive.
                unsafe { sys::$path(self.0.as_ptr(), peer) }
            }

            fn wire(&self, peer: u32) -> u32 {
                // SAFETY: the C object is alive.
                unsafe { sys::$wire(self.0.as_ptr(), peer) }
            }

            fn trouble(&self, peer: u32) -> Option<String> {
                let mut text = [0; sys::EPW_TROUBLE_TEXT as usize];
                // SAFETY: the C object is alive, and the text has the size that the function may write.
                let text = unsafe {
                    std::ffi::CStr::from_ptr(sys::$trouble(self.0.as_ptr(), peer, text.as_mut_ptr()))
                };
                Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
            }

            fn set_active(&self, active: &Mask, epoch: u32, step: u64) -> Result<()> {
                // SAFETY: the C object is alive, the mask is read during the call only.
                check(unsafe { sys::$set_active(self.0.as_ptr(), &c_mask(active), epoch, step) })?;
                Ok(())
            }

            fn give_up(&self, peers: &Mask) -> Result<()> {
                // SAFETY: the C object is alive, the mask is read during the call only.
                check(unsafe { sys::$revoke(self.0.as_ptr(), &c_mask(peers)) })?;
                Ok(())
            }

            fn membership(&self) -> Result<sys::epw_membership> {
                // SAFETY: it is one of the header's init functions.
                let mut membership = unsafe { initialised(sys::epw_membership_init) };
                // SAFETY: the C object is alive, membership carries its size.
                check(unsafe { sys::$membership(self.0.as_ptr(), &mut membership) })?;
                Ok(membership)
            }

            unsafe fn suspects(&self, suspects: *mut i32, stream: *mut std::ffi::c_void) -> Result<()> {
                // SAFETY: by this function's contract; the C object is alive.
                check(unsafe { sys::$suspects(self.0.as_ptr(), suspects, stream) })?;
                Ok(())
            }

            fn newest_epoch(&self) -> Result<u32> {
                let mut epoch = 0;
                // SAFETY: the C object is alive.
                check(unsafe { sys::$newest_epoch(self.0.as_ptr(), &mut epoch) })?;
                Ok(epoch)
            }

            fn diverged(&self, epoch: u32, step: u64) -> Result<Mask> {
                let mut ranks = c_mask(&Mask::EMPTY);
                // SAFETY: the C object is alive, ranks is a valid place to write to.
                check(unsafe { sys::$diverged(self.0.as_ptr(), epoch, step, &mut ranks) })?;
                Ok(Mask::from_words(ranks.bits))
            }

            fn traffic(&self, ranks: u32) -> Result<$crate::traffic::Traffic> {
                // SAFETY: it is one of the header's init functions.
                let mut traffic = unsafe { initialised(sys::epw_traffic_init) };
                let mut peers = vec![sys::epw_peer_traffic::default(); ranks as usize];
                // SAFETY: the C object is alive; traffic carries the sizes, and there is a place for each rank.
                check(unsafe { sys::$traffic(self.0.as_ptr(), &mut traffic, peers.as_mut_ptr()) })?;
                Ok($crate::traffic::Traffic::from_c(&traffic, &peers))
            }
        }
    };
}
pub(super) use floor;
