//! Operations as values: the call, and the memory that it uses.

use std::ffi::c_void;
use std::ptr;

use super::blocks::{Blocks, Laid};
use super::memory::{Source, Span, Target};
use super::number::{Reduction, carried};
use crate::buffer::{Host, Memory};
use crate::cuda::Site;
use crate::error::{Error, Failure, Result};
use crate::{ffi, sys};

/// One operation with its buffers `B`, for [`Comm::begin`](super::Comm::begin) and
/// [`Comm::run_blocking`](super::Comm::run_blocking), alone or in a group with others. The constructors have the names
/// and arguments of the methods of [`Comm`](super::Comm), which say what they do.
///
/// ```
/// use epwire::comm::{Call, CommConfig};
/// use epwire::{Comm, Group};
///
/// # fn main() -> epwire::Result<()> {
/// let ranks = Group::threads(2)?.into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let comm = Comm::create_blocking(&group, CommConfig::default())?;
///         let peer = 1 - comm.rank();
///         // Both send first: in a group they do not wait for each other.
///         let (own, mut its) = ([comm.rank(); 1000], [9u32; 1000]);
///         let crossing = (Call::send(&own[..], peer, 7), Call::recv(&mut its[..], peer, 7));
///         assert!(comm.run_blocking(crossing)?.is_complete());
///         assert_eq!(its, [peer; 1000]);
///         group.barrier_blocking("end")?;
///         Ok::<_, epwire::Error>(())
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     rank.join().unwrap()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it does nothing until it is begun or run"]
pub struct Call<B> {
    buffers: B,
    spans: fn(&mut B) -> Spans,
    shape: Shape,
}

/// The elements of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spans {
    pub(super) send: Option<Span>,
    pub(super) recv: Option<Span>,
    /// Input and output are the same memory: `recv`.
    pub(super) in_place: bool,
}

const NOTHING: Spans = Spans { send: None, recv: None, in_place: false };

fn reads<S: Source>(send: &mut S) -> Spans {
    Spans { send: Some(send.source()), ..NOTHING }
}

fn writes<R: Target>(recv: &mut R) -> Spans {
    Spans { recv: Some(recv.target()), ..NOTHING }
}

fn in_place<R: Target>(buffer: &mut R) -> Spans {
    Spans { in_place: true, ..writes(buffer) }
}

fn both<S: Source, R: Target>((send, recv): &mut (S, R)) -> Spans {
    Spans { recv: writes(recv).recv, ..reads(send) }
}

/// The calling rank, the number of ranks and, on a GPU, where the memory must be.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) site: Option<&'a Site>,
}

impl Spans {
    /// The common type of their elements, if they may be used there.
    fn admit(&self, place: Place<'_>) -> Result<(u32, usize), String> {
        let names = if self.in_place { ["send", "buffer"] } else { ["send", "recv"] };
        let mut common: Option<(&str, Span, u32)> = None;
        for (name, span) in names.into_iter().zip([self.send, self.recv]) {
            let Some(span) = span else { continue };
            let dtype = span.dtype;
            let type_ = carried(dtype).ok_or_else(|| {
                format!("{name} is of {dtype:?}, which collectives do not carry: view it as U8")
            })?;
            if let Some((send, Span { dtype: other, .. }, _)) = common
                && other != dtype
            {
                return Err(format!("{send} is of {other:?}, {name} of {dtype:?}: both must be of one type"));
            }
            common = Some((name, span, type_));
            if !span.is_dense {
                return Err(format!("{name} has gaps between its rows: it must be dense"));
            }
            place.site.map_or(Ok(()), |site| site.admit(name, span.origin))?;
        }
        Ok(common.map_or((sys::EPW_TYPE_U8, 1), |(_, span, type_)| (type_, span.element)))
    }
}

/// What an operation is, without its buffers.
#[derive(Debug)]
pub(super) struct Shape {
    kind: u32,
    name: &'static str,
    reduction: Option<Reduction>,
    /// The root, or the peer.
    peer: u32,
    tag: u32,
    /// The blocks of the buffer with all blocks.
    blocks: Option<Blocks>,
    /// Of an all_to_all: the blocks to receive.
    recv_blocks: Option<Blocks>,
}

impl Shape {
    fn of(kind: u32) -> Self {
        let name = name(kind);
        Self { kind, name, reduction: None, peer: 0, tag: 0, blocks: None, recv_blocks: None }
    }

    pub(super) fn all_reduce(reduction: Reduction) -> Self {
        Self::of(sys::EPW_ALL_REDUCE).by(reduction)
    }

    fn at(self, peer: u32) -> Self {
        Self { peer, ..self }
    }

    fn by(self, reduction: Reduction) -> Self {
        Self { reduction: Some(reduction), ..self }
    }

    fn blocks(self, blocks: Blocks) -> Self {
        Self { blocks: Some(blocks), ..self }
    }

    /// Whether this rank has the buffer with the blocks of all ranks.
    fn has_all(&self, rank: u32) -> bool {
        self.peer == rank || !matches!(self.kind, sys::EPW_GATHER | sys::EPW_SCATTER)
    }

    /// A buffer must be as large as its blocks need.
    fn require(&self, buffer: &str, len: usize, wants: usize, rank: u32) -> Result<()> {
        if len >= wants {
            return Ok(());
        }
        let text = format!("{buffer} has {len} elements, its blocks need {wants}");
        Err(Error::Invalid(Failure::new(self.name, rank, text)))
    }

    /// `send` and `recv`, of which one is the buffer with the blocks of all ranks, and one that with this rank's.
    fn sides(&self, whole: *mut u8, own: *mut u8) -> (*const c_void, *mut c_void) {
        let (from, to) = if gathers(self.kind) { (own, whole) } else { (whole, own) };
        (from.cast_const().cast(), to.cast())
    }
}

/// The name in operations, spans and metrics.
fn name(kind: u32) -> &'static str {
    match kind {
        sys::EPW_BARRIER => "barrier",
        sys::EPW_BROADCAST => "broadcast",
        sys::EPW_ALL_REDUCE => "all_reduce",
        sys::EPW_REDUCE => "reduce",
        sys::EPW_REDUCE_SCATTER => "reduce_scatter",
        sys::EPW_ALL_GATHER => "all_gather",
        sys::EPW_ALL_TO_ALL => "all_to_all",
        sys::EPW_GATHER => "gather",
        sys::EPW_SCATTER => "scatter",
        sys::EPW_SEND => "send",
        _ => "recv",
    }
}

/// Whether the buffer with the blocks of all ranks is the output.
fn gathers(kind: u32) -> bool {
    matches!(kind, sys::EPW_ALL_GATHER | sys::EPW_GATHER)
}

impl Call<()> {
    /// See [`Comm::barrier`](super::Comm::barrier).
    pub fn barrier() -> Self {
        Self { buffers: (), spans: |()| NOTHING, shape: Shape::of(sys::EPW_BARRIER) }
    }
}

impl<S: Source> Call<S> {
    /// See [`Comm::send`](super::Comm::send).
    pub fn send(send: S, peer: u32, tag: u32) -> Self {
        let shape = Shape { tag, ..Shape::of(sys::EPW_SEND).at(peer) };
        Self { buffers: send, spans: reads, shape }
    }
}

impl<R: Target> Call<R> {
    fn in_place(buffer: R, shape: Shape) -> Self {
        Self { buffers: buffer, spans: in_place, shape }
    }

    /// See [`Comm::recv`](super::Comm::recv).
    pub fn recv(recv: R, peer: u32, tag: u32) -> Self {
        let shape = Shape { tag, ..Shape::of(sys::EPW_RECV).at(peer) };
        Self { buffers: recv, spans: writes, shape }
    }

    /// See [`Comm::broadcast`](super::Comm::broadcast).
    pub fn broadcast(buffer: R, root: u32) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_BROADCAST).at(root))
    }

    /// See [`Comm::all_reduce_in_place`](super::Comm::all_reduce_in_place).
    pub fn all_reduce_in_place(buffer: R, reduction: Reduction) -> Self {
        Self::in_place(buffer, Shape::all_reduce(reduction))
    }

    /// See [`Comm::reduce_in_place`](super::Comm::reduce_in_place).
    pub fn reduce_in_place(buffer: R, reduction: Reduction, root: u32) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_REDUCE).by(reduction).at(root))
    }

    /// See [`Comm::reduce_scatter_in_place`](super::Comm::reduce_scatter_in_place).
    pub fn reduce_scatter_in_place(buffer: R, reduction: Reduction) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_REDUCE_SCATTER).by(reduction))
    }

    /// See [`Comm::reduce_scatter_blocks_in_place`](super::Comm::reduce_scatter_blocks_in_place).
    pub fn reduce_scatter_blocks_in_place(buffer: R, blocks: Blocks, reduction: Reduction) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_REDUCE_SCATTER).by(reduction).blocks(blocks))
    }

    /// See [`Comm::all_gather_in_place`](super::Comm::all_gather_in_place).
    pub fn all_gather_in_place(buffer: R) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_ALL_GATHER))
    }

    /// See [`Comm::all_gather_blocks_in_place`](super::Comm::all_gather_blocks_in_place).
    pub fn all_gather_blocks_in_place(buffer: R, blocks: Blocks) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_ALL_GATHER).blocks(blocks))
    }

    /// See [`Comm::all_to_all_in_place`](super::Comm::all_to_all_in_place).
    pub fn all_to_all_in_place(buffer: R) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_ALL_TO_ALL))
    }

    /// See [`Comm::all_to_all_blocks_in_place`](super::Comm::all_to_all_blocks_in_place).
    pub fn all_to_all_blocks_in_place(buffer: R, blocks: Blocks) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_ALL_TO_ALL).blocks(blocks))
    }

    /// See [`Comm::gather_in_place`](super::Comm::gather_in_place).
    pub fn gather_in_place(buffer: R, root: u32) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_GATHER).at(root))
    }

    /// See [`Comm::gather_blocks_in_place`](super::Comm::gather_blocks_in_place).
    pub fn gather_blocks_in_place(buffer: R, blocks: Blocks, root: u32) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_GATHER).at(root).blocks(blocks))
    }

    /// See [`Comm::scatter_in_place`](super::Comm::scatter_in_place).
    pub fn scatter_in_place(buffer: R, root: u32) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_SCATTER).at(root))
    }

    /// See [`Comm::scatter_blocks_in_place`](super::Comm::scatter_blocks_in_place).
    pub fn scatter_blocks_in_place(buffer: R, blocks: Blocks, root: u32) -> Self {
        Self::in_place(buffer, Shape::of(sys::EPW_SCATTER).at(root).blocks(blocks))
    }
}

impl<S: Source, R: Target<Item = S::Item, Memory = S::Memory>> Call<(S, R)> {
    fn out_of_place(send: S, recv: R, shape: Shape) -> Self {
        Self { buffers: (send, recv), spans: both, shape }
    }

    /// See [`Comm::broadcast_from`](super::Comm::broadcast_from).
    pub fn broadcast_from(send: S, recv: R, root: u32) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_BROADCAST).at(root))
    }

    /// See [`Comm::all_reduce`](super::Comm::all_reduce).
    pub fn all_reduce(send: S, recv: R, reduction: Reduction) -> Self {
        Self::out_of_place(send, recv, Shape::all_reduce(reduction))
    }

    /// See [`Comm::reduce`](super::Comm::reduce).
    pub fn reduce(send: S, recv: R, reduction: Reduction, root: u32) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_REDUCE).by(reduction).at(root))
    }

    /// See [`Comm::reduce_scatter`](super::Comm::reduce_scatter).
    pub fn reduce_scatter(send: S, recv: R, reduction: Reduction) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_REDUCE_SCATTER).by(reduction))
    }

    /// See [`Comm::reduce_scatter_blocks`](super::Comm::reduce_scatter_blocks).
    pub fn reduce_scatter_blocks(send: S, recv: R, blocks: Blocks, reduction: Reduction) -> Self {
        let shape = Shape::of(sys::EPW_REDUCE_SCATTER).by(reduction).blocks(blocks);
        Self::out_of_place(send, recv, shape)
    }

    /// See [`Comm::all_gather`](super::Comm::all_gather).
    pub fn all_gather(send: S, recv: R) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_ALL_GATHER))
    }

    /// See [`Comm::all_gather_blocks`](super::Comm::all_gather_blocks).
    pub fn all_gather_blocks(send: S, recv: R, blocks: Blocks) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_ALL_GATHER).blocks(blocks))
    }

    /// See [`Comm::all_to_all`](super::Comm::all_to_all).
    pub fn all_to_all(send: S, recv: R) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_ALL_TO_ALL))
    }

    /// See [`Comm::all_to_all_blocks`](super::Comm::all_to_all_blocks).
    pub fn all_to_all_blocks(send: S, send_blocks: Blocks, recv: R, recv_blocks: Blocks) -> Self {
        let shape = Shape::of(sys::EPW_ALL_TO_ALL).blocks(send_blocks);
        Self::out_of_place(send, recv, Shape { recv_blocks: Some(recv_blocks), ..shape })
    }

    /// See [`Comm::gather`](super::Comm::gather).
    pub fn gather(send: S, recv: R, root: u32) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_GATHER).at(root))
    }

    /// See [`Comm::gather_blocks`](super::Comm::gather_blocks).
    pub fn gather_blocks(send: S, recv: R, blocks: Blocks, root: u32) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_GATHER).at(root).blocks(blocks))
    }

    /// See [`Comm::scatter`](super::Comm::scatter).
    pub fn scatter(send: S, recv: R, root: u32) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_SCATTER).at(root))
    }

    /// See [`Comm::scatter_blocks`](super::Comm::scatter_blocks).
    pub fn scatter_blocks(send: S, recv: R, blocks: Blocks, root: u32) -> Self {
        Self::out_of_place(send, recv, Shape::of(sys::EPW_SCATTER).at(root).blocks(blocks))
    }
}

/// What can be begun together: a [`Call`], a tuple of up to eight, or a `Vec` of them, all with buffers in memory `M`.
/// They progress together: sends and receives that cross do not wait for each other; collectives keep their order.
pub trait Calls<M: Memory = Host>: sealed::Calls<M> {
    /// The buffers of all calls, which are returned at the end.
    type Buffers;

    /// Returns them.
    fn into_buffers(self) -> Self::Buffers;
}

pub(super) mod sealed {
    use crate::comm::call::{Lowered, Place};
    use crate::error::Result;

    pub trait Calls<M> {
        /// For errors, spans and metrics.
        fn name(&self) -> &'static str;
        /// Adds the operations for C, checked against the sizes of the buffers.
        fn lower(&mut self, into: &mut Lowered, place: Place<'_>) -> Result<()>;
    }
}

/// Buffers of a call in memory `M`.
pub trait Buffers<M> {}
impl<M> Buffers<M> for () {}
impl<S: Source> Buffers<S::Memory> for S {}
impl<S: Source, R: Source<Memory = S::Memory>> Buffers<S::Memory> for (S, R) {}

/// Operations as C takes them, with the arrays to which they point.
#[derive(Debug, Default)]
pub struct Lowered {
    pub(super) ops: Vec<sys::epw_coll>,
    laid: Vec<Laid>,
    #[expect(clippy::vec_box, reason = "operations point to them")]
    pub(super) norms: Vec<Box<sys::epw_norm>>,
}

impl<M: Memory, B: Buffers<M>> sealed::Calls<M> for Call<B> {
    fn name(&self) -> &'static str {
        self.shape.name
    }

    fn lower(&mut self, into: &mut Lowered, place: Place<'_>) -> Result<()> {
        let spans = (self.spans)(&mut self.buffers);
        into.add(&self.shape, &spans, place)
    }
}

impl<M: Memory, B: Buffers<M>> Calls<M> for Call<B> {
    type Buffers = B;
    fn into_buffers(self) -> B {
        self.buffers
    }
}

impl<M: Memory, C: Calls<M>> sealed::Calls<M> for Vec<C> {
    fn name(&self) -> &'static str {
        "group"
    }

    fn lower(&mut self, into: &mut Lowered, place: Place<'_>) -> Result<()> {
        self.iter_mut().try_for_each(|call| call.lower(into, place))
    }
}

impl<M: Memory, C: Calls<M>> Calls<M> for Vec<C> {
    type Buffers = Vec<C::Buffers>;
    fn into_buffers(self) -> Self::Buffers {
        self.into_iter().map(C::into_buffers).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        #[allow(non_snake_case, reason = "a type and its value have one name")]
        impl<M: Memory, $($name: Calls<M>),+> sealed::Calls<M> for ($($name,)+) {
            fn name(&self) -> &'static str {
                "group"
            }

            fn lower(&mut self, into: &mut Lowered, place: Place<'_>) -> Result<()> {
                let ($($name,)+) = self;
                $($name.lower(into, place)?;)+
                Ok(())
            }
        }

        #[allow(non_snake_case, reason = "as above")]
        impl<M: Memory, $($name: Calls<M>),+> Calls<M> for ($($name,)+) {
            type Buffers = ($($name::Buffers,)+);
            fn into_buffers(self) -> Self::Buffers {
                let ($($name,)+) = self;
                ($($name.into_buffers(),)+)
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

impl Lowered {
    /// Everything that makes an operation sound: no count exceeds its memory.
    pub(super) fn add(&mut self, shape: &Shape, spans: &Spans, place: Place<'_>) -> Result<()> {
        let Place { rank, ranks, .. } = place;
        let n = ranks as usize;
        let wrong = |text: String| Err(Error::Invalid(Failure::new(shape.name, rank, text)));
        let (dtype, element) = match spans.admit(place) {
            Ok(carried) => carried,
            Err(text) => return wrong(text),
        };
        let at = |span: Option<Span>| span.map_or((ptr::null_mut(), 0), |span| (span.ptr, span.len));
        let ((send, sends), (recv, receives)) = (at(spans.send), at(spans.recv));
        let mut op = ffi::empty_coll();
        op.kind = shape.kind;
        op.type_ = dtype;
        op.op = shape.reduction.map_or(0, Reduction::to_c);
        op.peer = shape.peer;
        op.tag = shape.tag;
        op.send = send.cast_const().cast();
        op.recv = recv.cast();
        // C refuses a root that is not a rank.
        let is_root = shape.peer == rank;
        let whole_in_place = || match receives % n {
            0 => Ok(receives / n),
            _ => wrong(format!(
                "the buffer has {receives} elements, must be a multiple of the number of ranks, {ranks}"
            ))
            .map(|()| 0),
        };
        if let Some(blocks) = &shape.blocks {
            let laid = blocks.lay_out(shape.name, rank, ranks)?;
            return match spans.in_place {
                true => self.add_blocks_in_place(shape, op, laid, receives, element, place),
                false => self.add_blocks(shape, op, laid, [sends, receives], place),
            };
        }
        let count = match shape.kind {
            sys::EPW_BARRIER => 0,
            sys::EPW_SEND => sends,
            sys::EPW_RECV => receives,
            sys::EPW_BROADCAST if spans.in_place => {
                op.send = if is_root { recv.cast_const().cast() } else { ptr::null() };
                receives
            }
            sys::EPW_BROADCAST if !is_root => {
                op.send = ptr::null();
                receives
            }
            sys::EPW_BROADCAST if receives == 0 => {
                op.recv = ptr::null_mut(); // the root keeps no copy
                sends
            }
            sys::EPW_BROADCAST if sends != receives => {
                return wrong(format!(
                    "send has {sends} elements, recv of the root {receives}: both must have the same number, or recv none"
                ));
            }
            sys::EPW_BROADCAST => sends,
            sys::EPW_ALL_REDUCE | sys::EPW_REDUCE if spans.in_place => {
                op.send = recv.cast_const().cast();
                if shape.kind == sys::EPW_REDUCE && !is_root {
                    op.recv = ptr::null_mut();
                }
                receives
            }
            sys::EPW_ALL_REDUCE if sends != receives => {
                return wrong(format!(
                    "send has {sends} elements, recv {receives}: both must have the same number"
                ));
            }
            sys::EPW_REDUCE if is_root && sends != receives => {
                return wrong(format!(
                    "send has {sends} elements, recv of the root {receives}: both must have the same number"
                ));
            }
            sys::EPW_ALL_REDUCE | sys::EPW_REDUCE => sends,
            sys::EPW_ALL_GATHER | sys::EPW_GATHER | sys::EPW_REDUCE_SCATTER | sys::EPW_SCATTER
                if spans.in_place =>
            {
                let (whole, own, count) = if shape.has_all(rank) {
                    let count = whole_in_place()?;
                    // Inside the buffer, which has `count` elements for each rank.
                    (recv, recv.wrapping_add(rank as usize * count * element), count)
                } else {
                    (ptr::null_mut(), recv, receives)
                };
                (op.send, op.recv) = shape.sides(whole, own);
                count
            }
            sys::EPW_ALL_TO_ALL if spans.in_place => {
                op.send = recv.cast_const().cast();
                whole_in_place()?
            }
            sys::EPW_ALL_TO_ALL if sends != receives || sends % n != 0 => {
                return wrong(format!(
                    "send has {sends} elements, recv {receives}: both must be the same multiple of the number of ranks, {ranks}"
                ));
            }
            sys::EPW_ALL_TO_ALL => sends / n,
            sys::EPW_ALL_GATHER | sys::EPW_GATHER => {
                let wanted = shape.kind == sys::EPW_ALL_GATHER || is_root;
                if wanted && sends.checked_mul(n) != Some(receives) {
                    return wrong(format!(
                        "recv has {receives} elements, must have {sends} for each of {ranks} ranks"
                    ));
                }
                sends
            }
            _ => {
                let wanted = shape.kind == sys::EPW_REDUCE_SCATTER || is_root;
                if wanted && receives.checked_mul(n) != Some(sends) {
                    return wrong(format!(
                        "send has {sends} elements, must have {receives} for each of {ranks} ranks"
                    ));
                }
                receives
            }
        };
        op.count = count as u64;
        self.ops.push(op);
        Ok(())
    }

    fn add_blocks(
        &mut self,
        shape: &Shape,
        mut op: sys::epw_coll,
        laid: Laid,
        [sends, receives]: [usize; 2],
        place: Place<'_>,
    ) -> Result<()> {
        let Place { rank, ranks, .. } = place;
        let all = if shape.has_all(rank) { laid.extent } else { 0 };
        laid.describe(&mut op, gathers(shape.kind));
        if let Some(blocks) = &shape.recv_blocks {
            let from = blocks.lay_out(shape.name, rank, ranks)?;
            from.describe(&mut op, true);
            shape.require("send", sends, laid.extent, rank)?;
            shape.require("recv", receives, from.extent, rank)?;
            let (gives, gets) = (laid.counts[rank as usize], from.counts[rank as usize]);
            if gives != gets {
                let text = format!("this rank sends itself {gives} elements, but expects {gets}");
                return Err(Error::Invalid(Failure::new(shape.name, rank, text)));
            }
            self.laid.push(from);
        } else if gathers(shape.kind) {
            shape.require("send", sends, laid.own_extent, rank)?;
            shape.require("recv", receives, all, rank)?;
        } else {
            shape.require("send", sends, all, rank)?;
            shape.require("recv", receives, laid.own_extent, rank)?;
        }
        self.laid.push(laid);
        self.ops.push(op);
        Ok(())
    }

    /// This rank's block lies among the others, in a buffer of `len` elements; at a rank that has no others, alone.
    fn add_blocks_in_place(
        &mut self,
        shape: &Shape,
        mut op: sys::epw_coll,
        mut laid: Laid,
        len: usize,
        element: usize,
        Place { rank, .. }: Place<'_>,
    ) -> Result<()> {
        let buffer: *mut u8 = op.recv.cast();
        let has_all = shape.has_all(rank);
        let wants = if has_all { laid.extent } else { laid.own_extent };
        shape.require("the buffer", len, wants, rank)?;
        let (count, offset) = (laid.counts[rank as usize], laid.offsets[rank as usize] as usize);
        (op.send, op.recv) = match has_all {
            _ if shape.kind == sys::EPW_ALL_TO_ALL => (buffer.cast_const().cast(), buffer.cast()),
            // It may be said to begin anywhere.
            true if count == 0 => shape.sides(buffer, ptr::null_mut()),
            true => shape.sides(buffer, buffer.wrapping_add(offset * element)),
            false => shape.sides(ptr::null_mut(), buffer),
        };
        laid.own_pitch = laid.pitch;
        laid.describe(&mut op, gathers(shape.kind) || shape.kind == sys::EPW_ALL_TO_ALL);
        self.laid.push(laid);
        self.ops.push(op);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{TensorMut, TensorRef};
    use crate::tensor::DType;

    #[test]
    fn types_that_differ_are_named() {
        // SAFETY: only looked at: nobody reads or writes the memory.
        let (send, recv) = unsafe {
            let send = TensorRef::from_raw(4096, DType::F32, 1, 8, 32);
            (send, TensorMut::from_raw(8192, DType::Bf16, 8))
        };
        let error = both(&mut (send, recv)).admit(Place { rank: 0, ranks: 1, site: None }).unwrap_err();
        assert_eq!(error, "send is of F32, recv of Bf16: both must be of one type");
    }
}
