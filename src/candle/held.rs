//! A tensor that stays as it is while a call reads it, and its view on the host.

use ::candle_core::{CpuStorage, Layout, Storage, StorageRef, Tensor};

use crate::error::{Error, Failure, Result};
use crate::tensor::{Element, TensorRef};

/// Keeps others from writing a tensor while it exists. It stays on its thread, as candle's lock does.
#[derive(Debug)]
pub struct Held<'a> {
    #[cfg(feature = "candle-cuda")]
    pub(super) tensor: &'a Tensor,
    pub(super) storage: StorageRef<'a>,
    pub(super) layout: &'a Layout,
}

/// Holds a tensor for reading. Writing it in place meanwhile, for example with `Tensor::slice_set`, waits until it is
/// released.
pub fn hold(tensor: &Tensor) -> Held<'_> {
    let (storage, layout) = tensor.storage_and_layout();
    Held {
        #[cfg(feature = "candle-cuda")]
        tensor,
        storage,
        layout,
    }
}

impl Held<'_> {
    /// The tensor as a matrix: one with two dimensions whose rows are dense, or with one dimension as a single column.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has another shape, is not in host memory, or has an element type that no operation
    /// takes.
    pub fn view(&self) -> Result<TensorRef<'_>> {
        match &*self.storage {
            Storage::Cpu(CpuStorage::U8(data)) => self.matrix(data),
            Storage::Cpu(CpuStorage::U32(data)) => self.matrix(data),
            Storage::Cpu(CpuStorage::I32(data)) => self.matrix(data),
            Storage::Cpu(CpuStorage::I64(data)) => self.matrix(data),
            Storage::Cpu(CpuStorage::BF16(data)) => self.matrix(data),
            Storage::Cpu(CpuStorage::F16(data)) => self.matrix(data),
            Storage::Cpu(CpuStorage::F32(data)) => self.matrix(data),
            Storage::Cpu(_) => Err(invalid(ELEMENTS)),
            _ => Err(invalid("the tensor is on a GPU, must be on the CPU")),
        }
    }

    fn matrix<'a, T: Element>(&self, data: &'a [T]) -> Result<TensorRef<'a>> {
        let [rows, cols, stride] = self.shape()?;
        TensorRef::strided(data.get(self.layout.start_offset()..).unwrap_or_default(), rows, cols, stride)
    }

    /// Rows, columns, and elements from one row to the next.
    pub(super) fn shape(&self) -> Result<[usize; 3]> {
        let (dims, strides) = (self.layout.dims(), self.layout.stride());
        let (rows, cols, stride) = match (dims, strides) {
            (&[rows], &[stride]) => (rows, 1, stride),
            (&[rows, cols], &[stride, element]) if element == 1 || cols <= 1 => (rows, cols, stride),
            _ => {
                let remedy = if dims.len() > 2 {
                    "flatten or reshape it to two dimensions"
                } else {
                    "call contiguous()"
                };
                return Err(invalid(format!(
                    "the tensor is {dims:?} with strides {strides:?}, must be a matrix with dense rows: {remedy} first"
                )));
            }
        };
        // The stride of a tensor with one row may be anything.
        Ok([rows, cols, if rows <= 1 { cols } else { stride }])
    }
}

pub(super) const ELEMENTS: &str = "the tensor's elements must be u8, u32, i32, i64, bf16, f16 or f32";

pub(super) fn invalid(text: impl Into<String>) -> Error {
    Error::Invalid(Failure { operation: "candle".into(), rank: None, peer: None, text: text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, sealed::View as _};
    use ::candle_core::{DType as Candles, Device};

    #[test]
    fn a_view_is_of_the_tensors_own_memory() {
        let whole = Tensor::arange(0f32, 24.0, &Device::Cpu).unwrap().reshape((4, 6)).unwrap();
        let part = whole.narrow(0, 1, 2).unwrap().narrow(1, 2, 3).unwrap();
        let held = hold(&part);
        let view = held.view().unwrap();
        assert_eq!((view.rows(), view.cols(), view.dtype()), (2, 3, DType::F32));
        let matrix = view.matrix();
        // SAFETY: the view's second row, which the tensor holds.
        let row = unsafe { std::slice::from_raw_parts(matrix.ptr.add(matrix.row_stride).cast::<f32>(), 3) };
        assert_eq!(row, [14.0, 15.0, 16.0]);
    }

    #[test]
    fn what_is_no_matrix_with_dense_rows_is_refused() {
        let cube = Tensor::zeros((2, 2, 2), Candles::F32, &Device::Cpu).unwrap();
        let turned = Tensor::zeros((2, 3), Candles::BF16, &Device::Cpu).unwrap().t().unwrap();
        let wide = Tensor::zeros((2, 3), Candles::F64, &Device::Cpu).unwrap();
        for (tensor, words) in [
            (cube, "reshape it to two dimensions first"),
            (turned, "call contiguous() first"),
            (wide, "must be u8, u32"),
        ] {
            let error = hold(&tensor).view().map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let empty = Tensor::zeros((0, 8), Candles::BF16, &Device::Cpu).unwrap();
        assert_eq!(hold(&empty).view().unwrap().rows(), 0);
    }
}
