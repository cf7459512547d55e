//! What a false fd server may answer to a rank that fetches a window: any packet, with any number of descriptors of
//! memory of any size, sealed or not. The rank connects only if it got memory of the right size that cannot shrink, and
//! no descriptor is left.
#![no_main]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use arbitrary::Arbitrary;
use epwire::Path;
use epwire_fuzz::{PROCESS, Pair, SERVER, fix_checksum, packet_socket, server_address};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Answer {
    reply: Reply,
    memory: Vec<Memory>,
}

#[derive(Arbitrary, Debug)]
enum Reply {
    Bytes(Vec<u8>),
    Verdict { verdict: u8, holder: u32 },
}

#[derive(Arbitrary, Debug)]
enum Memory {
    Right,
    Unsealed,
    Sized(u16),
    Socket,
}

struct Setup {
    pair: Pair,
    forged: Vec<u8>,
    answers: Sender<(Vec<u8>, Vec<OwnedFd>)>,
    done: Receiver<()>,
    rounds: u32,
}

thread_local! {
    static SETUP: RefCell<Option<Setup>> = const { RefCell::new(None) };
}

fuzz_target!(|answer: Answer| {
    SETUP.with_borrow_mut(|setup| {
        let setup = setup.get_or_insert_with(Setup::new);
        let window = setup.pair.importer.plan().window_bytes;
        let bytes = match &answer.reply {
            Reply::Bytes(bytes) => bytes.clone(),
            Reply::Verdict { verdict, holder } => {
                [0x5257_5045, u32::from(*verdict), *holder].map(u32::to_ne_bytes).concat()
            }
        };
        let memory = answer.memory.iter().take(MOST_DESCRIPTORS).map(|memory| memory.open(window)).collect();
        setup.answers.send((bytes, memory)).expect("the false server lives");

        let connected = setup.pair.importer.connect_blocking(1, &setup.forged);
        setup.done.recv().expect("the false server lives");
        match connected {
            Ok(()) => {
                assert_eq!(setup.pair.importer.path(1), Path::SharedMemory);
                assert!(
                    matches!(answer.reply, Reply::Verdict { verdict: 0, .. } | Reply::Bytes(_)),
                    "{answer:?}"
                );
                assert!(answer.memory.first().is_some_and(|m| m.is_right(window)), "{answer:?}");
                setup.pair.importer.disconnect(1).expect("a peer that is not active");
            }
            Err(error) => assert!(error.failure().is_some_and(|f| !f.text.is_empty()), "{error}"),
        }
        setup.rounds += 1;
        if setup.rounds.is_multiple_of(256) {
            let open = std::fs::read_dir("/proc/self/fd").expect("proc").count();
            assert!(open < 64, "{open} descriptors are open");
        }
    });
});

const MOST_DESCRIPTORS: usize = 8;

impl Setup {
    /// A pair whose exporter's blob is forged to name another process and a server of this test.
    fn new() -> Self {
        let pair = Pair::new();
        let name = [&[0xfe; 12][..], &std::process::id().to_ne_bytes()].concat();
        let mut forged = pair.blob.clone();
        forged[PROCESS][0] ^= 1;
        forged[SERVER].copy_from_slice(&name);
        fix_checksum(&mut forged);

        let listener = packet_socket();
        let (address, length) = server_address(&name);
        // SAFETY: the address lives through the call that reads it, with its own length.
        let listening = unsafe {
            libc::bind(listener.as_raw_fd(), (&raw const address).cast(), length) == 0
                && libc::listen(listener.as_raw_fd(), 8) == 0
        };
        assert!(listening, "listen: {}", std::io::Error::last_os_error());
        let (answers, orders) = channel::<(Vec<u8>, Vec<OwnedFd>)>();
        let (served, done) = channel();
        std::thread::spawn(move || {
            for (bytes, memory) in orders {
                answer_one(&listener, &bytes, &memory);
                drop(memory);
                let _ = served.send(());
            }
        });
        Self { pair, forged, answers, done, rounds: 0 }
    }
}

impl Memory {
    fn is_right(&self, window: u64) -> bool {
        match self {
            Self::Right => true,
            Self::Sized(bytes) => u64::from(*bytes) == window,
            Self::Unsealed | Self::Socket => false,
        }
    }

    fn open(&self, window: u64) -> OwnedFd {
        let (bytes, sealed) = match self {
            Self::Right => (window, true),
            Self::Unsealed => (window, false),
            Self::Sized(bytes) => (u64::from(*bytes), true),
            Self::Socket => return packet_socket(),
        };
        // SAFETY: a string literal; nobody else owns what is opened.
        let fd = unsafe {
            let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0, "memfd: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let seals = if sealed { libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL } else { 0 };
        // SAFETY: no memory is passed.
        let made = unsafe {
            libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        assert!(made, "memfd: {}", std::io::Error::last_os_error());
        fd
    }
}

/// Accepts one connection, reads its request, answers, and closes the connection.
fn answer_one(listener: &OwnedFd, bytes: &[u8], memory: &[OwnedFd]) {
    let descriptors: Vec<i32> = memory.iter().map(AsRawFd::as_raw_fd).collect();
    let mut request = [0u8; 64];
    let mut control = [0u64; 16];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all pointers are to memory of this frame or of the caller, of the lengths given; `control` has room for
    // MOST_DESCRIPTORS. The connection is owned by nobody else.
    unsafe {
        let fd = libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
        assert!(fd >= 0, "accept: {}", std::io::Error::last_os_error());
        let connection = OwnedFd::from_raw_fd(fd);
        libc::recv(connection.as_raw_fd(), request.as_mut_ptr().cast(), request.len(), 0);
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        if !descriptors.is_empty() {
            let payload = size_of_val(&descriptors[..]) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            let to = libc::CMSG_DATA(header).cast::<i32>();
            std::ptr::copy_nonoverlapping(descriptors.as_ptr(), to, descriptors.len());
        }
        libc::sendmsg(connection.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
    }
}
