//! The fabrics of this process: one for each rank that has buffers with queues, shared by them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::ffi::Fabric;

/// By process and rank: a forked child has none of its parent's threads.
static FABRICS: Mutex<BTreeMap<(u32, u32), Weak<Fabric>>> = Mutex::new(BTreeMap::new());

/// That of this rank, which lives as long as one of its buffers.
pub(super) fn of(rank: u32) -> Result<Arc<Fabric>> {
    let mut fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (std::process::id(), rank);
    if let Some(fabric) = fabrics.get(&key).and_then(Weak::upgrade) {
        return Ok(fabric);
    }
    let fabric = Arc::new(Fabric::create(rank)?);
    fabrics.retain(|_, fabric| fabric.strong_count() > 0);
    fabrics.insert(key, Arc::downgrade(&fabric));
    Ok(fabric)
}
