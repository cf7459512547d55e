//! FP8 quantisation, by the same code that dispatch uses.

use crate::config::{Float16, Fp8Scale, Payload};
use crate::error::{Error, Failure, Result};
use crate::ffi;
use crate::tensor::sealed::View as _;
use crate::tensor::{DType, TensorMut, TensorRef};

fn invalid(operation: &str, text: String) -> Error {
    Error::Invalid(Failure { operation: operation.into(), rank: None, peer: None, text })
}

/// The 16-bit type of a matrix's elements.
fn half_type(operation: &str, dtype: DType) -> Result<Float16> {
    match dtype {
        DType::Bf16 => Ok(Float16::Bf16),
        DType::F16 => Ok(Float16::F16),
        other => Err(invalid(operation, format!("x is {other:?}, must be Bf16 or F16"))),
    }
}

fn check_sizes(
    operation: &str,
    rows: usize,
    hidden: usize,
    q: usize,
    scale: Fp8Scale,
    scales: usize,
) -> Result<u32> {
    if hidden == 0 || !hidden.is_multiple_of(128) || u32::try_from(hidden).is_err() {
        return Err(invalid(operation, format!("x has {hidden} columns, must be a multiple of 128")));
    }
    let scale_bytes = if scale == Fp8Scale::Ue8m0 { 1 } else { 4 };
    let blocks = rows * (hidden / 128);
    if q != rows * hidden || scales != blocks * scale_bytes {
        return Err(invalid(
            operation,
            format!(
                "{rows} rows of {hidden} need {} bytes of q and {} of scales, not {q} and {scales}",
                rows * hidden,
                blocks * scale_bytes
            ),
        ));
    }
    Ok(hidden as u32)
}

/// Quantises `x [rows, hidden]` (bf16 or f16, dense) to e4m3 `q [rows, hidden]` with one scale per 128 channels,
/// `scales [rows, hidden / 128]`: f32, or bytes for [`Fp8Scale::Ue8m0`].
///
/// amax is at least 1e-4, `q = e4m3(x * 448 / amax)` rounded to nearest even and saturating. May be called from any
/// thread, and runs on it.
pub fn quantize_fp8(
    x: TensorRef<'_>,
    scale: Fp8Scale,
    q: &mut [u8],
    scales: &mut TensorMut<'_>,
) -> Result<()> {
    let op = "quantize_fp8";
    let dtype = half_type(op, x.dtype())?;
    if !x.matrix().is_dense() {
        return Err(invalid(op, "x must be dense".into()));
    }
    let hidden = check_sizes(op, x.rows(), x.cols(), q.len(), scale, scales.bytes())?;
    let payload = Payload::Fp8 { scale }.to_c();
    // SAFETY: sizes checked above; x is borrowed, q and scales are borrowed exclusively.
    unsafe {
        ffi::quantize(
            payload,
            dtype.to_c(),
            x.rows() as u64,
            hidden,
            x.ptr.as_ptr(),
            q.as_mut_ptr(),
            scales.ptr.as_ptr(),
        )
    }
}

/// The inverse of [`quantize_fp8`]: `x = q * scale`, rounded to the type of `x [rows, hidden]`.
pub fn dequantize_fp8(
    q: &[u8],
    scale: Fp8Scale,
    scales: TensorRef<'_>,
    hidden: usize,
    x: &mut TensorMut<'_>,
) -> Result<()> {
    let op = "dequantize_fp8";
    let dtype = half_type(op, x.dtype)?;
    if !scales.matrix().is_dense() {
        return Err(invalid(op, "scales must be dense".into()));
    }
    let rows = x.len.checked_div(hidden).unwrap_or(0);
    let scale_bytes = scales.rows() * scales.cols() * scales.dtype().bytes();
    let columns = check_sizes(op, rows, hidden, q.len(), scale, scale_bytes)?;
    if x.len != rows * hidden {
        return Err(invalid(op, format!("x has {} elements, not a multiple of hidden {hidden}", x.len)));
    }
    let payload = Payload::Fp8 { scale }.to_c();
    // SAFETY: sizes checked above; q and scales are borrowed, x is borrowed exclusively.
    unsafe {
        ffi::dequantize(
            payload,
            dtype.to_c(),
            rows as u64,
            columns,
            q.as_ptr(),
            scales.ptr.as_ptr(),
            x.ptr.as_ptr(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn quantised_rows_come_back_within_half_a_step() {
        let x: Vec<bf16> = (0..512).map(|i| bf16::from_f32(((i * 37) % 101) as f32 - 50.0)).collect();
        for scale in [Fp8Scale::F32, Fp8Scale::PowerOfTwo] {
            let (mut q, mut scales) = (vec![0u8; 512], vec![0f32; 4]);
            quantize_fp8(TensorRef::new(&x, 256), scale, &mut q, &mut TensorMut::new(&mut scales)).unwrap();
            let mut back = vec![bf16::ZERO; 512];
            dequantize_fp8(&q, scale, TensorRef::new(&scales, 2), 256, &mut TensorMut::new(&mut back))
                .unwrap();
            for (a, b) in x.iter().zip(&back) {
                assert!((a.to_f32() - b.to_f32()).abs() <= a.to_f32().abs() / 14.0 + 0.05, "{a} {b}");
            }
        }
    }

    #[test]
    fn wrong_sizes_are_named() {
        let x = vec![bf16::ZERO; 256];
        let error = quantize_fp8(
            TensorRef::new(&x, 256),
            Fp8Scale::F32,
            &mut [0; 255],
            &mut TensorMut::new(&mut [0f32; 2]),
        )
        .unwrap_err();
        assert!(error.to_string().contains("256 bytes of q"), "{error}");
        let error = quantize_fp8(
            TensorRef::new(&x, 64),
            Fp8Scale::F32,
            &mut [0; 256],
            &mut TensorMut::new(&mut [0f32; 2]),
        )
        .unwrap_err();
        assert!(error.to_string().contains("multiple of 128"), "{error}");
    }
}
