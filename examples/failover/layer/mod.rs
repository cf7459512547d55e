//! The MoE layer that ranks serve, on the host or on a GPU. Every rank has one expert, which returns its input, so that
//! a token's sum shows how many experts it has reached; each token goes to different experts, so that all sums together
//! show which.

#[cfg(all(feature = "cuda", feature = "cudarc"))]
mod cuda;
mod host;

use std::time::Duration;

use epwire::{EpBuffer, EpConfig, Group, Mask, group::Step};

use crate::{Result, args::Device};

pub const TOKENS: usize = 8;
pub const HIDDEN: usize = 1024;

pub trait Layer {
    fn buffer(&self) -> &EpBuffer;

    /// Runs the layer, and returns the members whose part is missing. Whatever has arrived must be right.
    fn run(&mut self, step: &Step) -> Result<Mask>;

    /// Free bytes of its GPU, if it has one.
    fn free_memory(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Creates this rank's buffer and memory.
pub fn connect(group: &Group, device: Device, slower: u32) -> Result<Box<dyn Layer>> {
    let world = group.world();
    let config = EpConfig::new(TOKENS as u32, HIDDEN as u32, world, world)
        .deadline(Duration::from_millis(200) * slower)
        .threads(1)
        .lanes(1);
    match device {
        Device::Host => Ok(Box::new(host::HostLayer::new(group, config)?)),
        #[cfg(all(feature = "cuda", feature = "cudarc"))]
        Device::Cuda => Ok(Box::new(cuda::CudaLayer::new(group, config, slower)?)),
        #[cfg(not(all(feature = "cuda", feature = "cudarc")))]
        Device::Cuda => Err(NO_CUDA.into()),
    }
}

/// Fails with what the requested device lacks, before any rank is started.
pub fn check(device: Device) -> Result<()> {
    match device {
        Device::Host => Ok(()),
        #[cfg(all(feature = "cuda", feature = "cudarc"))]
        Device::Cuda => Ok(crate::gpus::gpus().map(drop)?),
        #[cfg(not(all(feature = "cuda", feature = "cudarc")))]
        Device::Cuda => Err(NO_CUDA.into()),
    }
}

#[cfg(not(all(feature = "cuda", feature = "cudarc")))]
const NO_CUDA: &str = "--device cuda is not in this build: build the example with `--features cuda,cudarc`, \
                       which needs a CUDA toolkit, or use --device host";

/// The value of all channels of a step. Every sum of at most 32 of them is a bf16.
fn value(step: &Step) -> f32 {
    (1 + step.number % 4) as f32
}

/// Tokens that go to every expert.
const EVERYWHERE: usize = 3;

/// Whether a token goes to the expert of a rank: each token after the first ones stands for one bit, and goes to the
/// ranks whose number has this bit.
fn goes(token: usize, rank: u32) -> bool {
    token.checked_sub(EVERYWHERE).is_none_or(|bit| rank >> bit & 1 == 1)
}

/// `[tokens, ranks]`
fn ids(ranks: u32) -> Vec<i32> {
    let id = |token, rank| if goes(token, rank) { rank as i32 } else { -1 };
    (0..TOKENS).flat_map(|token| (0..ranks).map(move |rank| id(token, rank))).collect()
}

/// How many experts each token has seen if all of these ranks have taken part.
fn counts(ranks: &Mask) -> impl Iterator<Item = usize> {
    (0..TOKENS).map(|token| ranks.iter().filter(|rank| goes(token, *rank)).count())
}

/// Fails if a sum is not that of the contributions that have arrived.
fn check_sums(step: &Step, out: &[half::bf16], arrived: impl Iterator<Item = usize>) -> Result<()> {
    for (token, arrived) in out.chunks(HIDDEN).zip(arrived) {
        let expected = value(step) * arrived as f32;
        if let Some(wrong) = token.iter().find(|sum| sum.to_f32() != expected) {
            return Err(format!("step {}: a sum is {wrong}, must be {expected}", step.number).into());
        }
    }
    Ok(())
}
