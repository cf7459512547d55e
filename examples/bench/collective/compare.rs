//! `--compare` of what two runs of `--collective` have written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Collective, Row};
use crate::Error;
use crate::bytes::words;
use crate::print::print;
use crate::report::{us, word};

/// `--compare` of two files of `--collective`: `None` if the first holds none.
pub fn compare(files: &[PathBuf], tolerance: f64) -> Result<Option<ExitCode>, Error> {
    let [old, new] = files else { return Err("--compare takes two files".into()) };
    let (Some(old), Some(new)) = (read(old)?, read(new)?) else { return Ok(None) };
    // Older builds measured a barrier at every size.
    let bytes = |row: &Row| if row.collective == Collective::Barrier { 0 } else { row.bytes };
    let key = |row: &Row| {
        (row.collective, row.r#type, row.ranks, row.device, bytes(row), row.heap, row.reach.name(false))
    };
    let before: BTreeMap<_, _> = old.iter().map(|row| (key(row), row)).collect();
    let after: BTreeSet<_> = new.iter().map(key).collect();
    let gone = before.iter().filter(|(key, _)| !after.contains(*key));
    let mut missing: Vec<_> = gone.map(|(_, row)| name(row)).collect();
    let (mut compared, mut bad) = (0, 0);
    for row in &new {
        let Some(then) = before.get(&key(row)) else { continue };
        let places = [(Some(then.out_of_place), Some(row.out_of_place)), (then.in_place, row.in_place)];
        for ((then, now), place) in places.into_iter().zip(["out of place", "in place"]) {
            let Some(then) = then else { continue };
            let Some(now) = now else {
                missing.push(format!("{}, {place}", name(row)));
                continue;
            };
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
                "{verdict:7} {}, {place}: {} us, then {} ({percent:+.0} %)",
                name(row),
                us(then.p50_us),
                us(now.p50_us)
            ))?;
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
    format!("{} {} {}", word(&row.collective), words(row.bytes), word(&row.r#type))
}

fn read(file: &Path) -> Result<Option<Vec<Row>>, Error> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    Ok(lines.map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Device;
    use crate::collective::{Figures, Type};
    use crate::wire::Reach;

    fn row(p50_us: f64, wrong: u64) -> String {
        row_of(Collective::AllReduce, p50_us, wrong, false)
    }

    fn row_of(collective: Collective, p50_us: f64, wrong: u64, in_place: bool) -> String {
        let figures = Figures { p50_us, p99_us: p50_us, algorithm_gbs: 1.0, bus_gbs: 1.0, wrong };
        let r#type = Type::F32;
        serde_json::json!(Row {
            collective,
            r#type,
            ranks: 2,
            device: Device::Host,
            bytes: 8,
            heap: false,
            reach: Reach::default(),
            out_of_place: figures,
            copy_us: None,
            in_place: in_place.then_some(figures)
        })
        .to_string()
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
        for (old, new, want) in [
            (&old, row(10.5, 0), ExitCode::SUCCESS),
            (&old, row(12.0, 0), ExitCode::FAILURE),
            (&old, row(1.0, 3), ExitCode::FAILURE),
            (&old, std::fs::read_to_string(&more).unwrap(), ExitCode::SUCCESS),
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
