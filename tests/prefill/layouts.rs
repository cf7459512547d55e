//! The places of rows, their contents, and that their sums return to their source.

use epwire::prefill::{PrefillCombine, PrefillCombineOutput, PrefillLayout};
use epwire::{
    CombineMode, Dispatch, Fp8Scale, HostBuffer, Payload, ScaleOrder, TensorMut, TensorRef, quantize_fp8,
};
use half::bf16;

use crate::reference::{
    self, EXPERTS, HIDDEN, LOCAL, Memory, RANKS, Sent, TOPK, check_sums, expert, tokens, weight,
};
use crate::{complete, config, ranks};

const LAYOUTS: [PrefillLayout; 5] = [
    PrefillLayout::Packed { alignment: 1 },
    PrefillLayout::Packed { alignment: 16 },
    PrefillLayout::ExpertMajor,
    PrefillLayout::Dense,
    PrefillLayout::RankMajor,
];

#[test]
fn rows_lie_as_each_layout_says_and_their_sums_come_home() {
    let mut config = config();
    config.ep = config.ep.sideband_bytes(4);
    ranks(&config, |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        for layout in LAYOUTS {
            let (rows, capacity) = reference::rows(rank, layout);
            // For experts' lists the reference knows no other size.
            let spare = if layout == PrefillLayout::ExpertMajor { 0 } else { 3 };
            let mut memory = Memory::new(layout, capacity + spare);
            let mut band = std::mem::take(&mut memory.band);
            let output = memory.output().sideband(&mut band);
            let input = sent.input().sideband(&sent.band, 4);
            let (mut routing, outcome) = buffer.dispatch_blocking(input, output).unwrap();
            complete(&outcome);
            memory.check_lists(rank, 0);
            memory.check_rows(0);
            if layout != PrefillLayout::ExpertMajor {
                for row in &rows {
                    assert_eq!(band[row.place * 4..][..4], [row.source as u8, row.token as u8, 7, 8]);
                }
            }
            let received = routing.received(buffer, layout).unwrap();
            assert_eq!((received.capacity, received.counts), (capacity, memory.counts.clone()));

            let outputs = memory.outputs(rank, HIDDEN);
            let (mut out, mut lacks) = (HostBuffer::zeroed(tokens(rank) * HIDDEN), vec![9; tokens(rank)]);
            let mut contributions = vec![[9; 2]; tokens(rank)];
            let outcome = buffer
                .combine_blocking(
                    &mut routing,
                    PrefillCombine::new(TensorRef::new(&outputs, HIDDEN)),
                    PrefillCombineOutput::new(TensorMut::new(&mut out))
                        .lacks(&mut lacks)
                        .contributions(&mut contributions),
                )
                .unwrap();
            complete(&outcome);
            check_sums(0, rank, HIDDEN, &out);
            assert!(lacks.iter().all(|ranks| *ranks == 0));
            for (t, [arrived, expected]) in contributions.into_iter().enumerate() {
                let experts = (0..TOPK).filter(|j| expert(rank, t, *j).is_some()).count() as u16;
                assert_eq!((arrived, expected), (experts, experts));
            }
        }
    });
}

/// Scale `k` of the row at `place`, of `count` scales of this many bytes, in a single list.
fn scale_at(
    scales: &[u8],
    order: ScaleOrder,
    capacity: usize,
    place: usize,
    k: usize,
    count: usize,
) -> &[u8] {
    let stride = (capacity * 4).next_multiple_of(16);
    let at = match order {
        ScaleOrder::RowMajor => (place * count + k) * 4,
        ScaleOrder::ColumnMajor => k * stride + place * 4,
        other => panic!("no case has scales in {other} order"),
    };
    &scales[at..][..4]
}

#[test]
fn fp8_rows_come_with_every_kind_and_order_of_scales() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        for (scale, order) in [
            (Fp8Scale::F32, ScaleOrder::ColumnMajor),
            (Fp8Scale::F32, ScaleOrder::RowMajor),
            (Fp8Scale::PowerOfTwo, ScaleOrder::ColumnMajor),
            (Fp8Scale::Ue8m0, ScaleOrder::ColumnMajor),
            (Fp8Scale::Ue8m0, ScaleOrder::RowMajor),
        ] {
            let (layout, payload) = (PrefillLayout::Packed { alignment: 8 }, Payload::Fp8 { scale });
            let (rows, capacity) = reference::rows(rank, layout);
            let count = if scale == Fp8Scale::Ue8m0 { (HIDDEN / 128).div_ceil(4) } else { HIDDEN / 128 };
            let mut memory = Memory::new(layout, capacity);
            let mut scales = HostBuffer::<i32>::zeroed(count * capacity.next_multiple_of(4));
            let output =
                memory.output().scales(TensorMut::new(&mut scales)).scale_order(order).zero_padding(true);
            let (_, outcome) = buffer.dispatch_blocking(sent.input().payload(payload), output).unwrap();
            complete(&outcome);
            memory.check_lists(rank, 0);
            let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            for row in rows {
                let of_source = Sent::new(0, row.source);
                let x = &of_source.x[row.token * HIDDEN..][..HIDDEN];
                let mut q = vec![0; HIDDEN];
                let mut want =
                    if scale == Fp8Scale::Ue8m0 { vec![0u8; HIDDEN / 128] } else { vec![0; HIDDEN / 32] };
                quantize_fp8(TensorRef::new(x, HIDDEN), scale, &mut q, &mut TensorMut::new(&mut want))
                    .unwrap();
                want.resize(count * 4, 0);
                assert_eq!(memory.rows[row.place * HIDDEN..][..HIDDEN], q, "{scale:?} {row:?}");
                for (k, want) in want.chunks_exact(4).enumerate() {
                    assert_eq!(
                        scale_at(&scales, order, capacity, row.place, k, count),
                        want,
                        "{scale:?} {row:?}"
                    );
                }
            }
        }
    });
}

/// FP8 rows that the caller has quantised are opaque rows with scales of 4 bytes: f32, or four exponents.
#[test]
fn opaque_rows_keep_their_bytes_and_scales() {
    let payload = Payload::Opaque { row_bytes: HIDDEN as u32, scale_count: 5, scale_bytes: 4 };
    let mut config = config();
    config.ep = config.ep.opaque_bytes(HIDDEN as u32 + 20);
    ranks(&config, |buffer| {
        let rank = buffer.rank() as usize;
        let byte = |rank: usize, t: usize, i: usize| (rank * 50 + t * 3 + i) as u8;
        let scale = |rank: usize, t: usize, k: usize| (rank * 1000 + t * 10 + k) as f32;
        let n = tokens(rank);
        let x: Vec<u8> = (0..n).flat_map(|t| (0..HIDDEN).map(move |i| byte(rank, t, i))).collect();
        let by_row: Vec<f32> = (0..n).flat_map(|t| (0..5).map(move |k| scale(rank, t, k))).collect();
        let by_column: Vec<f32> = (0..5).flat_map(|k| (0..n).map(move |t| scale(rank, t, k))).collect();
        let Sent { ids, weights, .. } = Sent::new(0, rank);
        for (columns, order) in [(false, ScaleOrder::ColumnMajor), (true, ScaleOrder::RowMajor)] {
            let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, TOPK))
                .weights(TensorRef::new(&weights, TOPK))
                .payload(payload);
            let input = match columns {
                true => input.scales_by_column(TensorRef::new(&by_column, n)),
                false => input.scales(TensorRef::new(&by_row, 5)),
            };
            let (rows, capacity) = reference::rows(rank, PrefillLayout::Dense);
            let mut memory = Memory::new(PrefillLayout::Dense, capacity);
            let mut scales = HostBuffer::<f32>::zeroed(5 * capacity.next_multiple_of(4));
            let output = memory.output().scales(TensorMut::new(&mut scales)).scale_order(order);
            complete(&buffer.dispatch_blocking(input, output).unwrap().1);
            let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            for row in rows {
                let got = &memory.rows[row.place * HIDDEN..][..HIDDEN];
                assert!(got.iter().enumerate().all(|(i, got)| *got == byte(row.source, row.token, i)));
                for k in 0..5 {
                    let got = scale_at(&scales, order, capacity, row.place, k, 5);
                    assert_eq!(got, scale(row.source, row.token, k).to_le_bytes());
                }
            }
        }
    });
}

#[test]
fn combine_takes_weights_and_bias_in_both_modes() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let (sent, layout) = (Sent::new(0, rank), PrefillLayout::Packed { alignment: 4 });
        let mut memory = Memory::new(layout, reference::rows(rank, layout).1);
        let (mut routing, _) = buffer.dispatch_blocking(sent.input(), memory.output()).unwrap();
        let outputs = memory.outputs(rank, HIDDEN);
        let biases = [1.5f32, -1.0].map(|b| vec![bf16::from_f32(b); tokens(rank) * HIDDEN]);
        // The weights of another round, at the expert's rank and at the token's rank.
        let row_weights: Vec<f32> = (0..memory.capacity)
            .map(|place| match memory.row_token[place] {
                -1 => 0.0,
                token => weight(1, token as usize, memory.row_position[place] as usize),
            })
            .collect();
        let at_home = Sent::new(1, rank).weights;
        let combine = || {
            PrefillCombine::new(TensorRef::new(&outputs, HIDDEN))
                .bias(TensorRef::new(&biases[0], HIDDEN))
                .bias(TensorRef::new(&biases[1], HIDDEN))
        };
        for input in [
            combine().row_weights(&row_weights),
            combine().mode(CombineMode::Ordered).weights(TensorRef::new(&at_home, TOPK)),
        ] {
            let mut out = HostBuffer::<bf16>::zeroed(tokens(rank) * HIDDEN);
            let to = PrefillCombineOutput::new(TensorMut::new(&mut out));
            complete(&buffer.combine_blocking(&mut routing, input, to).unwrap());
            for (t, row) in out.chunks_exact(HIDDEN).enumerate() {
                for (c, got) in row.iter().enumerate() {
                    let experts = (0..TOPK).filter_map(|j| Some((j, expert(rank, t, j)?)));
                    let x = reference::value(0, rank, t, c);
                    let sum: f32 = experts.map(|(j, e)| weight(1, t, j) * reference::made(e, x)).sum();
                    assert_eq!(got.to_f32(), sum + 0.5, "rank {rank}, token {t}, channel {c}");
                }
            }
        }
    });
}

#[test]
fn counting_without_sending_says_who_gets_what() {
    ranks(&config(), |buffer| {
        let rank = buffer.rank() as usize;
        let sent = Sent::new(0, rank);
        let (rank_tokens, expert_tokens, in_rank) = buffer.count(TensorRef::new(&sent.ids, TOPK)).unwrap();
        let mut want = (vec![0; RANKS], vec![0; EXPERTS], vec![false; tokens(rank) * RANKS]);
        for t in 0..tokens(rank) {
            for e in (0..TOPK).filter_map(|j| expert(rank, t, j)) {
                want.1[e] += 1;
                want.0[e / LOCAL] += u32::from(!want.2[t * RANKS + e / LOCAL]);
                want.2[t * RANKS + e / LOCAL] = true;
            }
        }
        assert_eq!((rank_tokens, expert_tokens, in_rank), want);
    });
}
