//! `--compare` of what two runs of `--collective` have written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Collective, Row, Type};
use crate::Error;
use crate::args::Device;
use crate::bytes::words;
use crate::print::print;
use crate::report::{us, word};

/// `--compare` of two files of `--collective`: `None` if one holds other rows.
pub fn compare(files: &[PathBuf], tolerance: f64) -> Result<Option<ExitCode>, Error> {
    let [old, new] = files else { return Err("--compare takes two files".into()) };
    let (Some(before), Some(after)) = (read(old)?, read(new)?) else { return Ok(None) };
    let (before, after) = (by_case(old, before)?, by_case(new, after)?);
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    let mut missing: Vec<_> = gone.map(|(_, row)| name(row)).collect();
    let (mut compared, mut bad) = (0, 0);
    for (key, row) in &after {
        let then = before.get(key);
        let places = [
            (then.map(|then| then.out_of_place), Some(row.out_of_place)),
            (then.and_then(|then| then.in_place), row.in_place),
        ];
        for (figures, place) in places.into_iter().zip(["out of place", "in place"]) {
            let what = format!("{}, {place}", name(row));
            match figures {
                (Some(then), Some(now)) => {
                    let percent = (now.p50_us / then.p50_us - 1.0) * 100.0;
                    let verdict = if now.wrong > 0 {
                        "WRONG"
                    } else if percent > tolerance {
                        "SLOWER"
                    } else {
                        "ok"
                    };
                    (compared, bad) = (compared + 1, bad + u32::from(verdict != "ok"));
                    print(&format!(
                        "{verdict:7} {what}: {} us, then {} ({percent:+.0} %)",
                        us(then.p50_us),
                        us(now.p50_us)
                    ))?;
                }
                (None, Some(now)) if now.wrong > 0 => {
                    bad += 1;
                    print(&format!("WRONG   {what}: not in the older file"))?;
                }
                (Some(_), None) => missing.push(what),
                (None, _) => {}
            }
        }
    }
    if compared == 0 {
        return Err("the two files have no case in common".into());
    }
    for name in &missing {
        print(&format!("MISSING {name}: not in the newer file"))?;
    }
    Ok(Some(if bad == 0 && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn name(row: &Row) -> String {
    let sms = if row.sms > 0 { format!(", {} SMs", row.sms) } else { String::new() };
    let engines = if row.copy_engines { ", copy engines" } else { "" };
    format!("{} {} {}{sms}{engines}", word(&row.collective), words(row.bytes), word(&row.r#type))
}

/// What tells one case from another.
type Key = (Collective, u64, Type, u32, Device, bool, u32, bool, String);

fn key(row: &Row) -> Key {
    let Row { collective, r#type, ranks, device, heap, sms, copy_engines, .. } = *row;
    let bytes = if collective == Collective::Barrier { 0 } else { row.bytes };
    (collective, bytes, r#type, ranks, device, heap, sms, copy_engines, row.reach.name(false))
}

/// The rows of a file, each of another case. Older builds measured a barrier at every size, of which the last counts.
fn by_case(file: &Path, rows: Vec<Row>) -> Result<BTreeMap<Key, Row>, Error> {
    let mut cases = BTreeMap::new();
    for row in rows {
        let name = name(&row);
        let repeats = cases.insert(key(&row), row).is_some_and(|row| row.collective != Collective::Barrier);
        if repeats {
            return Err(format!("{} repeats {name}", file.display()).into());
        }
    }
    Ok(cases)
}

fn read(file: &Path) -> Result<Option<Vec<Row>>, Error> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    Ok(lines.map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Figures;
    use crate::wire::Reach;

    fn row(p50_us: f64, wrong: u64) -> String {
        row_of(Collective::AllReduce, p50_us, wrong, false)
    }

    fn row_of(collective: Collective, p50_us: f64, wrong: u64, in_place: bool) -> String {
        serde_json::json!(row_with(collective, p50_us, wrong, in_place)).to_string()
    }

    fn row_with(collective: Collective, p50_us: f64, wrong: u64, in_place: bool) -> Row {
        let figures = Figures { p50_us, p99_us: p50_us, algorithm_gbs: 1.0, bus_gbs: 1.0, wrong };
        let r#type = Type::F32;
        Row {
            collective,
            r#type,
            ranks: 2,
            device: Device::Host,
            bytes: 8,
            heap: false,
            sms: 0,
            copy_engines: false,
            reach: Reach::default(),
            out_of_place: figures,
            copy_us: None,
            in_place: in_place.then_some(figures),
        }
    }

    #[test]
    fn a_repeated_case_is_an_error_and_one_of_other_options_is_another() {
        let row = || row_with(Collective::AllReduce, 1.0, 0, false);
        let cases = |other| by_case(Path::new("file"), vec![row(), other]).map(|cases| cases.len());
        assert_eq!(cases(row()).unwrap_err().to_string(), "file repeats all_reduce 8 f32");
        assert_eq!(cases(Row { sms: 8, ..row() }).unwrap(), 2);
        assert_eq!(cases(Row { copy_engines: true, ..row() }).unwrap(), 2);
        let barriers = [8, 16].map(|bytes| Row { bytes, ..row_with(Collective::Barrier, 1.0, 0, false) });
        assert_eq!(by_case(Path::new("file"), barriers.to_vec()).unwrap().len(), 1);
    }

    #[test]
    fn rows_that_are_slower_wrong_or_missing_are_complained_about() {
        let folder = std::env::temp_dir().join(format!("epwire-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let old = file("old", row(10.0, 0));
        let more = file("more", row(10.0, 0) + "\n" + &row_of(Collective::Reduce, 1.0, 0, false));
        let both = file("both", row_of(Collective::AllReduce, 10.0, 0, true));
        let mut wrong_in_place = row_with(Collective::AllReduce, 10.0, 0, true);
        wrong_in_place.in_place.as_mut().unwrap().wrong = 3;
        let wrong_in_place = serde_json::json!(wrong_in_place).to_string();
        for (old, new, want) in [
            (&old, row(10.5, 0), ExitCode::SUCCESS),
            (&old, row(12.0, 0), ExitCode::FAILURE),
            (&old, row(1.0, 3), ExitCode::FAILURE),
            (&old, std::fs::read_to_string(&more).unwrap(), ExitCode::SUCCESS),
            // What only the newer file has must be right: a case, and one in place.
            (&old, row(10.0, 0) + "\n" + &row_of(Collective::Reduce, 1.0, 2, false), ExitCode::FAILURE),
            (&old, wrong_in_place, ExitCode::FAILURE),
            // What the newer file lacks: a case, and one in place.
            (&more, row(10.0, 0), ExitCode::FAILURE),
            (&both, row(10.0, 0), ExitCode::FAILURE),
        ] {
            let ended = compare(&[old.clone(), file("new", new)], 10.0).unwrap();
            assert_eq!(format!("{ended:?}"), format!("{:?}", Some(want)), "{old:?}");
        }
        let ep = file("ep", "{\"case\":\"pair\"}".into());
        assert!(compare(&[old, ep], 10.0).unwrap().is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
