//! The same steps by host threads and by kernels.

use epwire::cuda;
use epwire::{
    Combine, CombineMode, CombineOutput, Dispatch, DispatchOutput, EpBuffer, Fp8Scale, HostBuffer, Layout,
    Payload, RowShape, TensorMut, TensorRef,
};
use half::bf16;

use crate::world::{Gpu, HIDDEN, LOCAL_EXPERTS, OnGpu, PATIENT, Random, TOPK, Tokens, config, ranks};

#[derive(Debug, Clone, Copy)]
struct Case {
    payload: Payload,
    layout: Layout,
    mode: CombineMode,
    split: bool,
}

const CASES: &[Case] = {
    use CombineMode::{Ordered, RankReduced};
    use Layout::{ExpertMajor, RankMajor};
    const F32: Payload = Payload::Fp8 { scale: Fp8Scale::F32 };
    const UE8M0: Payload = Payload::Fp8 { scale: Fp8Scale::Ue8m0 };
    &[
        Case { payload: Payload::SameAsInput, layout: ExpertMajor, mode: RankReduced, split: false },
        Case { payload: Payload::SameAsInput, layout: ExpertMajor, mode: Ordered, split: true },
        Case { payload: Payload::SameAsInput, layout: RankMajor, mode: RankReduced, split: true },
        Case { payload: F32, layout: ExpertMajor, mode: RankReduced, split: true },
        Case { payload: F32, layout: RankMajor, mode: RankReduced, split: false },
        Case { payload: UE8M0, layout: ExpertMajor, mode: Ordered, split: false },
    ]
};

pub(crate) fn a_gpu_delivers_and_combines_what_the_host_does(gpus: u32) {
    for world in 1..=gpus {
        for (seed, case) in CASES.iter().enumerate() {
            let seed = seed as u64;
            let host = ranks(&config(world), world, false, |buffer| on_host(buffer, case, seed));
            let gpu = ranks(&config(world), world, true, |buffer| on_gpu(buffer, case, seed));
            for (rank, (host, gpu)) in host.iter().zip(&gpu).enumerate() {
                assert_same(host, gpu, &format!("{case:?}, {world} ranks, rank {rank}"));
            }
        }
    }
}

/// Everything that a step has written, as bytes.
pub(crate) type Written = Vec<(&'static str, Vec<u8>)>;

pub(crate) fn assert_same(host: &Written, gpu: &Written, what: &str) {
    assert_eq!(host.len(), gpu.len());
    for ((name, host), (_, gpu)) in host.iter().zip(gpu) {
        let differs = host.iter().zip(gpu).position(|(a, b)| a != b);
        let same = differs.is_none() && host.len() == gpu.len();
        assert!(same, "{what}: {name} differs at byte {differs:?}");
    }
}

/// Sizes of a step's outputs, in elements; rows and scales in bytes.
struct Sizes {
    rows: usize,
    scales: usize,
    lists: usize,
    entries: usize,
    ranks: usize,
    /// `M`
    each: usize,
}

impl Sizes {
    fn new(buffer: &EpBuffer, case: &Case) -> Self {
        let plan = buffer.plan();
        let shape = RowShape::new(buffer.config(), plan.ranks, case.payload).unwrap();
        let expert_major = case.layout == Layout::ExpertMajor;
        let (rows, scales) = if expert_major {
            (shape.expert_rows_bytes, shape.expert_scales_bytes)
        } else {
            (shape.rank_rows_bytes, shape.rank_scales_bytes)
        };
        let lists = if expert_major { LOCAL_EXPERTS } else { 1 };
        Self { rows, scales, lists, entries: plan.rows * TOPK, ranks: plan.ranks as usize, each: plan.rows }
    }

    /// Expert outputs that are unrelated to the rows, so that a row in the wrong place is noticed.
    fn expert_out(&self, rank: u32) -> Vec<bf16> {
        let mut random = Random(u64::from(rank) << 3 | 1 << 50);
        (0..self.lists * self.each * HIDDEN).map(|_| random.bf16()).collect()
    }
}

pub(crate) fn bytes_of<T: epwire::Element>(values: &[T]) -> Vec<u8> {
    // SAFETY: elements are plain numbers without padding (Element).
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }.to_vec()
}

fn on_host(buffer: &EpBuffer, case: &Case, seed: u64) -> Written {
    let (tokens, sizes) = (Tokens::new(buffer.rank(), buffer.ranks(), seed), Sizes::new(buffer, case));
    let rank_major = case.layout == Layout::RankMajor;
    let mut rows = HostBuffer::<u8>::zeroed(sizes.rows);
    let mut scales = HostBuffer::<u8>::zeroed(sizes.scales);
    let mut sideband = vec![0u8; sizes.lists * sizes.each * 8];
    let (mut counts, mut source_counts) = (vec![0u32; LOCAL_EXPERTS], vec![0u32; sizes.ranks]);
    let mut ranges = vec![[0u32; 2]; LOCAL_EXPERTS * sizes.ranks];
    let mut source_token = vec![0u32; sizes.lists * sizes.each];
    let (mut row_experts, mut row_weights) = (vec![0i32; sizes.entries], vec![0f32; sizes.entries]);
    let mut expert_rows = vec![0u32; LOCAL_EXPERTS * sizes.each];
    let mut out = HostBuffer::<bf16>::zeroed(tokens.x.len());
    let mut contributions = vec![[0u16; 2]; tokens.len()];

    let input = Dispatch::new(TensorRef::new(&tokens.x, HIDDEN), TensorRef::new(&tokens.ids, TOPK))
        .weights(TensorRef::new(&tokens.weights, TOPK))
        .sideband(&tokens.sideband, 8)
        .payload(case.payload)
        .layout(case.layout);
    let mut output = DispatchOutput::new(TensorMut::new(&mut rows), &mut counts)
        .sideband(&mut sideband)
        .source_counts(&mut source_counts)
        .ranges(&mut ranges)
        .source_token(&mut source_token);
    output.scales = (sizes.scales > 0).then(|| TensorMut::new(&mut scales));
    if rank_major {
        output =
            output.row_experts(&mut row_experts).row_weights(&mut row_weights).expert_rows(&mut expert_rows);
    }
    let dispatched = buffer.dispatch_blocking(input, output).unwrap();
    let expert_out = sizes.expert_out(buffer.rank());
    let output = CombineOutput::new(TensorMut::new(&mut out)).contributions(&mut contributions);
    let input = Combine::new(TensorRef::new(&expert_out, HIDDEN)).mode(case.mode);
    assert!(dispatched.combine_blocking(input, output).unwrap().is_complete());
    vec![
        ("rows", rows.to_vec()),
        ("scales", scales.to_vec()),
        ("sideband", sideband),
        ("counts", bytes_of(&counts)),
        ("source_counts", bytes_of(&source_counts)),
        ("ranges", bytes_of(ranges.as_flattened())),
        ("source_token", bytes_of(&source_token)),
        ("row_experts", bytes_of(&row_experts)),
        ("row_weights", bytes_of(&row_weights)),
        ("expert_rows", bytes_of(&expert_rows)),
        ("out", bytes_of(&out)),
        ("contributions", bytes_of(contributions.as_flattened())),
    ]
}

fn on_gpu(buffer: &EpBuffer, case: &Case, seed: u64) -> Written {
    let gpu = Gpu::of(buffer);
    let (tokens, sizes) = (Tokens::new(buffer.rank(), buffer.ranks(), seed), Sizes::new(buffer, case));
    let rank_major = case.layout == Layout::RankMajor;
    let mut rows = gpu.zeros::<u8>(sizes.rows);
    let mut scales = gpu.zeros::<u8>(sizes.scales.max(1));
    let mut sideband = gpu.zeros::<u8>(sizes.lists * sizes.each * 8);
    let (mut counts, mut source_counts) = (gpu.zeros::<u32>(LOCAL_EXPERTS), gpu.zeros::<u32>(sizes.ranks));
    let mut ranges = gpu.zeros::<u32>(LOCAL_EXPERTS * sizes.ranks * 2);
    let mut source_token = gpu.zeros::<u32>(sizes.lists * sizes.each);
    let (mut row_experts, mut row_weights) =
        (gpu.zeros::<i32>(sizes.entries), gpu.zeros::<f32>(sizes.entries));
    let mut expert_rows = gpu.zeros::<u32>(LOCAL_EXPERTS * sizes.each);
    let mut out = gpu.zeros::<bf16>(tokens.x.len());
    let mut contributions = gpu.zeros::<u16>(tokens.len() * 2);
    let (sent, tags) = (OnGpu::new(&gpu, &tokens), gpu.put(&tokens.sideband));

    let input = sent.dispatch(&gpu).sideband(gpu.view(&tags, 8)).payload(case.payload).layout(case.layout);
    let mut output = cuda::DispatchOutput::new(gpu.view_mut(&mut rows), gpu.view_mut(&mut counts))
        .sideband(gpu.view_mut(&mut sideband))
        .source_counts(gpu.view_mut(&mut source_counts))
        .ranges(gpu.view_mut(&mut ranges))
        .source_token(gpu.view_mut(&mut source_token));
    output.scales = (sizes.scales > 0).then(|| gpu.view_mut(&mut scales));
    if rank_major {
        output = output
            .row_experts(gpu.view_mut(&mut row_experts))
            .row_weights(gpu.view_mut(&mut row_weights))
            .expert_rows(gpu.view_mut(&mut expert_rows));
    }
    let dispatched = match case.split {
        false => buffer.enqueue_dispatch(input, output, gpu.stream()).unwrap(),
        true => {
            let sent = buffer.enqueue_dispatch_send(input, gpu.stream()).unwrap();
            sent.enqueue_receive(output, gpu.stream()).unwrap()
        }
    };
    let expert_out = gpu.put(&sizes.expert_out(buffer.rank()));
    let input = Combine::new(gpu.view(&expert_out, HIDDEN)).mode(case.mode);
    let output =
        cuda::CombineOutput::new(gpu.view_mut(&mut out)).contributions(gpu.view_mut(&mut contributions));
    let completion = match case.split {
        false => dispatched.enqueue_combine(input, output, gpu.stream()).unwrap(),
        true => {
            let answered = dispatched.enqueue_combine_send(input, gpu.stream()).unwrap();
            answered.enqueue_receive(output, gpu.stream()).unwrap()
        }
    };
    completion.wait_blocking(PATIENT).unwrap();
    assert!(completion.outcome().unwrap().unwrap().is_complete());
    assert_eq!(buffer.take_errors().unwrap(), cuda::Errors::default());
    let scales = if sizes.scales > 0 { gpu.get(&scales) } else { Vec::new() };
    vec![
        ("rows", gpu.get(&rows)),
        ("scales", scales),
        ("sideband", gpu.get(&sideband)),
        ("counts", bytes_of(&gpu.get(&counts))),
        ("source_counts", bytes_of(&gpu.get(&source_counts))),
        ("ranges", bytes_of(&gpu.get(&ranges))),
        ("source_token", bytes_of(&gpu.get(&source_token))),
        ("row_experts", bytes_of(&gpu.get(&row_experts))),
        ("row_weights", bytes_of(&gpu.get(&row_weights))),
        ("expert_rows", bytes_of(&gpu.get(&expert_rows))),
        ("out", bytes_of(&gpu.get(&out))),
        ("contributions", bytes_of(&gpu.get(&contributions))),
    ]
}
