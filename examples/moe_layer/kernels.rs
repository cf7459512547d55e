//! The experts' kernels: experts.ptx, which the driver compiles for its GPU, and the argument that they take.

use std::{ffi::c_void, sync::Arc};

use epwire::cudarc::driver::{CudaStream, DriverError, result, sys};

/// What the kernels compute on, by device addresses: `Layer` of experts.cu, which says what each is.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LayerArgument {
    pub rows: u64,
    pub row_stride: u64,
    pub rows_expert_stride: u64,
    pub scales: u64,
    pub scale_stride: u64,
    pub scales_expert_stride: u64,
    pub counts: u64,
    pub expert_rows: u64,
    pub gate: u64,
    pub up: u64,
    pub down: u64,
    pub inner: u64,
    pub outputs: u64,
    pub source_counts: u64,
    pub row_experts: u64,
    pub row_weights: u64,
    pub answers: u64,
    pub answer_stride: u64,
    pub places: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub topk: u32,
    pub max_tokens: u32,
    pub payload: u32,
}
const _: () = assert!(size_of::<LayerArgument>() == 18 * 8 + 6 * 4, "as in experts.cu");

/// Values of `payload`.
pub const BF16: u32 = 0;
pub const F16: u32 = 1;
pub const FP8: u32 = 2;

/// The kernels on one GPU, for launches on one stream. They stay loaded as long as the GPU's context lives.
pub struct Kernels {
    stream: Arc<CudaStream>,
    gate_and_up: sys::CUfunction,
    down: sys::CUfunction,
    reduce: sys::CUfunction,
}

impl Kernels {
    pub fn load(stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the image is PTX that ends with a zero.
        let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }?;
        // SAFETY: the module was loaded just now and is never unloaded.
        let function = |name: &std::ffi::CStr| unsafe { result::module::get_function(module, name.into()) };
        Ok(Self {
            stream: stream.clone(),
            gate_and_up: function(c"gate_and_up")?,
            down: function(c"down")?,
            reduce: function(c"reduce")?,
        })
    }

    /// Enqueues the experts of a layer: every row's outputs, each expert's own.
    ///
    /// # Safety
    /// All addresses but those of `reduce` are those of memory of the sizes that experts.cu tells, allocated until the stream
    /// has come so far, and used by nobody else meanwhile.
    pub unsafe fn experts(&self, layer: &LayerArgument, experts: u32) -> Result<(), DriverError> {
        for function in [self.gate_and_up, self.down] {
            // SAFETY: as the caller promises.
            unsafe { self.launch(function, (layer.places, experts, 1), layer) }?;
        }
        Ok(())
    }

    /// Enqueues the sum of every row's outputs over its experts (rank-major).
    ///
    /// # Safety
    /// As [`Kernels::experts`], with all addresses.
    pub unsafe fn reduce(&self, layer: &LayerArgument) -> Result<(), DriverError> {
        // SAFETY: as the caller promises.
        unsafe { self.launch(self.reduce, (layer.places, 1, 1), layer) }
    }

    /// # Safety
    /// As [`Kernels::experts`].
    unsafe fn launch(
        &self,
        function: sys::CUfunction,
        grid: (u32, u32, u32),
        layer: &LayerArgument,
    ) -> Result<(), DriverError> {
        const THREADS: u32 = 128;
        self.stream.context().bind_to_thread()?;
        let mut arguments = [std::ptr::from_ref(layer).cast_mut().cast::<c_void>()];
        let stream = self.stream.cu_stream();
        // SAFETY: each kernel takes this one argument, which the call copies; its addresses are as the caller promises.
        unsafe { result::launch_kernel(function, grid, (THREADS, 1, 1), 0, stream, &mut arguments) }
    }
}

const PTX: &str = concat!(include_str!("experts.ptx"), "\0");
