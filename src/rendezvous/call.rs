//! Names of requests, by which answers find their way back.

use super::codec::wire;

/// Names a client: 64 random bits that it has chosen, the same for all its connections.
pub type ConnId = u64;

/// Names a request: the client and the id that it gave it, the same when it asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The client.
    pub conn: ConnId,
    /// Its id for it, from 1 upwards.
    pub id: u64,
}
wire!(struct Call { conn, id });
