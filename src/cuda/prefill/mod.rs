//! Prefill on a GPU: the operations of a [`PrefillBuffer`](crate::prefill::PrefillBuffer), enqueued on the caller's stream.

mod combine;
mod completion;
mod count;
mod dispatch;
mod memory;
mod routing;
mod shared;

pub use combine::PrefillCombining;
pub use completion::PrefillCompletion;
pub use count::PrefillCounts;
pub use dispatch::{PrefillDispatching, PrefillDispatchingInto};
pub use memory::{PrefillCombineOutput, PrefillOutput};
pub use routing::Routing;
