//! One step of a worker with a communicator: a collective, or sends and receives, of a kind that the step determines,
//! and then a small sum of all ranks. Every result that may be used is compared with what the ranks must have given.

use std::collections::HashMap;
use std::time::Duration;

use epwire::comm::{AllReduceNorm, Blocks, Call, Calls, CommConfig, Number, Reduction};
use epwire::{Comm, Error, Mask, Outcome};
use half::bf16;

use crate::noise::Begun;
use crate::step::{Stop, meet_fate, report};
use crate::tensor::Tensor;
use crate::traffic::mix;
use crate::wire::{self, Op, Place, Point, Run, Setup, Trap};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    AllReduceInPlace,
    AllReduceNorm,
    Reduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Gather,
    Scatter,
    /// Each rank sends to the next one and receives from the previous one, all at once.
    Ring,
    Barrier,
    AllGatherInPlace,
    AllToAllInPlace,
    AllGatherUneven,
    AllToAllUneven,
    ReduceScatterUneven,
    ReduceInPlace,
    ReduceScatterInPlace,
    GatherInPlace,
    ScatterInPlace,
    GatherUneven,
    ScatterUneven,
    /// Two collectives, and messages round the ring among them, in one call.
    Group,
}

pub(crate) const KINDS: [Kind; 24] = [
    Kind::AllReduce,
    Kind::AllReduceInPlace,
    Kind::AllReduceNorm,
    Kind::Reduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::AllToAll,
    Kind::Broadcast,
    Kind::Gather,
    Kind::Scatter,
    Kind::Ring,
    Kind::Barrier,
    Kind::AllGatherInPlace,
    Kind::AllToAllInPlace,
    Kind::AllGatherUneven,
    Kind::AllToAllUneven,
    Kind::ReduceScatterUneven,
    Kind::ReduceInPlace,
    Kind::ReduceScatterInPlace,
    Kind::GatherInPlace,
    Kind::ScatterInPlace,
    Kind::GatherUneven,
    Kind::ScatterUneven,
    Kind::Group,
];

/// The kind of this step of a run with this seed.
pub(crate) fn kind(seed: u64, step: u32) -> Kind {
    KINDS[((seed + u64::from(step)) % KINDS.len() as u64) as usize]
}

/// The most elements of a block, and the number of offsets at which blocks begin in a table.
const LONGEST: usize = 1 << 16;
const TABLE: usize = 1 << 12;
/// Each rank gives the same numbers, multiplied by 1 to 3.
const TIMES: u32 = 3;
/// The value of a place that nobody has written.
const UNTOUCHED: u32 = u32::MAX;
/// Tensors of a step, of as many elements as a block for each rank: the most that one has is two of those and a few of
/// one block.
const HEAP_TENSORS: u64 = 4;

/// The configuration of a worker's communicator. By a coin flip of the seed tensors lie in memory of its window, where
/// peers read the large ones.
pub(crate) fn config(setup: &Setup) -> CommConfig {
    let in_window = mix(&[setup.seed, u64::MAX]).is_multiple_of(2);
    let block = (LONGEST * size_of::<u32>()) as u64;
    CommConfig::default().deadline(Duration::from_millis(setup.deadline_ms)).heap_bytes(if in_window {
        HEAP_TENSORS * block * u64::from(setup.ranks)
    } else {
        0
    })
}

/// A communicator and the data of its steps.
pub(crate) struct Collectives {
    setup: Setup,
    pub(crate) comm: Comm,
    /// A subset with all ranks of the communicator: then steps end with it.
    pub(crate) subset: Option<Comm>,
    /// The addresses of the peers' windows in this process.
    pub(crate) windows: HashMap<u32, usize>,
    /// The numbers times 0, 1 and so on, up to what all ranks give together: a block is a slice of one table, and so is
    /// a sum.
    tables: Vec<Vec<u32>>,
}

/// The shape of one operation, the same on all ranks.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kind: Kind,
    hash: u64,
    /// Elements of a block, of an uneven operation the most of them.
    len: usize,
    root: u32,
}

impl Shape {
    /// Elements of what rank `from` gives rank `to`.
    fn part(&self, from: u32, to: u32) -> usize {
        let of = match self.kind {
            Kind::AllGatherUneven | Kind::GatherUneven => [from, 0],
            Kind::ReduceScatterUneven | Kind::ScatterUneven => [to, 1],
            Kind::AllToAllUneven => [from, 2 + to],
            _ => return self.len,
        };
        // Of some ranks nothing.
        match mix(&[self.hash, of[0].into(), of[1].into()]) as usize % (self.len + 1) {
            few if few % 5 == 0 => 0,
            many => many,
        }
    }
}

/// What the call of [`Kind::Group`] consists of.
#[derive(Debug, Clone, Copy)]
enum Part {
    Sum,
    Rows,
    Sent,
    Came,
}

/// The members before and behind this one in a ring.
fn neighbours(active: &Mask, me: u32) -> [u32; 2] {
    let members: Vec<u32> = active.iter().collect();
    let place = members.iter().take_while(|rank| **rank < me).count();
    [place + members.len() - 1, place + 1].map(|place| members[place % members.len()])
}

/// An operation that is to be begun.
struct Turn<'a> {
    comm: &'a Comm,
    step: u32,
    at: &'a mut dyn FnMut(Point),
    ops: &'a mut Vec<Op>,
}

impl Turn<'_> {
    fn carry<C: Calls + Send + 'static>(self, calls: C) -> Result<(Outcome, C::Buffers), Stop> {
        self.carry_as(wire::Call::Collective, calls)
    }

    /// Begins the calls and waits for them.
    fn carry_as<C: Calls + Send + 'static>(
        self,
        call: wire::Call,
        calls: C,
    ) -> Result<(Outcome, C::Buffers), Stop> {
        let began = Begun::now();
        let work = self.comm.begin(calls);
        (self.at)(Point::Begun);
        let (outcome, buffers) = work.wait();
        let outcome = outcome?;
        self.ops.push(ended(self.step, call, began, &outcome));
        Ok((outcome, buffers))
    }
}

impl Collectives {
    pub(crate) fn new(setup: Setup, comm: Comm) -> Self {
        let numbers: Vec<u32> =
            (0..(TABLE + LONGEST) as u64).map(|i| mix(&[setup.seed, i]) as u32 & 0xfffff).collect();
        let times = |factor: u32| numbers.iter().map(|number| number * factor).collect();
        let tables = (0..=TIMES * setup.ranks).map(times).collect();
        Self { setup, comm, subset: None, windows: HashMap::new(), tables }
    }

    /// Runs step `step`; `at` is called at each point and may wait there. Appends the calls' reports to `ops`.
    pub(crate) fn step(
        &mut self,
        run: &Run,
        step: u32,
        at: &mut dyn FnMut(Point),
        ops: &mut Vec<Op>,
    ) -> Result<(), Stop> {
        let active = self.comm.membership()?.active;
        let shape = self.shape(run, step, &active);
        at(Point::BeforeSend);
        if let Some(trap) = run.trap.as_ref().filter(|trap| trap.step == step) {
            self.set_trap(trap);
        }
        self.run(&shape, &active, Turn { comm: &self.comm, step, at, ops })?;

        let last = self.subset.as_ref().unwrap_or(&self.comm);
        let (membership, of_last) = (self.comm.membership()?, last.membership()?);
        let place = |now: &epwire::Membership| (now.active, now.epoch, now.step);
        wrong_if(place(&membership) != place(&of_last), || {
            format!("{membership:?}, its subset {of_last:?}")
        })?;
        let began = Begun::now();
        let mut sum = [self.setup.rank + step];
        let outcome = last.all_reduce_in_place_blocking(&mut sum, Reduction::Sum)?;
        ops.push(ended(step, wire::Call::Total, began, &outcome));
        let total = active.iter().map(|rank| rank + step).sum::<u32>();
        wrong_if(outcome.is_complete() && sum[0] != total, || format!("a total of {}, not {total}", sum[0]))
    }

    fn shape(&self, run: &Run, step: u32, active: &Mask) -> Shape {
        let Setup { seed, max_tokens, hidden, .. } = self.setup;
        let hash = mix(&[seed, run.epoch.into(), step.into()]);
        let members: Vec<u32> = active.iter().collect();
        Shape {
            kind: kind(seed, step),
            hash,
            len: 1 + hash as usize % LONGEST.min((max_tokens * hidden) as usize),
            root: members[mix(&[hash]) as usize % members.len()],
        }
    }

    /// What rank `from` gives rank `to`.
    fn block(&self, shape: &Shape, from: u32, to: u32) -> &[u32] {
        &self.slice(shape, to, self.times(shape, from, to))[..shape.part(from, to)]
    }

    fn times(&self, shape: &Shape, from: u32, to: u32) -> u32 {
        1 + mix(&[shape.hash, from.into(), to.into()]) as u32 % TIMES
    }

    /// What rank `to` is given, so many times, and what lies behind it.
    fn slice(&self, shape: &Shape, to: u32, times: u32) -> &[u32] {
        let first = mix(&[shape.hash, to.into()]) as usize % TABLE;
        &self.tables[times as usize][first..]
    }

    /// The sum of what all ranks give rank `to`.
    fn sum(&self, shape: &Shape, active: &Mask, to: u32) -> &[u32] {
        let times = active.iter().map(|from| self.times(shape, from, to)).sum();
        &self.slice(shape, to, times)[..shape.part(to, to)]
    }

    fn blocks(&self, shape: &Shape) -> Result<Tensor<u32>, Error> {
        let to = (0..self.setup.ranks).map(|to| self.block(shape, self.setup.rank, to));
        self.tensor(&to.collect::<Vec<_>>().concat())
    }

    fn tensor<T: Number>(&self, elements: &[T]) -> Result<Tensor<T>, Error> {
        Tensor::new(&self.comm, elements)
    }

    fn run(&self, shape: &Shape, active: &Mask, turn: Turn<'_>) -> Result<(), Stop> {
        let (me, ranks, root) = (self.setup.rank, self.setup.ranks, shape.root);
        let is_root = me == root;
        let own = self.tensor(self.block(shape, me, 0))?;
        let untouched = |len: usize| self.tensor(&vec![UNTOUCHED; len]);
        let one = || untouched(shape.len);
        let all = || untouched(shape.len * ranks as usize);
        let none = || untouched(0);
        let blocks = |part: &dyn Fn(u32) -> usize| Blocks::new((0..ranks).map(part).collect::<Vec<_>>());
        match shape.kind {
            Kind::AllReduce => {
                let (outcome, (send, recv)) = turn.carry(Call::all_reduce(own, one()?, Reduction::Sum))?;
                unchanged(shape, &send, self.block(shape, me, 0))?;
                self.check_sum(shape, active, &outcome, &recv, 0)
            }
            Kind::AllReduceInPlace => {
                let (outcome, buffer) = turn.carry(Call::all_reduce_in_place(own, Reduction::Sum))?;
                self.check_sum(shape, active, &outcome, &buffer, 0)
            }
            Kind::AllReduceNorm => self.run_norm(shape, active, turn),
            Kind::Reduce => {
                let recv = if is_root { one()? } else { none()? };
                let (outcome, (_, recv)) = turn.carry(Call::reduce(own, recv, Reduction::Sum, root))?;
                if is_root { self.check_sum(shape, active, &outcome, &recv, 0) } else { Ok(()) }
            }
            Kind::ReduceScatter => {
                let call = Call::reduce_scatter(self.blocks(shape)?, one()?, Reduction::Sum);
                let (outcome, (_, recv)) = turn.carry(call)?;
                self.check_sum(shape, active, &outcome, &recv, me)
            }
            Kind::AllGather => {
                let (outcome, (_, recv)) = turn.carry(Call::all_gather(own, all()?))?;
                self.check_blocks(shape, active, &outcome, &recv, 0)
            }
            Kind::AllToAll => {
                let (outcome, (_, recv)) = turn.carry(Call::all_to_all(self.blocks(shape)?, all()?))?;
                self.check_blocks(shape, active, &outcome, &recv, me)
            }
            Kind::Gather => {
                let recv = if is_root { all()? } else { none()? };
                let (outcome, (_, recv)) = turn.carry(Call::gather(own, recv, root))?;
                if is_root { self.check_blocks(shape, active, &outcome, &recv, 0) } else { Ok(()) }
            }
            Kind::Broadcast => {
                let buffer = if is_root { own } else { one()? };
                let (outcome, buffer) = turn.carry(Call::broadcast(buffer, root))?;
                self.check_block(shape, &outcome, &buffer, root, 0)
            }
            Kind::Scatter => {
                let send = if is_root { self.blocks(shape)? } else { none()? };
                let (outcome, (_, recv)) = turn.carry(Call::scatter(send, one()?, root))?;
                self.check_block(shape, &outcome, &recv, root, me)
            }
            Kind::Barrier => turn.carry(Call::barrier()).map(drop),
            Kind::AllGatherInPlace => {
                let mut buffer = all()?;
                buffer[me as usize * shape.len..][..shape.len].copy_from_slice(&own);
                let (outcome, buffer) = turn.carry(Call::all_gather_in_place(buffer))?;
                self.check_blocks(shape, active, &outcome, &buffer, 0)
            }
            Kind::AllToAllInPlace => {
                let mut buffer = self.blocks(shape)?;
                for absent in (0..ranks).filter(|rank| !active.contains(*rank)) {
                    buffer[absent as usize * shape.len..][..shape.len].fill(UNTOUCHED);
                }
                let (outcome, buffer) = turn.carry(Call::all_to_all_in_place(buffer))?;
                self.check_blocks(shape, active, &outcome, &buffer, me)
            }
            Kind::AllGatherUneven => {
                let whole = blocks(&|from| shape.part(from, 0));
                let (outcome, (_, recv)) = turn.carry(Call::all_gather_blocks(own, all()?, whole))?;
                self.check_blocks(shape, active, &outcome, &recv, 0)
            }
            Kind::AllToAllUneven => {
                let (to, from) = (blocks(&|to| shape.part(me, to)), blocks(&|from| shape.part(from, me)));
                let call = Call::all_to_all_blocks(self.blocks(shape)?, to, all()?, from);
                let (outcome, (_, recv)) = turn.carry(call)?;
                self.check_blocks(shape, active, &outcome, &recv, me)
            }
            Kind::ReduceScatterUneven => {
                let parts = blocks(&|to| shape.part(me, to));
                let recv = untouched(shape.part(me, me))?;
                let call = Call::reduce_scatter_blocks(self.blocks(shape)?, recv, parts, Reduction::Sum);
                let (outcome, (_, recv)) = turn.carry(call)?;
                self.check_sum(shape, active, &outcome, &recv, me)
            }
            Kind::ReduceInPlace => {
                let (outcome, buffer) = turn.carry(Call::reduce_in_place(own, Reduction::Sum, root))?;
                match is_root {
                    true => self.check_sum(shape, active, &outcome, &buffer, 0),
                    false => unchanged(shape, &buffer, self.block(shape, me, 0)),
                }
            }
            Kind::ReduceScatterInPlace => {
                let call = Call::reduce_scatter_in_place(self.blocks(shape)?, Reduction::Sum);
                let (outcome, buffer) = turn.carry(call)?;
                let sum = &buffer[me as usize * shape.len..][..shape.len];
                self.check_sum(shape, active, &outcome, sum, me)
            }
            Kind::GatherInPlace => {
                let mut buffer = if is_root { all()? } else { self.tensor(&own)? };
                if is_root {
                    buffer[me as usize * shape.len..][..shape.len].copy_from_slice(&own);
                }
                let (outcome, buffer) = turn.carry(Call::gather_in_place(buffer, root))?;
                match is_root {
                    true => self.check_blocks(shape, active, &outcome, &buffer, 0),
                    false => unchanged(shape, &buffer, &own),
                }
            }
            Kind::ScatterInPlace => {
                let buffer = if is_root { self.blocks(shape)? } else { one()? };
                let (outcome, buffer) = turn.carry(Call::scatter_in_place(buffer, root))?;
                match is_root {
                    true => unchanged(shape, &buffer, &self.blocks(shape)?),
                    false => self.check_block(shape, &outcome, &buffer, root, me),
                }
            }
            Kind::GatherUneven => {
                let whole = blocks(&|from| shape.part(from, 0));
                let recv = if is_root { all()? } else { none()? };
                let (outcome, (_, recv)) = turn.carry(Call::gather_blocks(own, recv, whole, root))?;
                if is_root { self.check_blocks(shape, active, &outcome, &recv, 0) } else { Ok(()) }
            }
            Kind::ScatterUneven => {
                let parts = blocks(&|to| shape.part(root, to));
                let send = if is_root { self.blocks(shape)? } else { none()? };
                let recv = untouched(shape.part(root, me))?;
                let (outcome, (_, recv)) = turn.carry(Call::scatter_blocks(send, recv, parts, root))?;
                self.check_block(shape, &outcome, &recv, root, me)
            }
            Kind::Group => {
                let [before, next] = neighbours(active, me);
                let mut gathered = all()?;
                gathered[me as usize * shape.len..][..shape.len].copy_from_slice(&own);
                let mut calls = vec![
                    (Part::Sum, Call::all_reduce_in_place(self.tensor(&own)?, Reduction::Sum)),
                    (Part::Rows, Call::all_gather_in_place(gathered)),
                ];
                // Each rank lists its messages at places of its own.
                let messages = [
                    (Part::Sent, Call::send(own, next, turn.step)),
                    (Part::Came, Call::recv(one()?, before, turn.step)),
                ];
                for (i, message) in (0..).zip(messages) {
                    let place = mix(&[shape.hash, me.into(), i]) as usize % (calls.len() + 1);
                    calls.insert(place, message);
                }
                let (parts, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
                let (outcome, buffers) = turn.carry(calls)?;
                parts.into_iter().zip(buffers).try_for_each(|(part, buffer)| match part {
                    Part::Sum => self.check_sum(shape, active, &outcome, &buffer, 0),
                    Part::Rows => self.check_blocks(shape, active, &outcome, &buffer, 0),
                    Part::Sent => unchanged(shape, &buffer, self.block(shape, me, 0)),
                    Part::Came => self.check_block(shape, &outcome, &buffer, before, 0),
                })
            }
            Kind::Ring => {
                let [before, next] = neighbours(active, me);
                let calls = (Call::send(own, next, turn.step), Call::recv(one()?, before, turn.step));
                let (outcome, (_, recv)) = turn.carry_as(wire::Call::Exchange, calls)?;
                self.check_block(shape, &outcome, &recv, before, 0)
            }
        }
    }

    /// A sum of whole numbers, added to a residual of ones, in rows of eight: so few and small that every step of it but
    /// the last ones is exact.
    fn run_norm(&self, shape: &Shape, active: &Mask, turn: Turn<'_>) -> Result<(), Stop> {
        const CHANNELS: usize = 8;
        let shape = &Shape { len: shape.len.next_multiple_of(CHANNELS), ..*shape };
        let numbers = |times: u32| -> Vec<bf16> {
            self.slice(shape, 0, 1)[..shape.len]
                .iter()
                .map(|x| bf16::from_f32((x % 16 * times) as f32))
                .collect()
        };
        let given = numbers(self.times(shape, self.setup.rank, 0));
        let all = |value: bf16| self.tensor(&vec![value; shape.len]);
        let weight = vec![bf16::ONE; CHANNELS];
        let (recv, out) = (all(bf16::ZERO)?, all(bf16::ZERO)?);
        let call = AllReduceNorm::new(self.tensor(&given)?, recv, weight, out, CHANNELS);
        let call = call.residual(all(bf16::ONE)?);
        let (outcome, found) = turn.carry(call)?;
        wrong_if(*found.send != *given, || format!("{shape:?}: the input has changed"))?;
        if !outcome.is_complete() {
            return Ok(());
        }
        let sum = numbers(active.iter().map(|from| self.times(shape, from, 0)).sum());
        let residual: Vec<f32> = sum.iter().map(|x| x.to_f32() + 1.0).collect();
        let normalised = residual.chunks_exact(CHANNELS).flat_map(|row| {
            let squares: f32 = row.iter().map(|x| x * x).sum();
            let root = 1.0 / (squares / CHANNELS as f32 + 1e-6).sqrt();
            row.iter().map(move |x| bf16::from_f32(x * root))
        });
        wrong_if(*found.recv != *sum, || format!("{shape:?}: a complete sum is wrong"))?;
        wrong_if(!found.residual.iter().map(|x| x.to_f32()).eq(residual.iter().copied()), || {
            format!("{shape:?}: the residual of a complete sum is wrong")
        })?;
        wrong_if(!found.out.iter().copied().eq(normalised), || {
            format!("{shape:?}: what is normalised of a complete sum is wrong")
        })
    }

    /// A reduction that lacks nobody must be exact; one that lacks a member has no result.
    fn check_sum(
        &self,
        shape: &Shape,
        active: &Mask,
        outcome: &Outcome,
        found: &[u32],
        to: u32,
    ) -> Result<(), Stop> {
        let sum = self.sum(shape, active, to);
        wrong_if(outcome.is_complete() && found != sum, || {
            let at = found.iter().zip(sum).position(|(found, sum)| found != sum);
            format!("{shape:?}: element {at:?} of a complete sum is wrong")
        })
    }

    /// A row for each rank: exact for all members that are not missing, and unchanged where there is no row.
    fn check_blocks(
        &self,
        shape: &Shape,
        active: &Mask,
        outcome: &Outcome,
        found: &[u32],
        to: u32,
    ) -> Result<(), Stop> {
        let mut rest = found;
        for from in 0..self.setup.ranks {
            let (row, behind) = rest.split_at(shape.part(from, to));
            rest = behind;
            if active.contains(from) {
                self.check_block(shape, outcome, row, from, to)?;
            } else {
                let alone = row.iter().all(|x| *x == UNTOUCHED);
                wrong_if(!alone, || format!("{shape:?}: the row of rank {from}, no member, was written"))?;
            }
        }
        wrong_if(rest.iter().any(|x| *x != UNTOUCHED), || format!("{shape:?}: what lies behind was written"))
    }

    fn check_block(
        &self,
        shape: &Shape,
        outcome: &Outcome,
        found: &[u32],
        from: u32,
        to: u32,
    ) -> Result<(), Stop> {
        let expected = self.block(shape, from, to);
        wrong_if(!outcome.missing.contains(from) && found != expected, || {
            let at = expected.iter().zip(found).position(|(expected, found)| expected != found);
            format!("{shape:?}: element {at:?} of what rank {from} gave is wrong: {outcome:?}")
        })
    }

    /// See c/coll/layout.h for the areas of a window.
    fn set_trap(&self, trap: &Trap) {
        let plan = self.comm.plan();
        let ring = plan.ring_bytes / u64::from(2 * self.setup.ranks);
        let offset = match trap.place {
            Place::Message => plan.control_bytes + u64::from(self.setup.rank) * ring,
            _ => crate::step::SIGNAL_WORDS,
        };
        meet_fate(&self.windows, trap, offset);
    }
}

/// Memory of which an operation writes nothing here, whatever happens.
fn unchanged(shape: &Shape, found: &[u32], before: &[u32]) -> Result<(), Stop> {
    wrong_if(found != before, || format!("{shape:?}: a buffer that is only read has changed"))
}

fn wrong_if(wrong: bool, text: impl FnOnce() -> String) -> Result<(), Stop> {
    if wrong { Err(Stop::Wrong(text())) } else { Ok(()) }
}

/// Collectives do not report when which peer's part came: nobody waits longer than two deadlines.
fn ended(step: u32, call: wire::Call, began: Begun, outcome: &Outcome) -> Op {
    let mut op = report(step, call, began, outcome, &[]);
    op.last_arrival_us = op.elapsed_us;
    op
}
