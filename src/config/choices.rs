//! The choices of a buffer and its operations: types, payloads, layouts, devices.

use std::fmt;
use std::str::FromStr;

use crate::names::{ParseNameError, names};
use crate::sys;
use crate::tensor::DType;

/// 16-bit types of tokens and expert outputs. There are no others, so a `match` needs no arm for `_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Float16 {
    /// 16-bit brain floating point.
    #[default]
    Bf16,
    /// IEEE half precision.
    F16,
}

names!(Float16, "a 16-bit type: bf16 or f16" { Bf16 = "bf16", F16 = "f16" });

impl Float16 {
    pub(crate) fn to_c(self) -> u32 {
        match self {
            Self::Bf16 => sys::EPW_BF16,
            Self::F16 => sys::EPW_F16,
        }
    }

    /// As an element type of tensors.
    pub fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::Bf16,
            Self::F16 => DType::F16,
        }
    }
}

/// How FP8 scales are stored, one for each 128 channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Fp8Scale {
    /// f32, `amax / 448`.
    F32,
    /// f32, rounded up to a power of two.
    PowerOfTwo,
    /// The same as 8-bit exponents; column-major output packs four to an i32.
    Ue8m0,
}

names!(Fp8Scale, "a kind of scales: f32, power-of-two or ue8m0" {
    F32 = "f32", PowerOfTwo = "power-of-two", Ue8m0 = "ue8m0",
});

/// The payload of a dispatched row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Payload {
    /// The input's own 16-bit values.
    #[default]
    SameAsInput,
    /// e4m3, quantised by dispatch.
    Fp8 {
        /// The kind of scales.
        scale: Fp8Scale,
    },
    /// The caller's own bytes and scales (MXFP8, NVFP4, ...).
    Opaque {
        /// Payload bytes of a row, a multiple of 16.
        row_bytes: u32,
        /// Scales of a row, 0 for none.
        scale_count: u32,
        /// Bytes of one scale: 1, 2, 4 or 8.
        scale_bytes: u32,
    },
}

/// As printed in a log: `the input's type`, `fp8 with ue8m0 scales`, `3584 opaque bytes with 448 scales of 1 byte`.
impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameAsInput => f.pad(Self::SAME_AS_INPUT),
            Self::Fp8 { scale } => write!(f, "fp8 with {scale} scales"),
            Self::Opaque { row_bytes, scale_count: 0, .. } => write!(f, "{row_bytes} opaque bytes"),
            Self::Opaque { row_bytes, scale_count, scale_bytes } => {
                let plural = if *scale_bytes == 1 { "" } else { "s" };
                write!(f, "{row_bytes} opaque bytes with {scale_count} scales of {scale_bytes} byte{plural}")
            }
        }
    }
}

/// Reads what is printed. Opaque rows without scales have a `scale_bytes` of 1, which has no effect.
impl FromStr for Payload {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        Self::read(text).ok_or_else(|| {
            ParseNameError::new(
                text,
                "a payload: the input's type, fp8 with f32 scales (or power-of-two, ue8m0), N opaque bytes, \
                 or N opaque bytes with N scales of N bytes",
            )
        })
    }
}

impl Payload {
    const SAME_AS_INPUT: &str = "the input's type";

    fn read(text: &str) -> Option<Self> {
        if text == Self::SAME_AS_INPUT {
            return Some(Self::SameAsInput);
        }
        if let Some(scales) = text.strip_prefix("fp8 with ") {
            return Some(Self::Fp8 { scale: scales.strip_suffix(" scales")?.parse().ok()? });
        }
        let (row_bytes, scales) = text.split_once(" opaque bytes")?;
        let (scale_count, scale_bytes) = match scales.strip_prefix(" with ") {
            Some(scales) => {
                let (count, bytes) = scales.split_once(" scales of ")?;
                (
                    count.parse().ok()?,
                    bytes.strip_suffix(" bytes").or(bytes.strip_suffix(" byte"))?.parse().ok()?,
                )
            }
            None if scales.is_empty() => (0, 1),
            None => return None,
        };
        Some(Self::Opaque { row_bytes: row_bytes.parse().ok()?, scale_count, scale_bytes })
    }

    pub(crate) fn to_c(self) -> u32 {
        match self {
            Self::SameAsInput => sys::EPW_PAYLOAD_SAME,
            Self::Fp8 { scale: Fp8Scale::F32 } => sys::EPW_PAYLOAD_FP8_F32,
            Self::Fp8 { scale: Fp8Scale::PowerOfTwo } => sys::EPW_PAYLOAD_FP8_POW2,
            Self::Fp8 { scale: Fp8Scale::Ue8m0 } => sys::EPW_PAYLOAD_FP8_UE8M0,
            Self::Opaque { .. } => sys::EPW_PAYLOAD_OPAQUE,
        }
    }

    /// Sets the fields that describe the payload.
    pub(crate) fn set(self, input: &mut sys::epw_dispatch_input) {
        input.payload = self.to_c();
        if let Self::Opaque { row_bytes, scale_count, scale_bytes } = self {
            (input.opaque_row_bytes, input.scale_count, input.scale_bytes) =
                (row_bytes, scale_count, scale_bytes);
        }
    }
}

/// How received rows are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Layout {
    /// `[local_experts, rows, ...]` with a count per local expert, for masked grouped GEMMs.
    #[default]
    ExpertMajor,
    /// `[rows, ...]`, source `s` from row `s * max_tokens` on, with local expert ids and weights per row; may be
    /// read in place in the window.
    RankMajor,
}

names!(Layout, "a layout: expert-major or rank-major" { ExpertMajor = "expert-major", RankMajor = "rank-major" });

/// What answers contain. The guide's page [`steps`](crate::guide::steps) defines, to the bit, how rows are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum CombineMode {
    /// One row per (token, rank): the weighted sum over that rank's experts, in top-k order; these rows are then added
    /// at the token's rank in ascending order of ranks. Needs the weights at dispatch. With [`Layout::RankMajor`] the
    /// caller has made the first sum.
    #[default]
    RankReduced,
    /// One row per (token, expert), summed at the token's rank in top-k order. Needs [`Layout::ExpertMajor`] and
    /// [`EpConfig::ordered`](field@crate::EpConfig::ordered).
    Ordered,
}

names!(CombineMode, "a combine mode: rank-reduced or ordered" { RankReduced = "rank-reduced", Ordered = "ordered" });

/// Where tokens, outputs and the window are, and what moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Device {
    /// Host memory and host threads.
    #[default]
    Host,
    /// Memory and kernels of the GPU with this CUDA ordinal in this process (`CUDA_VISIBLE_DEVICES` counts). Needs the crate's
    /// feature `cuda`; calls are those of [`cuda`](crate::cuda).
    Cuda(u32),
}

/// `host`, or `cuda:0`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Reads what is printed; `cuda` alone is `cuda:0`.
impl FromStr for Device {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let ordinal = match text {
            "host" => return Ok(Self::Host),
            "cuda" => Some(0),
            _ => text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()),
        };
        let unknown = || ParseNameError::new(text, "a device: host, cuda, or cuda: and an ordinal");
        ordinal.map(Self::Cuda).ok_or_else(unknown)
    }
}

impl Device {
    pub(crate) fn to_c(self) -> i32 {
        match self {
            Self::Host => sys::EPW_DEVICE_HOST,
            Self::Cuda(ordinal) => i32::try_from(ordinal).unwrap_or(i32::MAX),
        }
    }

    /// Ranks must agree on this; the ordinal may differ.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda(_) => "cuda",
        }
    }
}
