//! A server by itself, as a program that keeps its run in a file.

use std::{error::Error, time::Duration};

use epwire::rendezvous::driver::{Server, ServerOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::print::print;

/// The beginning of the line that tells where it listens, up to the address.
pub(crate) const AT: &str = "serving at ";

/// Serves until SIGTERM or SIGINT. Prints where, in one line, once members can connect.
pub(crate) fn serve(address: &str, options: ServerOptions) -> Result<(), Box<dyn Error>> {
    let file = options.state.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let server = Server::bind(address, options).await?;
        print(&format!("{AT}{}", server.local_addr()))?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = server.ended() => return Err(format!("{file} cannot be written any more: see its disk").into()),
        }
        // From now on members try to reconnect. Everything that they have been told is in the file.
        drop(server);
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(print(&format!("ended; the run continues where a server is started with {file}"))?)
    })
}
