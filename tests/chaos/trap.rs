//! Death or a stop at an exact byte: a page of a peer's window is made inaccessible to this process, and the signal
//! that the first write to it raises kills the process, or stops it and, once it continues, lets the write happen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// The inaccessible page, and the signal for its first writer.
static CLOSED: AtomicUsize = AtomicUsize::new(0);
static FATE: AtomicI32 = AtomicI32::new(libc::SIGKILL);

/// The windows that this process has mapped: address by inode.
pub(crate) fn windows() -> HashMap<u64, usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
    let mut windows = HashMap::new();
    for line in maps.lines().filter(|line| line.contains("/memfd:epwire-window")) {
        let mut fields = line.split_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        let (start, inode) = (range.and_then(|(s, _)| usize::from_str_radix(s, 16).ok()), fields.nth(3));
        let (start, inode) =
            (start.expect("an address"), inode.and_then(|i| i.parse().ok()).expect("an inode"));
        // A mapping begins with the first line of its inode.
        windows.entry(inode).or_insert(start);
    }
    windows
}

/// Raises `signal`, SIGKILL or SIGSTOP, at the first write to the page of `address`. Once in the life of a process.
pub(crate) fn set(address: usize, signal: i32) {
    let page = address & !(PAGE - 1);
    FATE.store(signal, Ordering::SeqCst);
    CLOSED.store(page, Ordering::SeqCst);
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = spring as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler below does only what a signal handler may do, and gets what SA_SIGINFO promises.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) }, 0);
    // SAFETY: a page of a shared mapping that nothing in Rust holds a reference to: the peers' windows are only ever
    // written through raw pointers of the C core.
    assert_eq!(unsafe { libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_NONE) }, 0);
}

extern "C" fn spring(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let page = CLOSED.load(Ordering::SeqCst);
    // SAFETY: the kernel gives SIGSEGV's handler a siginfo_t with the address.
    let address = unsafe { (*info).si_addr() } as usize;
    if address & !(PAGE - 1) != page {
        // SAFETY: a plain system call. This is another fault: it happens again and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: plain system calls. `raise` takes effect on this very thread before it returns; the rest happens after
    // SIGCONT. Then the write is retried.
    unsafe {
        libc::raise(FATE.load(Ordering::SeqCst));
        libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}
