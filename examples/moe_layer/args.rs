//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use epwire::launch::MAX_WORLD;
use serde::Serialize;

use crate::{
    model::{Float16, Shape},
    nic::Nic,
    reference::Summation,
};

/// Runs the bytes of a file through a Mixture-of-Experts model whose experts are spread over several processes, and
/// checks every layer against a reference computed in one.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(name = "moe_layer", version)]
pub struct Args {
    /// File whose bytes are the tokens
    pub file: PathBuf,
    /// Processes to start on this host; not needed under torchrun, mpirun, srun or another launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORLD)))]
    pub ranks: Option<u32>,
    /// Where tokens, experts and the window are: host memory, or one GPU per rank (features `cuda` and `cudarc`)
    #[arg(long, value_enum, default_value_t = Device::Host)]
    pub device: Device,
    /// Channels of a token
    #[arg(long, value_name = "H", default_value_t = 256)]
    pub hidden: usize,
    /// Channels inside an expert
    #[arg(long, value_name = "I", default_value_t = 64)]
    pub intermediate: usize,
    /// Experts in all, a multiple of the ranks [default: 16, or the next multiple of the ranks]
    #[arg(long, value_name = "E")]
    pub experts: Option<usize>,
    /// Experts per token
    #[arg(long, value_name = "K", default_value_t = 4)]
    pub topk: usize,
    /// Layers
    #[arg(long, value_name = "L", default_value_t = 4)]
    pub layers: usize,
    /// What dispatch sends: 16-bit values, or FP8 with a scale per 128 channels (of bf16 values)
    #[arg(long, value_enum, default_value_t = Payload::Bf16)]
    pub payload: Payload,
    /// How received rows are laid out
    #[arg(long, value_enum, default_value_t = Layout::ExpertMajor)]
    pub layout: Layout,
    /// How combine sums: one row per rank, or one per expert in top-k order (expert-major only)
    #[arg(long, value_enum, default_value_t = Combine::Reduced)]
    pub combine: Combine,
    /// Split dispatch and combine into sending and receiving halves
    #[arg(long)]
    pub split: bool,
    /// Tokens per rank and step at most
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_tokens: usize,
    /// Seconds to wait for a rank that is silent
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub deadline: u64,
    /// Reach all ranks by queues that this NIC drains, in place of EPWIRE_PATHS and EPWIRE_NIC
    #[arg(long, value_enum)]
    pub nic: Option<Nic>,
    /// Seed of all weights
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `--device`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    Host,
    Cuda,
}

/// Sets the environment variables for the library, and for the ranks that this process starts. Called before any thread
/// is started.
pub fn tell(nic: Nic) {
    let name = nic.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
    for (variable, value) in [(epwire::env::PATHS, "queue"), (epwire::env::NIC, &name)] {
        // SAFETY: this process has one thread so far.
        unsafe { std::env::set_var(variable, value) };
    }
}

/// `--payload`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    Bf16,
    F16,
    Fp8,
}

/// `--layout`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    ExpertMajor,
    RankMajor,
}

/// `--combine`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    Reduced,
    Ordered,
}

impl Args {
    /// The sizes of the model for a world of `ranks`, or what is wrong with them.
    pub fn shape(&self, ranks: usize) -> Result<Shape, String> {
        let experts = self.experts.unwrap_or(16usize.next_multiple_of(ranks));
        let Self { hidden, intermediate, topk, layers, max_tokens, .. } = *self;
        if experts == 0 || !experts.is_multiple_of(ranks) {
            return Err(format!("--experts {experts} is not a multiple of {ranks} ranks"));
        }
        if topk == 0 || topk > experts.min(32) {
            return Err(format!(
                "--topk {topk} is not between 1 and {} (experts, at most 32)",
                experts.min(32)
            ));
        }
        let block = if self.payload == Payload::Fp8 { 128 } else { 8 };
        if hidden == 0 || !hidden.is_multiple_of(block) {
            return Err(format!("--hidden {hidden} is not a multiple of {block}, as this payload needs"));
        }
        if intermediate == 0 || layers == 0 {
            return Err("--intermediate and --layers must be at least 1".into());
        }
        if !(1..=65_536).contains(&max_tokens) {
            return Err(format!("--max-tokens {max_tokens} is not between 1 and 65536"));
        }
        if self.layout == Layout::RankMajor && self.combine == Combine::Ordered {
            return Err("--combine ordered needs --layout expert-major".into());
        }
        Ok(Shape { hidden, intermediate, experts, topk, layers })
    }

    /// Type of hidden states, expert outputs and combined rows.
    pub fn dtype(&self) -> Float16 {
        match self.payload {
            Payload::Bf16 | Payload::Fp8 => Float16::Bf16,
            Payload::F16 => Float16::F16,
        }
    }

    /// How the reference sums.
    pub fn summation(&self, ranks: usize) -> Summation {
        match self.combine {
            Combine::Reduced => Summation::RankReduced { ranks },
            Combine::Ordered => Summation::Ordered,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn args(line: &str) -> Args {
        Args::try_parse_from(["moe_layer", "file"].into_iter().chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn the_default_model_fits_any_small_world() {
        for ranks in 1..=8 {
            let shape = args("").shape(ranks).unwrap();
            assert_eq!(shape.experts % ranks, 0);
            assert!((16..=16 + ranks).contains(&shape.experts));
        }
    }

    #[test]
    fn the_readme_has_every_option() {
        crate::options::assert_in_readme(&Args::command());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_by_name() {
        for (line, what) in [
            ("--experts 10", "--experts 10"),
            ("--experts 0", "--experts 0"),
            ("--topk 17", "--topk 17"),
            ("--topk 0", "--topk 0"),
            ("--hidden 100", "--hidden 100"),
            ("--hidden 200 --payload fp8", "128"),
            ("--layers 0", "--layers"),
            ("--max-tokens 0", "--max-tokens 0"),
            ("--layout rank-major --combine ordered", "expert-major"),
        ] {
            let text = args(line).shape(4).unwrap_err();
            assert!(text.contains(what), "{line}: {text}");
        }
        assert!(args("--hidden 200").shape(4).is_ok());
    }

    #[test]
    fn the_payload_decides_the_type() {
        assert_eq!(args("--payload fp8").dtype(), Float16::Bf16);
        assert_eq!(args("--payload f16").dtype(), Float16::F16);
        assert_eq!(args("--combine ordered").summation(4), Summation::Ordered);
        assert_eq!(args("").summation(4), Summation::RankReduced { ranks: 4 });
    }
}
