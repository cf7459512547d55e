//! One connection: frames over a byte stream, and the handshake that opens it.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::env::Token;
use crate::rendezvous::auth::{Role, Transcript};
use crate::rendezvous::error::BootstrapError;
#[cfg(feature = "succession")]
use crate::rendezvous::wire::MAX_PEER_BYTES;
use crate::rendezvous::wire::{
    Frame, HEADER_BYTES, MAX_BODY_BYTES, MAX_HANDSHAKE_BYTES, MAX_TEXT_BYTES, PROTOCOL_VERSION, Reply,
    WireError, body_length, decode, encode,
};

/// Why no frame arrived.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The peer's kernel closed the connection, either at its program's request or because the process ended.
    ClosedByPeer,
    /// The peer's kernel does not know the connection: its process ended with bytes unread, or it gave the connection
    /// up during a partition.
    Reset,
    /// The connection failed on the network, which says nothing about the peer.
    Broken(io::Error),
    Wire(WireError),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::ClosedByPeer,
            io::ErrorKind::ConnectionReset => Self::Reset,
            _ => Self::Broken(error),
        }
    }
}

impl ReadError {
    /// The error for an operation on a connection to `peer` that failed like this.
    pub(super) fn explain(self, op: &str, peer: &str) -> BootstrapError {
        let op = op.to_owned();
        match self {
            Self::ClosedByPeer | Self::Reset => BootstrapError::ServerLost {
                op,
                address: peer.to_owned(),
                detail: "it closed the connection".to_owned(),
            },
            Self::Broken(error) => {
                BootstrapError::ServerLost { op, address: peer.to_owned(), detail: error.to_string() }
            }
            Self::Wire(WireError::Version { theirs, .. }) => {
                BootstrapError::WrongVersion { op, peer: peer.to_owned(), ours: PROTOCOL_VERSION, theirs }
            }
            Self::Wire(error) => {
                BootstrapError::Garbage { op, peer: peer.to_owned(), detail: error.to_string() }
            }
        }
    }
}

/// Reads one frame of at most `limit` body bytes. Memory grows with the bytes that arrive, not with the announced
/// length.
pub(super) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Frame, ReadError> {
    let mut bytes = Vec::with_capacity(256);
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    bytes.extend_from_slice(&header);
    let length = body_length(&header, limit).map_err(ReadError::Wire)?;
    let read = stream.take(length as u64).read_to_end(&mut bytes).await?;
    if read < length {
        return Err(ReadError::ClosedByPeer);
    }
    decode(&bytes).map_err(ReadError::Wire)
}

/// Writes one frame. An answer beyond the frame limit becomes an error of its call.
pub(super) async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let bytes = match (encode(frame), frame) {
        (Err(WireError::TooLong { bytes, limit }), Frame::Answer { id, .. }) => {
            let error = too_long("answer", bytes, limit);
            encode(&Frame::Answer { id: *id, result: Err::<Reply, _>(error) })
        }
        (encoded, _) => encoded,
    };
    let bytes = bytes.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// The error for a request or answer that does not fit a frame.
pub(super) fn too_long(op: &str, bytes: usize, limit: usize) -> BootstrapError {
    let field = "bytes of a frame (send less at a time)".to_owned();
    BootstrapError::Limit { op: op.to_owned(), field, value: bytes as u64, limit: limit as u64 }
}

/// `N` random bytes from the operating system.
pub(crate) fn random<const N: usize>(op: &str) -> Result<[u8; N], BootstrapError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| BootstrapError::System { op: op.to_owned(), detail: error.to_string() })?;
    Ok(bytes)
}

/// The client's side of the handshake.
pub(super) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    peer: &str,
    run_id: &str,
    token: Option<&Token>,
    deadline: Duration,
) -> Result<(), BootstrapError> {
    const OP: &str = "connect to the rendezvous";
    BootstrapError::check(OP, "bytes of the run id", run_id.len(), MAX_TEXT_BYTES)?;
    let client_nonce = random(OP)?;
    let hello = Frame::Hello { run_id: run_id.to_owned(), nonce: client_nonce };
    let talk = async {
        send(stream, OP, peer, &hello).await?;
        let server_nonce = match receive(stream, OP, peer).await? {
            Frame::Challenge { nonce } => nonce,
            other => return Err(unexpected(OP, peer, other)),
        };
        let transcript = Transcript { run_id: run_id.to_owned(), client_nonce, server_nonce };
        send(stream, OP, peer, &Frame::Proof { mac: transcript.proof(Role::Client, token) }).await?;
        match receive(stream, OP, peer).await? {
            Frame::Proof { mac } if transcript.verify(Role::Server, token, &mac) => Ok(()),
            Frame::Proof { .. } => {
                Err(BootstrapError::WrongToken { op: OP.to_owned(), peer: peer.to_owned() })
            }
            other => Err(unexpected(OP, peer, other)),
        }
    };
    let silent = BootstrapError::SilentPeer { op: OP.to_owned(), peer: peer.to_owned(), deadline };
    timeout(deadline, talk).await.unwrap_or(Err(silent))
}

/// The server's side of the handshake, until `out_of_patience`. The client is told why it is refused, as far as it can
/// understand that. Which run this is learns only who knows the token.
pub(super) async fn receive_guest(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    peer: &str,
    run_id: &str,
    token: Option<&Token>,
    out_of_patience: impl Future<Output = ()>,
) -> Result<(), BootstrapError> {
    const OP: &str = "accept a member";
    let server_nonce = random(OP)?;
    let began = Instant::now();
    let talk = async {
        let (theirs, client_nonce) = match receive(stream, OP, peer).await? {
            Frame::Hello { run_id, nonce } => (run_id, nonce),
            _ => return Err(stray(OP, peer)),
        };
        send(stream, OP, peer, &Frame::Challenge { nonce: server_nonce }).await?;
        let transcript = Transcript { run_id: theirs, client_nonce, server_nonce };
        match receive(stream, OP, peer).await? {
            Frame::Proof { mac } if transcript.verify(Role::Client, token, &mac) => {
                if transcript.run_id != run_id {
                    let (op, field, value) = (OP.to_owned(), "run id".to_owned(), transcript.run_id);
                    let reason = format!("the run has {run_id:?}");
                    return Err(BootstrapError::Invalid { op, field, value, reason });
                }
                send(stream, OP, peer, &Frame::Proof { mac: transcript.proof(Role::Server, token) }).await
            }
            Frame::Proof { .. } => {
                Err(BootstrapError::WrongToken { op: OP.to_owned(), peer: peer.to_owned() })
            }
            _ => Err(stray(OP, peer)), // no text of a stranger gets into the log
        }
    };
    let result = tokio::select! {
        result = talk => result,
        () = out_of_patience => {
            let (op, peer) = (OP.to_owned(), peer.to_owned());
            Err(BootstrapError::SilentPeer { op, peer, deadline: began.elapsed() })
        }
    };
    if let Err(error) = &result {
        // A peer that does not read gets no additional time.
        let refusal = Frame::Refused { error: error.clone() };
        let _ = timeout(Duration::from_millis(100), write_frame(stream, &refusal)).await;
    }
    result
}

async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    op: &str,
    peer: &str,
    frame: &Frame,
) -> Result<(), BootstrapError> {
    write_frame(stream, frame).await.map_err(|error| ReadError::from(error).explain(op, peer))
}

async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    op: &str,
    peer: &str,
) -> Result<Frame, BootstrapError> {
    read_frame(stream, MAX_HANDSHAKE_BYTES).await.map_err(|error| error.explain(op, peer))
}

/// The reason of a refusal; any other frame is an error in a handshake.
fn unexpected(op: &str, peer: &str, frame: Frame) -> BootstrapError {
    match frame {
        Frame::Refused { error } => error,
        _ => stray(op, peer),
    }
}

fn stray(op: &str, peer: &str) -> BootstrapError {
    let detail = "a frame that does not belong in the handshake".to_owned();
    BootstrapError::Garbage { op: op.to_owned(), peer: peer.to_owned(), detail }
}

/// Most body bytes once the handshake is over.
pub(super) const OPEN_LIMIT: usize = MAX_BODY_BYTES;
/// The same limit between servers.
#[cfg(feature = "succession")]
pub(super) const PEER_LIMIT: usize = MAX_PEER_BYTES;
