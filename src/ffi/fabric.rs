//! An `epw_fabric` as an owned value.

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};

use super::status::{check, error, initialised};
use crate::error::Result;
use crate::sys;

/// An `epw_fabric`, destroyed with this value.
#[derive(Debug)]
pub(crate) struct Fabric(NonNull<sys::epw_fabric>);

// SAFETY: the C core guards a fabric's state with locks; any thread may call.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: created by epw_fabric_create, and the buffers that used it, each of which holds it, are gone.
        unsafe { sys::epw_fabric_destroy(self.0.as_ptr()) }
    }
}

/// As `epw_fabric_options`.
pub(crate) struct FabricOptions {
    /// `EPW_WIRE_*` bits.
    pub(crate) wires: u32,
    /// `EPW_NIC_*`.
    pub(crate) nic: u32,
    /// First and last.
    pub(crate) ports: (u16, u16),
    pub(crate) interfaces: Option<String>,
    pub(crate) key: Option<[u8; 32]>,
    /// 0: as many as the library chooses.
    pub(crate) ring_bytes: u32,
    /// Entries of each queue at least; 0: as many as operations need.
    pub(crate) queue_depth: u32,
    /// Entries between two doorbells of an operation; 0: one doorbell after all entries.
    pub(crate) doorbell_batch: u32,
    /// `EPW_DOORBELLS_*`.
    pub(crate) doorbells: u32,
    /// The device that adapters should be near to, as in `epw_config`.
    pub(crate) device: i32,
    pub(crate) adapters: Adapters,
}

/// The options for RDMA adapters.
pub(crate) struct Adapters {
    /// In the grammar of `NCCL_IB_HCA`.
    pub(crate) filter: Option<String>,
    pub(crate) count: u32,
    pub(crate) service_level: u32,
    pub(crate) traffic_class: u32,
    /// 0: the library's default.
    pub(crate) hop_limit: u32,
    /// `EPW_RINGS_*`.
    pub(crate) rings: u32,
    /// `EPW_ORDER_*`.
    pub(crate) order: u32,
}

impl Fabric {
    pub(super) fn as_ptr(&self) -> *mut sys::epw_fabric {
        self.0.as_ptr()
    }

    /// The fabric of one rank.
    pub(crate) fn create(rank: u32, asked: &FabricOptions) -> Result<Self> {
        let text = |text: &Option<String>| text.as_deref().map(|text| CString::new(text).unwrap_or_default());
        let (interfaces, filter) = (text(&asked.interfaces), text(&asked.adapters.filter));
        let Adapters { count, service_level, traffic_class, hop_limit, rings, order, .. } = asked.adapters;
        // SAFETY: it is one of the header's init functions.
        let mut options = unsafe { initialised(sys::epw_fabric_options_init) };
        options.rank = rank;
        options.wires = asked.wires;
        options.nic = asked.nic;
        (options.first_port, options.last_port) = asked.ports;
        options.interfaces = interfaces.as_ref().map_or(ptr::null(), |names| names.as_ptr());
        options.key = asked.key.as_ref().map_or(ptr::null(), |key| key.as_ptr());
        options.ring_bytes = asked.ring_bytes;
        (options.queue_depth, options.doorbell_batch) = (asked.queue_depth, asked.doorbell_batch);
        options.doorbells = asked.doorbells;
        options.adapters = filter.as_ref().map_or(ptr::null(), |filter| filter.as_ptr());
        options.device = asked.device;
        options.adapter_count = count;
        (options.service_level, options.traffic_class) = (service_level, traffic_class);
        (options.hop_limit, options.rings) = (hop_limit, rings);
        options.order = order;
        let mut out = ptr::null_mut();
        // SAFETY: both are valid for the call, and so is what the options point to.
        check(unsafe { sys::epw_fabric_create(&options, &mut out) })?;
        NonNull::new(out).map(Self).ok_or_else(|| error(sys::EPW_ERR_NO_MEMORY))
    }

    /// See `epw_fabric_describe`.
    pub(super) fn describe(&self) -> String {
        let mut text = [0; sys::EPW_FABRIC_TEXT as usize];
        // SAFETY: the fabric is valid, and the text has room for so much.
        let text = unsafe { CStr::from_ptr(sys::epw_fabric_describe(self.0.as_ptr(), text.as_mut_ptr())) };
        text.to_string_lossy().into_owned()
    }
}
