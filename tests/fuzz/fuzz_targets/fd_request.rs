//! What a process of this user may send to the fd server: any packets, requests with the window's secret, and messages
//! of a lease's holder. Each connection ends or is answered soon, memory is given only for the right secret and an
//! existing rank, and a closed connection leaves no lease behind.
#![no_main]

use std::cell::LazyCell;
use std::os::fd::{AsRawFd, OwnedFd};

use arbitrary::Arbitrary;
use epwire_fuzz::{Pair, SERVER, WINDOW, packet_socket, server_address};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Packet<'a> {
    Bytes(&'a [u8]),
    Ring,
    Goodbye,
    Request { rank: u32, pid: u32, process: [u8; 16], holder: [u8; 16], cut: Option<u8>, more: &'a [u8] },
}

thread_local! {
    static PAIR: LazyCell<Pair> = LazyCell::new(Pair::new);
}

fuzz_target!(|packets: [Packet; 4]| {
    PAIR.with(|pair| {
        let socket = connect(&pair.blob[SERVER]);
        let mut answered = false;
        for packet in &packets {
            let bytes = packet.bytes(&pair.blob[WINDOW]);
            if !send(&socket, &bytes) {
                break; // the server has closed it, as it may after its answer
            }
            if answered {
                continue; // of a lease only the end matters
            }
            match receive(&socket) {
                Some((reply, memory)) => {
                    let entitled = packet.wants_memory();
                    assert_eq!(memory, entitled, "{reply:?} to {packet:?}");
                    assert_eq!(reply[0], 0x5257_5045, "not a reply");
                    assert_eq!(reply[1] == GRANTED, entitled, "{reply:?} to {packet:?}");
                    assert!(
                        reply[1] != FENCED && reply[1] != FENCED_WITHIN,
                        "{reply:?}: an earlier lease continues"
                    );
                    answered = true;
                }
                None => break,
            }
        }
    });
});

const GRANTED: u32 = 0;
const FENCED: u32 = 3;
const FENCED_WITHIN: u32 = 6;
const RING: u32 = 0x4e57_5045;
const GOODBYE: u32 = 0x4257_5045;
const REQUEST_BYTES: usize = 60;

impl Packet<'_> {
    fn bytes(&self, window: &[u8]) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Ring => RING.to_ne_bytes().to_vec(),
            Self::Goodbye => GOODBYE.to_ne_bytes().to_vec(),
            Self::Request { rank, pid, process, holder, cut, more } => {
                let numbers = [0x5157_5045, *rank, *pid].map(u32::to_ne_bytes).concat();
                let mut request = [&numbers[..], process, holder, window].concat();
                assert_eq!(request.len(), REQUEST_BYTES);
                request.truncate(cut.map_or(REQUEST_BYTES, usize::from));
                request.extend_from_slice(more);
                request
            }
        }
    }

    /// Whether it is a complete request of a rank of the group.
    fn wants_memory(&self) -> bool {
        let Self::Request { rank, cut, more, .. } = self else { return false };
        *rank < 2 && more.is_empty() && cut.is_none_or(|cut| usize::from(cut) >= REQUEST_BYTES)
    }
}

fn connect(server: &[u8]) -> OwnedFd {
    let socket = packet_socket();
    let limit = libc::timeval { tv_sec: 5, tv_usec: 0 };
    let (address, length) = server_address(server);
    // SAFETY: both structs live through the calls that read them, with their own lengths.
    let connected = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const limit).cast(),
            size_of_val(&limit) as libc::socklen_t,
        ) == 0
            && libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) == 0
    };
    assert!(connected, "connect: {}", std::io::Error::last_os_error());
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> bool {
    // SAFETY: the slice's own pointer and length.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    sent == bytes.len() as isize
}

/// The reply's three words, and whether a descriptor came with it (which is closed); `None` if the server has closed
/// the connection.
fn receive(socket: &OwnedFd) -> Option<([u32; 3], bool)> {
    let mut reply = [0u32; 3];
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: size_of_val(&reply) };
    // SAFETY: a plain C struct, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: `message` points to memory of this frame, of the lengths given.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => return receive(socket), // the fuzzer's own alarm
            Some(libc::ECONNRESET) => return None,
            _ => panic!("no answer: {error}"),
        }
    }
    if got == 0 {
        return None;
    }
    assert_eq!(got as usize, size_of_val(&reply), "half an answer");
    // SAFETY: the kernel has filled `message`; a header that is there lies in `control`, and one of SCM_RIGHTS holds
    // descriptors that are this process's to close.
    let memory = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let there = !header.is_null();
        if there {
            libc::close(libc::CMSG_DATA(header).cast::<i32>().read_unaligned());
        }
        there
    };
    Some((reply, memory))
}
