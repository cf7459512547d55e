//! The fabrics of this process: one for each rank that has buffers with queues, which share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::config::Device;
use crate::env::{self, Token, number};
use crate::error::{Error, Failure, Result};
use crate::ffi::{Adapters, Fabric, FabricOptions};
use crate::rendezvous::auth;
use crate::sys;

/// The 32 bytes that both ends of a connection between hosts prove to know; none if the run has no token.
pub(crate) type WireKey = Option<[u8; 32]>;

/// Keyed by process, rank and key. The process is part of it because a forked child has none of its parent's threads.
static FABRICS: Mutex<BTreeMap<(u32, u32, WireKey), Weak<Fabric>>> = Mutex::new(BTreeMap::new());

/// The fabric of this rank, which lives as long as one of its buffers. Its adapters are near to the device of the first
/// of them.
pub(crate) fn of(rank: u32, key: WireKey, device: Device) -> Result<Arc<Fabric>> {
    let mut fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
    let id = (std::process::id(), rank, key);
    if let Some(fabric) = fabrics.get(&id).and_then(Weak::upgrade) {
        return Ok(fabric);
    }
    let options = options(key, device).map_err(|text| Error::Invalid(Failure::new("create", rank, text)))?;
    let fabric = Arc::new(Fabric::create(rank, &options)?);
    fabrics.retain(|_, fabric| fabric.strong_count() > 0);
    fabrics.insert(id, Arc::downgrade(&fabric));
    Ok(fabric)
}

/// The key for buffers that belong to no group, from the token of this process and `EPWIRE_RUN_ID`, if `EPWIRE_WIRES`
/// asks for TCP, or for verbs, whose ranks contact each other by TCP.
pub(crate) fn key_without_group(rank: u32) -> Result<WireKey> {
    let asked = env::value(env::WIRES).and_then(|names| Wires::parse(&names).ok());
    let asks = asked.is_some_and(|wires| wires.tcp || wires.verbs);
    if !asks {
        return Ok(None);
    }
    let token = Token::from_env();
    let token = token.map_err(|error| Error::Invalid(Failure::new("create", rank, error.to_string())))?;
    let run_id = env::value(env::RUN_ID).unwrap_or_else(|| "default".to_owned());
    Ok(token.map(|token| auth::wire_key(&token, &run_id)))
}

/// The options that the environment sets; the error text names the variable that is wrong.
fn options(key: WireKey, device: Device) -> std::result::Result<FabricOptions, String> {
    let nic = env::value(env::NIC).map_or(Ok(sys::EPW_NIC_SOFT), |name| nic(&name))?;
    let asked = env::value(env::WIRES).map(|names| Wires::parse(&names)).transpose();
    let asked = asked.map_err(|text| format!("{}: {text}", env::WIRES))?;
    let wires = asked.unwrap_or(Wires { local: true, tcp: key.is_some(), verbs: false });
    if wires.tcp && key.is_none() {
        return Err(format!("{} asks for tcp, which needs a token: set {}", env::WIRES, env::TOKEN_FILE));
    }
    let ports = env::ports().map_err(|error| error.to_string())?.unwrap_or((0, 0));
    let interfaces = env::value(env::IFNAME);
    let ring_bytes = env::ring_bytes()?;
    let queue_depth = env::queue_depth()?;
    let batches = 1..=sys::EPW_QUEUE_DEPTH_MAX;
    let doorbell_batch =
        env::value(env::DOORBELL_BATCH).map_or(Ok(0), |text| number(env::DOORBELL_BATCH, &text, batches))?;
    let doorbells =
        env::value(env::DOORBELLS).map_or(Ok(sys::EPW_DOORBELLS_AUTO), |name| doorbells(&name))?;
    let rings = env::value(env::RINGS).map_or(Ok(sys::EPW_RINGS_HOST), |name| rings(&name))?;
    let adapters = Adapters {
        filter: env::value(env::HCA),
        count: env::value(env::ADAPTERS).map_or(Ok(1), |text| number(env::ADAPTERS, &text, 1..=2))?,
        service_level: env::value(env::SERVICE_LEVEL)
            .map_or(Ok(0), |text| number(env::SERVICE_LEVEL, &text, 0..=15))?,
        traffic_class: env::value(env::TRAFFIC_CLASS)
            .map_or(Ok(0), |text| number(env::TRAFFIC_CLASS, &text, 0..=255))?,
        hop_limit: env::value(env::HOP_LIMIT).map_or(Ok(0), |text| number(env::HOP_LIMIT, &text, 1..=255))?,
        rings,
    };
    let wires = wires.to_c();
    Ok(FabricOptions {
        wires,
        nic,
        ports,
        interfaces,
        key,
        ring_bytes,
        queue_depth,
        doorbell_batch,
        doorbells,
        device: device.to_c(),
        adapters,
    })
}

/// The NIC with this name.
fn nic(name: &str) -> std::result::Result<u32, String> {
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
fn doorbells(name: &str) -> std::result::Result<u32, String> {
    match name.trim() {
        "auto" => Ok(sys::EPW_DOORBELLS_AUTO),
        "gpu" => Ok(sys::EPW_DOORBELLS_GPU),
        "host" => Ok(sys::EPW_DOORBELLS_HOST),
        _ => Err(format!("{}: {name:?} is unknown: give auto, gpu or host", env::DOORBELLS)),
    }
}

/// The place of rings with this name.
fn rings(name: &str) -> std::result::Result<u32, String> {
    match name.trim() {
        "host" => Ok(sys::EPW_RINGS_HOST),
        "gpu" => Ok(sys::EPW_RINGS_GPU),
        "auto" => Ok(sys::EPW_RINGS_AUTO),
        _ => Err(format!("{}: {name:?} is unknown: give host, gpu or auto", env::RINGS)),
    }
}

/// The wires that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wires {
    local: bool,
    tcp: bool,
    verbs: bool,
}

impl Wires {
    /// The wires named as in `EPWIRE_WIRES`; the error text says which name is unknown.
    fn parse(names: &str) -> std::result::Result<Self, String> {
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

    fn to_c(self) -> u32 {
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
        assert!(rings("cpu").unwrap_err().starts_with("EPWIRE_RINGS: \"cpu\""));
        assert!(doorbells("cpu").unwrap_err().starts_with("EPWIRE_DOORBELLS: \"cpu\""));
    }
}
