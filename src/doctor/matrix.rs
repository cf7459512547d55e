//! The ranks of a group, each with every other: the path that a buffer would take, how long a word takes on it, and how
//! many bytes a second it carries.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::buffer::{GpuTrial, Trial};
use crate::config::{Device, Path};
use crate::error::{Error, Failure, Result};
use crate::group::Group;
use crate::json::{array, quoted};
use crate::mask::Mask;
use crate::rendezvous::BootstrapError;
use crate::rendezvous::wire::MAX_BLOB_BYTES;

/// The path from one rank to another.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Cell {
    /// The rank that writes.
    pub from: u32,
    /// The rank that is written to.
    pub to: u32,
    /// As [`Path`] is displayed; `none` where there is no path.
    pub path: String,
    /// Half of the median round trip of 8 bytes and their signal, in microseconds. Between GPUs, the probe's words are
    /// copied there and back by host threads; those of kernels are faster.
    pub one_way_us: Option<f64>,
    /// The bandwidth of 4 ranges of up to 1 MiB, the fastest of 10 runs, in 1e9 bytes a second. Between GPUs that map
    /// each other's windows, of 8 copies instead; none by queues.
    pub gb_per_s: Option<f64>,
    /// Whether its bandwidth is less than half, or its time more than twice, the median of the cells with the same
    /// path.
    pub slow: bool,
    /// Why the rank was not reached or not measured; empty if it was.
    pub reason: String,
}

/// The paths between all ranks.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Matrix {
    /// The host name of each rank.
    pub hosts: Vec<String>,
    /// Ordered by writing rank, then by the rank written to; none from a rank to itself.
    pub cells: Vec<Cell>,
}

/// Deadline of each wait for a peer.
const DEADLINE: Duration = Duration::from_secs(5);
const RANGE_MAX: u64 = 1 << 20;
/// Most bytes of a window, all ranks together.
const WINDOW_MAX: u64 = 64 << 20;
const PINGS: usize = 200;
/// How many ranges a put has, and how many puts.
const RANGES: u32 = 4;
const ROUNDS: usize = 10;
/// Up to this many ranks, pairs are measured one after the other; with more ranks, disjoint pairs at the same time.
const ONE_BY_ONE_MAX: u32 = 16;
/// A wider table would be unreadable, so only outliers are shown.
const TABLE_MAX: usize = 8;

impl Matrix {
    /// Measures the matrix with windows in place of a buffer's: all ranks of the group call this, with the device that
    /// their buffers would have and the `EPWIRE_PATHS` that would apply to them, and rank 0 gets the matrix. Takes
    /// about 50 ms for each pair; a rank that does not take part costs 5 s for every pair that contains it. Blocks the
    /// calling thread, so do not call it from an async executor.
    ///
    /// # Errors
    ///
    /// If the group is lost. A pair without a path is not an error but a [`Cell`] that says why, and so is a rank that
    /// cannot have a window or reach its adapter: all its cells say so, and those of the others with it.
    pub fn measure_blocking(group: &Group, device: Device) -> Result<Option<Self>> {
        let (rank, world) = (group.rank(), group.world());
        let lost = |error: BootstrapError| Error::State(Failure::new("doctor", rank, error.to_string()));
        let (ways, peers) = meet(group, device).map_err(lost)?;
        let mut row = BTreeMap::new();
        for (round, half) in
            rounds(world).iter().flat_map(|round| (0..halves(device)).map(move |half| (round, half)))
        {
            for (a, b) in round.iter().filter(|(a, b)| *a == rank || *b == rank) {
                let peer = a + b - rank;
                let Some(found) = peers.get(&peer).filter(|_| has_turn(device, rank < peer, half)) else {
                    continue;
                };
                let measure =
                    |ways: &Ways| ways.measure(peer, rank < peer).map_err(|error| error.to_string());
                let figures = found.clone().and_then(|()| measure(ways.as_ref().map_err(String::clone)?));
                let path = ways.as_ref().map_or(Path::None, |ways| ways.path(peer));
                row.insert(peer, cell((rank, peer), path, figures));
            }
            group.barrier_blocking("doctor: pair").map_err(lost)?;
        }
        let mut rows = vec![Vec::new(); world as usize];
        let most = MAX_BLOB_BYTES / world as usize; // of each line, so that all fit into a blob
        rows[0] = row.values().map(|cell| encode(cell, most)).collect::<String>().into_bytes();
        let rows = group.exchange_blocking("doctor: cells", rows).map_err(lost)?;
        if rank != 0 {
            return Ok(None);
        }
        let cells = (0..).zip(&rows).flat_map(|(from, row)| {
            let text = String::from_utf8_lossy(row).into_owned();
            text.lines().filter_map(|line| decode(from, line)).collect::<Vec<_>>()
        });
        let mut hosts = vec![String::new(); world as usize];
        for member in group.roster().iter().filter(|member| member.rank < world) {
            hosts[member.rank as usize].clone_from(&member.host);
        }
        Ok(Some(Self::new(hosts, cells.collect())))
    }

    /// Builds the matrix and marks the slow cells.
    fn new(hosts: Vec<String>, cells: Vec<Cell>) -> Self {
        let mut matrix = Self { hosts, cells };
        let middles: BTreeMap<String, Figures> = matrix
            .paths()
            .into_iter()
            .filter(|(_, of)| of.len() > 2)
            .map(|(path, of)| (path, middle(&of)))
            .collect();
        for cell in &mut matrix.cells {
            let Some((us, gbs)) = middles.get(&cell.path) else { continue };
            cell.slow = cell.one_way_us.is_some_and(|own| own > 2.0 * us)
                || cell.gb_per_s.zip(*gbs).is_some_and(|(own, middle)| own < middle / 2.0);
        }
        matrix
    }

    /// Time and bandwidth of the measured cells, by path.
    fn paths(&self) -> BTreeMap<String, Vec<Figures>> {
        let mut paths: BTreeMap<String, Vec<Figures>> = BTreeMap::new();
        for cell in &self.cells {
            if let Some(us) = cell.one_way_us {
                paths.entry(cell.path.clone()).or_default().push((us, cell.gb_per_s));
            }
        }
        paths
    }

    /// Whether every rank reaches every other.
    pub fn is_complete(&self) -> bool {
        self.cells.iter().all(|cell| cell.reason.is_empty())
    }

    /// A JSON object: `hosts`, an array of names by rank, and `cells`, an array of objects with the fields of [`Cell`],
    /// null where there is no value.
    pub fn to_json(&self) -> String {
        let figure = |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.3}"));
        let cells = self.cells.iter().map(|cell| {
            let Cell { from, to, path, one_way_us, gb_per_s, slow, reason } = cell;
            let (us, gbs) = (figure(*one_way_us), figure(*gb_per_s));
            let (path, reason) = (quoted(path), quoted(reason));
            format!(
                r#"{{"from":{from},"to":{to},"path":{path},"one_way_us":{us},"gb_per_s":{gbs},"slow":{slow},"reason":{reason}}}"#
            )
        });
        let hosts = array(self.hosts.iter().map(|host| quoted(host)));
        format!(r#"{{"hosts":{hosts},"cells":{}}}"#, array(cells))
    }
}

/// The pairs that are measured at the same time, round by round; a rank without a pair waits. Every pair occurs in
/// exactly one round.
fn rounds(world: u32) -> Vec<Vec<(u32, u32)>> {
    if world <= ONE_BY_ONE_MAX {
        return (0..world).flat_map(|a| (a + 1..world).map(move |b| vec![(a, b)])).collect();
    }
    // A round-robin tournament: one place stays, the others rotate.
    let places = world.next_multiple_of(2);
    let place = |at: u32, round: u32| if at == 0 { 0 } else { 1 + (at - 1 + round) % (places - 1) };
    let round = |round: u32| {
        let pairs = (0..places / 2).map(|at| (place(at, round), place(places - 1 - at, round)));
        pairs.filter(|(a, b)| *a < world && *b < world).collect()
    };
    (0..places - 1).map(round).collect()
}

/// How often a pair is measured: on the host once, both ranks together; on GPUs twice, one rank after the other.
fn halves(device: Device) -> u32 {
    match device {
        Device::Host => 1,
        Device::Cuda(_) => 2,
    }
}

/// Whether a rank measures in this half of a round, as the first or the second of its pair.
fn has_turn(device: Device, first: bool, half: u32) -> bool {
    halves(device) == 1 || first == (half == 0)
}

/// The other ranks, each with the reason if it is not connected.
type Peers = BTreeMap<u32, Result<(), String>>;

/// This rank's ways, or why it has none, and whether each other rank is connected at both ends.
fn meet(group: &Group, device: Device) -> Result<(Result<Ways, String>, Peers), BootstrapError> {
    let rank = group.rank();
    let (ways, own): (Result<Ways, String>, Peers) = match Ways::open(group, device) {
        Ok((ways, connected)) => {
            let words = |(peer, found): (u32, Result<()>)| (peer, found.map_err(|error| error.to_string()));
            (Ok(ways), connected.into_iter().map(words).collect())
        }
        Err(error) => {
            let others = group.active().mask.without(rank);
            let why = error.to_string();
            (Err(why.clone()), others.iter().map(|peer| (peer, Err(why.clone()))).collect())
        }
    };
    let mut told = vec![Vec::new(); group.world() as usize];
    for (peer, found) in &own {
        told[*peer as usize] = tell(ways.is_ok(), found);
    }
    let told = group.exchange_blocking("doctor: connected", told)?;
    let both = |(peer, own): (u32, Result<(), String>)| {
        let (has_ways, its) = hear(told.get(peer as usize).map_or(&[], Vec::as_slice));
        let its = its.map_err(|why| match why.is_empty() {
            true => format!("rank {peer} has not connected to rank {rank}"),
            false => why,
        });
        // A peer without ways gave no address, of which this rank has only seen that it is none.
        (peer, if ways.is_ok() && !has_ways { its } else { own.and(its) })
    };
    let peers = own.into_iter().map(both).collect();
    Ok((ways, peers))
}

/// What a rank says to another one: whether it has ways at all, whether they are connected, and why not.
fn tell(has_ways: bool, found: &Result<(), String>) -> Vec<u8> {
    let why = found.as_ref().err().map_or("", String::as_str);
    [&[u8::from(has_ways), u8::from(found.is_ok())], why.as_bytes()].concat()
}

/// What [`tell`] has said; of a rank that has said nothing, that they are not connected.
fn hear(told: &[u8]) -> (bool, Result<(), String>) {
    match told {
        [has_ways, 1, ..] => (*has_ways == 1, Ok(())),
        [has_ways, _, why @ ..] => (*has_ways == 1, Err(String::from_utf8_lossy(why).into_owned())),
        _ => (true, Err(String::new())),
    }
}

/// Microseconds one way, and bytes a nanosecond, where they were measured.
type Figures = (f64, Option<f64>);

/// The other ranks, each with the reason if it was not reached.
type Connected = Vec<(u32, Result<()>)>;

/// Ways from this rank to the others, by kind of device.
enum Ways {
    Host { trial: Trial, bytes: u64 },
    Gpu(GpuTrial),
}

impl Ways {
    fn open(group: &Group, device: Device) -> Result<(Self, Connected)> {
        match device {
            Device::Host => {
                let bytes = (WINDOW_MAX / u64::from(group.world() * RANGES)).min(RANGE_MAX) & !7;
                let (trial, connected) = Trial::by_chosen_paths(group, (bytes, RANGES), DEADLINE)?;
                Ok((Self::Host { trial, bytes }, connected))
            }
            Device::Cuda(ordinal) => {
                let (trial, connected) = GpuTrial::by_chosen_paths(group, ordinal, DEADLINE)?;
                Ok((Self::Gpu(trial), connected))
            }
        }
    }

    fn path(&self, peer: u32) -> Path {
        match self {
            Self::Host { trial, .. } => trial.path(peer),
            Self::Gpu(trial) => trial.path(peer),
        }
    }

    fn measure(&self, peer: u32, first: bool) -> Result<Figures> {
        match self {
            Self::Host { trial, bytes } => Way { trial, peer, first, bytes: *bytes }.measure(),
            Self::Gpu(trial) => {
                let (one_way, gbs) = trial.measure(peer, DEADLINE)?;
                Ok((one_way.as_secs_f64() * 1e6, gbs))
            }
        }
    }
}

/// A pair of ranks on the host, of which the first begins.
struct Way<'t> {
    trial: &'t Trial,
    peer: u32,
    first: bool,
    bytes: u64,
}

impl Way<'_> {
    fn measure(&self) -> Result<Figures> {
        let mut number = 0;
        let mut turns: Vec<Duration> = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let began = Instant::now();
            self.turn(self.first, (8, 1), &mut number)?;
            turns.push(began.elapsed());
        }
        turns.sort_unstable();
        let one_way = turns[PINGS / 2] / 2;
        // One rank sends while the other answers with a word. Then they change roles, once the other has been told that
        // it may.
        let mut fastest = Duration::MAX;
        for sends in [self.first, !self.first] {
            if sends != self.first {
                self.hand_over(&mut number)?;
            }
            for _ in 0..ROUNDS {
                let began = Instant::now();
                self.turn(sends, (self.bytes, RANGES), &mut number)?;
                if sends {
                    fastest = fastest.min(began.elapsed());
                }
            }
        }
        let carried = fastest.saturating_sub(one_way).max(Duration::from_nanos(1));
        let bytes = self.bytes * u64::from(RANGES);
        Ok((one_way.as_secs_f64() * 1e6, Some(bytes as f64 / carried.as_nanos() as f64)))
    }

    /// Sends `count` ranges of `bytes` bytes, and gets 8 bytes back.
    fn turn(&self, sends: bool, (bytes, count): (u64, u32), number: &mut u64) -> Result<()> {
        let Self { trial, peer, .. } = *self;
        *number += 1;
        if sends {
            trial.put(peer, bytes, count, *number)?;
            trial.wait(peer, 8, 1, *number)
        } else {
            trial.wait(peer, bytes, count, *number)?;
            trial.put(peer, 8, 1, *number)
        }
    }

    /// The rank that put last may put again only once that put has been awaited.
    fn hand_over(&self, number: &mut u64) -> Result<()> {
        *number += 1;
        match self.first {
            true => self.trial.put(self.peer, 8, 1, *number),
            false => self.trial.wait(self.peer, 8, 1, *number),
        }
    }
}

fn cell((from, to): (u32, u32), path: Path, figures: Result<Figures, String>) -> Cell {
    let (one_way_us, gb_per_s) = figures.as_ref().map_or((None, None), |(us, gbs)| (Some(*us), *gbs));
    let reason = figures.err().unwrap_or_default();
    Cell { from, to, path: path.to_string(), one_way_us, gb_per_s, slow: false, reason }
}

/// One line of text for a cell, with so much of its reason that the line has at most `most` bytes.
fn encode(cell: &Cell, most: usize) -> String {
    let Cell { to, path, one_way_us, gb_per_s, reason, .. } = cell;
    let figure = |value: &Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
    let mut line = format!("{to}\t{path}\t{}\t{}\t", figure(one_way_us), figure(gb_per_s));
    for letter in reason.chars().map(|letter| if matches!(letter, '\n' | '\t') { ' ' } else { letter }) {
        if line.len() + letter.len_utf8() >= most {
            break;
        }
        line.push(letter);
    }
    line + "\n"
}

fn decode(from: u32, line: &str) -> Option<Cell> {
    let mut words = line.split('\t');
    let mut word = || words.next();
    let (to, path) = (word()?.parse().ok()?, word()?.to_owned());
    let (one_way_us, gb_per_s) = (word()?.parse().ok(), word()?.parse().ok());
    Some(Cell { from, to, path, one_way_us, gb_per_s, slow: false, reason: word()?.to_owned() })
}

/// The median of each figure.
fn middle(figures: &[Figures]) -> Figures {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let us = median(figures.iter().map(|(us, _)| *us).collect());
    (us.unwrap_or(0.0), median(figures.iter().filter_map(|(_, gbs)| *gbs).collect()))
}

/// The text of a cell in the table.
fn words(cell: &Cell) -> String {
    let mark = if cell.slow { " SLOW" } else { "" };
    match (cell.one_way_us, cell.gb_per_s) {
        (Some(us), Some(gbs)) => format!("{}, {us:.1} us, {gbs:.1} GB/s{mark}", cell.path),
        (Some(us), None) => format!("{}, {us:.1} us{mark}", cell.path),
        _ => "NONE".to_owned(),
    }
}

/// One line: `rank 0 to rank 1: shared memory, 0.5 us, 9.0 GB/s`, and why it was not reached or measured.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, reason, .. } = self;
        write!(f, "rank {from} to rank {to}: {}", words(self))?;
        if reason.is_empty() { Ok(()) } else { write!(f, " ({reason})") }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.hosts.len();
        writeln!(f, "{world} ranks, each with each: path, time of a word one way, bandwidth")?;
        if world <= TABLE_MAX {
            self.table(f)?
        } else {
            self.summary(f)?
        }
        for (from, to, reason) in self.reasons() {
            let ranks = if to.len() == 1 { "rank" } else { "ranks" };
            writeln!(f, "  rank {from} to {ranks} {to}: {reason}")?;
        }
        Ok(())
    }
}

impl Matrix {
    /// Why ranks are not reached: from which, to which, and the reason that these have in common.
    fn reasons(&self) -> Vec<(u32, Mask, &str)> {
        let mut reasons: Vec<(u32, Mask, &str)> = Vec::new();
        for Cell { from, to, reason, .. } in self.cells.iter().filter(|cell| !cell.reason.is_empty()) {
            match reasons.iter_mut().find(|(rank, _, other)| (rank, *other) == (from, reason)) {
                Some((_, ranks, _)) => ranks.insert(*to),
                None => reasons.push((*from, Mask::from_iter([*to]), reason)),
            }
        }
        reasons
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.hosts.len();
        let text = |from: usize, to: usize| {
            let cell = self.cells.iter().find(|cell| (cell.from as usize, cell.to as usize) == (from, to));
            cell.map_or("-".to_owned(), words)
        };
        let labels: Vec<String> =
            self.hosts.iter().enumerate().map(|(rank, host)| format!("{rank} on {host}")).collect();
        let left = labels.iter().map(String::len).max().unwrap_or(0).max("from".len());
        let width = |to: usize| {
            let widest = (0..world).map(|from| text(from, to).len()).max().unwrap_or(0);
            widest.max(format!("to {to}").len())
        };
        let mut lines = vec![format!("  {:left$}", "from")];
        lines.extend(labels.iter().map(|label| format!("  {label:left$}")));
        for to in 0..world {
            let width = width(to);
            lines[0] += &format!("  {:width$}", format!("to {to}"));
            for from in 0..world {
                lines[from + 1] += &format!("  {:width$}", text(from, to));
            }
        }
        lines.iter().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }

    /// The median figures of each path, and the cells that stand out.
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, figures) in self.paths() {
            let (us, gbs) = middle(&figures);
            let gbs = gbs.map_or(String::new(), |gbs| format!(", {gbs:.1} GB/s"));
            writeln!(f, "  {path}: {} ways, median {us:.1} us{gbs}", figures.len())?;
        }
        for cell in self.cells.iter().filter(|cell| cell.slow) {
            writeln!(f, "  rank {} to rank {}: {}", cell.from, cell.to, words(cell))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Wire;

    fn measured(from: u32, to: u32, us: f64, gbs: f64) -> Cell {
        cell((from, to), Path::SharedMemory, Ok((us, Some(gbs))))
    }

    /// A matrix of three ranks, with this cell from the second to the third.
    fn three(other: Cell) -> Matrix {
        let others = [(0, 1), (0, 2), (1, 0), (2, 0), (2, 1)];
        let mut cells: Vec<Cell> = others.iter().map(|(from, to)| measured(*from, *to, 0.5, 10.0)).collect();
        cells.insert(3, other);
        Matrix::new(vec!["a".into(), "a".into(), "b".into()], cells)
    }

    #[test]
    fn the_slow_cell_is_marked_and_no_other() {
        for (us, gbs, slow) in [(0.5, 10.0, false), (0.9, 5.1, false), (0.5, 4.9, true), (1.1, 10.0, true)] {
            let matrix = three(measured(1, 2, us, gbs));
            for cell in &matrix.cells {
                assert_eq!(cell.slow, slow && (cell.from, cell.to) == (1, 2), "{cell:?}");
            }
        }
        // Two cells of one pair say nothing about each other.
        let pair = vec![measured(0, 1, 0.5, 10.0), measured(1, 0, 0.5, 1.0)];
        assert!(Matrix::new(vec![String::new(); 2], pair).cells.iter().all(|cell| !cell.slow));
    }

    #[test]
    fn a_table_shows_what_is_slow_and_what_is_not_reached() {
        let slow = three(measured(1, 2, 2.0, 1.0)).to_string();
        assert_eq!(
            slow,
            "3 ranks, each with each: path, time of a word one way, bandwidth\n  \
             from    to 0                              to 1                              to 2\n  \
             0 on a  -                                 shared memory, 0.5 us, 10.0 GB/s  shared memory, 0.5 us, 10.0 GB/s\n  \
             1 on a  shared memory, 0.5 us, 10.0 GB/s  -                                 shared memory, 2.0 us, 1.0 GB/s SLOW\n  \
             2 on b  shared memory, 0.5 us, 10.0 GB/s  shared memory, 0.5 us, 10.0 GB/s  -\n"
        );
        let none = three(cell((1, 2), Path::None, Err("no way".to_owned())));
        assert!(
            !none.is_complete() && none.to_string().ends_with("\n  rank 1 to rank 2: no way\n"),
            "{none}"
        );
        let json: serde_json::Value = serde_json::from_str(&none.to_json()).unwrap();
        assert_eq!(json["hosts"][2], "b");
        assert_eq!(json["cells"][3]["one_way_us"], serde_json::Value::Null);
        assert_eq!(json["cells"][0]["gb_per_s"], 10.0);
        assert_eq!(json["cells"][3]["reason"], "no way");
    }

    #[test]
    fn many_ranks_are_told_by_what_stands_out() {
        let pairs = (0..9).flat_map(|from| (0..9).filter(move |to| *to != from).map(move |to| (from, to)));
        let cells =
            pairs.map(|(from, to)| measured(from, to, if (from, to) == (7, 3) { 9.0 } else { 0.5 }, 10.0));
        let text = Matrix::new(vec!["a".into(); 9], cells.collect()).to_string();
        assert!(text.contains("shared memory: 72 ways, median 0.5 us, 10.0 GB/s\n"), "{text}");
        assert!(text.ends_with("rank 7 to rank 3: shared memory, 9.0 us, 10.0 GB/s SLOW\n"), "{text}");
    }

    #[test]
    fn every_pair_has_its_round_and_no_rank_two_at_a_time() {
        for world in [1, 2, 3, 16, 17, 18, 33] {
            let mut seen = std::collections::BTreeSet::new();
            for round in rounds(world) {
                let ranks: Vec<u32> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                let distinct: std::collections::BTreeSet<_> = ranks.iter().collect();
                assert_eq!(distinct.len(), ranks.len(), "{world}: {round:?}");
                seen.extend(round.iter().map(|(a, b)| (*a.min(b), *a.max(b))));
            }
            assert_eq!(seen.len() as u32, world * (world - 1) / 2, "{world}");
        }
    }

    #[test]
    fn cells_reach_the_first_rank_as_they_were() {
        for cell in [measured(4, 2, 0.125, 11.5), cell((4, 2), Path::None, Err("no\tway\n".to_owned()))] {
            let line = encode(&cell, 200);
            let reason = cell.reason.replace(['\n', '\t'], " ");
            assert_eq!(decode(4, line.trim_end_matches('\n')), Some(Cell { reason, ..cell }));
        }
        assert_eq!(decode(0, "1\tnone"), None);
    }

    #[test]
    fn a_row_of_reasons_fits_into_a_blob() {
        const WORLD: u32 = 1024;
        let most = MAX_BLOB_BYTES / WORLD as usize;
        let failed = cell((4, WORLD - 1), Path::None, Err("é".repeat(200)));
        let line = encode(&failed, most);
        assert!(line.len() <= most && line.len() + 2 > most, "{line:?}");
        assert!(failed.reason.starts_with(&decode(4, line.trim_end_matches('\n')).unwrap().reason));
        let figures = (5e6 / 7.0, Some(500.0 / 7.0));
        for path in [Path::SharedMemory, Path::Queue(Wire::Verbs)] {
            let line = encode(&cell((4, WORLD - 1), path, Ok(figures)), most);
            assert!(line.len() <= most && decode(4, line.trim_end_matches('\n')).is_some(), "{line:?}");
        }
    }

    #[test]
    fn ranks_hear_what_others_tell() {
        for has_ways in [true, false] {
            for found in [Ok(()), Err("no way".to_owned())] {
                assert_eq!(hear(&tell(has_ways, &found)), (has_ways, found));
            }
        }
        assert_eq!(hear(&[]), (true, Err(String::new())));
    }

    #[test]
    fn ranks_of_a_process_are_measured() {
        let groups = Group::threads(3).unwrap();
        let matrix = std::thread::scope(|scope| {
            for group in &groups[1..] {
                scope.spawn(|| assert_eq!(Matrix::measure_blocking(group, Device::Host).unwrap(), None));
            }
            Matrix::measure_blocking(&groups[0], Device::Host).unwrap().unwrap()
        });
        assert!(matrix.is_complete() && matrix.cells.len() == 6, "{matrix}");
        for cell in &matrix.cells {
            assert_eq!(cell.path, "thread");
            assert!(cell.one_way_us.unwrap() > 0.0 && cell.gb_per_s.unwrap() > 0.0, "{cell:?}");
        }
    }
}
