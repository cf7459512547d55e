//! Shared by the targets of the window's blob and of the fd server: two ranks of this process, and the bytes of a blob
//! as `c/window/blob.c` writes them. Shared by those of records and snapshots: a run.

pub mod fake;
pub mod links;
pub mod nic;
pub mod notice;
pub mod rings;

use std::ops::Range;
use std::time::Duration;

use epwire::internals::machine::{Call, Event, Machine, Settings};
use epwire::internals::wire::{Join, Notice, PROTOCOL_VERSION, Request, Round, RoundKind};
use epwire::rendezvous::{Blob, Identity};
use epwire::{EpBuffer, EpConfig, Mask};

/// The bytes that name the exporter's process.
pub const PROCESS: Range<usize> = 40..56;
/// The bytes that name the exporter's fd server.
pub const SERVER: Range<usize> = 68..84;
/// The bytes of the window's secret.
pub const WINDOW: Range<usize> = 84..100;

/// Rank 0 imports, rank 1 exports.
pub struct Pair {
    pub importer: EpBuffer,
    pub exporter: EpBuffer,
    /// The blob that the exporter gives to the importer.
    pub blob: Vec<u8>,
}

impl Pair {
    /// As small as a plan can be.
    pub fn new() -> Self {
        let config = EpConfig::new(1, 8, 2, 1).lanes(1).threads(1);
        let rank = |rank| EpBuffer::unconnected(rank, 2, config.clone()).expect("a small buffer");
        let (importer, exporter) = (rank(0), rank(1));
        let blob = exporter.export(0).expect("a blob");
        Self { importer, exporter, blob }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

/// A run of three ranks with something of every kind in progress. Rank r has session r.
pub fn formed() -> Machine {
    let second = Duration::from_secs(1);
    let settings = Settings {
        run_id: "run".to_owned(),
        world: 3,
        initial: 3,
        join_deadline: 60 * second,
        lease: 5 * second,
        arbiter: false,
    };
    let mut machine = Machine::new(settings).expect("settings");
    let mut calls = 0;
    let mut ask = |session: u32, request| {
        calls += 1;
        let call = Call { session: u64::from(session), id: calls };
        machine.handle(second, Event::Request { call, request: Box::new(request) });
    };
    for rank in 0..3 {
        let identity = Identity::new(rank, u128::from(rank), "host", rank);
        let (version, run_id, config) = (PROTOCOL_VERSION, "run".to_owned(), Vec::new());
        ask(
            rank,
            Request::Join {
                join: Join {
                    version,
                    run_id,
                    world: 3,
                    initial: 3,
                    identity,
                    deadline: second,
                    config,
                    listener: None,
                },
            },
        );
    }
    ask(0, Request::Set { key: "a".to_owned(), value: Blob(vec![1]) });
    ask(1, Request::Get { keys: vec!["a".to_owned(), "b".to_owned()], deadline: 5 * second });
    let kind = RoundKind::Exchange { blobs: vec![Blob(vec![2]); 3] };
    for (tag, deadline) in [("open", 9 * second), ("late", Duration::ZERO)] {
        let (tag, ranks, kind) = (tag.to_owned(), Mask::all(3), kind.clone());
        ask(0, Request::Round { round: Round { tag, ranks, deadline, kind } });
    }
    let notice = Notice::Doubt { epoch: 1, peers: Mask::all(2).without(0) };
    machine.handle(second, Event::Noticed { session: 0, notice });
    machine
}

/// Corrects the checksum at the end of a blob.
pub fn fix_checksum(blob: &mut [u8]) {
    if let Some((bytes, sum)) = blob.split_last_chunk_mut::<8>() {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        *sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes();
    }
}

/// The abstract address of the fd server of this name, as `c/ipc/fd_message.h` makes it, and its length.
pub fn server_address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: a plain C struct, for which zeros are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("\0epwire-{hex}");
    for (to, from) in address.sun_path.iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + text.len();
    (address, length as libc::socklen_t)
}

/// A packet socket of the kind that the fd server uses, closed with its owner.
pub fn packet_socket() -> std::os::fd::OwnedFd {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
    // SAFETY: just opened and owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The address of the only window of this process.
pub fn only_window() -> *mut u8 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let mut windows = maps.lines().filter(|line| line.contains("/memfd:epwire-window"));
    let (line, more) = (windows.next().expect("a window"), windows.next());
    assert!(more.is_none(), "more than one window");
    let (start, _) = line.split_once('-').expect("a range");
    usize::from_str_radix(start, 16).expect("an address") as *mut u8
}
