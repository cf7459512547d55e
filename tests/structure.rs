//! The structure of the source: dependencies between modules, folders and files point in one direction.

// Failing is what a test is for.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each node, the nodes that it refers to.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A circle in the graph, its first member repeated at the end; `None` if there is none.
fn circle(graph: &Graph) -> Option<Vec<&str>> {
    fn visit<'g>(
        graph: &'g Graph,
        node: &'g str,
        way: &mut Vec<&'g str>,
        done: &mut BTreeSet<&'g str>,
    ) -> Option<Vec<&'g str>> {
        if let Some(at) = way.iter().position(|passed| *passed == node) {
            return Some(way[at..].iter().copied().chain([node]).collect());
        }
        if !done.insert(node) {
            return None;
        }
        way.push(node);
        let found = graph.get(node).into_iter().flatten().find_map(|next| visit(graph, next, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|node| visit(graph, node, &mut Vec::new(), &mut done))
}

fn graph(arrows: &[(&str, &str)]) -> Graph {
    let mut graph = Graph::new();
    for (from, to) in arrows {
        graph.entry((*from).into()).or_default().insert((*to).into());
    }
    graph
}

#[test]
fn circles_are_found() {
    assert_eq!(circle(&graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])), None);
    assert_eq!(circle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])), Some(vec!["b", "c", "b"]));
    assert_eq!(circle(&graph(&[("a", "a")])), Some(vec!["a", "a"]));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The files below a folder of the repository with one of these endings, by path from it.
fn files(folder: &str, endings: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(folder)];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
                let name = path.strip_prefix(root().join(folder)).unwrap().to_string_lossy().into_owned();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

mod rust {
    use super::{BTreeMap, Graph, circle, files};

    /// The module path: `a::b` for `src/a/b.rs` and `src/a/b/mod.rs`; empty for `src/lib.rs`.
    fn module(file: &str) -> String {
        let path = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        if path == "lib" { String::new() } else { path }
    }

    /// The code that is compiled outside tests: without comments, and without the test module, which comes last in a
    /// file.
    fn code(text: &str) -> String {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join(" ")
    }

    /// The paths that follow each `prefix` in the code: with the prefix `crate::`, both of `crate::{a::B, c}`.
    fn paths(code: &str, prefix: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for (at, _) in code.match_indices(prefix) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                tree(&code[at + prefix.len()..], &mut Vec::new(), &mut found);
            }
        }
        found
    }

    /// Reads one path, or a group of them in braces, and returns what follows.
    fn tree<'t>(text: &'t str, way: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
        let text = text.trim_start();
        if let Some(mut rest) = text.strip_prefix('{') {
            loop {
                rest = tree(rest, way, found).trim_start();
                match rest.strip_prefix(',') {
                    Some(more) if !more.trim_start().starts_with('}') => rest = more,
                    Some(more) => return more.trim_start().strip_prefix('}').unwrap(),
                    None => return rest.strip_prefix('}').unwrap_or(rest),
                }
            }
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        way.push(name.to_owned());
        let rest = match rest.strip_prefix("::") {
            Some(more) if more.starts_with(|c: char| c.is_alphabetic() || "_{".contains(c)) => {
                tree(more, way, found)
            }
            _ => {
                found.push(way.clone());
                rest.trim_start().strip_prefix("as ").map_or(rest, |alias| {
                    alias.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
                })
            }
        };
        way.pop();
        rest
    }

    #[test]
    fn paths_are_read_in_groups_too() {
        let found = |code| paths(code, "crate::").iter().map(|path| path.join("/")).collect::<Vec<_>>();
        assert_eq!(
            found("use crate::{a::{B, c::D}, e as f, G}; x(crate::h::I)"),
            ["a/B", "a/c/D", "e", "G", "h/I"]
        );
        assert_eq!(found("use other_crate::a; $crate::b::c!()"), ["b/c"]);
    }

    /// Code of every module.
    fn modules() -> BTreeMap<String, String> {
        let own = |file: &str| !file.starts_with("sys/bindings") && !file.ends_with("tests.rs");
        let files = files("src", &[".rs"]).into_iter().filter(|(file, _)| own(file));
        files.map(|(file, text)| (module(&file), code(&text))).collect()
    }

    /// The module named `name` in another.
    fn inside(parent: &str, name: &str) -> String {
        if parent.is_empty() { name.to_owned() } else { format!("{parent}::{name}") }
    }

    /// Dependencies between modules: each module uses those that it declares, and those that its paths name. A path to
    /// an item leads to the module in the path, even if that re-exports it: modules inside that module must name the
    /// file that defines the item.
    fn arrows(modules: &BTreeMap<String, String>) -> Graph {
        let mut graph = Graph::new();
        for (module, code) in modules {
            let parent = |of: &str| of.rsplit_once("::").map_or("", |(parent, _)| parent).to_owned();
            let mut to = |mut at: String, path: &[String]| {
                for name in path {
                    let next = if name == "super" { parent(&at) } else { inside(&at, name) };
                    if !modules.contains_key(&next) {
                        break;
                    }
                    at = next;
                }
                if at != *module {
                    graph.entry(module.clone()).or_default().insert(at);
                }
            };
            paths(code, "crate::").iter().for_each(|path| to(String::new(), path));
            paths(code, "super::").iter().for_each(|path| to(parent(module), path));
            for declared in modules.keys().filter(|inner| !inner.is_empty() && parent(inner) == *module) {
                to(declared.clone(), &[]);
            }
        }
        graph
    }

    #[test]
    fn a_circle_of_a_module_and_one_inside_it_is_found() {
        let modules = |inner: &str| {
            let code = [("", "mod a;"), ("a", "mod b; use b::B; struct A;"), ("a::b", inner), ("a::c", "")];
            code.map(|(module, code)| (module.to_owned(), code.to_owned())).into()
        };
        for upwards in
            ["use super::A;", "use crate::a::{A, c::C};", "use super::super::a::A;", "use crate::A;"]
        {
            assert!(circle(&arrows(&modules(upwards))).is_some(), "{upwards}");
        }
        assert_eq!(circle(&arrows(&modules("use super::c::C; use crate::a::c::D;"))), None);
    }

    #[test]
    fn top_level_modules_have_no_circle() {
        let top = |module: &str| module.split("::").next().unwrap().to_owned();
        let mut graph = Graph::new();
        for (from, to) in arrows(&modules()) {
            let others = to.iter().map(|to| top(to)).filter(|to| *to != top(&from));
            graph.entry(top(&from)).or_default().extend(others);
        }
        assert!(graph.len() > 10 && graph["buffer"].contains("ffi"), "{graph:#?}");
        assert_eq!(circle(&graph), None, "{graph:#?}");
    }

    #[test]
    fn files_of_a_module_have_no_circle() {
        let graph = arrows(&modules());
        assert!(graph["buffer::dispatched"].contains("buffer::operation"), "{graph:#?}");
        assert!(graph["rendezvous::machine"].contains("rendezvous::machine::store"), "{graph:#?}");
        assert_eq!(circle(&graph), None, "{graph:#?}");
    }
}

mod c {
    use super::{Graph, circle, files};

    /// Folders of `c/`, from low to high; folders in one line do not use each other. `include/epwire.h` is below all of
    /// them.
    const C: &[&[&str]] = &[
        &["include"],
        &["base"],
        &["numerics", "device"],
        &["ipc"],
        &["window"],
        &["nic"],
        &["peer"],
        &["ep", "coll"],
        &["prefill"],
    ];
    /// Folders of `kernels/`; the files beside them are the last line.
    const KERNELS: &[&[&str]] = &[&["ptx"], &["numerics", "peer"], &["ep", "prefill", "coll"], &[""]];
    /// What kernels may include from `c/`.
    const SHARED: &[&str] = &[
        "c/base/",
        "c/nic/completion.h",
        "c/nic/doorbell.h",
        "c/nic/entry.h",
        "c/nic/order.h",
        "c/nic/queue.h",
        "c/nic/syndrome.h",
        "c/peer/words.h",
        "c/peer/rules.h",
        "c/ep/layout.h",
        "c/ep/report.h",
        "c/prefill/gate.h",
        "c/prefill/lane_sms.h",
        "c/prefill/layout.h",
        "c/prefill/rules.h",
        "c/include/epwire.h",
    ];

    /// Files by path from the repository's root.
    fn texts() -> std::collections::BTreeMap<String, String> {
        let mut texts = std::collections::BTreeMap::new();
        for (folder, endings) in [("c", &[".c", ".h", ".inc"][..]), ("kernels", &[".cu", ".cuh", ".h"])] {
            texts.extend(
                files(folder, endings).into_iter().map(|(name, text)| (format!("{folder}/{name}"), text)),
            );
        }
        texts
    }

    /// Files, and the files that they include in quotes. Each name must belong to one file only.
    fn includes() -> Graph {
        let texts = texts();
        let mut graph = Graph::new();
        for (file, text) in &texts {
            let own = file.rsplit_once('/').unwrap().0;
            for line in text.lines() {
                let Some(rest) = line.trim_start().strip_prefix("#include \"") else { continue };
                let name = rest.split('"').next().unwrap();
                // The order in which the compiler searches.
                let roots: &[&str] = match file.starts_with("kernels") {
                    true => &[own, "", "c", "c/include"],
                    false => &[own, "c", "c/include", ""],
                };
                let found: std::collections::BTreeSet<_> = roots
                    .iter()
                    .map(|root| plain(&format!("{root}/{name}")))
                    .filter(|path| texts.contains_key(path))
                    .collect();
                assert_eq!(found.len(), 1, "{file} includes {name}, which is {found:?}");
                let to = found.into_iter().next().unwrap();
                graph.entry(file.clone()).or_default().insert(to);
            }
        }
        graph
    }

    /// The path without `..`.
    fn plain(path: &str) -> String {
        let mut plain = Vec::new();
        for part in path.split('/') {
            match part {
                ".." => drop(plain.pop()),
                "" => (),
                part => plain.push(part),
            }
        }
        plain.join("/")
    }

    /// The folder of a file below `c/` or `kernels/`, empty for one beside the folders.
    fn folder(file: &str) -> &str {
        file.split_once('/').unwrap().1.split_once('/').map_or("", |(folder, _)| folder)
    }

    /// The line of a folder; a folder in no line is an error.
    fn level(layers: &[&[&str]], folder: &str) -> Option<usize> {
        layers.iter().position(|line| line.contains(&folder))
    }

    fn wrong(from: &str, to: &str) -> bool {
        let (kernel, into_kernel) = (from.starts_with("kernels"), to.starts_with("kernels"));
        match (kernel, into_kernel) {
            (true, false) => !SHARED.iter().any(|shared| to.starts_with(shared)),
            // Arguments of kernels are declared next to the kernels: those of the peer floor in the floor.
            (false, true) => match folder(from) {
                "peer" => folder(to) != "peer",
                from => !["ep", "coll", "prefill"].contains(&from),
            },
            _ => {
                let layers = if kernel { KERNELS } else { C };
                let (a, b) = (folder(from), folder(to));
                a != b
                    && match (level(layers, a), level(layers, b)) {
                        (Some(a), Some(b)) => b >= a,
                        _ => true,
                    }
            }
        }
    }

    #[test]
    fn arrows_of_c_and_kernels_point_down() {
        let graph = includes();
        let arrows =
            graph.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())));
        let wrong: Vec<String> =
            arrows.filter(|(from, to)| wrong(from, to)).map(|(from, to)| format!("{from} -> {to}")).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// A source of `c/` and its header are one unit; kernels include only headers of the host.
    fn unit(file: &str) -> &str {
        let source = file.strip_suffix(".c").or_else(|| file.strip_suffix(".h"));
        source.filter(|_| file.starts_with("c/")).unwrap_or(file)
    }

    #[test]
    fn files_of_c_and_kernels_have_no_circle() {
        let mut units = Graph::new();
        for (from, to) in includes().iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
            if unit(from) != unit(to) {
                units.entry(unit(from).to_owned()).or_default().insert(unit(to).to_owned());
            }
        }
        assert_eq!(circle(&units), None);
    }

    #[test]
    fn inline_ptx_is_in_its_folder() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut found = Vec::new();
        for (file, text) in texts() {
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap();
                let writes =
                    code.split(|c| !is_word(c)).any(|word| ["asm", "__asm__", "__asm"].contains(&word));
                if file.starts_with("kernels/") && writes {
                    found.push((file.clone(), format!("{file}:{}: {line}", number + 1)));
                }
            }
        }
        assert!(found.iter().any(|(file, _)| file == "kernels/ptx/number.cuh"), "{found:#?}");
        found.retain(|(file, _)| !file.starts_with("kernels/ptx/"));
        assert!(found.is_empty(), "{found:#?}");
    }

    /// Whether the code names a member of a struct.
    fn names_member(code: &str, member: &str) -> bool {
        let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
        [".", "->"].iter().any(|arrow| {
            let name = format!("{arrow}{member}");
            code.match_indices(&name).any(|(at, _)| !code[at + name.len()..].starts_with(part_of_name))
        })
    }

    #[test]
    fn members_are_told_from_longer_names() {
        assert!(names_member("peers->table[area]", "table") && names_member("f(peers.table)", "table"));
        assert!(!names_member("a.table_size + table[0]", "table"));
    }

    /// What a peer writes is written and read in one place: nothing above the peer floor knows where a word lies, loads
    /// or stores one, or looks up a peer in a table of reached peers; nor does anything copy words to or from GPU
    /// memory, which host threads cannot access. What announces rows is copied next to the words, never stored by
    /// atomics.
    #[test]
    fn words_of_peers_are_the_floors_alone() {
        let inside = ["c/peer/", "c/base/", "kernels/peer/", "kernels/ptx/"];
        let words = [
            "epw_line",
            "epw_lane_words",
            "epw_word_offset",
            "words_from(",
            "beacon_from(",
            "word_at(",
            "_sys(",
            "__threadfence_system",
            "routes[",
        ];
        let mut found = Vec::new();
        for (file, text) in texts() {
            if inside.iter().any(|folder| file.starts_with(folder)) {
                continue;
            }
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap();
                if words.iter().any(|word| code.contains(word))
                    || code.contains("atomic") && code.contains("_system")
                    || code.contains("epw_control_at(") && !code.contains("memcpy(epw_control_at(")
                    || names_member(code, "table")
                {
                    found.push(format!("{file}:{}: {line}", number + 1));
                }
            }
        }
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// The lists of files in the guide for developers, against the tree.
mod guide {
    use std::fs;

    struct Step {
        path: String,
        name: String,
    }

    /// The numbered lines after a heading: "1. `path`: ... `name` ...".
    fn way(heading: &str) -> Vec<Step> {
        let guide = fs::read_to_string("src/guide/developers.rs").unwrap();
        let part = guide.split(heading).nth(1).unwrap_or_else(|| panic!("no heading {heading}"));
        let part = part.split("\n//! # ").next().unwrap();
        let lines = part.lines().filter_map(|line| line.strip_prefix("//! "));
        let numbered = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        let steps: Vec<Step> = numbered
            .enumerate()
            .map(|(i, line)| {
                assert!(line.starts_with(&format!("{}. ", i + 1)), "{line}");
                let mut quoted = line.split('`').skip(1).step_by(2).map(str::to_owned);
                let (path, name) = (quoted.next().unwrap(), quoted.next().unwrap());
                Step { path, name }
            })
            .collect();
        assert!(!steps.is_empty(), "{heading}");
        steps
    }

    #[test]
    fn files_that_the_page_names_exist() {
        let guide = fs::read_to_string("src/guide/developers.rs").unwrap();
        let quoted = guide.split('`').skip(1).step_by(2);
        let folders = ["c/", "kernels/", "src/", "tests/", "examples/"];
        let paths: Vec<_> =
            quoted.filter(|path| folders.iter().any(|folder| path.starts_with(folder))).collect();
        assert!(paths.len() > 20, "{paths:?}");
        for path in paths {
            let path = path.split(' ').next().unwrap(); // of a command
            assert!(fs::exists(path).unwrap(), "there is no {path}");
        }
    }

    fn has_word(text: &str, word: &str) -> bool {
        let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
        text.split(|c| !part_of_word(c)).any(|found| found == word)
    }

    /// Every file exists and contains the name; and each name is used by an earlier file of the list, or appears in the
    /// table of the engine that the list goes through.
    fn check(heading: &str, most: usize, first: &str, tables: &[&str]) {
        let steps = way(heading);
        assert!(steps.len() <= most, "{} files, more than {most}", steps.len());
        let text = |path: &str| fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for (i, step) in steps.iter().enumerate() {
            assert!(has_word(&text(&step.path), &step.name), "{} has no {}", step.path, step.name);
            let earlier = steps[..i].iter().map(|other| other.path.as_str());
            let mut users = earlier.chain(tables.iter().copied());
            assert!(
                step.name == first || users.any(|path| has_word(&text(path), &step.name)),
                "nobody before it on the way uses {} of {}",
                step.name,
                step.path
            );
        }
    }

    #[test]
    fn the_way_of_a_token_on_the_host_is_that_of_the_tree() {
        let tables = ["c/ep/host/engine.c", "src/buffer/dispatched.rs"];
        check("# The way of a token on the host", 14, "dispatch_blocking", &tables);
    }

    #[test]
    fn the_way_of_a_token_on_a_gpu_is_that_of_the_tree() {
        let tables = ["c/ep/gpu/engine.c", "src/buffer/dispatched.rs", "kernels/ep/shape.cuh"];
        check("# The way of a token on a GPU", 20, "enqueue_dispatch", &tables);
    }
}
