//! Memory that operations read and write: slices that a call borrows, or values that it owns until it has ended; on a
//! GPU, views.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::number::Number;
use crate::buffer::{Host, Memory};
use crate::cuda::{self, Gpu, Origin};
use crate::error::{Error, Failure, Result};
use crate::ffi;
use crate::tensor::sealed::View;
use crate::tensor::{DType, Element, HostBuffer};

/// The input of an operation, wherever it is: on the host any [`Input`], on a GPU a [`cuda::TensorRef`] or
/// [`cuda::TensorMut`] whose rows follow each other without gaps. Other types cannot implement it.
pub trait Source: sealed::Source {
    /// The type of its elements: a [`Number`]; for views on a GPU, whose type is known at run time, a [`DType`].
    type Item;
    /// [`Host`] or [`Gpu`].
    type Memory: Memory;
}

/// The output of an operation, or what it updates in place: on the host any [`Output`], on a GPU a [`cuda::TensorMut`].
/// Other types cannot implement it.
pub trait Target: Source + sealed::Target {}

pub(super) mod sealed {
    use crate::comm::memory::Span;

    pub trait Source {
        fn source(&self) -> Span;
    }

    pub trait Target {
        fn target(&mut self) -> Span;
    }
}

/// The position and the type of elements.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
    pub(super) element: usize,
    /// On a GPU it may be one that collectives do not carry.
    pub(super) dtype: DType,
    /// False for a view of rows with gaps between them.
    pub(super) is_dense: bool,
    pub(super) origin: Option<Origin>,
}

impl Span {
    fn of<T: Number>(ptr: *mut T, len: usize) -> Self {
        let (dtype, element) = (T::DTYPE, size_of::<T>());
        Self { ptr: ptr.cast(), len, element, dtype, is_dense: true, origin: None }
    }

    fn on_gpu(ptr: *mut u8, len: usize, dtype: DType, origin: Option<Origin>) -> Self {
        let element = dtype.bytes();
        Self { ptr, len, element, dtype, is_dense: true, origin }
    }
}

impl<S: Input> Source for S {
    type Item = S::Item;
    type Memory = Host;
}

impl<S: Input> sealed::Source for S {
    fn source(&self) -> Span {
        let slice = self.input();
        Span::of(slice.as_ptr().cast_mut(), slice.len())
    }
}

impl<R: Output> Target for R {}

impl<R: Output> sealed::Target for R {
    fn target(&mut self) -> Span {
        let slice = self.output();
        Span::of(slice.as_mut_ptr(), slice.len())
    }
}

impl Source for cuda::TensorRef<'_> {
    type Item = DType;
    type Memory = Gpu;
}

impl sealed::Source for cuda::TensorRef<'_> {
    fn source(&self) -> Span {
        let matrix = self.matrix();
        let len = matrix.rows.saturating_mul(matrix.cols);
        let span = Span::on_gpu(matrix.ptr.cast_mut(), len, matrix.dtype, self.origin);
        Span { is_dense: matrix.is_dense(), ..span }
    }
}

impl Source for cuda::TensorMut<'_> {
    type Item = DType;
    type Memory = Gpu;
}

impl sealed::Source for cuda::TensorMut<'_> {
    fn source(&self) -> Span {
        Span::on_gpu(self.ptr, self.len, self.dtype, self.origin)
    }
}

impl Target for cuda::TensorMut<'_> {}

impl sealed::Target for cuda::TensorMut<'_> {
    fn target(&mut self) -> Span {
        sealed::Source::source(self)
    }
}

/// The input of an operation: `Vec<T>`, `Box<[T]>`, `[T; N]`, `Arc<[T]>`, `&[T]`, [`HostBuffer`], [`CommBuffer`].
///
/// # Safety
/// As long as the value is neither moved, nor used, nor dropped, the slice stays the same memory with the same
/// elements.
pub unsafe trait Input {
    /// Its elements.
    type Item: Number;
    /// All of them.
    fn input(&self) -> &[Self::Item];
}

/// The output of an operation, or what it updates in place: `Vec<T>`, `Box<[T]>`, `[T; N]`, `&mut [T]`, [`HostBuffer`],
/// [`CommBuffer`]. All its elements take part: a `Vec` does not grow.
///
/// # Safety
/// As for [`Input`], and only the owner of the value can reach the elements. It is the same slice as that of `input`.
pub unsafe trait Output: Input {
    /// All elements.
    fn output(&mut self) -> &mut [Self::Item];
}

macro_rules! memory {
    ($([$($generics:tt)*] $owner:ty),*) => {$(
        // SAFETY: only it owns its elements, and it moves or frees them only when it is used, moved or dropped.
        unsafe impl<$($generics)*> Input for $owner {
            type Item = T;
            fn input(&self) -> &[T] {
                self
            }
        }
        // SAFETY: as above; the owner of a mutable borrow is whoever has the borrow.
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

/// Memory of a communicator's window, from [`Comm::alloc`](super::Comm::alloc): peers on this host read it without an
/// intermediate copy and without a system call. Dereferences to a slice, and is an input and output of operations.
/// Freed when it is dropped; it keeps the window alive, but not the membership: with the last clone of the
/// [`Comm`](super::Comm) this rank leaves its peers.
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
            let text = format!("len is {len}: these are more bytes than an address space has");
            return Err(Error::Limit(Failure::new("alloc", rank, text)));
        };
        let memory = ffi.alloc(bytes as u64)?;
        // SAFETY: `bytes` bytes that belong to this buffer alone; a former one may have left other values there.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Self { ffi: ffi.clone(), memory: memory.cast(), len })
    }
}

impl<T: Number> Drop for CommBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: from `alloc`, freed once, and an operation that used it would own it.
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

/// Memory of a communicator on a GPU, from [`Comm::alloc_gpu`](super::Comm::alloc_gpu), aligned to 64 bytes: peers read
/// it without an intermediate copy. Operations take views of its address, as of any GPU memory. Freed when it is
/// dropped; it keeps the window alive, but not the membership. Peers are told that this rank has dropped its communicator
/// only once all such memory of it is dropped, too: if they call an operation before, they wait a deadline for this rank.
pub struct GpuBuffer {
    ffi: Arc<ffi::Comm>,
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owns memory of a GPU, of which it gives away only the address.
unsafe impl Send for GpuBuffer {}
// SAFETY: as above.
unsafe impl Sync for GpuBuffer {}

impl GpuBuffer {
    pub(super) fn of(ffi: &Arc<ffi::Comm>, bytes: usize) -> Result<Self> {
        Ok(Self { ffi: ffi.clone(), memory: ffi.alloc(bytes as u64)?, bytes })
    }

    /// The device address (`CUdeviceptr`), for [`TensorRef::from_raw`](crate::cuda::TensorRef::from_raw) and
    /// [`TensorMut::from_raw`](crate::cuda::TensorMut::from_raw): a view of it must not be in use when this is dropped.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        // SAFETY: from `alloc`, freed once; whoever made a view has promised that it is not in use any more.
        unsafe { self.ffi.free(self.memory) }
    }
}

impl std::fmt::Debug for GpuBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuBuffer[{} bytes at {:#x}]", self.bytes, self.address())
    }
}
