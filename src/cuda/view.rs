//! Views of device memory: an address, an element type, a shape. They own nothing and copy nothing.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::stream::StreamRef;
use crate::error::{Error, Failure, Result};
use crate::ffi::{Captures, Floor};
use crate::tensor::sealed::{self, Matrix};
use crate::tensor::{DType, View};

#[cfg(feature = "cudarc")]
pub(super) type Guard<'a> = Option<super::guard::Guard<'a>>;
#[cfg(not(feature = "cudarc"))]
pub(super) type Guard<'a> = PhantomData<&'a ()>;

/// For which GPU and stream a view was made: it may be enqueued only there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(super) device: u32,
    pub(super) stream: *mut c_void,
    /// Whether the owner of the memory orders what is enqueued on that stream with its own work.
    pub(super) ordered: bool,
}

/// A matrix to read in GPU memory: `rows` rows of `cols` elements, each row dense, `row_stride` bytes apart. A call consumes it.
#[derive(Debug)]
pub struct TensorRef<'a> {
    matrix: Matrix,
    pub(crate) origin: Option<Origin>,
    /// Dropped when the call has enqueued its work or was refused: tells the owner of the memory where the reading
    /// ends.
    guard: Guard<'a>,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> TensorRef<'a> {
    /// A matrix at a device address (`CUdeviceptr`); `row_stride` in bytes.
    ///
    /// # Safety
    ///
    /// Every row's `cols` elements of `dtype` lie in memory that the GPU of the buffer or communicator can read. They
    /// stay allocated and unwritten until the work has run that the call taking this view enqueues. The weights of an
    /// ordered combine, and everything given to a half of a [prefill](super#prefill), stay so until the receiving half has
    /// run or been given up; under capture, as long as the graph may be replayed.
    pub unsafe fn from_raw(ptr: u64, dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Self {
        let matrix = Matrix { ptr: address(ptr), dtype, rows, cols, row_stride };
        Self::guarded(matrix, None, Guard::default())
    }

    pub(super) fn guarded(matrix: Matrix, origin: Option<Origin>, guard: Guard<'a>) -> Self {
        Self { matrix, origin, guard, lifetime: PhantomData }
    }

    /// What is left to keep of it when its address has been passed on.
    pub(super) fn into_guard(self) -> Guard<'a> {
        self.guard
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.matrix.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.matrix.cols
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.matrix.dtype
    }
}

impl View for TensorRef<'_> {}

impl sealed::View for TensorRef<'_> {
    type Site = Site;

    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn at(&self, name: &str, site: &Site) -> Result<Matrix, String> {
        site.admit(name, self.origin)?;
        Ok(self.matrix)
    }
}

/// GPU memory to write: dense elements of one type. A call consumes it.
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) ptr: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
    pub(crate) origin: Option<Origin>,
    /// As in [`TensorRef`]: tells the owner where the writing ends.
    _guard: Guard<'a>,
    lifetime: PhantomData<&'a mut ()>,
}

impl<'a> TensorMut<'a> {
    /// `len` elements at a device address (`CUdeviceptr`).
    ///
    /// # Safety
    ///
    /// They lie in memory that the GPU of the buffer or communicator can write. They stay allocated, and nobody else
    /// reads or writes them, until the work has run that the call taking this view enqueues. Under capture nobody else
    /// uses them during any replay, and they stay allocated as long as the graph may be replayed.
    pub unsafe fn from_raw(ptr: u64, dtype: DType, len: usize) -> Self {
        Self::guarded(ptr, dtype, len, None, Guard::default())
    }

    pub(super) fn guarded(
        ptr: u64,
        dtype: DType,
        len: usize,
        origin: Option<Origin>,
        guard: Guard<'a>,
    ) -> Self {
        let ptr = address(ptr).cast_mut();
        Self { ptr, dtype, len, origin, _guard: guard, lifetime: PhantomData }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.bytes())
    }
}

/// Never dereferenced here.
pub(super) fn address(ptr: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(ptr as usize)
}

/// The GPU and the stream that an operation is enqueued on. The call that enqueues is made while this exists.
#[derive(Debug)]
#[must_use]
pub struct Site {
    device: u32,
    stream: *mut c_void,
    _captures: Captures,
}

impl Site {
    /// Of the GPU of a buffer or communicator; fails if `stream` belongs to another one, or to another context of it.
    pub(super) fn new(operation: &str, rank: u32, device: u32, stream: &StreamRef<'_>) -> Result<Self> {
        let text = match stream.device {
            Some(of) if of != device => format!("the stream is one of GPU {of}, must be one of GPU {device}"),
            _ if !stream.is_primary => format!(
                "the stream is one of a context that is not the primary one of GPU {device}: make it with CudaContext::new({device})"
            ),
            _ => return Ok(Self { device, stream: stream.raw, _captures: stream.captures() }),
        };
        Err(Error::Invalid(Failure::new(operation, rank, text)))
    }

    /// The same, of a call that is to be enqueued for this owner.
    pub(crate) fn of(
        owner: &dyn Floor,
        operation: &str,
        (rank, device): (u32, u32),
        stream: &StreamRef<'_>,
    ) -> Result<Self> {
        let site = Self::new(operation, rank, device, stream)?;
        stream.keep_in(owner.streams());
        Ok(site)
    }

    pub(crate) fn stream(&self) -> *mut c_void {
        self.stream
    }

    /// Checks that a view was made for this GPU and stream.
    pub(crate) fn admit(&self, name: &str, origin: Option<Origin>) -> Result<(), String> {
        let Self { device, stream, .. } = *self;
        match origin {
            Some(origin) if origin.device != device => {
                let of = origin.device;
                Err(format!("{name} is memory of GPU {of}, must be of GPU {device}"))
            }
            Some(origin) if origin.stream != stream => Err(format!(
                "{name} was viewed for another stream than the one enqueued on: make the view with that one"
            )),
            Some(Origin { ordered: false, .. }) => Err(format!(
                "cudarc does not order {name} with this stream: use one that the CudaContext of the memory has made \
                 (new_stream), or the slice's own"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_other_gpus_and_contexts_are_refused() {
        let mut stream = StreamRef::legacy();
        drop(Site::new("dispatch", 0, 1, &stream).unwrap());
        stream.is_primary = false;
        let error = Site::new("dispatch", 0, 1, &stream).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(f) if f.text.contains("not the primary one of GPU 1")),
            "{error}"
        );
        stream.device = Some(0);
        let error = Site::new("dispatch", 0, 1, &stream).unwrap_err();
        assert!(matches!(&error, Error::Invalid(f) if f.text.contains("one of GPU 0")), "{error}");
    }
}
