//! What the user sees: a progress bar while it runs, a table per rank, and the last line.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use epwire::Mask;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::{args::Args, reference::larger};

/// What one rank did. Sums over all steps and layers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: u32,
    /// How each rank is reached, itself included.
    pub paths: Vec<String>,
    /// What drains its queues, where it has some.
    pub nic: Option<String>,
    /// Tokens of the text that this rank ran through all layers.
    pub tokens: u64,
    /// Rows sent and received: a token counts once for each rank that it goes to.
    pub rows_sent: u64,
    pub rows_received: u64,
    /// Payload and scales of the rows sent, and 16-bit rows returned.
    pub bytes: u64,
    pub dispatch_seconds: f64,
    pub experts_seconds: f64,
    pub combine_seconds: f64,
    /// Rows of combine that differ from the definition in any bit.
    pub wrong_rows: u64,
    /// Against the sum without roundings.
    pub max_rel_err: f64,
}

/// The result of the whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Summary<'a> {
    pub config: &'a Args,
    pub ok: bool,
    pub ranks: usize,
    pub tokens: u64,
    pub max_rel_err: f64,
    pub wrong_rows: u64,
    pub per_rank: Vec<RankReport>,
}

/// Largest relative error that 16-bit sums may show.
pub const MAX_REL_ERR: f64 = 1e-2;

impl<'a> Summary<'a> {
    pub fn new(config: &'a Args, per_rank: Vec<RankReport>) -> Self {
        let wrong_rows = per_rank.iter().map(|r| r.wrong_rows).sum();
        let max_rel_err = per_rank.iter().map(|r| r.max_rel_err).fold(0.0, larger);
        Self {
            ok: wrong_rows == 0 && max_rel_err <= MAX_REL_ERR,
            ranks: per_rank.len(),
            tokens: per_rank.iter().map(|r| r.tokens).sum(),
            config,
            max_rel_err,
            wrong_rows,
            per_rank,
        }
    }

    /// The line that shows scripts and people whether it worked.
    pub fn last_line(&self) -> String {
        let Self { ranks, tokens, max_rel_err, wrong_rows, config: Args { layers, .. }, .. } = self;
        let figures = format!("ranks={ranks} tokens={tokens} layers={layers} max_rel_err={max_rel_err:.2e}");
        if self.ok {
            format!("moe_layer: OK {figures}")
        } else {
            format!(
                "moe_layer: FAILED {figures} wrong_rows={wrong_rows} (max_rel_err may be {MAX_REL_ERR:.0e})"
            )
        }
    }

    /// A line per rank: whom it reaches by what.
    pub fn paths(&self) -> String {
        let line = |report: &RankReport| {
            let mut reached: BTreeMap<&str, Mask> = BTreeMap::new();
            for (rank, path) in (0..).zip(&report.paths).filter(|(rank, _)| *rank != report.rank) {
                reached.entry(path).or_default().insert(rank);
            }
            let parts: Vec<String> =
                reached.iter().map(|(path, ranks)| format!("{ranks} by {path}")).collect();
            format!(
                "rank {} reaches {}{}",
                report.rank,
                if parts.is_empty() { "itself alone".to_owned() } else { parts.join(", ") },
                report.nic.iter().map(|nic| format!(" ({nic})")).collect::<String>()
            )
        };
        self.per_rank.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// One row per rank.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
            "rank",
            "tokens",
            "rows sent",
            "rows received",
            "MB",
            "dispatch",
            "experts",
            "combine",
            "#wrong",
        ]);
        for r in &self.per_rank {
            let seconds = |s: f64| format!("{s:.3} s");
            table.add_row([
                r.rank.to_string(),
                r.tokens.to_string(),
                r.rows_sent.to_string(),
                r.rows_received.to_string(),
                format!("{:.1}", r.bytes as f64 / 1e6),
                seconds(r.dispatch_seconds),
                seconds(r.experts_seconds),
                seconds(r.combine_seconds),
                r.wrong_rows.to_string(),
            ]);
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        table
    }
}

/// A bar on stderr if that is a terminal, on the rank that asks for it.
pub fn progress(steps: usize, visible: bool) -> ProgressBar {
    if !visible {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} layers  {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        <Args as clap::Parser>::parse_from(["moe_layer", "file"])
    }

    fn rank(rank: u32, max_rel_err: f64, wrong_rows: u64) -> RankReport {
        RankReport { rank, tokens: 10, max_rel_err, wrong_rows, ..RankReport::default() }
    }

    #[test]
    fn the_last_line_sums_tokens_and_takes_the_worst_error() {
        let args = args();
        let summary = Summary::new(&args, vec![rank(0, 0.001, 0), rank(1, 0.004, 0)]);
        assert_eq!(summary.last_line(), "moe_layer: OK ranks=2 tokens=20 layers=4 max_rel_err=4.00e-3");
    }

    #[test]
    fn a_wrong_row_a_large_error_or_a_nan_fails() {
        let args = args();
        for bad in [rank(1, 0.001, 1), rank(1, 0.02, 0), rank(1, f64::NAN, 0)] {
            for ranks in [vec![rank(0, 0.001, 0), bad.clone()], vec![bad.clone(), rank(0, 0.001, 0)]] {
                let summary = Summary::new(&args, ranks);
                assert!(!summary.ok && summary.last_line().starts_with("moe_layer: FAILED"), "{summary:?}");
            }
        }
    }

    #[test]
    fn the_table_has_a_row_per_rank() {
        let args = args();
        let table = Summary::new(&args, vec![rank(0, 0.0, 0), rank(1, 0.0, 3)]).table();
        assert_eq!(table.row_iter().count(), 2);
        assert!(table.to_string().contains("rows received"));
    }
}
