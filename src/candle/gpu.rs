//! Tensors on GPUs. Guards travel with the views: they tell cudarc where each use of candle's memory ends.

use std::sync::Arc;

use ::candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorageSlice};
use ::candle_core::op::BackpropOp;
use ::candle_core::{CudaStorage, Device, Shape, Storage, Tensor};
use ::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DeviceRepr};

use super::held::{ELEMENTS, Held, invalid};
use crate::cuda::kept::Memory;
use crate::cuda::{TensorMut, TensorRef};
use crate::error::{Error, Failure, Result};
use crate::tensor::Element;

impl Held<'_> {
    /// Like [`Held::view`], of a tensor on a GPU, to be enqueued on `stream`. Another stream than candle's waits for all that
    /// candle has enqueued so far.
    ///
    /// The operation reads the tensor after the call that enqueues it. On another stream than candle's, do not write the tensor in
    /// place before the operation has completed: candle would not wait for it. Dropping the tensor is fine: its memory is kept until
    /// a view is made after the operation has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has another shape, is not on a GPU, has an element type that no operation takes, or `stream` has
    /// another context than the tensor. [`Error::System`] if the stream cannot wait: it has failed, or is being captured.
    pub fn view_on<'s>(&'s self, stream: &'s Arc<CudaStream>) -> Result<TensorRef<'s>> {
        let Storage::Cuda(CudaStorage { slice, .. }) = &*self.storage else {
            return Err(invalid("the tensor must be on a GPU: Tensor::to_device moves it there"));
        };
        match slice {
            CudaStorageSlice::U8(slice) => self.matrix_on(slice, stream),
            CudaStorageSlice::U32(slice) => self.matrix_on(slice, stream),
            CudaStorageSlice::I32(slice) => self.matrix_on(slice, stream),
            CudaStorageSlice::I64(slice) => self.matrix_on(slice, stream),
            CudaStorageSlice::BF16(slice) => self.matrix_on(slice, stream),
            CudaStorageSlice::F16(slice) => self.matrix_on(slice, stream),
            CudaStorageSlice::F32(slice) => self.matrix_on(slice, stream),
            _ => Err(invalid(ELEMENTS)),
        }
    }

    fn matrix_on<'s, T: Element>(
        &self,
        slice: &'s CudaSlice<T>,
        stream: &'s Arc<CudaStream>,
    ) -> Result<TensorRef<'s>> {
        check_context(slice, stream)?;
        follow(stream, slice.stream())?;
        // On candle's own stream the memory is freed behind the operation.
        let is_apart = !Arc::ptr_eq(stream, slice.stream());
        let memory = is_apart.then(|| -> Memory { (Arc::new(self.tensor.detach()), slice.stream().clone()) });
        TensorRef::strided(slice, self.layout.start_offset(), self.shape()?, stream, memory).map_err(invalid)
    }
}

/// Memory on a GPU for what comes out of an operation, which then becomes a tensor.
///
/// Its contents are unspecified at first, and stay so where the operation does not write: in the rows beyond an
/// expert's count.
#[derive(Debug)]
pub struct Output<T> {
    /// Of one element at least: CUDA allocates no less.
    slice: CudaSlice<T>,
    len: usize,
    device: CudaDevice,
}

impl<T: Element + CudaDType + DeviceRepr> Output<T> {
    /// `len` elements, allocated in the order of the device's stream: the host does not wait.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `device` is no GPU, [`Error::NoMemory`] if it has no memory left.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        let Device::Cuda(device) = device else {
            return Err(invalid(
                "the device must be a GPU: on the host, outputs are DispatchBuffers and slices",
            ));
        };
        // SAFETY: whatever is in that memory, every bit pattern is a value of T (Element).
        let mut slice = unsafe { device.alloc::<T>(len.max(1)) }.map_err(|error| {
            let text = format!("no memory on the GPU for {len} of {:?}: {error}", T::DTYPE);
            Error::NoMemory(Failure { operation: "candle".into(), rank: None, peer: None, text })
        })?;
        // Counts as a write, which other streams wait for: what candle has enqueued may still use that memory, as a tensor's that is
        // dropped by now.
        drop(slice.device_ptr_mut(&device.cuda_stream()));
        Ok(Self { slice, len, device: device.clone() })
    }

    /// All of it, to be enqueued on `stream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `stream` has another context than the device.
    pub fn view_on<'s>(&'s mut self, stream: &'s Arc<CudaStream>) -> Result<TensorMut<'s>> {
        check_context(&self.slice, stream)?;
        let mut view = TensorMut::from_slice(&mut self.slice, stream);
        view.len = self.len;
        Ok(view)
    }

    /// The memory as a tensor of this shape. Nothing is copied, and candle's operations on it run after those enqueued so far.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the shape has another number of elements.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        let (shape, len) = (shape.into(), self.len);
        if shape.elem_count() != len {
            return Err(invalid(format!("the shape {shape:?} is not one of {len} elements")));
        }
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(self.slice, self.device));
        Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false))
    }
}

/// Makes `stream` wait for what has been enqueued on candle's. Not for the tensor's last writer alone: to cudarc, candle's kernels
/// read what they write, so it knows no writer.
fn follow(stream: &Arc<CudaStream>, candles: &Arc<CudaStream>) -> Result<()> {
    if Arc::ptr_eq(stream, candles) {
        return Ok(());
    }
    stream.join(candles).map_err(|error| {
        let text = format!("the stream cannot wait for candle's: {error}");
        Error::System(Failure { operation: "candle".into(), rank: None, peer: None, text })
    })
}

/// cudarc orders the streams of one context, but not those of different contexts, even on one GPU.
fn check_context<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> Result<()> {
    if Arc::ptr_eq(slice.context(), stream.context()) {
        return Ok(());
    }
    let [of, on] = [slice.context(), stream.context()].map(|context| context.ordinal());
    Err(invalid(format!(
        "the tensor belongs to a context of GPU {of}, the stream to another one, of GPU {on}: \
         enqueue on candle's own stream, CudaDevice::cuda_stream, or on one of its context"
    )))
}
