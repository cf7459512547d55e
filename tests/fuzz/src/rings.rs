//! The peer's end of a connection by rings, `c/nic/soft/ring.h`: memory that the NIC maps as well, and in which the
//! peer may write at any place and at any time.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::nic::Nic;

/// The least number of bytes of the ring of requests.
pub const RING_BYTES: u32 = 4096;

/// `epw_ring`.
#[repr(C)]
struct Ring {
    cursors: *mut c_void,
    bytes: *mut u8,
    size: u64,
    at: u64,
}

/// `epw_rings`.
#[repr(C)]
pub struct Rings {
    memory: *mut u8,
    mapped: u64,
    out: Ring,
    r#in: Ring,
}

unsafe extern "C" {
    fn epw_rings_offer(rings: *mut Rings, fd: c_int, bytes: u32) -> c_int;
    fn epw_rings_unmap(rings: *mut Rings);
    fn epw_ring_write(ring: *mut Ring, fd: c_int, from: *const libc::iovec, count: usize) -> isize;
}

/// A word of `epw_ring_cursors`, by its offset; the words of answers follow those of requests.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Word {
    Written = 0,
    Read = 64,
    ReaderSleeps = 128,
    WriterSleeps = 192,
}

pub const WORDS: [Word; 4] = [Word::Written, Word::Read, Word::ReaderSleeps, Word::WriterSleeps];
const CURSORS_BYTES: usize = 256;

impl Rings {
    /// Passes the rings to the NIC.
    pub fn offer(nic: &Nic) -> Box<Self> {
        let none = || Ring { cursors: null_mut(), bytes: null_mut(), size: 0, at: 0 };
        let mut rings = Box::new(Self { memory: null_mut(), mapped: 0, out: none(), r#in: none() });
        // SAFETY: room for the result, and a socket that is open.
        assert_eq!(unsafe { epw_rings_offer(&raw mut *rings, nic.fd, RING_BYTES) }, 0);
        rings
    }

    /// Writes as many of the bytes as there is room for, as a correct peer does.
    pub fn write(&mut self, nic: &Nic, bytes: &[u8]) {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the slice's own pointer and length; the ring is mapped, and bounds the copy by its own cursor.
        unsafe { epw_ring_write(&raw mut self.out, nic.fd, &raw const part, 1) };
    }

    /// Adds to a word, of requests or of answers.
    pub fn add(&mut self, of_answers: bool, word: Word, addend: u64) {
        let at = word as usize + if of_answers { CURSORS_BYTES } else { 0 };
        // SAFETY: the words lie in the first page of the mapping, aligned to 64 bytes, and others use them as atomics too.
        unsafe {
            match word {
                Word::Written | Word::Read => {
                    AtomicU64::from_ptr(self.memory.add(at).cast()).fetch_add(addend, Ordering::SeqCst);
                }
                Word::ReaderSleeps | Word::WriterSleeps => {
                    AtomicU32::from_ptr(self.memory.add(at).cast())
                        .fetch_add(addend as u32, Ordering::SeqCst);
                }
            }
        }
    }

    /// Writes a byte anywhere in the memory.
    pub fn poke(&mut self, at: u32, byte: u8) {
        let at = u64::from(at) % self.mapped;
        // SAFETY: within the mapping.
        unsafe { AtomicU8::from_ptr(self.memory.add(at as usize)).store(byte, Ordering::Relaxed) }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: made by `offer`, and unmapped once.
        unsafe { epw_rings_unmap(self) }
    }
}
