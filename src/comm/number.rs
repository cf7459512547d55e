//! The types that collectives carry, and how they reduce them.

use half::{bf16, f16};

use crate::names::names;
use crate::sys;
use crate::tensor::DType;

/// Rust types that collectives carry: `i8`, `u8`, `i32`, `u32`, `i64`, `u64`, [`f16`](half::f16), [`bf16`](half::bf16),
/// `f32`, `f64`. In operations that only move bytes, other types can be sent as `u8`. All bit patterns must be valid
/// values. Other types cannot implement it.
pub trait Number: sealed::Number + Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The tag of the type, for views of a GPU's memory.
    const DTYPE: DType;
}

mod sealed {
    pub trait Number {}
}

/// `EPW_TYPE_*`, if collectives carry it.
pub(super) fn carried(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::I8 => sys::EPW_TYPE_I8,
        DType::U8 => sys::EPW_TYPE_U8,
        DType::I32 => sys::EPW_TYPE_I32,
        DType::U32 => sys::EPW_TYPE_U32,
        DType::I64 => sys::EPW_TYPE_I64,
        DType::U64 => sys::EPW_TYPE_U64,
        DType::F16 => sys::EPW_TYPE_F16,
        DType::Bf16 => sys::EPW_TYPE_BF16,
        DType::F32 => sys::EPW_TYPE_F32,
        DType::F64 => sys::EPW_TYPE_F64,
        DType::U16 => return None,
    })
}

macro_rules! numbers {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl Number for $rust {
            const DTYPE: DType = DType::$dtype;
        }
        impl sealed::Number for $rust {}
    )*};
}
numbers!(
    i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64
);

/// How the elements of all members are reduced to one: a fold in ascending rank order, 16-bit floats in `f32` and
/// rounded once to nearest even, `f32` and `f64` in their own type, integers wrapping. The same bits on every rank and
/// in every run. A NaN result is the positive quiet NaN. With one member its element is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The product.
    Product,
    /// The smallest. NaN if any is; -0 is less than +0.
    Min,
    /// The largest. NaN if any is; +0 is more than -0.
    Max,
    /// The sum divided by the number of members: floats before the rounding, integers exactly, then rounded towards
    /// zero.
    Average,
}

names!(Reduction, "a reduction: sum, product, min, max or average" {
    Sum = "sum", Product = "product", Min = "min", Max = "max", Average = "average",
});

impl Reduction {
    pub(super) fn to_c(self) -> u32 {
        match self {
            Self::Sum => sys::EPW_SUM,
            Self::Product => sys::EPW_PRODUCT,
            Self::Min => sys::EPW_MIN,
            Self::Max => sys::EPW_MAX,
            Self::Average => sys::EPW_AVERAGE,
        }
    }
}
