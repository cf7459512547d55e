//! What a buffer must be able to do, and the sizes that follow from it.

mod choices;
mod ep_config;
mod path;
mod plan;
mod queues;
#[cfg(test)]
mod tests;

pub use choices::{CombineMode, Device, Float16, Fp8Scale, Layout, Payload};
pub use ep_config::EpConfig;
pub use path::{Path, Paths, Wire};
pub use plan::{Plan, RowShape};
pub(crate) use queues::{QueueMemory, write_queues};
