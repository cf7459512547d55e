//! `--compare` of what two runs of `--collective` have written.

use std::collections::BTreeMap;
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
    let (mut compared, mut bad) = (0, 0);
    for row in &new {
        let Some(then) = before.get(&key(row)) else { continue };
        let places = [(Some(then.out_of_place), Some(row.out_of_place)), (then.in_place, row.in_place)];
        for ((then, now), place) in places.into_iter().zip(["out of place", "in place"]) {
            let (Some(then), Some(now)) = (then, now) else { continue };
            let percent = (now.p50_us / then.p50_us - 1.0) * 100.0;
            let verdict = if now.wrong > 0 {
                "WRONG"
            } else if percent > tolerance {
                "SLOWER"
            } else {
                "ok"
            };
            (compared, bad) = (compared + 1, bad + u32::from(verdict != "ok"));
            let name = format!("{} {} {}", word(&row.collective), words(row.bytes), word(&row.r#type));
            print(&format!(
                "{verdict:6} {name}, {place}: {} us, then {} ({percent:+.0} %)",
                us(then.p50_us),
                us(now.p50_us)
            ))?;
        }
    }
    if compared == 0 {
        return Err("the two files have no case in common".into());
    }
    Ok(Some(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
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
        let figures = Figures { p50_us, p99_us: p50_us, algorithm_gbs: 1.0, bus_gbs: 1.0, wrong };
        let (collective, r#type) = (Collective::AllReduce, Type::F32);
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
            in_place: None
        })
        .to_string()
    }

    #[test]
    fn slower_or_wrong_rows_are_complained_about() {
        let folder = std::env::temp_dir().join(format!("epwire-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let old = file("old", row(10.0, 0));
        for (new, want) in [
            (row(10.5, 0), ExitCode::SUCCESS),
            (row(12.0, 0), ExitCode::FAILURE),
            (row(1.0, 3), ExitCode::FAILURE),
        ] {
            let ended = compare(&[old.clone(), file("new", new)], 10.0).unwrap();
            assert_eq!(format!("{ended:?}"), format!("{:?}", Some(want)));
        }
        let ep = file("ep", "{\"case\":\"pair\"}".into());
        assert!(compare(&[old, ep], 10.0).unwrap().is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
