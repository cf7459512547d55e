//! The fabrics of this process: one for each rank that has buffers with queues, which share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::config::Device;
use crate::env::{self, Token};
use crate::error::{Error, Failure, Result};
use crate::ffi::{Adapters, Fabric, FabricOptions};
use crate::rendezvous::auth;
use crate::settings::{Queues, Wires};

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
    let queues = Queues::read()?;
    let wires = queues.wires.unwrap_or(Wires { local: true, tcp: key.is_some(), verbs: false });
    if wires.tcp && key.is_none() {
        return Err(format!("{} asks for tcp, which needs a token: set {}", env::WIRES, env::TOKEN_FILE));
    }
    Ok(FabricOptions {
        wires: wires.to_c(),
        nic: queues.nic,
        ports: queues.ports,
        interfaces: queues.interfaces,
        key,
        ring_bytes: queues.ring_bytes,
        queue_depth: queues.queue_depth,
        doorbell_batch: queues.doorbell_batch,
        doorbells: queues.doorbells,
        device: device.to_c(),
        adapters: Adapters {
            filter: queues.filter,
            count: queues.adapters,
            service_level: queues.service_level,
            traffic_class: queues.traffic_class,
            hop_limit: queues.hop_limit,
            rings: queues.rings,
            order: queues.order,
        },
    })
}
