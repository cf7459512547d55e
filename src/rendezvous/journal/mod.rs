//! What happened to the machine of a server that stands alone, in a file: another process goes on from it.

pub(crate) mod file;
mod frame;
