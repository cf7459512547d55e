//! A Mixture-of-Experts layer of candle's operations, its experts spread over ranks by epwire:
//!
//!     cargo run --release --features candle --example candle_moe -- --ranks 4
//!
//! Each rank routes its own tokens, receives those of its experts, computes, and gets its tokens' sums back. Each compares
//! them with the same layer without epwire, which has all tokens and all experts: they are equal bit for bit.

#[path = "common/launch.rs"]
#[allow(unreachable_pub, reason = "shared with examples of several files")]
mod launch;

use std::process::ExitCode;

use candle_core::{D, DType, Device, Tensor};
use clap::Parser;
use epwire::candle::hold;
use epwire::group::GroupOptions;
use epwire::{
    Combine, CombineMode, CombineOutput, Dispatch, DispatchBuffers, EpBuffer, EpConfig, Group, HostBuffer,
    Layout, Payload, TensorMut, env::Token, launch::Launch,
};
use half::bf16;

/// Any error; the example prints it and exits.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const HIDDEN: usize = 128;
const INTERMEDIATE: usize = 64;
const EXPERTS_PER_RANK: usize = 4;
const TOPK: usize = 3;
const TOKENS: usize = 24;

#[derive(Parser)]
struct Args {
    /// Processes to start on this host; not needed under a launcher.
    #[arg(long)]
    ranks: Option<u32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = launch::start("candle_moe", args.ranks, |_| Ok(()), run);
    ended.unwrap_or_else(|error| {
        eprintln!("candle_moe: {error}");
        ExitCode::FAILURE
    })
}

fn run(launch: Option<&Launch>) -> Result<ExitCode> {
    let group = match launch {
        Some(launch) => Group::join_blocking(GroupOptions::from_launch(launch).token(Token::from_env()?))?,
        None => Group::threads(1)?.remove(0),
    };
    let ranks = group.world() as usize;
    let moe = Moe::new(ranks * EXPERTS_PER_RANK)?;

    let x = tokens_of(group.rank() as usize)?;
    let out = moe.spread_over(&group, &x)?;
    let expected = moe.alone(ranks)?.narrow(0, group.rank() as usize * TOKENS, TOKENS)?;

    let bits = |t: &Tensor| -> Result<Vec<u16>> {
        Ok(t.flatten_all()?.to_vec1::<bf16>()?.into_iter().map(bf16::to_bits).collect())
    };
    let different = bits(&out)?.iter().zip(bits(&expected)?).filter(|(a, b)| **a != *b).count();
    group.barrier_blocking("checked")?;
    if different > 0 {
        return Err(format!("{different} of {} values differ", TOKENS * HIDDEN).into());
    }
    if group.rank() == 0 {
        println!("candle_moe: OK ranks={ranks} tokens={TOKENS} experts={} different=0", moe.experts.len());
    }
    group.leave_blocking()?;
    Ok(ExitCode::SUCCESS)
}

/// Values in -1 to 1 that every rank makes alike.
fn values(shape: &[usize], seed: usize) -> Result<Tensor> {
    let mut state = seed as u64 + 1;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let data: Vec<f32> = std::iter::repeat_with(next).take(shape.iter().product()).collect();
    Ok(Tensor::from_vec(data, shape, &Device::Cpu)?)
}

/// `[TOKENS, HIDDEN]` bf16.
fn tokens_of(rank: usize) -> Result<Tensor> {
    Ok(values(&[TOKENS, HIDDEN], 1000 + rank)?.to_dtype(DType::BF16)?)
}

struct Moe {
    /// `[experts, HIDDEN]`
    router: Tensor,
    experts: Vec<Expert>,
}

/// A gated MLP; matrices are `[outputs, inputs]`.
struct Expert {
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
    fn new(experts: usize) -> Result<Self> {
        let expert = |e: usize| -> Result<Expert> {
            let matrix = |which: usize, shape: [usize; 2]| values(&shape, 10 * e + which);
            Ok(Expert {
                gate: matrix(1, [INTERMEDIATE, HIDDEN])?,
                up: matrix(2, [INTERMEDIATE, HIDDEN])?,
                down: matrix(3, [HIDDEN, INTERMEDIATE])?,
            })
        };
        let router = values(&[experts, HIDDEN], 0)?;
        Ok(Self { router, experts: (0..experts).map(expert).collect::<Result<_>>()? })
    }

    /// Experts `[n, TOPK]` u32 and their weights, f32, which sum to 1.
    fn route(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let logits = x.to_dtype(DType::F32)?.matmul(&self.router.t()?)?;
        let powers = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        let ids = powers.arg_sort_last_dim(false)?.narrow(1, 0, TOPK)?.contiguous()?;
        let chosen = powers.gather(&ids, 1)?;
        Ok((ids, chosen.broadcast_div(&chosen.sum_keepdim(D::Minus1)?)?))
    }

    /// The layer with its experts spread over the group: `x` and the result are this rank's own tokens.
    fn spread_over(&self, group: &Group, x: &Tensor) -> Result<Tensor> {
        let config = EpConfig::new(TOKENS as u32, HIDDEN as u32, self.experts.len() as u32, TOPK as u32);
        let buffer = EpBuffer::create_blocking(group, config.ordered(true))?;
        let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0)?;

        let (ids, weights) = self.route(x)?;
        let (held_x, held_ids, held_weights) = (hold(x), hold(&ids), hold(&weights));
        let input = Dispatch::new(held_x.view()?, held_ids.view()?).weights(held_weights.view()?);
        let dispatched = buffer.dispatch_blocking(input, received.output())?;
        if !dispatched.outcome().is_complete() {
            return Err(format!("dispatch: {}", dispatched.outcome()).into());
        }

        let first = group.rank() as usize * EXPERTS_PER_RANK;
        let expert_out = compute(&self.experts[first..first + EXPERTS_PER_RANK], &received)?;

        let mut out = HostBuffer::<bf16>::zeroed(TOKENS * HIDDEN);
        let held = hold(&expert_out);
        let combine = Combine::new(held.view()?).mode(CombineMode::Ordered);
        let outcome = dispatched.combine_blocking(combine, CombineOutput::new(TensorMut::new(&mut out)))?;
        if !outcome.is_complete() {
            return Err(format!("combine: {outcome}").into());
        }
        Ok(Tensor::from_slice(&out, (TOKENS, HIDDEN), &Device::Cpu)?)
    }

    /// The layer without epwire: all experts, and the tokens of all ranks.
    fn alone(&self, ranks: usize) -> Result<Tensor> {
        let xs = (0..ranks).map(tokens_of).collect::<Result<Vec<_>>>()?;
        let routed = xs.iter().map(|x| self.route(x)).collect::<Result<Vec<_>>>()?;
        let x = Tensor::cat(&xs, 0)?;
        let ids = Tensor::cat(&routed.iter().map(|(ids, _)| ids).collect::<Vec<_>>(), 0)?.to_vec2::<u32>()?;
        let weights = Tensor::cat(&routed.iter().map(|(_, weights)| weights).collect::<Vec<_>>(), 0)?;

        // What each expert makes of its tokens, in their places: [tokens, TOPK, HIDDEN].
        let mut answers = vec![bf16::ZERO; ids.len() * TOPK * HIDDEN];
        for (e, expert) in self.experts.iter().enumerate() {
            let places: Vec<(usize, usize)> = (0..ids.len())
                .flat_map(|token| (0..TOPK).map(move |slot| (token, slot)))
                .filter(|&(token, slot)| ids[token][slot] as usize == e)
                .collect();
            if places.is_empty() {
                continue;
            }
            let tokens: Vec<u32> = places.iter().map(|&(token, _)| token as u32).collect();
            let tokens = Tensor::from_vec(tokens, places.len(), &Device::Cpu)?;
            let rows = expert.forward(&x.index_select(&tokens, 0)?)?.to_vec2::<bf16>()?;
            for (&(token, slot), row) in places.iter().zip(&rows) {
                answers[(token * TOPK + slot) * HIDDEN..][..HIDDEN].copy_from_slice(row);
            }
        }
        // Summed in f32 in the order of the router's choice, and rounded once: what ordered combine does.
        let answers =
            Tensor::from_vec(answers, (ids.len(), TOPK, HIDDEN), &Device::Cpu)?.to_dtype(DType::F32)?;
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

/// What these experts make of the rows that have come for them, where combine wants it: `[experts * rows, HIDDEN]`.
fn compute(experts: &[Expert], received: &DispatchBuffers) -> Result<Tensor> {
    let all = received.rows_as::<bf16>();
    let rows = all.len() / (experts.len() * HIDDEN);
    let mut answers = Vec::new();
    for ((expert, mine), &count) in experts.iter().zip(all.chunks_exact(rows * HIDDEN)).zip(&received.counts)
    {
        let count = count as usize;
        if count > 0 {
            let x = Tensor::from_slice(&mine[..count * HIDDEN], (count, HIDDEN), &Device::Cpu)?;
            answers.push(expert.forward(&x)?);
        }
        if count < rows {
            answers.push(Tensor::zeros((rows - count, HIDDEN), DType::BF16, &Device::Cpu)?);
        }
    }
    Ok(Tensor::cat(&answers, 0)?)
}
