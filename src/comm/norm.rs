//! An all-reduce and what follows it in a tensor-parallel layer: residual, RMSNorm and, optionally, quantisation.

use std::marker::PhantomData;

use super::call::{Calls, Lowered, Place, Shape, Spans, sealed};
use super::memory::{Source, Span, Target};
use super::number::{Reduction, carried};
use crate::buffer::Memory;
use crate::config::{Fp8Scale, Payload};
use crate::error::{Error, Failure, Result};
use crate::sys;

/// A call that sums rows of `hidden` elements over all ranks, adds the sum to a residual, and normalises each row:
/// `residual += sum; out = residual / sqrt(mean(residual^2) + epsilon) * weight`. Elements are bf16 or f16. The numbers
/// of rows and channels, epsilon and the payload are the same on every rank.
///
/// Results have the same bits on every rank and device. If a member is missing there is no result: each row of the
/// residual and of `out` is either the old one or unspecified.
///
/// On a GPU it is one kernel if peers are reached without queues, the sum is small enough for packets, and the
/// communicator has an SM for each 15 pieces of 128 elements: with 32 SMs, and up to 32 ranks, that is 8 rows of 7168.
/// Larger calls take a second kernel, which waits for nobody.
///
/// The rows may take the place of the sum ([`AllReduceNorm::without_sum`]), and also that of the input
/// ([`AllReduceNorm::in_place`]).
///
/// Buffers are as those of [`Call`](super::Call): slices and owned values on the host, views on a GPU, there aligned to
/// 16 bytes.
///
/// ```
/// use epwire::comm::{AllReduceNorm, CommConfig};
/// use epwire::{Comm, Group};
/// use half::bf16;
///
/// # fn main() -> epwire::Result<()> {
/// # let group = Group::threads(1)?.remove(0);
/// let comm = Comm::create_blocking(&group, CommConfig::default())?;
/// let partial = vec![bf16::ONE; 2 * 8]; // two rows of 8: this rank's part of a layer's output
/// let (mut sum, mut residual) = (vec![bf16::ZERO; 16], vec![bf16::ONE; 16]);
/// let (weight, mut out) = (vec![bf16::ONE; 8], vec![bf16::ZERO; 16]);
/// let call = AllReduceNorm::new(&partial[..], &mut sum[..], &weight[..], &mut out[..], 8).residual(&mut residual[..]);
/// assert!(comm.run_blocking(call)?.is_complete());
/// assert_eq!(residual, [bf16::from_f32(2.0); 16]);
/// assert_eq!(out, [bf16::ONE; 16]);
///
/// // The same in one buffer, as most layers have it.
/// let mut hidden_states = partial;
/// let call = AllReduceNorm::in_place(&mut hidden_states[..], &weight[..], 8).residual(&mut residual[..]);
/// assert!(comm.run_blocking(call)?.is_complete());
/// assert_eq!(residual, [bf16::from_f32(3.0); 16]);
/// assert_eq!(hidden_states, [bf16::ONE; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it does nothing until it is begun or run"]
pub struct AllReduceNorm<S, R, W, O, X = (), C = ()> {
    /// `()`: `recv`.
    send: S,
    recv: R,
    weight: W,
    /// `()`: `recv`.
    out: O,
    residual: X,
    scales: C,
    hidden: usize,
    epsilon: f32,
    payload: Payload,
}

/// The buffers of an [`AllReduceNorm`], which its end gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NormBuffers<S, R, W, O, X, C> {
    /// This rank's part of the sum; `()`: it was in `recv`.
    pub send: S,
    /// The sum, or the rows that have taken its place.
    pub recv: R,
    /// Of each channel.
    pub weight: W,
    /// The normalised rows; `()`: they are in `recv`.
    pub out: O,
    /// The new residual; `()`: there is none.
    pub residual: X,
    /// One for 128 channels of a row; `()`: `out` is not quantised.
    pub scales: C,
}

impl<S: Source, R: Target<Item = S::Item, Memory = S::Memory>, W: Source, O: Target>
    AllReduceNorm<S, R, W, O>
{
    /// `send` and `recv` have any number of rows of `hidden` elements, which is a multiple of 8 and at most 16,384.
    /// `weight` has `hidden` elements, and `out` as many as `recv`. `epsilon` is 1e-6.
    pub fn new(send: S, recv: R, weight: W, out: O, hidden: usize) -> Self {
        Self::of(send, recv, weight, out, hidden)
    }
}

impl<S: Source, R: Target<Item = S::Item, Memory = S::Memory>, W: Source> AllReduceNorm<S, R, W, ()> {
    /// [`AllReduceNorm::new`] without the sum itself: only `out` is written, which is [`NormBuffers::recv`] at the end. Not for
    /// [`AllReduceNorm::fp8`].
    pub fn without_sum(send: S, weight: W, out: R, hidden: usize) -> Self {
        Self::of(send, out, weight, (), hidden)
    }
}

impl<R: Target, W: Source> AllReduceNorm<(), R, W, ()> {
    /// [`AllReduceNorm::new`] with this rank's part of the sum and the normalised rows in one buffer, which is
    /// [`NormBuffers::recv`] at the end. If a member is missing, the input is lost. [`AllReduceNorm::out`] keeps them
    /// apart.
    pub fn in_place(buffer: R, weight: W, hidden: usize) -> Self {
        Self::of((), buffer, weight, (), hidden)
    }
}

impl<R, W, X> AllReduceNorm<(), R, W, (), X> {
    /// The rows go to `out`, and the sum stays in the buffer: for [`AllReduceNorm::fp8`], or if both are needed.
    pub fn out<O: Target>(self, out: O) -> AllReduceNorm<(), R, W, O, X> {
        let Self { send, recv, weight, residual, scales, hidden, epsilon, payload, out: () } = self;
        AllReduceNorm { send, recv, weight, out, residual, scales, hidden, epsilon, payload }
    }
}

impl<S, R, W, O> AllReduceNorm<S, R, W, O> {
    fn of(send: S, recv: R, weight: W, out: O, hidden: usize) -> Self {
        let (epsilon, payload) = (1e-6, Payload::SameAsInput);
        Self { send, recv, weight, out, residual: (), scales: (), hidden, epsilon, payload }
    }
}

impl<S, R, W, O, X, C> AllReduceNorm<S, R, W, O, X, C> {
    /// Added to the mean of squares before its root is taken.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// The residual, as large as the sum, which is added to it: the new residual is written there.
    pub fn residual<Y: Target>(self, residual: Y) -> AllReduceNorm<S, R, W, O, Y, C> {
        let Self { send, recv, weight, out, scales, hidden, epsilon, payload, residual: _ } = self;
        AllReduceNorm { send, recv, weight, out, residual, scales, hidden, epsilon, payload }
    }
}

impl<S, R, W, O: Target, X, C> AllReduceNorm<S, R, W, O, X, C> {
    /// Rows are written to `out` as bytes of FP8 e4m3, and to `scales` one scale for each 128 channels: f32, or bytes of
    /// [`Fp8Scale::Ue8m0`]. `hidden` must be a multiple of 128.
    pub fn fp8<D: Target>(self, scale: Fp8Scale, scales: D) -> AllReduceNorm<S, R, W, O, X, D> {
        let Self { send, recv, weight, out, residual, hidden, epsilon, .. } = self;
        let payload = Payload::Fp8 { scale };
        AllReduceNorm { send, recv, weight, out, residual, scales, hidden, epsilon, payload }
    }
}

/// A [`Source`] of memory `M`, or `()`: none.
pub trait MaybeSource<M> {
    #[doc(hidden)]
    fn span(&self, _: PhantomData<M>) -> Option<Span>;
}
impl<M> MaybeSource<M> for () {
    fn span(&self, _: PhantomData<M>) -> Option<Span> {
        None
    }
}
impl<S: Source> MaybeSource<S::Memory> for S {
    fn span(&self, _: PhantomData<S::Memory>) -> Option<Span> {
        Some(self.source())
    }
}

/// A [`Target`] of memory `M`, or `()`: none.
pub trait MaybeTarget<M> {
    #[doc(hidden)]
    fn span(&mut self, _: PhantomData<M>) -> Option<Span>;
}
impl<M> MaybeTarget<M> for () {
    fn span(&mut self, _: PhantomData<M>) -> Option<Span> {
        None
    }
}
impl<T: Target> MaybeTarget<T::Memory> for T {
    fn span(&mut self, _: PhantomData<T::Memory>) -> Option<Span> {
        Some(self.target())
    }
}

impl<M, S, R, W, O, X, C> sealed::Calls<M> for AllReduceNorm<S, R, W, O, X, C>
where
    M: Memory,
    S: MaybeSource<M>,
    R: Target<Memory = M>,
    W: Source<Memory = M>,
    O: MaybeTarget<M>,
    X: MaybeTarget<M>,
    C: MaybeTarget<M>,
{
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn lower(&mut self, into: &mut Lowered, place: Place<'_>) -> Result<()> {
        let (send, recv) = (self.send.span(PhantomData), self.recv.target());
        let spans = Spans { send, recv: Some(recv), in_place: send.is_none() };
        into.add(&Shape::all_reduce(Reduction::Sum), &spans, place)?;
        let wrong = |text| Err(Error::Invalid(Failure::new("all_reduce", place.rank, text)));
        let Some(op) = into.ops.last_mut() else { return Ok(()) };
        let (count, hidden) = (op.count as usize, self.hidden);
        if hidden == 0 || count % hidden != 0 {
            let name = if spans.in_place { "the buffer" } else { "send" };
            return wrong(format!("{name} has {count} elements, must have a multiple of hidden {hidden}"));
        }
        let quantised = self.payload != Payload::SameAsInput;
        let scale = if self.payload == (Payload::Fp8 { scale: Fp8Scale::Ue8m0 }) { 1 } else { 4 };
        let weight = self.weight.source();
        let (name_of_out, out) = match self.out.span(PhantomData) {
            Some(out) => ("out", out),
            None => (if spans.in_place { "the buffer" } else { "out" }, recv),
        };
        let (residual, scales) = (self.residual.span(PhantomData), self.scales.span(PhantomData));
        let of_out = if quantised { 1 } else { 2 };
        for (name, span, len, element) in [
            ("weight", Some(weight), hidden, 2),
            (name_of_out, Some(out), count, of_out),
            ("residual", residual, count, 2),
            ("scales", scales, count / 128, scale),
        ] {
            let Some(span) = span else { continue };
            if span.len != len || span.element != element || !span.is_dense {
                let (has, bytes) = (span.len, span.element);
                return wrong(format!(
                    "{name} has {has} elements of {bytes} bytes, must have {len} of {element} without gaps"
                ));
            }
            let admitted = place.site.map_or(Ok(()), |site| site.admit(name, span.origin));
            if let Err(text) = admitted {
                return wrong(text);
            }
        }
        let same = |span: Span| carried(span.dtype) == Some(op.type_);
        if !(same(weight) && residual.is_none_or(same) && (quantised || same(out))) {
            return wrong("weight, residual and out must be of the type of send and recv".to_owned());
        }
        let at = |span: Option<Span>| span.map_or(std::ptr::null_mut(), |span| span.ptr.cast());
        let norm = Box::new(sys::epw_norm {
            size: size_of::<sys::epw_norm>() as u32,
            payload: self.payload.to_c(),
            hidden: u32::try_from(hidden).unwrap_or(u32::MAX),
            epsilon: self.epsilon,
            rows: (count / hidden) as u64,
            residual: at(residual),
            weight: weight.ptr.cast_const().cast(),
            out: out.ptr.cast(),
            scales: at(scales),
        });
        op.norm = &raw const *norm;
        into.norms.push(norm);
        Ok(())
    }
}

impl<M, S, R, W, O, X, C> Calls<M> for AllReduceNorm<S, R, W, O, X, C>
where
    M: Memory,
    S: MaybeSource<M>,
    R: Target<Memory = M>,
    W: Source<Memory = M>,
    O: MaybeTarget<M>,
    X: MaybeTarget<M>,
    C: MaybeTarget<M>,
{
    type Buffers = NormBuffers<S, R, W, O, X, C>;

    fn into_buffers(self) -> Self::Buffers {
        let Self { send, recv, weight, out, residual, scales, .. } = self;
        NormBuffers { send, recv, weight, out, residual, scales }
    }
}
