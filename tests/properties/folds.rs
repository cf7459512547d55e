//! The arithmetic of collectives, from the words of the contract (`epwire.h`): the fold of one element over all
//! members, a scalar at a time.

use epwire::Float16;
use epwire::comm::{Number, Reduction};
use half::{bf16, f16};

use crate::numbers::narrow;
use crate::random::Random;

pub(crate) trait Drawn: Number {
    fn draw(r: &mut Random) -> Self;
    /// Of at least two members, in ascending order of ranks.
    fn folded(reduction: Reduction, values: &[Self]) -> Self;
    fn bits(self) -> u64;

    fn fold(reduction: Reduction, values: &[Self]) -> Self {
        match values {
            [one] => *one,
            _ => Self::folded(reduction, values),
        }
    }
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Drawn for $number {
            fn draw(r: &mut Random) -> Self {
                r.bits() as $number
            }

            fn folded(reduction: Reduction, values: &[Self]) -> Self {
                let all = values.iter().copied();
                match reduction {
                    Reduction::Sum => all.fold(0, Self::wrapping_add),
                    Reduction::Product => all.fold(1, Self::wrapping_mul),
                    Reduction::Min => all.fold(Self::MAX, Self::min),
                    Reduction::Max => all.fold(Self::MIN, Self::max),
                    _ => (all.map(i128::from).sum::<i128>() / values.len() as i128) as Self,
                }
            }

            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($number:ident: $nan:expr),*) => {$(
        mod $number {
            use super::Reduction;

            /// -0 is less than +0 here, and a NaN is both the least and the most.
            fn least(a: $number, b: $number) -> $number {
                match a.partial_cmp(&b) {
                    None => $number::NAN,
                    Some(std::cmp::Ordering::Less) => a,
                    Some(std::cmp::Ordering::Greater) => b,
                    Some(std::cmp::Ordering::Equal) => if a.is_sign_negative() { a } else { b },
                }
            }

            /// The result may be any NaN.
            pub(super) fn folded(reduction: Reduction, first: $number, rest: &[$number]) -> $number {
                let rest_of = |step: fn($number, $number) -> $number| rest.iter().copied().fold(first, step);
                match reduction {
                    Reduction::Sum => rest_of(|a, b| a + b),
                    Reduction::Product => rest_of(|a, b| a * b),
                    Reduction::Min => rest_of(least),
                    Reduction::Max => -(rest.iter().fold(-first, |a, b| least(a, -b))),
                    _ => rest_of(|a, b| a + b) / (rest.len() + 1) as $number,
                }
            }
        }

        impl Drawn for $number {
            fn draw(r: &mut Random) -> Self {
                if r.chance(3) { $number::from_bits(r.bits() as _) } else { ($number::from(r.unit()) - 0.5) * 8.0 }
            }

            fn folded(reduction: Reduction, values: &[Self]) -> Self {
                let sum = $number::folded(reduction, values[0], &values[1..]);
                if sum.is_nan() { $number::from_bits($nan) } else { sum }
            }

            fn bits(self) -> u64 {
                self.to_bits().into()
            }
        }
    )*};
}
floats!(f32: 0x7fc0_0000, f64: 0x7ff8_0000_0000_0000);

/// In f32, rounded once.
macro_rules! halves {
    ($($number:ident: $kind:expr),*) => {$(
        impl Drawn for $number {
            fn draw(r: &mut Random) -> Self {
                if r.chance(3) { $number::from_bits(r.bits() as u16) } else { $number::from_f32((r.unit() - 0.5) * 8.0) }
            }

            fn folded(reduction: Reduction, values: &[Self]) -> Self {
                let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
                $number::from_bits(narrow($kind, f32::folded(reduction, values[0], &values[1..])))
            }

            fn bits(self) -> u64 {
                self.to_bits().into()
            }
        }
    )*};
}
halves!(f16: Float16::F16, bf16: Float16::Bf16);
