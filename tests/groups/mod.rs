//! Groups whose ranks are threads of a test.

use std::sync::Mutex;

use epwire::Group;
use epwire::env::Token;
use epwire::group::GroupOptions;
use epwire::rendezvous::driver::{Server, ServerOptions};

/// The servers of all groups that have a token, as long as the program runs.
static SERVERS: Mutex<Vec<Server>> = Mutex::new(Vec::new());

/// The groups of ranks that are threads of this process, by rank. If the environment has a token, which the TCP wire
/// needs, they meet at a server of their own.
pub(crate) fn groups(ranks: u32) -> Vec<Group> {
    let Some(token) = Token::from_env().unwrap() else {
        return Group::threads(ranks).unwrap();
    };
    let (run_id, address) = {
        let mut servers = SERVERS.lock().unwrap();
        // Fabrics are shared by what has the same rank and run.
        let run_id = format!("test {}", servers.len());
        let options = ServerOptions::new(&run_id, ranks).token(Some(token.clone()));
        servers.push(Server::bind_blocking("127.0.0.1:0", options).unwrap());
        (run_id, servers.last().unwrap().local_addr().to_string())
    };
    let join = |rank| {
        let options = GroupOptions::new(rank, ranks, &address).run_id(&run_id).token(Some(token.clone()));
        std::thread::spawn(|| Group::join_blocking(options).unwrap())
    };
    let joining: Vec<_> = (0..ranks).map(join).collect();
    joining.into_iter().map(|rank| rank.join().unwrap()).collect()
}
