//! What a rank gives to dispatch, in memory of its GPU.

use epwire::cuda::TensorRef;
use epwire::cudarc::driver::CudaSlice;
use epwire::{DType, Dispatch, Float16};

use super::gpu::Gpu;
use crate::Error;
use crate::args::{Payload, Shape};
use crate::expected::Expected;
use crate::tokens;

/// Freed when the stream has run all its uses.
pub struct Tokens<'g> {
    gpu: &'g Gpu,
    shape: Shape,
    host: tokens::Tokens,
    /// `[tokens, hidden]`
    x: CudaSlice<u8>,
    /// `[tokens, hidden / 128]`; empty unless they are given.
    scales: CudaSlice<u8>,
    /// `[tokens, topk]`
    experts: CudaSlice<u8>,
    weights: CudaSlice<u8>,
}

impl<'g> Tokens<'g> {
    pub fn new(gpu: &'g Gpu, expected: &Expected) -> Result<Self, Error> {
        let (shape, routing) = (expected.shape, expected.routing());
        let host = tokens::Tokens::zeroed(&shape);
        let entries = 4 * routing.experts.len();
        let tokens = Self {
            x: gpu.zeroed(2 * host.x.len() + host.fp8.len())?,
            scales: gpu.zeroed(4 * host.scales.len())?,
            experts: gpu.zeroed(entries)?,
            weights: gpu.zeroed(entries)?,
            gpu,
            shape,
            host,
        };
        // SAFETY: both have [tokens, topk] numbers of 4 bytes.
        unsafe {
            gpu.upload(gpu.address(&tokens.experts), &routing.experts)?;
            gpu.upload(gpu.address(&tokens.weights), &routing.weights)?;
        }
        Ok(tokens)
    }

    /// Uploads those of the iteration.
    pub fn renew(&mut self, expected: &Expected) -> Result<(), Error> {
        self.host.make(expected)?;
        let Self { gpu, host, x, scales, .. } = self;
        // SAFETY: as many bytes on both sides; of the first two one is empty.
        unsafe {
            gpu.upload(gpu.address(x), &host.x)?;
            gpu.upload(gpu.address(x), &host.fp8)?;
            gpu.upload(gpu.address(scales), &host.scales)
        }
    }

    pub fn input(&self) -> Dispatch<'_, TensorRef<'_>> {
        let Shape { tokens, topk, hidden, payload, .. } = self.shape;
        let (topk, blocks) = (topk as usize, payload.row(hidden).1);
        let view = |memory, dtype: DType, cols: usize| {
            let address = self.gpu.address(memory);
            // SAFETY: allocated with this many rows; it lives as long as the subject, which outlives its graphs, and is
            // written in the order of the one stream that everything here is enqueued on.
            unsafe { TensorRef::from_raw(address, dtype, tokens as usize, cols, cols * dtype.bytes()) }
        };
        let dtype = match (payload, self.shape.dtype()) {
            (Payload::Fp8Given, _) => DType::U8,
            (_, Float16::Bf16) => DType::Bf16,
            (_, Float16::F16) => DType::F16,
        };
        let x = view(&self.x, dtype, hidden as usize);
        let input = Dispatch::new(x, view(&self.experts, DType::I32, topk))
            .weights(view(&self.weights, DType::F32, topk))
            .payload(self.shape.payload())
            .lane(0);
        match payload {
            Payload::Fp8Given => input.scales(view(&self.scales, DType::F32, blocks)),
            Payload::Bf16 | Payload::F16 | Payload::Fp8 => input,
        }
    }
}
