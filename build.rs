//! Compiles the C core into the crate and, with feature `bindgen`, checks that the bindings of its header are
//! current. Needs a C compiler (`CC`, `CFLAGS` and the like are honoured) and nothing else by default.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let built = check_target().and_then(|()| check_bindings()).and_then(|()| compile_core());
    if let Err(reason) = built {
        println!("cargo::error={reason}");
    }
}

/// Says what is missing on targets the core can not serve, before the compiler does in its own words.
fn check_target() -> Result<(), String> {
    for (variable, needed, why) in [
        ("TARGET_OS", "linux", "memfd, futexes and abstract sockets carry its windows and signals"),
        ("TARGET_ENDIAN", "little", "ranks of different byte order would read each other's words wrongly"),
        ("TARGET_POINTER_WIDTH", "64", "windows and layouts are those of 64-bit hosts"),
    ] {
        let found = env::var(format!("CARGO_CFG_{variable}")).unwrap_or_default();
        if found != needed {
            let name = variable.to_lowercase();
            return Err(format!("epwire needs {name} = \"{needed}\", this target has \"{found}\": {why}"));
        }
    }
    Ok(())
}

/// Every `c/**/*.c` becomes part of `libepwire_core.a`. `c/CMakeLists.txt` uses the same flags.
fn compile_core() -> Result<(), String> {
    let core = manifest_dir().join("c");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::metadata=include={}", core.join("include").display()); // DEP_EPWIRE_INCLUDE

    cc::Build::new()
        .files(c_sources(&core)?)
        .include(&core)
        .include(core.join("include"))
        .std("c11")
        .define("_GNU_SOURCE", None)
        .flag("-fvisibility=hidden")
        // The same bits on every machine: no fusing of a multiplication and an addition.
        .flag("-ffp-contract=off")
        // This is the data plane. In a debug build of the program, too, it moves gigabytes a second, and the
        // deadlines of its peers do not wait for an unoptimised copy loop.
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wpedantic")
        .warnings_into_errors(variable("EPWIRE_WERROR").as_deref() == Some("1"))
        .try_compile("epwire_core")
        .map_err(|error| format!("the C core of epwire does not compile: {error}"))
}

/// The C files below `folder`, in the same order on every machine.
fn c_sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error| format!("reading {}: {error}", folder.display());
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            sources.extend(c_sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

#[cfg(not(feature = "bindgen"))]
fn check_bindings() -> Result<(), String> {
    Ok(())
}

/// Generates the bindings of `epwire.h` again. `EPWIRE_BINDINGS=write` puts them in their place; otherwise
/// they must equal the checked-in ones.
#[cfg(feature = "bindgen")]
fn check_bindings() -> Result<(), String> {
    let checked_in = manifest_dir().join("src/sys/bindings.rs");
    println!("cargo::rerun-if-changed={}", checked_in.display());

    let generated = generate_bindings()?;
    if variable("EPWIRE_BINDINGS").as_deref() == Some("write") {
        fs::write(&checked_in, generated).map_err(|error| format!("{}: {error}", checked_in.display()))
    } else if fs::read_to_string(&checked_in).is_ok_and(|current| current == generated) {
        Ok(())
    } else {
        Err("src/sys/bindings.rs does not match c/include/epwire.h: run \
             `EPWIRE_BINDINGS=write cargo check --features bindgen` and commit the result"
            .to_owned())
    }
}

#[cfg(feature = "bindgen")]
fn generate_bindings() -> Result<String, String> {
    let bindings = bindgen::builder()
        .header(manifest_dir().join("c/include/epwire.h").to_string_lossy())
        .clang_args(["-std=c11", "-fparse-all-comments"])
        .allowlist_item("epw_.*|EPW_.*")
        .blocklist_item("EPW_API")
        .parse_callbacks(Box::new(Comments))
        .prepend_enum_name(false)
        .derive_default(true)
        .use_core()
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease) // the same text whatever rustfmt is installed
        .raw_line("// Generated from c/include/epwire.h by bindgen: see build.rs. Do not edit.")
        .disable_header_comment()
        .generate()
        .map_err(|error| format!("bindgen can not read c/include/epwire.h: {error}"))?;
    Ok(untyped_constants(&bindings.to_string()))
}

/// The header's section titles are no documentation of the item that follows them.
#[cfg(feature = "bindgen")]
#[derive(Debug)]
struct Comments;

#[cfg(feature = "bindgen")]
impl bindgen::callbacks::ParseCallbacks for Comments {
    fn process_comment(&self, comment: &str) -> Option<String> {
        comment.trim_start_matches(['/', '*', ' ']).starts_with("----").then(String::new)
    }
}

/// Constants of C enums without a name get the type that C gives them instead of bindgen's numbered alias of
/// it, which would be another one after every change of the header.
#[cfg(feature = "bindgen")]
fn untyped_constants(text: &str) -> String {
    let alias = |line: &str| -> Option<(String, &'static str)> {
        let (name, target) = line.strip_prefix("pub type ")?.strip_suffix(';')?.split_once(" = ")?;
        let plain = if target.ends_with("c_int") { "i32" } else { "u32" };
        name.starts_with("_bindgen_ty_").then(|| (format!(": {name} ="), plain))
    };
    let mut plain: Vec<String> = Vec::new();
    for line in text.lines() {
        if alias(line).is_none() {
            plain.push(line.to_owned());
        } else {
            // The alias's own documentation goes with it.
            while plain.last().is_some_and(|last| last.starts_with("///")) {
                plain.pop();
            }
        }
    }
    let mut plain = plain.join("\n") + "\n";
    for (uses, target) in text.lines().filter_map(alias) {
        plain = plain.replace(&uses, &format!(": {target} ="));
    }
    plain
}

fn manifest_dir() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default()
}

/// An environment variable of the user's; the build runs again when it changes.
fn variable(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok()
}
