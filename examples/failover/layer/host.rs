//! The layer in the memory of the host.

use epwire::{
    Combine, CombineOutput, Dispatch, DispatchBuffers, EpBuffer, EpConfig, Group, HostBuffer, Layout, Mask,
    Payload, TensorMut, TensorRef, group::Step,
};
use half::bf16;

use super::{HIDDEN, Layer, TOKENS, check_sums, counts, ids, value};
use crate::Result;

pub struct HostLayer {
    buffer: EpBuffer,
    ids: Vec<i32>,
    weights: Vec<f32>,
    received: DispatchBuffers,
    out: HostBuffer<bf16>,
    contributions: Vec<[u16; 2]>,
}

impl HostLayer {
    pub fn new(group: &Group, config: EpConfig) -> Result<Self> {
        let ranks = config.experts;
        let buffer = EpBuffer::create_blocking(group, config)?;
        Ok(Self {
            ids: ids(ranks),
            weights: vec![1.0; TOKENS * ranks as usize],
            received: buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0)?,
            out: HostBuffer::zeroed(TOKENS * HIDDEN),
            contributions: vec![[0; 2]; TOKENS],
            buffer,
        })
    }
}

impl Layer for HostLayer {
    fn buffer(&self) -> &EpBuffer {
        &self.buffer
    }

    fn run(&mut self, step: &Step) -> Result<Mask> {
        let ranks = self.buffer.ranks() as usize;
        let x = vec![bf16::from_f32(value(step)); TOKENS * HIDDEN];
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&self.ids, ranks))
            .weights(TensorRef::new(&self.weights, ranks))
            .layout(Layout::RankMajor);
        let dispatched = self.buffer.dispatch_blocking(input, self.received.output())?;
        let output = CombineOutput::new(TensorMut::new(&mut self.out)).contributions(&mut self.contributions);
        let outcome = dispatched.combine_blocking(Combine::in_place(), output)?;
        let from = self.buffer.membership()?.active.minus(&outcome.missing);
        let arrived = || self.contributions.iter().map(|[arrived, _]| usize::from(*arrived));
        if !arrived().eq(counts(&from)) {
            let arrived: Vec<usize> = arrived().collect();
            return Err(format!("step {}: {arrived:?} contributions of ranks {from}", step.number).into());
        }
        check_sums(step, &self.out, arrived())?;
        Ok(outcome.missing)
    }
}
