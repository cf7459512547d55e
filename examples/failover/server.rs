//! A separate server: its process, and what that does.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use epwire::{env::Token, rendezvous::driver::ServerOptions};

use crate::{
    Result, args,
    serve::{AT, serve},
    worker::heartbeat,
};

/// The life of the process, which ends with its parent.
pub fn run(args: args::Server) -> Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let options = ServerOptions::new(crate::RUN_ID, args.world)
        .token(Token::from_env()?)
        .state(Some(args.state))
        .heartbeat(heartbeat(args.slower))
        .initial(args.initial);
    serve(&args.address, options)
}

/// Dropping it kills it.
pub struct Server {
    slower: u32,
    world: u32,
    initial: u32,
    state: PathBuf,
    address: String,
    child: Option<Child>,
}

impl Server {
    pub fn start(slower: u32, world: u32, initial: u32, state: &Path) -> Result<Self> {
        let (state, address) = (state.to_owned(), "127.0.0.1:0".to_owned());
        let mut server = Self { slower, world, initial, state, address, child: None };
        server.start_again()?;
        Ok(server)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both do nothing if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it at the same address, with the same file.
    pub fn start_again(&mut self) -> Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([
                "server",
                "--slower",
                &self.slower.to_string(),
                "--world",
                &self.world.to_string(),
                "--initial",
                &self.initial.to_string(),
            ])
            .args(["--address", &self.address, "--state"])
            .arg(&self.state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        self.child = Some(child);
        self.address = line.trim().strip_prefix(AT).ok_or("the server ended immediately")?.to_owned();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
