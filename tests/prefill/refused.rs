//! Invalid calls are refused with the reason, and have no effect.

use std::time::Duration;

use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput,
    PrefillPlan, Routing,
};
use epwire::{
    CombineMode, Dispatch, EpConfig, Error, Fp8Scale, HostBuffer, Mask, Payload, TensorMut, TensorRef,
};
use half::{bf16, f16};

const PACKED: PrefillLayout = PrefillLayout::Packed { alignment: 1 };

/// A group of one rank.
fn alone() -> PrefillBuffer {
    let config = PrefillConfig::new(EpConfig::new(16, 64, 4, 2)).ring_tokens(4);
    let buffer = PrefillBuffer::unconnected(0, 1, config).unwrap();
    buffer.set_active(&Mask::all(1), 1, 0).unwrap();
    buffer
}

#[track_caller]
fn refused<T: std::fmt::Debug>(ended: Result<T, impl Into<Error>>, text: &str) {
    let error: Error = ended.map_err(Into::into).expect_err(text);
    assert!(matches!(error, Error::Invalid(_) | Error::Limit(_) | Error::State(_)), "{error:?}");
    assert!(error.to_string().contains(text), "{error}, not {text}");
}

#[test]
fn configurations_that_cannot_be_are_named() {
    let config = |ep: EpConfig, ring_tokens| PrefillConfig::new(ep).ring_tokens(ring_tokens);
    let ep = || EpConfig::new(16, 64, 4, 2);
    refused(PrefillPlan::new(&config(ep().ordered(true), 0), 2), "ordered");
    refused(PrefillPlan::new(&config(ep().zero_copy(true), 0), 2), "zero_copy");
    refused(PrefillPlan::new(&config(ep(), 65_538), 2), "ring_tokens is 65538");
    refused(PrefillPlan::new(&config(ep().hidden(60), 0), 2), "hidden is 60");
    let on_gpu = PrefillPlan::new(&config(ep().device(epwire::Device::Cuda(0)), 0), 2);
    match cfg!(feature = "cuda") && option_env!("DOCS_RS").is_none() {
        true => assert!(on_gpu.unwrap().routing_bytes > 0),
        false => assert!(matches!(on_gpu, Err(Error::NoPath(f)) if f.text.contains("feature"))),
    }
    assert_eq!(PrefillPlan::new(&config(ep(), 5), 2).unwrap().split_tokens, 4);
}

#[test]
fn inputs_and_outputs_of_dispatch_that_do_not_fit_are_named() {
    let buffer = alone();
    let (x, ids, weights) = (vec![bf16::ONE; 2 * 64], [0i32, 1, 2, 3], [1.0f32; 4]);
    let (x, ids, weights) = (TensorRef::new(&x, 64), TensorRef::new(&ids, 2), TensorRef::new(&weights, 2));
    let input = || Dispatch::new(x, ids).weights(weights);
    let mut rows = HostBuffer::<bf16>::zeroed(4 * 64);
    let mut dispatch = |input: Dispatch<'_>| {
        buffer.dispatch_blocking(input, PrefillOutput::new(PACKED, 4).rows(TensorMut::new(&mut rows)))
    };
    let halves = vec![f16::ONE; 2 * 64];
    refused(dispatch(Dispatch::new(TensorRef::new(&halves, 64), ids)), "x is [2, 64] of F16");
    let narrow = vec![bf16::ONE; 2 * 8];
    refused(dispatch(Dispatch::new(TensorRef::new(&narrow, 8), ids)), "x is [2, 8]");
    refused(dispatch(Dispatch::new(x, TensorRef::new(&[0i32, 1], 2))), "topk_idx has 1 rows for 2 tokens");
    refused(dispatch(Dispatch::new(x, TensorRef::new(&[0.0f32; 4], 2))), "topk_idx is F32");
    refused(dispatch(Dispatch::new(x, TensorRef::new(&[0i32, 1, 2, 4], 2))), "topk_idx[1][1] is 4");
    refused(
        dispatch(Dispatch::new(x, TensorRef::new(&[0i32, 1, 2, 2], 2))),
        "topk_idx[1][1] repeats expert 2",
    );
    refused(dispatch(Dispatch::new(x, TensorRef::new(&[0i32; 6], 3))), "topk is 3, must be in [1, 2]");
    refused(
        dispatch(Dispatch::new(x, ids).weights(TensorRef::new(&[1.0f32; 2], 1))),
        "topk_weights is [2, 1]",
    );
    refused(dispatch(input().lane(2)), "lane is 2");
    refused(dispatch(input().sideband(&[0; 8], 4)), "sideband_bytes is 4, the plan has room for 0");
    refused(dispatch(input().payload(Payload::Fp8 { scale: Fp8Scale::F32 })), "FP8 needs a multiple of 128");
    refused(dispatch(input().scales(weights)), "scales");
    for shorter in [Duration::ZERO, Duration::from_millis(1)] {
        refused(dispatch(input().deadline(shorter)), "a call may only lengthen");
    }
    let many = vec![bf16::ONE; 17 * 64];
    let far = vec![-1i32; 34];
    let input_of_17 = Dispatch::new(TensorRef::new(&many, 64), TensorRef::new(&far, 2));
    refused(dispatch(input_of_17), "tokens is 17, the plan's max_tokens is 16");

    let mut short = [0u32; 3];
    let mut ints = [0i32; 3];
    let mut floats = [0.0f32; 3];
    let mut longs = [0u64; 3];
    let mut few = HostBuffer::<bf16>::zeroed(3 * 64);
    let of = |output: PrefillOutput<'_>| buffer.dispatch_blocking(input(), output);
    fn none<'a>() -> PrefillOutput<'a> {
        PrefillOutput::new(PACKED, 4)
    }
    fn by_source<'a>() -> PrefillOutput<'a> {
        PrefillOutput::new(PrefillLayout::Dense, 4)
    }
    refused(of(none().rows(TensorMut::new(&mut few))), "output.rows");
    refused(of(none().counts(&mut short)), "output.counts");
    refused(of(none().offsets(&mut short)), "output.offsets");
    refused(of(none().overflow(&mut short)), "output.overflow");
    refused(of(by_source().overflow(&mut [])), "output.overflow");
    refused(of(none().source_counts(&mut [])), "output.source_counts");
    refused(of(none().row_expert(&mut ints)), "output.row_expert");
    refused(of(none().row_source(&mut ints)), "output.row_source");
    refused(of(none().row_token(&mut ints)), "output.row_token");
    refused(of(none().row_position(&mut ints)), "output.row_position");
    refused(of(none().row_weight(&mut floats)), "output.row_weight");
    refused(of(by_source().row_experts(&mut ints)), "output.row_experts");
    refused(of(by_source().row_weights(&mut floats)), "output.row_weights");
    refused(of(by_source().source_offsets(&mut [])), "output.source_offsets");
    refused(of(none().expert_totals(&mut longs)), "output.expert_totals");
    refused(of(none().expert_totals_i32(&mut ints)), "output.expert_totals_i32");
    refused(of(none().ranges(&mut longs)), "output.ranges");
    refused(of(none().wait_ns(&mut [])), "output.wait_ns");
    let mut enough = [0; 8];
    refused(of(none().row_experts(&mut enough)), "output.row_experts is given");
    // Whatever its size, it has no place there.
    refused(of(none().row_experts(&mut ints)), "only dense or rank-major fills");
    refused(of(by_source().row_weight(&mut floats)), "only packed or expert-major fills");
    refused(of(by_source().row_expert(&mut enough)), "output.row_expert is given");
    refused(of(by_source().zero_padding(true)), "only EPW_PACKED takes");
    refused(of(none().layout(PrefillLayout::Packed { alignment: 0 })), "alignment is 0");
    refused(of(none().layout(PrefillLayout::RankMajor)), "rank-major needs 16");
    let large = none().capacity(usize::MAX >> 8);
    refused(buffer.dispatch_blocking(input(), large), "must be below 4294967295");
    refused(buffer.count(TensorRef::new(&[0.0f32; 4], 2)), "topk_idx is F32");
    refused(buffer.count(TensorRef::new(&[0i32, 9], 2)), "topk_idx[0][1] is 9");
    let endless = TensorRef::strided::<i32>(&[], u32::MAX as usize, 0, 0).unwrap();
    refused(buffer.count(endless), "tokens is 4294967295, the plan's max_tokens is 16");

    // Nothing has happened.
    let (_, outcome) = dispatch(input()).unwrap();
    assert!(outcome.is_complete());
}

#[test]
fn combines_and_routings_that_do_not_fit_are_named() {
    let (buffer, other) = (alone(), alone());
    let (x, ids) = (vec![bf16::ONE; 2 * 64], [0i32, 1, 2, 3]);
    let (x, ids) = (TensorRef::new(&x, 64), TensorRef::new(&ids, 2));
    let weights = [1.0f32; 4];
    let mut rows = HostBuffer::<bf16>::zeroed(4 * 64);
    let mut out = HostBuffer::<bf16>::zeroed(2 * 64);
    let mut dispatch = |weighted: bool, layout: PrefillLayout| {
        let input = Dispatch::new(x, ids);
        let input = if weighted { input.weights(TensorRef::new(&weights, 2)) } else { input };
        let output = PrefillOutput::new(layout, 4).rows(TensorMut::new(&mut rows));
        buffer.dispatch_blocking(input, output).unwrap().0
    };
    let mut routing = dispatch(true, PACKED);
    let made = vec![bf16::ONE; 4 * 64];
    let whole = || PrefillCombine::new(TensorRef::new(&made, 64));
    let mut combine = |input: PrefillCombine<'_>| {
        let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
        buffer.combine_blocking(&mut routing, input, to)
    };
    refused(combine(PrefillCombine::new(TensorRef::new(&made[..64], 64))), "expert_out is [1, 64]");
    let halves = vec![f16::ONE; 4 * 64];
    refused(combine(PrefillCombine::new(TensorRef::new(&halves, 64))), "of F16");
    refused(combine(PrefillCombine::new(TensorRef::new(&made, 0))), "expert_out");
    refused(combine(PrefillCombine::new(TensorRef::new(&made, 60))), "width is 60, must be a multiple of 8");
    refused(combine(whole().row_weights(&[1.0; 3])), "row_weights has 3 weights, must have 4");
    refused(combine(whole().row_weights(&[1.0; 4]).mode(CombineMode::Ordered)), "row_weights are given");
    refused(combine(whole().weights(TensorRef::new(&weights, 2))), "topk_weights are given");
    let single = TensorRef::new(&weights[..2], 1);
    refused(
        combine(whole().weights(single).mode(CombineMode::Ordered)),
        "topk_weights must be a dense [2, 2]",
    );
    refused(combine(whole().values(&[1.0; 3])), "values has 3 numbers, must have 4");
    refused(combine(whole().bias(TensorRef::new(&made[..64], 64))), "bias must be a dense [2, 64]");
    for shorter in [Duration::ZERO, Duration::from_millis(1)] {
        refused(combine(whole().deadline(shorter)), "a call may only lengthen");
    }
    assert!(combine(whole()).unwrap().is_complete());

    let mut few = HostBuffer::<bf16>::zeroed(64);
    let to = PrefillCombineOutput::new(TensorMut::new(&mut few));
    refused(buffer.combine_blocking(&mut routing, whole(), to), "output.out");
    let mut with = |output: PrefillCombineOutput<'_>, text: &str| {
        refused(buffer.combine_blocking(&mut routing, whole(), output), text);
    };
    fn summed(out: &mut [bf16]) -> PrefillCombineOutput<'_> {
        PrefillCombineOutput::new(TensorMut::new(out))
    }
    let mut sums = HostBuffer::<bf16>::zeroed(2 * 64);
    let (mut pairs, mut words, mut floats) = ([[0; 2]; 1], [0; 1], [0.0; 3]);
    let short = summed(&mut sums).contributions(&mut pairs);
    with(short, "output.contributions has 1 pairs of U16, must have 2");
    with(summed(&mut sums).lacks(&mut words), "output.lacks");
    with(summed(&mut sums).values(&mut floats), "output.values");
    with(summed(&mut sums).wait_ns(&mut []), "output.wait_ns");

    // A routing belongs to one buffer, and keeps its places and number of tokens.
    let to = PrefillCombineOutput::new(TensorMut::new(&mut sums));
    refused(other.combine_blocking(&mut routing, whole(), to), "another prefill buffer");
    refused(routing.received(&other, PACKED), "another prefill buffer");
    let again = |routing: &mut _, x: TensorRef<'_>, ids: TensorRef<'_>, capacity: usize, text: &str| {
        let output = PrefillOutput::new(PACKED, capacity);
        refused(buffer.dispatch_again_blocking(routing, Dispatch::new(x, ids), output), text);
    };
    again(&mut routing, x, ids, 5, "are not those of the routing");
    let fewer = (TensorRef::new(&made[..64], 64), TensorRef::new(&[0i32, 1], 2));
    again(&mut routing, fewer.0, fewer.1, 4, "tokens is 1");

    // Rows by source have no ordered combine, and unweighted rows by expert need weights from elsewhere.
    let mut dense = dispatch(true, PrefillLayout::Dense);
    let to = PrefillCombineOutput::new(TensorMut::new(&mut sums));
    let ordered = whole().mode(CombineMode::Ordered);
    refused(buffer.combine_blocking(&mut dense, ordered, to), "reduced over experts already");
    let mut unweighted = dispatch(false, PACKED);
    let to = PrefillCombineOutput::new(TensorMut::new(&mut sums));
    refused(
        buffer.combine_blocking(&mut unweighted, whole(), to),
        "applies the weights at the expert's rank",
    );
    let to = PrefillCombineOutput::new(TensorMut::new(&mut sums));
    assert!(
        buffer.combine_blocking(&mut unweighted, whole().row_weights(&[1.0; 4]), to).unwrap().is_complete()
    );
}

#[test]
fn a_routing_is_combined_only_while_it_is_filled() {
    let buffer = alone();
    let (x, made) = (vec![bf16::ONE; 2 * 64], vec![bf16::ONE; 4 * 64]);
    let (ids, bad, weights) = ([0i32, 1, 2, 3], [0i32, 9, 2, 3], [0.5f32; 4]);
    let tokens = |n: usize, ids| {
        let weights = TensorRef::new(&weights[..2 * n], 2);
        Dispatch::new(TensorRef::new(&x[..64 * n], 64), TensorRef::new(ids, 2)).weights(weights)
    };
    let combine = |routing: &mut Routing| {
        let mut out = HostBuffer::<bf16>::zeroed(2 * 64);
        let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
        buffer.combine_blocking(routing, PrefillCombine::new(TensorRef::new(&made, 64)), to)
    };
    let into = |routing: &mut Routing, input| {
        buffer.dispatch_into_blocking(routing, input, PrefillOutput::new(PACKED, 4))
    };
    let mut routing = Routing::new(&buffer).unwrap();
    refused(combine(&mut routing), "has not been filled by a dispatch");
    refused(routing.received(&buffer, PACKED), "has not been filled by a dispatch");
    assert!(into(&mut routing, tokens(2, &ids)).unwrap().is_complete());
    assert!(combine(&mut routing).unwrap().is_complete());

    // A refused dispatch leaves it as it was, one that is given up leaves it empty. The half that is refused is dropped.
    refused(into(&mut routing, tokens(2, &bad)), "topk_idx[0][1] is 9");
    assert!(combine(&mut routing).unwrap().is_complete());
    drop(buffer.dispatch_send_into_blocking(&mut routing, tokens(1, &ids[..2])).unwrap());
    refused(combine(&mut routing), "has not been filled by a dispatch");
    let counted = buffer.dispatch_count_into_blocking(&mut routing, tokens(2, &ids)).unwrap();
    let large = PrefillOutput::new(PACKED, usize::MAX >> 8);
    refused(counted.receive_blocking(large), "must be below 4294967295");
    refused(combine(&mut routing), "has not been filled by a dispatch");
    assert!(into(&mut routing, tokens(1, &ids[..2])).unwrap().is_complete());
    assert!(combine(&mut routing).unwrap().is_complete());

    // Of a half that is forgotten nothing goes on, and the routing is of no use but to be dropped.
    std::mem::forget(buffer.dispatch_send_into_blocking(&mut routing, tokens(2, &ids)).unwrap());
    refused(combine(&mut routing), "has an operation under way");
    refused(into(&mut routing, tokens(2, &ids)), "has an operation under way");
    drop(routing);
    let mut routing = Routing::new(&buffer).unwrap();
    assert!(into(&mut routing, tokens(2, &ids)).unwrap().is_complete());
}

/// Their addresses are aligned to their elements only.
#[test]
fn empty_lists_are_taken_where_there_are_no_rows() {
    let buffer = alone();
    let (none, no_ids) = (Vec::<bf16>::new(), Vec::<i32>::new());
    let (mut rows, mut sums) = (Vec::<bf16>::new(), Vec::<bf16>::new());
    let input = Dispatch::new(TensorRef::new(&none, 64), TensorRef::new(&no_ids, 2));
    let counted = buffer.dispatch_count_blocking(input).unwrap();
    let capacity = counted.received(PACKED).unwrap().capacity;
    let output = PrefillOutput::new(PACKED, capacity).rows(TensorMut::new(&mut rows));
    let (mut routing, outcome) = counted.receive_blocking(output).unwrap();
    assert!(outcome.is_complete() && capacity == 0);
    let made = PrefillCombine::new(TensorRef::new(&none, 64)).mode(CombineMode::Ordered);
    let to = PrefillCombineOutput::new(TensorMut::new(&mut sums));
    assert!(buffer.combine_blocking(&mut routing, made, to).unwrap().is_complete());
}

#[test]
fn a_buffer_without_a_membership_or_with_a_busy_lane_refuses_operations() {
    let config = PrefillConfig::new(EpConfig::new(16, 64, 4, 2));
    let buffer = PrefillBuffer::unconnected(0, 1, config).unwrap();
    let (x, ids) = (vec![bf16::ONE; 2 * 64], [0i32, 1, 2, 3]);
    let input = || Dispatch::new(TensorRef::new(&x, 64), TensorRef::new(&ids, 2)).lane(0);
    let none = || PrefillOutput::new(PACKED, 4);
    refused(buffer.dispatch_blocking(input(), none()), "no membership yet");
    buffer.set_active(&Mask::all(1), 1, 0).unwrap();
    let counted = buffer.dispatch_count_blocking(input()).unwrap();
    refused(buffer.dispatch_blocking(input(), none()), "lane 0 has an operation under way");
    assert!(buffer.dispatch_blocking(input().lane(1), none()).unwrap().1.is_complete());
    assert!(counted.receive_blocking(none()).unwrap().1.is_complete());
    drop(buffer.dispatch_count_blocking(input()).unwrap());
    assert!(buffer.dispatch_blocking(input(), none()).unwrap().1.is_complete());
}
