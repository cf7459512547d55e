//! Plain views over memory: a pointer, an element type, a shape. They own nothing and copy nothing.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use half::{bf16, f16};

use crate::error::{Error, Failure, Result};
use crate::names::names;

/// Element types that cross the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 16-bit brain floating point.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// 16-bit unsigned integers.
    U16,
    /// Bytes: FP8 e4m3 values, UE8M0 exponents, opaque rows.
    U8,
    /// 32-bit signed integers.
    I32,
    /// 32-bit unsigned integers.
    U32,
    /// 64-bit signed integers.
    I64,
    /// 64-bit unsigned integers.
    U64,
    /// 8-bit signed integers.
    I8,
    /// IEEE double precision. Not an [`Element`], so that a float literal in a slice is an `f32` without annotation.
    F64,
}

names!(DType, "an element type: bf16, f16, f32, f64, i8, u8, u16, i32, u32, i64 or u64" {
    Bf16 = "bf16", F16 = "f16", F32 = "f32", U16 = "u16", U8 = "u8", I32 = "i32", U32 = "u32", I64 = "i64", U64 = "u64",
    I8 = "i8", F64 = "f64",
});

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::Bf16 | Self::F16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// Rust types that are elements of tensors.
///
/// # Safety
/// The type has the size and the alignment of `DTYPE`, no padding, and every bit pattern is a value of it.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The tag of the type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $tag:ident),*) => {$(
        // SAFETY: a plain number of DType::$tag's size; every bit pattern is a value.
        unsafe impl Element for $rust {
            const DTYPE: DType = DType::$tag;
        }
    )*};
}
elements!(
    bf16 => Bf16, f16 => F16, f32 => F32, u8 => U8, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64, i8 => I8
);

/// Matrices to read: in host memory, [`TensorRef`], or in that of a GPU, [`cuda::TensorRef`](crate::cuda::TensorRef).
/// The builders of operations take either, the calls only that of their kind of buffer. Cannot be implemented for other
/// types.
pub trait View: sealed::View {}

pub(crate) mod sealed {
    use crate::tensor::DType;

    pub trait View {
        /// Where an operation runs; its inputs must be made for that.
        type Site;
        fn matrix(&self) -> Matrix;
        /// The matrix, if it may be read at `site`; `name` is that of the input.
        fn at(&self, name: &str, site: &Self::Site) -> Result<Matrix, String>;
    }

    /// Where a matrix is and its layout in memory.
    #[derive(Debug, Clone, Copy)]
    pub struct Matrix {
        pub(crate) ptr: *const u8,
        pub(crate) dtype: DType,
        pub(crate) rows: usize,
        pub(crate) cols: usize,
        /// Bytes from one row to the next.
        pub(crate) row_stride: usize,
    }

    impl Matrix {
        pub(crate) fn is_dense(&self) -> bool {
            self.rows <= 1 || Some(self.row_stride) == self.cols.checked_mul(self.dtype.bytes())
        }
    }
}

/// A matrix to read: `rows` rows of `cols` elements, each row dense, `row_stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct TensorRef<'a> {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: a shared borrow of plain numbers, like &[T].
unsafe impl Send for TensorRef<'_> {}
// SAFETY: as above; it gives out no mutable access.
unsafe impl Sync for TensorRef<'_> {}

impl<'a> TensorRef<'a> {
    /// A dense matrix of `cols` columns over a slice. Elements after the last full row are not part of it.
    pub fn new<T: Element>(data: &'a [T], cols: usize) -> Self {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        // Saturates only if the slice holds no row, and then the stride is not used.
        let row_stride = cols.saturating_mul(size_of::<T>());
        Self {
            ptr: NonNull::from(data).cast(),
            dtype: T::DTYPE,
            rows,
            cols,
            row_stride,
            lifetime: PhantomData,
        }
    }

    /// A matrix whose rows lie `row_stride` elements apart.
    ///
    /// # Errors
    /// [`Error::Invalid`] if rows overlap (`row_stride` below `cols`) or the slice ends before the last row does.
    pub fn strided<T: Element>(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Result<Self> {
        let invalid = |text: String| {
            Error::Invalid(Failure { operation: "tensor".into(), rank: None, peer: None, text })
        };
        fits(data.len(), rows, cols, row_stride).map_err(invalid)?;
        let row_stride = row_stride.saturating_mul(size_of::<T>());
        Ok(Self { rows, row_stride, ..Self::new(data, cols) })
    }

    /// A matrix anywhere in host memory; `row_stride` in bytes.
    ///
    /// # Safety
    /// For `'a`, every row's `cols` elements of `dtype` are initialised, aligned to their type and not written.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        dtype: DType,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Self {
        Self { ptr, dtype, rows, cols, row_stride, lifetime: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

/// Whether `rows` rows of `cols` elements, `row_stride` elements apart, lie beside each other in the `have` elements of `data`.
pub(crate) fn fits(have: usize, rows: usize, cols: usize, row_stride: usize) -> Result<(), String> {
    if row_stride < cols {
        return Err(format!("row_stride is {row_stride}, rows of {cols} elements overlap"));
    }
    let end = match rows.checked_sub(1) {
        Some(last) => last.checked_mul(row_stride).and_then(|first| first.checked_add(cols)),
        None => Some(0),
    };
    if end.is_none_or(|end| end > have) {
        return Err(format!(
            "data has {have} elements, {rows} rows of {cols} with row_stride {row_stride} take more"
        ));
    }
    Ok(())
}

impl View for TensorRef<'_> {}

impl sealed::View for TensorRef<'_> {
    type Site = ();

    fn matrix(&self) -> sealed::Matrix {
        let Self { ptr, dtype, rows, cols, row_stride, .. } = *self;
        sealed::Matrix { ptr: ptr.as_ptr(), dtype, rows, cols, row_stride }
    }

    fn at(&self, _: &str, (): &()) -> Result<sealed::Matrix, String> {
        Ok(self.matrix())
    }
}

/// Memory to write: dense elements of one type.
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: an exclusive borrow of plain numbers, like &mut [T].
unsafe impl Send for TensorMut<'_> {}

impl<'a> TensorMut<'a> {
    /// All of a slice.
    pub fn new<T: Element>(data: &'a mut [T]) -> Self {
        let len = data.len();
        Self { ptr: NonNull::from(data).cast(), dtype: T::DTYPE, len, lifetime: PhantomData }
    }

    /// `len` elements anywhere in host memory.
    ///
    /// # Safety
    /// For `'a` they are aligned to their type, and nobody else reads or writes them.
    pub unsafe fn from_raw(ptr: NonNull<u8>, dtype: DType, len: usize) -> Self {
        Self { ptr, dtype, len, lifetime: PhantomData }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * self.dtype.bytes()
    }
}

/// A cache line.
const ALIGN: usize = 64;

/// Zeroed host memory aligned to 64 bytes, the best alignment for outputs. Dereferences to a slice.
pub struct HostBuffer<T: Element> {
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: owns its elements, which are Send and Sync.
unsafe impl<T: Element> Send for HostBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for HostBuffer<T> {}

impl<T: Element> HostBuffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if the system has no memory left.
    pub fn try_zeroed(len: usize) -> Result<Self> {
        let no_memory = || {
            let text = format!("no memory for len {len} of {:?}: ask for less", T::DTYPE);
            Error::NoMemory(Failure { operation: "host_buffer".into(), rank: None, peer: None, text })
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(no_memory)?.max(1);
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| no_memory())?;
        // SAFETY: the layout is never of size zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        prefer_huge_pages(ptr, bytes);
        Ok(Self { ptr: ptr.cast(), len })
    }

    /// [`HostBuffer::try_zeroed`] for sizes that certainly fit: if they do not, ends the process through the allocation
    /// error hook, as `Vec` does.
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|_| {
            let most = isize::MAX as usize / size_of::<T>(); // of which there is a layout
            handle_alloc_error(Layout::array::<T>(len.min(most)).unwrap_or(Layout::new::<T>()))
        })
    }
}

/// Asks for huge pages if the memory holds some whole ones: otherwise rows that lie far apart cost a page walk each.
fn prefer_huge_pages(ptr: NonNull<u8>, bytes: usize) {
    const HUGE: usize = 2 << 20;
    let address = ptr.as_ptr() as usize;
    let (first, end) = (address.next_multiple_of(HUGE), (address + bytes) / HUGE * HUGE);
    if first < end {
        // SAFETY: whole pages inside an allocation that this module owns; the advice changes no byte. A system that
        // refuses it keeps small pages.
        unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
    }
}

/// A copy of the elements. Aborts, as `Vec` does, if the system has no memory left.
impl<T: Element> From<&[T]> for HostBuffer<T> {
    fn from(elements: &[T]) -> Self {
        let mut buffer = Self::zeroed(elements.len());
        buffer.copy_from_slice(elements);
        buffer
    }
}

impl<T: Element> Drop for HostBuffer<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).max(1);
        // SAFETY: allocated in `try_zeroed` with the same layout, which was checked there.
        unsafe {
            let layout = Layout::from_size_align_unchecked(bytes, ALIGN);
            dealloc(self.ptr.as_ptr().cast(), layout);
        }
    }
}

impl<T: Element> Deref for HostBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, zeroed when they were allocated; every bit pattern is a value (Element).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> std::fmt::Debug for HostBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostBuffer<{:?}>[{}]", T::DTYPE, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::sealed::View as _;
    use super::*;

    #[test]
    fn a_buffer_of_elements_is_their_copy() {
        let buffer = HostBuffer::from(&[1.0f32, 2.0][..]);
        assert_eq!(buffer[..], [1.0, 2.0]);
        assert_eq!(HostBuffer::<u8>::from(&[][..]).len(), 0);
    }

    #[test]
    fn a_strided_view_must_fit_its_slice() {
        let data = [0f32; 10];
        assert!(
            TensorRef::strided(&data, 3, 2, 4).is_ok_and(|t| t.row_stride == 16 && !t.matrix().is_dense())
        );
        assert!(TensorRef::strided(&data, 0, 4, usize::MAX).is_ok_and(|t| t.rows() == 0));
        for (rows, cols, stride, field) in [
            (3, 3, 4, "data has 10 elements"),
            (usize::MAX, 4, 4, "data has 10 elements"),
            (1, usize::MAX, usize::MAX, "data has 10 elements"),
            (2, 4, 3, "row_stride is 3"),
        ] {
            let error = TensorRef::strided(&data, rows, cols, stride).unwrap_err();
            assert!(error.failure().unwrap().text.starts_with(field), "{error}");
        }
    }

    #[test]
    fn rows_wider_than_the_slice_are_no_rows() {
        let t = TensorRef::new(&[0f32; 10], usize::MAX / 2);
        assert_eq!((t.rows(), t.cols(), t.matrix().is_dense()), (0, usize::MAX / 2, true));
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        for len in [1 << 50, usize::MAX] {
            let error = HostBuffer::<u32>::try_zeroed(len).unwrap_err();
            assert!(matches!(&error, Error::NoMemory(f) if f.text.contains(&len.to_string())), "{error}");
        }
    }

    /// In a process of its own, which it ends.
    #[test]
    fn memory_that_must_be_there_ends_the_process_with_its_size() {
        const INSIDE: &str = "EPWIRE_TEST_LEN_OF_BUFFER";
        if let Ok(len) = std::env::var(INSIDE) {
            drop(HostBuffer::<u32>::zeroed(len.parse().unwrap()));
            return;
        }
        for (len, bytes) in [(1 << 50, 1 << 52), (usize::MAX, isize::MAX as usize - 3)] {
            let ended = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tensor::tests::memory_that_must_be_there_ends_the_process_with_its_size"])
                .env(INSIDE, len.to_string())
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&ended.stderr);
            assert!(told.contains(&format!("memory allocation of {bytes} bytes failed")), "{told}");
            assert!(!ended.status.success());
        }
    }

    #[test]
    fn host_buffers_are_aligned_zeros() {
        let mut buffer = HostBuffer::<u32>::zeroed(33);
        assert_eq!(buffer.as_ptr() as usize % 64, 0);
        assert!(buffer.iter().all(|x| *x == 0));
        buffer[32] = 7;
        assert_eq!(buffer.len(), 33);
        assert!(HostBuffer::<u8>::zeroed(0).is_empty());
    }
}
