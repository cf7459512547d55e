//! `--against`: runs another build of this program and this one in turns with the same options, and reports for each
//! case whether the newer one is slower, as far as the noise of the machine permits a verdict.
//!
//! Both runs of a pair see the machine in the same minute, and every other pair begins with the other program, so that
//! neither slow changes of the machine nor the order favours one of them. For each case, a pair gives one ratio of
//! medians. The interval is that of the sign test: between the order statistics of the ratios that enclose their median
//! with a probability of at least 95 %, whatever the distribution of the noise. One disturbed run moves it by one rank.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use comfy_table::{CellAlignment, Table, presets};
use epwire::launch::Launch;

use crate::Error;
use crate::args::Args;
use crate::compare;
use crate::print::print;
use crate::report::{Asked, Row, us};
use crate::wire::Reach;

/// Runs the pairs, prints a row per case and fails if a case is slower.
pub fn against(other: &Path, args: &Args) -> Result<ExitCode, Error> {
    if let Some(launch) = Launch::from_env()? {
        return Err(
            format!("--against starts all ranks itself, but {} has started this one", launch.source).into()
        );
    }
    let [lowest, highest] = interval(args.pairs as usize)
        .ok_or_else(|| format!("--pairs {}: fewer than 6 give no interval of 95 %", args.pairs))?;
    let programs = [other.to_owned(), std::env::current_exe()?];
    let options = options(std::env::args_os().skip(1));
    let mut cases: Vec<Compared> = Vec::new();
    for pair in 0..args.pairs {
        eprintln!("bench: pair {} of {}", pair + 1, args.pairs);
        let mut rows = [Vec::new(), Vec::new()];
        for turn in 0..2 {
            let which = (turn + pair as usize) % 2;
            rows[which] = run(&programs[which], &options)?;
        }
        add(&mut cases, rows)?;
    }
    cases.iter_mut().for_each(|case| case.ratios.sort_by(f64::total_cmp));
    let slower = cases.iter().any(|case| case.ratios[lowest] > args.limit);
    print(&table(&cases, [lowest, highest], args.limit))?;
    print(&format!(
        "{} pairs; ratio: median of new p50 / old p50, with the interval of the sign test, which covers at least 95 %",
        args.pairs
    ))?;
    Ok(if slower { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One case of both programs, over the pairs.
struct Compared {
    row: Row,
    /// Of the other program and of this one.
    p50_us: [Vec<f64>; 2],
    ratios: Vec<f64>,
}

/// The options of this run, without those that the other program need not have.
fn options(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const OWN: [&str; 3] = ["--against", "--pairs", "--limit"];
    let mut kept = Vec::new();
    let mut skip = false;
    for option in given {
        let name = option.to_string_lossy();
        let own = OWN.iter().any(|own| name.split('=').next() == Some(own));
        if !skip && !own {
            kept.push(option.clone());
        }
        skip = own && !name.contains('=');
    }
    kept
}

fn run(program: &Path, options: &[OsString]) -> Result<Vec<Row>, Error> {
    let name = program.display();
    let output = Command::new(program)
        .args(options)
        .arg("--json")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{name} ended with {}: both programs must know the options and give right results",
            output.status
        )
        .into());
    }
    let text = String::from_utf8(output.stdout)?;
    let row = |line| serde_json::from_str(line).map_err(|error| format!("{name}: {error}: {line}").into());
    text.lines().map(row).collect()
}

/// Whether both are of one case. Both have the same options and the paths to which these lead, some of which an older
/// program does not name.
fn same(a: &Row, b: &Row) -> bool {
    let plain =
        |row: &Row| Row { asked: Asked::default(), reach: Reach::default(), queue: None, ..row.clone() };
    compare::same(&plain(a), &plain(b))
}

/// Adds a pair's rows: of the other program and of this one.
fn add(cases: &mut Vec<Compared>, [old, new]: [Vec<Row>; 2]) -> Result<(), Error> {
    if let Some(gone) = old.iter().find(|old| !new.iter().any(|new| same(old, new))) {
        return Err(format!("this program has no case {}, {} tokens", gone.name(), gone.tokens).into());
    }
    for new in new {
        let old = old.iter().find(|old| same(old, &new));
        let old = old.ok_or_else(|| format!("the other program has no case {}", new.name()))?.p50_us;
        let ratio = new.p50_us / old;
        match cases.iter_mut().find(|case| same(&case.row, &new)) {
            Some(case) => {
                case.p50_us[0].push(old);
                case.p50_us[1].push(new.p50_us);
                case.ratios.push(ratio);
            }
            None => {
                let p50_us = [vec![old], vec![new.p50_us]];
                cases.push(Compared { row: new, p50_us, ratios: vec![ratio] });
            }
        }
    }
    Ok(())
}

/// Of `count` sorted numbers, the indices of those between which the median of their distribution lies with a
/// probability of at least 95 %: at each end as many are left out as heads of `count` fair coins that come up with a
/// probability of at most 2.5 %.
fn interval(count: usize) -> Option<[usize; 2]> {
    let (mut exactly, mut at_most) = (0.5f64.powi(count as i32), 0.0);
    let mut left_out = 0;
    for heads in 0..=count / 2 {
        at_most += exactly;
        if at_most > 0.025 {
            break;
        }
        left_out = heads + 1;
        exactly *= (count - heads) as f64 / (heads + 1) as f64;
    }
    (left_out > 0).then(|| [left_out - 1, count - left_out])
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The ratios are sorted.
fn table(cases: &[Compared], [lowest, highest]: [usize; 2], limit: f64) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "case",
        "tokens",
        "old p50 us",
        "new p50 us",
        "ratio",
        "from",
        "to",
        "",
    ]);
    for Compared { row, p50_us, ratios } in cases {
        table.add_row([
            row.name(),
            row.tokens.to_string(),
            us(median(&p50_us[0])),
            us(median(&p50_us[1])),
            format!("{:.3}", median(ratios)),
            format!("{:.3}", ratios[lowest]),
            format!("{:.3}", ratios[highest]),
            if ratios[lowest] > limit { format!("SLOWER than {limit}") } else { String::new() },
        ]);
    }
    table
        .column_iter_mut()
        .skip(1)
        .take(6)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Case;
    use crate::nic::Nic;
    use crate::report::tests::row;

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // From tables of the binomial distribution.
        assert_eq!(interval(5), None);
        assert_eq!(interval(6), Some([0, 5]));
        assert_eq!(interval(8), Some([0, 7]));
        assert_eq!(interval(9), Some([1, 7]));
        assert_eq!(interval(20), Some([5, 14]));
        assert_eq!(interval(21), Some([5, 15]));
        assert_eq!(interval(1000).map(|[low, high]| (low + high, low)), Some((999, 468)));
    }

    /// Pairs of one case: the other program takes 100 us, this one 100 us times the ratio.
    fn compared(ratios: &[f64]) -> Vec<Compared> {
        let mut cases = Vec::new();
        for ratio in ratios {
            let rows = [100.0, 100.0 * ratio].map(|p50| vec![row(Case::Pair, 1, p50, 0)]);
            add(&mut cases, rows).unwrap();
        }
        cases.iter_mut().for_each(|case| case.ratios.sort_by(f64::total_cmp));
        cases
    }

    #[test]
    fn a_case_is_slower_only_when_its_whole_interval_is() {
        let of = |ratios: &[f64]| {
            let bounds = interval(ratios.len()).unwrap();
            table(&compared(ratios), bounds, 1.03).to_string()
        };
        // Five of 21 pairs at the limit leave the whole interval above it, six do not.
        assert!(of(&[[1.0; 5].as_slice(), &[1.05; 16]].concat()).contains("SLOWER than 1.03"));
        assert!(!of(&[[1.0; 6].as_slice(), &[1.05; 15]].concat()).contains("SLOWER"));
        // Nor do disturbed pairs.
        let spoilt = of(&[[1.01; 17].as_slice(), &[30.0; 4]].concat());
        assert!(!spoilt.contains("SLOWER") && spoilt.contains("1.010"), "{spoilt}");
    }

    #[test]
    fn rows_are_matched_and_a_case_of_one_program_alone_is_an_error() {
        let mut cases = compared(&[1.0, 1.5]);
        assert_eq!((cases.len(), median(&cases[0].p50_us[1])), (1, 125.0));
        // The older program has said neither how peers are reached nor how many threads were asked for.
        let reach = Reach { path: Some("queue over TCP".into()), nic: Some(Nic::Strict), wire: None };
        let asked = Asked { threads: 2, ..Asked::default() };
        let queued = Row { reach, asked, ..row(Case::Pair, 1, 150.0, 0) };
        add(&mut cases, [vec![row(Case::Pair, 1, 100.0, 0)], vec![queued]]).unwrap();
        assert_eq!((cases.len(), cases[0].ratios.len()), (1, 3));
        let [one, two] = [1, 2].map(|tokens| row(Case::Pair, tokens, 1.0, 0));
        for (rows, lacks) in [
            ([vec![one.clone()], vec![one.clone(), two.clone()]], "the other program has no case pair"),
            ([vec![one.clone(), two], vec![one]], "this program has no case pair"),
        ] {
            assert!(add(&mut cases, rows).unwrap_err().to_string().starts_with(lacks), "{lacks}");
        }
    }

    #[test]
    fn the_other_program_gets_the_same_options_but_those_of_the_comparison() {
        let given =
            "--ranks 4 --against old --pairs=7 --limit 1.1 --tokens 1,8".split(' ').map(OsString::from);
        assert_eq!(options(given), ["--ranks", "4", "--tokens", "1,8"]);
    }
}
