//! The arithmetic of the contract, one scalar at a time and by definition: 16-bit rounding, e4m3, block scales.

use epwire::{Float16, Fp8Scale};
use half::{bf16, f16};

pub(crate) const BLOCK: usize = 128;

pub(crate) fn widen(of: Float16, bits: u16) -> f32 {
    match of {
        Float16::Bf16 => bf16::from_bits(bits).to_f32(),
        Float16::F16 => f16::from_bits(bits).to_f32(),
    }
}

/// To nearest even; every NaN becomes the positive quiet one.
pub(crate) fn narrow(to: Float16, value: f32) -> u16 {
    match to {
        Float16::Bf16 if value.is_nan() => 0x7fc0,
        Float16::F16 if value.is_nan() => 0x7e00,
        Float16::Bf16 => bf16::from_f32(value).to_bits(),
        Float16::F16 => f16::from_f32(value).to_bits(),
    }
}

pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

/// Sign, four bits of exponent biased by 7, three of mantissa; 0x7f and 0xff are NaN.
pub(crate) fn widen_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest of the 127 magnitudes, the even code of two equally near ones; 448 for anything larger.
fn narrow_e4m3(value: f32, magnitudes: &[f64; 127]) -> u8 {
    let wanted = f64::from(value.abs());
    let above = magnitudes.partition_point(|m| *m < wanted);
    if above == 0 || above == magnitudes.len() {
        return above.min(magnitudes.len() - 1) as u8;
    }
    let (down, up) = (wanted - magnitudes[above - 1], magnitudes[above] - wanted);
    let nearer_below = down < up || (down == up && above % 2 == 1);
    if nearer_below { above as u8 - 1 } else { above as u8 }
}

/// Scale and its inverse for a block whose greatest magnitude is `amax`.
fn block_scale(kind: Fp8Scale, amax: f32) -> (f32, f32) {
    if kind == Fp8Scale::F32 {
        return (amax / 448.0, 448.0 / amax);
    }
    let wanted = amax.min(f32::MAX) / 448.0;
    let exponent = (-126..=127).find(|e| 2f32.powi(*e) >= wanted).expect("f32::MAX / 448 is below 2^127");
    (2f32.powi(exponent), 2f32.powi(-exponent))
}

/// A row of 16-bit values as e4m3 codes and as the bytes of its scales.
pub(crate) fn quantize(kind: Fp8Scale, of: Float16, row: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let magnitudes: [f64; 127] = std::array::from_fn(|code| f64::from(widen_e4m3(code as u8)));
    let values: Vec<f32> = words(row).map(|bits| widen(of, bits)).collect();
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in values.chunks(BLOCK) {
        let mut amax = 1e-4f32;
        for x in block {
            // False for a NaN.
            if x.abs() > amax {
                amax = x.abs();
            }
        }
        let (scale, inverse) = block_scale(kind, amax);
        match kind {
            Fp8Scale::Ue8m0 => scales.push((scale.log2() as i32 + 127) as u8),
            _ => scales.extend(scale.to_le_bytes()),
        }
        for x in block {
            let scaled = x * inverse;
            let magnitude = if scaled.is_nan() { 0x7f } else { narrow_e4m3(scaled, &magnitudes) };
            codes.push(magnitude | if x.is_sign_negative() { 0x80 } else { 0 });
        }
    }
    (codes, scales)
}

/// The values of a quantised row.
pub(crate) fn dequantize(kind: Fp8Scale, codes: &[u8], scales: &[u8]) -> Vec<f32> {
    let scale = |block: usize| match kind {
        Fp8Scale::Ue8m0 => 2f32.powi(i32::from(scales[block]) - 127),
        _ => f32::from_le_bytes(scales[block * 4..][..4].try_into().expect("four bytes")),
    };
    let blocks = codes.chunks(BLOCK).enumerate();
    blocks.flat_map(|(b, codes)| codes.iter().map(move |q| widen_e4m3(*q) * scale(b))).collect()
}
