//! `--device cuda` in a build that has none.

use epwire::Group;

use super::{Outputs, Result};
use crate::mlp::Mlp;

pub fn check() -> Result<()> {
    Err("--device cuda needs a build for GPUs: cargo run --release --example tensor_parallel --features cuda,cudarc".into())
}

pub fn both_ways(_: &Group, _: u32, _: &Mlp, _: &[f32], _: &[f32]) -> Result<Outputs> {
    check().map(|()| Outputs::default())
}
