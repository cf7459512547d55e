//! The command line, and the list of shapes that it asks for.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use epwire::prefill::{PrefillConfig, PrefillPlan};
use epwire::{EpConfig, Fp8Scale};
use serde::{Deserialize, Serialize};

use crate::{
    bytes::Bytes,
    cases::Case,
    collective::{Collective, Type, data},
    floor::Reads,
    nic::Nic,
    routing::Spread,
    table,
    wire::Wire,
};

/// Measures dispatch, combine and the pair over shapes, beside the floor of the machine, and checks every result.
///
/// Lists are separated by commas; every combination of them is measured.
#[derive(Debug, Clone, Parser)]
#[command(name = "bench", version, after_long_help = crate::floor::HELP)]
pub struct Args {
    /// Processes to start on this host; not needed under torchrun, mpirun, srun or another launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: Option<u32>,
    /// Empty places of the group, beside the ranks that run: each has a rank's share of the experts, to which no token is routed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub absent: u32,
    /// Where rows live
    #[arg(long, value_enum, default_value_t = Device::Host)]
    pub device: Device,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "dispatch,combine,pair")]
    pub cases: Vec<Case>,
    /// Measure these collectives instead, out of place and in place, in the columns of nccl-tests; on GPUs in CUDA graphs of 20
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["absent", "cases", "tokens", "hidden", "experts", "topk", "payload", "layout", "combine", "routing"])]
    #[arg(conflicts_with_all = ["graph", "split", "table", "ring", "lanes", "serial_lanes", "with", "reads", "plot", "against"])]
    pub collective: Vec<Collective>,
    /// With --collective: bytes of the larger buffer, as FIRST:LAST:xFACTOR, FIRST:LAST:+STEP or one size, with K, M and G
    #[arg(long, value_name = "SIZES", default_value = "8:64M:x8", requires = "collective")]
    pub bytes: Bytes,
    /// With --collective: types of elements
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "f32",
        requires = "collective"
    )]
    pub types: Vec<Type>,
    /// With --collective: tensors lie in memory of the communicator, which peers of the host read without a copy on the way
    #[arg(long, requires = "collective")]
    pub heap: bool,
    /// With --collective and --heap on GPUs: copy engines move all-gathers and all-to-alls of any size
    #[arg(long, requires = "heap")]
    pub copy_engines: bool,
    /// Tokens of each rank
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    pub tokens: Vec<u32>,
    /// Channels of a token
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "7168")]
    pub hidden: Vec<u32>,
    /// Experts in all
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64")]
    #[arg(default_value_if("table", "true", "256"))]
    pub experts: Vec<u32>,
    /// Experts per token
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8")]
    pub topk: Vec<u32>,
    /// What dispatch sends (fp8: bf16 tokens, quantised with an f32 scale per 128 channels; fp8-given: those of the caller, with their scales); combine returns 16-bit rows
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bf16")]
    pub payload: Vec<Payload>,
    /// How received rows are laid out
    #[arg(long, value_enum, value_delimiter = ',', default_value = "expert-major,rank-major")]
    pub layout: Vec<Layout>,
    /// How combine sums: one row per rank, or one per expert (not rank-major)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "reduced")]
    pub combine: Vec<Combine>,
    /// Which experts tokens choose
    #[arg(long, value_enum, default_value_t = Spread::Uniform)]
    pub routing: Spread,
    /// Iterations before those that count
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: u32,
    /// Iterations that count
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=4000))]
    pub iterations: u32,
    /// On the host: threads of each rank, also while the floor is measured [default: cores / ranks, at least 1]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub threads: u32,
    /// On GPUs: time a CUDA graph of 50 operations, divided by 50 (combine: between stamps in it, without its dispatch), instead of each operation between two events
    #[arg(long, default_value_if("table", "true", "true"))]
    pub graph: bool,
    /// On GPUs: also time the halves of dispatch and combine, the receiving one with everything arrived
    #[arg(long, default_value_if("table", "true", "true"))]
    pub split: bool,
    /// On GPUs: what the guide's table has, in Markdown, by --graph and --split, of 256 experts unless told otherwise
    #[arg(long, conflicts_with_all = ["cases", "payload", "layout", "combine", "json", "plot", "compare", "absent"])]
    pub table: bool,
    /// On GPUs: SMs that the kernels of all lanes, or of a collective, take together, with one thread block on each;
    /// `all`: the default [default: all of the GPU; for collectives 32]
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all", hide_default_value = true, value_parser = sms)]
    pub sms: Vec<u32>,
    /// With --layout packed and dense: slots of a ring from one rank to another [default: the library's choice]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub ring: u32,
    /// Lanes of the buffer, one of which is measured; on GPUs each has its share of the SMs, in prefill nearly all while it is alone
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub lanes: u32,
    /// With --lanes 2 on GPUs: the lanes never run at the same time, so each takes all SMs
    #[arg(long)]
    pub serial_lanes: bool,
    /// On GPUs: what operations also add to sums of the caller
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub with: Vec<With>,
    /// On the host: how often the floor counts a row as read that dispatch copies to several places
    #[arg(long, value_enum, default_value_t = Reads::Once)]
    pub reads: Reads,
    /// Paths by which peers may be reached, in place of EPWIRE_PATHS; with `queue` alone, plain sockets are measured beside
    #[arg(long, value_name = "NAMES")]
    pub paths: Option<String>,
    /// What drains queues, in place of EPWIRE_NIC
    #[arg(long, value_enum)]
    pub nic: Option<Nic>,
    /// What carries the bytes of queues, in place of EPWIRE_WIRES
    #[arg(long, value_enum)]
    pub wire: Option<Wire>,
    /// Print one JSON object per case instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw median and floor over tokens into this SVG file
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Measure nothing; compare what two runs have written with --json, the older one first
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub compare: Option<Vec<PathBuf>>,
    /// With --compare: how many percent slower a case may be
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = finite)]
    #[arg(requires = "compare", conflicts_with = "against")]
    pub tolerance: f64,
    /// Run PROGRAM, an older build of this one, and this one in turns, both with the other options of this line, and tell whether this one is slower
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["compare", "json", "plot", "table"])]
    pub against: Option<PathBuf>,
    /// With --against: how often each of them runs
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1000))]
    #[arg(requires = "against", conflicts_with = "compare")]
    pub pairs: u32,
    /// With --against: fail if the whole 95 % interval of a case's ratio of new to old medians lies above this
    #[arg(long, value_name = "RATIO", default_value_t = 1.03, value_parser = finite)]
    #[arg(requires = "against", conflicts_with = "compare")]
    pub limit: f64,
}

/// `--device`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    #[default]
    Host,
    /// A GPU per rank, in a build with --features cuda,cudarc
    Cuda,
}

/// `--payload`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    Bf16,
    F16,
    Fp8,
    Fp8Given,
}

impl Payload {
    pub fn is_fp8(self) -> bool {
        matches!(self, Self::Fp8 | Self::Fp8Given)
    }

    /// Bytes of a row of so many channels as it travels, and how many scales of 4 bytes travel with it.
    pub fn row(self, hidden: u32) -> (usize, usize) {
        let hidden = hidden as usize;
        if self.is_fp8() { (hidden, hidden / 128) } else { (2 * hidden, 0) }
    }
}

/// `--with`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum With {
    /// The rows of each expert
    ExpertTotals,
    /// The time waited for each rank
    WaitNs,
}

/// `--layout`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    ExpertMajor,
    RankMajor,
    /// With a prefill buffer: experts in order, each beginning at a multiple of 128 rows
    Packed,
    /// With a prefill buffer: sources in order, one row for each token
    Dense,
}

impl Layout {
    /// Whether a token has a row for each of its experts.
    pub fn is_by_expert(self) -> bool {
        matches!(self, Self::ExpertMajor | Self::Packed)
    }

    /// Whether rows go through the rings of a prefill buffer.
    pub fn is_prefill(self) -> bool {
        matches!(self, Self::Packed | Self::Dense)
    }
}

/// A number that a measured one can exceed.
fn finite(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
        .ok_or_else(|| "must be a finite number".to_owned())
}

/// A number of SMs, 0 for `all`.
fn sms(text: &str) -> Result<u32, String> {
    if text == "all" {
        return Ok(0);
    }
    text.parse().ok().filter(|sms| *sms > 0).ok_or_else(|| "must be a number of SMs, or all".to_owned())
}

/// `--combine`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    Reduced,
    Ordered,
}

/// Everything on which a case depends, besides the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub tokens: u32,
    pub hidden: u32,
    pub experts: u32,
    /// Of places that no rank has taken.
    pub absent_experts: u32,
    pub topk: u32,
    pub payload: Payload,
    pub layout: Layout,
    pub combine: Combine,
}

impl Args {
    /// The shapes to be measured by this many ranks. An error names what does not fit.
    pub fn shapes(&self, ranks: u32) -> Result<Vec<(Shape, Vec<Case>)>, crate::Error> {
        let sms = self.sms != [0] || self.serial_lanes;
        if self.device == Device::Host
            && (self.graph || self.split || self.table || sms || !self.with.is_empty())
        {
            return Err(
                "--graph, --split, --sms, --serial-lanes, --with and --table need --device cuda".into()
            );
        }
        let shapes = match self.table {
            true => table::shapes(self)?,
            false => self.combinations(ranks)?.into_iter().map(|shape| (shape, self.cases.clone())).collect(),
        };
        let device = match self.device {
            Device::Host => epwire::Device::Host,
            Device::Cuda => epwire::Device::Cuda(0), // sizes are those of any
        };
        for (shape, _) in &shapes {
            let config = shape.config(self, device);
            let places = ranks.saturating_add(self.absent);
            match shape.layout {
                // Limits that only a GPU has are reported by its buffer.
                Layout::Packed | Layout::Dense => {
                    PrefillPlan::new(&shape.prefill(self, epwire::Device::Host), places).map(|_| ())?;
                }
                _ => drop(epwire::Plan::new(&config, places)?),
            }
            epwire::RowShape::new(&config, places, shape.payload())?;
        }
        Ok(shapes)
    }

    /// Whether options that collectives share with other cases fit them. An error names what does not.
    pub fn check_collectives(&self) -> Result<(), crate::Error> {
        match self.device {
            Device::Host if self.sms != [0] || self.copy_engines => {
                Err("--sms and --copy-engines need --device cuda".into())
            }
            Device::Cuda if self.sms.len() > 1 => Err("--collective takes one value of --sms".into()),
            _ => Ok(()),
        }
    }

    /// With which types a collective of this size is measured: those for which no smaller size has the same whole blocks. A
    /// barrier, which has neither types nor sizes, is measured once.
    pub fn types_of(&self, collective: Collective, ranks: u32, bytes: u64) -> Vec<Type> {
        let types = if collective == Collective::Barrier { 1 } else { self.types.len() };
        let is_first = |r#type: &Type| {
            let used = |bytes| data::Case::bytes_of(collective, *r#type, ranks, bytes);
            self.bytes.0.iter().find(|size| used(**size) == used(bytes)) == Some(&bytes)
        };
        self.types.iter().take(types).copied().filter(is_first).collect()
    }

    /// The first in the list; 0: the library's choice.
    pub fn chosen_sms(&self) -> u32 {
        self.sms.first().copied().unwrap_or(0)
    }

    /// All combinations of the lists, except ordered sums of rows by source, which do not exist.
    fn combinations(&self, ranks: u32) -> Result<Vec<Shape>, crate::Error> {
        let mut shapes = Vec::new();
        for &payload in &self.payload {
            for &hidden in &self.hidden {
                for &experts in &self.experts {
                    for &topk in &self.topk {
                        for &tokens in &self.tokens {
                            for &layout in &self.layout {
                                for &combine in &self.combine {
                                    shapes.push(Shape {
                                        tokens,
                                        hidden,
                                        experts,
                                        absent_experts: (experts / ranks).saturating_mul(self.absent),
                                        topk,
                                        payload,
                                        layout,
                                        combine,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
        shapes.retain(|s| s.layout.is_by_expert() || s.combine != Combine::Ordered);
        if shapes.is_empty() {
            return Err("--combine ordered needs --layout expert-major or packed".into());
        }
        Ok(shapes)
    }
}

impl Shape {
    pub fn config(&self, args: &Args, device: epwire::Device) -> EpConfig {
        let dtype = self.dtype();
        EpConfig::new(self.tokens, self.hidden, self.experts.saturating_add(self.absent_experts), self.topk)
            .dtype(dtype)
            .combine_dtype(dtype)
            .ordered(self.combine == Combine::Ordered)
            .opaque_bytes(if self.payload == Payload::Fp8Given { self.payload_bytes() as u32 } else { 0 })
            .threads(args.threads)
            .device(device)
            .sms(args.chosen_sms())
            .lanes(args.lanes)
            .serial_lanes(args.serial_lanes)
    }

    /// For a prefill buffer, whose ordered combine needs no reservation.
    pub fn prefill(&self, args: &Args, device: epwire::Device) -> PrefillConfig {
        let ep = self.config(args, device).ordered(false);
        PrefillConfig::new(ep).ring_tokens(args.ring)
    }

    /// Type of tokens, expert outputs and combined rows.
    pub fn dtype(&self) -> epwire::Float16 {
        match self.payload {
            Payload::Bf16 | Payload::Fp8 | Payload::Fp8Given => epwire::Float16::Bf16,
            Payload::F16 => epwire::Float16::F16,
        }
    }

    /// Bytes of a row as it travels, with its scales.
    pub fn payload_bytes(&self) -> u64 {
        let (bytes, scales) = self.payload.row(self.hidden);
        (bytes + 4 * scales) as u64
    }

    /// Bytes of a token as it is given to dispatch.
    pub fn token_bytes(&self) -> u64 {
        if self.payload == Payload::Fp8Given { self.payload_bytes() } else { 2 * u64::from(self.hidden) }
    }

    pub fn payload(&self) -> epwire::Payload {
        match self.payload {
            Payload::Bf16 | Payload::F16 => epwire::Payload::SameAsInput,
            Payload::Fp8 => epwire::Payload::Fp8 { scale: Fp8Scale::F32 },
            Payload::Fp8Given => epwire::Payload::Opaque {
                row_bytes: self.hidden,
                scale_count: self.hidden / 128,
                scale_bytes: 4,
            },
        }
    }

    /// Of a decode buffer.
    pub fn layout(&self) -> epwire::Layout {
        match self.layout {
            Layout::ExpertMajor | Layout::Packed => epwire::Layout::ExpertMajor,
            Layout::RankMajor | Layout::Dense => epwire::Layout::RankMajor,
        }
    }

    pub fn mode(&self) -> epwire::CombineMode {
        match self.combine {
            Combine::Reduced => epwire::CombineMode::RankReduced,
            Combine::Ordered => epwire::CombineMode::Ordered,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn args(line: &str) -> Args {
        Args::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn every_combination_of_the_lists_is_a_shape() {
        let args = args("--tokens 1,2,3 --payload bf16,fp8 --combine reduced,ordered");
        let shapes = args.shapes(4).unwrap();
        assert_eq!(shapes.len(), 3 * 2 * 3, "two layouts, ordered only for one of them");
        assert!(shapes.iter().all(|(s, _)| (s.layout, s.combine) != (Layout::RankMajor, Combine::Ordered)));
    }

    #[test]
    fn numbers_of_sms_are_a_list() {
        assert_eq!(args("").sms, [0]);
        let args = args("--device cuda --sms 8,64,all");
        assert_eq!((args.sms.as_slice(), args.chosen_sms()), (&[8, 64, 0][..], 8));
        assert!(Args::try_parse_from(["bench", "--sms", "0"]).is_err());
    }

    #[test]
    fn a_number_of_ranks_is_refused_by_its_limits() {
        for ranks in ["0", "1025"] {
            let text = Args::try_parse_from(["bench", "--ranks", ranks]).unwrap_err().to_string();
            assert!(text.contains("--ranks") && text.contains("1..=1024"), "{text}");
        }
        assert_eq!(args("--ranks 1024").ranks, Some(1024));
    }

    #[test]
    fn options_that_would_do_nothing_are_refused_by_name() {
        let refused = |line: &str| {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            Args::try_parse_from(words).unwrap_err().to_string()
        };
        for option in [
            "--absent 1",
            "--cases pair",
            "--tokens 128",
            "--hidden 7168",
            "--experts 64",
            "--topk 8",
            "--payload bf16",
            "--layout packed",
            "--combine reduced",
            "--routing zipf",
            "--graph",
            "--split",
            "--table",
            "--ring 64",
            "--lanes 1",
            "--with wait-ns",
            "--reads each",
            "--plot x.svg",
            "--against older",
        ] {
            let text = refused(&format!("--collective all_reduce {option}"));
            let name = option.split(' ').next().unwrap();
            assert!(text.contains(name) && text.contains("--collective"), "{option}: {text}");
        }
        for option in ["--heap", "--bytes 8", "--types f32", "--heap --copy-engines"] {
            assert!(refused(option).contains("--collective"), "{option}");
        }
        let used = args("--collective all_gather --threads 1 --bytes 8:64 --types f32,i8 --heap --json");
        assert_eq!((used.bytes.0.len(), used.types.len(), used.threads), (4, 2, 1));
    }

    #[test]
    fn a_threshold_is_a_finite_number_and_needs_what_it_judges() {
        let refused = |line: &str| {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            Args::try_parse_from(words).unwrap_err().to_string()
        };
        // An argument that is required counts as given if it conflicts with one that is, so conflicts are declared too.
        for (line, option, other) in [
            ("--compare a b --limit 1.02", "--limit", "--compare"),
            ("--compare a b --pairs 7", "--pairs", "--compare"),
            ("--against a --tolerance 2", "--tolerance", "--against"),
            ("--limit 1.02", "required", "--against"),
            ("--pairs 7", "required", "--against"),
            ("--tolerance 2", "required", "--compare"),
        ] {
            let text = refused(line);
            assert!(text.contains(option) && text.contains(other), "{line}: {text}");
        }
        for line in ["--compare a b --tolerance=", "--against a --limit="] {
            for value in ["NaN", "inf", "-inf", "much"] {
                let text = refused(&format!("{line}{value}"));
                assert!(text.contains("must be a finite number"), "{text}");
            }
        }
        assert_eq!(args("--compare a b --tolerance 2.5").tolerance, 2.5);
        assert_eq!(args("--against a --limit 1.02 --pairs 7").limit, 1.02);
    }

    #[test]
    fn collectives_are_checked_before_ranks_start_and_a_barrier_is_measured_once() {
        for (line, what) in [
            ("--sms 8", "--device cuda"),
            ("--heap --copy-engines", "--device cuda"),
            ("--device cuda --sms 8,16", "one value"),
        ] {
            let text =
                args(&format!("--collective barrier {line}")).check_collectives().unwrap_err().to_string();
            assert!(text.contains(what), "{line}: {text}");
        }
        let args = args("--collective barrier,reduce --bytes 8:16 --types f32,i8");
        args.check_collectives().unwrap();
        let types = |collective| [8, 16].map(|bytes| args.types_of(collective, 4, bytes).len());
        assert_eq!((types(Collective::Barrier), types(Collective::Reduce)), ([1, 0], [2, 2]));
    }

    #[test]
    fn sizes_of_the_same_whole_blocks_are_measured_once() {
        let args = args("--collective all_gather --bytes 4:20:+4 --types f32,i8");
        let types = |bytes| args.types_of(Collective::AllGather, 4, bytes);
        assert_eq!([4, 8, 12].map(types), [vec![Type::F32, Type::I8], vec![Type::I8], vec![Type::I8]]);
        assert_eq!([16, 20].map(types), [vec![Type::F32, Type::I8], vec![Type::I8]]);
    }

    #[test]
    fn the_readme_has_every_option() {
        crate::options::assert_in_readme(&Args::command());
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused_by_name() {
        for (line, what) in [
            ("--experts 10", "experts"),
            ("--topk 65", "topk"),
            ("--hidden 200 --payload fp8", "128"),
            ("--tokens 0", "max_tokens"),
            ("--layout rank-major --combine ordered", "expert-major"),
            ("--graph", "--device cuda"),
            ("--sms 8", "--device cuda"),
            ("--lanes 2 --serial-lanes", "--device cuda"),
            ("--with wait-ns", "--device cuda"),
            ("--layout dense --combine ordered", "expert-major"),
            ("--layout packed --ring 70000", "ring_tokens"),
        ] {
            let text = args(line).shapes(4).unwrap_err().to_string();
            assert!(text.contains(what), "{line}: {text}");
        }
    }
}
