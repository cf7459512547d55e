//! Names of requests, by which answers find their way back.

/// Names a connection; chosen by the driver, never reused.
pub type ConnId = u64;

/// Names a request: the connection it came by and the id that the client gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The connection.
    pub conn: ConnId,
    /// The client's id for it.
    pub id: u64,
}
