//! The programs in `examples`, for tests that run them.

use std::path::PathBuf;
use std::process::Command;

/// The path of the example, built by Cargo with the same settings as the tests: Cargo does not build examples for
/// single tests, or leaves an old one.
pub(crate) fn build(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--example", name, "--target-dir"]).arg(profile.parent().unwrap());
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    for (feature, on) in [
        ("tracing", cfg!(feature = "tracing")),
        ("metrics", cfg!(feature = "metrics")),
        ("cuda", cfg!(feature = "cuda")),
        ("cudarc", cfg!(feature = "cudarc")),
    ] {
        if on {
            cargo.args(["--features", feature]);
        }
    }
    if profile.file_name().unwrap() == "release" {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    profile.join("examples").join(name)
}
