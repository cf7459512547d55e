//! `--nic`: what drains queues.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// `--nic`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nic {
    /// In software
    Soft,
    /// For tests: software that also checks that requests do not change after they are handed over
    Strict,
    /// An mlx5 adapter in software, which takes a real one's commands
    Fake,
    /// An mlx5 adapter
    Mlx5,
}
