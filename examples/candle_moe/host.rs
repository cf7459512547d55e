//! The layer with its experts spread over processes, in memory of the host.

use candle_core::{Device, Tensor};
use epwire::candle::hold;
use epwire::{
    Combine, CombineMode, CombineOutput, Dispatch, EpBuffer, Group, HostBuffer, Layout, Payload, TensorMut,
};
use half::bf16;

use crate::Result;
use crate::moe::{HIDDEN, Moe, TOKENS};

/// `x` and the result are this rank's own tokens.
pub fn spread_over(group: &Group, moe: &Moe, x: &Tensor) -> Result<Tensor> {
    let buffer = EpBuffer::create_blocking(group, moe.config())?;
    let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0)?;

    let (ids, weights) = moe.route(x)?;
    let (held_x, held_ids, held_weights) = (hold(x), hold(&ids), hold(&weights));
    let input = Dispatch::new(held_x.view()?, held_ids.view()?).weights(held_weights.view()?);
    let dispatched = buffer.dispatch_blocking(input, received.output())?;
    if !dispatched.outcome().is_complete() {
        return Err(format!("dispatch: {}", dispatched.outcome()).into());
    }

    let rows = received.rows_as::<bf16>();
    let lists = received.counts.iter().enumerate().map(|(expert, &count)| -> Result<Tensor> {
        let its = &rows[received.places(expert, HIDDEN)];
        Ok(Tensor::from_slice(its, (count as usize, HIDDEN), &Device::Cpu)?)
    });
    let lists = lists.collect::<Result<Vec<_>>>()?;
    let expert_out = moe.compute(group.rank(), &lists, buffer.plan().rows)?;

    let mut out = HostBuffer::<bf16>::zeroed(TOKENS * HIDDEN);
    let held = hold(&expert_out);
    let combine = Combine::new(held.view()?).mode(CombineMode::Ordered);
    let outcome = dispatched.combine_blocking(combine, CombineOutput::new(TensorMut::new(&mut out)))?;
    if !outcome.is_complete() {
        return Err(format!("combine: {outcome}").into());
    }
    Ok(Tensor::from_slice(&out, (TOKENS, HIDDEN), &Device::Cpu)?)
}
