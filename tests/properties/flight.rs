//! One rank's way through one operation, phase by phase, with every output compared with the reference.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use epwire::{
    Cause, Combine, CombineOutput, Combining, DType, Dispatch, Dispatched, Dispatching, Element, EpBuffer,
    HostBuffer, Layout, Mask, Outcome, Payload, Phase as WaitPhase, TensorMut, TensorRef,
};
use half::{bf16, f16};

use crate::case::{Case, GiveUp, Op, Part, Phase, typed_ids, view};
use crate::outputs::{Outputs, same};
use crate::random::Random;
use crate::reference::{self, Row};
use crate::refused;

/// A dispatch's inputs, in the types in which they are passed.
pub(crate) struct Inputs<'a> {
    pub(crate) case: &'a Case,
    pub(crate) op: &'a Op,
    pub(crate) part: &'a Part,
    ids: HostBuffer<u8>,
    scales: HostBuffer<u8>,
    scales_stride: usize,
}

impl<'a> Inputs<'a> {
    fn new(case: &'a Case, op: &'a Op, part: &'a Part) -> Self {
        let (scales, scales_stride) = match op.payload {
            Payload::Opaque { scale_count, scale_bytes, .. } => {
                part.strided_scales(scale_count as usize, scale_bytes as usize)
            }
            _ => (HostBuffer::zeroed(0), 0),
        };
        Self { case, op, part, ids: typed_ids(&part.ids, part.id_type), scales, scales_stride }
    }

    pub(crate) fn x(&self) -> TensorRef<'_> {
        let dtype = match self.op.payload {
            Payload::Opaque { .. } => DType::U8,
            _ => self.case.config.dtype.dtype(),
        };
        let part = self.part;
        view(&part.x, dtype, part.tokens, part.x_row / dtype.bytes(), part.x_stride)
    }

    pub(crate) fn topk_idx(&self) -> TensorRef<'_> {
        let (n, k) = (self.part.tokens, self.op.k);
        view(&self.ids, self.part.id_type, n, k, k * self.part.id_type.bytes())
    }

    /// The whole call, with this `x` and these ids.
    pub(crate) fn with<'b>(&'b self, x: TensorRef<'b>, topk_idx: TensorRef<'b>) -> Dispatch<'b> {
        let (op, part) = (self.op, self.part);
        let mut input = Dispatch::new(x, topk_idx).payload(op.payload).layout(part.layout);
        if op.weighted {
            input = input.weights(TensorRef::new(&part.weights, op.k));
        }
        if op.sideband > 0 {
            input = input.sideband(&part.sideband, op.sideband as u32);
        }
        if let Some(lane) = op.lane {
            input = input.lane(lane);
        }
        if let Payload::Opaque { scale_count, scale_bytes, .. } = op.payload {
            let dtype = match scale_bytes {
                1 => DType::U8,
                2 => DType::F16,
                4 => DType::F32,
                _ => DType::I64,
            };
            let (n, count) = (part.tokens, scale_count as usize);
            input = if part.scales_by_column {
                input.scales_by_column(view(&self.scales, dtype, count, n, self.scales_stride))
            } else {
                input.scales(view(&self.scales, dtype, n, count, self.scales_stride))
            };
        }
        input
    }

    pub(crate) fn dispatch(&self) -> Dispatch<'_> {
        self.with(self.x(), self.topk_idx())
    }
}

/// What the rank holds of the operation.
enum Held {
    Nothing,
    Sent(Dispatching),
    Received(Box<Dispatched>),
    Answered(Combining),
}

pub(crate) struct Flight<'a> {
    case: &'a Case,
    op: &'a Op,
    part: &'a Part,
    rank: usize,
    buffer: &'a EpBuffer,
    epoch: u32,
    held: Held,
    /// Ranks whose rows have arrived.
    sources: Vec<bool>,
    expert_out: HostBuffer<u8>,
    bad_calls: Option<Random>,
    /// Names of the invalid calls that were refused.
    pub(crate) refused: Vec<&'static str>,
}

impl<'a> Flight<'a> {
    pub(crate) fn new(case: &'a Case, op: &'a Op, rank: usize, buffer: &'a EpBuffer, epoch: u32) -> Self {
        let part = &op.parts[rank];
        Self {
            case,
            op,
            part,
            rank,
            buffer,
            epoch,
            held: Held::Nothing,
            sources: (0..case.ranks as u32).map(|r| op.active.contains(r)).collect(),
            expert_out: HostBuffer::zeroed(0),
            bad_calls: part.refusals.map(Random::new),
            refused: Vec::new(),
        }
    }

    pub(crate) async fn run(&mut self, phase: Phase) {
        match (phase, std::mem::replace(&mut self.held, Held::Nothing)) {
            (Phase::Send, Held::Nothing) => self.send().await,
            (Phase::Receive, Held::Sent(dispatching)) => self.receive(dispatching).await,
            (Phase::Experts, Held::Received(mut dispatched)) => {
                self.expert_out = self.run_experts(&mut dispatched);
                self.held = Held::Received(dispatched);
            }
            (Phase::Answer, Held::Received(dispatched)) => self.answer(*dispatched).await,
            (Phase::Collect, Held::Answered(combining)) => self.collect(combining).await,
            (_, held) => self.held = held,
        }
        let drop_here = match self.part.give_up {
            GiveUp::Dispatching => phase == Phase::Send,
            GiveUp::Dispatched => phase == Phase::Receive,
            GiveUp::Combining => phase == Phase::Answer,
            _ => false,
        };
        if drop_here {
            self.held = Held::Nothing;
        }
    }

    async fn send(&mut self) {
        let (buffer, part) = (self.buffer, self.part);
        let inputs = Inputs::new(self.case, self.op, part);
        if let Some(r) = &mut self.bad_calls {
            self.refused.extend(refused::dispatches(&inputs, buffer, r));
        }
        let mut outputs = Outputs::blank(self.case, self.op, part);
        if part.give_up == GiveUp::Dispatch {
            let polled = poll_once(buffer.dispatch(inputs.dispatch(), outputs.as_output())).await;
            drop(polled.transpose().expect("a valid dispatch"));
            return;
        }
        if part.split_dispatch {
            self.held = Held::Sent(match part.asynchronous {
                true => buffer.dispatch_send(inputs.dispatch()).await.expect("a valid dispatch_send"),
                false => buffer.dispatch_send_blocking(inputs.dispatch()).expect("a valid dispatch_send"),
            });
        } else {
            let dispatched = match part.asynchronous {
                true => buffer.dispatch(inputs.dispatch(), outputs.as_output()).await,
                false => buffer.dispatch_blocking(inputs.dispatch(), outputs.as_output()),
            };
            self.check_received(dispatched.expect("a valid dispatch"), &outputs);
        }
        // Now the lane is held.
        if self.bad_calls.is_some() {
            self.refused.extend(refused::while_held(&inputs, buffer, self.epoch));
        }
    }

    async fn receive(&mut self, mut dispatching: Dispatching) {
        let mut outputs = Outputs::blank(self.case, self.op, self.part);
        if self.bad_calls.is_some() {
            let mut counts = vec![0; self.case.local_experts() - 1];
            let mut short = Outputs::blank(self.case, self.op, self.part);
            let mut output = short.as_output();
            output.counts = Some(&mut counts);
            let refused = dispatching.receive_blocking(output).expect_err("counts is too short");
            assert!(refused.error.to_string().contains("output.counts has"), "{}", refused.error);
            self.refused.push("receive: short output");
            dispatching = refused.handle;
        }
        if self.part.outputs >> 32 & 1 == 1 {
            let event = dispatching.event();
            match self.part.asynchronous {
                true => event.clone().await,
                false => event.wait_blocking(),
            }
            assert!(event.is_ready());
        }
        let dispatched = match self.part.asynchronous {
            true => dispatching.receive(outputs.as_output()).await,
            false => dispatching.receive_blocking(outputs.as_output()),
        };
        self.check_received(dispatched.expect("a valid receive"), &outputs);
    }

    fn rows(&self) -> Vec<Row<'a>> {
        reference::received(self.case, self.op, &self.sources, self.rank)
    }

    fn check_received(&mut self, dispatched: Dispatched, outputs: &Outputs) {
        assert_eq!(*dispatched.outcome(), Outcome::default(), "a dispatch with every peer alive is complete");
        for (source, part) in self.op.parts.iter().enumerate() {
            // All or nothing, from a rank that gave up while it was sending.
            if let Some(counts) = outputs.source_counts.as_ref().filter(|_| part.give_up == GiveUp::Dispatch)
            {
                self.sources[source] &= counts[source] > 0;
            }
        }
        let rows = self.rows();
        let mut expected = Outputs::blank(self.case, self.op, self.part);
        reference::deliver(self.case, self.op, self.part.layout, &rows, &mut expected);
        outputs.assert_equal(&expected);
        if self.part.layout == Layout::RankMajor {
            check_in_place(self.case, &rows, &dispatched);
        }
        self.held = Held::Received(Box::new(dispatched));
    }

    async fn answer(&mut self, mut dispatched: Dispatched) {
        let rows = self.expert_out.len() / self.row_bytes();
        let expert_out = view(
            &self.expert_out,
            self.case.config.combine_dtype.dtype(),
            rows,
            self.case.config.hidden as usize,
            self.row_bytes(),
        );
        let mut input = if self.part.in_place { Combine::in_place() } else { Combine::new(expert_out) };
        input = input.mode(self.op.mode);
        if let Some(weights) = &self.part.combine_weights {
            input = input.weights(TensorRef::new(weights, self.op.k));
        }
        let mut out = Combined::blank(self.case, self.part);
        if self.bad_calls.is_some() {
            let inputs = Inputs::new(self.case, self.op, self.part);
            dispatched = refused::combines(&inputs, dispatched, input.clone(), &mut self.refused);
        }
        if self.part.give_up == GiveUp::Combine {
            let polled = poll_once(dispatched.combine(input, out.as_output())).await;
            if let Some(outcome) = polled.transpose().expect("a valid combine") {
                self.check_combined(&outcome, &out);
            }
        } else if self.part.split_combine {
            self.held = Held::Answered(dispatched.combine_send(input).expect("a valid combine_send"));
        } else {
            let outcome = match self.part.asynchronous {
                true => dispatched.combine(input, out.as_output()).await,
                false => dispatched.combine_blocking(input, out.as_output()),
            };
            self.check_combined(&outcome.expect("a valid combine"), &out);
        }
    }

    async fn collect(&mut self, mut combining: Combining) {
        let mut out = Combined::blank(self.case, self.part);
        if self.bad_calls.is_some() && self.part.tokens > 0 {
            let short = CombineOutput::new(TensorMut::new::<bf16>(&mut []));
            let refused = combining.receive_blocking(short).expect_err("out is too short");
            assert!(refused.error.to_string().contains("out has 0"), "{}", refused.error);
            self.refused.push("combine receive: short output");
            combining = refused.handle;
        }
        if self.part.outputs >> 33 & 1 == 1 {
            let event = combining.event();
            match self.part.asynchronous {
                true => event.clone().await,
                false => event.wait_blocking(),
            }
            assert!(event.is_ready());
        }
        let outcome = match self.part.asynchronous {
            true => combining.receive(out.as_output()).await,
            false => combining.receive_blocking(out.as_output()),
        };
        self.check_combined(&outcome.expect("a valid receive"), &out);
    }

    /// Bytes of a row of the combine type.
    fn row_bytes(&self) -> usize {
        self.case.config.hidden as usize * 2
    }

    /// The experts' outputs in this rank's layout; written in place if the part says so. Rows that combine must not
    /// read are NaN.
    fn run_experts(&self, dispatched: &mut Dispatched) -> HostBuffer<u8> {
        let (case, op) = (self.case, self.op);
        let lists = if self.part.layout == Layout::ExpertMajor { case.local_experts() } else { 1 };
        let mut out = HostBuffer::<u8>::zeroed(lists * case.rows() * self.row_bytes());
        out.fill(0xff);
        let mut in_place = self.part.in_place.then(|| dispatched.combine_rows_mut().expect("planned for"));
        let mut fill = vec![0; case.local_experts()];
        let mut per_source = vec![0; case.ranks];
        for row in self.rows() {
            let first = self.rank * case.local_experts();
            let run = |e: usize| reference::expert(case, op, first + e, &row.wire.payload, &row.wire.scales);
            if self.part.layout == Layout::RankMajor {
                let outputs: Vec<_> = row.entries.iter().flatten().collect();
                let outputs: Vec<_> =
                    outputs.iter().map(|(e, w)| (reference::weight_there(op, *w), run(*e))).collect();
                let sum = reference::reduce(case, &outputs);
                let i = per_source[row.source];
                per_source[row.source] += 1;
                if let Some(rows) = &mut in_place {
                    let source = row.source as u32;
                    write_row(rows.rank_major::<bf16>(source, i), &sum, bf16::from_bits);
                    write_row(rows.rank_major::<f16>(source, i), &sum, f16::from_bits);
                } else {
                    put(&mut out, row.source * case.config.max_tokens as usize + i, &sum);
                }
                continue;
            }
            for (e, _) in row.entries.iter().flatten() {
                let output = run(*e);
                if let Some(rows) = &mut in_place {
                    write_row(rows.expert_major::<bf16>(*e as u32, fill[*e]), &output, bf16::from_bits);
                    write_row(rows.expert_major::<f16>(*e as u32, fill[*e]), &output, f16::from_bits);
                } else {
                    put(&mut out, e * case.rows() + fill[*e], &output);
                }
                fill[*e] += 1;
            }
        }
        out
    }

    fn check_combined(&self, outcome: &Outcome, out: &Combined) {
        let (case, op) = (self.case, self.op);
        let answers = |r: &usize| op.active.contains(*r as u32) && !op.parts[*r].give_up.answers_nobody();
        let answering: Vec<bool> = (0..case.ranks).map(|r| answers(&r)).collect();
        let lost = |r: &usize| {
            op.active.contains(*r as u32) && !answers(r) && reference::rows_sent(case, op, self.rank, *r) > 0
        };
        let missing: Mask = (0..case.ranks).filter(lost).map(|r| r as u32).collect();
        assert_eq!(outcome.missing, missing, "missing from combine: {:?}", outcome.record);
        match &outcome.record {
            None => assert!(missing.is_empty()),
            Some(record) => {
                assert_eq!((record.cause, record.phase), (Cause::Partial, WaitPhase::CombineReceive));
                assert_eq!(record.rank, self.rank as u32);
                assert!(missing.contains(record.peer), "{record}");
            }
        }
        let (words, contributions) = reference::combined(case, op, &answering, self.rank);
        let mut expected = Combined::blank(case, self.part);
        for (i, word) in words.iter().enumerate() {
            expected.out[2 * i..][..2].copy_from_slice(&word.to_le_bytes());
        }
        same("out (bytes)", Some(&out.out[..]), Some(&expected.out[..]));
        if let Some(have) = &out.contributions {
            same("contributions", Some(&have[..self.part.tokens]), Some(&contributions));
            assert!(have[self.part.tokens..].iter().all(|c| *c == [0xa5a5; 2]), "beyond contributions");
        }
    }
}

/// Memory for what combine returns, filled with a pattern.
struct Combined {
    dtype: DType,
    out: HostBuffer<u8>,
    contributions: Option<Vec<[u16; 2]>>,
}

impl Combined {
    fn blank(case: &Case, part: &Part) -> Self {
        let slack = (part.outputs % 3) as usize;
        let mut out = HostBuffer::zeroed((part.tokens * case.config.hidden as usize + slack) * 2);
        out.fill(0xa5);
        let contributions = (part.outputs >> 34 & 1 == 1).then(|| vec![[0xa5a5; 2]; part.tokens + slack]);
        Self { dtype: case.config.combine_dtype.dtype(), out, contributions }
    }

    fn as_output(&mut self) -> CombineOutput<'_> {
        let (first, len) = (std::ptr::NonNull::from(&mut self.out[..]).cast(), self.out.len() / 2);
        // SAFETY: `len` 16-bit elements of `out`, which is borrowed exclusively and aligned to 64 bytes.
        let mut output = CombineOutput::new(unsafe { TensorMut::from_raw(first, self.dtype, len) });
        output.contributions = self.contributions.as_deref_mut();
        output
    }
}

fn put(out: &mut HostBuffer<u8>, row: usize, words: &[u16]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    out[row * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
}

/// Does nothing if the row is not of this type.
fn write_row<T: Element>(to: Option<&mut [T]>, words: &[u16], from_bits: fn(u16) -> T) {
    for (to, word) in to.into_iter().flatten().zip(words) {
        *to = from_bits(*word);
    }
}

/// Rank-major rows are also read in place.
fn check_in_place(case: &Case, rows: &[Row<'_>], dispatched: &Dispatched) {
    let view = dispatched.rows().expect("rank-major");
    for source in 0..case.ranks {
        let theirs: Vec<_> = rows.iter().filter(|row| row.source == source).collect();
        let source = source as u32;
        assert_eq!(view.count(source), theirs.len(), "rows of source {source} in place");
        for (i, row) in theirs.iter().enumerate() {
            same("row in place", view.row::<u8>(source, i), Some(&row.wire.payload));
            let scales = view.scales(source, i);
            assert_eq!(scales.is_none(), row.wire.scales.is_empty());
            same("scales in place", scales, Some(&row.wire.scales));
        }
        assert!(view.row::<u8>(source, theirs.len()).is_none());
    }
}

/// The future's output if one poll is enough; the future is dropped in any case.
async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
