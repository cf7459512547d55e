//! `--device cuda`: a rank's part on its GPU. Layers and collectives follow each other on one stream; the host waits once, at the end.

use std::ffi::c_void;
use std::sync::Arc;

use epwire::comm::{Call, CommConfig};
use epwire::cuda::{TensorMut, TensorRef};
use epwire::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, result, sys};
use epwire::{Comm, Device, Group, Reduction};

use super::{Outputs, Result};
use crate::mlp::Mlp;

#[path = "../common/gpus.rs"]
mod gpus;

/// Whether this process sees a GPU.
pub fn check() -> Result<()> {
    gpus::gpus()?;
    Ok(())
}

/// Both ways, as in [`on_host`](super::on_host).
pub fn both_ways(group: &Group, local_rank: u32, part: &Mlp, x: &[f32], own: &[f32]) -> Result<Outputs> {
    let ordinal = local_rank % gpus::gpus()?;
    let config = CommConfig::default().device(Device::Cuda(ordinal));
    let comm = Comm::create_blocking(group, config)?;
    let stream = CudaContext::new(ordinal as usize)?.new_stream()?;
    let layers = Layers::new(&stream, part)?;

    // Every rank has all rows.
    let mut reduced = layers.forward(&stream.clone_htod(x)?)?;
    let sum = TensorMut::from_slice(&mut reduced, &stream);
    comm.enqueue(Call::all_reduce_in_place(sum, Reduction::Sum), (&stream).into())?;

    // Every rank has some rows.
    let own = stream.clone_htod(own)?;
    let mut all = stream.alloc_zeros::<f32>(x.len())?;
    let (given, taken) = (view(&own, &stream), TensorMut::from_slice(&mut all, &stream));
    comm.enqueue(Call::all_gather(given, taken), (&stream).into())?;
    let parts = layers.forward(&all)?;
    let mut scattered = stream.alloc_zeros::<f32>(own.len())?;
    let (given, taken) = (view(&parts, &stream), TensorMut::from_slice(&mut scattered, &stream));
    comm.enqueue(Call::reduce_scatter(given, taken, Reduction::Sum), (&stream).into())?;

    let outputs =
        Outputs { reduced: stream.clone_dtoh(&reduced)?, scattered: stream.clone_dtoh(&scattered)? };
    stream.synchronize()?;
    let faulted = comm.take_fault()?;
    group.barrier_blocking("gpus")?; // no rank destroys its window while another waits for it
    match faulted {
        false => Ok(outputs),
        true => Err(format!("ranks {:?} are missing", comm.membership()?.suspects).into()),
    }
}

fn view<'a>(slice: &'a CudaSlice<f32>, stream: &'a CudaStream) -> TensorRef<'a> {
    TensorRef::from_slice(slice, slice.len(), stream)
}

/// A rank's part of the model on its GPU.
struct Layers<'a> {
    stream: &'a Arc<CudaStream>,
    hidden: usize,
    channels: usize,
    up: CudaSlice<f32>,
    down: CudaSlice<f32>,
    multiply: sys::CUfunction,
}

impl<'a> Layers<'a> {
    fn new(stream: &'a Arc<CudaStream>, part: &Mlp) -> Result<Self> {
        stream.context().bind_to_thread()?;
        // SAFETY: the image is PTX that ends with a zero.
        let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }?;
        Ok(Self {
            stream,
            hidden: part.hidden,
            channels: part.channels,
            up: stream.clone_htod(&part.up)?,
            down: stream.clone_htod(&part.down)?,
            // SAFETY: the module was loaded just now and is never unloaded.
            multiply: unsafe { result::module::get_function(module, c"multiply".into()) }?,
        })
    }

    /// `[n, hidden]` of `x` `[n, hidden]`, once the stream has come so far.
    fn forward(&self, x: &CudaSlice<f32>) -> Result<CudaSlice<f32>> {
        let between = self.layer(x, &self.up, [self.hidden, self.channels], true)?;
        self.layer(&between, &self.down, [self.channels, self.hidden], false)
    }

    fn layer(
        &self,
        x: &CudaSlice<f32>,
        w: &CudaSlice<f32>,
        [inner, columns]: [usize; 2],
        rectify: bool,
    ) -> Result<CudaSlice<f32>> {
        const THREADS: u32 = 128;
        let rows = x.len() / inner;
        let mut y = self.stream.alloc_zeros::<f32>(rows * columns)?;
        {
            let (mut x, _x) = x.device_ptr(self.stream);
            let (mut w, _w) = w.device_ptr(self.stream);
            let (mut y, _y) = y.device_ptr_mut(self.stream);
            let grid = (u32::try_from(columns)?.div_ceil(THREADS), u32::try_from(rows)?, 1);
            let (mut inner, mut columns) = (u32::try_from(inner)?, u32::try_from(columns)?);
            let mut rectify = u32::from(rectify);
            let mut arguments: [*mut c_void; 6] = [
                std::ptr::from_mut(&mut x).cast(),
                std::ptr::from_mut(&mut w).cast(),
                std::ptr::from_mut(&mut y).cast(),
                std::ptr::from_mut(&mut inner).cast(),
                std::ptr::from_mut(&mut columns).cast(),
                std::ptr::from_mut(&mut rectify).cast(),
            ];
            let (block, stream) = ((THREADS, 1, 1), self.stream.cu_stream());
            // SAFETY: arguments of the types that the kernel declares, which the call copies; the slices have the sizes that
            // layers.cu tells, and their guards order other uses behind the kernel.
            unsafe { result::launch_kernel(self.multiply, grid, block, 0, stream, &mut arguments) }?;
        }
        Ok(y)
    }
}

const PTX: &str = concat!(include_str!("layers.ptx"), "\0");
