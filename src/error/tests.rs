//! Every error, followed through its sources.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use super::*;
use crate::Refused;
use crate::env::TokenError;
use crate::launch::spawn::SpawnError;
use crate::launch::{Address, AddressError, LaunchError, Source};
use crate::rendezvous::BootstrapError;
use crate::rendezvous::wire::WireError;

/// Makes a list of errors, and a match without a wildcard over the same variants, so that a new variant does not
/// compile until it is in the list.
macro_rules! every {
    ($type:ident: $($variant:ident $value:tt),* $(,)?) => {{
        #[allow(dead_code)]
        fn complete(error: &$type) {
            match error {
                $($type::$variant { .. } => {})*
            }
        }
        vec![$(Box::new(every!(@ $type $variant $value)) as Box<dyn StdError>),*]
    }};
    (@ $type:ident $variant:ident { $($field:tt)* }) => { $type::$variant { $($field)* } };
    (@ $type:ident $variant:ident ()) => { $type::$variant };
    (@ $type:ident $variant:ident ($($field:expr),*)) => { $type::$variant($($field),*) };
}

fn failure() -> Failure {
    Failure {
        operation: "dispatch".into(),
        rank: Some(1),
        peer: Some(2),
        text: "the reason; the remedy".into(),
    }
}

fn system() -> io::Error {
    io::Error::other("what the system said")
}

fn text(what: &str) -> String {
    what.to_owned()
}

fn bootstrap() -> Vec<Box<dyn StdError>> {
    let (rank, pid, epoch, deadline) = (3, 4711, 5, Duration::from_secs(6));
    let (op, peer, host, field) = (|| text("join"), || text("n2:1"), || text("n3"), || text("world"));
    let (detail, missing) = (|| text("a detail"), Box::<crate::Mask>::default);
    every!(BootstrapError:
        WrongToken { op: op(), peer: peer() },
        TokenRequired { op: op(), address: peer(), least: 16 },
        WrongVersion { op: op(), peer: peer(), ours: 1, theirs: 2 },
        Mismatch { op: op(), rank, field: field(), ours: text("7"), theirs: text("8") },
        ConfigMismatch { op: op(), field: field(), rank, value: text("7"), other_rank: 9, other_value: text("8") },
        DuplicateRank { op: op(), rank, host: host(), pid },
        MissingRanks { op: op(), present: 1, world: 2, missing: missing(), deadline },
        Garbage { op: op(), peer: peer(), detail: detail() },
        SilentPeer { op: op(), peer: peer(), deadline },
        Unreachable { op: op(), address: peer(), deadline, detail: detail() },
        Timeout { op: op(), elapsed: deadline, deadline, missing: missing() },
        PeerLost { op: op(), rank, host: host(), pid },
        NoQuorum { op: op(), missing: missing(), reason: detail() },
        Evicted { op: op(), rank, epoch },
        Retired { op: op(), rank, epoch },
        Aborted { op: op(), change: 4, rank },
        Fenced { op: op(), rank, host: host(), pid },
        ServerLost { op: op(), address: peer(), detail: detail() },
        Limit { op: op(), field: field(), value: 2, limit: 1 },
        Invalid { op: op(), field: field(), value: text("7"), reason: detail() },
        OutOfOrder { op: op(), reason: detail() },
        BlockingInAsync { op: op() },
        System { op: op(), detail: detail() },
    )
}

fn launch() -> Vec<Box<dyn StdError>> {
    let by = Source::Slurm;
    every!(LaunchError:
        Missing { by, claim: "SLURM_PROCID", missing: "SLURM_NTASKS" },
        Invalid { variable: "SLURM_PROCID", value: text("x"), expected: text("a number") },
        NoAddress { by, world: 4, local_world: 2, detail: "" },
        NoInterface { choice: text("eth"), found: text("lo") },
        Interfaces(system()),
    )
}

fn all() -> Vec<Box<dyn StdError>> {
    let limit = Duration::from_secs(1);
    let inner = BootstrapError::BlockingInAsync { op: text("join") };
    let refused = |error| Box::new(Refused { error, handle: () }) as Box<dyn StdError>;
    let mut errors = every!(Error:
        Invalid(failure()),
        Limit(failure()),
        State(failure()),
        NoMemory(failure()),
        System(failure()),
        NoPath(failure()),
        Mismatch(failure()),
        Fenced(failure()),
        Timeout(failure()),
        Peer(failure()),
        Bootstrap(Box::new(inner.clone())),
        Launch(LaunchError::Interfaces(system())),
    );
    errors.extend([refused(Error::State(failure())), refused(Error::from(inner))]);
    errors.extend(bootstrap());
    errors.extend(launch());
    errors.extend(every!(TokenError:
        Both(),
        File { path: "/token".into(), cause: system() },
        NotAFile { path: "/token".into(), found: "a pipe" },
        Length { origin: text("/token"), length: 0 },
        Random { cause: text("no entropy") },
    ));
    errors.extend(every!(SpawnError:
        Invalid { what: text("0 ranks") },
        OwnProgram(system()),
        Supervisor(system()),
        Start { rank: 1, program: "/program".into(), cause: system() },
        Wait(system()),
        TimedOut { limit },
        Lost(),
    ));
    errors.extend(every!(WireError:
        Magic(),
        Version { ours: 1, theirs: 2 },
        TooLong { bytes: 2, limit: 1 },
        Truncated(),
        Trailing(),
        Invalid { what: "a flag" },
    ));
    let address: Result<Address, AddressError> = "nonsense".parse();
    errors.push(Box::new(address.unwrap_err()));
    errors
}

#[test]
fn no_text_is_said_twice_along_a_chain_of_sources() {
    for error in all() {
        let mut chain = Vec::new();
        let mut next = Some(&*error);
        while let Some(error) = next {
            chain.push(error.to_string());
            next = error.source();
        }
        for (at, text) in chain.iter().enumerate() {
            let said = chain[..at].iter().any(|before| before.contains(text.as_str()));
            assert!(!text.is_empty() && !said, "{chain:?}");
        }
    }
}

#[test]
fn a_program_that_returns_an_error_from_main_ends_with_its_text() {
    for error in all() {
        let (text, shown) = (error.to_string(), format!("{error:?}"));
        let is_private = error.is::<WireError>();
        assert!(is_private || shown.ends_with(&text), "{shown}");
    }
    let shown = |error: Error| format!("{error:?}");
    assert_eq!(
        shown(Error::State(failure())),
        "State: dispatch: rank 1: peer 2: the reason; the remedy",
        "the variant is still known"
    );
    let inner = BootstrapError::BlockingInAsync { op: text("join") };
    assert!(shown(inner.into()).starts_with("Bootstrap: BlockingInAsync: join: "));
}

#[test]
fn a_text_by_itself_says_what_the_system_said() {
    for error in [
        Box::new(Error::from(LaunchError::Interfaces(system()))) as Box<dyn StdError>,
        Box::new(TokenError::File { path: "/token".into(), cause: system() }),
        Box::new(SpawnError::Wait(system())),
    ] {
        assert!(error.to_string().contains(&system().to_string()), "{error}");
    }
}

#[test]
fn a_timeout_is_one_of_the_data_plane_or_of_the_group() {
    let limit = Duration::from_secs(1);
    let unreachable = BootstrapError::Unreachable {
        op: text("join"),
        address: text("n2:1"),
        deadline: limit,
        detail: text("refused"),
    };
    assert!(Error::Timeout(failure()).is_timeout());
    assert!(Error::from(unreachable).is_timeout());
    assert!(!Error::from(BootstrapError::BlockingInAsync { op: text("join") }).is_timeout());
    assert!(!Error::Peer(failure()).is_timeout());
}

#[test]
fn options_and_blocks_print_what_was_chosen_and_no_secret() {
    let server = crate::rendezvous::driver::ServerOptions::new("llama", 8).initial(6u32);
    assert_eq!(server.to_string(), "run \"llama\" of 8 ranks, begins with 6, without a token");
    let token = crate::env::Token::new("the secret of this run", "a test").unwrap();
    let client = crate::rendezvous::driver::ClientOptions::new("n2:1", "llama").token(Some(token.clone()));
    assert_eq!(client.to_string(), "run \"llama\" at n2:1, with a token");
    let member = crate::group::GroupOptions::new(1, 4, "n2:1").token(Some(token));
    assert_eq!(member.to_string(), "rank 1 of 4 of run \"default\", rendezvous n2:1");
    let blocks = crate::comm::Blocks::new([3, 0, 5]).at([0, 8, 16]).rows(2).pitch(24);
    assert_eq!(blocks.to_string(), "[3, 0, 5] elements at [0, 8, 16], 2 rows, pitch 24");
}
