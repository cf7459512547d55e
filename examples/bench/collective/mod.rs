//! `--collective`: collectives over sizes, in the manner of nccl-tests: time, bandwidth of the algorithm and of the bus, and how many
//! elements were wrong, out of place and in place.

mod compare;
pub mod data;
pub mod host;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use epwire::Group;
use serde::{Deserialize, Serialize};

pub use self::compare::compare;
use crate::Error;
use crate::args::{Args, Device};
use crate::bytes::words;
use crate::print::print;
use crate::report::{floor, is_zero, us, word};
use crate::wire::Reach;

/// `--collective`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Collective {
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Gather,
    Scatter,
    // Each rank sends to the next one and receives from the one before it, in one group of calls.
    SendRecv,
    Barrier,
}

/// `--types`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    /// Of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// The figures of one collective at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub collective: Collective,
    pub r#type: Type,
    pub ranks: u32,
    /// Files of older builds were measured on the host.
    #[serde(default)]
    pub device: Device,
    /// Bytes of the larger buffer: for an all-reduce, reduce or broadcast each rank's buffer, for sends and receives the
    /// message; for the others the blocks of all ranks together, of whole elements; 0 for a barrier.
    pub bytes: u64,
    /// Tensors lie in memory of the communicator.
    pub heap: bool,
    /// On GPUs: thread blocks asked for; absent: chosen by the library.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sms: u32,
    /// Absent if not asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copy_engines: bool,
    #[serde(flatten)]
    pub reach: Reach,
    pub out_of_place: Figures,
    /// On the host, of what only moves bytes: how long the machine's best copy of what the ranks receive out of place
    /// takes, by all of them at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_us: Option<f64>,
    /// Absent if there is no such call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<Figures>,
}

/// Times in microseconds, rates in 1e9 bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub p50_us: f64,
    pub p99_us: f64,
    /// The bytes over the median time.
    pub algorithm_gbs: f64,
    /// The same, times the factor of nccl-tests that makes it comparable with the rate of a link for any number of
    /// ranks.
    pub bus_gbs: f64,
    pub wrong: u64,
}

impl Collective {
    pub fn has_in_place(self) -> bool {
        !matches!(self, Self::SendRecv | Self::Barrier)
    }

    fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll | Self::Gather | Self::Scatter => {
                (n - 1.0) / n
            }
            Self::Reduce | Self::Broadcast | Self::SendRecv | Self::Barrier => 1.0,
        }
    }
}

impl Figures {
    /// The result for this many bytes in these times.
    pub fn new(
        collective: Collective,
        ranks: u32,
        bytes: u64,
        [p50_us, p99_us]: [f64; 2],
        wrong: u64,
    ) -> Self {
        let algorithm_gbs = bytes as f64 / p50_us / 1e3;
        Self { p50_us, p99_us, algorithm_gbs, bus_gbs: algorithm_gbs * collective.bus_factor(ranks), wrong }
    }
}

/// The report on all ranks, printed by the first one, which has the figures of all. `machine`: what they ran on, if
/// known.
pub fn report(args: &Args, group: &Group, rows: &[Row], machine: &str) -> Result<ExitCode, Error> {
    if group.rank() > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        for row in rows {
            print(&serde_json::json!(row))?;
        }
    } else {
        print(&table(rows))?;
        print(&averages(rows))?;
        if !machine.is_empty() {
            print(&machine)?;
        }
    }
    let wrong = |row: &Row| row.out_of_place.wrong + row.in_place.map_or(0, |figures| figures.wrong);
    Ok(if rows.iter().all(|row| wrong(row) == 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The average bus bandwidth of each collective over its sizes, in and out of place. Calls that move nothing have none.
fn averages(rows: &[Row]) -> String {
    let mut rates: BTreeMap<Collective, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.bytes > 0) {
        let both = [Some(row.out_of_place), row.in_place];
        rates.entry(row.collective).or_default().extend(both.iter().flatten().map(|figures| figures.bus_gbs));
    }
    let each: Vec<_> = rates
        .iter()
        .map(|(name, all)| format!("{} {:.2}", word(name), all.iter().sum::<f64>() / all.len() as f64))
        .collect();
    format!("average bus GB/s: {}", if each.is_empty() { "none".into() } else { each.join(", ") })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "collective",
        "size",
        "type",
        "out of place us",
        "alg GB/s",
        "bus GB/s",
        "#wrong",
        "copy us",
        "of it",
        "in place us",
        "alg GB/s",
        "bus GB/s",
        "#wrong",
    ]);
    for row in rows {
        let of = |figures: Option<Figures>| {
            figures.map_or_else(Default::default, |f| {
                let rate = |gbs: f64| if row.bytes > 0 { format!("{gbs:.2}") } else { String::new() };
                [us(f.p50_us), rate(f.algorithm_gbs), rate(f.bus_gbs), f.wrong.to_string()]
            })
        };
        let copy = row.copy_us.map_or_else(Default::default, |copy| floor(copy, row.out_of_place.p50_us));
        let [name, size, kind] = [word(&row.collective), words(row.bytes), word(&row.r#type)];
        table.add_row(
            [
                [name, size, kind].to_vec(),
                of(Some(row.out_of_place)).to_vec(),
                copy.to_vec(),
                of(row.in_place).to_vec(),
            ]
            .concat(),
        );
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_of_each_collective_in_and_out_of_place() {
        let row = |collective, bytes, out_of_place: f64, in_place: Option<f64>| {
            let figures =
                |bus_gbs| Figures { p50_us: 1.0, p99_us: 1.0, algorithm_gbs: 1.0, bus_gbs, wrong: 0 };
            Row {
                collective,
                r#type: Type::F32,
                ranks: 2,
                device: Device::Host,
                bytes,
                heap: false,
                sms: 0,
                copy_engines: false,
                reach: Reach::default(),
                out_of_place: figures(out_of_place),
                copy_us: None,
                in_place: in_place.map(figures),
            }
        };
        let rows = [
            row(Collective::AllReduce, 8, 1.0, Some(2.0)),
            row(Collective::Barrier, 0, 0.0, None),
            row(Collective::Broadcast, 8, 7.0, None),
            row(Collective::AllReduce, 16, 3.0, Some(6.0)),
        ];
        assert_eq!(averages(&rows), "average bus GB/s: all_reduce 3.00, broadcast 7.00");
        assert_eq!(averages(&rows[1..2]), "average bus GB/s: none");
        let table = table(&rows);
        let cells = |row: usize| -> Vec<String> {
            table.row(row).unwrap().cell_iter().skip(4).take(2).map(comfy_table::Cell::content).collect()
        };
        assert_eq!((cells(0), cells(1)), (vec!["1.00".into(), "1.00".into()], vec![String::new(); 2]));
    }

    #[test]
    fn bus_bandwidth_is_as_nccl_tests_have_it() {
        assert_eq!(Collective::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Collective::AllGather.bus_factor(4), 0.75);
        assert_eq!(Collective::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Collective::SendRecv.bus_factor(4), 1.0);
    }
}
