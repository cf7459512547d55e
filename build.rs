//! Compiles the C core into the crate and, with feature `bindgen`, checks that the bindings of its header are
//! current. Needs a C compiler (`CC`, `CFLAGS` and the like are honoured) and nothing else by default; with feature
//! `cuda` a CUDA toolkit too, whose kernels and runtime are linked statically. No driver or GPU is looked at.

use std::env;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

fn main() {
    if let Err(reason) = build() {
        println!("cargo::error={reason}");
    }
}

fn build() -> Result<(), String> {
    check_target()?;
    check_bindings()?;
    let toolkit = if wants_cuda() { Some(Toolkit::find()?) } else { None };
    compile_core(toolkit.as_ref())?; // before what it needs, as linkers want it
    println!("cargo::rustc-link-lib=dylib=dl"); // on C libraries older than glibc 2.34, which have it elsewhere
    match toolkit {
        Some(toolkit) => compile_kernels(&toolkit),
        None => Ok(()),
    }
}

/// Says what is missing on targets the core cannot serve, before the compiler does in its own words.
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
fn compile_core(toolkit: Option<&Toolkit>) -> Result<(), String> {
    let core = manifest_dir().join("c");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::metadata=include={}", core.join("include").display()); // DEP_EPWIRE_INCLUDE

    let mut build = cc::Build::new();
    if let Some(toolkit) = toolkit {
        build.define("EPW_CUDA", "1").include(manifest_dir()); // "kernels/..."
        build.flag("-isystem").flag(&toolkit.include); // its headers are not held to our warnings
    }
    build
        .files(files_below(&core, "c")?)
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

/// The files below `folder` of this extension, in the same order on every machine.
fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error| format!("reading {}: {error}", folder.display());
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            sources.extend(files_below(&path, extension)?);
        } else if path.extension().is_some_and(|found| found == extension) {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// docs.rs has no toolkit: the interface is documented there, no kernel is compiled.
fn wants_cuda() -> bool {
    env::var_os("CARGO_FEATURE_CUDA").is_some() && variable("DOCS_RS").is_none()
}

/// Every `kernels/*.cu` becomes an object of its own in `libepwire_kernels.a`: no device code refers to another
/// object's. `c/cuda.cmake` uses the same flags.
fn compile_kernels(toolkit: &Toolkit) -> Result<(), String> {
    let kernels = manifest_dir().join("kernels");
    println!("cargo::rerun-if-changed=kernels");
    let targets = toolkit.targets()?;
    let sources: Vec<PathBuf> =
        files_below(&kernels, "cu")?.into_iter().filter(|source| source.parent() == Some(&kernels)).collect();
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1).max(1);
    // Each thread takes the next source until there is none, or until one does not compile.
    let left = Mutex::new(sources.iter());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let compile = || iter::from_fn(take).map(|source| toolkit.compile(source, &targets)).collect();
    let done: Vec<Result<Vec<_>, _>> = thread::scope(|scope| {
        let running: Vec<_> = (0..jobs).map(|_| scope.spawn(compile)).collect();
        running
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    let mut objects = done.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    objects.sort(); // the same archive each time
    cc::Build::new()
        .objects(objects)
        .try_compile("epwire_kernels")
        .map_err(|error| format!("the kernels of epwire cannot be put into an archive: {error}"))?;

    println!("cargo::rustc-link-search=native={}", toolkit.libraries.display());
    println!("cargo::rustc-link-lib=static=cudart_static");
    for library in ["dl", "pthread", "rt"] {
        println!("cargo::rustc-link-lib=dylib={library}"); // of the runtime, on C libraries older than glibc 2.34
    }
    println!("cargo::rustc-env=EPWIRE_CUDA_LIBRARIES={}", toolkit.libraries.display()); // for tests/c.rs
    Ok(())
}

/// A CUDA toolkit: the compiler, and where its headers and static runtime are.
struct Toolkit {
    nvcc: PathBuf,
    include: PathBuf,
    libraries: PathBuf,
}

impl Toolkit {
    /// The first nvcc of `NVCC`, `CUDA_HOME`, `CUDA_PATH`, `PATH` and `/usr/local/cuda`, and the toolkit around it.
    fn find() -> Result<Self, String> {
        let homes: Vec<PathBuf> =
            ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from).collect();
        let usual = PathBuf::from("/usr/local/cuda");
        // Not a reason to build again: it differs from shell to shell.
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path = || env::split_paths(&path);

        let mut candidates = Vec::new();
        if let Some(nvcc) = variable("NVCC").map(PathBuf::from) {
            match nvcc.components().count() {
                1 => candidates.extend(on_path().map(|folder| folder.join(&nvcc))),
                _ => candidates.push(nvcc),
            }
        } else {
            candidates.extend(homes.iter().map(|home| home.join("bin/nvcc")));
            candidates.extend(on_path().map(|folder| folder.join("nvcc")));
            candidates.push(usual.join("bin/nvcc"));
        }
        let nvcc = first_file(&candidates, "nvcc, the CUDA compiler,")?;

        // A toolkit's own folder is two above its nvcc, past links; the variables help where nvcc is a wrapper.
        let resolved = nvcc.canonicalize().unwrap_or_else(|_| nvcc.clone());
        let own = resolved.ancestors().nth(2).map(Path::to_path_buf);
        let roots: Vec<PathBuf> = own.into_iter().chain(homes).chain([usual]).collect();
        let targets = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("aarch64") => "targets/sbsa-linux",
            _ => "targets/x86_64-linux",
        };
        let below = |folders: &[String], file: &str| -> Vec<PathBuf> {
            let in_root = |root: &PathBuf| {
                folders.iter().map(|folder| root.join(folder).join(file)).collect::<Vec<_>>()
            };
            roots.iter().flat_map(in_root).collect()
        };
        let headers = ["include".into(), format!("{targets}/include")];
        let archives = ["lib64".into(), "lib".into(), format!("{targets}/lib")];
        let header = first_file(&below(&headers, "cudaTypedefs.h"), "the CUDA toolkit's include folder")?;
        let archive = first_file(&below(&archives, "libcudart_static.a"), "the static CUDA runtime")?;
        let parent = |file: &Path| file.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { nvcc, include: parent(&header), libraries: parent(&archive) })
    }

    /// nvcc's `-gencode` arguments: machine code for each architecture of `EPWIRE_CUDA_ARCHS`, and PTX of the newest,
    /// which drivers translate for GPUs that are newer still.
    fn targets(&self) -> Result<Vec<String>, String> {
        const DEFAULT: &str = "90,100"; // Hopper, Blackwell
        const OLDEST: u32 = 90;
        let known = self.run(&["--list-gpu-code"])?;
        let known: Vec<&str> = known.lines().filter_map(|line| line.trim().strip_prefix("sm_")).collect();
        let asked = variable("EPWIRE_CUDA_ARCHS").filter(|list| !list.trim().is_empty());
        let list = asked.as_deref().unwrap_or(DEFAULT);
        let mut architectures = Vec::new();
        for name in list.split(',').map(str::trim) {
            let number: u32 = name.trim_end_matches(['a', 'f']).parse().unwrap_or(0);
            let plain = number.to_string();
            if number < OLDEST {
                return Err(format!(
                    "EPWIRE_CUDA_ARCHS is \"{list}\": \"{name}\" is no compute capability from {OLDEST} on (example: \
                     {DEFAULT}); the kernels need Hopper or newer"
                ));
            } else if known.contains(&plain.as_str()) {
                architectures.push((number, name));
            } else if asked.is_some() {
                return Err(format!(
                    "EPWIRE_CUDA_ARCHS is \"{list}\", but {} compiles only for {}",
                    self.nvcc.display(),
                    known.join(", ")
                ));
            } // else a default that this toolkit is too old for
        }
        architectures.sort_unstable();
        let Some((_, newest)) = architectures.last().copied() else {
            return Err(format!(
                "{} is too old: it knows none of {list}; CUDA 12.0 does",
                self.nvcc.display()
            ));
        };
        let code = |name: &str| match name == newest {
            true => format!("-gencode=arch=compute_{name},code=[sm_{name},compute_{name}]"),
            false => format!("-gencode=arch=compute_{name},code=sm_{name}"),
        };
        Ok(architectures.iter().map(|(_, name)| code(name)).collect())
    }

    /// Compiles one source to an object in the build's output folder.
    fn compile(&self, source: &Path, targets: &[String]) -> Result<PathBuf, String> {
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let object = out.join(source.file_stem().unwrap_or_default()).with_extension("cu.o");
        // Two architectures at a time: the longest source takes minutes for each.
        let mut arguments: Vec<String> =
            ["-c", "-std=c++20", "-O3", "--threads=2"].map(str::to_owned).to_vec();
        arguments.extend(targets.iter().cloned());
        // The same bits as on the host: no fusing of a multiplication and an addition.
        arguments.push("--fmad=false".into());
        // What the host part leaves out is what would need libstdc++.
        arguments.push("-Xcompiler".into());
        arguments.push("-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics".into());
        let root = manifest_dir();
        let includes = [root.clone(), root.join("c"), root.join("c/include")];
        arguments.extend(includes.map(|folder| format!("-I{}", folder.display())));
        // The dependencies are for nobody: with them the arguments are those of c/cuda.cmake, so that a compiler cache has
        // for one what the other has compiled.
        let (source, object_name) = (source.display().to_string(), object.display().to_string());
        arguments.extend([
            "-MD".into(),
            "-MF".into(),
            format!("{object_name}.d"),
            "-MT".into(),
            object_name.clone(),
        ]);
        arguments.extend([source, "-o".into(), object_name]);
        self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(object)
    }

    /// Runs nvcc and returns what it prints. Its host compiler is its own choice, or that of `NVCC_CCBIN`.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        for honoured in ["NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
            variable(honoured);
        }
        let mut command = Command::new(&self.nvcc);
        command.args(arguments);
        let output = command.output().map_err(|error| format!("{}: {error}", self.nvcc.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        eprintln!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
        let first = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
        Err(format!("{} fails with {}: {first}", self.nvcc.display(), output.status))
    }
}

/// The first of `candidates` that is a file.
fn first_file(candidates: &[PathBuf], what: &str) -> Result<PathBuf, String> {
    candidates.iter().find(|candidate| candidate.is_file()).cloned().ok_or_else(|| {
        let places: Vec<String> = candidates.iter().map(|place| place.display().to_string()).collect();
        format!(
            "feature `cuda` needs {what} which is in none of {}. Install a CUDA toolkit, 12.0 or newer \
             (https://developer.nvidia.com/cuda-downloads, or the Python packages \
             cuda-toolkit[nvcc,cudart,cccl,crt,nvvm]), and set CUDA_HOME to its folder",
            places.join(", ")
        )
    })
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
        .map_err(|error| format!("bindgen cannot read c/include/epwire.h: {error}"))?;
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
