//! Routings, halves and completions of prefill, captured and refused calls.

use std::thread::sleep;
use std::time::Duration;

use epwire::cuda::{Errors, PrefillCombineOutput, PrefillCompletion, PrefillCounts, PrefillOutput, Routing};
use epwire::cudarc::driver::CudaSlice;
use epwire::prefill::{PrefillBuffer, PrefillCombine, PrefillLayout};
use epwire::{Cause, Dispatch, Error, Refused, TensorRef};
use half::bf16;

use crate::calls::reading;
use crate::prefill::config;
use crate::world::{Gpu, HIDDEN, LOCAL_EXPERTS, MAX_TOKENS, OnGpu, PATIENT, TOPK, Tokens, prefill_ranks};

const LAYOUT: PrefillLayout = PrefillLayout::Packed { alignment: 8 };
/// Halves fit.
const RING: u32 = 1 + (MAX_TOKENS * TOPK) as u32;

/// A rank's memory. Experts return their input.
struct Step {
    sent: OnGpu,
    rows: CudaSlice<bf16>,
    out: CudaSlice<bf16>,
}

impl Step {
    fn new(gpu: &Gpu, ranks: u32, tokens: &Tokens) -> Self {
        let capacity = ranks as usize * MAX_TOKENS * TOPK + LOCAL_EXPERTS * 8;
        Self {
            sent: OnGpu::new(gpu, tokens),
            rows: gpu.zeros(capacity * HIDDEN),
            out: gpu.zeros(tokens.x.len()),
        }
    }

    fn capacity(&self) -> usize {
        self.rows.len() / HIDDEN
    }

    fn output<'a>(capacity: usize, rows: &'a mut CudaSlice<bf16>, gpu: &'a Gpu) -> PrefillOutput<'a> {
        PrefillOutput::new(LAYOUT, capacity).rows(gpu.view_mut(rows))
    }

    fn dispatch(&mut self, gpu: &Gpu, buffer: &PrefillBuffer) -> Routing {
        let output = Self::output(self.capacity(), &mut self.rows, gpu);
        buffer.enqueue_dispatch(self.sent.dispatch(gpu), output, gpu.stream()).unwrap()
    }

    fn dispatch_into(&mut self, gpu: &Gpu, routing: &mut Routing) -> PrefillCompletion {
        let output = Self::output(self.capacity(), &mut self.rows, gpu);
        routing.enqueue_dispatch(self.sent.dispatch(gpu), output, gpu.stream()).unwrap()
    }

    fn combine(&mut self, gpu: &Gpu, routing: &mut Routing) -> PrefillCompletion {
        let input = PrefillCombine::new(gpu.view(&self.rows, HIDDEN));
        let output = PrefillCombineOutput::new(gpu.view_mut(&mut self.out));
        routing.enqueue_combine(input, output, gpu.stream()).unwrap()
    }

    /// Combines rows that are there, which gives the tokens back.
    fn assert_gives_back(&mut self, gpu: &Gpu, routing: &mut Routing, tokens: &Tokens) {
        gpu.stream.memset_zeros(&mut self.out).unwrap();
        let outcome = self.combine(gpu, routing).wait_blocking(PATIENT).unwrap();
        assert!(outcome.is_complete(), "{outcome:?}");
        assert!(gpu.get(&self.out) == tokens.x);
    }

    /// All of it, which gives the tokens back.
    fn assert_exact(&mut self, gpu: &Gpu, buffer: &PrefillBuffer, tokens: &Tokens) {
        let mut routing = self.dispatch(gpu, buffer);
        let completion = self.combine(gpu, &mut routing);
        drop(routing);
        let mut suspects = gpu.put(&vec![-1i32; buffer.ranks() as usize]);
        buffer.enqueue_suspects(gpu.view_mut(&mut suspects), gpu.stream()).unwrap();
        let outcome = completion.wait_blocking(PATIENT).unwrap();
        assert!(outcome.is_complete(), "{outcome:?}");
        assert!(gpu.get(&self.out) == tokens.x);
        assert_eq!(gpu.get(&suspects), vec![0; buffer.ranks() as usize]);
    }
}

fn on_ranks(gpus: u32, body: impl Fn(&Gpu, &PrefillBuffer, &Tokens) + Sync) {
    let mut config = config(gpus, RING);
    config.ep = config.ep.sideband_bytes(0).lanes(1);
    prefill_ranks(&config, gpus, true, |buffer| {
        let gpu = Gpu::new(buffer.config().ep.device);
        body(&gpu, buffer, &Tokens::identity(buffer.rank(), gpus));
    });
}

pub(crate) fn a_captured_prefill_replays_with_new_tokens(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let mut step = Step::new(gpu, gpus, tokens);
        gpu.stream.synchronize().unwrap();
        gpu.begin_capture();
        let mut routing = step.dispatch(gpu, buffer);
        let captured = step.combine(gpu, &mut routing);
        let graph = gpu.end_capture();
        assert!(matches!(captured.outcome(), Err(Error::State(_))), "a captured call has no outcome");

        let mut x = tokens.x.clone();
        for round in 1..4 {
            x.iter_mut().for_each(|x| *x = bf16::from_f32(-f32::from(*x)));
            gpu.stream.memcpy_htod(&x, &mut step.sent.x).unwrap();
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            graph.launch().unwrap();
            assert!(gpu.get(&step.out) == x, "round {round}");
        }
        let received = routing.received_blocking(LAYOUT, PATIENT).unwrap();
        assert!(received.counts.iter().sum::<u32>() > 0 && received.capacity <= step.capacity());
        assert!(!buffer.take_fault().unwrap());
        assert_eq!(buffer.take_errors().unwrap(), Errors::default());

        let (kept, mut ids) = (gpu.get(&step.sent.ids), gpu.get(&step.sent.ids));
        ids[TOPK - 1] = 1 << 20;
        gpu.stream.memcpy_htod(&ids, &mut step.sent.ids).unwrap();
        graph.launch().unwrap();
        gpu.stream.memcpy_htod(&kept, &mut step.sent.ids).unwrap();
        graph.launch().unwrap();
        gpu.stream.synchronize().unwrap();
        let errors = buffer.take_errors().unwrap();
        let causes: Vec<_> = errors.records.iter().map(|record| record.cause).collect();
        assert_eq!((causes, errors.lost), (vec![Cause::Routing], 0));
        assert!(buffer.take_fault().unwrap() && !buffer.take_fault().unwrap());
    });
}

pub(crate) fn a_captured_routing_may_be_dropped(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let mut step = Step::new(gpu, gpus, tokens);
        let mut others = Tokens::new(buffer.rank(), gpus, 9);
        others.weights.fill(0.25);
        let mut other = Step::new(gpu, gpus, &others);
        gpu.stream.synchronize().unwrap();
        gpu.begin_capture();
        let mut routing = step.dispatch(gpu, buffer);
        let dispatch = gpu.end_capture();
        gpu.begin_capture();
        let _ = step.combine(gpu, &mut routing);
        let combine = gpu.end_capture();
        drop(routing);
        for _ in 0..2 {
            dispatch.launch().unwrap();
            // Other routings do not use memory of the graphs, whose combines read what their dispatch has left there.
            for _ in 0..3 {
                let mut routing = other.dispatch(gpu, buffer);
                let ended = other.combine(gpu, &mut routing).wait_blocking(PATIENT).unwrap();
                assert!(ended.is_complete(), "{ended:?}");
            }
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            combine.launch().unwrap();
            assert!(gpu.get(&step.out) == tokens.x);
        }
    });
}

pub(crate) fn captures_into_one_routing_take_no_more_memory(gpus: u32) {
    let mut config = config(gpus, RING);
    config.ep = config.ep.sideband_bytes(0).lanes(1);
    config.ep.max_tokens = 65_536; // a routing of several MiB
    prefill_ranks(&config, gpus, true, |buffer| {
        let gpu = &Gpu::new(buffer.config().ep.device);
        let tokens = &Tokens::identity(buffer.rank(), gpus);
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let mut step = Step::new(gpu, gpus, tokens);
        let mut routing = Routing::new(buffer).unwrap();
        gpu.stream.synchronize().unwrap();
        let mut replay = || {
            gpu.begin_capture();
            let _ = step.dispatch_into(gpu, &mut routing);
            let _ = step.combine(gpu, &mut routing);
            let graph = gpu.end_capture();
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            graph.launch().unwrap();
            assert!(gpu.get(&step.out) == tokens.x);
        };
        let free = || gpu.context.mem_get_info().unwrap().0 as u64;
        replay();
        let before = free();
        (0..8).for_each(|_| replay());
        let (taken, bytes) = (before.saturating_sub(free()), buffer.plan().routing_bytes);
        assert!(taken < bytes, "8 captures have taken {taken} bytes; a routing has {bytes}");
    });
}

pub(crate) fn a_routing_is_made_ahead_and_filled_anew(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let mut step = Step::new(gpu, gpus, tokens);
        let mut routing = Routing::new(buffer).unwrap();
        refused(routing.received_blocking(LAYOUT, PATIENT), "has not been filled by a dispatch");
        assert!(step.dispatch_into(gpu, &mut routing).wait_blocking(PATIENT).unwrap().is_complete());
        step.assert_gives_back(gpu, &mut routing, tokens);

        gpu.stream.memset_zeros(&mut step.rows).unwrap();
        let sent = routing.enqueue_dispatch_send(step.sent.dispatch(gpu), gpu.stream()).unwrap();
        let output = Step::output(step.rows.len() / HIDDEN, &mut step.rows, gpu);
        let ended = sent.enqueue_receive(output, gpu.stream()).unwrap();
        assert!(ended.wait_blocking(PATIENT).unwrap().is_complete());
        step.assert_gives_back(gpu, &mut routing, tokens);

        gpu.stream.memset_zeros(&mut step.rows).unwrap();
        let counted = routing.enqueue_dispatch_count(step.sent.dispatch(gpu), gpu.stream()).unwrap();
        let capacity = counted.received_blocking(LAYOUT, PATIENT).unwrap().capacity;
        let output = Step::output(capacity, &mut step.rows, gpu);
        let ended = counted.enqueue_receive(output, gpu.stream()).unwrap();
        assert!(ended.wait_blocking(PATIENT).unwrap().is_complete());
        step.assert_gives_back(gpu, &mut routing, tokens);

        // All ranks give it up, so nobody waits for a deadline, and then fill the routing again.
        drop(routing.enqueue_dispatch_send(step.sent.dispatch(gpu), gpu.stream()).unwrap());
        let input = PrefillCombine::new(gpu.view(&step.rows, HIDDEN));
        let output = PrefillCombineOutput::new(gpu.view_mut(&mut step.out));
        refused(routing.enqueue_combine(input, output, gpu.stream()), "has not been filled by a dispatch");
        // Of a half that is forgotten no receiving half is enqueued, and the routing is of no use but to be dropped.
        std::mem::forget(routing.enqueue_dispatch_send(step.sent.dispatch(gpu), gpu.stream()).unwrap());
        let output = Step::output(step.rows.len() / HIDDEN, &mut step.rows, gpu);
        let ended = routing.enqueue_dispatch(step.sent.dispatch(gpu), output, gpu.stream());
        refused(ended, "has an operation under way");
        drop(routing);
        step.assert_exact(gpu, buffer, tokens);
    });
}

pub(crate) fn a_routing_dispatches_again_in_halves(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let mut step = Step::new(gpu, gpus, tokens);
        let mut routing = step.dispatch(gpu, buffer);
        let received = routing.received_blocking(LAYOUT, PATIENT).unwrap();
        for _ in 0..2 {
            gpu.stream.memset_zeros(&mut step.rows).unwrap();
            let sent = routing.enqueue_dispatch_again_send(step.sent.dispatch(gpu), gpu.stream()).unwrap();
            assert_eq!(sent.received_blocking(LAYOUT, PATIENT).unwrap(), received);
            let output = Step::output(step.rows.len() / HIDDEN, &mut step.rows, gpu);
            let ended = sent.enqueue_receive(output, gpu.stream()).unwrap();
            assert!(ended.wait_blocking(PATIENT).unwrap().is_complete());
            step.assert_gives_back(gpu, &mut routing, tokens);
        }
        // Given up by all ranks, it leaves the routing as it was, unless it has brought weights.
        let unweighted = Dispatch::new(gpu.view(&step.sent.x, HIDDEN), gpu.view(&step.sent.ids, TOPK));
        drop(routing.enqueue_dispatch_again_send(unweighted, gpu.stream()).unwrap());
        step.assert_gives_back(gpu, &mut routing, tokens);
        drop(routing.enqueue_dispatch_again_send(step.sent.dispatch(gpu), gpu.stream()).unwrap());
        let input = PrefillCombine::new(gpu.view(&step.rows, HIDDEN));
        let output = PrefillCombineOutput::new(gpu.view_mut(&mut step.out));
        refused(routing.enqueue_combine(input, output, gpu.stream()), "has not been filled by a dispatch");
    });
}

pub(crate) fn tokens_are_counted_as_on_the_host(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let (sent, ranks) = (OnGpu::new(gpu, tokens), gpus as usize);
        let mut rank_tokens = gpu.zeros::<i32>(ranks);
        let mut expert_tokens = gpu.zeros::<u32>(LOCAL_EXPERTS * ranks);
        let mut in_rank = gpu.zeros::<u8>(tokens.len() * ranks);
        let mut bad_ids = gpu.put(&[7u32]);
        let counts = PrefillCounts::new()
            .rank_tokens(gpu.view_mut(&mut rank_tokens))
            .expert_tokens(gpu.view_mut(&mut expert_tokens))
            .in_rank(gpu.view_mut(&mut in_rank))
            .bad_ids(gpu.view_mut(&mut bad_ids));
        buffer.enqueue_count(gpu.view(&sent.ids, TOPK), counts, gpu.stream()).unwrap();
        let (of_ranks, of_experts, goes) = buffer.count(TensorRef::new(&tokens.ids, TOPK)).unwrap();
        assert!(gpu.get(&rank_tokens).iter().zip(&of_ranks).all(|(gpu, host)| *gpu as u32 == *host));
        assert_eq!(gpu.get(&expert_tokens), of_experts);
        assert!(gpu.get(&in_rank).iter().zip(&goes).all(|(gpu, host)| *gpu == u8::from(*host)));
        assert_eq!(gpu.get(&bad_ids), [0]);

        let ids = || gpu.view(&sent.ids, TOPK);
        let mut short = gpu.zeros::<u8>(tokens.len() * ranks - 1);
        let counts = PrefillCounts::new().in_rank(gpu.view_mut(&mut short));
        refused(buffer.enqueue_count(ids(), counts, gpu.stream()), "in_rank has");
        let counts = PrefillCounts::new().rank_tokens(gpu.view_mut(&mut short));
        refused(buffer.enqueue_count(ids(), counts, gpu.stream()), "rank_tokens has");
        let x = gpu.view(&sent.x, HIDDEN);
        refused(buffer.enqueue_count(x, PrefillCounts::new(), gpu.stream()), "topk_idx is Bf16");
        let wide = gpu.view(&sent.ids, tokens.ids.len());
        refused(buffer.enqueue_count(wide, PrefillCounts::new(), gpu.stream()), "topk is");
    });
}

pub(crate) fn halves_of_prefill_may_be_dropped(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let mut step = Step::new(gpu, gpus, tokens);
        // All ranks give the same ones up, so nobody waits for a deadline.
        drop(buffer.enqueue_dispatch_count(step.sent.dispatch(gpu), gpu.stream()).unwrap());
        step.assert_exact(gpu, buffer, tokens);
        drop(buffer.enqueue_dispatch_send(step.sent.dispatch(gpu), gpu.stream()).unwrap());
        step.assert_exact(gpu, buffer, tokens);
        let mut routing = step.dispatch(gpu, buffer);
        let input = PrefillCombine::new(gpu.view(&step.rows, HIDDEN));
        drop(routing.enqueue_combine_send(input, gpu.stream()).unwrap());
        // The routing is as it was.
        let completion = step.combine(gpu, &mut routing);
        assert!(completion.wait_blocking(PATIENT).unwrap().is_complete());
        assert!(gpu.get(&step.out) == tokens.x);
    });
}

pub(crate) fn giving_a_half_up_records_no_reading(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let mut step = Step::new(gpu, gpus, tokens);
        let sent = buffer.enqueue_dispatch_send(step.sent.dispatch(gpu), gpu.stream()).unwrap();
        // Whatever is recorded on the stream now belongs to the graph, and no stream can wait for it any more.
        gpu.begin_capture();
        drop(sent);
        drop(gpu.end_capture());
        gpu.stream.wait(reading(gpu, &step.sent.x)).expect("the event is no longer that of the first half");
        step.assert_exact(gpu, buffer, tokens);
    });
}

#[track_caller]
fn refused<T: std::fmt::Debug>(ended: Result<T, impl Into<Error>>, text: &str) {
    let error: Error = ended.map_err(Into::into).expect_err(text);
    assert!(matches!(error, Error::Invalid(_) | Error::Limit(_) | Error::State(_)), "{error:?}");
    assert!(error.to_string().contains(text), "{error}, not {text}");
}

pub(crate) fn refused_calls_of_prefill_name_the_reason(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let (x, ids) = (vec![bf16::ZERO; HIDDEN], vec![-1i32; TOPK]);
        let on_host = || Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, TOPK));
        refused(buffer.dispatch_send_blocking(on_host()), "begins with `enqueue`");
        let mut step = Step::new(gpu, gpus, tokens);
        let small = Step::output(step.capacity() + 1, &mut step.rows, gpu);
        refused(buffer.enqueue_dispatch(step.sent.dispatch(gpu), small, gpu.stream()), "output.rows has");
        let mut counts = gpu.zeros::<u32>(LOCAL_EXPERTS);
        let by_source = PrefillOutput::new(LAYOUT, 0).source_offsets(gpu.view_mut(&mut counts));
        refused(buffer.enqueue_dispatch(step.sent.dispatch(gpu), by_source, gpu.stream()), "source_offsets");

        // The guards could not record when inputs are read on another stream.
        let other = gpu.context.new_stream().unwrap();
        let elsewhere = Gpu { stream: other, ..Gpu::new(buffer.config().ep.device) };
        let sent = buffer.enqueue_dispatch_send(step.sent.dispatch(gpu), gpu.stream()).unwrap();
        refused(sent.received_blocking(LAYOUT, PATIENT), "EPW_HALF_COUNTS");
        let capacity = step.rows.len() / HIDDEN;
        let output = Step::output(capacity, &mut step.rows, &elsewhere);
        let Refused { error, handle: sent } = *sent.enqueue_receive(output, elsewhere.stream()).unwrap_err();
        assert!(error.to_string().contains("viewed for its stream"), "{error}");
        let output = Step::output(capacity, &mut step.rows, gpu);
        let mut routing = sent.enqueue_receive(output, gpu.stream()).unwrap();

        let dispatched = routing.completion();
        let combined = step.combine(gpu, &mut routing);
        refused(dispatched.wait_blocking(PATIENT), "next operation");
        assert!(combined.wait_blocking(PATIENT).unwrap().is_complete());
        assert!(gpu.get(&step.out) == tokens.x);
    });
}

pub(crate) fn completions_of_prefill_are_futures(gpus: u32) {
    on_ranks(gpus, |gpu, buffer, tokens| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let mut step = Step::new(gpu, gpus, tokens);
        let is_last = buffer.rank() > 0 && buffer.rank() + 1 == gpus;
        if is_last {
            sleep(Duration::from_millis(300));
        }
        let mut routing = step.dispatch(gpu, buffer);
        let dispatched = routing.completion();
        if buffer.rank() == 0 && gpus > 1 {
            assert!(!dispatched.is_done().unwrap(), "the dispatch ended before the last rank began");
            let error = dispatched.wait_blocking(Duration::from_millis(20)).unwrap_err();
            assert!(matches!(error, Error::Timeout(_)), "{error}");
        }
        // Another task may wait, and another thread.
        let waits = runtime.spawn(async move { dispatched.wait(PATIENT).await });
        assert!(runtime.block_on(waits).unwrap().unwrap().is_complete());
        let received = runtime.block_on(routing.received(LAYOUT, PATIENT)).unwrap();
        assert_eq!(received.source_counts.len(), gpus as usize);
        let (former, other) = (routing.completion(), gpu.context.new_stream().unwrap());
        let combined = step.combine(gpu, &mut routing);
        assert!(matches!(former.wait_on((&other).into()), Err(Error::State(_))));
        combined.wait_on((&other).into()).unwrap();
        other.synchronize().unwrap();
        assert!(combined.is_done().unwrap(), "the other stream did not wait for the combine");
        assert!(runtime.block_on(combined.wait(PATIENT)).unwrap().is_complete());
        assert!(gpu.get(&step.out) == tokens.x);
    });
}
