//! One rank's side of dispatch and combine.

mod buffers;
mod checkpoint;
mod connect;
mod dispatch;
mod dispatched;
mod ep_buffer;
mod gpu_trial;
mod input;
mod membership;
mod memory;
mod operation;
mod output;
mod traffic;
mod trial;

pub use buffers::DispatchBuffers;
pub use checkpoint::{Checkpoint, Verdict};
pub use dispatched::{CombineRows, Combining, Consuming, Dispatched, Dispatching, Refused, RowsView};
pub use ep_buffer::EpBuffer;
pub(crate) use ep_buffer::Inner;
pub(crate) use gpu_trial::GpuTrial;
pub(crate) use input::Request;
pub use input::{Combine, Dispatch};
pub use memory::{Host, Memory};
pub(crate) use memory::{Item, List, Need, Place, Tensor, place, sealed};
pub use operation::Event;
pub(crate) use operation::OpenHandle;
pub use output::{CombineOutput, DispatchOutput, GenericCombineOutput, GenericDispatchOutput, ScaleOrder};
pub use trial::Trial;
