//! Where GPUs and adapters are on the bus, and which GPUs are near to an adapter.

use super::report::Check;
use super::sysfs::Tree;
use crate::ffi::{self, BusPlace};

/// A GPU, and where it is.
pub(super) struct GpuPlace {
    /// Its bus address, as `0000:1a:00.0`.
    pub(super) bus: String,
    pub(super) place: Option<BusPlace>,
    /// Among the GPUs of the host, in the order of the bus, whichever of them this process sees.
    pub(super) turn: u32,
}

impl GpuPlace {
    /// The GPU of this bus address.
    pub(super) fn of(tree: &Tree, bus: String) -> Self {
        let place = place(tree, &format!("/sys/bus/pci/devices/{}", bus.to_lowercase()));
        let turn = ffi::turn_of_gpu(tree.root(), &bus);
        Self { bus, place, turn }
    }
}

/// The place of the device to which a link leads.
pub(super) fn place(tree: &Tree, link: &str) -> Option<BusPlace> {
    let path = tree.real(link)?;
    let node = tree.text(&format!("{path}/numa_node")).ok().and_then(|node| node.parse().ok());
    Some(BusPlace::new(&path, node.unwrap_or(-1)))
}

/// For each GPU with a known place: its distance from the adapter, as a number and in words, and its ordinal.
fn distances(adapter: Option<&BusPlace>, gpus: &[GpuPlace]) -> Vec<(u32, String, usize)> {
    let Some(own) = adapter else { return Vec::new() };
    let far = |(ordinal, gpu): (usize, &GpuPlace)| {
        let (distance, words) = own.distance(gpu.place.as_ref()?);
        Some((distance, words, ordinal))
    };
    let mut all: Vec<(u32, String, usize)> = gpus.iter().enumerate().filter_map(far).collect();
    all.sort();
    all
}

/// The ordinal of a GPU that is nearest to the adapter.
pub(super) fn nearest(adapter: Option<&BusPlace>, gpus: &[GpuPlace]) -> Option<usize> {
    let first = distances(adapter, gpus).first().map_or(0, |(_, _, ordinal)| *ordinal);
    (!gpus.is_empty()).then_some(first)
}

/// The GPUs that are nearest to the adapter.
pub(super) fn nearest_gpus(device: &str, place: Option<&BusPlace>, gpus: &[GpuPlace]) -> Option<Check> {
    /// Greater distances cross the root complex.
    const ROOT_PORT: u32 = 1;
    const ROOT_COMPLEX: u32 = 2;
    let all = distances(place, gpus);
    let (least, words, _) = all.first()?;
    let near = all.iter().take_while(|(distance, ..)| distance == least);
    let near: Vec<&str> = near.map(|(_, _, ordinal)| gpus[*ordinal].bus.as_str()).collect();
    let (label, reason) = (format!("{device} nearest GPU"), format!("{}, {words}", near.join(", ")));
    Some(match *least {
        ..=ROOT_PORT => Check::ok(label, reason),
        ROOT_COMPLEX => Check::warning(label, reason)
            .remedy("see that ACS and the IOMMU let devices reach each other, and which slots they are in"),
        _ => Check::warning(label, reason).remedy("use an adapter of the GPU's own switch, if there is one"),
    })
}
