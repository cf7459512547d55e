//! The same prefill by host threads and by kernels.

use std::ops::RangeInclusive;

use epwire::cuda;
use epwire::cudarc::driver::CudaSlice;
use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput,
};
use epwire::{
    CombineMode, Dispatch, EpConfig, Fp8Scale, HostBuffer, Outcome, Path, Paths, Payload, RowShape,
    TensorMut, TensorRef,
};
use half::bf16;

use crate::same::{Written, assert_same, bytes_of};
use crate::world::{Gpu, HIDDEN, LOCAL_EXPERTS, MAX_TOKENS, PATIENT, Random, TOPK, Tokens, prefill_ranks};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Whole,
    Counted,
    Halves,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    payload: Payload,
    layout: PrefillLayout,
    mode: CombineMode,
    way: Way,
    /// The capacity is too small.
    overflows: bool,
}

const CASES: &[Case] = {
    use CombineMode::{Ordered, RankReduced};
    use PrefillLayout::{Dense, ExpertMajor, Packed, RankMajor};
    use Way::{Counted, Halves, Whole};
    const BF16: Payload = Payload::SameAsInput;
    const F32: Payload = Payload::Fp8 { scale: Fp8Scale::F32 };
    const UE8M0: Payload = Payload::Fp8 { scale: Fp8Scale::Ue8m0 };
    const PACKED: PrefillLayout = Packed { alignment: 16 };
    const fn case(payload: Payload, layout: PrefillLayout, mode: CombineMode, way: Way) -> Case {
        Case { payload, layout, mode, way, overflows: false }
    }
    &[
        case(BF16, PACKED, RankReduced, Whole),
        case(BF16, PACKED, Ordered, Counted),
        case(BF16, RankMajor, RankReduced, Whole),
        case(BF16, Dense, RankReduced, Counted),
        case(F32, PACKED, RankReduced, Counted),
        case(F32, RankMajor, RankReduced, Halves),
        case(F32, ExpertMajor, Ordered, Whole),
        case(UE8M0, PACKED, Ordered, Halves),
        Case { overflows: true, ..case(F32, PACKED, RankReduced, Whole) },
        Case { overflows: true, ..case(BF16, Dense, RankReduced, Whole) },
    ]
};

pub(crate) fn config(ranks: u32, ring_tokens: u32) -> PrefillConfig {
    let experts = LOCAL_EXPERTS as u32 * ranks;
    let ep = EpConfig::new(MAX_TOKENS as u32, HIDDEN as u32, experts, TOPK as u32).sideband_bytes(8);
    PrefillConfig::new(ep).ring_tokens(ring_tokens)
}

pub(crate) fn prefill_gives_what_the_host_gives(gpus: u32) {
    compare(1..=gpus, Paths::default());
}

pub(crate) fn prefill_over_queues_gives_what_the_host_gives(gpus: u32) {
    compare(2..=gpus, "queue".parse().unwrap());
}

fn compare(worlds: RangeInclusive<u32>, paths: Paths) {
    let queued = paths != Paths::default();
    for world in worlds {
        for (seed, case) in CASES.iter().enumerate() {
            // Rings that wrap around several times; those for halves hold all rows.
            let ring = if case.way == Way::Halves { 1 + (MAX_TOKENS * TOPK) as u32 } else { 10 };
            let config = config(world, ring);
            let run = |buffer: &PrefillBuffer| Run::new(buffer, case, seed as u64);
            let host = prefill_ranks(&config, world, false, |buffer| run(buffer).on_host(buffer));
            let config = config.clone().ep(config.ep.clone().paths(paths));
            let gpu = prefill_ranks(&config, world, true, |buffer| {
                for peer in (0..world).filter(|peer| *peer != buffer.rank()) {
                    assert_eq!(matches!(buffer.path(peer), Path::Queue(_)), queued, "{}", buffer.path(peer));
                }
                run(buffer).on_gpu(buffer)
            });
            for (rank, (host, gpu)) in host.iter().zip(&gpu).enumerate() {
                assert_same(host, gpu, &format!("{case:?}, {world} ranks, rank {rank}"));
            }
        }
    }
}

/// Sizes of a rank's outputs.
struct Sizes {
    layout: PrefillLayout,
    capacity: usize,
    places: usize,
    ranks: usize,
    rows_bytes: usize,
    scales_bytes: usize,
    tokens: usize,
}

impl Sizes {
    fn new(buffer: &PrefillBuffer, case: &Case, capacity: usize, tokens: usize) -> Self {
        let ranks = buffer.ranks() as usize;
        let shape = RowShape::new(&buffer.config().ep, buffer.ranks(), case.payload).unwrap();
        let lists = if case.layout == PrefillLayout::ExpertMajor { LOCAL_EXPERTS } else { 1 };
        let places = capacity * lists;
        // Columns are rounded up to 16 bytes, UE8M0 to four scales.
        let scales_bytes = lists * shape.scale_count.next_multiple_of(4) * (4 * capacity + 16);
        let rows_bytes = places * shape.payload_bytes;
        Self { layout: case.layout, capacity, places, ranks, rows_bytes, scales_bytes, tokens }
    }

    fn by_expert(&self) -> bool {
        matches!(self.layout, PrefillLayout::Packed { .. } | PrefillLayout::ExpertMajor)
    }
}

/// The outputs of a dispatch besides rows and scales: the type, whether the layout fills it, and its length.
macro_rules! lists {
    ($sizes:ident; $($name:ident: $type:ty = $filled:expr, $len:expr;)*) => {
        struct OnHost {
            $($name: Vec<$type>,)*
        }

        impl OnHost {
            fn new($sizes: &Sizes) -> Self {
                Self { $($name: vec![Default::default(); $len],)* }
            }

            fn output(&mut self, $sizes: &Sizes) -> PrefillOutput<'_> {
                let (layout, capacity) = ($sizes.layout, $sizes.capacity);
                let mut output = PrefillOutput::new(layout, capacity);
                output.zero_padding = matches!(layout, PrefillLayout::Packed { .. });
                $(output.$name = $filled.then_some(&mut self.$name[..]);)*
                output
            }

            fn written(&self) -> Written {
                vec![$((stringify!($name), bytes_of(&self.$name)),)*]
            }
        }

        struct OnGpu {
            $($name: CudaSlice<$type>,)*
        }

        impl OnGpu {
            fn new($sizes: &Sizes, gpu: &Gpu) -> Self {
                Self { $($name: gpu.zeros($len),)* }
            }

            fn output<'a>(&'a mut self, $sizes: &Sizes, gpu: &'a Gpu) -> cuda::PrefillOutput<'a> {
                let (layout, capacity) = ($sizes.layout, $sizes.capacity);
                let mut output = cuda::PrefillOutput::new(layout, capacity);
                output.zero_padding = matches!(layout, PrefillLayout::Packed { .. });
                $(output.$name = $filled.then(|| gpu.view_mut(&mut self.$name));)*
                output
            }

            fn written(&self, gpu: &Gpu) -> Written {
                vec![$((stringify!($name), bytes_of(&gpu.get(&self.$name))),)*]
            }
        }
    };
}

lists! {
    sizes;
    sideband: u8 = true, sizes.places * 8;
    counts: u32 = true, LOCAL_EXPERTS;
    offsets: u32 = sizes.by_expert(), LOCAL_EXPERTS;
    overflow: u32 = true, if sizes.by_expert() { LOCAL_EXPERTS } else { sizes.ranks };
    source_counts: u32 = true, sizes.ranks;
    source_offsets: u32 = !sizes.by_expert(), sizes.ranks;
    row_expert: i32 = sizes.by_expert(), sizes.places;
    row_source: i32 = true, sizes.places;
    row_token: i32 = true, sizes.places;
    row_position: i32 = sizes.by_expert(), sizes.places;
    row_weight: f32 = sizes.by_expert(), sizes.places;
    row_experts: i32 = !sizes.by_expert(), sizes.places * TOPK;
    row_weights: f32 = !sizes.by_expert(), sizes.places * TOPK;
    ranges: u64 = sizes.by_expert(), LOCAL_EXPERTS * sizes.ranks;
    expert_totals: u64 = true, LOCAL_EXPERTS;
    expert_totals_i32: i32 = true, LOCAL_EXPERTS;
}

/// A rank's input, the same on the host and on a GPU.
struct Run {
    case: Case,
    rank: u32,
    tokens: Tokens,
    /// Rows that are sent by the same routing.
    again: Vec<bf16>,
    bias: Vec<bf16>,
    /// For a dispatch that is not counted first.
    capacity: usize,
}

impl Run {
    fn new(buffer: &PrefillBuffer, case: &Case, seed: u64) -> Self {
        let (rank, ranks) = (buffer.rank(), buffer.ranks());
        let tokens = Tokens::new(rank, ranks, seed);
        let sources = ranks as usize * MAX_TOKENS;
        let capacity = match case.layout {
            _ if case.overflows => 20,
            PrefillLayout::Packed { .. } => sources * TOPK + LOCAL_EXPERTS * 16,
            _ => sources,
        };
        let mut random = Random(seed << 8 | u64::from(rank) | 1 << 41);
        let mut numbers = |len: usize| (0..len).map(|_| random.bf16()).collect::<Vec<_>>();
        let (again, bias) = (numbers(tokens.x.len()), numbers(tokens.x.len()));
        Self { case: *case, rank, tokens, again, bias, capacity }
    }

    /// Expert outputs that are unrelated to the rows, and numbers carried back with them.
    fn made(&self, sizes: &Sizes) -> (Vec<bf16>, Vec<f32>) {
        let mut random = Random(u64::from(self.rank) << 3 | 1 << 50);
        let of_each = if sizes.by_expert() { 1 } else { TOPK };
        let values = (0..sizes.places * of_each).map(|i| i as f32 / 8.0).collect();
        ((0..sizes.places * HIDDEN).map(|_| random.bf16()).collect(), values)
    }

    fn ended(&self, outcome: &Outcome) -> Vec<u8> {
        assert_eq!(outcome.is_complete(), !self.case.overflows, "{outcome:?}");
        format!("{:?}", outcome.record.as_ref().map(|record| record.cause)).into_bytes()
    }

    fn on_host(&self, buffer: &PrefillBuffer) -> Written {
        let Self { case, tokens, .. } = self;
        let dispatch = |x| {
            Dispatch::new(TensorRef::new(x, HIDDEN), TensorRef::new(&tokens.ids, TOPK))
                .weights(TensorRef::new(&tokens.weights, TOPK))
                .sideband(&tokens.sideband, 8)
                .payload(case.payload)
        };
        let first = match case.way {
            Way::Whole => None,
            Way::Counted => Some(buffer.dispatch_count_blocking(dispatch(&tokens.x)).unwrap()),
            Way::Halves => Some(buffer.dispatch_send_blocking(dispatch(&tokens.x)).unwrap()),
        };
        let counted = first.as_ref().filter(|_| case.way == Way::Counted);
        let received = counted.map(|counted| counted.received(case.layout).unwrap());
        let capacity = received.map_or(self.capacity, |received| received.capacity);
        let sizes = Sizes::new(buffer, case, capacity, tokens.len());
        let (mut rows, mut scales) =
            (HostBuffer::<u8>::zeroed(sizes.rows_bytes), HostBuffer::<u8>::zeroed(sizes.scales_bytes));
        let mut lists = OnHost::new(&sizes);
        fn output<'a>(
            lists: PrefillOutput<'a>,
            rows: &'a mut [u8],
            scales: &'a mut [u8],
        ) -> PrefillOutput<'a> {
            lists.rows(TensorMut::new(rows)).scales(TensorMut::new(scales))
        }
        let to = output(lists.output(&sizes), &mut rows, &mut scales);
        let (mut routing, outcome) = match first {
            None => buffer.dispatch_blocking(dispatch(&tokens.x), to).unwrap(),
            Some(first) => first.receive_blocking(to).unwrap(),
        };
        let mut written = vec![("outcome", self.ended(&outcome))];
        written.extend(lists.written());
        written.extend([("rows", rows.to_vec()), ("scales", scales.to_vec())]);

        let (made, values) = self.made(&sizes);
        for round in 0..2 {
            if round == 1 {
                let to = output(lists.output(&sizes), &mut rows, &mut scales);
                let again = buffer.dispatch_again_blocking(&mut routing, dispatch(&self.again), to);
                written.push(("outcome again", self.ended(&again.unwrap())));
                written.extend([("rows again", rows.to_vec()), ("scales again", scales.to_vec())]);
                written.extend(lists.written());
            }
            let mut out = HostBuffer::<bf16>::zeroed(tokens.x.len());
            let (mut contributions, mut lacks) = (vec![[7u16; 2]; sizes.tokens], vec![7u32; sizes.tokens]);
            let mut home = vec![7f32; sizes.tokens * TOPK];
            let input = PrefillCombine::new(TensorRef::new(&made, HIDDEN))
                .mode(case.mode)
                .values(&values)
                .bias(TensorRef::new(&self.bias, HIDDEN));
            let to = PrefillCombineOutput::new(TensorMut::new(&mut out))
                .contributions(&mut contributions)
                .lacks(&mut lacks)
                .values(&mut home);
            let outcome = match case.way {
                Way::Halves => {
                    buffer.combine_send_blocking(&mut routing, input).unwrap().receive_blocking(to).unwrap()
                }
                _ => buffer.combine_blocking(&mut routing, input, to).unwrap(),
            };
            assert!(outcome.is_complete(), "{outcome:?}");
            written
                .extend([("out", bytes_of(&out)), ("contributions", bytes_of(contributions.as_flattened()))]);
            written.extend([("lacks", bytes_of(&lacks)), ("values", bytes_of(&home))]);
        }
        written
    }

    fn on_gpu(&self, buffer: &PrefillBuffer) -> Written {
        let Self { case, tokens, .. } = self;
        let gpu = &Gpu::new(buffer.config().ep.device);
        let (x, again, bias) = (gpu.put(&tokens.x), gpu.put(&self.again), gpu.put(&self.bias));
        let (ids, weights, band) =
            (gpu.put(&tokens.ids), gpu.put(&tokens.weights), gpu.put(&tokens.sideband));
        let dispatch = |x| {
            Dispatch::new(gpu.view(x, HIDDEN), gpu.view(&ids, TOPK))
                .weights(gpu.view(&weights, TOPK))
                .sideband(gpu.view(&band, 8))
                .payload(case.payload)
        };
        let first = match case.way {
            Way::Whole => None,
            Way::Counted => Some(buffer.enqueue_dispatch_count(dispatch(&x), gpu.stream()).unwrap()),
            Way::Halves => Some(buffer.enqueue_dispatch_send(dispatch(&x), gpu.stream()).unwrap()),
        };
        let counted = first.as_ref().filter(|_| case.way == Way::Counted);
        let received = counted.map(|counted| counted.received_blocking(case.layout, PATIENT).unwrap());
        let capacity = received.map_or(self.capacity, |received| received.capacity);
        let sizes = Sizes::new(buffer, case, capacity, tokens.len());
        let (mut rows, mut scales) =
            (gpu.zeros::<u8>(sizes.rows_bytes.max(1)), gpu.zeros::<u8>(sizes.scales_bytes.max(1)));
        let mut lists = OnGpu::new(&sizes, gpu);
        fn output<'a>(
            lists: cuda::PrefillOutput<'a>,
            gpu: &'a Gpu,
            [rows, scales]: [&'a mut CudaSlice<u8>; 2],
        ) -> cuda::PrefillOutput<'a> {
            lists.rows(gpu.view_mut(rows)).scales(gpu.view_mut(scales))
        }
        let bytes = |slice: &CudaSlice<u8>, len: usize| gpu.get(slice)[..len].to_vec();
        let to = output(lists.output(&sizes, gpu), gpu, [&mut rows, &mut scales]);
        let mut routing = match first {
            None => buffer.enqueue_dispatch(dispatch(&x), to, gpu.stream()).unwrap(),
            Some(first) => first.enqueue_receive(to, gpu.stream()).unwrap(),
        };
        let mut written =
            vec![("outcome", self.ended(&routing.completion().wait_blocking(PATIENT).unwrap()))];
        written.extend(lists.written(gpu));
        written.extend([
            ("rows", bytes(&rows, sizes.rows_bytes)),
            ("scales", bytes(&scales, sizes.scales_bytes)),
        ]);

        let (made, values) = self.made(&sizes);
        let (made, values) = (gpu.put(&made), gpu.put(&values));
        for round in 0..2 {
            if round == 1 {
                let to = output(lists.output(&sizes, gpu), gpu, [&mut rows, &mut scales]);
                let again = routing.enqueue_dispatch_again(dispatch(&again), to, gpu.stream()).unwrap();
                written.push(("outcome again", self.ended(&again.wait_blocking(PATIENT).unwrap())));
                written.extend([("rows again", bytes(&rows, sizes.rows_bytes))]);
                written.extend([("scales again", bytes(&scales, sizes.scales_bytes))]);
                written.extend(lists.written(gpu));
            }
            let mut out = gpu.zeros::<bf16>(tokens.x.len());
            let (mut contributions, mut lacks) =
                (gpu.put(&vec![7u16; sizes.tokens * 2]), gpu.put(&vec![7u32; sizes.tokens]));
            let mut home = gpu.put(&vec![7f32; sizes.tokens * TOPK]);
            let input = PrefillCombine::new(gpu.view(&made, HIDDEN))
                .mode(case.mode)
                .values(gpu.view(&values, 1))
                .bias(gpu.view(&bias, HIDDEN));
            let to = cuda::PrefillCombineOutput::new(gpu.view_mut(&mut out))
                .contributions(gpu.view_mut(&mut contributions))
                .lacks(gpu.view_mut(&mut lacks))
                .values(gpu.view_mut(&mut home));
            let completion = match case.way {
                Way::Halves => {
                    let sent = routing.enqueue_combine_send(input, gpu.stream()).unwrap();
                    sent.enqueue_receive(to, gpu.stream()).unwrap()
                }
                _ => routing.enqueue_combine(input, to, gpu.stream()).unwrap(),
            };
            let outcome = completion.wait_blocking(PATIENT).unwrap();
            assert!(outcome.is_complete(), "{outcome:?}");
            written.extend([("out", bytes_of(&gpu.get(&out)))]);
            written.extend([("contributions", bytes_of(&gpu.get(&contributions)))]);
            written.extend([("lacks", bytes_of(&gpu.get(&lacks))), ("values", bytes_of(&gpu.get(&home)))]);
        }
        written
    }
}
