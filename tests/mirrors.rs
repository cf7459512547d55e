//! Structs that the fuzz targets copy from C have the same fields in the same order, with types of the same size.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(path.to_str().unwrap(), ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found
}

/// The text without the parts between these marks.
fn without(text: &str, from: &str, to: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(from) {
        out += before;
        rest = behind.split_once(to).map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// The fields of a C struct's body, `type, type of pointer or array, name`: a name, and the size of its type if that is
/// a number, a bool or a pointer.
fn c_fields(body: &str) -> Vec<(String, Option<usize>)> {
    let mut fields = Vec::new();
    for declaration in without(body, "/*", "*/")
        .replace("unsigned char", "char")
        .split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        if let Some((_, behind)) = declaration.split_once("(*") {
            fields.push((behind.split_once(')').unwrap().0.to_owned(), Some(8)));
            continue;
        }
        let at = declaration.find(|c: char| c.is_whitespace() || c == '*').unwrap();
        let (kind, names) = match declaration.strip_prefix("const ").or(declaration.strip_prefix("struct ")) {
            Some(rest) => rest.split_at(rest.find(|c: char| c.is_whitespace() || c == '*').unwrap()),
            None => declaration.split_at(at),
        };
        for name in names.split(',').map(str::trim) {
            let plain = match kind {
                "bool" | "uint8_t" | "char" => Some(1),
                "uint16_t" => Some(2),
                "uint32_t" | "int32_t" | "int" => Some(4),
                "uint64_t" | "size_t" => Some(8),
                _ => None,
            };
            let bytes = if name.starts_with('*') {
                Some(8)
            } else if name.contains('[') {
                None
            } else {
                plain
            };
            fields.push((name.trim_start_matches('*').split('[').next().unwrap().to_owned(), bytes));
        }
    }
    fields
}

fn rust_fields(body: &str) -> Vec<(String, Option<usize>)> {
    let mut fields = Vec::new();
    let mut text = String::new();
    let mut depth = 0;
    for c in
        (body.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<String>() + ",").chars()
    {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                if let Some((name, kind)) = text.split_once(':') {
                    let bytes = match kind.trim() {
                        "bool" | "u8" => Some(1),
                        "u16" => Some(2),
                        "u32" | "i32" | "c_int" => Some(4),
                        "u64" | "usize" => Some(8),
                        kind if kind.starts_with('*') => Some(8),
                        _ => None,
                    };
                    let name = name.trim().rsplit(' ').next().unwrap().trim_start_matches("r#");
                    fields.push((name.to_owned(), bytes));
                }
                text.clear();
                continue;
            }
            _ => {}
        }
        text.push(c);
    }
    fields
}

/// Struct bodies of C by name, which two parts of it may use.
fn structs_of_c() -> BTreeMap<String, Vec<String>> {
    let mut structs = BTreeMap::<_, Vec<_>>::new();
    for text in files("c", "h").iter().chain(&files("c", "c")).map(|path| fs::read_to_string(path).unwrap()) {
        for part in text.split("typedef struct ").skip(1) {
            let Some((name, behind)) = part.split_once(" {\n") else { continue };
            if let Some((body, _)) = behind.split_once("\n}")
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            {
                structs.entry(name.to_owned()).or_default().push(body.to_owned());
            }
        }
    }
    structs
}

#[test]
fn fields_are_read_of_both_languages() {
    let c = "    uint32_t a,\n        b; /* x; y */\n    char path[4];\n    void (*call)(int c);\n    const char *text;";
    let expected = [("a", Some(4)), ("b", Some(4)), ("path", None), ("call", Some(8)), ("text", Some(8))];
    let expected = expected.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec();
    assert_eq!(c_fields(c), expected);
    let rust = "    pub a: u32,\n    /// One, two.\n    b: i32,\n    path: [u8; 4],\n    call: *const c_void,\n    text: *mut u8,\n";
    assert_eq!(rust_fields(rust), expected);
}

#[test]
fn structs_of_the_fuzz_targets_are_those_of_c() {
    let structs = structs_of_c();
    let mut count = 0;
    for path in files("tests/fuzz/src", "rs").iter().chain(&files("tests/fuzz/fuzz_targets", "rs")) {
        let text = fs::read_to_string(path).unwrap();
        for part in text.split("#[repr(C)]").collect::<Vec<_>>().windows(2) {
            let Some((_, name)) = part[0].rsplit_once("`epw_") else { continue };
            let Some((name, "")) =
                name.split_once('`').map(|(name, rest)| (name, rest.trim_matches(['.', '\n'])))
            else {
                continue;
            };
            let body = part[1].split_once("{\n").unwrap().1.split_once("\n}").unwrap().0;
            let of_c = structs.get(&format!("epw_{name}")).unwrap_or_else(|| panic!("C has no epw_{name}"));
            let rust = rust_fields(body);
            let names = |fields: &[(String, Option<usize>)]| -> Vec<String> {
                fields.iter().map(|(name, _)| name.clone()).collect()
            };
            let all: Vec<_> = of_c.iter().map(|body| c_fields(body)).collect();
            let c = all.iter().find(|fields| names(fields) == names(&rust));
            let place = path.display();
            let c = c.unwrap_or_else(|| panic!("epw_{name} in {place} is not as in C: {:?}", all[0]));
            for ((field, c), (_, rust)) in c.iter().zip(&rust) {
                if let (Some(c), Some(rust)) = (c, rust) {
                    assert_eq!(c, rust, "bytes of epw_{name}.{field}");
                }
            }
            count += 1;
        }
    }
    assert!(count >= 12, "only {count} were found");
}
