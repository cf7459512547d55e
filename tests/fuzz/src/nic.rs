//! Shared by the targets of the software NIC: entries of `c/nic/soft/fetch.h`, frames of `c/nic/soft/frame.h`, and a
//! NIC that takes them in. The functions are those of the crate's C core.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use arbitrary::Arbitrary;

use crate::links::Where;

pub const ENTRY_BYTES: usize = 64;
pub const FRAME_BYTES: usize = 40;

/// `epw_fetched`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Fetched {
    pub opcode: u8,
    pub signalled: bool,
    pub is_inline: bool,
    pub bytes: u32,
    pub remote: u64,
    pub remote_key: u32,
    pub local_count: u32,
    pub local: [Segment; 2],
    pub inlined: [u8; 28],
}

/// `epw_segment`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub offset: u64,
    pub key: u32,
    pub bytes: u32,
}

/// `epw_frame`.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Frame {
    pub kind: u8,
    pub wants_ack: bool,
    pub syndrome: u8,
    pub pair: u32,
    pub from: u32,
    pub index: u32,
    pub key: u32,
    pub offset: u64,
    pub bytes: u32,
    pub stride: u32,
    pub more: u32,
}

/// `epw_region`.
#[repr(C)]
struct Region {
    base: *mut u8,
    rights: u32,
    domain: u32,
    count: u32,
    stretches: [[u64; 2]; 8],
    arrived: *const c_void,
    context: *mut c_void,
    carried_key: u32,
}

/// `epw_pair_options`.
#[repr(C)]
struct PairOptions {
    peer: u32,
    key: u32,
    domain: u32,
    depth: u32,
    memory: *mut u8,
    parts: *const c_void,
    polled: bool,
    broken: *const c_void,
    context: *mut c_void,
}

unsafe extern "C" {
    fn epw_fetch(entry: *const u8, number: u32, index: u16, out: *mut Fetched) -> u8;
    fn epw_frame_write(frame: *const Frame, out: *mut u8);
    fn epw_frame_parse(bytes: *const u8, out: *mut Frame) -> bool;
    fn epw_nic_open(at: Where, out: *mut *mut c_void) -> c_int;
    fn epw_nic_close(nic: *mut c_void);
    fn epw_nic_poll(nic: *mut c_void);
    fn epw_nic_add_link(nic: *mut c_void, fd: c_int, peer: u32, at: Where, link: *mut u64) -> c_int;
    fn epw_nic_add_ring_link(
        nic: *mut c_void,
        fd: c_int,
        peer: u32,
        bytes: u32,
        at: Where,
        link: *mut u64,
    ) -> c_int;
    fn epw_nic_link_alive(nic: *mut c_void, link: u64) -> bool;
    fn epw_nic_register(nic: *mut c_void, region: *const Region) -> u32;
    fn epw_pair_create(
        nic: *mut c_void,
        options: *const PairOptions,
        at: Where,
        out: *mut *mut c_void,
    ) -> c_int;
    fn epw_pair_destroy(pair: *mut c_void);
    fn epw_pair_number(pair: *const c_void) -> u32;
    fn epw_pair_connect(pair: *mut c_void, link: u64, remote: u32);
}

/// Decodes an entry as an adapter does, or returns its syndrome.
pub fn fetch(entry: &[u8; ENTRY_BYTES], number: u32, index: u16) -> Result<Fetched, u8> {
    let mut out = Fetched::default();
    // SAFETY: an entry's bytes, and room for the result.
    match unsafe { epw_fetch(entry.as_ptr(), number, index, &raw mut out) } {
        0 => Ok(out),
        syndrome => Err(syndrome),
    }
}

/// The frame, if the bytes are a valid one.
pub fn parse(bytes: &[u8; FRAME_BYTES]) -> Option<Frame> {
    let mut out = Frame::default();
    // SAFETY: a header's bytes, and room for the result.
    unsafe { epw_frame_parse(bytes.as_ptr(), &raw mut out) }.then_some(out)
}

pub fn write(frame: &Frame) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    // SAFETY: a frame, and room for its bytes.
    unsafe { epw_frame_write(frame, bytes.as_mut_ptr()) };
    bytes
}

/// A frame that a peer may send, usually a meaningful one, and the bytes after it.
#[derive(Arbitrary, Debug)]
pub struct Said {
    kind: u8,
    wants_ack: bool,
    syndrome: u8,
    /// More bytes than the smallest ring holds, or one of answers.
    long: bool,
    /// Arbitrary numbers instead of those that the NIC has given out.
    wrong_pair: Option<u32>,
    wrong_key: Option<u32>,
    from: u8,
    index: u16,
    offset: u32,
    bytes: u32,
    stride: u16,
    more: u8,
    payload: u16,
    fill: u8,
}

impl Said {
    /// A WRITE to the open part, without its bytes.
    pub fn begin_write(to: &Nic, bytes: u32) -> [u8; FRAME_BYTES] {
        let bytes = bytes % OPEN.len() as u32;
        let (pair, key, offset) = (to.number(), to.key, OPEN.start as u64);
        write(&Frame { kind: 1, pair, key, offset, bytes, ..Frame::default() })
    }

    pub fn bytes(&self, to: &Nic) -> Vec<u8> {
        let frame = Frame {
            kind: self.kind % 12,
            wants_ack: self.wants_ack,
            syndrome: self.syndrome,
            pair: self.wrong_pair.unwrap_or(to.number()),
            from: u32::from(self.from),
            index: u32::from(self.index),
            key: self.wrong_key.unwrap_or(to.key),
            offset: u64::from(self.offset % if self.long { 4200 } else { WINDOW_BYTES as u32 + 200 }),
            bytes: self.bytes % if self.long { WINDOW_BYTES as u32 + 200 } else { 4200 },
            stride: u32::from(self.stride % 4200),
            more: u32::from(self.more),
        };
        let mut bytes = write(&frame).to_vec();
        bytes.extend(std::iter::repeat_n(self.fill, usize::from(self.payload % 1000)));
        bytes
    }
}

/// The part of the window in which the peer may write.
pub const OPEN: std::ops::Range<usize> = 64..120_000;
pub const WINDOW_BYTES: usize = 1 << 17;

/// A NIC with a queue pair for a peer, which may read, write and add to a part of the window.
pub struct Nic {
    nic: *mut c_void,
    pair: *mut c_void,
    link: u64,
    pub(crate) fd: c_int,
    pub key: u32,
    pub window: Box<[u8; WINDOW_BYTES]>,
}

fn here() -> Where {
    Where { op: c"fuzz".as_ptr(), rank: 0, peer: 1 }
}

impl Nic {
    pub fn new() -> Self {
        Self::open(false)
    }

    /// A NIC whose peer will offer rings.
    pub fn by_rings() -> Self {
        Self::open(true)
    }

    fn open(rings: bool) -> Self {
        let mut window = Box::new([0x5a; WINDOW_BYTES]);
        let mut stretches = [[0; 2]; 8];
        stretches[0] = [OPEN.start as u64, OPEN.len() as u64];
        let base = window.as_mut_ptr();
        let region = Region {
            base,
            rights: 7,
            domain: 0,
            count: 1,
            stretches,
            arrived: std::ptr::null(),
            context: null_mut(),
            carried_key: 0,
        };
        let (mut nic, mut pair, mut link, mut fds) = (null_mut(), null_mut(), 0, [0; 2]);
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for each result; the region's memory lives as long as the NIC; the NIC owns the first end.
        let key = unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()), 0);
            assert_eq!(epw_nic_open(here(), &raw mut nic), 0);
            let key = epw_nic_register(nic, &raw const region);
            let options = PairOptions {
                peer: 1,
                key,
                domain: 0,
                depth: 16,
                memory: null_mut(),
                parts: std::ptr::null(),
                polled: false,
                broken: std::ptr::null(),
                context: null_mut(),
            };
            assert_eq!(epw_pair_create(nic, &raw const options, here(), &raw mut pair), 0);
            let status = if rings {
                epw_nic_add_ring_link(nic, fds[0], 1, 0, here(), &raw mut link)
            } else {
                epw_nic_add_link(nic, fds[0], 1, here(), &raw mut link)
            };
            assert_eq!(status, 0);
            epw_pair_connect(pair, link, 1);
            key
        };
        Self { nic, pair, link, fd: fds[1], key, window }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the pair lives until this is dropped.
        unsafe { epw_pair_number(self.pair) }
    }

    /// The peer sends this, less than a socket holds, and disconnects. Returns once the NIC has noticed that.
    pub fn take(&mut self, bytes: &[u8]) {
        // SAFETY: the slice's own pointer and length.
        unsafe { libc::send(self.fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        self.end();
    }

    /// The peer sends a byte over the socket: with rings, that is what ringing is.
    pub fn call(&mut self) {
        // SAFETY: one byte of this frame.
        unsafe { libc::send(self.fd, [0u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    }

    /// Takes in what has arrived.
    pub fn poll(&mut self) {
        // SAFETY: the NIC lives until this is dropped.
        unsafe { epw_nic_poll(self.nic) }
    }

    /// The peer disconnects. Returns once the NIC has noticed that.
    pub fn end(&mut self) {
        // SAFETY: the socket, and what the NIC owns, live until this is dropped.
        unsafe {
            libc::shutdown(self.fd, libc::SHUT_WR);
            while epw_nic_link_alive(self.nic, self.link) {
                epw_nic_poll(self.nic);
            }
        }
    }

    /// Whether only what the key permits was written.
    pub fn is_untouched(&self) -> bool {
        let mut closed = self.window[..OPEN.start].iter().chain(&self.window[OPEN.end..]);
        closed.all(|byte| *byte == 0x5a)
    }
}

impl Default for Nic {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and ended once.
        unsafe {
            epw_pair_destroy(self.pair);
            epw_nic_close(self.nic);
            libc::close(self.fd);
        }
    }
}
