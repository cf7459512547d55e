//! Reads what the kernel reports in files, below any root, so that tests can use a folder of their own. Files may be
//! missing, long, or not text.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most bytes that are read of a file, and names of a folder.
const FILE_MAX: u64 = 1 << 20;
const NAMES_MAX: usize = 4096;

/// A tree of files like that of Linux at `/`.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree of this machine.
    pub(super) fn machine() -> Self {
        Self::below("/")
    }

    /// The same kind of tree in a folder.
    pub(super) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where a path that begins with `/` really is.
    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether the path exists.
    pub(super) fn has(&self, path: &str) -> bool {
        self.place(path).symlink_metadata().is_ok()
    }

    /// The file's text, trimmed and not empty; invalid UTF-8 is replaced. Never waits for a pipe's writer.
    ///
    /// # Errors
    ///
    /// Why it could not be read, in words, with the path.
    pub(super) fn text(&self, path: &str) -> Result<String, String> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let mut bytes = Vec::new();
        let read = OpenOptions::new().read(true).custom_flags(flags).open(self.place(path));
        let read = read.and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
        read.map_err(|error| format!("{path}: {}", words(&error)))?;
        match String::from_utf8_lossy(&bytes).trim() {
            "" => Err(format!("{path}: empty")),
            text => Ok(text.to_owned()),
        }
    }

    /// The names in a folder, sorted, with numbers in them by value. None if the folder does not exist.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.place(path)) else { return Vec::new() };
        let entries = entries.take(NAMES_MAX).filter_map(Result::ok);
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by(|a, b| by_number(a).cmp(&by_number(b)));
        names
    }

    /// The absolute path within the tree after all links are followed. `None` if the path does not exist or leads out
    /// of the tree.
    pub(super) fn real(&self, path: &str) -> Option<String> {
        let root = self.root.canonicalize().ok()?;
        let real = self.place(path).canonicalize().ok()?;
        Some(format!("/{}", real.strip_prefix(root).ok()?.to_string_lossy()))
    }

    /// The target of a link, wherever it leads.
    ///
    /// # Errors
    ///
    /// As for [`Tree::text`].
    pub(super) fn link(&self, path: &str) -> Result<String, String> {
        let target = fs::read_link(self.place(path)).map_err(|error| format!("{path}: {}", words(&error)))?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Whether this process may read and write the file.
    pub(super) fn may_use(&self, path: &str) -> Result<(), String> {
        use std::os::unix::ffi::OsStrExt;
        let place = std::ffi::CString::new(self.place(path).as_os_str().as_bytes());
        let place = place.map_err(|_| format!("{path}: no path"))?;
        // SAFETY: a NUL-terminated path that lives here.
        match unsafe { libc::access(place.as_ptr(), libc::R_OK | libc::W_OK) } {
            0 => Ok(()),
            _ => Err(format!("{path}: {}", words(&io::Error::last_os_error()))),
        }
    }
}

/// The system's error message, without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// Splits a name from the number at its end, so that `mlx5_10` sorts after `mlx5_9`.
fn by_number(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0), name)
}

/// The value after `key` in lines of `key: value`, or `key value`.
pub(super) fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(key)?;
        let value =
            rest.trim_start().strip_prefix(':').or_else(|| rest.starts_with([' ', '\t']).then_some(rest));
        value.map(str::trim)
    })
}

/// The first number in a text.
pub(super) fn number(text: &str) -> Option<u64> {
    let begin = text.find(|c: char| c.is_ascii_digit())?;
    let digits = &text[begin..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The text after the number of a state, as in `4: ACTIVE`.
pub(super) fn state(text: &str) -> &str {
    text.split_once(':').map_or(text, |(_, name)| name).trim()
}

/// Bytes, for people.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = "bytes";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    let decimals = usize::from(value < 10.0 && value.fract() != 0.0);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_by_their_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "bnxt_re0", "7", "10", "mlx5_bond_0", "é1"];
        names.sort_by(|a, b| by_number(a).cmp(&by_number(b)));
        assert_eq!(names, ["7", "10", "bnxt_re0", "mlx5_2", "mlx5_10", "mlx5_bond_0", "é1"]);
    }

    #[test]
    fn values_and_numbers_are_found_in_text() {
        let text = "RegistryDwords: \"PeerMappingOverride=1;\"\nEnableStreamMemOPs: 1\nMemAvailable:  12 kB";
        assert_eq!(value(text, "EnableStreamMemOPs"), Some("1"));
        assert_eq!(value(text, "RegistryDwords"), Some("\"PeerMappingOverride=1;\""));
        assert_eq!((value(text, "MemAvailable").and_then(number), value(text, "Mem")), (Some(12), None));
        assert_eq!((number("x"), number("99999999999999999999")), (None, None));
        assert_eq!((state("4: ACTIVE"), state("DOWN")), ("ACTIVE", "DOWN"));
        assert_eq!(
            (bytes(512), bytes(1 << 16), bytes(3 << 29)),
            ("512 bytes".into(), "64 KiB".into(), "1.5 GiB".into())
        );
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_path() {
        let tree = Tree::below("/nonexistent");
        assert_eq!(tree.text("/proc/x").unwrap_err(), "/proc/x: no such file or directory");
        assert_eq!(tree.text("").unwrap_err(), ": no such file or directory");
        assert!(tree.names("/sys").is_empty() && tree.real("/sys").is_none() && !tree.has("/sys"));
        // A folder is not a file.
        assert_eq!(Tree::machine().text("/proc").unwrap_err(), "/proc: is a directory");
    }
}
