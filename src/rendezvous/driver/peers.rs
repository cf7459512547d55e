//! Connections to the servers of other members: one to each that is asked, one question after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;

use super::connection::{PEER_LIMIT, greet, read_frame, write_frame};
use super::dial::first_to_accept;
use crate::env::Token;
use crate::rendezvous::codec::{Blob, Reader, Wire};
use crate::rendezvous::log::{Answer, Asked, Carrier, Question, Voter};
use crate::rendezvous::wire::Frame;

/// Connections to other servers, by the voter behind them.
pub(super) struct Peers {
    run_id: String,
    token: Option<Token>,
    /// Dropped after an error, and made again for the next question.
    connections: Mutex<BTreeMap<u128, Arc<Connection>>>,
}

type Connection = tokio::sync::Mutex<Option<TcpStream>>;

impl Peers {
    pub(super) fn new(run_id: String, token: Option<Token>) -> Self {
        Self { run_id, token, connections: Mutex::default() }
    }
}

impl Carrier for Peers {
    fn ask(&self, to: &Voter, question: Question, deadline: Duration) -> Asked {
        let connection =
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).entry(to.id).or_default().clone();
        let (address, run_id, token) = (to.address.clone(), self.run_id.clone(), self.token.clone());
        Box::pin(async move {
            let mut connection = connection.lock().await;
            // If anything below returns early, no connection is left on which an answer is still to come.
            let mut stream = match connection.take() {
                Some(stream) => stream,
                None => connect(&address, &run_id, token.as_ref(), deadline).await?,
            };
            let answer = ask(&mut stream, &question).await?;
            *connection = Some(stream);
            Ok(answer)
        })
    }

    fn keep(&self, known: &BTreeSet<u128>) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|id, _| known.contains(id));
    }
}

async fn connect(
    address: &str,
    run_id: &str,
    token: Option<&Token>,
    deadline: Duration,
) -> Result<TcpStream, String> {
    let candidates = tokio::net::lookup_host(address).await.map_err(|error| error.to_string())?;
    let accepted = first_to_accept(candidates).await.ok_or("the name has no address")?;
    let mut stream = accepted.map_err(|error| error.to_string())?;
    greet(&mut stream, address, run_id, token, deadline).await.map_err(|error| error.to_string())?;
    write_frame(&mut stream, &Frame::Peer {}).await.map_err(|error| error.to_string())?;
    Ok(stream)
}

async fn ask(stream: &mut TcpStream, question: &Question) -> Result<Answer, String> {
    let mut bytes = Vec::new();
    question.put(&mut bytes);
    let frame = Frame::Question { body: Blob(bytes) };
    write_frame(stream, &frame).await.map_err(|error| error.to_string())?;
    match read_frame(stream, PEER_LIMIT).await {
        Ok(Frame::Replied { body }) => decode(&body),
        Ok(_) => Err("a frame that does not belong there".to_owned()),
        Err(error) => Err(format!("{error:?}")),
    }
}

/// Decodes the body of a frame between servers.
pub(super) fn decode<T: Wire>(body: &Blob) -> Result<T, String> {
    let mut from = Reader::new(&body.0);
    match T::get(&mut from) {
        Ok(value) if from.remaining() == 0 => Ok(value),
        Ok(_) => Err("bytes to spare".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
