//! The events of the machine of a server that stands alone, in a file from which another process can continue.

pub(crate) mod file;
mod frame;
