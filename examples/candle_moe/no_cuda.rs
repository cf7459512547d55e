//! `--device cuda` in a build that has none.

use candle_core::{Device, Tensor};
use epwire::Group;

use crate::Result;
use crate::moe::Moe;

pub fn check() -> Result<()> {
    Err("--device cuda needs a build for GPUs: cargo run --release --features candle-cuda --example candle_moe".into())
}

pub fn device(_: u32) -> Result<Device> {
    check().map(|()| Device::Cpu)
}

pub fn spread_over(_: &Group, _: &Moe, x: &Tensor, _: bool) -> Result<Tensor> {
    check().map(|()| x.clone())
}
