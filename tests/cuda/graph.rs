//! A step captured once and replayed.

use epwire::cuda::{CombineOutput, Completion, DispatchOutput};
use epwire::cudarc::driver::CudaSlice;
use epwire::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use epwire::{Combine, EpBuffer, Error};
use half::bf16;

use crate::world::{Gpu, HIDDEN, LOCAL_EXPERTS, OnGpu, PATIENT, Tokens, config, ranks};

pub(crate) fn a_captured_step_replays_with_new_tokens(gpus: u32) {
    ranks(&config(gpus), gpus, true, |buffer| {
        let gpu = Gpu::of(buffer);
        // SAFETY: every slice of this context is used on one stream only.
        unsafe { gpu.context.disable_event_tracking() };
        let mut tokens = Tokens::new(buffer.rank(), gpus, 7);
        let mut step = Step::new(&gpu, buffer, &tokens);
        gpu.stream.synchronize().unwrap();

        gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        step.refuse_a_deadline(&gpu, buffer);
        let captured = step.enqueue(&gpu, buffer);
        let graph = gpu.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
        assert!(matches!(captured.is_done(), Err(Error::State(_))), "it belongs to no replay");

        for round in 1..4 {
            // Other tokens on the same routes: what comes back differs from the capture's.
            tokens.x.iter_mut().for_each(|x| *x = bf16::from_f32(-f32::from(*x)));
            gpu.stream.memcpy_htod(&tokens.x, &mut step.sent.x).unwrap();
            graph.launch().unwrap();
            let replayed = gpu.get(&step.out);
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            gpu.stream.synchronize().unwrap();
            step.enqueue(&gpu, buffer).wait_blocking(PATIENT).unwrap();
            let eager = gpu.get(&step.out);
            gpu.stream.memset_zeros(&mut step.out).unwrap();
            assert!(eager.iter().any(|x| f32::from(*x) != 0.0));
            assert!(replayed == eager, "round {round}: a replay differs from a call");
        }
        let errors = buffer.take_errors().unwrap();
        assert!(errors.records.is_empty() && errors.lost == 0, "{errors:?}");
    });
}

struct Step {
    sent: OnGpu,
    rows: CudaSlice<bf16>,
    counts: CudaSlice<u32>,
    out: CudaSlice<bf16>,
}

impl Step {
    fn new(gpu: &Gpu, buffer: &EpBuffer, tokens: &Tokens) -> Self {
        Self {
            sent: OnGpu::new(gpu, tokens),
            rows: gpu.zeros(LOCAL_EXPERTS * buffer.plan().rows * HIDDEN),
            counts: gpu.zeros(LOCAL_EXPERTS),
            out: gpu.zeros(tokens.x.len()),
        }
    }

    /// Experts return their input.
    fn enqueue(&mut self, gpu: &Gpu, buffer: &EpBuffer) -> Completion {
        let output = DispatchOutput::new(gpu.view_mut(&mut self.rows), gpu.view_mut(&mut self.counts));
        let dispatched =
            buffer.enqueue_dispatch(self.sent.dispatch(gpu).lane(0), output, gpu.stream()).unwrap();
        let input = Combine::new(gpu.view(&self.rows, HIDDEN));
        let output = CombineOutput::new(gpu.view_mut(&mut self.out));
        dispatched.enqueue_combine(input, output, gpu.stream()).unwrap()
    }

    fn refuse_a_deadline(&mut self, gpu: &Gpu, buffer: &EpBuffer) {
        let output = DispatchOutput::new(gpu.view_mut(&mut self.rows), gpu.view_mut(&mut self.counts));
        let input = self.sent.dispatch(gpu).lane(0).deadline(2 * PATIENT);
        let error = buffer.enqueue_dispatch(input, output, gpu.stream()).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("capture"), "{error}");
    }
}
