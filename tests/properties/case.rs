//! A case: a configuration and several operations with the inputs of all ranks, chosen by one seed.

use std::sync::OnceLock;
use std::time::Duration;

use epwire::comm::CommConfig;
use epwire::{CombineMode, DType, EpConfig, Float16, Fp8Scale, HostBuffer, Layout, Mask, Payload, TensorRef};

use crate::calls::{self, Call};
use crate::numbers::{BLOCK, narrow};
use crate::random::Random;
use crate::reference::WireRow;

/// Much longer than any case takes: a wait that lasts so long is a failure.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) ranks: usize,
    pub(crate) config: EpConfig,
    /// Threads of each rank.
    pub(crate) threads: Vec<u32>,
    /// Communicators of the same ranks.
    pub(crate) comms: Vec<CommConfig>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// All ranks of the mask begin this membership.
    Activate { mask: Mask, epoch: u32 },
    /// One operation, or two in flight, and calls of communicators, interleaved in this order; a rank that joins them
    /// as futures has its own order.
    Exchange { ops: Vec<Op>, calls: Vec<Call>, order: Vec<Turn> },
}

/// What a rank does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Phase(usize, Phase),
    /// This call begins.
    Begin(usize),
    /// The call is awaited.
    Await(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Send,
    Receive,
    Experts,
    Answer,
    Collect,
}

pub(crate) const PHASES: [Phase; 5] =
    [Phase::Send, Phase::Receive, Phase::Experts, Phase::Answer, Phase::Collect];

/// The common part of one operation, and the part of each rank.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) payload: Payload,
    pub(crate) k: usize,
    pub(crate) sideband: usize,
    pub(crate) weighted: bool,
    pub(crate) mode: CombineMode,
    pub(crate) lane: Option<u32>,
    pub(crate) routing: Routing,
    /// The members of its epoch.
    pub(crate) active: Mask,
    pub(crate) parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    Uniform,
    Zipf,
    AllToOne,
    Empty,
}

/// Where a rank gives up an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    Never,
    /// Drops the dispatch future after its first poll.
    Dispatch,
    /// Drops the handle that has sent.
    Dispatching,
    /// Drops the handle that has received.
    Dispatched,
    /// Drops the combine future after its first poll.
    Combine,
    /// Drops the handle that has answered.
    Combining,
}

impl GiveUp {
    /// Whether the rank's peers get no answers from it.
    pub(crate) fn answers_nobody(self) -> bool {
        matches!(self, Self::Dispatch | Self::Dispatching | Self::Dispatched)
    }
}

/// The bit of [`Part::outputs`] that asks for counts per source.
pub(crate) const SOURCE_COUNTS: u64 = 1 << 12;

/// One rank's part of one operation.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) tokens: usize,
    /// Rows of `x_row` bytes, `x_stride` apart.
    pub(crate) x: HostBuffer<u8>,
    pub(crate) x_row: usize,
    pub(crate) x_stride: usize,
    /// `[n, k]`, -1: not routed.
    pub(crate) ids: Vec<i64>,
    pub(crate) id_type: DType,
    pub(crate) weights: Vec<f32>,
    /// Given to an ordered combine instead of those of dispatch.
    pub(crate) combine_weights: Option<Vec<f32>>,
    pub(crate) sideband: Vec<u8>,
    /// `[n, scale_count]`, dense.
    pub(crate) scales: Vec<u8>,
    pub(crate) scales_by_column: bool,
    pub(crate) layout: Layout,
    pub(crate) scales_row_major: bool,
    pub(crate) split_dispatch: bool,
    pub(crate) split_combine: bool,
    pub(crate) asynchronous: bool,
    /// If something else is in flight: all of it as futures of one task, not in the common order.
    pub(crate) joined: bool,
    pub(crate) in_place: bool,
    pub(crate) give_up: GiveUp,
    /// The requested outputs, one bit each.
    pub(crate) outputs: u64,
    /// Invalid calls made on the way, chosen by this seed.
    pub(crate) refusals: Option<u64>,
    /// The rows as they are sent, made by the reference when first needed.
    pub(crate) wire: OnceLock<Vec<WireRow>>,
}

impl Case {
    pub(crate) fn draw(seed: u64) -> Self {
        let r = &mut Random::new(seed);
        let crowd = r.chance(3);
        let ranks = if crowd { r.pick(&[16, 32]) } else { r.range(1, 6) };
        let experts = ranks * r.range(1, if crowd { 2 } else { 6 });
        let blocks = if r.chance(15) { 5 } else { r.range(1, 2) };
        let hidden = if r.chance(45) { blocks * BLOCK } else { 8 * r.range(1, 24) };
        let most_tokens = if crowd { 3 } else { r.pick(&[4, 12, 24, 40]) };
        let mut config = EpConfig::new(
            r.range(1, most_tokens) as u32,
            hidden as u32,
            experts as u32,
            r.range(1, experts.min(if crowd { 4 } else { 8 })) as u32,
        );
        config.lanes = r.range(1, 2) as u32;
        config.dtype = r.pick(&[Float16::Bf16, Float16::F16]);
        config.combine_dtype = r.pick(&[Float16::Bf16, Float16::F16]);
        config.opaque_bytes = if r.chance(30) { r.range(16, 400) as u32 } else { 0 };
        config.sideband_bytes = if r.chance(50) { r.range(1, 64) as u32 } else { 0 };
        config.ordered = r.chance(40);
        config.zero_copy = r.chance(40);
        config.deadline = DEADLINE;
        let threads = (0..ranks).map(|_| if crowd { 1 } else { r.pick(&[1, 1, 2, 3]) }).collect();

        let auto_lanes = r.chance(50);
        let mut epoch = if r.chance(10) { 32_000 } else { 1 };
        let mut active = Mask::all(ranks as u32);
        let mut steps = vec![Step::Activate { mask: active, epoch }];
        for exchange in 0..r.range(2, 5) {
            if r.chance(if exchange == 0 { 10 } else { 25 }) {
                active = draw_mask(r, ranks);
                epoch += r.range(1, 3) as u32;
                steps.push(Step::Activate { mask: active, epoch });
            }
            steps.push(draw_exchange(r, &config, ranks, active, auto_lanes));
        }
        let mut case = Self { seed, ranks, config, threads, comms: Vec::new(), steps };
        // By a generator of its own, so that nothing else in a case changes.
        let r = &mut Random::new(seed ^ 0x6361_6c6c_7321);
        if !crowd && r.chance(20) {
            case.draw_calls(r);
        }
        case
    }

    /// Communicators beside the buffer, and calls of them beside its operations.
    fn draw_calls(&mut self, r: &mut Random) {
        self.comms = (0..r.range(1, 3)).map(|_| calls::draw_config(r)).collect();
        for step in &mut self.steps {
            let Step::Exchange { ops, calls, order } = step else { continue };
            *calls = calls::draw(r, self.comms.len(), self.ranks, ops[0].active, order);
            for rank in 0..self.ranks {
                let joined = ops.iter().all(|op| op.parts[rank].asynchronous) && r.chance(60);
                ops.iter_mut().for_each(|op| op.parts[rank].joined = joined);
            }
        }
    }

    pub(crate) fn local_experts(&self) -> usize {
        self.config.experts as usize / self.ranks
    }

    /// Rows for each local expert, or in all.
    pub(crate) fn rows(&self) -> usize {
        self.ranks * self.config.max_tokens as usize
    }
}

fn draw_mask(r: &mut Random, ranks: usize) -> Mask {
    if r.chance(30) {
        return Mask::all(ranks as u32);
    }
    let mut mask: Mask = (0..ranks as u32).filter(|_| r.chance(65)).collect();
    mask.insert(r.below(ranks) as u32);
    mask
}

fn draw_exchange(r: &mut Random, config: &EpConfig, ranks: usize, active: Mask, auto_lanes: bool) -> Step {
    let two = config.lanes == 2 && r.chance(45);
    let first = r.below(config.lanes as usize) as u32;
    let lane = |i: u32| if auto_lanes { None } else { Some((first + i) % config.lanes) };
    let mut ops: Vec<Op> =
        (0..if two { 2 } else { 1 }).map(|i| draw_op(r, config, ranks, active, lane(i))).collect();
    if two {
        for rank in 0..ranks {
            let joined = ops.iter().all(|op| op.parts[rank].asynchronous) && r.chance(50);
            ops.iter_mut().for_each(|op| op.parts[rank].joined = joined);
        }
    }
    // Operation 0 sends first, because lanes alternate; the rest of its phases may come at any point.
    let mut left: Vec<&[Phase]> = vec![&PHASES; ops.len()];
    let mut order = Vec::new();
    while let Some(longest) = left.iter().map(|l| l.len()).max().filter(|n| *n > 0) {
        let first = left[0].len() == longest && longest == PHASES.len();
        let i = if first { 0 } else { r.below(left.len()) };
        if let Some((phase, rest)) = left[i].split_first() {
            order.push(Turn::Phase(i, *phase));
            left[i] = rest;
        }
    }
    Step::Exchange { ops, calls: Vec::new(), order }
}

fn draw_payload(r: &mut Random, config: &EpConfig) -> Payload {
    if config.opaque_bytes > 0 && r.chance(50) {
        let row_bytes = 16 * r.range(1, config.opaque_bytes as usize / 16) as u32;
        let scale_bytes = r.pick(&[1, 2, 4, 8]);
        let scale_count = r.range(0, ((config.opaque_bytes - row_bytes) / scale_bytes) as usize) as u32;
        return Payload::Opaque { row_bytes, scale_count, scale_bytes };
    }
    if (config.hidden as usize).is_multiple_of(BLOCK) && r.chance(70) {
        return Payload::Fp8 { scale: r.pick(&[Fp8Scale::F32, Fp8Scale::PowerOfTwo, Fp8Scale::Ue8m0]) };
    }
    Payload::SameAsInput
}

fn draw_op(r: &mut Random, config: &EpConfig, ranks: usize, active: Mask, lane: Option<u32>) -> Op {
    let payload = draw_payload(r, config);
    let mode = if config.ordered && r.chance(70) { CombineMode::Ordered } else { CombineMode::RankReduced };
    let layouts: &[Layout] = match mode {
        CombineMode::Ordered => &[Layout::ExpertMajor],
        _ => r.pick(&[
            &[Layout::ExpertMajor][..],
            &[Layout::RankMajor],
            &[Layout::ExpertMajor, Layout::RankMajor],
        ]),
    };
    // Expert-major ranks reduce with the weights of dispatch; in the other cases weights may be omitted there.
    let needs_weights = mode == CombineMode::RankReduced && layouts != [Layout::RankMajor];
    let mut op = Op {
        payload,
        k: r.range(1, config.topk as usize),
        sideband: r.range(0, config.sideband_bytes as usize),
        weighted: needs_weights || r.chance(60),
        mode,
        lane,
        routing: r.pick(&[
            Routing::Uniform,
            Routing::Uniform,
            Routing::Uniform,
            Routing::Zipf,
            Routing::Zipf,
            Routing::AllToOne,
            Routing::Empty,
        ]),
        active,
        parts: Vec::new(),
    };
    let favourite = r.below(config.experts as usize);
    for _ in 0..ranks {
        let layout = r.pick(layouts);
        let part = draw_part(r, config, &op, layout, favourite);
        op.parts.push(part);
    }
    draw_releases(r, &mut op);
    op
}

/// Sometimes all ranks give up an operation at the same point, or one rank at any point.
fn draw_releases(r: &mut Random, op: &mut Op) {
    let places =
        [GiveUp::Dispatching, GiveUp::Dispatched, GiveUp::Combining, GiveUp::Dispatch, GiveUp::Combine];
    let who: Vec<usize> = match r.below(100) {
        0..8 => (0..op.parts.len()).collect(),
        8..24 => vec![r.below(op.parts.len())],
        _ => Vec::new(),
    };
    let place = r.pick(&places);
    if place == GiveUp::Dispatch && !who.is_empty() {
        // Peers cannot know whether such a rank's rows have been sent; the counts tell them.
        op.parts.iter_mut().for_each(|part| part.outputs |= SOURCE_COUNTS);
    }
    for rank in who {
        let part = &mut op.parts[rank];
        part.give_up = place;
        match place {
            GiveUp::Dispatching => part.split_dispatch = true,
            GiveUp::Combining => part.split_combine = true,
            GiveUp::Dispatch | GiveUp::Combine => part.asynchronous = true,
            GiveUp::Dispatched | GiveUp::Never => {}
        }
    }
}

fn draw_part(r: &mut Random, config: &EpConfig, op: &Op, layout: Layout, favourite: usize) -> Part {
    let most = config.max_tokens as usize;
    let tokens = match r.below(10) {
        0 => 0,
        1 => most,
        _ => r.range(0, most),
    };
    let x_row = match op.payload {
        Payload::Opaque { row_bytes, .. } => row_bytes as usize,
        _ => config.hidden as usize * 2,
    };
    let x_stride = x_row + if r.chance(25) { 2 * r.range(1, 20) } else { 0 };
    let mut x = HostBuffer::<u8>::zeroed(tokens * x_stride);
    for row in x.chunks_mut(x_stride) {
        draw_row(r, config.dtype, row);
    }
    let ids = (0..tokens).flat_map(|_| draw_ids(r, config, op, favourite)).collect();
    let weights: Vec<f32> = (0..tokens * op.k).map(|_| draw_weight(r)).collect();
    let ordered = op.mode == CombineMode::Ordered;
    let scale_bytes = match op.payload {
        Payload::Opaque { scale_count, scale_bytes, .. } => (scale_count * scale_bytes) as usize,
        _ => 0,
    };
    Part {
        tokens,
        x,
        x_row,
        x_stride,
        ids,
        id_type: r.pick(&[DType::I32, DType::U32, DType::I64]),
        combine_weights: (ordered && (!op.weighted || r.chance(30)))
            .then(|| weights.iter().map(|w| w * 0.75 + 0.25).collect()),
        weights,
        sideband: r.bytes(tokens * op.sideband),
        scales: r.bytes(tokens * scale_bytes),
        scales_by_column: r.chance(50),
        layout,
        scales_row_major: r.chance(50),
        split_dispatch: r.chance(40),
        split_combine: r.chance(40),
        asynchronous: r.chance(50),
        joined: false,
        in_place: r.chance(40) && (layout == Layout::RankMajor || config.zero_copy),
        give_up: GiveUp::Never,
        outputs: if r.chance(60) { u64::MAX } else { r.bits() },
        refusals: r.chance(20).then(|| r.bits()),
        wire: OnceLock::new(),
    }
}

/// Mostly ordinary values; sometimes arbitrary bits, including subnormals, infinities and NaNs.
fn draw_row(r: &mut Random, dtype: Float16, row: &mut [u8]) {
    let wild = r.chance(8);
    let size = r.pick(&[1.0, 1.0, 1e-3, 1e-6, 300.0]);
    for pair in row.chunks_mut(2) {
        let tame = (r.unit() - 0.5) * 4.0 * size;
        let bits = if wild { r.bits() as u16 } else { narrow(dtype, tame) };
        pair.copy_from_slice(&bits.to_le_bytes()[..pair.len()]);
    }
}

fn draw_weight(r: &mut Random) -> f32 {
    match r.below(40) {
        0 => 0.0,
        1 => -0.0,
        2 => 1e30,
        3 => f32::from_bits(r.bits() as u32),
        4..10 => -r.unit(),
        // With equal weights large terms cancel, which reveals the order of a sum.
        10..24 => 0.5,
        _ => r.unit(),
    }
}

fn draw_ids(r: &mut Random, config: &EpConfig, op: &Op, favourite: usize) -> Vec<i64> {
    let experts = config.experts as usize;
    let mut ids = Vec::with_capacity(op.k);
    for j in 0..op.k {
        let id = match op.routing {
            Routing::Empty => -1,
            Routing::AllToOne => {
                if j == 0 {
                    favourite as i64
                } else {
                    -1
                }
            }
            Routing::Uniform => r.below(experts) as i64,
            Routing::Zipf => ((experts as f32 + 1.0).powf(r.unit()) as i64 - 1).clamp(0, experts as i64 - 1),
        };
        let taken = ids.contains(&id) || r.chance(10);
        ids.push(if taken && op.routing != Routing::AllToOne { -1 } else { id });
    }
    ids
}

impl Part {
    /// Ids of one token.
    pub(crate) fn ids_of(&self, k: usize, token: usize) -> &[i64] {
        &self.ids[token * k..][..k]
    }

    pub(crate) fn x_of(&self, token: usize) -> &[u8] {
        &self.x[token * self.x_stride..][..self.x_row]
    }

    /// The scales as they are passed, with gaps between their rows.
    pub(crate) fn strided_scales(&self, count: usize, bytes: usize) -> (HostBuffer<u8>, usize) {
        let n = self.tokens;
        let (rows, cols) = if self.scales_by_column { (count, n) } else { (n, count) };
        let stride = (cols + 3) * bytes;
        let mut buffer = HostBuffer::<u8>::zeroed(rows * stride);
        for t in 0..n {
            for c in 0..count {
                let (row, col) = if self.scales_by_column { (c, t) } else { (t, c) };
                let from = &self.scales[(t * count + c) * bytes..][..bytes];
                buffer[row * stride + col * bytes..][..bytes].copy_from_slice(from);
            }
        }
        (buffer, stride)
    }
}

/// Ids as they are passed.
pub(crate) fn typed_ids(ids: &[i64], id_type: DType) -> HostBuffer<u8> {
    let bytes: Vec<u8> = match id_type {
        DType::I64 => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        // -1 is u32::MAX as well.
        _ => ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect(),
    };
    let mut buffer = HostBuffer::zeroed(bytes.len());
    buffer.copy_from_slice(&bytes);
    buffer
}

/// A view of `[rows, cols]` elements over bytes, rows `stride` bytes apart.
pub(crate) fn view(
    bytes: &HostBuffer<u8>,
    dtype: DType,
    rows: usize,
    cols: usize,
    stride: usize,
) -> TensorRef<'_> {
    let used = if rows == 0 { 0 } else { (rows - 1) * stride + cols * dtype.bytes() };
    assert!(used <= bytes.len());
    // SAFETY: the rows lie in `bytes` (asserted), which is borrowed, aligned to 64 bytes and initialised; strides are
    // multiples of the elements' sizes.
    unsafe { TensorRef::from_raw(std::ptr::NonNull::from(&bytes[..]).cast(), dtype, rows, cols, stride) }
}
