//! The server and its clients in one process, connected by pipes in memory instead of sockets.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::attendant::Attendant;
use super::background::spawn;
use super::client::Client;
use super::heartbeat::Heartbeat;
use super::hub::Hub;
use super::options::ServerOptions;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::machine::{Machine, SessionId};

/// Bytes that a pipe holds before its writer waits.
const PIPE_BYTES: usize = 64 << 10;

/// A client for each of the sessions 0, 1, ... of a machine, each with its attendant, all on one thread that ends with
/// the last of them.
pub(crate) fn local(
    machine: Machine,
    attendants: impl ExactSizeIterator<Item = Arc<dyn Attendant>>,
) -> Result<Vec<Client>, BootstrapError> {
    let options = ServerOptions::new("", attendants.len() as u32);
    let mut clients = Vec::new();
    let mut carriers = Vec::new();
    let mut servers = Vec::new();
    for (session, attendant) in (0 as SessionId..).zip(attendants) {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (client, carrier) = Client::attach(
            near,
            session,
            "this process",
            Heartbeat::default(),
            machine.view(),
            Some(attendant),
        );
        clients.push(client);
        carriers.push(carrier);
        servers.push(far);
    }
    spawn("epwire-local", move || async move {
        let hub = Hub::alone(machine, &options);
        let mut tasks = JoinSet::new();
        for far in servers {
            let door = hub.door.clone();
            tasks.spawn(async move { door.attend(far, true).await });
        }
        let mut carried = JoinSet::new();
        for carrier in carriers {
            carried.spawn(carrier);
        }
        while carried.join_next().await.is_some() {}
    })?;
    Ok(clients)
}
