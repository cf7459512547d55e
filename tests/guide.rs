//! The guide for operators is correct: it has every error text of adapters, and its commands are those of real
//! programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod example;

use std::fs;
use std::process::Command;

use epwire::env::VARIABLES;

const OPERATORS: &str = include_str!("../src/guide/operators.rs");
const ADAPTER: &str = include_str!("../src/guide/adapter.rs");
const FIRST_RUN: &str = include_str!("../src/guide/first_run.rs");
const PROGRAMS: &str =
    concat!(include_str!("../src/guide/programs.md"), include_str!("../src/guide/benchmarking.md"));

/// The text of a page.
fn page(source: &str) -> String {
    source
        .lines()
        .map(|line| line.trim_start_matches("//!").trim_start_matches(' ').to_owned() + "\n")
        .collect()
}

/// The string literals of a C source; adjacent literals are joined.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut text = String::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '/', ';', ',', ')', ':', '\'', '#']) {
        let (mark, behind) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = match mark {
            b'"' => {
                let end =
                    behind.match_indices('"').map(|(end, _)| end).find(|end| !behind[..*end].ends_with('\\'));
                let end = end.expect("a literal ends");
                text += &behind[..end].replace("\\\"", "\"");
                &behind[end + 1..]
            }
            b'/' if behind.starts_with('*') => behind.split_once("*/").expect("a comment ends").1,
            b'#' => behind.split_once('\n').unwrap_or_default().1,
            b'\'' => behind.split_once('\'').unwrap_or_default().1,
            _ => behind,
        };
        if mark != b'"' && mark != b'/' && !text.is_empty() {
            found.push(std::mem::take(&mut text));
        }
    }
    found
}

/// The parts between the values that are filled in, as far as they say something.
fn parts(format: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        *parts.last_mut().unwrap() += before;
        let end =
            behind.find(|c: char| c.is_ascii_alphabetic() && !"lz".contains(c)).map_or(0, |end| end + 1);
        rest = &behind[end..];
        parts.push(String::new());
    }
    *parts.last_mut().unwrap() += rest;
    let marks = [' ', ',', ';', ':', '.', '"', '(', ')'];
    let parts = parts.into_iter().map(|part| part.trim_matches(marks).to_owned());
    parts.filter(|part| part.len() >= 4).collect()
}

/// Whether a line of the page quotes the text: has all its parts, in order, in one pair of backticks.
fn quotes(page: &str, parts: &[String]) -> bool {
    let mut quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.any(|mut rest| {
        parts.iter().all(|part| match rest.split_once(part.as_str()) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    })
}

#[test]
fn literals_are_put_together_and_parted_at_what_is_filled_in() {
    let found = literals(
        "#include \"x\"\n/* \"no\" */ f(a, \"one \"\n  \"two %u three, %s\", 'c', \"last \\\"%d\\\" one\", b ? \"this\" : \"that\");",
    );
    assert_eq!(found, ["one two %u three, %s", "last \"%d\" one", "this", "that"]);
    assert_eq!(parts("first %u and second, %s"), ["first", "and second"]);
    assert_eq!(parts("%s does not register %llu bytes%s"), ["does not register", "bytes"]);
}

#[test]
fn a_text_is_quoted_where_all_its_parts_are_in_order() {
    let page = "| `NAME takes 5 bytes of 8`, `it is full` | do |\n| `of 7` | NAME takes |";
    assert!(quotes(page, &parts("%s takes %u bytes of %u")));
    assert!(!quotes(page, &parts("bytes that %s takes")));
    assert!(!quotes(page, &parts("%s takes %u bytes: it is full")));
    assert!(!quotes(page, &parts("%s takes %u rows of %u")));
}

/// Texts that nobody meets: a label, and what fabrics do not ask links for.
const UNSEEN: [&str; 5] = [
    "epwire link handshake",
    "the peer to dial is %u, ranks are below %d",
    "rank is %u, ranks are below %d",
    "%u addresses to listen on, %d at most",
    "both addresses and the interface filter \"%s\" are given; give one of them",
];

/// A source without its static assertions, whose texts only a compiler shows.
fn without_assertions(source: &str) -> String {
    let mut pieces = source.split("_Static_assert(");
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |kept, piece| kept + piece.split_once(");").expect("an assertion ends").1)
}

#[test]
fn every_error_of_adapters_is_explained() {
    let page = page(OPERATORS);
    let (mut count, mut unseen, mut missing) = (0, 0, Vec::new());
    let commands = ["ask", "attend", "events", "library", "open", "pair", "probe", "registers", "watch"];
    let of_commands = commands.map(|file| format!("c/nic/mlx5/{file}.c"));
    let others = [
        "c/device/cuda_registers.c",
        "c/nic/auth.c",
        "c/nic/end.c",
        "c/nic/fabric.c",
        "c/nic/handshake.c",
        "c/nic/interfaces.c",
        "c/nic/link.c",
        "c/nic/listen.c",
        "c/nic/probe.c",
        "c/nic/soft/carry.c",
        "c/nic/verbs/library.c",
        "c/nic/verbs/probe.c",
        "c/peer/remote.c",
    ];
    for file in of_commands.into_iter().chain(others.map(str::to_owned)) {
        let source = without_assertions(&fs::read_to_string(&file).unwrap());
        let texts = literals(&source).into_iter().filter(|text| text.len() >= 16 && text.contains(' '));
        for text in texts {
            count += 1;
            if UNSEEN.contains(&text.as_str()) {
                unseen += 1;
            } else if !quotes(&page, &parts(&text)) {
                missing.push(format!("{file}: {text}"));
            }
        }
    }
    assert!(missing.is_empty(), "of these the page for operators says nothing:\n{}", missing.join("\n"));
    assert_eq!(unseen, UNSEEN.len(), "texts that are gone from the sources");
    assert!(count > 100, "only {count} texts were found");
}

/// The lines of shell blocks, with continuation lines joined.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    blocks.flat_map(|block| block.lines()).map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

/// Variables whose values are names that appear in their text.
const NAMED: [&str; 5] = ["EPWIRE_NIC", "EPWIRE_RINGS", "EPWIRE_DOORBELLS", "EPWIRE_PATHS", "EPWIRE_ORDER"];

fn check_variable(word: &str, command: &str) {
    let (name, value) = word.split_once('=').unwrap();
    let variable = VARIABLES.iter().find(|variable| variable.name == name);
    let variable = variable.unwrap_or_else(|| panic!("there is no {name}: {command}"));
    if NAMED.contains(&name) {
        let texts = [variable.doc, variable.default].concat();
        assert!(texts.contains(&format!("`{value}`")), "{name} takes no {value}: {command}");
    }
}

#[test]
fn commands_are_those_of_programs_with_their_options() {
    let mut count = 0;
    for command in [OPERATORS, FIRST_RUN].iter().flat_map(|source| commands(&page(source))) {
        let mut words = command.split_whitespace().peekable();
        words.next_if_eq(&"export");
        while let Some(word) = words.next_if(|word| word.starts_with("EPWIRE_")) {
            check_variable(word, &command);
        }
        let Some(first) = words.next() else { continue };
        assert_eq!(first, "cargo", "{command}");
        let (own, options): (Vec<&str>, Vec<&str>) = match command.split_once(" -- ") {
            Some((own, options)) => (own.split_whitespace().collect(), options.split_whitespace().collect()),
            None => (command.split_whitespace().collect(), Vec::new()),
        };
        if let Some(at) = own.iter().position(|word| *word == "--example") {
            let name = own[at + 1];
            let source = ["main.rs", ".rs"]
                .map(|end| format!("examples/{name}{}{end}", if end == ".rs" { "" } else { "/" }));
            assert!(source.iter().any(|path| fs::exists(path).unwrap()), "no example {name}: {command}");
        }
        for option in options.iter().filter(|word| word.starts_with("--")) {
            let mut listed = PROGRAMS.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            assert!(listed.any(|word| word == *option), "{option} is no option: {command}");
            count += 1;
        }
    }
    assert!(count > 15, "only {count} options were found");
}

/// The page on the first run on an adapter quotes the doctor's rehearsal.
#[test]
fn the_rehearsal_ends_as_the_page_says() {
    let page = page(FIRST_RUN);
    let expected = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let doctor = example::build("doctor");
    let said = Command::new(doctor).env("EPWIRE_NIC", "fake").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let said = lines(&said);
    for line in lines(expected) {
        assert!(said.contains(&line), "the doctor does not say {line:?}: {said:#?}");
    }
}

/// The witnesses' findings about one command or entry: which of our fields each of them confirms.
#[derive(Default)]
struct Row {
    what: String,
    ours: Vec<String>,
    /// Of each of `WITNESSES`.
    agreed: [Vec<String>; 5],
}

const WITNESSES: [&str; 5] = ["rdma-core", "ucx", "dpdk", "gpunetio", "ibgda"];

/// The rows of findings in `tests/nic/witness`, without fields that are not ours. Commands for both kinds of port are
/// one row.
fn rows(findings: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in findings.lines() {
        let finding = line.split("  # ").next().unwrap();
        let mut words = finding.splitn(4, ' ');
        let [who, what, field, verdict] = [(); 4].map(|()| words.next().unwrap_or_default());
        let ours = ["agrees", "ours alone"].contains(&verdict) || verdict.starts_with("differs");
        if !ours || !field.contains('.') || field.starts_with("effect.") {
            continue;
        }
        let completion = field.starts_with("completion.");
        let what = if completion { "completions" } else { what.split('/').next().unwrap() };
        if rows.iter().all(|row| row.what != what) {
            rows.push(Row { what: what.to_owned(), ..Row::default() });
        }
        let row = rows.iter_mut().find(|row| row.what == what).unwrap();
        let add = |fields: &mut Vec<String>| {
            if !fields.iter().any(|known| known == field) {
                fields.push(field.to_owned());
            }
        };
        add(&mut row.ours);
        if verdict == "agrees" {
            add(&mut row.agreed[WITNESSES.iter().position(|witness| *witness == who).expect("a witness")]);
        }
    }
    rows
}

impl Row {
    /// The last six columns of the page's table.
    fn columns(&self) -> String {
        let count = |fields: &[String]| match fields.len() {
            0 => "none".to_owned(),
            count => format!("{count} of {}", self.ours.len()),
        };
        let nobody: Vec<String> = self
            .ours
            .iter()
            .filter(|field| !self.agreed.iter().any(|fields| fields.contains(field)))
            .map(|field| format!("`{field}`"))
            .collect();
        let nobody = if nobody.is_empty() { "none".to_owned() } else { nobody.join(", ") };
        format!("| {} | {nobody} |", self.agreed.each_ref().map(|fields| count(fields)).join(" | "))
    }
}

#[test]
fn findings_are_counted_by_field() {
    let findings = "a CREATE_QP x.y theirs alone: 1  # why\nucx CREATE_QP q.a agrees\nrdma-core CREATE_QP q.a ours alone  # why\n\
        nobody RTS2RTS c.b ours alone\nucx INIT2RTR/RoCE q.c agrees\nucx INIT2RTR/InfiniBand q.c agrees\n\
        dpdk CREATE_CQ c.b agrees\ndpdk CREATE_CQ effect.number agrees\n\
        ucx INIT2RTR/RoCE fake takes\nrdma-core WRITE effect.bytes agrees\nrdma-core INIT2RTR q.d differs: 1, ours 2  # why\n\
        gpunetio NOP c.a agrees\nibgda NOP c.b agrees";
    let columns: Vec<_> = rows(findings).iter().map(|row| row.what.clone() + " " + &row.columns()).collect();
    assert_eq!(
        columns,
        [
            "CREATE_QP | none | 1 of 1 | none | none | none | none |",
            "RTS2RTS | none | none | none | none | none | `c.b` |",
            "INIT2RTR | none | 1 of 2 | none | none | none | `q.d` |",
            "CREATE_CQ | none | none | 1 of 1 | none | none | none |",
            "NOP | none | none | none | 1 of 2 | 1 of 2 | none |"
        ]
    );
}

/// The page on what confirms the bytes agrees with the witnesses' findings, which CI reproduces; those of device code
/// only where it has a GPU.
#[test]
fn who_confirms_what_is_as_the_witnesses_say() {
    let page = page(ADAPTER);
    let files = ["findings", "findings_gpu"].map(|name| format!("tests/nic/witness/{name}.txt"));
    let rows = rows(&files.map(|file| fs::read_to_string(file).unwrap()).concat());
    assert!(rows.len() > 15, "only {} were found", rows.len());
    for row in &rows {
        let begins = format!("| {} |", row.what);
        let line = page.lines().find(|line| line.starts_with(&begins));
        let line = line.unwrap_or_else(|| panic!("no row of {}; it ends with {}", row.what, row.columns()));
        assert!(
            line.ends_with(&row.columns()),
            "the row of {} does not end with {}",
            row.what,
            row.columns()
        );
    }
    let tables = page.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 8);
    let listed = tables.map(|line| line.split('|').nth(1).unwrap().trim());
    let unknown: Vec<_> =
        listed.filter(|what| *what != "what" && rows.iter().all(|row| row.what != *what)).collect();
    assert!(unknown.is_empty(), "the guide lists {unknown:?}, which the sources do not");
}
