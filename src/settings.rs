//! What ranks read from the environment when they create buffers. A launcher reads it too, so that a wrong value is
//! refused once, before any rank has started.

use std::ffi::{CStr, CString};

use crate::env::{self, number};
use crate::names::ParseNameError;
use crate::sys;

/// Reads every variable whose value can be wrong by itself and that only ranks use otherwise. The error text names the
/// variable, its value and what is allowed.
pub(crate) fn check() -> Result<(), String> {
    of_the_core()?;
    if let Some(names) = env::value(env::PATHS) {
        paths(&names).map_err(|error| format!("{}: {error}", env::PATHS))?;
    }
    Queues::read()?.check_filter()
}

/// The names in `EPWIRE_PATHS`.
pub(crate) const PATHS: [&str; 5] = ["thread", "shm", "vmm", "ipc", "queue"];

/// Whether each of [`PATHS`] is among the names of `EPWIRE_PATHS`.
pub(crate) fn paths(names: &str) -> Result<[bool; 5], ParseNameError> {
    const EXPECTED: &str = "a path: give some of thread, shm, vmm, ipc, queue, with commas between them";
    let mut paths = [false; 5];
    if names == "none" {
        return Ok(paths);
    }
    for name in names.split(',').map(str::trim) {
        let at = PATHS.iter().position(|known| *known == name);
        paths[at.ok_or_else(|| ParseNameError::new(name, EXPECTED))?] = true;
    }
    Ok(paths)
}

/// What the core reads: `EPWIRE_LOG`, `EPWIRE_LOG_FILE`, `EPWIRE_ISA` and `EPWIRE_PULL_FROM`. Opens the log.
fn of_the_core() -> Result<(), String> {
    // SAFETY: any thread may call it.
    said(unsafe { sys::epw_log_open(sys::epw_where::NOWHERE) })?;
    let mut chosen = std::ptr::null();
    // SAFETY: `chosen` is a valid place to write to; any thread may call.
    said(unsafe { sys::epw_numerics_choose(sys::epw_where::NOWHERE, &mut chosen) })?;
    // SAFETY: it writes a number, which lives here; any thread may call.
    said(unsafe { sys::epw_pull_wanted(sys::epw_where::NOWHERE, &mut 0) })
}

/// The core's error text, if this status is an error.
fn said(status: sys::epw_status) -> Result<(), String> {
    if status == sys::EPW_OK {
        return Ok(());
    }
    // SAFETY: the text is NUL-terminated and lives until this thread's next failing call.
    Err(unsafe { CStr::from_ptr(sys::epw_last_error()) }.to_string_lossy().into_owned())
}

/// What the environment says of queues and the adapters that drain them.
#[derive(Debug)]
pub(crate) struct Queues {
    /// `EPW_NIC_*`.
    pub(crate) nic: u32,
    pub(crate) wires: Option<Wires>,
    /// First and last; 0: any.
    pub(crate) ports: (u16, u16),
    pub(crate) interfaces: Option<String>,
    pub(crate) ring_bytes: u32,
    pub(crate) queue_depth: u32,
    pub(crate) doorbell_batch: u32,
    /// `EPW_DOORBELLS_*`.
    pub(crate) doorbells: u32,
    /// `EPW_RINGS_*`.
    pub(crate) rings: u32,
    /// `EPW_ORDER_*`.
    pub(crate) order: u32,
    /// Which adapters, in the grammar of `NCCL_IB_HCA`.
    pub(crate) filter: Option<String>,
    pub(crate) adapters: u32,
    pub(crate) service_level: u32,
    pub(crate) traffic_class: u32,
    pub(crate) hop_limit: u32,
}

impl Queues {
    /// The error text names the variable that is wrong.
    pub(crate) fn read() -> Result<Self, String> {
        let count =
            |name, default, limits| env::value(name).map_or(Ok(default), |text| number(name, &text, limits));
        let wires = env::value(env::WIRES).map(|names| Wires::parse(&names)).transpose();
        Ok(Self {
            nic: env::value(env::NIC).map_or(Ok(sys::EPW_NIC_SOFT), |name| nic(&name))?,
            wires: wires.map_err(|text| format!("{}: {text}", env::WIRES))?,
            ports: env::ports().map_err(|error| error.to_string())?.unwrap_or((0, 0)),
            interfaces: env::value(env::IFNAME),
            ring_bytes: env::ring_bytes()?,
            queue_depth: env::queue_depth()?,
            doorbell_batch: count(env::DOORBELL_BATCH, 0, 1..=sys::EPW_QUEUE_DEPTH_MAX)?,
            doorbells: env::value(env::DOORBELLS)
                .map_or(Ok(sys::EPW_DOORBELLS_AUTO), |name| doorbells(&name))?,
            rings: asked_rings()?,
            order: env::value(env::ORDER).map_or(Ok(sys::EPW_ORDER_AUTO), |name| order(&name))?,
            filter: env::value(env::HCA),
            adapters: count(env::ADAPTERS, 1, 1..=2)?,
            service_level: count(env::SERVICE_LEVEL, 0, 0..=15)?,
            traffic_class: count(env::TRAFFIC_CLASS, 0, 0..=255)?,
            hop_limit: count(env::HOP_LIMIT, 0, 1..=255)?,
        })
    }

    /// The filter's grammar is checked by the core when it creates the queues, and here by the same function.
    fn check_filter(&self) -> Result<(), String> {
        let Some(filter) = &self.filter else { return Ok(()) };
        let filter = CString::new(filter.as_str()).map_err(|_| format!("{} contains a NUL", env::HCA))?;
        // SAFETY: both texts are NUL-terminated and valid for the call.
        said(unsafe {
            sys::epw_adapter_filter_check(filter.as_ptr(), c"EPWIRE_HCA".as_ptr(), sys::epw_where::NOWHERE)
        })
    }
}

/// The value of `EPWIRE_RINGS`, as `EPW_RINGS_*`.
pub(crate) fn asked_rings() -> Result<u32, String> {
    env::value(env::RINGS).map_or(Ok(sys::EPW_RINGS_HOST), |name| rings(&name))
}

/// The NIC with this name.
fn nic(name: &str) -> Result<u32, String> {
    match name.trim() {
        "soft" => Ok(sys::EPW_NIC_SOFT),
        "strict" => Ok(sys::EPW_NIC_STRICT),
        "fake" => Ok(sys::EPW_NIC_FAKE),
        "mlx5" => Ok(sys::EPW_NIC_MLX5),
        _ => Err(format!(
            "{}: {name:?} names no NIC of this library: give soft, strict, fake or mlx5",
            env::NIC
        )),
    }
}

/// The kind of doorbells with this name.
fn doorbells(name: &str) -> Result<u32, String> {
    match name.trim() {
        "auto" => Ok(sys::EPW_DOORBELLS_AUTO),
        "gpu" => Ok(sys::EPW_DOORBELLS_GPU),
        "host" => Ok(sys::EPW_DOORBELLS_HOST),
        _ => Err(format!("{}: {name:?} is unknown: give auto, gpu or host", env::DOORBELLS)),
    }
}

/// The place of rings with this name.
fn rings(name: &str) -> Result<u32, String> {
    match name.trim() {
        "host" => Ok(sys::EPW_RINGS_HOST),
        "gpu" => Ok(sys::EPW_RINGS_GPU),
        "auto" => Ok(sys::EPW_RINGS_AUTO),
        _ => Err(format!("{}: {name:?} is unknown: give host, gpu or auto", env::RINGS)),
    }
}

/// The order with this name.
fn order(name: &str) -> Result<u32, String> {
    match name.trim() {
        "auto" => Ok(sys::EPW_ORDER_AUTO),
        "none" => Ok(sys::EPW_ORDER_NONE),
        _ => Err(format!("{}: {name:?} is unknown: give auto or none", env::ORDER)),
    }
}

/// The wires that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wires {
    pub(crate) local: bool,
    pub(crate) tcp: bool,
    pub(crate) verbs: bool,
}

impl Wires {
    /// The wires named as in `EPWIRE_WIRES`; the error text says which name is unknown.
    pub(crate) fn parse(names: &str) -> Result<Self, String> {
        let mut wires = Self { local: false, tcp: false, verbs: false };
        for name in names.split(',').map(str::trim) {
            *match name {
                "local" => &mut wires.local,
                "tcp" => &mut wires.tcp,
                "verbs" => &mut wires.verbs,
                _ => {
                    return Err(format!(
                        "{name:?} names no wire: give some of local, tcp, verbs, with a comma between them"
                    ));
                }
            } = true;
        }
        Ok(wires)
    }

    pub(crate) fn to_c(self) -> u32 {
        let all = [
            (self.local, sys::EPW_WIRE_LOCAL),
            (self.tcp, sys::EPW_WIRE_TCP),
            (self.verbs, sys::EPW_WIRE_VERBS),
        ];
        all.iter().fold(0, |bits, (permitted, bit)| if *permitted { bits | bit } else { bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_are_read_by_name() {
        assert_eq!(Wires::parse("tcp"), Ok(Wires { local: false, tcp: true, verbs: false }));
        assert_eq!(Wires::parse("verbs").map(Wires::to_c), Ok(sys::EPW_WIRE_VERBS));
        let both = Wires::parse("local, tcp");
        assert_eq!(both.map(Wires::to_c), Ok(sys::EPW_WIRE_LOCAL | sys::EPW_WIRE_TCP));
        for wrong in ["", "local,", "TCP", "udp"] {
            assert!(Wires::parse(wrong).unwrap_err().contains("give some of local, tcp, verbs"), "{wrong}");
        }
    }

    #[test]
    fn a_nic_has_a_name() {
        assert_eq!(nic("soft"), Ok(sys::EPW_NIC_SOFT));
        assert_eq!(nic("strict"), Ok(sys::EPW_NIC_STRICT));
        assert_eq!(nic("fake"), Ok(sys::EPW_NIC_FAKE));
        assert_eq!(nic("mlx5"), Ok(sys::EPW_NIC_MLX5));
        assert!(nic("verbs").unwrap_err().starts_with("EPWIRE_NIC: \"verbs\""));
    }

    #[test]
    fn a_way_to_ring_has_a_name() {
        assert_eq!(doorbells("auto"), Ok(sys::EPW_DOORBELLS_AUTO));
        assert_eq!(doorbells("gpu"), Ok(sys::EPW_DOORBELLS_GPU));
        assert_eq!(doorbells(" host "), Ok(sys::EPW_DOORBELLS_HOST));
        assert_eq!((rings("host"), rings("gpu"), rings("auto")), (Ok(0), Ok(1), Ok(2)));
        assert_eq!((order("auto"), order("none")), (Ok(0), Ok(1)));
        assert!(order("kept").unwrap_err().starts_with("EPWIRE_ORDER: \"kept\""));
        assert!(rings("cpu").unwrap_err().starts_with("EPWIRE_RINGS: \"cpu\""));
        assert!(doorbells("cpu").unwrap_err().starts_with("EPWIRE_DOORBELLS: \"cpu\""));
    }
}
