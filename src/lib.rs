//! Expert-parallel Mixture-of-Experts communication for inference servers.

pub mod env;
pub mod launch;
mod sys;
