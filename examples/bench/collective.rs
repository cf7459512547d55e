//! `--collective`: collectives over sizes, in the manner of nccl-tests: time, bandwidth of the algorithm and of the bus, and how many
//! elements were wrong, out of place and in place.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use epwire::comm::{CommConfig, Number, Reduction};
use epwire::{Comm, Group, Outcome};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::bytes::words;
use crate::print::print;
use crate::report::{us, word};
use crate::samples::{Meeting, Samples, complete, now};
use crate::{Error, ranks};

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
    Barrier,
}

/// `--types`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    I8,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

/// The figures of one collective at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub collective: Collective,
    pub r#type: Type,
    pub ranks: u32,
    /// Of the larger buffer: what every rank has of an all-reduce, reduce or broadcast; of the others all ranks' blocks together.
    pub bytes: u64,
    /// Tensors lie in memory of the communicator.
    pub heap: bool,
    pub out_of_place: Figures,
    /// Not said where there is no such call.
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
    /// The same, times what nccl-tests multiply with so that it is comparable to the rate of a link whatever the ranks.
    pub bus_gbs: f64,
    pub wrong: u64,
}

impl Collective {
    fn has_in_place(self) -> bool {
        !matches!(self, Self::Broadcast | Self::Barrier | Self::Gather | Self::Scatter)
    }

    fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll | Self::Gather | Self::Scatter => {
                (n - 1.0) / n
            }
            Self::Reduce | Self::Broadcast | Self::Barrier => 1.0,
        }
    }
}

/// One rank's part, and on rank 0 the report of all.
pub fn measure(args: &Args, group: &Group, _local_rank: u32) -> Result<ExitCode, Error> {
    let meeting = Meeting::new(group)?;
    let mut rows = Vec::new();
    for &bytes in &args.bytes.0 {
        // Room for the two buffers of the widest element, each with a line to spare.
        let heap_bytes = if args.heap { 2 * (bytes + 128) } else { 0 };
        let comm = Comm::create_blocking(group, CommConfig::default().heap_bytes(heap_bytes))?;
        for &collective in &args.collective {
            for &r#type in &args.types {
                let case = Case { collective, r#type, bytes, args, group, meeting: &meeting, comm: &comm };
                rows.extend(case.row()?);
            }
        }
    }
    if group.rank() > 0 {
        return Ok(ExitCode::SUCCESS); // the first rank has the figures of all
    }
    if args.json {
        for row in &rows {
            print(&serde_json::json!(row))?;
        }
    } else {
        print(&table(&rows))?;
    }
    let wrong = |row: &Row| row.out_of_place.wrong + row.in_place.map_or(0, |figures| figures.wrong);
    Ok(if rows.iter().all(|row| wrong(row) == 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A number that small integers are: what ranks send, so that sums are exact in every type.
trait Small: Number + PartialEq {
    fn small(value: u32) -> Self;
}

macro_rules! small {
    ($($type:ty => $from:expr),*) => {$(
        impl Small for $type {
            fn small(value: u32) -> Self {
                #[allow(clippy::cast_possible_truncation, reason = "small")]
                ($from)(value as u8)
            }
        }
    )*};
}
small!(
    i8 => |v: u8| v as i8, i32 => i32::from, i64 => i64::from, f32 => f32::from, f64 => f64::from,
    f16 => |v: u8| f16::from_f32(f32::from(v)), bf16 => |v: u8| bf16::from_f32(f32::from(v))
);

/// Element `at` of what `rank` sends: 0, 1 or 2.
fn element(rank: u32, at: usize) -> u32 {
    (rank + at as u32 % 3) % 3
}

/// Of the sum of all: at most 2 for each rank, which 16-bit floats and i8 have exactly up to 63 ranks, and wrap to beyond.
fn summed(ranks: u32, at: usize) -> u32 {
    (0..ranks).map(|rank| element(rank, at)).sum()
}

struct Case<'a> {
    collective: Collective,
    r#type: Type,
    bytes: u64,
    args: &'a Args,
    group: &'a Group,
    meeting: &'a Meeting,
    comm: &'a Comm,
}

impl Case<'_> {
    fn row(&self) -> Result<Option<Row>, Error> {
        match self.r#type {
            Type::I8 => self.row_of::<i8>(),
            Type::I32 => self.row_of::<i32>(),
            Type::I64 => self.row_of::<i64>(),
            Type::F16 => self.row_of::<f16>(),
            Type::Bf16 => self.row_of::<bf16>(),
            Type::F32 => self.row_of::<f32>(),
            Type::F64 => self.row_of::<f64>(),
        }
    }

    fn row_of<T: Small>(&self) -> Result<Option<Row>, Error> {
        let out_of_place = self.run::<T>(false)?;
        let in_place = if self.collective.has_in_place() { self.run::<T>(true)? } else { None };
        Ok(out_of_place.map(|out_of_place| Row {
            collective: self.collective,
            r#type: self.r#type,
            ranks: ranks::count(self.group),
            bytes: self.bytes,
            heap: self.args.heap,
            out_of_place,
            in_place,
        }))
    }

    /// All ranks call it; the first has the figures.
    fn run<T: Small>(&self, in_place: bool) -> Result<Option<Figures>, Error> {
        let count = self.bytes as usize / size_of::<T>();
        let block = count / self.comm.ranks() as usize;
        let (send, recv) = self.lengths(count, block);
        if self.args.heap {
            let (mut send, mut recv) = (self.comm.alloc::<T>(send)?, self.comm.alloc::<T>(recv)?);
            self.iterate(&mut send, &mut recv, block, in_place)
        } else {
            let (mut send, mut recv) = (vec![T::small(0); send], vec![T::small(0); recv]);
            self.iterate(&mut send, &mut recv, block, in_place)
        }
    }

    /// Elements of both buffers.
    fn lengths(&self, count: usize, block: usize) -> (usize, usize) {
        let blocks = block * self.comm.ranks() as usize;
        match self.collective {
            Collective::Barrier => (0, 0),
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => (count, count),
            Collective::AllToAll => (blocks, blocks),
            Collective::AllGather | Collective::Gather => (block, blocks),
            Collective::ReduceScatter | Collective::Scatter => (blocks, block),
        }
    }

    fn iterate<T: Small>(
        &self,
        send: &mut [T],
        recv: &mut [T],
        block: usize,
        in_place: bool,
    ) -> Result<Option<Figures>, Error> {
        let mut samples = Samples::default();
        for i in 0..self.args.warmup + self.args.iterations {
            // What is checked is looked at once before the times that count, and once behind them.
            let checked = i == 0 || i + 1 == self.args.warmup + self.args.iterations;
            if checked {
                self.fill(send, recv, block, in_place);
            }
            self.meeting.meet()?;
            let begin = now();
            let outcome = self.call(send, recv, in_place)?;
            let end = now();
            complete(&outcome)?;
            if i >= self.args.warmup {
                samples.moments.push([begin, end]);
            }
            if checked {
                self.meeting.meet()?;
                samples.wrong += self.wrong(send, recv, block, in_place);
            }
        }
        let figures = samples.figures(self.group)?;
        Ok(figures.map(|seen| {
            let algorithm_gbs = self.bytes as f64 / seen.p50_us / 1e3;
            let bus_gbs = algorithm_gbs * self.collective.bus_factor(self.comm.ranks());
            Figures { p50_us: seen.p50_us, p99_us: seen.p99_us, algorithm_gbs, bus_gbs, wrong: seen.wrong }
        }))
    }

    /// The buffer that is both in place.
    fn one<'b, T>(&self, send: &'b mut [T], recv: &'b mut [T]) -> &'b mut [T] {
        if self.collective == Collective::ReduceScatter { send } else { recv }
    }

    fn fill<T: Small>(&self, send: &mut [T], recv: &mut [T], block: usize, in_place: bool) {
        let rank = self.comm.rank();
        recv.fill(T::small(100));
        if in_place && self.collective == Collective::AllGather {
            let own = &mut recv[rank as usize * block..][..block];
            own.iter_mut().enumerate().for_each(|(at, x)| *x = T::small(element(rank, at)));
            return;
        }
        let into = if in_place { self.one(send, recv) } else { send };
        into.iter_mut().enumerate().for_each(|(at, x)| *x = T::small(element(rank, at)));
        if self.collective == Collective::Broadcast && rank == 0 {
            recv.iter_mut().enumerate().for_each(|(at, x)| *x = T::small(element(0, at)));
        }
    }

    fn call<T: Small>(&self, send: &mut [T], recv: &mut [T], in_place: bool) -> epwire::Result<Outcome> {
        let comm = self.comm;
        match (self.collective, in_place) {
            (Collective::AllReduce, false) => comm.all_reduce_blocking(send, recv, Reduction::Sum),
            (Collective::AllReduce, true) => comm.all_reduce_in_place_blocking(recv, Reduction::Sum),
            (Collective::Reduce, false) => comm.reduce_blocking(send, recv, Reduction::Sum, 0),
            (Collective::Reduce, true) => comm.reduce_in_place_blocking(recv, Reduction::Sum, 0),
            (Collective::ReduceScatter, false) => comm.reduce_scatter_blocking(send, recv, Reduction::Sum),
            (Collective::ReduceScatter, true) => comm.reduce_scatter_in_place_blocking(send, Reduction::Sum),
            (Collective::AllGather, false) => comm.all_gather_blocking(send, recv),
            (Collective::AllGather, true) => comm.all_gather_in_place_blocking(recv),
            (Collective::AllToAll, false) => comm.all_to_all_blocking(send, recv),
            (Collective::AllToAll, true) => comm.all_to_all_in_place_blocking(recv),
            (Collective::Broadcast, _) => comm.broadcast_blocking(recv, 0),
            (Collective::Gather, _) => comm.gather_blocking(send, recv, 0),
            (Collective::Scatter, _) => comm.scatter_blocking(send, recv, 0),
            (Collective::Barrier, _) => comm.barrier_blocking(),
        }
    }

    /// Elements of this rank's result that are not as they should be.
    fn wrong<T: Small>(&self, send: &[T], recv: &[T], block: usize, in_place: bool) -> u64 {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let own = rank as usize * block;
        let root = rank == 0;
        let wrong = |got: &[T], want: &dyn Fn(usize) -> u32| {
            got.iter().enumerate().filter(|&(at, x)| *x != T::small(want(at))).count() as u64
        };
        match self.collective {
            Collective::Barrier => 0,
            Collective::AllReduce => wrong(recv, &|at| summed(ranks, at)),
            Collective::Reduce if root => wrong(recv, &|at| summed(ranks, at)),
            Collective::ReduceScatter => {
                let got = if in_place { &send[own..][..block] } else { recv };
                wrong(got, &|at| summed(ranks, own + at))
            }
            Collective::AllGather => wrong(recv, &|at| element((at / block) as u32, at % block)),
            Collective::Gather if root => wrong(recv, &|at| element((at / block) as u32, at % block)),
            Collective::AllToAll => wrong(recv, &|at| element((at / block) as u32, own + at % block)),
            Collective::Broadcast => wrong(recv, &|at| element(0, at)),
            Collective::Scatter => wrong(recv, &|at| element(0, own + at)),
            Collective::Reduce | Collective::Gather => 0,
        }
    }
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
        "in place us",
        "alg GB/s",
        "bus GB/s",
        "#wrong",
    ]);
    for row in rows {
        let of = |figures: Option<Figures>| {
            figures.map_or_else(Default::default, |f| {
                [
                    us(f.p50_us),
                    format!("{:.2}", f.algorithm_gbs),
                    format!("{:.2}", f.bus_gbs),
                    f.wrong.to_string(),
                ]
            })
        };
        let [name, size, kind] = [word(&row.collective), words(row.bytes), word(&row.r#type)];
        table.add_row(
            [[name, size, kind].to_vec(), of(Some(row.out_of_place)).to_vec(), of(row.in_place).to_vec()]
                .concat(),
        );
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// `--compare` of two files of `--collective`: `None` if the first holds none.
pub fn compare(files: &[PathBuf], tolerance: f64) -> Result<Option<ExitCode>, Error> {
    let [old, new] = files else { return Err("--compare takes two files".into()) };
    let (Some(old), Some(new)) = (read(old)?, read(new)?) else { return Ok(None) };
    let key = |row: &Row| (row.collective, row.r#type, row.ranks, row.bytes, row.heap);
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

    #[test]
    fn bus_bandwidth_is_as_nccl_tests_have_it() {
        assert_eq!(Collective::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Collective::AllGather.bus_factor(4), 0.75);
        assert_eq!(Collective::Broadcast.bus_factor(4), 1.0);
    }

    #[test]
    fn sums_are_those_of_the_elements() {
        assert_eq!(summed(4, 1), 1 + 2 + 1);
    }

    fn row(p50_us: f64, wrong: u64) -> String {
        let figures = Figures { p50_us, p99_us: p50_us, algorithm_gbs: 1.0, bus_gbs: 1.0, wrong };
        let (collective, r#type) = (Collective::AllReduce, Type::F32);
        serde_json::json!(Row {
            collective,
            r#type,
            ranks: 2,
            bytes: 8,
            heap: false,
            out_of_place: figures,
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
