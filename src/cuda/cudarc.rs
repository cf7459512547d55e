//! Views of cudarc's slices. A guard travels with the view, which the enqueuing call consumes: it is dropped, and records where
//! the use ends, after the kernel has been enqueued on the stream.

use ::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice};

use std::sync::Arc;

use super::guard::Guard;
use super::view::{Origin, TensorMut, TensorRef, address};
use crate::tensor::Element;
use crate::tensor::sealed::Matrix;

impl<'a> TensorRef<'a> {
    /// A dense matrix of `cols` columns over a slice, to be enqueued on `stream`, which waits for the slice's last writer.
    /// Elements behind the last full row are not part of it.
    ///
    /// If the program then reads the slice on another stream while the call may still read it, that stream must first wait for the
    /// call: see "Memory" in the documentation of [`cuda`](crate::cuda).
    pub fn from_slice<T: Element>(slice: &'a CudaSlice<T>, cols: usize, stream: &'a CudaStream) -> Self {
        Self::over(slice, cols, stream)
    }

    /// [`TensorRef::from_slice`] over a part of a slice.
    pub fn from_view<T: Element>(view: &'a CudaView<'_, T>, cols: usize, stream: &'a CudaStream) -> Self {
        Self::over(view, cols, stream)
    }

    /// Of the elements of a slice from `first` on: `rows` of `cols`, `row_stride` elements apart. `memory` keeps the slice, and is
    /// kept until the stream has run the work.
    #[cfg(feature = "candle-cuda")]
    pub(crate) fn strided<T: Element>(
        slice: &'a CudaSlice<T>,
        first: usize,
        [rows, cols, row_stride]: [usize; 3],
        stream: &'a CudaStream,
        memory: Option<super::kept::Memory>,
    ) -> Result<Self, String> {
        let first = first.min(slice.len());
        crate::tensor::fits(slice.len() - first, rows, cols, row_stride)?;
        let (ptr, guard) = slice.device_ptr(stream);
        let matrix = Matrix {
            ptr: address(ptr).wrapping_add(first * size_of::<T>()),
            dtype: T::DTYPE,
            rows,
            cols,
            row_stride: row_stride.saturating_mul(size_of::<T>()),
        };
        let mut guard = Guard::new(guard, stream);
        guard.memory = memory;
        Ok(Self::guarded(matrix, origin(slice, stream), Some(guard)))
    }

    fn over<T: Element>(memory: &'a impl DevicePtr<T>, cols: usize, stream: &'a CudaStream) -> Self {
        let (ptr, guard) = memory.device_ptr(stream);
        let matrix = Matrix {
            ptr: address(ptr),
            dtype: T::DTYPE,
            rows: memory.len().checked_div(cols).unwrap_or(0),
            cols,
            row_stride: cols.saturating_mul(size_of::<T>()),
        };
        Self::guarded(matrix, origin(memory, stream), Some(Guard::new(guard, stream)))
    }
}

impl<'a> TensorMut<'a> {
    /// All of a slice, to be enqueued on `stream`, which waits for the slice's last readers and writer.
    pub fn from_slice<T: Element>(slice: &'a mut CudaSlice<T>, stream: &'a CudaStream) -> Self {
        Self::over(slice, stream)
    }

    /// [`TensorMut::from_slice`] over a part of a slice.
    pub fn from_view<T: Element>(view: &'a mut CudaViewMut<'_, T>, stream: &'a CudaStream) -> Self {
        Self::over(view, stream)
    }

    fn over<T: Element>(memory: &'a mut impl DevicePtrMut<T>, stream: &'a CudaStream) -> Self {
        let (origin, len) = (origin(memory, stream), memory.len());
        let (ptr, guard) = memory.device_ptr_mut(stream);
        Self::guarded(ptr, T::DTYPE, len, origin, Some(Guard::new(guard, stream)))
    }
}

fn origin<T>(memory: &impl DeviceSlice<T>, stream: &CudaStream) -> Option<Origin> {
    // A buffer's ordinal never exceeds 32 bits, so this matches none.
    let device = u32::try_from(memory.stream().context().ordinal()).unwrap_or(u32::MAX);
    let (context, home) = (stream.context(), memory.stream());
    // Default streams of all contexts have the same address. In a context without streams of its own cudarc orders nothing.
    let ordered = Arc::ptr_eq(home.context(), context)
        && context.is_primary()
        && (home.cu_stream() == stream.cu_stream() || context.is_in_multi_stream_mode());
    Some(Origin { device, stream: stream.cu_stream().cast(), ordered })
}
