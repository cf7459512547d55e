//! Invalid calls between valid operations: each must give its named error and have no effect, which the next operation
//! of all ranks shows by being exact.

use std::time::Duration;

use epwire::{
    Combine, CombineMode, CombineOutput, DType, Dispatch, DispatchOutput, Dispatched, EpBuffer, Error,
    HostBuffer, Layout, Mask, Payload, TensorMut, TensorRef,
};
use half::bf16;

use crate::case::{typed_ids, view};
use crate::flight::Inputs;
use crate::outputs::Outputs;
use crate::random::Random;

/// The class of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Invalid,
    Limit,
    State,
}
use Class::{Invalid, Limit, State};

/// `error` must be of `class` and say `text`. Returns the name.
fn refused(name: &'static str, error: Option<Error>, class: Class, text: &str) -> &'static str {
    let error = error.unwrap_or_else(|| panic!("{name}: was accepted"));
    let found = match &error {
        Error::Invalid(_) => Invalid,
        Error::Limit(_) => Limit,
        Error::State(_) => State,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(found, class, "{name}: {error}");
    assert!(error.to_string().contains(text), "{name}: {error} does not say {text:?}");
    name
}

/// Tries some invalid dispatches; returns their names.
pub(crate) fn dispatches(inputs: &Inputs<'_>, buffer: &EpBuffer, r: &mut Random) -> Vec<&'static str> {
    (0..3).filter_map(|_| dispatch(inputs, buffer, r)).collect()
}

/// The error of a dispatch, whole or in halves.
fn attempt(inputs: &Inputs<'_>, buffer: &EpBuffer, split: bool, input: Dispatch<'_>) -> Option<Error> {
    if split {
        return buffer.dispatch_send_blocking(input).err();
    }
    let mut outputs = Outputs::blank(inputs.case, inputs.op, inputs.part);
    buffer.dispatch_blocking(input, outputs.as_output()).err()
}

/// One invalid dispatch, if the chosen one can be made from these inputs.
fn dispatch(inputs: &Inputs<'_>, buffer: &EpBuffer, r: &mut Random) -> Option<&'static str> {
    let split = r.chance(50);
    let try_input = |input: Dispatch<'_>| attempt(inputs, buffer, split, input);
    // For requests whose outputs would already have wrong sizes.
    let try_send = |input: Dispatch<'_>| attempt(inputs, buffer, true, input);
    let good = inputs.dispatch();
    Some(match r.below(14) {
        0..3 => return bad_id(inputs, buffer, split, r),
        3 => return bad_shape(inputs, buffer, split, r),
        4 => {
            let (most, k) = (inputs.case.config.max_tokens as usize, inputs.op.k);
            let tokens = most + 1;
            let x = HostBuffer::<u8>::zeroed(tokens * inputs.part.x_row);
            let dtype = inputs.x().dtype();
            let x = view(&x, dtype, tokens, inputs.part.x_row / dtype.bytes(), inputs.part.x_row);
            let ids = vec![-1i32; tokens * k];
            let input = Dispatch::new(x, TensorRef::new(&ids, k)).payload(no_scales(inputs.op.payload));
            refused("too many tokens", try_send(input), Limit, "max_tokens")
        }
        5 => {
            let lanes = inputs.case.config.lanes;
            refused("lane beyond", try_input(good.lane(lanes)), Limit, "lane is")
        }
        6 => {
            let shorter = r.pick(&[Duration::ZERO, inputs.case.config.deadline - Duration::from_nanos(1)]);
            refused("shorter deadline", try_input(good.deadline(shorter)), Limit, "deadline is")
        }
        7 => {
            let most = inputs.case.config.sideband_bytes + 1;
            let bytes = vec![0; inputs.part.tokens * most as usize];
            refused("sideband beyond plan", try_send(good.sideband(&bytes, most)), Limit, "sideband_bytes is")
        }
        8 => {
            let bytes = vec![0; inputs.part.tokens * 4 + 1];
            refused("sideband of another size", try_send(good.sideband(&bytes, 4)), Invalid, "sideband has")
        }
        9 => {
            let mut counts = vec![0; inputs.case.local_experts() - 1];
            let mut outputs = Outputs::blank(inputs.case, inputs.op, inputs.part);
            let output = outputs.as_output().counts(&mut counts);
            refused(
                "short output",
                buffer.dispatch_blocking(good, output).err(),
                Invalid,
                "output.counts has",
            )
        }
        10 => {
            let error = buffer.dispatch_blocking(good.layout(Layout::ExpertMajor), DispatchOutput::default());
            refused("expert-major without rows", error.err(), Invalid, "needs output.rows")
        }
        11 => {
            let mut outputs = Outputs::blank(inputs.case, inputs.op, inputs.part);
            let mut ids = vec![0; inputs.case.rows() * inputs.case.config.topk as usize];
            if inputs.part.layout != Layout::ExpertMajor {
                return None;
            }
            let output = outputs.as_output().row_experts(&mut ids);
            let error = buffer.dispatch_blocking(good, output).err();
            refused("expert-major with row_experts", error, Invalid, "output.row_experts is given")
        }
        12 => {
            let payload = no_scales(inputs.op.payload);
            let scales = vec![0f32; inputs.part.tokens.max(1)];
            let input = good.payload(payload).scales(TensorRef::new(&scales, 1));
            match payload {
                Payload::Opaque { .. } if inputs.part.tokens == 0 => return None,
                _ => refused("scales that nobody takes", try_send(input), Invalid, "scales are given, which"),
            }
        }
        _ => {
            let config = &inputs.case.config;
            let row_bytes = (config.opaque_bytes / 16 + 1) * 16;
            let x = vec![0u8; inputs.part.tokens * row_bytes as usize];
            let payload = Payload::Opaque { row_bytes, scale_count: 0, scale_bytes: 1 };
            let input =
                Dispatch::new(TensorRef::new(&x, row_bytes as usize), inputs.topk_idx()).payload(payload);
            refused("opaque row beyond plan", try_send(input), Limit, "opaque_bytes")
        }
    })
}

/// An opaque payload without scales, which then need not be passed.
fn no_scales(payload: Payload) -> Payload {
    match payload {
        Payload::Opaque { row_bytes, .. } => Payload::Opaque { row_bytes, scale_count: 0, scale_bytes: 1 },
        other => other,
    }
}

/// Ids that are out of range, or repeated within a token: in the last token, so that all others have been read.
fn bad_id(inputs: &Inputs<'_>, buffer: &EpBuffer, split: bool, r: &mut Random) -> Option<&'static str> {
    let (op, part, experts) = (inputs.op, inputs.part, i64::from(inputs.case.config.experts));
    let token = part.tokens.checked_sub(1)?;
    let (mut ids, column) = (part.ids.clone(), r.below(op.k));
    let (name, text) = match r.below(3) {
        0 => {
            ids[token * op.k + column] = experts;
            ("id beyond", format!("topk_idx[{token}][{column}] is {experts}"))
        }
        1 if part.id_type != DType::U32 => {
            ids[token * op.k + column] = -2;
            ("id below", format!("topk_idx[{token}][{column}] is -2"))
        }
        _ if op.k > 1 => {
            ids[token * op.k..].fill(-1);
            ids[token * op.k] = 0;
            ids[token * op.k + op.k - 1] = 0;
            ("id repeated", format!("topk_idx[{token}][{}] repeats expert 0 of column 0", op.k - 1))
        }
        _ => return None,
    };
    let typed = typed_ids(&ids, part.id_type);
    let topk_idx = view(&typed, part.id_type, part.tokens, op.k, op.k * part.id_type.bytes());
    let input = inputs.with(inputs.x(), topk_idx);
    Some(refused(name, attempt(inputs, buffer, split, input), Invalid, &text))
}

/// Matrices with a wrong type or shape.
fn bad_shape(inputs: &Inputs<'_>, buffer: &EpBuffer, split: bool, r: &mut Random) -> Option<&'static str> {
    let (n, k) = (inputs.part.tokens, inputs.op.k);
    let try_input = |input: Dispatch<'_>| attempt(inputs, buffer, split, input);
    let topk = inputs.case.config.topk as usize;
    Some(match r.below(5) {
        0 => {
            let x = vec![0f32; n * inputs.x().cols()];
            let input = inputs.with(TensorRef::new(&x, inputs.x().cols()), inputs.topk_idx());
            refused("x of another type", try_input(input), Invalid, "x is [")
        }
        1 => {
            let x = inputs.x();
            let wide = HostBuffer::<u8>::zeroed(n * 2 * inputs.part.x_row);
            let wide = view(&wide, x.dtype(), n, 2 * x.cols(), 2 * inputs.part.x_row);
            refused("x of another width", try_input(inputs.with(wide, inputs.topk_idx())), Invalid, "x is [")
        }
        2 => {
            let ids = vec![-1i64; (n + 1) * k];
            let input = inputs.with(inputs.x(), TensorRef::new(&ids, k));
            refused("ids of other tokens", try_input(input), Invalid, "topk_idx has")
        }
        3 => {
            let (ids, weights) = (vec![-1i32; n * (topk + 1)], vec![1f32; n * (topk + 1)]);
            let input = inputs.with(inputs.x(), TensorRef::new(&ids, topk + 1));
            let input = input.weights(TensorRef::new(&weights, topk + 1));
            refused("topk beyond plan", try_input(input), Limit, "topk is")
        }
        _ => {
            let weights = vec![1f32; n * (k + 1)];
            let input = inputs.dispatch().weights(TensorRef::new(&weights, k + 1));
            refused("weights of another shape", try_input(input), Invalid, "topk_weights is")
        }
    })
}

/// Calls that a held lane forbids.
pub(crate) fn while_held(inputs: &Inputs<'_>, buffer: &EpBuffer, epoch: u32) -> Vec<&'static str> {
    let all = Mask::all(buffer.ranks());
    let mut names = vec![refused(
        "set_active with a lane held",
        buffer.set_active(&all, epoch + 1, 0).err(),
        State,
        "held",
    )];
    if inputs.op.lane.is_some() || inputs.case.config.lanes == 1 {
        let error = buffer.dispatch_send_blocking(inputs.dispatch()).err();
        names.push(refused("dispatch on a held lane", error, State, "is held by operation"));
    }
    names
}

/// Invalid combines; returns the handle for the valid one.
pub(crate) fn combines(
    inputs: &Inputs<'_>,
    mut dispatched: Dispatched,
    good: Combine<'_>,
    names: &mut Vec<&'static str>,
) -> Dispatched {
    let (config, op, part) = (&inputs.case.config, inputs.op, inputs.part);
    let expert_major = part.layout == Layout::ExpertMajor;
    if expert_major {
        names.push(refused("rows view of expert-major", dispatched.rows().err(), State, "expert-major"));
    }
    if expert_major && !config.zero_copy {
        let error = dispatched.combine_rows_mut().err();
        names.push(refused("unplanned zero-copy rows", error, State, "zero_copy"));
    }
    // Combines a copy of the handle's state: the refusal returns the handle itself.
    let mut attempt = |dispatched: Dispatched, name, input: Combine<'_>, class, text: &str| {
        let refusal = dispatched.combine_send(input).expect_err(name);
        let refusal = *refusal;
        names.push(refused(name, Some(refusal.error), class, text));
        refusal.handle
    };
    for shorter in [Duration::ZERO, config.deadline - Duration::from_nanos(1)] {
        let input = good.clone().deadline(shorter);
        dispatched = attempt(dispatched, "combine: shorter deadline", input, Limit, "deadline is");
    }
    let wrong = vec![0f32; config.hidden as usize];
    let input = Combine::new(TensorRef::new(&wrong, config.hidden as usize));
    dispatched = attempt(dispatched, "combine: wrong type", input, Invalid, "expert_out is [");
    let weights = vec![1f32; (part.tokens + 1) * op.k];
    let input = good.clone().weights(TensorRef::new(&weights, op.k));
    dispatched =
        attempt(dispatched, "combine: weights of other tokens", input, Invalid, "topk_weights must be");
    if expert_major && !config.zero_copy {
        let input = Combine::in_place().mode(op.mode).weights(TensorRef::new(&part.weights, op.k));
        dispatched = attempt(dispatched, "combine: in place without plan", input, Invalid, "zero_copy");
    }
    let ordered = good.clone().mode(CombineMode::Ordered);
    if !config.ordered {
        dispatched = attempt(dispatched, "combine: ordered without plan", ordered, Invalid, "config.ordered");
    } else if !expert_major {
        dispatched = attempt(dispatched, "combine: ordered rank-major", ordered, Invalid, "expert-major");
    } else if !op.weighted {
        let reduced = good.clone().mode(CombineMode::RankReduced);
        dispatched =
            attempt(dispatched, "combine: reduced without weights", reduced, Invalid, "topk_weights");
    }
    if op.weighted || !expert_major {
        let weights = vec![1f32; part.tokens * op.k];
        let input = good.clone().mode(CombineMode::RankReduced).weights(TensorRef::new(&weights, op.k));
        let text = "topk_weights are given, which rank-reduced";
        dispatched = attempt(dispatched, "combine: weights not applied", input, Invalid, text);
    }
    if part.tokens > 0 {
        let out = CombineOutput::new(TensorMut::new::<bf16>(&mut []));
        let refusal = dispatched.combine_blocking(good, out).expect_err("combine: short output");
        names.push(refused("combine: short output", Some(refusal.error), Invalid, "out has 0"));
        dispatched = refusal.handle;
    }
    dispatched
}

/// Memberships that cannot begin. No lane is held.
pub(crate) fn memberships(buffer: &EpBuffer) -> Vec<&'static str> {
    let (all, me) = (Mask::all(buffer.ranks()), buffer.rank());
    let epoch = buffer.membership().expect("membership").epoch;
    let try_mask = |mask: Mask, epoch| buffer.set_active(&mask, epoch, 0).err();
    let beyond: Mask = [me, buffer.ranks()].into_iter().collect();
    vec![
        refused("set_active: old epoch", try_mask(all, epoch), Invalid, "epoch is"),
        refused("set_active: epoch beyond", try_mask(all, 1 << 23), Invalid, "epoch is"),
        refused(
            "set_active: without oneself",
            try_mask(all.without(me), epoch + 1),
            Invalid,
            "leaves this rank out",
        ),
        refused("set_active: unknown rank", try_mask(beyond, epoch + 1), Invalid, "the mask names rank"),
    ]
}

/// A buffer that has not been connected or activated refuses what needs that.
pub(crate) fn unconnected(buffer: &EpBuffer, x: TensorRef<'_>, topk_idx: TensorRef<'_>) -> Vec<&'static str> {
    let error = buffer.set_active(&Mask::all(buffer.ranks()), 1, 0).err();
    let early = buffer.dispatch_send_blocking(Dispatch::new(x, topk_idx)).err();
    vec![
        refused("set_active: not connected", error, State, "not connected"),
        refused("dispatch before set_active", early, State, "no membership yet"),
    ]
}
