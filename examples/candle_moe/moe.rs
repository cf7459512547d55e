//! The layer: its weights, what one expert computes, and the whole of it without epwire.

use candle_core::{D, DType, Device, Tensor};
use epwire::EpConfig;

use crate::Result;

pub const HIDDEN: usize = 128;
const INTERMEDIATE: usize = 64;
pub const EXPERTS_PER_RANK: usize = 4;
const TOPK: usize = 3;
/// Per rank.
pub const TOKENS: usize = 24;

pub struct Moe {
    pub device: Device,
    ranks: usize,
    /// `[experts, HIDDEN]`
    router: Tensor,
    pub experts: Vec<Expert>,
}

/// A gated MLP; matrices are `[outputs, inputs]`.
pub struct Expert {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

impl Expert {
    /// `[n, HIDDEN]` bf16 to the same.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.to_dtype(DType::F32)?;
        let gated = (x.matmul(&self.gate.t()?)?.silu()? * x.matmul(&self.up.t()?)?)?;
        Ok(gated.matmul(&self.down.t()?)?.to_dtype(DType::BF16)?)
    }
}

impl Moe {
    /// With `EXPERTS_PER_RANK` experts for each of the ranks.
    pub fn new(ranks: usize, device: &Device) -> Result<Self> {
        let experts = ranks * EXPERTS_PER_RANK;
        let expert = |e: usize| -> Result<Expert> {
            let matrix = |which: usize, shape: [usize; 2]| values(&shape, 10 * e + which, device);
            Ok(Expert {
                gate: matrix(1, [INTERMEDIATE, HIDDEN])?,
                up: matrix(2, [INTERMEDIATE, HIDDEN])?,
                down: matrix(3, [HIDDEN, INTERMEDIATE])?,
            })
        };
        let router = values(&[experts, HIDDEN], 0, device)?;
        let experts = (0..experts).map(expert).collect::<Result<_>>()?;
        Ok(Self { device: device.clone(), ranks, router, experts })
    }

    /// The configuration of a buffer that spreads the experts over the ranks.
    pub fn config(&self) -> EpConfig {
        EpConfig::new(TOKENS as u32, HIDDEN as u32, self.experts.len() as u32, TOPK as u32).ordered(true)
    }

    /// `[TOKENS, HIDDEN]` bf16.
    pub fn tokens_of(&self, rank: usize) -> Result<Tensor> {
        Ok(values(&[TOKENS, HIDDEN], 1000 + rank, &self.device)?.to_dtype(DType::BF16)?)
    }

    /// Experts `[n, TOPK]` u32 and their weights, f32, which sum to 1.
    pub fn route(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let logits = x.to_dtype(DType::F32)?.matmul(&self.router.t()?)?;
        let powers = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        let ids = powers.arg_sort_last_dim(false)?.narrow(1, 0, TOPK)?.contiguous()?;
        let chosen = powers.gather(&ids, 1)?;
        Ok((ids, chosen.broadcast_div(&chosen.sum_keepdim(D::Minus1)?)?))
    }

    /// The outputs of the experts of `rank` for the rows received by each, `[n, HIDDEN]` with any `n` up to `rows`,
    /// laid out for combine: `[EXPERTS_PER_RANK * rows, HIDDEN]`.
    pub fn compute(&self, rank: u32, received: &[Tensor], rows: usize) -> Result<Tensor> {
        let own = &self.experts[rank as usize * EXPERTS_PER_RANK..][..EXPERTS_PER_RANK];
        let answers = own.iter().zip(received).map(|(expert, x)| -> Result<Tensor> {
            let n = x.dim(0)?;
            let answers = if n > 0 { &expert.forward(x)? } else { x };
            Ok(answers.pad_with_zeros(0, 0, rows - n)?)
        });
        Ok(Tensor::cat(&answers.collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// The layer without epwire: all experts, and the tokens of all ranks, one rank after the other.
    pub fn alone(&self) -> Result<Tensor> {
        let xs = (0..self.ranks).map(|rank| self.tokens_of(rank)).collect::<Result<Vec<_>>>()?;
        let routed = xs.iter().map(|x| self.route(x)).collect::<Result<Vec<_>>>()?;
        let x = Tensor::cat(&xs, 0)?;
        let ids = Tensor::cat(&routed.iter().map(|(ids, _)| ids).collect::<Vec<_>>(), 0)?.to_vec2::<u32>()?;
        let weights = Tensor::cat(&routed.iter().map(|(_, weights)| weights).collect::<Vec<_>>(), 0)?;
        let tokens = ids.len();

        // The outputs of each expert for its tokens, one expert after the other, and where each token's outputs are
        // among them.
        let mut answers = Vec::new();
        let mut places = vec![0; tokens * TOPK];
        let mut before = 0u32;
        for (e, expert) in self.experts.iter().enumerate() {
            let chosen: Vec<usize> =
                (0..tokens * TOPK).filter(|at| ids[at / TOPK][at % TOPK] as usize == e).collect();
            if chosen.is_empty() {
                continue;
            }
            let its = chosen.iter().map(|at| (at / TOPK) as u32).collect();
            let its = x.index_select(&Tensor::from_vec(its, chosen.len(), &self.device)?, 0)?;
            // Matrix products on a GPU may round differently for a different number of rows. There the layer computes
            // all rows for which there is room, so that the host need not know how many have arrived.
            let padding = if self.device.is_cpu() { 0 } else { tokens - chosen.len() };
            let made = expert.forward(&its.pad_with_zeros(0, 0, padding)?)?;
            answers.push(made.narrow(0, 0, chosen.len())?);
            for at in chosen {
                places[at] = before;
                before += 1;
            }
        }
        let answers = Tensor::cat(&answers, 0)?;
        let answers = answers.index_select(&Tensor::from_vec(places, tokens * TOPK, &self.device)?, 0)?;
        // Summed in f32 in the order of the router's choice, and rounded once: what ordered combine does.
        let answers = answers.reshape((tokens, TOPK, HIDDEN))?.to_dtype(DType::F32)?;
        let term = |slot: usize| -> Result<Tensor> {
            Ok(answers.narrow(1, slot, 1)?.squeeze(1)?.broadcast_mul(&weights.narrow(1, slot, 1)?)?)
        };
        let mut sum = term(0)?;
        for slot in 1..TOPK {
            sum = (sum + term(slot)?)?;
        }
        Ok(sum.to_dtype(DType::BF16)?)
    }
}

/// Values in -1 to 1 that every rank makes alike.
fn values(shape: &[usize], seed: usize, device: &Device) -> Result<Tensor> {
    let mut state = seed as u64 + 1;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let data: Vec<f32> = std::iter::repeat_with(next).take(shape.iter().product()).collect();
    Ok(Tensor::from_vec(data, shape, device)?)
}
