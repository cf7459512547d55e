//! The bootstrap over real sockets: every wrong start is a named error within its deadline, and the membership survives
//! what a run survives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epwire::env::Token;
use epwire::group::{Group, GroupOptions, Progress, Reason, Status, Step};
use epwire::internals::auth::{Role, Transcript};
use epwire::internals::wire::{
    Ask, Frame, HEADER_BYTES, Join, Notice, PROTOCOL_VERSION, Reply, Request, Round, RoundKind, body_length,
    decode, encode,
};
use epwire::rendezvous::driver::{ClientOptions, Heartbeat, Server, ServerOptions};
use epwire::rendezvous::{Blob, BootstrapError, Identity, Mask, RankState};
use epwire::store::{MAX_VALUE_BYTES, Store};
use epwire::{EpBuffer, EpConfig, Error};

const SECOND: Duration = Duration::from_secs(1);

fn quick() -> Heartbeat {
    Heartbeat::default().interval(SECOND / 10).lease(SECOND).handshake(SECOND)
}

fn serve(world: u32) -> Server {
    serve_with(world, quick())
}

/// For a mute member, which renews no lease, and must not be evicted on a busy machine.
fn serve_patiently(world: u32) -> Server {
    serve_with(world, quick().lease(30 * SECOND))
}

fn serve_with(world: u32, heartbeat: Heartbeat) -> Server {
    let options = ServerOptions::new("run", world).join_deadline(10 * SECOND).heartbeat(heartbeat);
    Server::bind_blocking("127.0.0.1:0", options).unwrap()
}

fn options(rank: u32, world: u32, server: SocketAddr) -> GroupOptions {
    GroupOptions::new(rank, world, server.to_string())
        .run_id("run")
        .join_deadline(10 * SECOND)
        .deadline(10 * SECOND)
        .heartbeat(quick())
}

/// Joins all the given ranks at once, each on a plain thread.
fn join_all(options: impl IntoIterator<Item = GroupOptions>) -> Vec<Result<Group, BootstrapError>> {
    let threads: Vec<_> =
        options.into_iter().map(|options| std::thread::spawn(|| Group::join_blocking(options))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn formed(world: u32) -> (Server, Vec<Group>) {
    let server = serve(world);
    let joined = join_all((0..world).map(|rank| options(rank, world, server.local_addr())));
    (server, joined.into_iter().map(Result::unwrap).collect())
}

/// Runs one operation of every group at once.
fn all<T: Send>(groups: &[Group], operation: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| operation(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A hand-written client, for what a correct client does not do.
struct Raw {
    stream: TcpStream,
    calls: u64,
}

impl Raw {
    fn connect(server: SocketAddr) -> Self {
        Self::new(TcpStream::connect(server).unwrap())
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        Self { stream, calls: 0 }
    }

    /// Retries until a server that is being started accepts.
    fn connect_within(server: SocketAddr, limit: Duration) -> Self {
        let begin = Instant::now();
        loop {
            match TcpStream::connect(server) {
                Ok(stream) => return Self::new(stream),
                Err(error) => assert!(begin.elapsed() < limit, "{server}, for {limit:?}: {error}"),
            }
            std::thread::sleep(SECOND / 100);
        }
    }

    fn send(&mut self, frame: &Frame) {
        self.stream.write_all(&encode(frame).unwrap()).unwrap();
    }

    fn receive(&mut self) -> Frame {
        let mut bytes = vec![0; HEADER_BYTES];
        self.stream.read_exact(&mut bytes).unwrap();
        let length = body_length(bytes[..].try_into().unwrap(), usize::MAX).unwrap();
        bytes.resize(HEADER_BYTES + length, 0);
        self.stream.read_exact(&mut bytes[HEADER_BYTES..]).unwrap();
        decode(&bytes).unwrap()
    }

    /// Whether something has arrived, or the connection has ended.
    fn has_heard(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let heard = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false).unwrap();
        heard
    }

    /// Receives until `take` returns something for a frame.
    fn receive_until<T>(&mut self, take: impl Fn(Frame) -> Option<T>) -> T {
        loop {
            if let Some(taken) = take(self.receive()) {
                return taken;
            }
        }
    }

    fn handshake(mut self) -> Self {
        self.send(&Frame::Hello { run_id: "run".to_owned(), nonce: [1; 32] });
        let Frame::Challenge { nonce } = self.receive() else { panic!("no challenge") };
        let transcript = Transcript { run_id: "run".to_owned(), client_nonce: [1; 32], server_nonce: nonce };
        self.send(&Frame::Proof { mac: transcript.proof(Role::Client, None) });
        assert!(matches!(self.receive(), Frame::Proof { .. }));
        // No two clients have the same session.
        let session = self.stream.local_addr().unwrap().port().into();
        self.send(&Frame::Open { session });
        assert!(matches!(self.receive(), Frame::Opened { .. }));
        self.send(&Frame::Ping { received: 0, except: BTreeSet::new() });
        self
    }

    fn call(&mut self, request: Request) {
        self.calls += 1;
        self.send(&Frame::Call { id: self.calls, request });
    }

    fn join(&mut self, rank: u32, world: u32) {
        let identity = Identity::new(rank, 77, "rawhost", 4242);
        let (version, run_id) = (PROTOCOL_VERSION, "run".to_owned());
        let join = Join {
            version,
            run_id,
            world,
            initial: world,
            identity,
            deadline: 5 * SECOND,
            config: Vec::new(),
            listener: None,
        };
        self.call(Request::Join { join });
    }

    /// Makes the server send it 15 MiB, more than a socket holds: later frames wait until the client reads.
    fn leave_unread(&mut self) {
        let key = "large".to_owned();
        let value = Blob(vec![1; MAX_VALUE_BYTES]);
        let verbs = std::iter::once(Request::Set { key: key.clone(), value });
        let get = || Request::Get { keys: vec![key.clone(); 30], deadline: SECOND };
        for request in verbs.chain(std::iter::repeat_with(get).take(8)) {
            self.call(request);
        }
        // Some of it has arrived, so the rest is on its way.
        self.stream.peek(&mut [0; HEADER_BYTES]).unwrap();
    }

    /// The number of bytes until the server closes the connection.
    fn drain(mut self) -> usize {
        let mut rest = Vec::new();
        // A reset ends the connection, too.
        let _ = self.stream.read_to_end(&mut rest);
        rest.len()
    }
}

/// A hand-written server: answers the first connection with these bytes and then stays silent.
fn impostor(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&answer).unwrap();
        std::thread::sleep(20 * SECOND);
    });
    address
}

#[test]
fn a_wrong_token_is_named_on_the_side_that_has_it() {
    let token = |text: &str| Some(Token::new(text, "test").unwrap());
    let right = "the token of the run";
    let server = Server::bind_blocking(
        "127.0.0.1:0",
        ServerOptions::new("run", 1).token(token(right)).heartbeat(quick()),
    );
    let address = server.as_ref().unwrap().local_addr();
    for wrong in [token("some other token"), None] {
        let error = Group::join_blocking(options(0, 1, address).token(wrong)).unwrap_err();
        assert!(matches!(error, BootstrapError::WrongToken { .. }), "{error}");
        assert!(error.to_string().contains("EPWIRE_TOKEN"), "{error}");
    }
    Group::join_blocking(options(0, 1, address).token(token(right))).unwrap();
}

#[test]
fn a_server_that_does_not_know_the_token_is_not_believed() {
    let mut answers = encode(&Frame::Challenge { nonce: [5; 32] }).unwrap();
    answers.extend(encode(&Frame::Proof { mac: [0; 32] }).unwrap());
    let error = Group::join_blocking(options(0, 1, impostor(answers))).unwrap_err();
    assert!(matches!(error, BootstrapError::WrongToken { .. }), "{error}");
}

#[test]
fn a_token_is_required_off_loopback_for_server_and_client() {
    let error = Server::bind_blocking("0.0.0.0:0", ServerOptions::new("run", 1)).unwrap_err();
    assert!(matches!(error, BootstrapError::TokenRequired { .. }), "{error}");
    let began = Instant::now();
    let error = Group::join_blocking(options(0, 1, "192.0.2.1:4444".parse().unwrap())).unwrap_err();
    assert!(matches!(error, BootstrapError::TokenRequired { .. }), "{error}");
    assert!(began.elapsed() < 5 * SECOND);
    let token = Some(Token::new([7; 16], "test").unwrap());
    Server::bind_blocking("0.0.0.0:0", ServerOptions::new("run", 1).token(token)).unwrap();
}

#[test]
fn a_wrong_version_is_named_with_both_on_both_sides() {
    let server = serve(1);
    let mut raw = Raw::connect(server.local_addr());
    let mut hello = encode(&Frame::Hello { run_id: "run".to_owned(), nonce: [0; 32] }).unwrap();
    hello[4] = 99;
    raw.stream.write_all(&hello).unwrap();
    let Frame::Refused { error } = raw.receive() else { panic!("not refused") };
    assert!(
        matches!(error, BootstrapError::WrongVersion { ours: PROTOCOL_VERSION, theirs: 99, .. }),
        "{error}"
    );

    let mut challenge = encode(&Frame::Challenge { nonce: [0; 32] }).unwrap();
    challenge[4] = 98;
    let error = Group::join_blocking(options(0, 1, impostor(challenge))).unwrap_err();
    assert!(
        matches!(error, BootstrapError::WrongVersion { ours: PROTOCOL_VERSION, theirs: 98, .. }),
        "{error}"
    );
}

#[test]
fn a_wrong_run_id_or_world_is_named_with_both_values() {
    let server = serve(2);
    let error = Group::join_blocking(options(0, 2, server.local_addr()).run_id("walk")).unwrap_err();
    assert!(error.to_string().contains("run id is \"walk\": the run has \"run\""), "{error}");
    let outsider = ClientOptions::new(server.local_addr().to_string(), "walk").deadline(10 * SECOND);
    assert_eq!(Store::connect_blocking(outsider).unwrap_err(), error);
    let error = Group::join_blocking(options(0, 3, server.local_addr())).unwrap_err();
    assert!(error.to_string().contains("world = 3, but the run has 2"), "{error}");
}

#[test]
fn the_longest_heartbeat_is_one_too() {
    let longest = Heartbeat::default().interval(Duration::MAX).lease(Duration::MAX).handshake(Duration::MAX);
    let server = ServerOptions::new("run", 2).join_deadline(10 * SECOND).heartbeat(longest);
    let server = Server::bind_blocking("127.0.0.1:0", server).unwrap();
    let groups = join_all((0..2).map(|rank| options(rank, 2, server.local_addr()).heartbeat(longest)));
    for group in groups {
        group.unwrap().leave_blocking().unwrap();
    }
}

#[test]
fn a_wrong_config_fails_every_rank_with_the_field_that_differs() {
    let server = serve(3);
    let results = join_all((0..3).map(|rank| {
        options(rank, 3, server.local_addr()).config("hidden", if rank == 1 { "4096" } else { "7168" })
    }));
    for result in results {
        match result.unwrap_err() {
            BootstrapError::ConfigMismatch { field, rank: 0, value, other_rank: 1, other_value, .. } => {
                assert_eq!(
                    (field.as_str(), value.as_str(), other_value.as_str()),
                    ("hidden", "7168", "4096")
                );
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn the_host_learns_of_a_failed_join_after_everybody_else() {
    let (address, host) = patient_host();
    let host = std::thread::spawn(|| Group::join_blocking(host.config("seed", "7")));
    let mut slow = Raw::connect_within(address, 10 * SECOND).handshake();
    slow.leave_unread();
    slow.join(1, 2);
    let (own, told) = told_first(host, slow);
    assert!(matches!(&own, BootstrapError::ConfigMismatch { field, .. } if field == "seed"), "{own}");
    assert_eq!(told, own);
}

#[test]
fn the_host_learns_of_a_failed_step_after_everybody_else() {
    let (address, host) = patient_host();
    let host = std::thread::spawn(|| Group::join_blocking(host));
    let mut slow = Raw::connect_within(address, 10 * SECOND).handshake();
    slow.join(1, 2);
    let host = host.join().unwrap().unwrap();
    let fields = vec![("seed".to_owned(), "7".to_owned())];
    let host = std::thread::spawn(move || host.agree_blocking("setup", fields));
    slow.leave_unread();
    let kind = RoundKind::Agree { fields: Vec::new() };
    let round = Round { tag: "setup".to_owned(), ranks: Mask::all(2), deadline: 5 * SECOND, kind };
    slow.call(Request::Round { round });
    let (own, told) = told_first(host, slow);
    assert!(matches!(&own, BootstrapError::ConfigMismatch { field, .. } if field == "seed"), "{own}");
    assert_eq!(told, own);
}

/// Rank 0 of 2, which hosts the server at that address and gives nobody up while these tests run.
fn patient_host() -> (SocketAddr, GroupOptions) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let heartbeat = quick().lease(30 * SECOND);
    (address, options(0, 2, address).host_server(true).heartbeat(heartbeat))
}

/// Returns the error of the host, before `slow` reads anything, and the one that then waits for `slow`.
fn told_first<T>(
    host: JoinHandle<Result<T, BootstrapError>>,
    mut slow: Raw,
) -> (BootstrapError, BootstrapError) {
    std::thread::sleep(SECOND / 2);
    assert!(!host.is_finished(), "the host returned before the slow rank was told");
    let told = std::iter::repeat_with(|| slow.receive()).find_map(|frame| match frame {
        Frame::Answer { result: Err(error), .. } => Some(error),
        _ => None,
    });
    (host.join().unwrap().err().unwrap(), told.unwrap())
}

#[test]
fn a_duplicate_rank_is_refused_and_the_first_one_goes_on() {
    let server = serve(2);
    let address = server.local_addr();
    let first = std::thread::spawn(move || Group::join_blocking(options(0, 2, address)));
    // The second is refused as soon as the first has its place; until then one of the two waits for rank 1.
    let second = std::thread::spawn(move || Group::join_blocking(options(0, 2, address)));
    while !first.is_finished() && !second.is_finished() {
        std::thread::sleep(SECOND / 100);
    }
    let (refused, waiting) = if first.is_finished() { (first, second) } else { (second, first) };
    let error = refused.join().unwrap().unwrap_err();
    let pid = std::process::id();
    assert!(matches!(error, BootstrapError::DuplicateRank { rank: 0, pid: p, .. } if p == pid), "{error}");
    let other = Group::join_blocking(options(1, 2, address)).unwrap();
    assert_eq!(waiting.join().unwrap().unwrap().active(), other.active());
}

#[test]
fn missing_ranks_are_listed_within_the_join_deadline() {
    let server = serve(4);
    let began = Instant::now();
    let present = [0, 2].map(|rank| options(rank, 4, server.local_addr()).join_deadline(SECOND));
    for result in join_all(present) {
        match result.unwrap_err() {
            BootstrapError::MissingRanks { missing, present: 2, world: 4, .. } => {
                assert_eq!(missing.to_string(), "1,3");
            }
            other => panic!("{other}"),
        }
    }
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

#[test]
fn nobody_at_the_address_is_named_within_the_join_deadline() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let began = Instant::now();
    let error = Group::join_blocking(options(0, 1, address).join_deadline(SECOND)).unwrap_err();
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

#[test]
fn a_rank_that_cannot_host_the_run_says_how_to_join_one_that_is_under_way() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Group::join_blocking(options(0, 2, address).host_server(true)).unwrap_err().to_string();
    assert!(error.contains("Address already in use") && error.contains("EPWIRE_HOSTED=1"), "{error}");
    assert!(!error.contains("  "), "{error}");
}

#[test]
fn a_server_that_starts_after_its_clients_is_found() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let early = std::thread::spawn(move || Group::join_blocking(options(1, 2, address)));
    std::thread::sleep(SECOND / 5);
    let host = Group::join_blocking(options(0, 2, address).host_server(true)).unwrap();
    assert_eq!(early.join().unwrap().unwrap().world(), host.world());
}

#[test]
fn garbage_is_named_to_its_sender_and_disturbs_nobody() {
    let server = serve(1);
    let mut raw = Raw::connect(server.local_addr());
    raw.stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    let Frame::Refused { error } = raw.receive() else { panic!("not refused") };
    assert!(matches!(error, BootstrapError::Garbage { .. }), "{error}");

    let mut raw = Raw::connect(server.local_addr());
    let mut long = encode(&Frame::Ping { received: 7, except: BTreeSet::new() }).unwrap();
    long[6..10].copy_from_slice(&u32::MAX.to_le_bytes());
    raw.stream.write_all(&long).unwrap();
    let Frame::Refused { error } = raw.receive() else { panic!("not refused") };
    assert!(error.to_string().contains("4294967295 bytes (limit 4096)"), "{error}");

    // After the handshake it is disconnected without a word.
    let mut raw = Raw::connect(server.local_addr()).handshake();
    raw.stream.write_all(&[0xff; 64]).unwrap();
    raw.drain();
    Group::join_blocking(options(0, 1, server.local_addr())).unwrap();
}

#[test]
fn an_impostor_that_talks_garbage_is_named() {
    let error = Group::join_blocking(options(0, 1, impostor(b"220 mail ready\r\n".to_vec()))).unwrap_err();
    assert!(matches!(error, BootstrapError::Garbage { .. }), "{error}");
}

#[test]
fn an_impostor_that_says_nothing_is_named_at_the_deadline() {
    let began = Instant::now();
    let options = options(0, 1, impostor(Vec::new())).join_deadline(2 * SECOND);
    let error = Group::join_blocking(options).unwrap_err();
    assert!(matches!(error, BootstrapError::SilentPeer { .. }), "{error}");
    assert!(began.elapsed() < 8 * SECOND, "{:?}", began.elapsed());
}

#[test]
fn a_silent_connection_is_dropped_after_the_handshake_deadline() {
    let server = serve(1);
    let mut silent = Raw::connect(server.local_addr());
    let Frame::Refused { error } = silent.receive() else { panic!("not refused") };
    assert!(matches!(error, BootstrapError::SilentPeer { .. }), "{error}");
    assert_eq!(silent.drain(), 0);
}

/// Some strangers are silent and some send a hello. They take all places in the handshake, for half a minute each.
#[test]
fn strangers_make_room_for_members() {
    let heartbeat = quick().handshake(30 * SECOND);
    let server = Server::bind_blocking(
        "127.0.0.1:0",
        ServerOptions::new("run", 1).max_unauthenticated(4).heartbeat(heartbeat),
    )
    .unwrap();
    let began = Instant::now();
    let mut strangers: Vec<Raw> = (0..40).map(|_| Raw::connect(server.local_addr())).collect();
    for stranger in strangers.iter_mut().step_by(2) {
        stranger.send(&Frame::Hello { run_id: "run".to_owned(), nonce: [1; 32] });
    }
    Group::join_blocking(options(0, 1, server.local_addr())).unwrap();
    assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    let Frame::Refused { error } = strangers[1].receive() else { panic!("not refused") };
    assert!(matches!(error, BootstrapError::SilentPeer { .. }), "{error}");
}

/// Whoever is slow in the handshake, as members far away are, keeps its place until another connection needs it.
#[test]
fn one_stranger_leaves_for_each_that_comes() {
    let heartbeat = quick().handshake(30 * SECOND);
    let options = ServerOptions::new("run", 1).max_unauthenticated(4).heartbeat(heartbeat);
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let slow: Vec<Raw> = (0..4).map(|_| Raw::connect(server.local_addr())).collect();
    let left = |slow: &[Raw]| slow.iter().filter(|one| one.has_heard()).count();
    std::thread::sleep(SECOND);
    assert_eq!(left(&slow), 0);
    let _one_more = Raw::connect(server.local_addr());
    std::thread::sleep(SECOND);
    assert_eq!(left(&slow), 1);
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = Server::bind_blocking(
        "127.0.0.1:0",
        ServerOptions::new("run", 1).max_connections(1).heartbeat(quick()),
    )
    .unwrap();
    let _other = Raw::connect(server.local_addr()).handshake();
    let error = Group::join_blocking(options(0, 1, server.local_addr())).unwrap_err();
    assert!(error.to_string().contains("connections past the handshake is 2, the limit is 1"), "{error}");
}

#[test]
fn a_formed_group_exchanges_meets_and_agrees() {
    let (_server, groups) = formed(3);
    let received = all(&groups, |group| {
        let blobs = (0..3).map(|to| vec![group.rank() as u8, to]).collect();
        group.exchange_blocking("keys", blobs).unwrap()
    });
    for (rank, blobs) in (0u8..).zip(received) {
        assert_eq!(blobs, (0..3).map(|from| vec![from, rank]).collect::<Vec<_>>());
    }
    all(&groups, |group| group.barrier_blocking("ready").unwrap());
    let same = vec![("topk".to_owned(), "8".to_owned())];
    all(&groups, |group| group.agree_blocking("plan", same.clone()).unwrap());
    let errors = all(&groups, |group| {
        let topk = (group.rank() / 2).to_string();
        group.agree_blocking("plan", vec![("topk".to_owned(), topk)]).unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("topk differs: rank 0 has 0, rank 2 has 1"), "{error}");
    }
    assert_eq!(groups[0].roster().iter().map(|member| member.rank).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(groups[2].roster()[1].member, groups[1].member_id());
    assert_eq!(groups[1].watch().borrow().states, [RankState::Alive {}; 3]);
}

#[test]
fn a_blob_or_frame_past_its_limit_is_an_error_that_names_it() {
    let (_server, groups) = formed(1);
    let error = groups[0].exchange_blocking("x", vec![vec![0; 65_537]]).unwrap_err();
    assert!(matches!(error, BootstrapError::Limit { value: 65_537, limit: 65_536, .. }), "{error}");
    let error = groups[0].exchange_blocking("x", vec![vec![0; 5 << 20]]).unwrap_err();
    assert!(matches!(error, BootstrapError::Limit { limit: 4_194_304, .. }), "{error}");
    groups[0].barrier_blocking("still usable").unwrap();
}

#[test]
fn a_barrier_that_somebody_misses_names_that_rank_within_the_deadline() {
    let (_server, groups) = formed(3);
    // Who has not heard of the server's verdict soon after the deadline, in which a busy machine stops threads, names nobody.
    let named = (0..5).any(|attempt| {
        let began = Instant::now();
        let tag = format!("attempt {attempt}");
        let errors =
            all(&groups[..2], |group| group.with_deadline(SECOND).barrier_blocking(&tag).unwrap_err());
        assert!(began.elapsed() < 5 * SECOND);
        errors.into_iter().all(|error| {
            let BootstrapError::Timeout { missing, deadline: SECOND, .. } = error else { panic!("{error}") };
            missing.to_string() == "2"
        })
    });
    assert!(named);
}

/// The next change of membership, on which all of `groups` agree.
fn changed(groups: &[Group]) -> (String, u32) {
    let began = Instant::now();
    let change = |group: &Group| loop {
        assert!(began.elapsed() < 20 * SECOND, "rank {} sees no change of the membership", group.rank());
        match group.step_blocking() {
            Ok(Step { change: Some(change), number, .. }) => return Ok((change, number)),
            Ok(_) => std::thread::sleep(SECOND / 1000),
            Err(error) => return Err(error),
        }
    };
    let changes: Vec<_> = all(groups, change).into_iter().map(Result::unwrap).collect();
    assert!(changes.iter().all(|change| *change == changes[0]), "{changes:?}");
    (changes[0].0.members.to_string(), changes[0].0.epoch)
}

#[test]
fn survivors_agree_and_a_replacement_is_admitted() {
    let (server, mut groups) = formed(3);
    let mut watch = groups[0].watch();
    drop(groups.pop());
    let dead = Instant::now();
    while watch.borrow_and_update().states.get(2) != Some(&RankState::Dead {}) {
        assert!(dead.elapsed() < 20 * SECOND, "{:?}", watch.borrow());
        std::thread::sleep(SECOND / 100);
    }
    assert_eq!(changed(&groups), ("0-1".to_owned(), 2));
    all(&groups, |group| group.barrier_blocking("two of us").unwrap());

    let newcomer = Group::join_blocking(options(2, 3, server.local_addr())).unwrap();
    assert!(newcomer.is_standby());
    let entered = std::thread::spawn(move || {
        let first = newcomer.step_blocking();
        let seen = newcomer.watch().borrow().states[2];
        (first, seen, newcomer)
    });
    let both = changed(&groups);
    assert_eq!(both, ("0-2".to_owned(), 3));
    let (first, seen, newcomer) = entered.join().unwrap();
    assert_eq!(seen, RankState::Alive {}, "a newcomer is alive as soon as it begins a step");
    assert_eq!(first.unwrap().change.map(|change| change.members), Some(Mask::all(3)));
    assert!(!newcomer.is_standby());
    groups.push(newcomer);
    all(&groups, |group| group.barrier_blocking("three again").unwrap());
}

#[test]
fn a_newcomer_with_other_buffers_than_the_members_have_is_not_admitted() {
    let (server, groups) = formed(2);
    let [zero, one]: [Group; 2] = groups.try_into().unwrap();
    let mut watch = zero.watch();
    drop(one);
    let dead = Instant::now();
    while watch.borrow_and_update().states.get(1) != Some(&RankState::Dead {}) {
        assert!(dead.elapsed() < 20 * SECOND, "{:?}", watch.borrow());
        std::thread::sleep(SECOND / 100);
    }
    let newcomer = Group::join_blocking(options(1, 2, server.local_addr())).unwrap();
    let buffer = EpBuffer::create_blocking(&newcomer, EpConfig::new(1, 64, 2, 1)).unwrap();
    let began = Instant::now();
    let error = newcomer.with_deadline(SECOND).step_blocking().unwrap_err();
    let Error::Bootstrap(error) = error else { panic!("{error}") };
    assert!(matches!(*error, BootstrapError::Timeout { .. }), "{error}");
    assert!((SECOND..5 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
    // Without the buffer, it fits.
    drop(buffer);
    let entered = std::thread::spawn(move || (newcomer.step_blocking(), newcomer));
    // On a busy machine both changes may be seen at one step.
    let mut seen = changed(std::slice::from_ref(&zero));
    if seen == ("0".to_owned(), 2) {
        seen = changed(&[zero]);
    }
    assert_eq!(seen, ("0-1".to_owned(), 3));
    assert!(entered.join().unwrap().0.unwrap().change.is_some());
}

#[test]
fn one_that_falls_silent_keeps_its_rank_until_its_socket_closes() {
    let server = serve(3);
    let address = server.local_addr();
    let members = std::thread::spawn(move || join_all([0, 1].map(|rank| options(rank, 3, address))));
    let mut silent = Raw::connect(address).handshake();
    silent.join(2, 3);
    silent.receive_until(|frame| match frame {
        Frame::Answer { result: Ok(Reply::Joined { .. }), .. } => Some(()),
        _ => None,
    });
    let groups: Vec<Group> = members.join().unwrap().into_iter().map(Result::unwrap).collect();

    assert_eq!(changed(&groups), ("0-1".to_owned(), 2));
    let error = Group::join_blocking(options(2, 3, address)).unwrap_err();
    match &error {
        BootstrapError::Fenced { rank: 2, host, pid: 4242, .. } => assert_eq!(host, "rawhost"),
        other => panic!("{other}"),
    }
    drop(silent);
    let began = Instant::now();
    let replacement = loop {
        match Group::join_blocking(options(2, 3, address)) {
            Ok(group) => break group,
            Err(error) => assert!(began.elapsed() < 20 * SECOND, "{error}"),
        }
    };
    assert!(replacement.is_standby());
}

#[test]
fn of_two_members_none_is_outvoted_until_somebody_reports_its_death() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let member = std::thread::spawn(move || Group::join_blocking(options(0, 2, address).host_server(true)));
    let mut silent = Raw::connect_within(address, 5 * SECOND).handshake();
    silent.join(1, 2);
    let group = member.join().unwrap().unwrap();
    let mut changes = group.changes();
    let Progress::Aborted { error: BootstrapError::NoQuorum { missing, .. }, .. } =
        changes.blocking_recv().unwrap()
    else {
        panic!("the change was not aborted for want of a quorum")
    };
    assert_eq!(missing.to_string(), "1");
    assert_eq!(group.step_blocking().unwrap().number, 1, "steps continue after an aborted change");
    let of = group.roster().iter().find(|identity| identity.rank == 1).unwrap().member;
    group.report_death_blocking(1, of).unwrap();
    assert_eq!(changed(std::slice::from_ref(&group)), ("0".to_owned(), 2));
    let mut seen = vec![changes.blocking_recv().unwrap()];
    while !matches!(seen.last(), Some(Progress::InEffect { .. })) {
        seen.push(changes.blocking_recv().unwrap());
    }
    let [.., Progress::Proposed { .. }, Progress::Due { epoch: 2, .. }, Progress::InEffect { change, .. }] =
        &seen[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!(change.left.to_string(), "1");
}

/// A member that is asked how far it has got, and does not answer, keeps the change open.
#[test]
fn a_change_that_a_member_aborts_ends_with_its_name_for_whoever_waits() {
    let server = serve_patiently(3);
    let address = server.local_addr();
    let members = std::thread::spawn(move || join_all([0, 1].map(|rank| options(rank, 3, address))));
    let mut mute = Raw::connect(address).handshake();
    mute.join(2, 3);
    let groups: Vec<Group> = members.join().unwrap().into_iter().map(Result::unwrap).collect();
    let mut changes = groups[1].changes();
    let asking = groups[0].clone();
    let asking = std::thread::spawn(move || asking.retire_blocking(1));
    let Progress::Proposed { change } = changes.blocking_recv().unwrap() else { panic!("no proposal") };
    groups[1].abort_change_blocking(change).unwrap();
    let aborted = |op: &str| BootstrapError::Aborted { op: op.to_owned(), change, rank: 1 };
    assert_eq!(asking.join().unwrap(), Err(aborted("retire rank 1")));
    let told = changes.blocking_recv().unwrap();
    assert_eq!(told, Progress::Aborted { change, error: aborted("change the membership") });
    let again = groups[0].abort_change_blocking(change).unwrap_err();
    assert!(matches!(again, BootstrapError::OutOfOrder { .. }), "{again}");
    assert_eq!(groups[1].active().epoch, 1);
}

/// Rank 2 is replaced; nothing is heard of its successor either; and a member that joined long before reports that
/// one's death.
#[test]
fn any_member_can_name_the_present_member_of_a_rank() {
    let (server, mut groups) = formed(3);
    let address = server.local_addr();
    let former = groups.pop().unwrap();
    let named = |group: &Group, rank: usize| group.roster()[rank].member;
    assert_eq!(named(&groups[0], 2), former.member_id());
    former.leave_blocking().unwrap();
    assert_eq!(changed(&groups).1, 2);
    let next = Group::join_blocking(options(2, 3, address)).unwrap();
    let began = Instant::now();
    while groups.iter().any(|group| named(group, 2) != next.member_id()) {
        assert!(began.elapsed() < 20 * SECOND, "{:?}", groups[0].roster());
        std::thread::sleep(SECOND / 100);
    }
    assert_eq!(named(&next, 1), groups[1].member_id());
    groups[0].report_death_blocking(2, former.member_id()).unwrap();
    assert_eq!(
        next.membership().states[2],
        RankState::Standby {},
        "the report named the former process, not this one"
    );
    let refused = groups[0].report_death_blocking(3, next.member_id()).unwrap_err();
    assert!(matches!(refused, BootstrapError::Invalid { .. }), "{refused}");
    groups[0].report_death_blocking(2, named(&groups[0], 2)).unwrap();
    while groups[1].membership().states[2] != (RankState::Dead {}) {
        assert!(began.elapsed() < 20 * SECOND, "{:?}", groups[1].membership());
        std::thread::sleep(SECOND / 100);
    }
}

/// The newcomer's call waits to be admitted by a change, which a member keeps open.
#[test]
fn a_newcomer_learns_that_its_admission_is_aborted() {
    let server = serve_patiently(3);
    let address = server.local_addr();
    let members = std::thread::spawn(move || join_all([0, 2].map(|rank| options(rank, 3, address))));
    let mut mute = Raw::connect(address).handshake();
    mute.join(1, 3);
    let mut groups: Vec<Group> = members.join().unwrap().into_iter().map(Result::unwrap).collect();
    groups.pop().unwrap().leave_blocking().unwrap();
    let change = mute.receive_until(|frame| match frame {
        Frame::Ask { ask: Ask::Promise { change, .. } } => Some(change),
        _ => None,
    });
    mute.send(&Frame::Notice { notice: Notice::Promise { change, step: 0 } });
    assert_eq!(changed(&groups).1, 2);
    let mut changes = groups[0].changes();
    let newcomer = Group::join_blocking(options(2, 3, address)).unwrap();
    let waiting = newcomer.clone();
    let waiting = std::thread::spawn(move || waiting.step_blocking());
    let ticket = mute.receive_until(|frame| match frame {
        Frame::Ask { ask: Ask::Introduce { ticket, .. } } => Some(ticket),
        _ => None,
    });
    mute.send(&Frame::Notice { notice: Notice::Introduced { ticket, result: Ok(Vec::new()) } });
    let Progress::Proposed { change } = changes.blocking_recv().unwrap() else { panic!("no proposal") };
    groups[0].abort_change_blocking(change).unwrap();
    let Err(Error::Bootstrap(error)) = waiting.join().unwrap() else { panic!("the newcomer was admitted") };
    assert!(matches!(*error, BootstrapError::Aborted { rank: 0, .. }), "{error}");
    let began = Instant::now();
    while groups[0].membership().standby.preparing.to_string() != "2" {
        assert!(began.elapsed() < 20 * SECOND, "{:?}", groups[0].membership());
        std::thread::sleep(SECOND / 100);
    }
}

#[test]
fn one_that_is_cut_off_for_garbage_is_not_dead() {
    let server = serve(2);
    let address = server.local_addr();
    let member = std::thread::spawn(move || Group::join_blocking(options(0, 2, address)));
    let mut mad = Raw::connect(address).handshake();
    mad.join(1, 2);
    let group = member.join().unwrap().unwrap();
    let mut watch = group.watch();
    mad.stream.write_all(&[0xff; 64]).unwrap();
    let began = Instant::now();
    // Rank 2 may return with another connection within its lease.
    let seen = loop {
        let seen = watch.borrow_and_update().states[1];
        if seen != (RankState::Alive {}) {
            break seen;
        }
        assert!(began.elapsed() < 20 * SECOND);
        std::thread::sleep(SECOND / 100);
    };
    // A standalone server continues without it, but its place is not free.
    assert!(matches!(seen, RankState::Suspect {} | RankState::Evicted {}), "{seen:?}");
    let error = Group::join_blocking(options(1, 2, address)).unwrap_err();
    assert!(matches!(error, BootstrapError::Fenced { rank: 1, pid: 4242, .. }), "{error}");
    // A server on a host that can see the process reports its end.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(server.process_ended(1, 4242));
    assert!(Group::join_blocking(options(1, 2, address)).unwrap().is_standby());
}

/// A rank is silent for a lease, learns that the others continued without it, and is admitted again.
#[test]
fn an_evicted_member_is_told_rejoins_and_comes_back() {
    let server = serve(3);
    let address = server.local_addr();
    let members = std::thread::spawn(move || join_all([0, 1].map(|rank| options(rank, 3, address))));
    let mut late = Raw::connect(address).handshake();
    late.join(2, 3);
    let groups: Vec<Group> = members.join().unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(changed(&groups), ("0-1".to_owned(), 2));
    let settled = late.receive_until(|frame| match frame {
        Frame::Settled { outcome: Ok(decision), .. } => Some(decision),
        _ => None,
    });
    assert_eq!((settled.epoch, settled.mask), (2, Mask::all(2)));
    late.join(2, 3);
    let joined = late.receive_until(|frame| match frame {
        Frame::Answer { result: Ok(Reply::Joined { joined }), .. } => Some(joined),
        _ => None,
    });
    assert_eq!(joined.view.states[2], RankState::Standby {});
    late.send(&Frame::Notice { notice: Notice::Ready {} });
    // It was unreachable, so it must connect again.
    let peers = late.receive_until(|frame| match frame {
        Frame::Ask { ask: Ask::Meet { peers } } => Some(peers),
        _ => None,
    });
    assert_eq!(peers, Mask::all(2));
    late.send(&Frame::Notice { notice: Notice::Met { peers } });
    assert_eq!(changed(&groups), ("0-2".to_owned(), 3));
}

#[test]
fn a_lost_server_ends_what_waits_and_everything_after() {
    let (server, groups) = formed(2);
    let waiting = groups[0].clone();
    let waiting = std::thread::spawn(move || waiting.barrier_blocking("never"));
    std::thread::sleep(SECOND / 5);
    let began = Instant::now();
    drop(server);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, BootstrapError::ServerLost { .. }), "{error}");
    let error = groups[1].barrier_blocking("later").unwrap_err();
    assert!(matches!(error, BootstrapError::ServerLost { .. }), "{error}");
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

#[test]
fn the_host_may_leave_and_who_stays_serves_the_run() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let joined = join_all((0..3).map(|rank| options(rank, 3, server).host_server(rank == 0)));
    let groups: Vec<Group> = joined.into_iter().map(Result::unwrap).collect();
    let outsider = groups[2].store();
    let left = all(&groups[..2], |group| group.with_deadline(5 * SECOND).leave_blocking());
    assert_eq!(left, [Ok(()), Ok(())]);
    outsider.set_blocking("a server", "is still there").unwrap();
    groups[2].leave_blocking().unwrap();
    let error = groups[1].barrier_blocking("after").unwrap_err();
    assert!(matches!(error, BootstrapError::ServerLost { .. }), "{error}");
}

#[test]
fn a_group_grows_and_shrinks() {
    let server =
        Server::bind_blocking("127.0.0.1:0", ServerOptions::new("run", 4).initial(2).heartbeat(quick()))
            .unwrap();
    let options = |rank| options(rank, 4, server.local_addr()).initial(2);
    let mut groups: Vec<Group> = join_all((0..2).map(options)).into_iter().map(Result::unwrap).collect();
    assert_eq!((groups[0].active().mask.to_string().as_str(), groups[0].world()), ("0-1", 4));
    let capacity = |group: &Group| (group.health().status, group.health().capacity.to_string());
    assert_eq!(capacity(&groups[0]), (Status::Serving, "2-3".to_owned()));
    let newcomer = Group::join_blocking(options(3)).unwrap();
    assert!(newcomer.is_standby());
    groups.push(newcomer);
    assert_eq!(changed(&groups), ("0-1,3".to_owned(), 2));
    assert_eq!(capacity(&groups[0]), (Status::Serving, "2".to_owned()));
    let retired = std::thread::spawn({
        let first = groups[0].clone();
        move || first.retire_blocking(1)
    });
    let other = groups.remove(1);
    let last = std::thread::spawn(move || {
        loop {
            if let Err(error) = other.step_blocking() {
                return error;
            }
            std::thread::sleep(SECOND / 1000); // not far ahead of the others, which catch up
        }
    });
    assert_eq!(changed(&groups), ("0,3".to_owned(), 3));
    let health = groups[0].health();
    assert_eq!(health.reasons, [Reason::Missing { ranks: [1].into_iter().collect() }]);
    assert_eq!(retired.join().unwrap(), Ok(()));
    let last = last.join().unwrap();
    assert!(
        matches!(&last, epwire::Error::Bootstrap(error) if matches!(**error, BootstrapError::Retired { rank: 1, .. })),
        "{last}"
    );
}

#[test]
fn everybody_may_leave_at_once() {
    let (_server, groups) = formed(64);
    for left in all(&groups, Group::leave_blocking) {
        assert_eq!(left, Ok(()));
    }
}

#[tokio::test]
async fn async_forms_work_on_a_runtime_of_one_thread_and_blocking_ones_say_no() {
    let groups = Group::threads(2).unwrap();
    let (a, b) = tokio::join!(groups[0].barrier("x"), groups[1].barrier("x"));
    assert_eq!((a, b), (Ok(()), Ok(())));
    let error = groups[0].barrier_blocking("x").unwrap_err();
    assert!(matches!(error, BootstrapError::BlockingInAsync { .. }), "{error}");
    drop(groups);
}

#[tokio::test]
async fn a_join_that_is_given_up_frees_the_rank() {
    let server = Server::bind("127.0.0.1:0", ServerOptions::new("run", 2).heartbeat(quick()));
    let server = server.await.unwrap();
    let given_up = tokio::time::timeout(SECOND / 5, Group::join(options(0, 2, server.local_addr()))).await;
    assert!(given_up.is_err());
    let began = Instant::now();
    let zero = loop {
        let pair = tokio::join!(
            Group::join(options(0, 2, server.local_addr()).join_deadline(2 * SECOND)),
            Group::join(options(1, 2, server.local_addr()).join_deadline(2 * SECOND)),
        );
        match pair {
            (Ok(zero), Ok(_)) => break zero,
            (zero, one) => assert!(began.elapsed() < 20 * SECOND, "{zero:?} {one:?}"),
        }
    };
    assert_eq!(zero.active().epoch, 1);
}

#[test]
fn threads_form_a_group_without_sockets() {
    let groups = Group::threads(8).unwrap();
    let received = all(&groups, |group| {
        let blobs = (0..8).map(|to| vec![group.rank() as u8 * 16 + to]).collect();
        group.exchange_blocking("keys", blobs).unwrap()
    });
    for (rank, blobs) in (0u8..).zip(received) {
        assert!((0u8..).zip(blobs).all(|(from, blob)| blob == [from * 16 + rank]));
    }
    let mut groups = groups;
    assert_eq!(groups[0].watch().borrow().states, [RankState::Alive {}; 8]);
    drop(groups.remove(3));
    assert_eq!(changed(&groups), ("0-2,4-7".to_owned(), 2));
    assert!(matches!(Group::threads(0), Err(BootstrapError::Limit { .. })));
    assert!(matches!(Group::threads(1025), Err(BootstrapError::Limit { .. })));
}

fn try_store(store: &Store, other: &Store) {
    store.set_blocking("a", "one").unwrap();
    assert_eq!(other.get_blocking("a", 10 * SECOND).unwrap(), b"one");
    let began = Instant::now();
    let error = other.get_blocking("b", SECOND / 10).unwrap_err();
    assert!(
        matches!(error, BootstrapError::Timeout { .. }) && error.to_string().contains("key b"),
        "{error}"
    );
    assert!(began.elapsed() < 5 * SECOND);

    let sums = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.wait_blocking(&["b", "n"], 20 * SECOND));
        let sums: Vec<i64> = (1..=3).map(|amount| store.add_blocking("n", amount).unwrap()).collect();
        store.set_blocking("b", "two").unwrap();
        assert_eq!(waiter.join().unwrap().unwrap()[0], b"two");
        sums
    });
    assert_eq!(sums, [1, 3, 6]);
    assert!(matches!(store.add_blocking("a", 1), Err(BootstrapError::Invalid { .. })));

    let error = store.set_blocking("big", vec![0; MAX_VALUE_BYTES + 1]).unwrap_err();
    assert!(matches!(error, BootstrapError::Limit { .. }), "{error}");
    let error = store.set_blocking(&"k".repeat(513), "x").unwrap_err();
    assert!(matches!(error, BootstrapError::Limit { value: 513, limit: 512, .. }), "{error}");
    // Not even a frame holds these.
    let long = "k".repeat(5 << 20);
    for refused in [
        store.add_blocking(&long, 1).unwrap_err(),
        store.delete_blocking(&long).unwrap_err(),
        store.delete_prefix_blocking(&long).unwrap_err(),
    ] {
        assert!(
            matches!(refused, BootstrapError::Limit { .. }) && refused.to_string().contains("of a frame")
        );
    }

    assert_eq!((other.delete_blocking("n"), store.delete_blocking("n")), (Ok(true), Ok(false)));
    assert_eq!(store.add_blocking("n", 5), Ok(5));
    for key in ["step/1/a", "step/1/b", "step/10/a"] {
        store.set_blocking(key, key).unwrap();
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.wait_blocking(&["step/10/a", "step/1/c"], 20 * SECOND));
        // By now the server usually has the wait; whether or not it has, it goes on waiting.
        std::thread::sleep(SECOND / 20);
        assert_eq!(store.delete_prefix_blocking("step/1/"), Ok(2));
        assert_eq!(
            (store.delete_blocking("step/1/c"), store.delete_blocking("step/10/a")),
            (Ok(false), Ok(true))
        );
        store.set_blocking("step/1/c", "c").unwrap();
        assert!(!waiter.is_finished());
        store.set_blocking("step/10/a", "again").unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), [b"again".to_vec(), b"c".to_vec()]);
    });
    let error = store.delete_prefix_blocking("").unwrap_err();
    assert!(matches!(&error, BootstrapError::Invalid { field, .. } if field == "prefix"), "{error}");
    let error = store.delete_blocking(&"k".repeat(513)).unwrap_err();
    assert!(matches!(error, BootstrapError::Limit { value: 513, limit: 512, .. }), "{error}");
    assert_eq!(other.get_blocking("a", SECOND).unwrap(), b"one");
}

#[test]
fn the_store_of_ranks_as_threads_has_all_verbs() {
    let groups = Group::threads(2).unwrap();
    try_store(&groups[0].store(), &groups[1].store());
}

#[test]
fn the_store_of_the_server_has_all_verbs_for_members_and_others() {
    let (server, groups) = formed(1);
    let outsider = Store::connect_blocking(
        ClientOptions::new(server.local_addr().to_string(), "run").deadline(10 * SECOND).heartbeat(quick()),
    );
    try_store(&groups[0].store(), &outsider.unwrap());
}
