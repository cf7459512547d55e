//! The environment variables of epwire, in one table.
//!
//! [`VARIABLES`] is the only list: the table of the guide's page `launching` is [`markdown_table`] of it, unknown `EPWIRE_*` names are found
//! against it, and other modules name a variable by the constants here. Variables of launchers (torchrun, Slurm, ...)
//! are not ours; they are listed where they are read, in [`crate::launch`].

mod numbers;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::{fmt, fs, io};

use crate::names::readable;
use crate::sys;
pub(crate) use numbers::number;
use numbers::power_of_two;

/// One environment variable that epwire reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Variable {
    /// Name, beginning with `EPWIRE_`.
    pub name: &'static str,
    /// The default when it is unset or empty, in words.
    pub default: &'static str,
    /// Meaning, with units and grammar.
    pub doc: &'static str,
}

/// `EPWIRE_WORLD (from the launcher): Number of ranks, 1 to 1024.`, with the default between the brackets.
impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, default, doc } = self;
        write!(f, "{name} ({default}): {doc}")
    }
}

/// Rank of this process.
pub const RANK: &str = "EPWIRE_RANK";
/// Number of ranks.
pub const WORLD: &str = "EPWIRE_WORLD";
/// Rank among those of this host.
pub const LOCAL_RANK: &str = "EPWIRE_LOCAL_RANK";
/// Number of ranks on this host.
pub const LOCAL_WORLD: &str = "EPWIRE_LOCAL_WORLD";
/// Where the ranks meet.
pub const ADDR: &str = "EPWIRE_ADDR";
/// Whether the process that started the ranks also hosts their rendezvous.
pub const HOSTED: &str = "EPWIRE_HOSTED";
/// Name of the run.
pub const RUN_ID: &str = "EPWIRE_RUN_ID";
/// Network interfaces on which queues listen.
pub const IFNAME: &str = "EPWIRE_IFNAME";
/// Shared secret of the run.
pub const TOKEN: &str = "EPWIRE_TOKEN";
/// File that holds the shared secret.
pub const TOKEN_FILE: &str = "EPWIRE_TOKEN_FILE";
/// Paths by which the peers of buffers and communicators may be reached, instead of those that the program permits.
pub const PATHS: &str = "EPWIRE_PATHS";
/// What drains queues.
pub const NIC: &str = "EPWIRE_NIC";
/// What carries the bytes of queues.
pub const WIRES: &str = "EPWIRE_WIRES";
/// Bytes of the ring in shared memory by which a rank sends to a peer.
pub const RING_BYTES: &str = "EPWIRE_RING_BYTES";
/// Entries of each queue.
pub const QUEUE_DEPTH: &str = "EPWIRE_QUEUE_DEPTH";
/// Entries between two doorbells.
pub const DOORBELL_BATCH: &str = "EPWIRE_DOORBELL_BATCH";
/// How kernels ring for the queues of an adapter.
pub const DOORBELLS: &str = "EPWIRE_DOORBELLS";
/// Which RDMA adapters may drain queues.
pub const HCA: &str = "EPWIRE_HCA";
/// How many RDMA adapters a rank uses.
pub const ADAPTERS: &str = "EPWIRE_ADAPTERS";
/// Service level, or Ethernet priority, of what an adapter sends.
pub const SERVICE_LEVEL: &str = "EPWIRE_SL";
/// Traffic class of what an adapter sends.
pub const TRAFFIC_CLASS: &str = "EPWIRE_TC";
/// Hop limit of what an adapter sends.
pub const HOP_LIMIT: &str = "EPWIRE_HOP_LIMIT";
/// Where the queues of an adapter are that kernels post to.
pub const RINGS: &str = "EPWIRE_RINGS";
/// Whether adapters place writes in the order of posting.
pub const ORDER: &str = "EPWIRE_ORDER";
/// Ports on which ranks listen for the queues of others.
pub const PORTS: &str = "EPWIRE_PORTS";
/// Instruction set of the host's inner loops; the C core reads it.
pub const ISA: &str = "EPWIRE_ISA";
/// From which size on collectives read pieces from the memory of peers' callers; the C core reads it.
pub const PULL_FROM: &str = "EPWIRE_PULL_FROM";

/// What to log about paths, memberships and peers given up; the C core reads it.
pub const LOG: &str = "EPWIRE_LOG";
/// The log file; the C core reads it.
pub const LOG_FILE: &str = "EPWIRE_LOG_FILE";

/// Every variable that epwire reads.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: RANK,
        default: "from the launcher",
        doc: "Rank of this process, 0 to world - 1. With `EPWIRE_WORLD` it overrides every launcher.",
    },
    Variable { name: WORLD, default: "from the launcher", doc: "Number of ranks, 1 to 1024." },
    Variable {
        name: LOCAL_RANK,
        default: "from the launcher; with `EPWIRE_RANK`: the rank",
        doc: "Rank among those of this host, 0 to local world - 1.",
    },
    Variable {
        name: LOCAL_WORLD,
        default: "from the launcher; with `EPWIRE_RANK`: the world",
        doc: "Number of ranks on this host. Under Kubernetes LWS: ranks per pod, default 1.",
    },
    Variable {
        name: ADDR,
        default: "from the launcher",
        doc: "`host:port` where the ranks meet, the same on all; rank 0 listens there. IPv6 as `[::1]:29700`. A newcomer may get \
              up to 16 addresses, separated by commas: those of `Group::servers`. In that case rank 0 does not listen: the run exists already.",
    },
    Variable {
        name: HOSTED,
        default: "0",
        doc: "1: the rendezvous server already runs at `EPWIRE_ADDR`, so rank 0 does not host it. `launch::spawn::Ranks` sets it.",
    },
    Variable {
        name: RUN_ID,
        default: "from the launcher",
        doc: "Name of the run, the same on all ranks; ranks of another run are refused.",
    },
    Variable {
        name: IFNAME,
        default: "all that are up",
        doc: "Network interfaces on which queues listen, in the grammar of `NCCL_SOCKET_IFNAME`: a comma-separated list of name prefixes; a leading \
              `=` asks for exact names, a leading `^` excludes (`^=` exact names). The rendezvous does not use it: rank 0 listens at the address to \
              which `EPWIRE_ADDR` or `MASTER_ADDR` resolves on its host.",
    },
    Variable {
        name: TOKEN,
        default: "none; required off loopback",
        doc: "Shared secret of the run. Every rank must prove that it knows the secret before it is let in. 16 to 4096 bytes off the \
              loopback interface, 1 to 4096 on it.",
    },
    Variable {
        name: TOKEN_FILE,
        default: "none",
        doc: "File that holds the token, one trailing newline ignored. Not together with `EPWIRE_TOKEN`.",
    },
    Variable {
        name: PATHS,
        default: "as the program says",
        doc: "Paths by which the peers of all buffers and communicators may be reached, instead of those that the program \
              permits: some of `thread`, `shm`, `vmm`, `ipc`, `queue`, separated by commas, or `none`. `queue` alone sends \
              everything through queues.",
    },
    Variable {
        name: NIC,
        default: "`soft`",
        doc: "What drains queues. `soft`: a software NIC, which uses a thread of this process and sockets. `strict`, for tests: like `soft`, \
              but slow; a queue fails if an entry or its bytes change after they are handed over. `fake`, for tests: an mlx5 adapter in software, \
              which takes the commands of a real one. `mlx5`: an adapter, through libibverbs and libmlx5; unproven, no adapter has been tried yet.",
    },
    Variable {
        name: WIRES,
        default: "`local`, and `tcp` where the run has a token",
        doc: "What may carry the bytes of queues: some of `local` (shared memory of this host), `tcp` and `verbs` (an \
              RDMA adapter, chosen as under `EPWIRE_HCA`), separated by commas. Two ranks of one host use `local` if both permit it; others \
              prefer `verbs` to `tcp`.",
    },
    Variable {
        name: RING_BYTES,
        default: "4194304",
        doc: "For the wire `local`: bytes of the shared-memory ring through which this rank sends to a peer of its host, a power of two from 4096 to \
              1073741824. There is one ring per peer, used by all buffers, plus 68 KiB. Pages are allocated when they are first used.",
    },
    Variable {
        name: QUEUE_DEPTH,
        default: "what operations need",
        doc: "Least number of 64-byte entries in each queue (one per lane and peer), a power of two from 16 to 32768. A queue gets more if \
              operations may post more at a time. A peer that takes nothing is given up once its queue is full.",
    },
    Variable {
        name: DOORBELL_BATCH,
        default: "all",
        doc: "The host rings the doorbell each time it has posted this many entries of an operation's rows for a peer, 1 to 32768, and after \
              the last, so that sending begins before all are posted. Kernels ring once, after all entries.",
    },
    Variable {
        name: DOORBELLS,
        default: "`auto`",
        doc: "How kernels ring the doorbells of an adapter. `gpu`: they write its registers, which the GPU's driver must map. \
              `host`: a thread of this process rings for them. `auto`: the first of these that works; `EpBuffer::nic` tells \
              which.",
    },
    Variable {
        name: RINGS,
        default: "`host`",
        doc: "Which memory holds the queues that kernels post to, the rows that they send, and what peers send. `host`: pinned host memory. \
              `gpu`: the GPU's memory, which the adapter must reach by dma-buf or nvidia_peermem. `auto`: `gpu` for each of them if it works, \
              else `host`; `EpBuffer::nic` tells which. With `EPWIRE_WIRES=verbs` only for what peers send.",
    },
    Variable {
        name: ORDER,
        default: "`auto`",
        doc: "With `EPWIRE_WIRES=verbs`: whether the adapter places writes in the order of posting. `auto`: if its transport promises that, as \
              InfiniBand and RoCE do. `none`: it does not, because switches spread a queue pair's packets over several paths, for example. Then \
              a word is posted when all before it is done, one round trip later.",
    },
    Variable {
        name: HCA,
        default: "any",
        doc: "Which adapters may drain queues, in the grammar of `NCCL_IB_HCA`: a comma-separated list of name prefixes, each with \
              `:port` if only this port is meant; a leading `=` asks for exact names, a leading `^` excludes (`^=` exact names). \
              A rank uses the adapter nearest to its GPU; equally near ones are divided among the ranks.",
    },
    Variable {
        name: ADAPTERS,
        default: "1",
        doc: "How many adapters a rank uses, 1 or 2. Lanes are divided between them.",
    },
    Variable {
        name: SERVICE_LEVEL,
        default: "0",
        doc: "Service level of packets sent by an adapter, 0 to 15; on Ethernet their priority, 0 to 7.",
    },
    Variable {
        name: TRAFFIC_CLASS,
        default: "0",
        doc: "Traffic class of packets sent by an adapter on Ethernet, 0 to 255: four times the DSCP. The kernel's setting for the port \
              (`/sys/class/infiniband/*/tc`) does not apply to these queues.",
    },
    Variable {
        name: HOP_LIMIT,
        default: "255",
        doc: "Hop limit of packets sent by an adapter on Ethernet, 1 to 255.",
    },
    Variable {
        name: PORTS,
        default: "any",
        doc: "Ports on which ranks listen for ranks of other hosts, `first-last`, or a single one. The queues of each rank \
              take one per address; with feature `succession` the server of each rank except 0 takes one more.",
    },
    Variable {
        name: ISA,
        default: "the best that the processor has",
        doc: "Instruction set of the host's inner loops: `avx512` or `avx2` on x86-64, `base` everywhere. Results \
              have the same bits with each. A name that is unknown or cannot run here is an error.",
    },
    Variable {
        name: PULL_FROM,
        default: "measured once per process",
        doc: "Bytes from which on collectives on the host read a piece straight from memory of a peer's caller \
              (`process_vm_readv`), if that is permitted, in place of two copies through a ring; or `never`. Unless \
              set, a process measures for a millisecond which is faster. Results have the same bits with each.",
    },
    Variable {
        name: LOG,
        default: "`off`",
        doc: "What is logged to stderr: `off`, `warn` (peers that are given up or cannot be connected, and what adapters do without, with the reasons), `info` (also sizes, \
              paths, what the group agreed on, and which process a launcher started for which rank), `trace` (also why each path was taken or refused), or a level for each of \
              `plan`, `path`, `member`, `wait` and `nic`, as in `warn,path=trace`.",
    },
    Variable {
        name: LOG_FILE,
        default: "stderr",
        doc: "File to which the log is appended instead; `%p` in its name stands for the process id.",
    },
];

/// Variables that the crate's build reads or sets. Programs ignore them without a warning: programs also run from a
/// shell that exports them for building, and cargo passes what the build sets to the programs that it starts.
const OF_THE_BUILD: &[&str] =
    &["EPWIRE_BINDINGS", "EPWIRE_CUDA_ARCHS", "EPWIRE_CUDA_LIBRARIES", "EPWIRE_WERROR"];

/// Most bytes of a token.
pub const MAX_TOKEN_BYTES: usize = 4096;

/// The variables as a markdown table, as the guide's page `launching` shows it.
pub fn markdown_table() -> String {
    let mut table = String::from("| variable | default | meaning |\n|---|---|---|\n");
    for v in VARIABLES {
        table.push_str(&format!("| `{}` | {} | {} |\n", v.name, v.default, v.doc));
    }
    table
}

/// Those of `names` that look like a variable of epwire but are none, of the library, a program or the build: usually
/// typing errors.
pub fn unknown<I>(names: I) -> Vec<String>
where
    I: IntoIterator<Item = String>,
{
    let known = |name: &str| VARIABLES.iter().any(|v| v.name == name) || OF_THE_BUILD.contains(&name);
    names.into_iter().filter(|name| name.starts_with("EPWIRE_") && !known(name)).collect()
}

/// Warns once per process of `EPWIRE_*` variables that epwire does not know: a `tracing` warning with that feature,
/// otherwise a line on stderr. [`crate::launch::Launch::from_env`] calls it.
pub fn warn_unknown() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for name in unknown(std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned())) {
            #[cfg(feature = "tracing")]
            tracing::warn!(variable = %name, "environment variable unknown to epwire is ignored");
            #[cfg(not(feature = "tracing"))]
            eprintln!("epwire: warning: environment variable {name} is unknown and ignored");
        }
    });
}

/// The value of `name` in the environment of this process. An empty value counts as unset, because launch scripts and
/// container descriptions often cannot omit a variable.
pub fn value(name: &str) -> Option<String> {
    exact_value(name).map(|v| v.to_string_lossy().into_owned())
}

/// The same, for values that need not be text.
fn exact_value(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// Bytes of a ring, from `EPWIRE_RING_BYTES`; 0 if it is not set.
pub(crate) fn ring_bytes() -> Result<u32, String> {
    let limits = sys::EPW_RING_BYTES_MIN..=sys::EPW_RING_BYTES_MAX;
    value(RING_BYTES).map_or(Ok(0), |text| power_of_two(RING_BYTES, &text, "size of a ring", limits))
}

/// Entries of a queue, from `EPWIRE_QUEUE_DEPTH`; 0 if it is not set.
pub(crate) fn queue_depth() -> Result<u32, String> {
    let limits = sys::EPW_QUEUE_DEPTH_MIN..=sys::EPW_QUEUE_DEPTH_MAX;
    value(QUEUE_DEPTH).map_or(Ok(0), |text| power_of_two(QUEUE_DEPTH, &text, "depth of a queue", limits))
}

/// The first and the last port of `EPWIRE_PORTS`, on which ranks may listen. `None` if it is not set.
pub(crate) fn ports() -> Result<Option<(u16, u16)>, PortsError> {
    value(PORTS).map(|text| parse_ports(&text).ok_or(PortsError(text))).transpose()
}

/// Reads `first-last`, or one port.
fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < ports.0 && ports.0 <= ports.1).then_some(ports)
}

/// The value of `EPWIRE_PORTS` is not a range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortsError(pub(crate) String);

impl PortsError {
    pub(crate) const REASON: &str = "not a range of ports, such as 29800-29899";
}

impl fmt::Display for PortsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PORTS}={:?} is {}", self.0, Self::REASON)
    }
}

/// The shared secret of a run. Its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// A token of these bytes, 1 to [`MAX_TOKEN_BYTES`]. `origin` names their source in the error.
    ///
    /// # Errors
    ///
    /// [`TokenError::Length`].
    pub fn new(bytes: impl Into<Vec<u8>>, origin: &str) -> Result<Self, TokenError> {
        let bytes = bytes.into();
        if bytes.is_empty() || bytes.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Length { origin: origin.to_owned(), length: bytes.len() });
        }
        Ok(Self(bytes))
    }

    /// A fresh token of 128 random bits in hexadecimal, so that it can be passed on in a variable.
    ///
    /// # Errors
    ///
    /// [`TokenError::Random`] if the system gives no random bytes.
    pub fn random() -> Result<Self, TokenError> {
        let mut bits = [0u8; 16];
        getrandom::fill(&mut bits).map_err(|e| TokenError::Random { cause: e.to_string() })?;
        Ok(Self(bits.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect()))
    }

    /// The token of this process: `EPWIRE_TOKEN`, or the contents of the file named by `EPWIRE_TOKEN_FILE`. `None` if
    /// neither is set.
    ///
    /// # Errors
    ///
    /// Both set, file unreadable, or a length outside 1 to [`MAX_TOKEN_BYTES`].
    pub fn from_env() -> Result<Option<Self>, TokenError> {
        Self::from_values(exact_value(TOKEN), exact_value(TOKEN_FILE))
    }

    fn from_values(token: Option<OsString>, file: Option<OsString>) -> Result<Option<Self>, TokenError> {
        match (token, file) {
            (Some(_), Some(_)) => Err(TokenError::Both),
            (Some(token), None) => Self::new(token.into_vec(), TOKEN).map(Some),
            (None, Some(path)) => Self::from_file(path.into()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The token in a file, without one trailing newline. Does not wait: a pipe or a device in its place is refused
    /// without reading.
    ///
    /// # Errors
    ///
    /// File unreadable or not a regular one, or a length outside 1 to [`MAX_TOKEN_BYTES`].
    pub fn from_file(path: PathBuf) -> Result<Self, TokenError> {
        use io::Read;
        use std::os::unix::fs::OpenOptionsExt;
        let unreadable = |cause| TokenError::File { path: path.clone(), cause };
        // Opening a pipe would wait for its writer; opening a terminal may make it this process's controlling terminal.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        if !found.is_file() {
            return Err(TokenError::NotAFile { path, found: kind(found.file_type()) });
        }
        // The reported size may be wrong, as for files below /proc: one byte more than allowed plus a newline is enough
        // to see that it is too long.
        let mut bytes = Vec::new();
        file.take(MAX_TOKEN_BYTES as u64 + 2).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Self::new(bytes, &path.display().to_string())
    }

    /// The secret bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What a file that is not regular is.
fn kind(found: fs::FileType) -> &'static str {
    match found {
        found if found.is_dir() => "a directory",
        found if found.is_fifo() => "a pipe",
        found if found.is_char_device() || found.is_block_device() => "a device",
        _ => "a special file",
    }
}

/// Why there is no token.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The token is given twice.
    #[error("token: both EPWIRE_TOKEN and EPWIRE_TOKEN_FILE are set; unset one of them")]
    Both,
    /// The token file cannot be read.
    #[error("token: cannot read {}: {cause}; check EPWIRE_TOKEN_FILE and the file's permissions", path.display())]
    File {
        /// The file named by `EPWIRE_TOKEN_FILE`.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// `EPWIRE_TOKEN_FILE` names a directory, a pipe or a device.
    #[error(
        "token: {} is {found}, which is not read; name a regular file of at most {MAX_TOKEN_BYTES} bytes in EPWIRE_TOKEN_FILE, or set EPWIRE_TOKEN",
        path.display()
    )]
    NotAFile {
        /// The path in `EPWIRE_TOKEN_FILE`.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Too short or too long.
    #[error("token: {origin} holds {length} bytes or more; a token has 1 to {MAX_TOKEN_BYTES}")]
    Length {
        /// Variable or file.
        origin: String,
        /// Number of bytes read.
        length: usize,
    },
    /// The system gave no random bytes.
    #[error("token: no random bytes from the system: {cause}; set EPWIRE_TOKEN instead")]
    Random {
        /// The system's error.
        cause: String,
    },
}

readable!(TokenError { Both, File, NotAFile, Length, Random });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_prefixed_and_listed_once() {
        for (i, v) in VARIABLES.iter().enumerate() {
            assert!(v.name.starts_with("EPWIRE_"), "{}", v.name);
            assert!(VARIABLES[..i].iter().all(|other| other.name != v.name), "{} twice", v.name);
        }
    }

    #[test]
    fn the_table_has_a_row_of_three_cells_per_variable() {
        let table = markdown_table();
        assert_eq!(table.lines().count(), VARIABLES.len() + 2);
        assert!(table.lines().all(|line| line.matches('|').count() == 4), "{table}");
    }

    #[test]
    fn unknown_names_are_found_and_others_left_alone() {
        let names = ["EPWIRE_RANK", "EPWIRE_RNAK", "RANK", "EPWIRE_"].map(String::from);
        assert_eq!(unknown(names), ["EPWIRE_RNAK", "EPWIRE_"]);
    }

    #[test]
    fn the_names_in_the_build_script_are_known() {
        let script = include_str!("../build.rs");
        let mut names: Vec<&str> = script
            .match_indices("EPWIRE_")
            .filter(|(at, _)| !script[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
            .filter_map(|(at, _)| script[at..].split(|c: char| !c.is_ascii_uppercase() && c != '_').next())
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, OF_THE_BUILD);
        assert!(unknown(names.into_iter().map(String::from)).is_empty());
    }

    #[test]
    fn a_token_does_not_show_itself() {
        assert_eq!(format!("{:?}", Token::new("secret", "test").unwrap()), "Token(..)");
    }

    #[test]
    fn a_token_has_1_to_4096_bytes() {
        assert!(Token::new(vec![7; 4096], "test").is_ok());
        for length in [0, 4097] {
            let text = Token::new(vec![7; length], "here").unwrap_err().to_string();
            assert!(text.contains("here") && text.contains(&length.to_string()), "{text}");
        }
    }

    #[test]
    fn random_tokens_differ_and_are_printable() {
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(a, b);
        assert!(a.as_bytes().len() == 32 && a.as_bytes().iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn a_token_file_that_never_ends_or_never_begins_is_refused_at_once() {
        let fifo = std::env::temp_dir().join(format!("epwire-token-fifo-{}", std::process::id()));
        let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{}", io::Error::last_os_error());
        let cases = [
            (fifo.clone(), "is a pipe"),
            ("/dev/zero".into(), "is a device"),
            (std::env::temp_dir(), "is a directory"),
        ];
        for (path, what) in cases {
            let (read, outcome) = std::sync::mpsc::channel();
            let file = path.clone();
            std::thread::spawn(move || drop(read.send(Token::from_file(file))));
            let text =
                outcome.recv_timeout(std::time::Duration::from_secs(2)).expect("an answer").unwrap_err();
            let text = text.to_string();
            for part in [path.to_str().unwrap(), what, "EPWIRE_TOKEN_FILE", "4096"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        fs::remove_file(fifo).unwrap();
    }

    #[test]
    fn a_token_file_loses_one_newline_and_no_more() {
        let path = std::env::temp_dir().join(format!("epwire-token-{}", std::process::id()));
        std::fs::write(&path, "pass word\n\n").unwrap();
        let token = Token::from_file(path.clone());
        std::fs::write(&path, vec![b'x'; 5000]).unwrap();
        let long = Token::from_file(path.clone());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token.unwrap().as_bytes(), b"pass word\n");
        assert!(matches!(long, Err(TokenError::Length { .. })));
        assert!(Token::from_file(path).unwrap_err().to_string().contains("EPWIRE_TOKEN_FILE"));
    }

    #[test]
    fn a_token_in_the_environment_need_not_be_text() {
        let bytes = vec![0xff, 0xfe, b'a'];
        let token = Token::from_values(Some(OsString::from_vec(bytes.clone())), None).unwrap();
        assert_eq!(token.unwrap().as_bytes(), bytes);
    }

    #[test]
    fn a_range_of_ports_is_read() {
        assert_eq!(parse_ports("29800-29899"), Some((29800, 29899)));
        assert_eq!(parse_ports(" 1 - 65535 "), Some((1, 65535)));
        assert_eq!(parse_ports("700"), Some((700, 700)));
        for wrong in ["", "-", "0-5", "5-4", "1-65536", "a-b", "1-2-3"] {
            assert_eq!(parse_ports(wrong), None, "{wrong}");
        }
        assert!(PortsError("x".to_owned()).to_string().starts_with("EPWIRE_PORTS="));
    }
}
