//! Expert-parallel Mixture-of-Experts communication for inference servers.
