//! Calls of communicators: inserted into the exchanges of a case, begun and ended between and beside the operations of
//! its buffer, and each compared bit by bit with its expected result.

use std::pin::Pin;

use epwire::comm::{Blocks, Call as Op, Calls, CommConfig, Reduction, Work};
use epwire::{Comm, Mask, Outcome};
use half::{bf16, f16};

use crate::case::{DEADLINE, Turn};
use crate::folds::Drawn;
use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Barrier,
    Broadcast,
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    AllGatherBlocks,
    AllToAll,
    AllToAllBlocks,
    Gather,
    Scatter,
    /// Each member sends to the next one.
    Ring,
}

pub(crate) const KINDS: [Kind; 12] = [
    Kind::Barrier,
    Kind::Broadcast,
    Kind::AllReduce,
    Kind::Reduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::AllGatherBlocks,
    Kind::AllToAll,
    Kind::AllToAllBlocks,
    Kind::Gather,
    Kind::Scatter,
    Kind::Ring,
];

#[derive(Debug, Clone, Copy)]
enum Of {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

const TYPES: [Of; 10] =
    [Of::I8, Of::U8, Of::I32, Of::U32, Of::I64, Of::U64, Of::F16, Of::Bf16, Of::F32, Of::F64];

const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Product, Reduction::Min, Reduction::Max, Reduction::Average];

/// One call, the same on all members.
#[derive(Debug)]
pub(crate) struct Call {
    /// The communicator's number.
    pub(crate) comm: usize,
    pub(crate) kind: Kind,
    of: Of,
    reduction: Reduction,
    root: usize,
    /// The most elements of a block.
    count: usize,
    in_place: bool,
    /// For the values that ranks give.
    seed: u64,
    /// Ranks that await it by a future.
    asynchronous: Vec<bool>,
}

pub(crate) fn draw_config(r: &mut Random) -> CommConfig {
    let config = CommConfig::default().deadline(DEADLINE).slots(r.pick(&[2, 4, 8]));
    config.slot_bytes(r.pick(&[1024, 4096, 16384]))
}

/// Some calls of this many communicators, begun and awaited at random points of this order.
pub(crate) fn draw(
    r: &mut Random,
    comms: usize,
    ranks: usize,
    active: Mask,
    order: &mut Vec<Turn>,
) -> Vec<Call> {
    let members: Vec<usize> = active.iter().map(|rank| rank as usize).collect();
    let count = |r: &mut Random| match r.below(8) {
        0 => 0,
        1 => r.range(2000, 9000),
        _ => r.range(1, 300),
    };
    (0..r.range(0, 2 * comms))
        .map(|call| {
            let begin = r.below(order.len() + 1);
            order.insert(begin, Turn::Begin(call));
            let end = r.range(begin + 1, order.len());
            order.insert(end, Turn::Await(call));
            Call {
                comm: r.below(comms),
                kind: r.pick(&KINDS),
                of: r.pick(&TYPES),
                reduction: r.pick(&REDUCTIONS),
                root: r.pick(&members),
                count: count(r),
                in_place: r.chance(40),
                seed: r.bits(),
                asynchronous: (0..ranks).map(|_| r.chance(50)).collect(),
            }
        })
        .collect()
}

/// A call that has begun.
pub(crate) trait Begun {
    /// Waits on this thread, or awaits it, and compares the results.
    fn end(self: Box<Self>, asynchronous: bool) -> Pin<Box<dyn Future<Output = ()>>>;
}

struct Pending<B, T> {
    name: String,
    work: Work<B>,
    /// The parts of the buffers to compare, and their expected values.
    parts: Box<dyn FnOnce(B) -> Vec<Vec<T>>>,
    expected: Vec<Vec<T>>,
}

impl<B: 'static, T: Drawn> Begun for Pending<B, T> {
    fn end(self: Box<Self>, asynchronous: bool) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let (outcome, buffers) = if asynchronous { self.work.await } else { self.work.wait() };
            let name = self.name;
            let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(outcome, Outcome::default(), "{name}");
            for (part, (have, want)) in (self.parts)(buffers).iter().zip(&self.expected).enumerate() {
                assert_eq!(have.len(), want.len(), "part {part} of {name}");
                let differs = (0..have.len()).find(|i| have[*i].bits() != want[*i].bits());
                if let Some(at) = differs {
                    let [have, want] = [have[at], want[at]].map(Drawn::bits);
                    panic!("part {part} of {name}: element {at} is {have:#x}, must be {want:#x}");
                }
            }
        })
    }
}

impl Call {
    /// Begins it on this rank.
    pub(crate) fn begin(&self, comm: &Comm, active: Mask) -> Box<dyn Begun> {
        match self.of {
            Of::I8 => self.begin_of::<i8>(comm, active),
            Of::U8 => self.begin_of::<u8>(comm, active),
            Of::I32 => self.begin_of::<i32>(comm, active),
            Of::U32 => self.begin_of::<u32>(comm, active),
            Of::I64 => self.begin_of::<i64>(comm, active),
            Of::U64 => self.begin_of::<u64>(comm, active),
            Of::F16 => self.begin_of::<f16>(comm, active),
            Of::Bf16 => self.begin_of::<bf16>(comm, active),
            Of::F32 => self.begin_of::<f32>(comm, active),
            Of::F64 => self.begin_of::<f64>(comm, active),
        }
    }

    pub(crate) fn is_awaited(&self, rank: usize) -> bool {
        self.asynchronous[rank]
    }

    /// What a rank gives, or has before the call.
    fn given<T: Drawn>(&self, rank: usize, len: usize) -> Vec<T> {
        let r = &mut Random::new(self.seed.wrapping_add(rank as u64));
        (0..len).map(|_| T::draw(r)).collect()
    }

    /// The elements of the uneven block from one rank to another.
    fn uneven(&self, from: usize, to: usize) -> usize {
        Random::new(self.seed ^ (from * 64 + to + 1) as u64).below(self.count + 1)
    }

    fn begin_of<T: Drawn>(&self, comm: &Comm, active: Mask) -> Box<dyn Begun> {
        let (me, ranks, n, root) = (comm.rank() as usize, comm.ranks() as usize, self.count, self.root);
        let members: Vec<usize> = active.iter().map(|rank| rank as usize).collect();
        let (by, at, is_root) = (self.reduction, root as u32, root == me);
        let given = |rank: usize, len: usize| self.given::<T>(rank, len);
        let blank = |len: usize| self.given::<T>(ranks + me, len);
        let if_root = |len: usize| if is_root { blank(len) } else { Vec::new() };
        let folded = |len: usize| -> Vec<T> {
            let all: Vec<Vec<T>> = members.iter().map(|rank| given(*rank, len)).collect();
            let element = |i: usize| all.iter().map(|of| of[i]).collect::<Vec<T>>();
            (0..len).map(|i| T::fold(by, &element(i))).collect()
        };
        let block = |rank: usize| rank * n..(rank + 1) * n;
        // Blocks of ranks that are not members stay unchanged.
        let filled = |mut all: Vec<T>, of: &dyn Fn(usize) -> Vec<T>| {
            members.iter().for_each(|rank| all[block(*rank)].copy_from_slice(&of(*rank)));
            all
        };

        match self.kind {
            Kind::Barrier => self.pending(comm, Op::barrier(), |()| Vec::<Vec<T>>::new(), vec![]),
            Kind::Broadcast if self.in_place => {
                let buffer = if is_root { given(root, n) } else { blank(n) };
                self.pending(comm, Op::broadcast(buffer, at), one, vec![given(root, n)])
            }
            Kind::Broadcast => {
                let send = if is_root { given(root, n) } else { Vec::new() };
                let call = Op::broadcast_from(send.clone(), blank(n), at);
                self.pending(comm, call, both, vec![send, given(root, n)])
            }
            Kind::AllReduce if self.in_place => {
                self.pending(comm, Op::all_reduce_in_place(given(me, n), by), one, vec![folded(n)])
            }
            Kind::AllReduce => {
                let call = Op::all_reduce(given(me, n), blank(n), by);
                self.pending(comm, call, both, vec![given(me, n), folded(n)])
            }
            Kind::Reduce if self.in_place => {
                let expected = if is_root { folded(n) } else { given(me, n) };
                self.pending(comm, Op::reduce_in_place(given(me, n), by, at), one, vec![expected])
            }
            Kind::Reduce => {
                let call = Op::reduce(given(me, n), if_root(n), by, at);
                let expected = if is_root { folded(n) } else { Vec::new() };
                self.pending(comm, call, both, vec![given(me, n), expected])
            }
            Kind::ReduceScatter => {
                let (all, own) = (given(me, ranks * n), block(me));
                let expected = folded(ranks * n)[own.clone()].to_vec();
                if self.in_place {
                    let call = Op::reduce_scatter_in_place(all, by);
                    self.pending(comm, call, move |all: Vec<T>| vec![all[own].to_vec()], vec![expected])
                } else {
                    let call = Op::reduce_scatter(all.clone(), blank(n), by);
                    self.pending(comm, call, both, vec![all, expected])
                }
            }
            Kind::AllGather => {
                let expected = filled(blank(ranks * n), &|rank| given(rank, n));
                if self.in_place {
                    let mut all = blank(ranks * n);
                    all[block(me)].copy_from_slice(&given(me, n));
                    self.pending(comm, Op::all_gather_in_place(all), one, vec![expected])
                } else {
                    let call = Op::all_gather(given(me, n), blank(ranks * n));
                    self.pending(comm, call, both, vec![given(me, n), expected])
                }
            }
            Kind::AllGatherBlocks => {
                let counts: Vec<usize> = (0..ranks).map(|rank| self.uneven(rank, rank)).collect();
                let recv = blank(counts.iter().sum());
                let expected = laid_out(&counts, &members, recv.clone(), &|rank| given(rank, counts[rank]));
                let call = Op::all_gather_blocks(given(me, counts[me]), recv, Blocks::new(counts.clone()));
                self.pending(comm, call, both, vec![given(me, counts[me]), expected])
            }
            Kind::AllToAll => {
                let came = |rank: usize| given(rank, ranks * n)[block(me)].to_vec();
                if self.in_place {
                    let expected = filled(given(me, ranks * n), &came);
                    self.pending(comm, Op::all_to_all_in_place(given(me, ranks * n)), one, vec![expected])
                } else {
                    let expected = filled(blank(ranks * n), &came);
                    let call = Op::all_to_all(given(me, ranks * n), blank(ranks * n));
                    self.pending(comm, call, both, vec![given(me, ranks * n), expected])
                }
            }
            Kind::AllToAllBlocks => {
                let to = |from: usize| (0..ranks).map(|to| self.uneven(from, to)).collect::<Vec<usize>>();
                let from: Vec<usize> = (0..ranks).map(|from| self.uneven(from, me)).collect();
                let sent = |rank: usize| given(rank, to(rank).iter().sum());
                let came = |rank: usize| {
                    let counts = to(rank);
                    let first: usize = counts[..me].iter().sum();
                    sent(rank)[first..][..counts[me]].to_vec()
                };
                let recv = blank(from.iter().sum());
                let expected = laid_out(&from, &members, recv.clone(), &came);
                let call =
                    Op::all_to_all_blocks(sent(me), Blocks::new(to(me)), recv, Blocks::new(from.clone()));
                self.pending(comm, call, both, vec![sent(me), expected])
            }
            Kind::Gather if self.in_place => {
                let (mut buffer, mut expected) = (given(me, n), given(me, n));
                if is_root {
                    buffer = blank(ranks * n);
                    buffer[block(me)].copy_from_slice(&given(me, n));
                    expected = filled(blank(ranks * n), &|rank| given(rank, n));
                }
                self.pending(comm, Op::gather_in_place(buffer, at), one, vec![expected])
            }
            Kind::Gather => {
                let all = filled(blank(ranks * n), &|rank| given(rank, n));
                let expected = if is_root { all } else { Vec::new() };
                let call = Op::gather(given(me, n), if_root(ranks * n), at);
                self.pending(comm, call, both, vec![given(me, n), expected])
            }
            Kind::Scatter if self.in_place => {
                let all = given(root, ranks * n);
                let (buffer, expected) =
                    if is_root { (all.clone(), all) } else { (blank(n), all[block(me)].to_vec()) };
                self.pending(comm, Op::scatter_in_place(buffer, at), one, vec![expected])
            }
            Kind::Scatter => {
                let all = given(root, ranks * n);
                let expected = all[block(me)].to_vec();
                let send = if is_root { all } else { Vec::new() };
                self.pending(comm, Op::scatter(send.clone(), blank(n), at), both, vec![send, expected])
            }
            Kind::Ring => {
                let place = members.iter().position(|rank| *rank == me).expect("only members call");
                let away = |by: usize| members[(place + by) % members.len()];
                let (next, last, tag) = (away(1), away(members.len() - 1), self.seed as u32 % 5);
                let send = Op::send(given(me, n), next as u32, tag);
                let receive = Op::recv(blank(n), last as u32, tag);
                self.pending(comm, (send, receive), both, vec![given(me, n), given(last, n)])
            }
        }
    }

    fn pending<C, T>(
        &self,
        comm: &Comm,
        calls: C,
        parts: impl FnOnce(C::Buffers) -> Vec<Vec<T>> + 'static,
        expected: Vec<Vec<T>>,
    ) -> Box<dyn Begun>
    where
        C: Calls + Send + 'static,
        T: Drawn,
    {
        let name = format!("{self:?}");
        Box::new(Pending { name, work: comm.begin(calls), parts: Box::new(parts), expected })
    }
}

fn one<T>(buffer: Vec<T>) -> Vec<Vec<T>> {
    vec![buffer]
}

fn both<T>((first, second): (Vec<T>, Vec<T>)) -> Vec<Vec<T>> {
    vec![first, second]
}

/// Uneven blocks of the members, one after the other with those of all ranks.
fn laid_out<T: Copy>(
    counts: &[usize],
    members: &[usize],
    mut all: Vec<T>,
    of: &dyn Fn(usize) -> Vec<T>,
) -> Vec<T> {
    for rank in members {
        let first: usize = counts[..*rank].iter().sum();
        all[first..][..counts[*rank]].copy_from_slice(&of(*rank));
    }
    all
}

/// All calls of one communicator, begun in the common order, as the rules require, and awaited in any order.
pub(crate) async fn in_any_order(calls: Vec<&Call>, comm: &Comm, active: Mask, mut own: Random) {
    let mut begun: Vec<Box<dyn Begun>> = Vec::new();
    for call in calls {
        for _ in 0..own.below(4) {
            tokio::task::yield_now().await;
        }
        begun.push(call.begin(comm, active));
        if own.chance(30) {
            let any = own.below(begun.len());
            begun.swap_remove(any).end(true).await;
        }
    }
    own.shuffle(&mut begun);
    for call in begun {
        call.end(true).await;
    }
}
