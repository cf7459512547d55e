//! Shared by the targets of links: the handshake of `c/nic/auth.h` and the addresses of `c/nic/address.h`, which no
//! public interface reaches yet. The functions are those of the crate's C core.

use std::ffi::{c_char, c_int, c_void};

/// The length of everything that a dialer sends.
pub const DIALER_BYTES: usize = 120;
/// The length of everything that a listener sends.
pub const LISTENER_BYTES: usize = 124;
/// The length of a hello, with which both begin.
pub const HELLO_BYTES: usize = 88;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    More,
    Done,
    Refused,
}

/// One end: `epw_auth_self`.
#[repr(C)]
#[derive(Clone)]
pub struct End {
    pub key: [u8; 32],
    pub rank: u32,
    pub fabric: [u8; 16],
    pub challenge: [u8; 32],
}

/// The rank that a dialer wants to reach: `epw_auth_peer`.
#[repr(C)]
#[derive(Clone)]
pub struct Wanted {
    pub rank: u32,
    pub fabric: [u8; 16],
    pub link: u32,
}

/// `epw_where`.
#[repr(C)]
pub(crate) struct Where {
    pub(crate) op: *const c_char,
    pub(crate) rank: c_int,
    pub(crate) peer: c_int,
}

unsafe extern "C" {
    fn epw_auth_dial(auth: *mut c_void, own: *const End, peer: *const Wanted);
    fn epw_auth_listen(auth: *mut c_void, own: *const End);
    fn epw_auth_wanted(auth: *const c_void) -> usize;
    fn epw_auth_take(auth: *mut c_void, bytes: *const c_void, length: usize) -> usize;
    fn epw_auth_end(auth: *mut c_void);
    fn epw_auth_output(auth: *const c_void, bytes: *mut *const u8) -> usize;
    fn epw_auth_sent(auth: *mut c_void, length: usize);
    fn epw_auth_explain(auth: *const c_void, text: *mut c_char, size: usize) -> *const c_char;
    fn epw_addresses_parse(bytes: *const c_void, length: usize, at: Where, out: *mut c_void) -> c_int;
    fn epw_addresses_write(addresses: *const c_void, bytes: *mut u8) -> usize;
}

/// A handshake in progress. The C structure is smaller than this; the sanitizer would notice if it were not.
pub struct Auth(Box<[u64; 128]>);

impl Auth {
    pub fn dial(own: &End, wanted: &Wanted) -> Self {
        let mut auth = Self(Box::new([0; 128]));
        // SAFETY: structures of the layouts that the header gives, which the call only reads; room for the result.
        unsafe { epw_auth_dial(auth.at(), own, wanted) };
        auth
    }

    pub fn listen(own: &End) -> Self {
        let mut auth = Self(Box::new([0; 128]));
        // SAFETY: as above.
        unsafe { epw_auth_listen(auth.at(), own) };
        auth
    }

    fn at(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The first member of the structure.
    pub fn state(&self) -> State {
        match self.0[0] as u32 {
            0 => State::More,
            1 => State::Done,
            2 => State::Refused,
            other => panic!("no state: {other}"),
        }
    }

    /// Gives it bytes and returns how many it has taken.
    pub fn take(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: begun by one of the functions above; the slice's own pointer and length.
        let (taken, wanted) = unsafe {
            (epw_auth_take(self.at(), bytes.as_ptr().cast(), bytes.len()), epw_auth_wanted(self.at()))
        };
        assert!(taken <= bytes.len());
        assert_eq!(wanted > 0, self.state() == State::More);
        assert!(taken == bytes.len() || wanted == 0, "more is wanted, and was there");
        taken
    }

    /// Up to `most` bytes of its output, which then count as sent.
    pub fn output(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = std::ptr::null();
        // SAFETY: begun by one of the functions above; it gives where its own bytes lie and how many there are.
        unsafe {
            let length = epw_auth_output(self.at(), &raw mut bytes);
            assert!(length <= LISTENER_BYTES);
            let said = std::slice::from_raw_parts(bytes, length.min(most)).to_vec();
            epw_auth_sent(self.at(), said.len());
            said
        }
    }

    /// The connection ends. Whatever the result, there is a text.
    pub fn end(&mut self) {
        let mut text = [0u8; 200];
        // SAFETY: begun by one of the functions above; the text's own pointer and length.
        unsafe {
            epw_auth_end(self.at());
            epw_auth_explain(self.at(), text.as_mut_ptr().cast(), text.len());
        }
        assert_ne!(self.state(), State::More);
        assert!(text[0] != 0 && text[198] == 0, "an empty text, or one that is cut");
    }
}

/// Parses addresses and writes them again; `None` if they are refused.
pub fn addresses(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut parsed = Box::new([0u64; 32]); // an `epw_addresses` is smaller
    let mut again = vec![0u8; 8 * 19];
    let at = Where { op: c"fuzz".as_ptr(), rank: -1, peer: -1 };
    // SAFETY: the slice's own pointer and length, and room for the results.
    unsafe {
        if epw_addresses_parse(bytes.as_ptr().cast(), bytes.len(), at, parsed.as_mut_ptr().cast()) != 0 {
            return None;
        }
        let length = epw_addresses_write(parsed.as_ptr().cast(), again.as_mut_ptr());
        again.truncate(length);
    }
    Some(again)
}
