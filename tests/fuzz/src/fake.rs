//! For the target of the fake adapter: a device of `c/nic/fake/` with everything that commands may name. Commands are
//! built by `c/nic/mlx5/commands.h` and come by the calls of `c/nic/mlx5/calls.h`.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::links::Where;

/// `epw_bus_place`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BusPlace {
    path: [c_char; 256],
    node: i32,
}

/// `epw_fake_options`.
#[repr(C)]
struct Options {
    rank: u32,
    devices: u32,
    places: [BusPlace; 4],
    nic: *mut c_void,
    infiniband: bool,
    mtu: u32,
    lacks: u64,
    failing: c_int,
    failing_after: u32,
    failing_errno: c_int,
    failing_status: u32,
}

/// `epw_fake_left`.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    devices: u32,
    domains: u32,
    uars: u32,
    umems: u32,
    objects: u32,
    regions: u32,
}

/// `epw_mlx5_uar`.
#[repr(C)]
struct Uar {
    handle: *mut c_void,
    reg: *mut c_void,
    page: u32,
}

/// `epw_mlx5_umem`.
#[repr(C)]
struct Umem {
    handle: *mut c_void,
    id: u32,
}

/// `epw_mlx5_cq`.
#[repr(C)]
struct Cq {
    umem: u32,
    record_umem: u32,
    record: u32,
    uar: u32,
    eq: u32,
    log_entries: u32,
}

/// `epw_mlx5_qp`.
#[repr(C)]
struct Qp {
    umem: u32,
    record_umem: u32,
    uar: u32,
    pd: u32,
    cq: u32,
    log_entries: u32,
    default_time: bool,
}

/// `epw_mlx5_path`.
#[repr(C)]
struct Path {
    ethernet: bool,
    port: u32,
    remote: u32,
    mtu: u32,
    lid: u32,
    gid: [u8; 16],
    mac: [u8; 6],
    gid_index: u32,
    udp_port: u32,
    hop_limit: u32,
    traffic_class: u32,
    service_level: u32,
    atomics: bool,
    in_order: bool,
    log_reads: u32,
    timeout: u32,
    retries: u32,
}

type Create = unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize, *mut *mut c_void) -> c_int;
type Command = unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> c_int;
type GiveBack = unsafe extern "C" fn(*mut c_void) -> c_int;
type Unused = *const c_void;

/// `epw_mlx5_calls`.
#[repr(C)]
struct Calls {
    library: *mut c_void,
    kind: *const c_char,
    devices: Unused,
    open: unsafe extern "C" fn(*mut c_void, *const c_char, *mut *mut c_void) -> c_int,
    close: GiveBack,
    port: Unused,
    gid: Unused,
    general: Command,
    event_queue: unsafe extern "C" fn(*mut c_void, *mut u32) -> c_int,
    domain: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut u32) -> c_int,
    free_domain: GiveBack,
    on_event: Unused,
    uar: unsafe extern "C" fn(*mut c_void, c_int, *mut Uar) -> c_int,
    free_uar: unsafe extern "C" fn(*mut c_void),
    umem: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut Umem) -> c_int,
    free_umem: GiveBack,
    create: Create,
    modify: Command,
    query: Command,
    destroy: GiveBack,
    register_memory: Unused,
    register_descriptor: Unused,
    deregister: Unused,
    resolve: Unused,
    rung: unsafe extern "C" fn(*mut c_void),
    notice: unsafe extern "C" fn(*mut c_void),
    registers_in_memory: bool,
}

unsafe extern "C" {
    fn epw_nic_open(at: Where, out: *mut *mut c_void) -> c_int;
    fn epw_nic_close(nic: *mut c_void);
    fn epw_fake_open(options: *const Options, at: Where, out: *mut *mut c_void) -> c_int;
    fn epw_fake_close(fake: *mut c_void);
    fn epw_fake_calls(fake: *const c_void) -> *const Calls;
    fn epw_fake_count(fake: *mut c_void) -> Left;
    fn epw_mlx5_build_create_cq(bytes: *mut u8, cq: *const Cq);
    fn epw_mlx5_build_create_qp(bytes: *mut u8, qp: *const Qp);
    fn epw_mlx5_build_rst2init(bytes: *mut u8, number: u32, path: *const Path);
    fn epw_mlx5_build_init2rtr(bytes: *mut u8, number: u32, path: *const Path);
    fn epw_mlx5_build_rtr2rts(bytes: *mut u8, number: u32, path: *const Path);
    fn epw_mlx5_build_refuse(bytes: *mut u8, number: u32);
    fn epw_mlx5_build_short(bytes: *mut u8, opcode: u32, number: u32);
}

pub const COMMAND_BYTES: usize = 272;
pub const SHORT_BYTES: usize = 16;
/// The longest answer, that of QUERY_HCA_CAP.
pub const ANSWER_BYTES: usize = 16 + 4096;

/// A call that takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create,
    Modify,
    Query,
    General,
}

/// Opcodes, and the calls by which they come.
pub const COMMANDS: [(u16, Call); 10] = [
    (0x100, Call::General),
    (0x400, Call::Create),
    (0x500, Call::Create),
    (0x502, Call::Modify),
    (0x503, Call::Modify),
    (0x504, Call::Modify),
    (0x505, Call::Modify),
    (0x507, Call::Modify),
    (0x50a, Call::Modify),
    (0x50b, Call::Query),
];

const PAGE: usize = 4096;
const LOG_ENTRIES: u32 = 6;
const LAYOUT: Layout = match Layout::from_size_align(3 * PAGE, PAGE) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// A completion queue or a queue pair.
#[derive(Clone, Copy)]
struct Object {
    handle: *mut c_void,
    number: u32,
}

/// A device with a soft NIC, and memory for a ring, a completion and a doorbell record.
pub struct Device {
    nic: *mut c_void,
    fake: *mut c_void,
    calls: &'static Calls,
    device: *mut c_void,
    domain: *mut c_void,
    domain_number: u32,
    event_queue: u32,
    memory: *mut u8,
    umems: [Umem; 3],
    uar: Uar,
    objects: Vec<Object>,
}

/// The result of a command: 0 or an errno, and the answer.
pub struct Answered {
    pub errno: c_int,
    pub made: bool,
    pub out: Box<[u8]>,
}

impl Device {
    pub fn new(infiniband: bool, lacks: u64) -> Self {
        let here = || Where { op: c"fuzz".as_ptr(), rank: 3, peer: -1 };
        let (mut nic, mut fake, mut device, mut domain) = (null_mut(), null_mut(), null_mut(), null_mut());
        let (mut domain_number, mut event_queue) = (0, 0);
        let mut uar = Uar { handle: null_mut(), reg: null_mut(), page: 0 };
        let mut umems = [0; 3].map(|id| Umem { handle: null_mut(), id });
        // SAFETY: room for each result; memory of whole pages that outlives the umems; the table lives as long as the device.
        unsafe {
            let memory = alloc(LAYOUT);
            memory.write_bytes(0, 3 * PAGE);
            memory.add(PAGE).write_bytes(0xff, 64);
            assert_eq!(epw_nic_open(here(), &raw mut nic), 0);
            let options = Options {
                rank: 3,
                devices: 1,
                places: [BusPlace { path: [0; 256], node: -1 }; 4],
                nic,
                infiniband,
                mtu: 0,
                lacks,
                failing: 0,
                failing_after: 0,
                failing_errno: 0,
                failing_status: 0,
            };
            assert_eq!(epw_fake_open(&raw const options, here(), &raw mut fake), 0);
            let calls = &*epw_fake_calls(fake);
            assert_eq!((calls.open)(calls.library, c"fake_0".as_ptr(), &raw mut device), 0);
            assert_eq!((calls.domain)(device, &raw mut domain, &raw mut domain_number), 0);
            assert_eq!((calls.event_queue)(device, &raw mut event_queue), 0);
            assert_eq!((calls.uar)(device, 2, &raw mut uar), 0);
            for (page, umem) in umems.iter_mut().enumerate() {
                let address = memory.add(page * PAGE).cast();
                assert_eq!((calls.umem)(device, address, PAGE, -1, umem), 0);
            }
            let objects = Vec::new();
            Self { nic, fake, calls, device, domain, domain_number, event_queue, memory, umems, uar, objects }
        }
    }

    /// The number of objects, according to the device.
    pub fn objects(&self) -> u32 {
        // SAFETY: the device lives until this is dropped.
        unsafe { epw_fake_count(self.fake) }.objects
    }

    fn object(&self, which: u8) -> Option<Object> {
        self.objects.get(usize::from(which) % self.objects.len().max(1)).copied()
    }

    /// A command as the library builds it, for an object if it needs one.
    pub fn build(&self, command: u8, which: u8, infiniband: bool) -> Vec<u8> {
        let (opcode, _) = COMMANDS[usize::from(command) % COMMANDS.len()];
        let object = self.object(which).unwrap_or(Object { handle: null_mut(), number: 0 });
        let [umem, completion, record_umem] = [0, 1, 2].map(|at| self.umems[at].id);
        let (uar, eq, log_entries) = (self.uar.page, self.event_queue, LOG_ENTRIES);
        let cq = Cq { umem: completion, record_umem, record: 128, uar, eq, log_entries };
        let (pd, cq_number) = (self.domain_number, object.number);
        let qp = Qp { umem, record_umem, uar, pd, cq: cq_number, log_entries, default_time: true };
        let path = Path {
            ethernet: !infiniband,
            port: 1,
            remote: 0x54321,
            mtu: 5,
            lid: 4,
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 3],
            mac: [2, 0, 10, 77, 0, 3],
            gid_index: 3,
            udp_port: 0xc000,
            hop_limit: 255,
            traffic_class: 0,
            service_level: 0,
            atomics: true,
            in_order: true,
            log_reads: 4,
            timeout: 14,
            retries: 7,
        };
        let mut bytes = vec![0; if opcode >= 0x507 || opcode == 0x100 { SHORT_BYTES } else { COMMAND_BYTES }];
        let (out, number) = (bytes.as_mut_ptr(), object.number);
        // SAFETY: each writes as many bytes as its command has.
        unsafe {
            match opcode {
                0x400 => epw_mlx5_build_create_cq(out, &raw const cq),
                0x500 => epw_mlx5_build_create_qp(out, &raw const qp),
                0x502 => epw_mlx5_build_rst2init(out, number, &raw const path),
                0x503 => epw_mlx5_build_init2rtr(out, number, &raw const path),
                0x504 => epw_mlx5_build_rtr2rts(out, number, &raw const path),
                0x505 => epw_mlx5_build_refuse(out, number),
                0x100 => {
                    epw_mlx5_build_short(out, 0x100, 0);
                    bytes[7] = 1;
                }
                _ => epw_mlx5_build_short(out, opcode.into(), number),
            }
        }
        bytes
    }

    /// Passes the command by this call, for this object if the call needs one; `None`: there is none yet.
    pub fn command(&mut self, call: Call, which: u8, bytes: &[u8], out_bytes: usize) -> Option<Answered> {
        let mut out = vec![0xa5; out_bytes].into_boxed_slice();
        let (to, length) = (out.as_mut_ptr(), out.len());
        let mut made = null_mut();
        // SAFETY: the slices' own pointers and lengths; the device and its objects are alive.
        let errno = unsafe {
            match call {
                Call::Create => {
                    (self.calls.create)(self.device, bytes.as_ptr(), bytes.len(), to, length, &raw mut made)
                }
                Call::General => (self.calls.general)(self.device, bytes.as_ptr(), bytes.len(), to, length),
                Call::Modify => {
                    (self.calls.modify)(self.object(which)?.handle, bytes.as_ptr(), bytes.len(), to, length)
                }
                Call::Query => {
                    (self.calls.query)(self.object(which)?.handle, bytes.as_ptr(), bytes.len(), to, length)
                }
            }
        };
        if !made.is_null() {
            let number = u32::from_be_bytes([0, out[9], out[10], out[11]]);
            self.objects.push(Object { handle: made, number });
        }
        Some(Answered { errno, made: !made.is_null(), out })
    }

    /// Tells the device that the pair's register has been written.
    pub fn ring(&self, which: u8) {
        if let Some(object) = self.object(which) {
            // SAFETY: the object is alive.
            unsafe {
                (self.calls.rung)(object.handle);
                (self.calls.notice)(object.handle);
            }
        }
    }

    /// False: other objects depend on it.
    pub fn destroy(&mut self, which: u8) -> bool {
        let at = usize::from(which) % self.objects.len().max(1);
        let Some(object) = self.objects.get(at) else { return true };
        // SAFETY: the object is alive, and is forgotten if it no longer is.
        let gone = unsafe { (self.calls.destroy)(object.handle) } == 0;
        if gone {
            self.objects.remove(at);
        }
        gone
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The last one first: a queue pair depends on the completion queue before it.
        for object in self.objects.drain(..).rev() {
            // SAFETY: alive, and destroyed once.
            assert_eq!(unsafe { (self.calls.destroy)(object.handle) }, 0);
        }
        // SAFETY: made by `new`, and freed once, in an order that leaves nothing in use.
        unsafe {
            for umem in &self.umems {
                assert_eq!((self.calls.free_umem)(umem.handle), 0);
            }
            (self.calls.free_uar)(self.uar.handle);
            assert_eq!((self.calls.free_domain)(self.domain), 0);
            assert_eq!((self.calls.close)(self.device), 0);
            assert_eq!(epw_fake_count(self.fake), Left::default());
            epw_fake_close(self.fake);
            epw_nic_close(self.nic);
            dealloc(self.memory, LAYOUT);
        }
    }
}
