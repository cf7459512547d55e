//! Collectives of GPU memory: graphs of calls, whose time is divided by their number.

use std::process::ExitCode;

use epwire::comm::{Call, CommConfig, GpuBuffer, Reduction};
use epwire::cuda::{TensorMut, TensorRef};
use epwire::cudarc::driver::{CudaGraph, CudaSlice};
use epwire::{Comm, Device, Group};
use half::{bf16, f16};

use super::gpu::{Gpu, between, gather, meet};
use super::gpus;
use crate::args::Args;
use crate::collective::data::{Case, Small};
use crate::collective::{Collective, Figures, Row, Type, report};
use crate::samples::percentile;
use crate::wire::Reach;
use crate::{Error, ranks};

/// Calls of a graph.
const CALLS: usize = 20;

/// One rank's part, and on rank 0 the report of all.
pub fn measure(args: &Args, group: &Group, local_rank: u32) -> Result<ExitCode, Error> {
    let gpu = Gpu::of_rank(local_rank)?;
    let machine = gpus::describe(&gpu, group)?;
    let most = args.bytes.0.iter().copied().max().unwrap_or(0) as usize;
    let heap_bytes = if args.heap { 2 * (most as u64 + 64) } else { 0 };
    let config = CommConfig::default()
        .device(Device::Cuda(gpu.ordinal))
        .sms(args.chosen_sms())
        .heap_bytes(heap_bytes)
        .copy_engines_from(args.copy_engines.into());
    let comm = Comm::create_blocking(group, config)?;
    let memory = || {
        Ok::<_, Error>(if args.heap {
            Buffer::Peers(comm.alloc_gpu(most)?)
        } else {
            Buffer::Own(gpu.zeroed(most)?)
        })
    };
    let (send, recv) = (memory()?, memory()?);
    let subject = Subject { args, group, gpu: &gpu, comm: &comm, send, recv };
    let mut rows = Vec::new();
    for &bytes in &args.bytes.0 {
        for &collective in &args.collective {
            for &r#type in &args.types_of(collective, comm.ranks(), bytes) {
                rows.push(subject.row(collective, r#type, bytes)?);
            }
        }
    }
    let paths: Vec<_> = (0..comm.ranks()).map(|peer| comm.path(peer).to_string()).collect();
    let mut machine =
        format!("{machine}; rank 0 reaches them by {}; graphs of {CALLS} calls", paths.join(", "));
    let copied = comm.traffic()?.operations_copied;
    if copied > 0 {
        machine += &format!("; {copied} calls by copy engines");
    }
    report(args, group, &rows, &machine)
}

enum Buffer {
    /// Freed when the stream has run all its uses.
    Own(CudaSlice<u8>),
    /// Memory that peers read.
    Peers(GpuBuffer),
}

struct Subject<'a> {
    args: &'a Args,
    group: &'a Group,
    gpu: &'a Gpu,
    comm: &'a Comm,
    /// As many bytes as the largest size.
    send: Buffer,
    recv: Buffer,
}

impl Subject<'_> {
    fn addresses(&self) -> [u64; 2] {
        [&self.send, &self.recv].map(|buffer| match buffer {
            Buffer::Own(memory) => self.gpu.address(memory),
            Buffer::Peers(memory) => memory.address(),
        })
    }

    fn row(&self, collective: Collective, r#type: Type, bytes: u64) -> Result<Row, Error> {
        let run = match r#type {
            Type::I8 => Self::run::<i8>,
            Type::U8 => Self::run::<u8>,
            Type::I32 => Self::run::<i32>,
            Type::U32 => Self::run::<u32>,
            Type::I64 => Self::run::<i64>,
            Type::U64 => Self::run::<u64>,
            Type::F16 => Self::run::<f16>,
            Type::Bf16 => Self::run::<bf16>,
            Type::F32 => Self::run::<f32>,
            Type::F64 => Self::run::<f64>,
        };
        let run = |in_place| run(self, collective, in_place, bytes);
        let (bytes, out_of_place) = run(false)?;
        Ok(Row {
            collective,
            r#type,
            ranks: ranks::count(self.group),
            device: self.args.device,
            bytes,
            heap: self.args.heap,
            sms: self.args.chosen_sms(),
            copy_engines: self.args.copy_engines,
            reach: Reach::new(self.args, (0..self.comm.ranks()).map(|peer| self.comm.path(peer))),
            out_of_place,
            copy_us: None,
            in_place: collective.has_in_place().then(|| run(true)).transpose()?.map(|(_, figures)| figures),
        })
    }

    /// Those of the larger buffer, and the figures. All ranks call it.
    fn run<T: Small>(
        &self,
        collective: Collective,
        in_place: bool,
        bytes: u64,
    ) -> Result<(u64, Figures), Error> {
        let case = Case::new::<T>(collective, in_place, [self.comm.rank(), self.comm.ranks()], bytes);
        let bytes = case.bytes::<T>();
        // A call by itself before the measured iterations, and once more after them.
        let call = || self.call::<T>(&case);
        let mut wrong = self.check::<T>(&case, call)?;
        let graph = self.gpu.capture(|| (0..CALLS).try_for_each(|_| call()))?;
        let times = self.time(&graph)?;
        // And what has been timed. In place each call sums or moves what the one before has left: one call stands for all.
        let graph = if in_place { self.gpu.capture(call)? } else { graph };
        wrong += self.check::<T>(&case, || Ok(graph.launch()?))?;
        wrong += self.check::<T>(&case, call)?;
        if self.comm.take_fault()? {
            let lost = self.comm.membership()?.suspects;
            return Err(format!("a call was incomplete: {lost:?} are given up").into());
        }
        let all = gather(self.group, &times)?;
        let wrong = gather(self.group, &[wrong as f64])?.iter().flatten().sum::<f64>() as u64;
        // Those of the slowest rank.
        let slowest = |percent| all.iter().map(|times| percentile(times, percent)).fold(0.0, f64::max) / 1e3;
        Ok((bytes, Figures::new(collective, self.comm.ranks(), bytes, [50, 99].map(slowest), wrong)))
    }

    /// Elements that what `enqueue` enqueues leaves wrong, of buffers that are filled before.
    fn check<T: Small>(
        &self,
        case: &Case,
        enqueue: impl FnOnce() -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (sends, receives) = case.lengths();
        let (mut send, mut recv) = (vec![T::small(0); sends], vec![T::small(0); receives]);
        let [send_at, recv_at] = self.addresses();
        case.fill(&mut send, &mut recv);
        // SAFETY: both have at least the case's bytes, and elements are plain numbers.
        unsafe {
            self.gpu.upload(send_at, &send)?;
            self.gpu.upload(recv_at, &recv)?;
        }
        self.gpu.finish()?;
        meet(self.group)?;
        enqueue()?;
        // SAFETY: as above.
        unsafe {
            self.gpu.download(&mut send, send_at)?;
            self.gpu.download(&mut recv, recv_at)?;
        }
        Ok(case.wrong(&send, &recv))
    }

    /// Nanoseconds of a call of the graph, in each replay. The one that counts follows one that does not, enqueued together with it: by then the
    /// ranks are in step, and the launch waits for nobody.
    fn time(&self, graph: &CudaGraph) -> Result<Vec<f64>, Error> {
        let gpu = self.gpu;
        let [begin, end] = [gpu.event()?, gpu.event()?];
        let mut times = Vec::new();
        for i in 0..self.args.warmup + self.args.iterations {
            meet(self.group)?;
            graph.launch()?;
            begin.record(&gpu.stream)?;
            graph.launch()?;
            end.record(&gpu.stream)?;
            gpu.finish()?;
            if i >= self.args.warmup {
                times.push(between(&begin, &end)? / CALLS as f64);
            }
        }
        Ok(times)
    }

    fn call<T: Small>(&self, case: &Case) -> Result<(), Error> {
        let (sends, receives) = case.lengths();
        let [send_at, recv_at] = self.addresses();
        // SAFETY: both have at least the case's bytes, are used by calls on one stream only, and outlive graphs.
        let send = || unsafe { TensorRef::from_raw(send_at, T::DTYPE, 1, sends, sends * size_of::<T>()) };
        // SAFETY: as above.
        let [of_send, recv] = [(send_at, sends), (recv_at, receives)]
            .map(|(at, len)| unsafe { TensorMut::from_raw(at, T::DTYPE, len) });
        let (comm, stream, sum) = (self.comm, self.gpu.capturing(), Reduction::Sum);
        let enqueued = match (case.collective, case.in_place) {
            (Collective::AllReduce, false) => comm.enqueue(Call::all_reduce(send(), recv, sum), stream),
            (Collective::AllReduce, true) => comm.enqueue(Call::all_reduce_in_place(recv, sum), stream),
            (Collective::Reduce, false) => comm.enqueue(Call::reduce(send(), recv, sum, 0), stream),
            (Collective::Reduce, true) => comm.enqueue(Call::reduce_in_place(recv, sum, 0), stream),
            (Collective::ReduceScatter, false) => {
                comm.enqueue(Call::reduce_scatter(send(), recv, sum), stream)
            }
            (Collective::ReduceScatter, true) => {
                comm.enqueue(Call::reduce_scatter_in_place(case.one(of_send, recv), sum), stream)
            }
            (Collective::AllGather, false) => comm.enqueue(Call::all_gather(send(), recv), stream),
            (Collective::AllGather, true) => comm.enqueue(Call::all_gather_in_place(recv), stream),
            (Collective::AllToAll, false) => comm.enqueue(Call::all_to_all(send(), recv), stream),
            (Collective::AllToAll, true) => comm.enqueue(Call::all_to_all_in_place(recv), stream),
            (Collective::Broadcast, false) => comm.enqueue(Call::broadcast_from(send(), recv, 0), stream),
            (Collective::Broadcast, true) => comm.enqueue(Call::broadcast(recv, 0), stream),
            (Collective::Gather, false) => comm.enqueue(Call::gather(send(), recv, 0), stream),
            (Collective::Gather, true) => {
                comm.enqueue(Call::gather_in_place(case.one(of_send, recv), 0), stream)
            }
            (Collective::Scatter, false) => comm.enqueue(Call::scatter(send(), recv, 0), stream),
            (Collective::Scatter, true) => {
                comm.enqueue(Call::scatter_in_place(case.one(of_send, recv), 0), stream)
            }
            (Collective::SendRecv, _) => {
                let [to, from] = case.neighbours();
                comm.enqueue((Call::send(send(), to, 0), Call::recv(recv, from, 0)), stream)
            }
            (Collective::Barrier, _) => comm.enqueue(Call::barrier(), stream),
        };
        Ok(enqueued?)
    }
}
