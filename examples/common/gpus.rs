//! The GPUs that a process sees.

use epwire::cudarc::driver::CudaContext;

/// How many GPUs this process sees, at least 1; else what to do about that.
pub(crate) fn gpus() -> Result<u32, String> {
    if !has_driver() {
        return Err("--device cuda: no NVIDIA driver, libcuda.so.1 cannot be found: install the driver, \
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

/// Whether the driver's library can be loaded. Without this check cudarc would panic.
#[cfg(not(feature = "candle-cuda"))]
fn has_driver() -> bool {
    // SAFETY: loads the driver's library and closes it again, as every CUDA program does.
    unsafe { epwire::cudarc::driver::sys::is_culib_present() }
}

/// candle links the driver's library: the program would not have started.
#[cfg(feature = "candle-cuda")]
fn has_driver() -> bool {
    true
}
