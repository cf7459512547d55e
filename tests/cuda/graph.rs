//! A step captured once and replayed.

use epwire::cuda::StreamRef;
use epwire::cudarc::driver::CudaContext;
use epwire::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use epwire::{EpBuffer, Error};
use half::bf16;

use crate::world::{Gpu, OnGpu, PATIENT, Step, Tokens, config, ranks};

pub(crate) fn a_captured_step_replays_with_new_tokens(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let gpu = Gpu::of(buffer);
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let mut tokens = Tokens::new(buffer.rank(), gpus, 7);
        let mut step = Step::new(&gpu, buffer, &tokens);
        gpu.stream.synchronize().unwrap();

        gpu.begin_capture();
        refuse_a_deadline(&mut step, &gpu, buffer);
        let captured = step.enqueue(&gpu, buffer, Some(0));
        let graph = gpu.end_capture();
        assert!(matches!(captured.is_done(), Err(Error::State(_))), "a captured call has no completion");

        for round in 1..4 {
            // Other tokens with the same routes: the result differs from the capture's.
            tokens.x.iter_mut().for_each(|x| *x = bf16::from_f32(-f32::from(*x)));
            gpu.stream.memcpy_htod(&tokens.x, &mut step.sent.x).unwrap();
            graph.launch().unwrap();
            let replayed = gpu.get(&step.out);
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            gpu.stream.synchronize().unwrap();
            step.enqueue(&gpu, buffer, Some(0)).wait_blocking(PATIENT).unwrap();
            let eager = gpu.get(&step.out);
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            assert!(eager.iter().any(|x| f32::from(*x) != 0.0));
            assert!(replayed == eager, "round {round}: a replay differs from a call");
        }
        let errors = buffer.take_errors().unwrap();
        assert!(errors.records.is_empty() && errors.lost == 0, "{errors:?}");
    });
}

pub(crate) fn a_stream_joins_a_capture_and_a_graph_waits_for_calls(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let gpu = Gpu::of(buffer);
        // SAFETY: this test orders the streams of this context itself.
        unsafe { gpu.context.disable_event_tracking() };
        let tokens = Tokens::identity(buffer.rank(), gpus);
        let mut step = Step::new(&gpu, buffer, &tokens);
        let other = gpu.context.new_stream().unwrap();
        let mut copied = gpu.zeros::<bf16>(tokens.x.len());
        gpu.stream.synchronize().unwrap();

        gpu.begin_capture();
        let captured = step.enqueue(&gpu, buffer, Some(0));
        captured.wait_on((&other).into()).unwrap();
        other.memcpy_dtod(&step.out, &mut copied).unwrap();
        gpu.stream.join(&other).unwrap();
        let graph = gpu.end_capture();
        let error = captured.wait_on((&other).into()).unwrap_err();
        assert!(matches!(&error, Error::State(f) if f.text.contains("capture has ended")), "{error}");
        for _ in 0..3 {
            gpu.stream.memset_zeros(&mut copied).unwrap();
            graph.launch().unwrap();
            assert!(gpu.get(&copied) == tokens.x, "the copy began too early");
        }
        step.enqueue(&gpu, buffer, Some(0)).wait_blocking(PATIENT).unwrap();

        let called = step.enqueue(&gpu, buffer, Some(0));
        other.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let error = called.wait_on((&other).into()).unwrap_err();
        assert!(matches!(&error, Error::State(f) if f.text.contains("StreamRef::capturing")), "{error}");
        // SAFETY: the graph is dropped before the buffer.
        called.wait_on(unsafe { StreamRef::capturing(&other) }).unwrap();
        other.memcpy_dtod(&step.out, &mut copied).unwrap();
        let graph = other.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        for _ in 0..3 {
            gpu.stream.memset_zeros(&mut copied).unwrap();
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            let _ = step.enqueue(&gpu, buffer, Some(0));
            graph.launch().unwrap();
            other.synchronize().unwrap();
            assert!(gpu.get(&copied) == tokens.x, "the graph did not wait for the step");
        }
    });
}

pub(crate) fn a_capture_gets_no_release_by_safe_code(gpus: u32) {
    ranks(&config(gpus).lanes(1), gpus, true, |buffer| {
        let gpu = Gpu::of(buffer);
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let tokens = Tokens::identity(buffer.rank(), gpus);
        let mut step = Step::new(&gpu, buffer, &tokens);
        gpu.stream.synchronize().unwrap();
        let sent = buffer.enqueue_dispatch_send(step.sent.dispatch(&gpu), (&gpu.stream).into()).unwrap();
        gpu.begin_capture();
        let refused = sent.release_on((&gpu.stream).into()).unwrap_err();
        assert!(matches!(&refused.error, Error::State(_)), "{refused}");
        drop(refused); // and with it the handle
        drop(gpu.end_capture());
        step.enqueue(&gpu, buffer, None).wait_blocking(PATIENT).unwrap();
        assert!(gpu.get(&step.out) == tokens.x, "the release is only in the graph");
        let errors = buffer.take_errors().unwrap();
        assert!(errors.records.is_empty() && errors.lost == 0, "{errors:?}");
    });
}

/// On the first rank, whose thread has another GPU current meanwhile.
pub(crate) fn whether_a_stream_is_captured_is_asked_on_its_gpu(gpus: u32) {
    ranks(&config(gpus).lanes(1), gpus, true, |buffer| {
        let gpu = Gpu::of(buffer);
        let elsewhere = CudaContext::new(((buffer.rank() + 1) % gpus) as usize).unwrap();
        let own = Gpu { context: gpu.context.clone(), stream: gpu.context.per_thread_stream() };
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let tokens = Tokens::identity(buffer.rank(), gpus);
        let (sent, mut step) = (OnGpu::new(&own, &tokens), Step::new(&gpu, buffer, &tokens));
        own.stream.synchronize().unwrap();
        gpu.stream.synchronize().unwrap();
        let sent = buffer.enqueue_dispatch_send(sent.dispatch(&own), (&own.stream).into()).unwrap();
        if buffer.rank() == 0 {
            own.begin_capture();
        }
        elsewhere.bind_to_thread().unwrap();
        let released = sent.release_on(StreamRef::per_thread());
        if let Err(refused) = released {
            let text = refused.error.to_string();
            assert!(
                matches!(&refused.error, Error::State(_)) && text.contains("StreamRef::capturing"),
                "{text}"
            );
            assert_eq!(buffer.rank(), 0, "{text}");
            drop(refused); // and with it the handle, which no stream can release now
            drop(own.end_capture());
        } else {
            assert_ne!(buffer.rank(), 0, "the release was captured");
        }
        step.enqueue(&gpu, buffer, None).wait_blocking(PATIENT).unwrap();
        assert!(gpu.get(&step.out) == tokens.x, "the next dispatch did not release the handle first");
        let errors = buffer.take_errors().unwrap();
        assert!(errors.records.is_empty() && errors.lost == 0, "{errors:?}");
    });
}

/// Replays use the buffer's deadline.
fn refuse_a_deadline(step: &mut Step, gpu: &Gpu, buffer: &EpBuffer) {
    let output = step.received.output(gpu);
    let input = step.sent.dispatch(gpu).lane(0).deadline(2 * PATIENT);
    let error = buffer.enqueue_dispatch(input, output, gpu.stream()).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("capture"), "{error}");
}
