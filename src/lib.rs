//! Expert-parallel Mixture-of-Experts communication for inference servers.

pub mod group;
pub mod rendezvous;
pub mod store;
