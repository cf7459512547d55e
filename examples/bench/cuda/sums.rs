//! Sums of the caller to which operations add, if `--with` asks for them.

use epwire::DType;
use epwire::cuda::{CombineOutput, DispatchOutput, PrefillCombineOutput, PrefillOutput, TensorMut};
use epwire::cudarc::driver::CudaSlice;

use super::gpu::Gpu;
use crate::Error;
use crate::args::{Args, With};

pub struct Sums<'g> {
    gpu: &'g Gpu,
    /// `[local_experts]`
    expert_totals: Option<CudaSlice<u8>>,
    /// `[ranks]`
    wait_ns: Option<CudaSlice<u8>>,
}

impl<'g> Sums<'g> {
    pub fn new(gpu: &'g Gpu, args: &Args, local_experts: u32, ranks: u32) -> Result<Self, Error> {
        let when = |with: With, count: u32| {
            args.with.contains(&with).then(|| gpu.zeroed(count as usize * 8)).transpose()
        };
        Ok(Self {
            gpu,
            expert_totals: when(With::ExpertTotals, local_experts)?,
            wait_ns: when(With::WaitNs, ranks)?,
        })
    }

    fn numbers<'a>(&self, memory: &'a CudaSlice<u8>) -> TensorMut<'a> {
        // SAFETY: all of an allocation, which lives as long as the subject; used in the order of one stream.
        unsafe { TensorMut::from_raw(self.gpu.address(memory), DType::U64, memory.len() / 8) }
    }

    pub fn of_dispatch<'a>(&'a self, mut output: DispatchOutput<'a>) -> DispatchOutput<'a> {
        output.expert_totals = self.expert_totals.as_ref().map(|memory| self.numbers(memory));
        output.wait_ns = self.wait_ns.as_ref().map(|memory| self.numbers(memory));
        output
    }

    pub fn of_combine<'a>(&'a self, mut output: CombineOutput<'a>) -> CombineOutput<'a> {
        output.wait_ns = self.wait_ns.as_ref().map(|memory| self.numbers(memory));
        output
    }

    pub fn of_prefill<'a>(&'a self, mut output: PrefillOutput<'a>) -> PrefillOutput<'a> {
        output.expert_totals = self.expert_totals.as_ref().map(|memory| self.numbers(memory));
        output.wait_ns = self.wait_ns.as_ref().map(|memory| self.numbers(memory));
        output
    }

    pub fn of_prefill_combine<'a>(
        &'a self,
        mut output: PrefillCombineOutput<'a>,
    ) -> PrefillCombineOutput<'a> {
        output.wait_ns = self.wait_ns.as_ref().map(|memory| self.numbers(memory));
        output
    }
}
