//! Which GPUs a run had.

use epwire::Group;

use super::gpu::Gpu;
use crate::{Error, ranks};

/// The file with the version of NVIDIA's kernel module.
const VERSION_FILES: [&str; 2] = ["/proc/driver/nvidia/version", "/sys/module/nvidia/version"];

/// The number of GPUs and of ranks, the GPUs' name, and the driver's version if known. All ranks call it.
pub fn describe(gpu: &Gpu, group: &Group) -> Result<String, Error> {
    let id: Vec<u8> = gpu.context.uuid()?.bytes.iter().map(|byte| byte.cast_unsigned()).collect();
    let mut ids = group.exchange_blocking("gpus", vec![id; group.world() as usize])?;
    ids.retain(|id| !id.is_empty());
    ids.sort_unstable();
    ids.dedup();
    let text = VERSION_FILES.iter().find_map(|file| std::fs::read_to_string(file).ok());
    let driver = text.as_deref().and_then(version).map_or_else(String::new, |v| format!(", driver {v}"));
    Ok(format!("{} ranks on {} x {}{driver}", ranks::count(group), ids.len(), gpu.context.name()?))
}

/// The first word that consists of digits and dots.
fn version(text: &str) -> Option<&str> {
    text.split_whitespace().find(|word| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_either_file() {
        let module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\nGCC version: gcc 12.2.0";
        assert_eq!(version(module), Some("580.82.07"));
        assert_eq!(version("580.95\n"), Some("580.95"));
        assert_eq!(version("x86_64 ... v1.2 3"), None);
    }
}
