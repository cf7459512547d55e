//! GPU memory as inputs and outputs of operations.

use super::view::{Site, TensorMut, TensorRef};
use crate::buffer::sealed;
use crate::buffer::{Dispatch, GenericCombineOutput, GenericDispatchOutput, Item, Memory, Need, Place};
use crate::tensor::DType;

/// Where the rows received in GPU memory go; see [`GenericDispatchOutput`].
pub type DispatchOutput<'a> = GenericDispatchOutput<'a, Gpu>;

/// Where combined tokens go in GPU memory; see [`GenericCombineOutput`].
pub type CombineOutput<'a> = GenericCombineOutput<'a, Gpu>;

impl<'a> Dispatch<'a, TensorRef<'a>> {
    /// Opaque bytes of each token, `[n, bytes_per_token]` of U8, dense, that travel with its row.
    #[must_use]
    pub fn sideband(self, bytes: TensorRef<'a>) -> Self {
        let per_token = u32::try_from(bytes.cols()).unwrap_or(u32::MAX);
        self.with_sideband(bytes, per_token)
    }
}

/// Marks the memory of a GPU, written by kernels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gpu;

impl Memory for Gpu {
    type Tensor<'a> = TensorMut<'a>;
    type List<'a, T: Item> = TensorMut<'a>;
}

impl sealed::Memory for Gpu {
    type Site = Site;
}

impl Place<Site> for TensorMut<'_> {
    fn place(&mut self, name: &str, need: Need, site: &Site) -> Result<*mut u8, String> {
        site.admit(name, self.origin)?;
        let dtype = match (need, self.dtype) {
            // Kernels count in the same way for both types.
            (Need::Elements(DType::U32, _), DType::I32) => DType::U32,
            (Need::Elements(DType::U64, _), DType::I64) => DType::U64,
            (_, dtype) => dtype,
        };
        need.check(name, dtype, self.len)?;
        Ok(self.ptr)
    }
}
