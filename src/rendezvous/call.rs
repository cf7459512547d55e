//! Names of requests, with which answers find their caller.

use super::codec::wire;

/// Names a client's session: 64 random bits that the client has chosen, the same for all its connections.
pub type SessionId = u64;

/// Names a request: the client's session and the id that the client gave it, the same when it asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The client's session.
    pub session: SessionId,
    /// Its id for the request, counting from 1.
    pub id: u64,
}
wire!(struct Call { session, id });
