//! Handles, completions, errors, and refused calls.

use std::time::Duration;

use epwire::cuda::{Completion, StreamRef, TensorRef as GpuRef};
use epwire::cudarc::driver::{CudaContext, CudaEvent, CudaSlice, DevicePtr, SyncOnDrop};
use epwire::{Cause, Dispatch, EpBuffer, Error, TensorRef};
use half::bf16;

use crate::world::{Gpu, HIDDEN, OnGpu, PATIENT, Received, Step, TOPK, Tokens, config, ranks};

/// How long a rank makes the others wait.
const LATE: Duration = Duration::from_millis(300);

/// A whole step on any lane, and what came back.
fn step(gpu: &Gpu, buffer: &EpBuffer, tokens: &Tokens) -> (Completion, CudaSlice<bf16>) {
    let mut step = Step::new(gpu, buffer, tokens);
    let completion = step.enqueue(gpu, buffer, None);
    (completion, step.out)
}

fn assert_exact(gpu: &Gpu, step: &(Completion, CudaSlice<bf16>), tokens: &Tokens) {
    step.0.wait_blocking(PATIENT).unwrap();
    assert!(step.0.is_done().unwrap());
    assert!(step.0.outcome().unwrap().unwrap().is_complete());
    assert!(gpu.get(&step.1) == tokens.x);
}

pub(crate) fn a_dropped_handle_gives_its_lane_back(gpus: u32) {
    let config = config(gpus).lanes(1);
    ranks(&config, gpus, true, |buffer| {
        let (gpu, tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        let (sent, mut received) = (OnGpu::new(&gpu, &tokens), Received::new(&gpu, buffer));
        let held = buffer.enqueue_dispatch(sent.dispatch(&gpu), received.output(&gpu), gpu.stream()).unwrap();
        let mut other = Received::new(&gpu, buffer);
        let error =
            buffer.enqueue_dispatch(sent.dispatch(&gpu), other.output(&gpu), gpu.stream()).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{error}");
        drop(held);
        let sending = buffer.enqueue_dispatch_send(sent.dispatch(&gpu), gpu.stream()).unwrap();
        sending.release_on(gpu.stream()).unwrap().wait_blocking(PATIENT).unwrap();
        assert_exact(&gpu, &step(&gpu, buffer, &tokens), &tokens);
    });
}

pub(crate) fn a_bad_routing_id_is_recorded_and_not_followed(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let (gpu, mut tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        let beyond = i64::from(buffer.config().experts) + 5;
        tokens.ids[TOPK + 2] = beyond as i32; // token 1, which has two valid ids
        assert_exact(&gpu, &step(&gpu, buffer, &tokens), &tokens);
        let errors = buffer.take_errors().unwrap();
        assert_eq!((errors.records.len(), errors.lost), (1, 0), "{errors:?}");
        let record = &errors.records[0];
        assert_eq!((record.cause, record.routing()), (Cause::Routing, Some((1, 2, beyond))));
        assert!(record.to_string().contains("token 1, column 2"), "{record}");
        assert!(buffer.take_errors().unwrap().records.is_empty(), "the errors were returned twice");
    });
}

/// A step on the first rank, which waits for the last one (a single rank waits for nobody).
fn awaited_step(gpu: &Gpu, buffer: &EpBuffer, tokens: &Tokens) -> (Completion, CudaSlice<bf16>) {
    let mut step = Step::new(gpu, buffer, tokens);
    if buffer.rank() > 0 && buffer.rank() + 1 == buffer.ranks() {
        std::thread::sleep(LATE);
    }
    let completion = step.enqueue(gpu, buffer, None);
    assert!(buffer.rank() > 0 || buffer.ranks() == 1 || !completion.is_done().unwrap());
    (completion, step.out)
}

pub(crate) fn a_stream_waits_for_a_completion(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let (gpu, tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        let other = gpu.context.new_stream().unwrap();
        let step = awaited_step(&gpu, buffer, &tokens);
        step.0.wait_on((&other).into()).unwrap();
        step.0.wait_on(StreamRef::per_thread()).unwrap();
        other.synchronize().unwrap();
        assert!(step.0.is_done().unwrap(), "the other stream did not wait for the step");
        assert_exact(&gpu, &step, &tokens);
    });
}

pub(crate) fn a_completion_is_a_future(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let (gpu, tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // Meanwhile the only thread of the executor can run other tasks.
        let late = awaited_step(&gpu, buffer, &tokens);
        let mut ticks = 0;
        runtime.block_on(async {
            let mut clock = tokio::time::interval(LATE / 100);
            let mut done = std::pin::pin!(late.0.wait(PATIENT));
            loop {
                tokio::select! {
                    ended = &mut done => return ended.unwrap(),
                    _ = clock.tick() => ticks += 1,
                }
            }
        });
        assert!(buffer.rank() > 0 || buffer.ranks() == 1 || ticks > 10, "{ticks} ticks");
        assert_exact(&gpu, &late, &tokens);
        for _ in 0..4 {
            let step = step(&gpu, buffer, &tokens);
            runtime.block_on(step.0.wait(PATIENT)).unwrap();
            assert_exact(&gpu, &step, &tokens);
        }
        // The lane is used again: its earlier results can no longer be asked for.
        let old = step(&gpu, buffer, &tokens).0;
        let new = [(); 2].map(|()| step(&gpu, buffer, &tokens));
        assert!(matches!(runtime.block_on(old.wait(PATIENT)), Err(Error::State(_))));
        new.iter().for_each(|step| assert_exact(&gpu, step, &tokens));
    });
}

pub(crate) fn calls_of_host_buffers_are_refused(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let (x, ids) = (vec![bf16::ZERO; HIDDEN], vec![-1i32; TOPK]);
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, TOPK));
        let error = buffer.dispatch_send_blocking(input).unwrap_err();
        assert!(matches!(&error, Error::State(f) if f.text.contains("enqueue_dispatch")), "{error}");
    });
}

pub(crate) fn a_view_is_good_for_its_stream_only(gpus: u32) {
    let config = config(gpus).lanes(1);
    ranks(&config, gpus, true, |buffer| {
        let (gpu, tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        let (sent, other) = (OnGpu::new(&gpu, &tokens), gpu.context.new_stream().unwrap());
        let error = buffer.enqueue_dispatch_send(sent.dispatch(&gpu), (&other).into()).unwrap_err();
        assert!(matches!(&error, Error::Invalid(f) if f.text.starts_with("x was viewed")), "{error}");
        // For cudarc this is another context. Never dropped: that would destroy the GPU's.
        // SAFETY: it is a context of this GPU.
        let apart = unsafe {
            let Gpu { context, .. } = &gpu;
            CudaContext::from_raw_context(context.ordinal(), context.cu_device(), context.cu_ctx()).unwrap()
        };
        std::mem::forget(apart.clone());
        let (stream, default) = (apart.new_stream().unwrap(), apart.default_stream());
        let error = buffer.enqueue_dispatch_send(sent.dispatch(&gpu), (&stream).into()).unwrap_err();
        assert!(matches!(&error, Error::Invalid(f) if f.text.contains("not the primary one")), "{error}");
        // Its default stream has the address of the legacy one.
        let memory = stream.clone_htod(&tokens.x).unwrap();
        let x = GpuRef::from_slice(&memory, HIDDEN, &default);
        let input = Dispatch::new(x, gpu.view(&sent.ids, TOPK));
        let error = buffer.enqueue_dispatch_send(input, StreamRef::legacy()).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(f) if f.text.contains("does not order x with this stream")),
            "{error}"
        );
        // A refused call holds no lane. On another stream the lane's next step waits for the previous one.
        let first = step(&gpu, buffer, &tokens).1;
        let elsewhere = Gpu { stream: other, ..Gpu::of(buffer) };
        assert_exact(&elsewhere, &step(&elsewhere, buffer, &tokens), &tokens);
        assert!(gpu.get(&first) == tokens.x);
    });
}

pub(crate) fn a_stream_that_is_only_wrapped_takes_its_own_slices(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let gpu = Gpu::of(buffer);
        let context = CudaContext::new(gpu.context.ordinal()).unwrap(); // cudarc has made no stream in this one
        // SAFETY: it is a stream of the same GPU, lives longer, and has nothing else to do.
        let wrapped = unsafe { context.wrap_borrowed_stream(gpu.stream.cu_stream()) };
        let mut suspects = context.default_stream().alloc_zeros::<i32>(gpus as usize).unwrap();
        let view = epwire::cuda::TensorMut::from_slice(&mut suspects, &wrapped);
        let error = buffer.enqueue_suspects(view, (&wrapped).into()).unwrap_err();
        assert!(matches!(&error, Error::Invalid(f) if f.text.contains("does not order")), "{error}");
        let mut suspects = wrapped.alloc_zeros::<i32>(gpus as usize).unwrap();
        let view = epwire::cuda::TensorMut::from_slice(&mut suspects, &wrapped);
        buffer.enqueue_suspects(view, (&wrapped).into()).unwrap();
        gpu.stream.synchronize().unwrap();
    });
}

pub(crate) fn a_slice_may_be_dropped_after_the_call(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let (gpu, tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        for _ in 0..50 {
            // Everything but the result is dropped while kernels use it, and its memory is allocated again.
            let step = step(&gpu, buffer, &tokens);
            let noise = gpu.put(&vec![bf16::NAN; tokens.x.len()]);
            drop(noise);
            assert_exact(&gpu, &step, &tokens);
        }
    });
}

pub(crate) fn a_call_does_not_hide_an_earlier_reader(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let (gpu, tokens) = (Gpu::of(buffer), Tokens::identity(buffer.rank(), gpus));
        let [slow, quick] = [(); 2].map(|()| gpu.context.new_stream().unwrap());
        let elsewhere = Gpu { stream: quick, context: gpu.context.clone() };
        let (sent, mut copy) = (OnGpu::new(&gpu, &tokens), gpu.zeros::<bf16>(tokens.x.len()));
        gpu.stream.synchronize().unwrap();
        // One stream reads the tokens behind a step that waits for the last rank, then a call on another one reads them.
        let mut step = Step::new(&gpu, buffer, &tokens);
        if buffer.rank() > 0 && buffer.rank() + 1 == buffer.ranks() {
            std::thread::sleep(LATE);
        }
        let late = step.enqueue(&gpu, buffer, Some(0));
        slow.join(&gpu.stream).unwrap();
        slow.memcpy_dtod(&sent.x, &mut copy).unwrap();
        let sending =
            buffer.enqueue_dispatch_send(sent.dispatch(&elsewhere).lane(1), elsewhere.stream()).unwrap();
        sending.completion().wait_blocking(PATIENT).unwrap();
        let has_been_read = reading(&elsewhere, &sent.x).try_is_complete().unwrap();
        assert!(late.is_done().unwrap() || !has_been_read, "the slice could be freed while it is copied");
        drop(sending);
        slow.synchronize().unwrap();
        assert!(gpu.get(&copy) == tokens.x);
    });
}

/// What says to cudarc when all reading of a slice has ended.
pub(crate) fn reading<'a, T>(gpu: &'a Gpu, slice: &'a CudaSlice<T>) -> &'a CudaEvent {
    let (_, mut guard) = slice.device_ptr(&gpu.stream);
    let SyncOnDrop::Record(target) = &mut guard else { panic!("a slice without events") };
    target.take().expect("a slice without events").0 // taken: nothing is recorded now
}

pub(crate) fn a_buffer_keeps_a_stream_of_its_calls(gpus: u32) {
    let contexts = ranks(&config(gpus), gpus, true, |buffer| {
        let Gpu { context, stream } = Gpu::of(buffer);
        let mut suspects = context.default_stream().alloc_zeros::<i32>(gpus as usize).unwrap();
        for _ in 0..2 {
            let view = epwire::cuda::TensorMut::from_slice(&mut suspects, &stream);
            buffer.enqueue_suspects(view, (&stream).into()).unwrap();
        }
        drop(stream);
        assert!(context.is_managing_stream_synchronization(), "cudarc orders nothing any more");
        context
    });
    assert!(contexts.iter().all(|context| !context.is_in_multi_stream_mode()), "a stream has leaked");
}
