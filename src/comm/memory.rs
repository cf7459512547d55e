//! Memory that operations read and write: slices that a call borrows, or values that it owns until it has ended.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::number::Number;
use crate::error::{Error, Failure, Result};
use crate::ffi;
use crate::tensor::{Element, HostBuffer};

/// What an operation reads: `Vec<T>`, `Box<[T]>`, `[T; N]`, `Arc<[T]>`, `&[T]`, [`HostBuffer`], [`CommBuffer`].
///
/// # Safety
/// As long as the value is neither moved, nor used, nor dropped, the slice stays the same memory with the same elements.
pub unsafe trait Input {
    /// Its elements.
    type Item: Number;
    /// All of them.
    fn input(&self) -> &[Self::Item];
}

/// What an operation writes, or reads and writes in place: `Vec<T>`, `Box<[T]>`, `[T; N]`, `&mut [T]`, [`HostBuffer`],
/// [`CommBuffer`]. All elements that it has take part: a `Vec` does not grow.
///
/// # Safety
/// As of [`Input`], and nobody but the owner of the value can reach the elements. It is the same slice as that of `input`.
pub unsafe trait Output: Input {
    /// All elements.
    fn output(&mut self) -> &mut [Self::Item];
}

macro_rules! memory {
    ($([$($generics:tt)*] $owner:ty),*) => {$(
        // SAFETY: it owns its elements alone, and moves or frees them only when it is used, moved or dropped.
        unsafe impl<$($generics)*> Input for $owner {
            type Item = T;
            fn input(&self) -> &[T] {
                self
            }
        }
        // SAFETY: as above; for a mutable borrow the owner is who has the borrow.
        unsafe impl<$($generics)*> Output for $owner {
            fn output(&mut self) -> &mut [T] {
                self
            }
        }
    )*};
}
memory!(
    [T: Number] Vec<T>, [T: Number] Box<[T]>, [T: Number, const N: usize] [T; N], [T: Number] &mut [T],
    [T: Number + Element] HostBuffer<T>, [T: Number] CommBuffer<T>
);

// SAFETY: a shared borrow; its elements stay as they are for its lifetime.
unsafe impl<T: Number> Input for &[T] {
    type Item = T;
    fn input(&self) -> &[T] {
        self
    }
}

// SAFETY: shared and immutable as long as this owner lives.
unsafe impl<T: Number> Input for Arc<[T]> {
    type Item = T;
    fn input(&self) -> &[T] {
        self
    }
}

/// Memory of a communicator's window, from [`Comm::alloc`](super::Comm::alloc): peers on this host read what lies there without a
/// copy on the way and without a system call. Dereferences to a slice, and is an input and output of operations. Freed when it is
/// dropped; it keeps the window, not the membership, alive.
pub struct CommBuffer<T: Number> {
    ffi: Arc<ffi::Comm>,
    memory: NonNull<T>,
    len: usize,
}

// SAFETY: owns its elements, which are Send and Sync.
unsafe impl<T: Number> Send for CommBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for CommBuffer<T> {}

impl<T: Number> CommBuffer<T> {
    /// `len` zeros.
    pub(super) fn zeroed(ffi: &Arc<ffi::Comm>, rank: u32, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let Some(bytes) = bytes else {
            let text = format!("len is {len}: more bytes than there can be");
            return Err(Error::Limit(Failure::new("alloc", rank, text)));
        };
        let memory = ffi.alloc(bytes as u64)?;
        // SAFETY: `bytes` bytes that are this buffer's alone; a former one may have left something else there.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Self { ffi: ffi.clone(), memory: memory.cast(), len })
    }
}

impl<T: Number> Drop for CommBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: from `alloc`, once, and an operation that used it would own it.
        unsafe { self.ffi.free(self.memory.cast()) }
    }
}

impl<T: Number> Deref for CommBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, aligned to 64 bytes, zeroed when it was allocated; every bit pattern is a value, and no peer writes here.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl<T: Number> DerefMut for CommBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl<T: Number> std::fmt::Debug for CommBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CommBuffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}
