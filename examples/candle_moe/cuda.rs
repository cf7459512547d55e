//! The layer with its experts spread over GPUs. Everything is enqueued, candle's operations on candle's stream and
//! epwire's, optionally, on another one, and the host waits once, at the end.

use std::time::Duration;

use candle_core::{Device, Tensor};
use epwire::candle::{Output, hold};
use epwire::cuda::{CombineOutput, DispatchOutput};
use epwire::{Combine, CombineMode, Dispatch, EpBuffer, Group};
use half::bf16;

use crate::Result;
use crate::moe::{EXPERTS_PER_RANK, HIDDEN, Moe, TOKENS};

#[path = "../common/gpus.rs"]
mod gpus;

/// That there is a GPU.
pub fn check() -> Result<()> {
    Ok(gpus::gpus().map(drop)?)
}

/// The GPU with the number `local_rank`, with a stream of its own; ranks share GPUs if there are fewer.
pub fn device(local_rank: u32) -> Result<Device> {
    Ok(Device::new_cuda_with_stream((local_rank % gpus::gpus()?) as usize)?)
}

/// `x` and the result are this rank's own tokens.
pub fn spread_over(group: &Group, moe: &Moe, x: &Tensor, apart: bool) -> Result<Tensor> {
    let candles = moe.device.as_cuda_device()?.cuda_stream();
    let stream = if apart { candles.context().new_stream()? } else { candles };
    let gpu = epwire::Device::Cuda(u32::try_from(stream.context().ordinal())?);
    let buffer = EpBuffer::create_blocking(group, moe.config().device(gpu))?;
    let rows = buffer.plan().rows;
    let mut received = Output::<bf16>::new(&moe.device, EXPERTS_PER_RANK * rows * HIDDEN)?;
    let mut counts = Output::<u32>::new(&moe.device, EXPERTS_PER_RANK)?;

    let (ids, weights) = moe.route(x)?;
    let (held_x, held_ids, held_weights) = (hold(x), hold(&ids), hold(&weights));
    let input = Dispatch::new(held_x.view_on(&stream)?, held_ids.view_on(&stream)?)
        .weights(held_weights.view_on(&stream)?);
    let output = DispatchOutput::new(received.view_on(&stream)?, counts.view_on(&stream)?);
    let dispatched = buffer.enqueue_dispatch(input, output, (&stream).into())?;

    // All rows for which there is room: the host does not know how many have arrived, and combine reads no others.
    let received = received.into_tensor((EXPERTS_PER_RANK, rows, HIDDEN))?;
    let lists =
        (0..EXPERTS_PER_RANK).map(|expert| received.get(expert)).collect::<candle_core::Result<Vec<_>>>()?;
    let expert_out = moe.compute(group.rank(), &lists, rows)?;

    let mut out = Output::<bf16>::new(&moe.device, TOKENS * HIDDEN)?;
    let held = hold(&expert_out);
    let combine = Combine::new(held.view_on(&stream)?).mode(CombineMode::Ordered);
    let output = CombineOutput::new(out.view_on(&stream)?);
    let completion = dispatched.enqueue_combine(combine, output, (&stream).into())?;
    completion.wait_blocking(Duration::from_secs(60))?;
    match completion.outcome()? {
        Some(outcome) if outcome.is_complete() => Ok(out.into_tensor((TOKENS, HIDDEN))?),
        Some(outcome) => Err(format!("combine: {outcome}").into()),
        None => Err("combine has not run".into()),
    }
}
