//! The paths to a peer, and which of them a configuration permits.

use std::fmt;
use std::str::FromStr;

use crate::names::{ParseNameError, names, setters};
use crate::{settings, sys};

/// The path by which a peer's window is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Not connected.
    None,
    /// The rank itself.
    SelfRank,
    /// Another rank of this process.
    Thread,
    /// Another process of this host, through shared memory.
    SharedMemory,
    /// Another process of this host: its window in GPU memory, mapped by a VMM handle.
    Vmm,
    /// The same by a CUDA IPC handle.
    Ipc,
    /// By a queue: a software NIC or an adapter sends what is written for it over this wire, and the peer's places it.
    Queue(Wire),
}

/// What carries the bytes of queues between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// Memory that two processes of this host share; a Unix socket only sets it up.
    Local,
    /// TCP.
    Tcp,
    /// mlx5 adapters, whose queue pairs have connections of their own.
    Adapter,
    /// An RDMA adapter of any vendor, through libibverbs.
    Verbs,
}

// The short names are those of `EPWIRE_WIRES`.
names!(Wire, "a wire: local socket (or local), TCP (or tcp), RDMA adapters or verbs" {
    Local = "local socket" | "local", Tcp = "TCP" | "tcp", Adapter = "RDMA adapters", Verbs = "verbs",
});

impl Path {
    /// Those that need no wire, as they are printed and by their names in `EPWIRE_PATHS`.
    const NAMES: [(Self, &'static str, &'static str); 6] = [
        (Self::None, "none", "none"),
        (Self::SelfRank, "self", "self"),
        (Self::Thread, "thread", "thread"),
        (Self::SharedMemory, "shared memory", "shm"),
        (Self::Vmm, "VMM", "vmm"),
        (Self::Ipc, "CUDA IPC", "ipc"),
    ];
    const QUEUE_OVER: &str = "queue over ";

    /// From `EPW_PATH_*` and, for queues, `EPW_WIRE_*`.
    pub(crate) fn from_c(path: u32, wire: u32) -> Self {
        match path {
            sys::EPW_PATH_SELF => Self::SelfRank,
            sys::EPW_PATH_THREAD => Self::Thread,
            sys::EPW_PATH_SHM => Self::SharedMemory,
            sys::EPW_PATH_VMM => Self::Vmm,
            sys::EPW_PATH_IPC => Self::Ipc,
            sys::EPW_PATH_QUEUE if wire == sys::EPW_WIRE_TCP => Self::Queue(Wire::Tcp),
            sys::EPW_PATH_QUEUE if wire == 0 => Self::Queue(Wire::Adapter),
            sys::EPW_PATH_QUEUE if wire == sys::EPW_WIRE_VERBS => Self::Queue(Wire::Verbs),
            sys::EPW_PATH_QUEUE => Self::Queue(Wire::Local),
            _ => Self::None,
        }
    }
}

/// As `epw_path_name` in C, with the wire.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Queue(wire) = self {
            return f.pad(&format!("{}{wire}", Self::QUEUE_OVER));
        }
        let named = Self::NAMES.iter().find(|(path, ..)| path == self);
        named.map_or(Ok(()), |(_, name, _)| f.pad(name))
    }
}

/// Reads what is printed, and the names of `EPWIRE_PATHS` but `queue`, which does not say the wire.
impl FromStr for Path {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        if let Some(wire) = text.strip_prefix(Self::QUEUE_OVER) {
            return wire.parse().map(Self::Queue);
        }
        let named = Self::NAMES.iter().find(|(_, name, short)| [*name, *short].contains(&text));
        named.map(|(path, ..)| *path).ok_or_else(|| {
            ParseNameError::new(
                text,
                "a path: none, self, thread, shared memory (or shm), VMM (or vmm), CUDA IPC (or ipc), \
                 or queue over and a wire",
            )
        })
    }
}

/// Which paths may be used. A peer that can be reached only by an excluded path is refused at connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[non_exhaustive]
pub struct Paths {
    /// Ranks of this process.
    pub thread: bool,
    /// Processes of this host whose windows are in host memory.
    pub shared_memory: bool,
    /// Processes of this host whose windows are in GPU memory, by VMM handles; tried before `ipc`.
    pub vmm: bool,
    /// The same by CUDA IPC handles.
    pub ipc: bool,
    /// Ranks of any host, by queues that a NIC drains: for those that no other path reaches, or, as the only path, for
    /// all. Such peers write into pinned host memory of a rank on a GPU, see
    /// [`Plan::inbox_bytes`](crate::Plan::inbox_bytes), unless `EPWIRE_RINGS` lets an adapter write into its window in
    /// GPU memory, as the others do. Off by default, because it takes two threads, memory for each peer and, if the run
    /// has a token, a TCP port: [`EpBuffer::create`](crate::EpBuffer::create) turns the default on if the members are on
    /// several hosts. Set it if ranks of other hosts may join later.
    pub queue: bool,
}

setters!(Paths { thread: bool, shared_memory: bool, vmm: bool, ipc: bool, queue: bool });

impl Paths {
    /// No path: only the rank itself is reached.
    pub const NONE: Self = Self { thread: false, shared_memory: false, vmm: false, ipc: false, queue: false };

    pub(crate) fn to_c(self) -> u32 {
        let Paths { thread, shared_memory, vmm, ipc, queue } = self;
        let switches = [
            (thread, sys::EPW_PATH_THREAD),
            (shared_memory, sys::EPW_PATH_SHM),
            (vmm, sys::EPW_PATH_VMM),
            (ipc, sys::EPW_PATH_IPC),
            (queue, sys::EPW_PATH_QUEUE),
        ];
        let permitted = switches.into_iter().filter(|(on, _)| *on);
        permitted.fold(sys::EPW_PATH_SELF, |paths, (_, path)| paths | path)
    }
}

/// As in `EPWIRE_PATHS`: `thread,shm`, or `none`.
impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, shared_memory, vmm, ipc, queue } = *self;
        let permitted = settings::PATHS.into_iter().zip([thread, shared_memory, vmm, ipc, queue]);
        let names: Vec<_> = permitted.filter(|(_, on)| *on).map(|(name, _)| name).collect();
        f.pad(if names.is_empty() { "none".to_owned() } else { names.join(",") }.as_str())
    }
}

/// The named paths, as in `EPWIRE_PATHS`: `thread`, `shm`, `vmm`, `ipc`, `queue`, separated by commas; or `none`.
impl FromStr for Paths {
    type Err = ParseNameError;

    fn from_str(names: &str) -> Result<Self, ParseNameError> {
        let [thread, shared_memory, vmm, ipc, queue] = settings::paths(names)?;
        Ok(Self { thread, shared_memory, vmm, ipc, queue })
    }
}

impl Default for Paths {
    fn default() -> Self {
        Self { thread: true, shared_memory: true, vmm: true, ipc: true, queue: false }
    }
}
