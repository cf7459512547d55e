//! The GPUs that a process sees.

use epwire::cudarc::driver::{CudaContext, sys};

/// How many GPUs this process sees, at least 1; else what to do about that.
pub(crate) fn gpus() -> Result<u32, String> {
    // SAFETY: loads the driver's library and lets go of it, as every CUDA program does. Without the question cudarc panics.
    if !unsafe { sys::is_culib_present() } {
        return Err("--device cuda: no NVIDIA driver, libcuda.so.1 is not to be found: install the driver, \
                    start the container with its GPUs, or use --device host"
            .into());
    }
    let see = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device host";
    match CudaContext::device_count() {
        Ok(count @ 1..) => Ok(count.unsigned_abs()),
        Ok(_) => Err(format!("--device cuda: the NVIDIA driver shows no GPU: {see}")),
        Err(error) => Err(format!("--device cuda: the NVIDIA driver does not start: {error}; {see}")),
    }
}
