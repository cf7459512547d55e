//! `--compare`: two runs case by case.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};

use crate::Error;
use crate::print::print;
use crate::report::{Row, us};

/// Prints both. Fails if a case of the second is slower than the tolerance (in percent) allows or is missing, or if any of
/// its cases is wrong, even one that the first lacks.
pub fn compare(files: &[PathBuf], tolerance: f64) -> Result<ExitCode, Error> {
    let [old, new] = files else { return Err("--compare takes two files".into()) };
    let (old, new) = (read(old)?, read(new)?);
    let pairs = pairs(&old, &new)?;
    print(&table(&pairs))?;
    let mut bad: Vec<_> = new.iter().filter_map(wrong).collect();
    bad.extend(pairs.iter().filter_map(|(old, new)| slower(old, new, tolerance)));
    bad.extend(missing(&old, &new));
    for line in &bad {
        print(line)?;
    }
    Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(file: &Path) -> Result<Vec<Row>, Error> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    rows(&text).map_err(|e| format!("{} {e}", file.display()).into())
}

/// One in each line, each of another case.
fn rows(text: &str) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for (i, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let row = serde_json::from_str(line).map_err(|e| format!("line {i}: {e}"))?;
        if rows.iter().any(|other| same(other, &row)) {
            return Err(format!("line {i}: repeats {}, {} tokens", row.name(), row.tokens));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Whether both are of one case.
pub fn same(a: &Row, b: &Row) -> bool {
    (a.name(), a.tokens, a.device) == (b.name(), b.tokens, b.device)
}

/// A line for each case that only the older file has: what is not measured any more may have become slower.
fn missing(old: &[Row], new: &[Row]) -> Vec<String> {
    let gone = old.iter().filter(|a| !new.iter().any(|b| same(a, b)));
    gone.map(|row| format!("MISSING: {}, {} tokens: not in the newer file", row.name(), row.tokens)).collect()
}

/// The cases that are in both. An error if there are none.
fn pairs(old: &[Row], new: &[Row]) -> Result<Vec<(Row, Row)>, Error> {
    let pairs: Vec<_> =
        old.iter().filter_map(|a| new.iter().find(|b| same(a, b)).map(|b| (a.clone(), b.clone()))).collect();
    if pairs.is_empty() { Err("the two files have no case in common".into()) } else { Ok(pairs) }
}

fn wrong(row: &Row) -> Option<String> {
    (row.wrong > 0).then(|| format!("WRONG: {}, {} tokens: {} rows", row.name(), row.tokens, row.wrong))
}

fn slower(old: &Row, new: &Row, tolerance: f64) -> Option<String> {
    let percent = (new.p50_us / old.p50_us - 1.0) * 100.0;
    (percent > tolerance).then(|| {
        format!("SLOWER: {}, {} tokens: by {percent:.0} %, more than {tolerance} %", new.name(), new.tokens)
    })
}

fn table(pairs: &[(Row, Row)]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "case",
        "tokens",
        "p50 us",
        "then",
        "times",
        "floor/p50",
        "then",
        "#wrong",
        "then",
    ]);
    for (old, new) in pairs {
        table.add_row([
            new.name(),
            new.tokens.to_string(),
            us(old.p50_us),
            us(new.p50_us),
            format!("{:.2}", new.p50_us / old.p50_us),
            format!("{:.2}", old.ratio),
            format!("{:.2}", new.ratio),
            old.wrong.to_string(),
            new.wrong.to_string(),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Case;
    use crate::report::Asked;
    use crate::report::tests::row;

    #[test]
    fn cases_are_matched_by_everything_but_their_figures() {
        let old = [row(Case::Dispatch, 1, 1.0, 0), row(Case::Pair, 1, 2.0, 0), row(Case::Pair, 2, 3.0, 0)];
        let new = [row(Case::Pair, 2, 6.0, 0), row(Case::Combine, 1, 5.0, 0)];
        let found = pairs(&old, &new).unwrap();
        assert_eq!(found, [(old[2].clone(), new[0].clone())]);
        assert!(table(&found).to_string().contains("2.00"));
        let gone = missing(&old, &new);
        assert!(
            gone.len() == 2 && gone[0].starts_with("MISSING: dispatch ") && gone[1].contains("1 tokens"),
            "{gone:?}"
        );
        assert!(missing(&old[2..], &new).is_empty(), "what only the newer one has is no loss");
        assert!(pairs(&old[..1], &new).is_err());
    }

    #[test]
    fn slower_than_the_tolerance_or_wrong_is_complained_about() {
        let old = row(Case::Pair, 1, 100.0, 0);
        assert_eq!(slower(&old, &row(Case::Pair, 1, 109.0, 0), 10.0), None);
        assert!(slower(&old, &row(Case::Pair, 1, 112.0, 0), 10.0).unwrap().contains("12 %"));
        assert!(wrong(&row(Case::Pair, 1, 50.0, 7)).unwrap().contains("7 rows"));
        assert_eq!(wrong(&old), None);
    }

    fn lines(rows: &[Row]) -> String {
        rows.iter().map(|row| format!("{}\n", serde_json::json!(row))).collect()
    }

    #[test]
    fn a_case_that_only_the_newer_file_has_must_be_right_too() {
        let folder = std::env::temp_dir().join(format!("epwire-bench-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let ended = |more: &Row| {
            let old = row(Case::Pair, 1, 1.0, 0);
            let files = ["old", "new"].map(|name| folder.join(name));
            std::fs::write(&files[0], lines(std::slice::from_ref(&old))).unwrap();
            std::fs::write(&files[1], lines(&[old, more.clone()])).unwrap();
            format!("{:?}", compare(&files, 10.0).unwrap())
        };
        assert_eq!(ended(&row(Case::Combine, 1, 1.0, 0)), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(ended(&row(Case::Combine, 1, 1.0, 7)), format!("{:?}", ExitCode::FAILURE));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_repeated_case_is_an_error_and_one_of_other_options_is_another() {
        let (once, twice) = (row(Case::Pair, 8, 1.0, 0), row(Case::Pair, 8, 2.0, 0));
        let text = rows(&lines(&[once.clone(), twice])).unwrap_err();
        assert!(text.starts_with("line 2: repeats pair ") && text.ends_with(", 8 tokens"), "{text}");
        for asked in [
            Asked { absent: 1, ..Asked::default() },
            Asked { ring: 64, ..Asked::default() },
            Asked { threads: 2, ..Asked::default() },
        ] {
            let other = Row { asked, ..once.clone() };
            assert_eq!(rows(&lines(&[once.clone(), other])).unwrap().len(), 2, "{asked:?}");
        }
    }
}
