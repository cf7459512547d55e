//! Collectives of host memory, by blocking calls.

use std::process::ExitCode;

use epwire::comm::{Call, CommConfig, Reduction};
use epwire::{Comm, Group, Outcome};
use half::{bf16, f16};

use super::data::{Case, Small};
use super::{Collective, Figures, Row, Type, report};
use crate::args::Args;
use crate::floor::{Floor, Traffic};
use crate::samples::{Meeting, OWN_TIMES, Samples, across_hosts, complete, now};
use crate::wire::Reach;
use crate::{Error, ranks};

/// One rank's part, and on rank 0 the report of all.
pub fn measure(args: &Args, group: &Group, _local_rank: u32) -> Result<ExitCode, Error> {
    let meeting = Meeting::new(group)?;
    let mut rows = Vec::new();
    for &bytes in &args.bytes.0 {
        // Room for the two buffers of the widest element, each with a line to spare.
        let heap_bytes = if args.heap { 2 * (bytes + 128) } else { 0 };
        let comm = Comm::create_blocking(group, CommConfig::default().heap_bytes(heap_bytes))?;
        let subject = Subject { bytes, args, group, meeting: &meeting, comm: &comm };
        for &collective in &args.collective {
            for &r#type in &args.types_of(collective, comm.ranks(), bytes) {
                rows.extend(subject.row(collective, r#type)?);
            }
        }
    }
    report(args, group, &rows, if across_hosts(group) { OWN_TIMES } else { "" })
}

/// A copy of all that ranks receive out of place, from memory of the same extent; `None` if the collective computes, or
/// moves nothing.
fn copied(collective: Collective, ranks: u64, bytes: u64) -> Option<Traffic> {
    let (received, extent) = match collective {
        Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter | Collective::Barrier => {
            return None;
        }
        Collective::AllGather | Collective::Broadcast => (ranks * bytes, (ranks + 1) * bytes),
        Collective::AllToAll | Collective::SendRecv => (ranks * bytes, 2 * ranks * bytes),
        Collective::Gather | Collective::Scatter => (bytes, 2 * bytes),
    };
    (received > 0).then_some(Traffic { read: received, written: received, extent })
}

struct Subject<'a> {
    bytes: u64,
    args: &'a Args,
    group: &'a Group,
    meeting: &'a Meeting,
    comm: &'a Comm,
}

impl Subject<'_> {
    fn row(&self, collective: Collective, r#type: Type) -> Result<Option<Row>, Error> {
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
        let (bytes, out_of_place) = run(self, collective, false)?;
        let in_place = if collective.has_in_place() { run(self, collective, true)?.1 } else { None };
        let copy = match copied(collective, u64::from(self.comm.ranks()), bytes) {
            Some(traffic) => Some(Floor::measure(self.group, self.meeting, &traffic, self.args.threads)?.us),
            None => None,
        };
        Ok(out_of_place.map(|out_of_place| Row {
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
            copy_us: copy,
            in_place,
        }))
    }

    /// All ranks call it; the first one returns the figures, all of them the bytes.
    fn run<T: Small>(&self, collective: Collective, in_place: bool) -> Result<(u64, Option<Figures>), Error> {
        let place = [self.comm.rank(), self.comm.ranks()];
        let case = Case::new::<T>(collective, in_place, place, self.bytes);
        let (send, recv) = case.lengths();
        let figures = if self.args.heap {
            let (mut send, mut recv) = (self.comm.alloc::<T>(send)?, self.comm.alloc::<T>(recv)?);
            self.iterate(&case, &mut send, &mut recv)?
        } else {
            let (mut send, mut recv) = (vec![T::small(0); send], vec![T::small(0); recv]);
            self.iterate(&case, &mut send, &mut recv)?
        };
        Ok((case.bytes::<T>(), figures))
    }

    fn iterate<T: Small>(
        &self,
        case: &Case,
        send: &mut [T],
        recv: &mut [T],
    ) -> Result<Option<Figures>, Error> {
        let mut samples = Samples::default();
        self.meeting.settle()?;
        for i in 0..self.args.warmup + self.args.iterations {
            // Results are checked once before the measured iterations, and once after them.
            let checked = i == 0 || i + 1 == self.args.warmup + self.args.iterations;
            if checked {
                case.fill(send, recv);
            }
            self.meeting.meet()?;
            let begin = now();
            let outcome = self.call(case, send, recv)?;
            let end = now();
            complete(&outcome)?;
            if i >= self.args.warmup {
                samples.moments.push([begin, end]);
            }
            if checked {
                self.meeting.meet()?;
                samples.wrong += case.wrong(send, recv);
            }
        }
        let figures = samples.figures(self.group)?;
        Ok(figures.map(|seen| {
            let times = [seen.p50_us, seen.p99_us];
            Figures::new(case.collective, case.ranks, case.bytes::<T>(), times, seen.wrong)
        }))
    }

    fn call<T: Small>(&self, case: &Case, send: &mut [T], recv: &mut [T]) -> epwire::Result<Outcome> {
        let comm = self.comm;
        match (case.collective, case.in_place) {
            (Collective::AllReduce, false) => comm.all_reduce_blocking(send, recv, Reduction::Sum),
            (Collective::AllReduce, true) => comm.all_reduce_in_place_blocking(recv, Reduction::Sum),
            (Collective::Reduce, false) => comm.reduce_blocking(send, recv, Reduction::Sum, 0),
            (Collective::Reduce, true) => comm.reduce_in_place_blocking(recv, Reduction::Sum, 0),
            (Collective::ReduceScatter, false) => comm.reduce_scatter_blocking(send, recv, Reduction::Sum),
            (Collective::ReduceScatter, true) => {
                comm.reduce_scatter_in_place_blocking(case.one(send, recv), Reduction::Sum)
            }
            (Collective::AllGather, false) => comm.all_gather_blocking(send, recv),
            (Collective::AllGather, true) => comm.all_gather_in_place_blocking(recv),
            (Collective::AllToAll, false) => comm.all_to_all_blocking(send, recv),
            (Collective::AllToAll, true) => comm.all_to_all_in_place_blocking(recv),
            (Collective::Broadcast, false) => comm.broadcast_from_blocking(send, recv, 0),
            (Collective::Broadcast, true) => comm.broadcast_blocking(recv, 0),
            (Collective::Gather, false) => comm.gather_blocking(send, recv, 0),
            (Collective::Gather, true) => comm.gather_in_place_blocking(case.one(send, recv), 0),
            (Collective::Scatter, false) => comm.scatter_blocking(send, recv, 0),
            (Collective::Scatter, true) => comm.scatter_in_place_blocking(case.one(send, recv), 0),
            (Collective::SendRecv, _) => {
                let [to, from] = case.neighbours();
                comm.run_blocking((Call::send(&*send, to, 0), Call::recv(recv, from, 0)))
            }
            (Collective::Barrier, _) => comm.barrier_blocking(),
        }
    }
}
